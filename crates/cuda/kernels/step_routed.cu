// The first half of the experts of a step, which chooses them itself: where every record is in device memory, nothing
// is asked for and nothing awaited, and a kernel of one warp between the router and the experts would only be one more
// wait of the whole device. Each block makes the same choice, by the same operations as `route`; the first leaves it
// for the second half.
#include "routing.cuh"
#include "experts_four.cuh"

struct StepRoutedArguments {
    StepExpertArguments step;
    RouteArguments route;
};

// Leaves the choice of a token for other kernels. By a warp.
__device__ inline void leave_here(const RouteArguments& r, uint32_t token, uint32_t lane) {
    Choice choice = r.experts <= 256 ? choose_experts<8>(r, token, lane) : choose_experts<16>(r, token, lane);
    if (lane >= r.k) return;
    leave_choice(r, token, lane, choice);
    // The second half reads it before it awaits this kernel, which releases it after the barrier that follows.
    __threadfence();
}

// The expert of rank `lane` of a token. By a warp.
__device__ inline uint32_t select_here(const RouteArguments& r, uint32_t token, uint32_t lane) {
    return r.experts <= 256 ? select_experts<8>(r, token, lane) : select_experts<16>(r, token, lane);
}

template <bool NARROW>
__device__ inline void routed_inner_block(const StepRoutedArguments& both) {
    __shared__ uint32_t own;
    const RouteArguments& r = both.route;
    inner_block<NARROW>(both.step, [&](size_t, uint32_t& expert) {
        // One warp for a choice: as many as there are would take each other's turns.
        uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        await_inputs();
        if (warp == 0) {
            uint32_t id = select_here(r, blockIdx.z, lane);
            if (ascending_place(id, lane, r.k) == blockIdx.y && lane < r.k) own = id;
        } else if (warp == 1 && blockIdx.x == 0 && blockIdx.y == 0) {
            leave_here(r, blockIdx.z, lane);
        }
        __syncthreads();
        release_next();
        expert = own;
        return __ldcg(r.table + expert);
    });
}

// Grid, threads and shared memory: as of `step_inner`.
extern "C" __global__ void __launch_bounds__(INNER_THREADS, 2) step_inner_routed(
    const __grid_constant__ StepRoutedArguments a) {
    routed_inner_block<false>(a);
}

// Grid, threads and shared memory: as of `step_inner_narrow`.
extern "C" __global__ void __launch_bounds__(INNER_THREADS, 2) step_inner_narrow_routed(
    const __grid_constant__ StepRoutedArguments a) {
    routed_inner_block<true>(a);
}

// A warp chooses for each token of a pass; SEVERAL are half of a block's warps.
template <bool NARROW, bool FOUR>
__device__ inline void several_routed_block(const StepRoutedArguments& both) {
    const RouteArguments& r = both.route;
    several_inner_block<NARROW, FOUR>(both.step, [&](uint32_t first_token, uint32_t tokens, uint32_t* chosen) {
        uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        await_inputs();
        if (warp < tokens) {
            uint32_t id = select_here(r, first_token + warp, lane), place = ascending_place(id, lane, r.k);
            if (lane < r.k) chosen[warp * r.k + place] = id;
        } else if (blockIdx.x == 0 && warp - tokens < tokens) {
            leave_here(r, first_token + warp - tokens, lane);
        }
        __syncthreads();
        release_next();
        return [&r, chosen](uint32_t p, uint64_t& address) {
            address = __ldcg(r.table + chosen[p]);
            return chosen[p];
        };
    });
}

// Grid, threads and shared memory: as of `several_inner`.
#define SEVERAL_ROUTED(NAME, NARROW, FOUR)                                                                         \
    extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) several_inner##NAME##_routed(                   \
        const __grid_constant__ StepRoutedArguments a) {                                                          \
        several_routed_block<NARROW, FOUR>(a);                                                                     \
    }

SEVERAL_ROUTED(, false, false)
SEVERAL_ROUTED(_narrow, true, false)
SEVERAL_ROUTED(_four, false, true)
SEVERAL_ROUTED(_four_narrow, true, true)

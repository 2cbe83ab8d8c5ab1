// The kernels of a step of few tokens. Each does what lies between two points where the whole device has to wait. Plain
// counterparts, one operation each, are in linear.cu, mixer.cu and mixture.cu.
#include "step.cuh"

extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) step_linear(
    const __grid_constant__ StepLinearArguments a) {
    step_linear_block<false>(a);
}

extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) step_linear_any(
    const __grid_constant__ StepLinearArguments a) {
    step_linear_block<true>(a);
}

// Grid: (tiles of 16 rows, k, tokens), 256 threads; shared: the staged stream.
extern "C" __global__ void __launch_bounds__(INNER_THREADS, 2) step_inner(
    const __grid_constant__ StepExpertArguments a) {
    inner_block<false>(a);
}

// Grid: (tiles of 8 rows by `rounds`, k, tokens), 256 threads; shared: the staged stream.
extern "C" __global__ void __launch_bounds__(INNER_THREADS, 2) step_inner_narrow(
    const __grid_constant__ StepExpertArguments a) {
    inner_block<true>(a);
}

// Adds the experts' products of down, weighted, and the shared expert's. Grid: (row tiles of the stream by those that a
// block works on at once, tokens), 512 threads; shared: k staged inner vectors and that of the shared expert.
extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) step_outer(
    const __grid_constant__ StepExpertArguments a) {
    extern __shared__ float staged[];
    __shared__ Partial<STEP_THREADS> partial;
    __shared__ Routed routed;
    uint32_t token = blockIdx.y, shares = STEP_WARPS_SHIFT - a.tiles_shift, splits = 1 << shares;
    uint32_t at_once = 1 << a.tiles_shift, member = threadIdx.x / 32 >> shares, split = threadIdx.x / 32 % splits;
    OuterStage s = outer_stage(a, token, blockIdx.x * at_once + member, UNIT);
    bool known;
    auto place = [&](const Matrix& down) { routed.down[threadIdx.x] = pieces_of(down); };
    if (!find_routed(a, token, routed.factor, known, place)) return;
    uint32_t width = a.experts.down.columns;
    bool wide = a.experts.down.bits <= 4 && is_wide<true>(width);
    uint32_t first = first_unit(s.every, split, shares, wide), last = first_unit(s.every, split + 1, shares, wide);
    float result[2] = {0.0f, 0.0f};
    uint32_t end = min(last, s.total);
    switch (a.experts.down.bits) {
        case 2: outer_routed<2>(s, routed, a.experts.down, known, first, end, staged, result); break;
        case 3: outer_routed<3>(s, routed, a.experts.down, known, first, end, staged, result); break;
        case 4: outer_routed<4>(s, routed, a.experts.down, known, first, end, staged, result); break;
        case 5: outer_routed<5>(s, routed, a.experts.down, known, first, end, staged, result); break;
        case 6: outer_routed<6>(s, routed, a.experts.down, known, first, end, staged, result); break;
        default: outer_routed<8>(s, routed, a.experts.down, known, first, end, staged, result); break;
    }
    if (last > s.total) {
        float factor = sigmoid(__ldcg(a.shared_gate + token));
        first = max(first, s.total) - s.total, last -= s.total;
        switch (a.down.bits) {
            case 2: outer_shared<2>(s, a.down, factor, first, last, staged, result); break;
            case 3: outer_shared<3>(s, a.down, factor, first, last, staged, result); break;
            case 4: outer_shared<4>(s, a.down, factor, first, last, staged, result); break;
            case 5: outer_shared<5>(s, a.down, factor, first, last, staged, result); break;
            case 6: outer_shared<6>(s, a.down, factor, first, last, staged, result); break;
            default: outer_shared<8>(s, a.down, factor, first, last, staged, result); break;
        }
    }
    add_mixture(a, token, at_once, splits, partial, result);
}

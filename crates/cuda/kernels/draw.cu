// What a sampler needs of a row of logits: the most likely tokens by rank, and sums of the weights of all tokens, to
// the bit as the host computes them (engine::sampling), so that the host draws the token that it would draw from
// the whole row.
#include "common.cuh"

struct DrawArguments {
    const float* logits; // [columns]
    uint64_t* partial;   // [lists][KEPT]
    uint64_t* out;       // [KEPT] ranks, descending, then a sum for every WEIGHED tokens
    uint64_t least;      // smaller weights count as 0
    uint32_t columns;
    uint32_t lists;
    float temperature;
    uint32_t padding;
};

__device__ inline void exchange(uint64_t* keys, uint32_t low, uint32_t high, bool descending) {
    uint64_t a = keys[low], b = keys[high];
    if ((a < b) == descending) keys[low] = b, keys[high] = a;
}

// Every `gap`th of `lists` lists, each rising and falling at most once, becomes descending.
__device__ inline void settle_lists(uint64_t* keys, uint32_t lists, uint32_t gap) {
    for (uint32_t stride = KEPT / 2; stride > 0; stride /= 2) {
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < lists / gap * (KEPT / 2); i += blockDim.x) {
            uint32_t pair = i % (KEPT / 2), base = i / (KEPT / 2) * gap * KEPT;
            uint32_t low = base + pair / stride * 2 * stride + pair % stride;
            exchange(keys, low, low + stride, true);
        }
    }
    __syncthreads();
}

// The first of `lists` descending lists (a power of two of them) becomes that of the KEPT largest of all.
__device__ inline void join_lists(uint64_t* keys, uint32_t lists) {
    for (uint32_t gap = 1; gap < lists; gap *= 2) {
        // The larger of the first of one and the last of the other, and so on: the KEPT largest of two lists.
        for (uint32_t i = threadIdx.x; i < lists / (2 * gap) * KEPT; i += blockDim.x) {
            uint32_t base = i / KEPT * 2 * gap * KEPT, place = i % KEPT;
            uint64_t other = keys[base + gap * KEPT + KEPT - 1 - place];
            if (other > keys[base + place]) keys[base + place] = other;
        }
        settle_lists(keys, lists, 2 * gap);
    }
}

// Grid: (columns / RANKED), 256 threads.
extern "C" __global__ void __launch_bounds__(256) rank_partial(const __grid_constant__ DrawArguments a) {
    __shared__ uint64_t keys[RANKED];
    for (uint32_t i = threadIdx.x; i < RANKED; i += blockDim.x) {
        uint32_t at = blockIdx.x * RANKED + i;
        keys[i] = at < a.columns ? rank_of(a.logits[at], at) : 0;
    }
    for (uint32_t size = 2; size <= KEPT; size *= 2) {
        for (uint32_t stride = size / 2; stride > 0; stride /= 2) {
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < RANKED / 2; i += blockDim.x) {
                uint32_t low = i / stride * 2 * stride + i % stride;
                exchange(keys, low, low + stride, size == KEPT || (low & size) == 0);
            }
        }
    }
    __syncthreads();
    join_lists(keys, RANKED / KEPT);
    for (uint32_t i = threadIdx.x; i < KEPT; i += blockDim.x) a.partial[blockIdx.x * KEPT + i] = keys[i];
}

// Grid: 1, 1024 threads.
extern "C" __global__ void __launch_bounds__(1024) rank_final(const __grid_constant__ DrawArguments a) {
    __shared__ uint64_t keys[LISTS / 2 * KEPT];
    // The first join reads device memory: two lists become one on the way.
    for (uint32_t i = threadIdx.x; i < LISTS / 2 * KEPT; i += blockDim.x) {
        uint32_t list = i / KEPT * 2, place = i % KEPT;
        uint64_t mine = list < a.lists ? a.partial[list * KEPT + place] : 0;
        uint64_t other = list + 1 < a.lists ? a.partial[(list + 1) * KEPT + KEPT - 1 - place] : 0;
        keys[i] = mine > other ? mine : other;
    }
    settle_lists(keys, LISTS / 2, 1);
    join_lists(keys, LISTS / 2);
    for (uint32_t i = threadIdx.x; i < KEPT; i += blockDim.x) a.out[i] = keys[i];
}

// e^x for x <= 0, operation by operation as engine::sampling::math has it.
__device__ inline float exp_negative(float x) {
    constexpr float LEAST = -87.0f, LOG2_E = 1.44269504088896340736f, ROUND = 12582912.0f;
    float clamped = x > LEAST ? x : LEAST;
    float n = __fadd_rn(__fmul_rn(clamped, LOG2_E), ROUND);
    float scale = __uint_as_float((__float_as_uint(n) << 23) + 0x3f800000u);
    n = __fsub_rn(n, ROUND);
    float r = __fsub_rn(__fsub_rn(clamped, __fmul_rn(n, 0.6933594f)), __fmul_rn(n, -2.1219444e-4f));
    float p = 1.0f / 5040.0f;
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 720.0f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 120.0f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 24.0f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 6.0f);
    p = __fadd_rn(__fmul_rn(p, r), 0.5f);
    p = __fadd_rn(__fmul_rn(__fmul_rn(p, r), r), r);
    float value = __fmul_rn(__fadd_rn(p, 1.0f), scale);
    return x > LEAST ? value : 0.0f;
}

// Sums of weights floor(2^40 e^((logit - largest) / temperature)), after the ranks. Grid: (columns / WEIGHED), 256
// threads.
extern "C" __global__ void __launch_bounds__(256) weigh(const __grid_constant__ DrawArguments a) {
    __shared__ uint64_t sums[8];
    uint32_t ordered = uint32_t(a.out[0] >> 32);
    float largest = __uint_as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
    uint64_t sum = 0;
    for (uint32_t i = threadIdx.x; i < WEIGHED; i += blockDim.x) {
        uint32_t at = blockIdx.x * WEIGHED + i;
        if (at >= a.columns) break;
        float distance = __fdiv_rn(__fsub_rn(a.logits[at], largest), a.temperature);
        uint64_t weight = __float2ull_rz(__fmul_rn(exp_negative(distance), 1099511627776.0f));
        if (weight >= a.least) sum += weight;
    }
    for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(FULL, sum, offset);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < 8; i++) sum += sums[i];
    a.out[KEPT + blockIdx.x] = sum;
}

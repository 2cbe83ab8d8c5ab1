// What some families do to the stream in addition to what blocks add to it: norms of outputs that are then added,
// factors, capped logits; and norms of heads without a weight.
#include "common.cuh"

struct NormRowsArguments {
    const float* x;              // [rows, width]
    const float* weight;         // [width]; null for ones
    float* out;                  // [rows, width]; may be x where nothing is added
    uint32_t width;
    float epsilon;
    uint32_t add;                // 1: out += the norm
    uint32_t padding;
};

// Grid: rows, a multiple of 32 threads.
extern "C" __global__ void norm_rows(const __grid_constant__ NormRowsArguments a) {
    __shared__ float scratch[32];
    await_inputs();
    release_next();
    const float* x = a.x + size_t(blockIdx.x) * a.width;
    float* out = a.out + size_t(blockIdx.x) * a.width;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < a.width; i += blockDim.x) {
        float v = __ldcg(x + i);
        sum += v * v;
    }
    float scale = rsqrtf(block_sum(sum, scratch) / float(a.width) + a.epsilon);
    for (uint32_t i = threadIdx.x; i < a.width; i += blockDim.x) {
        float v = __ldcg(x + i) * scale;
        if (a.weight) v *= a.weight[i];
        out[i] = a.add ? __ldcg(out + i) + v : v;
    }
}

struct ScaleArguments {
    float* x;
    const float* factor;         // one number; null where `constant` is the factor
    uint64_t count;
    float constant;
    uint32_t padding;
};

// x *= factor
extern "C" __global__ void scale_values(const __grid_constant__ ScaleArguments a) {
    await_inputs();
    release_next();
    uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < a.count) a.x[i] = __ldcg(a.x + i) * (a.factor ? *a.factor : a.constant);
}

struct CapArguments {
    float* x;
    uint64_t count;
    float cap;
    uint32_t padding;
};

// x = cap tanh(x / cap)
extern "C" __global__ void cap_values(const __grid_constant__ CapArguments a) {
    await_inputs();
    release_next();
    uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < a.count) a.x[i] = a.cap * tanhf(__ldcg(a.x + i) / a.cap);
}

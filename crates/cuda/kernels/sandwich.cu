// What some families do to the stream in addition to what blocks add to it: norms of outputs that are then added,
// factors, capped logits; and norms of heads without a weight.
#include "common.cuh"

// 1 / rms of a row. By all threads of a block.
__device__ inline float inverse_rms(const float* x, uint32_t width, float epsilon, float* scratch) {
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) {
        float v = __ldcg(x + i);
        sum += v * v;
    }
    return rsqrtf(block_sum(sum, scratch) / float(width) + epsilon);
}

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
    float scale = inverse_rms(x, a.width, a.epsilon, scratch);
    for (uint32_t i = threadIdx.x; i < a.width; i += blockDim.x) {
        float v = __ldcg(x + i) * scale;
        if (a.weight) v *= a.weight[i];
        out[i] = a.add ? __ldcg(out + i) + v : v;
    }
}

struct BetweenArguments {
    float* branch;               // [tokens, width]: becomes its norm
    const float* branch_weight;  // [width]
    const float* x;              // [tokens, width]
    const float* first_weight;   // [width]: of two norms of x
    const float* second_weight;
    float* first;                // [tokens, width]
    float* second;
    float* zeros;                // [tokens, width]: what the mixture then adds to
    uint32_t width;
    float epsilon;
};

// The norms between a dense network and a mixture. Grid: (tokens, 2), 512 threads.
extern "C" __global__ void norm_between(const __grid_constant__ BetweenArguments a) {
    __shared__ float scratch[32];
    await_inputs();
    release_next();
    size_t row = size_t(blockIdx.x) * a.width;
    const float* x = (blockIdx.y == 0 ? a.x : a.branch) + row;
    float scale = inverse_rms(x, a.width, a.epsilon, scratch);
    for (uint32_t i = threadIdx.x; i < a.width; i += blockDim.x) {
        float v = __ldcg(x + i) * scale;
        if (blockIdx.y == 1) {
            a.branch[row + i] = v * a.branch_weight[i];
            a.zeros[row + i] = 0.0f;
        } else {
            a.first[row + i] = v * a.first_weight[i];
            a.second[row + i] = v * a.second_weight[i];
        }
    }
}

struct JoinArguments {
    const float* x;              // [tokens, width]
    const float* weight;         // [width]: of its norm
    float* branch;               // [tokens, width] += that
    const float* branch_weight;  // [width]: of the norm of the sum
    float* out;                  // [tokens, width] += that
    const float* factor;         // one number, times which it then is
    uint32_t width;
    float epsilon;
};

// The end of a layer with two networks. A thread reads what it has written. Grid: tokens, 512 threads.
extern "C" __global__ void norm_join(const __grid_constant__ JoinArguments a) {
    __shared__ float scratch[32];
    await_inputs();
    release_next();
    size_t row = size_t(blockIdx.x) * a.width;
    float scale = inverse_rms(a.x + row, a.width, a.epsilon, scratch), sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < a.width; i += blockDim.x) {
        float v = __ldcg(a.branch + row + i) + __ldcg(a.x + row + i) * scale * a.weight[i];
        a.branch[row + i] = v;
        sum += v * v;
    }
    scale = rsqrtf(block_sum(sum, scratch) / float(a.width) + a.epsilon);
    float factor = *a.factor;
    for (uint32_t i = threadIdx.x; i < a.width; i += blockDim.x) {
        float v = a.branch[row + i] * scale * a.branch_weight[i];
        a.out[row + i] = (__ldcg(a.out + row + i) + v) * factor;
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

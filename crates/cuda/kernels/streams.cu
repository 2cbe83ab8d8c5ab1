// Several residual streams for each token: what a block reads of them, how its output is given back, and the one that
// the output head reads. The weights follow from the products of the streams with a site's matrix.
#include "common.cuh"

struct WeighStreamsArguments {
    const float* streams;        // [tokens, count, hidden]
    float* weights;              // [tokens, outputs]: products with the site's matrix, in place
    const float* base;           // [outputs]
    const float* scale;          // [3], or [1] for reads alone
    uint32_t hidden;
    uint32_t count;              // streams, at most STREAMS_LIMIT
    uint32_t iterations;         // that balance rows and columns
    uint32_t reads_alone;        // 1: outputs are weights of the input; 0: of input, output, mixture by rows
    float epsilon;               // of weights and their sums
    float norm_epsilon;          // of the mean square
};

// Divides each number of a square matrix by the sum of its row or column, plus epsilon. By a warp.
__device__ inline void balance(float* mix, uint32_t n, bool rows, float epsilon) {
    uint32_t lane = threadIdx.x % 32;
    float kept[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t i = lane + 32 * j, first = rows ? i / n * n : i % n;
        if (i >= n * n) continue;
        float sum = 0.0f;
        for (uint32_t k = 0; k < n; k++) sum += mix[first + k * (rows ? 1 : n)];
        kept[j] = mix[i] / (sum + epsilon);
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 2; j++) {
        if (lane + 32 * j < n * n) mix[lane + 32 * j] = kept[j];
    }
    __syncwarp();
}

// Grid: tokens, 1024 threads: a step has one block, whose loads are all it waits for.
extern "C" __global__ void __launch_bounds__(1024) weigh_streams(const __grid_constant__ WeighStreamsArguments a) {
    await_inputs();
    release_next();
    __shared__ float scratch[32], mix[STREAMS_LIMIT * STREAMS_LIMIT];
    uint32_t n = a.count, width = n * a.hidden, outputs = a.reads_alone ? n : n * (n + 2);
    const float* x = a.streams + size_t(blockIdx.x) * width;
    float* weights = a.weights + size_t(blockIdx.x) * outputs;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) sum = fmaf(x[i], x[i], sum);
    float factor = 1.0f / sqrtf(block_sum(sum, scratch) / float(width) + a.norm_epsilon);
    uint32_t lane = threadIdx.x;
    if (lane >= 32) return;
    if (lane < n) weights[lane] = sigmoid(weights[lane] * factor * a.scale[0] + a.base[lane]) + a.epsilon;
    if (a.reads_alone) return;
    if (lane < n) weights[n + lane] = 2.0f * sigmoid(weights[n + lane] * factor * a.scale[1] + a.base[n + lane]);
    for (uint32_t i = lane; i < n * n; i += 32) {
        mix[i] = weights[2 * n + i] * factor * a.scale[2] + a.base[2 * n + i];
    }
    __syncwarp();
    if (lane < n) {
        float most = -INFINITY, total = 0.0f;
        for (uint32_t j = 0; j < n; j++) most = fmaxf(most, mix[lane * n + j]);
        for (uint32_t j = 0; j < n; j++) total += mix[lane * n + j] = expf(mix[lane * n + j] - most);
        for (uint32_t j = 0; j < n; j++) mix[lane * n + j] = mix[lane * n + j] / total + a.epsilon;
    }
    __syncwarp();
    balance(mix, n, false, a.epsilon);
    for (uint32_t pass = 1; pass < a.iterations; pass++) {
        balance(mix, n, true, a.epsilon);
        balance(mix, n, false, a.epsilon);
    }
    for (uint32_t i = lane; i < n * n; i += 32) weights[2 * n + i] = mix[i];
}

struct StreamsArguments {
    float* streams;              // [tokens, count, hidden]
    const float* weights;        // [tokens, outputs]
    float* block;                // [tokens, hidden]: a block's input, or its output
    uint32_t hidden;
    uint32_t count;
    uint32_t outputs;
    uint32_t padding;
};

// The sum of the streams that a block reads. Grid: (blocks of 256 values, tokens), 256 threads.
extern "C" __global__ void collapse_streams(const __grid_constant__ StreamsArguments a) {
    await_inputs();
    release_next();
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.hidden) return;
    const float* x = a.streams + size_t(blockIdx.y) * a.count * a.hidden + i;
    const float* weights = a.weights + size_t(blockIdx.y) * a.outputs;
    float sum = 0.0f;
    for (uint32_t s = 0; s < a.count; s++) sum = fmaf(weights[s], x[size_t(s) * a.hidden], sum);
    a.block[size_t(blockIdx.y) * a.hidden + i] = sum;
}

// Every stream becomes the block's row. Grid as above.
extern "C" __global__ void spread_streams(const __grid_constant__ StreamsArguments a) {
    await_inputs();
    release_next();
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.hidden) return;
    float* x = a.streams + size_t(blockIdx.y) * a.count * a.hidden + i;
    float value = a.block[size_t(blockIdx.y) * a.hidden + i];
    for (uint32_t s = 0; s < a.count; s++) x[size_t(s) * a.hidden] = value;
}

// Stream j becomes writes[j] * block + sum over i of mix[i][j] * stream i. Grid as above.
extern "C" __global__ void mix_streams(const __grid_constant__ StreamsArguments a) {
    await_inputs();
    release_next();
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, n = a.count;
    if (i >= a.hidden) return;
    float* x = a.streams + size_t(blockIdx.y) * n * a.hidden + i;
    const float* writes = a.weights + size_t(blockIdx.y) * a.outputs + n;
    const float* mix = writes + n;
    float output = a.block[size_t(blockIdx.y) * a.hidden + i], before[STREAMS_LIMIT];
#pragma unroll
    for (uint32_t s = 0; s < STREAMS_LIMIT; s++) before[s] = s < n ? x[size_t(s) * a.hidden] : 0.0f;
    for (uint32_t to = 0; to < n; to++) {
        float sum = 0.0f;
#pragma unroll
        for (uint32_t s = 0; s < STREAMS_LIMIT; s++) {
            if (s < n) sum = fmaf(mix[s * n + to], before[s], sum);
        }
        x[size_t(to) * a.hidden] = fmaf(writes[to], output, sum);
    }
}

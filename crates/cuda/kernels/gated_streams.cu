// Residual streams that gates read: each normed by itself, a gate for every value of what a block reads, and what each
// stream takes of a block's output. Matrices lie between these kernels. A thread adds streams up in their order.
#include "common.cuh"

struct NormStreamsArguments {
    const float* x;              // [tokens, count, hidden]
    const float* weight;         // [count, hidden]
    float* out;                  // as x
    uint32_t hidden;
    uint32_t count;
    float epsilon;
    uint32_t padding;
};

// What each value of a row is multiplied by in an RMS norm, before its weight.
__device__ inline float norm_factor(const float* row, uint32_t width, float epsilon, float* scratch) {
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) sum = fmaf(row[i], row[i], sum);
    return 1.0f / sqrtf(block_sum(sum, scratch) / float(width) + epsilon);
}

// Grid: (streams, tokens), 256 threads.
extern "C" __global__ void __launch_bounds__(256) norm_streams(const __grid_constant__ NormStreamsArguments a) {
    await_inputs();
    release_next();
    __shared__ float scratch[32];
    size_t first = (size_t(blockIdx.y) * a.count + blockIdx.x) * a.hidden;
    const float* weight = a.weight + size_t(blockIdx.x) * a.hidden;
    float factor = norm_factor(a.x + first, a.hidden, a.epsilon, scratch);
    const float* x = a.x + first;
    for (uint32_t i = threadIdx.x; i < a.hidden; i += blockDim.x) a.out[first + i] = x[i] * factor * weight[i];
}

struct GateStreamsArguments {
    float* values;               // `activate_gates`: [tokens * rank]; else [tokens, count, hidden]
    const float* gates;          // `merge_gated`: as values, before the sigmoid; `inject_streams`: [tokens, count]
    float* block;                // [tokens, hidden]: a block's input, or its output
    uint32_t width;              // hidden, or how many values there are
    uint32_t count;              // streams
};

// SiLU of the values divided by the number of streams, in place. Grid: blocks of 256 values.
extern "C" __global__ void __launch_bounds__(256) activate_gates(const __grid_constant__ GateStreamsArguments a) {
    await_inputs();
    release_next();
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.width) a.values[i] = silu(a.values[i] / float(a.count));
}

// The mean of the streams, each value times the sigmoid of its gate. Grid: (blocks of 256 values, tokens).
extern "C" __global__ void __launch_bounds__(256) merge_gated(const __grid_constant__ GateStreamsArguments a) {
    await_inputs();
    release_next();
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.width) return;
    size_t first = size_t(blockIdx.y) * a.count * a.width + i;
    float sum = 0.0f;
    for (uint32_t s = 0; s < a.count; s++) {
        size_t at = first + size_t(s) * a.width;
        sum = fmaf(a.values[at], sigmoid(a.gates[at]), sum);
    }
    a.block[size_t(blockIdx.y) * a.width + i] = sum / float(a.count);
}

// Each stream takes the output times twice the sigmoid of its own weight over the number of streams. Grid as above.
extern "C" __global__ void __launch_bounds__(256) inject_streams(const __grid_constant__ GateStreamsArguments a) {
    await_inputs();
    release_next();
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.width) return;
    float* x = a.values + size_t(blockIdx.y) * a.count * a.width + i;
    const float* weights = a.gates + size_t(blockIdx.y) * a.count;
    float output = a.block[size_t(blockIdx.y) * a.width + i];
    for (uint32_t s = 0; s < a.count; s++) {
        float weight = 2.0f * sigmoid(weights[s] / float(a.count));
        x[size_t(s) * a.width] = fmaf(weight, output, x[size_t(s) * a.width]);
    }
}

struct StreamProductsArguments {
    const float* x;              // [tokens, columns]
    Matrix matrix;               // a row for each stream: floats
    float* out;                  // [tokens, rows]
};

// Products of a token with a few rows: a tile of a prompt's products would be rows without use. Grid: tokens, 256
// threads.
extern "C" __global__ void __launch_bounds__(256) stream_products(const __grid_constant__ StreamProductsArguments a) {
    await_inputs();
    release_next();
    __shared__ float scratch[32];
    const Matrix& m = a.matrix;
    const float* x = a.x + size_t(blockIdx.x) * m.columns;
    float sums[STREAMS_LIMIT] = {};
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < m.columns; i += blockDim.x) {
        float v = x[i];
#pragma unroll
        for (uint32_t r = 0; r < STREAMS_LIMIT; r++) {
            if (r < m.rows) sums[r] = fmaf(load_float(m.weight, size_t(r) * m.columns + i, m.kind), v, sums[r]);
        }
    }
#pragma unroll
    for (uint32_t r = 0; r < STREAMS_LIMIT; r++) {
        if (r >= m.rows) break;
        float sum = block_sum(sums[r], scratch);
        if (threadIdx.x == 0) a.out[size_t(blockIdx.x) * m.rows + r] = sum;
    }
}

struct GatherArguments {
    const float* x;              // [rows, width]
    const uint32_t* rows;        // [chosen]
    float* out;                  // [chosen, width]
    uint32_t width;
    uint32_t padding;
};

// Rows by number, as a head without a norm reads them. Grid: chosen rows, 256 threads.
extern "C" __global__ void __launch_bounds__(256) gather_rows(const __grid_constant__ GatherArguments a) {
    await_inputs();
    release_next();
    const float* from = a.x + size_t(a.rows[blockIdx.x]) * a.width;
    float* to = a.out + size_t(blockIdx.x) * a.width;
    for (uint32_t i = threadIdx.x; i < a.width; i += blockDim.x) to[i] = from[i];
}

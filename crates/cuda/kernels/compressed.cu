// Rows of compressed attention: heads rotated in pairs of neighbours, rows of the window and rows that stand for
// several tokens, and where a sequence keeps them. What a row holds
// follows from absolute positions alone, so neither chunks nor batches change a bit.
#include "rounded.cuh"
#include "sequence_rows.cuh"

struct TurnArguments {
    float* x;                    // [tokens, heads, dim]
    const float* weight;         // [dim] of an RMS norm; null where its weight is one
    const float* frequencies;    // [rotated / 2]
    const uint32_t* positions;   // [tokens]
    uint32_t heads;
    uint32_t dim;
    uint32_t rotated;            // last values, in pairs of neighbours
    uint32_t norm;               // 1: an RMS norm of each head first
    float epsilon;
    float magnitude;
    float direction;             // 1, or -1: back
    float transform;             // dim^-1/2: a Hadamard transform and 4-bit rounding afterwards; 0: none
};

__device__ inline void turn(float* head, uint32_t dim, uint32_t rotated, const float* frequencies, uint32_t position,
                            float magnitude, float direction) {
    for (uint32_t j = threadIdx.x; j < rotated / 2; j += blockDim.x) {
        float sine, cosine;
        sincosf(float(position) * frequencies[j], &sine, &cosine);
        sine *= magnitude * direction, cosine *= magnitude;
        float* pair = head + dim - rotated + 2 * j;
        float x = pair[0], y = pair[1];
        pair[0] = x * cosine - y * sine, pair[1] = y * cosine + x * sine;
    }
}

// Grid: (heads, tokens), 128 threads; shared: dim floats.
extern "C" __global__ void turn_heads(const __grid_constant__ TurnArguments a) {
    await_inputs();
    release_next();
    extern __shared__ float head[];
    __shared__ float scratch[32];
    float* x = a.x + (size_t(blockIdx.y) * a.heads + blockIdx.x) * a.dim;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) sum += x[i] * x[i];
    float scale = a.norm ? 1.0f / sqrtf(block_sum(sum, scratch) / float(a.dim) + a.epsilon) : 1.0f;
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) head[i] = x[i] * scale * (a.weight ? a.weight[i] : 1.0f);
    __syncthreads();
    turn(head, a.dim, a.rotated, a.frequencies, a.positions[blockIdx.y], a.magnitude, a.direction);
    __syncthreads();
    if (a.transform != 0.0f) {
        hadamard(head, a.dim, a.transform);
        round_e2m1(head, a.dim, nullptr);
        __syncthreads();
    }
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) x[i] = head[i];
}

struct WindowArguments {
    SequenceRows rows;
    const float* keys;           // [tokens, dim]
    uint8_t* span;               // [tokens, bytes]: the rows of the batch's tokens
    uint32_t dim;
    uint32_t kind;               // CacheType
    uint32_t rotated;
    uint32_t bytes;              // of a row
};

// Rows of the batch's tokens. Grid: tokens, 128 threads; shared: dim floats.
extern "C" __global__ void store_window_rows(const __grid_constant__ WindowArguments a) {
    await_inputs();
    release_next();
    extern __shared__ float row[];
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) row[i] = a.keys[size_t(blockIdx.x) * a.dim + i];
    __syncthreads();
    store_row(a.span + size_t(blockIdx.x) * a.bytes, a.kind, a.dim, a.rotated, row);
}

// Keeps the last rows of each run as the window of the next. Grid: tokens, 128 threads.
extern "C" __global__ void keep_window_rows(const __grid_constant__ WindowArguments a) {
    await_inputs();
    release_next();
    const SequenceRows& s = a.rows;
    uint32_t token = blockIdx.x;
    if (!s.single && token + s.window < s.tokens) return;
    uint8_t* ring = reinterpret_cast<uint8_t*>(state_of(s, token));
    uint8_t* to = ring + size_t(s.positions[token] % s.window) * a.bytes;
    for (uint32_t i = threadIdx.x; i < a.bytes; i += blockDim.x) to[i] = a.span[size_t(token) * a.bytes + i];
}

struct PoolArguments {
    SequenceRows rows;
    const float* values;         // [tokens, width], as the compressor's matrices gave them
    const float* gates;
    const float* added;          // [ratio, width]: to gates, by place within a row
    const float* norm;           // [dim]
    const float* frequencies;    // [rotated / 2]
    uint32_t tail;               // where values of the last tokens lie in the layer's state; their gates follow
    uint32_t dim;
    uint32_t kind;               // CacheType; CACHE_FP4: a key, transformed before it is rounded
    uint32_t place;              // of the layer's rows in a page
    uint32_t bytes;              // of a row
    uint32_t plain;              // last values of an 8-bit row that are not rounded to 8 bits
    uint32_t rotated;
    float epsilon;
    float magnitude;
    float transform;             // dim^-1/2
};

// Makes the compressed rows that tokens of the batch complete: of each dimension a sum weighed by a softmax over gates,
// then norm and rotation. Grid: tokens, 256 threads; shared: dim floats.
extern "C" __global__ void pool_rows(const __grid_constant__ PoolArguments a) {
    await_inputs();
    release_next();
    extern __shared__ float row[];
    __shared__ float scratch[32];
    const SequenceRows& s = a.rows;
    uint32_t token = blockIdx.x, position = s.positions[token];
    if ((position + 1) % s.ratio != 0) return;
    uint32_t first = position + 1 - s.ratio, start = run_start(s, token), row_token = run_token(s, token);
    uint32_t width = s.overlap ? 2 * a.dim : a.dim, kept = s.overlap ? 2 * s.ratio : s.ratio;
    uint32_t begin = s.overlap && first > 0 ? first - s.ratio : first;
    const float* old_values = state_of(s, token) + a.tail;
    const float* old_gates = old_values + size_t(kept) * width;
    float squares = 0.0f;
    for (uint32_t d = threadIdx.x; d < a.dim; d += blockDim.x) {
        auto half = [&](uint32_t p) { return d + (s.overlap && p >= first ? a.dim : 0); };
        auto gate_at = [&](uint32_t p) {
            if (p < start) return old_gates[size_t(p % kept) * width + half(p)];
            float gate = a.gates[size_t(row_token + p - start) * width + half(p)];
            return gate + a.added[size_t(p % s.ratio) * width + half(p)];
        };
        float most = -INFINITY, total = 0.0f, sum = 0.0f;
        for (uint32_t p = begin; p <= position; p++) {
            float gate = gate_at(p);
            most = gate > most ? gate : most;
        }
        for (uint32_t p = begin; p <= position; p++) {
            float value = p < start ? old_values[size_t(p % kept) * width + half(p)]
                                    : a.values[size_t(row_token + p - start) * width + half(p)];
            float weight = expf(gate_at(p) - most);
            total += weight, sum = fmaf(weight, value, sum);
        }
        row[d] = sum / total;
        squares += row[d] * row[d];
    }
    float scale = 1.0f / sqrtf(block_sum(squares, scratch) / float(a.dim) + a.epsilon);
    for (uint32_t d = threadIdx.x; d < a.dim; d += blockDim.x) row[d] = row[d] * scale * a.norm[d];
    __syncthreads();
    turn(row, a.dim, a.rotated, a.frequencies, first, a.magnitude, 1.0f);
    __syncthreads();
    uint8_t* to = page_row(s, token, first / s.ratio, a.place, a.bytes);
    if (a.kind == CACHE_FP4) {
        hadamard(row, a.dim, a.transform);
        round_e2m1(row, a.dim, to);
    } else {
        store_row(to, a.kind, a.dim, a.plain, row);
    }
}

// Keeps values and gates of the last tokens of each run, after `pool_rows`. Grid: tokens, 256 threads.
extern "C" __global__ void keep_gates(const __grid_constant__ PoolArguments a) {
    await_inputs();
    release_next();
    const SequenceRows& s = a.rows;
    uint32_t width = s.overlap ? 2 * a.dim : a.dim, kept = s.overlap ? 2 * s.ratio : s.ratio, token = blockIdx.x;
    if (!s.single && token + kept < s.tokens) return;
    uint32_t position = s.positions[token];
    float* values = state_of(s, token) + a.tail + size_t(position % kept) * width;
    float* gates = values + size_t(kept) * width;
    const float* added = a.added + size_t(position % s.ratio) * width;
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) {
        values[i] = a.values[size_t(token) * width + i];
        gates[i] = a.gates[size_t(token) * width + i] + added[i];
    }
}

struct TransposeArguments {
    const float* x;              // [first, second, width]
    float* out;                  // [second, first, width]
    uint32_t first;
    uint32_t second;
    uint32_t width;
    uint32_t padding;
};

// Grid: (first, second), 128 threads.
extern "C" __global__ void transpose_rows(const __grid_constant__ TransposeArguments a) {
    await_inputs();
    release_next();
    const float* from = a.x + (size_t(blockIdx.x) * a.second + blockIdx.y) * a.width;
    float* to = a.out + (size_t(blockIdx.y) * a.first + blockIdx.x) * a.width;
    for (uint32_t i = threadIdx.x; i < a.width; i += blockDim.x) to[i] = from[i];
}

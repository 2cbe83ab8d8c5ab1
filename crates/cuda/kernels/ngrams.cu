// Layers of hashed n-grams: what each residual stream takes of the value that a token's rows have, and a dilated causal
// convolution of that. What the convolution has seen of the last tokens lies in a ring in the state of the sequence.
// Included behind compressed.cu, which says where a sequence's state is, and gated_streams.cu.
#include "cache.cuh"
#include "sequence_rows.cuh"

struct GateValuesArguments {
    const float* value;          // [tokens, hidden]
    const float* streams;        // [tokens, count, hidden]
    const float* key_norm;       // [count, hidden]
    const float* query_norm;
    const float* norm;           // of what the convolution sees
    float* values;               // [tokens, count, hidden]: keys; then what each stream takes
    float* seen;                 // as values
    uint32_t hidden;
    uint32_t count;
    float epsilon;
    uint32_t padding;
};

// Grid: (streams, tokens), 256 threads.
extern "C" __global__ void __launch_bounds__(256) gate_values(const __grid_constant__ GateValuesArguments a) {
    await_inputs();
    release_next();
    __shared__ float scratch[32];
    size_t first = (size_t(blockIdx.y) * a.count + blockIdx.x) * a.hidden, stream = size_t(blockIdx.x) * a.hidden;
    const float *query = a.streams + first, *value = a.value + size_t(blockIdx.y) * a.hidden;
    float *row = a.values + first, *seen = a.seen + first;
    float of_key = norm_factor(row, a.hidden, a.epsilon, scratch);
    float of_query = norm_factor(query, a.hidden, a.epsilon, scratch);
    float dot = 0.0f;
    for (uint32_t i = threadIdx.x; i < a.hidden; i += blockDim.x) {
        float key = row[i] * of_key * a.key_norm[stream + i];
        dot = fmaf(key, query[i] * of_query * a.query_norm[stream + i], dot);
    }
    float agreement = block_sum(dot, scratch) / sqrtf(float(a.hidden));
    float root = sqrtf(fmaxf(fabsf(agreement), 1e-6f));
    // Nothing stays nothing, and what is no number stays none.
    float gate = sigmoid(agreement > 0.0f ? root : agreement < 0.0f ? -root : agreement);
    // A thread reads again what it has written.
    for (uint32_t i = threadIdx.x; i < a.hidden; i += blockDim.x) row[i] = gate * value[i];
    float factor = norm_factor(row, a.hidden, a.epsilon, scratch);
    for (uint32_t i = threadIdx.x; i < a.hidden; i += blockDim.x) seen[i] = row[i] * factor * a.norm[stream + i];
}

struct MixNgramsArguments {
    SequenceRows rows;           // window: last tokens whose part in the convolution a sequence keeps
    const float* values;         // [tokens, width]
    const float* seen;           // [tokens, width]
    const float* weight;         // [width, kernel], newest tap last
    float* streams;              // [tokens, width]
    const uint32_t* ids;         // [tokens]
    uint32_t width;              // of all streams
    uint32_t kernel;
    uint32_t apart;              // tokens between taps
    uint32_t padding;
};

// `streams += values + SiLU(convolution of seen)`. Grid: (blocks of 256 values, tokens).
extern "C" __global__ void __launch_bounds__(256) mix_ngrams(const __grid_constant__ MixNgramsArguments a) {
    await_inputs();
    release_next();
    const SequenceRows& s = a.rows;
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, token = blockIdx.y;
    if (i >= a.width) return;
    uint32_t position = s.positions[token], start = run_start(s, token), first = run_token(s, token);
    const float* kept = state_of(s, token) + i;
    float sum = 0.0f;
    for (uint32_t tap = 0; tap < a.kernel; tap++) {
        uint32_t back = a.apart * (a.kernel - 1 - tap);
        if (back > position) continue;
        uint32_t from = position - back;
        float value = from >= start ? a.seen[size_t(first + from - start) * a.width + i]
                                    : kept[size_t(from % s.window) * (a.width + 1)];
        sum = fmaf(a.weight[size_t(i) * a.kernel + tap], value, sum);
    }
    size_t at = size_t(token) * a.width + i;
    a.streams[at] += a.values[at] + silu(sum);
}

// Keeps what the convolution has seen of the last tokens of each run, and their ids as bits of the last value, after
// `mix_ngrams`. Grid: (blocks of 256 values of a row, tokens).
extern "C" __global__ void __launch_bounds__(256) keep_ngrams(const __grid_constant__ MixNgramsArguments a) {
    await_inputs();
    release_next();
    const SequenceRows& s = a.rows;
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, token = blockIdx.y;
    if (i > a.width || (!s.single && token + s.window < s.tokens)) return;
    float* to = state_of(s, token) + size_t(s.positions[token] % s.window) * (a.width + 1);
    to[i] = i < a.width ? a.seen[size_t(token) * a.width + i] : __uint_as_float(a.ids[token]);
}

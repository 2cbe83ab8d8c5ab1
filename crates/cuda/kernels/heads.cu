// Heads of a step, between their projections and attention: norms, rotation, and what goes to the cache.
#include "cache.cuh"

struct HeadsArguments {
    const float* query;          // [tokens, query_heads, 2 with a gate, dim]
    const float* key;            // [tokens, key_value_heads, dim]
    const float* value;
    const float* query_norm;     // [dim]
    const float* key_norm;
    const float* frequencies;    // [rotary / 2]
    float* out;                  // queries: [tokens, query_heads, dim]
    uint8_t* cache_keys;         // [sequences, context, key_value_heads] rows
    uint8_t* cache_values;
    const uint32_t* positions;   // by which heads turn
    const uint32_t* places;      // of rows in the cache
    const uint32_t* sequences;
    uint32_t query_heads;
    uint32_t key_value_heads;
    uint32_t dim;
    uint32_t rotary;
    uint32_t context;
    uint32_t query_stride;       // dim, or 2 * dim with a gate
    float epsilon;
    uint32_t kv_type;            // CacheType
    float magnitude;             // of rotated values
    uint32_t norm_values;        // 1: each head of the values is normed, without a weight
};

// Norm and rotation of query and key heads; keys and values go to the cache. Grid: (query_heads + key_value_heads,
// tokens), 128 threads; shared: dim floats.
extern "C" __global__ void __launch_bounds__(128) attention_heads(const __grid_constant__ HeadsArguments a) {
    extern __shared__ float head[];
    __shared__ float scratch[32];
    uint32_t token = blockIdx.y, index = blockIdx.x;
    bool query = index < a.query_heads;
    if (!query) index -= a.query_heads;
    await_inputs();
    release_next();
    const float* x = query ? a.query + (size_t(token) * a.query_heads + index) * a.query_stride
                           : a.key + (size_t(token) * a.key_value_heads + index) * a.dim;
    const float* norm = query ? a.query_norm : a.key_norm;
    uint32_t position = a.positions[token];
    size_t cached = ((size_t(a.sequences[token]) * a.context + a.places[token]) * a.key_value_heads + index) *
                    cache_row_bytes(a.kv_type, a.dim);
    const float* value = a.value + (size_t(token) * a.key_value_heads + index) * a.dim;
    float* out = a.out + (size_t(token) * a.query_heads + index) * a.dim;
    float value_scale = 1.0f;
    if (!query && a.norm_values) {
        float sum = 0.0f;
        for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) sum += value[i] * value[i];
        value_scale = rsqrtf(block_sum(sum, scratch) / float(a.dim) + a.epsilon);
    }
    // Keys and values are loaded in one loop: two loops cost a step a second latency of memory.
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) {
        head[i] = x[i];
        if (!query) store_cached(a.cache_values + cached, a.kv_type, a.dim, i, value[i] * value_scale);
        sum += head[i] * head[i];
    }
    float scale = rsqrtf(block_sum(sum, scratch) / float(a.dim) + a.epsilon);
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) head[i] *= scale * norm[i];
    __syncthreads();
    uint32_t half = a.rotary / 2;
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) {
        float v = head[i];
        if (i < a.rotary) {
            float sine, cosine;
            sincosf(float(position) * a.frequencies[i % half], &sine, &cosine);
            sine *= a.magnitude, cosine *= a.magnitude;
            v = i < half ? v * cosine - head[i + half] * sine : v * cosine + head[i - half] * sine;
        }
        if (query) {
            out[i] = v;
        } else {
            store_cached(a.cache_keys + cached, a.kv_type, a.dim, i, v);
        }
    }
}

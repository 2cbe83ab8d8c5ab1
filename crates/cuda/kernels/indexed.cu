// Attention to the keys that an indexer chooses. Positions are cut into units; a complete unit has one index key: the
// mean of its tokens' keys, normed and rotated by its first position. A token attends to the units with the best
// scores, of equal ones to the first, and to the tokens behind the last complete unit; to all keys while there are no
// more units than it may see.
//
// What a token gets depends on its position and on its sequence's keys alone: keys are taken in order of positions, in
// tiles that begin at multiples of their length among those that the token sees. `choose_rows` of
// compressed_attention.cu chooses units.
#include "scores.cuh"

struct IndexArguments {
    SequenceRows rows;           // ratio: tokens of a unit; window: tokens whose keys a sequence keeps
    float* both;                 // [tokens, heads + 1, dim]: queries, and the token's key as its matrix gave it
    const float* query_norm;     // [dim]
    const float* key_norm;       // [dim]
    const float* frequencies;    // [rotated / 2]
    uint32_t heads;
    uint32_t dim;
    uint32_t rotated;            // first values, in pairs (j, j + rotated / 2)
    uint32_t kind;               // CacheType of index keys
    uint32_t place;              // of the layer's index keys in a page
    uint32_t bytes;              // of one
    float epsilon;
    float magnitude;
};

// Norms and rotates a row in shared memory, where each thread of the block has written its own values.
__device__ inline void norm_and_turn(const IndexArguments& a, float* row, const float* weight, uint32_t position,
                                     float* scratch) {
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) sum = fmaf(row[i], row[i], sum);
    float factor = 1.0f / sqrtf(block_sum(sum, scratch) / float(a.dim) + a.epsilon);
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) row[i] = row[i] * factor * weight[i];
    __syncthreads();
    uint32_t half = a.rotated / 2;
    for (uint32_t j = threadIdx.x; j < half; j += blockDim.x) {
        float sine, cosine;
        sincosf(float(position) * a.frequencies[j], &sine, &cosine);
        sine *= a.magnitude, cosine *= a.magnitude;
        float x = row[j], y = row[j + half];
        row[j] = x * cosine - y * sine, row[j + half] = y * cosine + x * sine;
    }
    __syncthreads();
}

// Norms and rotates queries in place. Grid: (heads, tokens), 128 threads; shared: dim floats.
extern "C" __global__ void turn_index_queries(const __grid_constant__ IndexArguments a) {
    await_inputs();
    release_next();
    extern __shared__ float row[];
    __shared__ float scratch[32];
    float* x = a.both + (size_t(blockIdx.y) * (a.heads + 1) + blockIdx.x) * a.dim;
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) row[i] = x[i];
    norm_and_turn(a, row, a.query_norm, a.rows.positions[blockIdx.y], scratch);
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) x[i] = row[i];
}

// Makes the index keys of units that tokens of the batch complete. Grid: tokens, 128 threads; shared: dim floats.
extern "C" __global__ void make_index_keys(const __grid_constant__ IndexArguments a) {
    await_inputs();
    release_next();
    extern __shared__ float row[];
    __shared__ float scratch[32];
    const SequenceRows& s = a.rows;
    uint32_t token = blockIdx.x, position = s.positions[token];
    if ((position + 1) % s.ratio != 0) return;
    uint32_t first = position + 1 - s.ratio, start = run_start(s, token), run = run_token(s, token);
    const float* kept = state_of(s, token);
    for (uint32_t d = threadIdx.x; d < a.dim; d += blockDim.x) {
        float sum = 0.0f;
        for (uint32_t p = first; p <= position; p++) {
            sum += p < start ? kept[size_t(p % s.window) * a.dim + d]
                             : a.both[(size_t(run + p - start) * (a.heads + 1) + a.heads) * a.dim + d];
        }
        row[d] = sum / float(s.ratio);
    }
    norm_and_turn(a, row, a.key_norm, first, scratch);
    uint8_t* to = page_row(s, token, first / s.ratio, a.place, a.bytes);
    for (uint32_t d = threadIdx.x; d < a.dim; d += blockDim.x) store_cached(to, a.kind, a.dim, d, row[d]);
}

// Keeps the keys of the last tokens of each run, after `make_index_keys`. Grid: tokens, 128 threads.
extern "C" __global__ void keep_index_keys(const __grid_constant__ IndexArguments a) {
    await_inputs();
    release_next();
    const SequenceRows& s = a.rows;
    uint32_t token = blockIdx.x;
    if (!s.single && token + s.window < s.tokens) return;
    const float* from = a.both + (size_t(token) * (a.heads + 1) + a.heads) * a.dim;
    float* to = state_of(s, token) + size_t(s.positions[token] % s.window) * a.dim;
    for (uint32_t d = threadIdx.x; d < a.dim; d += blockDim.x) to[d] = from[d];
}

// Scores of units, where a token has units to choose from: the sum over heads of what is positive of query times key,
// over the root of a key's length. `a.query` is [tokens, heads + 1, dim]; a block scores for `a.together` tokens, which
// follow each other in one sequence. Grid: (blocks of SCORED_ROWS units, groups of tokens), as many threads; shared:
// heads * INDEX_DIM floats.
extern "C" __global__ void __launch_bounds__(SCORED_ROWS) score_units(const __grid_constant__ ScoreArguments a) {
    await_inputs();
    release_next();
    extern __shared__ float4 queries[];
    const SequenceRows& s = a.rows;
    uint32_t first = blockIdx.y * a.together, last = min(first + a.together, s.tokens) - 1;
    uint32_t begin = blockIdx.x * SCORED_ROWS, unit = begin + threadIdx.x, most = (s.positions[last] + 1) / s.ratio;
    if (most <= a.top || begin >= most) return;
    float key[INDEX_DIM];
    const uint8_t* from = page_row(s, first, min(unit, most - 1), a.place, a.bytes);
#pragma unroll
    for (uint32_t d = 0; d < INDEX_DIM; d++) key[d] = d < a.dim ? load_cached(from, a.kind, a.dim, d) : 0.0f;
    float* staged = reinterpret_cast<float*>(queries);
    float root = sqrtf(float(a.dim));
    for (uint32_t token = first; token <= last; token++) {
        uint32_t visible = (s.positions[token] + 1) / s.ratio;
        if (visible <= a.top || begin >= visible) continue;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < a.heads * INDEX_DIM; i += blockDim.x) {
            uint32_t head = i / INDEX_DIM, d = i % INDEX_DIM;
            staged[i] = d < a.dim ? a.query[(size_t(token) * (a.heads + 1) + head) * a.dim + d] : 0.0f;
        }
        __syncthreads();
        if (unit >= visible) continue;
        float score = 0.0f;
        for (uint32_t head = 0; head < a.heads; head++) {
            float4 sums = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (uint32_t d = 0; d < INDEX_DIM; d += 4) {
                float4 q = queries[(head * INDEX_DIM + d) / 4];
                sums.x = fmaf(q.x, key[d], sums.x), sums.y = fmaf(q.y, key[d + 1], sums.y);
                sums.z = fmaf(q.z, key[d + 2], sums.z), sums.w = fmaf(q.w, key[d + 3], sums.w);
            }
            float product = (sums.x + sums.y) + (sums.z + sums.w);
            // What is no number stays one; zeros of both signs are one.
            score += product < 0.0f ? 0.0f : product;
        }
        a.scores[size_t(token) * a.stride + unit] = score / root;
    }
}

struct UnitAttentionArguments {
    const float* query;          // [tokens, query_heads, dim]
    const uint8_t* cache_keys;   // [sequences, context, key_value_heads] rows
    const uint8_t* cache_values;
    float* out;                  // [tokens, query_heads, dim]
    float* partial;              // [tokens, query_heads, parts, dim + 2], where keys are cut into parts
    const uint32_t* positions;
    const uint32_t* sequences;
    const uint32_t* chosen;      // [tokens, top]: units, ascending, where more than `top` are complete
    uint32_t query_heads;
    uint32_t key_value_heads;
    uint32_t dim;                // at most UNIT_DIM
    uint32_t context;
    uint32_t kv_type;            // CacheType
    uint32_t unit;               // tokens of a unit
    uint32_t top;                // units that a token sees at most
    uint32_t parts;              // 1, or parts of `part_keys` keys
    uint32_t part_keys;          // a multiple of UNIT_KEYS
    float scale;
};

// The keys that a token sees, in order of positions.
struct SeenKeys {
    const uint32_t* chosen;      // null: all
    uint32_t unit, listed, tail, count;

    __device__ inline SeenKeys(const UnitAttentionArguments& a, uint32_t token) {
        uint32_t seen = a.positions[token] + 1, units = seen / a.unit;
        bool some = units > a.top;
        chosen = some ? a.chosen + size_t(token) * a.top : nullptr;
        unit = a.unit, listed = a.top * a.unit, tail = units * a.unit;
        count = some ? listed + seen - tail : seen;
    }

    // The position of one of them.
    __device__ inline uint32_t at(uint32_t index) const {
        if (!chosen) return index;
        return index < listed ? chosen[index / unit] * unit + index % unit : tail + index - listed;
    }
};

// Heads of a block, two for each warp, and keys that it decodes together.
constexpr uint32_t UNIT_HEADS = 16, UNIT_KEYS = 32, UNIT_VALUES = UNIT_DIM / 32;

// Decodes rows of a head for `count` keys from `start` on to `tile` [UNIT_KEYS, dim + 1].
__device__ inline void decode_rows(const UnitAttentionArguments& a, const uint8_t* rows, const SeenKeys& keys,
                                   uint32_t start, uint32_t count, float* tile) {
    constexpr uint32_t WARPS = 8, ROWS = UNIT_KEYS / WARPS;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    size_t row_bytes = cache_row_bytes(a.kv_type, a.dim);
    const uint8_t* from[ROWS];
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++) {
        // A row past the end is the last one again: its values are in the tile and not used.
        uint32_t k = min(warp + WARPS * r, count - 1);
        from[r] = rows + size_t(keys.at(start + k)) * a.key_value_heads * row_bytes;
    }
    // All rows of a warp are asked for before the first is stored: one by one, each waits for memory by itself.
    if ((a.kv_type == CACHE_F16 || a.kv_type == CACHE_BF16) && a.dim % 2 == 0) {
        uint32_t pairs[ROWS][UNIT_VALUES / 2];
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++) {
#pragma unroll
            for (uint32_t j = 0; j < UNIT_VALUES / 2; j++) {
                uint32_t pair = lane + 32 * j;
                pairs[r][j] = 2 * pair < a.dim ? reinterpret_cast<const uint32_t*>(from[r])[pair] : 0;
            }
        }
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++) {
#pragma unroll
            for (uint32_t j = 0; j < UNIT_VALUES / 2; j++) {
                uint32_t pair = lane + 32 * j, v = pairs[r][j];
                if (2 * pair >= a.dim) continue;
                float* to = tile + (warp + WARPS * r) * (a.dim + 1) + 2 * pair;
                if (a.kv_type == CACHE_BF16) {
                    to[0] = __uint_as_float(v << 16), to[1] = __uint_as_float(v & 0xffff0000u);
                } else {
                    float2 both = __half22float2(*reinterpret_cast<__half2*>(&v));
                    to[0] = both.x, to[1] = both.y;
                }
            }
        }
        return;
    }
    float values[ROWS][UNIT_VALUES];
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++) {
#pragma unroll
        for (uint32_t j = 0; j < UNIT_VALUES; j++) {
            uint32_t d = lane + 32 * j;
            values[r][j] = d < a.dim ? load_cached(from[r], a.kv_type, a.dim, d) : 0.0f;
        }
    }
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++) {
#pragma unroll
        for (uint32_t j = 0; j < UNIT_VALUES; j++) {
            uint32_t d = lane + 32 * j;
            if (d < a.dim) tile[(warp + WARPS * r) * (a.dim + 1) + d] = values[r][j];
        }
    }
}

// A lane has a key's dots with a warp's two heads, then the sums of every 32nd value of them.
// Grid: (key_value_heads * blocks of UNIT_HEADS heads, tokens, parts), 256 threads; shared: UNIT_HEADS * dim +
// UNIT_KEYS * (dim + 1) floats.
extern "C" __global__ void __launch_bounds__(256) attend_units(const __grid_constant__ UnitAttentionArguments a) {
    await_inputs();
    release_next();
    extern __shared__ float shared[];
    float *queries = shared, *tile = shared + UNIT_HEADS * a.dim;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, token = blockIdx.y;
    uint32_t group = a.query_heads / a.key_value_heads, blocks = (group + UNIT_HEADS - 1) / UNIT_HEADS;
    uint32_t pair = blockIdx.x / blocks, first_head = blockIdx.x % blocks * UNIT_HEADS;
    uint32_t heads = min(UNIT_HEADS, group - first_head);
    SeenKeys keys(a, token);
    uint32_t begin = blockIdx.z * a.part_keys, end = a.parts > 1 ? min(keys.count, begin + a.part_keys) : keys.count;
    if (begin >= end) return;
    size_t place = size_t(token) * a.query_heads + pair * group + first_head;
    for (uint32_t i = threadIdx.x; i < heads * a.dim; i += blockDim.x) queries[i] = a.query[place * a.dim + i];
    size_t row_bytes = cache_row_bytes(a.kv_type, a.dim);
    size_t first_row = size_t(a.sequences[token]) * a.context * a.key_value_heads + pair;
    const uint8_t* key_rows = a.cache_keys + first_row * row_bytes;
    const uint8_t* value_rows = a.cache_values + first_row * row_bytes;
    float sums[2][UNIT_VALUES] = {}, largest[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f};
    bool busy = 2 * warp < heads;
    // The second head of the last warp may be none: it is then the first once more.
    const float *first_query = queries + 2 * warp * a.dim;
    const float *second_query = 2 * warp + 1 < heads ? first_query + a.dim : first_query;
    for (uint32_t start = begin; start < end; start += UNIT_KEYS) {
        uint32_t count = min(UNIT_KEYS, end - start);
        __syncthreads();
        decode_rows(a, key_rows, keys, start, count, tile);
        __syncthreads();
        float weights[2] = {0.0f, 0.0f};
        if (busy) {
            float dots[2] = {0.0f, 0.0f};
            if (lane < count) {
                const float* key = tile + lane * (a.dim + 1);
                uint32_t fours = a.dim % 4 == 0 ? a.dim : 0;
#pragma unroll 4
                for (uint32_t d = 0; d < fours; d += 4) {
                    float4 one = *reinterpret_cast<const float4*>(first_query + d);
                    float4 two = *reinterpret_cast<const float4*>(second_query + d);
                    float v[4] = {key[d], key[d + 1], key[d + 2], key[d + 3]};
                    dots[0] = fmaf(one.x, v[0], dots[0]), dots[1] = fmaf(two.x, v[0], dots[1]);
                    dots[0] = fmaf(one.y, v[1], dots[0]), dots[1] = fmaf(two.y, v[1], dots[1]);
                    dots[0] = fmaf(one.z, v[2], dots[0]), dots[1] = fmaf(two.z, v[2], dots[1]);
                    dots[0] = fmaf(one.w, v[3], dots[0]), dots[1] = fmaf(two.w, v[3], dots[1]);
                }
                for (uint32_t d = fours; d < a.dim; d++) {
                    dots[0] = fmaf(first_query[d], key[d], dots[0]);
                    dots[1] = fmaf(second_query[d], key[d], dots[1]);
                }
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float score = lane < count ? dots[r] * a.scale : -INFINITY;
                float larger = fmaxf(largest[r], warp_max(score)), shrink = expf(largest[r] - larger);
                weights[r] = lane < count ? expf(score - larger) : 0.0f;
                total[r] = total[r] * shrink + warp_sum(weights[r]), largest[r] = larger;
#pragma unroll
                for (uint32_t j = 0; j < UNIT_VALUES; j++) sums[r][j] *= shrink;
            }
        }
        __syncthreads();
        decode_rows(a, value_rows, keys, start, count, tile);
        __syncthreads();
        if (!busy) continue;
        for (uint32_t k = 0; k < count; k++) {
            float first = __shfl_sync(FULL, weights[0], k), second = __shfl_sync(FULL, weights[1], k);
#pragma unroll
            for (uint32_t j = 0; j < UNIT_VALUES; j++) {
                if (lane + 32 * j >= a.dim) continue;
                float value = tile[k * (a.dim + 1) + lane + 32 * j];
                sums[0][j] = fmaf(first, value, sums[0][j]), sums[1][j] = fmaf(second, value, sums[1][j]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (2 * warp + r >= heads) continue;
        size_t head = place + 2 * warp + r;
        float* to = a.parts > 1 ? a.partial + (head * a.parts + blockIdx.z) * (a.dim + 2) : a.out + head * a.dim;
        float divisor = a.parts > 1 ? 1.0f : total[r];
#pragma unroll
        for (uint32_t j = 0; j < UNIT_VALUES; j++) {
            if (lane + 32 * j < a.dim) to[lane + 32 * j] = sums[r][j] / divisor;
        }
        if (a.parts > 1 && lane == 0) to[a.dim] = largest[r], to[a.dim + 1] = total[r];
    }
}

// Joins the parts of a token's keys in their order: there are at most UNIT_PARTS, one for each lane.
// Grid: (query_heads, tokens), 128 threads.
extern "C" __global__ void join_unit_parts(const __grid_constant__ UnitAttentionArguments a) {
    await_inputs();
    release_next();
    __shared__ float weights[UNIT_PARTS];
    uint32_t lane = threadIdx.x % 32, count = SeenKeys(a, blockIdx.y).count;
    uint32_t parts = (count + a.part_keys - 1) / a.part_keys, stride = a.dim + 2;
    size_t at = size_t(blockIdx.y) * a.query_heads + blockIdx.x;
    const float* partial = a.partial + at * a.parts * stride;
    bool live = lane < parts;
    const float* ends = partial + lane * stride + a.dim;
    float top = live ? ends[0] : -INFINITY, mine = live ? ends[1] : 0.0f;
    float most = warp_max(top), weight = live ? expf(top - most) : 0.0f, total = warp_sum(weight * mine);
    if (threadIdx.x < UNIT_PARTS) weights[threadIdx.x] = weight;
    __syncthreads();
    for (uint32_t d = threadIdx.x; d < a.dim; d += blockDim.x) {
        float sum = 0.0f;
        for (uint32_t part = 0; part < parts; part++) sum = fmaf(weights[part], partial[part * stride + d], sum);
        a.out[at * a.dim + d] = sum / total;
    }
}

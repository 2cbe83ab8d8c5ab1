// Causal attention over a cache of keys and values (online softmax: Milakov and Gimelshein 2018; tiles: Dao 2022).
//
// Three forms: `attend_plain_*` in f32 for every type and head and for devices without bf16 tensor cores,
// `attend_step_*` for the tokens of a step, which stream the cache at the memory's bandwidth, `attend_chunk_*` for the
// tokens of a prompt. The last two multiply on tensor cores: keys and values as stored, 16 bits; queries and
// probabilities as the sum of two parts of that type (22 bits of significand in f16, 16 in bf16), sums in f32.
//
// Bits of a token's attention depend on its position, its sequence's keys and values and the device, and on nothing
// else: tiles of keys begin at multiples of their length, are taken in ascending order, and what is masked adds zero.
// A prompt's are in attention_chunk.cu.
#include "cache.cuh"
#include "tensor.cuh"

struct AppendArguments {
    const float* keys;       // [tokens, key_value_heads, dim]
    const float* values;
    uint8_t* cache_keys;     // [sequences, context, key_value_heads] rows
    uint8_t* cache_values;
    const uint32_t* positions;
    const uint32_t* sequences;
    uint32_t heads;
    uint32_t dim;
    uint32_t context;
    uint32_t kv_type;        // CacheType
};

// Grid: tokens, 256 threads.
extern "C" __global__ void append_key_values(const __grid_constant__ AppendArguments a) {
    await_inputs();
    release_next();
    size_t row_bytes = cache_row_bytes(a.kv_type, a.dim);
    size_t to = (size_t(a.sequences[blockIdx.x]) * a.context + a.positions[blockIdx.x]) * a.heads * row_bytes;
    size_t from = size_t(blockIdx.x) * a.heads * a.dim;
    // Whole warps, for the groups of eight bits, whose heads are multiples of 32.
    uint32_t count = a.heads * a.dim;
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
        uint32_t head = i / a.dim, d = i % a.dim;
        store_cached(a.cache_keys + to + head * row_bytes, a.kv_type, a.dim, d, __ldcg(a.keys + from + i));
        store_cached(a.cache_values + to + head * row_bytes, a.kv_type, a.dim, d, __ldcg(a.values + from + i));
    }
}

struct AttendArguments {
    const float* query;          // [tokens, query_heads, dim]
    const uint8_t* cache_keys;   // [sequences, context, key_value_heads] rows
    const uint8_t* cache_values;
    float* out;                  // [tokens, query_heads, dim]
    float* partial;              // [tokens, query_heads, splits, dim + 2], when splits > 1
    const uint32_t* positions;
    const uint32_t* sequences;
    const uint32_t* starts;      // of a step: the first token of each one's run; null where each is a run of its own
    const float* sinks;          // [query_heads]: scores that only take weight from the others; or null
    uint32_t query_heads;
    uint32_t key_value_heads;
    uint32_t dim;                // at most 512
    uint32_t context;
    uint32_t splits;
    uint32_t tokens;
    float scale;                 // of the dots, times the logarithm of e to base 2
    uint32_t tokens_per_block;   // above 1 only when all tokens are of one sequence
    uint32_t kv_type;            // CacheType
    uint32_t stages;             // tiles of keys and values that a block of a step has under way
    uint32_t window;             // keys that a token sees, its own the last; all of them: the largest number
    uint32_t part;               // of a prompt: keys that are added up by themselves, a power of two
};

// The first key that the last of `length` tokens sees.
__device__ inline uint32_t first_key(const AttendArguments& a, uint32_t length) {
    return max(length, a.window) - a.window;
}

// The score of a head's sink, as dots are scaled.
__device__ inline float sink_score(const AttendArguments& a, uint32_t head) {
    return a.sinks[head] * 1.44269504088896341f;
}

// What a row of sums is multiplied with, and its total then is, once a sink has had its part.
__device__ inline float join_sink(const AttendArguments& a, uint32_t head, float largest, float& total) {
    float score = sink_score(a, head), top = fmaxf(largest, score), factor = exp2f(largest - top);
    total = total * factor + exp2f(score - top);
    return factor;
}

// The part of keys `first` to `length` that split `split` takes, from a multiple of the tile on.
struct Part {
    uint32_t begin, end, share;
    __device__ inline Part(uint32_t first, uint32_t length, uint32_t splits, uint32_t split) {
        uint32_t from = first / STEP_KEYS * STEP_KEYS;
        share = (length - from + splits - 1) / splits;
        share = (share + STEP_KEYS - 1) / STEP_KEYS * STEP_KEYS;
        begin = min(from + split * share, length);
        end = min(begin + share, length);
    }
};

// A block takes the query heads that share a key-value head, for one or more tokens, and one part of the context; a
// warp takes ROWS rows (token, head), a lane dim / 32 values, at most VALUES.
// Grid: (groups of tokens, key_value_heads, splits), 256 threads; shared: 2 * PLAIN_KEYS * dim floats.
template <int ROWS, int VALUES = 8>
__device__ inline void attend_plain(const AttendArguments& a) {
    extern __shared__ float tile[];
    await_inputs();
    release_next();
    uint32_t group = a.query_heads / a.key_value_heads;
    uint32_t first_token = blockIdx.x * a.tokens_per_block;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t sequence = a.sequences[first_token];
    uint32_t last_token = min(first_token + a.tokens_per_block, a.tokens) - 1;
    uint32_t longest = 0;
    for (uint32_t token = first_token; token <= last_token; token++) longest = max(longest, a.positions[token] + 1);
    Part part(first_key(a, a.positions[first_token] + 1), longest, a.splits, blockIdx.z);
    if (part.begin == part.end) return;
    size_t row_bytes = cache_row_bytes(a.kv_type, a.dim), stride = a.key_value_heads * row_bytes;
    // Rows beyond one pass over the group are walked in passes of 8 * ROWS.
    uint32_t rows_here = (last_token - first_token + 1) * group;
    for (uint32_t base = 0; base < rows_here; base += 8 * ROWS) {
        float q[ROWS][VALUES], acc[ROWS][VALUES], largest[ROWS], total[ROWS];
        uint32_t length[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            uint32_t row = base + warp * ROWS + r;
            bool live = row < rows_here;
            uint32_t token = first_token + (live ? row / group : 0);
            uint32_t head = blockIdx.y * group + (live ? row % group : 0);
            length[r] = live ? a.positions[token] + 1 : 0;
            largest[r] = -INFINITY, total[r] = 0.0f;
            const float* from = a.query + (size_t(token) * a.query_heads + head) * a.dim;
#pragma unroll
            for (int d = 0; d < VALUES; d++) {
                uint32_t i = d * 32 + lane;
                q[r][d] = i < a.dim ? from[i] * a.scale : 0.0f;
                acc[r][d] = 0.0f;
            }
        }
        for (uint32_t start = part.begin; start < part.end; start += PLAIN_KEYS) {
            uint32_t count = min(PLAIN_KEYS, part.end - start);
            __syncthreads();
            size_t first = (size_t(sequence) * a.context + start) * stride + blockIdx.y * row_bytes;
            for (uint32_t i = threadIdx.x; i < count * a.dim; i += blockDim.x) {
                size_t at = first + (i / a.dim) * stride;
                tile[i] = load_cached(a.cache_keys + at, a.kv_type, a.dim, i % a.dim);
                tile[PLAIN_KEYS * a.dim + i] = load_cached(a.cache_values + at, a.kv_type, a.dim, i % a.dim);
            }
            __syncthreads();
            for (uint32_t j = 0; j < count; j++) {
                float k[VALUES], v[VALUES];
#pragma unroll
                for (int d = 0; d < VALUES; d++) {
                    uint32_t i = d * 32 + lane;
                    bool inside = i < a.dim;
                    k[d] = inside ? tile[j * a.dim + i] : 0.0f;
                    v[d] = inside ? tile[(PLAIN_KEYS + j) * a.dim + i] : 0.0f;
                }
                float dots[ROWS];
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    dots[r] = 0.0f;
#pragma unroll
                    for (int d = 0; d < VALUES; d++) dots[r] = fmaf(q[r][d], k[d], dots[r]);
                }
                // Sums of all rows side by side, so that none waits for another's shuffles.
#pragma unroll
                for (int offset = 16; offset > 0; offset >>= 1) {
#pragma unroll
                    for (int r = 0; r < ROWS; r++) dots[r] += __shfl_xor_sync(FULL, dots[r], offset);
                }
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    if (start + j >= length[r] || start + j < first_key(a, length[r])) continue;
                    float top = fmaxf(largest[r], dots[r]);
                    float shrink = exp2f(largest[r] - top), weight = exp2f(dots[r] - top);
                    largest[r] = top;
                    total[r] = total[r] * shrink + weight;
#pragma unroll
                    for (int d = 0; d < VALUES; d++) acc[r][d] = acc[r][d] * shrink + weight * v[d];
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            uint32_t row = base + warp * ROWS + r;
            if (row >= rows_here) continue;
            uint32_t token = first_token + row / group, head = blockIdx.y * group + row % group;
            size_t place = size_t(token) * a.query_heads + head;
            float* to = a.splits == 1 ? a.out + place * a.dim
                                      : a.partial + (place * a.splits + blockIdx.z) * (a.dim + 2);
            float factor = a.splits == 1 && a.sinks ? join_sink(a, head, largest[r], total[r]) : 1.0f;
            float divisor = a.splits == 1 ? total[r] : 1.0f;
#pragma unroll
            for (int d = 0; d < VALUES; d++) {
                uint32_t i = d * 32 + lane;
                if (i < a.dim) to[i] = acc[r][d] * factor / divisor;
            }
            if (a.splits > 1 && lane == 0) to[a.dim] = largest[r], to[a.dim + 1] = total[r];
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) attend_plain_1(const __grid_constant__ AttendArguments a) {
    attend_plain<1>(a);
}
extern "C" __global__ void __launch_bounds__(256) attend_plain_4(const __grid_constant__ AttendArguments a) {
    attend_plain<4>(a);
}

// Joins the parts of the context, those that have keys. Grid: (query_heads, tokens, dim / 64), 256 threads: 64
// columns by four quarters of the parts.
extern "C" __global__ void __launch_bounds__(256) attend_join(const __grid_constant__ AttendArguments a) {
    constexpr uint32_t QUARTERS = 4, PER_QUARTER = ATTENTION_SPLITS / QUARTERS;
    __shared__ float weights[ATTENTION_SPLITS], sums[QUARTERS][64], whole;
    release_next();
    uint32_t length = a.positions[blockIdx.y] + 1;
    uint32_t first = first_key(a, length) / STEP_KEYS * STEP_KEYS, share = Part(first, length, a.splits, 0).share;
    uint32_t parts = (length - first + share - 1) / share;
    size_t place = size_t(blockIdx.y) * a.query_heads + blockIdx.x;
    const float* from = a.partial + place * a.splits * (a.dim + 2);
    uint32_t column = blockIdx.z * 64 + threadIdx.x % 64, quarter = threadIdx.x / 64;
    bool live = column < a.dim;
    await_inputs();
    float v[PER_QUARTER];
#pragma unroll
    for (uint32_t i = 0; i < PER_QUARTER; i++) {
        uint32_t s = quarter + QUARTERS * i;
        v[i] = live && s < parts ? from[size_t(s) * (a.dim + 2) + column] : 0.0f;
    }
    if (threadIdx.x < 32) {
        // Two parts a lane.
        float top[2], total[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t s = threadIdx.x + 32 * i;
            const float* end = from + size_t(s) * (a.dim + 2) + a.dim;
            top[i] = s < parts ? end[0] : -INFINITY;
            total[i] = s < parts ? end[1] : 0.0f;
        }
        float largest = warp_max(fmaxf(top[0], top[1])), sum = 0.0f;
        float sink = a.sinks ? sink_score(a, blockIdx.x) : -INFINITY;
        largest = fmaxf(largest, sink);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float weight = exp2f(top[i] - largest);
            weights[threadIdx.x + 32 * i] = weight;
            sum += weight * total[i];
        }
        sum = warp_sum(sum) + exp2f(sink - largest);
        if (threadIdx.x == 0) whole = sum;
    }
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < PER_QUARTER; i++) {
        uint32_t s = quarter + QUARTERS * i;
        if (s < parts) sum = fmaf(weights[s], v[i], sum);
    }
    sums[quarter][threadIdx.x % 64] = sum;
    __syncthreads();
    if (quarter == 0 && live) {
        uint32_t c = threadIdx.x;
        a.out[place * a.dim + column] = ((sums[0][c] + sums[1][c]) + (sums[2][c] + sums[3][c])) / whole;
    }
}

#if __CUDA_ARCH__ >= 800

// Begins to copy `KEYS` rows from key `start` on to shared memory; zeros past `end` and past a row's values.
template <int DIM, int KEYS, int THREADS>
__device__ inline void copy_rows(uint32_t to, const uint8_t* from, size_t stride, uint32_t dim, uint32_t start,
                                 uint32_t end) {
    constexpr uint32_t UNITS = DIM / 8;
#pragma unroll
    for (uint32_t j = 0; j < KEYS * UNITS / THREADS; j++) {
        uint32_t i = threadIdx.x + j * THREADS, row = i / UNITS, unit = i % UNITS;
        bool live = start + row < end && unit * 8 < dim;
        copy_16(to + unit_offset<DIM>(row, unit), live ? from + (start + row) * stride + unit * 16 : from, live);
    }
}

// A step: the heads of a group, in blocks of eight, times a part of the context.
//
// A product of tensor cores has 16 rows: the first parts of eight heads, then their second parts. So one product with
// keys (or values) as stored gives both, and rows r and r + 8 lie in the same lane.
//   copy      a tile of 32 keys and values, `stages` - 1 tiles ahead
//   dots      warp w: keys 8 (w % 4) .., the first or the second half of the dimensions; to shared memory
//   softmax   warp w: head w, a key per lane; two parts of each probability to shared memory
//   values    warp w: an eighth of the dimensions, sums in registers
// Grid: (head blocks, key_value_heads * splits, tokens), 256 threads; with runs tokens times as many, and one.
template <typename PAIR, int DIM>
__device__ inline void attend_step(const AttendArguments& a) {
    constexpr int KEYS = STEP_KEYS, STEPS = DIM / 32, TILES = DIM / 64, PITCH = KEYS + 8;
    extern __shared__ __align__(128) uint8_t buffer[];
    __shared__ float dots[2][8][KEYS + 1], shrink[8];
    __shared__ __align__(16) typename PAIR::Value weights[16][PITCH];
    uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    // With runs, blocks that read the same keys follow each other, so that the second-level cache has them.
    uint32_t token = a.starts ? blockIdx.x % a.tokens : blockIdx.z;
    uint32_t head = blockIdx.y / a.splits, split = blockIdx.y % a.splits;
    uint32_t group = a.query_heads / a.key_value_heads;
    uint32_t first_head = 8 * (a.starts ? blockIdx.x / a.tokens : blockIdx.x), heads = min(8u, group - first_head);
    release_next();
    // The kernel that may still run writes rows of the step alone: those before the token's run are asked for already.
    uint32_t position = a.positions[token], held = a.positions[a.starts ? a.starts[token] : token];
    uint32_t earliest = first_key(a, position + 1);
    Part part(earliest, position + 1, a.splits, split);
    size_t row_bytes = 2 * size_t(a.dim), stride = a.key_value_heads * row_bytes;
    size_t base = size_t(a.sequences[token]) * a.context * stride + head * row_bytes;
    const uint8_t *keys = a.cache_keys + base, *values = a.cache_values + base;
    uint32_t shared = shared_address(buffer);
    constexpr uint32_t ROWS_BYTES = KEYS * DIM * 2, STAGE_BYTES = 2 * ROWS_BYTES;
    uint32_t tiles = (part.end - part.begin + KEYS - 1) / KEYS, ahead = a.stages - 1;
    auto copy_tile = [&](uint32_t tile) {
        if (tile < tiles) {
            uint32_t to = shared + tile % a.stages * STAGE_BYTES, start = part.begin + tile * KEYS;
            copy_rows<DIM, KEYS, 256>(to, keys, stride, a.dim, start, part.end);
            copy_rows<DIM, KEYS, 256>(to + ROWS_BYTES, values, stride, a.dim, start, part.end);
        }
        commit_copies();
    };
    uint32_t early = 0;
    while (early < ahead && part.begin + (early + 1) * KEYS <= held) copy_tile(early++);
    await_inputs();
    if (part.begin == part.end) return;
    while (early < ahead) copy_tile(early++);

    // Fragments of the queries, both parts: rows lane / 4 and that plus 8.
    uint32_t q[STEPS][4];
    uint32_t row = lane / 4, column = lane % 4 * 2, half = warp / 4;
    const float* query = a.query + (size_t(token) * a.query_heads + head * group + first_head + row) * a.dim;
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
#pragma unroll
        for (int side = 0; side < 2; side++) {
            uint32_t d = half * (DIM / 2) + step * 16 + side * 8 + column;
            bool live = row < heads && d < a.dim;
            float2 v = live ? *reinterpret_cast<const float2*>(query + d) : float2{0.0f, 0.0f};
            split_parts<PAIR>(v.x * a.scale, v.y * a.scale, q[step][2 * side], q[step][2 * side + 1]);
        }
    }
    float sums[TILES][4] = {}, largest = -INFINITY, total = 0.0f;
    for (uint32_t tile = 0; tile < tiles; tile++) {
        if (a.stages == 2) {
            await_copies<0>();
        } else {
            await_copies<2>();
        }
        __syncthreads();
        copy_tile(tile + ahead);
        uint32_t stage = shared + tile % a.stages * STAGE_BYTES;
        float c[4] = {};
        uint32_t first_key = warp % 4 * 8;
#pragma unroll
        for (int step = 0; step < STEPS; step += 2) {
            uint32_t k[4];
            uint32_t unit = half * (DIM / 16) + step * 2 + lane / 8;
            load_matrices(k, stage + unit_offset<DIM>(first_key + lane % 8, unit));
            PAIR::multiply(c, q[step], k[0], k[1]);
            if (step + 1 < STEPS) PAIR::multiply(c, q[step + 1], k[2], k[3]);
        }
        dots[half][row][first_key + column] = c[0] + c[2];
        dots[half][row][first_key + column + 1] = c[1] + c[3];
        __syncthreads();
        uint32_t own_key = part.begin + tile * KEYS + lane;
        bool inside = own_key < part.end && own_key >= earliest;
        float dot = inside ? dots[0][warp][lane] + dots[1][warp][lane] : -INFINITY;
        float top = fmaxf(largest, warp_max(dot));
        float less = exp2f(largest - top), weight = exp2f(dot - top);
        largest = top;
        total = total * less + weight;
        typename PAIR::Value high = weight, low = weight - float(high);
        weights[warp][lane] = high;
        weights[warp + 8][lane] = low;
        if (lane == 0) shrink[warp] = less;
        __syncthreads();
        float factor = shrink[row];
#pragma unroll
        for (int i = 0; i < TILES; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) sums[i][j] *= factor;
        }
#pragma unroll
        for (int step = 0; step < KEYS / 16; step++) {
            uint32_t w[4];
            load_matrices(w, shared_address(&weights[lane % 16][step * 16 + lane / 16 * 8]));
#pragma unroll
            for (int i = 0; i < TILES; i += 2) {
                uint32_t v[4];
                uint32_t unit = warp * TILES + i + (TILES > 1 ? lane / 16 : 0);
                load_matrices_transposed(v, stage + ROWS_BYTES + unit_offset<DIM>(step * 16 + lane % 16, unit));
                PAIR::multiply(sums[i], w, v[0], v[1]);
                if (i + 1 < TILES) PAIR::multiply(sums[i + 1], w, v[2], v[3]);
            }
        }
    }
    size_t place = size_t(token) * a.query_heads + head * group + first_head;
    float* partial = a.partial + (place * a.splits + split) * (a.dim + 2);
    size_t pitch = size_t(a.splits) * (a.dim + 2);
    if (row < heads) {
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            uint32_t d = (warp * TILES + i) * 8 + column;
            if (d >= a.dim) continue;
            partial[row * pitch + d] = sums[i][0] + sums[i][2];
            partial[row * pitch + d + 1] = sums[i][1] + sums[i][3];
        }
    }
    total = warp_sum(total);
    if (warp < heads && lane == 0) {
        partial[warp * pitch + a.dim] = largest;
        partial[warp * pitch + a.dim + 1] = total;
    }
}

#define ATTEND_BODY(CALL) CALL
#else
// Launched on 8.0 and later alone: an image that lacks a product must not pass for one.
#define ATTEND_BODY(CALL) __trap()
#endif

#define ATTEND_STEP(NAME, PAIR, DIM)                                                                                \
    extern "C" __global__ void __launch_bounds__(256) attend_step_##NAME##_##DIM(                                  \
        const __grid_constant__ AttendArguments a) {                                                               \
        ATTEND_BODY((attend_step<PAIR, DIM>(a)));                                                                  \
    }

ATTEND_STEP(f16, HalfPair, 64)
ATTEND_STEP(f16, HalfPair, 128)
ATTEND_STEP(f16, HalfPair, 256)
ATTEND_STEP(bf16, Bf16Pair, 64)
ATTEND_STEP(bf16, Bf16Pair, 128)
ATTEND_STEP(bf16, Bf16Pair, 256)

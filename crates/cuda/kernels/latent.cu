// Attention over latent rows: what is cached of a token is one row for all heads, a normed latent and a rotated key.
//
// Queries are multiplied by the heads' keys of the latent first (`latent_heads`), so that they meet the rows
// themselves; a row's first values are its value too, and the heads' values of the latent follow the sum. Prompts and
// steps do the same sums in this form.
//
// Bits of a token's attention depend on its position, its sequence's rows and the device, and on nothing else: rows are
// taken in ascending order from the start of the context, or of a part of it that the position decides.
#include "cache.cuh"
#include "product.cuh"

struct LatentRowArguments {
    const float* rows;           // [tokens, rank + rotated]
    const float* norm;           // [rank]
    const float* frequencies;    // [rotated / 2]
    const uint32_t* positions;
    const uint32_t* sequences;
    uint8_t* cache;              // [sequences, context] rows
    uint32_t rank;
    uint32_t rotated;
    uint32_t context;
    uint32_t kv_type;            // CacheType
    uint32_t neighbours;         // 1: values 2 j and 2 j + 1 are a pair, 0: j and j + rotated / 2
    float epsilon;
    float magnitude;             // of rotated values
    uint32_t padding;
};

// Value `index` of a rotated key or query; those of a pair are left half the values apart.
__device__ inline float rotated_value(const float* x, uint32_t index, uint32_t rotated, uint32_t neighbours,
                                      const float* frequencies, float position, float magnitude) {
    uint32_t half = rotated / 2, pair = index % half;
    float a = x[neighbours ? 2 * pair : pair], b = x[neighbours ? 2 * pair + 1 : pair + half];
    float angle = position * frequencies[pair], sine, cosine;
    sincosf(angle, &sine, &cosine);
    sine *= magnitude, cosine *= magnitude;
    return index < half ? a * cosine - b * sine : b * cosine + a * sine;
}

// Norms the latent, rotates the key, and stores the row in the cache. Grid: tokens, 256 threads.
extern "C" __global__ void append_latent(const __grid_constant__ LatentRowArguments a) {
    __shared__ float scratch[32];
    uint32_t row = a.rank + a.rotated, token = blockIdx.x;
    const float* x = a.rows + size_t(token) * row;
    size_t place = size_t(a.sequences[token]) * a.context + a.positions[token];
    uint8_t* to = a.cache + place * cache_row_bytes(a.kv_type, row);
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < a.rank; i += blockDim.x) sum += x[i] * x[i];
    float scale = rsqrtf(block_sum(sum, scratch) / float(a.rank) + a.epsilon);
    float position = float(a.positions[token]);
    // Whole warps, for the groups of eight bits, whose rows are multiples of 32.
    for (uint32_t i = threadIdx.x; i < row; i += blockDim.x) {
        float v = i < a.rank ? x[i] * scale * a.norm[i]
                             : rotated_value(x + a.rank, i - a.rank, a.rotated, a.neighbours, a.frequencies, position,
                                             a.magnitude);
        store_cached(to, a.kv_type, row, i, v);
    }
}

struct LatentRotateArguments {
    const float* query;          // [tokens, heads, plain + rotated]
    float* out;                  // [tokens, heads, rank + rotated]: the last values of each
    const float* frequencies;
    const uint32_t* positions;
    uint32_t heads;
    uint32_t plain;
    uint32_t rank;
    uint32_t rotated;
    uint32_t neighbours;
    float magnitude;
};

// Rotates the ends of queries. Grid: tokens, 256 threads.
extern "C" __global__ void rotate_latent(const __grid_constant__ LatentRotateArguments a) {
    float position = float(a.positions[blockIdx.x]);
    for (uint32_t i = threadIdx.x; i < a.heads * a.rotated; i += blockDim.x) {
        size_t head = size_t(blockIdx.x) * a.heads + i / a.rotated;
        uint32_t index = i % a.rotated;
        const float* x = a.query + head * (a.plain + a.rotated) + a.plain;
        a.out[head * (a.rank + a.rotated) + a.rank + index] =
            rotated_value(x, index, a.rotated, a.neighbours, a.frequencies, position, a.magnitude);
    }
}

struct LatentHeadsArguments {
    Matrix matrix;               // rows of all heads
    const float* x;              // [tokens, heads, x_width]: the first values of each
    float* out;                  // [tokens, heads, out_width]: the first `count` of each
    uint32_t tokens;
    uint32_t heads;
    uint32_t x_width;
    uint32_t out_width;
    uint32_t stride;             // rows from one head's first to the next one's
    uint32_t first;              // a head's first row among them
    uint32_t count;              // rows of a head
    uint32_t padding;
};

template <int BITS>
__device__ inline void affine_values(const Matrix& m, uint32_t row, uint32_t column, float (&w)[32]) {
    uint32_t words[BITS];
    ChunkPlace place = chunk_place<BITS>(m, row, column);
    load_words<BITS>(m.weight + place.byte, words);
    float scale = load_float(m.scales, place.group, m.scale_kind);
    float bias = load_float(m.biases, place.group, m.scale_kind);
    unroll<0, 32>([&]<int I>() { w[I] = fmaf(scale, float(value<BITS, I>(words)), bias); });
}

// 32 values of a row from `column` on; zeros past its end.
__device__ inline void row_values(const Matrix& m, uint32_t row, uint32_t column, float (&w)[32]) {
    if (m.kind != AFFINE) {
        size_t at = size_t(row) * m.columns + column;
#pragma unroll
        for (int i = 0; i < 32; i++) w[i] = column + i < m.columns ? load_float(m.weight, at + i, m.kind) : 0.0f;
        return;
    }
    switch (m.bits) {
        case 2: return affine_values<2>(m, row, column, w);
        case 3: return affine_values<3>(m, row, column, w);
        case 4: return affine_values<4>(m, row, column, w);
        case 5: return affine_values<5>(m, row, column, w);
        case 6: return affine_values<6>(m, row, column, w);
        default: return affine_values<8>(m, row, column, w);
    }
}

// Products of each head's values with its rows of the matrix. Rows are short: as few lanes as it has chunks of 32
// columns share one, and a weight is read once for LATENT_TOKENS tokens.
// Grid: (blocks of 8 * (32 / lanes) rows, heads, blocks of tokens), 256 threads; shared: the tokens' staged values.
extern "C" __global__ void __launch_bounds__(256) latent_heads(const __grid_constant__ LatentHeadsArguments a) {
    extern __shared__ float staged[];
    const Matrix& m = a.matrix;
    uint32_t chunks = (m.columns + 31) / 32, lanes = 1, head = blockIdx.y, first_token = blockIdx.z * LATENT_TOKENS;
    while (lanes < chunks && lanes < 32) lanes *= 2;
    uint32_t tokens = min(LATENT_TOKENS, a.tokens - first_token);
    for (uint32_t t = 0; t < tokens; t++) {
        const float* x = a.x + (size_t(first_token + t) * a.heads + head) * a.x_width;
        for (uint32_t column = threadIdx.x; column < chunks * 32; column += blockDim.x) {
            float v = column < m.columns ? x[column] : 0.0f;
            staged[(t * chunks + column / 32) * STAGED_CHUNK + column % 32] = v;
        }
    }
    __syncthreads();
    uint32_t per_warp = 32 / lanes, lane = threadIdx.x % 32;
    uint32_t row = (blockIdx.x * 8 + threadIdx.x / 32) * per_warp + lane / lanes;
    bool live = row < a.count;
    float sums[LATENT_TOKENS] = {};
    for (uint32_t chunk = lane % lanes; live && chunk < chunks; chunk += lanes) {
        float w[32];
        row_values(m, head * a.stride + a.first + row, chunk * 32, w);
#pragma unroll
        for (uint32_t t = 0; t < LATENT_TOKENS; t++) {
            if (t >= tokens) break;
            const float4* x = reinterpret_cast<const float4*>(staged + (t * chunks + chunk) * STAGED_CHUNK);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float4 v = x[i];
                sums[t] = fmaf(w[4 * i], v.x, sums[t]);
                sums[t] = fmaf(w[4 * i + 1], v.y, sums[t]);
                sums[t] = fmaf(w[4 * i + 2], v.z, sums[t]);
                sums[t] = fmaf(w[4 * i + 3], v.w, sums[t]);
            }
        }
    }
#pragma unroll
    for (uint32_t t = 0; t < LATENT_TOKENS; t++) {
        for (uint32_t offset = lanes / 2; offset > 0; offset /= 2) sums[t] += __shfl_xor_sync(FULL, sums[t], offset);
        if (live && t < tokens && lane % lanes == 0) {
            a.out[(size_t(first_token + t) * a.heads + head) * a.out_width + row] = sums[t];
        }
    }
}

struct LatentArguments {
    const float* query;          // [tokens, heads, rank + rotated]
    const uint8_t* cache;        // [sequences, context] rows
    float* out;                  // [tokens, heads, rank]
    float* partial;              // [tokens, heads, splits, rank + 2], when splits > 1
    const uint32_t* positions;
    const uint32_t* sequences;
    const uint32_t* chosen;      // [tokens, top]: rows, ascending, of tokens that may see more than `top`; null: all
    uint32_t heads;
    uint32_t rank;               // at most LATENT_RANK
    uint32_t row;                // rank + rotated, at most LATENT_ROW
    uint32_t context;
    uint32_t splits;
    uint32_t tokens;
    float scale;                 // of the dots, times the logarithm of e to base 2
    uint32_t kv_type;            // CacheType
    uint32_t single;             // 1: every token has blocks of its own, 0: all are of one sequence and share them
    uint32_t top;                // rows that a token sees at most
};

// How many rows a token sees.
__device__ inline uint32_t rows_seen(const LatentArguments& a, uint32_t token) {
    return min(a.positions[token] + 1, a.top);
}

// The rows that a token sees by number, where they are chosen; null where it sees all of them.
__device__ inline const uint32_t* rows_chosen(const LatentArguments& a, uint32_t token) {
    return a.positions[token] >= a.top ? a.chosen + size_t(token) * a.top : nullptr;
}

// The part of `length` rows that split `split` takes.
struct LatentPart {
    uint32_t begin, end, share;
    __device__ inline LatentPart(uint32_t length, uint32_t splits, uint32_t split) {
        share = (length + splits - 1) / splits;
        share = (share + STEP_KEYS - 1) / STEP_KEYS * STEP_KEYS;
        begin = min(split * share, length);
        end = min(begin + share, length);
    }
};

// In f32, for every type. A block takes 8 * ROWS pairs of a token and a head: of one token and a part of its context,
// or of a prompt's tokens in turn; a warp takes ROWS of them, a lane every 32nd value of a row.
// With CHOSEN a block's pairs are of one token, whose rows may be chosen.
// Grid: (blocks of pairs, splits, tokens or 1), 256 threads; shared: LATENT_KEYS rows of LATENT_ROW floats.
template <int ROWS, bool CHOSEN = false>
__device__ inline void attend_latent(const LatentArguments& a) {
    constexpr int WIDE = LATENT_ROW / 32, NARROW = LATENT_RANK / 32;
    extern __shared__ float tile[];
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t first = a.single ? blockIdx.z * a.heads : 0;
    uint32_t last = a.single ? first + a.heads : a.tokens * a.heads;
    first += blockIdx.x * 8 * ROWS;
    uint32_t first_token = first / a.heads, last_token = (min(first + 8 * ROWS, last) - 1) / a.heads;
    size_t row_bytes = cache_row_bytes(a.kv_type, a.row);
    const uint8_t* cache = a.cache + size_t(a.sequences[first_token]) * a.context * row_bytes;
    LatentPart part(rows_seen(a, last_token), a.splits, blockIdx.y);
    if (part.begin == part.end) return;
    const uint32_t* chosen = CHOSEN ? rows_chosen(a, first_token) : nullptr;
    float q[ROWS][WIDE], acc[ROWS][NARROW], largest[ROWS], total[ROWS];
    uint32_t length[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        uint32_t pair = first + warp * ROWS + r;
        bool live = pair < last;
        const float* from = a.query + size_t(live ? pair : first) * a.row;
        length[r] = live ? rows_seen(a, pair / a.heads) : 0;
        largest[r] = -INFINITY, total[r] = 0.0f;
#pragma unroll
        for (int d = 0; d < WIDE; d++) q[r][d] = d * 32 + lane < a.row ? from[d * 32 + lane] * a.scale : 0.0f;
#pragma unroll
        for (int d = 0; d < NARROW; d++) acc[r][d] = 0.0f;
    }
    for (uint32_t start = part.begin; start < part.end; start += LATENT_KEYS) {
        uint32_t count = min(LATENT_KEYS, part.end - start);
        __syncthreads();
        for (uint32_t j = warp; j < count; j += 8) {
            const uint8_t* from = cache + (chosen ? chosen[start + j] : start + j) * row_bytes;
#pragma unroll
            for (uint32_t i = lane; i < LATENT_ROW; i += 32) {
                tile[j * LATENT_ROW + i] = i < a.row ? load_cached(from, a.kv_type, a.row, i) : 0.0f;
            }
        }
        __syncthreads();
        for (uint32_t j = 0; j < count; j++) {
            float k[WIDE], dots[ROWS];
#pragma unroll
            for (int d = 0; d < WIDE; d++) k[d] = tile[j * LATENT_ROW + d * 32 + lane];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                dots[r] = 0.0f;
#pragma unroll
                for (int d = 0; d < WIDE; d++) dots[r] = fmaf(q[r][d], k[d], dots[r]);
            }
            // Sums of all pairs side by side, so that none waits for another's shuffles.
#pragma unroll
            for (int offset = 16; offset > 0; offset >>= 1) {
#pragma unroll
                for (int r = 0; r < ROWS; r++) dots[r] += __shfl_xor_sync(FULL, dots[r], offset);
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (start + j >= length[r]) continue;
                float top = fmaxf(largest[r], dots[r]);
                float shrink = exp2f(largest[r] - top), weight = exp2f(dots[r] - top);
                largest[r] = top;
                total[r] = total[r] * shrink + weight;
#pragma unroll
                for (int d = 0; d < NARROW; d++) acc[r][d] = acc[r][d] * shrink + weight * k[d];
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        size_t pair = first + warp * ROWS + r;
        if (pair >= last) continue;
        float* to = a.splits == 1 ? a.out + pair * a.rank : a.partial + (pair * a.splits + blockIdx.y) * (a.rank + 2);
        float divisor = a.splits == 1 ? total[r] : 1.0f;
#pragma unroll
        for (int d = 0; d < NARROW; d++) {
            uint32_t i = d * 32 + lane;
            if (i < a.rank) to[i] = acc[r][d] / divisor;
        }
        if (a.splits > 1 && lane == 0) to[a.rank] = largest[r], to[a.rank + 1] = total[r];
    }
}

extern "C" __global__ void __launch_bounds__(256) attend_latent_2(const __grid_constant__ LatentArguments a) {
    attend_latent<2>(a);
}
extern "C" __global__ void __launch_bounds__(256) attend_latent_4(const __grid_constant__ LatentArguments a) {
    attend_latent<4>(a);
}
extern "C" __global__ void __launch_bounds__(256) attend_chosen_2(const __grid_constant__ LatentArguments a) {
    attend_latent<2, true>(a);
}

// Joins the parts of the context, those that have rows. Grid: (heads, tokens, rank / 64), 256 threads: 64 values by
// four quarters of the parts.
extern "C" __global__ void __launch_bounds__(256) join_latent(const __grid_constant__ LatentArguments a) {
    constexpr uint32_t QUARTERS = 4, PER_QUARTER = ATTENTION_SPLITS / QUARTERS;
    __shared__ float weights[ATTENTION_SPLITS], sums[QUARTERS][64], whole;
    uint32_t length = rows_seen(a, blockIdx.y), share = LatentPart(length, a.splits, 0).share;
    uint32_t parts = (length + share - 1) / share;
    size_t pair = size_t(blockIdx.y) * a.heads + blockIdx.x;
    const float* from = a.partial + pair * a.splits * (a.rank + 2);
    uint32_t i = blockIdx.z * 64 + threadIdx.x % 64, quarter = threadIdx.x / 64;
    float v[PER_QUARTER];
#pragma unroll
    for (uint32_t j = 0; j < PER_QUARTER; j++) {
        uint32_t s = quarter + QUARTERS * j;
        v[j] = i < a.rank && s < parts ? from[size_t(s) * (a.rank + 2) + i] : 0.0f;
    }
    if (threadIdx.x < 32) {
        // Two parts a lane.
        float top[2], total[2], sum = 0.0f;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t s = threadIdx.x + 32 * j;
            const float* end = from + size_t(s) * (a.rank + 2) + a.rank;
            top[j] = s < parts ? end[0] : -INFINITY;
            total[j] = s < parts ? end[1] : 0.0f;
        }
        float largest = warp_max(fmaxf(top[0], top[1]));
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float weight = exp2f(top[j] - largest);
            weights[threadIdx.x + 32 * j] = weight;
            sum += weight * total[j];
        }
        sum = warp_sum(sum);
        if (threadIdx.x == 0) whole = sum;
    }
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (uint32_t j = 0; j < PER_QUARTER; j++) {
        uint32_t s = quarter + QUARTERS * j;
        if (s < parts) sum = fmaf(weights[s], v[j], sum);
    }
    sums[quarter][threadIdx.x % 64] = sum;
    __syncthreads();
    if (quarter == 0 && i < a.rank) {
        uint32_t c = threadIdx.x;
        a.out[pair * a.rank + i] = ((sums[0][c] + sums[1][c]) + (sums[2][c] + sums[3][c])) / whole;
    }
}

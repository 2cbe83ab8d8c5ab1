// What latent rows are chosen by: the queries of an indexer, an index key of each token, whose norm has a mean and a
// bias, and scores on tensor cores; `score_rows` of compressed_attention.cu scores elsewhere, `choose_rows` there
// chooses, `attend_chosen_*` of latent.cu and latent_tiles.cu attend.
#include "scores.cuh"
#include "tensor.cuh"

struct RowIndexArguments {
    SequenceRows rows;           // ratio: 1
    float* queries;              // [tokens, heads, dim]
    const float* keys;           // [tokens, dim]
    const float* norm;           // [dim]
    const float* bias;           // [dim]
    const float* frequencies;    // [rotated / 2]
    float* factors;              // [tokens, heads]: what each head weighs
    uint32_t heads;
    uint32_t dim;
    uint32_t rotated;            // first values of a query, and of a key
    uint32_t neighbours;         // 1: values 2 j and 2 j + 1 are a pair, 0: j and j + rotated / 2
    uint32_t kind;               // CacheType of index keys
    uint32_t place;              // of the layer's index keys in a page
    uint32_t bytes;              // of one
    float epsilon;               // added to the variance
    float magnitude;             // of rotated values
    uint32_t split;              // 1: queries become parts of 16 bits (`score_split`)
};

// The place in a row of split queries of value `i` of `dim`: a lane of a quad then has a quarter of a key in one piece.
__device__ inline uint32_t split_place(uint32_t i, uint32_t dim) {
    uint32_t quarter = dim / 4, lane = i / quarter, step = i % quarter / 4, of = i % 4;
    return step * 16 + of / 2 * 8 + lane * 2 + of % 2;
}

// Rotates queries in place, norms and rotates keys and stores them; of both the values of a pair are left half the
// rotated values apart. Grid: (heads + 1, tokens), the last the key; 128 threads; shared: 2 dim floats.
extern "C" __global__ void make_row_index(const __grid_constant__ RowIndexArguments a) {
    await_inputs();
    release_next();
    extern __shared__ float row[];
    __shared__ float scratch[32];
    float* turned = row + a.dim;
    uint32_t token = blockIdx.y;
    bool is_key = blockIdx.x == a.heads;
    float* query = a.queries + (size_t(token) * a.heads + blockIdx.x) * a.dim;
    const float* from = is_key ? a.keys + size_t(token) * a.dim : query;
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) row[i] = from[i];
    if (is_key) {
        // Each thread reads what it has written alone.
        float sum = 0.0f, squares = 0.0f;
        for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) sum += row[i];
        float mean = block_sum(sum, scratch) / float(a.dim);
        for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) {
            float apart = row[i] - mean;
            squares = fmaf(apart, apart, squares);
        }
        float factor = 1.0f / sqrtf(block_sum(squares, scratch) / float(a.dim) + a.epsilon);
        for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) {
            row[i] = fmaf((row[i] - mean) * factor, a.norm[i], a.bias[i]);
        }
    }
    __syncthreads();
    uint32_t position = a.rows.positions[token];
    uint8_t* to = page_row(a.rows, token, position, a.place, a.bytes);
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) {
        float v = i < a.rotated ? rotated_value(row, i, a.rotated, a.neighbours, a.frequencies, float(position),
                                                a.magnitude)
                                : row[i];
        if (is_key) {
            store_cached(to, a.kind, a.dim, i, v);
        } else {
            turned[i] = v;
        }
    }
    if (is_key) return;
    __syncthreads();
    if (!a.split) {
        for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) query[i] = turned[i];
        return;
    }
    // By a power of two, which the head's factor takes, so that both parts are numbers of 16 bits.
    float largest = 0.0f;
    for (uint32_t i = 0; i < a.dim; i++) largest = fmaxf(largest, fabsf(turned[i]));
    int exponent = largest > 0.0f && isfinite(largest) ? min(max(ilogbf(largest) - 9, -60), 60) : 0;
    float scale = ldexpf(1.0f, -exponent);
    __half* parts = reinterpret_cast<__half*>(query);
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) {
        uint32_t place = split_place(i, a.dim);
        __half high = __float2half_rn(turned[i] * scale);
        parts[place] = high, parts[a.dim + place] = __float2half_rn(turned[i] * scale - __half2float(high));
    }
    if (threadIdx.x == 0) a.factors[size_t(token) * a.heads + blockIdx.x] *= ldexpf(1.0f, exponent);
}

#if __CUDA_ARCH__ >= 800

// As `score_rows`, of keys of 16 bits with `dim` of DIM, and of queries that `make_row_index` has split: both parts
// meet keys as they are stored, sums are of 32 bits. A warp keeps 32 keys in registers for all tokens of the block,
// which follow each other in one sequence; a quad of lanes has a key, a lane of it a quarter.
// Grid: (blocks of SCORED_ROWS rows, groups of tokens), as many threads; shared: a token's queries, heads padded to 16,
// and factors.
template <int DIM>
__device__ inline void score_split_rows(const ScoreArguments& a) {
    constexpr uint32_t STEPS = DIM / 16, PITCH = (2 * DIM + 8) * 2, TILES = 4;
    extern __shared__ __align__(16) uint8_t split_queries[];
    const SequenceRows& s = a.rows;
    uint32_t first = blockIdx.y * a.together, last = min(first + a.together, s.tokens) - 1;
    uint32_t begin = blockIdx.x * SCORED_ROWS, most = s.positions[last] + 1;
    if (most <= a.top || begin >= most) return;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = begin + warp * 32;
    uint32_t heads = (a.heads + 15) / 16 * 16;
    float* factors = reinterpret_cast<float*>(split_queries + size_t(heads) * PITCH);
    uint32_t keys[TILES][STEPS][2];
#pragma unroll
    for (uint32_t tile = 0; tile < TILES; tile++) {
        uint32_t row = min(own + tile * 8 + lane / 4, most - 1);
        const uint4* from = reinterpret_cast<const uint4*>(page_row(s, first, row, a.place, a.bytes)
                                                           + lane % 4 * (DIM / 2));
#pragma unroll
        for (uint32_t step = 0; step < STEPS; step += 2) {
            uint4 v = from[step / 2];
            keys[tile][step][0] = v.x, keys[tile][step][1] = v.y;
            keys[tile][step + 1][0] = v.z, keys[tile][step + 1][1] = v.w;
        }
    }
    uint32_t shared = shared_address(split_queries);
    for (uint32_t token = first; token <= last; token++) {
        uint32_t visible = s.positions[token] + 1;
        if (visible <= a.top || begin >= visible) continue;
        __syncthreads();
        const float* from = a.query + size_t(token) * a.heads * DIM;
        for (uint32_t i = threadIdx.x; i < heads * (DIM / 4); i += SCORED_ROWS) {
            uint32_t head = i / (DIM / 4), unit = i % (DIM / 4);
            bool live = head < a.heads;
            copy_16(shared + head * PITCH + unit * 16, from + (live ? head * DIM + unit * 4 : 0), live);
        }
        commit_copies();
        for (uint32_t i = threadIdx.x; i < heads; i += SCORED_ROWS) {
            factors[i] = i < a.heads ? a.factors[size_t(token) * a.heads + i] : 0.0f;
        }
        await_copies<0>();
        __syncthreads();
        if (own >= visible) continue;
        float scores[TILES][2] = {};
        for (uint32_t head = 0; head < heads; head += 16) {
            float sums[TILES][4] = {};
            uint32_t at = shared + (head + lane % 16) * PITCH + lane / 16 * 16;
#pragma unroll
            for (uint32_t step = 0; step < STEPS; step++) {
                uint32_t high[4], low[4];
                load_matrices(high, at + step * 32);
                load_matrices(low, at + DIM * 2 + step * 32);
#pragma unroll
                for (uint32_t tile = 0; tile < TILES; tile++) {
                    HalfPair::multiply(sums[tile], high, keys[tile][step][0], keys[tile][step][1]);
                    HalfPair::multiply(sums[tile], low, keys[tile][step][0], keys[tile][step][1]);
                }
            }
            float factor = factors[head + lane / 4], other = factors[head + 8 + lane / 4];
#pragma unroll
            for (uint32_t tile = 0; tile < TILES; tile++) {
#pragma unroll
                for (uint32_t j = 0; j < 2; j++) {
                    // What is no number stays one.
                    float x = sums[tile][j], y = sums[tile][2 + j];
                    scores[tile][j] = fmaf(factor, x < 0.0f ? 0.0f : x, scores[tile][j]);
                    scores[tile][j] = fmaf(other, y < 0.0f ? 0.0f : y, scores[tile][j]);
                }
            }
        }
        float* to = a.scores + size_t(token) * a.stride + own;
#pragma unroll
        for (uint32_t tile = 0; tile < TILES; tile++) {
#pragma unroll
            for (uint32_t j = 0; j < 2; j++) {
                float sum = scores[tile][j];
                sum += __shfl_xor_sync(FULL, sum, 4);
                sum += __shfl_xor_sync(FULL, sum, 8);
                sum += __shfl_xor_sync(FULL, sum, 16);
                uint32_t row = tile * 8 + lane % 4 * 2 + j;
                if (lane < 4 && own + row < visible) to[row] = sum;
            }
        }
    }
}

#define SCORE_BODY(CALL) CALL
#else
#define SCORE_BODY(CALL) __trap()
#endif

extern "C" __global__ void __launch_bounds__(SCORED_ROWS) score_split_128(const __grid_constant__ ScoreArguments a) {
    await_inputs();
    release_next();
    SCORE_BODY(score_split_rows<128>(a));
}
extern "C" __global__ void __launch_bounds__(SCORED_ROWS) score_split_64(const __grid_constant__ ScoreArguments a) {
    await_inputs();
    release_next();
    SCORE_BODY(score_split_rows<64>(a));
}

// Attention over latent rows of 16 bits on tensor cores, of steps and of prompts: rows as stored, queries and
// probabilities as the sum of two parts of that type, sums in f32. A tile of rows is read once for both products and
// for all pairs of a token and a head of a block.
//
// Bits are as `latent.cu` says: tiles begin at multiples of their length, and what is masked adds zero.
#include "tensor.cuh"

#if __CUDA_ARCH__ >= 800

// Begins to copy STEP_KEYS rows from row `start` on, or as many of those chosen, to shared memory; zeros past `end`
// and past a row's values.
__device__ inline void copy_latent(uint32_t to, const uint8_t* from, const uint32_t* chosen, uint32_t row,
                                   uint32_t start, uint32_t end) {
    constexpr uint32_t UNITS = LATENT_ROW / 8;
#pragma unroll
    for (uint32_t j = 0; j < STEP_KEYS * UNITS / 256; j++) {
        uint32_t i = threadIdx.x + j * 256, key = i / UNITS, unit = i % UNITS;
        bool live = start + key < end && unit * 8 < row;
        size_t index = chosen && live ? chosen[start + key] : start + key;
        const uint8_t* at = live ? from + index * row * 2 + unit * 16 : from;
        copy_16(to + unit_offset<LATENT_ROW>(key, unit), at, live);
    }
    commit_copies();
}

// A block takes LATENT_PAIRS pairs of a token and a head, 16 to a set of four warps. Of the dots a warp has a quarter
// of the dimensions, whose part of the queries it keeps in registers; the quarters are added in shared memory, by each
// warp for itself, and of the sums it has a quarter of the latent's values.
// Grid as of `attend_latent`; 256 threads; shared: 2 STEP_KEYS rows of LATENT_ROW values of 16 bits, four quarters of
// LATENT_PAIRS rows of LATENT_PITCH dots.
template <typename PAIR, bool CHOSEN>
__device__ inline void attend_latent_tiles(const LatentArguments& a) {
    constexpr int STEPS = LATENT_ROW / 64, TILES = LATENT_RANK / 32, COLUMNS = STEP_KEYS / 8;
    constexpr uint32_t STAGE_BYTES = STEP_KEYS * LATENT_ROW * 2, QUARTER = LATENT_PAIRS * LATENT_PITCH;
    extern __shared__ __align__(128) uint8_t buffer[];
    float* quarters = reinterpret_cast<float*>(buffer + 2 * STAGE_BYTES);
    uint32_t thread = threadIdx.x, lane = thread % 32, set = thread / 32 % 2, quarter = thread / 64;
    // Later tokens of a prompt have more rows: they begin first.
    uint32_t block = a.single ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
    uint32_t first = (a.single ? blockIdx.z * a.heads : 0) + block * LATENT_PAIRS;
    uint32_t last = a.single ? (blockIdx.z + 1) * a.heads : a.tokens * a.heads;
    uint32_t first_token = first / a.heads, last_token = (min(first + LATENT_PAIRS, last) - 1) / a.heads;
    const uint8_t* cache = a.cache + size_t(a.sequences[first_token]) * a.context * a.row * 2;
    LatentPart part(rows_seen(a, last_token), a.splits, blockIdx.y);
    if (part.begin == part.end) return;
    const uint32_t* chosen = CHOSEN ? rows_chosen(a, first_token) : nullptr;
    uint32_t stages = shared_address(buffer);
    copy_latent(stages, cache, chosen, a.row, part.begin, part.end);
    // Of the pairs lane / 4 and that plus 8 of the set's 16.
    uint32_t mine = set * 16 + lane / 4, column = lane % 4 * 2, length[2];
    uint32_t high[STEPS][4], low[STEPS][4];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t pair = first + mine + 8 * j;
        bool live = pair < last;
        length[j] = live ? rows_seen(a, pair / a.heads) : 0;
        const float* query = a.query + (live ? size_t(pair) * a.row : 0);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
#pragma unroll
            for (int side = 0; side < 2; side++) {
                uint32_t d = (quarter * STEPS + step) * 16 + side * 8 + column;
                float2 v = live && d < a.row ? *reinterpret_cast<const float2*>(query + d) : float2{0.0f, 0.0f};
                split_parts<PAIR>(v.x * a.scale, v.y * a.scale, high[step][2 * side + j], low[step][2 * side + j]);
            }
        }
    }
    float sums[TILES][4] = {}, largest[2] = {-INFINITY, -INFINITY}, total[2] = {};
    uint32_t tiles = (part.end - part.begin + STEP_KEYS - 1) / STEP_KEYS;
    for (uint32_t tile = 0; tile < tiles; tile++) {
        uint32_t start = part.begin + tile * STEP_KEYS, stage = stages + tile % 2 * STAGE_BYTES;
        await_copies<0>();
        __syncthreads();
        if (tile + 1 < tiles) {
            uint32_t next = stages + (tile + 1) % 2 * STAGE_BYTES;
            copy_latent(next, cache, chosen, a.row, start + STEP_KEYS, part.end);
        }
        float dots[COLUMNS][4] = {};
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
#pragma unroll
            for (int i = 0; i < COLUMNS; i += 2) {
                uint32_t k[4], key = i * 8 + lane % 8 + lane / 16 * 8;
                uint32_t unit = (quarter * STEPS + step) * 2 + lane / 8 % 2;
                load_matrices(k, stage + unit_offset<LATENT_ROW>(key, unit));
                PAIR::multiply(dots[i], high[step], k[0], k[1]);
                PAIR::multiply(dots[i + 1], high[step], k[2], k[3]);
                PAIR::multiply(dots[i], low[step], k[0], k[1]);
                PAIR::multiply(dots[i + 1], low[step], k[2], k[3]);
            }
        }
        float* at = quarters + mine * LATENT_PITCH + column;
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float2 v = {dots[i][2 * j], dots[i][2 * j + 1]};
                *reinterpret_cast<float2*>(at + quarter * QUARTER + j * 8 * LATENT_PITCH + i * 8) = v;
            }
        }
        asm volatile("bar.sync %0, 128;" ::"r"(set + 1) : "memory");
        float top[2] = {largest[0], largest[1]}, less[2];
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float2 v[4];
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    v[q] = *reinterpret_cast<const float2*>(at + q * QUARTER + j * 8 * LATENT_PITCH + i * 8);
                }
                uint32_t key = start + i * 8 + column;
                float x = (v[0].x + v[1].x) + (v[2].x + v[3].x), y = (v[0].y + v[1].y) + (v[2].y + v[3].y);
                dots[i][2 * j] = key < length[j] ? x : -INFINITY;
                dots[i][2 * j + 1] = key + 1 < length[j] ? y : -INFINITY;
                top[j] = fmaxf(top[j], fmaxf(dots[i][2 * j], dots[i][2 * j + 1]));
            }
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            top[j] = fmaxf(top[j], __shfl_xor_sync(FULL, top[j], 1));
            top[j] = fmaxf(top[j], __shfl_xor_sync(FULL, top[j], 2));
            // A pair without rows so far stays at zero.
            float reference = top[j] == -INFINITY ? 0.0f : top[j];
            less[j] = exp2f(largest[j] - reference);
            largest[j] = top[j];
            total[j] *= less[j];
#pragma unroll
            for (int i = 0; i < COLUMNS; i++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float weight = exp2f(dots[i][2 * j + c] - reference);
                    dots[i][2 * j + c] = weight;
                    total[j] += weight;
                }
            }
        }
        // Once the largest dot of every pair has been seen, as is usual soon, factors are 1.
        if (!__all_sync(FULL, less[0] == 1.0f && less[1] == 1.0f)) {
#pragma unroll
            for (int i = 0; i < TILES; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) sums[i][j] *= less[j / 2];
            }
        }
#pragma unroll
        for (int step = 0; step < STEP_KEYS / 16; step++) {
            uint32_t w[2][4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float* both = &dots[2 * step + j / 2][j % 2 * 2];
                split_parts<PAIR>(both[0], both[1], w[0][j], w[1][j]);
            }
#pragma unroll
            for (int i = 0; i < TILES; i += 2) {
                uint32_t v[4], unit = quarter * TILES + i;
                load_matrices_transposed(v, stage + unit_offset<LATENT_ROW>(step * 16 + lane % 16, unit + lane / 16));
                PAIR::multiply(sums[i], w[0], v[0], v[1]);
                PAIR::multiply(sums[i + 1], w[0], v[2], v[3]);
                PAIR::multiply(sums[i], w[1], v[0], v[1]);
                PAIR::multiply(sums[i + 1], w[1], v[2], v[3]);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        total[j] += __shfl_xor_sync(FULL, total[j], 1);
        total[j] += __shfl_xor_sync(FULL, total[j], 2);
        size_t pair = first + mine + 8 * j;
        if (pair >= last) continue;
        float* to = a.splits == 1 ? a.out + pair * a.rank : a.partial + (pair * a.splits + blockIdx.y) * (a.rank + 2);
        float divisor = a.splits == 1 ? total[j] : 1.0f;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            uint32_t d = (quarter * TILES + i) * 8 + column;
            if (d < a.rank) to[d] = sums[i][2 * j] / divisor;
            if (d + 1 < a.rank) to[d + 1] = sums[i][2 * j + 1] / divisor;
        }
        if (a.splits > 1 && quarter == 0 && lane % 4 == 0) to[a.rank] = largest[j], to[a.rank + 1] = total[j];
    }
}

#define LATENT_BODY(CALL) CALL
#else
// Launched on 8.0 and later alone: an image that lacks a product must not pass for one.
#define LATENT_BODY(CALL) __trap()
#endif

#define LATENT_TILES(NAME, PAIR)                                                                                    \
    extern "C" __global__ void __launch_bounds__(256, 1) attend_latent_##NAME(                                     \
        const __grid_constant__ LatentArguments a) {                                                               \
        LATENT_BODY((attend_latent_tiles<PAIR, false>(a)));                                                        \
    }                                                                                                              \
    extern "C" __global__ void __launch_bounds__(256, 1) attend_chosen_##NAME(                                     \
        const __grid_constant__ LatentArguments a) {                                                               \
        LATENT_BODY((attend_latent_tiles<PAIR, true>(a)));                                                         \
    }

LATENT_TILES(f16, HalfPair)
LATENT_TILES(bf16, Bf16Pair)

// Attention over latent rows of 16 bits on tensor cores, of steps and of prompts: rows as stored, queries and
// probabilities as the sum of two parts of that type, sums in f32. A tile of rows is read once for both products and
// for all pairs of a token and a head of a block.
//
// Bits are as `latent.cu` says: tiles begin at multiples of their length, and what is masked adds zero.
#include "tensor.cuh"

#if __CUDA_ARCH__ >= 800

// Begins to copy STEP_KEYS rows from row `start` on to shared memory; zeros past `end` and past a row's values.
__device__ inline void copy_latent(uint32_t to, const uint8_t* from, uint32_t row, uint32_t start, uint32_t end) {
    constexpr uint32_t UNITS = LATENT_ROW / 8;
#pragma unroll
    for (uint32_t j = 0; j < STEP_KEYS * UNITS / 256; j++) {
        uint32_t i = threadIdx.x + j * 256, key = i / UNITS, unit = i % UNITS;
        bool live = start + key < end && unit * 8 < row;
        const uint8_t* at = live ? from + (size_t(start) + key) * row * 2 + unit * 16 : from;
        copy_16(to + unit_offset<LATENT_ROW>(key, unit), at, live);
    }
    commit_copies();
}

// A block takes PAIRS pairs of a token and a head, 16 to a warp; the warps that have the same 16 share the rows of a
// tile out for the dots, and the values of a row for the sums. Queries stay in shared memory, both parts.
// Grid as of `attend_latent`; 256 threads; shared: 2 PAIRS + 2 STEP_KEYS rows of LATENT_ROW values of 16 bits, both
// parts of PAIRS * PITCH probabilities, 128 floats.
template <typename PAIR, int PAIRS>
__device__ inline void attend_latent_tiles(const LatentArguments& a) {
    constexpr int SETS = PAIRS / 16, SHARE = 8 / SETS, KEYS = STEP_KEYS / SHARE, TILES = LATENT_RANK / 8 / SHARE;
    constexpr uint32_t PART_BYTES = PAIRS * LATENT_ROW * 2, STAGE_BYTES = STEP_KEYS * LATENT_ROW * 2;
    constexpr uint32_t PITCH = STEP_KEYS + 8, UNITS = LATENT_ROW / 8;
    extern __shared__ __align__(128) uint8_t buffer[];
    auto* weights = reinterpret_cast<typename PAIR::Value*>(buffer + 2 * PART_BYTES + 2 * STAGE_BYTES);
    float* tops = reinterpret_cast<float*>(weights + 2 * PAIRS * PITCH);
    uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32, set = warp % SETS, share = warp / SETS;
    // Later tokens of a prompt have more rows: they begin first.
    uint32_t block = a.single ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
    uint32_t first = (a.single ? blockIdx.z * a.heads : 0) + block * PAIRS;
    uint32_t last = a.single ? (blockIdx.z + 1) * a.heads : a.tokens * a.heads;
    uint32_t first_token = first / a.heads, last_token = (min(first + PAIRS, last) - 1) / a.heads;
    const uint8_t* cache = a.cache + size_t(a.sequences[first_token]) * a.context * a.row * 2;
    LatentPart part(a.positions[last_token] + 1, a.splits, blockIdx.y);
    if (part.begin == part.end) return;
    uint32_t high = shared_address(buffer), low = high + PART_BYTES, stages = low + PART_BYTES;
    copy_latent(stages, cache, a.row, part.begin, part.end);
    for (uint32_t i = thread; i < PAIRS * UNITS; i += 256) {
        uint32_t pair = i / UNITS, unit = i % UNITS;
        bool live = first + pair < last && unit * 8 < a.row;
        const float* from = a.query + (live ? size_t(first + pair) * a.row + unit * 8 : 0);
        uint32_t h[4], l[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float2 v = live ? *reinterpret_cast<const float2*>(from + 2 * j) : float2{0.0f, 0.0f};
            split_parts<PAIR>(v.x * a.scale, v.y * a.scale, h[j], l[j]);
        }
        uint32_t at = unit_offset<LATENT_ROW>(pair, unit);
        *reinterpret_cast<uint4*>(buffer + at) = {h[0], h[1], h[2], h[3]};
        *reinterpret_cast<uint4*>(buffer + PART_BYTES + at) = {l[0], l[1], l[2], l[3]};
    }
    // Of the pairs lane / 4 and that plus 8 of the warp's 16.
    uint32_t length[2], mine = set * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t pair = first + mine + 8 * j;
        length[j] = pair < last ? a.positions[pair / a.heads] + 1 : 0;
    }
    auto meet = [&]() { asm volatile("bar.sync %0, %1;" ::"r"(set + 1), "n"(32 * SHARE) : "memory"); };
    float sums[TILES][4] = {}, largest[2] = {-INFINITY, -INFINITY}, total[2] = {};
    uint32_t tiles = (part.end - part.begin + STEP_KEYS - 1) / STEP_KEYS;
    for (uint32_t tile = 0; tile < tiles; tile++) {
        uint32_t start = part.begin + tile * STEP_KEYS, stage = stages + tile % 2 * STAGE_BYTES;
        await_copies<0>();
        __syncthreads();
        if (tile + 1 < tiles) {
            copy_latent(stages + (tile + 1) % 2 * STAGE_BYTES, cache, a.row, start + STEP_KEYS, part.end);
        }
        float dots[KEYS / 8][4] = {};
        for (uint32_t step = 0; step * 16 < a.row; step += 2) {
            uint32_t k[2][4];
            if constexpr (KEYS == 8) {
                // Both steps at once.
                load_matrices(k[0], stage + unit_offset<LATENT_ROW>(share * 8 + lane % 8, step * 2 + lane / 8));
            }
#pragma unroll
            for (int s = 0; s < 2; s++) {
                uint32_t q[2][4], at = unit_offset<LATENT_ROW>(set * 16 + lane % 16, (step + s) * 2 + lane / 16);
                load_matrices(q[0], high + at);
                load_matrices(q[1], low + at);
                if constexpr (KEYS == 8) {
                    PAIR::multiply(dots[0], q[0], k[0][2 * s], k[0][2 * s + 1]);
                    PAIR::multiply(dots[0], q[1], k[0][2 * s], k[0][2 * s + 1]);
                } else {
                    uint32_t key = share * 16 + lane % 8 + lane / 16 * 8;
                    load_matrices(k[s], stage + unit_offset<LATENT_ROW>(key, (step + s) * 2 + lane / 8 % 2));
                    PAIR::multiply(dots[0], q[0], k[s][0], k[s][1]);
                    PAIR::multiply(dots[KEYS / 8 - 1], q[0], k[s][2], k[s][3]);
                    PAIR::multiply(dots[0], q[1], k[s][0], k[s][1]);
                    PAIR::multiply(dots[KEYS / 8 - 1], q[1], k[s][2], k[s][3]);
                }
            }
        }
        float top[2] = {-INFINITY, -INFINITY}, less[2];
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                uint32_t key = start + share * KEYS + i * 8 + lane % 4 * 2 + j % 2;
                if (key >= length[j / 2]) dots[i][j] = -INFINITY;
                top[j / 2] = fmaxf(top[j / 2], dots[i][j]);
            }
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            top[j] = fmaxf(top[j], __shfl_xor_sync(FULL, top[j], 1));
            top[j] = fmaxf(top[j], __shfl_xor_sync(FULL, top[j], 2));
            if (lane % 4 == 0) tops[share * PAIRS + mine + 8 * j] = top[j];
        }
        meet();
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float all = largest[j];
#pragma unroll
            for (int i = 0; i < SHARE; i++) all = fmaxf(all, tops[i * PAIRS + mine + 8 * j]);
            // A pair without rows so far stays at zero.
            float reference = all == -INFINITY ? 0.0f : all;
            less[j] = exp2f(largest[j] - reference);
            largest[j] = all;
            total[j] *= less[j];
#pragma unroll
            for (int i = 0; i < KEYS / 8; i++) {
                float x = exp2f(dots[i][2 * j] - reference), y = exp2f(dots[i][2 * j + 1] - reference);
                total[j] += x + y;
                uint32_t h, l, at = (mine + 8 * j) * PITCH + share * KEYS + i * 8 + lane % 4 * 2;
                split_parts<PAIR>(x, y, h, l);
                *reinterpret_cast<uint32_t*>(weights + at) = h;
                *reinterpret_cast<uint32_t*>(weights + PAIRS * PITCH + at) = l;
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
        meet();
#pragma unroll
        for (int step = 0; step < STEP_KEYS / 16; step++) {
            uint32_t w[2][4], at = (set * 16 + lane % 16) * PITCH + step * 16 + lane / 16 * 8;
            load_matrices(w[0], shared_address(weights + at));
            load_matrices(w[1], shared_address(weights + PAIRS * PITCH + at));
#pragma unroll
            for (int i = 0; i < TILES; i += 2) {
                uint32_t v[4], unit = share * TILES + i;
                if (unit * 8 >= a.rank) break;
                load_matrices_transposed(v, stage + unit_offset<LATENT_ROW>(step * 16 + lane % 16, unit + lane / 16));
                PAIR::multiply(sums[i], w[0], v[0], v[1]);
                PAIR::multiply(sums[i + 1], w[0], v[2], v[3]);
                PAIR::multiply(sums[i], w[1], v[0], v[1]);
                PAIR::multiply(sums[i + 1], w[1], v[2], v[3]);
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 2; j++) {
        total[j] += __shfl_xor_sync(FULL, total[j], 1);
        total[j] += __shfl_xor_sync(FULL, total[j], 2);
        if (lane % 4 == 0) tops[share * PAIRS + mine + 8 * j] = total[j];
    }
    meet();
#pragma unroll
    for (int j = 0; j < 2; j++) {
        size_t pair = first + mine + 8 * j;
        if (pair >= last) continue;
        float whole = 0.0f;
#pragma unroll
        for (int i = 0; i < SHARE; i++) whole += tops[i * PAIRS + mine + 8 * j];
        float* to = a.splits == 1 ? a.out + pair * a.rank : a.partial + (pair * a.splits + blockIdx.y) * (a.rank + 2);
        float divisor = a.splits == 1 ? whole : 1.0f;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            uint32_t d = (share * TILES + i) * 8 + lane % 4 * 2;
            if (d < a.rank) to[d] = sums[i][2 * j] / divisor;
            if (d + 1 < a.rank) to[d + 1] = sums[i][2 * j + 1] / divisor;
        }
        if (a.splits > 1 && share == 0 && lane % 4 == 0) to[a.rank] = largest[j], to[a.rank + 1] = whole;
    }
}

#define LATENT_BODY(CALL) CALL
#else
// Launched on 8.0 and later alone: an image that lacks a product must not pass for one.
#define LATENT_BODY(CALL) __trap()
#endif

#define LATENT_TILES(NAME, PAIR, PAIRS)                                                                             \
    extern "C" __global__ void __launch_bounds__(256, 1) attend_latent_##NAME##_##PAIRS(                           \
        const __grid_constant__ LatentArguments a) {                                                               \
        LATENT_BODY((attend_latent_tiles<PAIR, PAIRS>(a)));                                                        \
    }

LATENT_TILES(f16, HalfPair, 32)
LATENT_TILES(f16, HalfPair, 64)
LATENT_TILES(bf16, Bf16Pair, 32)
LATENT_TILES(bf16, Bf16Pair, 64)

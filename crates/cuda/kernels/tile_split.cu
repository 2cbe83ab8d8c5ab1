// Matrix times many tokens whose activations were split into two bf16 parts beforehand: as tile.cu, exact integers on
// tensor cores and f32 everywhere else, for 2, 4 and 8 bits.
//
// A block computes up to 128 tokens by 32 rows of the matrix per warp, 64 columns at a time. A warp unpacks its own 32
// rows into registers, once for all tokens; the tokens' parts come from shared memory, several stages ahead. Of a tile
// with few tokens (an expert's), only the sixteens that have any are multiplied.
//
// Columns are multiplied in an order in which unpacking is cheap: of each 32, lane t of four takes 8 t .. 8 t + 7, and
// a pair of values that share a register is (i, i + 4). Parts are stored in that order by `split_tokens`.
#include "product.cuh"
#include "tensor.cuh"

// Bytes of a token's parts of the columns of a stage: 64 first parts, 64 second parts.
constexpr uint32_t SPLIT_BYTES = 4 * SPLIT_COLUMNS;

struct SplitTokensArguments {
    const float* x;              // [rows, columns]
    const float* up;             // optional: SiLU(x) * up is split instead of x
    uint8_t* parts;              // [rows, columns / 64] of SPLIT_BYTES
    float* sums;                 // [rows, columns / 32]
    const uint32_t* tiles;       // optional, [.., 3]: expert, first row, rows: only these
    const uint32_t* tile_count;
    uint32_t columns;            // a multiple of 64
    uint32_t rows;               // all rows, without tiles
};

// Splits rows: `place(v, eight, parts)` splits eight values, the row's eight number `eight`, into its `parts`. Grid:
// (rows, or tiles times the rows of a tile in steps of 8; slices of the columns), 256 threads, a warp to a row at a
// time.
template <typename Place>
__device__ inline void split_rows(const SplitTokensArguments& a, Place&& place) {
    uint32_t lane = threadIdx.x % 32, row = blockIdx.x * 8 + threadIdx.x / 32, last = a.rows, step = gridDim.x * 8;
    // The next kernel may ask for its weights.
    release_next();
    if (a.tiles) {
        if (blockIdx.x >= *a.tile_count) return;
        const uint32_t* entry = a.tiles + 3 * size_t(blockIdx.x);
        row = entry[1] + threadIdx.x / 32, last = entry[1] + entry[2], step = 8;
    }
    // A lane makes 8 consecutive columns.
    uint32_t eights = a.columns / 8;
    for (; row < last; row += step) {
        for (uint32_t eight = blockIdx.y * 32 + lane; eight < eights; eight += gridDim.y * 32) {
            const float4* from = reinterpret_cast<const float4*>(a.x + size_t(row) * a.columns + eight * 8);
            float4 first = from[0], second = from[1];
            float v[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
            if (a.up) {
                const float4* other = reinterpret_cast<const float4*>(a.up + size_t(row) * a.columns + eight * 8);
                float4 low = other[0], high = other[1];
                float u[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
                for (int i = 0; i < 8; i++) v[i] = silu(v[i]) * u[i];
            }
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < 8; i++) sum += v[i];
            sum += __shfl_xor_sync(__activemask(), sum, 1);
            sum += __shfl_xor_sync(__activemask(), sum, 2);
            if (eight % 4 == 0) a.sums[size_t(row) * (a.columns / 32) + eight / 4] = sum;
            place(v, eight, a.parts + (size_t(row) * (a.columns / 64) + eight / 8) * SPLIT_BYTES);
        }
    }
}

// In the order of `tile_split`.
extern "C" __global__ void __launch_bounds__(256) split_tokens(const __grid_constant__ SplitTokensArguments a) {
    split_rows(a, [](const float (&v)[8], uint32_t eight, uint8_t* to) {
        // Lane t of four and chunk of 32 columns as they are multiplied.
        uint32_t t = eight % 4, chunk = eight / 4;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            // Pair (i, i + 4): step 2 (chunk % 2) + i / 2 of 16 columns, its first or second eight.
            __nv_bfloat162 high = __floats2bfloat162_rn(v[i], v[i + 4]);
            float2 back = __bfloat1622float2(high);
            __nv_bfloat162 low = __floats2bfloat162_rn(v[i] - back.x, v[i + 4] - back.y);
            uint32_t at = (chunk % 2 * 4 + i) * 16 + t * 4;
            *reinterpret_cast<__nv_bfloat162*>(to + at) = high;
            *reinterpret_cast<__nv_bfloat162*>(to + 128 + at) = low;
        }
    });
}

struct TileSplitArguments {
    const uint8_t* parts;        // of split_tokens
    const float* sums;
    const uint32_t* gather;      // optional: row of the parts for each pair
    float* out;                  // [tokens or pairs, rows]
    float* out_second;           // grouped, grid.z = 2: of the second matrix
    const uint64_t* addresses;   // grouped: record of each expert
    const uint32_t* places;      // grouped: [experts][9]
    const uint32_t* tiles;       // grouped: [.., 3]: expert, first pair, pairs
    const uint32_t* tile_count;  // grouped
    Matrix matrix;               // grouped: the shape
    Matrix second;               // grouped, grid.z = 2
    uint32_t tokens;             // not grouped
    uint32_t add;
    uint32_t first_piece;        // grouped: 0 gate and up, 2 down
    uint32_t grouped;
    uint32_t stages;
    uint32_t tile;               // tokens of a tile, at most SPLIT_TOKENS
};

#if __CUDA_ARCH__ >= 800

// Eight values of a lane as four pairs (i, i + 4) in bf16.
template <int BITS>
struct Eight;

// The integers of MASK in both halves of a register as bf16: 0x4300 is 128, whose significand counts ones. One logical
// operation of three inputs: from separate ones the compiler makes two, a sixth of what unpacking takes.
template <uint32_t MASK>
__device__ inline uint32_t to_bf16(uint32_t word) {
    uint32_t raised;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(raised) : "r"(word), "r"(MASK << 16 | MASK), "r"(0x43004300u));
    __nv_bfloat162 v = __hsub2(*reinterpret_cast<__nv_bfloat162*>(&raised), __float2bfloat162_rn(128.0f));
    return *reinterpret_cast<uint32_t*>(&v);
}

template <>
struct Eight<4> {
    uint32_t word;
    __device__ inline uint32_t pair(int i) const { return to_bf16<0xf>(word >> 4 * i); }
};

template <>
struct Eight<2> {
    uint16_t word;
    __device__ inline uint32_t pair(int i) const {
        uint32_t apart = (word & 0xffu) | uint32_t(word & 0xff00u) << 8;
        return to_bf16<3>(apart >> 2 * i);
    }
};

template <>
struct Eight<8> {
    uint2 words;
    __device__ inline uint32_t pair(int i) const {
        float low = float(words.x >> 8 * i & 0xffu), high = float(words.y >> 8 * i & 0xffu);
        return Bf16Pair::pack(low, high);
    }
};

// SIXTEENS: most sixteens of tokens of a tile; few leave registers for more warps, which hide each other's latency.
// FINE: groups of 32 columns, so that each half of a stage has scales of its own. What a thread copies is laid out
// before the loop: with one or two warps to a scheduler every address that the loop forms is time.
// Grid: (rows / (32 * WARPS), tiles of tokens, 1 or 2), 32 * WARPS threads.
template <int BITS, int WARPS, int SIXTEENS, bool FINE>
__device__ inline void tile_split(const TileSplitArguments& a) {
    constexpr uint32_t N = 32 * WARPS, THREADS = 32 * WARPS, HALVES = FINE ? 2 : 1;
    constexpr uint32_t ROW_BYTES = SPLIT_COLUMNS * BITS / 8, WEIGHT_BYTES = N * ROW_BYTES;
    // Tokens, rows of weights and sums that the threads copy at once, and how many times they do.
    constexpr uint32_t TOKENS_AT_ONCE = THREADS / 16, TOKEN_COPIES = 16 * SIXTEENS / TOKENS_AT_ONCE;
    constexpr uint32_t WEIGHT_COPIES = WEIGHT_BYTES / 16 / THREADS, ROWS_AT_ONCE = THREADS / (ROW_BYTES / 16);
    constexpr uint32_t SUM_COPIES = (32 * SIXTEENS + THREADS - 1) / THREADS;
    const uint32_t parts_bytes = a.tile * SPLIT_BYTES, stage_bytes = parts_bytes + WEIGHT_BYTES + a.tile * 8;
    extern __shared__ __align__(128) uint8_t stage_memory[];
    __shared__ float scales[2][HALVES][N], biases[2][HALVES][N];
    uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;

    Matrix m = blockIdx.z ? a.second : a.matrix;
    float* out = blockIdx.z ? a.out_second : a.out;
    uint32_t first = blockIdx.y * a.tile, count;
    if (a.grouped) {
        if (blockIdx.y >= *a.tile_count) return;
        const uint32_t* entry = a.tiles + 3 * size_t(blockIdx.y);
        const uint32_t* place = a.places + size_t(entry[0]) * 9 + (a.first_piece + blockIdx.z) * 3;
        const uint8_t* record = reinterpret_cast<const uint8_t*>(a.addresses[entry[0]]);
        m.weight = record + place[0], m.scales = record + place[1], m.biases = record + place[2];
        first = entry[1], count = entry[2];
    } else {
        count = min(a.tile, a.tokens - first);
    }
    uint32_t first_row = blockIdx.x * N, blocks = m.columns / SPLIT_COLUMNS, sixteens = (count + 15) / 16;
    uint32_t shared = shared_address(stage_memory);
    auto source = [&](uint32_t token) {
        uint32_t pair = first + min(token, count - 1);
        return a.gather ? a.gather[pair] : pair;
    };
    // Tokens' parts in units of 16 bytes; eight rows' units of one column lie in different banks.
    uint32_t unit = thread % 16, own_token = thread / 16, part_at[TOKEN_COPIES], sum_at[SUM_COPIES];
    uint32_t part_to = own_token * SPLIT_BYTES + unit / 8 * 128 + ((unit ^ own_token) & 7) * 16;
#pragma unroll
    for (uint32_t j = 0; j < TOKEN_COPIES; j++) {
        part_at[j] = source(own_token + j * TOKENS_AT_ONCE) * blocks * 16 + unit;
    }
#pragma unroll
    for (uint32_t j = 0; j < SUM_COPIES; j++) {
        uint32_t i = thread + j * THREADS;
        sum_at[j] = source(i / 2) * blocks * 2 + i % 2;
    }
    size_t row_bytes = size_t(blocks) * ROW_BYTES;
    uint32_t weight_row = first_row + thread / (ROW_BYTES / 16);
    const uint8_t* weight_from = m.weight + min(weight_row, m.rows - 1) * row_bytes + thread % (ROW_BYTES / 16) * 16;
    bool wide = (reinterpret_cast<uintptr_t>(m.weight) & 15) == 0;
    uint32_t copied = 0, copy_to = shared; // stages so far, and where the next one goes
    auto copy_stage = [&]() {
        if (copied < blocks) {
            const uint8_t* parts = a.parts + size_t(copied) * SPLIT_BYTES;
#pragma unroll
            for (uint32_t j = 0; j < TOKEN_COPIES; j++) {
                if (j * TOKENS_AT_ONCE >= sixteens * 16) break;
                bool live = own_token + j * TOKENS_AT_ONCE < count;
                copy_16(copy_to + part_to + j * TOKENS_AT_ONCE * SPLIT_BYTES, parts + size_t(part_at[j]) * 16, live);
            }
            uint32_t weights = copy_to + parts_bytes;
            if (wide) {
                const uint8_t* from = weight_from + size_t(copied) * ROW_BYTES;
#pragma unroll
                for (uint32_t j = 0; j < WEIGHT_COPIES; j++) {
                    bool live = weight_row + j * ROWS_AT_ONCE < m.rows;
                    const uint8_t* row = live ? from + j * ROWS_AT_ONCE * row_bytes : from;
                    copy_16(weights + (thread + j * THREADS) * 16, row, live);
                }
            } else {
                for (uint32_t i = thread; i < WEIGHT_BYTES / 4; i += THREADS) {
                    uint32_t row = first_row + i / (ROW_BYTES / 4);
                    bool live = row < m.rows;
                    size_t at = (live ? row * row_bytes : 0) + size_t(copied) * ROW_BYTES + i % (ROW_BYTES / 4) * 4;
                    copy_4(weights + i * 4, m.weight + at, live);
                }
            }
#pragma unroll
            for (uint32_t j = 0; j < SUM_COPIES; j++) {
                uint32_t i = thread + j * THREADS;
                const float* from = a.sums + sum_at[j] + copied * 2;
                if (i < a.tile * 2) copy_4(weights + WEIGHT_BYTES + i * 4, from, i / 2 < count);
            }
        }
        commit_copies();
        copied++;
        copy_to = copied % a.stages == 0 ? shared : copy_to + stage_bytes;
    };
    // A thread brings the scales of one row, two stages ahead.
    uint32_t group_shift = 31 - __clz(m.group), scale_row = first_row + thread;
    uint32_t next_scale[HALVES], next_bias[HALVES];
    float factor = bias_factor(m.scale_kind);
    auto fetch_scales = [&](uint32_t block) {
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            next_scale[half] = next_bias[half] = 0;
            if (block < blocks && scale_row < m.rows) {
                uint32_t group = (scale_row * m.columns + block * SPLIT_COLUMNS + half * 32) >> group_shift;
                next_scale[half] = group_scale_bits(m.scales, group, m.scale_kind);
                next_bias[half] = group_scale_bits(m.biases, group, m.scale_kind);
            }
        }
    };
    auto store_scales = [&](uint32_t side) {
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            scales[side][half][thread] = group_scale_value(next_scale[half], m.scale_kind);
            biases[side][half][thread] = factor * group_scale_value(next_bias[half], m.scale_kind);
        }
    };
    for (uint32_t block = 0; block + 1 < a.stages; block++) copy_stage();
    fetch_scales(0);
    store_scales(0);
    fetch_scales(1);

    float result[SIXTEENS][4][4] = {};
    uint32_t stage_at = 0;
    for (uint32_t block = 0; block < blocks; block++) {
        await_stage(a.stages);
        __syncthreads();
        copy_stage();
        store_scales((block + 1) % 2);
        fetch_scales(block + 2);
        const uint8_t* stage = stage_memory + stage_at;
        uint32_t stage_shared = shared + stage_at;
        stage_at = stage_at + stage_bytes == a.stages * stage_bytes ? 0 : stage_at + stage_bytes;
        const uint8_t* weights = stage + parts_bytes + (warp * 32 + g) * ROW_BYTES + t * BITS;
        const float2* sums = reinterpret_cast<const float2*>(stage + parts_bytes + WEIGHT_BYTES) + g;
        uint32_t b[4][4][2];
#pragma unroll
        for (int n = 0; n < 4; n++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                auto eight =
                    *reinterpret_cast<const Eight<BITS>*>(weights + 8 * n * ROW_BYTES + half * (ROW_BYTES / 2));
#pragma unroll
                for (int i = 0; i < 4; i++) b[n][2 * half + i / 2][i % 2] = eight.pair(i);
            }
        }
        // Fragments of the tokens are loaded a step of 16 columns ahead; past the last sixteen too, where nothing uses
        // what is read (and which the launch leaves room for).
        uint32_t parts[2][2][4];
        uint32_t token_at = stage_shared + lane % 16 * SPLIT_BYTES, swizzle = lane & 7;
        auto load_step = [&](int step) {
            uint32_t at = token_at + step / 4 * 16 * SPLIT_BYTES + ((2 * (step % 4) + lane / 16) ^ swizzle) * 16;
            load_matrices(parts[step % 2][0], at);
            load_matrices(parts[step % 2][1], at + 128);
        };
        load_step(0);
        const float* scale = scales[block % 2][0] + warp * 32 + 2 * t;
        const float* bias = biases[block % 2][0] + warp * 32 + 2 * t;
#pragma unroll
        for (int sixteen = 0; sixteen < SIXTEENS; sixteen++) {
            if (sixteen >= sixteens) break;
            float2 upper = sums[sixteen * 16], lower = sums[sixteen * 16 + 8];
#pragma unroll
            for (int half = 0; half < HALVES; half++) {
                float c[4][4] = {};
#pragma unroll
                for (int s = half * 2; s < (FINE ? half * 2 + 2 : 4); s++) {
                    if (sixteen * 4 + s + 1 < 4 * SIXTEENS) load_step(sixteen * 4 + s + 1);
#pragma unroll
                    for (int n = 0; n < 4; n++) Bf16Pair::multiply(c[n], parts[s % 2][0], b[n][s][0], b[n][s][1]);
#pragma unroll
                    for (int n = 0; n < 4; n++) Bf16Pair::multiply(c[n], parts[s % 2][1], b[n][s][0], b[n][s][1]);
                }
                float x0 = FINE ? (half ? upper.y : upper.x) : upper.x + upper.y;
                float x1 = FINE ? (half ? lower.y : lower.x) : lower.x + lower.y;
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    float2 s = *reinterpret_cast<const float2*>(scale + half * N + 8 * n);
                    float2 z = *reinterpret_cast<const float2*>(bias + half * N + 8 * n);
                    float (&r)[4] = result[sixteen][n];
                    r[0] = fmaf(s.x, c[n][0], fmaf(z.x, x0, r[0]));
                    r[1] = fmaf(s.y, c[n][1], fmaf(z.y, x0, r[1]));
                    r[2] = fmaf(s.x, c[n][2], fmaf(z.x, x1, r[2]));
                    r[3] = fmaf(s.y, c[n][3], fmaf(z.y, x1, r[3]));
                }
            }
        }
    }
#pragma unroll
    for (int sixteen = 0; sixteen < SIXTEENS; sixteen++) {
        if (sixteen >= sixteens) break;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t token = sixteen * 16 + g + 8 * half;
            if (token >= count) continue;
            float* to = out + size_t(first + token) * m.rows;
#pragma unroll
            for (int n = 0; n < 4; n++) {
                uint32_t row = first_row + warp * 32 + 8 * n + 2 * t;
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    if (row + c >= m.rows) continue;
                    float v = result[sixteen][n][2 * half + c];
                    to[row + c] = a.add ? to[row + c] + v : v;
                }
            }
        }
    }
}

#define SPLIT_BODY(CALL) CALL
#else
#define SPLIT_BODY(CALL) __trap()
#endif

#define TILE_SPLIT(NAME, BITS, WARPS, SIXTEENS, BLOCKS, FINE)                                                       \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) tile_split_##NAME(                             \
        const __grid_constant__ TileSplitArguments a) {                                                            \
        SPLIT_BODY((tile_split<BITS, WARPS, SIXTEENS, FINE>(a)));                                                  \
    }

TILE_SPLIT(2, 2, 8, 8, 1, false)
TILE_SPLIT(2_narrow, 2, 4, 8, 2, false)
TILE_SPLIT(2_small, 2, 4, 2, 4, false)
TILE_SPLIT(2_fine, 2, 4, 8, 2, true)
TILE_SPLIT(4, 4, 8, 8, 1, false)
TILE_SPLIT(4_narrow, 4, 4, 8, 2, false)
TILE_SPLIT(4_small, 4, 4, 2, 4, false)
TILE_SPLIT(4_fine, 4, 4, 8, 2, true)
TILE_SPLIT(8, 8, 8, 8, 1, false)
TILE_SPLIT(8_narrow, 8, 4, 8, 2, false)
TILE_SPLIT(8_small, 8, 4, 2, 4, false)
TILE_SPLIT(8_fine, 8, 4, 8, 2, true)

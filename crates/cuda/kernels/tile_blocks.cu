// Matrices of blocks and of floats times many tokens whose activations were split beforehand: as tile_split.cu, exact
// integers on tensor cores and f32 everywhere else. Rows come as they are stored, in whole units of 16 bytes, several
// stages of 64 columns ahead; a warp takes its own 32 rows apart, once for all tokens. Floats are sums of bf16 parts:
// three of f32, two of f16, so that nothing of them is lost.
//
// Columns are multiplied in an order of its own: of each 16, lane t of four takes 4 t .. 4 t + 3, and a register holds
// (0, 2) or (1, 3) of them, as the bytes of a word fall apart.
#include "planes.cuh"

// As `split_tokens`, in the order of blocks.
extern "C" __global__ void __launch_bounds__(256) split_tokens_blocks(const __grid_constant__ SplitTokensArguments a) {
#if __CUDA_ARCH__ >= 800
    split_rows(a, [](const float (&v)[8], uint32_t eight, uint8_t* to) {
        // Lanes 2 (eight % 2) and the next of step eight / 2.
        uint32_t at = eight / 2 % 4 * 32 + eight % 2 * 8;
        uint32_t high[4], low[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int j = i / 2 * 4 + i % 2;
            split_parts<Bf16Pair>(v[j], v[j + 2], high[i], low[i]);
        }
        *reinterpret_cast<uint2*>(to + at) = {high[0], high[2]};
        *reinterpret_cast<uint2*>(to + at + 16) = {high[1], high[3]};
        *reinterpret_cast<uint2*>(to + 128 + at) = {low[0], low[2]};
        *reinterpret_cast<uint2*>(to + 128 + at + 16) = {low[1], low[3]};
    });
#else
    __trap();
#endif
}

#if __CUDA_ARCH__ >= 800

// Four codes of a byte as pairs (0, 2) and (1, 3) in bf16, less OFFSET: exact.
template <uint32_t OFFSET>
__device__ inline void code_pairs(uint32_t codes, uint32_t (&out)[2]) {
    if constexpr (OFFSET < 128) {
        // 0x4300 is 128 in bf16 and its significand counts ones; codes are below 128.
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t raised = (codes >> 8 * i & 0x007f007fu) | 0x43004300u;
            __nv_bfloat162 shift = __float2bfloat162_rn(128.0f + OFFSET);
            __nv_bfloat162 v = __hsub2(*reinterpret_cast<__nv_bfloat162*>(&raised), shift);
            out[i] = *reinterpret_cast<uint32_t*>(&v);
        }
    } else {
        // 0x4b000000 is 2^23 in f32, whose significand counts ones.
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = __uint_as_float(__byte_perm(codes, 0x4b000000u, 0x7650 | i)) - (8388608.0f + OFFSET);
        }
        out[0] = Bf16Pair::pack(v[0], v[2]), out[1] = Bf16Pair::pack(v[1], v[3]);
    }
}

// Matrices of floats in the form of formats: no scales.
template <uint32_t KIND>
struct FloatRows {
    static constexpr uint32_t SIZE = KIND == F32 ? 4 : 2, VALUES = 32, BYTES = 32 * SIZE, GROUP = 64, OFFSET = 0;
    static constexpr uint32_t FIRST = 64 * SIZE, SECOND = 0, PARTS = KIND == F32 ? 3 : KIND == F16 ? 2 : 1;
    static constexpr bool MINIMUM = false, WORDS = true;
    struct Header {};
    static __device__ uint32_t first(uint32_t) { return 0; }
    static __device__ uint32_t second(uint32_t) { return 0; }
    static __device__ void header(const uint8_t*, const uint8_t*, uint32_t, Header&) {}
    static __device__ void scales(const Header&, uint32_t, Scaling (&out)[1]) { out[0] = {1.0f, 0.0f}; }
    template <typename A>
    static __device__ void parts(A a, uint32_t t, uint32_t (&out)[PARTS][4][2]) {
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) {
            uint32_t at = (16 * s + 4 * t) * SIZE;
            if constexpr (KIND == BF16) {
                uint32_t x = a(at), y = a(at + 4);
                out[0][s][0] = __byte_perm(x, y, 0x5410), out[0][s][1] = __byte_perm(x, y, 0x7632);
            } else {
                float v[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if constexpr (KIND == F32) {
                        v[i] = __uint_as_float(a(at + 4 * i));
                    } else {
                        v[i] = half_value(a(at + i / 2 * 4) >> 16 * (i % 2) & 0xffff);
                    }
                }
#pragma unroll
                for (uint32_t part = 0; part < PARTS; part++) {
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        out[part][s][i] = Bf16Pair::pack(v[i], v[i + 2]);
                        float2 back = Bf16Pair::unpack(out[part][s][i]);
                        v[i] -= back.x, v[i + 2] -= back.y;
                    }
                }
            }
        }
    }
};

// 8-bit floats in the form of formats: exact in bf16, and a scale for 64 columns, which the rows of a tile share.
struct Fp8Rows {
    static constexpr uint32_t VALUES = 32, BYTES = 32, GROUP = 64, OFFSET = 0, FIRST = 64, SECOND = 0;
    static constexpr bool MINIMUM = false, WORDS = true;
    struct Header {
        uint32_t scale, kind;
    };
    static __device__ uint32_t first(uint32_t) { return 0; }
    static __device__ uint32_t second(uint32_t) { return 0; }
    static __device__ void scales(const Header& h, uint32_t, Scaling (&out)[1]) {
        out[0] = {tile_scale_value(h.scale, h.kind), 0.0f};
    }
    template <typename A>
    static __device__ void parts(A a, uint32_t t, uint32_t (&out)[1][4][2]) {
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) {
            uint32_t word = a(16 * s + 4 * t);
            float2 even = e4m3_floats(__byte_perm(word, 0, 0x4420)), odd = e4m3_floats(__byte_perm(word, 0, 0x4431));
            out[0][s][0] = Bf16Pair::pack(even.x, even.y), out[0][s][1] = Bf16Pair::pack(odd.x, odd.y);
        }
    }
};

// True for formats with a scale for each tile of FP8_TILE rows and columns.
template <typename F>
constexpr bool TILE_SCALES = false;
template <>
constexpr bool TILE_SCALES<Fp8Rows> = true;

template <typename F>
constexpr uint32_t WEIGHT_PARTS = 1;
template <uint32_t KIND>
constexpr uint32_t WEIGHT_PARTS<FloatRows<KIND>> = FloatRows<KIND>::PARTS;

// How the bytes of 64 columns of a row lie in shared memory: units of 16 bytes, from the one in which a piece begins.
template <typename F>
struct RowUnits {
    static constexpr uint32_t STEP = F::VALUES >= 64 ? F::BYTES : 2 * F::BYTES;
    // What addresses of pieces are multiples of, as matrices are of 16.
    static constexpr uint32_t ALIGNED = STEP % 16 == 0 ? 16 : STEP & ~STEP + 1;
    static constexpr uint32_t of(uint32_t bytes) { return bytes == 0 ? 0 : (16 - ALIGNED + bytes + 15) / 16; }
    static constexpr uint32_t FIRST = of(F::FIRST), ALL = FIRST + of(F::SECOND);
    // An odd number: eight rows' units of one column lie in different banks.
    static constexpr uint32_t PITCH = 16 * (ALL | 1);
    // Threads that copy a row.
    static constexpr uint32_t THREADS = ALL <= 2 ? 2 : ALL <= 4 ? 4 : ALL <= 8 ? 8 : 16;
};

// Grid: (rows / 128, tiles of tokens, 1 or 2), 128 threads; arguments as of `tile_split`.
template <typename F, int SIXTEENS>
__device__ inline void tile_blocks(const TileSplitArguments& a) {
    using Units = RowUnits<F>;
    constexpr uint32_t N = 128, GROUPS = 64 / F::GROUP, STEPS = 4 / GROUPS, PARTS = WEIGHT_PARTS<F>;
    constexpr uint32_t TOKENS_AT_ONCE = 8, TOKEN_COPIES = 16 * SIXTEENS / TOKENS_AT_ONCE;
    constexpr uint32_t WEIGHT_BYTES = N * Units::PITCH;
    constexpr uint32_t SUM_COPIES = (32 * SIXTEENS + N - 1) / N, ROWS_AT_ONCE = N / Units::THREADS;
    const uint32_t parts_bytes = a.tile * SPLIT_BYTES, stage_bytes = parts_bytes + WEIGHT_BYTES + a.tile * 8;
    extern __shared__ __align__(128) uint8_t stage_memory[];
    __shared__ float scales[2][GROUPS][N], minima[2][F::MINIMUM ? GROUPS : 1][N];
    uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;

    Matrix m = blockIdx.z ? a.second : a.matrix;
    float* out = blockIdx.z ? a.out_second : a.out;
    uint32_t first = blockIdx.y * a.tile, count;
    if (a.grouped) {
        if (blockIdx.y >= *a.tile_count) return;
        const uint32_t* entry = a.tiles + 3 * size_t(blockIdx.y);
        const uint32_t* place = a.places + size_t(entry[0]) * 9 + (a.first_piece + blockIdx.z) * 3;
        m.weight = reinterpret_cast<const uint8_t*>(a.addresses[entry[0]]) + place[0];
        if constexpr (SCALE_PLANE<F> || TILE_SCALES<F>) m.scales = m.weight - place[0] + place[1];
        first = entry[1], count = entry[2];
    } else {
        count = min(a.tile, a.tokens - first);
    }
    uint32_t first_row = blockIdx.x * N, stages = m.columns / SPLIT_COLUMNS, sixteens = (count + 15) / 16;
    uint32_t shared = shared_address(stage_memory), bytes = row_bytes<F>(m.columns);
    auto source = [&](uint32_t token) {
        uint32_t pair = first + min(token, count - 1);
        return a.gather ? a.gather[pair] : pair;
    };
    // Tokens' parts as `tile_split` copies them.
    uint32_t unit = thread % 16, own_token = thread / 16, part_at[TOKEN_COPIES], sum_at[SUM_COPIES];
    uint32_t part_to = own_token * SPLIT_BYTES + unit / 8 * 128 + ((unit ^ own_token) & 7) * 16;
#pragma unroll
    for (uint32_t j = 0; j < TOKEN_COPIES; j++) {
        part_at[j] = source(own_token + j * TOKENS_AT_ONCE) * stages * 16 + unit;
    }
#pragma unroll
    for (uint32_t j = 0; j < SUM_COPIES; j++) {
        uint32_t i = thread + j * N;
        sum_at[j] = source(i / 2) * stages * 2 + i % 2;
    }
    uint32_t row_unit = thread % Units::THREADS, copy_row = first_row + thread / Units::THREADS;
    const uint8_t* copy_from = m.weight + size_t(min(copy_row, m.rows - 1)) * bytes;
    uint32_t copied = 0, copy_to = shared;
    auto copy_stage = [&]() {
        if (copied < stages) {
            const uint8_t* parts = a.parts + size_t(copied) * SPLIT_BYTES;
#pragma unroll
            for (uint32_t j = 0; j < TOKEN_COPIES; j++) {
                if (j * TOKENS_AT_ONCE >= sixteens * 16) break;
                bool live = own_token + j * TOKENS_AT_ONCE < count;
                copy_16(copy_to + part_to + j * TOKENS_AT_ONCE * SPLIT_BYTES, parts + size_t(part_at[j]) * 16, live);
            }
            uint32_t weights = copy_to + parts_bytes, c = copied % 4;
            bool one = row_unit < Units::FIRST;
            uint32_t at = stage_byte<F>(copied) + (one ? F::first(c) : F::second(c));
            uint32_t length = one ? F::FIRST : F::SECOND, skipped = 16 * (one ? row_unit : row_unit - Units::FIRST);
            uint32_t to = weights + thread / Units::THREADS * Units::PITCH + row_unit * 16;
#pragma unroll
            for (uint32_t j = 0; j < Units::THREADS; j++) {
                bool live = copy_row + j * ROWS_AT_ONCE < m.rows;
                const uint8_t* from = (live ? copy_from + size_t(j * ROWS_AT_ONCE) * bytes : copy_from) + at;
                uint32_t before = reinterpret_cast<uintptr_t>(from) & 15;
                if (row_unit < Units::ALL && skipped < before + length) {
                    copy_16(to + j * ROWS_AT_ONCE * Units::PITCH, from - before + skipped, live);
                }
            }
            if constexpr (F::MINIMUM) {
#pragma unroll
                for (uint32_t j = 0; j < SUM_COPIES; j++) {
                    uint32_t i = thread + j * N;
                    const float* from = a.sums + sum_at[j] + copied * 2;
                    if (i < a.tile * 2) copy_4(weights + WEIGHT_BYTES + i * 4, from, i / 2 < count);
                }
            }
        }
        commit_copies();
        copied++;
        copy_to = copied % a.stages == 0 ? shared : copy_to + stage_bytes;
    };
    // A thread brings the scales of one row, two stages ahead.
    uint32_t scale_row = first_row + thread;
    const uint8_t* scales_from = m.weight + size_t(min(scale_row, m.rows - 1)) * bytes;
    if constexpr (SCALE_PLANE<F>) scales_from = m.scales + size_t(min(scale_row, m.rows - 1)) * (m.columns / F::GROUP);
    typename F::Header next = {};
    auto fetch_scales = [&](uint32_t stage) {
        if (stage >= stages) return;
        if constexpr (TILE_SCALES<F>) {
            size_t index = size_t(min(scale_row, m.rows - 1) / FP8_TILE) * tiles_of_row(m) + stage * 64 / FP8_TILE;
            next = {tile_scale_bits(m.scales, index, m.scale_kind), m.scale_kind};
        }
        if constexpr (!TILE_SCALES<F>) {
            const uint8_t* block = scales_from + (SCALE_PLANE<F> ? 2 * stage : stage_byte<F>(stage));
            F::header(block, block + (SCALE_PLANE<F> ? 1 : F::BYTES), stage % 4, next);
        }
    };
    auto store_scales = [&](uint32_t side, uint32_t stage) {
        Scaling scaling[GROUPS];
        F::scales(next, stage % 4, scaling);
#pragma unroll
        for (uint32_t i = 0; i < GROUPS; i++) {
            scales[side][i][thread] = scaling[i].scale;
            if constexpr (F::MINIMUM) minima[side][i][thread] = scaling[i].minimum;
        }
    };
    for (uint32_t stage = 0; stage + 1 < a.stages; stage++) copy_stage();
    fetch_scales(0);
    store_scales(0, 0);
    fetch_scales(1);

    // Where the rows of this lane begin; the last bits say where their bytes are in the first unit.
    uint32_t low_bits = uint32_t(reinterpret_cast<uintptr_t>(m.weight)) + (first_row + warp * 32 + g) * bytes;
    float result[SIXTEENS][4][4] = {};
    uint32_t stage_at = 0;
    for (uint32_t block = 0; block < stages; block++) {
        await_stage(a.stages);
        __syncthreads();
        copy_stage();
        store_scales((block + 1) % 2, block + 1);
        fetch_scales(block + 2);
        const uint8_t* stage = stage_memory + stage_at;
        uint32_t stage_shared = shared + stage_at;
        stage_at = stage_at + stage_bytes == a.stages * stage_bytes ? 0 : stage_at + stage_bytes;
        const float2* sums = reinterpret_cast<const float2*>(stage + parts_bytes + WEIGHT_BYTES) + g;
        uint32_t b[PARTS][4][4][2], c = block % 4;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const uint8_t* row = stage + parts_bytes + (warp * 32 + 8 * n + g) * Units::PITCH;
            uint32_t start = low_bits + 8 * n * bytes + stage_byte<F>(block);
            auto read = [&](const uint8_t* piece, uint32_t offset, uint32_t at) {
                const uint8_t* from = piece + (Units::ALIGNED == 16 ? 0 : (start + offset) & 15) + at;
                if constexpr (F::WORDS) return *reinterpret_cast<const uint32_t*>(from);
                uintptr_t apart = reinterpret_cast<uintptr_t>(from) & 3;
                const uint32_t* words = reinterpret_cast<const uint32_t*>(from - apart);
                return __funnelshift_r(words[0], words[1], uint32_t(apart) * 8);
            };
            auto one = [&](uint32_t at) { return read(row, F::first(c), at); };
            auto two = [&](uint32_t at) { return read(row + 16 * Units::FIRST, F::second(c), at); };
            if constexpr (F::GROUP == 64) {
                uint32_t parts[PARTS][4][2];
                F::parts(one, t, parts);
#pragma unroll
                for (uint32_t i = 0; i < PARTS * 8; i++) b[i / 8][n][i / 2 % 4][i % 2] = parts[i / 8][i / 2 % 4][i % 2];
            } else {
                uint32_t w[4];
                F::codes(one, two, c, t, w);
#pragma unroll
                for (int s = 0; s < 4; s++) code_pairs<F::OFFSET>(w[s], b[0][n][s]);
            }
        }
        uint32_t parts[2][2][4];
        uint32_t token_at = stage_shared + lane % 16 * SPLIT_BYTES, swizzle = lane & 7;
        auto load_step = [&](int step) {
            uint32_t at = token_at + step / 4 * 16 * SPLIT_BYTES + ((2 * (step % 4) + lane / 16) ^ swizzle) * 16;
            load_matrices(parts[step % 2][0], at);
            load_matrices(parts[step % 2][1], at + 128);
        };
        load_step(0);
        uint32_t own = warp * 32 + 2 * t;
#pragma unroll
        for (int sixteen = 0; sixteen < SIXTEENS; sixteen++) {
            if (sixteen >= sixteens) break;
            float2 upper = {}, lower = {};
            if constexpr (F::MINIMUM && F::GROUP == 32) upper = sums[sixteen * 16], lower = sums[sixteen * 16 + 8];
#pragma unroll
            for (int group = 0; group < GROUPS; group++) {
                float c[4][4] = {}, inputs[4] = {};
#pragma unroll
                for (int s = group * STEPS; s < (group + 1) * STEPS; s++) {
                    if (sixteen * 4 + s + 1 < 4 * SIXTEENS) load_step(sixteen * 4 + s + 1);
#pragma unroll
                    for (int part = 0; part < 2; part++) {
#pragma unroll
                        for (int p = 0; p < PARTS; p++) {
#pragma unroll
                            for (int n = 0; n < 4; n++) {
                                Bf16Pair::multiply(c[n], parts[s % 2][part], b[p][n][s][0], b[p][n][s][1]);
                            }
                        }
                        // Sums of sixteen inputs: a product with ones.
                        if constexpr (F::MINIMUM && F::GROUP == 16) {
                            Bf16Pair::multiply(inputs, parts[s % 2][part], 0x3f803f80u, 0x3f803f80u);
                        }
                    }
                }
                float x0 = inputs[0], x1 = inputs[2];
                if constexpr (F::GROUP == 32) x0 = group ? upper.y : upper.x, x1 = group ? lower.y : lower.x;
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    float (&r)[4] = result[sixteen][n];
                    if constexpr (F::GROUP == 64 && !TILE_SCALES<F>) {
#pragma unroll
                        for (int i = 0; i < 4; i++) r[i] += c[n][i];
                        continue;
                    }
                    float2 s = *reinterpret_cast<const float2*>(&scales[block % 2][group][own + 8 * n]);
                    if constexpr (F::MINIMUM) {
                        float2 z = *reinterpret_cast<const float2*>(&minima[block % 2][group][own + 8 * n]);
                        r[0] = fmaf(z.x, x0, r[0]), r[1] = fmaf(z.y, x0, r[1]);
                        r[2] = fmaf(z.x, x1, r[2]), r[3] = fmaf(z.y, x1, r[3]);
                    }
                    r[0] = fmaf(s.x, c[n][0], r[0]), r[1] = fmaf(s.y, c[n][1], r[1]);
                    r[2] = fmaf(s.x, c[n][2], r[2]), r[3] = fmaf(s.y, c[n][3], r[3]);
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
            for (int i = 0; i < 8; i++) {
                uint32_t row = first_row + warp * 32 + 8 * (i / 2) + 2 * t + i % 2;
                if (row >= m.rows) continue;
                float v = result[sixteen][i / 2][2 * half + i % 2];
                to[row] = a.add ? to[row] + v : v;
            }
        }
    }
}

#define BLOCKS_BODY(CALL) CALL
#else
#define BLOCKS_BODY(CALL) __trap()
#endif

#define TILE_BLOCKS(NAME, FORMAT, SIXTEENS)                                                                         \
    extern "C" __global__ void __launch_bounds__(128, 2) tile_blocks_##NAME(                    \
        const __grid_constant__ TileSplitArguments a) {                                                            \
        BLOCKS_BODY((tile_blocks<FORMAT, SIXTEENS>(a)));                                                           \
    }
#define TILE_FORMAT(NAME) TILE_BLOCKS(NAME, Blocks<BLOCK_##NAME>, 4)
USUAL_FORMATS(TILE_FORMAT)
GRID_FORMATS(TILE_FORMAT)
TILE_FORMAT(MXFP4_PLANES)
TILE_BLOCKS(FP8, Fp8Rows, 4)
TILE_BLOCKS(F32, FloatRows<F32>, 2)
TILE_BLOCKS(F16, FloatRows<F16>, 2)
TILE_BLOCKS(BF16, FloatRows<BF16>, 2)

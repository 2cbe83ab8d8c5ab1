// Products of quantised rows with one vector on tensor cores: sixteen rows a warp, exact integers times halves.
//
// A quantised value is an integer below 256, exact in f16. Each 128 columns of the vector are scaled by a power of two
// so that their largest value lies in [2^14, 2^15), and each value is the sum of two halves: 22 bits of significand,
// and an absolute error of 2^-39 of the largest. The tensor cores sum products of a group of columns in f32; scale
// and bias of the group are applied in f32. The error is that of f32 arithmetic within a few units.
//
// A warp takes a unit, 16 rows by 128 columns, at a time. Lane (g, t) = (lane / 4, lane % 4) loads columns 32 t ..
// of rows g and g + 8: full sectors of memory. Matrices have whole units, scales of two bytes, and pieces aligned to
// 16 bytes (weights) and 2 (scales): `step_serves` in src/launch/step.rs. The columns of the multiplicand keep apart
// what must not be added before scaling: column 2 i + part of it holds part `part` (0 high, 1 low) of the vector in
// slot i, the unit's columns of one group, and zeros elsewhere.
//
// PAIRED, for experts, which may be read over the bus: two units share 256 columns; lane t loads columns
// 64 t .. in the first and 64 t + 32 .. in the second, so that a warp asks for 32 bytes in a row and lane and for whole
// lines: 48 to 50 GB/s of a bus that gives 50, where halves of lines get 42.
#pragma once
#include "product.cuh"

// 2^this warps are what STEP_THREADS are.
constexpr uint32_t STEP_WARPS_SHIFT = 4;
static_assert(STEP_THREADS == 32 << STEP_WARPS_SHIFT);

__device__ inline uint32_t pack_halves(__half2 v) { return *reinterpret_cast<uint32_t*>(&v); }

struct Source {
    const float* x;      // [tokens, columns]
    const float* norm;   // NORM: [columns]; of heads [dim]
    const float* gate;   // with a norm [tokens, columns]; GATED: [tokens, heads, 2, dim]: the second halves
    uint32_t columns;    // a multiple of 32
    uint32_t mode;       // StageMode
    uint32_t dim;        // of a head; with a norm 8 times a power of two up to 32
    float epsilon;
};

// `v` over `by`, rounded to nearest, where neither is far from one: what the compiler's division does once it has
// looked for such cases. Eight of these lie next to each other, where eight of its own each wait for the one before.
__device__ __forceinline__ float divide_near(float v, float by) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(by));
    inverse = __fmaf_rn(inverse, __fmaf_rn(-by, inverse, 1.0f), inverse);
    float quotient = __fmul_rn(v, inverse);
    quotient = __fmaf_rn(inverse, __fmaf_rn(-by, quotient, v), quotient);
    return __fmaf_rn(inverse, __fmaf_rn(-by, quotient, v), quotient);
}

// Any division, out of the way of others.
__device__ __noinline__ float divide_far(float v, float by) { return __fdiv_rn(v, by); }

// Eight values over one plus the exponential of the negative gate each, as `silu` and `sigmoid` divide.
__device__ __forceinline__ void divide_eight(float (&v)[8], const float (&gate)[8]) {
    float by[8];
    bool near = true;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        by[i] = 1.0f + expf(-gate[i]);
        float size = fabsf(v[i]);
        near = near && by[i] < 1e15f && (size == 0.0f || (size > 1e-15f && size < 1e15f));
    }
    if (near) {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = divide_near(v[i], by[i]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = divide_far(v[i], by[i]);
}

// True where heads are normed, and gated by SiLU (HEAD_NORM) or by a sigmoid.
__device__ __forceinline__ bool norms_heads(const Source& s) { return s.mode == HEAD_NORM || s.mode == HEAD_SIGMOID; }

// Eight values of a head, normed and gated. Whole warps call this.
__device__ __forceinline__ void norm_head(const Source& s, const float (&weight)[8], const float (&gate)[8],
                                          float (&v)[8]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) sum += v[i] * v[i];
    for (uint32_t offset = s.dim / 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(FULL, sum, offset);
    float scale = rsqrtf(sum / float(s.dim) + s.epsilon);
    float factor[8];
#pragma unroll
    for (int i = 0; i < 8; i++) factor[i] = s.mode == HEAD_SIGMOID ? 1.0f : gate[i];
    divide_eight(factor, gate);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = v[i] * scale * weight[i] * factor[i];
}

// Where the gate of GATED values begins.
__device__ __forceinline__ const float4* gate_of(const Source& s, size_t token, uint32_t column) {
    uint32_t head = column / s.dim, at = head * 2 * s.dim + s.dim + column % s.dim;
    return reinterpret_cast<const float4*>(s.gate + token * 2 * s.columns + at);
}

// Eight values of the vector; NORM without its common factor. Whole warps call this.
__device__ inline void source_values(const Source& s, size_t token, uint32_t column, bool live, float (&v)[8]) {
    const float4* x = reinterpret_cast<const float4*>(s.x + token * s.columns + column);
    float4 a = {0, 0, 0, 0}, b = a;
    // Past the first level of the cache: the kernel before may have left old values there.
    if (live) a = __ldcg(x), b = __ldcg(x + 1);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    if (norms_heads(s)) {
        // All asked for before the first is used.
        float4 c = {0, 0, 0, 0}, d = c, e = c, f = c;
        if (live) {
            const float4* z = reinterpret_cast<const float4*>(s.gate + token * s.columns + column);
            const float4* norm = reinterpret_cast<const float4*>(s.norm + column % s.dim);
            c = __ldcg(z), d = __ldcg(z + 1), e = norm[0], f = norm[1];
        }
        float gate[8] = {c.x, c.y, c.z, c.w, d.x, d.y, d.z, d.w};
        float weight[8] = {e.x, e.y, e.z, e.w, f.x, f.y, f.z, f.w};
        norm_head(s, weight, gate, v);
    } else if (s.mode == GATED && live) {
        const float4* z = gate_of(s, token, column);
        float4 c = __ldcg(z), d = __ldcg(z + 1);
        float gate[8] = {c.x, c.y, c.z, c.w, d.x, d.y, d.z, d.w};
        float factor[8] = {1, 1, 1, 1, 1, 1, 1, 1};
        divide_eight(factor, gate);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] *= factor[i];
    }
}

// Staging: 36 words for every 32 columns. Words 0..16 are the high halves of pairs of columns, 16..32 the low ones;
// pair 4 q + i is columns 8 q + i and 8 q + i + 4: four-bit values of a word that are 16 bits apart. Word 32 is the
// sum of the 32 values, word 33 what undoes the scaling of their unit, words 34 and 35 are the sums of sixteen values
// (PAIRS: word 34 is the sum of this chunk and the next, in every other one). Sixteen zeros follow the last unit.

// Words of a vector of `columns` columns, without the zeros at the end.
__device__ inline uint32_t staged_words(uint32_t columns) { return (columns + UNIT - 1) / UNIT * 4 * STAGED_CHUNK; }

// The power of two that brings `largest` into [2^14, 2^15), and its inverse. Values that are no numbers stay so.
__device__ inline float half_factor(float largest, float& inverse) {
    uint32_t exponent = min(max(__float_as_uint(largest) >> 23 & 0xff, 15u), 254u);
    inverse = __uint_as_float((exponent - 14) << 23);
    return __uint_as_float((268 - exponent) << 23);
}

// Eight values of this thread, columns `column`..; sixteen neighbouring threads have a unit. Whole warps call this,
// threads without a place too.
template <bool PAIRS = false>
__device__ inline void stage_values(float* staged, uint32_t column, const float (&v)[8], bool placed) {
    float largest = 0.0f, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(v[i])), sum += v[i];
#pragma unroll
    for (int offset = 8; offset > 0; offset >>= 1) largest = fmaxf(largest, __shfl_xor_sync(FULL, largest, offset));
    sum += __shfl_xor_sync(FULL, sum, 1);
    float sixteen = sum;
    sum += __shfl_xor_sync(FULL, sum, 2);
    float both = PAIRS ? sum + __shfl_xor_sync(FULL, sum, 4) : 0.0f;
    float inverse, factor = half_factor(largest, inverse);
    uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float a = v[i] * factor, b = v[i + 4] * factor;
        __half2 top = __floats2half2_rn(a, b);
        float2 back = __half22float2(top);
        high[i] = pack_halves(top);
        low[i] = pack_halves(__floats2half2_rn(a - back.x, b - back.y));
    }
    if (!placed) return;
    float* chunk = staged + column / 32 * STAGED_CHUNK;
    float* to = chunk + column % 32 / 8 * 4;
    *reinterpret_cast<uint4*>(to) = {high[0], high[1], high[2], high[3]};
    *reinterpret_cast<uint4*>(to + 16) = {low[0], low[1], low[2], low[3]};
    if (!PAIRS && column % 16 == 0) chunk[34 + column % 32 / 16] = sixteen;
    if (PAIRS && column % 64 == 0) chunk[34] = both;
    if (column % 32 == 0) chunk[32] = sum, chunk[33] = inverse;
}

// Rounds of eight values a thread that are asked for together: two are more code to fetch than they save.
constexpr int STAGED_TOGETHER = 1;

// Zeros that lanes read which have nothing to multiply with.
__device__ inline void stage_zeros(float* staged, uint32_t words) {
    if (threadIdx.x < 16) staged[words + threadIdx.x] = 0.0f;
}

// Asks the cache for a norm's weights: they are of the model, and a step's other weights pass through the cache between
// two layers.
__device__ inline void expect_norm(const Source& s) {
    if (s.mode != NORM) return;
    for (uint32_t column = threadIdx.x * 32; column < s.columns; column += blockDim.x * 32) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(s.norm + column));
    }
}

// Stages a vector, without the factor that is known once all of it was seen (`staged_factor`). All threads of the
// block; they must synchronise before they use it. `warps` is a float per warp in shared memory.
__device__ inline void stage_halves(const Source& s, size_t token, float* staged, float* warps) {
    float sum = 0.0f;
    uint32_t step = blockDim.x * 8, padded = (s.columns + UNIT - 1) / UNIT * UNIT;
    for (uint32_t start = 0; start < padded; start += STAGED_TOGETHER * step) {
        float v[STAGED_TOGETHER][8];
#pragma unroll
        for (int r = 0; r < STAGED_TOGETHER; r++) {
            uint32_t column = start + r * step + threadIdx.x * 8;
            source_values(s, token, column, column < s.columns, v[r]);
        }
#pragma unroll
        for (int r = 0; r < STAGED_TOGETHER; r++) {
            uint32_t column = start + r * step + threadIdx.x * 8;
            if (start + r * step >= padded) break;
            if (s.mode == NORM && column < s.columns) {
                const float4* norm = reinterpret_cast<const float4*>(s.norm + column);
                float4 c = norm[0], d = norm[1];
                float w[8] = {c.x, c.y, c.z, c.w, d.x, d.y, d.z, d.w};
#pragma unroll
                for (int i = 0; i < 8; i++) sum += v[r][i] * v[r][i], v[r][i] *= w[i];
            }
            stage_values(staged, column, v[r], column < padded);
        }
    }
    stage_zeros(staged, staged_words(s.columns));
    if (s.mode == NORM) {
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    }
}

// What products of a staged vector have to be multiplied by.
__device__ inline float staged_factor(const Source& s, const float* warps) {
    if (s.mode != NORM) return 1.0f;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < STEP_THREADS / 32; i++) sum += i < blockDim.x / 32 ? warps[i] : 0.0f;
    return rsqrtf(sum / float(s.columns) + s.epsilon);
}

// (a & b) | c in one instruction also where b and c are constants.
__device__ inline uint32_t and_or(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t out;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}

__device__ inline uint32_t affine_halves(uint32_t v, float factor, float offset) {
    __half2 x = *reinterpret_cast<__half2*>(&v);
    return pack_halves(__hfma2(x, __float2half2_rn(factor), __float2half2_rn(offset)));
}

// Pairs 4 Q .. 4 Q + 4 of 32 packed values as halves. 0x6400 is 1024 in f16 and its significand counts ones: 1024 + q,
// or 1024 + 16 q, then q, exactly.
template <int BITS, int Q>
__device__ inline void unpack_pairs(const uint32_t (&words)[BITS], uint32_t (&out)[4]) {
    constexpr uint32_t raised = 0x64006400u;
    if constexpr (BITS == 4) {
        uint32_t low = words[Q], high = low >> 8;
        out[0] = affine_halves(and_or(low, 0x000f000fu, raised), 1.0f, -1024.0f);
        out[1] = affine_halves(and_or(low, 0x00f000f0u, raised), 0.0625f, -64.0f);
        out[2] = affine_halves(and_or(high, 0x000f000fu, raised), 1.0f, -1024.0f);
        out[3] = affine_halves(and_or(high, 0x00f000f0u, raised), 0.0625f, -64.0f);
        return;
    }
    unroll<0, 4>([&]<int I>() {
        uint32_t v;
        if constexpr (BITS == 8) {
            v = and_or(__byte_perm(words[2 * Q], words[2 * Q + 1], I * 0x0011 | (I + 4) * 0x1100), 0x00ff00ffu, raised);
        } else {
            v = value<BITS, 8 * Q + I>(words) | value<BITS, 8 * Q + I + 4>(words) << 16 | raised;
        }
        out[I] = affine_halves(v, 1.0f, -1024.0f);
    });
}

__device__ inline void multiply_halves(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                       uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
    // Launched on 8.0 and later alone: an image that lacks this product must not pass for one.
    __trap();
#endif
}

// Words at an address that is aligned as 32 values of a row of whole units are.
template <int BITS>
__device__ inline void load_aligned(const uint8_t* p, uint32_t (&words)[BITS]) {
    if constexpr (BITS % 4 == 0) {
#pragma unroll
        for (int i = 0; i < BITS / 4; i++) {
            uint4 v = reinterpret_cast<const uint4*>(p)[i];
            words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
        }
    } else if constexpr (BITS % 2 == 0) {
#pragma unroll
        for (int i = 0; i < BITS / 2; i++) {
            uint2 v = reinterpret_cast<const uint2*>(p)[i];
            words[2 * i] = v.x, words[2 * i + 1] = v.y;
        }
    } else {
#pragma unroll
        for (int i = 0; i < BITS; i++) words[i] = reinterpret_cast<const uint32_t*>(p)[i];
    }
}

// A lane's share of a unit: 32 columns of two rows, and the scales of its slot. Scales as stored, so that nothing waits
// for one load before the next is on its way.
template <int BITS>
struct Unit {
    uint32_t low[BITS], high[BITS];
    uint32_t scale[2], bias[2];
};

// Units that a warp asks for together: for dense products as many as registers hold; for experts, whose code runs once
// or twice a launch, fewer, because more code has to be fetched than it saves (docs/experiments.tsv).
template <int BITS>
constexpr int BATCH = BITS <= 4 ? 4 : 2;
template <int BITS>
constexpr int EXPERT_BATCH = BITS <= 4 ? 2 : 1;
// Where four lanes' columns of a row are less than a line.
template <int BITS>
constexpr bool PAIRED_EXPERT = EXPERT_BATCH<BITS> == 2;

// True for rows whose units go in pairs.
template <bool PAIRED>
__device__ inline bool is_wide(uint32_t columns) {
    return PAIRED && columns % (2 * UNIT) == 0;
}

// Where a unit is, counted in `unit` (what one without a partner takes): the second of a pair comes after `odd`.
template <bool PAIRED>
__device__ inline uint32_t unit_place(uint32_t index, uint32_t unit, uint32_t odd) {
    return PAIRED ? index / 2 * (2 * unit) + index % 2 * odd : index * unit;
}

// Of `count` units, the first of share `index` of 2^`shares`. Pairs stay together.
__device__ inline uint32_t first_unit(uint32_t count, uint32_t index, uint32_t shares, bool wide) {
    return wide ? min(2 * (index * ((count + 1) / 2) >> shares), count) : index * count >> shares;
}

// Where the pieces of a matrix are.
struct Pieces {
    const uint8_t *weight, *scales, *biases;
};

__device__ inline Pieces pieces_of(const Matrix& m) { return {m.weight, m.scales, m.biases}; }

__device__ inline uint32_t group_shift(const Matrix& m) { return 31 - __clz(m.group); }

// Where a lane's share of 16 rows begins.
struct TileLane {
    uint32_t low, high;              // bytes
    uint32_t scale_low, scale_high;  // bytes
    uint32_t scale_step;             // bytes from one unit to the next
    uint32_t odd, scale_odd;         // bytes from the first unit of a pair to the second
};

// Of rows `low` and `high`. Divisions by the group's size, a power of two, are shifts.
template <bool PAIRED>
__device__ inline TileLane rows_lane(const Matrix& m, uint32_t low, uint32_t high) {
    bool wide = is_wide<PAIRED>(m.columns);
    uint32_t t = threadIdx.x % 4, shift = group_shift(m), per_row = m.columns >> shift;
    uint32_t bytes = m.columns / 8 * m.bits, from = (wide ? 2 * t : t) * (4 * m.bits);
    // A lane's scales are those of its slot. Of the smallest groups each slot of a pair has one in each unit, of larger
    // ones the same in both.
    uint32_t slot = t << shift < (wide ? 2 * UNIT : UNIT) ? t : 0, odd = UNIT >> shift;
    if (wide) slot <<= shift == 5, odd = shift == 5;
    return {low * bytes + from, high * bytes + from, 2 * (low * per_row + slot), 2 * (high * per_row + slot),
            2 * UNIT >> shift, (wide ? 4 : 16) * m.bits, 2 * odd};
}

// Of a tile of 16 rows. Rows past the end are the last one, and their sums are not used.
template <bool PAIRED = false>
__device__ inline TileLane tile_lane(const Matrix& m, uint32_t tile) {
    uint32_t row = min(tile * 16 + threadIdx.x % 32 / 4, m.rows - 1);
    return rows_lane<PAIRED>(m, row, min(row + 8, m.rows - 1));
}

// Rows g of `low` and g + 8 of `high`, which may be the same, by unit. What two units have in common of a line is asked
// for twice in a row: with other loads in between the bus carries some of it twice.
template <int BITS, bool PAIRED, int COUNT>
__device__ inline void load_units(Unit<BITS> (&out)[COUNT], const Pieces (&low)[COUNT], const Pieces (&high)[COUNT],
                                  const TileLane& lane, const uint32_t (&places)[COUNT]) {
    size_t bytes[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) bytes[i] = unit_place<PAIRED>(places[i], 16 * BITS, lane.odd);
#pragma unroll
    for (int i = 0; i < COUNT; i++) load_aligned<BITS>(low[i].weight + lane.low + bytes[i], out[i].low);
#pragma unroll
    for (int i = 0; i < COUNT; i++) load_aligned<BITS>(high[i].weight + lane.high + bytes[i], out[i].high);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        uint32_t step = unit_place<PAIRED>(places[i], lane.scale_step, lane.scale_odd);
        out[i].scale[0] = *reinterpret_cast<const uint16_t*>(low[i].scales + lane.scale_low + step);
        out[i].scale[1] = *reinterpret_cast<const uint16_t*>(high[i].scales + lane.scale_high + step);
        out[i].bias[0] = *reinterpret_cast<const uint16_t*>(low[i].biases + lane.scale_low + step);
        out[i].bias[1] = *reinterpret_cast<const uint16_t*>(high[i].biases + lane.scale_high + step);
    }
}

// Units `first..` of a batch; those from `last` on are the last again.
template <int BITS, bool PAIRED = false, int COUNT>
__device__ inline void load_batch(Unit<BITS> (&units)[COUNT], const Pieces& low, const Pieces& high,
                                  const TileLane& lane, uint32_t first, uint32_t last) {
    Pieces lows[COUNT], highs[COUNT];
    uint32_t places[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) lows[i] = low, highs[i] = high, places[i] = min(first + i, last - 1);
    load_units<BITS, PAIRED>(units, lows, highs, lane, places);
}

// Where a lane reads the vector: its part of its columns, or zeros.
struct VectorLane {
    const float* from;
    uint32_t step, odd;          // words from one unit to the next, and within a pair
    const float* sums;           // of its slot
    uint32_t sums_odd;           // words
    uint32_t chunks, stride;     // of a slot, and words from one to the next
};

template <bool PAIRED = false>
__device__ inline VectorLane vector_lane(const float* staged, uint32_t words, const Matrix& m) {
    bool wide = is_wide<PAIRED>(m.columns);
    uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, apart = wide ? 2 : 1;
    uint32_t shift = max(int(group_shift(m)) - (wide ? 6 : 5), 0), chunks = 1 << shift;
    uint32_t odd = (wide ? 1 : 4) * STAGED_CHUNK;
    bool active = g / 2 == t >> shift;
    uint32_t mine = t * chunks < 4 ? t * chunks : 0;
    return {active ? staged + t * apart * STAGED_CHUNK + g % 2 * 16 : staged + words, active ? 4 * STAGED_CHUNK : 0,
            active ? odd : 0, staged + mine * apart * STAGED_CHUNK + 32, odd, chunks, apart * STAGED_CHUNK};
}

// Four words of shared memory. In assembler because the compiler takes a part of such a load twice or not, from run to
// run, and the image must be the same every time.
__device__ inline uint4 load_shared(const float* from) {
    uint4 v;
    uint32_t address = uint32_t(__cvta_generic_to_shared(from));
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address));
    return v;
}

__device__ inline float scale_value(uint32_t stored, uint32_t kind) {
    kind &= (1u << SYMMETRIC_SHIFT) - 1;
    return kind == BF16 ? __uint_as_float(stored << 16) : __half2float(__ushort_as_half((unsigned short)stored));
}

__device__ inline float bias_value(uint32_t stored, uint32_t kind) {
    return bias_factor(kind) * scale_value(stored, kind);
}

// A group's share of a row: its products, which `inverse` brings back from the halves' scale, and the sum of its
// values. Spelled out, because every kernel that computes a row must round it in the same places.
__device__ inline float scaled_sum(float scale, float bias, float products, float inverse, float sum) {
    return __fmaf_rn(bias, sum, __fmul_rn(scale, __fmul_rn(products, inverse)));
}

// Adds a batch of `live` units, staged from unit `first`, to the sums of rows g and g + 8. `kind` says how scales are
// stored; `factor(unit)` is what a unit counts.
template <int BITS, bool PAIRED = false, int COUNT, typename Factor>
__device__ inline void multiply_units(Unit<BITS> (&units)[COUNT], uint32_t first, uint32_t live, uint32_t kind,
                                      const VectorLane& x, float (&result)[2], Factor&& factor_of) {
    uint32_t end = first + min(live, uint32_t(COUNT));
#pragma unroll 1
    for (uint32_t unit = first; unit < end; unit++) {
        float c[4] = {};
        uint32_t place = unit_place<PAIRED>(unit, x.step, x.odd);
        unroll<0, 4>([&]<int Q>() {
            uint4 b = load_shared(x.from + place + 4 * Q);
            uint32_t low[4], high[4];
            unpack_pairs<BITS, Q>(units[0].low, low);
            unpack_pairs<BITS, Q>(units[0].high, high);
            multiply_halves(c, low[0], high[0], low[1], high[1], b.x, b.y);
            multiply_halves(c, low[2], high[2], low[3], high[3], b.z, b.w);
        });
        const float* sums = x.sums + unit_place<PAIRED>(unit, 4 * STAGED_CHUNK, x.sums_odd);
        float sum = sums[0], inverse = sums[1];
        if (x.chunks > 1) sum += sums[x.stride];
        if (x.chunks > 2) sum += sums[2 * x.stride] + sums[3 * x.stride];
        // Lanes without a slot have the zeros of other columns in c, and must not add a bias.
        float factor = threadIdx.x % 4 * x.chunks < 4 ? factor_of(unit) : 0.0f;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float scale = scale_value(units[0].scale[r], kind), bias = bias_value(units[0].bias[r], kind);
            float share = scaled_sum(scale, bias, c[2 * r] + c[2 * r + 1], inverse, sum);
            result[r] = __fmaf_rn(factor, share, result[r]);
        }
#pragma unroll
        for (int i = 0; i + 1 < COUNT; i++) units[i] = units[i + 1];
    }
}

// The sums of a warp's rows g and g + 8, in every lane of a row.
__device__ inline void sum_lanes(float (&result)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        result[r] += __shfl_xor_sync(FULL, result[r], 1);
        result[r] += __shfl_xor_sync(FULL, result[r], 2);
    }
}

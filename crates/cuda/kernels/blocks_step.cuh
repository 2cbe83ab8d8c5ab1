// Products of rows of blocks, or of floats, with one vector on tensor cores: sixteen rows a warp, as halves.cuh.
//
// A warp takes 256 columns of 16 rows at a time, a lane 64 of them in two rows: those whose bytes lie together, so that
// a row is asked for in whole lines. Lane t of four has the groups of its own columns, ACCUMULATORS of them, and a sum
// of its own for each. Codes are integers below 256, exact in f16, and so are they less OFFSET. Matrices begin at a
// multiple of sixteen bytes and have whole units: `step_serves` in src/launch/step.rs.
#pragma once
#include "blocks.cuh"
#include "halves.cuh"

// Zeros that lanes read which have nothing to multiply with: as many words as a lane's columns span.
constexpr uint32_t BLOCK_ZEROS = 4 * STAGED_CHUNK;
constexpr uint32_t BLOCK_UNIT = 2 * UNIT;

__device__ __forceinline__ void stage_block_zeros(float* staged, uint32_t words) {
    for (uint32_t i = threadIdx.x; i < BLOCK_ZEROS; i += blockDim.x) staged[words + i] = 0.0f;
}

// N words at a multiple of 4, of 8 or of 16 bytes.
template <int N>
__device__ __forceinline__ void load_4(const uint8_t* p, uint32_t* words) {
#pragma unroll
    for (int i = 0; i < N; i++) words[i] = reinterpret_cast<const uint32_t*>(p)[i];
}

template <int N>
__device__ __forceinline__ void load_8(const uint8_t* p, uint32_t* words) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        uint2 v = reinterpret_cast<const uint2*>(p)[i];
        words[2 * i] = v.x, words[2 * i + 1] = v.y;
    }
}

template <int N>
__device__ __forceinline__ void load_16(const uint8_t* p, uint32_t* words) {
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        uint4 v = reinterpret_cast<const uint4*>(p)[i];
        words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
    }
}

// Bytes I and I + 4 of two words, in the lower bytes of two halves; above them anything.
template <int I>
__device__ __forceinline__ uint32_t byte_pair(uint32_t low, uint32_t high) {
    return __byte_perm(low, high, I * 0x0011 | (I + 4) * 0x1100);
}

// Codes of eight bits as halves, less OFFSET.
template <uint32_t OFFSET>
__device__ __forceinline__ uint32_t code_halves(uint32_t pair) {
    return affine_halves(pair | 0x64006400u, 1.0f, -float(1024 + OFFSET));
}

// Of the low or the high nibbles of bytes.
template <uint32_t OFFSET, bool HIGH>
__device__ __forceinline__ uint32_t nibble_halves(uint32_t pair) {
    if (!HIGH) return affine_halves(and_or(pair, 0x000f000fu, 0x64006400u), 1.0f, -float(1024 + OFFSET));
    return affine_halves(and_or(pair, 0x00f000f0u, 0x64006400u), 0.0625f, -float(64 + OFFSET));
}

// How a lane reads a format. ACCUMULATORS groups; step O takes eight columns of number O % ACCUMULATORS;
// `base`: words from a unit's staged vector to the lane's columns; `offset`: from there to those of a step; `inputs`:
// from a unit's vector to the sum of a group's inputs.
template <typename F>
struct StepRows;

// Groups of 32: a lane has two chunks of 32 columns that follow each other.
template <typename FORMAT>
struct ChunkRows {
    using Format = FORMAT;
    template <typename RAW>
    static __device__ __forceinline__ const RAW& ready(const RAW& raw) {
        return raw;
    }
    static constexpr int ACCUMULATORS = 2;
    static __device__ __forceinline__ uint32_t base(uint32_t t) { return 2 * t * STAGED_CHUNK; }
    static __device__ constexpr uint32_t offset(int o) { return o % 2 * STAGED_CHUNK + o / 2 * 4; }
    static __device__ __forceinline__ uint32_t inputs(uint32_t t, int group) {
        return (2 * t + group) * STAGED_CHUNK + 32;
    }
};

template <>
struct StepRows<Blocks<BLOCK_Q4_K>> : ChunkRows<Blocks<BLOCK_Q4_K>> {
    struct Raw {
        uint32_t header[4], quants[8];
    };
    static __device__ __forceinline__ void load(const uint8_t* unit, uint32_t t, Raw& raw) {
        load_16<4>(unit, raw.header);
        load_16<8>(unit + 16 + 32 * t, raw.quants);
    }
    static __device__ __forceinline__ void scales(const Raw& raw, uint32_t t, Scaling (&out)[2]) {
        k_scales(raw.header, t, out);
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Raw& raw, uint32_t, uint32_t (&out)[4]) {
        unroll<0, 4>([&]<int I>() {
            out[I] = nibble_halves<0, O % 2 == 1>(byte_pair<I>(raw.quants[O / 2 * 2], raw.quants[O / 2 * 2 + 1]));
        });
    }
};

template <>
struct StepRows<Blocks<BLOCK_Q5_K>> : ChunkRows<Blocks<BLOCK_Q5_K>> {
    struct Raw {
        uint32_t header[4], fifth[8], quants[8];
    };
    static __device__ __forceinline__ void load(const uint8_t* unit, uint32_t t, Raw& raw) {
        load_16<4>(unit, raw.header);
        load_16<8>(unit + 16, raw.fifth);
        load_16<8>(unit + 48 + 32 * t, raw.quants);
    }
    static __device__ __forceinline__ void scales(const Raw& raw, uint32_t t, Scaling (&out)[2]) {
        k_scales(raw.header, t, out);
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Raw& raw, uint32_t t, uint32_t (&out)[4]) {
        constexpr int w = O / 2 * 2;
        unroll<0, 4>([&]<int I>() {
            uint32_t nibbles = byte_pair<I>(raw.quants[w], raw.quants[w + 1]) >> 4 * (O % 2) & 0x000f000fu;
            uint32_t fifth = byte_pair<I>(raw.fifth[w], raw.fifth[w + 1]) >> (2 * t + O % 2) & 0x00010001u;
            out[I] = code_halves<0>(nibbles | fifth << 4);
        });
    }
};

// Of three units of 16 bytes the 32 bytes that begin at byte `apart`, an even number.
__device__ __forceinline__ void align_words(const uint32_t (&from)[12], uint32_t apart, uint32_t (&to)[8]) {
    // Not by choosing an index: what has one that is not known beforehand lies in memory.
    uint32_t two[10], one[9], eight = apart & 8 ? FULL : 0, four = apart & 4 ? FULL : 0;
#pragma unroll
    for (int i = 0; i < 10; i++) two[i] = from[i] ^ ((from[i] ^ from[i + 2]) & eight);
#pragma unroll
    for (int i = 0; i < 9; i++) one[i] = two[i] ^ ((two[i] ^ two[i + 1]) & four);
#pragma unroll
    for (int i = 0; i < 8; i++) to[i] = __funnelshift_r(one[i], one[i + 1], (apart & 2) * 8);
}

// Low nibbles of a lane's bytes are columns of chunk 4 (t / 2) + t % 2, high ones of the second chunk after it.
template <>
struct StepRows<Blocks<BLOCK_Q6_K>> {
    using Format = Blocks<BLOCK_Q6_K>;
    static constexpr int ACCUMULATORS = 4;
    // Whole units of 16 bytes; the block begins at their byte `apart`: blocks are multiples of two bytes apart.
    struct Raw {
        uint32_t quants[12], upper[12], d, scales[2], apart;
    };
    struct Ready {
        uint32_t quants[8], upper[8], d, scales[2];
    };
    static __device__ __forceinline__ uint32_t base(uint32_t t) { return (t / 2 * 4 + t % 2) * STAGED_CHUNK; }
    static __device__ constexpr uint32_t offset(int o) {
        return o % 4 / 2 * 2 * STAGED_CHUNK + (o % 2 * 2 + o / 4) * 4;
    }
    static __device__ __forceinline__ void load(const uint8_t* unit, uint32_t t, Raw& raw) {
        raw.apart = reinterpret_cast<uintptr_t>(unit) & 15;
        load_16<12>(unit - raw.apart + 32 * t, raw.quants);
        load_16<12>(unit - raw.apart + 128 + t / 2 * 32, raw.upper);
        const uint16_t* small = reinterpret_cast<const uint16_t*>(unit + 192 + t / 2 * 8 + t % 2 * 2);
        raw.d = *reinterpret_cast<const uint16_t*>(unit + 208);
        raw.scales[0] = small[0], raw.scales[1] = small[2];
    }
    static __device__ __forceinline__ Ready ready(const Raw& raw) {
        Ready out;
        align_words(raw.quants, raw.apart, out.quants);
        align_words(raw.upper, raw.apart, out.upper);
        out.d = raw.d, out.scales[0] = raw.scales[0], out.scales[1] = raw.scales[1];
        return out;
    }
    static __device__ __forceinline__ void scales(const Ready& raw, uint32_t, Scaling (&out)[4]) {
        float d = half_value(raw.d);
#pragma unroll
        for (int i = 0; i < 4; i++) out[i] = {d * float(int8_t(raw.scales[i / 2] >> 8 * (i % 2) & 255)), 0.0f};
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Ready& raw, uint32_t t, uint32_t (&out)[4]) {
        constexpr int w = O % 2 * 4 + O / 4 * 2, high = O % 4 / 2;
        unroll<0, 4>([&]<int I>() {
            uint32_t nibbles = byte_pair<I>(raw.quants[w], raw.quants[w + 1]) >> 4 * high & 0x000f000fu;
            uint32_t upper = byte_pair<I>(raw.upper[w], raw.upper[w + 1]) >> (t % 2 * 2 + 4 * high) & 0x00030003u;
            out[I] = code_halves<32>(nibbles | upper << 4);
        });
    }
};

// Pairs of bits of a lane's sixteen bytes are sixteen columns of four chunks.
template <typename FORMAT>
struct PairRows {
    using Format = FORMAT;
    template <typename RAW>
    static __device__ __forceinline__ const RAW& ready(const RAW& raw) {
        return raw;
    }
    static constexpr int ACCUMULATORS = 4;
    static __device__ __forceinline__ uint32_t base(uint32_t t) { return t / 2 * 4 * STAGED_CHUNK + t % 2 * 8; }
    static __device__ constexpr uint32_t offset(int o) { return o % 4 * STAGED_CHUNK + o / 4 * 4; }
    static __device__ __forceinline__ uint32_t inputs(uint32_t t, int group) {
        return (t / 2 * 4 + group) * STAGED_CHUNK + 34 + t % 2;
    }
};

template <>
struct StepRows<Blocks<BLOCK_Q2_K>> : PairRows<Blocks<BLOCK_Q2_K>> {
    struct Raw {
        uint32_t quants[4], small[2], d;
    };
    static __device__ __forceinline__ void load(const uint8_t* unit, uint32_t t, Raw& raw) {
        load_4<4>(unit + 16 + 16 * t, raw.quants);
        load_4<2>(unit + t / 2 * 8, raw.small);
        load_4<1>(unit + 80, &raw.d);
    }
    static __device__ __forceinline__ void scales(const Raw& raw, uint32_t t, Scaling (&out)[4]) {
        float d = half_value(raw.d & 0xffff), m = half_value(raw.d >> 16);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t byte = raw.small[j / 2] >> (16 * (j % 2) + 8 * (t % 2));
            out[j] = {d * float(byte & 15), -(m * float(byte >> 4 & 15))};
        }
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Raw& raw, uint32_t, uint32_t (&out)[4]) {
        unroll<0, 4>([&]<int I>() {
            uint32_t pair = byte_pair<I>(raw.quants[O / 4 * 2], raw.quants[O / 4 * 2 + 1]);
            out[I] = code_halves<0>(pair >> 2 * (O % 4) & 0x00030003u);
        });
    }
};

template <>
struct StepRows<Blocks<BLOCK_Q3_K>> : PairRows<Blocks<BLOCK_Q3_K>> {
    // Whole words; the block begins at their byte `apart`.
    struct Raw {
        uint32_t quants[5], third[5], small[4], d, apart;
    };
    struct Ready {
        uint32_t quants[4], third[4], small[3], d;
    };
    template <int N>
    static __device__ __forceinline__ void align(const uint32_t (&from)[N + 1], uint32_t apart, uint32_t (&to)[N]) {
#pragma unroll
        for (int i = 0; i < N; i++) to[i] = __funnelshift_r(from[i], from[i + 1], apart * 8);
    }
    static __device__ __forceinline__ void load(const uint8_t* unit, uint32_t t, Raw& raw) {
        raw.apart = reinterpret_cast<uintptr_t>(unit) & 3;
        load_4<5>(unit - raw.apart + 32 + 16 * t, raw.quants);
        load_4<5>(unit - raw.apart + t % 2 * 16, raw.third);
        load_4<4>(unit - raw.apart + 96, raw.small);
        raw.d = *reinterpret_cast<const uint16_t*>(unit + 108);
    }
    static __device__ __forceinline__ Ready ready(const Raw& raw) {
        Ready out;
        align<4>(raw.quants, raw.apart, out.quants);
        align<4>(raw.third, raw.apart, out.third);
        align<3>(raw.small, raw.apart, out.small);
        out.d = raw.d;
        return out;
    }
    // Of groups 8 n + 2 j + t % 2.
    static __device__ __forceinline__ void scales(const Ready& raw, uint32_t t, Scaling (&out)[4]) {
        float d = half_value(raw.d);
        uint32_t n = t / 2, odd = 8 * (t % 2);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t low = raw.small[j / 2] >> (16 * (j % 2) + odd + 4 * n) & 15;
            uint32_t high = raw.small[2] >> (16 * (j % 2) + odd + 4 * n + 2 * (j / 2)) & 3;
            out[j] = {d * float(int(low | high << 4) - 32), 0.0f};
        }
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Ready& raw, uint32_t t, uint32_t (&out)[4]) {
        constexpr int w = O / 4 * 2;
        unroll<0, 4>([&]<int I>() {
            uint32_t pair = byte_pair<I>(raw.quants[w], raw.quants[w + 1]) >> 2 * (O % 4) & 0x00030003u;
            uint32_t third = byte_pair<I>(raw.third[w], raw.third[w + 1]) >> (t / 2 * 4 + O % 4) & 0x00010001u;
            out[I] = code_halves<4>(pair | third << 2);
        });
    }
};

// Codes of a chunk whose bytes hold columns j and j + 16, by a table; step o / 2 of four takes eight of them.
template <typename TABLE, int STEP>
__device__ __forceinline__ void table_pairs(const uint32_t* words, uint32_t (&out)[4]) {
    uint32_t low[2], high[2];
#pragma unroll
    for (int i = 0; i < 2; i++) look_up<TABLE>(words[STEP % 2 * 2 + i], low[i], high[i]);
    unroll<0, 4>([&]<int I>() {
        uint32_t pair = STEP < 2 ? byte_pair<I>(low[0], low[1]) : byte_pair<I>(high[0], high[1]);
        out[I] = and_or(pair, 0x00ff00ffu, 0x64006400u);
    });
}

template <>
struct StepRows<Blocks<BLOCK_IQ4_XS>> : ChunkRows<Blocks<BLOCK_IQ4_XS>> {
    struct Raw {
        uint32_t quants[8];
        Format::Header header;
    };
    static __device__ __forceinline__ void load(const uint8_t* unit, uint32_t t, Raw& raw) {
        load_8<2>(unit, raw.header.words);
        load_8<8>(unit + 8 + 32 * t, raw.quants);
    }
    static __device__ __forceinline__ void scales(const Raw& raw, uint32_t t, Scaling (&out)[2]) {
        Format::scales(raw.header, t, out);
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Raw& raw, uint32_t, uint32_t (&out)[4]) {
        table_pairs<Iq4Table, O / 2>(raw.quants + O % 2 * 4, out);
#pragma unroll
        for (int i = 0; i < 4; i++) out[i] = affine_halves(out[i], 1.0f, -1152.0f);
    }
};

// Formats of 32 values: a lane has two blocks that follow each other, as words from the first's first byte.
template <uint32_t FORMAT, int COUNT>
struct TwoBlocks : ChunkRows<Blocks<FORMAT>> {
    struct Raw {
        uint32_t words[COUNT];
    };
    static __device__ __forceinline__ void load(const uint8_t* unit, uint32_t t, Raw& raw) {
        load_4<COUNT>(unit + 2 * Blocks<FORMAT>::BYTES * t, raw.words);
    }
    // Word `at` of a block that begins at a word, or with the second half of one.
    template <bool HALF>
    static __device__ __forceinline__ uint32_t word(const Raw& raw, int at) {
        return HALF ? __funnelshift_r(raw.words[at], raw.words[at + 1], 16) : raw.words[at];
    }
    static __device__ __forceinline__ void half_scales(uint32_t first, uint32_t second, Scaling (&out)[2]) {
        out[0] = {half_value(first), 0.0f}, out[1] = {half_value(second), 0.0f};
    }
    static __device__ __forceinline__ Scaling raised(uint32_t word) {
        return {half_value(word & 0xffff), half_value(word >> 16)};
    }
};

// Eight codes of four bits of a chunk and, where a format has them, their fifth bits.
template <uint32_t OFFSET, int STEP>
__device__ __forceinline__ void nibble_pairs(uint32_t low, uint32_t high, uint32_t (&out)[4]) {
    unroll<0, 4>([&]<int I>() { out[I] = nibble_halves<OFFSET, STEP / 2 == 1>(byte_pair<I>(low, high)); });
}

template <uint32_t OFFSET, int STEP>
__device__ __forceinline__ void fifth_pairs(uint32_t low, uint32_t high, uint32_t fifth, uint32_t (&out)[4]) {
    uint32_t bits = fifth >> 8 * STEP & 255;
    bits |= bits << 12;
    unroll<0, 4>([&]<int I>() {
        uint32_t nibbles = byte_pair<I>(low, high) >> 4 * (STEP / 2) & 0x000f000fu;
        out[I] = code_halves<OFFSET>(nibbles | (bits >> I & 0x00010001u) << 4);
    });
}

template <>
struct StepRows<Blocks<BLOCK_Q8_0>> : TwoBlocks<BLOCK_Q8_0, 17> {
    static __device__ __forceinline__ void scales(const Raw& raw, uint32_t, Scaling (&out)[2]) {
        half_scales(raw.words[0] & 0xffff, raw.words[8] >> 16, out);
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Raw& raw, uint32_t, uint32_t (&out)[4]) {
        constexpr int at = O % 2 * 9 + O / 2 * 2;
        uint32_t low = word<O % 2 == 0>(raw, at) ^ 0x80808080u, high = word<O % 2 == 0>(raw, at + 1) ^ 0x80808080u;
        unroll<0, 4>([&]<int I>() {
            out[I] = affine_halves(and_or(byte_pair<I>(low, high), 0x00ff00ffu, 0x64006400u), 1.0f, -1152.0f);
        });
    }
};

template <>
struct StepRows<Blocks<BLOCK_Q4_0>> : TwoBlocks<BLOCK_Q4_0, 9> {
    static __device__ __forceinline__ void scales(const Raw& raw, uint32_t, Scaling (&out)[2]) {
        half_scales(raw.words[0] & 0xffff, raw.words[4] >> 16, out);
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Raw& raw, uint32_t, uint32_t (&out)[4]) {
        constexpr int at = O % 2 * 5 + O / 2 % 2 * 2;
        nibble_pairs<8, O / 2>(word<O % 2 == 0>(raw, at), word<O % 2 == 0>(raw, at + 1), out);
    }
};

template <>
struct StepRows<Blocks<BLOCK_IQ4_NL>> : TwoBlocks<BLOCK_IQ4_NL, 9> {
    static __device__ __forceinline__ void scales(const Raw& raw, uint32_t, Scaling (&out)[2]) {
        half_scales(raw.words[0] & 0xffff, raw.words[4] >> 16, out);
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Raw& raw, uint32_t, uint32_t (&out)[4]) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; i++) words[i] = word<O % 2 == 0>(raw, O % 2 * 5 + i);
        table_pairs<Iq4Table, O / 2>(words, out);
#pragma unroll
        for (int i = 0; i < 4; i++) out[i] = affine_halves(out[i], 1.0f, -1152.0f);
    }
};

template <>
struct StepRows<Blocks<BLOCK_Q5_0>> : TwoBlocks<BLOCK_Q5_0, 11> {
    static __device__ __forceinline__ void scales(const Raw& raw, uint32_t, Scaling (&out)[2]) {
        half_scales(raw.words[0] & 0xffff, raw.words[5] >> 16, out);
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Raw& raw, uint32_t, uint32_t (&out)[4]) {
        constexpr bool half = O % 2 == 0;
        constexpr int at = O % 2 * 6 + 1 + O / 2 % 2 * 2;
        fifth_pairs<16, O / 2>(word<half>(raw, at), word<half>(raw, at + 1), word<half>(raw, O % 2 * 6), out);
    }
};

template <>
struct StepRows<Blocks<BLOCK_Q4_1>> : TwoBlocks<BLOCK_Q4_1, 10> {
    static __device__ __forceinline__ void scales(const Raw& raw, uint32_t, Scaling (&out)[2]) {
        out[0] = raised(raw.words[0]), out[1] = raised(raw.words[5]);
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Raw& raw, uint32_t, uint32_t (&out)[4]) {
        constexpr int at = O % 2 * 5 + 1 + O / 2 % 2 * 2;
        nibble_pairs<0, O / 2>(raw.words[at], raw.words[at + 1], out);
    }
};

template <>
struct StepRows<Blocks<BLOCK_Q5_1>> : TwoBlocks<BLOCK_Q5_1, 12> {
    static __device__ __forceinline__ void scales(const Raw& raw, uint32_t, Scaling (&out)[2]) {
        out[0] = raised(raw.words[0]), out[1] = raised(raw.words[6]);
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Raw& raw, uint32_t, uint32_t (&out)[4]) {
        constexpr int at = O % 2 * 6 + 2 + O / 2 % 2 * 2;
        fifth_pairs<0, O / 2>(raw.words[at], raw.words[at + 1], raw.words[O % 2 * 6 + 1], out);
    }
};

template <>
struct StepRows<Blocks<BLOCK_MXFP4>> : ChunkRows<Blocks<BLOCK_MXFP4>> {
    struct Raw {
        uint32_t words[9];
    };
    static __device__ __forceinline__ void load(const uint8_t* unit, uint32_t t, Raw& raw) {
        load_4<9>(unit + (34 * t & ~3u), raw.words);
    }
    // Words from the first block's first byte.
    static __device__ __forceinline__ Raw ready(const Raw& raw) {
        Raw out;
        uint32_t apart = (34 * threadIdx.x & 3) * 8;
#pragma unroll
        for (int i = 0; i < 8; i++) out.words[i] = __funnelshift_r(raw.words[i], raw.words[i + 1], apart);
        out.words[8] = raw.words[8] >> apart;
        return out;
    }
    static __device__ __forceinline__ void scales(const Raw& raw, uint32_t, Scaling (&out)[2]) {
        out[0] = {half_of_power(raw.words[0] & 255), 0.0f}, out[1] = {half_of_power(raw.words[4] >> 8 & 255), 0.0f};
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Raw& raw, uint32_t, uint32_t (&out)[4]) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            words[i] = __funnelshift_r(raw.words[O % 2 * 4 + i], raw.words[O % 2 * 4 + i + 1], O % 2 ? 16 : 8);
        }
        table_pairs<Fp4Table, O / 2>(words, out);
#pragma unroll
        for (int i = 0; i < 4; i++) out[i] = affine_halves(out[i], 1.0f, -1040.0f);
    }
};

#include "blocks_grids_step.cuh"

// A lane's share of a unit: 64 columns of two rows.
template <typename F>
struct BlockUnit {
    typename StepRows<F>::Raw low, high;
};

// Where a lane reads the vector.
template <typename F>
struct BlockVector {
    const float* from;
    uint32_t step;               // words from one unit to the next
    const float* staged;

    __device__ inline BlockVector(const float* vector, uint32_t words) : staged(vector) {
        uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        bool active = g / 2 == t;
        from = active ? vector + StepRows<F>::base(t) + g % 2 * 16 : vector + words;
        step = active ? 8 * STAGED_CHUNK : 0;
    }
};

template <typename F>
__device__ __forceinline__ void load_block(BlockUnit<F>& out, const uint8_t* low, const uint8_t* high) {
    uint32_t t = threadIdx.x % 4;
    StepRows<F>::load(low, t, out.low);
    StepRows<F>::load(high, t, out.high);
}

// Adds a unit, staged as number `index`, to the sums of rows g and g + 8 of TOKENS vectors `stride` words apart, times
// a factor of each; the first `tokens` are there, and of the others the sums mean nothing. It is unpacked once for as
// many as registers hold.
template <typename F, int TOKENS>
__device__ __forceinline__ void multiply_block(const BlockUnit<F>& unit, uint32_t index, const BlockVector<F>& x,
                                               uint32_t stride, uint32_t tokens, const float (&factor)[TOKENS],
                                               float (&result)[TOKENS][2]) {
    using Rows = StepRows<F>;
    constexpr int GROUPS = Rows::ACCUMULATORS, TOGETHER = TOKENS * GROUPS <= 8 ? TOKENS : 8 / GROUPS;
    uint32_t t = threadIdx.x % 4;
    // Tokens past the last are the last again: without a branch the products of all are under way together.
    uint32_t apart[TOKENS] = {};
#pragma unroll
    for (int i = 1; i < TOKENS; i++) apart[i] = min(uint32_t(i), tokens - 1) * stride;
    const auto& lower = Rows::ready(unit.low);
    const auto& upper = Rows::ready(unit.high);
    Scaling scaling[2][GROUPS];
#pragma unroll
    for (int from = 0; from < TOKENS; from += TOGETHER) {
        float c[TOGETHER][GROUPS][4] = {};
        unroll<0, 8>([&]<int O>() {
            constexpr uint32_t at = Rows::offset(O);
            const float* vector = x.from + index * x.step + at;
            uint4 b[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) b[i] = load_shared(vector + (x.step ? apart[from + i] : 0));
            uint32_t low[4], high[4];
            Rows::template pairs<O>(lower, t, low);
            Rows::template pairs<O>(upper, t, high);
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                float(&sums)[4] = c[i][O % GROUPS];
                multiply_halves(sums, low[0], high[0], low[1], high[1], b[i].x, b[i].y);
                multiply_halves(sums, low[2], high[2], low[3], high[3], b[i].z, b[i].w);
            }
        });
        if (from == 0) Rows::scales(lower, t, scaling[0]), Rows::scales(upper, t, scaling[1]);
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            int token = from + i;
            const float* vector = x.staged + apart[token] + index * 8 * STAGED_CHUNK;
            float inverse = vector[Rows::base(t) / STAGED_CHUNK * STAGED_CHUNK + 33];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float sum = 0.0f;
#pragma unroll
                for (int j = 0; j < GROUPS; j++) {
                    sum += scaling[r][j].scale * ((c[i][j][2 * r] + c[i][j][2 * r + 1]) * inverse);
                    if constexpr (F::MINIMUM) sum += scaling[r][j].minimum * vector[Rows::inputs(t, j)];
                }
                result[token][r] += factor[token] * sum;
            }
        }
    }
}

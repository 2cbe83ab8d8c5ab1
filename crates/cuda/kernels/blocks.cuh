// Block encodings of GGUF files: where the values of 64 columns of a row lie, and how they are taken apart.
//
// Whatever a format does inside, 64 columns give sixteen words of four codes each, and a scale (and a minimum) for
// every 16 or 32 of them: a value is (code - OFFSET) * scale, or code * scale + minimum. The scalar reference is
// crates/kernels/src/blocks. A row is read in place; its 64 columns are one or two pieces of consecutive bytes. Word
// 4 s + t of the 64 columns, s and t below four, holds columns 16 s + 4 t ..: what a lane t of four multiplies in step
// s of sixteen columns. The kernels of a step have their own order, in blocks_step.cuh.
#pragma once
#include "common.cuh"

// What a group's codes are multiplied with, and what is added.
struct Scaling {
    float scale, minimum;
};

__device__ inline float half_value(uint32_t bits) { return __half2float(__ushort_as_half((unsigned short)bits)); }

// Scales and minima of groups 2 `pair` and 2 `pair` + 1 from the first sixteen bytes of Q4_K and Q5_K.
__device__ inline void k_scales(const uint32_t (&w)[4], uint32_t pair, Scaling (&out)[2]) {
    float d = half_value(w[0] & 0xffff), m = half_value(w[0] >> 16);
    uint32_t shift = 16 * (pair & 1), low = w[1] >> shift, high = w[2] >> shift, rest = w[3] >> shift;
    uint32_t s = pair < 2 ? low & 0x3f3f : (rest & 0x0f0f) | (low >> 2 & 0x3030);
    uint32_t n = pair < 2 ? high & 0x3f3f : (rest >> 4 & 0x0f0f) | (high >> 2 & 0x3030);
    out[0] = {d * float(s & 255), -(m * float(n & 255))};
    out[1] = {d * float(s >> 8 & 255), -(m * float(n >> 8 & 255))};
}

// 2^(exponent - 128), also where that is subnormal.
__device__ inline float half_of_power(uint32_t exponent) {
    return __uint_as_float(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
}

// The codes of IQ4_NL and IQ4_XS, and of MXFP4, by index.
struct Iq4Table {
    static constexpr uint32_t WORDS[4] = {0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u};
};
struct Fp4Table {
    static constexpr uint32_t WORDS[4] = {0x13121110u, 0x1c181614u, 0x0d0e0f10u, 0x04080a0cu};
};

// The codes of a word's low and high nibbles.
template <typename TABLE>
__device__ inline void look_up(uint32_t w, uint32_t& low, uint32_t& high) {
    constexpr uint32_t t0 = TABLE::WORDS[0], t1 = TABLE::WORDS[1], t2 = TABLE::WORDS[2], t3 = TABLE::WORDS[3];
    uint32_t index = w & 0x77777777u, upper = 0x32103210u | (w & 0x88888888u) >> 1;
    uint32_t a = __byte_perm(__byte_perm(t0, t1, index & 0xffff), __byte_perm(t2, t3, index & 0xffff), upper & 0xffff);
    uint32_t b = __byte_perm(__byte_perm(t0, t1, index >> 16), __byte_perm(t2, t3, index >> 16), upper >> 16);
    low = __byte_perm(a, b, 0x6420), high = __byte_perm(a, b, 0x7531);
}

__device__ inline uint32_t low_nibbles(uint32_t w) { return w & 0x0f0f0f0fu; }
__device__ inline uint32_t high_nibbles(uint32_t w) { return w >> 4 & 0x0f0f0f0fu; }

// Bits 0..4 of `bits` as bit 4 of four bytes.
__device__ inline uint32_t fifth_bits(uint32_t bits) { return ((bits & 15) * 0x00204081u & 0x01010101u) << 4; }

// What a format is. Of every format: VALUES and BYTES of a block; GROUP, OFFSET, MINIMUM; FIRST and SECOND, bytes of
// the pieces of 64 columns, which are columns 64 c .. of a block, a block of 64 or two blocks of 32; WORDS, whether
// every word of them lies at a multiple of four; `Header`, the bytes that scales come from.
template <uint32_t FORMAT>
struct Blocks;

// Formats of 256 values.
template <uint32_t BLOCK_BYTES, uint32_t GROUP_VALUES>
struct LargeBlocks {
    static constexpr uint32_t VALUES = 256, BYTES = BLOCK_BYTES, GROUP = GROUP_VALUES;
};

template <>
struct Blocks<BLOCK_Q4_K> : LargeBlocks<144, 32> {
    static constexpr uint32_t OFFSET = 0, FIRST = 32, SECOND = 0;
    static constexpr bool MINIMUM = true, WORDS = true;
    struct Header {
        uint32_t words[4];
    };
    static __device__ uint32_t first(uint32_t c) { return 16 + 32 * c; }
    static __device__ uint32_t second(uint32_t) { return 0; }
    static __device__ void header(const uint8_t* block, const uint8_t*, uint32_t, Header& h) {
        load_words<4>(block, h.words);
    }
    static __device__ void scales(const Header& h, uint32_t c, Scaling (&out)[2]) { k_scales(h.words, c, out); }
    template <typename A, typename B>
    static __device__ void codes(A a, B, uint32_t, uint32_t t, uint32_t (&w)[4]) {
        uint32_t x = a(4 * t), y = a(16 + 4 * t);
        w[0] = low_nibbles(x), w[1] = low_nibbles(y), w[2] = high_nibbles(x), w[3] = high_nibbles(y);
    }
};

template <>
struct Blocks<BLOCK_Q5_K> : LargeBlocks<176, 32> {
    static constexpr uint32_t OFFSET = 0, FIRST = 32, SECOND = 32;
    static constexpr bool MINIMUM = true, WORDS = true;
    using Header = Blocks<BLOCK_Q4_K>::Header;
    static __device__ uint32_t first(uint32_t c) { return 48 + 32 * c; }
    static __device__ uint32_t second(uint32_t) { return 16; }
    static __device__ void header(const uint8_t* block, const uint8_t*, uint32_t, Header& h) {
        load_words<4>(block, h.words);
    }
    static __device__ void scales(const Header& h, uint32_t c, Scaling (&out)[2]) { k_scales(h.words, c, out); }
    template <typename A, typename B>
    static __device__ void codes(A a, B b, uint32_t c, uint32_t t, uint32_t (&w)[4]) {
        uint32_t x = a(4 * t), y = a(16 + 4 * t), p = b(4 * t) >> 2 * c, q = b(16 + 4 * t) >> 2 * c;
        w[0] = low_nibbles(x) | (p & 0x01010101u) << 4, w[1] = low_nibbles(y) | (q & 0x01010101u) << 4;
        w[2] = high_nibbles(x) | (p & 0x02020202u) << 3, w[3] = high_nibbles(y) | (q & 0x02020202u) << 3;
    }
};

template <>
struct Blocks<BLOCK_Q6_K> : LargeBlocks<210, 16> {
    static constexpr uint32_t OFFSET = 32, FIRST = 64, SECOND = 32;
    static constexpr bool MINIMUM = false, WORDS = false;
    struct Header {
        uint32_t d, scales[2];
    };
    static __device__ uint32_t first(uint32_t c) { return 64 * (c / 2); }
    static __device__ uint32_t second(uint32_t c) { return 128 + 32 * (c / 2); }
    static __device__ void header(const uint8_t* block, const uint8_t*, uint32_t c, Header& h) {
        h.d = load_u16(block + 208);
        h.scales[0] = load_u16(block + 192 + 4 * c), h.scales[1] = load_u16(block + 194 + 4 * c);
    }
    static __device__ void scales(const Header& h, uint32_t, Scaling (&out)[4]) {
        float d = half_value(h.d);
#pragma unroll
        for (int i = 0; i < 4; i++) out[i] = {d * float(int8_t(h.scales[i / 2] >> 8 * (i % 2) & 255)), 0.0f};
    }
    template <typename A, typename B>
    static __device__ void codes(A a, B b, uint32_t c, uint32_t t, uint32_t (&w)[4]) {
        uint32_t s = 4 * (c % 2), h[2] = {b(4 * t) >> s, b(16 + 4 * t) >> s};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            w[k] = low_nibbles(a(16 * k + 4 * t) >> s) | (h[k % 2] >> 2 * (k / 2) & 0x03030303u) << 4;
        }
    }
};

template <>
struct Blocks<BLOCK_Q2_K> : LargeBlocks<84, 16> {
    static constexpr uint32_t OFFSET = 0, FIRST = 32, SECOND = 0;
    static constexpr bool MINIMUM = true, WORDS = true;
    struct Header {
        uint32_t words[2];
    };
    static __device__ uint32_t first(uint32_t c) { return 16 + 32 * (c / 2); }
    static __device__ uint32_t second(uint32_t) { return 0; }
    static __device__ void header(const uint8_t* block, const uint8_t*, uint32_t c, Header& h) {
        h.words[0] = load_u16(block + 4 * c) | load_u16(block + 4 * c + 2) << 16;
        h.words[1] = load_u16(block + 80) | load_u16(block + 82) << 16;
    }
    static __device__ void scales(const Header& h, uint32_t, Scaling (&out)[4]) {
        float d = half_value(h.words[1] & 0xffff), m = half_value(h.words[1] >> 16);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t byte = h.words[0] >> 8 * i;
            out[i] = {d * float(byte & 15), -(m * float(byte >> 4 & 15))};
        }
    }
    template <typename A, typename B>
    static __device__ void codes(A a, B, uint32_t c, uint32_t t, uint32_t (&w)[4]) {
        uint32_t s = 4 * (c % 2), x = a(4 * t) >> s, y = a(16 + 4 * t) >> s;
        w[0] = x & 0x03030303u, w[1] = y & 0x03030303u, w[2] = x >> 2 & 0x03030303u, w[3] = y >> 2 & 0x03030303u;
    }
};

template <>
struct Blocks<BLOCK_Q3_K> : LargeBlocks<110, 16> {
    static constexpr uint32_t OFFSET = 4, FIRST = 32, SECOND = 32;
    static constexpr bool MINIMUM = false, WORDS = false;
    struct Header {
        uint32_t d, low, high;
    };
    static __device__ uint32_t first(uint32_t c) { return 32 + 32 * (c / 2); }
    static __device__ uint32_t second(uint32_t) { return 0; }
    static __device__ void header(const uint8_t* block, const uint8_t*, uint32_t c, Header& h) {
        const uint8_t* low = block + 96 + 4 * (c % 2);
        h.d = load_u16(block + 108);
        h.low = load_u16(low) | load_u16(low + 2) << 16;
        h.high = load_u16(block + 104) | load_u16(block + 106) << 16;
    }
    static __device__ void scales(const Header& h, uint32_t c, Scaling (&out)[4]) {
        float d = half_value(h.d);
        uint32_t small = low_nibbles(h.low >> 4 * (c / 2)) | (h.high >> 2 * c & 0x03030303u) << 4;
#pragma unroll
        for (int i = 0; i < 4; i++) out[i] = {d * float(int(small >> 8 * i & 255) - 32), 0.0f};
    }
    template <typename A, typename B>
    static __device__ void codes(A a, B b, uint32_t c, uint32_t t, uint32_t (&w)[4]) {
        uint32_t s = 4 * (c % 2), x = a(4 * t) >> s, y = a(16 + 4 * t) >> s;
        uint32_t p = b(4 * t) >> 2 * c, q = b(16 + 4 * t) >> 2 * c;
        w[0] = (x & 0x03030303u) | (p & 0x01010101u) << 2, w[1] = (y & 0x03030303u) | (q & 0x01010101u) << 2;
        w[2] = (x >> 2 & 0x03030303u) | (p & 0x02020202u) << 1, w[3] = (y >> 2 & 0x03030303u) | (q & 0x02020202u) << 1;
    }
};

template <>
struct Blocks<BLOCK_IQ4_XS> : LargeBlocks<136, 32> {
    static constexpr uint32_t OFFSET = 128, FIRST = 32, SECOND = 0;
    static constexpr bool MINIMUM = false, WORDS = true;
    struct Header {
        uint32_t words[2];
    };
    static __device__ uint32_t first(uint32_t c) { return 8 + 32 * c; }
    static __device__ uint32_t second(uint32_t) { return 0; }
    static __device__ void header(const uint8_t* block, const uint8_t*, uint32_t, Header& h) {
        load_words<2>(block, h.words);
    }
    // Of groups 2 c and 2 c + 1.
    static __device__ void scales(const Header& h, uint32_t c, Scaling (&out)[2]) {
        float d = half_value(h.words[0] & 0xffff);
        uint32_t low = h.words[1] >> 8 * c, high = h.words[0] >> (16 + 4 * c);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            out[i] = {d * float(int((low >> 4 * i & 15) | (high >> 2 * i & 3) << 4) - 32), 0.0f};
        }
    }
    template <typename A, typename B>
    static __device__ void codes(A a, B, uint32_t, uint32_t t, uint32_t (&w)[4]) {
        look_up<Iq4Table>(a(4 * t), w[0], w[1]);
        look_up<Iq4Table>(a(16 + 4 * t), w[2], w[3]);
    }
};

// Formats of 32 values: the pieces of 64 columns are two blocks.
template <uint32_t BLOCK_BYTES>
struct SmallBlocks {
    static constexpr uint32_t VALUES = 32, BYTES = BLOCK_BYTES, GROUP = 32, FIRST = 2 * BLOCK_BYTES, SECOND = 0;
    static __device__ uint32_t first(uint32_t) { return 0; }
    static __device__ uint32_t second(uint32_t) { return 0; }
};

// Those with one scale and no minimum.
template <uint32_t BLOCK_BYTES>
struct ScaledBlocks : SmallBlocks<BLOCK_BYTES> {
    static constexpr bool MINIMUM = false;
    struct Header {
        uint32_t d[2];
    };
    static __device__ void header(const uint8_t* block, const uint8_t* next, uint32_t, Header& h) {
        h.d[0] = load_u16(block), h.d[1] = load_u16(next);
    }
    static __device__ void scales(const Header& h, uint32_t, Scaling (&out)[2]) {
        out[0] = {half_value(h.d[0]), 0.0f}, out[1] = {half_value(h.d[1]), 0.0f};
    }
};

// Those with a scale and a minimum.
template <uint32_t BLOCK_BYTES>
struct RaisedBlocks : SmallBlocks<BLOCK_BYTES> {
    static constexpr bool MINIMUM = true, WORDS = true;
    static constexpr uint32_t OFFSET = 0;
    struct Header {
        uint32_t d[2], m[2];
    };
    static __device__ void header(const uint8_t* block, const uint8_t* next, uint32_t, Header& h) {
        h.d[0] = load_u16(block), h.d[1] = load_u16(next);
        h.m[0] = load_u16(block + 2), h.m[1] = load_u16(next + 2);
    }
    static __device__ void scales(const Header& h, uint32_t, Scaling (&out)[2]) {
        out[0] = {half_value(h.d[0]), half_value(h.m[0])}, out[1] = {half_value(h.d[1]), half_value(h.m[1])};
    }
};

template <>
struct Blocks<BLOCK_Q8_0> : ScaledBlocks<34> {
    static constexpr uint32_t OFFSET = 128;
    static constexpr bool WORDS = false;
    template <typename A, typename B>
    static __device__ void codes(A a, B, uint32_t, uint32_t t, uint32_t (&w)[4]) {
#pragma unroll
        for (int k = 0; k < 4; k++) w[k] = a(2 + 34 * (k / 2) + 16 * (k % 2) + 4 * t) ^ 0x80808080u;
    }
};

template <>
struct Blocks<BLOCK_Q4_0> : ScaledBlocks<18> {
    static constexpr uint32_t OFFSET = 8;
    static constexpr bool WORDS = false;
    template <typename A, typename B>
    static __device__ void codes(A a, B, uint32_t, uint32_t t, uint32_t (&w)[4]) {
        uint32_t x = a(2 + 4 * t), y = a(20 + 4 * t);
        w[0] = low_nibbles(x), w[1] = high_nibbles(x), w[2] = low_nibbles(y), w[3] = high_nibbles(y);
    }
};

template <>
struct Blocks<BLOCK_IQ4_NL> : ScaledBlocks<18> {
    static constexpr uint32_t OFFSET = 128;
    static constexpr bool WORDS = false;
    template <typename A, typename B>
    static __device__ void codes(A a, B, uint32_t, uint32_t t, uint32_t (&w)[4]) {
        look_up<Iq4Table>(a(2 + 4 * t), w[0], w[1]);
        look_up<Iq4Table>(a(20 + 4 * t), w[2], w[3]);
    }
};

template <>
struct Blocks<BLOCK_Q5_0> : ScaledBlocks<22> {
    static constexpr uint32_t OFFSET = 16;
    static constexpr bool WORDS = false;
    template <typename A, typename B>
    static __device__ void codes(A a, B, uint32_t, uint32_t t, uint32_t (&w)[4]) {
        uint32_t x = a(6 + 4 * t), y = a(28 + 4 * t), p = a(2) >> 4 * t, q = a(24) >> 4 * t;
        w[0] = low_nibbles(x) | fifth_bits(p), w[1] = high_nibbles(x) | fifth_bits(p >> 16);
        w[2] = low_nibbles(y) | fifth_bits(q), w[3] = high_nibbles(y) | fifth_bits(q >> 16);
    }
};

template <>
struct Blocks<BLOCK_Q4_1> : RaisedBlocks<20> {
    template <typename A, typename B>
    static __device__ void codes(A a, B, uint32_t, uint32_t t, uint32_t (&w)[4]) {
        uint32_t x = a(4 + 4 * t), y = a(24 + 4 * t);
        w[0] = low_nibbles(x), w[1] = high_nibbles(x), w[2] = low_nibbles(y), w[3] = high_nibbles(y);
    }
};

template <>
struct Blocks<BLOCK_Q5_1> : RaisedBlocks<24> {
    template <typename A, typename B>
    static __device__ void codes(A a, B, uint32_t, uint32_t t, uint32_t (&w)[4]) {
        uint32_t x = a(8 + 4 * t), y = a(32 + 4 * t), p = a(4) >> 4 * t, q = a(28) >> 4 * t;
        w[0] = low_nibbles(x) | fifth_bits(p), w[1] = high_nibbles(x) | fifth_bits(p >> 16);
        w[2] = low_nibbles(y) | fifth_bits(q), w[3] = high_nibbles(y) | fifth_bits(q >> 16);
    }
};

template <>
struct Blocks<BLOCK_MXFP4> : SmallBlocks<17> {
    static constexpr uint32_t OFFSET = 16;
    static constexpr bool MINIMUM = false, WORDS = false;
    struct Header {
        uint32_t e[2];
    };
    static __device__ void header(const uint8_t* block, const uint8_t* next, uint32_t, Header& h) {
        h.e[0] = *block, h.e[1] = *next;
    }
    static __device__ void scales(const Header& h, uint32_t, Scaling (&out)[2]) {
        out[0] = {half_of_power(h.e[0]), 0.0f}, out[1] = {half_of_power(h.e[1]), 0.0f};
    }
    template <typename A, typename B>
    static __device__ void codes(A a, B, uint32_t, uint32_t t, uint32_t (&w)[4]) {
        look_up<Fp4Table>(a(1 + 4 * t), w[0], w[1]);
        look_up<Fp4Table>(a(18 + 4 * t), w[2], w[3]);
    }
};

// MXFP4 in two planes: a byte has two neighbouring columns, the first of them in its lower half.
template <>
struct Blocks<BLOCK_MXFP4_PLANES> : SmallBlocks<16> {
    static constexpr uint32_t OFFSET = 16;
    static constexpr bool MINIMUM = false, WORDS = false;
    using Header = Blocks<BLOCK_MXFP4>::Header;
    static __device__ void header(const uint8_t* first, const uint8_t* second, uint32_t, Header& h) {
        h.e[0] = *first, h.e[1] = *second;
    }
    static __device__ void scales(const Header& h, uint32_t c, Scaling (&out)[2]) {
        Blocks<BLOCK_MXFP4>::scales(h, c, out);
    }
    template <typename A, typename B>
    static __device__ void codes(A a, B, uint32_t, uint32_t t, uint32_t (&w)[4]) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t low, high;
            look_up<Fp4Table>(a(8 * i + t / 2 * 4) >> t % 2 * 16, low, high);
            w[i] = __byte_perm(low, high, 0x5140);
        }
    }
};

#include "blocks_grids.cuh"

// True for formats whose scales are a plane of their own, a byte for each 32 columns: `header` gets the bytes of the
// two groups of 64 columns.
template <typename F>
constexpr bool SCALE_PLANE = false;
template <>
constexpr bool SCALE_PLANE<Blocks<BLOCK_MXFP4_PLANES>> = true;

// Where 64 columns of a row begin: bytes into the row.
template <typename F>
__device__ inline uint32_t stage_byte(uint32_t stage) {
    return F::VALUES == 256 ? stage / 4 * F::BYTES : stage * (64 / F::VALUES) * F::BYTES;
}

template <typename F>
__device__ inline uint32_t row_bytes(uint32_t columns) {
    return columns / F::VALUES * F::BYTES;
}

// Formats of every launch, and those of blocks_grids.cuh.
#define USUAL_FORMATS(DO) \
    DO(Q4_0) DO(Q4_1) DO(Q5_0) DO(Q5_1) DO(Q8_0) DO(Q2_K) DO(Q3_K) DO(Q4_K) DO(Q5_K) DO(Q6_K) DO(IQ4_NL) DO(IQ4_XS) \
        DO(MXFP4)
#define GRID_FORMATS(DO) \
    DO(IQ2_XXS) DO(IQ2_XS) DO(IQ2_S) DO(IQ3_XXS) DO(IQ3_S) DO(IQ1_S) DO(IQ1_M) DO(TQ1_0) DO(TQ2_0) DO(NVFP4)
#define FORMAT_CASE(NAME) \
    case BLOCK_##NAME: return f.template operator()<Blocks<BLOCK_##NAME>>();

// Calls f.template operator()<Blocks<..>>() for a format that is known when the kernel runs.
template <bool GRIDS, typename FUNCTION>
__device__ inline void with_format(uint32_t format, FUNCTION&& f) {
    if constexpr (GRIDS) {
        switch (format) {
            GRID_FORMATS(FORMAT_CASE)
            default: break;
        }
    }
    switch (format) {
        USUAL_FORMATS(FORMAT_CASE)
        default: __trap();
    }
}

// Formats in planes too, which the kernels of a step do not serve.
template <typename FUNCTION>
__device__ inline void with_any_format(uint32_t format, FUNCTION&& f) {
    if (format == BLOCK_MXFP4_PLANES) return f.template operator()<Blocks<BLOCK_MXFP4_PLANES>>();
    with_format<true>(format, f);
}
#undef FORMAT_CASE

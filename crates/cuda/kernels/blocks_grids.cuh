// Block encodings that choose points of a grid, and ternary ones: the contract of blocks.cuh, which includes this. The
// scalar reference is crates/kernels/src/blocks/codebooks.rs and ternary.rs.
#pragma once
#include "grids.cuh"

// Eight signs of seven bits: the eighth makes their number even. Above them anything.
__device__ inline uint32_t even_signs(uint32_t code) {
    code &= 127;
    return code | uint32_t(__popc(code)) << 7;
}

// Four codes, each of them zero's plus a magnitude: less it where a bit of the lowest four is set.
__device__ inline uint32_t signed_codes(uint32_t codes, uint32_t bits) {
    uint32_t minus = (bits & 15) * 0x00204081u & 0x01010101u;
    return (codes ^ ((minus << 7) - minus)) + minus;
}

// Halves of points of eight coordinates: coordinates 4 `half` .. of them.
template <int COUNT>
__device__ inline uint32_t half_point(const Grid<uint64_t, COUNT>& grid, uint32_t index, uint32_t half) {
    return __ldg(reinterpret_cast<const uint32_t*>(grid.point) + 2 * index + half);
}

// Of points of levels 1 to 3, four bits each: eight times a half's levels, and one more or less.
__device__ inline uint32_t shifted_codes(uint32_t point, uint32_t half, bool minus) {
    uint32_t levels = half ? point >> 1 & 0x78787878u : (point & 0x0f0f0f0fu) << 3;
    return levels + (minus ? 0u - 0x01010101u : 0x01010101u);
}

// Digit of base three that the bytes of a word begin with once they were multiplied by a power of three.
__device__ inline uint32_t ternary_codes(uint32_t word, uint32_t power) {
    uint32_t even = (word & 0x00ff00ffu) * power & 0x00ff00ffu, odd = (word >> 8 & 0x00ff00ffu) * power & 0x00ff00ffu;
    return (even * 3 >> 8 & 0x00ff00ffu) | (odd * 3 & 0xff00ff00u);
}

// Formats of points and signs: codes are 64 more or less than magnitudes.
template <uint32_t BLOCK_BYTES, uint32_t GROUP_VALUES>
struct PointBlocks : LargeBlocks<BLOCK_BYTES, GROUP_VALUES> {
    static constexpr uint32_t OFFSET = 64;
    static constexpr bool MINIMUM = false, WORDS = false;
};

// Scales in nibbles, one for each 16 columns.
template <uint32_t AT>
struct QuarterScales {
    struct Header {
        uint32_t d, small;
    };
    static __device__ void header(const uint8_t* block, const uint8_t*, uint32_t c, Header& h) {
        h.d = load_u16(block), h.small = load_u16(block + AT + 2 * c);
    }
    static __device__ void scales(const Header& h, uint32_t, Scaling (&out)[4]) {
        float d = half_value(h.d);
#pragma unroll
        for (int i = 0; i < 4; i++) out[i] = {d * (0.5f + float(h.small >> 4 * i & 15)) * 0.25f, 0.0f};
    }
};

template <>
struct Blocks<BLOCK_IQ2_XXS> : PointBlocks<66, 32> {
    static constexpr uint32_t FIRST = 16, SECOND = 0;
    struct Header {
        uint32_t d, small[2];
    };
    static __device__ uint32_t first(uint32_t c) { return 2 + 16 * c; }
    static __device__ uint32_t second(uint32_t) { return 0; }
    static __device__ void header(const uint8_t* block, const uint8_t*, uint32_t c, Header& h) {
        h.d = load_u16(block), h.small[0] = load_u16(block + 8 + 16 * c), h.small[1] = load_u16(block + 16 + 16 * c);
    }
    static __device__ void scales(const Header& h, uint32_t, Scaling (&out)[2]) {
        float d = half_value(h.d);
#pragma unroll
        for (int i = 0; i < 2; i++) out[i] = {d * (0.5f + float(h.small[i] >> 12)) * 0.25f, 0.0f};
    }
    template <typename A, typename B>
    static __device__ void codes(A a, B, uint32_t, uint32_t t, uint32_t (&w)[4]) {
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) {
            uint32_t l = s % 2 * 2 + t / 2, index = a(s / 2 * 8) >> 8 * l & 255;
            uint32_t signs = even_signs(a(s / 2 * 8 + 4) >> 7 * l) >> t % 2 * 4;
            w[s] = signed_codes(half_point(GRID_IQ2_XXS, index, t % 2), signs);
        }
    }
};

template <>
struct Blocks<BLOCK_IQ2_XS> : PointBlocks<74, 16>, QuarterScales<66> {
    static constexpr uint32_t FIRST = 16, SECOND = 0;
    static __device__ uint32_t first(uint32_t c) { return 2 + 16 * c; }
    static __device__ uint32_t second(uint32_t) { return 0; }
    template <typename A, typename B>
    static __device__ void codes(A a, B, uint32_t, uint32_t t, uint32_t (&w)[4]) {
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) {
            uint32_t point = a(4 * s) >> t / 2 * 16 & 0xffff;
            w[s] = signed_codes(half_point(GRID_IQ2_XS, point & 511, t % 2), even_signs(point >> 9) >> t % 2 * 4);
        }
    }
};

template <>
struct Blocks<BLOCK_IQ2_S> : PointBlocks<82, 16>, QuarterScales<74> {
    // Signs and the upper bits of indices are one piece.
    static constexpr uint32_t FIRST = 8, SECOND = 40;
    static __device__ uint32_t first(uint32_t c) { return 2 + 8 * c; }
    static __device__ uint32_t second(uint32_t) { return 34; }
    template <typename A, typename B>
    static __device__ void codes(A a, B b, uint32_t c, uint32_t t, uint32_t (&w)[4]) {
        uint32_t upper = b(32 + c / 2 * 4) >> c % 2 * 16;
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) {
            uint32_t p = 2 * s + t / 2, shift = s % 2 * 16 + t / 2 * 8;
            uint32_t index = (a(s / 2 * 4) >> shift & 255) | (upper >> 2 * p & 3) << 8;
            w[s] = signed_codes(half_point(GRID_IQ2_S, index, t % 2), b(8 * c + s / 2 * 4) >> (shift + t % 2 * 4));
        }
    }
};

template <>
struct Blocks<BLOCK_IQ3_XXS> : PointBlocks<98, 32> {
    static constexpr uint32_t FIRST = 16, SECOND = 8;
    using Header = Blocks<BLOCK_IQ2_XXS>::Header;
    static __device__ uint32_t first(uint32_t c) { return 2 + 16 * c; }
    static __device__ uint32_t second(uint32_t c) { return 66 + 8 * c; }
    static __device__ void header(const uint8_t* block, const uint8_t*, uint32_t c, Header& h) {
        h.d = load_u16(block), h.small[0] = load_u16(block + 68 + 8 * c), h.small[1] = load_u16(block + 72 + 8 * c);
    }
    static __device__ void scales(const Header& h, uint32_t, Scaling (&out)[2]) {
        float d = half_value(h.d);
#pragma unroll
        for (int i = 0; i < 2; i++) out[i] = {d * (0.5f + float(h.small[i] >> 12)) * 0.5f, 0.0f};
    }
    template <typename A, typename B>
    static __device__ void codes(A a, B b, uint32_t, uint32_t t, uint32_t (&w)[4]) {
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) {
            uint32_t l = s % 2 * 2 + t / 2, index = a(4 * s) >> 8 * t & 255;
            uint32_t signs = even_signs(b(s / 2 * 4) >> 7 * l) >> t % 2 * 4;
            w[s] = signed_codes(__ldg(GRID_IQ3_XXS.point + index), signs);
        }
    }
};

template <>
struct Blocks<BLOCK_IQ3_S> : PointBlocks<110, 32> {
    // Ninth bits of indices and signs are one piece.
    static constexpr uint32_t FIRST = 16, SECOND = 40;
    struct Header {
        uint32_t d, small;
    };
    static __device__ uint32_t first(uint32_t c) { return 2 + 16 * c; }
    static __device__ uint32_t second(uint32_t) { return 66; }
    static __device__ void header(const uint8_t* block, const uint8_t*, uint32_t c, Header& h) {
        h.d = load_u16(block), h.small = block[106 + c];
    }
    static __device__ void scales(const Header& h, uint32_t, Scaling (&out)[2]) {
        float d = half_value(h.d);
        out[0] = {d * float(1 + 2 * (h.small & 15)), 0.0f}, out[1] = {d * float(1 + 2 * (h.small >> 4)), 0.0f};
    }
    template <typename A, typename B>
    static __device__ void codes(A a, B b, uint32_t c, uint32_t t, uint32_t (&w)[4]) {
        uint32_t ninth = b(c / 2 * 4) >> c % 2 * 16;
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) {
            uint32_t index = (a(4 * s) >> 8 * t & 255) | (ninth >> (4 * s + t) & 1) << 8;
            uint32_t signs = b(8 + 8 * c + s / 2 * 4) >> (s % 2 * 16 + 4 * t);
            w[s] = signed_codes(__ldg(GRID_IQ3_S.point + index), signs);
        }
    }
};

template <>
struct Blocks<BLOCK_IQ1_S> : LargeBlocks<50, 32> {
    static constexpr uint32_t OFFSET = 16, FIRST = 8, SECOND = 4;
    static constexpr bool MINIMUM = false, WORDS = false;
    using Header = Blocks<BLOCK_IQ2_XXS>::Header;
    static __device__ uint32_t first(uint32_t c) { return 2 + 8 * c; }
    static __device__ uint32_t second(uint32_t c) { return 34 + 4 * c; }
    static __device__ void header(const uint8_t* block, const uint8_t*, uint32_t c, Header& h) {
        h.d = load_u16(block), h.small[0] = load_u16(block + 34 + 4 * c), h.small[1] = load_u16(block + 36 + 4 * c);
    }
    static __device__ void scales(const Header& h, uint32_t, Scaling (&out)[2]) {
        float d = half_value(h.d);
#pragma unroll
        for (int i = 0; i < 2; i++) out[i] = {d * float(2 * (h.small[i] >> 12 & 7) + 1) * 0.125f, 0.0f};
    }
    template <typename A, typename B>
    static __device__ void codes(A a, B b, uint32_t, uint32_t t, uint32_t (&w)[4]) {
        uint32_t both = b(0);
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) {
            uint32_t l = s % 2 * 2 + t / 2, rest = both >> s / 2 * 16;
            uint32_t index = (a(s / 2 * 4) >> 8 * l & 255) | (rest >> 3 * l & 7) << 8;
            w[s] = shifted_codes(__ldg(GRID_IQ1.point + index), t % 2, rest & 0x8000);
        }
    }
};

template <>
struct Blocks<BLOCK_IQ1_M> : LargeBlocks<56, 16> {
    static constexpr uint32_t OFFSET = 16, FIRST = 8, SECOND = 4;
    static constexpr bool MINIMUM = false, WORDS = true;
    struct Header {
        uint32_t words[2];
    };
    static __device__ uint32_t first(uint32_t c) { return 8 * c; }
    static __device__ uint32_t second(uint32_t c) { return 32 + 4 * c; }
    static __device__ void header(const uint8_t* block, const uint8_t*, uint32_t, Header& h) {
        load_words<2>(block + 48, h.words);
    }
    static __device__ void scales(const Header& h, uint32_t c, Scaling (&out)[4]) {
        uint32_t x = h.words[0], y = h.words[1], small = (c < 2 ? x : y) >> c % 2 * 16;
        float d = half_value((x >> 12 & 15) | (x >> 28) << 4 | (y >> 12 & 15) << 8 | (y >> 28) << 12);
#pragma unroll
        for (int i = 0; i < 4; i++) out[i] = {d * float(2 * (small >> 3 * i & 7) + 1) * 0.125f, 0.0f};
    }
    template <typename A, typename B>
    static __device__ void codes(A a, B b, uint32_t, uint32_t t, uint32_t (&w)[4]) {
        uint32_t rest = b(0);
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) {
            uint32_t nibble = rest >> (8 * s + t / 2 * 4);
            uint32_t index = (a(s / 2 * 4) >> (s % 2 * 16 + t / 2 * 8) & 255) | (nibble & 7) << 8;
            w[s] = shifted_codes(__ldg(GRID_IQ1.point + index), t % 2, nibble & 8);
        }
    }
};

// Formats with one scale for a block.
template <uint32_t BLOCK_BYTES, uint32_t AT>
struct TernaryBlocks : LargeBlocks<BLOCK_BYTES, 32> {
    static constexpr uint32_t OFFSET = 1, SECOND = 0;
    static constexpr bool MINIMUM = false, WORDS = false;
    struct Header {
        uint32_t d;
    };
    static __device__ uint32_t second(uint32_t) { return 0; }
    static __device__ void header(const uint8_t* block, const uint8_t*, uint32_t, Header& h) {
        h.d = load_u16(block + AT);
    }
    static __device__ void scales(const Header& h, uint32_t, Scaling (&out)[2]) {
        out[0] = out[1] = {half_value(h.d), 0.0f};
    }
};

template <>
struct Blocks<BLOCK_TQ1_0> : TernaryBlocks<54, 52> {
    static constexpr uint32_t FIRST = 52;
    static __device__ uint32_t first(uint32_t) { return 0; }
    template <typename A, typename B>
    static __device__ void codes(A a, B, uint32_t c, uint32_t t, uint32_t (&w)[4]) {
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) {
            uint32_t column = 64 * c + 16 * s + 4 * t, at = column % 32, digit = column / 32, power = 1;
            if (column >= 160) at = 32 + column % 16, digit = (column - 160) / 16;
            if (column >= 240) at = 48, digit = (column - 240) / 4;
            for (uint32_t i = 0; i < digit; i++) power *= 3;
            w[s] = ternary_codes(a(at), power);
        }
    }
};

template <>
struct Blocks<BLOCK_TQ2_0> : TernaryBlocks<66, 64> {
    static constexpr uint32_t FIRST = 32;
    static __device__ uint32_t first(uint32_t c) { return 32 * (c / 2); }
    template <typename A, typename B>
    static __device__ void codes(A a, B b, uint32_t c, uint32_t t, uint32_t (&w)[4]) {
        Blocks<BLOCK_Q2_K>::codes(a, b, c, t, w);
    }
};

// Blocks of 64 values, four scales of eight bits.
template <>
struct Blocks<BLOCK_NVFP4> {
    static constexpr uint32_t VALUES = 64, BYTES = 36, GROUP = 16, OFFSET = 16, FIRST = 32, SECOND = 0;
    static constexpr bool MINIMUM = false, WORDS = true;
    struct Header {
        uint32_t small;
    };
    static __device__ uint32_t first(uint32_t) { return 4; }
    static __device__ uint32_t second(uint32_t) { return 0; }
    static __device__ void header(const uint8_t* block, const uint8_t*, uint32_t, Header& h) {
        h.small = load_u16(block) | load_u16(block + 2) << 16;
    }
    // Half of a float of four bits of exponent and three of mantissa; 0x7f, which would be no number, is zero.
    static __device__ float half_of_e4m3(uint32_t byte) {
        uint32_t exponent = byte >> 3 & 15, mantissa = byte & 7;
        float normal = __uint_as_float((exponent + 119) << 23 | mantissa << 20);
        float v = exponent ? normal : float(mantissa) * 0x1p-10f;
        return byte == 0x7f ? 0.0f : v;
    }
    static __device__ void scales(const Header& h, uint32_t, Scaling (&out)[4]) {
#pragma unroll
        for (int i = 0; i < 4; i++) out[i] = {half_of_e4m3(h.small >> 8 * i & 255), 0.0f};
    }
    template <typename A, typename B>
    static __device__ void codes(A a, B, uint32_t, uint32_t t, uint32_t (&w)[4]) {
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) {
            uint32_t low, high;
            look_up<Fp4Table>(a(8 * s + t % 2 * 4), low, high);
            w[s] = t < 2 ? low : high;
        }
    }
};

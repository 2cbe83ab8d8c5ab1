// How a lane of a step reads the block encodings of blocks_grids.cuh: the contract of blocks_step.cuh, which includes
// this. Blocks begin at even bytes.
#pragma once

// N words from an even byte on: whole words, the last of them only where a part of it is meant.
template <int N>
struct EvenWords {
    uint32_t words[N + 1];

    __device__ __forceinline__ void load(const uint8_t* p) {
        uint32_t apart = reinterpret_cast<uintptr_t>(p) & 2;
        const uint32_t* from = reinterpret_cast<const uint32_t*>(p - apart);
#pragma unroll
        for (int i = 0; i < N; i++) words[i] = from[i];
        words[N] = from[apart ? N : N - 1];
    }

    __device__ __forceinline__ void align(uint32_t shift, uint32_t (&out)[N]) const {
#pragma unroll
        for (int i = 0; i < N; i++) out[i] = __funnelshift_r(words[i], words[i + 1], shift);
    }
};

// By how many bits words from byte `p` on are shifted.
__device__ __forceinline__ uint32_t even_shift(const uint8_t* p) { return (reinterpret_cast<uintptr_t>(p) & 2) * 8; }

__device__ __forceinline__ uint32_t even_u16(const uint8_t* p) { return *reinterpret_cast<const uint16_t*>(p); }

// Eight codes of eight bits, four to a word, as pairs of halves.
template <uint32_t OFFSET>
__device__ __forceinline__ void octet_halves(uint32_t low, uint32_t high, uint32_t (&out)[4]) {
    unroll<0, 4>([&]<int I>() {
        uint32_t pair = and_or(byte_pair<I>(low, high), 0x00ff00ffu, 0x64006400u);
        out[I] = affine_halves(pair, 1.0f, -float(1024 + OFFSET));
    });
}

// A point of eight coordinates and its signs.
template <int COUNT>
__device__ __forceinline__ void point_halves(const Grid<uint64_t, COUNT>& grid, uint32_t index, uint32_t signs,
                                             uint32_t (&out)[4]) {
    uint2 point = __ldg(reinterpret_cast<const uint2*>(grid.point) + index);
    octet_halves<64>(signed_codes(point.x, signs), signed_codes(point.y, signs >> 4), out);
}

// Two points of four coordinates.
template <int COUNT>
__device__ __forceinline__ void points_halves(const Grid<uint32_t, COUNT>& grid, uint32_t first, uint32_t second,
                                              uint32_t signs, uint32_t (&out)[4]) {
    uint32_t low = __ldg(grid.point + first), high = __ldg(grid.point + second);
    octet_halves<64>(signed_codes(low, signs), signed_codes(high, signs >> 4), out);
}

// A point of levels.
__device__ __forceinline__ void shifted_halves(uint32_t index, bool minus, uint32_t (&out)[4]) {
    uint32_t point = __ldg(GRID_IQ1.point + index);
    octet_halves<16>(shifted_codes(point, 0, minus), shifted_codes(point, 1, minus), out);
}

// Groups of 16: a lane has 64 columns that follow each other; octet O / 4 of group O % 4.
template <typename FORMAT>
struct QuarterRows : ChunkRows<FORMAT> {
    static constexpr int ACCUMULATORS = 4;
    static __device__ constexpr uint32_t offset(int o) { return o % 4 / 2 * STAGED_CHUNK + (o % 2 * 2 + o / 4) * 4; }
    // The octet among the lane's.
    static __device__ constexpr int octet(int o) { return o % 4 * 2 + o / 4; }
};

template <>
struct StepRows<Blocks<BLOCK_IQ2_XXS>> : ChunkRows<Blocks<BLOCK_IQ2_XXS>> {
    struct Raw {
        EvenWords<4> quants;
        uint32_t d, shift;
    };
    struct Ready {
        uint32_t quants[4], d;
    };
    static __device__ __forceinline__ void load(const uint8_t* unit, uint32_t t, Raw& raw) {
        raw.quants.load(unit + 2 + 16 * t);
        raw.d = even_u16(unit), raw.shift = even_shift(unit + 2);
    }
    static __device__ __forceinline__ Ready ready(const Raw& raw) {
        Ready out;
        raw.quants.align(raw.shift, out.quants);
        out.d = raw.d;
        return out;
    }
    static __device__ __forceinline__ void scales(const Ready& raw, uint32_t, Scaling (&out)[2]) {
        float d = half_value(raw.d);
#pragma unroll
        for (int i = 0; i < 2; i++) out[i] = {d * (0.5f + float(raw.quants[2 * i + 1] >> 28)) * 0.25f, 0.0f};
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Ready& raw, uint32_t, uint32_t (&out)[4]) {
        uint32_t index = raw.quants[O % 2 * 2] >> O / 2 * 8 & 255;
        point_halves(GRID_IQ2_XXS, index, even_signs(raw.quants[O % 2 * 2 + 1] >> O / 2 * 7), out);
    }
};

template <>
struct StepRows<Blocks<BLOCK_IQ2_XS>> : QuarterRows<Blocks<BLOCK_IQ2_XS>> {
    struct Raw {
        EvenWords<4> quants;
        Format::Header header;
        uint32_t shift;
    };
    struct Ready {
        uint32_t quants[4];
        Format::Header header;
    };
    static __device__ __forceinline__ void load(const uint8_t* unit, uint32_t t, Raw& raw) {
        raw.quants.load(unit + 2 + 16 * t);
        raw.header = {even_u16(unit), even_u16(unit + 66 + 2 * t)}, raw.shift = even_shift(unit + 2);
    }
    static __device__ __forceinline__ Ready ready(const Raw& raw) {
        Ready out;
        raw.quants.align(raw.shift, out.quants);
        out.header = raw.header;
        return out;
    }
    static __device__ __forceinline__ void scales(const Ready& raw, uint32_t t, Scaling (&out)[4]) {
        Format::scales(raw.header, t, out);
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Ready& raw, uint32_t, uint32_t (&out)[4]) {
        constexpr int p = octet(O);
        uint32_t point = raw.quants[p / 2] >> p % 2 * 16 & 0xffff;
        point_halves(GRID_IQ2_XS, point & 511, even_signs(point >> 9), out);
    }
};

template <>
struct StepRows<Blocks<BLOCK_IQ2_S>> : QuarterRows<Blocks<BLOCK_IQ2_S>> {
    struct Raw {
        EvenWords<2> quants, signs;
        Format::Header header;
        uint32_t upper, shift;
    };
    struct Ready {
        uint32_t quants[2], signs[2], upper;
        Format::Header header;
    };
    static __device__ __forceinline__ void load(const uint8_t* unit, uint32_t t, Raw& raw) {
        raw.quants.load(unit + 2 + 8 * t);
        raw.signs.load(unit + 34 + 8 * t);
        raw.header = {even_u16(unit), even_u16(unit + 74 + 2 * t)};
        raw.upper = even_u16(unit + 66 + 2 * t), raw.shift = even_shift(unit + 2);
    }
    static __device__ __forceinline__ Ready ready(const Raw& raw) {
        Ready out;
        raw.quants.align(raw.shift, out.quants);
        raw.signs.align(raw.shift, out.signs);
        out.upper = raw.upper, out.header = raw.header;
        return out;
    }
    static __device__ __forceinline__ void scales(const Ready& raw, uint32_t t, Scaling (&out)[4]) {
        Format::scales(raw.header, t, out);
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Ready& raw, uint32_t, uint32_t (&out)[4]) {
        constexpr int p = octet(O);
        uint32_t index = (raw.quants[p / 4] >> p % 4 * 8 & 255) | (raw.upper >> 2 * p & 3) << 8;
        point_halves(GRID_IQ2_S, index, raw.signs[p / 4] >> p % 4 * 8, out);
    }
};

template <>
struct StepRows<Blocks<BLOCK_IQ3_XXS>> : ChunkRows<Blocks<BLOCK_IQ3_XXS>> {
    struct Raw {
        EvenWords<4> quants;
        EvenWords<2> signs;
        uint32_t d, shift;
    };
    struct Ready {
        uint32_t quants[4], signs[2], d;
    };
    static __device__ __forceinline__ void load(const uint8_t* unit, uint32_t t, Raw& raw) {
        raw.quants.load(unit + 2 + 16 * t);
        raw.signs.load(unit + 66 + 8 * t);
        raw.d = even_u16(unit), raw.shift = even_shift(unit + 2);
    }
    static __device__ __forceinline__ Ready ready(const Raw& raw) {
        Ready out;
        raw.quants.align(raw.shift, out.quants);
        raw.signs.align(raw.shift, out.signs);
        out.d = raw.d;
        return out;
    }
    static __device__ __forceinline__ void scales(const Ready& raw, uint32_t, Scaling (&out)[2]) {
        float d = half_value(raw.d);
#pragma unroll
        for (int i = 0; i < 2; i++) out[i] = {d * (0.5f + float(raw.signs[i] >> 28)) * 0.5f, 0.0f};
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Ready& raw, uint32_t, uint32_t (&out)[4]) {
        constexpr int g = O % 2, l = O / 2;
        uint32_t both = raw.quants[2 * g + l / 2] >> l % 2 * 16;
        points_halves(GRID_IQ3_XXS, both & 255, both >> 8 & 255, even_signs(raw.signs[g] >> 7 * l), out);
    }
};

template <>
struct StepRows<Blocks<BLOCK_IQ3_S>> : ChunkRows<Blocks<BLOCK_IQ3_S>> {
    struct Raw {
        EvenWords<4> quants;
        EvenWords<2> signs;
        Format::Header header;
        uint32_t ninth, shift;
    };
    struct Ready {
        uint32_t quants[4], signs[2], ninth;
        Format::Header header;
    };
    static __device__ __forceinline__ void load(const uint8_t* unit, uint32_t t, Raw& raw) {
        raw.quants.load(unit + 2 + 16 * t);
        raw.signs.load(unit + 74 + 8 * t);
        raw.header = {even_u16(unit), unit[106 + t]};
        raw.ninth = even_u16(unit + 66 + 2 * t), raw.shift = even_shift(unit + 2);
    }
    static __device__ __forceinline__ Ready ready(const Raw& raw) {
        Ready out;
        raw.quants.align(raw.shift, out.quants);
        raw.signs.align(raw.shift, out.signs);
        out.ninth = raw.ninth, out.header = raw.header;
        return out;
    }
    static __device__ __forceinline__ void scales(const Ready& raw, uint32_t t, Scaling (&out)[2]) {
        Format::scales(raw.header, t, out);
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Ready& raw, uint32_t, uint32_t (&out)[4]) {
        constexpr int g = O % 2, l = O / 2;
        uint32_t both = raw.quants[2 * g + l / 2] >> l % 2 * 16, ninth = raw.ninth >> (8 * g + 2 * l);
        uint32_t first = (both & 255) | (ninth & 1) << 8, second = (both >> 8 & 255) | (ninth >> 1 & 1) << 8;
        points_halves(GRID_IQ3_S, first, second, raw.signs[g] >> 8 * l, out);
    }
};

template <>
struct StepRows<Blocks<BLOCK_IQ1_S>> : ChunkRows<Blocks<BLOCK_IQ1_S>> {
    struct Raw {
        EvenWords<2> quants;
        Format::Header header;
        uint32_t shift;
    };
    struct Ready {
        uint32_t quants[2];
        Format::Header header;
    };
    static __device__ __forceinline__ void load(const uint8_t* unit, uint32_t t, Raw& raw) {
        raw.quants.load(unit + 2 + 8 * t);
        raw.header = {even_u16(unit), {even_u16(unit + 34 + 4 * t), even_u16(unit + 36 + 4 * t)}};
        raw.shift = even_shift(unit + 2);
    }
    static __device__ __forceinline__ Ready ready(const Raw& raw) {
        Ready out;
        raw.quants.align(raw.shift, out.quants);
        out.header = raw.header;
        return out;
    }
    static __device__ __forceinline__ void scales(const Ready& raw, uint32_t t, Scaling (&out)[2]) {
        Format::scales(raw.header, t, out);
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Ready& raw, uint32_t, uint32_t (&out)[4]) {
        constexpr int g = O % 2, l = O / 2;
        uint32_t rest = raw.header.small[g];
        shifted_halves((raw.quants[g] >> 8 * l & 255) | (rest >> 3 * l & 7) << 8, rest & 0x8000, out);
    }
};

template <>
struct StepRows<Blocks<BLOCK_IQ1_M>> : QuarterRows<Blocks<BLOCK_IQ1_M>> {
    struct Raw {
        uint32_t quants[2], rest;
        Format::Header header;
    };
    static __device__ __forceinline__ void load(const uint8_t* unit, uint32_t t, Raw& raw) {
        load_8<2>(unit + 8 * t, raw.quants);
        load_4<1>(unit + 32 + 4 * t, &raw.rest);
        load_8<2>(unit + 48, raw.header.words);
    }
    static __device__ __forceinline__ void scales(const Raw& raw, uint32_t t, Scaling (&out)[4]) {
        Format::scales(raw.header, t, out);
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Raw& raw, uint32_t, uint32_t (&out)[4]) {
        constexpr int p = octet(O);
        uint32_t nibble = raw.rest >> 4 * p;
        shifted_halves((raw.quants[p / 4] >> p % 4 * 8 & 255) | (nibble & 7) << 8, nibble & 8, out);
    }
};

// Columns as of pairs of bits. Of the first half all are digits of the first 32 bytes, a chunk for each; of the second
// half the first chunk is their last digit, the others are digits of the next 16 bytes, and the last 16 columns four
// digits of the last four.
template <>
struct StepRows<Blocks<BLOCK_TQ1_0>> : PairRows<Blocks<BLOCK_TQ1_0>> {
    struct Raw {
        EvenWords<4> first, second;
        EvenWords<1> third;
        uint32_t d, shift;
    };
    struct Ready {
        uint32_t first[4], second[4], third[1], d;
    };
    static __device__ __forceinline__ void load(const uint8_t* unit, uint32_t t, Raw& raw) {
        raw.first.load(unit + t % 2 * 16);
        raw.second.load(unit + 32);
        raw.third.load(unit + 48);
        raw.d = even_u16(unit + 52), raw.shift = even_shift(unit);
    }
    static __device__ __forceinline__ Ready ready(const Raw& raw) {
        Ready out;
        raw.first.align(raw.shift, out.first);
        raw.second.align(raw.shift, out.second);
        raw.third.align(raw.shift, out.third);
        out.d = raw.d;
        return out;
    }
    static __device__ __forceinline__ void scales(const Ready& raw, uint32_t, Scaling (&out)[4]) {
        out[0] = out[1] = out[2] = out[3] = {half_value(raw.d), 0.0f};
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Ready& raw, uint32_t t, uint32_t (&out)[4]) {
        constexpr int chunk = O % 4, octet = O / 4;
        constexpr uint32_t powers[5] = {1, 3, 9, 27, 81};
        uint32_t x = raw.first[2 * octet], y = raw.first[2 * octet + 1], one = powers[chunk];
        if (t >= 2) {
            one = 81;
            if constexpr (chunk > 0) x = raw.second[2 * octet], y = raw.second[2 * octet + 1];
            if constexpr (chunk == 1 || chunk == 2) one = (t == 3 ? 3 : 1) * powers[2 * chunk - 2];
        }
        uint32_t other = one;
        if (chunk == 3 && t == 3) x = y = raw.third[0], one = powers[2 * octet], other = powers[2 * octet + 1];
        octet_halves<1>(ternary_codes(x, one), ternary_codes(y, other), out);
    }
};

template <>
struct StepRows<Blocks<BLOCK_TQ2_0>> : PairRows<Blocks<BLOCK_TQ2_0>> {
    struct Raw {
        EvenWords<4> quants;
        uint32_t d, shift;
    };
    struct Ready {
        uint32_t quants[4], d;
    };
    static __device__ __forceinline__ void load(const uint8_t* unit, uint32_t t, Raw& raw) {
        raw.quants.load(unit + 16 * t);
        raw.d = even_u16(unit + 64), raw.shift = even_shift(unit);
    }
    static __device__ __forceinline__ Ready ready(const Raw& raw) {
        Ready out;
        raw.quants.align(raw.shift, out.quants);
        out.d = raw.d;
        return out;
    }
    static __device__ __forceinline__ void scales(const Ready& raw, uint32_t, Scaling (&out)[4]) {
        out[0] = out[1] = out[2] = out[3] = {half_value(raw.d), 0.0f};
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Ready& raw, uint32_t, uint32_t (&out)[4]) {
        unroll<0, 4>([&]<int I>() {
            uint32_t pair = byte_pair<I>(raw.quants[O / 4 * 2], raw.quants[O / 4 * 2 + 1]);
            out[I] = code_halves<1>(pair >> 2 * (O % 4) & 0x00030003u);
        });
    }
};

template <>
struct StepRows<Blocks<BLOCK_NVFP4>> : QuarterRows<Blocks<BLOCK_NVFP4>> {
    struct Raw {
        uint32_t words[9];
    };
    static __device__ __forceinline__ void load(const uint8_t* unit, uint32_t t, Raw& raw) {
        load_4<9>(unit + 36 * t, raw.words);
    }
    static __device__ __forceinline__ void scales(const Raw& raw, uint32_t t, Scaling (&out)[4]) {
        Format::scales({raw.words[0]}, t, out);
    }
    template <int O>
    static __device__ __forceinline__ void pairs(const Raw& raw, uint32_t, uint32_t (&out)[4]) {
        uint32_t low[2], high[2];
#pragma unroll
        for (int i = 0; i < 2; i++) look_up<Fp4Table>(raw.words[1 + O % 4 * 2 + i], low[i], high[i]);
        O < 4 ? octet_halves<16>(low[0], low[1], out) : octet_halves<16>(high[0], high[1], out);
    }
};

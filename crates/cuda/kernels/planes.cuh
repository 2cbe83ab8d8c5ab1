// 8-bit floats (E4M3) with a scale for each tile of 128 rows and columns, and how a step takes them and MXFP4 in two
// planes: weights in one, scales in the other, both read in place. The scalar references are
// crates/kernels/src/format (Encoding::Fp8, Encoding::Mxfp4).
#pragma once
#include "blocks.cuh"

// Rows, and columns, that share a scale.
constexpr uint32_t FP8_TILE = 128;

// The 8-bit floats in the lowest two bytes as halves: exact, and what is no number stays none.
__device__ inline uint32_t e4m3_halves(uint32_t two) {
    uint32_t out;
#if __CUDA_ARCH__ >= 890
    asm("{\n .reg .b16 in;\n cvt.u16.u32 in, %1;\n cvt.rn.f16x2.e4m3x2 %0, in;\n}" : "=r"(out) : "r"(two));
#else
    // Exponent and mantissa in the places of a half's are 2^-8 of the number.
    uint32_t apart = __byte_perm(two, 0, 0x1404);
    uint32_t small = (apart & 0x80008000u) | (apart & 0x7f007f00u) >> 1;
    __half2 v = __hmul2(*reinterpret_cast<__half2*>(&small), __float2half2_rn(256.0f));
    out = *reinterpret_cast<uint32_t*>(&v);
    if ((apart & 0x00007f00u) == 0x00007f00u) out |= 0x00007fffu;
    if ((apart & 0x7f000000u) == 0x7f000000u) out |= 0x7fff0000u;
#endif
    return out;
}

__device__ inline float2 e4m3_floats(uint32_t two) {
    uint32_t halves = e4m3_halves(two);
    return __half22float2(*reinterpret_cast<__half2*>(&halves));
}

// Scale `index` of a plane of scales of a tile, as stored, and its value.
__device__ inline uint32_t tile_scale_bits(const uint8_t* scales, size_t index, uint32_t kind) {
    if (kind == E8M0) return scales[index];
    if (kind == F32) return __float_as_uint(load_float(scales, index, F32));
    return load_u16(scales + 2 * index);
}

__device__ inline float tile_scale_value(uint32_t bits, uint32_t kind) {
    if (kind == E8M0) return __uint_as_float(bits == 0 ? 0x00400000u : bits == 255 ? 0x7fc00000u : bits << 23);
    if (kind == F32) return __uint_as_float(bits);
    return kind == BF16 ? __uint_as_float(bits << 16) : half_value(bits);
}

__device__ inline uint32_t tiles_of_row(const Matrix& m) { return (m.columns + FP8_TILE - 1) / FP8_TILE; }

// Bytes of a scale.
__device__ inline uint32_t tile_scale_bytes(uint32_t kind) { return kind == E8M0 ? 1 : kind == F32 ? 4 : 2; }

// How a lane of a step reads planes: 32 columns of a row in WORDS words, of a unit of 128 columns; AT_ONCE units that a
// warp asks for together. `row_scales`: bytes from the first scale to those of a row, for this lane; `scale_step`: from
// one unit to the next.
template <uint32_t FORMAT>
struct Planes;

template <>
struct Planes<BLOCK_FP8> {
    static constexpr int WORDS = 8, AT_ONCE = 2;
    // What halves of `pairs` are multiplied with, besides their scale.
    static constexpr float RAISED = 1.0f;
    static __device__ __forceinline__ size_t row_scales(const Matrix& m, uint32_t row) {
        return size_t(row / FP8_TILE) * tiles_of_row(m) * tile_scale_bytes(m.scale_kind);
    }
    static __device__ __forceinline__ uint32_t scale_step(const Matrix& m) { return tile_scale_bytes(m.scale_kind); }
    static __device__ __forceinline__ uint32_t scale_bits(const uint8_t* at, uint32_t kind) {
        return tile_scale_bits(at, 0, kind);
    }
    static __device__ __forceinline__ float scale_value(uint32_t bits, uint32_t kind) {
        return tile_scale_value(bits, kind);
    }
    // Pairs 4 Q .. of columns: i and i + 4 of eight.
    template <int Q>
    static __device__ __forceinline__ void pairs(const uint32_t (&words)[WORDS], uint32_t (&out)[4]) {
        uint32_t a = __byte_perm(words[2 * Q], words[2 * Q + 1], 0x5140);
        uint32_t b = __byte_perm(words[2 * Q], words[2 * Q + 1], 0x7362);
        out[0] = e4m3_halves(a & 0xffff), out[1] = e4m3_halves(a >> 16);
        out[2] = e4m3_halves(b & 0xffff), out[3] = e4m3_halves(b >> 16);
    }
};

template <>
struct Planes<BLOCK_MXFP4_PLANES> {
    static constexpr int WORDS = 4, AT_ONCE = 4;
    // Exponent and mantissa in the places of a half's are 2^-14 of the number, and a scale is halved.
    static constexpr float RAISED = 32768.0f;
    static __device__ __forceinline__ size_t row_scales(const Matrix& m, uint32_t row) {
        return size_t(row) * (m.columns / 32) + threadIdx.x % 4;
    }
    static __device__ __forceinline__ uint32_t scale_step(const Matrix&) { return 4; }
    static __device__ __forceinline__ uint32_t scale_bits(const uint8_t* at, uint32_t) { return *at; }
    static __device__ __forceinline__ float scale_value(uint32_t bits, uint32_t) { return half_of_power(bits); }
    // A word has eight columns, the first in its lowest bits: column I and I + 4 are where a pair of halves has them.
    template <int Q>
    static __device__ __forceinline__ void pairs(const uint32_t (&words)[WORDS], uint32_t (&out)[4]) {
        uint32_t w = words[Q];
        out[0] = (w << 12 & 0x80008000u) | (w << 9 & 0x0e000e00u);
        out[1] = (w << 8 & 0x80008000u) | (w << 5 & 0x0e000e00u);
        out[2] = (w << 4 & 0x80008000u) | (w << 1 & 0x0e000e00u);
        out[3] = (w & 0x80008000u) | (w >> 3 & 0x0e000e00u);
    }
};

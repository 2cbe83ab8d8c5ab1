// Rounded rows as DeepSeek-V4 was trained with them: 8-bit floats (E4M3) and keys of the indexer in 4 bits (E2M1), both
// under scales that are powers of two. The bytes are those of the processor (crates/kernels/src/rounded.rs).
#pragma once
#include "cache.cuh"

// Values that share a scale.
constexpr uint32_t E4M3_BLOCK = 64, E2M1_BLOCK = 32;
// The magnitudes that scales assume at least, as bits: 1e-4 and 6 * 2^-126.
constexpr uint32_t E4M3_FLOOR = 0x38d1b717u, E2M1_FLOOR = 0x01400000u;
// The scale that is no number: one value of its block is none.
constexpr uint32_t NO_SCALE = 255;

__device__ inline float e8m0(uint32_t byte) {
    return __uint_as_float(byte == 0 ? 0x00400000u : byte == NO_SCALE ? 0x7fc00000u : byte << 23);
}

// The scale's byte of a block whose largest magnitude has these bits; `reciprocal` of the largest number.
__device__ inline uint32_t scale_byte(uint32_t bits, float reciprocal) {
    uint32_t quotient = __float_as_uint(__fmul_rn(__uint_as_float(bits), reciprocal));
    uint32_t exponent = (quotient >> 23) + ((quotient & 0x007fffffu) != 0);
    return exponent > 246 ? NO_SCALE : exponent;
}

__device__ inline uint32_t largest_bits(uint32_t bits) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) bits = max(bits, __shfl_xor_sync(FULL, bits, offset));
    return bits;
}

__device__ inline uint32_t magnitude_bits(float v) { return __float_as_uint(v) & 0x7fffffffu; }

// The code of a number of magnitude 448 at the most.
__device__ inline uint32_t e4m3_code(float v) {
    constexpr float STEPS = 16384.0f;
    uint32_t bits = __float_as_uint(v), magnitude = bits & 0x7fffffffu, code;
    if (magnitude < 0x3c800000u) {
        // The last bit of the sum is 2^-9: the addition itself rounds to nearest even.
        code = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), STEPS)) - __float_as_uint(STEPS);
    } else {
        code = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1)) >> 20) - (120u << 3);
    }
    return (bits >> 24 & 0x80u) | code;
}

__device__ inline float e4m3_value(uint32_t code) {
    // An exponent of bias 7 read with bias 127: 2^120 too small.
    float magnitude = __uint_as_float((code & 0x7fu) << 20) * 1.329227995784916e36f;
    return code & 0x80u ? -magnitude : magnitude;
}

// The code of a number of magnitude 6 at the most: the middles between neighbours go to the even code.
__device__ inline uint32_t e2m1_code(float v) {
    float x = fabsf(v);
    uint32_t code = (x > 0.25f) + (x >= 0.75f) + (x > 1.25f) + (x >= 1.75f) + (x > 2.5f) + (x >= 3.5f) + (x > 5.0f);
    return (__float_as_uint(v) >> 28 & 8u) | code;
}

__device__ inline float e2m1_value(uint32_t code) {
    uint32_t m = code & 7u;
    float magnitude = m < 2 ? 0.5f * float(m) : (m & 1 ? 1.5f : 1.0f) * float(1u << (m >> 1)) * 0.5f;
    return code & 8u ? -magnitude : magnitude;
}

__device__ inline float within(float v, float limit) { return fminf(fmaxf(v, -limit), limit); }

// Value `index` of a row in any type of the cache; `rotated` last values are not rounded to 8 bits.
__device__ inline float load_row(const uint8_t* row, uint32_t kind, uint32_t dim, uint32_t rotated, uint32_t index) {
    if (kind != CACHE_FP8) return load_cached(row, kind, dim, index);
    uint32_t rounded = dim - rotated;
    if (index < rounded) return e4m3_value(row[index]) * e8m0(row[rounded + index / E4M3_BLOCK]);
    const uint8_t* half = row + rounded + (rounded + E4M3_BLOCK - 1) / E4M3_BLOCK + 2 * (index - rounded);
    return __uint_as_float((half[0] | uint32_t(half[1]) << 8) << 16);
}

// Stores a row of values that all threads of a block see, in whole warps.
__device__ inline void store_row(uint8_t* row, uint32_t kind, uint32_t dim, uint32_t rotated, const float* values) {
    uint32_t lane = threadIdx.x % 32, warps = blockDim.x / 32;
    if (kind != CACHE_FP8) {
        for (uint32_t i = threadIdx.x; i < dim; i += blockDim.x) store_cached(row, kind, dim, i, values[i]);
        return;
    }
    uint32_t rounded = dim - rotated, blocks = (rounded + E4M3_BLOCK - 1) / E4M3_BLOCK;
    for (uint32_t block = threadIdx.x / 32; block < blocks; block += warps) {
        float v[2];
        uint32_t bits = E4M3_FLOOR;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t i = block * E4M3_BLOCK + lane + 32 * j;
            v[j] = i < rounded ? values[i] : 0.0f;
            bits = max(bits, magnitude_bits(v[j]));
        }
        uint32_t byte = scale_byte(largest_bits(bits), 1.0f / 448.0f);
        float scale = e8m0(byte);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t i = block * E4M3_BLOCK + lane + 32 * j;
            uint32_t code = byte == NO_SCALE ? 0 : e4m3_code(within(__fdiv_rn(v[j], scale), 448.0f));
            if (i < rounded) row[i] = uint8_t(code);
        }
        if (lane == 0) row[rounded + block] = uint8_t(byte);
    }
    uint8_t* halves = row + rounded + blocks;
    for (uint32_t i = threadIdx.x; i < rotated; i += blockDim.x) {
        uint32_t bits = __bfloat16_as_ushort(__float2bfloat16_rn(values[rounded + i]));
        if ((bits & 0x7f80u) == 0x7f80u) bits = 0x7fc0u;
        halves[2 * i] = uint8_t(bits), halves[2 * i + 1] = uint8_t(bits >> 8);
    }
}

// The orthonormal Walsh-Hadamard transform of `dim` values (a power of two) in shared memory, by a block; `scale` is
// dim^-1/2. Synchronises before and after.
__device__ inline void hadamard(float* values, uint32_t dim, float scale) {
    for (uint32_t half = 1; half < dim; half *= 2) {
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < dim / 2; i += blockDim.x) {
            uint32_t low = i / half * 2 * half + i % half;
            float a = values[low], b = values[low + half];
            values[low] = a + b, values[low + half] = a - b;
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < dim; i += blockDim.x) values[i] *= scale;
    __syncthreads();
}

// Rounds values of shared memory to 4 bits: to `row` as bytes where it is given, else in place. In whole warps.
__device__ inline void round_e2m1(float* values, uint32_t dim, uint8_t* row) {
    uint32_t lane = threadIdx.x % 32;
    for (uint32_t block = threadIdx.x / 32; block * E2M1_BLOCK < dim; block += blockDim.x / 32) {
        uint32_t i = block * E2M1_BLOCK + lane;
        float v = i < dim ? values[i] : 0.0f;
        uint32_t byte = scale_byte(largest_bits(max(E2M1_FLOOR, magnitude_bits(v))), 1.0f / 6.0f);
        float scale = e8m0(byte);
        uint32_t code = byte == NO_SCALE ? 0 : e2m1_code(within(__fdiv_rn(v, scale), 6.0f));
        uint32_t next = __shfl_down_sync(FULL, code, 1);
        if (!row && i < dim) values[i] = e2m1_value(code) * scale;
        if (row && i < dim && lane % 2 == 0) row[i / 2] = uint8_t(code | (i + 1 < dim ? next << 4 : 0));
        if (row && lane == 0) row[(dim + 1) / 2 + block] = uint8_t(byte);
    }
}

// Value `index` of a key of the indexer.
__device__ inline float load_key(const uint8_t* row, uint32_t kind, uint32_t dim, uint32_t index) {
    if (kind != CACHE_FP4) return load_cached(row, kind, dim, index);
    uint32_t code = row[index / 2] >> (index % 2 * 4) & 15;
    return e2m1_value(code) * e8m0(row[(dim + 1) / 2 + index / E2M1_BLOCK]);
}

// Keys and values as a cache stores them: types, loads and stores of single values.
#pragma once
#include "common.cuh"

// Bytes of one head's row of `dim` values. Eight bits: dim int8, then dim / 32 scales in f16.
__device__ inline size_t cache_row_bytes(uint32_t kv_type, uint32_t dim) {
    switch (kv_type) {
        case CACHE_F32: return 4 * size_t(dim);
        case CACHE_Q8: return dim + dim / Q8_GROUP * 2;
        default: return 2 * size_t(dim);
    }
}

// Value `index` of a row.
__device__ inline float load_cached(const uint8_t* row, uint32_t kv_type, uint32_t dim, uint32_t index) {
    switch (kv_type) {
        case CACHE_F32: return reinterpret_cast<const float*>(row)[index];
        case CACHE_F16: return __half2float(reinterpret_cast<const __half*>(row)[index]);
        case CACHE_BF16: return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(row)[index]);
        default: {
            float scale = __half2float(reinterpret_cast<const __half*>(row + dim)[index / Q8_GROUP]);
            return scale * float(reinterpret_cast<const int8_t*>(row)[index]);
        }
    }
}

// Stores value `index` of a row. What the type cannot hold becomes not a number, because an infinite key could pass as
// a weight of zero. Eight bits: all lanes of a warp call it together, `index` being the first lane's
// multiple of 32 plus the lane, because the 32 values share a scale: largest magnitude / 127.
__device__ inline void store_cached(uint8_t* row, uint32_t kv_type, uint32_t dim, uint32_t index, float v) {
    switch (kv_type) {
        case CACHE_F32: reinterpret_cast<float*>(row)[index] = v; return;
        case CACHE_F16: {
            __half half = __float2half_rn(v);
            reinterpret_cast<__half*>(row)[index] = __hisinf(half) ? __ushort_as_half(0x7e00) : half;
            return;
        }
        case CACHE_BF16: {
            __nv_bfloat16 half = __float2bfloat16_rn(v);
            reinterpret_cast<__nv_bfloat16*>(row)[index] = __hisinf(half) ? __ushort_as_bfloat16(0x7fc0) : half;
            return;
        }
        default: {
            // Not a number is larger than any: it must reach the scale.
            float magnitude = fabsf(v), largest = magnitude;
#pragma unroll
            for (int offset = 16; offset > 0; offset >>= 1) {
                float other = __shfl_xor_sync(FULL, largest, offset);
                largest = largest >= other || isnan(largest) ? largest : other;
            }
            __half scale = __float2half_rn(largest / 127.0f);
            if (__hisinf(scale)) scale = __ushort_as_half(0x7e00);
            float divisor = __half2float(scale);
            float level = divisor > 0.0f ? rintf(v / divisor) : 0.0f;
            reinterpret_cast<int8_t*>(row)[index] = int8_t(fminf(fmaxf(level, -127.0f), 127.0f));
            if (index % Q8_GROUP == 0) reinterpret_cast<__half*>(row + dim)[index / Q8_GROUP] = scale;
        }
    }
}

// Products of four-bit weights with groups of 64 columns, the usual ones, with the vectors of several tokens: what
// several.cuh does for any width and group, with as few instructions as that takes. Bits are the same.
#pragma once
#include "several.cuh"

constexpr uint32_t FOUR_GROUP = 64;

__device__ inline bool is_four(const Matrix& m) { return m.bits == 4 && m.group == FOUR_GROUP; }

__device__ __forceinline__ uint4 load_global(const uint8_t* from) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

__device__ __forceinline__ uint32_t load_global_u16(const uint8_t* from) {
    uint16_t v;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(from));
    return v;
}

// A lane's share of a unit: 32 columns of rows g and g + 8, scales and biases of its slot as stored.
struct FourUnit {
    uint4 low, high;
    uint32_t scale[2], bias[2];
};

// Where a lane's share of a tile of 16 rows begins.
struct FourTile {
    const uint8_t *low, *high, *scale_low, *scale_high, *bias_low, *bias_high;
};

// Rows past the end are the last one, and their sums are not used.
__device__ inline FourTile four_tile(const Matrix& m, const Pieces& p, uint32_t tile) {
    uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    uint32_t low = min(tile * 16 + g, m.rows - 1), high = min(low + 8, m.rows - 1);
    uint32_t bytes = m.columns / 2, scales = m.columns / 32, slot = t % 2 * 2;
    const uint8_t *weight = p.weight + t * 16, *scale = p.scales + slot, *bias = p.biases + slot;
    return {weight + size_t(low) * bytes, weight + size_t(high) * bytes,
            scale + low * scales,         scale + high * scales,
            bias + low * scales,          bias + high * scales};
}

__device__ __forceinline__ void load_four_unit(FourUnit& to, const FourTile& from, uint32_t unit) {
    uint32_t weight = unit * 64, scale = unit * 4;
    to.low = load_global(from.low + weight), to.high = load_global(from.high + weight);
    to.scale[0] = load_global_u16(from.scale_low + scale), to.scale[1] = load_global_u16(from.scale_high + scale);
    to.bias[0] = load_global_u16(from.bias_low + scale), to.bias[1] = load_global_u16(from.bias_high + scale);
}

// Where a lane reads the vectors, in bytes of shared memory: for each two tokens, which share a product, its part of
// their columns, and the sums of its slot.
template <int SETS>
struct FourLane {
    uint32_t from[SETS], sums[SETS];
    uint32_t active;             // its part is not zeros
};

template <int SETS>
__device__ inline FourLane<SETS> four_lane(const float* staged, uint32_t stride, uint32_t tokens) {
    FourLane<SETS> lane;
    uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    uint32_t base = uint32_t(__cvta_generic_to_shared(staged));
    lane.active = g / 2 % 2 == t / 2;
#pragma unroll
    for (int set = 0; set < SETS; set++) {
        uint32_t mine = min(set * 2 + g / 4, tokens - 1), summed = min(set * 2 + t / 2, tokens - 1);
        lane.from[set] = base + 4 * (mine * stride + t * STAGED_CHUNK + g % 2 * 16);
        lane.sums[set] = base + 4 * (summed * stride + t % 2 * 2 * STAGED_CHUNK + 32);
    }
    return lane;
}

// As `load_active`, at a constant distance.
template <int OFFSET>
__device__ __forceinline__ void load_part(uint4& v, uint32_t from, uint32_t active) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4 + %6]; }"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "r"(from), "r"(active), "n"(OFFSET));
}

// What undoes the scaling of a slot's columns, and their sum (`stage_values` with PAIRS).
__device__ __forceinline__ float2 load_slot(uint32_t from) {
    float v[4];
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                 : "r"(from));
    return {v[1], v[2]};
}

// Adds unit `index` to the sums of rows g and g + 8 for every set. `b` is zero where a lane is not active, and stays
// so.
template <int SETS>
__device__ __forceinline__ void multiply_four_sets(const FourUnit& unit, uint32_t index, uint32_t kind,
                                                   const FourLane<SETS>& x, uint4 (&b)[SETS],
                                                   float (&result)[SETS][2]) {
    uint32_t at = index * (4 * STAGED_CHUNK * 4);
    const uint32_t low[4] = {unit.low.x, unit.low.y, unit.low.z, unit.low.w};
    const uint32_t high[4] = {unit.high.x, unit.high.y, unit.high.z, unit.high.w};
    float c[SETS][4] = {};
    unroll<0, 4>([&]<int Q>() {
#pragma unroll
        for (int set = 0; set < SETS; set++) load_part<16 * Q>(b[set], x.from[set] + at, x.active);
        uint32_t p[4], q[4];
        unpack_pairs<4, Q>(low, p);
        unpack_pairs<4, Q>(high, q);
#pragma unroll
        for (int set = 0; set < SETS; set++) multiply_halves(c[set], p[0], q[0], p[1], q[1], b[set].x, b[set].y);
#pragma unroll
        for (int set = 0; set < SETS; set++) multiply_halves(c[set], p[2], q[2], p[3], q[3], b[set].z, b[set].w);
    });
    float scale[2], bias[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        scale[r] = scale_value(unit.scale[r], kind), bias[r] = bias_value(unit.bias[r], kind);
    }
#pragma unroll
    for (int set = 0; set < SETS; set++) {
        float2 slot = load_slot(x.sums[set] + at);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            result[set][r] += scaled_sum(scale[r], bias[r], c[set][2 * r] + c[set][2 * r + 1], slot.x, slot.y);
        }
    }
}

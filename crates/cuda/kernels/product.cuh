// Products of a quantised row with an f32 vector, a chunk of columns per lane.
//
// An unsigned value q of B bits is placed in the mantissa of 1.0: the float 1 + q / 2^B, exact, for one shift and
// one logical operation. A chunk's sum is then 2^B * (sum (1 + q / 2^B) x - sum x), and
// scale * sum(q x) + bias * sum(x) costs nothing per value.
#pragma once
#include "common.cuh"

// The job of a launch that the block belongs to.
template <typename Arguments>
__device__ inline uint32_t block_job(const Arguments& a) {
    uint32_t index = 0;
    while (index + 1 < a.jobs && blockIdx.x >= a.job[index + 1].first_block) index++;
    return index;
}

// A staged vector has STAGED_CHUNK floats for every 32 columns: four more than 32, so that eight lanes reading 16 bytes
// each of their own chunk meet different banks of shared memory.

// Copies x [columns] to shared memory in chunks; zeros past the end. The block must synchronise afterwards. Past the
// first level of the cache: where kernels overlap, that may have old values.
__device__ inline void stage(const float* x, uint32_t columns, float* staged) {
    if (columns % 32 == 0) {
        // Four at a time: rows of activations are aligned to that.
        const float4* from = reinterpret_cast<const float4*>(x);
#pragma unroll 4
        for (uint32_t i = threadIdx.x; i < columns / 4; i += blockDim.x) {
            *reinterpret_cast<float4*>(staged + i / 8 * STAGED_CHUNK + i % 8 * 4) = __ldcg(from + i);
        }
        return;
    }
    for (uint32_t column = threadIdx.x; column < (columns + 31) / 32 * 32; column += blockDim.x) {
        staged[column / 32 * STAGED_CHUNK + column % 32] = column < columns ? __ldcg(x + column) : 0.0f;
    }
}

// 32 values of x for a lane and their sum.
struct Chunk {
    float x[32];
    float sum;

    // `from` is the staged vector (see `stage`).
    __device__ inline void load(const float* staged, uint32_t column) {
        const float4* p = reinterpret_cast<const float4*>(staged + column / 32 * STAGED_CHUNK);
        sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float4 v = p[i];
            x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
            sum += (v.x + v.y) + (v.z + v.w);
        }
    }
};

// sum over 32 columns of dequantised weight times x; `row` and `column` in values, column a multiple of 32.
template <int BITS>
__device__ inline float affine_chunk(const Matrix& m, uint32_t row, uint32_t column, const Chunk& chunk) {
    uint32_t words[BITS];
    ChunkPlace place = chunk_place<BITS>(m, row, column);
    load_words<BITS>(m.weight + place.byte, words);
    float scale = load_float(m.scales, place.group, m.scale_kind);
    float bias = bias_factor(m.scale_kind) * load_float(m.biases, place.group, m.scale_kind);
    float sum = 0.0f;
    unroll<0, 32>([&]<int I>() {
        constexpr int bit = I * BITS, shift = bit % 32;
        uint32_t mantissa;
        if constexpr (shift + BITS <= 32) {
            constexpr int move = 23 - BITS - shift;
            uint32_t w = words[bit / 32];
            mantissa = (move >= 0 ? w << (move & 31) : w >> (-move & 31)) & (((1u << BITS) - 1) << (23 - BITS));
        } else {
            mantissa = value<BITS, I>(words) << (23 - BITS);
        }
        sum = fmaf(__uint_as_float(mantissa | 0x3f800000u), chunk.x[I], sum);
    });
    return scale * (float(1 << BITS) * (sum - chunk.sum)) + bias * chunk.sum;
}

// The product of rows `row` and `row + stride` (where they exist) of one matrix with x, by one warp, affine.
template <int BITS, int ROWS>
__device__ inline void affine_rows(const Matrix& m, uint32_t row, const float* x, float (&out)[ROWS]) {
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < ROWS; r++) out[r] = 0.0f;
    for (uint32_t column = lane * 32; column < m.columns; column += 1024) {
        Chunk chunk;
        chunk.load(x, column);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (row + r < m.rows) out[r] += affine_chunk<BITS>(m, row + r, column, chunk);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) out[r] = warp_sum(out[r]);
}

// Columns of a row that a lane asks for before it multiplies the first: one at a time, a product of bf16 reads 620 GB/s
// of an H200's memory.
constexpr uint32_t FLOATS_AT_ONCE = 8;

// `load(row, column)` gives a value of the matrix.
template <int ROWS, typename LOAD>
__device__ inline void float_rows_of(const Matrix& m, uint32_t row, const float* x, float (&out)[ROWS], LOAD&& load) {
    uint32_t lane = threadIdx.x % 32, column = lane;
    float sums[ROWS] = {};
    for (; column + 32 * (FLOATS_AT_ONCE - 1) < m.columns; column += 32 * FLOATS_AT_ONCE) {
        float w[FLOATS_AT_ONCE][ROWS];
#pragma unroll
        for (uint32_t i = 0; i < FLOATS_AT_ONCE; i++) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) w[i][r] = load(min(row + r, m.rows - 1), column + 32 * i);
        }
#pragma unroll
        for (uint32_t i = 0; i < FLOATS_AT_ONCE; i++) {
            float v = x[(column / 32 + i) * STAGED_CHUNK + lane];
#pragma unroll
            for (int r = 0; r < ROWS; r++) sums[r] = fmaf(w[i][r], v, sums[r]);
        }
    }
    for (; column < m.columns; column += 32) {
        float v = x[column / 32 * STAGED_CHUNK + lane];
#pragma unroll
        for (int r = 0; r < ROWS; r++) sums[r] = fmaf(load(min(row + r, m.rows - 1), column), v, sums[r]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) out[r] = warp_sum(sums[r]);
}

// Sums of rows past the end are not read.
template <int ROWS>
__device__ inline void float_rows(const Matrix& m, uint32_t row, const float* x, float (&out)[ROWS]) {
    uint32_t unit = m.kind == F32 ? 4 : 2;
    auto at = [&](uint32_t r, uint32_t column) { return size_t(r) * m.columns + column; };
    if (reinterpret_cast<uintptr_t>(m.weight) % unit != 0) {
        auto load = [&](uint32_t r, uint32_t column) { return load_float(m.weight, at(r, column), m.kind); };
        return float_rows_of<ROWS>(m, row, x, out, load);
    }
    if (m.kind == F32) {
        const float* values = reinterpret_cast<const float*>(m.weight);
        return float_rows_of<ROWS>(m, row, x, out, [&](uint32_t r, uint32_t column) { return values[at(r, column)]; });
    }
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(m.weight);
    if (m.kind == BF16) {
        auto load = [&](uint32_t r, uint32_t column) { return __uint_as_float(uint32_t(halves[at(r, column)]) << 16); };
        return float_rows_of<ROWS>(m, row, x, out, load);
    }
    auto load = [&](uint32_t r, uint32_t column) { return __half2float(__ushort_as_half(halves[at(r, column)])); };
    float_rows_of<ROWS>(m, row, x, out, load);
}

// ROWS consecutive rows times the staged x, by one warp; every lane gets the sums.
template <int ROWS>
__device__ inline void product_rows(const Matrix& m, uint32_t row, const float* x, float (&out)[ROWS]) {
    if (m.kind != AFFINE) return float_rows<ROWS>(m, row, x, out);
    switch (m.bits) {
        case 2: return affine_rows<2, ROWS>(m, row, x, out);
        case 3: return affine_rows<3, ROWS>(m, row, x, out);
        case 4: return affine_rows<4, ROWS>(m, row, x, out);
        case 5: return affine_rows<5, ROWS>(m, row, x, out);
        case 6: return affine_rows<6, ROWS>(m, row, x, out);
        default: return affine_rows<8, ROWS>(m, row, x, out);
    }
}

// sum over the 32 columns from `column` of a row of any encoding; x past the row's end is zero.
__device__ inline float any_chunk(const Matrix& m, uint32_t row, uint32_t column, const Chunk& chunk) {
    if (m.kind != AFFINE) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            if (column + i < m.columns) {
                sum = fmaf(load_float(m.weight, size_t(row) * m.columns + column + i, m.kind), chunk.x[i], sum);
            }
        }
        return sum;
    }
    switch (m.bits) {
        case 2: return affine_chunk<2>(m, row, column, chunk);
        case 3: return affine_chunk<3>(m, row, column, chunk);
        case 4: return affine_chunk<4>(m, row, column, chunk);
        case 5: return affine_chunk<5>(m, row, column, chunk);
        case 6: return affine_chunk<6>(m, row, column, chunk);
        default: return affine_chunk<8>(m, row, column, chunk);
    }
}

template <int BITS>
__device__ inline float2 affine_pair(const Matrix& a, const Matrix& b, uint32_t row, const float* x) {
    float2 out = {0.0f, 0.0f};
    for (uint32_t column = threadIdx.x % 32 * 32; column < a.columns; column += 1024) {
        Chunk chunk;
        chunk.load(x, column);
        out.x += affine_chunk<BITS>(a, row, column, chunk);
        out.y += affine_chunk<BITS>(b, row, column, chunk);
    }
    return {warp_sum(out.x), warp_sum(out.y)};
}

// The same row of two matrices of one shape times the staged x, by one warp.
__device__ inline float2 product_pair(const Matrix& a, const Matrix& b, uint32_t row, const float* x) {
    if (a.kind == AFFINE && b.kind == AFFINE && a.bits == b.bits) {
        switch (a.bits) {
            case 2: return affine_pair<2>(a, b, row, x);
            case 3: return affine_pair<3>(a, b, row, x);
            case 4: return affine_pair<4>(a, b, row, x);
            case 5: return affine_pair<5>(a, b, row, x);
            case 6: return affine_pair<6>(a, b, row, x);
            default: return affine_pair<8>(a, b, row, x);
        }
    }
    float first[1], second[1];
    product_rows<1>(a, row, x, first);
    product_rows<1>(b, row, x, second);
    return {first[0], second[0]};
}

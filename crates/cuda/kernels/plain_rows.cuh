// A row of any encoding times a staged vector, by one warp.
#pragma once
#include "planes.cuh"

__device__ inline uint32_t word_at(const uint8_t* p) {
    uintptr_t address = reinterpret_cast<uintptr_t>(p);
    if ((address & 3) == 0) return *reinterpret_cast<const uint32_t*>(p);
    if ((address & 1) == 0) return load_u16(p) | load_u16(p + 2) << 16;
    return p[0] | uint32_t(p[1]) << 8 | uint32_t(p[2]) << 16 | uint32_t(p[3]) << 24;
}

// 64 columns of a row, or its last 32, whose codes are asked for a lane of four at a time.
template <typename F>
struct PlainStage {
    const uint8_t* block;
    uint32_t c, steps;               // columns 64 c .. of the block, and steps of sixteen columns
    Scaling scaling[64 / F::GROUP];

    __device__ inline PlainStage(const Matrix& m, uint32_t row, uint32_t stage)
        : block(m.weight + size_t(row) * row_bytes<F>(m.columns) + stage_byte<F>(stage)),
          c(stage % 4),
          steps(min((m.columns - stage * 64) / 16, 4u)) {
        typename F::Header header = {};
        const uint8_t* first = block;
        if constexpr (SCALE_PLANE<F>) first = m.scales + size_t(row) * (m.columns / F::GROUP) + 2 * stage;
        uint32_t next = SCALE_PLANE<F> ? 1 : F::BYTES;
        F::header(first, steps == 4 ? first + next : first, c, header);
        F::scales(header, c, scaling);
    }

    __device__ inline uint32_t word(uint32_t piece, uint32_t at) const {
        return word_at(block + piece + (steps == 4 || at < F::BYTES ? at : at - F::BYTES));
    }

    // Words of four codes: of columns 16 s + 4 t ..
    __device__ inline void codes(uint32_t t, uint32_t (&w)[4]) const {
        F::codes([&](uint32_t at) { return word(F::first(c), at); },
                 [&](uint32_t at) { return word(F::second(c), at); }, c, t, w);
    }
};

// The codes of a stage of two planes, asked for at once: a lane has one or two stages of a row, and nothing else hides
// what a load takes.
template <typename F>
struct PlaneCodes {
    static constexpr int WORDS = F::BYTES / 2;
    uint32_t words[WORDS];

    __device__ inline PlaneCodes(const PlainStage<F>& from) {
        const uint8_t* at = from.block + F::first(from.c);
        if (from.steps == 4 && reinterpret_cast<uintptr_t>(at) % 16 == 0) {
#pragma unroll
            for (int i = 0; i < WORDS / 4; i++) {
                uint4 v = reinterpret_cast<const uint4*>(at)[i];
                words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < WORDS; i++) words[i] = from.word(F::first(from.c), 4 * i);
    }

    // As `PlainStage::codes`.
    __device__ inline void codes(const PlainStage<F>& from, uint32_t t, uint32_t (&w)[4]) const {
        auto word = [&](uint32_t at) { return words[at / 4]; };
        F::codes(word, word, from.c, t, w);
    }
};

// The product of a stage with its part of the vector; `codes_of(t, w)` gives its codes.
template <typename F, typename CODES>
__device__ inline float stage_product(const PlainStage<F>& from, const float* x, CODES&& codes_of) {
    float sums[4] = {}, inputs[4] = {};
    auto add = [&](uint32_t t, const uint32_t (&w)[4]) __attribute__((always_inline)) {
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) {
            if (s >= from.steps) break;
            float4 v = *reinterpret_cast<const float4*>(x + s / 2 * STAGED_CHUNK + s % 2 * 16 + 4 * t);
            float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sums[s] = fmaf(float(int(w[s] >> 8 * i & 255) - int(F::OFFSET)), values[i], sums[s]);
                inputs[s] += values[i];
            }
        }
    };
    uint32_t w[4];
    if constexpr (SCALE_PLANE<F>) {
#pragma unroll
        for (uint32_t t = 0; t < 4; t++) codes_of(t, w), add(t, w);
    } else {
        for (uint32_t t = 0; t < 4; t++) codes_of(t, w), add(t, w);
    }
    float sum = 0.0f;
#pragma unroll
    for (uint32_t s = 0; s < 4; s++) {
        if (s >= from.steps) break;
        Scaling scaling = from.scaling[16 * s / F::GROUP];
        sum += scaling.scale * sums[s];
        if (F::MINIMUM) sum += scaling.minimum * inputs[s];
    }
    return sum;
}

template <typename F>
__device__ inline float plain_stage(const Matrix& m, uint32_t row, uint32_t stage, const float* staged) {
    PlainStage<F> from(m, row, stage);
    const float* x = staged + stage * 2 * STAGED_CHUNK;
    if constexpr (SCALE_PLANE<F>) {
        PlaneCodes<F> codes(from);
        return stage_product(from, x, [&](uint32_t t, uint32_t(&w)[4]) { codes.codes(from, t, w); });
    } else {
        return stage_product(from, x, [&](uint32_t t, uint32_t(&w)[4]) { from.codes(t, w); });
    }
}

// A lane's stages of a row in planes of at most 4,096 columns, asked for at once: the same sums as `lane_row` makes.
template <typename F>
struct PlaneLane {
    PlainStage<F> first, second;
    PlaneCodes<F> first_codes, second_codes;
    uint32_t stages;                 // of the row

    // A lane without a second stage asks for the last one of the row, and without a first one as well.
    __device__ inline PlaneLane(const Matrix& m, uint32_t row)
        : first(m, row, min(threadIdx.x % 32, m.columns / 64 - 1)),
          second(m, row, min(threadIdx.x % 32 + 32, m.columns / 64 - 1)),
          first_codes(first),
          second_codes(second),
          stages(m.columns / 64) {}

    __device__ inline float product(const float* staged) const {
        uint32_t lane = threadIdx.x % 32;
        const float* x = staged + lane * 2 * STAGED_CHUNK;
        auto of = [&](const PlainStage<F>& from, const PlaneCodes<F>& codes, const float* at) {
            return stage_product(from, at, [&](uint32_t t, uint32_t(&w)[4]) { codes.codes(from, t, w); });
        };
        float sum = 0.0f;
        if (lane < stages) sum += of(first, first_codes, x);
        if (lane + 32 < stages) sum += of(second, second_codes, x + 64 * STAGED_CHUNK);
        return sum;
    }
};

// Four 8-bit floats from `column` on; zeros past the end of the row.
__device__ inline uint32_t fp8_word(const Matrix& m, uint32_t row, uint32_t column) {
    const uint8_t* at = m.weight + size_t(row) * m.columns + column;
    if (column + 4 <= m.columns) return word_at(at);
    uint32_t word = 0;
    for (uint32_t i = 0; column + i < m.columns; i++) word |= uint32_t(at[i]) << 8 * i;
    return word;
}

__device__ inline float fp8_scale(const Matrix& m, uint32_t row, uint32_t column) {
    size_t index = size_t(row / FP8_TILE) * tiles_of_row(m) + column / FP8_TILE;
    return tile_scale_value(tile_scale_bits(m.scales, index, m.scale_kind), m.scale_kind);
}

// As `lane_row`, of 8-bit floats: any number of columns.
__device__ inline float fp8_lane_row(const Matrix& m, uint32_t row, const float* staged, uint32_t lane) {
    float sum = 0.0f;
    for (uint32_t column = 4 * lane; column < m.columns; column += FP8_TILE) {
        uint32_t word = fp8_word(m, row, column);
        float2 low = e4m3_floats(word & 0xffff), high = e4m3_floats(word >> 16);
        float4 x = *reinterpret_cast<const float4*>(staged + column / 32 * STAGED_CHUNK + column % 32);
        float part = fmaf(high.y, x.w, fmaf(high.x, x.z, fmaf(low.y, x.y, low.x * x.x)));
        sum = fmaf(fp8_scale(m, row, column), part, sum);
    }
    return sum;
}

// The part of a row's product that lane `lane` of 32 makes.
__device__ inline float lane_row(const Matrix& m, uint32_t row, const float* staged, uint32_t lane) {
    if (m.bits == BLOCK_FP8) return fp8_lane_row(m, row, staged, lane);
    float sum = 0.0f;
    with_any_format(m.bits, [&]<typename F>() {
        for (uint32_t stage = lane; stage * 64 < m.columns; stage += 32) sum += plain_stage<F>(m, row, stage, staged);
    });
    return sum;
}

// A row of any encoding times the staged x, by one warp.
__device__ inline float any_row(const Matrix& m, uint32_t row, const float* staged) {
    if (m.kind == BLOCK) return warp_sum(lane_row(m, row, staged, threadIdx.x % 32));
    float out[1];
    product_rows<1>(m, row, staged, out);
    return out[0];
}

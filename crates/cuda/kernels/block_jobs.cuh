// What products of blocks and of floats have in common in steps of one token and of several: a matrix's encoding as a
// job that loads units of two rows and multiplies them.
#pragma once
#include "blocks_step.cuh"
#include "step.cuh"

// A lane's share of 128 columns of two rows of floats.
template <uint32_t KIND>
struct FloatUnit {
    static constexpr int WORDS = KIND == F32 ? 8 : 4;
    uint32_t low[4][WORDS], high[4][WORDS];
};

template <uint32_t KIND>
__device__ __forceinline__ float float_value(const uint32_t* words, int i) {
    if (KIND == F32) return __uint_as_float(words[i]);
    uint32_t bits = words[i / 2] >> 16 * (i % 2) & 0xffff;
    return KIND == BF16 ? __uint_as_float(bits << 16) : half_value(bits);
}

// Rows of floats in the form of those of blocks: units, their bytes, what is loaded at once.
template <uint32_t KIND>
struct FloatJob {
    static constexpr uint32_t COLUMNS = UNIT, BYTES = UNIT * (KIND == F32 ? 4 : 2);
    static constexpr int AT_ONCE = 1;
    using Unit = FloatUnit<KIND>;

    const float* staged;
    __device__ inline FloatJob(const float* vector, uint32_t) : staged(vector) {}

    static __device__ __forceinline__ void load(Unit& unit, const uint8_t* low, const uint8_t* high) {
        uint32_t at = threadIdx.x % 4 * (4 * Unit::WORDS);
#pragma unroll
        for (int o = 0; o < 4; o++) {
            load_16<Unit::WORDS>(low + at + o * (BYTES / 4), unit.low[o]);
            load_16<Unit::WORDS>(high + at + o * (BYTES / 4), unit.high[o]);
        }
    }

    // Adds a unit, staged as number `index`, times a factor of each to the sums of TOKENS vectors `stride` words apart;
    // the first `tokens` are there, and of the others the sums mean nothing.
    template <int TOKENS>
    __device__ __forceinline__ void multiply(const Unit& unit, uint32_t index, uint32_t stride, uint32_t tokens,
                                             const float (&factor)[TOKENS], float (&result)[TOKENS][2]) const {
#pragma unroll
        for (int token = 0; token < TOKENS; token++) {
            uint32_t apart = token > 0 ? min(uint32_t(token), tokens - 1) * stride : 0;
            const float* vector = staged + apart + index * 4 * STAGED_CHUNK;
            float sum[2] = {};
#pragma unroll
            for (int o = 0; o < 4; o++) {
                const float* octet = vector + o * STAGED_CHUNK + threadIdx.x % 4 * 4;
                uint4 a = load_shared(octet), b = load_shared(octet + 16);
                uint32_t high[4] = {a.x, a.y, a.z, a.w}, low[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float2 h = __half22float2(*reinterpret_cast<__half2*>(&high[i]));
                    float2 l = __half22float2(*reinterpret_cast<__half2*>(&low[i]));
                    float x = h.x + l.x, y = h.y + l.y;
                    sum[0] = fmaf(float_value<KIND>(unit.low[o], i), x, sum[0]);
                    sum[0] = fmaf(float_value<KIND>(unit.low[o], i + 4), y, sum[0]);
                    sum[1] = fmaf(float_value<KIND>(unit.high[o], i), x, sum[1]);
                    sum[1] = fmaf(float_value<KIND>(unit.high[o], i + 4), y, sum[1]);
                }
            }
            float inverse = vector[33];
#pragma unroll
            for (int r = 0; r < 2; r++) result[token][r] += factor[token] * (sum[r] * inverse);
        }
    }
};

template <typename F>
struct BlockJob {
    static constexpr uint32_t COLUMNS = BLOCK_UNIT, BYTES = BLOCK_UNIT / F::VALUES * F::BYTES;
    // Units that are asked for together, as many as registers hold.
    static constexpr int AT_ONCE = sizeof(BlockUnit<F>) <= 96 ? 2 : 1;
    using Unit = BlockUnit<F>;

    BlockVector<F> x;
    __device__ inline BlockJob(const float* staged, uint32_t words) : x(staged, words) {}

    static __device__ __forceinline__ void load(Unit& unit, const uint8_t* low, const uint8_t* high) {
        load_block<F>(unit, low, high);
    }

    template <int TOKENS>
    __device__ __forceinline__ void multiply(const Unit& unit, uint32_t index, uint32_t stride, uint32_t tokens,
                                             const float (&factor)[TOKENS], float (&result)[TOKENS][2]) const {
        multiply_block<F, TOKENS>(unit, index, x, stride, tokens, factor, result);
    }
};

// Adds a unit times `factor` to the sums of one vector.
template <typename JOB>
__device__ __forceinline__ void multiply_unit(const JOB& job, const typename JOB::Unit& unit, uint32_t index,
                                              float factor, float (&result)[2]) {
    const float factors[1] = {factor};
    job.template multiply<1>(unit, index, 0, 1, factors, reinterpret_cast<float(&)[1][2]>(result));
}

// What a kernel serves: formats that most files have, every format but those of blocks_grids.cuh, or every format. A
// kernel of few is faster: less code has to be fetched (docs/experiments.tsv: a product takes 9.5 us instead of 11.1).
enum FormatSet { USUAL, BLOCKS, GRIDS };

// Calls f.template operator()<Blocks<..>>() for a format that is known when the kernel runs.
template <FormatSet SET, typename FUNCTION>
__device__ inline void with_step_format(uint32_t format, FUNCTION&& f) {
    if constexpr (SET != USUAL) return with_format<SET == GRIDS>(format, f);
    if (format == BLOCK_Q4_K) return f.template operator()<Blocks<BLOCK_Q4_K>>();
    if (format == BLOCK_Q6_K) return f.template operator()<Blocks<BLOCK_Q6_K>>();
    if (format == BLOCK_Q5_K) return f.template operator()<Blocks<BLOCK_Q5_K>>();
    if (format == BLOCK_Q8_0) return f.template operator()<Blocks<BLOCK_Q8_0>>();
    __trap();
}

// Calls f.template operator()<JOB>() for the encoding of a matrix.
template <FormatSet SET, typename FUNCTION>
__device__ inline void with_job(const Matrix& m, FUNCTION&& f) {
    if (m.kind == F32) return f.template operator()<FloatJob<F32>>();
    if (m.kind == F16) return f.template operator()<FloatJob<F16>>();
    if (m.kind == BF16) return f.template operator()<FloatJob<BF16>>();
    with_step_format<SET>(m.bits, [&]<typename F>() { f.template operator()<BlockJob<F>>(); });
}

// Where the routed experts' matrices of down are, and how much each counts.
struct RoutedBlocks {
    const uint8_t* down[TOP_K_LIMIT];
    float factor[TOP_K_LIMIT];
};

// A unit of the routed experts' vectors, one after another; `row` is in bytes.
template <typename JOB>
__device__ __forceinline__ void load_routed_block(typename JOB::Unit& unit, const OuterStage& s,
                                                  const RoutedBlocks& routed, size_t low, size_t high,
                                                  uint32_t index) {
    uint32_t rank = s.rank_of(index);
    const uint8_t* at = routed.down[rank] + size_t(index - rank * s.count) * JOB::BYTES;
    JOB::load(unit, at + low, at + high);
}

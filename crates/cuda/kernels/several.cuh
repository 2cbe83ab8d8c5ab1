// What the kernels of a step of several sequences share: vectors of all tokens staged beside each other, products of a
// unit with several of them.
//
// Each weight is read once for all tokens. A token's bits are those of a step alone: its sums are cut over threads,
// warps and blocks as `step.cuh` cuts them, and a column of a product on tensor cores knows nothing of the others. So
// the columns of the multiplicand that a single vector leaves empty hold other tokens: of groups of 32 columns a vector
// has eight of them, of 64 four, of 128 two.
#pragma once
#include "step.cuh"

constexpr uint32_t STEP_WARPS = STEP_THREADS / 32;
// Most tokens of one pass.
constexpr uint32_t SEVERAL = SEVERAL_TOKENS;

// Sums of 16 rows for every token by several warps: [token][tile, split][row].
struct SeveralSums {
    float sum[SEVERAL][STEP_WARPS][16];
};

// What eight values of a vector are made of, so that those of several tokens can be asked for together.
struct SourceParts {
    float4 x[2], gate[2];
};

__device__ inline SourceParts load_source(const Source& s, size_t token, uint32_t column, bool live) {
    SourceParts p = {};
    if (!live) return p;
    const float4* x = reinterpret_cast<const float4*>(s.x + token * s.columns + column);
    p.x[0] = __ldcg(x), p.x[1] = __ldcg(x + 1);
    if (norms_heads(s) || s.mode == GATED) {
        const float4* plain = reinterpret_cast<const float4*>(s.gate + token * s.columns + column);
        const float4* z = s.mode == GATED ? gate_of(s, token, column) : plain;
        p.gate[0] = __ldcg(z), p.gate[1] = __ldcg(z + 1);
    }
    return p;
}

struct EightWeights {
    float4 first, second;
};

// Of heads: of the norm, for eight values of a head.
__device__ inline EightWeights head_weights(const Source& s, uint32_t column) {
    EightWeights w = {};
    if (column >= s.columns || !norms_heads(s)) return w;
    const float4* norm = reinterpret_cast<const float4*>(s.norm + column % s.dim);
    w.first = norm[0], w.second = norm[1];
    return w;
}

// As `source_values` of parts that are there. Whole warps call this.
__device__ inline void join_source(const Source& s, const SourceParts& p, const EightWeights& w, float (&v)[8]) {
    float4 a = p.x[0], b = p.x[1], c = p.gate[0], d = p.gate[1], e = w.first, f = w.second;
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    float gate[8] = {c.x, c.y, c.z, c.w, d.x, d.y, d.z, d.w};
    if (norms_heads(s)) {
        float weight[8] = {e.x, e.y, e.z, e.w, f.x, f.y, f.z, f.w};
        norm_head(s, weight, gate, v);
    } else if (s.mode == GATED) {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] *= sigmoid(gate[i]);
    }
}

// Stages the vectors of `tokens` tokens from `first` on, `stride` floats apart, and zeros behind the last, as
// `stage_halves` does in a block of THREADS threads: which squares a thread and a warp add up is part of the bits.
// `warps`: [tokens][STEP_WARPS], sums of squares. NORMED: of NORM alone. TOGETHER: eights of a thread that are asked
// for at once. PAIRS: as of `stage_values`.
template <uint32_t THREADS, bool NORMED, bool PAIRS, int TOGETHER>
__device__ inline void stage_several(const Source& s, uint32_t first, uint32_t tokens, float* staged, uint32_t stride,
                                     float (*warps)[STEP_WARPS]) {
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t eights = s.columns / 8, each = (min(THREADS, eights) + 31) / 32, rounds = (eights + THREADS - 1) / THREADS;
    // Warps of as many tokens as have room beside each other, a token's rounds one after another.
    uint32_t at_once = STEP_WARPS / each, part = warp % each, token = warp / each, round = 0;
    float sum = 0.0f;
    if (token >= at_once) token = tokens;
    auto column_of = [&](uint32_t r) { return (part * 32 + lane + r * THREADS) * 8; };
    auto advance = [&](uint32_t& t, uint32_t& r) {
        if (++r == rounds) r = 0, t += at_once;
    };
    auto norm_of = [&](uint32_t column) {
        EightWeights w = {};
        if (column >= s.columns) return w;
        const float4* norm = reinterpret_cast<const float4*>(s.norm + column);
        w.first = norm[0], w.second = norm[1];
        return w;
    };
    // The norm's weights of the first round; those of heads are the same in every round.
    uint32_t start = column_of(0);
    EightWeights weights = NORMED ? norm_of(start) : head_weights(s, start);
    while (token < tokens) {
        SourceParts parts[TOGETHER];
        uint32_t ahead = token, ahead_round = round;
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            uint32_t column = column_of(ahead_round);
            size_t of = first + min(ahead, tokens - 1);
            bool live = ahead < tokens && column < s.columns;
            if constexpr (NORMED) {
                const float4* x = reinterpret_cast<const float4*>(s.x + of * s.columns + column);
                parts[j] = {};
                if (live) parts[j].x[0] = __ldcg(x), parts[j].x[1] = __ldcg(x + 1);
            } else {
                parts[j] = load_source(s, of, column, live);
            }
            advance(ahead, ahead_round);
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            if (token >= tokens) break;
            uint32_t column = column_of(round);
            bool live = column < s.columns;
            float v[8];
            if constexpr (NORMED) {
                float4 b = parts[j].x[0], c = parts[j].x[1];
                v[0] = b.x, v[1] = b.y, v[2] = b.z, v[3] = b.w, v[4] = c.x, v[5] = c.y, v[6] = c.z, v[7] = c.w;
                EightWeights own = rounds == 1 ? weights : norm_of(column);
                float w[8] = {own.first.x,  own.first.y,  own.first.z,  own.first.w,
                              own.second.x, own.second.y, own.second.z, own.second.w};
                if (live) {
#pragma unroll
                    for (int i = 0; i < 8; i++) sum += v[i] * v[i], v[i] *= w[i];
                }
            } else {
                join_source(s, parts[j], weights, v);
            }
            stage_values<PAIRS>(staged + token * stride, column, v, live);
            if (NORMED && round + 1 == rounds) {
                float all = warp_sum(sum);
                if (lane == 0) warps[token][part] = all;
                sum = 0.0f;
            }
            advance(token, round);
        }
    }
    stage_zeros(staged, tokens * stride);
}

// `staged_factor` of one of the vectors.
template <uint32_t THREADS, bool NORMED>
__device__ inline float several_factor(const Source& s, const float (&warps)[STEP_WARPS]) {
    if (!NORMED) return 1.0f;
    uint32_t each = (min(THREADS, s.columns / 8) + 31) / 32;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < STEP_WARPS; i++) sum += i < each ? warps[i] : 0.0f;
    return rsqrtf(sum / float(s.columns) + s.epsilon);
}

// Columns of a product that hold one token's parts, in pairs: the groups of a unit.
__device__ inline uint32_t slots_of(const Matrix& m) { return 4u >> max(int(group_shift(m)) - 5, 0); }

// Where a lane reads the vectors: for each set of tokens that share a product, its part of its columns. Counted in
// floats from the first vector.
template <int SETS>
struct SetLane {
    uint32_t from[SETS], sums[SETS];
    uint32_t chunks;             // of a slot
    bool active;                 // its part is not zeros
};

// Of `tokens` vectors. Tokens past the last are the last again, and their sums are not used.
template <int SETS>
__device__ inline SetLane<SETS> set_lane(const Matrix& m, uint32_t stride, uint32_t tokens) {
    SetLane<SETS> lane;
    uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, slots = slots_of(m), shift = 2 - (31 - __clz(slots));
    lane.active = g / 2 % slots == t >> shift;
    lane.chunks = 4 / slots;
#pragma unroll
    for (int set = 0; set < SETS; set++) {
        uint32_t first = set * (4 / slots);
        uint32_t mine = min(first + g / 2 / slots, tokens - 1), summed = min(first + t / slots, tokens - 1);
        lane.from[set] = mine * stride + t * STAGED_CHUNK + g % 2 * 16;
        lane.sums[set] = summed * stride + t % slots * lane.chunks * STAGED_CHUNK + 32;
    }
    return lane;
}

// A lane's place in a tile of 16 rows: as `tile_lane`, with the scales of its slot in every token's columns.
__device__ inline TileLane set_tile(const Matrix& m, uint32_t tile) {
    TileLane lane = tile_lane(m, tile);
    uint32_t t = threadIdx.x % 4, slots = slots_of(m);
    uint32_t before = t < slots ? t : 0, after = t % slots;
    lane.scale_low += 2 * (after - before), lane.scale_high += 2 * (after - before);
    return lane;
}

// Four words of shared memory for active lanes; the others keep what they have, zeros, and take no part in the access.
__device__ inline void load_active(uint4& v, const float* from, bool active) {
    uint32_t address = uint32_t(__cvta_generic_to_shared(from));
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "r"(address), "r"(uint32_t(active)));
}

// Adds a batch of `live` units, staged from unit `first`, to the sums of rows g and g + 8 for every set.
template <int BITS, int SETS, int COUNT>
__device__ inline void multiply_sets(const Unit<BITS> (&units)[COUNT], uint32_t first, uint32_t live, uint32_t kind,
                                     const float* staged, const SetLane<SETS>& x, float (&result)[SETS][2]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        if (i >= live) break;
        uint32_t summed = (first + i) * (4 * STAGED_CHUNK);
        float c[SETS][4] = {};
        uint4 b[SETS] = {};
        unroll<0, 4>([&]<int Q>() {
            uint32_t low[4], high[4];
            unpack_pairs<BITS, Q>(units[i].low, low);
            unpack_pairs<BITS, Q>(units[i].high, high);
#pragma unroll
            for (int set = 0; set < SETS; set++) load_active(b[set], staged + x.from[set] + summed + 4 * Q, x.active);
#pragma unroll
            for (int set = 0; set < SETS; set++) {
                multiply_halves(c[set], low[0], high[0], low[1], high[1], b[set].x, b[set].y);
            }
#pragma unroll
            for (int set = 0; set < SETS; set++) {
                multiply_halves(c[set], low[2], high[2], low[3], high[3], b[set].z, b[set].w);
            }
        });
#pragma unroll
        for (int set = 0; set < SETS; set++) {
            const float* sums = staged + x.sums[set] + summed;
            float sum = sums[0], inverse = sums[1];
            if (x.chunks > 1) sum += sums[STAGED_CHUNK];
            if (x.chunks > 2) sum += sums[2 * STAGED_CHUNK] + sums[3 * STAGED_CHUNK];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float scale = scale_value(units[i].scale[r], kind), bias = bias_value(units[i].bias[r], kind);
                result[set][r] += scaled_sum(scale, bias, c[set][2 * r] + c[set][2 * r + 1], inverse, sum);
            }
        }
    }
}

// The sums of a warp's rows g and g + 8 for the token of the lane's slots, in every lane of them.
__device__ inline void sum_slots(uint32_t slots, float (&result)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (slots > 1) result[r] += __shfl_xor_sync(FULL, result[r], 1);
        if (slots > 2) result[r] += __shfl_xor_sync(FULL, result[r], 2);
    }
}

// Adds up what the warps left of a round's rows, for all tokens.
__device__ inline void finish_round(const StepLinearArguments& a, const StepJob& job, const LinearShare& share,
                                    uint32_t block, uint32_t round, uint32_t first_token, uint32_t tokens,
                                    const SeveralSums& partial, const float* factors) {
    // A power of two: a thread has the same row of every token.
    uint32_t outputs = round_outputs(job, share), shift = 31 - __clz(outputs);
    for (uint32_t token = threadIdx.x >> shift; token < tokens; token += STEP_THREADS >> shift) {
        finish_output(a, job, share, block, round, threadIdx.x & (outputs - 1), partial.sum[token],
                      first_token + token, factors[token]);
    }
}

// Finds the experts of `tokens` tokens from `first` on: `place(token, rank, weight, down)` takes the matrix of each and
// how much it counts. False when one has failed, whose reader knows. `known`: all were in memory already, and the
// inputs are still to be awaited.
template <typename PLACE>
__device__ inline bool find_several(const StepExpertArguments& a, uint32_t first, uint32_t tokens, bool& known,
                                    PLACE&& place) {
    // Routing was complete when the kernel before released this one: what it found in memory can be asked for.
    auto look = [&](bool& failed) {
        bool found = true;
        for (uint32_t p = threadIdx.x; p < tokens * a.k; p += STEP_THREADS) {
            size_t at = size_t(first) * a.k + p;
            uint64_t record = __ldcg(a.addresses + at);
            found &= !is_awaited(record), failed |= record == FAILED;
            place(p / a.k, p % a.k, __ldcg(a.weights + at),
                  piece(a.experts.down, a.experts, __ldcg(a.chosen + at), record, DOWN));
        }
        return found;
    };
    bool failed = false;
    known = __syncthreads_and(look(failed));
    if (!known) {
        // All are, once the kernel before has ended.
        await_inputs();
        failed = false;
        look(failed);
    }
    // What a failed expert leaves is undefined.
    if (!__syncthreads_or(failed)) return true;
    if (threadIdx.x == 0) note_end(a.ended);
    return false;
}

// Adds what all warps have of the block's rows to the streams of `tokens` tokens from `first` on.
__device__ inline void add_mixtures(const StepExpertArguments& a, uint32_t first, uint32_t tokens,
                                    const SeveralSums& partial) {
    __syncthreads();
    if (threadIdx.x == STEP_THREADS - 1) note_end(a.ended);
    uint32_t splits = STEP_WARPS >> a.tiles_shift, shift = 4 + a.tiles_shift;
    uint32_t r = threadIdx.x & ((1u << shift) - 1), row = (blockIdx.x << shift) + r;
    if (row >= a.source.columns) return;
    for (uint32_t token = threadIdx.x >> shift; token < tokens; token += STEP_THREADS >> shift) {
        float mixture = 0.0f;
        for (uint32_t j = 0; j < splits; j++) mixture += partial.sum[token][r / 16 * splits + j][r % 16];
        float* out = a.out + size_t(first + token) * a.source.columns + row;
        *out = __ldcg(out) + mixture;
    }
}

// Both halves of the experts of a step of several sequences where weights have four bits and groups of 64 columns, with
// as few instructions as that takes: a warp multiplies one pair of units while it asks for the next.
#pragma once
#include "several_four.cuh"

// Tiles, 8 rows of gate and the same of up, whose sums a block adds up together.
constexpr uint32_t SEVERAL_ITEMS = 32;
constexpr uint32_t SEVERAL_PAIRS = SEVERAL * TOP_K_LIMIT;
static_assert(SEVERAL_PAIRS <= STEP_THREADS);

// The pairs of token and expert of a pass, by ascending expert, so that what two tokens share is read at one time.
struct SortedPairs {
    uint64_t address[SEVERAL_PAIRS];
    uint32_t expert[SEVERAL_PAIRS];
    uint16_t pair[SEVERAL_PAIRS];
    uint16_t token[SEVERAL_PAIRS];
};

// A warp's share of a token's second half: units of the routed experts, then of the shared one.
struct OuterShare {
    uint32_t first, end;             // routed
    uint32_t shared, shared_end;     // counted in the shared expert's vector
    uint32_t routed_steps, steps;    // batches
    uint32_t split;
};

// A lane's share of 256 columns of two rows: two units of the paired layout, which have their scales in common.
struct FourPair {
    uint4 low[2], high[2];
    uint32_t scale[2], bias[2];
};

__device__ __forceinline__ void load_four(FourPair& to, const FourTile& from, uint32_t pair) {
    uint32_t weight = pair * 128, scale = pair * 8;
    to.low[0] = load_global(from.low + weight), to.low[1] = load_global(from.low + weight + 16);
    to.high[0] = load_global(from.high + weight), to.high[1] = load_global(from.high + weight + 16);
    to.scale[0] = load_global_u16(from.scale_low + scale), to.scale[1] = load_global_u16(from.scale_high + scale);
    to.bias[0] = load_global_u16(from.bias_low + scale), to.bias[1] = load_global_u16(from.bias_high + scale);
}

// As `multiply_units` of a pair of units: `from` is the lane's part of their columns, `sums` those of its slot, in
// bytes of shared memory. `b` is zero where a lane is not active, and stays so.
__device__ __forceinline__ void multiply_four(const FourPair& v, uint32_t from, uint32_t active, uint32_t sums,
                                              uint32_t kind, float factor, uint4 (&b)[2], float (&result)[2]) {
    float c[2][4] = {};
    const uint32_t low[2][4] = {{v.low[0].x, v.low[0].y, v.low[0].z, v.low[0].w},
                                {v.low[1].x, v.low[1].y, v.low[1].z, v.low[1].w}};
    const uint32_t high[2][4] = {{v.high[0].x, v.high[0].y, v.high[0].z, v.high[0].w},
                                 {v.high[1].x, v.high[1].y, v.high[1].z, v.high[1].w}};
    constexpr int ODD = STAGED_CHUNK * 4;
    unroll<0, 4>([&]<int Q>() {
        load_part<16 * Q>(b[0], from, active), load_part<16 * Q + ODD>(b[1], from, active);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t p[4], q[4];
            unpack_pairs<4, Q>(low[i], p);
            unpack_pairs<4, Q>(high[i], q);
            multiply_halves(c[i], p[0], q[0], p[1], q[1], b[i].x, b[i].y);
            multiply_halves(c[i], p[2], q[2], p[3], q[3], b[i].z, b[i].w);
        }
    });
    float scale[2], bias[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        scale[r] = scale_value(v.scale[r], kind), bias[r] = bias_value(v.bias[r], kind);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum, inverse;
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(sum), "=f"(inverse) : "r"(sums + i * ODD));
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float share = scaled_sum(scale[r], bias[r], c[i][2 * r] + c[i][2 * r + 1], inverse, sum);
            result[r] = __fmaf_rn(factor, share, result[r]);
        }
    }
}

// What a warp multiplies: its wave, its place among the wave's sums, its token's vector.
struct InnerStep {
    uint32_t wave, slot, at;
    bool some, last;             // one at all; the last of its share
};

// `several_inner_rows` where gate and up have four bits, groups of 64, and for each share 256 columns or more.
template <bool NARROW>
__device__ inline void inner_four_rows(const StepExpertArguments& a, const float* staged, const float* factors,
                                       const SortedPairs& sorted, float (*sums)[SEVERAL_ITEMS * 8][16],
                                       uint32_t first_token, uint32_t tokens) {
    constexpr uint32_t SHARES = NARROW ? 3 : 2, SPLITS = 1 << SHARES;
    const Matrix& shape = a.experts.gate;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, kind = shape.scale_kind;
    uint32_t stride = staged_words(a.source.columns), tiles = (shape.rows + 7) / 8, all = tokens * a.k * tiles;
    uint32_t begin = uint64_t(all) * blockIdx.x / gridDim.x, end = uint64_t(all) * (blockIdx.x + 1) / gridDim.x;
    uint32_t waves = (end - begin + SEVERAL_ITEMS - 1) / SEVERAL_ITEMS, units = a.source.columns / UNIT;
    uint32_t row_bytes = a.source.columns / 2, row_scales = a.source.columns / 32;
    auto wave_begin = [&](uint32_t wave) { return begin + (end - begin) * wave / waves; };
    // What is asked for next: its wave, its share in it, whose tile that is, the pair of units and the last of them.
    uint32_t wave = ~0u, index = 0, limit = 0, place = 0, tile = 0, pair = 0, pairs = 0, vector = 0;
    FourTile from;
    bool alive = false;
    auto begin_share = [&]() __attribute__((always_inline)) {
        uint32_t split = index % SPLITS, expert = sorted.expert[place];
        uint64_t record = sorted.address[place];
        if (is_awaited(record)) {
            if (lane == 0) {
                record = await_record(record, a.answers + a.first_key + expert, a.status, a.copies + expert);
                // Left for the second half (docs/device-protocol.md, "An answer passed on").
                if (tile == 0 && split == 0) a.addresses[size_t(first_token) * a.k + sorted.pair[place]] = record;
            }
            record = __shfl_sync(FULL, record, 0);
        }
        alive = record != FAILED;
        uint32_t row = min(tile * 8 + g, shape.rows - 1);
        uint32_t weight = row * row_bytes + t * 32, scale = row * row_scales + t * 2;
        Matrix gate = piece(a.experts.gate, a.experts, expert, record, GATE);
        Matrix up = piece(a.experts.up, a.experts, expert, record, UP);
        from = {gate.weight + weight, up.weight + weight, gate.scales + scale,
                up.scales + scale,    gate.biases + scale, up.biases + scale};
        pair = first_unit(units, split, SHARES, true) / 2, pairs = first_unit(units, split + 1, SHARES, true) / 2;
        vector = sorted.token[place] * stride;
    };
    // The next share; one wave at a time; some waves have none for this warp.
    auto next_share = [&]() __attribute__((always_inline)) {
        if (++index % SPLITS == 0 && ++tile == tiles) tile = 0, place++;
        if (index >= limit) {
            do {
                if (++wave == waves) return;
                uint32_t first = wave_begin(wave), count = (wave_begin(wave + 1) - first) * SPLITS;
                index = count * warp / STEP_WARPS, limit = count * (warp + 1) / STEP_WARPS;
                uint32_t item = first + index / SPLITS;
                place = item / tiles, tile = item - place * tiles;
            } while (index >= limit);
        }
        begin_share();
    };
    // Asks for a pair of units, which come while those before are multiplied.
    auto ask = [&](FourPair& to) __attribute__((always_inline)) {
        InnerStep step = {wave, index, vector + pair * 8 * STAGED_CHUNK, wave != waves, false};
        if (!step.some) return step;
        if (alive) load_four(to, from, pair);
        step.last = ++pair == pairs;
        if (step.last) next_share();
        return step;
    };
    uint32_t active = g / 2 == t, base = uint32_t(__cvta_generic_to_shared(staged));
    uint32_t mine = base + (t * 2 * STAGED_CHUNK + g % 2 * 16) * 4, slot = base + (t * 2 * STAGED_CHUNK + 32) * 4;
    uint4 b[2] = {};
    float result[2] = {0.0f, 0.0f};
    uint32_t now = 0;
    // Multiplies a step, and adds up the waves before the next one.
    auto work = [&](const FourPair& v, const InnerStep& step, uint32_t next) __attribute__((always_inline)) {
        if (step.some) multiply_four(v, mine + step.at * 4, active, slot + step.at * 4, kind, 1.0f, b, result);
        if (step.last) {
            sum_lanes(result);
            float(&to)[16] = sums[now % 2][step.slot];
            if (t == 0) to[g] = result[0], to[g + 8] = result[1];
            result[0] = result[1] = 0.0f;
        }
        for (; now < next; now++) {
            __syncthreads();
            uint32_t first = wave_begin(now), items = wave_begin(now + 1) - first;
            if (threadIdx.x >= items * 8) continue;
            uint32_t item = first + threadIdx.x / 8, r = threadIdx.x % 8, of = item / tiles;
            uint32_t row = (item - of * tiles) * 8 + r;
            if (row >= shape.rows) continue;
            float sum = 0.0f, other = 0.0f, factor = factors[sorted.token[of]];
            const float(*parts)[16] = sums[now % 2] + threadIdx.x / 8 * SPLITS;
#pragma unroll
            for (uint32_t i = 0; i < SPLITS; i++) sum += parts[i][r], other += parts[i][8 + r];
            size_t to = size_t(first_token) * a.k + sorted.pair[of];
            a.inner[to * shape.rows + row] = silu(sum * factor) * (other * factor);
        }
    };
    FourPair current, coming;
    InnerStep step = {};
    next_share();
    for (;;) {
        InnerStep next = ask(coming);
        work(current, step, next.wave);
        if (!next.some) return;
        current = coming, step = next;
    }
}

// A batch of a token's second half.
struct OuterStep {
    uint32_t token, split, rank, live;
    bool some, routed, last;     // one at all; of the routed experts; the last of its token
};

// As `several_outer_rows` where the routed experts' weights and the shared one's have four bits and groups of 64, and
// an expert's columns are whole pairs of units.
__device__ inline void outer_four_rows(const StepExpertArguments& a, const Routed* routed, bool known,
                                       SeveralSums& partial, float* areas) {
    constexpr uint32_t AREA = 2 * 4 * STAGED_CHUNK;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t shares = STEP_WARPS_SHIFT - a.tiles_shift, splits = 1 << shares, member = warp >> shares;
    const Matrix& shape = a.experts.down;
    uint32_t width = shape.columns, shared_width = a.shared_gate ? a.down.columns : 0;
    OuterStage s = outer_stage(a, 0, (blockIdx.x << a.tiles_shift) + member, UNIT);
    uint32_t low = min(s.tile * 16 + g, shape.rows - 1), high = min(low + 8, shape.rows - 1);
    // In bytes; the scales' as well.
    uint32_t routed_low = low * (width / 2) + t * 32, routed_high = high * (width / 2) + t * 32;
    uint32_t scales_low = low * (width / 32) + t * 2, scales_high = high * (width / 32) + t * 2;
    FourTile shared_tile = four_tile(a.down, pieces_of(a.down), s.tile);
    // Where the next batch is: units of the routed experts' vectors up to `end`, then of the shared one's.
    uint32_t token = 0, split = 0, unit = 0, end = 0, shared = 0, shared_end = 0;
    auto begin_token = [&]() {
        // Each time the next share, because some have more units than others.
        split = (warp + token) & (splits - 1), unit = first_unit(s.every, split, shares, true);
        uint32_t last = first_unit(s.every, split + 1, shares, true);
        shared = max(unit, s.total) - s.total, shared_end = max(last, s.total) - s.total, end = min(last, s.total);
    };
    // The next batch; a token without any for this warp leaves the zeros that are there.
    auto next_step = [&]() __attribute__((always_inline)) {
        while (token < a.tokens && unit >= end && shared >= shared_end) {
            if (++token < a.tokens) begin_token();
        }
        OuterStep step = {token, split, 0, 2, token < a.tokens, unit < end, false};
        if (step.routed) step.rank = s.rank_of(unit);
        return step;
    };
    auto load_weights = [&](FourPair& to, uint32_t (&scales)[4], const OuterStep& step) __attribute__((always_inline)) {
        if (step.routed) {
            const Pieces& p = routed[step.token].down[step.rank];
            uint32_t pair = (unit - step.rank * s.count) / 2;
            load_four(to, {p.weight + routed_low, p.weight + routed_high, p.scales + scales_low,
                           p.scales + scales_high, p.biases + scales_low, p.biases + scales_high}, pair);
            return;
        }
        FourUnit units[2];
        load_four_unit(units[0], shared_tile, shared);
        load_four_unit(units[1], shared_tile, min(shared + 1, shared_end - 1));
#pragma unroll
        for (int i = 0; i < 2; i++) to.low[i] = units[i].low, to.high[i] = units[i].high;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            to.scale[r] = units[0].scale[r], to.bias[r] = units[0].bias[r];
            scales[r] = units[1].scale[r], scales[2 + r] = units[1].bias[r];
        }
    };
    // Eight values of the batch's vector.
    auto load_values = [&](float4 (&to)[2], const OuterStep& step) __attribute__((always_inline)) {
        const float* from = step.routed ? a.inner + size_t(step.token) * a.k * width + unit * UNIT
                                        : a.shared_inner + size_t(step.token) * shared_width + shared * UNIT;
        to[0] = to[1] = {0, 0, 0, 0};
        if (step.routed || shared * UNIT + lane * 8 < shared_end * UNIT) {
            to[0] = __ldcg(reinterpret_cast<const float4*>(from) + lane * 2);
            to[1] = __ldcg(reinterpret_cast<const float4*>(from) + lane * 2 + 1);
        }
    };
    auto advance = [&](OuterStep& step) __attribute__((always_inline)) {
        if (step.routed) {
            unit += 2;
        } else {
            step.live = min(2u, shared_end - shared), shared += 2;
        }
        step.last = unit >= end && shared >= shared_end;
    };
    // Sums of a token for which this warp has nothing.
    for (uint32_t i = threadIdx.x; i < SEVERAL * STEP_WARPS * 16; i += STEP_THREADS) (&partial.sum[0][0][0])[i] = 0.0f;
    float* area = areas + warp * AREA;
    uint32_t base = uint32_t(__cvta_generic_to_shared(area)), active = g / 2 == t;
    uint32_t mine = base + (t * 2 * STAGED_CHUNK + g % 2 * 16) * 4, slot = base + (t * 2 * STAGED_CHUNK + 32) * 4;
    uint32_t kind = shape.scale_kind;
    uint4 b[2] = {};
    float result[2] = {0.0f, 0.0f};
    // The shared expert's units, of the single layout: two slots, four columns of the product.
    auto multiply_shared = [&](const FourPair& v, const uint32_t (&scales)[4], const OuterStep& step) {
        float factor = t < 2 ? sigmoid(__ldcg(a.shared_gate + step.token)) : 0.0f;
        uint32_t of = t < 2 ? t : 0;
        for (uint32_t i = 0; i < step.live; i++) {
            uint4 low_words = i ? v.low[1] : v.low[0], high_words = i ? v.high[1] : v.high[0];
            uint32_t scale[2] = {i ? scales[0] : v.scale[0], i ? scales[1] : v.scale[1]};
            uint32_t bias[2] = {i ? scales[2] : v.bias[0], i ? scales[3] : v.bias[1]};
            const uint32_t lows[4] = {low_words.x, low_words.y, low_words.z, low_words.w};
            const uint32_t highs[4] = {high_words.x, high_words.y, high_words.z, high_words.w};
            uint32_t at = base + i * (4 * STAGED_CHUNK * 4), from = at + (t * STAGED_CHUNK + g % 2 * 16) * 4;
            float c[4] = {};
            uint4 part = {0, 0, 0, 0};
            unroll<0, 4>([&]<int Q>() {
                load_part<16 * Q>(part, from, g / 2 == t / 2);
                uint32_t p[4], q[4];
                unpack_pairs<4, Q>(lows, p);
                unpack_pairs<4, Q>(highs, q);
                multiply_halves(c, p[0], q[0], p[1], q[1], part.x, part.y);
                multiply_halves(c, p[2], q[2], p[3], q[3], part.z, part.w);
            });
            const float* sums = area + i * 4 * STAGED_CHUNK + of * 2 * STAGED_CHUNK + 32;
            float sum = sums[0] + sums[STAGED_CHUNK], inverse = sums[1];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float s = scale_value(scale[r], a.down.scale_kind), o = bias_value(bias[r], a.down.scale_kind);
                float share = scaled_sum(s, o, c[2 * r] + c[2 * r + 1], inverse, sum);
                result[r] = __fmaf_rn(factor, share, result[r]);
            }
        }
    };
    auto work = [&](const FourPair& v, const uint32_t (&scales)[4], const float4 (&values)[2],
                    const OuterStep& step) __attribute__((always_inline)) {
        float eight[8] = {values[0].x, values[0].y, values[0].z, values[0].w,
                          values[1].x, values[1].y, values[1].z, values[1].w};
        stage_values(area, lane * 8, eight, true);
        __syncwarp();
        if (step.routed) {
            multiply_four(v, mine, active, slot, kind, routed[step.token].factor[step.rank], b, result);
        } else {
            multiply_shared(v, scales, step);
        }
        __syncwarp();
        if (!step.last) return;
        sum_lanes(result);
        float(&to)[16] = partial.sum[step.token][member * splits + step.split];
        if (t == 0) to[g] = result[0], to[g + 8] = result[1];
        result[0] = result[1] = 0.0f;
    };
    FourPair current, coming;
    uint32_t scales[4] = {}, coming_scales[4] = {};
    float4 values[2], coming_values[2];
    begin_token();
    OuterStep step = next_step();
    if (step.some && known) load_weights(current, scales, step);
    await_inputs();
    release_next();
    if (step.some) {
        if (!known) load_weights(current, scales, step);
        load_values(values, step);
        advance(step);
    }
    // The zeros are written.
    __syncthreads();
    while (step.some) {
        OuterStep next = next_step();
        if (next.some) load_weights(coming, coming_scales, next), load_values(coming_values, next), advance(next);
        work(current, scales, values, step);
        current = coming, step = next;
#pragma unroll
        for (int i = 0; i < 4; i++) scales[i] = coming_scales[i];
        values[0] = coming_values[0], values[1] = coming_values[1];
    }
}

// Both halves of the experts of a step of several sequences. What several.cuh says of bits holds; what the halves do is
// described in step.cu.
#include "several.cuh"

// Tiles, 8 rows of gate and the same of up, whose sums a block adds up together.
constexpr uint32_t SEVERAL_ITEMS = 32;
constexpr uint32_t SEVERAL_PAIRS = SEVERAL * TOP_K_LIMIT;

// The pairs of token and expert of a pass, by ascending expert, so that what two tokens share is read at one time.
struct SortedPairs {
    uint64_t address[SEVERAL_PAIRS];
    uint32_t expert[SEVERAL_PAIRS];
    uint16_t pair[SEVERAL_PAIRS];
    uint16_t token[SEVERAL_PAIRS];
};

__device__ inline void sort_pairs(const StepExpertArguments& a, uint32_t first, uint32_t pairs, SortedPairs& sorted,
                                  uint32_t* chosen) {
    for (uint32_t p = threadIdx.x; p < pairs; p += STEP_THREADS) chosen[p] = __ldcg(a.chosen + first + p);
    __syncthreads();
    for (uint32_t p = threadIdx.x; p < pairs; p += STEP_THREADS) {
        uint32_t mine = chosen[p], place = 0;
        for (uint32_t q = 0; q < pairs; q++) place += chosen[q] < mine || (chosen[q] == mine && q < p);
        sorted.pair[place] = p, sorted.token[place] = p / a.k, sorted.expert[place] = mine;
        // Another block may replace it by the answer at any time: each sees one or the other.
        sorted.address[place] = __ldcg(a.addresses + first + p);
    }
    __syncthreads();
}

// What a warp does of a tile: one of the shares of its columns.
template <int BITS, bool NARROW>
struct InnerWork {
    static constexpr uint32_t SHARES = NARROW ? 3 : 2, SPLITS = 1 << SHARES;
    static constexpr bool PAIRED = PAIRED_EXPERT<BITS>;
    Pieces low, high;
    TileLane lane;
    uint32_t place, first, last;  // of the sorted pairs; units
    bool alive;
};

// Grid: as many blocks as run at the same time, passes; 512 threads; shared: the staged streams. Tiles of all pairs are
// cut evenly over the blocks, and what a block has over its warps.
template <int BITS, bool NARROW>
__device__ inline void several_inner_rows(const StepExpertArguments& a, float* staged, const float* factors,
                                          const SortedPairs& sorted, float (*sums)[SEVERAL_ITEMS * 8][16],
                                          uint32_t first_token, uint32_t tokens) {
    using Work = InnerWork<BITS, NARROW>;
    constexpr int COUNT = EXPERT_BATCH<BITS>;
    constexpr uint32_t SPLITS = Work::SPLITS;
    const Matrix& shape = a.experts.gate;
    uint32_t warp = threadIdx.x / 32, stride = staged_words(a.source.columns), pairs = tokens * a.k;
    uint32_t tiles = (shape.rows + 7) / 8, units = a.source.columns / UNIT;
    bool wide = shape.bits <= 4 && is_wide<true>(a.source.columns);
    uint32_t begin = uint64_t(pairs) * tiles * blockIdx.x / gridDim.x;
    uint32_t end = uint64_t(pairs) * tiles * (blockIdx.x + 1) / gridDim.x;
    uint32_t waves = (end - begin + SEVERAL_ITEMS - 1) / SEVERAL_ITEMS;
    // The tiles of a wave, and of them the shares of a warp.
    auto wave_begin = [&](uint32_t wave) { return begin + (end - begin) * wave / waves; };
    auto shares_begin = [&](uint32_t wave, uint32_t which) {
        return (wave_begin(wave + 1) - wave_begin(wave)) * SPLITS * which / STEP_WARPS;
    };
    auto make_work = [&](uint32_t wave, uint32_t index) {
        Work work;
        uint32_t item = wave_begin(wave) + index / SPLITS, split = index % SPLITS;
        work.place = item / tiles;
        uint32_t tile = item - work.place * tiles, expert = sorted.expert[work.place];
        uint64_t record = sorted.address[work.place];
        if (is_awaited(record)) {
            if (threadIdx.x % 32 == 0) {
                record = await_record(record, a.answers + a.first_key + expert, a.status, a.copies + expert);
                // Left for the second half (docs/device-protocol.md, "An answer passed on").
                if (tile == 0 && split == 0) {
                    a.addresses[size_t(first_token) * a.k + sorted.pair[work.place]] = record;
                }
            }
            record = __shfl_sync(FULL, record, 0);
        }
        work.alive = record != FAILED;
        work.low = pieces_of(piece(a.experts.gate, a.experts, expert, record, GATE));
        work.high = pieces_of(piece(a.experts.up, a.experts, expert, record, UP));
        uint32_t row = min(tile * 8 + threadIdx.x % 32 / 4, shape.rows - 1);
        work.lane = rows_lane<Work::PAIRED>(shape, row, row);
        work.first = first_unit(units, split, Work::SHARES, wide);
        work.last = first_unit(units, split + 1, Work::SHARES, wide);
        return work;
    };
    Unit<BITS> current[COUNT], next[COUNT];
    auto load = [&](Unit<BITS>(&to)[COUNT], const Work& work, uint32_t unit) {
        if (work.alive && unit < work.last) {
            load_batch<BITS, Work::PAIRED>(to, work.low, work.high, work.lane, unit, work.last);
        }
    };
    uint32_t wave = 0, index = 0;
    // The first wave has work for this warp or none has, but for the rounding of the shares.
    auto seek = [&]() {
        while (wave < waves && index >= shares_begin(wave, warp + 1)) {
            if (++wave < waves) index = shares_begin(wave, warp);
        }
    };
    if (waves > 0) index = shares_begin(0, warp);
    seek();
    Work ahead;
    if (wave < waves) {
        ahead = make_work(wave, index);
        load(current, ahead, ahead.first);
    }
    for (uint32_t now = 0; now < waves; now++) {
        float(&partial)[SEVERAL_ITEMS * 8][16] = sums[now % 2];
        while (wave == now) {
            // What is multiplied, while `ahead` goes on to what is asked for.
            uint32_t mine = index, place = ahead.place, unit = ahead.first, last = ahead.last;
            uint32_t token = sorted.token[place];
            // Zeros lie behind the last vector.
            VectorLane x = vector_lane<Work::PAIRED>(staged + token * stride, (tokens - token) * stride, shape);
            float result[2] = {0.0f, 0.0f};
            for (;;) {
                bool ends = unit + COUNT >= last;
                if (ends) {
                    index++;
                    seek();
                    if (wave < waves) ahead = make_work(wave, index);
                }
                if (wave < waves) load(next, ahead, ends ? ahead.first : unit + COUNT);
                if (unit < last) {
                    multiply_units<BITS, Work::PAIRED>(current, unit, last - unit, shape.scale_kind, x, result,
                                                       [](uint32_t) { return 1.0f; });
                }
#pragma unroll
                for (int i = 0; i < COUNT; i++) current[i] = next[i];
                if (ends) break;
                unit += COUNT;
            }
            sum_lanes(result);
            uint32_t lane = threadIdx.x % 32;
            if (lane % 4 == 0) partial[mine][lane / 4] = result[0], partial[mine][lane / 4 + 8] = result[1];
        }
        __syncthreads();
        uint32_t from = wave_begin(now), items = wave_begin(now + 1) - from;
        if (threadIdx.x < items * 8) {
            uint32_t item = from + threadIdx.x / 8, r = threadIdx.x % 8;
            uint32_t place = item / tiles, row = (item - place * tiles) * 8 + r, pair = sorted.pair[place];
            if (row < shape.rows) {
                float sum = 0.0f, other = 0.0f;
                float factor = factors[sorted.token[place]];
                const float(*parts)[16] = partial + threadIdx.x / 8 * SPLITS;
#pragma unroll
                for (uint32_t i = 0; i < SPLITS; i++) sum += parts[i][r], other += parts[i][8 + r];
                a.inner[(size_t(first_token) * a.k + pair) * shape.rows + row] = silu(sum * factor) * (other * factor);
            }
        }
    }
}

// A lane's share of 256 columns of rows of four bits and groups of 64, gate and up: two units of the paired layout,
// which have their scales in common.
struct FourPair {
    uint4 low[2], high[2];
    uint32_t scale[2], bias[2];
};

// Where a lane's share of a row of gate and up begins.
struct FourPlace {
    const uint8_t *low, *high, *scale_low, *scale_high, *bias_low, *bias_high;
};

__device__ inline uint4 load_global(const uint8_t* from) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

__device__ inline uint32_t load_global_u16(const uint8_t* from) {
    uint16_t v;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(from));
    return v;
}

__device__ inline void load_four(FourPair& to, const FourPlace& from, uint32_t pair) {
    uint32_t weight = pair * 128, scale = pair * 8;
    to.low[0] = load_global(from.low + weight), to.low[1] = load_global(from.low + weight + 16);
    to.high[0] = load_global(from.high + weight), to.high[1] = load_global(from.high + weight + 16);
    to.scale[0] = load_global_u16(from.scale_low + scale), to.scale[1] = load_global_u16(from.scale_high + scale);
    to.bias[0] = load_global_u16(from.bias_low + scale), to.bias[1] = load_global_u16(from.bias_high + scale);
}

// As `multiply_units` of two units; `x` is the lane's part of their columns, or zeros, `odd` from the first to the
// second, `sums` those of its slot.
__device__ inline void multiply_four(const FourPair& v, const float* x, uint32_t odd, const float* sums, uint32_t kind,
                                     float (&result)[2]) {
    float c[2][4] = {};
    const uint32_t low[2][4] = {{v.low[0].x, v.low[0].y, v.low[0].z, v.low[0].w},
                                {v.low[1].x, v.low[1].y, v.low[1].z, v.low[1].w}};
    const uint32_t high[2][4] = {{v.high[0].x, v.high[0].y, v.high[0].z, v.high[0].w},
                                 {v.high[1].x, v.high[1].y, v.high[1].z, v.high[1].w}};
    unroll<0, 4>([&]<int Q>() {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint4 b = load_shared(x + (i ? odd : 0) + 4 * Q);
            uint32_t p[4], q[4];
            unpack_pairs<4, Q>(low[i], p);
            unpack_pairs<4, Q>(high[i], q);
            multiply_halves(c[i], p[0], q[0], p[1], q[1], b.x, b.y);
            multiply_halves(c[i], p[2], q[2], p[3], q[3], b.z, b.w);
        }
    });
    float scale[2] = {scale_value(v.scale[0], kind), scale_value(v.scale[1], kind)};
    float bias[2] = {scale_value(v.bias[0], kind), scale_value(v.bias[1], kind)};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float2 sum = *reinterpret_cast<const float2*>(sums + i * STAGED_CHUNK);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            result[r] += scaled_sum(scale[r], bias[r], c[i][2 * r] + c[i][2 * r + 1], sum.y, sum.x);
        }
    }
}

// `several_inner_rows` where gate and up have four bits, groups of 64, and for each share 256 columns or more.
template <bool NARROW>
__device__ inline void inner_four_rows(const StepExpertArguments& a, const float* staged, const float* factors,
                                          const SortedPairs& sorted, float (*sums)[SEVERAL_ITEMS * 8][16],
                                          uint32_t first_token, uint32_t tokens) {
    constexpr uint32_t SHARES = NARROW ? 3 : 2, SPLITS = 1 << SHARES;
    const Matrix& shape = a.experts.gate;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t stride = staged_words(a.source.columns), tiles = (shape.rows + 7) / 8, all = tokens * a.k * tiles;
    uint32_t begin = uint64_t(all) * blockIdx.x / gridDim.x, end = uint64_t(all) * (blockIdx.x + 1) / gridDim.x;
    uint32_t waves = (end - begin + SEVERAL_ITEMS - 1) / SEVERAL_ITEMS, units = a.source.columns / UNIT;
    uint32_t row_bytes = a.source.columns / 2, row_scales = a.source.columns / 32;
    auto wave_begin = [&](uint32_t wave) { return begin + (end - begin) * wave / waves; };
    auto shares_begin = [&](uint32_t wave, uint32_t which) {
        return (wave_begin(wave + 1) - wave_begin(wave)) * SPLITS * which / STEP_WARPS;
    };
    // What is asked for next: its wave, its share in it, the pair of units and the last of them.
    uint32_t wave = 0, index = 0, limit = 0, pair = 0, pairs = 0, vector = 0;
    FourPlace from;
    bool alive = false;
    auto seek = [&]() {
        while (wave < waves && index >= limit) {
            if (++wave < waves) index = shares_begin(wave, warp), limit = shares_begin(wave, warp + 1);
        }
    };
    auto begin_share = [&]() {
        uint32_t item = wave_begin(wave) + index / SPLITS, split = index % SPLITS, place = item / tiles;
        uint32_t tile = item - place * tiles, expert = sorted.expert[place];
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
    if (waves > 0) index = shares_begin(0, warp), limit = shares_begin(0, warp + 1);
    seek();
    if (wave < waves) begin_share();
    // Lanes without a slot read the zeros behind the last vector.
    bool active = g / 2 == t;
    uint32_t mine = t * 2 * STAGED_CHUNK, zeros = tokens * stride, odd = active ? STAGED_CHUNK : 0;
    FourPair current, next;
    uint32_t slot = 0, at = 0;
    bool some = false, last = false;
    float result[2] = {0.0f, 0.0f};
    for (uint32_t now = 0;;) {
        bool more = wave < waves, next_last = false;
        uint32_t next_wave = more ? wave : waves, next_slot = index, next_at = 0;
        if (more) {
            // Comes while what came before is multiplied.
            if (alive) load_four(next, from, pair);
            next_at = vector + pair * 8 * STAGED_CHUNK;
            next_last = ++pair == pairs;
            if (next_last) {
                index++;
                seek();
                if (wave < waves) begin_share();
            }
        }
        if (some) {
            const float* x = staged + (active ? at + mine + g % 2 * 16 : zeros);
            multiply_four(current, x, odd, staged + at + mine + 32, shape.scale_kind, result);
            if (last) {
                sum_lanes(result);
                float(&to)[16] = sums[now % 2][slot];
                if (t == 0) to[g] = result[0], to[g + 8] = result[1];
                result[0] = result[1] = 0.0f;
            }
        }
        for (; now < next_wave; now++) {
            __syncthreads();
            uint32_t first = wave_begin(now), items = wave_begin(now + 1) - first;
            if (threadIdx.x >= items * 8) continue;
            uint32_t item = first + threadIdx.x / 8, r = threadIdx.x % 8, place = item / tiles;
            uint32_t row = (item - place * tiles) * 8 + r;
            if (row >= shape.rows) continue;
            float sum = 0.0f, other = 0.0f, factor = factors[sorted.token[place]];
            const float(*parts)[16] = sums[now % 2] + threadIdx.x / 8 * SPLITS;
#pragma unroll
            for (uint32_t i = 0; i < SPLITS; i++) sum += parts[i][r], other += parts[i][8 + r];
            size_t of = size_t(first_token) * a.k + sorted.pair[place];
            a.inner[of * shape.rows + row] = silu(sum * factor) * (other * factor);
        }
        if (!more) return;
        current = next, slot = next_slot, at = next_at, last = next_last, some = true;
    }
}

template <bool NARROW, bool FOUR>
__device__ inline void several_inner_block(const StepExpertArguments& a) {
    extern __shared__ float staged[];
    __shared__ float warps[SEVERAL][STEP_WARPS], factors[SEVERAL];
    __shared__ SortedPairs sorted;
    __shared__ float sums[2][SEVERAL_ITEMS * 8][16];
    uint32_t first_token = blockIdx.y * a.per_pass, tokens = min(a.per_pass, a.tokens - first_token);
    // The streams were complete before routing began, and routing releases this kernel only once it has begun.
    stage_several<INNER_THREADS, true, 4>(a.source, first_token, tokens, staged, staged_words(a.source.columns), warps);
    await_inputs();
    release_next();
    sort_pairs(a, first_token * a.k, tokens * a.k, sorted, reinterpret_cast<uint32_t*>(sums));
    // Read after the first wave.
    if (threadIdx.x < tokens) {
        factors[threadIdx.x] = several_factor<INNER_THREADS, true>(a.source, warps[threadIdx.x]);
    }
    if constexpr (FOUR) {
        inner_four_rows<NARROW>(a, staged, factors, sorted, sums, first_token, tokens);
    } else if (a.experts.gate.bits == 4) {
        several_inner_rows<4, NARROW>(a, staged, factors, sorted, sums, first_token, tokens);
    } else {
        several_inner_rows<8, NARROW>(a, staged, factors, sorted, sums, first_token, tokens);
    }
}

#define SEVERAL_INNER(NAME, NARROW, FOUR)                                                                          \
    extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) several_inner##NAME(                            \
        const __grid_constant__ StepExpertArguments a) {                                                          \
        several_inner_block<NARROW, FOUR>(a);                                                                      \
    }

SEVERAL_INNER(, false, false)
SEVERAL_INNER(_narrow, true, false)
SEVERAL_INNER(_four, false, true)
SEVERAL_INNER(_four_narrow, true, true)

// A warp's share of a token's second half: units of the routed experts, then of the shared one.
struct OuterShare {
    uint32_t first, end;             // routed
    uint32_t shared, shared_end;     // counted in the shared expert's vector
    uint32_t routed_steps, steps;    // batches
    uint32_t split;
};

// As `step_outer`, all tokens one after another: a warp stages what it multiplies itself, so that weights never wait
// for a block. Grid: row tiles of the stream by those that a block works on at once; 512 threads; shared: STEP_WARPS
// areas of one batch, and zeros.
template <int BITS>
__device__ inline void several_outer_rows(const StepExpertArguments& a, const Routed* routed, bool known,
                                          SeveralSums& partial, float* areas) {
    constexpr int COUNT = EXPERT_BATCH<BITS>;
    constexpr bool PAIRED = PAIRED_EXPERT<BITS>;
    constexpr uint32_t AREA = COUNT * 4 * STAGED_CHUNK;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, shares = STEP_WARPS_SHIFT - a.tiles_shift;
    uint32_t at_once = 1 << a.tiles_shift, member = warp >> shares, splits = 1 << shares;
    const Matrix& shape = a.experts.down;
    uint32_t width = shape.columns, shared_width = a.shared_gate ? a.down.columns : 0;
    OuterStage s;
    s.tile = blockIdx.x * at_once + member;
    s.count = width / UNIT, s.inverse = 0xffffffffu / s.count + 1;
    s.total = a.k * s.count, s.every = s.total + shared_width / UNIT;
    bool wide = shape.bits <= 4 && is_wide<true>(width);
    // A warp's share of a token: each time the next one, because some have more units than others.
    auto share_of = [&](uint32_t token) {
        uint32_t split = (warp + token) % splits;
        uint32_t first = first_unit(s.every, split, shares, wide), last = first_unit(s.every, split + 1, shares, wide);
        OuterShare share;
        share.split = split, share.first = first, share.end = min(last, s.total);
        share.shared = max(first, s.total) - s.total, share.shared_end = max(last, s.total) - s.total;
        share.routed_steps = first < share.end ? (share.end - first + COUNT - 1) / COUNT : 0;
        share.steps = share.routed_steps + (share.shared_end - share.shared + COUNT - 1) / COUNT;
        return share;
    };
    TileLane routed_lane = tile_lane<PAIRED>(shape, s.tile), shared_lane = routed_lane;
    if (shared_width) shared_lane = tile_lane(a.down, s.tile);
    Pieces shared_pieces = pieces_of(a.down);
    float* area = areas + warp * AREA;
    // Zeros lie behind the last area.
    uint32_t zeros = (STEP_WARPS - warp) * AREA;
    Unit<BITS> current[COUNT], next[COUNT];
    float values[8], next_values[8];
    auto load = [&](Unit<BITS>(&to)[COUNT], const OuterShare& share, uint32_t token, uint32_t step) {
        if (step < share.routed_steps) {
            load_routed<BITS>(to, s, routed[token], routed_lane, share.first + step * COUNT, share.end);
        } else {
            uint32_t unit = share.shared + (step - share.routed_steps) * COUNT;
            load_batch<BITS>(to, shared_pieces, shared_pieces, shared_lane, unit, share.shared_end);
        }
    };
    // Eight values of the batch's vector; lanes beyond its units have none.
    auto load_values = [&](float(&to)[8], const OuterShare& share, uint32_t token, uint32_t step) {
        bool is_routed = step < share.routed_steps;
        uint32_t unit = is_routed ? share.first + step * COUNT
                                  : share.shared + (step - share.routed_steps) * COUNT;
        uint32_t column = unit * UNIT + lane * 8, columns = (is_routed ? share.end : share.shared_end) * UNIT;
        const float* from = is_routed ? a.inner + size_t(token) * a.k * width
                                      : a.shared_inner + size_t(token) * shared_width;
        float4 b = {0, 0, 0, 0}, c = b;
        if (lane < COUNT * 16 && column < columns) {
            b = __ldcg(reinterpret_cast<const float4*>(from + column));
            c = __ldcg(reinterpret_cast<const float4*>(from + column) + 1);
        }
        to[0] = b.x, to[1] = b.y, to[2] = b.z, to[3] = b.w, to[4] = c.x, to[5] = c.y, to[6] = c.z, to[7] = c.w;
    };
    OuterShare share = share_of(0);
    if (share.steps && known) load(current, share, 0, 0);
    await_inputs();
    release_next();
    if (share.steps) {
        if (!known) load(current, share, 0, 0);
        load_values(values, share, 0, 0);
    }
    if (threadIdx.x < 16) areas[STEP_WARPS * AREA + threadIdx.x] = 0.0f;
    __syncthreads();
    VectorLane routed_x = vector_lane<PAIRED>(area, zeros, shape), shared_x = routed_x;
    if (shared_width) shared_x = vector_lane(area, zeros, a.down);
    for (uint32_t token = 0; token < a.tokens; token++) {
        float result[2] = {0.0f, 0.0f};
        uint32_t split = share.split;
        for (uint32_t step = 0;; step++) {
            // What is multiplied, while `share` goes on to what is asked for.
            bool some = step < share.steps, is_routed = step < share.routed_steps, ends = step + 1 >= share.steps;
            uint32_t unit = is_routed ? share.first + step * COUNT
                                      : share.shared + (step - share.routed_steps) * COUNT;
            uint32_t live = (is_routed ? share.end : share.shared_end) - unit;
            if (ends) share = share_of(token + 1);
            uint32_t of = token + ends, then = ends ? 0 : step + 1;
            if (of < a.tokens && share.steps) {
                load(next, share, of, then);
                load_values(next_values, share, of, then);
            }
            if (some) {
                stage_values(area, lane * 8, values, lane < COUNT * 16);
                __syncwarp();
                if (is_routed) {
                    multiply_units<BITS, PAIRED>(current, 0, live, shape.scale_kind, routed_x, result,
                                                 [&](uint32_t i) { return routed[token].factor[s.rank_of(unit + i)]; });
                } else {
                    float factor = sigmoid(__ldcg(a.shared_gate + token));
                    multiply_units<BITS>(current, 0, live, a.down.scale_kind, shared_x, result,
                                         [&](uint32_t) { return factor; });
                }
                __syncwarp();
            }
#pragma unroll
            for (int i = 0; i < COUNT; i++) current[i] = next[i];
#pragma unroll
            for (int i = 0; i < 8; i++) values[i] = next_values[i];
            if (ends) break;
        }
        sum_lanes(result);
        if (lane % 4 == 0) {
            float(&to)[16] = partial.sum[token][member * splits + split];
            to[lane / 4] = result[0], to[lane / 4 + 8] = result[1];
        }
    }
}

extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) several_outer(
    const __grid_constant__ StepExpertArguments a) {
    extern __shared__ float areas[];
    __shared__ SeveralSums partial;
    __shared__ Routed routed[SEVERAL];
    uint32_t pairs = a.tokens * a.k;
    // Routing was complete when the kernel before released this one: what it found in memory can be asked for.
    auto look = [&](bool& failed) {
        bool known = true;
        for (uint32_t p = threadIdx.x; p < pairs; p += STEP_THREADS) {
            uint32_t token = p / a.k, rank = p % a.k;
            uint64_t record = __ldcg(a.addresses + p);
            known &= !is_awaited(record), failed |= record == FAILED;
            routed[token].factor[rank] = __ldcg(a.weights + p);
            routed[token].down[rank] =
                pieces_of(piece(a.experts.down, a.experts, __ldcg(a.chosen + p), record, DOWN));
        }
        return known;
    };
    bool failed = false, known = __syncthreads_and(look(failed));
    if (!known) {
        // All are, once the kernel before has ended.
        await_inputs();
        failed = false;
        look(failed);
    }
    // What a failed expert leaves is undefined, and its reader knows.
    if (__syncthreads_or(failed)) {
        if (threadIdx.x == 0) note_end(a.ended);
        return;
    }
    switch (a.experts.down.bits) {
        case 4: several_outer_rows<4>(a, routed, known, partial, areas); break;
        default: several_outer_rows<8>(a, routed, known, partial, areas); break;
    }
    __syncthreads();
    if (threadIdx.x == STEP_THREADS - 1) note_end(a.ended);
    uint32_t splits = STEP_WARPS >> a.tiles_shift, rows = 16u << a.tiles_shift;
    for (uint32_t i = threadIdx.x; i < rows * a.tokens; i += STEP_THREADS) {
        uint32_t token = i / rows, r = i % rows, row = blockIdx.x * rows + r;
        if (row >= a.source.columns) continue;
        float mixture = 0.0f;
        for (uint32_t j = 0; j < splits; j++) mixture += partial.sum[token][r / 16 * splits + j][r % 16];
        float* out = a.out + size_t(token) * a.source.columns + row;
        *out = __ldcg(out) + mixture;
    }
}

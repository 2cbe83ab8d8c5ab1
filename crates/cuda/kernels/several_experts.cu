// Both halves of the experts of a step of several sequences. What several.cuh says of bits holds; what the halves do is
// described in step.cuh.
#include "experts_four.cuh"

// `find(p, address)` gives the expert of a pair and where its record is; `chosen`: scratch.
template <typename FIND>
__device__ inline void sort_pairs(const StepExpertArguments& a, uint32_t pairs, SortedPairs& sorted, uint32_t* chosen,
                                  FIND&& find) {
    // A thread has one pair at most: SEVERAL_PAIRS are fewer than threads.
    uint32_t p = threadIdx.x, mine = ~0u, place = 0, padded = (pairs + 3) / 4 * 4;
    uint64_t address = 0;
    if (p < pairs) mine = find(p, address);
    if (p < padded) chosen[p] = mine;
    __syncthreads();
    if (p < pairs) {
        for (uint32_t q = 0; q < padded; q += 4) {
            uint4 four = *reinterpret_cast<const uint4*>(chosen + q);
            place += four.x < mine || (four.x == mine && q < p);
            place += four.y < mine || (four.y == mine && q + 1 < p);
            place += four.z < mine || (four.z == mine && q + 2 < p);
            place += four.w < mine || (four.w == mine && q + 3 < p);
        }
        sorted.pair[place] = p, sorted.token[place] = p / a.k, sorted.expert[place] = mine;
        sorted.address[place] = address;
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

// `find(first_token, tokens, scratch)` awaits the inputs, releases the next kernel, and gives what `sort_pairs` finds
// pairs by; `scratch` has SEVERAL_PAIRS words.
template <bool NARROW, bool FOUR, typename FIND>
__device__ inline void several_inner_block(const StepExpertArguments& a, FIND&& find) {
    extern __shared__ float staged[];
    __shared__ float warps[SEVERAL][STEP_WARPS], factors[SEVERAL];
    __shared__ SortedPairs sorted;
    __shared__ __align__(16) float sums[2][SEVERAL_ITEMS * 8][16];
    uint32_t first_token = blockIdx.y * a.per_pass, tokens = min(a.per_pass, a.tokens - first_token);
    // The streams were complete before the router's kernel began, and that releases this one only once it has begun.
    uint32_t stride = staged_words(a.source.columns);
    stage_several<INNER_THREADS, true, false, 4>(a.source, first_token, tokens, staged, stride, warps);
    uint32_t* scratch = reinterpret_cast<uint32_t*>(sums);
    auto found = find(first_token, tokens, scratch + SEVERAL_PAIRS);
    sort_pairs(a, tokens * a.k, sorted, scratch, found);
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

// Pairs as routing has left them.
__device__ inline auto routed_pairs(const StepExpertArguments& a) {
    return [&](uint32_t first_token, uint32_t, uint32_t*) {
        await_inputs();
        release_next();
        size_t first = size_t(first_token) * a.k;
        return [&a, first](uint32_t p, uint64_t& address) {
            // Another block may replace an address by the answer at any time: each sees one or the other.
            address = __ldcg(a.addresses + first + p);
            return __ldcg(a.chosen + first + p);
        };
    };
}

#define SEVERAL_INNER(NAME, NARROW, FOUR)                                                                          \
    extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) several_inner##NAME(                            \
        const __grid_constant__ StepExpertArguments a) {                                                          \
        several_inner_block<NARROW, FOUR>(a, routed_pairs(a));                                                     \
    }

SEVERAL_INNER(, false, false)
SEVERAL_INNER(_narrow, true, false)
SEVERAL_INNER(_four, false, true)
SEVERAL_INNER(_four_narrow, true, true)

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
    OuterStage s = outer_stage(a, 0, blockIdx.x * at_once + member, UNIT);
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
    bool known;
    auto place = [&](uint32_t token, uint32_t rank, float weight, const Matrix& down) {
        routed[token].factor[rank] = weight, routed[token].down[rank] = pieces_of(down);
    };
    if (!find_several(a, 0, a.tokens, known, place)) return;
    bool four = is_four(a.experts.down) && is_wide<true>(a.experts.down.columns);
    if (four && (!a.shared_gate || is_four(a.down))) {
        outer_four_rows(a, routed, known, partial, areas);
    } else if (a.experts.down.bits == 4) {
        several_outer_rows<4>(a, routed, known, partial, areas);
    } else {
        several_outer_rows<8>(a, routed, known, partial, areas);
    }
    add_mixtures(a, 0, a.tokens, partial);
}

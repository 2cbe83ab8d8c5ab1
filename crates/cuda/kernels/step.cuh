// What the kernels of a step of few tokens have in common: products of a staged vector and what becomes of their sums,
// the two halves of the experts.
#pragma once
#include "records.cuh"
#include "halves.cuh"

struct StepJob {
    Matrix matrix;
    Matrix second;           // SWIGLU: of the values that the gate is multiplied with
    float* out;              // [tokens, rows]
    uint32_t first_block;
    uint32_t kind;           // JobKind
};

struct StepLinearArguments {
    Source source;
    const float* taps;       // CONVOLVE: [channels, kernel], newest last; INJECT: [tokens, kernel] of streams
    float* tail;             // CONVOLVE: [sequences][kernel - 1, channels]: raw inputs before the token
    const uint32_t* sequences;
    size_t tail_stride;      // floats from one sequence's tail to the next
    const float* ring;       // CONVOLVE: as of `ConvolveRunArguments`; null where there are no rounds
    const uint32_t* positions;
    const uint32_t* lags;    // CONVOLVE: tokens before that lie in the ring, and not in the tail
    size_t ring_stride;
    uint32_t ring_row;
    uint32_t padding;
    uint32_t kernel;         // CONVOLVE: taps; INJECT: streams
    uint32_t jobs;
    uint32_t tiles_shift;    // 2^this row tiles are what a block works on at once, up to 16; SWIGLU needs 2
    uint32_t rounds;         // times that it does so
    uint32_t tokens;
    uint32_t per_pass;       // tokens that `several_linear_*` multiplies at once
    StepJob job[STEP_JOBS];
};

constexpr int NEAR_TAPS = 4;  // of the convolutions that models have

// Causal convolution of one channel of one token that is a run of its own, and the tail after it.
__device__ inline float convolve_channel(const StepLinearArguments& a, uint32_t token, uint32_t channel,
                                         uint32_t channels, float raw) {
    float* tail = a.tail + a.sequences[token] * a.tail_stride + channel;
    const float* taps = a.taps + size_t(channel) * a.kernel;
    uint32_t lag = a.ring ? a.lags[token] : 0;
    auto before = [&](uint32_t i) {
        if (i + lag + 1 < a.kernel) return __ldcg(tail + size_t(i + lag) * channels);
        uint32_t place = (a.positions[token] + i + 1 - a.kernel) % ROUND_PLACES;
        return __ldcg(a.ring + a.sequences[token] * a.ring_stride + size_t(place) * a.ring_row + channel);
    };
    float sum = 0.0f;
    if (a.kernel == NEAR_TAPS) {
        // All loads before the first store: otherwise each waits for memory by itself.
        float v[NEAR_TAPS - 1], weight[NEAR_TAPS];
#pragma unroll
        for (int i = 0; i + 1 < NEAR_TAPS; i++) v[i] = before(i);
#pragma unroll
        for (int i = 0; i < NEAR_TAPS; i++) weight[i] = taps[i];
#pragma unroll
        for (int i = 0; i + 1 < NEAR_TAPS; i++) sum = fmaf(weight[i], v[i], sum);
#pragma unroll
        for (int i = 1; i + 1 < NEAR_TAPS; i++) tail[size_t(i - 1) * channels] = v[i];
        tail[size_t(NEAR_TAPS - 2) * channels] = raw;
        return silu(fmaf(weight[NEAR_TAPS - 1], raw, sum));
    }
    for (uint32_t i = 0; i + 1 < a.kernel; i++) {
        float v = before(i);
        sum = fmaf(taps[i], v, sum);
        if (i > 0) tail[size_t(i - 1) * channels] = v;
    }
    tail[size_t(a.kernel - 2) * channels] = raw;
    return silu(fmaf(taps[a.kernel - 1], raw, sum));
}

// Asks the cache for what `convolve_channel` reads first; tail and taps are of the step before, and of the model.
__device__ inline void expect_channel(const StepLinearArguments& a, uint32_t token, uint32_t channel,
                                      uint32_t channels) {
    const float* tail = a.tail + a.sequences[token] * a.tail_stride + channel;
    for (uint32_t i = 0; i + 1 < a.kernel; i++) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(tail + size_t(i) * channels));
    }
    asm volatile("prefetch.global.L2 [%0];" ::"l"(a.taps + size_t(channel) * a.kernel));
}

// What an output has that a product is added to.
__device__ inline float added_to(const StepJob& job, uint32_t token, uint32_t row) {
    return job.kind == ADD ? __ldcg(job.out + size_t(token) * job.matrix.rows + row) : 0.0f;
}

// Finishes a row's products (the second matrix's too) of a vector without its `factor`; `before`: as of `added_to`.
__device__ inline void finish_row(const StepLinearArguments& a, const StepJob& job, uint32_t token, uint32_t row,
                                  float sum, float other, float factor, float before) {
    uint32_t rows = job.matrix.rows;
    float* to = job.out + size_t(token) * rows + row;
    sum = __fmul_rn(sum, factor), other = __fmul_rn(other, factor);
    if (job.kind == INJECT) {
        // As `inject_streams`: each stream takes it by a weight of its own.
        float* stream = job.out + size_t(token) * a.kernel * rows + row;
#pragma unroll 1
        for (uint32_t i = 0; i < a.kernel; i++) {
            float weight = 2.0f * sigmoid(__ldcg(a.taps + size_t(token) * a.kernel + i) / float(a.kernel));
            stream[size_t(i) * rows] = fmaf(weight, sum, __ldcg(stream + size_t(i) * rows));
        }
        return;
    }
    if (job.kind == SWIGLU) sum = silu(sum) * other;
    if (job.kind == ADD) sum += before;
    if (job.kind == CONVOLVE) sum = convolve_channel(a, token, row, rows, sum);
    *to = sum;
}

// Sums of 16 rows by several warps: [tile][split][row].
template <uint32_t THREADS>
struct Partial {
    float sum[THREADS / 32][16];
};

// Leaves a warp's sums of 16 rows.
__device__ inline void leave_sums(float (&to)[16], float (&result)[2]) {
    uint32_t lane = threadIdx.x % 32;
    sum_lanes(result);
    if (lane % 4 == 0) to[lane / 4] = result[0], to[lane / 4 + 8] = result[1];
}

// Leaves them for the block.
template <uint32_t THREADS>
__device__ inline void leave_sums(Partial<THREADS>& partial, float (&result)[2]) {
    leave_sums(partial.sum[threadIdx.x / 32], result);
}

// A warp's share of the products: of the row tiles that its block works on at once, and of the columns.
struct LinearShare {
    uint32_t at_once, member, splits, first, last;

    // Of `count` units of columns.
    __device__ inline LinearShare(const StepLinearArguments& a, uint32_t count) {
        uint32_t warp = threadIdx.x / 32, shares = STEP_WARPS_SHIFT - a.tiles_shift;
        at_once = 1 << a.tiles_shift, splits = 1 << shares, member = warp >> shares;
        uint32_t split = warp % splits;
        first = first_unit(count, split, shares, false), last = first_unit(count, split + 1, shares, false);
    }
};

// Rows of a block's round.
__device__ inline uint32_t round_outputs(const StepJob& job, const LinearShare& share) {
    return job.kind == SWIGLU ? 16 : 16 * share.at_once;
}

// Adds up what the warps left of a round's row number `output`: `parts` are a token's, [tile][split][row].
__device__ inline void finish_output(const StepLinearArguments& a, const StepJob& job, const LinearShare& share,
                                     uint32_t block, uint32_t round, uint32_t output,
                                     const float (&parts)[STEP_THREADS / 32][16], uint32_t token, float factor) {
    bool pair = job.kind == SWIGLU;
    uint32_t which = output / 16, r = output % 16;
    uint32_t row = ((block * a.rounds + round) * (pair ? 1 : share.at_once) + which) * 16 + r;
    if (row >= job.matrix.rows) return;
    float sum = 0.0f, other = 0.0f;
    for (uint32_t i = 0; i < share.splits; i++) {
        sum += parts[which * share.splits + i][r];
        if (pair) other += parts[share.splits + i][r];
    }
    finish_row(a, job, token, row, sum, other, factor, added_to(job, token, row));
}

template <int BITS>
__device__ inline void step_linear_job(const StepLinearArguments& a, const StepJob& job, const LinearShare& share,
                                       uint32_t block, float* staged, float* warps,
                                       Partial<STEP_THREADS> (&partials)[2]) {
    uint32_t at_once = share.at_once, member = share.member, splits = share.splits;
    uint32_t first = share.first, last = share.last;
    bool pair = job.kind == SWIGLU;
    Pieces m = pieces_of(pair && member ? job.second : job.matrix);
    uint32_t rows = job.matrix.rows, tiles = (rows + 15) / 16;
    Unit<BITS> units[BATCH<BITS>];
    TileLane lane;
    bool busy;
    // Warps without rows, or with fewer units than there are warps, only take part in the synchronisation.
    auto begin_round = [&](uint32_t round) {
        uint32_t tile = pair ? block * a.rounds + round : (block * a.rounds + round) * at_once + member;
        busy = round < a.rounds && tile < tiles && first < last && (!pair || member < 2);
        lane = tile_lane(job.matrix, tile);
    };
    begin_round(0);
    if (busy) load_batch(units, m, m, lane, first, last);
    if (job.kind == CONVOLVE && threadIdx.x < 16 * at_once) {
        for (uint32_t round = 0; round < a.rounds; round++) {
            uint32_t row = (block * a.rounds + round) * at_once * 16 + threadIdx.x;
            if (row < rows) expect_channel(a, blockIdx.y, row, rows);
        }
    }
    expect_norm(a.source);
    // What was asked for comes while the kernel before runs.
    await_inputs();
    release_next();
    stage_halves(a.source, blockIdx.y, staged, warps);
    __syncthreads();
    VectorLane x = vector_lane(staged, staged_words(a.source.columns), job.matrix);
    uint32_t unit = first, outputs = pair ? 16 : 16 * at_once, which = threadIdx.x / 16, r = threadIdx.x % 16;
    float result[2] = {0.0f, 0.0f}, factor = 1.0f;
    for (uint32_t round = 0; round < a.rounds;) {
        if (busy) {
            multiply_units<BITS>(units, unit, last - unit, job.matrix.scale_kind, x, result,
                                 [](uint32_t) { return 1.0f; });
        }
        unit += BATCH<BITS>;
        bool ends = !busy || unit >= last;
        // The next round's first units come while this one's sums are added up.
        if (ends) unit = first, begin_round(round + 1);
        // In one place, because what has to be fetched of the code costs more than what it does.
        if (busy) load_batch(units, m, m, lane, unit, last);
        if (!ends) continue;
        Partial<STEP_THREADS>& partial = partials[round % 2];
        // As `finish_output`, which costs this kernel a quarter of a microsecond more.
        uint32_t row = ((block * a.rounds + round) * (pair ? 1 : at_once) + which) * 16 + r;
        bool finishes = threadIdx.x < outputs && row < rows;
        float before = finishes ? added_to(job, blockIdx.y, row) : 0.0f;
        leave_sums(partial, result);
        result[0] = result[1] = 0.0f;
        __syncthreads();
        if (finishes) {
            if (round == 0) factor = staged_factor(a.source, warps);
            float sum = 0.0f, other = 0.0f;
            for (uint32_t i = 0; i < splits; i++) {
                sum += partial.sum[which * splits + i][r];
                if (pair) other += partial.sum[splits + i][r];
            }
            finish_row(a, job, blockIdx.y, row, sum, other, factor, before);
        }
        round++;
    }
}

// Grid: (blocks of all jobs, tokens), 512 threads; shared: the staged vector. ANY: more widths, which take registers.
template <bool ANY>
__device__ inline void step_linear_block(const StepLinearArguments& a) {
    extern __shared__ float staged[];
    __shared__ float warps[STEP_THREADS / 32];
    __shared__ Partial<STEP_THREADS> partials[2];
    const StepJob& job = a.job[block_job(a)];
    uint32_t block = blockIdx.x - job.first_block, bits = job.matrix.bits;
    LinearShare share(a, (a.source.columns + UNIT - 1) / UNIT);
    if (bits == 4) return step_linear_job<4>(a, job, share, block, staged, warps, partials);
    if (bits == 8) return step_linear_job<8>(a, job, share, block, staged, warps, partials);
    if constexpr (ANY) {
        if (bits == 2) return step_linear_job<2>(a, job, share, block, staged, warps, partials);
        if (bits == 3) return step_linear_job<3>(a, job, share, block, staged, warps, partials);
        if (bits == 5) return step_linear_job<5>(a, job, share, block, staged, warps, partials);
        return step_linear_job<6>(a, job, share, block, staged, warps, partials);
    }
}

struct StepExpertArguments {
    Source source;               // of the stream
    const uint32_t* chosen;      // [tokens, k]
    const float* weights;        // [tokens, k]
    uint64_t* addresses;         // [tokens, k]; 0 is replaced by the answer
    const uint64_t* answers;     // by key, mapped host memory
    uint32_t* status;            // mapped host memory, see `await_record`
    float* inner;                // [tokens, k, inner]: SiLU(gate x) * up x
    const float* shared_inner;   // [tokens, shared]
    const float* shared_gate;    // [tokens]: before the sigmoid; null without a shared expert
    float* out;                  // [tokens, hidden] += the mixture
    const uint64_t* copies;      // as in `RouteArguments`
    Experts experts;
    Matrix down;                 // of the shared expert
    Ended ended;
    uint32_t k;
    uint32_t first_key;
    uint32_t rounds;             // first half: tiles that a block works on, one after another
    uint32_t tiles_shift;        // second half: 2^this row tiles are what a block works on at once, up to 16
    uint32_t tokens;
    uint32_t per_pass;           // tokens that `several_inner*` multiplies at once
};

// A warp's share of the experts' first half: rows of gate and up in each round, and columns. Where all row tiles run at
// the same time, four warps take 16 rows of gate and four the same of up. Where they do not (NARROW), eight warps take
// 8 rows of each, and a block takes several such tiles: it stages the stream once, and no wave is left half empty.
template <bool NARROW>
struct InnerShare {
    static constexpr uint32_t SHARES = NARROW ? 3 : 2, SPLITS = 1 << SHARES, HEIGHT = NARROW ? 8 : 16;
    const Matrix& shape;
    uint32_t first_row, rounds, first, last;

    __device__ inline InnerShare(const StepExpertArguments& a) : shape(a.experts.gate), rounds(NARROW ? a.rounds : 1) {
        uint32_t count = (a.source.columns + UNIT - 1) / UNIT, split = threadIdx.x / 32 % SPLITS;
        bool wide = shape.bits <= 4 && is_wide<true>(a.source.columns);
        first_row = blockIdx.x * rounds * HEIGHT;
        first = first_unit(count, split, SHARES, wide), last = first_unit(count, split + 1, SHARES, wide);
    }

    __device__ inline bool is_busy(uint32_t round) const {
        return round < rounds && first_row + round * HEIGHT < shape.rows && first < last;
    }

    template <bool PAIRED>
    __device__ inline TileLane lane(uint32_t round) const {
        uint32_t row = min(first_row + round * HEIGHT + threadIdx.x % 32 / 4, shape.rows - 1);
        return rows_lane<PAIRED>(shape, row, NARROW ? row : min(row + 8, shape.rows - 1));
    }
};

// SwiGLU of what the warps left of the rows from `first_row` on of `rows`, to `to`; `limit(gate, up)` may clamp it.
template <bool NARROW, typename LIMIT>
__device__ inline void finish_swiglu(const Source& source, uint32_t rows, float* to, uint32_t first_row,
                                     const float* warps, const Partial<INNER_THREADS>& partial, LIMIT&& limit) {
    using Share = InnerShare<NARROW>;
    uint32_t row = first_row + threadIdx.x;
    if (threadIdx.x >= Share::HEIGHT || row >= rows) return;
    float sum = 0.0f, other = 0.0f, factor = staged_factor(source, warps);
#pragma unroll
    for (uint32_t i = 0; i < Share::SPLITS; i++) {
        sum += partial.sum[i][threadIdx.x];
        other += NARROW ? partial.sum[i][8 + threadIdx.x] : partial.sum[Share::SPLITS + i][threadIdx.x];
    }
    sum *= factor, other *= factor;
    limit(sum, other);
    to[row] = silu(sum) * other;
}

// As `finish_swiglu`, unclamped, for the choice at `at`.
template <bool NARROW>
__device__ inline void finish_inner(const StepExpertArguments& a, size_t at, uint32_t first_row, const float* warps,
                                    const Partial<INNER_THREADS>& partial) {
    uint32_t rows = a.experts.gate.rows;
    finish_swiglu<NARROW>(a.source, rows, a.inner + at * rows, first_row, warps, partial, [](float&, float&) {});
}

// Products of gate and up, and SwiGLU. `find(at, expert)` awaits the inputs, releases the next kernel, and gives the
// record of the choice at `at` when the block's threads have met; `expert` becomes its id.
template <int BITS, bool NARROW, typename FIND>
__device__ inline void inner_rows(const StepExpertArguments& a, const float* staged, const float* warps,
                                  Partial<INNER_THREADS> (&partials)[2], FIND&& find) {
    constexpr bool PAIRED = PAIRED_EXPERT<BITS>;
    using Share = InnerShare<NARROW>;
    Share share(a);
    TileLane lane = share.template lane<PAIRED>(0);
    VectorLane x = vector_lane<PAIRED>(staged, staged_words(a.source.columns), share.shape);
    size_t at = size_t(blockIdx.z) * a.k + blockIdx.y;
    uint32_t expert;
    uint64_t found = find(at, expert);
    if (found == FAILED) return;
    bool upper = threadIdx.x / 32 >= Share::SPLITS;
    Pieces high = pieces_of(piece(a.experts.up, a.experts, expert, found, UP)), low = high;
    if (!upper) low = pieces_of(piece(a.experts.gate, a.experts, expert, found, GATE));
    if (!NARROW) high = low;
    Unit<BITS> units[EXPERT_BATCH<BITS>];
    bool busy = share.is_busy(0);
    uint32_t unit = share.first;
    float result[2] = {0.0f, 0.0f};
    if (busy) load_batch<BITS, PAIRED>(units, low, high, lane, unit, share.last);
    for (uint32_t round = 0; round < share.rounds;) {
        if (busy) {
            multiply_units<BITS, PAIRED>(units, unit, share.last - unit, share.shape.scale_kind, x, result,
                                         [](uint32_t) { return 1.0f; });
        }
        unit += EXPERT_BATCH<BITS>;
        bool ends = !busy || unit >= share.last;
        // The next round's first units come while this one's sums are added up.
        if (ends) {
            unit = share.first, busy = share.is_busy(round + 1);
            lane = share.template lane<PAIRED>(round + 1);
        }
        // In one place, as in `step_linear_job`.
        if (busy) load_batch<BITS, PAIRED>(units, low, high, lane, unit, share.last);
        if (!ends) continue;
        Partial<INNER_THREADS>& partial = partials[round % 2];
        leave_sums(partial, result);
        result[0] = result[1] = 0.0f;
        __syncthreads();
        finish_inner<NARROW>(a, at, share.first_row + round * Share::HEIGHT, warps, partial);
        round++;
    }
}

template <bool NARROW, typename FIND>
__device__ inline void inner_block(const StepExpertArguments& a, FIND&& find) {
    extern __shared__ float staged[];
    __shared__ float warps[INNER_THREADS / 32];
    __shared__ Partial<INNER_THREADS> partials[2];
    // The stream was complete before the router's kernel began, and that releases this one only once it has begun.
    stage_halves(a.source, blockIdx.z, staged, warps);
    switch (a.experts.gate.bits) {
        case 2: return inner_rows<2, NARROW>(a, staged, warps, partials, find);
        case 3: return inner_rows<3, NARROW>(a, staged, warps, partials, find);
        case 4: return inner_rows<4, NARROW>(a, staged, warps, partials, find);
        case 5: return inner_rows<5, NARROW>(a, staged, warps, partials, find);
        case 6: return inner_rows<6, NARROW>(a, staged, warps, partials, find);
        default: return inner_rows<8, NARROW>(a, staged, warps, partials, find);
    }
}

template <bool NARROW>
__device__ inline void inner_block(const StepExpertArguments& a) {
    __shared__ uint64_t record;
    inner_block<NARROW>(a, [&](size_t at, uint32_t& expert) {
        await_inputs();
        release_next();
        expert = a.chosen[at];
        return block_record(a, at, expert, record);
    });
}

// Where the routed experts' matrices of down are, and how much each counts.
struct Routed {
    Pieces down[TOP_K_LIMIT];
    float factor[TOP_K_LIMIT];
};

// What the stage of `step_outer` needs besides the arguments.
struct OuterStage {
    const float* routed;     // [k, width]
    const float* shared;     // [shared]
    uint32_t count;          // units of an expert's vector
    uint32_t total, every;   // of all routed ones, and with the shared one
    uint32_t tile;           // of the warp: 16 rows
    uint32_t inverse;        // 2^32 / count, rounded up

    // Whose a unit is: its number divided by `count`.
    __device__ inline uint32_t rank_of(uint32_t unit) const { return count == 1 ? unit : __umulhi(unit, inverse); }
};

// A batch of units `first..last` of all experts' vectors one after another.
template <int BITS>
__device__ inline void load_routed(Unit<BITS> (&units)[EXPERT_BATCH<BITS>], const OuterStage& s, const Routed& routed,
                                   const TileLane& lane, uint32_t first, uint32_t last) {
    Pieces pieces[EXPERT_BATCH<BITS>];
    uint32_t places[EXPERT_BATCH<BITS>];
#pragma unroll
    for (int i = 0; i < EXPERT_BATCH<BITS>; i++) {
        uint32_t unit = min(first + i, last - 1), rank = s.rank_of(unit);
        pieces[i] = routed.down[rank], places[i] = unit - rank * s.count;
    }
    load_units<BITS, PAIRED_EXPERT<BITS>>(units, pieces, pieces, lane, places);
}

constexpr int OUTER_TOGETHER = 1;  // rounds of 4096 values that are asked for together

__device__ inline void stage_outer(const OuterStage& s, float* staged) {
    // Whole units: the vectors of the routed experts lie one after another, and so do they here.
    uint32_t columns = s.every * UNIT, routed = s.total * UNIT;
    constexpr uint32_t step = STEP_THREADS * 8;
    for (uint32_t start = 0; start < columns; start += OUTER_TOGETHER * step) {
        float4 v[OUTER_TOGETHER][2] = {};
#pragma unroll
        for (int r = 0; r < OUTER_TOGETHER; r++) {
            uint32_t column = start + r * step + threadIdx.x * 8;
            if (column >= columns) continue;
            const float* from = column < routed ? s.routed + column : s.shared + (column - routed);
            v[r][0] = __ldcg(reinterpret_cast<const float4*>(from));
            v[r][1] = __ldcg(reinterpret_cast<const float4*>(from) + 1);
        }
#pragma unroll
        for (int r = 0; r < OUTER_TOGETHER; r++) {
            uint32_t column = start + r * step + threadIdx.x * 8;
            if (start + r * step >= columns) break;
            float4 b = v[r][0], c = v[r][1];
            float eight[8] = {b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w};
            stage_values(staged, column, eight, column < columns);
        }
    }
    stage_zeros(staged, s.every * 4 * STAGED_CHUNK);
}

// A warp's share of the routed experts, units `first..last`. `known`: the first are asked for before inputs are there.
template <int BITS>
__device__ inline void outer_routed(const OuterStage& s, const Routed& routed, const Matrix& shape, bool known,
                                    uint32_t first, uint32_t last, float* staged, float (&result)[2]) {
    constexpr bool PAIRED = PAIRED_EXPERT<BITS>;
    Unit<BITS> units[EXPERT_BATCH<BITS>];
    TileLane lane = tile_lane<PAIRED>(shape, s.tile);
    bool busy = first < last;
    if (busy && known) load_routed<BITS>(units, s, routed, lane, first, last);
    VectorLane x = vector_lane<PAIRED>(staged, s.every * 4 * STAGED_CHUNK, shape);
    await_inputs();
    release_next();
    stage_outer(s, staged);
    __syncthreads();
    if (!busy) return;
    for (uint32_t unit = first;; known = true) {
        if (known) {
            multiply_units<BITS, PAIRED>(units, unit, last - unit, shape.scale_kind, x, result,
                                         [&](uint32_t at) { return routed.factor[s.rank_of(at)]; });
            unit += EXPERT_BATCH<BITS>;
            if (unit >= last) break;
        }
        // In one place, as in `step_linear_job`.
        load_routed<BITS>(units, s, routed, lane, unit, last);
    }
}

// A warp's share of the shared expert, units `first..last`.
template <int BITS>
__device__ inline void outer_shared(const OuterStage& s, const Matrix& m, float factor, uint32_t first, uint32_t last,
                                    const float* staged, float (&result)[2]) {
    VectorLane x = vector_lane(staged, s.every * 4 * STAGED_CHUNK, m);
    TileLane lane = tile_lane(m, s.tile);
    Pieces pieces = pieces_of(m);
    for (uint32_t unit = first; unit < last; unit += EXPERT_BATCH<BITS>) {
        Unit<BITS> units[EXPERT_BATCH<BITS>];
        load_batch(units, pieces, pieces, lane, unit, last);
        multiply_units<BITS>(units, s.total + unit, last - unit, m.scale_kind, x, result,
                             [&](uint32_t) { return factor; });
    }
}

// The vectors of `token` in units of `unit` columns, for the warp's `tile`.
__device__ inline OuterStage outer_stage(const StepExpertArguments& a, uint32_t token, uint32_t tile, uint32_t unit) {
    OuterStage s;
    s.tile = tile;
    uint32_t width = a.experts.down.columns, shared_width = a.shared_gate ? a.down.columns : 0;
    s.routed = a.inner + size_t(token) * a.k * width, s.shared = a.shared_inner + size_t(token) * shared_width;
    s.count = width / unit, s.inverse = 0xffffffffu / s.count + 1;
    s.total = a.k * s.count, s.every = s.total + shared_width / unit;
    return s;
}

// Finds the experts of `token`: thread i of the first `k` passes expert i's matrix to `place`. False when one has
// failed, whose reader knows. `known`: all were in memory already, and the inputs are still to be awaited.
template <typename Place>
__device__ inline bool find_routed(const StepExpertArguments& a, uint32_t token, float* factors, bool& known,
                                   Place&& place) {
    bool failed = false;
    size_t at = size_t(token) * a.k + threadIdx.x;
    auto find = [&](uint64_t record) {
        failed = record == FAILED;
        place(piece(a.experts.down, a.experts, __ldcg(a.chosen + at), record, DOWN));
    };
    // Routing was complete when the kernel before released this one: what it found in memory can be asked for.
    known = true;
    if (threadIdx.x < a.k) {
        uint64_t record = __ldcg(a.addresses + at);
        known = !is_awaited(record);
        factors[threadIdx.x] = __ldcg(a.weights + at);
        find(record);
    }
    known = __syncthreads_and(known);
    if (!known) {
        // All are, once the kernel before has ended.
        await_inputs();
        if (threadIdx.x < a.k) find(__ldcg(a.addresses + at));
    }
    if (!__syncthreads_or(failed)) return true;
    if (threadIdx.x == 0) note_end(a.ended);
    return false;
}

// Adds what all warps have of the block's rows to the stream of `token`.
__device__ inline void add_mixture(const StepExpertArguments& a, uint32_t token, uint32_t at_once, uint32_t splits,
                                   Partial<STEP_THREADS>& partial, float (&result)[2]) {
    leave_sums(partial, result);
    __syncthreads();
    if (threadIdx.x == STEP_THREADS - 1) note_end(a.ended);
    uint32_t row = blockIdx.x * at_once * 16 + threadIdx.x;
    if (threadIdx.x >= at_once * 16 || row >= a.source.columns) return;
    float* out = a.out + size_t(token) * a.source.columns + row;
    float mixture = 0.0f;
    uint32_t from = threadIdx.x / 16 * splits;
    for (uint32_t i = 0; i < splits; i++) mixture += partial.sum[from + i][threadIdx.x % 16];
    *out = __ldcg(out) + mixture;
}

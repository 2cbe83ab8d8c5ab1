// The kernels of a step for matrices in two planes: 8-bit floats and MXFP4, sixteen rows and 128 columns a warp, as
// halves.cuh. Lane t of four has columns 32 t ..; of 8-bit floats one scale serves all of them, of MXFP4 each lane has
// its own. Floats may be among the matrices of a product, as in step_blocks.cu.
#include "blocks_step.cuh"
#include "planes.cuh"

// A lane's share of a unit, scales as stored.
template <uint32_t FORMAT>
struct PlaneUnit {
    uint32_t low[Planes<FORMAT>::WORDS], high[Planes<FORMAT>::WORDS], scale[2];
};

// Where a lane reads a row.
struct PlaneRow {
    const uint8_t *weight, *scales;
};

template <uint32_t FORMAT>
__device__ __forceinline__ PlaneRow plane_row(const Matrix& m, const uint8_t* weight, const uint8_t* scales,
                                              uint32_t row) {
    constexpr uint32_t LANE = 4 * Planes<FORMAT>::WORDS;
    size_t at = size_t(row) * (m.columns / 32 * LANE) + threadIdx.x % 4 * LANE;
    return {weight + at, scales + Planes<FORMAT>::row_scales(m, row)};
}

template <uint32_t FORMAT>
__device__ __forceinline__ void load_plane(PlaneUnit<FORMAT>& unit, const Matrix& m, const PlaneRow& low,
                                           const PlaneRow& high, uint32_t index) {
    using P = Planes<FORMAT>;
    size_t at = size_t(index) * (16 * P::WORDS);
    uint32_t scale = index * P::scale_step(m);
    load_16<P::WORDS>(low.weight + at, unit.low);
    load_16<P::WORDS>(high.weight + at, unit.high);
    unit.scale[0] = P::scale_bits(low.scales + scale, m.scale_kind);
    unit.scale[1] = P::scale_bits(high.scales + scale, m.scale_kind);
}

// Units `first..last`; those of a batch from `last` on are the last again.
template <uint32_t FORMAT, int COUNT>
__device__ __forceinline__ void load_planes(PlaneUnit<FORMAT> (&units)[COUNT], const Matrix& m, const PlaneRow& low,
                                            const PlaneRow& high, uint32_t first, uint32_t last) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) load_plane<FORMAT>(units[i], m, low, high, min(first + i, last - 1));
}

// Adds a batch of `live` units, staged from unit `first`, to the sums of rows g and g + 8; `factor_of(unit)` is what a
// unit counts.
template <uint32_t FORMAT, int COUNT, typename FACTOR>
__device__ __forceinline__ void multiply_planes(const PlaneUnit<FORMAT> (&units)[COUNT], uint32_t first, uint32_t live,
                                                uint32_t kind, const VectorLane& x, float (&result)[2],
                                                FACTOR&& factor_of) {
    using P = Planes<FORMAT>;
    float c[COUNT][4] = {};
    unroll<0, 4>([&]<int Q>() {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            uint4 b = load_shared(x.from + min(first + i, first + live - 1) * x.step + 4 * Q);
            uint32_t low[4], high[4];
            P::template pairs<Q>(units[i].low, low);
            P::template pairs<Q>(units[i].high, high);
            multiply_halves(c[i], low[0], high[0], low[1], high[1], b.x, b.y);
            multiply_halves(c[i], low[2], high[2], low[3], high[3], b.z, b.w);
        }
    });
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        if (i >= live) break;
        float inverse = x.sums[(first + i) * 4 * STAGED_CHUNK + 1] * P::RAISED, factor = factor_of(first + i);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float products = (c[i][2 * r] + c[i][2 * r + 1]) * inverse;
            result[r] = fmaf(factor, P::scale_value(units[i].scale[r], kind) * products, result[r]);
        }
    }
}

template <uint32_t FORMAT>
__device__ inline void step_planes_job(const StepLinearArguments& a, const StepJob& job, uint32_t block, float* staged,
                                       float* warps, Partial<STEP_THREADS> (&partials)[2]) {
    constexpr int AT_ONCE = Planes<FORMAT>::AT_ONCE;
    LinearShare share(a, a.source.columns / UNIT);
    uint32_t at_once = share.at_once, member = share.member, first = share.first, last = share.last;
    bool pair = job.kind == SWIGLU;
    const Matrix& m = pair && member ? job.second : job.matrix;
    uint32_t rows = m.rows, tiles = (rows + 15) / 16;
    PlaneUnit<FORMAT> units[AT_ONCE];
    PlaneRow low = {m.weight, m.scales}, high = low;
    bool busy;
    auto begin_round = [&](uint32_t round) __attribute__((always_inline)) {
        uint32_t tile = pair ? block * a.rounds + round : (block * a.rounds + round) * at_once + member;
        busy = round < a.rounds && tile < tiles && first < last && (!pair || member < 2);
        if (!busy) return;
        uint32_t row = min(tile * 16 + threadIdx.x % 32 / 4, rows - 1);
        low = plane_row<FORMAT>(m, m.weight, m.scales, row);
        high = plane_row<FORMAT>(m, m.weight, m.scales, min(row + 8, rows - 1));
        load_planes<FORMAT>(units, m, low, high, first, last);
    };
    begin_round(0);
    // What was asked for comes while the kernel before runs.
    await_inputs();
    release_next();
    stage_halves(a.source, blockIdx.y, staged, warps);
    __syncthreads();
    float factor = staged_factor(a.source, warps);
    VectorLane x = vector_lane(staged, staged_words(a.source.columns), m);
    for (uint32_t round = 0; round < a.rounds; round++) {
        float result[2] = {0.0f, 0.0f};
        if (busy) {
            for (uint32_t unit = first;;) {
                multiply_planes<FORMAT>(units, unit, last - unit, m.scale_kind, x, result,
                                        [](uint32_t) { return 1.0f; });
                unit += AT_ONCE;
                if (unit >= last) break;
                load_planes<FORMAT>(units, m, low, high, unit, last);
            }
        }
        begin_round(round + 1);
        Partial<STEP_THREADS>& partial = partials[round % 2];
        leave_sums(partial, result);
        __syncthreads();
        if (threadIdx.x >= round_outputs(job, share)) continue;
        finish_output(a, job, share, block, round, threadIdx.x, partial.sum, blockIdx.y, factor);
    }
}

// As `step_linear`.
extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) step_linear_planes(
    const __grid_constant__ StepLinearArguments a) {
    extern __shared__ float staged[];
    __shared__ float warps[STEP_THREADS / 32];
    __shared__ Partial<STEP_THREADS> partials[2];
    const StepJob& job = a.job[block_job(a)];
    uint32_t block = blockIdx.x - job.first_block, kind = job.matrix.kind;
    if (kind == F32) return step_blocks_job<FloatJob<F32>>(a, job, block, staged, warps, partials);
    if (kind == F16) return step_blocks_job<FloatJob<F16>>(a, job, block, staged, warps, partials);
    if (kind == BF16) return step_blocks_job<FloatJob<BF16>>(a, job, block, staged, warps, partials);
    if (job.matrix.bits == BLOCK_FP8) return step_planes_job<BLOCK_FP8>(a, job, block, staged, warps, partials);
    step_planes_job<BLOCK_MXFP4_PLANES>(a, job, block, staged, warps, partials);
}

// Products of gate and up, matrices of one shape: eight warps take 8 rows of each as one tile, as `step_inner_narrow`.
// `finish(first_row, partial)` makes something of them, a round at a time.
template <uint32_t FORMAT, typename FINISH>
__device__ inline void pair_planes(const StepExpertArguments& a, const Matrix& shape, const Pieces& gate,
                                   const Pieces& up, const VectorLane& x, Partial<INNER_THREADS> (&partials)[2],
                                   FINISH&& finish) {
    constexpr uint32_t SHARES = InnerShare<true>::SHARES, HEIGHT = InnerShare<true>::HEIGHT;
    constexpr int AT_ONCE = Planes<FORMAT>::AT_ONCE;
    uint32_t count = a.source.columns / UNIT, split = threadIdx.x / 32;
    uint32_t first = first_unit(count, split, SHARES, false), last = first_unit(count, split + 1, SHARES, false);
    uint32_t first_row = blockIdx.x * a.rounds * HEIGHT;
    PlaneUnit<FORMAT> units[AT_ONCE];
    PlaneRow low = {gate.weight, gate.scales}, high = {up.weight, up.scales};
    bool busy;
    auto begin_round = [&](uint32_t round) __attribute__((always_inline)) {
        busy = round < a.rounds && first_row + round * HEIGHT < shape.rows && first < last;
        if (!busy) return;
        uint32_t row = min(first_row + round * HEIGHT + threadIdx.x % 32 / 4, shape.rows - 1);
        low = plane_row<FORMAT>(shape, gate.weight, gate.scales, row);
        high = plane_row<FORMAT>(shape, up.weight, up.scales, row);
        load_planes<FORMAT>(units, shape, low, high, first, last);
    };
    begin_round(0);
    for (uint32_t round = 0; round < a.rounds; round++) {
        float result[2] = {0.0f, 0.0f};
        if (busy) {
            for (uint32_t unit = first;;) {
                multiply_planes<FORMAT>(units, unit, last - unit, shape.scale_kind, x, result,
                                        [](uint32_t) { return 1.0f; });
                unit += AT_ONCE;
                if (unit >= last) break;
                load_planes<FORMAT>(units, shape, low, high, unit, last);
            }
        }
        begin_round(round + 1);
        Partial<INNER_THREADS>& partial = partials[round % 2];
        leave_sums(partial, result);
        __syncthreads();
        finish(first_row + round * HEIGHT, partial);
    }
}

// The matrices of a chosen expert; false when its record cannot be had.
__device__ inline bool find_pair(const StepExpertArguments& a, size_t at, uint64_t& record, Pieces& gate, Pieces& up) {
    uint32_t expert = a.chosen[at];
    uint64_t found = block_record(a, at, expert, record);
    if (found == FAILED) return false;
    gate = pieces_of(piece(a.experts.gate, a.experts, expert, found, GATE));
    up = pieces_of(piece(a.experts.up, a.experts, expert, found, UP));
    return true;
}

// Products of gate and up and SwiGLU, in a block of `step_inner_planes` or `step_inner_limited`: of matrices like
// `shape`, of the shared expert or of a chosen one (`shared`, `gate`, `up`), to `to`.
template <uint32_t FORMAT, typename LIMIT>
__device__ inline void inner_planes(const StepExpertArguments& a, const Matrix& shape, bool shared, Pieces gate,
                                    Pieces up, float* to, const float* staged, const float* warps,
                                    Partial<INNER_THREADS> (&partials)[2], uint64_t& record, LIMIT&& limit) {
    VectorLane x = vector_lane(staged, staged_words(a.source.columns), shape);
    await_inputs();
    release_next();
    // The stream is staged once all threads are here, as they are behind a look for a record.
    if (shared) __syncthreads();
    else if (!find_pair(a, size_t(blockIdx.z) * a.k + blockIdx.y, record, gate, up)) return;
    pair_planes<FORMAT>(a, shape, gate, up, x, partials,
                        [&](uint32_t first_row, const Partial<INNER_THREADS>& partial) {
                            finish_swiglu<true>(a.source, shape.rows, to, first_row, warps, partial, limit);
                        });
}

template <typename LIMIT>
__device__ inline void inner_planes_block(const StepExpertArguments& a, const Matrix& shape, bool shared, Pieces gate,
                                          Pieces up, float* to, LIMIT&& limit) {
    extern __shared__ float staged[];
    __shared__ float warps[INNER_THREADS / 32];
    __shared__ Partial<INNER_THREADS> partials[2];
    __shared__ uint64_t record;
    stage_halves(a.source, blockIdx.z, staged, warps);
    if (shape.bits == BLOCK_FP8) {
        return inner_planes<BLOCK_FP8>(a, shape, shared, gate, up, to, staged, warps, partials, record, limit);
    }
    inner_planes<BLOCK_MXFP4_PLANES>(a, shape, shared, gate, up, to, staged, warps, partials, record, limit);
}

// Where the values of the block's choice go.
__device__ inline float* inner_of(const StepExpertArguments& a) {
    return a.inner + (size_t(blockIdx.z) * a.k + blockIdx.y) * a.experts.gate.rows;
}

// Grid: (tiles of 8 rows by `rounds`, k, tokens), 256 threads; shared: the staged stream.
extern "C" __global__ void __launch_bounds__(INNER_THREADS, 2) step_inner_planes(
    const __grid_constant__ StepExpertArguments a) {
    inner_planes_block(a, a.experts.gate, false, {}, {}, inner_of(a), [](float&, float&) {});
}

struct StepLimitedArguments {
    StepExpertArguments step;
    Matrix gate;                 // of the shared expert
    Matrix up;
    float* shared_inner;         // [tokens, shared]
    float limit;                 // of gate from above, of up on both sides
    uint32_t padding;
};

// As `step_inner_planes`, clamped, of the shared expert as well: the block with the rank behind the last.
// Grid: (tiles of 8 rows by `rounds`, k and one with a shared expert, tokens).
extern "C" __global__ void __launch_bounds__(INNER_THREADS, 2) step_inner_limited(
    const __grid_constant__ StepLimitedArguments b) {
    const StepExpertArguments& a = b.step;
    bool shared = blockIdx.y == a.k;
    float* to = shared ? b.shared_inner + size_t(blockIdx.z) * b.gate.rows : inner_of(a);
    inner_planes_block(a, shared ? b.gate : a.experts.gate, shared, pieces_of(b.gate), pieces_of(b.up), to,
                       [&](float& gate, float& up) {
                           // A number that is none stays one.
                           gate = gate > b.limit ? b.limit : gate;
                           up = up > b.limit ? b.limit : up < -b.limit ? -b.limit : up;
                       });
}

// Where the routed experts' matrices of down are, and how much each counts.
struct RoutedPlanes {
    PlaneRow down[TOP_K_LIMIT];
    float factor[TOP_K_LIMIT];
};

// A batch of units `first..last` of all experts' vectors one after another.
template <uint32_t FORMAT, int COUNT>
__device__ __forceinline__ void load_routed_planes(PlaneUnit<FORMAT> (&units)[COUNT], const OuterStage& s,
                                                   const RoutedPlanes& routed, const Matrix& m, uint32_t row,
                                                   uint32_t first, uint32_t last) {
    uint32_t next = min(row + 8, m.rows - 1);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        uint32_t unit = min(first + i, last - 1), rank = s.rank_of(unit);
        const PlaneRow& down = routed.down[rank];
        load_plane<FORMAT>(units[i], m, plane_row<FORMAT>(m, down.weight, down.scales, row),
                           plane_row<FORMAT>(m, down.weight, down.scales, next), unit - rank * s.count);
    }
}

// As `outer_routed`.
template <uint32_t FORMAT>
__device__ inline void outer_routed_planes(const OuterStage& s, const RoutedPlanes& routed, const Matrix& m, bool known,
                                           uint32_t first, uint32_t last, float* staged, float (&result)[2]) {
    constexpr int AT_ONCE = Planes<FORMAT>::AT_ONCE;
    uint32_t row = min(s.tile * 16 + threadIdx.x % 32 / 4, m.rows - 1);
    PlaneUnit<FORMAT> units[AT_ONCE];
    bool busy = first < last;
    if (busy && known) load_routed_planes<FORMAT>(units, s, routed, m, row, first, last);
    VectorLane x = vector_lane(staged, s.every * 4 * STAGED_CHUNK, m);
    await_inputs();
    release_next();
    stage_outer(s, staged);
    __syncthreads();
    if (!busy) return;
    if (!known) load_routed_planes<FORMAT>(units, s, routed, m, row, first, last);
    for (uint32_t unit = first;;) {
        multiply_planes<FORMAT>(units, unit, last - unit, m.scale_kind, x, result,
                                [&](uint32_t at) { return routed.factor[s.rank_of(at)]; });
        unit += AT_ONCE;
        if (unit >= last) break;
        load_routed_planes<FORMAT>(units, s, routed, m, row, unit, last);
    }
}

// As `outer_shared`.
template <uint32_t FORMAT>
__device__ inline void outer_shared_planes(const OuterStage& s, const Matrix& m, float factor, uint32_t first,
                                           uint32_t last, const float* staged, float (&result)[2]) {
    constexpr int AT_ONCE = Planes<FORMAT>::AT_ONCE;
    uint32_t row = min(s.tile * 16 + threadIdx.x % 32 / 4, m.rows - 1);
    PlaneRow low = plane_row<FORMAT>(m, m.weight, m.scales, row);
    PlaneRow high = plane_row<FORMAT>(m, m.weight, m.scales, min(row + 8, m.rows - 1));
    VectorLane x = vector_lane(staged, s.every * 4 * STAGED_CHUNK, m);
    for (uint32_t unit = first; unit < last; unit += AT_ONCE) {
        PlaneUnit<FORMAT> units[AT_ONCE];
        load_planes<FORMAT>(units, m, low, high, unit, last);
        multiply_planes<FORMAT>(units, s.total + unit, last - unit, m.scale_kind, x, result,
                                [&](uint32_t) { return factor; });
    }
}

// As `step_outer`.
extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) step_outer_planes(
    const __grid_constant__ StepExpertArguments a) {
    extern __shared__ float staged[];
    __shared__ Partial<STEP_THREADS> partial;
    __shared__ RoutedPlanes routed;
    uint32_t token = blockIdx.y, shares = STEP_WARPS_SHIFT - a.tiles_shift, splits = 1 << shares;
    uint32_t at_once = 1 << a.tiles_shift, member = threadIdx.x / 32 >> shares, split = threadIdx.x / 32 % splits;
    OuterStage s = outer_stage(a, token, blockIdx.x * at_once + member, UNIT);
    bool known;
    auto place = [&](const Matrix& down) { routed.down[threadIdx.x] = {down.weight, down.scales}; };
    if (!find_routed(a, token, routed.factor, known, place)) return;
    uint32_t first = first_unit(s.every, split, shares, false), last = first_unit(s.every, split + 1, shares, false);
    float result[2] = {0.0f, 0.0f};
    uint32_t end = min(last, s.total);
    const Matrix& down = a.experts.down;
    if (down.bits == BLOCK_FP8) {
        outer_routed_planes<BLOCK_FP8>(s, routed, down, known, first, end, staged, result);
    } else {
        outer_routed_planes<BLOCK_MXFP4_PLANES>(s, routed, down, known, first, end, staged, result);
    }
    if (last > s.total) {
        float factor = sigmoid(__ldcg(a.shared_gate + token));
        first = max(first, s.total) - s.total, last -= s.total;
        if (a.down.bits == BLOCK_FP8) {
            outer_shared_planes<BLOCK_FP8>(s, a.down, factor, first, last, staged, result);
        } else {
            outer_shared_planes<BLOCK_MXFP4_PLANES>(s, a.down, factor, first, last, staged, result);
        }
    }
    add_mixture(a, token, at_once, splits, partial, result);
}

// The kernels of a step (step.cu) for matrices of blocks and of floats: the same work in the same order, with the
// products of blocks_step.cuh. Kernels of their own, so that affine ones keep their registers and their code; and so
// have launches with a format of blocks_grids.cuh, for the sake of the others.
#include "block_jobs.cuh"

// The product's units of all rounds one after another, one multiplied while the next ones come: a loop of one unit is
// half as much code to fetch as one of two (9.3 us instead of 9.5 for 12,352 rows of 2,048 columns in Q4_K).
template <typename JOB>
__device__ inline void step_blocks_job(const StepLinearArguments& a, const StepJob& job, uint32_t block, float* staged,
                                       float* warps, Partial<STEP_THREADS> (&partials)[2]) {
    uint32_t count = a.source.columns / JOB::COLUMNS;
    LinearShare share(a, count);
    uint32_t at_once = share.at_once, member = share.member, first = share.first, last = share.last;
    bool pair = job.kind == SWIGLU;
    const uint8_t* weight = (pair && member ? job.second : job.matrix).weight;
    uint32_t rows = job.matrix.rows, tiles = (rows + 15) / 16, row_bytes = count * JOB::BYTES;
    auto tile_of = [&](uint32_t round) {
        return pair ? block * a.rounds + round : (block * a.rounds + round) * at_once + member;
    };
    auto is_busy = [&](uint32_t round) {
        return round < a.rounds && tile_of(round) < tiles && first < last && (!pair || member < 2);
    };
    // What is asked for next.
    uint32_t ahead = 0, place = first;
    const uint8_t *low = weight, *high = weight;
    auto seek = [&]() {
        uint32_t row = min(tile_of(ahead) * 16 + threadIdx.x % 32 / 4, rows - 1);
        low = weight + size_t(row) * row_bytes, high = weight + size_t(min(row + 8, rows - 1)) * row_bytes;
    };
    auto ask = [&](typename JOB::Unit& to) __attribute__((always_inline)) {
        if (!is_busy(ahead)) return;
        size_t at = size_t(place) * JOB::BYTES;
        JOB::load(to, low + at, high + at);
        if (++place == last) place = first, ahead++, seek();
    };
    typename JOB::Unit units[JOB::AT_ONCE];
    seek();
#pragma unroll
    for (int i = 0; i < JOB::AT_ONCE; i++) ask(units[i]);
    // What was asked for comes while the kernel before runs.
    await_inputs();
    release_next();
    stage_halves(a.source, blockIdx.y, staged, warps);
    uint32_t words = staged_words(a.source.columns);
    stage_block_zeros(staged, words);
    __syncthreads();
    float factor = staged_factor(a.source, warps);
    JOB products(staged, words);
    for (uint32_t round = 0; round < a.rounds; round++) {
        float result[2] = {0.0f, 0.0f};
        uint32_t end = is_busy(round) ? last : first;
#pragma unroll 1
        for (uint32_t unit = first; unit < end; unit++) {
            multiply_unit(products, units[0], unit, 1.0f, result);
            units[0] = units[JOB::AT_ONCE - 1];
            ask(units[JOB::AT_ONCE - 1]);
        }
        Partial<STEP_THREADS>& partial = partials[round % 2];
        leave_sums(partial, result);
        __syncthreads();
        if (threadIdx.x >= round_outputs(job, share)) continue;
        finish_output(a, job, share, block, round, threadIdx.x, partial.sum, blockIdx.y, factor);
    }
}

// As `step_linear`.
template <FormatSet SET>
__device__ inline void step_linear_of_blocks(const StepLinearArguments& a) {
    extern __shared__ float staged[];
    __shared__ float warps[STEP_THREADS / 32];
    __shared__ Partial<STEP_THREADS> partials[2];
    const StepJob& job = a.job[block_job(a)];
    uint32_t block = blockIdx.x - job.first_block;
    with_job<SET>(job.matrix, [&]<typename JOB>() { step_blocks_job<JOB>(a, job, block, staged, warps, partials); });
}

extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) step_linear_usual(
    const __grid_constant__ StepLinearArguments a) {
    step_linear_of_blocks<USUAL>(a);
}
extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) step_linear_blocks(
    const __grid_constant__ StepLinearArguments a) {
    step_linear_of_blocks<BLOCKS>(a);
}
extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) step_linear_grids(
    const __grid_constant__ StepLinearArguments a) {
    step_linear_of_blocks<GRIDS>(a);
}

// Products of gate and up, and SwiGLU: eight warps take 8 rows of each as one tile, as `step_inner_narrow`.
template <typename F>
__device__ inline void inner_blocks(const StepExpertArguments& a, float* staged, const float* warps,
                                    Partial<INNER_THREADS> (&partials)[2], uint64_t& record) {
    using JOB = BlockJob<F>;
    constexpr uint32_t SHARES = InnerShare<true>::SHARES, HEIGHT = InnerShare<true>::HEIGHT;
    const Matrix& shape = a.experts.gate;
    uint32_t count = a.source.columns / JOB::COLUMNS, split = threadIdx.x / 32;
    uint32_t first = first_unit(count, split, SHARES, false), last = first_unit(count, split + 1, SHARES, false);
    uint32_t row_bytes = count * JOB::BYTES, first_row = blockIdx.x * a.rounds * HEIGHT;
    uint32_t words = staged_words(a.source.columns);
    JOB products(staged, words);
    await_inputs();
    release_next();
    size_t at = size_t(blockIdx.z) * a.k + blockIdx.y;
    uint32_t expert = a.chosen[at];
    uint64_t found = block_record(a, at, expert, record);
    if (found == FAILED) return;
    const uint8_t* gate = piece(a.experts.gate, a.experts, expert, found, GATE).weight;
    const uint8_t* up = piece(a.experts.up, a.experts, expert, found, UP).weight;
    typename JOB::Unit unit;
    const uint8_t *low = gate, *high = up;
    bool busy;
    auto begin_round = [&](uint32_t round) __attribute__((always_inline)) {
        busy = round < a.rounds && first_row + round * HEIGHT < shape.rows && first < last;
        if (!busy) return;
        size_t row = size_t(min(first_row + round * HEIGHT + threadIdx.x % 32 / 4, shape.rows - 1)) * row_bytes;
        low = gate + row, high = up + row;
        JOB::load(unit, low + size_t(first) * JOB::BYTES, high + size_t(first) * JOB::BYTES);
    };
    begin_round(0);
    for (uint32_t round = 0; round < a.rounds; round++) {
        float result[2] = {0.0f, 0.0f};
        for (uint32_t index = first; busy;) {
            multiply_unit(products, unit, index, 1.0f, result);
            if (++index >= last) break;
            JOB::load(unit, low + size_t(index) * JOB::BYTES, high + size_t(index) * JOB::BYTES);
        }
        begin_round(round + 1);
        Partial<INNER_THREADS>& partial = partials[round % 2];
        leave_sums(partial, result);
        __syncthreads();
        finish_inner<true>(a, at, first_row + round * HEIGHT, warps, partial);
    }
}

// Grid: (tiles of 8 rows by `rounds`, k, tokens), 256 threads; shared: the staged stream.
template <FormatSet SET>
__device__ inline void step_inner_of_blocks(const StepExpertArguments& a) {
    extern __shared__ float staged[];
    __shared__ float warps[INNER_THREADS / 32];
    __shared__ Partial<INNER_THREADS> partials[2];
    __shared__ uint64_t record;
    stage_halves(a.source, blockIdx.z, staged, warps);
    stage_block_zeros(staged, staged_words(a.source.columns));
    with_step_format<SET>(a.experts.gate.bits,
                          [&]<typename F>() { inner_blocks<F>(a, staged, warps, partials, record); });
}

extern "C" __global__ void __launch_bounds__(INNER_THREADS, 2) step_inner_usual(
    const __grid_constant__ StepExpertArguments a) {
    step_inner_of_blocks<USUAL>(a);
}
extern "C" __global__ void __launch_bounds__(INNER_THREADS, 2) step_inner_blocks(
    const __grid_constant__ StepExpertArguments a) {
    step_inner_of_blocks<BLOCKS>(a);
}
extern "C" __global__ void __launch_bounds__(INNER_THREADS, 2) step_inner_grids(
    const __grid_constant__ StepExpertArguments a) {
    step_inner_of_blocks<GRIDS>(a);
}

// As `outer_routed`; `s` counts units of 256 columns.
template <typename F>
__device__ inline void outer_routed_blocks(const OuterStage& s, const RoutedBlocks& routed, const Matrix& shape,
                                           bool known, uint32_t first, uint32_t last, float* staged,
                                           float (&result)[2]) {
    using JOB = BlockJob<F>;
    size_t row_bytes = size_t(s.count) * JOB::BYTES;
    uint32_t row = min(s.tile * 16 + threadIdx.x % 32 / 4, shape.rows - 1);
    size_t low = row * row_bytes, high = min(row + 8, shape.rows - 1) * row_bytes;
    typename JOB::Unit unit;
    bool busy = first < last;
    if (busy && known) load_routed_block<JOB>(unit, s, routed, low, high, first);
    JOB products(staged, s.every * 8 * STAGED_CHUNK);
    await_inputs();
    release_next();
    OuterStage halves = s;
    halves.count = 2 * s.count, halves.total = 2 * s.total, halves.every = 2 * s.every;
    stage_outer(halves, staged);
    stage_block_zeros(staged, s.every * 8 * STAGED_CHUNK);
    __syncthreads();
    if (!busy) return;
    if (!known) load_routed_block<JOB>(unit, s, routed, low, high, first);
    for (uint32_t index = first;;) {
        multiply_unit(products, unit, index, routed.factor[s.rank_of(index)], result);
        if (++index >= last) break;
        load_routed_block<JOB>(unit, s, routed, low, high, index);
    }
}

// As `outer_shared`.
template <typename F>
__device__ inline void outer_shared_blocks(const OuterStage& s, const Matrix& m, float factor, uint32_t first,
                                           uint32_t last, const float* staged, float (&result)[2]) {
    using JOB = BlockJob<F>;
    uint32_t row = min(s.tile * 16 + threadIdx.x % 32 / 4, m.rows - 1), row_bytes = (s.every - s.total) * JOB::BYTES;
    const uint8_t* low = m.weight + size_t(row) * row_bytes;
    const uint8_t* high = m.weight + size_t(min(row + 8, m.rows - 1)) * row_bytes;
    JOB products(staged, s.every * 8 * STAGED_CHUNK);
    for (uint32_t index = first; index < last; index++) {
        typename JOB::Unit unit;
        JOB::load(unit, low + size_t(index) * JOB::BYTES, high + size_t(index) * JOB::BYTES);
        multiply_unit(products, unit, s.total + index, factor, result);
    }
}

// As `step_outer`.
template <FormatSet SET>
__device__ inline void step_outer_of_blocks(const StepExpertArguments& a) {
    extern __shared__ float staged[];
    __shared__ Partial<STEP_THREADS> partial;
    __shared__ RoutedBlocks routed;
    uint32_t token = blockIdx.y, shares = STEP_WARPS_SHIFT - a.tiles_shift, splits = 1 << shares;
    uint32_t at_once = 1 << a.tiles_shift, member = threadIdx.x / 32 >> shares, split = threadIdx.x / 32 % splits;
    OuterStage s = outer_stage(a, token, blockIdx.x * at_once + member, BLOCK_UNIT);
    bool known;
    auto place = [&](const Matrix& down) { routed.down[threadIdx.x] = down.weight; };
    if (!find_routed(a, token, routed.factor, known, place)) return;
    uint32_t first = first_unit(s.every, split, shares, false), last = first_unit(s.every, split + 1, shares, false);
    float result[2] = {0.0f, 0.0f};
    uint32_t end = min(last, s.total);
    with_step_format<SET>(a.experts.down.bits, [&]<typename F>() {
        outer_routed_blocks<F>(s, routed, a.experts.down, known, first, end, staged, result);
    });
    if (last > s.total) {
        float factor = sigmoid(__ldcg(a.shared_gate + token));
        first = max(first, s.total) - s.total, last -= s.total;
        with_step_format<SET>(a.down.bits, [&]<typename F>() {
            outer_shared_blocks<F>(s, a.down, factor, first, last, staged, result);
        });
    }
    add_mixture(a, token, at_once, splits, partial, result);
}

extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) step_outer_usual(
    const __grid_constant__ StepExpertArguments a) {
    step_outer_of_blocks<USUAL>(a);
}
extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) step_outer_blocks(
    const __grid_constant__ StepExpertArguments a) {
    step_outer_of_blocks<BLOCKS>(a);
}
extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) step_outer_grids(
    const __grid_constant__ StepExpertArguments a) {
    step_outer_of_blocks<GRIDS>(a);
}

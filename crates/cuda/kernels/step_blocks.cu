// The kernels of a step (step.cu) for matrices of blocks and of floats: the same work in the same order, with the
// products of blocks_step.cuh. Kernels of their own, so that affine ones keep their registers and their code; and so
// have launches with a format of blocks_grids.cuh, for the sake of the others.
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

    __device__ __forceinline__ void multiply(const Unit& unit, uint32_t index, float factor, float (&result)[2]) const {
        const float* vector = staged + index * 4 * STAGED_CHUNK;
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
        result[0] += factor * (sum[0] * inverse), result[1] += factor * (sum[1] * inverse);
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

    __device__ __forceinline__ void multiply(const Unit& unit, uint32_t index, float factor, float (&result)[2]) const {
        multiply_block<F>(unit, index, x, factor, result);
    }
};

// Calls f.template operator()<JOB>() for the encoding of a matrix.
template <bool GRIDS, typename FUNCTION>
__device__ inline void with_job(const Matrix& m, FUNCTION&& f) {
    if (m.kind == F32) return f.template operator()<FloatJob<F32>>();
    if (m.kind == F16) return f.template operator()<FloatJob<F16>>();
    if (m.kind == BF16) return f.template operator()<FloatJob<BF16>>();
    with_format<GRIDS>(m.bits, [&]<typename F>() { f.template operator()<BlockJob<F>>(); });
}

// Units `first..last` of two rows that begin at `low` and `high`; those of a batch from `last` on are the last again.
template <typename JOB, int COUNT>
__device__ __forceinline__ void load_rows(typename JOB::Unit (&units)[COUNT], const uint8_t* low, const uint8_t* high,
                                 uint32_t first, uint32_t last) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        size_t at = size_t(min(first + i, last - 1)) * JOB::BYTES;
        JOB::load(units[i], low + at, high + at);
    }
}

// The products of a warp's units with the vector. The first batch is loaded already.
template <typename JOB, int COUNT>
__device__ __forceinline__ void multiply_rows(const JOB& job, typename JOB::Unit (&units)[COUNT], const uint8_t* low,
                                     const uint8_t* high, uint32_t first, uint32_t last, float (&result)[2]) {
    for (uint32_t unit = first;;) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            if (unit + i < last) job.multiply(units[i], unit + i, 1.0f, result);
        }
        unit += COUNT;
        if (unit >= last) break;
        load_rows<JOB>(units, low, high, unit, last);
    }
}

template <typename JOB>
__device__ inline void step_blocks_job(const StepLinearArguments& a, const StepJob& job, uint32_t block, float* staged,
                                       float* warps, Partial<STEP_THREADS> (&partials)[2]) {
    uint32_t count = a.source.columns / JOB::COLUMNS;
    LinearShare share(a, count);
    uint32_t at_once = share.at_once, member = share.member, first = share.first, last = share.last;
    bool pair = job.kind == SWIGLU;
    const Matrix& m = pair && member ? job.second : job.matrix;
    const uint8_t* weight = m.weight;
    uint32_t rows = m.rows, tiles = (rows + 15) / 16, row_bytes = count * JOB::BYTES;
    typename JOB::Unit units[JOB::AT_ONCE];
    const uint8_t *low = weight, *high = weight;
    bool busy;
    auto begin_round = [&](uint32_t round) __attribute__((always_inline)) {
        uint32_t tile = pair ? block * a.rounds + round : (block * a.rounds + round) * at_once + member;
        busy = round < a.rounds && tile < tiles && first < last && (!pair || member < 2);
        if (!busy) return;
        uint32_t row = min(tile * 16 + threadIdx.x % 32 / 4, rows - 1);
        low = weight + size_t(row) * row_bytes, high = weight + size_t(min(row + 8, rows - 1)) * row_bytes;
        load_rows<JOB>(units, low, high, first, last);
    };
    begin_round(0);
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
        if (busy) multiply_rows<JOB>(products, units, low, high, first, last, result);
        begin_round(round + 1);
        Partial<STEP_THREADS>& partial = partials[round % 2];
        leave_sums(partial, result);
        __syncthreads();
        if (threadIdx.x >= round_outputs(job, share)) continue;
        finish_output(a, job, share, block, round, threadIdx.x, partial.sum, blockIdx.y, factor);
    }
}

// As `step_linear`.
template <bool GRIDS>
__device__ inline void step_linear_of_blocks(const StepLinearArguments& a) {
    extern __shared__ float staged[];
    __shared__ float warps[STEP_THREADS / 32];
    __shared__ Partial<STEP_THREADS> partials[2];
    const StepJob& job = a.job[block_job(a)];
    uint32_t block = blockIdx.x - job.first_block;
    with_job<GRIDS>(job.matrix, [&]<typename JOB>() { step_blocks_job<JOB>(a, job, block, staged, warps, partials); });
}

extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) step_linear_blocks(
    const __grid_constant__ StepLinearArguments a) {
    step_linear_of_blocks<false>(a);
}
extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) step_linear_grids(
    const __grid_constant__ StepLinearArguments a) {
    step_linear_of_blocks<true>(a);
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
    typename JOB::Unit units[1];
    const uint8_t *low = gate, *high = up;
    bool busy;
    auto begin_round = [&](uint32_t round) __attribute__((always_inline)) {
        busy = round < a.rounds && first_row + round * HEIGHT < shape.rows && first < last;
        if (!busy) return;
        size_t row = size_t(min(first_row + round * HEIGHT + threadIdx.x % 32 / 4, shape.rows - 1)) * row_bytes;
        low = gate + row, high = up + row;
        load_rows<JOB>(units, low, high, first, last);
    };
    begin_round(0);
    for (uint32_t round = 0; round < a.rounds; round++) {
        float result[2] = {0.0f, 0.0f};
        if (busy) multiply_rows<JOB>(products, units, low, high, first, last, result);
        begin_round(round + 1);
        Partial<INNER_THREADS>& partial = partials[round % 2];
        leave_sums(partial, result);
        __syncthreads();
        finish_inner<true>(a, at, first_row + round * HEIGHT, warps, partial);
    }
}

// Grid: (tiles of 8 rows by `rounds`, k, tokens), 256 threads; shared: the staged stream.
template <bool GRIDS>
__device__ inline void step_inner_of_blocks(const StepExpertArguments& a) {
    extern __shared__ float staged[];
    __shared__ float warps[INNER_THREADS / 32];
    __shared__ Partial<INNER_THREADS> partials[2];
    __shared__ uint64_t record;
    stage_halves(a.source, blockIdx.z, staged, warps);
    stage_block_zeros(staged, staged_words(a.source.columns));
    with_format<GRIDS>(a.experts.gate.bits, [&]<typename F>() { inner_blocks<F>(a, staged, warps, partials, record); });
}

extern "C" __global__ void __launch_bounds__(INNER_THREADS, 2) step_inner_blocks(
    const __grid_constant__ StepExpertArguments a) {
    step_inner_of_blocks<false>(a);
}
extern "C" __global__ void __launch_bounds__(INNER_THREADS, 2) step_inner_grids(
    const __grid_constant__ StepExpertArguments a) {
    step_inner_of_blocks<true>(a);
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
        products.multiply(unit, index, routed.factor[s.rank_of(index)], result);
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
        products.multiply(unit, s.total + index, factor, result);
    }
}

// As `step_outer`.
template <bool GRIDS>
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
    with_format<GRIDS>(a.experts.down.bits, [&]<typename F>() {
        outer_routed_blocks<F>(s, routed, a.experts.down, known, first, end, staged, result);
    });
    if (last > s.total) {
        float factor = sigmoid(__ldcg(a.shared_gate + token));
        first = max(first, s.total) - s.total, last -= s.total;
        with_format<GRIDS>(a.down.bits, [&]<typename F>() {
            outer_shared_blocks<F>(s, a.down, factor, first, last, staged, result);
        });
    }
    add_mixture(a, token, at_once, splits, partial, result);
}

extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) step_outer_blocks(
    const __grid_constant__ StepExpertArguments a) {
    step_outer_of_blocks<false>(a);
}
extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) step_outer_grids(
    const __grid_constant__ StepExpertArguments a) {
    step_outer_of_blocks<true>(a);
}

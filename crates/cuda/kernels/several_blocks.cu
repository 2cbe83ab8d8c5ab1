// A step of several tokens for matrices of blocks and of floats: products, and the second half of the experts. What
// several.cuh says of bits holds: sums are cut as step_blocks.cu cuts them. A product of tensor cores has one token,
// because groups of 32 columns fill it.
#include "block_jobs.cuh"
#include "several.cuh"

// Most tokens that a unit is unpacked for once.
constexpr int BLOCK_TOKENS = 4;

// Whether the next unit of a matrix is asked for while one is multiplied.
template <typename JOB>
constexpr bool LOADS_AHEAD = JOB::AT_ONCE > 1;

template <typename JOB, int TOKENS>
__device__ inline void several_blocks_job(const StepLinearArguments& a, const StepJob& job, uint32_t block,
                                          float* staged, float (*warps)[STEP_WARPS], float* factors,
                                          SeveralSums (&sums)[2]) {
    uint32_t count = a.source.columns / JOB::COLUMNS, stride = staged_words(a.source.columns);
    uint32_t first_token = blockIdx.y * a.per_pass, tokens = min(a.per_pass, a.tokens - first_token);
    LinearShare share(a, count);
    uint32_t at_once = share.at_once, member = share.member, first = share.first, last = share.last;
    bool pair = job.kind == SWIGLU, normed = a.source.mode == NORM;
    const uint8_t* weight = (pair && member ? job.second : job.matrix).weight;
    uint32_t rows = job.matrix.rows, tiles = (rows + 15) / 16, row_bytes = count * JOB::BYTES;
    const uint8_t *low = weight, *high = weight;
    auto is_busy = [&](uint32_t round) {
        uint32_t tile = pair ? block * a.rounds + round : (block * a.rounds + round) * at_once + member;
        return round < a.rounds && tile < tiles && first < last && (!pair || member < 2);
    };
    auto seek = [&](uint32_t round) {
        uint32_t tile = pair ? block * a.rounds + round : (block * a.rounds + round) * at_once + member;
        uint32_t row = min(tile * 16 + threadIdx.x % 32 / 4, rows - 1);
        low = weight + size_t(row) * row_bytes, high = weight + size_t(min(row + 8, rows - 1)) * row_bytes;
    };
    typename JOB::Unit unit, next;
    auto load = [&](typename JOB::Unit& to, uint32_t index) {
        JOB::load(to, low + size_t(index) * JOB::BYTES, high + size_t(index) * JOB::BYTES);
    };
    bool busy = is_busy(0);
    if (busy) seek(0), load(unit, first);
    // What was asked for comes while the kernel before runs.
    await_inputs();
    release_next();
    if (normed) {
        stage_several<STEP_THREADS, true, false, 4>(a.source, first_token, tokens, staged, stride, warps);
    } else {
        stage_several<STEP_THREADS, false, false, 2>(a.source, first_token, tokens, staged, stride, warps);
    }
    stage_block_zeros(staged, tokens * stride);
    __syncthreads();
    // Read after the first round.
    if (threadIdx.x < tokens) {
        factors[threadIdx.x] = normed ? several_factor<STEP_THREADS, true>(a.source, warps[threadIdx.x]) : 1.0f;
    }
    JOB products(staged, tokens * stride);
    float ones[TOKENS];
#pragma unroll
    for (int i = 0; i < TOKENS; i++) ones[i] = 1.0f;
    for (uint32_t round = 0; round < a.rounds; round++) {
        float result[TOKENS][2] = {};
        bool more = is_busy(round + 1);
        for (uint32_t index = first; busy && index < last; index++) {
            // The next unit comes while this one is multiplied, also that of the next round.
            bool ends = index + 1 == last, over = ends && !more;
            uint32_t then = ends ? first : index + 1;
            if (ends && more) seek(round + 1);
            if constexpr (LOADS_AHEAD<JOB>) {
                if (!over) load(next, then);
            }
            products.template multiply<TOKENS>(unit, index, stride, tokens, ones, result);
            if constexpr (LOADS_AHEAD<JOB>) unit = next;
            else if (!over) load(unit, then);
        }
        busy = more;
        SeveralSums& partial = sums[round % 2];
#pragma unroll
        for (int token = 0; token < TOKENS; token++) {
            if (token < tokens) leave_sums(partial.sum[token][threadIdx.x / 32], result[token]);
        }
        __syncthreads();
        finish_round(a, job, share, block, round, first_token, tokens, partial, factors);
    }
}

// Grid: (blocks of all jobs as of `step_linear`, passes of `per_pass` tokens, TOKENS at most), 512 threads; shared: the
// staged vectors and zeros. `with(matrix, f)` calls f.template operator()<JOB>().
template <int TOKENS, typename WITH>
__device__ __forceinline__ void several_linear_of(const StepLinearArguments& a, WITH&& with) {
    extern __shared__ float staged[];
    __shared__ float warps[SEVERAL][STEP_WARPS], factors[SEVERAL];
    __shared__ SeveralSums sums[2];
    const StepJob& job = a.job[block_job(a)];
    uint32_t block = blockIdx.x - job.first_block;
    with(job.matrix,
         [&]<typename JOB>() { several_blocks_job<JOB, TOKENS>(a, job, block, staged, warps, factors, sums); });
}

#define SEVERAL_BLOCKS(NAME, TOKENS, WITH)                                                                         \
    extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) several_linear_##NAME##_##TOKENS(               \
        const __grid_constant__ StepLinearArguments a) {                                                          \
        several_linear_of<TOKENS>(a, [](const Matrix& m, auto&& f) { WITH; });                                     \
    }
#define SEVERAL_FORMAT(NAME)                                                                                       \
    SEVERAL_BLOCKS(NAME, 2, f.template operator()<BlockJob<Blocks<BLOCK_##NAME>>>())                              \
    SEVERAL_BLOCKS(NAME, 4, f.template operator()<BlockJob<Blocks<BLOCK_##NAME>>>())

// Products of matrices of one format alone have kernels of their own where most files have it, for the sake of short
// code, as with `USUAL`.
SEVERAL_FORMAT(Q4_K)
SEVERAL_FORMAT(Q5_K)
SEVERAL_FORMAT(Q6_K)
SEVERAL_FORMAT(Q8_0)
SEVERAL_BLOCKS(usual, 4, with_job<USUAL>(m, f))

// Words of a token's staged vectors of the second half, and of the zeros behind them.
__device__ __forceinline__ uint32_t outer_stride(const OuterStage& s) {
    return s.every * 8 * STAGED_CHUNK + BLOCK_ZEROS;
}

// Eights of values of a thread that are asked for together.
constexpr int EIGHTS_TOGETHER = 2;

// Stages the vectors of `tokens` tokens, as `stage_outer` does each; `s`: of the first, in units of 256 columns.
__device__ inline void stage_outers(const StepExpertArguments& a, const OuterStage& s, uint32_t tokens, float* staged) {
    uint32_t routed = s.total * BLOCK_UNIT, shared = (s.every - s.total) * BLOCK_UNIT, eights = (routed + shared) / 8;
    uint32_t stride = outer_stride(s), all = tokens * eights;
    // Sixteen neighbouring threads have 128 columns of one token; whole warps go on.
    for (uint32_t start = threadIdx.x & ~31u; start < all; start += EIGHTS_TOGETHER * STEP_THREADS) {
        float4 v[EIGHTS_TOGETHER][2] = {};
        uint32_t token[EIGHTS_TOGETHER], column[EIGHTS_TOGETHER];
#pragma unroll
        for (int i = 0; i < EIGHTS_TOGETHER; i++) {
            uint32_t at = start + i * STEP_THREADS + threadIdx.x % 32;
            token[i] = at / eights, column[i] = (at - token[i] * eights) * 8;
            if (at >= all) continue;
            const float* from = column[i] < routed ? s.routed + size_t(token[i]) * routed + column[i]
                                                   : s.shared + size_t(token[i]) * shared + (column[i] - routed);
            v[i][0] = __ldcg(reinterpret_cast<const float4*>(from));
            v[i][1] = __ldcg(reinterpret_cast<const float4*>(from) + 1);
        }
#pragma unroll
        for (int i = 0; i < EIGHTS_TOGETHER; i++) {
            float4 b = v[i][0], c = v[i][1];
            float eight[8] = {b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w};
            stage_values(staged + token[i] * stride, column[i], eight, token[i] < tokens);
        }
    }
    for (uint32_t i = 0; i < tokens; i++) stage_block_zeros(staged + i * stride, stride - BLOCK_ZEROS);
}

// A warp's share of the routed experts, units `first..last` of each token, whose sums it leaves in `sums`.
template <typename F>
__device__ inline void outer_routed_several(const StepExpertArguments& a, const OuterStage& s,
                                            const RoutedBlocks* routed, bool known, uint32_t first, uint32_t last,
                                            uint32_t tokens, float* staged, float (&sums)[SEVERAL][2]) {
    using JOB = BlockJob<F>;
    const Matrix& shape = a.experts.down;
    size_t row_bytes = size_t(s.count) * JOB::BYTES;
    uint32_t row = min(s.tile * 16 + threadIdx.x % 32 / 4, shape.rows - 1), stride = outer_stride(s);
    size_t low = row * row_bytes, high = min(row + 8, shape.rows - 1) * row_bytes;
    typename JOB::Unit unit, next;
    bool busy = first < last;
    if (busy && known) load_routed_block<JOB>(unit, s, routed[0], low, high, first);
    await_inputs();
    release_next();
    stage_outers(a, s, tokens, staged);
    __syncthreads();
    if (!busy) return;
    if (!known) load_routed_block<JOB>(unit, s, routed[0], low, high, first);
    for (uint32_t token = 0; token < tokens; token++) {
        JOB products(staged + token * stride, stride - BLOCK_ZEROS);
        float result[2] = {0.0f, 0.0f};
        for (uint32_t index = first; index < last; index++) {
            bool ends = index + 1 == last, over = ends && token + 1 == tokens;
            uint32_t of = token + ends, then = ends ? first : index + 1;
            if constexpr (LOADS_AHEAD<JOB>) {
                if (!over) load_routed_block<JOB>(next, s, routed[of], low, high, then);
            }
            multiply_unit(products, unit, index, routed[token].factor[s.rank_of(index)], result);
            if constexpr (LOADS_AHEAD<JOB>) unit = next;
            else if (!over) load_routed_block<JOB>(unit, s, routed[of], low, high, then);
        }
        sums[token][0] = result[0], sums[token][1] = result[1];
    }
}

// Adds a warp's share of the shared expert, units `first..last`, to each token's sums.
template <typename F>
__device__ inline void outer_shared_several(const OuterStage& s, const Matrix& m, const float* gates, uint32_t first,
                                            uint32_t last, uint32_t tokens, const float* staged,
                                            float (&sums)[SEVERAL][2]) {
    using JOB = BlockJob<F>;
    uint32_t row = min(s.tile * 16 + threadIdx.x % 32 / 4, m.rows - 1), stride = outer_stride(s);
    uint32_t row_bytes = (s.every - s.total) * JOB::BYTES;
    const uint8_t* low = m.weight + size_t(row) * row_bytes;
    const uint8_t* high = m.weight + size_t(min(row + 8, m.rows - 1)) * row_bytes;
    for (uint32_t token = 0; token < tokens; token += BLOCK_TOKENS) {
        uint32_t live = min(tokens - token, BLOCK_TOKENS);
        float factor[BLOCK_TOKENS], result[BLOCK_TOKENS][2];
#pragma unroll
        for (int i = 0; i < BLOCK_TOKENS; i++) {
            uint32_t of = min(token + i, tokens - 1);
            factor[i] = sigmoid(__ldcg(gates + of)), result[i][0] = sums[of][0], result[i][1] = sums[of][1];
        }
        JOB products(staged + token * stride, stride - BLOCK_ZEROS);
        for (uint32_t index = first; index < last; index++) {
            typename JOB::Unit unit;
            JOB::load(unit, low + size_t(index) * JOB::BYTES, high + size_t(index) * JOB::BYTES);
            products.template multiply<BLOCK_TOKENS>(unit, s.total + index, stride, live, factor, result);
        }
#pragma unroll
        for (int i = 0; i < BLOCK_TOKENS; i++) {
            if (i < live) sums[token + i][0] = result[i][0], sums[token + i][1] = result[i][1];
        }
    }
}

// As `step_outer`, the tokens of a pass one after another. Grid: (row tiles of the stream by those that a block works
// on at once, passes of `per_pass` tokens); 512 threads; shared: the staged vectors of each token, and zeros.
template <FormatSet SET>
__device__ inline void several_outer_of_blocks(const StepExpertArguments& a) {
    extern __shared__ float staged[];
    __shared__ SeveralSums partial;
    __shared__ RoutedBlocks routed[SEVERAL];
    uint32_t first_token = blockIdx.y * a.per_pass, tokens = min(a.per_pass, a.tokens - first_token);
    uint32_t shares = STEP_WARPS_SHIFT - a.tiles_shift, splits = 1 << shares;
    uint32_t member = threadIdx.x / 32 >> shares, split = threadIdx.x / 32 % splits;
    OuterStage s = outer_stage(a, first_token, (blockIdx.x << a.tiles_shift) + member, BLOCK_UNIT);
    bool known;
    auto place = [&](uint32_t token, uint32_t rank, float weight, const Matrix& down) {
        routed[token].factor[rank] = weight, routed[token].down[rank] = down.weight;
    };
    if (!find_several(a, first_token, tokens, known, place)) return;
    uint32_t first = first_unit(s.every, split, shares, false), last = first_unit(s.every, split + 1, shares, false);
    float sums[SEVERAL][2] = {};
    with_step_format<SET>(a.experts.down.bits, [&]<typename F>() {
        outer_routed_several<F>(a, s, routed, known, first, min(last, s.total), tokens, staged, sums);
    });
    if (last > s.total) {
        first = max(first, s.total) - s.total, last -= s.total;
        with_step_format<SET>(a.down.bits, [&]<typename F>() {
            outer_shared_several<F>(s, a.down, a.shared_gate + first_token, first, last, tokens, staged, sums);
        });
    }
    for (uint32_t token = 0; token < tokens; token++) leave_sums(partial.sum[token][threadIdx.x / 32], sums[token]);
    add_mixtures(a, first_token, tokens, partial);
}

extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) several_outer_usual(
    const __grid_constant__ StepExpertArguments a) {
    several_outer_of_blocks<USUAL>(a);
}

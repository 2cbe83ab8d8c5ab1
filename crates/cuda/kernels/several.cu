// Products of a step of several sequences, each weight read once for all of them. What several.cuh says of bits holds.
#include "several_four.cuh"

// Units that a warp asks for together, while it multiplies as many.
template <int BITS>
constexpr int SEVERAL_BATCH = BITS <= 4 ? 2 : 1;

template <int BITS, int SETS, bool NORMED>
__device__ inline void several_job(const StepLinearArguments& a, const StepJob& job, uint32_t block, uint32_t tokens,
                                   uint32_t stride, float* staged, float (*warps)[STEP_WARPS],
                                   float* factors, SeveralSums (&sums)[2]) {
    constexpr int BATCH_UNITS = SEVERAL_BATCH<BITS>;
    LinearShare share(a, (a.source.columns + UNIT - 1) / UNIT);
    uint32_t at_once = share.at_once, member = share.member, first = share.first, last = share.last;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t first_token = blockIdx.y * a.per_pass;
    bool pair = job.kind == SWIGLU;
    Pieces m = pieces_of(pair && member ? job.second : job.matrix);
    uint32_t tiles = (job.matrix.rows + 15) / 16;
    auto tile_of = [&](uint32_t round) {
        return pair ? block * a.rounds + round : (block * a.rounds + round) * at_once + member;
    };
    auto is_busy = [&](uint32_t round) {
        return round < a.rounds && tile_of(round) < tiles && first < last && (!pair || member < 2);
    };
    Unit<BITS> units[BATCH_UNITS], next[BATCH_UNITS];
    TileLane place = set_tile(job.matrix, tile_of(0));
    bool busy = is_busy(0);
    if (busy) load_batch(units, m, m, place, first, last);
    // What was asked for comes while the kernel before runs.
    await_inputs();
    release_next();
    stage_several<STEP_THREADS, NORMED, false, NORMED ? 4 : 2>(a.source, first_token, tokens, staged, stride, warps);
    __syncthreads();
    // Read after the first round.
    if (threadIdx.x < tokens) {
        factors[threadIdx.x] = several_factor<STEP_THREADS, NORMED>(a.source, warps[threadIdx.x]);
    }
    SetLane<SETS> x = set_lane<SETS>(job.matrix, stride, tokens);
    uint32_t slots = slots_of(job.matrix);
    for (uint32_t round = 0; round < a.rounds; round++) {
        float result[SETS][2] = {};
        bool more = is_busy(round + 1);
        for (uint32_t unit = first; busy && unit < last; unit += BATCH_UNITS) {
            // The next units come while these are multiplied, also those of the next round.
            bool end = unit + BATCH_UNITS >= last;
            if (end) place = set_tile(job.matrix, tile_of(round + 1));
            if (!end || more) load_batch(next, m, m, place, end ? first : unit + BATCH_UNITS, last);
            multiply_sets<BITS, SETS>(units, unit, last - unit, job.matrix.scale_kind, staged, x, result);
#pragma unroll
            for (int i = 0; i < BATCH_UNITS; i++) units[i] = next[i];
        }
        busy = more;
        SeveralSums& partial = sums[round % 2];
#pragma unroll
        for (int set = 0; set < SETS; set++) {
            sum_slots(slots, result[set]);
            uint32_t token = set * (4 / slots) + lane % 4 / slots;
            if (lane % slots == 0 && token < tokens) {
                partial.sum[token][warp][lane / 4] = result[set][0];
                partial.sum[token][warp][lane / 4 + 8] = result[set][1];
            }
        }
        __syncthreads();
        finish_round(a, job, share, block, round, first_token, tokens, partial, factors);
    }
}

// As `several_job`, of matrices for which `is_four` holds.
template <int SETS, bool NORMED>
__device__ inline void four_job(const StepLinearArguments& a, const StepJob& job, uint32_t block, uint32_t tokens,
                                uint32_t stride, float* staged, float (*warps)[STEP_WARPS], float* factors,
                                SeveralSums (&sums)[2]) {
    LinearShare share(a, a.source.columns / UNIT);
    uint32_t at_once = share.at_once, member = share.member, first = share.first, last = share.last;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, first_token = blockIdx.y * a.per_pass;
    bool pair = job.kind == SWIGLU;
    Pieces m = pieces_of(pair && member ? job.second : job.matrix);
    uint32_t tiles = (job.matrix.rows + 15) / 16, kind = job.matrix.scale_kind;
    auto tile_of = [&](uint32_t round) {
        return pair ? block * a.rounds + round : (block * a.rounds + round) * at_once + member;
    };
    auto is_busy = [&](uint32_t round) {
        return round < a.rounds && tile_of(round) < tiles && first < last && (!pair || member < 2);
    };
    FourUnit units[2], next[2];
    FourTile tile = four_tile(job.matrix, m, tile_of(0));
    auto load = [&](FourUnit(&to)[2], uint32_t unit) {
        load_four_unit(to[0], tile, unit), load_four_unit(to[1], tile, min(unit + 1, last - 1));
    };
    bool busy = is_busy(0);
    if (busy) load(units, first);
    // What was asked for comes while the kernel before runs.
    await_inputs();
    release_next();
    stage_several<STEP_THREADS, NORMED, true, NORMED ? 4 : 2>(a.source, first_token, tokens, staged, stride, warps);
    __syncthreads();
    // Read after the first round.
    if (threadIdx.x < tokens) {
        factors[threadIdx.x] = several_factor<STEP_THREADS, NORMED>(a.source, warps[threadIdx.x]);
    }
    FourLane<SETS> x = four_lane<SETS>(staged, stride, tokens);
    uint4 b[SETS] = {};
    for (uint32_t round = 0; round < a.rounds; round++) {
        float result[SETS][2] = {};
        bool more = is_busy(round + 1);
        for (uint32_t unit = first; busy && unit < last; unit += 2) {
            // The next units come while these are multiplied, also those of the next round.
            bool ends = unit + 2 >= last;
            if (ends) tile = four_tile(job.matrix, m, tile_of(round + 1));
            if (!ends || more) load(next, ends ? first : unit + 2);
            multiply_four_sets<SETS>(units[0], unit, kind, x, b, result);
            if (unit + 1 < last) multiply_four_sets<SETS>(units[1], unit + 1, kind, x, b, result);
            units[0] = next[0], units[1] = next[1];
        }
        busy = more;
        SeveralSums& partial = sums[round % 2];
#pragma unroll
        for (int set = 0; set < SETS; set++) {
            sum_slots(2, result[set]);
            uint32_t token = set * 2 + lane % 4 / 2;
            if (lane % 2 == 0 && token < tokens) {
                partial.sum[token][warp][lane / 4] = result[set][0];
                partial.sum[token][warp][lane / 4 + 8] = result[set][1];
            }
        }
        __syncthreads();
        finish_round(a, job, share, block, round, first_token, tokens, partial, factors);
    }
}

// Grid: (blocks of all jobs as of `step_linear`, passes of `per_pass` tokens), 512 threads; shared: the staged vectors.
// SETS: products of a unit, by tokens and groups. NORMED: of normed inputs alone, because the code of all of them takes
// longer to fetch than to run.
template <int SETS, bool NORMED>
__device__ inline void several_linear(const StepLinearArguments& a) {
    extern __shared__ float staged[];
    __shared__ float warps[SEVERAL][STEP_WARPS], factors[SEVERAL];
    __shared__ SeveralSums sums[2];
    const StepJob& job = a.job[block_job(a)];
    uint32_t block = blockIdx.x - job.first_block, stride = staged_words(a.source.columns);
    uint32_t tokens = min(a.per_pass, a.tokens - blockIdx.y * a.per_pass);
    if (is_four(job.matrix)) {
        four_job<SETS, NORMED>(a, job, block, tokens, stride, staged, warps, factors, sums);
    } else if (job.matrix.bits == 4) {
        several_job<4, SETS, NORMED>(a, job, block, tokens, stride, staged, warps, factors, sums);
    } else {
        several_job<8, SETS, NORMED>(a, job, block, tokens, stride, staged, warps, factors, sums);
    }
}

#define SEVERAL_LINEAR(NAME, SETS, NORMED)                                                                         \
    extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) several_##NAME##_##SETS(                        \
        const __grid_constant__ StepLinearArguments a) {                                                          \
        several_linear<SETS, NORMED>(a);                                                                           \
    }

SEVERAL_LINEAR(linear, 1, false)
SEVERAL_LINEAR(linear, 2, false)
SEVERAL_LINEAR(linear, 4, false)
SEVERAL_LINEAR(normed, 1, true)
SEVERAL_LINEAR(normed, 2, true)
SEVERAL_LINEAR(normed, 4, true)

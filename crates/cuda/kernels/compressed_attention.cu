// The choice of compressed rows, and attention over a window and the rows chosen. One row is key and value of all
// heads.
#include "compressed.cu"
#include "scores.cuh"

// The sum over heads of a factor times the positive part of query times key, where a token has rows to choose from.
// Grid: (blocks of SCORED_ROWS rows, tokens), as many threads; shared: heads * INDEX_DIM floats.
extern "C" __global__ void __launch_bounds__(SCORED_ROWS) score_rows(const __grid_constant__ ScoreArguments a) {
    await_inputs();
    release_next();
    extern __shared__ float4 queries[];
    const SequenceRows& s = a.rows;
    uint32_t token = blockIdx.y, row = blockIdx.x * SCORED_ROWS + threadIdx.x;
    uint32_t visible = (s.positions[token] + 1) / s.ratio;
    if (visible <= a.top || blockIdx.x * SCORED_ROWS >= visible) return;
    float* staged = reinterpret_cast<float*>(queries);
    for (uint32_t i = threadIdx.x; i < a.heads * INDEX_DIM; i += blockDim.x) {
        uint32_t head = i / INDEX_DIM, d = i % INDEX_DIM;
        staged[i] = d < a.dim ? a.query[(size_t(token) * a.heads + head) * a.dim + d] : 0.0f;
    }
    __syncthreads();
    if (row >= visible) return;
    const uint8_t* from = page_row(s, token, row, a.place, a.bytes);
    float key[INDEX_DIM];
#pragma unroll
    for (uint32_t d = 0; d < INDEX_DIM; d++) key[d] = d < a.dim ? load_key(from, a.kind, a.dim, d) : 0.0f;
    float score = 0.0f;
    for (uint32_t head = 0; head < a.heads; head++) {
        float4 sums = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (uint32_t d = 0; d < INDEX_DIM; d += 4) {
            float4 q = queries[(head * INDEX_DIM + d) / 4];
            sums.x = fmaf(q.x, key[d], sums.x), sums.y = fmaf(q.y, key[d + 1], sums.y);
            sums.z = fmaf(q.z, key[d + 2], sums.z), sums.w = fmaf(q.w, key[d + 3], sums.w);
        }
        float product = (sums.x + sums.y) + (sums.z + sums.w);
        // What is no number stays one.
        score = fmaf(a.factors[size_t(token) * a.heads + head], product < 0.0f ? 0.0f : product, score);
    }
    a.scores[size_t(token) * a.stride + row] = score;
}

// Bits whose order is that of the numbers, NaN above all.
__device__ inline uint32_t ordered_bits(float v) {
    uint32_t bits = __float_as_uint(v);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Scores that a thread of `choose_rows` asks for together, and bins of its histograms.
constexpr uint32_t SCORES_AT_ONCE = 8, SCORE_BINS = 2048;

// Calls `each` with the ordered bits of every score of `count`, by number or with zero past the end, a warp's together.
template <typename F>
__device__ __forceinline__ void for_scores(const float* scores, uint32_t begin, uint32_t end, uint32_t stride, F each) {
    for (uint32_t base = begin; base < end; base += SCORES_AT_ONCE * stride) {
        float v[SCORES_AT_ONCE];
#pragma unroll
        for (uint32_t j = 0; j < SCORES_AT_ONCE; j++) {
            uint32_t i = base + j * stride + threadIdx.x % stride;
            v[j] = i < end ? __ldcg(scores + i) : 0.0f;
        }
#pragma unroll
        for (uint32_t j = 0; j < SCORES_AT_ONCE; j++) {
            uint32_t i = base + j * stride + threadIdx.x % stride;
            if (base + j * stride < end) each(i, i < end, ordered_bits(v[j]));
        }
    }
}

// Calls `write` with the place and the number of each of the `top` greatest of `count` scores, ascending by number; of
// equal scores the first. The range of keys in which the last one lies that is chosen is cut into bins until it is one
// key, or all that are in it are chosen: the first range is that of the scores, so that bins are seldom crowded. By all
// of 1024 threads.
template <typename F>
__device__ __forceinline__ void choose_best(const float* scores, uint32_t count, uint32_t top, F write) {
    constexpr uint32_t WARPS = 32;
    __shared__ uint32_t counts[SCORE_BINS], totals[WARPS], others[WARPS], found[4];
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t low = 0xffffffffu, high = 0, wanted = top;
    for_scores(scores, 0, count, blockDim.x, [&](uint32_t, bool live, uint32_t key) {
        if (live) low = min(low, key), high = max(high, key);
    });
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        low = min(low, __shfl_xor_sync(FULL, low, offset)), high = max(high, __shfl_xor_sync(FULL, high, offset));
    }
    if (lane == 0) totals[warp] = low, others[warp] = high;
    __syncthreads();
    low = totals[lane], high = others[lane];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        low = min(low, __shfl_xor_sync(FULL, low, offset)), high = max(high, __shfl_xor_sync(FULL, high, offset));
    }
    __syncthreads();
    for (uint32_t left = count; low != high && left != wanted;) {
        uint32_t shift = max(32 - __clz(high - low), 11) - 11;
        for (uint32_t i = threadIdx.x; i < SCORE_BINS; i += blockDim.x) counts[i] = 0;
        __syncthreads();
        for_scores(scores, 0, count, blockDim.x, [&](uint32_t, bool live, uint32_t key) {
            live &= key >= low && key <= high;
            uint32_t bin = (key - low) >> shift, mask = __ballot_sync(FULL, live);
            if (mask == 0) return;
            // Many scores are often one, zero: then a lane counts for its warp.
            uint32_t leader = __ffs(mask) - 1, common = __shfl_sync(FULL, bin, leader);
            if (__all_sync(FULL, !live || bin == common)) {
                if (lane == leader) atomicAdd(&counts[bin], __popc(mask));
            } else if (live) {
                atomicAdd(&counts[bin], 1);
            }
        });
        __syncthreads();
        // Two bins a thread, the greatest first; one thread has the bin with the last key that is wanted.
        uint32_t bin = SCORE_BINS - 1 - 2 * threadIdx.x, upper = counts[bin], sum = upper + counts[bin - 1];
        uint32_t before = sum;
#pragma unroll
        for (uint32_t offset = 1; offset < 32; offset *= 2) {
            uint32_t other = __shfl_up_sync(FULL, before, offset);
            if (lane >= offset) before += other;
        }
        if (lane == 31) totals[warp] = before;
        __syncthreads();
        before -= sum;
        for (uint32_t w = 0; w < warp; w++) before += totals[w];
        if (before < wanted && wanted <= before + sum) {
            uint32_t above = before;
            if (above + upper < wanted) above += upper, bin--;
            uint32_t start = low + (bin << shift);
            found[0] = start, found[1] = start + min(high - start, (1u << shift) - 1);
            found[2] = wanted - above, found[3] = counts[bin];
        }
        __syncthreads();
        low = found[0], high = found[1], wanted = found[2], left = found[3];
        __syncthreads();
    }
    // A warp has rows that follow each other: what it counts says where it writes.
    uint32_t share = ((count + WARPS - 1) / WARPS + 31) / 32 * 32;
    uint32_t begin = min(warp * share, count), end = min(begin + share, count), above = 0, equal = 0;
    for_scores(scores, begin, end, 32, [&](uint32_t, bool live, uint32_t key) {
        above += live && key > high, equal += live && key >= low && key <= high;
    });
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        above += __shfl_xor_sync(FULL, above, offset), equal += __shfl_xor_sync(FULL, equal, offset);
    }
    if (lane == 0) totals[warp] = above, others[warp] = equal;
    __syncthreads();
    above = 0, equal = 0;
    for (uint32_t w = 0; w < warp; w++) above += totals[w], equal += others[w];
    for_scores(scores, begin, end, 32, [&](uint32_t i, bool live, uint32_t key) {
        bool over = live && key > high, same = live && key >= low && key <= high;
        uint32_t all_over = __ballot_sync(FULL, over), all_same = __ballot_sync(FULL, same);
        uint32_t mask = (1u << lane) - 1, first = equal + __popc(all_same & mask);
        if (over || (same && first < wanted)) write(above + __popc(all_over & mask) + min(first, wanted), i);
        above += __popc(all_over), equal += __popc(all_same);
    });
}

// The best rows of each part of a step's token: candidates, or, where there is one part, its choice.
// Grid: (parts, tokens), 1024 threads.
extern "C" __global__ void __launch_bounds__(1024) choose_parts(const __grid_constant__ ScoreArguments a) {
    await_inputs();
    release_next();
    uint32_t token = blockIdx.y, visible = (a.rows.positions[token] + 1) / a.rows.ratio;
    uint32_t begin = blockIdx.x * CHOICE_PART;
    if (visible <= a.top || begin >= visible) return;
    uint32_t count = min(visible - begin, CHOICE_PART), all = a.parts * a.top;
    const float* scores = a.scores + size_t(token) * a.stride + begin;
    if (visible <= CHOICE_PART) {
        uint32_t* chosen = a.chosen + size_t(token) * a.top;
        return choose_best(scores, count, a.top, [&](uint32_t place, uint32_t row) { chosen[place] = row; });
    }
    float* best = reinterpret_cast<float*>(a.candidates + size_t(token) * 2 * all) + blockIdx.x * a.top;
    auto take = [&](uint32_t place, uint32_t row) {
        best[place] = scores[row];
        reinterpret_cast<uint32_t*>(best)[all + place] = begin + row;
    };
    if (count > a.top) return choose_best(scores, count, a.top, take);
    for (uint32_t row = threadIdx.x; row < count; row += blockDim.x) take(row, row);
}

// The `top` rows with the greatest scores, ascending; of equal scores the first. Where there are parts, of what those
// have left. Grid: tokens, 1024 threads.
extern "C" __global__ void __launch_bounds__(1024) choose_rows(const __grid_constant__ ScoreArguments a) {
    await_inputs();
    release_next();
    uint32_t token = blockIdx.x, visible = (a.rows.positions[token] + 1) / a.rows.ratio;
    if (visible <= a.top || (a.parts > 0 && visible <= CHOICE_PART)) return;
    uint32_t* chosen = a.chosen + size_t(token) * a.top;
    if (a.parts == 0) {
        const float* scores = a.scores + size_t(token) * a.stride;
        return choose_best(scores, visible, a.top, [&](uint32_t place, uint32_t row) { chosen[place] = row; });
    }
    uint32_t all = a.parts * a.top, last = (visible - 1) / CHOICE_PART;
    const uint32_t* candidates = a.candidates + size_t(token) * 2 * all;
    uint32_t count = last * a.top + min(visible - last * CHOICE_PART, a.top);
    choose_best(reinterpret_cast<const float*>(candidates), count, a.top,
                [&](uint32_t place, uint32_t at) { chosen[place] = candidates[all + at]; });
}

struct RowAttentionArguments {
    SequenceRows rows;
    const float* query;          // [tokens, heads, dim]
    float* out;                  // [tokens, heads, dim]
    float* partial;              // [tokens, heads, parts, dim + 2], where rows are cut into parts
    const uint8_t* span;         // [tokens, bytes]: window rows of the batch's tokens
    const uint32_t* chosen;      // [tokens, top]: where more than `top` rows are visible; null: all are seen
    const float* sinks;          // [heads]
    uint32_t heads;
    uint32_t dim;                // at most ROW_DIM
    uint32_t kind;
    uint32_t plain;              // last values of an 8-bit row that are not rounded to 8 bits
    uint32_t place;
    uint32_t bytes;
    uint32_t top;
    uint32_t parts;              // 1, or parts of `part_rows` rows
    uint32_t part_rows;
    float scale;
};

// Heads of a block, a warp each, and rows that it decodes together.
constexpr uint32_t ROW_HEADS = 16, ROW_TILE = 16, LANE_VALUES = ROW_DIM / 32;

// Most parts of the rows of a token.
constexpr uint32_t ROW_PARTS = 32;

// Row `index` of those that a token sees: the window first, then compressed rows.
__device__ inline const uint8_t* seen_row(const RowAttentionArguments& a, uint32_t token, uint32_t near, bool listed,
                                          uint32_t index) {
    const SequenceRows& s = a.rows;
    if (index >= near) {
        uint32_t row = index - near;
        return page_row(s, token, listed ? a.chosen[size_t(token) * a.top + row] : row, a.place, a.bytes);
    }
    uint32_t position = s.positions[token] + 1 - near + index, start = run_start(s, token);
    if (position >= start) return a.span + size_t(run_token(s, token) + position - start) * a.bytes;
    return reinterpret_cast<const uint8_t*>(state_of(s, token)) + size_t(position % s.window) * a.bytes;
}

// Grid: (blocks of ROW_HEADS heads, tokens, parts), 512 threads; shared: ROW_TILE * dim floats.
extern "C" __global__ void __launch_bounds__(512) attend_rows(const __grid_constant__ RowAttentionArguments a) {
    await_inputs();
    release_next();
    extern __shared__ float tile[];
    const SequenceRows& s = a.rows;
    uint32_t token = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t head = min(blockIdx.x * ROW_HEADS + warp, a.heads - 1);
    uint32_t seen = s.positions[token] + 1, near = min(seen, s.window), visible = s.ratio ? seen / s.ratio : 0;
    bool listed = a.chosen && visible > a.top;
    uint32_t all = near + (listed ? a.top : visible), first = blockIdx.z * a.part_rows;
    uint32_t last = a.parts > 1 ? min(all, first + a.part_rows) : all;
    const float* query = a.query + (size_t(token) * a.heads + head) * a.dim;
    float q[LANE_VALUES], sums[LANE_VALUES], most = -INFINITY, total = 0.0f;
#pragma unroll
    for (uint32_t j = 0; j < LANE_VALUES; j++) {
        q[j] = lane + 32 * j < a.dim ? query[lane + 32 * j] : 0.0f, sums[j] = 0.0f;
    }
    for (uint32_t begin = first; begin < last; begin += ROW_TILE) {
        uint32_t count = min(ROW_TILE, last - begin);
        __syncthreads();
        if (warp < count) {
            const uint8_t* row = seen_row(a, token, near, listed, begin + warp);
            float* to = tile + warp * a.dim;
            for (uint32_t d = lane; d < a.dim; d += 32) to[d] = load_row(row, a.kind, a.dim, a.plain, d);
        }
        __syncthreads();
        float mine = -INFINITY;
        for (uint32_t r = 0; r < count; r++) {
            float dot = 0.0f;
#pragma unroll
            for (uint32_t j = 0; j < LANE_VALUES; j++) {
                if (lane + 32 * j < a.dim) dot = fmaf(q[j], tile[r * a.dim + lane + 32 * j], dot);
            }
            dot = warp_sum(dot) * a.scale;
            if (lane == r) mine = dot;
        }
        float larger = fmaxf(most, warp_max(mine)), shrink = expf(most - larger);
        float weight = lane < count ? expf(mine - larger) : 0.0f;
        total = total * shrink + warp_sum(weight), most = larger;
#pragma unroll
        for (uint32_t j = 0; j < LANE_VALUES; j++) sums[j] *= shrink;
        for (uint32_t r = 0; r < count; r++) {
            float w = __shfl_sync(FULL, weight, r);
#pragma unroll
            for (uint32_t j = 0; j < LANE_VALUES; j++) {
                if (lane + 32 * j < a.dim) sums[j] = fmaf(w, tile[r * a.dim + lane + 32 * j], sums[j]);
            }
        }
    }
    if (blockIdx.x * ROW_HEADS + warp >= a.heads) return;
    if (a.parts > 1) {
        float* to = a.partial + ((size_t(token) * a.heads + head) * a.parts + blockIdx.z) * (a.dim + 2);
#pragma unroll
        for (uint32_t j = 0; j < LANE_VALUES; j++) {
            if (lane + 32 * j < a.dim) to[lane + 32 * j] = sums[j];
        }
        if (lane == 0) to[a.dim] = most, to[a.dim + 1] = first < last ? total : -1.0f;
        return;
    }
    float larger = fmaxf(most, a.sinks[head]), shrink = expf(most - larger);
    float factor = shrink / (total * shrink + expf(a.sinks[head] - larger));
    float* out = a.out + (size_t(token) * a.heads + head) * a.dim;
#pragma unroll
    for (uint32_t j = 0; j < LANE_VALUES; j++) {
        if (lane + 32 * j < a.dim) out[lane + 32 * j] = sums[j] * factor;
    }
}

// Joins the parts of a token's rows in their order. Grid: (heads, tokens), 128 threads.
extern "C" __global__ void join_row_parts(const __grid_constant__ RowAttentionArguments a) {
    __shared__ float weights[ROW_PARTS];
    await_inputs();
    release_next();
    size_t at = size_t(blockIdx.y) * a.heads + blockIdx.x, stride = a.dim + 2;
    const float* partial = a.partial + at * a.parts * stride;
    // A part a lane, so that their ends come together. One without rows has a total below zero, and zeros.
    uint32_t lane = threadIdx.x % 32;
    float top = -INFINITY, mine = -1.0f;
    if (lane < a.parts) top = partial[lane * stride + a.dim], mine = partial[lane * stride + a.dim + 1];
    bool live = !(mine < 0.0f);
    float most = fmaxf(a.sinks[blockIdx.x], warp_max(live ? top : -INFINITY)), weight = live ? expf(top - most) : 0.0f;
    float total = expf(a.sinks[blockIdx.x] - most);
    for (uint32_t part = 0; part < a.parts; part++) {
        float sum = __shfl_sync(FULL, mine, part), factor = __shfl_sync(FULL, weight, part);
        if (!(sum < 0.0f)) total = fmaf(factor, sum, total);
    }
    if (threadIdx.x < ROW_PARTS) weights[threadIdx.x] = weight;
    __syncthreads();
    for (uint32_t d = threadIdx.x; d < a.dim; d += blockDim.x) {
        float sum = 0.0f;
#pragma unroll 8
        for (uint32_t part = 0; part < a.parts; part++) sum = fmaf(weights[part], partial[part * stride + d], sum);
        a.out[at * a.dim + d] = sum / total;
    }
}

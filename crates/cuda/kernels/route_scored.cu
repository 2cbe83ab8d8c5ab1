// Routers with a bias of the choice alone: scores are sigmoids, roots of softplus, or a softmax. Experts are chosen by
// score plus bias, within the groups that stay, and weighed by score. One kernel for any number of experts: scores lie
// in shared memory, a lane has those of experts lane, lane + 32, .. What is left of a choice is `mixture.cu`'s.

struct ScoredRouteArguments {
    RouteArguments route;
    const float* bias;           // [experts]: added for the choice alone; null without
    const float* next_bias;      // the same of the next layer, whose choices are guessed
    const uint16_t* given;       // [vocabulary, columns]: the experts of each token id; the best of them are chosen;
                                 // null where all can be
    const uint32_t* tokens;      // [tokens]: ids, where experts are given
    uint32_t score;              // ScoreKind
    uint32_t groups;             // of experts, up to 64; they divide them
    uint32_t kept;               // groups that stay: those whose best two experts together score most
    float scale;                 // of weights, in the end
    uint32_t columns;            // of `given`, at most TOP_K_LIMIT
    float least_sum;             // of SCORE_SOFTMAX: the least that weights are divided by
};

// A gap after 32 scores: lanes that walk through groups of 32 meet different banks.
__device__ inline uint32_t score_place(uint32_t expert) { return expert + expert / 32; }

__device__ inline float score_of(float logit, uint32_t kind) {
    if (kind == SCORE_SIGMOID) return sigmoid(logit);
    // Beyond that the exponential adds nothing.
    return sqrtf(logit > 20.0f ? logit : log1pf(expf(logit)));
}

// The largest logit and the sum of exponentials of what others are less. By one warp.
__device__ inline float2 softmax_of(const float* logits, uint32_t experts, uint32_t lane) {
    float largest = -INFINITY, total = 0.0f;
    for (uint32_t i = lane; i < experts; i += 32) largest = fmaxf(largest, logits[i]);
    largest = warp_max(largest);
    for (uint32_t i = lane; i < experts; i += 32) total += expf(logits[i] - largest);
    return {largest, warp_sum(total)};
}

// The expert of rank `lane` among those that a token is given: by score, the first of equal ones.
__device__ inline uint32_t given_choice(const ScoredRouteArguments& a, uint32_t token, uint32_t lane,
                                        const float* scores) {
    const uint16_t* row = a.given + size_t(a.tokens[token]) * a.columns;
    uint32_t mine = lane < a.columns ? row[lane] : 0, place = lane;
    float score = lane < a.columns ? scores[score_place(mine)] : -INFINITY;
    uint32_t rank = 0;
    for (uint32_t other = 0; other < a.columns; other++) {
        float theirs = __shfl_sync(FULL, score, other);
        rank += theirs > score || (theirs == score && other < lane);
    }
    for (uint32_t from = 0; from < a.columns; from++) {
        if (__shfl_sync(FULL, rank, from) == lane) place = from;
    }
    return __shfl_sync(FULL, mine, place);
}

// Takes all experts but those of the groups that stay out of the choice.
__device__ inline void keep_groups(const ScoredRouteArguments& a, uint32_t lane, float* choice) {
    uint32_t experts = a.route.experts, size = experts / a.groups;
    float sums[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t group = lane + 32 * half;
        float first = -INFINITY, second = -INFINITY;
        for (uint32_t i = 0; group < a.groups && i < size; i++) {
            float score = choice[score_place(group * size + i)];
            second = fmaxf(second, fminf(first, score));
            first = fmaxf(first, score);
        }
        sums[half] = size == 1 ? first : first + second;
    }
    uint64_t stay = 0;
    for (uint32_t i = 0; i < a.kept; i++) {
        float best;
        uint32_t group = take_largest<2>(sums, lane, i, best);
        stay |= uint64_t(1) << group;
    }
    __syncwarp();
    for (uint32_t i = lane; i < experts; i += 32) {
        if ((stay >> (i / size) & 1) == 0) choice[score_place(i)] = -INFINITY;
    }
}

// The k experts of the greatest scores (ties to the lowest id), sorted by id. Grid: (tokens, 1, or 2 where the next
// layer is guessed), 32 threads.
extern "C" __global__ void route_scored(const __grid_constant__ ScoredRouteArguments a) {
    __shared__ float scores[EXPERTS_LIMIT + EXPERTS_LIMIT / 32], choice[EXPERTS_LIMIT + EXPERTS_LIMIT / 32];
    __shared__ uint32_t ids[TOP_K_LIMIT];
    const RouteArguments& r = a.route;
    uint32_t token = blockIdx.x, lane = threadIdx.x;
    bool guessing = blockIdx.y == 1, broken = false;
    const float* bias = guessing ? a.next_bias : a.bias;
    await_inputs();
    release_next();
    const float* logits = guessing ? r.guess.logits : r.replaced ? r.replaced : r.logits;
    logits += size_t(token) * r.experts;
    bool softmax = a.score == SCORE_SOFTMAX;
    float2 whole = softmax ? softmax_of(logits, r.experts, lane) : float2{};
    for (uint32_t i = lane; i < r.experts; i += 32) {
        float score = softmax ? expf(logits[i] - whole.x) / whole.y : score_of(logits[i], a.score);
        broken |= !(score < INFINITY);
        scores[score_place(i)] = score;
        choice[score_place(i)] = bias ? score + bias[i] : score;
    }
    __syncwarp();
    if (a.kept < a.groups) keep_groups(a, lane, choice);
    bool given = a.given && !guessing;
    uint32_t mine = given ? given_choice(a, token, lane, scores) : 0;
    for (uint32_t rank = 0; rank < r.k && !given; rank++) {
        uint32_t index = 0xffffffffu;
        float best = -INFINITY;
        for (uint32_t i = lane; i < r.experts; i += 32) {
            float score = choice[score_place(i)];
            if (score > best) best = score, index = i;
        }
        largest_of_warp(best, index);
        if (index == 0xffffffffu) index = rank;
        if (index % 32 == lane) choice[score_place(index)] = -INFINITY;
        if (rank == lane) mine = index;
    }
    if (guessing) return post_guess(r, token, lane, mine);
    // docs/device-protocol.md, "status": taken by `outcome`.
    if (__any_sync(FULL, broken) && lane == 0) tell_host(r.status + BROKEN_TOKEN, 1 + token);
    if (lane < r.k) ids[lane] = mine;
    uint32_t place = ascending_place(mine, lane, r.k);
    if (lane >= r.k) return;
    float weight = scores[score_place(mine)], divisor = 1.0f;
    if (r.normalise) {
        float sum = 0.0f;
        for (uint32_t i = 0; i < r.k; i++) sum += scores[score_place(ids[i])];
        divisor = softmax ? fmaxf(sum, a.least_sum) : sum + 1e-20f;
    }
    leave_choice(r, token, lane, {mine, place, weight / divisor * a.scale});
}

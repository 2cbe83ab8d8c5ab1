// The choice of a token's experts by a warp, the guess of the next layer's, and what the host is told of both.
#pragma once
#include "common.cuh"

// What `route` guesses of the next layer; all null where nothing is guessed.
struct Guess {
    const float* logits;         // [tokens, experts] of the next layer's router
    const uint64_t* table;       // [experts]
    uint32_t* guesses;           // [tokens, k], best first
    const uint32_t* depths;      // mapped host memory: ranks to copy over the bus, ranks to read from disk
    uint32_t* ended;             // mapped host memory: see `Ended`
    uint64_t device_slots;       // addresses from here on,
    uint64_t device_bytes;       // as many, are device memory
};

struct RouteArguments {
    const float* logits;         // [tokens, experts]
    const float* replaced;       // optional: used instead
    const uint64_t* table;       // [experts] of this layer
    uint32_t* chosen;            // [tokens, k], ascending
    float* weights;              // [tokens, k]
    uint64_t* addresses;         // [tokens, k]
    uint32_t* uses;              // [tokens, k]: chosen, kept for the policy
    uint64_t* ring;              // mapped host memory: key + 1 of records asked for, zeroed by the host
    uint32_t* posted;            // requests so far
    uint32_t* status;            // mapped host memory: see `await_record`
    const uint64_t* copies;      // [experts] of this layer: 0 or the address of a copy; null without any
    const float* expert_scales;  // [experts]: factors of weights; null without
    Guess guess;
    uint32_t experts;
    uint32_t k;
    uint32_t normalise;
    uint32_t first_key;
    uint32_t ring_mask;
    uint32_t ask;                // 0: only look up
    uint32_t layer;
    uint32_t padding;
};

// The largest value over a warp and its index, the lowest of equal ones; -infinity and 0xffffffff when there is none.
__device__ inline void largest_of_warp(float& best, uint32_t& index) {
#if __CUDA_ARCH__ >= 800
    uint32_t bits = __float_as_uint(best + 0.0f); // -0 is 0
    uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    uint32_t top = __reduce_max_sync(FULL, ordered);
    index = __reduce_min_sync(FULL, ordered == top ? index : 0xffffffffu);
    best = __uint_as_float(top & 0x80000000u ? top & 0x7fffffffu : ~top);
#else
    for (int offset = 16; offset > 0; offset >>= 1) {
        float other = __shfl_xor_sync(FULL, best, offset);
        uint32_t at = __shfl_xor_sync(FULL, index, offset);
        if (other > best || (other == best && at < index)) best = other, index = at;
    }
#endif
}

// Takes the largest of a warp's scores: index and value. Lane l has the scores of experts l, l + 32, ..
// `rank` instead where nothing comparable is left.
template <int ROUTE_KEPT>
__device__ inline uint32_t take_largest(float (&scores)[ROUTE_KEPT], uint32_t lane, uint32_t rank, float& best) {
    uint32_t index = 0xffffffffu;
    best = -INFINITY;
#pragma unroll
    for (int j = 0; j < ROUTE_KEPT; j++) {
        if (scores[j] > best) best = scores[j], index = lane + 32 * j;
    }
    largest_of_warp(best, index);
    if (index == 0xffffffffu) index = rank;
#pragma unroll
    for (int j = 0; j < ROUTE_KEPT; j++) {
        if (index == lane + 32 * j) scores[j] = -INFINITY;
    }
    return index;
}

// Leaves what was guessed of the next layer for a token, and asks for what would have to come over the bus or from
// disk, best first. By one warp: lane r has the expert of rank r.
__device__ inline void post_guess(const RouteArguments& a, uint32_t token, uint32_t lane, uint32_t mine) {
    // docs/device-protocol.md, "depths".
    const volatile uint32_t* depths = a.guess.depths;
    uint32_t bus = depths[DEPTH_BUS], disk = depths[DEPTH_DISK];
    bool wanted = false;
    if (lane < a.k) {
        a.guess.guesses[size_t(token) * a.k + lane] = mine;
        uint64_t address = a.guess.table[mine];
        wanted = address - a.guess.device_slots >= a.guess.device_bytes && lane < (address != 0 ? bus : disk);
    }
    uint32_t all = __ballot_sync(FULL, wanted), first = 0;
    if (all == 0) return;
    if (lane == 0) first = atomicAdd(a.posted, __popc(all));
    first = __shfl_sync(FULL, first, 0) + __popc(all & ((1u << lane) - 1));
    // docs/device-protocol.md, "ring": without a fence, it announces nothing but itself.
    volatile uint64_t* request = a.ring + (first & a.ring_mask);
    if (wanted) *request = PREFETCH | (uint64_t(1) + a.first_key + a.experts + mine);
}

// Ranks the next layer's experts for a token. By one warp.
template <int ROUTE_KEPT>
__device__ inline void guess(const RouteArguments& a, uint32_t token, uint32_t lane) {
    const float* logits = a.guess.logits + size_t(token) * a.experts;
    uint32_t mine = 0;
    float scores[ROUTE_KEPT];
#pragma unroll
    for (int j = 0; j < ROUTE_KEPT; j++) {
        uint32_t i = lane + 32 * j;
        scores[j] = i < a.experts ? logits[i] : -INFINITY;
    }
    for (uint32_t rank = 0; rank < a.k; rank++) {
        float best;
        uint32_t index = take_largest(scores, lane, rank, best);
        if (lane == rank) mine = index;
    }
    post_guess(a, token, lane, mine);
}

// An expert of a token's choice: its place among the chosen, ascending by id, and its weight.
struct Choice {
    uint32_t id, place;
    float weight;
};

// How many of the first k lanes' ids come before the lane's own, ascending; equal ones by lane. By a whole warp.
__device__ inline uint32_t ascending_place(uint32_t id, uint32_t lane, uint32_t k) {
    uint32_t place = 0;
    for (uint32_t i = 0; i < k; i++) {
        uint32_t other = __shfl_sync(FULL, id, i);
        place += other < id || (other == id && i < lane);
    }
    return place;
}

// What counts a chosen expert's outputs.
__device__ inline float chosen_weight(const RouteArguments& a, const Choice& choice) {
    return a.expert_scales ? choice.weight * a.expert_scales[choice.id] : choice.weight;
}

// Leaves the choice of a token with the addresses of its records, and asks for what has none. By lanes 0..k of a warp.
__device__ inline void leave_choice(const RouteArguments& a, uint32_t token, uint32_t lane, const Choice& choice) {
    uint32_t id = choice.id;
    size_t at = size_t(token) * a.k + choice.place;
    a.chosen[at] = id;
    a.weights[at] = chosen_weight(a, choice);
    a.uses[at] = id;
    uint64_t address = a.table[id];
    uint64_t copy = a.copies ? *reinterpret_cast<const volatile uint64_t*>(a.copies + id) : 0;
    if (copy != 0) {
        // docs/device-protocol.md, "copies": what is there must not be read from before its address.
        __threadfence();
        address = copy;
        a.uses[at] = id | FROM_COPY;
    }
    a.addresses[at] = address;
    if (a.guess.ended && gridDim.x == 1) {
        uint32_t chosen = a.k == 32 ? FULL : (1u << a.k) - 1;
        bool there = address - a.guess.device_slots < a.guess.device_bytes;
        if (__all_sync(chosen, there) && lane == 0) *reinterpret_cast<volatile uint32_t*>(a.guess.ended) = a.layer + 1;
    }
    if (address == 0 && a.ask) {
        uint32_t slot = atomicAdd(a.posted, 1) & a.ring_mask;
        // docs/device-protocol.md, "ring": taken by `take_request`.
        tell_host(a.ring + slot, uint64_t(1) + a.first_key + id);
    }
}

// Logits of a token's experts, those that a lane has: of experts lane, lane + 32, ..
template <int ROUTE_KEPT>
__device__ inline void load_logits(const RouteArguments& a, uint32_t token, uint32_t lane,
                                   float (&scores)[ROUTE_KEPT]) {
    const float* logits = (a.replaced ? a.replaced : a.logits) + size_t(token) * a.experts;
#pragma unroll
    for (int j = 0; j < ROUTE_KEPT; j++) {
        uint32_t i = lane + 32 * j;
        scores[j] = i < a.experts ? __ldcg(logits + i) : -INFINITY;
    }
}

// The k experts of the largest logits (ties to the lowest id), weighed by the softmax over all. By a whole warp: lane r
// has the expert of rank r; those from k on have none. Tells the host of logits that are no numbers.
template <int ROUTE_KEPT>
__device__ inline Choice choose_experts(const RouteArguments& a, uint32_t token, uint32_t lane) {
    float scores[ROUTE_KEPT], largest = -INFINITY;
    bool broken = false;
    load_logits(a, token, lane, scores);
#pragma unroll
    for (int j = 0; j < ROUTE_KEPT; j++) broken |= !(scores[j] < INFINITY), largest = fmaxf(largest, scores[j]);
    // docs/device-protocol.md, "status": taken by `outcome`.
    if (__any_sync(FULL, broken) && lane == 0) tell_host(a.status + BROKEN_TOKEN, 1 + token);
    largest = warp_max(largest);
    float total = 0.0f;
#pragma unroll
    for (int j = 0; j < ROUTE_KEPT; j++) total += expf(scores[j] - largest);
    total = warp_sum(total);
    Choice choice = {0, 0, 0.0f};
    float logit = largest;
    for (uint32_t rank = 0; rank < a.k; rank++) {
        float best;
        uint32_t index = take_largest(scores, lane, rank, best);
        if (lane == rank) choice.id = index, logit = best;
    }
    choice.weight = expf(logit - largest) / total;
    if (a.normalise) {
        float sum = 0.0f;
        for (uint32_t i = 0; i < a.k; i++) sum += __shfl_sync(FULL, choice.weight, i);
        choice.weight /= sum;
    }
    choice.place = ascending_place(choice.id, lane, a.k);
    return choice;
}

// The ids of `choose_experts` alone.
template <int ROUTE_KEPT>
__device__ inline uint32_t select_experts(const RouteArguments& a, uint32_t token, uint32_t lane) {
    float scores[ROUTE_KEPT], best;
    load_logits(a, token, lane, scores);
    uint32_t id = 0;
    for (uint32_t rank = 0; rank < a.k; rank++) {
        uint32_t index = take_largest(scores, lane, rank, best);
        if (lane == rank) id = index;
    }
    return id;
}

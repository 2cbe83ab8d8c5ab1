// The mixture of experts: routing, the address table, and the feed-forward of few tokens.
//
// The table has a word per expert: an address where its record can be read (device memory or pinned host memory),
// or 0. `route` writes the addresses of the chosen experts and posts the key of each missing one to a ring in
// pinned host memory; blocks of `expert_inner` that need it poll the answer while the others run.
//
// Beside it `route` may rank what the next layer's router makes of this layer's input, and post those records that are
// not in device memory, best first. The host copies them to scratch slots while the next layer's mixer computes: a word
// per expert says where such a copy is (COPYING: will be), and the next layer's `route` takes it, not the table's.
#include "product.cuh"

// The routed experts of a layer: shapes, and where the nine pieces lie in each record.
struct Experts {
    Matrix gate, up, down;       // shapes; addresses are filled in from a record's
    const uint32_t* places;      // [experts][PLACES]: weight, scales, biases of gate, up, down
    uint32_t same[PLACES];       // the places, when those of all experts are equal
    uint32_t equal;              // 1: they are
};

__device__ inline Matrix piece(const Matrix& shape, const Experts& e, uint32_t expert, uint64_t record,
                               ExpertPart part) {
    const uint8_t* base = reinterpret_cast<const uint8_t*>(record);
    Matrix m = shape;
    if (e.equal) {
        m.weight = base + e.same[3 * part], m.scales = base + e.same[3 * part + 1];
        m.biases = base + e.same[3 * part + 2];
        return m;
    }
    const uint32_t* place = e.places + size_t(expert) * PLACES + part * 3;
    m.weight = base + place[0], m.scales = base + place[1], m.biases = base + place[2];
    return m;
}

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

// Leaves a token's choice, sorted by id. Grid: (tokens, 1, or 2 where the next layer is guessed), 32 threads.
template <int ROUTE_KEPT>
__device__ inline void route(const RouteArguments& a) {
    uint32_t token = blockIdx.x, lane = threadIdx.x;
    await_inputs();
    release_next();
    if (blockIdx.y == 1) return guess<ROUTE_KEPT>(a, token, lane);
    Choice choice = choose_experts<ROUTE_KEPT>(a, token, lane);
    if (lane < a.k) leave_choice(a, token, lane, choice);
}

extern "C" __global__ void route_256(const __grid_constant__ RouteArguments a) { route<8>(a); }
extern "C" __global__ void route_512(const __grid_constant__ RouteArguments a) { route<16>(a); }
extern "C" __global__ void route_1024(const __grid_constant__ RouteArguments a) { route<32>(a); }

// Tells the host that a layer needs the bus no more, so that it may copy what the next one will need: the kernel of the
// experts' second halves says so when its last block ends, `route` where all that it chose is in device memory. A hint
// (docs/device-protocol.md, "ended"): volatile, without a fence.
struct Ended {
    uint32_t* blocks;            // that have ended; 0 between launches
    uint32_t* word;              // mapped host memory: 1 + the layer; null where the layer is not reported
    uint32_t layer;
    uint32_t padding;
};

// By one thread of each block, after all that the block reads.
__device__ inline void note_end(const Ended& e) {
    if (!e.word || atomicAdd(e.blocks, 1) + 1 != gridDim.x * gridDim.y) return;
    *e.blocks = 0;
    *reinterpret_cast<volatile uint32_t*>(e.word) = e.layer + 1;
}

struct ExpertArguments {
    const float* x;              // [tokens, hidden]: the normed stream
    const uint32_t* chosen;      // [tokens, k]
    const float* weights;        // [tokens, k]
    uint64_t* addresses;         // [tokens, k]; 0 is replaced by the answer
    const uint64_t* answers;     // by key, mapped host memory
    uint32_t* status;            // mapped host memory, see `await_record`
    float* inner;                // [tokens, k, padded_inner]: SiLU(gate x) * up x
    float* shared_inner;         // [tokens, padded_shared]
    const float* shared_gate;    // [tokens]: before the sigmoid; null without a shared expert
    float* out;                  // [tokens, hidden] += the mixture
    const uint64_t* copies;      // as in `RouteArguments`
    Experts experts;
    Matrix gate, up, down;       // the shared expert
    Ended ended;
    uint32_t hidden;
    uint32_t k;
    uint32_t first_key;
    uint32_t padding;
};

// Looks at the answer between two looks at the clock and at `status`.
constexpr int LOOKS = 64;

__device__ inline uint64_t global_nanoseconds() {
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// True for what routing found that cannot be read from yet: a record asked for, or a copy that may be under way.
__device__ inline bool is_awaited(uint64_t address) {
    return address == 0 || (address & COPYING) != 0;
}

// The address of a record: as routing found it, of its copy once that is there, or what the host answers; FAILED when
// it does not for as long as it said that it might take (docs/device-protocol.md, "answers", "copies", "status").
__device__ inline uint64_t await_record(uint64_t address, const uint64_t* answers, uint32_t* status,
                                        const uint64_t* copies) {
    if (!is_awaited(address)) return address;
    bool copying = address != 0;
    const volatile uint64_t* answer = copying ? copies : answers;
    const volatile uint32_t* given_up = status + GIVEN_UP;
    uint64_t start = global_nanoseconds(), patience = uint64_t(status[PATIENCE]) * 1000000;
    for (;;) {
        for (int i = 0; i < LOOKS; i++) {
            if (!is_awaited(address = *answer)) {
                // Acquires what `answer` released, or what the copy engine wrote before the word.
                __threadfence_system();
                return address;
            }
            __nanosleep(copying ? 64 : 500);
        }
        if (*given_up) return FAILED;
        if (global_nanoseconds() - start > patience) {
            tell_host(status + GIVEN_UP, 1u);
            return FAILED;
        }
    }
}

// The record of expert `expert`, the choice at `at`, for all threads of a block. They must see the same: another block
// may write the answer at any time. `record` is shared memory.
template <typename Arguments>
__device__ inline uint64_t block_record(const Arguments& a, size_t at, uint32_t expert, uint64_t& record) {
    uint64_t found = a.addresses[at];
    if (__syncthreads_or(is_awaited(found))) {
        if (threadIdx.x == 0) {
            record = await_record(a.addresses[at], a.answers + a.first_key + expert, a.status, a.copies + expert);
            // Left for the second half (docs/device-protocol.md, "An answer passed on").
            if (blockIdx.x == 0) a.addresses[at] = record;
        }
        __syncthreads();
        found = record;
    }
    return found;
}

// Grid: (blocks of 8 rows, k [+ 1 with a shared expert], tokens), 256 threads; shared: the staged x.
extern "C" __global__ void __launch_bounds__(256) expert_inner(const __grid_constant__ ExpertArguments a) {
    extern __shared__ float staged[];
    __shared__ uint64_t record;
    uint32_t token = blockIdx.z, rank = blockIdx.y;
    uint32_t row = blockIdx.x * 8 + threadIdx.x / 32;
    Matrix gate, up;
    float* to;
    if (rank < a.k) {
        size_t at = size_t(token) * a.k + rank;
        uint32_t expert = a.chosen[at];
        if (blockIdx.x * 8 >= a.experts.gate.rows) return;
        uint64_t found = block_record(a, at, expert, record);
        if (found == FAILED) return;
        gate = piece(a.experts.gate, a.experts, expert, found, GATE);
        up = piece(a.experts.up, a.experts, expert, found, UP);
        to = a.inner + at * gate.rows;
    } else {
        gate = a.gate, up = a.up;
        to = a.shared_inner + size_t(token) * gate.rows;
    }
    stage(a.x + size_t(token) * a.hidden, a.hidden, staged);
    __syncthreads();
    if (row >= gate.rows) return;
    float2 v = product_pair(gate, up, row, staged);
    if (threadIdx.x % 32 == 0) to[row] = silu(v.x) * v.y;
}

// Grid: (blocks of 8 rows, tokens), 256 threads; shared: k + 1 staged inner vectors.
extern "C" __global__ void __launch_bounds__(256) expert_outer(const __grid_constant__ ExpertArguments a) {
    extern __shared__ float staged[];
    __shared__ Matrix down[TOP_K_LIMIT + 1];
    __shared__ float factor[TOP_K_LIMIT + 1];
    uint32_t token = blockIdx.y, row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t width = a.experts.down.columns, chunks = (width + 31) / 32;
    uint32_t shared_chunks = a.shared_gate ? (a.down.columns + 31) / 32 : 0;
    if (threadIdx.x < a.k) {
        size_t at = size_t(token) * a.k + threadIdx.x;
        uint64_t record = a.addresses[at];
        factor[threadIdx.x] = a.weights[at];
        if (record == FAILED) {
            down[threadIdx.x].rows = 0;
        } else {
            down[threadIdx.x] = piece(a.experts.down, a.experts, a.chosen[at], record, DOWN);
        }
    } else if (threadIdx.x == a.k && a.shared_gate) {
        factor[a.k] = sigmoid(a.shared_gate[token]);
        down[a.k] = a.down;
    }
    if (width % 32 == 0) {
        stage(a.inner + size_t(token) * a.k * width, a.k * width, staged);
    } else {
        for (uint32_t rank = 0; rank < a.k; rank++) {
            stage(a.inner + (size_t(token) * a.k + rank) * width, width, staged + rank * chunks * STAGED_CHUNK);
        }
    }
    if (a.shared_gate) {
        stage(a.shared_inner + size_t(token) * a.down.columns, a.down.columns, staged + a.k * chunks * STAGED_CHUNK);
    }
    __syncthreads();
    float sum = 0.0f;
    uint32_t routed = a.k * chunks;
    for (uint32_t c = lane; row < a.hidden && c < routed + shared_chunks; c += 32) {
        uint32_t rank = c < routed ? c / chunks : a.k;
        uint32_t column = (c - rank * chunks) * 32;
        Chunk chunk;
        chunk.load(staged + rank * chunks * STAGED_CHUNK, column);
        const Matrix& m = down[rank];
        if (m.rows) sum = fmaf(factor[rank], any_chunk(m, row, column, chunk), sum);
    }
    sum = warp_sum(sum);
    if (lane == 0 && row < a.hidden) a.out[size_t(token) * a.hidden + row] += sum;
    __syncthreads();
    if (threadIdx.x == 0) note_end(a.ended);
}

struct GroupArguments {
    const uint32_t* chosen;      // [tokens, k]
    uint32_t* starts;            // [experts + 1]
    uint32_t* pair_token;        // [pairs]: token of each pair, sorted by expert
    uint32_t* place;             // [tokens, k]: where the pair is
    uint32_t tokens;
    uint32_t k;
    uint32_t experts;
    uint32_t padding;
};

// Sorts the pairs by expert. One block of 1024 threads; shared: experts words.
extern "C" __global__ void group_pairs(const __grid_constant__ GroupArguments a) {
    extern __shared__ uint32_t cursor[];
    uint32_t pairs = a.tokens * a.k;
    for (uint32_t e = threadIdx.x; e < a.experts; e += blockDim.x) cursor[e] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < pairs; i += blockDim.x) atomicAdd(&cursor[a.chosen[i]], 1);
    __syncthreads();
    if (threadIdx.x < 32) {
        uint32_t next = 0;
        for (uint32_t first = 0; first < a.experts; first += 32) {
            uint32_t e = first + threadIdx.x, count = e < a.experts ? cursor[e] : 0, end = count;
#pragma unroll
            for (uint32_t offset = 1; offset < 32; offset *= 2) {
                uint32_t before = __shfl_up_sync(FULL, end, offset);
                if (threadIdx.x >= offset) end += before;
            }
            if (e < a.experts) a.starts[e] = next + end - count, cursor[e] = next + end - count;
            next += __shfl_sync(FULL, end, 31);
        }
        if (threadIdx.x == 0) a.starts[a.experts] = next;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < pairs; i += blockDim.x) {
        uint32_t to = atomicAdd(&cursor[a.chosen[i]], 1);
        a.pair_token[to] = i / a.k;
        a.place[i] = to;
    }
}

struct TileListArguments {
    const uint32_t* starts;      // [experts + 1]
    const uint64_t* addresses;   // [experts]: 0 for those left out
    uint32_t* tiles;             // [.., 3]: expert, first pair, pairs
    uint32_t* count;
    uint32_t experts;
    uint32_t tile;               // pairs per tile
};

// The tiles of the experts that have an address. One block of 1024 threads.
extern "C" __global__ void list_tiles(const __grid_constant__ TileListArguments a) {
    __shared__ uint32_t next;
    if (threadIdx.x == 0) next = 0;
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < a.experts; e += blockDim.x) {
        if (a.addresses[e] == 0) continue;
        uint32_t begin = a.starts[e], end = a.starts[e + 1];
        uint32_t tiles = (end - begin + a.tile - 1) / a.tile;
        uint32_t at = atomicAdd(&next, tiles);
        for (uint32_t i = 0; i < tiles; i++) {
            uint32_t first = begin + i * a.tile;
            a.tiles[3 * (at + i)] = e;
            a.tiles[3 * (at + i) + 1] = first;
            a.tiles[3 * (at + i) + 2] = min(a.tile, end - first);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) *a.count = next;
}

struct SwigluArguments {
    float* gate;                 // [count]: becomes SiLU(gate) * up
    const float* up;
    uint64_t count;
};

extern "C" __global__ void swiglu(const __grid_constant__ SwigluArguments a) {
    uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < a.count) a.gate[i] = silu(a.gate[i]) * a.up[i];
}

struct CombineArguments {
    const float* routed;         // [pairs, hidden]
    const uint32_t* place;       // [tokens, k]
    const float* weights;        // [tokens, k]
    const float* shared;         // [tokens, hidden] or null
    const float* shared_gate;    // [tokens]
    float* out;                  // [tokens, hidden] +=
    uint32_t hidden;
    uint32_t k;
};

// Adds the experts of each token by ascending id, the shared expert last. Grid: tokens, 256 threads.
extern "C" __global__ void combine(const __grid_constant__ CombineArguments a) {
    uint32_t token = blockIdx.x;
    for (uint32_t i = blockIdx.y * blockDim.x + threadIdx.x; i < a.hidden; i += gridDim.y * blockDim.x) {
        float sum = 0.0f;
#pragma unroll 8
        for (uint32_t rank = 0; rank < a.k; rank++) {
            size_t at = size_t(token) * a.k + rank;
            sum = fmaf(a.weights[at], a.routed[size_t(a.place[at]) * a.hidden + i], sum);
        }
        if (a.shared) sum = fmaf(sigmoid(a.shared_gate[token]), a.shared[size_t(token) * a.hidden + i], sum);
        a.out[size_t(token) * a.hidden + i] += sum;
    }
}

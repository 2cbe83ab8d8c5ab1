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
#include "records.cuh"
#include "routing.cuh"

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

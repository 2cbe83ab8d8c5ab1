// The gated delta rule (Yang, Kautz, Hatamizadeh 2024) over the tokens of a prompt, one after another.
//
// What bounds it is the chain from one token to the next, so a token's inputs come from shared memory, which is filled
// some batches of tokens ahead, gates are computed beforehand, and both dots of the state, with the key and with the
// query, are formed at the same time: o = S_new^T q = S^T q + (k . q) d, where S has decayed.
#include "tensor.cuh"

struct DeltaChunkArguments {
    float* mixed;            // [tokens, channels]: q of all key heads, k of all, v of all; q and k are normalised here
    float* beta;             // [tokens, value_heads]: before the sigmoid, after `delta_prepare` after it
    float* decay;            // [tokens, value_heads, decays]; after `delta_prepare` factors of the state
    const float* rate;       // [value_heads]
    const float* bias;       // [value_heads, decays]
    float* state;            // [value_heads, key_dim, value_dim] of the run's sequence
    float* out;              // [tokens, value_heads, value_dim]
    const uint32_t* sequences;// per token; only the first is read
    size_t state_stride;     // floats from one sequence's state to the next
    uint32_t tokens;
    uint32_t channels;       // a multiple of 4
    uint32_t key_heads;
    uint32_t value_heads;
    uint32_t key_dim;        // 128 or 256
    uint32_t value_dim;      // a multiple of 4
    uint32_t tiled;          // as in `DeltaArguments`, as are `decays` and `bound`
    uint32_t decays;
    float bound;
    uint32_t padding;
};

// Queries and keys over sqrt(sum x^2 + 1e-6), queries scaled by key_dim^-0.5; sigmoids and decays.
// Grid: tokens, 256 threads.
extern "C" __global__ void __launch_bounds__(256) delta_prepare(const __grid_constant__ DeltaChunkArguments a) {
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (uint32_t head = warp; head < 2 * a.key_heads; head += 8) {
        float* x = a.mixed + size_t(blockIdx.x) * a.channels + size_t(head) * a.key_dim;
        float sum = 0.0f;
        for (uint32_t i = lane; i < a.key_dim; i += 32) sum += x[i] * x[i];
        float scale = rsqrtf(warp_sum(sum) + 1e-6f);
        if (head < a.key_heads) scale *= rsqrtf(float(a.key_dim));
        for (uint32_t i = lane; i < a.key_dim; i += 32) x[i] *= scale;
    }
    for (uint32_t head = threadIdx.x; head < a.value_heads; head += 256) {
        size_t at = size_t(blockIdx.x) * a.value_heads + head;
        a.beta[at] = sigmoid(a.beta[at]);
    }
    for (uint32_t i = threadIdx.x; i < a.value_heads * a.decays; i += 256) {
        size_t at = size_t(blockIdx.x) * a.value_heads * a.decays + i;
        a.decay[at] = channel_factor(a.decay[at] + a.bias[i], a.rate[i / a.decays], a.bound);
    }
}

#if __CUDA_ARCH__ >= 800

// Columns of a head's state of a block; so has `launch/delta.rs`.
constexpr uint32_t DELTA_COLUMNS = 32;

// A block has DELTA_COLUMNS columns of a head's state: a warp eight, eight lanes two of them, a lane KEYS keys, every
// eighth four. With CHANNELS the rows of the state have factors of their own. On an H200 a token of the 35B shape takes
// 0.28 us; 0.31 with sums of key and query next to each other and a branch that stores the output of each token,
// whether a lane has one column or two.
// Grid: (value_heads, value_dim / DELTA_COLUMNS), 128 threads; shared: DELTA_BATCHES batches.
template <int KEYS, bool CHANNELS = false>
__device__ inline void delta_chunk(const DeltaChunkArguments& a) {
    // Floats of a token: q, k, v of the columns, gates, factors of rows.
    constexpr uint32_t DIM = 8 * KEYS, GATES = 2 * DIM + DELTA_COLUMNS, FACTORS = GATES + 4;
    constexpr uint32_t ROW = FACTORS + (CHANNELS ? DIM : 0), OWN = DELTA_COLUMNS / 16;
    extern __shared__ __align__(16) float tokens_memory[];
    uint32_t thread = threadIdx.x, lane = thread % 32, part = lane % 8;
    uint32_t head = blockIdx.x, own = (thread / 32 * 4 + lane / 8) * OWN, column = blockIdx.y * DELTA_COLUMNS + own;
    // The head's size is a multiple of four: columns of a lane are there or not together.
    bool live = column < a.value_dim;
    uint32_t key_head = a.tiled ? head % a.key_heads : head / (a.value_heads / a.key_heads);
    uint32_t shared = shared_address(tokens_memory);
    const float* queries = a.mixed + key_head * DIM;
    const float* keys = a.mixed + (a.key_heads + key_head) * DIM;
    const float* values = a.mixed + 2 * a.key_heads * DIM + head * a.value_dim + blockIdx.y * DELTA_COLUMNS;
    uint32_t batches = (a.tokens + DELTA_BATCH - 1) / DELTA_BATCH;
    auto copy_batch = [&](uint32_t batch) {
        if (batch < batches) {
            uint32_t to = shared + batch % DELTA_BATCHES * DELTA_BATCH * ROW * 4, first = batch * DELTA_BATCH;
            for (uint32_t i = thread; i < DELTA_BATCH * DIM / 2; i += 128) {
                uint32_t token = i / (DIM / 2), unit = i % (DIM / 2), at = unit % (DIM / 4) * 4;
                bool there = first + token < a.tokens;
                const float* from = (unit < DIM / 4 ? queries : keys) + at;
                from += there ? size_t(first + token) * a.channels : 0;
                copy_16(to + token * ROW * 4 + unit * 16, from, there);
            }
            if (thread < DELTA_BATCH * DELTA_COLUMNS / 4) {
                uint32_t token = thread / (DELTA_COLUMNS / 4), at = thread % (DELTA_COLUMNS / 4) * 4;
                bool there = first + token < a.tokens && blockIdx.y * DELTA_COLUMNS + at < a.value_dim;
                const float* from = there ? values + size_t(first + token) * a.channels + at : values;
                copy_16(to + (token * ROW + 2 * DIM + at) * 4, from, there);
            }
            if constexpr (CHANNELS) {
                for (uint32_t i = thread; i < DELTA_BATCH * DIM / 4; i += 128) {
                    uint32_t token = i / (DIM / 4), at = i % (DIM / 4) * 4;
                    bool there = first + token < a.tokens;
                    const float* from = a.decay + (size_t(there ? first + token : 0) * a.value_heads + head) * DIM;
                    copy_16(to + (token * ROW + FACTORS + at) * 4, from + at, there);
                }
            }
            if (thread < DELTA_BATCH * 2 && !(CHANNELS && thread % 2)) {
                uint32_t token = thread / 2;
                bool there = first + token < a.tokens;
                const float* gates = thread % 2 ? a.decay : a.beta;
                const float* from = gates + size_t(there ? first + token : 0) * a.value_heads + head;
                copy_4(to + (token * ROW + GATES + thread % 2) * 4, from, there);
            }
        }
        commit_copies();
    };
    for (uint32_t batch = 0; batch + 1 < DELTA_BATCHES; batch++) copy_batch(batch);
    float* state = a.state + a.sequences[0] * a.state_stride + size_t(head) * DIM * a.value_dim + (live ? column : 0);
    float s[OWN][KEYS];
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
#pragma unroll
        for (int c = 0; c < OWN; c++) s[c][i] = state[size_t(4 * (part + i / 4 * 8) + i % 4) * a.value_dim + c];
    }
    // The state's dot with the key comes first: the next token waits for it alone. Eighths keep an output each.
    float kept[OWN] = {};
    auto step = [&](const float* row, uint32_t token) {
        float2 gates = *reinterpret_cast<const float2*>(row + GATES);
        // By fours, so that no chain of sums is long.
        float k[KEYS], with_key[OWN][4] = {}, with_query[OWN][4] = {}, both[4] = {}, dot[OWN], o[OWN];
#pragma unroll
        for (int i = 0; i < KEYS / 4; i++) {
            float4 w = reinterpret_cast<const float4*>(row + DIM)[part + 8 * i];
            float ks[4] = {w.x, w.y, w.z, w.w}, factors[4] = {gates.y, gates.y, gates.y, gates.y};
            if constexpr (CHANNELS) {
                float4 f = reinterpret_cast<const float4*>(row + FACTORS)[part + 8 * i];
                factors[0] = f.x, factors[1] = f.y, factors[2] = f.z, factors[3] = f.w;
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                k[4 * i + j] = ks[j];
#pragma unroll
                for (int c = 0; c < OWN; c++) {
                    s[c][4 * i + j] *= factors[j];
                    with_key[c][j] = fmaf(s[c][4 * i + j], ks[j], with_key[c][j]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < KEYS / 4; i++) {
            float4 q = reinterpret_cast<const float4*>(row)[part + 8 * i];
            float qs[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                both[j] = fmaf(k[4 * i + j], qs[j], both[j]);
#pragma unroll
                for (int c = 0; c < OWN; c++) with_query[c][j] = fmaf(s[c][4 * i + j], qs[j], with_query[c][j]);
            }
        }
        float product = (both[0] + both[1]) + (both[2] + both[3]);
#pragma unroll
        for (int c = 0; c < OWN; c++) {
            dot[c] = (with_key[c][0] + with_key[c][1]) + (with_key[c][2] + with_key[c][3]);
            o[c] = (with_query[c][0] + with_query[c][1]) + (with_query[c][2] + with_query[c][3]);
        }
#pragma unroll
        for (int offset = 4; offset > 0; offset >>= 1) {
#pragma unroll
            for (int c = 0; c < OWN; c++) dot[c] += __shfl_xor_sync(FULL, dot[c], offset);
        }
        float d[OWN];
#pragma unroll
        for (int c = 0; c < OWN; c++) {
            d[c] = gates.x * (row[2 * DIM + own + c] - dot[c]);
#pragma unroll
            for (int i = 0; i < KEYS; i++) s[c][i] = fmaf(k[i], d[c], s[c][i]);
        }
#pragma unroll
        for (int offset = 4; offset > 0; offset >>= 1) {
#pragma unroll
            for (int c = 0; c < OWN; c++) o[c] += __shfl_xor_sync(FULL, o[c], offset);
            product += __shfl_xor_sync(FULL, product, offset);
        }
#pragma unroll
        for (int c = 0; c < OWN; c++) kept[c] = part == token ? fmaf(product, d[c], o[c]) : kept[c];
    };
    static_assert(DELTA_BATCH == 8, "an eighth of a column's lanes keeps the output of a token");
    for (uint32_t batch = 0; batch < batches; batch++) {
        await_copies<DELTA_BATCHES - 2>();
        __syncthreads();
        copy_batch(batch + DELTA_BATCHES - 1);
        const float* row = tokens_memory + batch % DELTA_BATCHES * DELTA_BATCH * ROW;
        uint32_t count = min(DELTA_BATCH, a.tokens - batch * DELTA_BATCH);
        if (count == DELTA_BATCH) {
            // Without a branch between tokens their loads and sums overlap.
#pragma unroll
            for (uint32_t token = 0; token < DELTA_BATCH; token++) step(row + token * ROW, token);
        } else {
            for (uint32_t token = 0; token < count; token++) step(row + token * ROW, token);
        }
        if (live && part < count) {
            size_t at = size_t(batch * DELTA_BATCH + part) * a.value_heads + head;
#pragma unroll
            for (int c = 0; c < OWN; c++) a.out[at * a.value_dim + column + c] = kept[c];
        }
    }
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
#pragma unroll
        for (int c = 0; c < OWN; c++) {
            if (live) state[size_t(4 * (part + i / 4 * 8) + i % 4) * a.value_dim + c] = s[c][i];
        }
    }
}

#define DELTA_BODY(CALL) CALL
#else
#define DELTA_BODY(CALL) __trap()
#endif

extern "C" __global__ void __launch_bounds__(128) delta_chunk_16(const __grid_constant__ DeltaChunkArguments a) {
    DELTA_BODY(delta_chunk<16>(a));
}
extern "C" __global__ void __launch_bounds__(128) delta_chunk_32(const __grid_constant__ DeltaChunkArguments a) {
    DELTA_BODY(delta_chunk<32>(a));
}
extern "C" __global__ void __launch_bounds__(128) delta_chunk_channels(const __grid_constant__ DeltaChunkArguments a) {
    DELTA_BODY((delta_chunk<16, true>(a)));
}

// Norms, gates, attention and the gated delta rule: everything between the products of a token mixer.
#include "common.cuh"

// Fours of values that a thread of a norm keeps in registers.
constexpr int NORM_KEPT = 4;

struct NormArguments {
    const float* x;      // [rows, width]
    const float* weight; // [width]
    float* out;          // [rows, width]; may be x
    const uint32_t* rows;// optional: out row i is the norm of x row rows[i]
    uint32_t width;
    float epsilon;
};

// Grid: rows, 512 threads.
extern "C" __global__ void rms_norm(const __grid_constant__ NormArguments a) {
    __shared__ float scratch[32];
    await_inputs();
    release_next();
    uint32_t from = a.rows ? a.rows[blockIdx.x] : blockIdx.x;
    const float* x = a.x + size_t(from) * a.width;
    float* out = a.out + size_t(blockIdx.x) * a.width;
    float sum = 0.0f;
    if (a.width % 4 == 0 && a.width <= 4 * NORM_KEPT * blockDim.x) {
        // Read once, all loads in flight together.
        float4 kept[NORM_KEPT];
        const float4* from = reinterpret_cast<const float4*>(x);
#pragma unroll
        for (int j = 0; j < NORM_KEPT; j++) {
            uint32_t i = threadIdx.x + j * blockDim.x;
            kept[j] = i < a.width / 4 ? __ldcg(from + i) : float4{0, 0, 0, 0};
            float4 v = kept[j];
            sum += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
        }
        float scale = rsqrtf(block_sum(sum, scratch) / float(a.width) + a.epsilon);
#pragma unroll
        for (int j = 0; j < NORM_KEPT; j++) {
            uint32_t i = threadIdx.x + j * blockDim.x;
            if (i >= a.width / 4) continue;
            float4 v = kept[j], w = reinterpret_cast<const float4*>(a.weight)[i];
            reinterpret_cast<float4*>(out)[i] =
                {v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w};
        }
        return;
    }
    for (uint32_t i = threadIdx.x; i < a.width; i += blockDim.x) {
        float v = __ldcg(x + i);
        sum += v * v;
    }
    float scale = rsqrtf(block_sum(sum, scratch) / float(a.width) + a.epsilon);
    for (uint32_t i = threadIdx.x; i < a.width; i += blockDim.x) out[i] = __ldcg(x + i) * scale * a.weight[i];
}

struct GateArguments {
    float* x;
    const float* gate;
    uint32_t count;
    uint32_t padding;
};

// x *= sigmoid(gate)
extern "C" __global__ void sigmoid_gate(const __grid_constant__ GateArguments a) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.count) a.x[i] *= sigmoid(a.gate[i]);
}

struct GateHeadsArguments {
    float* x;                // [heads of all tokens, dim]
    const float* gate;       // [heads of all tokens]
    uint32_t dim;
    uint32_t count;          // values of x
};

// Each head of x times the sigmoid of its gate. Grid: count / 256, 256 threads.
extern "C" __global__ void gate_heads(const __grid_constant__ GateHeadsArguments a) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.count) a.x[i] *= sigmoid(a.gate[i / a.dim]);
}

struct SplitArguments {
    const float* both;   // [heads of all tokens, 2, dim]
    float* query;
    float* gate;
    uint32_t dim;
    uint32_t count;      // values of query
};

extern "C" __global__ void split_query_gate(const __grid_constant__ SplitArguments a) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.count) return;
    size_t at = size_t(i / a.dim) * 2 * a.dim + i % a.dim;
    a.query[i] = a.both[at];
    a.gate[i] = a.both[at + a.dim];
}

struct RotateArguments {
    float* x;                // [tokens, heads, dim]
    const float* weight;     // [dim]; null where heads have no norm
    const float* frequencies;// [rotary / 2]
    const uint32_t* positions;
    uint32_t heads;
    uint32_t dim;
    uint32_t rotary;
    float epsilon;
    float magnitude;         // of rotated values
    uint32_t padding;
};

// RMS norm of each head, then rotation of pairs (j, j + rotary / 2). Grid: (heads, tokens), 128 threads;
// shared: dim floats.
extern "C" __global__ void norm_and_rotate(const __grid_constant__ RotateArguments a) {
    extern __shared__ float head[];
    __shared__ float scratch[32];
    await_inputs();
    release_next();
    float* x = a.x + (size_t(blockIdx.y) * a.heads + blockIdx.x) * a.dim;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) {
        float v = __ldcg(x + i);
        head[i] = v, sum += v * v;
    }
    // A thread reads what it has written.
    if (a.weight) {
        float scale = rsqrtf(block_sum(sum, scratch) / float(a.dim) + a.epsilon);
        for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) head[i] = head[i] * scale * a.weight[i];
    }
    __syncthreads();
    float position = float(a.positions[blockIdx.y]);
    uint32_t half = a.rotary / 2;
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) {
        float v = head[i];
        if (i < a.rotary) {
            float angle = position * a.frequencies[i % half], sine, cosine;
            sincosf(angle, &sine, &cosine);
            sine *= a.magnitude, cosine *= a.magnitude;
            v = i < half ? v * cosine - head[i + half] * sine : v * cosine + head[i - half] * sine;
        }
        x[i] = v;
    }
}

struct ConvolveArguments {
    const float* x;          // [tokens, channels]
    const float* weight;     // [channels, kernel], newest tap last
    float* tail;             // [sequences, kernel - 1, channels]: raw inputs before the run
    float* out;              // [tokens, channels]
    const uint32_t* sequences;// per token; only the first of the run is read
    uint32_t tokens;
    uint32_t channels;
    uint32_t kernel;
    uint32_t single;         // 1: every token is a run of its own
    size_t tail_stride;      // floats from one sequence's tail to the next
};

// The raw inputs before the token after the run, oldest first.
__device__ inline void update_tail(const ConvolveArguments& a, uint32_t channel, uint32_t first, uint32_t count) {
    uint32_t taps = a.kernel - 1;
    float* tail = a.tail + a.sequences[first] * a.tail_stride;
    for (uint32_t i = 0; i < taps; i++) {
        int64_t at = int64_t(count) - taps + i;
        tail[size_t(i) * a.channels + channel] = at >= 0 ? a.x[size_t(first + at) * a.channels + channel]
                                                         : tail[size_t(at + taps) * a.channels + channel];
    }
}

// Tokens whose inputs are asked for at once.
constexpr uint32_t CONVOLVE_AT_ONCE = 8;

// SiLU of the causal convolution. Grid: (channels / 256, parts of CONVOLVE_RUN tokens or tokens).
extern "C" __global__ void __launch_bounds__(256) convolve(const __grid_constant__ ConvolveArguments a) {
    uint32_t channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= a.channels) return;
    const float* weight = a.weight + size_t(channel) * a.kernel;
    uint32_t taps = a.kernel - 1;
    uint32_t first = a.single ? blockIdx.y : blockIdx.y * CONVOLVE_RUN;
    uint32_t run_start = a.single ? first : 0;
    uint32_t last = a.single ? first + 1 : min(first + CONVOLVE_RUN, a.tokens);
    const float* tail = a.tail + a.sequences[run_start] * a.tail_stride;
    auto input = [&](int64_t at) {
        return at >= 0 ? a.x[size_t(run_start + at) * a.channels + channel]
                       : tail[size_t(at + taps) * a.channels + channel];
    };
    if (a.kernel == 4) {
        // The usual number: each input is read once, several ahead. One at a time took 19 us of 32 tokens and 8,192
        // channels on an H200.
        float w[4], window[3 + CONVOLVE_AT_ONCE];
#pragma unroll
        for (uint32_t tap = 0; tap < 4; tap++) w[tap] = weight[tap];
#pragma unroll
        for (uint32_t i = 0; i < 3; i++) window[i] = input(int64_t(first) - run_start - 3 + i);
        for (uint32_t token = first; token < last; token += CONVOLVE_AT_ONCE) {
            const float* from = a.x + size_t(token) * a.channels + channel;
#pragma unroll
            for (uint32_t i = 0; i < CONVOLVE_AT_ONCE; i++) {
                window[3 + i] = token + i < last ? from[size_t(i) * a.channels] : 0.0f;
            }
            float* to = a.out + size_t(token) * a.channels + channel;
#pragma unroll
            for (uint32_t i = 0; i < CONVOLVE_AT_ONCE; i++) {
                float sum = 0.0f;
#pragma unroll
                for (uint32_t tap = 0; tap < 4; tap++) sum = fmaf(w[tap], window[i + tap], sum);
                if (token + i < last) to[size_t(i) * a.channels] = silu(sum);
            }
#pragma unroll
            for (uint32_t i = 0; i < 3; i++) window[i] = window[CONVOLVE_AT_ONCE + i];
        }
    } else {
        for (uint32_t token = first; token < last; token++) {
            float sum = 0.0f;
            for (uint32_t tap = 0; tap < a.kernel; tap++) {
                sum = fmaf(weight[tap], input(int64_t(token) - run_start - taps + tap), sum);
            }
            a.out[size_t(token) * a.channels + channel] = silu(sum);
        }
    }
    // With one part per run no other block reads this channel's tail.
    if (a.single || gridDim.y == 1) update_tail(a, channel, run_start, last - run_start);
}

// The tail after a run of several parts. Grid: channels / 256.
extern "C" __global__ void convolve_tail(const __grid_constant__ ConvolveArguments a) {
    uint32_t channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= a.channels) return;
    update_tail(a, channel, 0, a.tokens);
}

struct DeltaArguments {
    float* mixed;            // [tokens, channels]: q of all key heads, k of all, v of all; q and k are normalised here
    const float* beta;       // [tokens, value_heads], before the sigmoid
    const float* decay;      // [tokens, value_heads, decays], before their function
    const float* rate;       // [value_heads]
    const float* bias;       // [value_heads, decays]
    float* state;            // [sequences][value_heads, key_dim, value_dim]
    float* out;              // [tokens, value_heads, value_dim]
    const uint32_t* sequences;
    size_t state_stride;     // floats from one sequence's state to the next
    float* ring;             // rounds: [sequences][ROUND_PLACES, ring_row]: raw inputs, then k, v, beta, decay
    const uint32_t* positions;
    const uint32_t* starts;  // rounds: as of `ConvolveRunArguments`, as are `lags`
    const uint32_t* lags;
    size_t ring_stride;
    uint32_t tokens;
    uint32_t channels;
    uint32_t key_heads;
    uint32_t value_heads;
    uint32_t key_dim;        // at most 256, a multiple of 8
    uint32_t value_dim;      // a multiple of 4
    uint32_t tiled;          // 1: value head h has key head h % key_heads, as GGUF files have them
    uint32_t ring_row;       // a multiple of 4
    uint32_t decays;         // of a head: 1, or key_dim where each channel of a key has its own
    float bound;             // of the magnitude of decays of channels; 0 without
};

// x / sqrt(sum x^2 + 1e-6) of each query and key head, queries scaled by key_dim^-0.5.
// Grid: (2 * key_heads, tokens), 32 threads.
extern "C" __global__ void normalise_query_key(const __grid_constant__ DeltaArguments a) {
    float* x = a.mixed + size_t(blockIdx.y) * a.channels + size_t(blockIdx.x) * a.key_dim;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < a.key_dim; i += 32) sum += x[i] * x[i];
    float scale = rsqrtf(warp_sum(sum) + 1e-6f);
    if (blockIdx.x < a.key_heads) scale *= rsqrtf(float(a.key_dim));
    for (uint32_t i = threadIdx.x; i < a.key_dim; i += 32) x[i] *= scale;
}

// A lane's `keys` values of a query or key, zeros up to KEYS.
template <int KEYS>
__device__ __forceinline__ void load_keys(const float* from, uint32_t keys, uint32_t channels, float (&to)[KEYS]) {
    if (keys == KEYS && channels % 4 == 0) {
#pragma unroll
        for (int i = 0; i < KEYS / 4; i++) {
            float4 v = reinterpret_cast<const float4*>(from)[i];
            to[4 * i] = v.x, to[4 * i + 1] = v.y, to[4 * i + 2] = v.z, to[4 * i + 3] = v.w;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < KEYS; i++) to[i] = i < keys ? from[i] : 0.0f;
}

// What the state is multiplied with.
__device__ __forceinline__ float decay_factor(float raw, float rate) {
    float softplus = raw > 20.0f ? raw : log1pf(expf(raw));
    return expf(-rate * softplus);
}

// What a row of the state is multiplied with, where each channel of a key has a decay of its own.
__device__ __forceinline__ float channel_factor(float raw, float rate, float bound) {
    return bound > 0.0f ? expf(-bound * sigmoid(rate * raw)) : decay_factor(raw, rate);
}

// S *= exp(g); d = beta (v - S^T k); S += k d^T; o = S^T q, token after token of one run. A warp holds 4 columns of the
// state, eight lanes one of them, a lane KEYS keys. With CHANNELS the rows of the state have decays of their own, and
// strengths and decays are those that `delta_prepare` has left.
// Grid: (value_heads, value_dim / 16), 128 threads.
template <int KEYS, bool CHANNELS = false>
__device__ inline void delta_rule(const DeltaArguments& a) {
    uint32_t lane = threadIdx.x % 32, part = lane % 8;
    uint32_t head = blockIdx.x, column = blockIdx.y * 16 + threadIdx.x / 32 * 4 + lane / 8;
    bool live = column < a.value_dim;
    uint32_t read_column = live ? column : 0;
    uint32_t key_head = a.tiled ? head % a.key_heads : head / (a.value_heads / a.key_heads);
    uint32_t keys = a.key_dim / 8;
    float* state = a.state + a.sequences[0] * a.state_stride + size_t(head) * a.key_dim * a.value_dim + read_column;
    float s[KEYS];
#pragma unroll
    for (int i = 0; i < KEYS; i++) s[i] = i < keys ? state[size_t(part * keys + i) * a.value_dim] : 0.0f;
    float rate = a.rate[head], bias = CHANNELS ? 0.0f : a.bias[head];
    // The inputs of a token are asked for while the one before is worked on.
    float next_q[KEYS], next_k[KEYS], next_factors[CHANNELS ? KEYS : 1], next_v, next_beta;
    auto fetch = [&](uint32_t token) {
        const float* row = a.mixed + size_t(token) * a.channels;
        load_keys(row + key_head * a.key_dim + part * keys, keys, a.channels, next_q);
        load_keys(row + (a.key_heads + key_head) * a.key_dim + part * keys, keys, a.channels, next_k);
        next_v = row[2 * a.key_heads * a.key_dim + head * a.value_dim + read_column];
        next_beta = a.beta[size_t(token) * a.value_heads + head];
        const float* decays = a.decay + (size_t(token) * a.value_heads + head) * (CHANNELS ? a.key_dim : 1);
        if constexpr (CHANNELS) {
            load_keys(decays + part * keys, keys, a.key_dim, next_factors);
        } else {
            next_factors[0] = decays[0];
        }
    };
    fetch(0);
    for (uint32_t token = 0; token < a.tokens; token++) {
        float v = next_v, beta = CHANNELS ? next_beta : sigmoid(next_beta);
        float q[KEYS], k[KEYS], factors[CHANNELS ? KEYS : 1], dot = 0.0f, o = 0.0f;
#pragma unroll
        for (int i = 0; i < KEYS; i++) q[i] = next_q[i], k[i] = next_k[i];
        if constexpr (CHANNELS) {
#pragma unroll
            for (int i = 0; i < KEYS; i++) factors[i] = next_factors[i];
        } else {
            factors[0] = decay_factor(next_factors[0] + bias, rate);
        }
        if (token + 1 < a.tokens) fetch(token + 1);
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            s[i] *= factors[CHANNELS ? i : 0];
            dot = fmaf(s[i], k[i], dot);
        }
        for (int offset = 4; offset > 0; offset >>= 1) dot += __shfl_xor_sync(FULL, dot, offset);
        float d = beta * (v - dot);
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            s[i] = fmaf(k[i], d, s[i]);
            o = fmaf(s[i], q[i], o);
        }
        for (int offset = 4; offset > 0; offset >>= 1) o += __shfl_xor_sync(FULL, o, offset);
        if (live && part == 0) a.out[(size_t(token) * a.value_heads + head) * a.value_dim + column] = o;
    }
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
        if (live && i < keys) state[size_t(part * keys + i) * a.value_dim] = s[i];
    }
}

// N columns of the state, one after another in memory.
template <int N>
__device__ __forceinline__ void load_columns(const float* from, float (&to)[N]) {
    if constexpr (N == 2) {
        float2 v = __ldcg(reinterpret_cast<const float2*>(from));
        to[0] = v.x, to[1] = v.y;
    } else {
        to[0] = __ldcg(from);
    }
}

template <int N>
__device__ __forceinline__ void store_columns(float* to, const float (&from)[N]) {
    if constexpr (N == 2) {
        *reinterpret_cast<float2*>(to) = {from[0], from[1]};
    } else {
        *to = from[0];
    }
}

// What eight warps have, `pitch` floats apart, in the order in which eight lanes add up.
__device__ __forceinline__ float sum_of_warps(const float* p, uint32_t pitch) {
    return ((p[0] + p[4 * pitch]) + (p[2 * pitch] + p[6 * pitch]))
        + ((p[pitch] + p[5 * pitch]) + (p[3 * pitch] + p[7 * pitch]));
}

// As `delta_rule`, of tokens of a step that are runs of their own, query and key not yet normalised: a warp holds KEYS
// keys, a lane N columns, so that a warp reads whole lines of the state. With CHANNELS rows of the state have decays of
// their own, and KEYS is at most 32.
// Grid: (value_heads, value_dim / 32 N, tokens), 256 threads.
template <int KEYS, int N, bool CHANNELS = false>
__device__ inline void delta_columns(const DeltaArguments& a) {
    constexpr uint32_t WARPS = 8, WIDTH = 32 * N;
    __shared__ float squares[2][WARPS], sums[2][WARPS][WIDTH];
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t head = blockIdx.x, token = blockIdx.z, first = blockIdx.y * WIDTH, column = first + lane * N;
    bool live = column < a.value_dim;
    uint32_t read_column = live ? column : 0;
    uint32_t key_head = a.tiled ? head % a.key_heads : head / (a.value_heads / a.key_heads);
    uint32_t keys = a.key_dim / WARPS;
    float* state = a.state + a.sequences[token] * a.state_stride
        + (size_t(head) * a.key_dim + warp * keys) * a.value_dim + read_column;
    float s[KEYS][N] = {};
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
        if (i < keys) load_columns(state + size_t(i) * a.value_dim, s[i]);
    }
    float rate = a.rate[head], bias = CHANNELS ? 0.0f : a.bias[head];
    // The state is of the step before.
    await_inputs();
    release_next();
    uint32_t key_at = key_head * a.key_dim + warp * keys, value_at = head * a.value_dim + read_column;
    const float* row = a.mixed + size_t(token) * a.channels;
    float q[KEYS], k[KEYS], v[N], q_sum = 0.0f, k_sum = 0.0f;
    load_keys(row + key_at, keys, a.channels, q);
    load_keys(row + a.key_heads * a.key_dim + key_at, keys, a.channels, k);
#pragma unroll
    for (int n = 0; n < N; n++) v[n] = row[2 * a.key_heads * a.key_dim + value_at + n];
    float beta = sigmoid(a.beta[size_t(token) * a.value_heads + head]);
    float factors[CHANNELS ? KEYS : 1];
    if constexpr (CHANNELS) {
        // A lane makes the factor of one key.
        uint32_t at = head * a.key_dim + warp * keys + lane;
        float raw = lane < keys ? a.decay[size_t(token) * a.value_heads * a.key_dim + at] + a.bias[at] : 0.0f;
        float own = channel_factor(raw, rate, a.bound);
#pragma unroll
        for (int i = 0; i < KEYS; i++) factors[i] = __shfl_sync(FULL, own, i);
    } else {
        factors[0] = decay_factor(a.decay[size_t(token) * a.value_heads + head] + bias, rate);
    }
#pragma unroll
    for (int i = 0; i < KEYS; i++) q_sum = fmaf(q[i], q[i], q_sum), k_sum = fmaf(k[i], k[i], k_sum);
    if (lane == 0) squares[0][warp] = q_sum, squares[1][warp] = k_sum;
    __syncthreads();
    float q_scale = rsqrtf(sum_of_warps(squares[0], 1) + 1e-6f) * rsqrtf(float(a.key_dim));
    float k_scale = rsqrtf(sum_of_warps(squares[1], 1) + 1e-6f), dot[N] = {}, o[N] = {};
#pragma unroll
    for (int i = 0; i < KEYS; i++) q[i] *= q_scale, k[i] *= k_scale;
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            s[i][n] *= factors[CHANNELS ? i : 0];
            dot[n] = fmaf(s[i][n], k[i], dot[n]);
        }
    }
    // Column n of all lanes, then column n + 1: lanes meet different banks.
#pragma unroll
    for (int n = 0; n < N; n++) sums[0][warp][n * 32 + lane] = dot[n];
    __syncthreads();
    float d[N];
#pragma unroll
    for (int n = 0; n < N; n++) d[n] = beta * (v[n] - sum_of_warps(&sums[0][0][n * 32 + lane], WIDTH));
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            s[i][n] = fmaf(k[i], d[n], s[i][n]);
            o[n] = fmaf(s[i][n], q[i], o[n]);
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++) sums[1][warp][n * 32 + lane] = o[n];
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
        if (live && i < keys) store_columns(state + size_t(i) * a.value_dim, s[i]);
    }
    __syncthreads();
    uint32_t out_column = threadIdx.x;
    if (out_column < WIDTH && first + out_column < a.value_dim) {
        float* out = a.out + (size_t(token) * a.value_heads + head) * a.value_dim + first;
        out[out_column] = sum_of_warps(&sums[1][0][out_column % N * 32 + out_column / N], WIDTH);
    }
}

// One column a lane, or two where the grid has half as many blocks.
template <int KEYS, bool CHANNELS = false>
__device__ inline void delta_step(const DeltaArguments& a) {
    if (gridDim.y * 32 < a.value_dim) return delta_columns<KEYS, 2, CHANNELS>(a);
    delta_columns<KEYS, 1, CHANNELS>(a);
}

#define DELTA(KEYS)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128) delta_rule_##KEYS(const __grid_constant__ DeltaArguments a) {  \
        delta_rule<KEYS>(a);                                                                                         \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(256) delta_step_##KEYS(const __grid_constant__ DeltaArguments a) {  \
        delta_step<KEYS>(a);                                                                                         \
    }

DELTA(16)
DELTA(32)

extern "C" __global__ void __launch_bounds__(128) delta_rule_channels(const __grid_constant__ DeltaArguments a) {
    delta_rule<16, true>(a);
}
extern "C" __global__ void __launch_bounds__(256) delta_step_channels(const __grid_constant__ DeltaArguments a) {
    delta_step<16, true>(a);
}

struct JoinRowsArguments {
    const float* first;      // [tokens, first_width]
    const float* second;     // [tokens, second_width]
    const float* third;      // [tokens, third_width]
    float* to;               // [tokens, the sum of widths]
    uint32_t first_width;
    uint32_t second_width;
    uint32_t third_width;
    uint32_t padding;
};

// The rows of three registers, one behind the other. Grid: (width of a row / 256, tokens), 256 threads.
extern "C" __global__ void join_rows(const __grid_constant__ JoinRowsArguments a) {
    await_inputs();
    release_next();
    uint32_t column = blockIdx.x * blockDim.x + threadIdx.x, two = a.first_width + a.second_width;
    uint32_t width = two + a.third_width;
    size_t token = blockIdx.y;
    if (column >= width) return;
    a.to[token * width + column] = column < a.first_width ? a.first[token * a.first_width + column]
                                 : column < two ? a.second[token * a.second_width + column - a.first_width]
                                                : a.third[token * a.third_width + column - two];
}

struct GatedNormArguments {
    float* x;                // [heads of all tokens, dim]
    const float* z;
    const float* weight;     // [dim]
    uint32_t dim;
    float epsilon;
    uint32_t by_sigmoid;     // 1: the sigmoid of z instead
    uint32_t padding;
};

// RMS norm of each head times SiLU of z. Grid: heads of all tokens, 32 threads.
extern "C" __global__ void gated_norm(const __grid_constant__ GatedNormArguments a) {
    float* x = a.x + size_t(blockIdx.x) * a.dim;
    const float* z = a.z + size_t(blockIdx.x) * a.dim;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < a.dim; i += 32) sum += x[i] * x[i];
    float scale = rsqrtf(warp_sum(sum) / float(a.dim) + a.epsilon);
    for (uint32_t i = threadIdx.x; i < a.dim; i += 32) {
        x[i] = x[i] * scale * a.weight[i] * (a.by_sigmoid ? sigmoid(z[i]) : silu(z[i]));
    }
}

// A step's runs of several tokens (rounds of drafts): convolution and delta rule, which keep state token by token. The
// state stays where a round began; a ring has what its tokens were fed, and the sequence's next step applies those that
// were kept. One token a run, prompts, and what both share are in mixer.cu, which all.cu includes before.
#include "common.cuh"

struct ConvolveRunArguments {
    const float* x;          // [tokens, channels]
    const float* weight;     // [channels, kernel], newest tap last
    float* tail;             // [sequences, kernel - 1, channels]: raw inputs before what was kept of the last round
    float* ring;             // [sequences][ROUND_PLACES, ring_row]: by position what a round's tokens were fed
    float* out;              // [tokens, channels]
    const uint32_t* positions;
    const uint32_t* sequences;
    const uint32_t* starts;  // per token: the first token of its run
    const uint32_t* lags;    // per token: tokens of its sequence's last round that `tail` does not have yet
    size_t tail_stride;      // floats from one sequence's tail to the next
    size_t ring_stride;      // floats from one sequence's ring to the next
    uint32_t ring_row;       // raw inputs of all channels, then what the delta rule is fed again
    uint32_t queries;        // channels that it is not fed again, the first ones
    uint32_t tokens;         // 0: only what was kept is applied, of the one sequence that is named
    uint32_t channels;
    uint32_t kernel;
    uint32_t padding;
};

// Tokens of the run that begins at `token` of `tokens`. All starts are loaded at once: one after another is a latency
// of memory for each token.
__device__ inline uint32_t run_length(const uint32_t* starts, uint32_t token, uint32_t tokens) {
    uint32_t at = token + threadIdx.x % 32;
    bool other = at >= tokens || starts[at] != token;
    uint32_t others = __ballot_sync(FULL, other);
    return others ? __ffs(others) - 1 : 32;
}

// Inputs before a run that `convolve_run` loads ahead.
constexpr int RUN_NEAR = 3;

// Where a position's row lies in a ring.
__device__ inline size_t ring_place(uint32_t position, uint32_t ring_row) {
    return size_t(position % ROUND_PLACES) * ring_row;
}

// As `convolve`, of a step whose runs may have several tokens: a block takes the run that begins at its token. A run of
// several tokens is a round, and less may be kept: its inputs go to the ring, and the tail stays at its beginning.
// Places of the ring that are read and those that are written lie at most ROUND_PLACES positions apart.
// Grid: (channels / 256, tokens or 1).
extern "C" __global__ void convolve_run(const __grid_constant__ ConvolveRunArguments a) {
    uint32_t channel = blockIdx.x * blockDim.x + threadIdx.x, token = blockIdx.y;
    if (a.tokens > 0 && a.starts[token] != token) return;
    uint32_t taps = a.kernel - 1, count = run_length(a.starts, token, a.tokens);
    uint32_t position = a.positions[token], lag = a.lags[token];
    if (channel >= a.channels) return;
    float* tail = a.tail + a.sequences[token] * a.tail_stride + channel;
    float* ring = a.ring + a.sequences[token] * a.ring_stride + channel;
    const float* x = a.x + size_t(token) * a.channels + channel;
    const float* weight = a.weight + size_t(channel) * a.kernel;
    // The raw input so many tokens before the run.
    auto before = [&](uint32_t back) {
        return back <= lag ? ring[ring_place(position - back, a.ring_row)]
                           : tail[size_t(lag + taps - back) * a.channels];
    };
    // Tail and ring are of the step before: the nearest are loaded while the products of this one are computed.
    float near[RUN_NEAR], own_weight[RUN_NEAR + 1], inputs[ROUND_PLACES / 2];
#pragma unroll
    for (int i = 0; i < RUN_NEAR; i++) near[i] = i < taps ? before(i + 1) : 0.0f;
#pragma unroll
    for (int i = 0; i <= RUN_NEAR; i++) own_weight[i] = i <= taps ? weight[taps - i] : 0.0f;
    await_inputs();
    release_next();
    if (taps <= RUN_NEAR && count <= ROUND_PLACES / 2) {
#pragma unroll
        for (int t = 0; t < ROUND_PLACES / 2; t++) inputs[t] = t < count ? x[size_t(t) * a.channels] : 0.0f;
        // The inputs before a token, the last one first.
        float window[RUN_NEAR];
#pragma unroll
        for (int i = 0; i < RUN_NEAR; i++) window[i] = near[i];
#pragma unroll
        for (int t = 0; t < ROUND_PLACES / 2; t++) {
            if (t >= count) break;
            float sum = 0.0f;
#pragma unroll
            for (int i = RUN_NEAR; i > 0; i--) {
                if (i <= taps) sum = fmaf(own_weight[i], window[i - 1], sum);
            }
            float value = silu(fmaf(own_weight[0], inputs[t], sum));
            a.out[size_t(token + t) * a.channels + channel] = value;
            if (count > 1) {
                float* row = ring + ring_place(position + t, a.ring_row);
                row[0] = inputs[t];
                if (channel >= a.queries) row[a.channels - a.queries] = value;
            }
#pragma unroll
            for (int i = RUN_NEAR - 1; i > 0; i--) window[i] = window[i - 1];
            window[0] = inputs[t];
        }
        // The tail moves past what was kept, and past a token that is a run of its own.
        if (lag == 0 && count != 1) return;
#pragma unroll
        for (int back = RUN_NEAR; back > 0; back--) {
            if (back > taps) continue;
            float v = near[back - 1];
            if (count == 1) v = back == 1 ? inputs[0] : near[back > 1 ? back - 2 : 0];
            tail[size_t(taps - back) * a.channels] = v;
        }
        return;
    }
    for (uint32_t t = 0; t < count; t++) {
        float sum = 0.0f;
        for (uint32_t tap = 0; tap < a.kernel; tap++) {
            uint32_t back = taps - tap;
            float v = back <= t ? x[size_t(t - back) * a.channels] : before(back - t);
            sum = fmaf(weight[tap], v, sum);
        }
        float value = silu(sum);
        a.out[size_t(token + t) * a.channels + channel] = value;
        if (count > 1) {
            float* row = ring + ring_place(position + t, a.ring_row);
            row[0] = x[size_t(t) * a.channels];
            if (channel >= a.queries) row[a.channels - a.queries] = value;
        }
    }
    // Oldest first: what is read lies behind what was written.
    uint32_t own = count == 1 ? 1 : 0;
    if (lag + own == 0) return;
    for (uint32_t i = 0; i < taps; i++) {
        uint32_t back = taps - i;
        float v = back <= own ? x[0] : before(back - own);
        tail[size_t(i) * a.channels] = v;
    }
}

// What the turns of a block are fed, of what was kept and then of the run, and what its warps leave each other.
template <int KEYS, bool CHANNELS>
struct DeltaTurns {
    static constexpr uint32_t WARPS = 8, WIDTH = 32, OWN = ROUND_PLACES / 2;
    float keys[ROUND_PLACES][WARPS * KEYS], queries[OWN][WARPS * KEYS];
    float values[ROUND_PLACES][WIDTH], beta[ROUND_PLACES], factors[ROUND_PLACES][CHANNELS ? WARPS * KEYS : 1];
    float key_squares[ROUND_PLACES][WARPS], query_squares[OWN][WARPS];
    float dots[2][WARPS][WIDTH], outs[OWN][WARPS][WIDTH];
};

// A warp's keys of a vector to shared memory. Gives the sum of their squares.
template <int KEYS>
__device__ __forceinline__ float stage_keys(const float* from, uint32_t keys, uint32_t channels, float* to) {
    float values[KEYS], sum = 0.0f;
    load_keys(from, keys, channels, values);
#pragma unroll
    for (int i = 0; i < KEYS; i++) to[i] = values[i], sum = fmaf(values[i], values[i], sum);
    return sum;
}

// As `delta_columns`, in the same order, of runs that may have several tokens: a block takes the run that begins at
// its token, first what was kept of the sequence's last round, from the ring. The state in memory stays at the
// beginning of a round, since less may be kept; behind a single token, and where there is none, it is complete.
// All that turns are fed is in shared memory before the first, and outputs are added up behind the last: a block
// waits once for each token.
// Grid: (value_heads, value_dim / 32, tokens or 1), 256 threads.
template <int KEYS, bool CHANNELS = false>
__device__ inline void delta_round(const DeltaArguments& a) {
    using Turns = DeltaTurns<KEYS, CHANNELS>;
    constexpr uint32_t WARPS = Turns::WARPS, WIDTH = Turns::WIDTH;
    __shared__ Turns of;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t head = blockIdx.x, token = blockIdx.z, first = blockIdx.y * WIDTH, column = first + lane;
    if (a.tokens > 0 && a.starts[token] != token) return;
    uint32_t count = min(run_length(a.starts, token, a.tokens), Turns::OWN);
    uint32_t lag = min(a.lags[token], ROUND_PLACES - Turns::OWN), position = a.positions[token];
    if (lag + count == 0) return;
    bool live = column < a.value_dim;
    uint32_t read_column = live ? column : 0;
    uint32_t key_head = a.tiled ? head % a.key_heads : head / (a.value_heads / a.key_heads);
    uint32_t keys = a.key_dim / WARPS, turns = lag + count;
    float* state = a.state + a.sequences[token] * a.state_stride
        + (size_t(head) * a.key_dim + warp * keys) * a.value_dim + read_column;
    float s[KEYS] = {};
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
        if (i < keys) s[i] = __ldcg(state + size_t(i) * a.value_dim);
    }
    float rate = a.rate[head], bias = CHANNELS ? 0.0f : a.bias[head];
    uint32_t key_at = key_head * a.key_dim + warp * keys, value_at = head * a.value_dim + read_column;
    uint32_t all_keys = a.key_heads * a.key_dim;
    float* ring = a.ring + a.sequences[token] * a.ring_stride + a.channels;
    auto ring_row = [&](uint32_t at) { return ring + ring_place(at, a.ring_row); };
    // Where the decays of a warp's keys lie among those of a token.
    uint32_t decay_at = CHANNELS ? head * a.key_dim + warp * keys : head;
    auto note_decays = [&](uint32_t turn, const float* decays) {
        if constexpr (CHANNELS) {
#pragma unroll
            for (int i = 0; i < KEYS; i++) {
                float raw = i < keys ? decays[decay_at + i] + a.bias[decay_at + i] : 0.0f;
                of.factors[turn][warp * KEYS + i] = channel_factor(raw, rate, a.bound);
            }
        } else if (warp == 0) {
            of.factors[turn][0] = decay_factor(decays[decay_at] + bias, rate);
        }
    };
    // State and ring are of the step before: all of them comes while the products of this one are computed.
    if (lane < lag) {
        const float* row = ring_row(position - lag + lane);
        of.key_squares[lane][warp] =
            stage_keys<KEYS>(row + key_at, keys, a.channels, of.keys[lane] + warp * KEYS);
        const float* strengths = row + a.channels - all_keys;
        if (warp == 0) of.beta[lane] = sigmoid(strengths[head]);
        note_decays(lane, strengths + a.value_heads);
    }
    for (uint32_t turn = warp; turn < lag; turn += WARPS) {
        of.values[turn][lane] = ring_row(position - lag + turn)[all_keys + value_at];
    }
    await_inputs();
    release_next();
    if (lane < count) {
        uint32_t turn = lag + lane, own = token + lane;
        const float* row = a.mixed + size_t(own) * a.channels + key_at;
        of.query_squares[lane][warp] = stage_keys<KEYS>(row, keys, a.channels, of.queries[lane] + warp * KEYS);
        of.key_squares[turn][warp] =
            stage_keys<KEYS>(row + all_keys, keys, a.channels, of.keys[turn] + warp * KEYS);
        const float* decays = a.decay + size_t(own) * a.value_heads * (CHANNELS ? a.key_dim : 1);
        float beta = a.beta[size_t(own) * a.value_heads + head];
        if (warp == 0) of.beta[turn] = sigmoid(beta);
        note_decays(turn, decays);
        if (count > 1 && blockIdx.y == 0) {
            float* strengths = ring_row(position + lane) + a.channels - all_keys;
            if (warp == 0) strengths[head] = beta;
            uint32_t own_decays = CHANNELS ? keys : warp == 0;
            for (uint32_t i = 0; i < own_decays; i++) {
                strengths[a.value_heads + decay_at + i] = decays[decay_at + i];
            }
        }
    }
    for (uint32_t own = warp; own < count; own += WARPS) {
        of.values[lag + own][lane] = a.mixed[size_t(token + own) * a.channels + 2 * all_keys + value_at];
    }
    __syncthreads();
    // Turns after which the state is stored.
    uint32_t kept = count == 1 ? turns : lag;
    for (uint32_t turn = 0; turn < turns; turn++) {
        bool again = turn < lag;
        float k[KEYS], dot = 0.0f;
        const float* factors = of.factors[turn];
        float k_scale = rsqrtf(sum_of_warps(of.key_squares[turn], 1) + 1e-6f);
#pragma unroll
        for (int i = 0; i < KEYS; i++) k[i] = of.keys[turn][warp * KEYS + i] * k_scale;
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            s[i] *= factors[CHANNELS ? warp * KEYS + i : 0];
            dot = fmaf(s[i], k[i], dot);
        }
        // Two sets: what a warp writes for the next token is not what another still reads.
        of.dots[turn % 2][warp][lane] = dot;
        __syncthreads();
        float d = of.beta[turn] * (of.values[turn][lane] - sum_of_warps(&of.dots[turn % 2][0][lane], WIDTH));
#pragma unroll
        for (int i = 0; i < KEYS; i++) s[i] = fmaf(k[i], d, s[i]);
        if (turn + 1 == kept) {
#pragma unroll
            for (int i = 0; i < KEYS; i++) {
                if (live && i < keys) state[size_t(i) * a.value_dim] = s[i];
            }
        }
        if (again) continue;
        uint32_t own = turn - lag;
        float q_scale = rsqrtf(sum_of_warps(of.query_squares[own], 1) + 1e-6f) * rsqrtf(float(a.key_dim));
        float o = 0.0f;
#pragma unroll
        for (int i = 0; i < KEYS; i++) o = fmaf(s[i], of.queries[own][warp * KEYS + i] * q_scale, o);
        of.outs[own][warp][lane] = o;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < count * WIDTH; i += blockDim.x) {
        uint32_t own = i / WIDTH, at = i % WIDTH;
        if (first + at >= a.value_dim) continue;
        float* out = a.out + (size_t(token + own) * a.value_heads + head) * a.value_dim + first;
        out[at] = sum_of_warps(&of.outs[own][0][at], WIDTH);
    }
}

#define DELTA_ROUND(KEYS)                                                                                            \
    extern "C" __global__ void __launch_bounds__(256) delta_round_##KEYS(const __grid_constant__ DeltaArguments a) { \
        delta_round<KEYS>(a);                                                                                        \
    }

DELTA_ROUND(16)
DELTA_ROUND(32)

extern "C" __global__ void __launch_bounds__(256) delta_round_channels(const __grid_constant__ DeltaArguments a) {
    delta_round<16, true>(a);
}

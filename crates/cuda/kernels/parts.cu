// Parts that only some families have: biases of rows and of experts, rows of gate and up in turns, clamped activations,
// GELU. Kernels of their own, so that models without them keep theirs.
#include "blocks.cuh"

struct BiasArguments {
    float* x;                    // [rows, width] += bias
    const float* bias;           // [width], or of pairs [experts, width]
    const uint32_t* starts;      // of pairs: the first of each expert and one past the last; else null
    uint32_t width;
    uint32_t experts;
};

// The expert of a pair, of pairs sorted by expert.
__device__ inline uint32_t expert_of_pair(const uint32_t* starts, uint32_t experts, uint32_t pair) {
    uint32_t low = 0, high = experts;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        (__ldcg(starts + middle) <= pair ? low : high) = middle;
    }
    return low;
}

// Grid: rows, 256 threads.
extern "C" __global__ void add_bias(const __grid_constant__ BiasArguments a) {
    await_inputs();
    release_next();
    const float* bias = a.bias;
    if (a.starts) bias += size_t(expert_of_pair(a.starts, a.experts, blockIdx.x)) * a.width;
    float* x = a.x + size_t(blockIdx.x) * a.width;
    for (uint32_t i = threadIdx.x; i < a.width; i += blockDim.x) x[i] = __ldcg(x + i) + bias[i];
}

// What experts compute between their matrices.
struct Activation {
    const float* gate_bias;      // [experts, inner], or null
    const float* up_bias;
    const float* down_bias;      // [experts, hidden], or null
    float alpha;                 // 0: without
    float limit;                 // of gate from above, of up on both sides; 0: none
    uint32_t in_turns;           // 1: rows of gate and up lie in turns, gate first, through both matrices
    uint32_t shared;             // 1: the shared expert is clamped as well
    uint32_t gelu;               // 1: GELU(gate) * up
    uint32_t padding;
};

// Makes of gate and up what SiLU(gate) * up then is GELU(gate) * up of, the GELU approximated by a hyperbolic tangent:
// g (1 + tanh(c g (1 + d g g))) / 2 = g sigmoid(s) = SiLU(s) g / s with s = 2 c g (1 + d g g).
__device__ inline float2 gelu_as_silu(float2 v) {
    // Where a sigmoid is one or zero in f32 already; s would leave the range of floats later.
    if (v.x > 20.0f) return v;
    if (v.x < -20.0f) return {-200.0f, v.y};
    float ratio = 1.59576912160573f * (1.0f + 0.044715f * v.x * v.x);
    return {v.x * ratio, v.y / ratio};
}

// Adds biases, and makes of gate and up what SiLU(gate) * up then is the activation of.
__device__ inline float2 prepare(const Activation& a, uint32_t expert, uint32_t inner, uint32_t row, float2 v) {
    if (a.gate_bias) v.x += a.gate_bias[size_t(expert) * inner + row], v.y += a.up_bias[size_t(expert) * inner + row];
    if (a.limit != 0.0f) {
        // A number that is none stays one.
        v.x = v.x > a.limit ? a.limit : v.x;
        v.y = v.y > a.limit ? a.limit : v.y < -a.limit ? -a.limit : v.y;
    }
    if (a.alpha != 0.0f) v.x *= a.alpha, v.y = (v.y + 1.0f) / a.alpha;
    return a.gelu ? gelu_as_silu(v) : v;
}

struct LimitArguments {
    float* gate;
    float* up;
    uint64_t count;
    float limit;                 // of gate from above, of up on both sides
    uint32_t padding;
};

extern "C" __global__ void limit_pairs(const __grid_constant__ LimitArguments a) {
    uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= a.count) return;
    float gate = a.gate[i], up = a.up[i];
    a.gate[i] = gate > a.limit ? a.limit : gate;
    a.up[i] = up > a.limit ? a.limit : up < -a.limit ? -a.limit : up;
}

struct GeluArguments {
    float* gate;
    float* up;
    uint64_t count;
};

// Makes of gate and up what SiLU(gate) * up then is GELU(gate) * up of.
extern "C" __global__ void gelu_pairs(const __grid_constant__ GeluArguments a) {
    uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= a.count) return;
    float2 v = gelu_as_silu({a.gate[i], a.up[i]});
    a.gate[i] = v.x, a.up[i] = v.y;
}

// gate = GELU(gate) * up
extern "C" __global__ void geglu(const __grid_constant__ GeluArguments a) {
    await_inputs();
    release_next();
    uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= a.count) return;
    float2 v = gelu_as_silu({__ldcg(a.gate + i), __ldcg(a.up + i)});
    a.gate[i] = silu(v.x) * v.y;
}

struct PrepareArguments {
    float* gate;                 // [pairs, inner], as the matrices gave them
    float* up;
    const uint32_t* starts;      // [experts + 1]
    const uint64_t* addresses;   // [experts]: 0 for those left out
    Activation activation;
    uint32_t experts;
    uint32_t inner;
};

// Grid: pairs, 256 threads; shared: 2 * inner floats where rows are in turns.
extern "C" __global__ void prepare_pairs(const __grid_constant__ PrepareArguments a) {
    extern __shared__ float both[];
    uint32_t expert = expert_of_pair(a.starts, a.experts, blockIdx.x);
    if (a.addresses[expert] == 0) return;
    float *gate = a.gate + size_t(blockIdx.x) * a.inner, *up = a.up + size_t(blockIdx.x) * a.inner;
    if (a.activation.in_turns) {
        for (uint32_t i = threadIdx.x; i < a.inner; i += blockDim.x) both[i] = gate[i], both[a.inner + i] = up[i];
        __syncthreads();
    }
    for (uint32_t i = threadIdx.x; i < a.inner; i += blockDim.x) {
        float2 v = a.activation.in_turns ? float2{both[2 * i], both[2 * i + 1]} : float2{gate[i], up[i]};
        v = prepare(a.activation, expert, a.inner, i, v);
        gate[i] = v.x, up[i] = v.y;
    }
}

struct ExpertPartsArguments {
    ExpertArguments experts;
    Activation activation;
};

// As `expert_inner_blocks`, with parts.
extern "C" __global__ void __launch_bounds__(256) expert_inner_parts(const __grid_constant__ ExpertPartsArguments b) {
    extern __shared__ float staged[];
    __shared__ uint64_t record;
    const ExpertArguments& a = b.experts;
    ExpertMatrices m;
    await_inputs();
    release_next();
    if (!find_inner(a, m, record)) return;
    uint32_t row = blockIdx.x * 8 + threadIdx.x / 32, inner = m.gate.rows;
    stage(a.x + size_t(blockIdx.z) * a.hidden, a.hidden, staged);
    __syncthreads();
    if (row >= inner) return;
    bool routed = blockIdx.y < a.k;
    auto product = [&](uint32_t index) {
        return index < inner ? any_row(m.gate, index, staged) : any_row(m.up, index - inner, staged);
    };
    bool in_turns = routed && b.activation.in_turns;
    float2 v = {product(in_turns ? 2 * row : row), product(in_turns ? 2 * row + 1 : inner + row)};
    if (threadIdx.x % 32 != 0) return;
    if (routed) {
        v = prepare(b.activation, __ldcg(a.chosen + size_t(blockIdx.z) * a.k + blockIdx.y), inner, row, v);
    } else if (b.activation.shared) {
        v = prepare(b.activation, 0, inner, row, v);
    }
    m.to[row] = silu(v.x) * v.y;
}

// As `expert_outer_blocks`, with biases.
extern "C" __global__ void __launch_bounds__(256) expert_outer_parts(const __grid_constant__ ExpertPartsArguments b) {
    const float* bias = b.activation.down_bias;
    await_inputs();
    release_next();
    outer_of_any(b.experts, [&](uint32_t expert, uint32_t row) {
        return bias ? bias[size_t(expert) * b.experts.hidden + row] : 0.0f;
    });
}

// As `expert_inner_parts` of experts in 4-bit floats in planes, none of them shared: a warp asks for both rows at once,
// in a kernel that has no other format, so that several blocks are on a multiprocessor.
extern "C" __global__ void __launch_bounds__(256, 2) expert_inner_parts_planes(
    const __grid_constant__ ExpertPartsArguments b) {
    extern __shared__ float staged[];
    __shared__ uint64_t record;
    const ExpertArguments& a = b.experts;
    ExpertMatrices m;
    // The stream was complete before routing began, and routing releases this kernel only once it has begun.
    stage(a.x + size_t(blockIdx.z) * a.hidden, a.hidden, staged);
    await_inputs();
    release_next();
    if (!find_inner(a, m, record)) return;
    uint32_t inner = m.gate.rows, row = blockIdx.x * 8 + threadIdx.x / 32, mine = min(row, inner - 1);
    uint32_t first = b.activation.in_turns ? 2 * mine : mine, second = b.activation.in_turns ? first + 1 : inner + mine;
    // Of gate's rows and, behind them, those of up.
    auto lane_of = [&](uint32_t index) {
        using Lane = PlaneLane<Blocks<BLOCK_MXFP4_PLANES>>;
        return index < inner ? Lane(m.gate, index) : Lane(m.up, index - inner);
    };
    auto gate = lane_of(first), up = lane_of(second);
    __syncthreads();
    if (row >= inner) return;
    float2 v = {warp_sum(gate.product(staged)), warp_sum(up.product(staged))};
    if (threadIdx.x % 32 != 0) return;
    v = prepare(b.activation, __ldcg(a.chosen + size_t(blockIdx.z) * a.k + blockIdx.y), inner, row, v);
    m.to[row] = silu(v.x) * v.y;
}

// As `expert_outer_parts` of such experts: a warp asks for the next expert's row while it multiplies one.
extern "C" __global__ void __launch_bounds__(256, 2) expert_outer_parts_planes(
    const __grid_constant__ ExpertPartsArguments b) {
    using Lane = PlaneLane<Blocks<BLOCK_MXFP4_PLANES>>;
    extern __shared__ float staged[];
    const ExpertArguments& a = b.experts;
    const float* bias = b.activation.down_bias;
    uint32_t token = blockIdx.y, row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t width = a.experts.down.columns, chunks = width / 32, mine = min(row, a.hidden - 1);
    size_t at = size_t(token) * a.k + min(lane, a.k - 1);
    // Routing was complete when the kernel before released this one: what it found in memory can be asked for.
    uint64_t record = __ldcg(a.addresses + at);
    if (__any_sync(FULL, is_awaited(record))) {
        await_inputs();
        record = __ldcg(a.addresses + at);
    }
    // What a failed expert leaves is undefined, and its reader knows.
    if (__syncthreads_or(record == FAILED)) {
        if (threadIdx.x == 0) note_end(a.ended);
        return;
    }
    uint32_t expert = __ldcg(a.chosen + at);
    float weight = __ldcg(a.weights + at), added = bias ? bias[size_t(expert) * a.hidden + mine] : 0.0f;
    auto lane_of = [&](uint32_t rank) {
        uint64_t its = __shfl_sync(FULL, record, rank);
        return Lane(piece(a.experts.down, a.experts, __shfl_sync(FULL, expert, rank), its, DOWN), mine);
    };
    Lane current = lane_of(0);
    await_inputs();
    release_next();
    stage(a.inner + size_t(token) * a.k * width, a.k * width, staged);
    __syncthreads();
    float sum = 0.0f;
    for (uint32_t rank = 0; rank < a.k; rank++) {
        Lane next = current;
        if (rank + 1 < a.k) next = lane_of(rank + 1);
        float product = warp_sum(current.product(staged + rank * chunks * STAGED_CHUNK));
        product += __shfl_sync(FULL, added, rank);
        sum = fmaf(__shfl_sync(FULL, weight, rank), product, sum);
        current = next;
    }
    float* to = a.out + size_t(token) * a.hidden + row;
    if (lane == 0 && row < a.hidden) *to = __ldcg(to) + sum;
    __syncthreads();
    if (threadIdx.x == 0) note_end(a.ended);
}

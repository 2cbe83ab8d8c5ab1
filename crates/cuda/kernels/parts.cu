// Parts that only some families have: biases of rows and of experts, rows of gate and up in turns, clamped activations.
// Kernels of their own, so that models without them keep theirs.
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
        (starts[middle] <= pair ? low : high) = middle;
    }
    return low;
}

// Grid: rows, 256 threads.
extern "C" __global__ void add_bias(const __grid_constant__ BiasArguments a) {
    const float* bias = a.bias;
    if (a.starts) bias += size_t(expert_of_pair(a.starts, a.experts, blockIdx.x)) * a.width;
    float* x = a.x + size_t(blockIdx.x) * a.width;
    for (uint32_t i = threadIdx.x; i < a.width; i += blockDim.x) x[i] += bias[i];
}

// What experts compute between their matrices.
struct Activation {
    const float* gate_bias;      // [experts, inner], or null
    const float* up_bias;
    const float* down_bias;      // [experts, hidden], or null
    float alpha;                 // 0: SiLU(gate) * up
    float limit;                 // of gate from above, of up on both sides; 0: none
    uint32_t in_turns;           // 1: rows of gate and up lie in turns, gate first, through both matrices
    uint32_t shared;             // 1: the shared expert is clamped as well
};

// Adds biases, and makes of gate and up what SiLU(gate) * up then is the activation of.
__device__ inline float2 prepare(const Activation& a, uint32_t expert, uint32_t inner, uint32_t row, float2 v) {
    if (a.gate_bias) v.x += a.gate_bias[size_t(expert) * inner + row], v.y += a.up_bias[size_t(expert) * inner + row];
    if (a.limit != 0.0f) {
        // A number that is none stays one.
        v.x = v.x > a.limit ? a.limit : v.x;
        v.y = v.y > a.limit ? a.limit : v.y < -a.limit ? -a.limit : v.y;
    }
    if (a.alpha != 0.0f) v.x *= a.alpha, v.y = (v.y + 1.0f) / a.alpha;
    return v;
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
        v = prepare(b.activation, a.chosen[size_t(blockIdx.z) * a.k + blockIdx.y], inner, row, v);
    } else if (b.activation.shared) {
        v = prepare(b.activation, 0, inner, row, v);
    }
    m.to[row] = silu(v.x) * v.y;
}

// As `expert_outer_blocks`, with biases.
extern "C" __global__ void __launch_bounds__(256) expert_outer_parts(const __grid_constant__ ExpertPartsArguments b) {
    const float* bias = b.activation.down_bias;
    outer_of_any(b.experts, [&](uint32_t expert, uint32_t row) {
        return bias ? bias[size_t(expert) * b.experts.hidden + row] : 0.0f;
    });
}

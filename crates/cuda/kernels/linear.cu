// Matrix times vector for few tokens: f32 activations, up to six matrices of one input in a launch.
#include "product.cuh"

struct LinearJob {
    Matrix matrix;
    float* out;          // [tokens, rows]
    uint32_t first_block;
    uint32_t padding;
};

struct LinearArguments {
    const float* x;      // [tokens, columns]
    uint32_t columns;
    uint32_t jobs;
    uint32_t add;        // 1: out += product
    uint32_t padding;
    LinearJob job[JOBS];
};

// Grid: (blocks of 8 * ROWS rows over all jobs, tokens); 256 threads; shared: the staged vector.
template <int ROWS>
__device__ inline void linear(const LinearArguments& a) {
    extern __shared__ float staged[];
    const LinearJob& job = a.job[block_job(a)];
    uint32_t row = ((blockIdx.x - job.first_block) * 8 + threadIdx.x / 32) * ROWS;
    await_inputs();
    release_next();
    stage(a.x + size_t(blockIdx.y) * a.columns, a.columns, staged);
    __syncthreads();
    if (row >= job.matrix.rows) return;
    float out[ROWS];
    product_rows<ROWS>(job.matrix, row, staged, out);
    if (threadIdx.x % 32 == 0) {
        float* to = job.out + size_t(blockIdx.y) * job.matrix.rows + row;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (row + r < job.matrix.rows) to[r] = a.add ? __ldcg(to + r) + out[r] : out[r];
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) linear_1(const __grid_constant__ LinearArguments a) { linear<1>(a); }
extern "C" __global__ void __launch_bounds__(256) linear_2(const __grid_constant__ LinearArguments a) { linear<2>(a); }
extern "C" __global__ void __launch_bounds__(256) linear_4(const __grid_constant__ LinearArguments a) { linear<4>(a); }

struct EmbedArguments {
    Matrix table;
    const uint32_t* tokens;
    float* out;          // [tokens, columns]
};

// Grid: tokens.
extern "C" __global__ void embed(const __grid_constant__ EmbedArguments a) {
    const Matrix& m = a.table;
    uint32_t row = a.tokens[blockIdx.x];
    for (uint32_t column = threadIdx.x; column < m.columns; column += blockDim.x) {
        size_t at = size_t(row) * m.columns + column;
        float v;
        if (m.kind == AFFINE) {
            size_t bit = at * m.bits;
            uint32_t low = m.weight[bit / 8];
            uint32_t high = bit % 8 + m.bits > 8 ? m.weight[bit / 8 + 1] : 0;
            uint32_t q = ((low | high << 8) >> (bit % 8)) & ((1u << m.bits) - 1);
            size_t group = at / m.group;
            float bias = bias_factor(m.scale_kind) * load_float(m.biases, group, m.scale_kind);
            v = float(q) * load_float(m.scales, group, m.scale_kind) + bias;
        } else {
            v = load_float(m.weight, at, m.kind);
        }
        a.out[size_t(blockIdx.x) * m.columns + column] = v;
    }
}

struct ArgMaxArguments {
    const float* logits; // [rows, columns]
    uint64_t* partial;   // [rows, ARG_MAX_BLOCKS]
    uint32_t* token;     // [rows]: the most likely, ties to the lowest id; mapped host memory
    uint32_t columns;
    uint32_t blocks;
};

__device__ inline uint64_t block_largest(uint64_t best, uint64_t* scratch) {
    for (int offset = 16; offset > 0; offset >>= 1) {
        uint64_t other = __shfl_xor_sync(FULL, best, offset);
        best = other > best ? other : best;
    }
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = best;
    __syncthreads();
    best = threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : 0;
    for (int offset = 16; offset > 0; offset >>= 1) {
        uint64_t other = __shfl_xor_sync(FULL, best, offset);
        best = other > best ? other : best;
    }
    return best;
}

// Grid: (blocks, rows), 256 threads.
extern "C" __global__ void arg_max_partial(const __grid_constant__ ArgMaxArguments a) {
    __shared__ uint64_t scratch[32];
    const float* row = a.logits + size_t(blockIdx.y) * a.columns;
    uint64_t best = 0;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < a.columns; i += gridDim.x * blockDim.x) {
        uint64_t mine = rank_of(row[i], i);
        best = mine > best ? mine : best;
    }
    best = block_largest(best, scratch);
    if (threadIdx.x == 0) a.partial[blockIdx.y * a.blocks + blockIdx.x] = best;
}

// Grid: rows, 256 threads. A row with NaN or plus infinity in it gives 0xffffffff.
extern "C" __global__ void arg_max_final(const __grid_constant__ ArgMaxArguments a) {
    __shared__ uint64_t scratch[32];
    uint64_t best = 0;
    for (uint32_t i = threadIdx.x; i < a.blocks; i += blockDim.x) {
        uint64_t mine = a.partial[blockIdx.x * a.blocks + i];
        best = mine > best ? mine : best;
    }
    best = block_largest(best, scratch);
    if (threadIdx.x == 0) {
        bool number = uint32_t(best >> 32) != 0xffffffffu;
        a.token[blockIdx.x] = number ? 0xffffffffu - uint32_t(best) : 0xffffffffu;
    }
}

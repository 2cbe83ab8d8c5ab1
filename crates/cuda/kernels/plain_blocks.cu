// Products of block encodings without tensor cores, one row a warp: for shapes and devices that the fast kernels do not
// serve. Matrices of other encodings may be among them.
#include "plain_rows.cuh"

// Grid: (blocks of 8 rows over all jobs, tokens); 256 threads; shared: the staged vector.
extern "C" __global__ void __launch_bounds__(256) linear_blocks(const __grid_constant__ LinearArguments a) {
    extern __shared__ float staged[];
    const LinearJob& job = a.job[block_job(a)];
    uint32_t row = (blockIdx.x - job.first_block) * 8 + threadIdx.x / 32;
    await_inputs();
    release_next();
    stage(a.x + size_t(blockIdx.y) * a.columns, a.columns, staged);
    __syncthreads();
    if (row >= job.matrix.rows) return;
    float out = any_row(job.matrix, row, staged);
    float* to = job.out + size_t(blockIdx.y) * job.matrix.rows + row;
    if (threadIdx.x % 32 == 0) *to = a.add ? __ldcg(to) + out : out;
}

// What a block of `expert_inner_blocks` multiplies with, and where the products go; false when there is nothing.
struct ExpertMatrices {
    Matrix gate, up;
    float* to;
};

__device__ inline bool find_inner(const ExpertArguments& a, ExpertMatrices& m, uint64_t& record) {
    uint32_t token = blockIdx.z, rank = blockIdx.y;
    if (rank >= a.k) {
        m = {a.gate, a.up, a.shared_inner + size_t(token) * a.gate.rows};
        return true;
    }
    if (blockIdx.x * 8 >= a.experts.gate.rows) return false;
    size_t at = size_t(token) * a.k + rank;
    uint32_t expert = __ldcg(a.chosen + at);
    uint64_t found = block_record(a, at, expert, record);
    if (found == FAILED) return false;
    m.gate = piece(a.experts.gate, a.experts, expert, found, GATE);
    m.up = piece(a.experts.up, a.experts, expert, found, UP);
    m.to = a.inner + at * m.gate.rows;
    return true;
}

// As `expert_inner`.
extern "C" __global__ void __launch_bounds__(256) expert_inner_blocks(const __grid_constant__ ExpertArguments a) {
    extern __shared__ float staged[];
    __shared__ uint64_t record;
    ExpertMatrices m;
    if (!find_inner(a, m, record)) return;
    uint32_t row = blockIdx.x * 8 + threadIdx.x / 32;
    stage(a.x + size_t(blockIdx.z) * a.hidden, a.hidden, staged);
    __syncthreads();
    if (row >= m.gate.rows) return;
    float gate = any_row(m.gate, row, staged), up = any_row(m.up, row, staged);
    if (threadIdx.x % 32 == 0) m.to[row] = silu(gate) * up;
}

// The second half of experts of any encoding; `bias(expert, row)` is added to a routed expert's product.
template <typename BIAS>
__device__ inline void outer_of_any(const ExpertArguments& a, BIAS&& bias) {
    extern __shared__ float staged[];
    uint32_t token = blockIdx.y, row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t width = a.experts.down.columns, chunks = (width + 31) / 32;
    for (uint32_t rank = 0; rank < a.k; rank++) {
        stage(a.inner + (size_t(token) * a.k + rank) * width, width, staged + rank * chunks * STAGED_CHUNK);
    }
    float* shared = staged + a.k * chunks * STAGED_CHUNK;
    if (a.shared_gate) stage(a.shared_inner + size_t(token) * a.down.columns, a.down.columns, shared);
    __syncthreads();
    float sum = 0.0f;
    for (uint32_t rank = 0; rank < a.k && row < a.hidden; rank++) {
        size_t at = size_t(token) * a.k + rank;
        uint64_t record = __ldcg(a.addresses + at);
        if (record == FAILED) continue;
        uint32_t expert = __ldcg(a.chosen + at);
        Matrix down = piece(a.experts.down, a.experts, expert, record, DOWN);
        float product = any_row(down, row, staged + rank * chunks * STAGED_CHUNK) + bias(expert, row);
        sum = fmaf(__ldcg(a.weights + at), product, sum);
    }
    if (a.shared_gate && row < a.hidden) sum = fmaf(sigmoid(a.shared_gate[token]), any_row(a.down, row, shared), sum);
    float* to = a.out + size_t(token) * a.hidden + row;
    if (lane == 0 && row < a.hidden) *to = __ldcg(to) + sum;
    __syncthreads();
    if (threadIdx.x == 0) note_end(a.ended);
}

// As `expert_outer`.
extern "C" __global__ void __launch_bounds__(256) expert_outer_blocks(const __grid_constant__ ExpertArguments a) {
    outer_of_any(a, [](uint32_t, uint32_t) { return 0.0f; });
}

// As `tile_any`.
extern "C" __global__ void __launch_bounds__(256) tile_any_blocks(const __grid_constant__ TileArguments a) {
    extern __shared__ float staged[];
    Task task;
    if (!find_task(a, task, blockIdx.y)) return;
    const Matrix& m = task.matrix;
    uint32_t row = blockIdx.x * 32 + threadIdx.x / 32 * 4;
    for (uint32_t i = 0; i < task.count; i++) {
        uint32_t pair = task.first + i;
        __syncthreads();
        stage(a.x + size_t(a.gather ? a.gather[pair] : pair) * m.columns, m.columns, staged);
        __syncthreads();
        for (uint32_t r = row; r < min(row + 4, m.rows); r++) {
            float v = any_row(m, r, staged);
            float* to = task.out + size_t(pair) * m.rows + r;
            if (threadIdx.x % 32 == 0) *to = a.add ? *to + v : v;
        }
    }
}

// As `embed`: a thread has the columns of one lane of four.
extern "C" __global__ void embed_blocks(const __grid_constant__ EmbedArguments a) {
    const Matrix& m = a.table;
    float* out = a.out + size_t(blockIdx.x) * m.columns;
    if (m.bits == BLOCK_FP8) {
        uint32_t row = a.tokens[blockIdx.x];
        for (uint32_t column = 4 * threadIdx.x; column < m.columns; column += 4 * blockDim.x) {
            uint32_t word = fp8_word(m, row, column);
            float2 low = e4m3_floats(word & 0xffff), high = e4m3_floats(word >> 16);
            float v[4] = {low.x, low.y, high.x, high.y}, scale = fp8_scale(m, row, column);
            for (uint32_t i = 0; i < 4 && column + i < m.columns; i++) out[column + i] = v[i] * scale;
        }
        return;
    }
    with_any_format(m.bits, [&]<typename F>() {
        for (uint32_t i = threadIdx.x; i < (m.columns + 63) / 64 * 4; i += blockDim.x) {
            uint32_t stage = i / 4, t = i % 4, w[4];
            PlainStage<F> from(m, a.tokens[blockIdx.x], stage);
            from.codes(t, w);
#pragma unroll
            for (uint32_t s = 0; s < 4; s++) {
                if (s >= from.steps) break;
                Scaling scaling = from.scaling[16 * s / F::GROUP];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float v = float(int(w[s] >> 8 * j & 255) - int(F::OFFSET)) * scaling.scale;
                    out[stage * 64 + 16 * s + 4 * t + j] = F::MINIMUM ? v + scaling.minimum : v;
                }
            }
        }
    });
}

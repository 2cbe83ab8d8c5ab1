// The gates of residual streams in a step, in two kernels: what gated_streams.cu does with matrices between its
// kernels. A block of the first has sixteen rows of the narrow matrices and one stream, so that a norm's factor is
// common to all that it adds up; sums of the streams are added up, in their order, where they are read.
#include "product.cuh"

struct GateStepArguments {
    const float* x;              // [tokens, count, hidden]: the streams
    const float* norm;           // [count, hidden]
    float* partial;              // [tokens, count, rank + count + 1]: sums of a stream, its norm's factor the last
    float* block;                // [tokens, hidden]: a block's input
    float* inject;               // [tokens, count]; null where streams take nothing
    Matrix down;                 // [rank, count * hidden]
    Matrix weights;              // [count, count * hidden]; of `down` where `inject` is null
    Matrix up;                   // [count * hidden, rank]
    uint32_t hidden;
    uint32_t count;
    uint32_t rank;
    float epsilon;
};

constexpr uint32_t GATE_ROWS = 16;     // of a block of the first kernel
constexpr uint32_t GATE_VALUES = 8;    // of a block of the second
constexpr uint32_t GATE_CHUNKS = 5;    // of 32 columns that a thread asks for together

// 32 codes of a row and what they are multiplied with, as stored.
template <int BITS>
struct GateChunk {
    uint32_t words[BITS], scale, bias;

    __device__ inline void load(const Matrix& m, uint32_t row, uint32_t column) {
        ChunkPlace place = chunk_place<BITS>(m, row, column);
        load_words<BITS>(m.weight + place.byte, words);
        scale = group_scale_bits(m.scales, place.group, m.scale_kind);
        bias = group_scale_bits(m.biases, place.group, m.scale_kind);
    }

    __device__ inline float product(const Matrix& m, const Chunk& chunk) const {
        float sum = 0.0f;
        unroll<0, 32>([&]<int I>() {
            uint32_t mantissa = value<BITS, I>(words) << (23 - BITS);
            sum = fmaf(__uint_as_float(mantissa | 0x3f800000u), chunk.x[I], sum);
        });
        float factor = group_scale_value(scale, m.scale_kind);
        float offset = bias_factor(m.scale_kind) * group_scale_value(bias, m.scale_kind);
        return factor * (float(1 << BITS) * (sum - chunk.sum)) + offset * chunk.sum;
    }
};

// A thread's share of its row, columns `first`.. of a stream: every sixteenth chunk.
template <int BITS>
__device__ inline float gate_row(const GateStepArguments& a, const Matrix& m, uint32_t row, const float* staged,
                                 uint32_t lane, const GateChunk<BITS> (&early)[GATE_CHUNKS]) {
    uint32_t chunks = a.hidden / 32, first = blockIdx.y * a.hidden;
    float sum = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < GATE_CHUNKS; i++) {
        uint32_t at = lane + 16 * i;
        if (at >= chunks) break;
        Chunk chunk;
        chunk.load(staged, at * 32);
        sum += early[i].product(m, chunk);
    }
#pragma unroll 1
    for (uint32_t at = lane + 16 * GATE_CHUNKS; at < chunks; at += 16) {
        GateChunk<BITS> codes;
        codes.load(m, row, first + at * 32);
        Chunk chunk;
        chunk.load(staged, at * 32);
        sum += codes.product(m, chunk);
    }
    return sum;
}

// The stream of the block, times its norm's weights, and its norm's factor.
__device__ inline float stage_stream(const GateStepArguments& a, float* staged, float* scratch) {
    size_t stream = size_t(blockIdx.z) * a.count + blockIdx.y;
    const float* x = a.x + stream * a.hidden;
    const float* norm = a.norm + size_t(blockIdx.y) * a.hidden;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x * 4; i < a.hidden; i += blockDim.x * 4) {
        float4 v = __ldcg(reinterpret_cast<const float4*>(x + i));
        float4 w = *reinterpret_cast<const float4*>(norm + i);
        sum = fmaf(v.x, v.x, sum), sum = fmaf(v.y, v.y, sum), sum = fmaf(v.z, v.z, sum), sum = fmaf(v.w, v.w, sum);
        float4 weighed = {v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w};
        *reinterpret_cast<float4*>(staged + i / 32 * STAGED_CHUNK + i % 32) = weighed;
    }
    return 1.0f / sqrtf(block_sum(sum, scratch) / float(a.hidden) + a.epsilon);
}

// Rows of the narrow matrix.
template <int BITS>
__device__ inline void gate_rows(const GateStepArguments& a, float* staged, float* scratch) {
    uint32_t lane = threadIdx.x % 16, row = blockIdx.x * GATE_ROWS + threadIdx.x / 16, chunks = a.hidden / 32;
    GateChunk<BITS> early[GATE_CHUNKS];
    // What was asked for comes while the kernel before runs.
#pragma unroll
    for (uint32_t i = 0; i < GATE_CHUNKS; i++) {
        uint32_t at = min(lane + 16 * i, chunks - 1);
        early[i].load(a.down, min(row, a.rank - 1), blockIdx.y * a.hidden + at * 32);
    }
    await_inputs();
    release_next();
    float factor = stage_stream(a, staged, scratch);
    __syncthreads();
    float sum = gate_row<BITS>(a, a.down, min(row, a.rank - 1), staged, lane, early);
#pragma unroll
    for (int offset = 8; offset > 0; offset >>= 1) sum += __shfl_xor_sync(FULL, sum, offset);
    float* to = a.partial + (size_t(blockIdx.z) * a.count + blockIdx.y) * (a.rank + a.count + 1);
    if (lane == 0 && row < a.rank) to[row] = sum * factor;
    if (blockIdx.x == 0 && threadIdx.x == 0) to[a.rank + a.count] = factor;
}

// Values of a row that a thread asks for before it multiplies the first.
constexpr uint32_t INJECT_TOGETHER = 10;

// What a stream takes: a row of any encoding.
__device__ inline void inject_row(const GateStepArguments& a, uint32_t row, float* staged, float* scratch) {
    const Matrix& m = a.weights;
    size_t first = size_t(row) * m.columns + blockIdx.y * a.hidden;
    float early[INJECT_TOGETHER] = {};
    if (m.kind != AFFINE) {
#pragma unroll
        for (uint32_t i = 0; i < INJECT_TOGETHER; i++) {
            uint32_t at = threadIdx.x + i * blockDim.x;
            if (at < a.hidden) early[i] = load_float(m.weight, first + at, m.kind);
        }
    }
    await_inputs();
    release_next();
    float factor = stage_stream(a, staged, scratch), sum = 0.0f;
    __syncthreads();
    if (m.kind == AFFINE) {
        for (uint32_t at = threadIdx.x; at < a.hidden / 32; at += blockDim.x) {
            Chunk chunk;
            chunk.load(staged, at * 32);
            sum += any_chunk(m, row, blockIdx.y * a.hidden + at * 32, chunk);
        }
    } else {
#pragma unroll
        for (uint32_t i = 0; i < INJECT_TOGETHER; i++) {
            uint32_t at = threadIdx.x + i * blockDim.x;
            if (at < a.hidden) sum = fmaf(early[i], staged[at / 32 * STAGED_CHUNK + at % 32], sum);
        }
#pragma unroll 1
        for (uint32_t at = threadIdx.x + INJECT_TOGETHER * blockDim.x; at < a.hidden; at += blockDim.x) {
            sum = fmaf(load_float(m.weight, first + at, m.kind), staged[at / 32 * STAGED_CHUNK + at % 32], sum);
        }
    }
    sum = block_sum(sum, scratch);
    float* to = a.partial + (size_t(blockIdx.z) * a.count + blockIdx.y) * (a.rank + a.count + 1) + a.rank;
    if (threadIdx.x == 0) to[row] = sum * factor;
}

// Sums of each stream. Grid: (blocks of GATE_ROWS rows, and one for what each stream takes; streams; tokens), 256
// threads; shared: the staged stream.
extern "C" __global__ void __launch_bounds__(256) gate_narrow(const __grid_constant__ GateStepArguments a) {
    extern __shared__ float staged[];
    __shared__ float scratch[32];
    uint32_t blocks = (a.rank + GATE_ROWS - 1) / GATE_ROWS;
    if (blockIdx.x >= blocks) return inject_row(a, blockIdx.x - blocks, staged, scratch);
    if (a.down.bits == 4) return gate_rows<4>(a, staged, scratch);
    gate_rows<8>(a, staged, scratch);
}

// Gates of GATE_VALUES values of every stream, and the mean of the streams. A thread has 32 columns of a gate's row.
template <int BITS>
__device__ inline void gate_wide_block(const GateStepArguments& a, float* staged) {
    __shared__ float sums[GATE_VALUES * STREAMS_LIMIT];
    uint32_t chunks = a.rank / 32, rows = GATE_VALUES * a.count;
    uint32_t q = threadIdx.x / chunks, chunk_at = threadIdx.x % chunks;
    uint32_t first = blockIdx.x * GATE_VALUES, token = blockIdx.y, stride = a.rank + a.count + 1;
    uint32_t value_at = min(first + q % GATE_VALUES, a.hidden - 1);
    GateChunk<BITS> codes;
    codes.load(a.up, q / GATE_VALUES * a.hidden + value_at, chunk_at * 32);
    // The streams were complete before the kernel before began, which has begun.
    float v = 0.0f;
    if (threadIdx.x < rows) {
        uint32_t stream = threadIdx.x / GATE_VALUES, at = min(first + threadIdx.x % GATE_VALUES, a.hidden - 1);
        v = __ldcg(a.x + (size_t(token) * a.count + stream) * a.hidden + at) * a.norm[size_t(stream) * a.hidden + at];
    }
    await_inputs();
    release_next();
    const float* partial = a.partial + size_t(token) * a.count * stride;
    for (uint32_t i = threadIdx.x; i < a.rank; i += blockDim.x) {
        float sum = 0.0f;
        for (uint32_t s = 0; s < a.count; s++) sum += __ldcg(partial + size_t(s) * stride + i);
        staged[i / 32 * STAGED_CHUNK + i % 32] = silu(sum / float(a.count));
    }
    if (a.inject && blockIdx.x == 0 && threadIdx.x < a.count) {
        float sum = 0.0f;
        for (uint32_t s = 0; s < a.count; s++) sum += __ldcg(partial + size_t(s) * stride + a.rank + threadIdx.x);
        a.inject[size_t(token) * a.count + threadIdx.x] = sum;
    }
    float factor = threadIdx.x < rows ? __ldcg(partial + (threadIdx.x / GATE_VALUES + 1) * size_t(stride) - 1) : 0.0f;
    float* parts = staged + chunks * STAGED_CHUNK;
    __syncthreads();
    Chunk chunk;
    chunk.load(staged, chunk_at * 32);
    parts[threadIdx.x] = codes.product(a.up, chunk);
    __syncthreads();
    if (threadIdx.x < rows) {
        float gate = 0.0f;
        for (uint32_t i = 0; i < chunks; i++) gate += parts[threadIdx.x * chunks + i];
        sums[threadIdx.x] = v * factor * sigmoid(gate);
    }
    __syncthreads();
    if (threadIdx.x >= GATE_VALUES || first + threadIdx.x >= a.hidden) return;
    float sum = 0.0f;
    for (uint32_t s = 0; s < a.count; s++) sum += sums[s * GATE_VALUES + threadIdx.x];
    a.block[size_t(token) * a.hidden + first + threadIdx.x] = sum / float(a.count);
}

// Grid: (blocks of GATE_VALUES values, tokens), a thread for every 32 columns of a block's rows; shared: the staged
// narrow vector, and a float a thread.
extern "C" __global__ void __launch_bounds__(1024) gate_wide(const __grid_constant__ GateStepArguments a) {
    extern __shared__ float staged[];
    if (a.up.bits == 4) return gate_wide_block<4>(a, staged);
    gate_wide_block<8>(a, staged);
}

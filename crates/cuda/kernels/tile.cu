// Matrix times many tokens: tensor cores over integers that are exact, f32 everywhere else.
//
// The quantised values of a chunk of 32 columns are integers below 256, exact in bf16; each activation is the sum of
// two bf16 parts (16 bits of significand). The tensor cores form sum(q x) of a chunk in f32, and
// scale * sum(q x) + bias * sum(x) is added to the result in f32. Relative error about 4e-6 on normal inputs.
//
// A block computes 64 tokens by 128 rows, 64 columns at a time; a warp 32 by 32. Rows of shared memory are 72 values
// long, so that the eight rows of a fragment meet different banks.
#include "product.cuh"

struct TileArguments {
    const float* x;              // [.., columns]
    const uint32_t* gather;      // optional: row of x for each pair
    float* out;                  // [tokens or pairs, rows]
    float* out_second;           // grouped, grid.z = 2: of the second matrix
    const uint64_t* addresses;   // grouped: record of each expert
    const uint32_t* places;      // grouped: [experts][PLACES]
    const uint32_t* tiles;       // grouped: [.., 3]: expert, first pair, pairs
    const uint32_t* tile_count;  // grouped
    Matrix matrix;               // grouped: the shape
    Matrix second;               // grouped, grid.z = 2
    uint32_t tokens;             // not grouped
    uint32_t add;
    uint32_t first_piece;        // grouped: ExpertPart
    uint32_t grouped;
};

constexpr int M = TILE_TOKENS, N = TILE_ROWS, K = 64, PITCH = 72;

// What this block computes; false when there is nothing.
struct Task {
    Matrix matrix;
    float* out;
    uint32_t first, count;
};

__device__ inline bool find_task(const TileArguments& a, Task& task, uint32_t tile) {
    task.matrix = blockIdx.z ? a.second : a.matrix;
    task.out = blockIdx.z ? a.out_second : a.out;
    if (!a.grouped) {
        task.first = tile * M;
        if (task.first >= a.tokens) return false;
        task.count = min(uint32_t(M), a.tokens - task.first);
        return true;
    }
    if (tile >= *a.tile_count) return false;
    const uint32_t* entry = a.tiles + 3 * size_t(tile);
    const uint32_t* place = a.places + size_t(entry[0]) * PLACES + (a.first_piece + blockIdx.z) * 3;
    const uint8_t* base = reinterpret_cast<const uint8_t*>(a.addresses[entry[0]]);
    task.matrix.weight = base + place[0];
    task.matrix.scales = base + place[1];
    task.matrix.biases = base + place[2];
    task.first = entry[1], task.count = entry[2];
    return true;
}

__device__ inline uint32_t pack(__nv_bfloat162 v) { return *reinterpret_cast<uint32_t*>(&v); }

template <int BITS>
__device__ inline void unpack_bf16(const uint32_t (&words)[BITS], uint32_t (&out)[16]) {
    unroll<0, 16>([&]<int I>() {
        uint32_t low = value<BITS, 2 * I>(words), high = value<BITS, 2 * I + 1>(words);
        if constexpr (BITS <= 6) {
            // 0x4300 is 128 in bf16 and its significand counts ones: 128 + q, then less 128, exactly.
            uint32_t raised = low | high << 16 | 0x43004300u;
            __nv_bfloat162 v = *reinterpret_cast<__nv_bfloat162*>(&raised);
            out[I] = pack(__hsub2(v, __float2bfloat162_rn(128.0f)));
        } else {
            out[I] = pack(__floats2bfloat162_rn(float(low), float(high)));
        }
    });
}

__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Rows r and r + 8, columns k and k + 8, two values each.
__device__ inline void load_fragment(uint32_t (&to)[4], const __nv_bfloat16* from) {
    to[0] = *reinterpret_cast<const uint32_t*>(from);
    to[1] = *reinterpret_cast<const uint32_t*>(from + 8 * PITCH);
    to[2] = *reinterpret_cast<const uint32_t*>(from + 8);
    to[3] = *reinterpret_cast<const uint32_t*>(from + 8 * PITCH + 8);
}

// Grid: (rows / 128, tiles of 64 tokens, 1 or 2), 256 threads.
template <int BITS>
__device__ inline void tile_product(const TileArguments& a) {
#if __CUDA_ARCH__ >= 800
    __shared__ __align__(16) __nv_bfloat16 high[M][PITCH], low[M][PITCH], weights[N][PITCH];
    __shared__ float scales[N][2], biases[N][2], sums[M][2];
    Task task;
    if (!find_task(a, task, blockIdx.y)) return;
    const Matrix& m = task.matrix;
    uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    uint32_t first_row = blockIdx.x * N;

    // Staging: a quarter of a row of x, half a row of weights.
    uint32_t x_row = thread / 4, x_column = thread % 4 * 16;
    bool x_live = x_row < task.count;
    uint32_t pair = task.first + (x_live ? x_row : 0);
    const float* x = a.x + size_t(a.gather ? a.gather[pair] : pair) * m.columns;
    uint32_t w_row = first_row + thread / 2, w_column = thread % 2 * 32;
    bool w_live = w_row < m.rows;

    float4 next_x[4];
    uint32_t next_w[BITS];
    float next_scale, next_bias;
    auto fetch = [&](uint32_t column) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t at = column + x_column + 4 * i;
            next_x[i] = x_live && at < m.columns ? *reinterpret_cast<const float4*>(x + at) : float4{0, 0, 0, 0};
        }
        uint32_t at = column + w_column;
        next_scale = next_bias = 0.0f;
        if (w_live && at < m.columns) {
            ChunkPlace place = chunk_place<BITS>(m, w_row, at);
            load_words<BITS>(m.weight + place.byte, next_w);
            next_scale = load_float(m.scales, place.group, m.scale_kind);
            next_bias = bias_factor(m.scale_kind) * load_float(m.biases, place.group, m.scale_kind);
        } else {
#pragma unroll
            for (int i = 0; i < BITS; i++) next_w[i] = 0;
        }
    };
    float result[2][4][4] = {};
    uint32_t g = lane / 4, t = lane % 4, warp_m = warp / 4 * 32, warp_n = warp % 4 * 32;
    fetch(0);
    for (uint32_t column = 0; column < m.columns; column += K) {
        __syncthreads();
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float v[4] = {next_x[i].x, next_x[i].y, next_x[i].z, next_x[i].w};
            uint32_t h[2], l[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                __nv_bfloat162 top = __floats2bfloat162_rn(v[2 * j], v[2 * j + 1]);
                float2 back = __bfloat1622float2(top);
                h[j] = pack(top);
                l[j] = pack(__floats2bfloat162_rn(v[2 * j] - back.x, v[2 * j + 1] - back.y));
                sum += v[2 * j] + v[2 * j + 1];
            }
            *reinterpret_cast<uint2*>(&high[x_row][x_column + 4 * i]) = {h[0], h[1]};
            *reinterpret_cast<uint2*>(&low[x_row][x_column + 4 * i]) = {l[0], l[1]};
        }
        sum += __shfl_xor_sync(FULL, sum, 1);
        if (thread % 2 == 0) sums[x_row][x_column / 32] = sum;
        uint32_t unpacked[16];
        unpack_bf16<BITS>(next_w, unpacked);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            *reinterpret_cast<uint4*>(&weights[thread / 2][w_column + 8 * i]) =
                {unpacked[4 * i], unpacked[4 * i + 1], unpacked[4 * i + 2], unpacked[4 * i + 3]};
        }
        scales[thread / 2][thread % 2] = next_scale;
        biases[thread / 2][thread % 2] = next_bias;
        __syncthreads();
        if (column + K < m.columns) fetch(column + K);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float chunk[2][4][4] = {};
#pragma unroll
            for (int step = 0; step < 2; step++) {
                int k = half * 32 + step * 16 + 2 * t;
                uint32_t b[4][2];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const __nv_bfloat16* row = weights[warp_n + 8 * j + g];
                    b[j][0] = *reinterpret_cast<const uint32_t*>(row + k);
                    b[j][1] = *reinterpret_cast<const uint32_t*>(row + k + 8);
                }
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    uint32_t r = warp_m + 16 * i + g;
                    uint32_t ah[4], al[4];
                    load_fragment(ah, &high[r][k]);
                    load_fragment(al, &low[r][k]);
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        multiply(chunk[i][j], ah, b[j][0], b[j][1]);
                        multiply(chunk[i][j], al, b[j][0], b[j][1]);
                    }
                }
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                uint32_t n = warp_n + 8 * j + 2 * t;
                float s0 = scales[n][half], s1 = scales[n + 1][half];
                float b0 = biases[n][half], b1 = biases[n + 1][half];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float x0 = sums[warp_m + 16 * i + g][half], x1 = sums[warp_m + 16 * i + g + 8][half];
                    result[i][j][0] += s0 * chunk[i][j][0] + b0 * x0;
                    result[i][j][1] += s1 * chunk[i][j][1] + b1 * x0;
                    result[i][j][2] += s0 * chunk[i][j][2] + b0 * x1;
                    result[i][j][3] += s1 * chunk[i][j][3] + b1 * x1;
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int part = 0; part < 2; part++) {
            uint32_t r = warp_m + 16 * i + g + 8 * part;
            if (r >= task.count) continue;
            float* to = task.out + size_t(task.first + r) * m.rows;
#pragma unroll
            for (int j = 0; j < 4; j++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    uint32_t n = first_row + warp_n + 8 * j + 2 * t + c;
                    if (n < m.rows) {
                        float v = result[i][j][2 * part + c];
                        to[n] = a.add ? to[n] + v : v;
                    }
                }
            }
        }
    }
#else
    // Launched on 8.0 and later alone: an image that lacks this product must not pass for one.
    __trap();
#endif
}

#define TILE(BITS)                                                                                          \
    extern "C" __global__ void __launch_bounds__(256) tile_##BITS(const __grid_constant__ TileArguments a) { \
        tile_product<BITS>(a);                                                                              \
    }

TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)
TILE(8)

// Any encoding, f32 throughout, a token at a time: for float weights and devices without bf16 tensor cores.
// Grid: (rows / 32, tiles of 64 tokens, 1 or 2), 256 threads; shared: the staged x.
extern "C" __global__ void __launch_bounds__(256) tile_any(const __grid_constant__ TileArguments a) {
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
        if (row >= m.rows) continue;
        float out[4];
        product_rows<4>(m, row, staged, out);
        if (threadIdx.x % 32 == 0) {
            float* to = task.out + size_t(pair) * m.rows + row;
#pragma unroll
            for (int r = 0; r < 4; r++) {
                if (row + r < m.rows) to[r] = a.add ? to[r] + out[r] : out[r];
            }
        }
    }
}

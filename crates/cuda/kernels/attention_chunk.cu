// Attention of the tokens of a prompt, on tensor cores. Included after attention.cu, whose arguments it takes.
//
// Keys are taken in parts of as many positions as the arguments say (CHUNK_PART), which begin at multiples of that. A
// part is added up by itself, and parts are joined in ascending order. So the parts of few tokens can be blocks of
// their own: a block that walks over 8,192 keys by itself takes 0.7 ms, whatever the number of tokens, and most of the
// device waits for it. The bits are the same in both forms. A context of one part has no joints, nor have the keys of a
// window.

// Joins what a row has of its parts so far with the next: `whole` is an element of its sums.
struct RowParts {
    float largest, total;  // minus infinity and 0 before the first

    // The factors of the sums so far and of the part's; 1 and 0 for a part of which the row sees nothing.
    __device__ inline float2 factors(float part_largest, float part_total) {
        if (part_largest == -INFINITY) return {1.0f, 0.0f};
        float top = fmaxf(largest, part_largest);
        float2 factor = {exp2f(largest - top), exp2f(part_largest - top)};
        largest = top;
        total = __fmaf_rn(part_total, factor.y, __fmul_rn(total, factor.x));
        return factor;
    }
};

__device__ inline float join_parts(float whole, float part, float2 factor) {
    return __fmaf_rn(part, factor.y, __fmul_rn(whole, factor.x));
}

#if __CUDA_ARCH__ >= 800

// A chunk of a prompt: rows (token, head of a group), 16 to a warp, times all keys before them, KEYS at a time.
// Queries stay in shared memory, both parts; a tile of keys is replaced by the next while probabilities and values are
// multiplied, the values are copied while the dots are formed.
// A block adds up one of SLICES slices of the values' columns, of all parts of the keys or, where the arguments have
// several `splits`, of one of them, for `attend_join_chunk`. Sums of the parts before stay in `out`.
// Grid: (groups of tokens, key_value_heads, SLICES * splits), 32 * WARPS threads; shared: (64 WARPS + 2 KEYS + 2 KEYS /
// SLICES) * DIM bytes.
template <typename PAIR, int DIM, int WARPS, int KEYS, int SLICES = 1>
__device__ inline void attend_chunk(const AttendArguments& a) {
    constexpr int ROWS = 16 * WARPS, THREADS = 32 * WARPS, TILES = KEYS / 8, WIDE = DIM / SLICES, COLUMNS = WIDE / 8;
    constexpr uint32_t PART_BYTES = ROWS * DIM * 2, TILE_BYTES = KEYS * DIM * 2;
    extern __shared__ __align__(128) uint8_t buffer[];
    uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    uint32_t group = a.query_heads / a.key_value_heads, head = blockIdx.y, first_column = blockIdx.z % SLICES * WIDE;
    // Later tokens have more keys: they begin first.
    uint32_t first_token = (gridDim.x - 1 - blockIdx.x) * a.tokens_per_block;
    uint32_t tokens = min(a.tokens_per_block, a.tokens - first_token), rows = tokens * group;
    await_inputs();
    release_next();
    uint32_t shortest = a.positions[first_token] + 1, longest = a.positions[first_token + tokens - 1] + 1;
    size_t row_bytes = 2 * size_t(a.dim), stride = a.key_value_heads * row_bytes;
    size_t base = size_t(a.sequences[first_token]) * a.context * stride + head * row_bytes;
    const uint8_t *keys = a.cache_keys + base, *values = a.cache_values + base + 2 * first_column;
    uint32_t high = shared_address(buffer), low = high + PART_BYTES;
    uint32_t key_tile = low + PART_BYTES, value_tile = key_tile + TILE_BYTES;
    // Tiles begin at multiples of their length wherever the window does.
    const uint32_t part_tiles = a.part / KEYS;
    uint32_t first_tile = first_key(a, shortest) / KEYS, latest = first_key(a, longest);
    uint32_t tiles = (longest + KEYS - 1) / KEYS, split = blockIdx.z / SLICES;
    if (a.splits > 1) {
        first_tile = max(first_tile, split * part_tiles), tiles = min(tiles, (split + 1) * part_tiles);
        if (first_tile >= tiles) return;
    }
    copy_rows<DIM, KEYS, THREADS>(key_tile, keys, stride, a.dim, first_tile * KEYS, longest);
    commit_copies();
    for (uint32_t i = thread; i < ROWS * (DIM / 8); i += THREADS) {
        uint32_t r = i / (DIM / 8), unit = i % (DIM / 8);
        bool live = r < rows && unit * 8 < a.dim;
        const float* from = a.query + (size_t(first_token + (live ? r / group : 0)) * a.query_heads + head * group +
                                       (live ? r % group : 0)) * a.dim + (live ? unit * 8 : 0);
        uint32_t h[4], l[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float2 v = live ? *reinterpret_cast<const float2*>(from + 2 * j) : float2{0.0f, 0.0f};
            split_parts<PAIR>(v.x * a.scale, v.y * a.scale, h[j], l[j]);
        }
        uint32_t at = unit_offset<DIM>(r, unit);
        *reinterpret_cast<uint4*>(buffer + at) = {h[0], h[1], h[2], h[3]};
        *reinterpret_cast<uint4*>(buffer + PART_BYTES + at) = {l[0], l[1], l[2], l[3]};
    }
    uint32_t length[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t r = warp * 16 + lane / 4 + 8 * j;
        length[j] = r < rows ? a.positions[first_token + r / group] + 1 : 0;
    }
    float sums[COLUMNS][4] = {}, largest[2] = {-INFINITY, -INFINITY}, total[2] = {};
    auto sum_total = [&](int j) {
        total[j] += __shfl_xor_sync(FULL, total[j], 1);
        total[j] += __shfl_xor_sync(FULL, total[j], 2);
    };
    // A row of the output, or nothing.
    auto row_out = [&](int j) -> float* {
        uint32_t r = warp * 16 + lane / 4 + 8 * j;
        if (r >= rows) return nullptr;
        return a.out + (size_t(first_token + r / group) * a.query_heads + head * group + r % group) * a.dim;
    };
    // What the lane's rows have so far; in shared memory, because the sums take the registers.
    __shared__ RowParts before[2][THREADS];
    before[0][thread] = before[1][thread] = {-INFINITY, 0.0f};
    for (uint32_t tile = first_tile; tile < tiles; tile++) {
        uint32_t start = tile * KEYS;
        if ((start & (a.part - 1)) == 0 && tile > first_tile) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                sum_total(j);
                RowParts row = before[j][thread];
                bool none = row.largest == -INFINITY;
                float2 factor = row.factors(largest[j], total[j]);
                before[j][thread] = row;
                float* to = row_out(j);
                // Some are asked for together: a store might change what a later load gets, as far as is known.
                constexpr int TOGETHER = 8;
#pragma unroll
                for (int first = 0; first < COLUMNS; first += TOGETHER) {
                    float2 whole[TOGETHER];
#pragma unroll
                    for (int i = 0; i < TOGETHER; i++) {
                        uint32_t d = first_column + (first + i) * 8 + lane % 4 * 2;
                        bool live = to && d < a.dim && !none;
                        whole[i] = live ? *reinterpret_cast<const float2*>(to + d) : float2{0.0f, 0.0f};
                    }
#pragma unroll
                    for (int i = 0; i < TOGETHER; i++) {
                        uint32_t d = first_column + (first + i) * 8 + lane % 4 * 2;
                        float* part = sums[first + i] + 2 * j;
                        float2 all = {join_parts(whole[i].x, part[0], factor), join_parts(whole[i].y, part[1], factor)};
                        if (to && d < a.dim) *reinterpret_cast<float2*>(to + d) = all;
                        part[0] = part[1] = 0.0f;
                    }
                }
                largest[j] = -INFINITY, total[j] = 0.0f;
            }
        }
        await_copies<0>();
        __syncthreads();
        copy_rows<WIDE, KEYS, THREADS>(value_tile, values, stride, a.dim - first_column, start, longest);
        commit_copies();
        float dots[TILES][4] = {};
#pragma unroll
        for (int step = 0; step < DIM / 16; step++) {
            uint32_t q[2][4];
            uint32_t at = unit_offset<DIM>(warp * 16 + lane % 16, step * 2 + lane / 16);
            load_matrices(q[0], high + at);
            load_matrices(q[1], low + at);
#pragma unroll
            for (int i = 0; i < TILES; i += 2) {
                uint32_t k[4];
                uint32_t key = i * 8 + lane % 8 + lane / 16 * 8;
                load_matrices(k, key_tile + unit_offset<DIM>(key, step * 2 + lane / 8 % 2));
                PAIR::multiply(dots[i], q[0], k[0], k[1]);
                PAIR::multiply(dots[i + 1], q[0], k[2], k[3]);
                PAIR::multiply(dots[i], q[1], k[0], k[1]);
                PAIR::multiply(dots[i + 1], q[1], k[2], k[3]);
            }
        }
        __syncthreads();
        if (tile + 1 < tiles) copy_rows<DIM, KEYS, THREADS>(key_tile, keys, stride, a.dim, start + KEYS, longest);
        commit_copies();
        if (start + KEYS > shortest || start < latest) {
#pragma unroll
            for (int i = 0; i < TILES; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    uint32_t key = start + i * 8 + lane % 4 * 2 + j % 2;
                    if (key >= length[j / 2] || key < first_key(a, length[j / 2])) dots[i][j] = -INFINITY;
                }
            }
        }
        float less[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float top = largest[j];
#pragma unroll
            for (int i = 0; i < TILES; i++) top = fmaxf(top, fmaxf(dots[i][2 * j], dots[i][2 * j + 1]));
            top = fmaxf(top, __shfl_xor_sync(FULL, top, 1));
            top = fmaxf(top, __shfl_xor_sync(FULL, top, 2));
            // A row without keys so far stays at zero.
            float reference = top == -INFINITY ? 0.0f : top;
            less[j] = exp2f(largest[j] - reference);
            largest[j] = top;
            total[j] *= less[j];
#pragma unroll
            for (int i = 0; i < TILES; i++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float weight = exp2f(dots[i][2 * j + c] - reference);
                    dots[i][2 * j + c] = weight;
                    total[j] += weight;
                }
            }
        }
        // Once the largest dot of every row has been seen, as is usual soon, factors are 1.
        if (!__all_sync(FULL, less[0] == 1.0f && less[1] == 1.0f)) {
#pragma unroll
            for (int i = 0; i < COLUMNS; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) sums[i][j] *= less[j / 2];
            }
        }
        await_copies<1>();
        __syncthreads();
#pragma unroll
        for (int step = 0; step < KEYS / 16; step++) {
            uint32_t w[2][4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float* pair = &dots[2 * step + j / 2][j % 2 * 2];
                split_parts<PAIR>(pair[0], pair[1], w[0][j], w[1][j]);
            }
#pragma unroll
            for (int i = 0; i < COLUMNS; i += 2) {
                uint32_t v[4];
                load_matrices_transposed(v, value_tile + unit_offset<WIDE>(step * 16 + lane % 16, i + lane / 16));
                PAIR::multiply(sums[i], w[0], v[0], v[1]);
                PAIR::multiply(sums[i + 1], w[0], v[2], v[3]);
                PAIR::multiply(sums[i], w[1], v[0], v[1]);
                PAIR::multiply(sums[i + 1], w[1], v[2], v[3]);
            }
        }
    }
    bool joined = a.splits == 1 && (tiles - 1) / part_tiles > first_tile / part_tiles;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        sum_total(j);
        uint32_t r = warp * 16 + lane / 4 + 8 * j;
        float* to = row_out(j);
        if (!to) continue;
        if (a.splits > 1) {
            size_t place = size_t(first_token + r / group) * a.query_heads + head * group + r % group;
            to = a.partial + (place * a.splits + split) * (a.dim + 2);
#pragma unroll
            for (int i = 0; i < COLUMNS; i++) {
                uint32_t d = first_column + i * 8 + lane % 4 * 2;
                if (d < a.dim) *reinterpret_cast<float2*>(to + d) = {sums[i][2 * j], sums[i][2 * j + 1]};
            }
            if (lane % 4 == 0 && first_column == 0) to[a.dim] = largest[j], to[a.dim + 1] = total[j];
            continue;
        }
        RowParts all = before[j][thread];
        bool none = all.largest == -INFINITY;
        float2 parts = all.factors(largest[j], total[j]);
        float factor = a.sinks ? join_sink(a, head * group + r % group, all.largest, all.total) : 1.0f;
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) {
            uint32_t d = first_column + i * 8 + lane % 4 * 2;
            if (d < a.dim) {
                float2* at = reinterpret_cast<float2*>(to + d);
                float2 sum = {sums[i][2 * j], sums[i][2 * j + 1]};
                if (joined) {
                    float2 whole = none ? float2{0.0f, 0.0f} : *at;
                    sum = {join_parts(whole.x, sum.x, parts), join_parts(whole.y, sum.y, parts)};
                }
                *at = {sum.x * factor / all.total, sum.y * factor / all.total};
            }
        }
    }
}

#define CHUNK_BODY(CALL) CALL
#else
// Launched on 8.0 and later alone.
#define CHUNK_BODY(CALL) __trap()
#endif

// The parts of a row, joined as a block of `attend_chunk` joins them.
// Grid: (query heads, tokens), 256 threads.
extern "C" __global__ void __launch_bounds__(256) attend_join_chunk(const __grid_constant__ AttendArguments a) {
    await_inputs();
    release_next();
    uint32_t head = blockIdx.x, token = blockIdx.y, length = a.positions[token] + 1;
    uint32_t first = first_key(a, length) / a.part, last = (length - 1) / a.part;
    size_t place = size_t(token) * a.query_heads + head;
    const float* from = a.partial + place * a.splits * (a.dim + 2);
    for (uint32_t d = threadIdx.x; d < a.dim; d += blockDim.x) {
        RowParts row = {-INFINITY, 0.0f};
        float whole = 0.0f;
#pragma unroll 4
        for (uint32_t part = first; part <= last; part++) {
            const float* values = from + size_t(part) * (a.dim + 2);
            float2 factor = row.factors(values[a.dim], values[a.dim + 1]);
            whole = join_parts(whole, values[d], factor);
        }
        float factor = a.sinks ? join_sink(a, head, row.largest, row.total) : 1.0f;
        a.out[place * a.dim + d] = whole * factor / row.total;
    }
}

#define ATTEND_CHUNK(SUFFIX, PAIR, DIM, WARPS, KEYS)                                                                \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) attend_chunk_##SUFFIX(                              \
        const __grid_constant__ AttendArguments a) {                                                               \
        CHUNK_BODY((attend_chunk<PAIR, DIM, WARPS, KEYS>(a)));                                                    \
    }

ATTEND_CHUNK(f16_64, HalfPair, 64, 8, 64)
ATTEND_CHUNK(f16_128, HalfPair, 128, 8, 64)
ATTEND_CHUNK(f16_256, HalfPair, 256, 8, 64)
ATTEND_CHUNK(f16_256_small, HalfPair, 256, 4, 32)
ATTEND_CHUNK(bf16_64, Bf16Pair, 64, 8, 64)
ATTEND_CHUNK(bf16_128, Bf16Pair, 128, 8, 64)
ATTEND_CHUNK(bf16_256, Bf16Pair, 256, 8, 64)
ATTEND_CHUNK(bf16_256_small, Bf16Pair, 256, 4, 32)

// Attention on tensor cores over a cache of eight-bit keys and values; forms and launches as of attention.cu.
//
// The integers are exact in 16 bits. A key's scales, one for 32 of its dimensions, multiply the products of those
// dimensions in f32; a value's scales multiply the probabilities, once for every 32 dimensions, before these are split
// into two parts (of bf16, which has the scales' range). All keys are visible, and there are no sinks. Included after
// attention.cu, whose arguments it takes.
#include "cache.cuh"
#include "tensor.cuh"

// A row of the cache: DIM integers, then DIM / 32 scales in f16; copied in 17 units.
template <int DIM>
struct Q8Row {
    static constexpr uint32_t UNIT = DIM / 16, UNITS = 17, BYTES = UNIT * UNITS;
    // In shared memory rows begin 8 banks apart, so that four rows' words of a warp lie in different banks.
    static constexpr uint32_t PITCH = DIM + 32;
};

#if __CUDA_ARCH__ >= 800

template <int DIM, int KEYS, int THREADS>
__device__ inline void copy_q8_rows(uint32_t to, const uint8_t* from, size_t stride, uint32_t start, uint32_t end) {
    using Row = Q8Row<DIM>;
#pragma unroll
    for (uint32_t j = 0; j < (KEYS * Row::UNITS + THREADS - 1) / THREADS; j++) {
        uint32_t i = threadIdx.x % THREADS + j * THREADS, row = i / Row::UNITS, at = i % Row::UNITS * Row::UNIT;
        if (row >= KEYS) break;
        bool live = start + row < end;
        const uint8_t* source = live ? from + (start + row) * stride + at : from;
        if constexpr (Row::UNIT == 16) {
            copy_16(to + row * Row::PITCH + at, source, live);
        } else {
            copy_8(to + row * Row::PITCH + at, source, live);
        }
    }
}

// Two int8 of bytes `SELECT` of two words, offset by 128, as exact f16: 1024 + byte, less 1152.
template <uint32_t SELECT>
__device__ inline uint32_t halves_of(uint32_t x, uint32_t y) {
    uint32_t bits = (__byte_perm(x, y, SELECT) & 0x00ff00ffu) | 0x64006400u, less = 0x64806480u, out;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(bits), "r"(less));
    return out;
}

// Two int8 of bytes `SELECT` of two words as exact bf16: 128 + low seven bits, less 128 or, below zero, 256.
template <uint32_t SELECT>
__device__ inline uint32_t bf16_of(uint32_t x, uint32_t y) {
    uint32_t bytes = __byte_perm(x, y, SELECT), out;
    uint32_t bits = (bytes & 0x007f007fu) | 0x43004300u, less = (bytes & 0x00800080u) | 0xc300c300u;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(bits), "r"(0x3f803f80u), "r"(less));
    return out;
}

__device__ inline float scale_at(const uint8_t* row, uint32_t dim, uint32_t group) {
    return __half2float(reinterpret_cast<const __half*>(row + dim)[group]);
}

// A barrier of one half of a block of 512 threads.
__device__ inline void sync_half(uint32_t half) { asm volatile("bar.sync %0, 256;" ::"r"(half + 1) : "memory"); }

// A step. As attend_step, but for how integers become fragments: a lane has 8 consecutive dimensions of a key (so do
// the fragments of the queries), and 4 dimensions of each of the keys c, c + 4, c + 8, c + 12 of 16, c being lane % 4.
// A tile has half the bytes and needs as long from barrier to barrier, so two halves of the block take tiles in turns
// and join what they have.
//   values    warp w: 32 dimensions; where there are fewer groups of 32 than warps, of every other 16 keys
// Grid: (head blocks, key_value_heads * splits, tokens), 512 threads.
template <int DIM>
__device__ inline void attend_step_q8(const AttendArguments& a) {
    using Row = Q8Row<DIM>;
    constexpr int KEYS = STEP_KEYS, SLICES = DIM / 64, GROUPS = DIM / 32, SHARES = 8 / GROUPS;
    extern __shared__ __align__(128) uint8_t buffer[];
    __shared__ float all_dots[2][2][8][KEYS + 1], all_shrink[2][8], all_weights[2][8][KEYS + 4], ends[2][2][8];
    uint32_t side = threadIdx.x / 256, warp = threadIdx.x / 32 % 8, lane = threadIdx.x % 32;
    auto& dots = all_dots[side];
    auto& weights = all_weights[side];
    float* shrink = all_shrink[side];
    // With runs, blocks that read the same keys follow each other, so that the second-level cache has them.
    uint32_t token = a.starts ? blockIdx.x % a.tokens : blockIdx.z;
    uint32_t head = blockIdx.y / a.splits, split = blockIdx.y % a.splits;
    uint32_t group = a.query_heads / a.key_value_heads;
    uint32_t first_head = 8 * (a.starts ? blockIdx.x / a.tokens : blockIdx.x), heads = min(8u, group - first_head);
    release_next();
    uint32_t position = a.positions[token], held = a.positions[a.starts ? a.starts[token] : token];
    Part part(0, position + 1, a.splits, split);
    size_t stride = size_t(a.key_value_heads) * Row::BYTES;
    size_t base = size_t(a.sequences[token]) * a.context * stride + head * Row::BYTES;
    const uint8_t *keys = a.cache_keys + base, *values = a.cache_values + base;
    constexpr uint32_t ROWS_BYTES = KEYS * Row::PITCH, STAGE_BYTES = 2 * ROWS_BYTES;
    uint8_t* own_buffer = buffer + side * a.stages * STAGE_BYTES;
    uint32_t shared = shared_address(own_buffer);
    uint32_t tiles = (part.end - part.begin + KEYS - 1) / KEYS, ahead = a.stages - 1;
    uint32_t own_tiles = (tiles + 1 - side) / 2;
    // Tile `turn` of this half; `to` counts stages.
    auto copy_tile = [&](uint32_t turn, uint32_t to) {
        if (turn < own_tiles) {
            uint32_t start = part.begin + (2 * turn + side) * KEYS;
            copy_q8_rows<DIM, KEYS, 256>(shared + to * STAGE_BYTES, keys, stride, start, part.end);
            copy_q8_rows<DIM, KEYS, 256>(shared + to * STAGE_BYTES + ROWS_BYTES, values, stride, start, part.end);
        }
        commit_copies();
    };
    uint32_t early = 0;
    while (early < ahead && part.begin + (2 * early + side + 1) * KEYS <= held) copy_tile(early, early), early++;
    await_inputs();
    if (part.begin == part.end) return;
    while (early < ahead) copy_tile(early, early), early++;

    // Fragments of the queries, both parts, of the dimensions 8 c to 8 c + 7 of every 32.
    uint32_t q[SLICES][2][4];
    uint32_t row = lane / 4, c = lane % 4, half = warp / 4;
    const float* query = a.query + (size_t(token) * a.query_heads + head * group + first_head + row) * DIM;
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) {
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            const float* from = query + half * (DIM / 2) + slice * 32 + c * 8 + pair * 2;
            float2 v = row < heads ? *reinterpret_cast<const float2*>(from) : float2{0.0f, 0.0f};
            uint32_t* to = &q[slice][pair / 2][pair % 2 * 2];
            split_parts<HalfPair>(v.x * a.scale, v.y * a.scale, to[0], to[1]);
        }
    }
    float sums[4][4] = {}, largest = -INFINITY, total = 0.0f;
    uint32_t dims = warp % GROUPS, share = warp / GROUPS, at_stage = 0, to_stage = ahead;
    for (uint32_t turn = 0; turn < own_tiles; turn++) {
        await_stage(a.stages);
        sync_half(side);
        copy_tile(turn + ahead, to_stage);
        const uint8_t* stage = own_buffer + at_stage * STAGE_BYTES;
        at_stage = at_stage + 1 == a.stages ? 0 : at_stage + 1;
        to_stage = to_stage + 1 == a.stages ? 0 : to_stage + 1;
        uint32_t own_keys = warp % 4 * 8;
        const uint8_t* own = stage + (own_keys + row) * Row::PITCH;
        const uint8_t* pair = stage + (own_keys + 2 * c) * Row::PITCH;
        float dot[2] = {};
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++) {
            uint32_t g = half * SLICES + slice;
            uint2 k = *reinterpret_cast<const uint2*>(own + g * 32 + c * 8);
            k.x ^= 0x80808080u, k.y ^= 0x80808080u;
            float product[4] = {};
            HalfPair::multiply(product, q[slice][0], halves_of<0x4140>(k.x, 0), halves_of<0x4342>(k.x, 0));
            HalfPair::multiply(product, q[slice][1], halves_of<0x4140>(k.y, 0), halves_of<0x4342>(k.y, 0));
            dot[0] = fmaf(product[0] + product[2], scale_at(pair, DIM, g), dot[0]);
            dot[1] = fmaf(product[1] + product[3], scale_at(pair + Row::PITCH, DIM, g), dot[1]);
        }
        dots[half][row][own_keys + 2 * c] = dot[0];
        dots[half][row][own_keys + 2 * c + 1] = dot[1];
        sync_half(side);
        bool inside = part.begin + (2 * turn + side) * KEYS + lane < part.end;
        float sum = inside ? dots[0][warp][lane] + dots[1][warp][lane] : -INFINITY;
        float top = fmaxf(largest, warp_max(sum));
        float less = exp2f(largest - top), weight = exp2f(sum - top);
        largest = top;
        total = total * less + weight;
        weights[warp][lane] = weight;
        if (lane == 0) shrink[warp] = less;
        sync_half(side);
        float factor = shrink[row];
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) sums[i][j] *= factor;
        }
#pragma unroll
        for (int step = 0; step < KEYS / 16; step++) {
            if (step % SHARES != share) continue;
            const uint8_t* from = stage + ROWS_BYTES + (step * 16 + c) * Row::PITCH;
            uint32_t v[4], w[4];
            float p[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint8_t* at = from + 4 * i * Row::PITCH;
                v[i] = *reinterpret_cast<const uint32_t*>(at + dims * 32 + row * 4);
                p[i] = weights[row][step * 16 + c + 4 * i] * scale_at(at, DIM, dims);
            }
            split_parts<Bf16Pair>(p[0], p[1], w[0], w[1]);
            split_parts<Bf16Pair>(p[2], p[3], w[2], w[3]);
            Bf16Pair::multiply(sums[0], w, bf16_of<0x4400>(v[0], v[1]), bf16_of<0x4400>(v[2], v[3]));
            Bf16Pair::multiply(sums[1], w, bf16_of<0x5511>(v[0], v[1]), bf16_of<0x5511>(v[2], v[3]));
            Bf16Pair::multiply(sums[2], w, bf16_of<0x6622>(v[0], v[1]), bf16_of<0x6622>(v[2], v[3]));
            Bf16Pair::multiply(sums[3], w, bf16_of<0x7733>(v[0], v[1]), bf16_of<0x7733>(v[2], v[3]));
        }
    }
    // Column 2 c + j of product i is dimension 4 (2 c + j) + i of the 32.
    float joined[2][4];
#pragma unroll
    for (int i = 0; i < 4; i++) joined[0][i] = sums[i][0] + sums[i][2], joined[1][i] = sums[i][1] + sums[i][3];
    total = warp_sum(total);
    if (lane == 0) ends[side][0][warp] = largest, ends[side][1][warp] = total;
    // Both halves have done with their tiles: what they have passes through that memory.
    __syncthreads();
    float* other = reinterpret_cast<float*>(buffer);
    if (side != 0 || share != 0) {
#pragma unroll
        for (int i = 0; i < 8; i++) other[((side * 8 + warp) * 8 + i) * 32 + lane] = joined[i / 4][i % 4];
    }
    __syncthreads();
    if (side != 0) return;
    size_t place = size_t(token) * a.query_heads + head * group + first_head;
    float* partial = a.partial + (place * a.splits + split) * (DIM + 2);
    size_t pitch = size_t(a.splits) * (DIM + 2);
    if (row < heads && share == 0) {
        float top = fmaxf(ends[0][0][row], ends[1][0][row]);
        float factors[2] = {exp2f(ends[0][0][row] - top), exp2f(ends[1][0][row] - top)};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float halves[2] = {joined[i / 4][i % 4], other[((8 + warp) * 8 + i) * 32 + lane]};
#pragma unroll
            for (int s = 0; s < 2; s++) {
                if (SHARES > 1) halves[s] += other[((s * 8 + GROUPS + warp) * 8 + i) * 32 + lane];
            }
            partial[row * pitch + dims * 32 + c * 8 + i] = fmaf(halves[0], factors[0], halves[1] * factors[1]);
        }
    }
    if (warp < heads && lane == 0) {
        float top = fmaxf(largest, ends[1][0][warp]);
        partial[warp * pitch + DIM] = top;
        float second = ends[1][1][warp] * exp2f(ends[1][0][warp] - top);
        partial[warp * pitch + DIM + 1] = fmaf(total, exp2f(largest - top), second);
    }
}

// A tile of integers as 16-bit values in rows of DIM for ldmatrix, and its scales in f32, `[DIM / 32][KEYS]`.
template <bool BF16, int DIM, int KEYS, int THREADS>
__device__ inline void widen(const uint8_t* raw, uint8_t* to, float* scales) {
#pragma unroll
    for (uint32_t j = 0; j < KEYS * DIM / 8 / THREADS; j++) {
        uint32_t i = threadIdx.x + j * THREADS, row = i / (DIM / 8), unit = i % (DIM / 8);
        uint2 v = *reinterpret_cast<const uint2*>(raw + row * Q8Row<DIM>::PITCH + unit * 8);
        uint4 wide;
        if constexpr (BF16) {
            wide = {bf16_of<0x1100>(v.x, 0), bf16_of<0x3322>(v.x, 0), bf16_of<0x1100>(v.y, 0), bf16_of<0x3322>(v.y, 0)};
        } else {
            v.x ^= 0x80808080u, v.y ^= 0x80808080u;
            wide = {halves_of<0x1100>(v.x, 0), halves_of<0x3322>(v.x, 0), halves_of<0x1100>(v.y, 0),
                    halves_of<0x3322>(v.y, 0)};
        }
        *reinterpret_cast<uint4*>(to + unit_offset<DIM>(row, unit)) = wide;
    }
    for (uint32_t i = threadIdx.x; i < KEYS * (DIM / 32); i += THREADS) {
        uint32_t row = i % KEYS, group = i / KEYS;
        scales[i] = scale_at(raw + row * Q8Row<DIM>::PITCH, DIM, group);
    }
}

// A chunk of a prompt. As attend_chunk; a tile of integers is widened by the whole block, while the next is copied.
// Grid: (groups of tokens, key_value_heads), 32 * WARPS threads; shared: queries 64 WARPS DIM, tiles 4 KEYS DIM, raw
// tiles 2 KEYS (DIM + 32), scales KEYS DIM / 4 bytes.
template <int DIM, int WARPS, int KEYS>
__device__ inline void attend_chunk_q8(const AttendArguments& a) {
    using Row = Q8Row<DIM>;
    constexpr int ROWS = 16 * WARPS, THREADS = 32 * WARPS, TILES = KEYS / 8, GROUPS = DIM / 32;
    constexpr uint32_t PART_BYTES = ROWS * DIM * 2, TILE_BYTES = KEYS * DIM * 2, RAW_BYTES = KEYS * Row::PITCH;
    extern __shared__ __align__(128) uint8_t buffer[];
    uint8_t *key_tile = buffer + 2 * PART_BYTES, *value_tile = key_tile + TILE_BYTES;
    uint8_t *raw_keys = value_tile + TILE_BYTES, *raw_values = raw_keys + RAW_BYTES;
    float *key_scales = reinterpret_cast<float*>(raw_values + RAW_BYTES), *value_scales = key_scales + KEYS * GROUPS;
    uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    uint32_t group = a.query_heads / a.key_value_heads, head = blockIdx.y;
    uint32_t first_token = (gridDim.x - 1 - blockIdx.x) * a.tokens_per_block;
    uint32_t tokens = min(a.tokens_per_block, a.tokens - first_token), rows = tokens * group;
    await_inputs();
    release_next();
    uint32_t shortest = a.positions[first_token] + 1, longest = a.positions[first_token + tokens - 1] + 1;
    size_t stride = size_t(a.key_value_heads) * Row::BYTES;
    size_t base = size_t(a.sequences[first_token]) * a.context * stride + head * Row::BYTES;
    auto copy_tile = [&](uint32_t start) {
        copy_q8_rows<DIM, KEYS, THREADS>(shared_address(raw_keys), a.cache_keys + base, stride, start, longest);
        copy_q8_rows<DIM, KEYS, THREADS>(shared_address(raw_values), a.cache_values + base, stride, start, longest);
        commit_copies();
    };
    copy_tile(0);
    uint32_t high = shared_address(buffer), low = high + PART_BYTES;
    for (uint32_t i = thread; i < ROWS * (DIM / 8); i += THREADS) {
        uint32_t r = i / (DIM / 8), unit = i % (DIM / 8);
        bool live = r < rows;
        const float* from = a.query + (size_t(first_token + (live ? r / group : 0)) * a.query_heads + head * group +
                                       (live ? r % group : 0)) * DIM + unit * 8;
        uint32_t h[4], l[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float2 v = live ? *reinterpret_cast<const float2*>(from + 2 * j) : float2{0.0f, 0.0f};
            split_parts<HalfPair>(v.x * a.scale, v.y * a.scale, h[j], l[j]);
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
    float sums[DIM / 8][4] = {}, largest[2] = {-INFINITY, -INFINITY}, total[2] = {};
    uint32_t c = lane % 4 * 2;
    for (uint32_t start = 0; start < longest; start += KEYS) {
        await_copies<0>();
        __syncthreads();
        widen<false, DIM, KEYS, THREADS>(raw_keys, key_tile, key_scales);
        widen<true, DIM, KEYS, THREADS>(raw_values, value_tile, value_scales);
        __syncthreads();
        if (start + KEYS < longest) copy_tile(start + KEYS);
        float dots[TILES][4] = {};
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            float products[TILES][4] = {};
#pragma unroll
            for (int step = 2 * g; step < 2 * g + 2; step++) {
                uint32_t q[2][4];
                uint32_t at = unit_offset<DIM>(warp * 16 + lane % 16, step * 2 + lane / 16);
                load_matrices(q[0], high + at);
                load_matrices(q[1], low + at);
#pragma unroll
                for (int i = 0; i < TILES; i += 2) {
                    uint32_t k[4], key = i * 8 + lane % 8 + lane / 16 * 8;
                    load_matrices(k, shared_address(key_tile) + unit_offset<DIM>(key, step * 2 + lane / 8 % 2));
                    HalfPair::multiply(products[i], q[0], k[0], k[1]);
                    HalfPair::multiply(products[i + 1], q[0], k[2], k[3]);
                    HalfPair::multiply(products[i], q[1], k[0], k[1]);
                    HalfPair::multiply(products[i + 1], q[1], k[2], k[3]);
                }
            }
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                float2 scale = *reinterpret_cast<const float2*>(key_scales + g * KEYS + i * 8 + c);
#pragma unroll
                for (int j = 0; j < 4; j++) dots[i][j] = fmaf(products[i][j], j % 2 ? scale.y : scale.x, dots[i][j]);
            }
        }
        if (start + KEYS > shortest) {
#pragma unroll
            for (int i = 0; i < TILES; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    if (start + i * 8 + c + j % 2 >= length[j / 2]) dots[i][j] = -INFINITY;
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
                for (int k = 0; k < 2; k++) {
                    float weight = exp2f(dots[i][2 * j + k] - reference);
                    dots[i][2 * j + k] = weight;
                    total[j] += weight;
                }
            }
        }
        if (!__all_sync(FULL, less[0] == 1.0f && less[1] == 1.0f)) {
#pragma unroll
            for (int i = 0; i < DIM / 8; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) sums[i][j] *= less[j / 2];
            }
        }
#pragma unroll
        for (int step = 0; step < KEYS / 16; step++) {
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                uint32_t w[2][4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    int tile = 2 * step + j / 2;
                    const float* pair = &dots[tile][j % 2 * 2];
                    float2 scale = *reinterpret_cast<const float2*>(value_scales + g * KEYS + tile * 8 + c);
                    split_parts<Bf16Pair>(pair[0] * scale.x, pair[1] * scale.y, w[0][j], w[1][j]);
                }
#pragma unroll
                for (int i = 4 * g; i < 4 * g + 4; i += 2) {
                    uint32_t v[4], at = unit_offset<DIM>(step * 16 + lane % 16, i + lane / 16);
                    load_matrices_transposed(v, shared_address(value_tile) + at);
                    Bf16Pair::multiply(sums[i], w[0], v[0], v[1]);
                    Bf16Pair::multiply(sums[i + 1], w[0], v[2], v[3]);
                    Bf16Pair::multiply(sums[i], w[1], v[0], v[1]);
                    Bf16Pair::multiply(sums[i + 1], w[1], v[2], v[3]);
                }
            }
        }
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        total[j] += __shfl_xor_sync(FULL, total[j], 1);
        total[j] += __shfl_xor_sync(FULL, total[j], 2);
        uint32_t r = warp * 16 + lane / 4 + 8 * j;
        if (r >= rows) continue;
        float* to = a.out + (size_t(first_token + r / group) * a.query_heads + head * group + r % group) * DIM;
#pragma unroll
        for (int i = 0; i < DIM / 8; i++) {
            float2 v = {sums[i][2 * j] / total[j], sums[i][2 * j + 1] / total[j]};
            *reinterpret_cast<float2*>(to + i * 8 + c) = v;
        }
    }
}

#endif

extern "C" __global__ void __launch_bounds__(512) attend_step_q8_128(const __grid_constant__ AttendArguments a) {
    ATTEND_BODY((attend_step_q8<128>(a)));
}
extern "C" __global__ void __launch_bounds__(512) attend_step_q8_256(const __grid_constant__ AttendArguments a) {
    ATTEND_BODY((attend_step_q8<256>(a)));
}
extern "C" __global__ void __launch_bounds__(256, 1) attend_chunk_q8_128(const __grid_constant__ AttendArguments a) {
    ATTEND_BODY((attend_chunk_q8<128, 8, 32>(a)));
}
extern "C" __global__ void __launch_bounds__(256, 1) attend_chunk_q8_256(const __grid_constant__ AttendArguments a) {
    ATTEND_BODY((attend_chunk_q8<256, 8, 32>(a)));
}
extern "C" __global__ void __launch_bounds__(128, 1)
attend_chunk_q8_256_small(const __grid_constant__ AttendArguments a) {
    ATTEND_BODY((attend_chunk_q8<256, 4, 32>(a)));
}

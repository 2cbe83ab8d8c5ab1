// Affine matrices times few tokens of a prompt, to the bit as `tile_split`. There a block walks over the columns of its
// rows one stage of 64 after another, for up to 128 tokens; with few tokens it has little to multiply in each, and most
// of the time is the wait for the next.
//
// A warp unpacks weights once for its tokens. Rows are the sixteens of a tensor core here and tokens its eights, so
// that eight tokens need no padding. There are two forms: `few_rows`, where a warp walks over all columns of sixteen
// rows or of 32, a chunk in shared memory while the next one arrives; and `few_columns` for matrices of few rows, where
// the warps of a block take stages of their own and read them into registers. Products of stages do not depend on each
// other; the sums over the stages do, and are added up in the order of columns. Matrices of one input are jobs of one
// launch.

// A matrix of a launch.
struct TileFewJob {
    Matrix matrix;         // grouped: the shape
    float* out;            // [tokens or pairs, rows]
    uint32_t first_block;  // of blockIdx.x
    uint32_t piece;        // grouped: 0 gate, 1 up, 2 down
};

struct TileFewArguments {
    const uint8_t* parts;        // of split_tokens
    const float* sums;
    const uint32_t* gather;      // optional: row of the parts for each pair
    const uint64_t* addresses;   // grouped: record of each expert
    const uint32_t* places;      // grouped: [experts][9]
    const uint32_t* tiles;       // grouped: [.., 3]: expert, first pair, pairs
    const uint32_t* tile_count;  // grouped
    TileFewJob job[TILE_FEW_JOBS];
    uint32_t jobs;
    uint32_t tokens;             // not grouped
    uint32_t add;
    uint32_t grouped;
};

#if __CUDA_ARCH__ >= 800
#define FEW_BODY(CALL) CALL
#else
#define FEW_BODY(CALL) __trap()
#endif

// The matrix and the tokens of a block.
struct FewTile {
    Matrix matrix;
    uint32_t first, count;  // tokens or pairs
};

// What a block computes; no tokens for one past the last tile.
__device__ inline FewTile few_tile(const TileFewArguments& a, const TileFewJob& job, uint32_t tokens) {
    FewTile tile = {job.matrix, blockIdx.y * tokens, 0};
    if (!a.grouped) {
        tile.count = min(tokens, a.tokens - tile.first);
        return tile;
    }
    await_inputs();
    // Read together with the number of tiles, which says whether it is one.
    const uint32_t* entry = a.tiles + 3 * size_t(blockIdx.y);
    uint32_t expert = entry[0], first = entry[1], count = entry[2];
    if (blockIdx.y >= *a.tile_count) return tile;
    const uint32_t* place = a.places + size_t(expert) * 9 + job.piece * 3;
    const uint8_t* record = reinterpret_cast<const uint8_t*>(a.addresses[expert]);
    tile.matrix.weight = record + place[0], tile.matrix.scales = record + place[1];
    tile.matrix.biases = record + place[2];
    tile.first = first, tile.count = count;
    return tile;
}

#if __CUDA_ARCH__ >= 800

// Codes of a lane in a stage of a row: halves of the columns.
template <int BITS>
__device__ inline void load_codes(Eight<BITS> (&codes)[2], const uint8_t* row, uint32_t stage) {
    constexpr uint32_t ROW_BYTES = SPLIT_COLUMNS * BITS / 8;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint8_t* from = row + size_t(stage) * ROW_BYTES + half * (ROW_BYTES / 2);
        if constexpr (BITS == 8) {
            const uint32_t* words = reinterpret_cast<const uint32_t*>(from);
            codes[half].words = {__ldg(words), __ldg(words + 1)};
        } else if constexpr (BITS == 4) {
            codes[half].word = __ldg(reinterpret_cast<const uint32_t*>(from));
        } else {
            codes[half].word = __ldg(reinterpret_cast<const uint16_t*>(from));
        }
    }
}

// Products of a stage of sixteen rows with EIGHTS eights of tokens. `parts`: shared address of the row of the lane's
// token in the stage; codes of rows g and g + 8. FINE: halves of the columns apart.
template <int BITS, uint32_t EIGHTS, bool FINE>
__device__ inline void multiply_stage(
    float (&c)[FINE ? 2 : 1][EIGHTS][4], const Eight<BITS> (&upper)[2], const Eight<BITS> (&lower)[2],
    const uint32_t (&parts)[EIGHTS], uint32_t lane) {
    uint32_t part[EIGHTS][2][4];
#pragma unroll
    for (int s = 0; s < 4; s++) {
        if (s % 2 == 0) {
            // Of this step and of the next one.
#pragma unroll
            for (uint32_t e = 0; e < EIGHTS; e++) {
                uint32_t at = parts[e] + ((2 * s + lane / 8) ^ (lane & 7)) * 16;
                load_matrices(part[e][0], at);
                load_matrices(part[e][1], at + 128);
            }
        }
        uint32_t a[4];
        a[0] = upper[s / 2].pair(2 * (s % 2)), a[1] = lower[s / 2].pair(2 * (s % 2));
        a[2] = upper[s / 2].pair(2 * (s % 2) + 1), a[3] = lower[s / 2].pair(2 * (s % 2) + 1);
#pragma unroll
        for (int p = 0; p < 2; p++) {
#pragma unroll
            for (uint32_t e = 0; e < EIGHTS; e++) {
                Bf16Pair::multiply(c[FINE ? s / 2 : 0][e], a, part[e][p][2 * (s % 2)], part[e][p][2 * (s % 2) + 1]);
            }
        }
    }
}

// Scales and biases of groups, of two bytes: they are asked for as bits, so that a warp waits at their use.
struct FewScales {
    const uint16_t* scales;
    const uint16_t* biases;
    float factor;
    bool bf16;

    __device__ inline FewScales(const Matrix& m)
        : scales(reinterpret_cast<const uint16_t*>(m.scales)), biases(reinterpret_cast<const uint16_t*>(m.biases)),
          factor(bias_factor(m.scale_kind)), bf16((m.scale_kind & ((1u << SYMMETRIC_SHIFT) - 1)) == BF16) {}

    __device__ inline uint2 load(uint32_t group) const { return {__ldg(scales + group), __ldg(biases + group)}; }
    __device__ inline float number(uint32_t bits) const {
        float half = __half2float(__ushort_as_half((unsigned short)bits));
        return bf16 ? __uint_as_float(bits << 16) : half;
    }
    __device__ inline float2 value(uint2 bits) const { return {number(bits.x), factor * number(bits.y)}; }
};

#endif
// Rows of a block of `few_columns`.
constexpr uint32_t FEW_ROWS = 32;
// Floats from one token's products to the next one's: lanes that store at once meet different banks.
constexpr uint32_t FEW_PITCH = FEW_ROWS + 4;

// Shared memory of a block: stages of tokens' parts of each warp, and for two rounds the products of its stages with
// what they are scaled and shifted by. UNITS: of a stage's columns, those that share scales.
template <uint32_t WARPS, uint32_t UNITS, uint32_t TOKENS>
struct FewShared {
    uint8_t parts[2][WARPS][TOKENS * SPLIT_BYTES];
    float products[2][WARPS * UNITS][TOKENS][FEW_PITCH];
    float2 factors[2][WARPS * UNITS][FEW_ROWS];
    float inputs[2][WARPS * UNITS][TOKENS];
};

#if __CUDA_ARCH__ >= 800

// EIGHTS: eights of tokens of a tile, one or two. FINE: groups of 32 columns.
// Grid: (blocks of FEW_ROWS rows of all jobs, tiles of 8 EIGHTS tokens), 32 WARPS threads.
template <int BITS, uint32_t WARPS, uint32_t EIGHTS, bool FINE>
__device__ inline void few_columns(const TileFewArguments& a) {
    constexpr uint32_t TOKENS = 8 * EIGHTS, UNITS = FINE ? 2 : 1, OUTPUTS = FEW_ROWS * TOKENS / (32 * WARPS);
    extern __shared__ __align__(128) uint8_t stage_memory[];
    auto& own = *reinterpret_cast<FewShared<WARPS, UNITS, TOKENS>*>(stage_memory);
    uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    const TileFewJob& job = a.job[block_job(a)];
    FewTile tile = few_tile(a, job, TOKENS);
    if (tile.count == 0) return;
    const Matrix& m = tile.matrix;
    uint32_t first_row = (blockIdx.x - job.first_block) * FEW_ROWS, stages = m.columns / SPLIT_COLUMNS;
    uint32_t rounds = (stages + WARPS - 1) / WARPS;

    // Weights are no kernel's output: the first are on their way before the tokens are there.
    const uint8_t* row[4];
#pragma unroll
    for (int n = 0; n < 4; n++) {
        row[n] = m.weight + size_t(min(first_row + 8 * n + g, m.rows - 1)) * stages * (SPLIT_COLUMNS * BITS / 8);
        row[n] += t * BITS;
    }
    uint32_t group_shift = 31 - __clz(m.group), scale_row = min(first_row + lane, m.rows - 1);
    FewScales scales(m);
    Eight<BITS> codes[4][2] = {};
    uint2 factor[UNITS] = {};
    auto fetch = [&](uint32_t stage) {
        if (stage >= stages) return;
#pragma unroll
        for (int n = 0; n < 4; n++) load_codes<BITS>(codes[n], row[n], stage);
#pragma unroll
        for (uint32_t unit = 0; unit < UNITS; unit++) {
            factor[unit] = scales.load((scale_row * m.columns + stage * SPLIT_COLUMNS + unit * 32) >> group_shift);
        }
    };
    fetch(warp);
    if (!a.grouped) await_inputs();

    // Tokens' parts in units of 16 bytes, as `tile_split` has them.
    uint32_t unit = lane % 16, part_at[TOKENS / 2];
    auto source = [&](uint32_t token) {
        uint32_t pair = tile.first + min(token, tile.count - 1);
        return a.gather ? a.gather[pair] : pair;
    };
#pragma unroll
    for (uint32_t j = 0; j < TOKENS / 2; j++) part_at[j] = source(lane / 16 + 2 * j) * stages * 16 + unit;
    uint32_t parts = shared_address(own.parts[0][warp]);
    auto copy_parts = [&](uint32_t round) {
        uint32_t stage = round * WARPS + warp;
        if (stage < stages) {
            const uint8_t* from = a.parts + size_t(stage) * SPLIT_BYTES;
            uint32_t to = parts + round % 2 * uint32_t(sizeof(own.parts[0])) + unit / 8 * 128;
#pragma unroll
            for (uint32_t j = 0; j < TOKENS / 2; j++) {
                uint32_t token = lane / 16 + 2 * j;
                if (2 * j >= tile.count) break;
                copy_16(to + token * SPLIT_BYTES + ((unit ^ token) & 7) * 16, from + size_t(part_at[j]) * 16, true);
            }
        }
        commit_copies();
    };
    copy_parts(0);
    copy_parts(1);
    uint32_t sums_at = source(lane % TOKENS) * stages * 2;
    float2 input = {};
    auto fetch_sums = [&](uint32_t stage) {
        if (stage < stages) input = *reinterpret_cast<const float2*>(a.sums + sums_at + stage * 2);
    };
    fetch_sums(warp);

    // The token whose parts a lane reads. Columns of tokens that are not there are computed from others' and dropped.
    uint32_t own_token[EIGHTS];
#pragma unroll
    for (uint32_t e = 0; e < EIGHTS; e++) own_token[e] = parts + min(8 * e + (lane & 7), tile.count - 1) * SPLIT_BYTES;
    float result[OUTPUTS] = {};
    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t side = round % 2, stage = round * WARPS + warp;
        await_copies<1>();
        __syncwarp();
        float c[2][UNITS][EIGHTS][4] = {};
        if (stage < stages) {
            uint32_t from[EIGHTS];
#pragma unroll
            for (uint32_t e = 0; e < EIGHTS; e++) from[e] = own_token[e] + side * uint32_t(sizeof(own.parts[0]));
#pragma unroll
            for (int n = 0; n < 2; n++) {
                multiply_stage<BITS, EIGHTS, FINE>(c[n], codes[2 * n], codes[2 * n + 1], from, lane);
            }
        }
        // What was multiplied with is free: for the next but one round's parts, the next round's weights.
        __syncwarp();
        copy_parts(round + 2);
#pragma unroll
        for (uint32_t u = 0; u < UNITS; u++) {
            uint32_t at = warp * UNITS + u;
            own.factors[side][at][lane] = scales.value(factor[u]);
            if (lane < TOKENS) own.inputs[side][at][lane] = FINE ? (u ? input.y : input.x) : input.x + input.y;
#pragma unroll
            for (uint32_t i = 0; i < 8 * EIGHTS; i++) {
                uint32_t n = i / 4 / EIGHTS, e = i / 4 % EIGHTS, k = i % 4;
                own.products[side][at][8 * e + 2 * t + k % 2][16 * n + g + k / 2 * 8] = c[n][u][e][k];
            }
        }
        fetch(stage + WARPS);
        fetch_sums(stage + WARPS);
        // One barrier a round: what is written two rounds later is read before the next one.
        __syncthreads();
        uint32_t units = min(WARPS, stages - round * WARPS) * UNITS;
#pragma unroll
        for (uint32_t u = 0; u < WARPS * UNITS; u++) {
            if (u >= units) break;
            float2 f = own.factors[side][u][lane];
#pragma unroll
            for (uint32_t j = 0; j < OUTPUTS; j++) {
                uint32_t token = warp + WARPS * j;
                float shift = fmaf(f.y, own.inputs[side][u][token], result[j]);
                result[j] = fmaf(f.x, own.products[side][u][token][lane], shift);
            }
        }
    }
    uint32_t out_row = first_row + lane;
    if (out_row >= m.rows) return;
#pragma unroll
    for (uint32_t j = 0; j < OUTPUTS; j++) {
        uint32_t token = warp + WARPS * j;
        if (token >= tile.count) continue;
        float* to = job.out + size_t(tile.first + token) * m.rows + out_row;
        *to = a.add ? *to + result[j] : result[j];
    }
}

#endif

// A chunk of columns in the shared memory of a block of `few_rows`, of WARPS times SIXTEENS sixteens of rows and EIGHTS
// eights of tokens. A row of weights is padded so that eight rows' codes of one column lie in different banks.
template <int BITS, uint32_t WARPS, uint32_t SIXTEENS, uint32_t EIGHTS, uint32_t STAGES>
struct FewChunk {
    static constexpr uint32_t ROW_BYTES = STAGES * SPLIT_COLUMNS * BITS / 8, PITCH = ROW_BYTES + (BITS == 8 ? 32 : 16);
    uint8_t weights[WARPS][16 * SIXTEENS * PITCH];
    uint8_t parts[STAGES][8 * EIGHTS * SPLIT_BYTES];
    float2 sums[STAGES][8 * EIGHTS];
};

// Two chunks, one multiplied while the other arrives; and a chunk's scales and biases of each row of a warp, twice.
template <int BITS, uint32_t WARPS, uint32_t SIXTEENS, uint32_t EIGHTS, uint32_t STAGES, bool FINE>
struct FewChunks {
    FewChunk<BITS, WARPS, SIXTEENS, EIGHTS, STAGES> chunk[2];
    float2 factors[2][WARPS][STAGES * (FINE ? 2 : 1)][16 * SIXTEENS];
};

#if __CUDA_ARCH__ >= 800

// STAGES: stages of a chunk. GROUP: those whose products are formed together, so that none waits for another's.
// Grid: (blocks of 16 SIXTEENS WARPS rows of all jobs, tiles of 8 EIGHTS tokens), 32 WARPS threads, WARPS a multiple
// of four.
template <int BITS, uint32_t WARPS, uint32_t SIXTEENS, uint32_t EIGHTS, uint32_t STAGES, uint32_t GROUP, bool FINE>
__device__ inline void few_rows(const TileFewArguments& a) {
    using Chunk = FewChunk<BITS, WARPS, SIXTEENS, EIGHTS, STAGES>;
    constexpr uint32_t TOKENS = 8 * EIGHTS, ROWS = 16 * SIXTEENS, UNITS = FINE ? 2 : 1, PITCH = Chunk::PITCH;
    constexpr uint32_t STAGE_BYTES = SPLIT_COLUMNS * BITS / 8, SIDE = sizeof(Chunk);
    extern __shared__ __align__(128) uint8_t stage_memory[];
    auto& own = *reinterpret_cast<FewChunks<BITS, WARPS, SIXTEENS, EIGHTS, STAGES, FINE>*>(stage_memory);
    uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    const TileFewJob& job = a.job[block_job(a)];
    FewTile tile = few_tile(a, job, TOKENS);
    if (tile.count == 0) return;
    const Matrix& m = tile.matrix;
    uint32_t first_row = ((blockIdx.x - job.first_block) * WARPS + warp) * ROWS, stages = m.columns / SPLIT_COLUMNS;

    // A warp copies its own rows, in units of 16 bytes where they are aligned to that.
    constexpr uint32_t ROW_UNITS = Chunk::ROW_BYTES / 16, ROWS_AT_ONCE = 32 / ROW_UNITS, COPIES = ROWS / ROWS_AT_ONCE;
    bool wide = (reinterpret_cast<uintptr_t>(m.weight) & 15) == 0;
    uint32_t own_unit = lane % ROW_UNITS, own_row = lane / ROW_UNITS, weight_at[COPIES];
#pragma unroll
    for (uint32_t j = 0; j < COPIES; j++) {
        uint32_t row = min(first_row + own_row + j * ROWS_AT_ONCE, m.rows - 1);
        weight_at[j] = row * stages * STAGE_BYTES + own_unit * 16;
    }
    const uint8_t* weights = m.weight;
    uint32_t weights_to = shared_address(own.chunk[0].weights[warp]) + own_row * PITCH + own_unit * 16;
    uint32_t left = stages, to_side = 0; // stages that were not asked for, and where the next ones go
    auto copy_weights = [&](uint32_t count) {
        if (own_unit * 16 >= count * STAGE_BYTES) return;
#pragma unroll
        for (uint32_t j = 0; j < COPIES; j++) {
            uint32_t to = weights_to + to_side + j * ROWS_AT_ONCE * PITCH;
            const uint8_t* from = weights + weight_at[j];
            if (wide) {
                copy_16(to, from, true);
            } else {
                for (uint32_t i = 0; i < 4; i++) copy_4(to + 4 * i, from + 4 * i, true);
            }
        }
    };
    // Weights are no kernel's output: the first are on their way before the tokens are there.
    copy_weights(min(left, STAGES));
    if (!a.grouped) await_inputs();
    // Half a warp copies a token's stage; eights of tokens are permuted alike.
    constexpr uint32_t HALVES = 2 * WARPS, TOKENS_AT_ONCE = HALVES < TOKENS ? HALVES : TOKENS;
    constexpr uint32_t STAGES_AT_ONCE = HALVES / TOKENS_AT_ONCE, TOKEN_COPIES = TOKENS / TOKENS_AT_ONCE;
    uint32_t unit = thread % 16, own_token = thread / 16 % TOKENS_AT_ONCE, own_stage = thread / 16 / TOKENS_AT_ONCE;
    auto source = [&](uint32_t token) {
        uint32_t pair = tile.first + min(token, tile.count - 1);
        return a.gather ? a.gather[pair] : pair;
    };
    const uint8_t* parts[TOKEN_COPIES];
#pragma unroll
    for (uint32_t k = 0; k < TOKEN_COPIES; k++) {
        uint32_t token = own_token + k * TOKENS_AT_ONCE;
        parts[k] = a.parts + (size_t(source(token)) * stages + own_stage) * SPLIT_BYTES + unit * 16;
    }
    uint32_t parts_at = shared_address(own.chunk[0].parts), parts_to = parts_at + own_stage * TOKENS * SPLIT_BYTES;
    parts_to += own_token * SPLIT_BYTES + unit / 8 * 128 + ((unit ^ own_token) & 7) * 16;
    const float* sums = a.sums + (size_t(source(thread % TOKENS)) * stages + thread / TOKENS) * 2;
    uint32_t sums_to = shared_address(own.chunk[0].sums) + thread * 8;
    auto copy_tokens = [&](uint32_t count) {
#pragma unroll
        for (uint32_t k = 0; k < TOKEN_COPIES; k++) {
            if (own_token + k * TOKENS_AT_ONCE >= tile.count) break;
#pragma unroll
            for (uint32_t i = 0; i < STAGES / STAGES_AT_ONCE; i++) {
                if (own_stage + i * STAGES_AT_ONCE >= count) break;
                uint32_t to = parts_to + to_side + (i * STAGES_AT_ONCE * TOKENS + k * TOKENS_AT_ONCE) * SPLIT_BYTES;
                copy_16(to, parts[k] + i * STAGES_AT_ONCE * SPLIT_BYTES, true);
            }
            parts[k] += STAGES * SPLIT_BYTES;
        }
        if (thread < STAGES * TOKENS && thread / TOKENS < count) copy_8(sums_to + to_side, sums, true);
        sums += STAGES * 2, weights += STAGES * STAGE_BYTES, left -= count, to_side = SIDE - to_side;
        commit_copies();
    };
    copy_tokens(min(left, STAGES));

    // A lane brings a row's scales of a chunk, or a part of them, a chunk ahead.
    constexpr uint32_t LANES = 32 / ROWS, SCALES = STAGES * UNITS / LANES, UNIT_COLUMNS = SPLIT_COLUMNS / UNITS;
    uint32_t group_shift = 31 - __clz(m.group), scale_column = lane % LANES * SCALES * UNIT_COLUMNS;
    uint32_t scale_row = min(first_row + lane / LANES, m.rows - 1) * m.columns;
    FewScales scales(m);
    uint2 factor[SCALES] = {};
    auto fetch_factors = [&]() {
#pragma unroll
        for (uint32_t i = 0; i < SCALES; i++) {
            uint32_t column = scale_column + i * UNIT_COLUMNS;
            if (column < m.columns) factor[i] = scales.load((scale_row + column) >> group_shift);
        }
        scale_column += STAGES * SPLIT_COLUMNS;
    };
    auto store_factors = [&](uint32_t side) {
#pragma unroll
        for (uint32_t i = 0; i < SCALES; i++) {
            own.factors[side][warp][lane % LANES * SCALES + i][lane / LANES] = scales.value(factor[i]);
        }
    };
    fetch_factors();
    store_factors(0);
    fetch_factors();

    // Where a lane reads parts of its token, of either half of the columns. Columns of tokens that are not there are
    // computed from others' and dropped.
    uint32_t part_at[2][EIGHTS];
#pragma unroll
    for (uint32_t e = 0; e < EIGHTS; e++) {
        uint32_t token = min(8 * e + (lane & 7), tile.count - 1);
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            part_at[half][e] = parts_at + token * SPLIT_BYTES + ((4 * half + lane / 8) ^ (lane & 7)) * 16;
        }
    }
    float result[SIXTEENS][EIGHTS][4] = {};
    for (uint32_t first = 0, side = 0; first < stages; first += STAGES, side ^= 1) {
        await_copies<0>();
        __syncthreads();
        uint32_t count = min(left, STAGES);
        copy_weights(count);
        copy_tokens(count);
        store_factors(side ^ 1);
        fetch_factors();
        const auto& chunk = own.chunk[side];
        const uint8_t* codes = chunk.weights[warp] + g * PITCH + t * BITS;
#pragma unroll
        for (uint32_t group = 0; group < STAGES; group += GROUP) {
            if (first + group >= stages) break;
            float c[GROUP][SIXTEENS][UNITS][EIGHTS][4] = {};
#pragma unroll
            for (uint32_t i = 0; i < GROUP; i++) {
                uint32_t stage = group + i;
                Eight<BITS> row[2 * SIXTEENS][2];
#pragma unroll
                for (uint32_t n = 0; n < 2 * SIXTEENS; n++) {
#pragma unroll
                    for (uint32_t half = 0; half < 2; half++) {
                        const uint8_t* at = codes + n * 8 * PITCH + (2 * stage + half) * (STAGE_BYTES / 2);
                        row[n][half] = *reinterpret_cast<const Eight<BITS>*>(at);
                    }
                }
#pragma unroll
                for (uint32_t half = 0; half < 2; half++) {
                    uint32_t part[EIGHTS][2][4];
#pragma unroll
                    for (uint32_t e = 0; e < EIGHTS; e++) {
                        uint32_t at = part_at[half][e] + side * SIDE + stage * TOKENS * SPLIT_BYTES;
                        load_matrices(part[e][0], at);
                        load_matrices(part[e][1], at + 128);
                    }
#pragma unroll
                    for (int s = 0; s < 2; s++) {
#pragma unroll
                        for (uint32_t x = 0; x < SIXTEENS; x++) {
                            const auto &upper = row[2 * x][half], &lower = row[2 * x + 1][half];
                            uint32_t w[4] = {upper.pair(2 * s), lower.pair(2 * s), upper.pair(2 * s + 1),
                                             lower.pair(2 * s + 1)};
#pragma unroll
                            for (int p = 0; p < 2; p++) {
#pragma unroll
                                for (uint32_t e = 0; e < EIGHTS; e++) {
                                    auto& sum = c[i][x][FINE ? half : 0][e];
                                    Bf16Pair::multiply(sum, w, part[e][p][2 * s], part[e][p][2 * s + 1]);
                                }
                            }
                        }
                    }
                }
            }
#pragma unroll
            for (uint32_t i = 0; i < GROUP * UNITS; i++) {
                uint32_t stage = group + i / UNITS, u = i % UNITS;
                if (first + stage >= stages) break;
                const float2* factors = own.factors[side][warp][stage * UNITS + u] + g;
#pragma unroll
                for (uint32_t e = 0; e < EIGHTS; e++) {
                    float4 sum = *reinterpret_cast<const float4*>(&chunk.sums[stage][8 * e + 2 * t]);
                    float x0 = FINE ? (u ? sum.y : sum.x) : sum.x + sum.y;
                    float x1 = FINE ? (u ? sum.w : sum.z) : sum.z + sum.w;
#pragma unroll
                    for (uint32_t x = 0; x < SIXTEENS; x++) {
                        float2 upper = factors[16 * x], lower = factors[16 * x + 8];
                        float (&r)[4] = result[x][e];
                        float (&p)[4] = c[i / UNITS][x][u][e];
                        r[0] = fmaf(upper.x, p[0], fmaf(upper.y, x0, r[0]));
                        r[1] = fmaf(upper.x, p[1], fmaf(upper.y, x1, r[1]));
                        r[2] = fmaf(lower.x, p[2], fmaf(lower.y, x0, r[2]));
                        r[3] = fmaf(lower.x, p[3], fmaf(lower.y, x1, r[3]));
                    }
                }
            }
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < 4 * EIGHTS * SIXTEENS; i++) {
        uint32_t x = i / 4 / EIGHTS, e = i / 4 % EIGHTS, k = i % 4;
        uint32_t token = 8 * e + 2 * t + k % 2, at = first_row + 16 * x + g + k / 2 * 8;
        if (token >= tile.count || at >= m.rows) continue;
        float* to = job.out + size_t(tile.first + token) * m.rows + at;
        *to = a.add ? *to + result[x][e][k] : result[x][e][k];
    }
}

#endif

#define TILE_FEW(NAME, BITS, FINE, COLUMN_WARPS, COLUMN_BLOCKS, STAGES)                                               \
    FEW_KERNEL(few_columns_##NAME##_8, COLUMN_WARPS, COLUMN_BLOCKS + 1, (few_columns<BITS, COLUMN_WARPS, 1, FINE>))  \
    FEW_KERNEL(few_columns_##NAME##_16, COLUMN_WARPS, COLUMN_BLOCKS, (few_columns<BITS, COLUMN_WARPS, 2, FINE>))     \
    FEW_KERNEL(few_rows_##NAME##_8, 4, 4, (few_rows<BITS, 4, 1, 1, STAGES, STAGES, FINE>))                           \
    FEW_KERNEL(few_rows_##NAME##_16, 4, 4, (few_rows<BITS, 4, 2, 2, 2, 1, FINE>))
#define FEW_KERNEL(NAME, WARPS, BLOCKS, ...)                                                                         \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) NAME(                                          \
        const __grid_constant__ TileFewArguments a) {                                                              \
        FEW_BODY((__VA_ARGS__(a)));                                                                                 \
    }

TILE_FEW(2, 2, false, 8, 2, 4)
TILE_FEW(2_fine, 2, true, 4, 4, 2)
TILE_FEW(4, 4, false, 8, 2, 4)
TILE_FEW(4_fine, 4, true, 4, 4, 2)
TILE_FEW(8, 8, false, 8, 2, 2)
TILE_FEW(8_fine, 8, true, 4, 4, 2)

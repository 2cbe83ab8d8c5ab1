// Constants and codes that both sides use. Generated from src/abi.rs, which says how: edit that.
#pragma once
#include <cstdint>

// Matrices of one product of the plain kernels (`linear`).
constexpr uint32_t JOBS = 6;
// Matrices of one product of a step (`step_linear`).
constexpr uint32_t STEP_JOBS = 6;
// Most experts per token that the kernels serve.
constexpr uint32_t TOP_K_LIMIT = 32;
// Most experts of a layer that the kernels serve.
constexpr uint32_t EXPERTS_LIMIT = 1024;
// Tokens of one tile of many tokens' products.
constexpr uint32_t TILE_TOKENS = 64;
// Rows of such a tile.
constexpr uint32_t TILE_ROWS = 128;
// Most tokens of one tile of products with split activations.
constexpr uint32_t SPLIT_TOKENS = 128;
// Matrices of one product of few tokens with split activations.
constexpr uint32_t TILE_FEW_JOBS = 6;
// Columns whose activations are split together.
constexpr uint32_t SPLIT_COLUMNS = 64;
// Most parts that the context of a step's token is cut into.
constexpr uint32_t ATTENTION_SPLITS = 64;
// Keys of a tile of a step; parts of a context are multiples of it.
constexpr uint32_t STEP_KEYS = 32;
// Keys of a prompt's context that are added up by themselves.
constexpr uint32_t CHUNK_PART = 1024;
// Keys of a tile of attention in f32.
constexpr uint32_t PLAIN_KEYS = 16;
// Tokens of a prompt whose inputs the delta rule copies together.
constexpr uint32_t DELTA_BATCH = 8;
// Batches of them that there is room for.
constexpr uint32_t DELTA_BATCHES = 4;
// Most values of a latent row that the kernels serve.
constexpr uint32_t LATENT_ROW = 576;
// Most of them that are the latent.
constexpr uint32_t LATENT_RANK = 512;
// Latent rows of a tile of attention in f32.
constexpr uint32_t LATENT_KEYS = 16;
// Pairs of a token and a head of a block of tensor cores.
constexpr uint32_t LATENT_PAIRS = 32;
// Floats from one pair's dots to the next one's.
constexpr uint32_t LATENT_PITCH = 40;
// Tokens for which a weight of the heads' products is read once.
constexpr uint32_t LATENT_TOKENS = 8;
// Most residual streams of a token.
constexpr uint32_t STREAMS_LIMIT = 8;
// Most values of a row of compressed attention.
constexpr uint32_t ROW_DIM = 512;
// Most values of a key by which compressed rows are chosen.
constexpr uint32_t INDEX_DIM = 128;
// Most values of a head of attention to chosen keys.
constexpr uint32_t UNIT_DIM = 256;
// Most parts that the chosen keys of a step's token are cut into.
constexpr uint32_t UNIT_PARTS = 32;
// Values of a cached row of eight bits that share a scale.
constexpr uint32_t Q8_GROUP = 32;
// Values that a record's list of places has for an expert: weight, scales and biases of gate, up and down.
constexpr uint32_t PLACES = 9;
// Floats between chunks of 32 columns of a staged vector.
constexpr uint32_t STAGED_CHUNK = 36;
// From this bit on the kind of an affine matrix's scales has the bits of its symmetric codes, if they are such.
constexpr uint32_t SYMMETRIC_SHIFT = 8;
// Columns of a unit of the fused kernels.
constexpr uint32_t UNIT = 128;
// Threads of the kernels of a step, where a multiprocessor runs one block at a time.
constexpr uint32_t STEP_THREADS = 512;
// Most tokens whose products with a weight are computed at once.
constexpr uint32_t SEVERAL_TOKENS = 8;
// Threads of the experts' first half, where it runs two.
constexpr uint32_t INNER_THREADS = 256;
// Positions of which a ring has what a round's tokens were fed: those of two rounds.
constexpr uint32_t ROUND_PLACES = 16;
// Tokens of a run that one block convolves.
constexpr uint32_t CONVOLVE_RUN = 32;
// Most likely tokens that `rank` gives.
constexpr uint32_t KEPT = 64;
// Tokens whose weights `rank` adds up to one sum.
constexpr uint32_t WEIGHED = 1024;
// Logits that one block ranks.
constexpr uint32_t RANKED = 2048;
// Lists that the second pass of ranking joins.
constexpr uint32_t LISTS = 128;
// The answer to a request for a record that cannot be had.
constexpr uint64_t FAILED = 1;
// In the address of a copy: it is under way, and will be there whatever the device does.
constexpr uint64_t COPYING = 2;
// In a request: no token waits for the record yet.
constexpr uint64_t PREFETCH = 0x8000000000000000ull;
// In a use: the record was read from a copy.
constexpr uint32_t FROM_COPY = 0x80000000u;
// Words through which a step and the host say what went wrong.
constexpr uint32_t STATUS_WORDS = 3;
// The word of them that is 1 + the token whose router logits are not numbers.
constexpr uint32_t BROKEN_TOKEN = 0;
// The word that says that no answer will come: set by the host when it ends, by the device on timeout.
constexpr uint32_t GIVEN_UP = 1;
// The word that says how many milliseconds the device waits for an answer.
constexpr uint32_t PATIENCE = 2;
// Words that say how far down its ranking a guess is acted upon.
constexpr uint32_t DEPTH_WORDS = 2;
// The word for records in host memory, copied over the bus.
constexpr uint32_t DEPTH_BUS = 0;
// The word for records on disk.
constexpr uint32_t DEPTH_DISK = 1;

// How numbers of a matrix, or its scales and biases, are stored.
enum Kind : uint32_t { F32 = 0, F16 = 1, BF16 = 2, AFFINE = 3, BLOCK = 4, E8M0 = 5 };

// Block encodings that the kernels read.
enum BlockKind : uint32_t {
    BLOCK_Q4_0 = 0, BLOCK_Q4_1 = 1, BLOCK_Q5_0 = 2, BLOCK_Q5_1 = 3,
    BLOCK_Q8_0 = 4, BLOCK_Q2_K = 5, BLOCK_Q3_K = 6, BLOCK_Q4_K = 7,
    BLOCK_Q5_K = 8, BLOCK_Q6_K = 9, BLOCK_IQ4_NL = 10, BLOCK_IQ4_XS = 11,
    BLOCK_MXFP4 = 12, BLOCK_IQ2_XXS = 13, BLOCK_IQ2_XS = 14, BLOCK_IQ2_S = 15,
    BLOCK_IQ3_XXS = 16, BLOCK_IQ3_S = 17, BLOCK_IQ1_S = 18, BLOCK_IQ1_M = 19,
    BLOCK_TQ1_0 = 20, BLOCK_TQ2_0 = 21, BLOCK_NVFP4 = 22, BLOCK_MXFP4_PLANES = 23,
    BLOCK_FP8 = 24,
};

// What a vector is before it is multiplied.
enum StageMode : uint32_t { PLAIN = 0, NORM = 1, HEAD_NORM = 2, GATED = 3, HEAD_SIGMOID = 4 };

// What becomes of the products of a job of a step.
enum JobKind : uint32_t { STORE = 0, ADD = 1, CONVOLVE = 2, SWIGLU = 3, INJECT = 4 };

// How cached keys and values are stored.
enum CacheType : uint32_t { CACHE_F32 = 0, CACHE_F16 = 1, CACHE_BF16 = 2, CACHE_Q8 = 3, CACHE_FP8 = 4, CACHE_FP4 = 5 };

// A matrix of an expert, by its place in a record's list of places.
enum ExpertPart : uint32_t { GATE = 0, UP = 1, DOWN = 2 };

// What experts are chosen and weighed by, where a bias may move the choice.
enum ScoreKind : uint32_t { SCORE_SIGMOID = 0, SCORE_SQRT_SOFTPLUS = 1, SCORE_SOFTMAX = 2 };

// A head, which predicts further tokens: what its layer reads, and what carries a draft on from the one before without
// the host. Its layer and the choice of a token are the kernels that steps have.
#include "common.cuh"

struct PairArguments {
    const float* embedded;       // [tokens, hidden]
    const float* outputs;        // [tokens, hidden] of the trunk, normed; of a draft [hidden], the head's own
    float* ring;                 // [sequences][ring_rows, ring_width]: outputs of the trunk by position
    const uint32_t* positions;
    const uint32_t* sequences;
    const uint32_t* starts;      // per token: the first token of its run; null where all are one run
    const uint32_t* drafted;     // of a draft: how many there were before it; null else
    const float* embedding_norm; // [hidden]
    const float* output_norm;    // [hidden]
    float* pairs;                // [tokens, 2, hidden]
    size_t ring_stride;          // floats from one sequence's ring to the next
    uint32_t ring_rows;
    uint32_t ring_width;
    uint32_t hidden;
    uint32_t keep;               // 1: outputs go to the ring
    float epsilon;
    uint32_t padding;
};

// The halves of each token's pair, normed: its embedding, and the trunk's output at the token before it. That is the
// batch's own, or the one that the ring has from before the run; a sequence's first token has none. Rows of the ring
// that a run reads and those that it leaves are not the same, as runs whose outputs are kept have fewer tokens than it
// has rows. Grid: (2, tokens), 256 threads.
extern "C" __global__ void pair_rows(const __grid_constant__ PairArguments a) {
    __shared__ float scratch[32];
    uint32_t half = blockIdx.x, token = blockIdx.y;
    await_inputs();
    release_next();
    uint32_t position = a.positions[token], first = a.starts ? a.starts[token] : 0;
    float* ring = a.ring + a.sequences[token] * a.ring_stride;
    const float* own = a.outputs + size_t(token) * a.hidden;
    const float* x = a.embedded + size_t(token) * a.hidden;
    if (half == 1) {
        bool inside = a.drafted ? *a.drafted > 0 : token > first;
        if (inside) {
            x = a.drafted ? a.outputs : own - a.hidden;
        } else {
            x = position > 0 ? ring + size_t((position - 1) % a.ring_rows) * a.ring_width : nullptr;
        }
    }
    const float* norm = half == 0 ? a.embedding_norm : a.output_norm;
    float* to = a.pairs + (size_t(token) * 2 + half) * a.hidden;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; x && i < a.hidden; i += blockDim.x) {
        float v = __ldcg(x + i);
        sum += v * v;
    }
    float scale = rsqrtf(block_sum(sum, scratch) / float(a.hidden) + a.epsilon);
    for (uint32_t i = threadIdx.x; i < a.hidden; i += blockDim.x) to[i] = x ? __ldcg(x + i) * scale * norm[i] : 0.0f;
    if (half == 0 || !a.keep) return;
    float* row = ring + size_t(position % a.ring_rows) * a.ring_width;
    for (uint32_t i = threadIdx.x; i < a.hidden; i += blockDim.x) row[i] = __ldcg(own + i);
}

struct LeaveOutArguments {
    uint32_t* chosen;            // [k]
    float* weights;              // [k]
    uint64_t* addresses;         // [k]
    uint32_t k;
    uint32_t padding;
};

// Leaves experts without an address out of a token's mixture: the first that has one takes their place with no weight,
// which costs nothing, as its record is read anyway. Without any, all are FAILED and nothing is added. 32 threads.
extern "C" __global__ void leave_out_absent(const __grid_constant__ LeaveOutArguments a) {
    uint32_t lane = threadIdx.x;
    await_inputs();
    release_next();
    uint64_t address = lane < a.k ? a.addresses[lane] : 0;
    uint32_t present = __ballot_sync(FULL, address != 0);
    uint32_t expert = lane < a.k ? a.chosen[lane] : 0, other = present ? __ffs(present) - 1 : 0;
    uint64_t others_address = __shfl_sync(FULL, address, other);
    uint32_t others_expert = __shfl_sync(FULL, expert, other);
    if (lane >= a.k || address != 0) return;
    a.chosen[lane] = present ? others_expert : expert;
    a.weights[lane] = 0.0f;
    a.addresses[lane] = present ? others_address : FAILED;
}

struct TakeDraftArguments {
    const uint32_t* token;       // the most likely; 0xffffffff where logits are not numbers
    const uint32_t* uses;        // [k]: what its mixture chose
    uint32_t* input;             // the token that the next draft reads
    uint32_t* position;          // and its position
    uint32_t* row;               // the position among the rows that drafts see, which begin behind the first token's
    uint32_t* drafted;           // drafts so far
    uint32_t* tokens;            // mapped host memory: by draft
    uint32_t* used;              // mapped host memory: [drafts, k]
    uint32_t k;
    uint32_t padding;
};

// Goes on to the next draft, and leaves what this one gave for the host, which reads it when all have ended
// (docs/device-protocol.md, rule 2). 32 threads.
extern "C" __global__ void take_draft(const __grid_constant__ TakeDraftArguments a) {
    uint32_t lane = threadIdx.x, drafted = *a.drafted;
    __syncwarp();
    if (lane < a.k) a.used[size_t(drafted) * a.k + lane] = a.uses[lane];
    if (lane > 0) return;
    uint32_t token = *a.token;
    a.tokens[drafted] = token;
    // What follows a broken draft is not used, and must be a row of the table.
    *a.input = token == 0xffffffffu ? 0 : token;
    *a.position += 1, *a.row += 1;
    *a.drafted = drafted + 1;
}

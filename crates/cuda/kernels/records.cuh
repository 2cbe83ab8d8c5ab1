// Records of routed experts: where their pieces lie, and how blocks wait for one that is not in memory yet.
#pragma once
#include "common.cuh"

// The routed experts of a layer: shapes, and where the nine pieces lie in each record.
struct Experts {
    Matrix gate, up, down;       // shapes; addresses are filled in from a record's
    const uint32_t* places;      // [experts][PLACES]: weight, scales, biases of gate, up, down
    uint32_t same[PLACES];       // the places, when those of all experts are equal
    uint32_t equal;              // 1: they are
};

__device__ inline Matrix piece(const Matrix& shape, const Experts& e, uint32_t expert, uint64_t record,
                               ExpertPart part) {
    const uint8_t* base = reinterpret_cast<const uint8_t*>(record);
    Matrix m = shape;
    if (e.equal) {
        m.weight = base + e.same[3 * part], m.scales = base + e.same[3 * part + 1];
        m.biases = base + e.same[3 * part + 2];
        return m;
    }
    const uint32_t* place = e.places + size_t(expert) * PLACES + part * 3;
    m.weight = base + place[0], m.scales = base + place[1], m.biases = base + place[2];
    return m;
}

// Tells the host that a layer needs the bus no more, so that it may copy what the next one will need: the kernel of the
// experts' second halves says so when its last block ends, `route` where all that it chose is in device memory. A hint
// (docs/device-protocol.md, "ended"): volatile, without a fence.
struct Ended {
    uint32_t* blocks;            // that have ended; 0 between launches
    uint32_t* word;              // mapped host memory: 1 + the layer; null where the layer is not reported
    uint32_t layer;
    uint32_t padding;
};

// By one thread of each block, after all that the block reads.
__device__ inline void note_end(const Ended& e) {
    if (!e.word || atomicAdd(e.blocks, 1) + 1 != gridDim.x * gridDim.y) return;
    *e.blocks = 0;
    *reinterpret_cast<volatile uint32_t*>(e.word) = e.layer + 1;
}

// Looks at the answer between two looks at the clock and at `status`.
constexpr int LOOKS = 64;

__device__ inline uint64_t global_nanoseconds() {
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// True for what routing found that cannot be read from yet: a record asked for, or a copy that may be under way.
__device__ inline bool is_awaited(uint64_t address) {
    return address == 0 || (address & COPYING) != 0;
}

// The address of a record: as routing found it, of its copy once that is there, or what the host answers; FAILED when
// it does not for as long as it said that it might take (docs/device-protocol.md, "answers", "copies", "status").
__device__ inline uint64_t await_record(uint64_t address, const uint64_t* answers, uint32_t* status,
                                        const uint64_t* copies) {
    if (!is_awaited(address)) return address;
    bool copying = address != 0;
    const volatile uint64_t* answer = copying ? copies : answers;
    const volatile uint32_t* given_up = status + GIVEN_UP;
    uint64_t start = global_nanoseconds(), patience = uint64_t(status[PATIENCE]) * 1000000;
    for (;;) {
        for (int i = 0; i < LOOKS; i++) {
            if (!is_awaited(address = *answer)) {
                // Acquires what `answer` released, or what the copy engine wrote before the word.
                __threadfence_system();
                return address;
            }
            __nanosleep(copying ? 64 : 500);
        }
        if (*given_up) return FAILED;
        if (global_nanoseconds() - start > patience) {
            tell_host(status + GIVEN_UP, 1u);
            return FAILED;
        }
    }
}

// The record of expert `expert`, the choice at `at`, for all threads of a block. They must see the same: another block
// may write the answer at any time. `record` is shared memory.
template <typename Arguments>
__device__ inline uint64_t block_record(const Arguments& a, size_t at, uint32_t expert, uint64_t& record) {
    uint64_t found = a.addresses[at];
    if (__syncthreads_or(is_awaited(found))) {
        if (threadIdx.x == 0) {
            record = await_record(a.addresses[at], a.answers + a.first_key + expert, a.status, a.copies + expert);
            // Left for the second half (docs/device-protocol.md, "An answer passed on").
            if (blockIdx.x == 0) a.addresses[at] = record;
        }
        __syncthreads();
        found = record;
    }
    return found;
}

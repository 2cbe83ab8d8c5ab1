// Rows that a layer keeps of each sequence: in its state, and in pages.
#pragma once
#include "common.cuh"

// What a layer keeps of the sequences of a batch.
struct SequenceRows {
    const uint32_t* positions;   // [tokens]
    const uint32_t* sequences;   // [tokens]
    const uint32_t* starts;      // [tokens] of a step: the first token of each one's run; null where each is its own
    float* states;               // the layer's part of each sequence's state, `state_stride` values apart
    uint8_t* pages;              // of each sequence, `sequence_bytes` apart
    uint64_t state_stride;
    uint64_t sequence_bytes;
    uint64_t page_bytes;
    uint32_t tokens;
    uint32_t single;             // 1: a step; 0: all are one run
    uint32_t page_tokens;
    uint32_t ratio;              // tokens of a compressed row; 0 without
    uint32_t overlap;            // 1: rows take part of the tokens of the row before as well
    uint32_t window;
};

// The first token of a token's run.
__device__ inline uint32_t run_token(const SequenceRows& s, uint32_t token) {
    return s.starts ? s.starts[token] : s.single ? token : 0;
}

// Its position.
__device__ inline uint32_t run_start(const SequenceRows& s, uint32_t token) { return s.positions[run_token(s, token)]; }

__device__ inline float* state_of(const SequenceRows& s, uint32_t token) {
    return s.states + s.sequences[token] * s.state_stride;
}

// A compressed row, or the key of one, of `bytes` bytes; `place` is where those of the layer begin in a page.
__device__ inline uint8_t* page_row(const SequenceRows& s, uint32_t token, uint32_t row, uint32_t place,
                                    uint32_t bytes) {
    uint32_t per_page = s.page_tokens / s.ratio;
    uint8_t* page = s.pages + s.sequences[token] * s.sequence_bytes + row / per_page * s.page_bytes;
    return page + place + row % per_page * bytes;
}

// What scores of cached rows and the choice among them work on (compressed rows, indexed units).
#pragma once
#include "cache.cuh"
#include "sequence_rows.cuh"

struct ScoreArguments {
    SequenceRows rows;
    const float* query;          // [tokens, heads, dim]
    const float* factors;        // [tokens, heads]
    float* scores;               // [tokens, stride], by compressed row
    uint32_t* chosen;            // [tokens, top]
    uint32_t* candidates;        // [tokens, 2, parts * top]: scores and rows of the best of each part; null: no parts
    uint32_t heads;
    uint32_t dim;                // at most INDEX_DIM
    uint32_t kind;               // of keys
    uint32_t place;
    uint32_t bytes;
    uint32_t top;                // rows that a token sees at most
    uint32_t stride;
    uint32_t together;           // `score_units`: tokens of one run that a block scores for
    uint32_t parts;              // of CHOICE_PART rows, in which a step's rows are chosen first
    uint32_t padding;
};

// Rows that one block scores.
constexpr uint32_t SCORED_ROWS = 128;
// Rows among which a block chooses, where there are parts.
constexpr uint32_t CHOICE_PART = 16384;

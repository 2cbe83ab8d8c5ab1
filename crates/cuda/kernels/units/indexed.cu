// Attention over chosen units, low-rank streams and n-gram rows.
#include "../gated_streams.cu"
#include "../gates_step.cu"
#include "../indexed.cu"
#include "../ngrams.cu"

// Attention over rows of keys and values.
#include "../attention.cu"
#include "../attention_chunk.cu"
#include "../attention_q8.cu"
#include "../attention_wide.cu"

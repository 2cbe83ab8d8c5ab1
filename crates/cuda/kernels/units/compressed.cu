// Attention over compressed rows, and the streams of DeepSeek-V4.
#include "../compressed_attention.cu"
#include "../streams.cu"

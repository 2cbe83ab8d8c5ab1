#include "attention.cu"
#include "attention_q8.cu"
#include "mixer.cu"

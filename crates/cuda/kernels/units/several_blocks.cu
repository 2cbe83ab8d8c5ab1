// Products and experts of steps of several tokens over blocks of GGUF and floats.
#include "../several_blocks.cu"

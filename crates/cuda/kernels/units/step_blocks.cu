// Products and experts of steps over blocks of GGUF and planes.
#include "../step_blocks.cu"
#include "../step_planes.cu"

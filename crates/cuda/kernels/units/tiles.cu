// Products and experts of prompts on tensor cores.
#include "../tile_split.cu"
#include "../tile_few.cu"
#include "../tile_blocks.cu"

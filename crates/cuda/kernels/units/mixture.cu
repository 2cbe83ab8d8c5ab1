// Products and experts without tensor cores, tiles of rows in f32, and the choice of experts.
#include "../linear.cu"
#include "../mixture.cu"
#include "../route_scored.cu"
#include "../tile.cu"
#include "../plain_blocks.cu"
#include "../parts.cu"

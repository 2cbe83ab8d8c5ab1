// Attention over latent rows.
#include "../latent.cu"
#include "../latent_tiles.cu"
#include "../latent_blocks.cu"

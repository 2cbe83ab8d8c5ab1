// Attention over latent rows, all or chosen ones.
#include "../latent.cu"
#include "../latent_tiles.cu"
#include "../latent_blocks.cu"
#include "../row_index.cu"

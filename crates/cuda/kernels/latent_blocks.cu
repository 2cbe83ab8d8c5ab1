// Products of each head's values with its rows of a matrix of blocks (`latent_heads` of other encodings).
// A row a warp. Grid: (blocks of 8 rows, heads, tokens), 256 threads; shared: the staged values.
#include "plain_rows.cuh"

extern "C" __global__ void __launch_bounds__(256) latent_heads_blocks(const __grid_constant__ LatentHeadsArguments a) {
    extern __shared__ float staged[];
    uint32_t head = blockIdx.y, row = blockIdx.x * 8 + threadIdx.x / 32;
    size_t pair = size_t(blockIdx.z) * a.heads + head;
    // Not as `stage` does: heads' values need not be aligned.
    for (uint32_t column = threadIdx.x; column < (a.matrix.columns + 31) / 32 * 32; column += blockDim.x) {
        float v = column < a.matrix.columns ? a.x[pair * a.x_width + column] : 0.0f;
        staged[column / 32 * STAGED_CHUNK + column % 32] = v;
    }
    __syncthreads();
    if (row >= a.count) return;
    float out = any_row(a.matrix, head * a.stride + a.first + row, staged);
    if (threadIdx.x % 32 == 0) a.out[pair * a.out_width + row] = out;
}

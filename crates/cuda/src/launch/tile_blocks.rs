//! Launches of products of many tokens with matrices of blocks and of floats (`kernels/tile_blocks.cu`).

use super::tiles::{AHEAD_BYTES, SMALL_TOKENS, TileSplitArguments};
use super::{Kernel, SPLIT_TOKENS};
use crate::abi::{BlockKind, Kind, SPLIT_COLUMNS};
use crate::{CudaError, Matrix, Stream};

/// Rows and threads of a block.
const ROWS: usize = 128;
/// Most tokens of a tile of blocks.
const BLOCK_TOKENS: usize = 64;
/// Shared memory of a block that does not depend on the stages, rounded up: scales and minima of 16 columns, and what a
/// block takes of its own.
const FIXED_BYTES: usize = AHEAD_BYTES + 10_240;

/// Most tokens of a tile of such a matrix.
pub(super) fn most_tokens(matrix: &Matrix) -> usize {
    match matrix.quantised_bits() {
        Some(_) => SPLIT_TOKENS,
        None if matrix.has_floats() => SMALL_TOKENS,
        None => BLOCK_TOKENS,
    }
}

/// The kernel of an encoding, and the bytes of shared memory that 64 columns of a row take (`RowUnits` there).
fn kernel(matrix: &Matrix) -> (Kernel, usize) {
    use Kernel as K;
    let (kernel, units) = match matrix.block_kind() {
        None if matrix.kind == Kind::F32 as u32 => (K::TileBlocksF32, 17),
        None if matrix.kind == Kind::F16 as u32 => (K::TileBlocksF16, 9),
        None => (K::TileBlocksBf16, 9),
        Some(kind) => match kind {
            _ if kind == BlockKind::Q4_0 as u32 => (K::TileBlocksQ40, 3),
            _ if kind == BlockKind::Q4_1 as u32 => (K::TileBlocksQ41, 3),
            _ if kind == BlockKind::Q5_0 as u32 => (K::TileBlocksQ50, 5),
            _ if kind == BlockKind::Q5_1 as u32 => (K::TileBlocksQ51, 3),
            _ if kind == BlockKind::Q8_0 as u32 => (K::TileBlocksQ80, 5),
            _ if kind == BlockKind::Q2K as u32 => (K::TileBlocksQ2K, 3),
            _ if kind == BlockKind::Q3K as u32 => (K::TileBlocksQ3K, 7),
            _ if kind == BlockKind::Q4K as u32 => (K::TileBlocksQ4K, 3),
            _ if kind == BlockKind::Q5K as u32 => (K::TileBlocksQ5K, 5),
            _ if kind == BlockKind::Q6K as u32 => (K::TileBlocksQ6K, 9),
            _ if kind == BlockKind::Iq4Nl as u32 => (K::TileBlocksIq4Nl, 3),
            _ if kind == BlockKind::Iq4Xs as u32 => (K::TileBlocksIq4Xs, 3),
            _ if kind == BlockKind::Iq2Xxs as u32 => (K::TileBlocksIq2Xxs, 3),
            _ if kind == BlockKind::Iq2Xs as u32 => (K::TileBlocksIq2Xs, 3),
            _ if kind == BlockKind::Iq2S as u32 => (K::TileBlocksIq2S, 7),
            _ if kind == BlockKind::Iq3Xxs as u32 => (K::TileBlocksIq3Xxs, 5),
            _ if kind == BlockKind::Iq3S as u32 => (K::TileBlocksIq3S, 7),
            _ if kind == BlockKind::Iq1S as u32 => (K::TileBlocksIq1S, 5),
            _ if kind == BlockKind::Iq1M as u32 => (K::TileBlocksIq1M, 3),
            _ if kind == BlockKind::Tq1_0 as u32 => (K::TileBlocksTq10, 5),
            _ if kind == BlockKind::Tq2_0 as u32 => (K::TileBlocksTq20, 3),
            _ if kind == BlockKind::Nvfp4 as u32 => (K::TileBlocksNvfp4, 3),
            _ if kind == BlockKind::Mxfp4 as u32 => (K::TileBlocksMxfp4, 3),
            _ if kind == BlockKind::Fp8 as u32 => (K::TileBlocksFp8, 5),
            _ => (K::TileBlocksMxfp4Planes, 3),
        },
    };
    (kernel, 16 * units)
}

/// As [`super::tiles::launch_split`], for matrices that are not affine.
///
/// # Safety
/// The addresses in `arguments` hold what the kernel reads and writes.
pub(super) unsafe fn launch_blocks(
    stream: &Stream,
    arguments: TileSplitArguments,
    tiles: usize,
    count: usize,
) -> Result<(), CudaError> {
    let (kernel, row) = kernel(&arguments.matrix);
    let tile = arguments.tile as usize;
    assert!(tile <= most_tokens(&arguments.matrix), "tokens of a tile");
    let blocks = 2;
    // Parts, rows and sums of a stage.
    let stage = tile * 4 * SPLIT_COLUMNS + ROWS * row + tile * SPLIT_COLUMNS / 32 * 4;
    let limit = stream.device().shared_limit();
    let room = |blocks: usize| (limit / blocks).saturating_sub(FIXED_BYTES);
    let room = (1..=blocks).rev().map(room).find(|&room| room >= 2 * stage).unwrap_or(2 * stage);
    let stages = (room / stage).clamp(2, 6);
    let arguments = TileSplitArguments { stages: stages as u32, ..arguments };
    let grid = (arguments.matrix.rows().div_ceil(ROWS), tiles, count);
    // SAFETY: the structure is the kernel's; the rest is the caller's promise.
    unsafe { stream.launch(kernel, grid, ROWS, stages * stage + AHEAD_BYTES, &arguments) }
}

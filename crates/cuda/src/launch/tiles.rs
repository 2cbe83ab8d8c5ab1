//! Launches of products of many tokens: with activations as they are, and with activations that were split into the two
//! parts that tensor cores multiply, which serves most matrices at several times the speed.

use super::{Groups, Kernel, expect, staged};
pub use crate::abi::SPLIT_TOKENS;
use crate::abi::{SPLIT_COLUMNS, TILE_ROWS, TILE_TOKENS, mirrors};
use crate::{CudaError, Device, Matrix, Span, Stream};

/// Most tokens of a tile that leave registers for more blocks.
pub(super) const SMALL_TOKENS: usize = 32;

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct TileArguments {
    pub(super) x: u64,
    pub(super) gather: u64,
    pub(super) out: u64,
    pub(super) out_second: u64,
    pub(super) addresses: u64,
    pub(super) places: u64,
    pub(super) tiles: u64,
    pub(super) tile_count: u64,
    pub(super) matrix: Matrix,
    pub(super) second: Matrix,
    pub(super) tokens: u32,
    pub(super) add: u32,
    pub(super) first_piece: u32,
    pub(super) grouped: u32,
}

/// The kernel for many tokens, rows per block, and bytes of shared memory.
pub(super) fn tile_kernel(stream: &Stream, matrix: &Matrix) -> (Kernel, usize, usize) {
    if matrix.has_blocks() {
        return (Kernel::TileAnyBlocks, 32, staged(matrix.columns()));
    }
    let tensor_cores = stream.device().info().capability.0 >= 8;
    let kernel = match matrix.quantised_bits().filter(|_| tensor_cores) {
        Some(2) => Kernel::Tile2,
        Some(3) => Kernel::Tile3,
        Some(4) => Kernel::Tile4,
        Some(5) => Kernel::Tile5,
        Some(6) => Kernel::Tile6,
        Some(_) => Kernel::Tile8,
        None => return (Kernel::TileAny, 32, staged(matrix.columns())),
    };
    (kernel, TILE_ROWS, 0)
}

/// Memory for activations that were split: as many bytes as the values have in f32, and a sum for 32 of them.
#[derive(Clone, Copy)]
pub struct SplitTokens {
    /// First and second parts, in bf16.
    pub parts: Span<u8>,
    /// Sums of 32 values.
    pub sums: Span<f32>,
    /// For which matrices.
    pub form: SplitForm,
}

/// In which order columns are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitForm {
    /// For matrices of affine groups.
    Affine,
    /// For matrices of blocks and of floats.
    Blocks,
}

/// The form in which products of many tokens with this matrix take split activations; `None` where they take them as
/// they are. Its address is the caller's to know: weights at a multiple of four, scales of two, blocks and floats of
/// sixteen.
pub fn split_form(device: &Device, matrix: &Matrix) -> Option<SplitForm> {
    let whole = device.info().capability.0 >= 8 && matrix.columns().is_multiple_of(SPLIT_COLUMNS);
    let (form, alignment) = match matrix.quantised_bits() {
        Some(2 | 4 | 8) => (SplitForm::Affine, 4),
        Some(_) => return None,
        None => (SplitForm::Blocks, 16),
    };
    let scales = [matrix.scales, matrix.biases].iter().all(|address| address.is_multiple_of(2));
    let aligned = matrix.weight.is_multiple_of(alignment) && (form == SplitForm::Blocks || scales);
    (whole && aligned).then_some(form)
}

/// The form in which an input of products with all these matrices is best split: blocks are slowest without, and floats
/// follow the others.
pub fn split_form_of<'a>(
    device: &Device,
    matrices: impl IntoIterator<Item = &'a Matrix>,
) -> Option<SplitForm> {
    let rank = |matrix: &Matrix| (matrix.has_blocks(), matrix.quantised_bits().is_some());
    let forms = matrices.into_iter().map(|m| (rank(m), split_form(device, m)));
    forms
        .filter(|(_, form)| form.is_some())
        .max_by_key(|(rank, _)| *rank)
        .and_then(|(_, form)| form)
}

#[derive(Clone, Copy)]
#[repr(C)]
struct SplitTokensArguments {
    x: u64,
    up: u64,
    parts: u64,
    sums: u64,
    tiles: u64,
    tile_count: u64,
    columns: u32,
    rows: u32,
}

/// Splits `x` `[rows, columns]`, or SiLU(x) * up; of pairs in `tiles` only, when given.
///
/// # Errors
/// The device failed.
///
/// # Panics
/// When lengths do not fit, or columns are no multiple of 64.
pub fn split(
    stream: &Stream,
    x: Span<f32>,
    up: Option<Span<f32>>,
    (rows, columns): (usize, usize),
    tiles: Option<&Groups>,
    to: &SplitTokens,
) -> Result<(), CudaError> {
    assert!(
        columns.is_multiple_of(SPLIT_COLUMNS),
        "{columns} columns are split by {SPLIT_COLUMNS}"
    );
    expect("values that are split", x.len(), rows * columns);
    expect("values that are split", up.map_or(rows * columns, |up| up.len()), rows * columns);
    expect("parts", to.parts.len(), rows * columns * 4);
    expect("sums of parts", to.sums.len(), rows * columns / 32);
    let arguments = SplitTokensArguments {
        x: x.address,
        up: up.map_or(0, |up| up.address),
        parts: to.parts.address,
        sums: to.sums.address,
        tiles: tiles.map_or(0, |groups| groups.tiles.address),
        tile_count: tiles.map_or(0, |groups| groups.tile_count.address),
        columns: columns as u32,
        rows: rows as u32,
    };
    let blocks = tiles.map_or(rows.div_ceil(8), |groups| groups.tiles.len() / 3);
    let kernel = match to.form {
        SplitForm::Affine => Kernel::SplitTokens,
        SplitForm::Blocks => Kernel::SplitTokensBlocks,
    };
    // Of few rows, the columns are shared out as well.
    let busy = 2 * stream.device().info().multiprocessors;
    let slices = (busy / blocks.max(1)).clamp(1, columns.div_ceil(8 * 32));
    // SAFETY: the structure is the kernels'; lengths were checked above; tiles name rows of the values.
    unsafe { stream.launch(kernel, (blocks, slices, 1), 256, 0, &arguments) }
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct TileSplitArguments {
    pub(super) parts: u64,
    pub(super) sums: u64,
    pub(super) gather: u64,
    pub(super) out: u64,
    pub(super) out_second: u64,
    pub(super) addresses: u64,
    pub(super) places: u64,
    pub(super) tiles: u64,
    pub(super) tile_count: u64,
    pub(super) matrix: Matrix,
    pub(super) second: Matrix,
    pub(super) tokens: u32,
    pub(super) add: u32,
    pub(super) first_piece: u32,
    pub(super) grouped: u32,
    pub(super) stages: u32,
    pub(super) tile: u32,
}

impl TileSplitArguments {
    /// Of one or two matrices of one shape; the rest is zero.
    pub(super) fn new(split: &SplitTokens, matrix: Matrix, second: Matrix) -> Self {
        Self {
            parts: split.parts.address,
            sums: split.sums.address,
            gather: 0,
            out: 0,
            out_second: 0,
            addresses: 0,
            places: 0,
            tiles: 0,
            tile_count: 0,
            matrix,
            second,
            tokens: 0,
            add: 0,
            first_piece: 0,
            grouped: 0,
            stages: 0,
            tile: SPLIT_TOKENS as u32,
        }
    }
}

/// Launches products over `tiles` tiles of tokens and `count` matrices.
///
/// # Safety
/// The addresses in `arguments` hold what the kernel reads and writes.
pub(super) unsafe fn launch_split(
    stream: &Stream,
    arguments: TileSplitArguments,
    tiles: usize,
    count: usize,
) -> Result<(), CudaError> {
    let matrix = &arguments.matrix;
    if matrix.quantised_bits().is_none() {
        // SAFETY: as the caller promised.
        return unsafe { super::tile_blocks::launch_blocks(stream, arguments, tiles, count) };
    }
    let bits = matrix.quantised_bits().unwrap_or_default() as usize;
    let info = stream.device().info();
    // Blocks of eight warps share the tokens' parts among more rows; of four, are more.
    let fine = matrix.group == 32;
    let full = arguments.tile as usize == SPLIT_TOKENS;
    let wide = full && matrix.rows().div_ceil(256) * tiles * count >= 2 * info.multiprocessors;
    let small = arguments.tile as usize <= SMALL_TOKENS;
    let choose = |[fine_, small_, wide_, narrow]: [Kernel; 4]| match () {
        () if fine => (fine_, 4, 2),
        () if small => (small_, 4, 4),
        () if wide => (wide_, 8, 1),
        () => (narrow, 4, 2),
    };
    use Kernel as K;
    let (kernel, warps, blocks) = choose(match bits {
        2 => [K::TileSplit2Fine, K::TileSplit2Small, K::TileSplit2, K::TileSplit2Narrow],
        4 => [K::TileSplit4Fine, K::TileSplit4Small, K::TileSplit4, K::TileSplit4Narrow],
        _ => [K::TileSplit8Fine, K::TileSplit8Small, K::TileSplit8, K::TileSplit8Narrow],
    });
    // Parts, weights and sums of a stage.
    let tile = arguments.tile as usize;
    let stage = tile * 4 * SPLIT_COLUMNS
        + 32 * warps * SPLIT_COLUMNS * bits / 8
        + tile * SPLIT_COLUMNS / 32 * 4;
    // As many blocks as registers allow run on a multiprocessor at a time, where they find room.
    let limit = stream.device().shared_limit();
    let room = |blocks: usize| (limit / blocks).saturating_sub(SPLIT_FIXED_BYTES);
    let room = (1..=blocks).rev().map(room).find(|&room| room >= 2 * stage).unwrap_or(2 * stage);
    let stages = (room / stage).clamp(2, 6);
    let arguments = TileSplitArguments { stages: stages as u32, ..arguments };
    let grid = (matrix.rows().div_ceil(32 * warps), tiles, count);
    // SAFETY: the structure is the kernel's; the rest is the caller's promise.
    unsafe { stream.launch(kernel, grid, 32 * warps, stages * stage + AHEAD_BYTES, &arguments) }
}

/// Shared memory behind the stages: a step's fragments are loaded before it is known whether they are needed.
pub(super) const AHEAD_BYTES: usize = 16 * 4 * SPLIT_COLUMNS;
/// Shared memory of a product with split activations that does not depend on the stages, and what a block takes of its
/// own, rounded up.
const SPLIT_FIXED_BYTES: usize = AHEAD_BYTES + 6144;

/// Most tokens of a tile whose blocks keep the device busy. Twice as many blocks read weights twice as often: prompts
/// of 128 to 512 tokens then took 1 to 4 % longer.
pub(super) fn filling_tile(device: &Device, matrix: &Matrix, tokens: usize) -> usize {
    let blocks = |tile: usize| matrix.rows().div_ceil(128) * tokens.div_ceil(tile);
    let fills = |tile: &usize| blocks(*tile) >= device.info().multiprocessors;
    [SPLIT_TOKENS, 64, 32].into_iter().find(fills).unwrap_or(16)
}

/// `out = matrix x` (or `out +=`) for many tokens; from `split`, which [`split`] made of `x`, where
/// [`split_serves`] the matrix.
///
/// # Errors
/// The device failed.
///
/// # Panics
/// When lengths do not fit the shapes.
pub fn tile_linear(
    stream: &Stream,
    x: Span<f32>,
    tokens: usize,
    matrix: Matrix,
    out: Span<f32>,
    add: bool,
    split: Option<&SplitTokens>,
) -> Result<(), CudaError> {
    expect("input of a product", x.len(), tokens * matrix.columns());
    expect("output of a product", out.len(), tokens * matrix.rows());
    let form = split_form(stream.device(), &matrix);
    if let Some(split) = split.filter(|split| form == Some(split.form)) {
        let tile = filling_tile(stream.device(), &matrix, tokens);
        let tile = tile.min(super::tile_blocks::most_tokens(&matrix));
        let arguments = TileSplitArguments {
            out: out.address,
            tokens: tokens as u32,
            add: u32::from(add),
            tile: tile as u32,
            ..TileSplitArguments::new(split, matrix, matrix)
        };
        // SAFETY: lengths were checked above and when the tokens were split.
        return unsafe { launch_split(stream, arguments, tokens.div_ceil(tile), 1) };
    }
    let (kernel, rows, shared) = tile_kernel(stream, &matrix);
    let arguments = TileArguments {
        x: x.address,
        gather: 0,
        out: out.address,
        out_second: 0,
        addresses: 0,
        places: 0,
        tiles: 0,
        tile_count: 0,
        matrix,
        second: matrix,
        tokens: tokens as u32,
        add: u32::from(add),
        first_piece: 0,
        grouped: 0,
    };
    let grid = (matrix.rows().div_ceil(rows), tokens.div_ceil(TILE_TOKENS), 1);
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch(kernel, grid, 256, shared, &arguments) }
}

mirrors! {
    TileArguments as TileArguments {
        x, gather, out, out_second, addresses, places, tiles, tile_count, matrix, second, tokens, add, first_piece,
        grouped
    } for Tile2, Tile3, Tile4, Tile5, Tile6, Tile8, TileAny, TileAnyBlocks;
    SplitTokensArguments as SplitTokensArguments {
        x, up, parts, sums, tiles, tile_count, columns, rows
    } for SplitTokens, SplitTokensBlocks;
    TileSplitArguments as TileSplitArguments {
        parts, sums, gather, out, out_second, addresses, places, tiles, tile_count, matrix, second, tokens, add,
        first_piece, grouped, stages, tile
    } for TileSplit2, TileSplit2Narrow, TileSplit2Small, TileSplit2Fine, TileSplit4, TileSplit4Narrow,
        TileSplit4Small, TileSplit4Fine, TileSplit8, TileSplit8Narrow, TileSplit8Small, TileSplit8Fine,
        TileBlocksQ40, TileBlocksQ41, TileBlocksQ50, TileBlocksQ51, TileBlocksQ80,
        TileBlocksQ2K, TileBlocksQ3K, TileBlocksQ4K, TileBlocksQ5K, TileBlocksQ6K,
        TileBlocksIq4Nl, TileBlocksIq4Xs, TileBlocksMxfp4, TileBlocksIq2Xxs, TileBlocksIq2Xs, TileBlocksIq2S,
        TileBlocksIq3Xxs, TileBlocksIq3S, TileBlocksIq1S, TileBlocksIq1M, TileBlocksTq10, TileBlocksTq20,
        TileBlocksNvfp4, TileBlocksMxfp4Planes, TileBlocksFp8, TileBlocksF32, TileBlocksF16, TileBlocksBf16;
}

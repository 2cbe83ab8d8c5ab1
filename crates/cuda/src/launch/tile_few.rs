//! Launches of products of few tokens of a prompt with split activations (`kernels/tile_few.cu`), to the bit as those
//! of [`super::tiles`]: all matrices of one input at once, as far as one kernel serves them.

use super::tiles::{SplitForm, SplitTokens, TileSplitArguments, filling_tile};
use super::{Kernel, expect, tile_linear};
use crate::abi::{Kind, SPLIT_COLUMNS, SYMMETRIC_SHIFT, TILE_FEW_JOBS, mirrors};
use crate::{CudaError, Device, Matrix, Span, Stream};

/// Most tokens of short prompts that are worth one batch.
pub const FEW_TOKENS: usize = 64;
/// Most tokens of a batch whose products are made so, and most tokens times rows of a matrix: with more, a block that
/// reads a weight for more tokens is as fast. 12,352 rows of 2,048 columns, H200, us, by `few_rows` and by tiles: 32
/// tokens 26.6 and 35.7, 64 tokens 35.9 and 46.4, 128 tokens 65.6 and 67.6. Prompts of 160 and 192 tokens take 3 % less
/// than with half of both.
const MOST_TOKENS: usize = 256;
const MOST_WORK: usize = 3_200_000;
/// Most tokens where the other kernel would have tiles of fewer than [`FILLING_TOKENS`] to fill the device: ms of
/// prompts of 192, 256 and 512 tokens, 35B shape, H200: 26.2, 28.0 and 38.0 instead of 31, 34 and 48.
const MOST_UNFILLED: usize = 512;
const FILLING_TOKENS: usize = 64;
/// Rows of matrices that tiles fill the device with anyway.
const MANY_ROWS: usize = 8192;
/// Tokens of the smaller tiles, and of the larger ones.
const FEW_TILE: usize = 8;
const LARGE_TILE: usize = 2 * FEW_TILE;
/// Rows of a block whose warps share the columns out, and floats from one token's products to the next one's.
const COLUMNS_ROWS: usize = 32;
const COLUMNS_PITCH: usize = COLUMNS_ROWS + 4;
/// Warps of a block whose warps have rows of their own.
const ROWS_WARPS: usize = 4;

/// How the work of a product is shared out; the bits are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FewForm {
    /// The warps of a block take columns of the same rows: for matrices of few rows.
    Columns,
    /// Each warp walks over all the columns of its own rows.
    Rows,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct TileFewJob {
    matrix: Matrix,
    out: u64,
    first_block: u32,
    piece: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct TileFewArguments {
    parts: u64,
    sums: u64,
    gather: u64,
    addresses: u64,
    places: u64,
    tiles: u64,
    tile_count: u64,
    job: [TileFewJob; TILE_FEW_JOBS],
    jobs: u32,
    tokens: u32,
    add: u32,
    grouped: u32,
}

/// Tiles of routed experts' pairs: their tokens, and up to how many pairs an expert, so that an expert's weights are
/// rarely read twice. Gate and up, and down of 256 experts of the 35B shape, H200, us, in tiles of 8, of 16, and of 32
/// (`tile_split`): 1,024 pairs 123 + 74, 157 + 79, 205 + 107; 2,048 pairs 160 + 82 and 206 + 110 in the latter; 4,096
/// pairs 219 + 113 and 245 + 129.
const PAIR_TILES: [(usize, usize); 2] = [(FEW_TILE, 6), (LARGE_TILE, 16)];

/// Tokens of a tile for so many pairs, where the kernels for few tokens serve them.
pub(super) fn few_tile(pairs: usize, experts: usize) -> Option<usize> {
    let serves = |&(_, most): &(usize, usize)| pairs <= most * experts;
    PAIR_TILES.into_iter().find(serves).map(|(tile, _)| tile)
}

/// Most full tiles of up to `pairs` pairs by those kernels.
pub(super) fn few_tiles(pairs: usize, experts: usize) -> usize {
    let tiles = |(tile, most)| pairs.min(most * experts) / tile;
    PAIR_TILES.into_iter().map(tiles).max().unwrap_or_default()
}

/// The kernels for matrices of some encoding and tiles of a number of tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Few {
    bits: u32,
    /// Groups of 32 columns: scales for each half of a stage.
    fine: bool,
    tokens: usize,
}

impl Few {
    /// Those of a matrix with scales of two bytes for tiles of up to `tokens` tokens, 16 at the most.
    pub(super) fn of(matrix: &Matrix, tokens: usize) -> Option<Self> {
        let bits = matrix.quantised_bits().filter(|bits| matches!(bits, 2 | 4 | 8))?;
        if matrix.scale_kind & ((1 << SYMMETRIC_SHIFT) - 1) == Kind::F32 as u32 {
            return None;
        }
        let tokens = if tokens <= FEW_TILE { FEW_TILE } else { LARGE_TILE };
        Some(Self { bits, fine: matrix.group == 32, tokens })
    }

    /// Tokens of a tile.
    pub(super) fn tile(self) -> usize {
        self.tokens
    }

    /// The kernel, rows and warps of a block, and bytes of `FewShared` or `FewChunks`.
    fn shape(self, form: FewForm) -> (Kernel, usize, usize, usize) {
        use Kernel as K;
        let large = usize::from(self.tokens > FEW_TILE);
        let part = 4 * SPLIT_COLUMNS;
        match form {
            FewForm::Columns => {
                let kernels = match (self.bits, self.fine) {
                    (2, false) => [K::FewColumns2x8, K::FewColumns2x16],
                    (2, true) => [K::FewColumns2Finex8, K::FewColumns2Finex16],
                    (4, false) => [K::FewColumns4x8, K::FewColumns4x16],
                    (4, true) => [K::FewColumns4Finex8, K::FewColumns4Finex16],
                    (_, false) => [K::FewColumns8x8, K::FewColumns8x16],
                    (_, true) => [K::FewColumns8Finex8, K::FewColumns8Finex16],
                };
                let (warps, units) = if self.fine { (4, 2) } else { (8, 1) };
                let unit = self.tokens * COLUMNS_PITCH * 4 + COLUMNS_ROWS * 8 + self.tokens * 4;
                let shared = 2 * warps * (self.tokens * part + units * unit);
                (kernels[large], COLUMNS_ROWS, warps, shared)
            }
            FewForm::Rows => {
                let kernels = match (self.bits, self.fine) {
                    (2, false) => [K::FewRows2x8, K::FewRows2x16],
                    (2, true) => [K::FewRows2Finex8, K::FewRows2Finex16],
                    (4, false) => [K::FewRows4x8, K::FewRows4x16],
                    (4, true) => [K::FewRows4Finex8, K::FewRows4Finex16],
                    (_, false) => [K::FewRows8x8, K::FewRows8x16],
                    (_, true) => [K::FewRows8Finex8, K::FewRows8Finex16],
                };
                // Rows of a warp, and stages of a chunk.
                let (rows, stages) = match large {
                    0 if self.bits == 8 || self.fine => (16, 2),
                    0 => (16, 4),
                    _ => (32, 2),
                };
                let padding = if self.bits == 8 { 32 } else { 16 };
                let row = stages * SPLIT_COLUMNS * self.bits as usize / 8 + padding;
                let factors = stages * if self.fine { 2 } else { 1 } * rows * 8;
                let shared =
                    ROWS_WARPS * (rows * row + factors) + stages * self.tokens * (part + 8);
                (kernels[large], ROWS_WARPS * rows, ROWS_WARPS, 2 * shared)
            }
        }
    }

    /// The form that is faster for matrices of one launch: rows of their own, where their blocks are as many as
    /// multiprocessors. Prompts of 96, 128 and 512 tokens, 35B shape, H200, ms: 18.0, 19.6 and 38.0; with two blocks
    /// for three multiprocessors 19.9, 22.0 and 38.8, as a launch alone would have it (2,048 rows, 128 tokens: 37.9 us
    /// against 52.3 in columns), since columns of more warps begin while the launch before ends.
    fn form(self, device: &Device, jobs: &[(Matrix, u64, u32)], tiles: usize) -> FewForm {
        let (_, rows, ..) = self.shape(FewForm::Rows);
        let blocks: usize = jobs.iter().map(|(matrix, ..)| matrix.rows().div_ceil(rows)).sum();
        let fills = blocks * tiles >= device.info().multiprocessors;
        if fills { FewForm::Rows } else { FewForm::Columns }
    }

    /// Products of one input with matrices that these kernels serve, over `tiles` tiles.
    ///
    /// # Safety
    /// As for [`super::tiles::launch_split`]; tiles have at most [`Self::tile`] tokens.
    unsafe fn launch(
        self,
        stream: &Stream,
        form: FewForm,
        jobs: &[(Matrix, u64, u32)],
        tiles: usize,
        arguments: TileFewArguments,
    ) -> Result<(), CudaError> {
        assert!((1..=TILE_FEW_JOBS).contains(&jobs.len()), "1 to {TILE_FEW_JOBS} matrices");
        let (kernel, rows, warps, shared) = self.shape(form);
        let mut arguments = TileFewArguments { jobs: jobs.len() as u32, ..arguments };
        let mut blocks = 0;
        for (place, &(matrix, out, piece)) in arguments.job.iter_mut().zip(jobs) {
            *place = TileFewJob { matrix, out, first_block: blocks as u32, piece };
            blocks += matrix.rows().div_ceil(rows);
        }
        let (grid, threads) = ((blocks, tiles, 1), 32 * warps);
        // SAFETY: the structure is the kernels'; the rest is the caller's promise.
        unsafe { stream.launch_overlapping(kernel, grid, threads, shared, &arguments) }
    }
}

/// Products of routed experts' pairs: `jobs` with their place in a record, tiles and records as `grouped` has them.
///
/// # Safety
/// As for [`super::tiles::launch_split`]; tiles have at most as many pairs as `few` serves.
pub(super) unsafe fn launch_few_grouped(
    stream: &Stream,
    few: Few,
    jobs: &[(Matrix, u64, u32)],
    tiles: usize,
    grouped: &TileSplitArguments,
) -> Result<(), CudaError> {
    let arguments = TileFewArguments {
        parts: grouped.parts,
        sums: grouped.sums,
        gather: grouped.gather,
        addresses: grouped.addresses,
        places: grouped.places,
        tiles: grouped.tiles,
        tile_count: grouped.tile_count,
        grouped: 1,
        ..empty(jobs[0].0)
    };
    // SAFETY: as the caller promised.
    unsafe { few.launch(stream, FewForm::Rows, jobs, tiles, arguments) }
}

fn empty(matrix: Matrix) -> TileFewArguments {
    TileFewArguments {
        parts: 0,
        sums: 0,
        gather: 0,
        addresses: 0,
        places: 0,
        tiles: 0,
        tile_count: 0,
        job: [TileFewJob { matrix, out: 0, first_block: 0, piece: 0 }; TILE_FEW_JOBS],
        jobs: 0,
        tokens: 0,
        add: 0,
        grouped: 0,
    }
}

/// `out = matrix x` (or `out +=`) of each job for many tokens, which share `x`; from `split` where it serves the
/// matrix. Few tokens are multiplied with several matrices at once, to the same bits.
///
/// # Errors
/// The device failed.
///
/// # Panics
/// When lengths do not fit the shapes.
pub fn tile_products(
    stream: &Stream,
    x: Span<f32>,
    tokens: usize,
    jobs: &[(Matrix, Span<f32>)],
    add: bool,
    split: Option<&SplitTokens>,
) -> Result<(), CudaError> {
    let few = split.filter(|split| split.form == SplitForm::Affine);
    let served = |matrix: &Matrix| {
        let form = super::split_form(stream.device(), matrix);
        let rows = matrix.rows();
        // Groups of 32 columns, whose kernel has half of the warps, were not measured there; of 8,192 rows 64 and 128
        // tokens take longer.
        let unfilled = tokens <= MOST_UNFILLED
            && matrix.group != 32
            && rows < MANY_ROWS
            && filling_tile(stream.device(), matrix, tokens) < FILLING_TOKENS;
        let fits = unfilled || tokens <= MOST_TOKENS && rows * tokens <= MOST_WORK;
        fits && few.is_some()
            && form == Some(SplitForm::Affine)
            && Few::of(matrix, tokens).is_some()
    };
    let (served, others): (Vec<_>, Vec<_>) = jobs.iter().partition(|(matrix, _)| served(matrix));
    for (matrix, out) in others {
        tile_linear(stream, x, tokens, matrix, out, add, split)?;
    }
    few.map_or(Ok(()), |split| tile_few(stream, tokens, &served, add, split, None))
}

/// The same of affine matrices of 2, 4 and 8 bits by the kernels for few tokens, however many there are; in the given
/// form, or in that which is faster.
///
/// # Errors
/// The device failed.
///
/// # Panics
/// When lengths do not fit the shapes, or no such kernel serves a matrix.
pub fn tile_few(
    stream: &Stream,
    tokens: usize,
    jobs: &[(Matrix, Span<f32>)],
    add: bool,
    split: &SplitTokens,
    form: Option<FewForm>,
) -> Result<(), CudaError> {
    let mut left: Vec<(Few, (Matrix, u64, u32))> = Vec::with_capacity(jobs.len());
    for (matrix, out) in jobs {
        expect("parts", split.parts.len(), tokens * matrix.columns() * 4);
        expect("output of a product", out.len(), tokens * matrix.rows());
        let few = Few::of(matrix, tokens).expect("a matrix of 2, 4 or 8 bits");
        left.push((few, (*matrix, out.address, 0)));
    }
    while let Some(&(few, _)) = left.first() {
        let alike = left.extract_if(.., |(other, _)| *other == few);
        let alike: Vec<_> = alike.map(|(_, job)| job).collect();
        for jobs in alike.chunks(TILE_FEW_JOBS) {
            let arguments = TileFewArguments {
                parts: split.parts.address,
                sums: split.sums.address,
                tokens: tokens as u32,
                add: u32::from(add),
                ..empty(jobs[0].0)
            };
            let tiles = tokens.div_ceil(few.tile());
            let form = form.unwrap_or_else(|| few.form(stream.device(), jobs, tiles));
            // SAFETY: lengths were checked above and when the tokens were split.
            unsafe { few.launch(stream, form, jobs, tiles, arguments)? };
        }
    }
    Ok(())
}

mirrors! {
    TileFewJob as TileFewJob { matrix, out, first_block, piece };
    TileFewArguments as TileFewArguments {
        parts, sums, gather, addresses, places, tiles, tile_count, job, jobs, tokens, add, grouped
    } for FewColumns2x8, FewColumns2x16, FewColumns2Finex8, FewColumns2Finex16, FewColumns4x8, FewColumns4x16,
        FewColumns4Finex8, FewColumns4Finex16, FewColumns8x8, FewColumns8x16, FewColumns8Finex8, FewColumns8Finex16,
        FewRows2x8, FewRows2x16, FewRows2Finex8, FewRows2Finex16, FewRows4x8, FewRows4x16, FewRows4Finex8,
        FewRows4Finex16, FewRows8x8, FewRows8x16, FewRows8Finex8, FewRows8Finex16;
}

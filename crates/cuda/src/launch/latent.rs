//! Launches of attention over latent rows, and of what makes its queries, rows and values (`kernels/latent.cu`,
//! `kernels/latent_tiles.cu`).

use kernels::KvType;

use super::attention::cache_type;
use super::mixer::Rotation;
use super::{Kernel, TokenPlaces, expect, staged};
use crate::abi::{
    ATTENTION_SPLITS, LATENT_KEYS, LATENT_PAIRS, LATENT_PITCH, LATENT_RANK, LATENT_ROW,
    LATENT_TOKENS, Q8_GROUP, STEP_KEYS, mirrors,
};
use crate::{CudaError, Matrix, Span, Stream};

/// Shape of latent attention.
#[derive(Clone, Copy, Debug)]
pub struct LatentShape {
    /// Heads of queries.
    pub heads: usize,
    /// Values of the latent, the first of a row.
    pub rank: usize,
    /// Values of the rotated key, the others.
    pub rotated: usize,
    /// Values of a head's query that are not rotated.
    pub plain: usize,
    /// Values of a head's value.
    pub values: usize,
    /// Whether values `2j` and `2j + 1` are rotated together; else `j` and `j + rotated / 2`.
    pub neighbours: bool,
}

impl LatentShape {
    /// Values of a row.
    pub fn row(&self) -> usize {
        self.rank + self.rotated
    }

    /// Parts that the context of a token that is a run of its own is cut into: by the shape and the token's position
    /// alone, so that its bits do not depend on the batch.
    fn splits(&self) -> usize {
        (WAVE_BLOCKS / self.heads.div_ceil(LATENT_PAIRS)).clamp(8, ATTENTION_SPLITS)
    }
}

/// Blocks that a large device works on at once, rounded to a power of two.
const WAVE_BLOCKS: usize = 128;
/// Pairs of a token and a head of a block, in f32.
const PLAIN_STEP_PAIRS: usize = 16;
const PLAIN_CHUNK_PAIRS: usize = 32;

/// Rows of a layer for all sequences: `[sequences, context]` rows of [`KvType::bytes_of_head`] bytes.
#[derive(Clone, Copy)]
pub struct LatentCache {
    /// The rows.
    pub rows: Span<u8>,
    /// Most tokens of a sequence.
    pub context: usize,
    /// How they are stored.
    pub kv_type: KvType,
}

/// The rows of each head in a matrix that has those of all heads.
#[derive(Clone, Copy)]
pub struct HeadMatrix {
    /// The matrix.
    pub matrix: Matrix,
    /// Rows from one head's first to the next one's.
    pub stride: usize,
    /// A head's first row among them.
    pub first: usize,
    /// Rows of a head.
    pub count: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct LatentRowArguments {
    rows: u64,
    norm: u64,
    frequencies: u64,
    positions: u64,
    sequences: u64,
    cache: u64,
    rank: u32,
    rotated: u32,
    context: u32,
    kv_type: u32,
    neighbours: u32,
    epsilon: f32,
    magnitude: f32,
    padding: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct LatentRotateArguments {
    query: u64,
    out: u64,
    frequencies: u64,
    positions: u64,
    heads: u32,
    plain: u32,
    rank: u32,
    rotated: u32,
    neighbours: u32,
    magnitude: f32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct LatentHeadsArguments {
    matrix: Matrix,
    x: u64,
    out: u64,
    tokens: u32,
    heads: u32,
    x_width: u32,
    out_width: u32,
    stride: u32,
    first: u32,
    count: u32,
    padding: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct LatentArguments {
    query: u64,
    cache: u64,
    out: u64,
    partial: u64,
    positions: u64,
    sequences: u64,
    chosen: u64,
    heads: u32,
    rank: u32,
    row: u32,
    context: u32,
    splits: u32,
    tokens: u32,
    scale: f32,
    kv_type: u32,
    single: u32,
    top: u32,
}

/// True when the kernels serve rows of this shape, stored in this type: in eight bits, whole groups share a scale.
pub fn serves_latent(rank: usize, rotated: usize, kv_type: KvType) -> bool {
    let fits = rank <= LATENT_RANK && rank + rotated <= LATENT_ROW;
    fits && match kv_type {
        KvType::Fp8 { .. } => false,
        KvType::Q8 => (rank + rotated).is_multiple_of(Q8_GROUP),
        KvType::F32 | KvType::F16 | KvType::Bf16 => true,
    }
}

/// Values of the scratch of [`attend_latent`] for `tokens` tokens that are runs of their own.
pub fn latent_scratch(shape: &LatentShape, tokens: usize) -> usize {
    tokens * shape.heads * shape.splits() * (shape.rank + 2)
}

/// Norms the latents of `rows [tokens, rank + rotated]`, rotates their ends, and appends them to the cache.
///
/// # Errors
/// The device failed.
pub fn append_latent(
    stream: &Stream,
    shape: &LatentShape,
    places: &TokenPlaces,
    cache: &LatentCache,
    rows: Span<f32>,
    (norm, epsilon): (Span<f32>, f32),
    rotation: Rotation,
) -> Result<(), CudaError> {
    let tokens = places.positions.len();
    assert!(serves_latent(shape.rank, shape.rotated, cache.kv_type), "rows that are served");
    expect("sequences of tokens", places.sequences.len(), tokens);
    expect("latent rows", rows.len(), tokens * shape.row());
    expect("norm of latents", norm.len(), shape.rank);
    expect("frequencies", rotation.frequencies.len(), shape.rotated / 2);
    let arguments = LatentRowArguments {
        rows: rows.address,
        norm: norm.address,
        frequencies: rotation.frequencies.address,
        positions: places.positions.address,
        sequences: places.sequences.address,
        cache: cache.rows.address,
        rank: shape.rank as u32,
        rotated: shape.rotated as u32,
        context: cache.context as u32,
        kv_type: cache_type(cache.kv_type),
        neighbours: u32::from(shape.neighbours),
        epsilon,
        magnitude: rotation.magnitude,
        padding: 0,
    };
    // SAFETY: the structure is the kernel's; lengths were checked above; positions lie within the context by the
    // caller's batch.
    unsafe { stream.launch(Kernel::AppendLatent, (tokens, 1, 1), 256, 0, &arguments) }
}

/// Rotates the ends of `query [tokens, heads, plain + rotated]` into those of `out [tokens, heads, rank + rotated]`.
///
/// # Errors
/// The device failed.
pub fn rotate_latent(
    stream: &Stream,
    shape: &LatentShape,
    positions: Span<u32>,
    query: Span<f32>,
    out: Span<f32>,
    rotation: Rotation,
) -> Result<(), CudaError> {
    let tokens = positions.len();
    expect("queries", query.len(), tokens * shape.heads * (shape.plain + shape.rotated));
    expect("queries of rows", out.len(), tokens * shape.heads * shape.row());
    expect("frequencies", rotation.frequencies.len(), shape.rotated / 2);
    let arguments = LatentRotateArguments {
        query: query.address,
        out: out.address,
        frequencies: rotation.frequencies.address,
        positions: positions.address,
        heads: shape.heads as u32,
        plain: shape.plain as u32,
        rank: shape.rank as u32,
        rotated: shape.rotated as u32,
        neighbours: u32::from(shape.neighbours),
        magnitude: rotation.magnitude,
    };
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch(Kernel::RotateLatent, (tokens, 1, 1), 256, 0, &arguments) }
}

/// Products of each head's first values of `x [tokens, heads, x_width]` with its rows of the matrix, into its first
/// values of `out [tokens, heads, out_width]`.
///
/// # Errors
/// The device failed.
///
/// # Panics
/// When lengths do not fit the shapes.
pub fn latent_heads(
    stream: &Stream,
    (tokens, heads): (usize, usize),
    rows: &HeadMatrix,
    (x, x_width): (Span<f32>, usize),
    (out, out_width): (Span<f32>, usize),
) -> Result<(), CudaError> {
    let columns = rows.matrix.columns();
    assert!(columns <= x_width && rows.count <= out_width, "values of heads within their rows");
    expect(
        "rows of heads",
        rows.matrix.rows(),
        (heads - 1) * rows.stride + rows.first + rows.count,
    );
    expect("values of heads", x.len(), tokens * heads * x_width);
    expect("products of heads", out.len(), tokens * heads * out_width);
    let arguments = LatentHeadsArguments {
        matrix: rows.matrix,
        x: x.address,
        out: out.address,
        tokens: tokens as u32,
        heads: heads as u32,
        x_width: x_width as u32,
        out_width: out_width as u32,
        stride: rows.stride as u32,
        first: rows.first as u32,
        count: rows.count as u32,
        padding: 0,
    };
    if rows.matrix.has_blocks() {
        let grid = (rows.count.div_ceil(8), heads, tokens);
        // SAFETY: as below.
        return unsafe {
            stream.launch(Kernel::LatentHeadsBlocks, grid, 256, staged(columns), &arguments)
        };
    }
    let lanes = columns.div_ceil(32).next_power_of_two().min(32);
    let grid = (rows.count.div_ceil(8 * (32 / lanes)), heads, tokens.div_ceil(LATENT_TOKENS));
    let shared = tokens.min(LATENT_TOKENS) * staged(columns);
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch(Kernel::LatentHeads, grid, 256, shared, &arguments) }
}

/// A kernel of attention, pairs of a token and a head of a block, and bytes of shared memory: on tensor cores, or the
/// plain one by device, type and width of rows.
fn kernel(
    stream: &Stream,
    shape: &LatentShape,
    kv_type: KvType,
    [single, chosen]: [bool; 2],
) -> (Kernel, usize, usize) {
    let bf16 = match kv_type {
        KvType::F16 => Some(false),
        KvType::Bf16 => Some(true),
        KvType::F32 | KvType::Q8 | KvType::Fp8 { .. } => None,
    };
    let device = stream.device();
    let recent = device.info().capability.0 >= 8 && shape.row().is_multiple_of(8);
    // Two tiles of rows, and quarters of the dots.
    let shared = 2 * STEP_KEYS * LATENT_ROW * 2 + 4 * LATENT_PAIRS * LATENT_PITCH * 4;
    if let Some(bf16) = bf16.filter(|_| recent && shared <= device.shared_limit()) {
        let kernel = match (chosen, bf16) {
            (false, false) => Kernel::AttendLatentF16,
            (false, true) => Kernel::AttendLatentBf16,
            (true, false) => Kernel::AttendChosenF16,
            (true, true) => Kernel::AttendChosenBf16,
        };
        return (kernel, LATENT_PAIRS, shared);
    }
    let shared = LATENT_KEYS * LATENT_ROW * 4;
    match (chosen, single) {
        (true, _) => (Kernel::AttendChosen2, PLAIN_STEP_PAIRS, shared),
        (false, true) => (Kernel::AttendLatent2, PLAIN_STEP_PAIRS, shared),
        (false, false) => (Kernel::AttendLatent4, PLAIN_CHUNK_PAIRS, shared),
    }
}

/// What meets rows, and what becomes of it.
#[derive(Clone, Copy)]
pub struct LatentAttention {
    /// `[tokens, heads, rank + rotated]`
    pub query: Span<f32>,
    /// `[tokens, heads, rank]`: sums of the latents.
    pub out: Span<f32>,
    /// [`latent_scratch`] values where tokens are runs of their own.
    pub scratch: Span<f32>,
    /// Of scores.
    pub scale: f32,
    /// Rows that tokens see; all where there are none.
    pub chosen: Option<ChosenRows>,
}

/// Rows that tokens see at most.
#[derive(Clone, Copy)]
pub struct ChosenRows {
    /// `[tokens, top]`: ascending, of tokens whose position is `top` or more; others see all rows.
    pub rows: Span<u32>,
    /// How many.
    pub top: usize,
}

/// Sums of the latents that queries meet in the cache, which holds the tokens' own rows.
///
/// # Errors
/// The device failed.
pub fn attend_latent(
    stream: &Stream,
    shape: &LatentShape,
    places: &TokenPlaces,
    cache: &LatentCache,
    attention: &LatentAttention,
) -> Result<(), CudaError> {
    let tokens = places.positions.len();
    let pairs = tokens * shape.heads;
    assert!(serves_latent(shape.rank, shape.rotated, cache.kv_type), "rows that are served");
    expect("sequences of tokens", places.sequences.len(), tokens);
    expect("queries of rows", attention.query.len(), pairs * shape.row());
    expect("sums of latents", attention.out.len(), pairs * shape.rank);
    let splits = if places.single { shape.splits() } else { 1 };
    if splits > 1 {
        expect("scratch of attention", attention.scratch.len(), latent_scratch(shape, tokens));
    }
    let chosen = attention.chosen;
    if let Some(chosen) = chosen {
        expect("chosen rows", chosen.rows.len(), tokens * chosen.top);
    }
    // Rows of one token are not those of the next where they are chosen.
    let apart = places.single || chosen.is_some();
    let arguments = LatentArguments {
        query: attention.query.address,
        cache: cache.rows.address,
        out: attention.out.address,
        partial: attention.scratch.address,
        positions: places.positions.address,
        sequences: places.sequences.address,
        chosen: chosen.map_or(0, |chosen| chosen.rows.address),
        heads: shape.heads as u32,
        rank: shape.rank as u32,
        row: shape.row() as u32,
        context: cache.context as u32,
        splits: splits as u32,
        tokens: tokens as u32,
        scale: attention.scale * std::f32::consts::LOG2_E,
        kv_type: cache_type(cache.kv_type),
        single: u32::from(apart),
        top: chosen.map_or(u32::MAX, |chosen| chosen.top as u32),
    };
    let which = [places.single, chosen.is_some()];
    let (kernel, together, shared) = kernel(stream, shape, cache.kv_type, which);
    let grid = match apart {
        true => (shape.heads.div_ceil(together), splits, tokens),
        false => (pairs.div_ceil(together), 1, 1),
    };
    // SAFETY: the structure is the kernels'; lengths were checked above; positions lie within the context by the
    // caller's batch, and chosen rows are positions before a token's own by `choose_rows`.
    unsafe {
        stream.launch(kernel, grid, 256, shared, &arguments)?;
        if splits > 1 {
            let grid = (shape.heads, tokens, shape.rank.div_ceil(64));
            stream.launch(Kernel::JoinLatent, grid, 256, 0, &arguments)?;
        }
    }
    Ok(())
}

mirrors! {
    LatentRowArguments as LatentRowArguments {
        rows, norm, frequencies, positions, sequences, cache, rank, rotated, context, kv_type, neighbours, epsilon,
        magnitude, padding
    } for AppendLatent;
    LatentRotateArguments as LatentRotateArguments {
        query, out, frequencies, positions, heads, plain, rank, rotated, neighbours, magnitude
    } for RotateLatent;
    LatentHeadsArguments as LatentHeadsArguments {
        matrix, x, out, tokens, heads, x_width, out_width, stride, first, count, padding
    } for LatentHeads, LatentHeadsBlocks;
    LatentArguments as LatentArguments {
        query, cache, out, partial, positions, sequences, chosen, heads, rank, row, context, splits, tokens, scale,
        kv_type, single, top
    } for AttendLatent2, AttendLatent4, JoinLatent, AttendLatentF16, AttendLatentBf16, AttendChosen2, AttendChosenF16,
        AttendChosenBf16;
}

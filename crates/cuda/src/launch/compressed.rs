//! Launches of rows of compressed attention: rotation of heads, rows of the window, compressed rows
//! (`kernels/compressed.cu`).

use kernels::KvType;

use super::attention::cache_type;
use super::{Kernel, Rotation, TokenPlaces, expect};
use crate::abi::{CacheType, mirrors};
use crate::{CudaError, Span, Stream};

#[derive(Clone, Copy)]
#[repr(C)]
struct TurnArguments {
    x: u64,
    weight: u64,
    frequencies: u64,
    positions: u64,
    heads: u32,
    dim: u32,
    rotated: u32,
    norm: u32,
    epsilon: f32,
    magnitude: f32,
    direction: f32,
    transform: f32,
}

/// What happens to heads beside their rotation.
#[derive(Clone, Copy)]
pub enum Turn {
    /// An RMS norm of each head first, with what is added to the mean square and a weight `[dim]` or none.
    Normed(f32, Option<Span<f32>>),
    /// Nothing else.
    Alone,
    /// Afterwards a Hadamard transform and rounding to 4 bits, in place.
    Rounded,
    /// Back instead.
    Back,
}

/// `dim^-1/2`, which keeps lengths in a Hadamard transform.
fn transform_scale(dim: usize) -> f32 {
    (dim as f64).powf(-0.5) as f32
}

/// Rotation of the last values of each head of `x` `[tokens, heads, dim]`, in pairs of neighbours.
///
/// # Errors
/// The device failed.
pub fn turn_heads(
    stream: &Stream,
    (heads, dim): (usize, usize),
    x: Span<f32>,
    rotation: Rotation,
    positions: Span<u32>,
    turn: Turn,
) -> Result<(), CudaError> {
    let (tokens, frequencies) = (positions.len(), rotation.frequencies);
    expect("heads", x.len(), tokens * heads * dim);
    assert!(2 * frequencies.len() <= dim, "rotated values within a head");
    let (norm, weight) = match turn {
        Turn::Normed(epsilon, weight) => (Some(epsilon), weight),
        _ => (None, None),
    };
    expect("weights of a norm", weight.map_or(dim, |weight| weight.len()), dim);
    let transform = match turn {
        Turn::Rounded => transform_scale(dim),
        _ => 0.0,
    };
    assert!(transform == 0.0 || dim.is_power_of_two(), "a power of two values");
    let arguments = TurnArguments {
        x: x.address,
        weight: weight.map_or(0, |weight| weight.address),
        frequencies: frequencies.address,
        positions: positions.address,
        heads: heads as u32,
        dim: dim as u32,
        rotated: 2 * frequencies.len() as u32,
        norm: u32::from(norm.is_some()),
        epsilon: norm.unwrap_or(0.0),
        magnitude: rotation.magnitude,
        direction: if matches!(turn, Turn::Back) { -1.0 } else { 1.0 },
        transform,
    };
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe {
        stream.launch_overlapping(Kernel::TurnHeads, (heads, tokens, 1), 128, dim * 4, &arguments)
    }
}

/// What a layer keeps of sequences, and the tokens of a batch that a launch is about.
#[derive(Clone, Copy)]
pub struct SequenceRows {
    /// The tokens.
    pub places: TokenPlaces,
    /// The layer's part of the first sequence's state and what follows it.
    pub states: Span<f32>,
    /// Values of a sequence's state.
    pub state_stride: usize,
    /// Pages of all sequences.
    pub pages: Span<u8>,
    /// Bytes of a sequence's pages.
    pub sequence_bytes: usize,
    /// Bytes of a page.
    pub page_bytes: usize,
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Tokens of a compressed row; 0 in layers without.
    pub ratio: usize,
    /// Whether compressed rows take part of the tokens of the row before as well.
    pub overlap: bool,
    /// Last positions that a token sees as they are.
    pub window: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct SequenceRowsArguments {
    positions: u64,
    sequences: u64,
    starts: u64,
    states: u64,
    pages: u64,
    state_stride: u64,
    sequence_bytes: u64,
    page_bytes: u64,
    tokens: u32,
    single: u32,
    page_tokens: u32,
    ratio: u32,
    overlap: u32,
    window: u32,
}

impl SequenceRows {
    pub(super) fn tokens(&self) -> usize {
        self.places.positions.len()
    }

    pub(super) fn arguments(&self) -> SequenceRowsArguments {
        expect("sequences of tokens", self.places.sequences.len(), self.tokens());
        assert!(self.ratio == 0 || self.page_tokens.is_multiple_of(self.ratio), "rows in pages");
        SequenceRowsArguments {
            positions: self.places.positions.address,
            sequences: self.places.sequences.address,
            starts: self.places.runs.map_or(0, |runs| runs.starts.address),
            states: self.states.address,
            pages: self.pages.address,
            state_stride: self.state_stride as u64,
            sequence_bytes: self.sequence_bytes as u64,
            page_bytes: self.page_bytes as u64,
            tokens: self.tokens() as u32,
            single: u32::from(self.places.single),
            page_tokens: self.page_tokens as u32,
            ratio: self.ratio as u32,
            overlap: u32::from(self.overlap),
            window: self.window as u32,
        }
    }
}

/// How rows, or keys by which rows are chosen, are stored, and where in a page.
#[derive(Clone, Copy)]
pub struct StoredRows {
    /// Values of a row.
    pub dim: usize,
    /// Their type; `None` for keys in 4 bits, behind a Hadamard transform.
    pub kind: Option<KvType>,
    /// Where rows of the layer begin in a page.
    pub place: usize,
    /// Bytes of a row.
    pub bytes: usize,
}

impl StoredRows {
    pub(super) fn code(&self) -> u32 {
        self.kind.map_or(CacheType::Fp4 as u32, cache_type)
    }

    /// Last values of a row that are not rounded to 8 bits.
    pub(super) fn plain(&self) -> u32 {
        match self.kind {
            Some(KvType::Fp8 { rotated }) => u32::from(rotated),
            _ => 0,
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct WindowArguments {
    rows: SequenceRowsArguments,
    keys: u64,
    span: u64,
    dim: u32,
    kind: u32,
    rotated: u32,
    bytes: u32,
}

impl WindowArguments {
    fn new(rows: &SequenceRows, stored: &StoredRows, keys: Span<f32>, span: Span<u8>) -> Self {
        expect("keys", keys.len(), rows.tokens() * stored.dim);
        expect("rows of the batch", span.len(), rows.tokens() * stored.bytes);
        Self {
            rows: rows.arguments(),
            keys: keys.address,
            span: span.address,
            dim: stored.dim as u32,
            kind: stored.code(),
            rotated: stored.plain(),
            bytes: stored.bytes as u32,
        }
    }
}

/// `span` `[tokens, stored.bytes]` = the rows of `keys` `[tokens, stored.dim]`.
///
/// # Errors
/// The device failed.
pub fn store_window_rows(
    stream: &Stream,
    rows: &SequenceRows,
    stored: &StoredRows,
    keys: Span<f32>,
    span: Span<u8>,
) -> Result<(), CudaError> {
    let arguments = WindowArguments::new(rows, stored, keys, span);
    let (grid, shared) = ((rows.tokens(), 1, 1), stored.dim * 4);
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch_overlapping(Kernel::StoreWindowRows, grid, 128, shared, &arguments) }
}

/// Keeps the last rows of each run, as [`store_window_rows`] left them, as the window of the next.
///
/// # Errors
/// The device failed.
pub fn keep_window_rows(
    stream: &Stream,
    rows: &SequenceRows,
    stored: &StoredRows,
    keys: Span<f32>,
    span: Span<u8>,
) -> Result<(), CudaError> {
    let arguments = WindowArguments::new(rows, stored, keys, span);
    // SAFETY: the structure is the kernel's; lengths were checked above, places of states by the caller's layout.
    unsafe {
        stream.launch_overlapping(Kernel::KeepWindowRows, (rows.tokens(), 1, 1), 128, 0, &arguments)
    }
}

/// What makes compressed rows of a layer, or the keys by which they are chosen.
#[derive(Clone, Copy)]
pub struct Pool {
    /// Values of tokens, `[tokens, width]`: of two rows where they overlap.
    pub values: Span<f32>,
    /// Their gates.
    pub gates: Span<f32>,
    /// Added to gates by place within a row, `[ratio, width]`.
    pub added: Span<f32>,
    /// Norm of rows, `[dim]`.
    pub norm: Span<f32>,
    /// Added to the mean square.
    pub epsilon: f32,
    /// Rotation of rows.
    pub rotation: Rotation,
    /// Where values of the last tokens lie in the layer's part of a state; their gates follow.
    pub tail: usize,
    /// Where rows go.
    pub stored: StoredRows,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct PoolArguments {
    rows: SequenceRowsArguments,
    values: u64,
    gates: u64,
    added: u64,
    norm: u64,
    frequencies: u64,
    tail: u32,
    dim: u32,
    kind: u32,
    place: u32,
    bytes: u32,
    plain: u32,
    rotated: u32,
    epsilon: f32,
    magnitude: f32,
    transform: f32,
}

/// Makes the compressed rows that tokens complete, then keeps values and gates of the last tokens of each run.
///
/// # Errors
/// The device failed.
pub fn pool_rows(stream: &Stream, rows: &SequenceRows, pool: &Pool) -> Result<(), CudaError> {
    let dim = pool.stored.dim;
    let (tokens, width) = (rows.tokens(), if rows.overlap { 2 * dim } else { dim });
    expect("values for rows", pool.values.len(), tokens * width);
    expect("gates for rows", pool.gates.len(), tokens * width);
    expect("what is added to gates", pool.added.len(), rows.ratio * width);
    expect("norm of rows", pool.norm.len(), dim);
    let arguments = PoolArguments {
        rows: rows.arguments(),
        values: pool.values.address,
        gates: pool.gates.address,
        added: pool.added.address,
        norm: pool.norm.address,
        frequencies: pool.rotation.frequencies.address,
        tail: pool.tail as u32,
        dim: dim as u32,
        kind: pool.stored.code(),
        place: pool.stored.place as u32,
        bytes: pool.stored.bytes as u32,
        plain: pool.stored.plain(),
        rotated: 2 * pool.rotation.frequencies.len() as u32,
        epsilon: pool.epsilon,
        magnitude: pool.rotation.magnitude,
        transform: transform_scale(dim),
    };
    // SAFETY: the structure is the kernels'; lengths were checked above, places by the caller's layout.
    unsafe {
        stream.launch_overlapping(Kernel::PoolRows, (tokens, 1, 1), 256, dim * 4, &arguments)?;
        stream.launch_overlapping(Kernel::KeepGates, (tokens, 1, 1), 256, 0, &arguments)
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct TransposeArguments {
    x: u64,
    out: u64,
    first: u32,
    second: u32,
    width: u32,
    padding: u32,
}

/// `out` `[second, first, width]` = `x` `[first, second, width]`.
///
/// # Errors
/// The device failed.
pub fn transpose_rows(
    stream: &Stream,
    (first, second, width): (usize, usize, usize),
    x: Span<f32>,
    out: Span<f32>,
) -> Result<(), CudaError> {
    expect("rows", x.len(), first * second * width);
    expect("rows", out.len(), first * second * width);
    let arguments = TransposeArguments {
        x: x.address,
        out: out.address,
        first: first as u32,
        second: second as u32,
        width: width as u32,
        padding: 0,
    };
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe {
        stream.launch_overlapping(Kernel::TransposeRows, (first, second, 1), 128, 0, &arguments)
    }
}

mirrors! {
    TurnArguments as TurnArguments {
        x, weight, frequencies, positions, heads, dim, rotated, norm, epsilon, magnitude, direction, transform
    } for TurnHeads;
    SequenceRowsArguments as SequenceRows {
        positions, sequences, starts, states, pages, state_stride, sequence_bytes, page_bytes, tokens, single,
        page_tokens, ratio, overlap, window
    };
    WindowArguments as WindowArguments { rows, keys, span, dim, kind, rotated, bytes }
        for StoreWindowRows, KeepWindowRows;
    PoolArguments as PoolArguments {
        rows, values, gates, added, norm, frequencies, tail, dim, kind, place, bytes, plain, rotated, epsilon,
        magnitude, transform
    } for PoolRows, KeepGates;
    TransposeArguments as TransposeArguments { x, out, first, second, width, padding } for TransposeRows;
}

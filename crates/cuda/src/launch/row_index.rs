//! Launches of what latent rows are chosen by (`kernels/row_index.cu`).

use kernels::KvType;

use super::compressed::{SequenceRows, SequenceRowsArguments, StoredRows};
use super::{Kernel, Rotation, expect};
use crate::abi::mirrors;
use crate::{CudaError, Span, Stream};

/// Queries and keys of an indexer of latent rows.
#[derive(Clone, Copy)]
pub struct RowIndex {
    /// `[tokens, heads, keys.dim]`
    pub queries: Span<f32>,
    /// A key of each token as the matrix gave it, `[tokens, keys.dim]`.
    pub values: Span<f32>,
    /// What each head weighs, `[tokens, heads]`; multiplied by what split queries are divided by.
    pub factors: Span<f32>,
    /// Whether queries are split for scores on tensor cores, as [`splits_queries`] says.
    pub split: bool,
    /// Weight and bias of the norm of keys, `[keys.dim]`.
    pub norm: [Span<f32>; 2],
    /// Added to the variance.
    pub epsilon: f32,
    /// Of the first values of queries and of keys.
    pub rotation: Rotation,
    /// Whether values `2j` and `2j + 1` are rotated together; else `j` and `j + rotated / 2`.
    pub neighbours: bool,
    /// Heads.
    pub heads: usize,
    /// How index keys are stored.
    pub keys: StoredRows,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct RowIndexArguments {
    rows: SequenceRowsArguments,
    queries: u64,
    keys: u64,
    norm: u64,
    bias: u64,
    frequencies: u64,
    factors: u64,
    heads: u32,
    dim: u32,
    rotated: u32,
    neighbours: u32,
    kind: u32,
    place: u32,
    bytes: u32,
    epsilon: f32,
    magnitude: f32,
    split: u32,
}

/// Heads that a tile of tensor cores has.
const TILE_HEADS: usize = 16;

/// Bytes of shared memory of scores on tensor cores: a token's split queries and factors, of whole tiles of heads.
pub(super) fn split_shared(heads: usize, dim: usize) -> usize {
    heads.next_multiple_of(TILE_HEADS) * ((2 * dim + 8) * 2 + 4)
}

/// Whether scores are computed on tensor cores, from queries in two parts of 16 bits: by device, and by how index keys
/// are stored.
pub fn splits_queries(
    stream: &Stream,
    rows: &SequenceRows,
    keys: &StoredRows,
    heads: usize,
) -> bool {
    let aligned = |bytes: usize| bytes.is_multiple_of(16);
    stream.device().info().capability.0 >= 8
        && keys.kind == Some(KvType::F16)
        && matches!(keys.dim, 64 | 128)
        && [keys.place, rows.page_bytes, rows.sequence_bytes].into_iter().all(aligned)
        && split_shared(heads, keys.dim) <= PLAIN_SHARED
}

/// Bytes of shared memory that every block may have.
const PLAIN_SHARED: usize = 48 << 10;

/// Rotates the queries in place, and stores the tokens' index keys, normed and rotated, in pages. Of both, values of a
/// pair are left half the rotated values apart.
///
/// # Errors
/// The device failed.
pub fn make_row_index(
    stream: &Stream,
    rows: &SequenceRows,
    index: &RowIndex,
) -> Result<(), CudaError> {
    let (tokens, dim) = (rows.tokens(), index.keys.dim);
    let rotated = 2 * index.rotation.frequencies.len();
    expect("queries of an indexer", index.queries.len(), tokens * index.heads * dim);
    expect("keys of an indexer", index.values.len(), tokens * dim);
    expect("factors of heads", index.factors.len(), tokens * index.heads);
    index.norm.iter().for_each(|part| expect("weights of a norm", part.len(), dim));
    assert!(rotated <= dim, "rotated values within a head");
    assert_eq!(rows.ratio, 1, "a token has an index key of its own");
    let arguments = RowIndexArguments {
        rows: rows.arguments(),
        queries: index.queries.address,
        keys: index.values.address,
        norm: index.norm[0].address,
        bias: index.norm[1].address,
        frequencies: index.rotation.frequencies.address,
        factors: index.factors.address,
        heads: index.heads as u32,
        dim: dim as u32,
        rotated: rotated as u32,
        neighbours: u32::from(index.neighbours),
        kind: index.keys.code(),
        place: index.keys.place as u32,
        bytes: index.keys.bytes as u32,
        epsilon: index.epsilon,
        magnitude: index.rotation.magnitude,
        split: u32::from(index.split),
    };
    let grid = (index.heads + 1, tokens, 1);
    // SAFETY: the structure is the kernel's; lengths were checked above, places of keys by the caller's layout.
    unsafe { stream.launch_overlapping(Kernel::MakeRowIndex, grid, 128, 2 * dim * 4, &arguments) }
}

mirrors! {
    RowIndexArguments as RowIndexArguments {
        rows, queries, keys, norm, bias, frequencies, factors, heads, dim, rotated, neighbours, kind, place, bytes,
        epsilon, magnitude, split
    } for MakeRowIndex;
}

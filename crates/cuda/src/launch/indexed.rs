//! Launches of attention to the keys that an indexer chooses (`kernels/indexed.cu`).

use super::attention::cache_type;
use super::compressed::{SequenceRows, SequenceRowsArguments, StoredRows};
use super::compressed_attention::{Scoring, TOGETHER, plain_shared};
use super::{AttentionShape, INDEX_DIM, Kernel, KeyValueCache, Rotation, TokenPlaces, expect};
use crate::abi::{UNIT_DIM, UNIT_PARTS, mirrors};
use crate::{CudaError, Span, Stream};

/// Heads of a block of attention, and keys that it decodes together (`UNIT_HEADS`, `UNIT_KEYS` there).
const UNIT_HEADS: usize = 16;
const UNIT_KEYS: usize = 32;

/// Queries and keys of an indexer.
#[derive(Clone, Copy)]
pub struct IndexRows {
    /// `[tokens, heads + 1, keys.dim]`: queries, and behind them the token's key, as the matrix gave them.
    pub both: Span<f32>,
    /// Norms of queries and of index keys, `[keys.dim]`.
    pub norms: [Span<f32>; 2],
    /// Of queries by position, of index keys by the first of their unit.
    pub rotation: Rotation,
    /// Heads.
    pub heads: usize,
    /// Added to the mean squares.
    pub epsilon: f32,
    /// How index keys are stored.
    pub keys: StoredRows,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct IndexArguments {
    rows: SequenceRowsArguments,
    both: u64,
    query_norm: u64,
    key_norm: u64,
    frequencies: u64,
    heads: u32,
    dim: u32,
    rotated: u32,
    kind: u32,
    place: u32,
    bytes: u32,
    epsilon: f32,
    magnitude: f32,
}

/// Norms and rotates the queries in place, makes the index keys of units that the tokens complete, and keeps the keys
/// of the run's last `rows.window` tokens in the states of the sequences, `[rows.window, keys.dim]` by position.
///
/// # Errors
/// The device failed.
pub fn index_rows(
    stream: &Stream,
    rows: &SequenceRows,
    index: &IndexRows,
) -> Result<(), CudaError> {
    let (tokens, dim) = (rows.tokens(), index.keys.dim);
    expect("queries and keys of an indexer", index.both.len(), tokens * (index.heads + 1) * dim);
    index.norms.iter().for_each(|norm| expect("weights of a norm", norm.len(), dim));
    assert!(2 * index.rotation.frequencies.len() <= dim, "rotated values within a head");
    assert!(rows.ratio > 0 && rows.window >= rows.ratio, "the keys of a unit are kept");
    let arguments = IndexArguments {
        rows: rows.arguments(),
        both: index.both.address,
        query_norm: index.norms[0].address,
        key_norm: index.norms[1].address,
        frequencies: index.rotation.frequencies.address,
        heads: index.heads as u32,
        dim: dim as u32,
        rotated: 2 * index.rotation.frequencies.len() as u32,
        kind: index.keys.code(),
        place: index.keys.place as u32,
        bytes: index.keys.bytes as u32,
        epsilon: index.epsilon,
        magnitude: index.rotation.magnitude,
    };
    let (queries, each, shared) = ((index.heads, tokens, 1), (tokens, 1, 1), dim * 4);
    // SAFETY: the structure is the kernels'; lengths were checked above, places of keys by the caller's layout.
    unsafe {
        stream.launch_overlapping(Kernel::TurnIndexQueries, queries, 128, shared, &arguments)?;
        stream.launch_overlapping(Kernel::MakeIndexKeys, each, 128, shared, &arguments)?;
        stream.launch_overlapping(Kernel::KeepIndexKeys, each, 128, 0, &arguments)
    }
}

/// How units are chosen.
#[derive(Clone, Copy)]
pub struct UnitChoice {
    /// As [`IndexRows::both`], with the queries as [`index_rows`] left them.
    pub both: Span<f32>,
    /// Scratch `[tokens, most]`.
    pub scores: Span<f32>,
    /// `[tokens, top]`: the units of tokens that may choose among more than `top`, ascending.
    pub chosen: Span<u32>,
    /// How index keys are stored.
    pub keys: StoredRows,
    /// Heads.
    pub heads: usize,
    /// Units that a token sees at most.
    pub top: usize,
    /// Most units that there are of a sequence.
    pub most: usize,
}

/// Chooses units for the tokens that may choose among more than `top`: those of the greatest sums over heads of the
/// positive part of query times key; of equal ones the first.
///
/// # Errors
/// The device failed.
pub fn choose_units(
    stream: &Stream,
    rows: &SequenceRows,
    choice: &UnitChoice,
) -> Result<(), CudaError> {
    let (tokens, dim) = (rows.tokens(), choice.keys.dim);
    assert!(dim <= INDEX_DIM, "keys within the kernels' limit");
    expect("queries of an indexer", choice.both.len(), tokens * (choice.heads + 1) * dim);
    if choice.most <= choice.top {
        return Ok(());
    }
    expect("scores", choice.scores.len(), tokens * choice.most);
    expect("chosen units", choice.chosen.len(), tokens * choice.top);
    let scoring = Scoring {
        kernel: Kernel::ScoreUnits,
        shared: plain_shared(choice.heads),
        query: choice.both.address,
        factors: 0,
        scores: choice.scores,
        chosen: choice.chosen,
        keys: choice.keys,
        heads: choice.heads,
        top: choice.top,
        most: choice.most,
        together: if rows.places.single { 1 } else { TOGETHER },
    };
    scoring.launch(stream, rows)
}

/// Attention to chosen units and to the tokens behind the last complete one.
#[derive(Clone, Copy)]
pub struct UnitAttention {
    /// `[tokens, query_heads, dim]`
    pub query: Span<f32>,
    /// As `query`.
    pub out: Span<f32>,
    /// Scratch of [`unit_attention_scratch`] values for tokens that are runs of their own.
    pub partial: Span<f32>,
    /// `[tokens, top]`, as [`choose_units`] left them.
    pub chosen: Span<u32>,
    /// Tokens of a unit.
    pub unit: usize,
    /// Units that a token sees at most.
    pub top: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct UnitAttentionArguments {
    query: u64,
    cache_keys: u64,
    cache_values: u64,
    out: u64,
    partial: u64,
    positions: u64,
    sequences: u64,
    chosen: u64,
    query_heads: u32,
    key_value_heads: u32,
    dim: u32,
    context: u32,
    kv_type: u32,
    unit: u32,
    top: u32,
    parts: u32,
    part_keys: u32,
    scale: f32,
}

/// Most keys that a token sees which chooses among units of `unit` tokens at most `top`.
fn most_keys(unit: usize, top: usize) -> usize {
    (top + 1) * unit - 1
}

/// Parts that the keys of a step's token are cut into, and keys of a part.
fn parts(unit: usize, top: usize) -> (usize, usize) {
    let most = most_keys(unit, top);
    let keys = most.div_ceil(UNIT_PARTS).next_multiple_of(UNIT_KEYS);
    (most.div_ceil(keys), keys)
}

/// Values of the scratch of [`attend_units`] for `tokens` tokens that are runs of their own.
pub fn unit_attention_scratch(
    shape: &AttentionShape,
    tokens: usize,
    (unit, top): (usize, usize),
) -> usize {
    tokens * shape.query_heads * parts(unit, top).0 * (shape.dim + 2)
}

/// Attention of each token to the units that were chosen for it, or to all keys where none were, whose rows are in the
/// cache.
///
/// # Errors
/// The device failed.
pub fn attend_units(
    stream: &Stream,
    shape: &AttentionShape,
    places: &TokenPlaces,
    cache: &KeyValueCache,
    attention: &UnitAttention,
) -> Result<(), CudaError> {
    let (tokens, dim) = (places.positions.len(), shape.dim);
    assert!(dim <= UNIT_DIM, "heads within the kernels' limit");
    let (parts, part_keys) =
        if places.single { parts(attention.unit, attention.top) } else { (1, 0) };
    let width = shape.query_heads * dim;
    expect("queries", attention.query.len(), tokens * width);
    expect("context", attention.out.len(), tokens * width);
    expect("sequences of tokens", places.sequences.len(), tokens);
    expect("chosen units", attention.chosen.len(), tokens * attention.top);
    if parts > 1 {
        let needed = tokens * shape.query_heads * parts * (dim + 2);
        expect("scratch of parts", attention.partial.len(), needed);
    }
    let arguments = UnitAttentionArguments {
        query: attention.query.address,
        cache_keys: cache.keys.address,
        cache_values: cache.values.address,
        out: attention.out.address,
        partial: attention.partial.address,
        positions: places.positions.address,
        sequences: places.sequences.address,
        chosen: attention.chosen.address,
        query_heads: shape.query_heads as u32,
        key_value_heads: shape.key_value_heads as u32,
        dim: dim as u32,
        context: cache.context as u32,
        kv_type: cache_type(cache.kv_type),
        unit: attention.unit as u32,
        top: attention.top as u32,
        parts: parts as u32,
        part_keys: part_keys as u32,
        scale: shape.scale.unwrap_or_else(|| (dim as f32).powf(-0.5)),
    };
    let blocks = (shape.query_heads / shape.key_value_heads).div_ceil(UNIT_HEADS);
    let grid = (shape.key_value_heads * blocks, tokens, parts);
    let shared = (UNIT_HEADS * dim + UNIT_KEYS * (dim + 1)) * 4;
    // SAFETY: the structure is the kernels'; lengths were checked above, those of the cache by the caller's layout.
    unsafe {
        stream.launch_overlapping(Kernel::AttendUnits, grid, 256, shared, &arguments)?;
        if parts > 1 {
            let grid = (shape.query_heads, tokens, 1);
            stream.launch_overlapping(Kernel::JoinUnitParts, grid, 128, 0, &arguments)?;
        }
    }
    Ok(())
}

mirrors! {
    IndexArguments as IndexArguments {
        rows, both, query_norm, key_norm, frequencies, heads, dim, rotated, kind, place, bytes, epsilon, magnitude
    } for TurnIndexQueries, MakeIndexKeys, KeepIndexKeys;
    UnitAttentionArguments as UnitAttentionArguments {
        query, cache_keys, cache_values, out, partial, positions, sequences, chosen, query_heads, key_value_heads, dim,
        context, kv_type, unit, top, parts, part_keys, scale
    } for AttendUnits, JoinUnitParts;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One lane joins each part; parts have whole tiles and take in all keys.
    #[test]
    fn parts_take_in_all_keys() {
        for (unit, top) in [(4, 512), (4, 4), (1, 2048), (16, 128), (4, 1), (1, 1), (4, 100_000)] {
            let ((parts, keys), most) = (parts(unit, top), most_keys(unit, top));
            assert!(parts <= UNIT_PARTS && keys.is_multiple_of(UNIT_KEYS), "{unit} {top}");
            assert!((parts - 1) * keys < most && most <= parts * keys, "{unit} {top}");
        }
    }
}

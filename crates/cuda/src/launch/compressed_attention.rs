//! Launches of the choice of compressed rows and of attention over them (`kernels/compressed_attention.cu`).

use super::compressed::{SequenceRows, SequenceRowsArguments, StoredRows};
use super::row_index::split_shared;
use super::{INDEX_DIM, Kernel, ROW_DIM, expect};
use crate::abi::mirrors;
use crate::{CudaError, Span, Stream};

/// Rows that one block scores (`SCORED_ROWS` in `kernels/compressed_attention.cu`).
pub(super) const SCORED_ROWS: usize = 128;
/// Rows among which a block chooses, where there are parts (`CHOICE_PART` in `kernels/scores.cuh`).
const CHOICE_PART: usize = 16_384;
/// Heads of a block of attention, and rows that it decodes together.
const ROW_HEADS: usize = 16;
const ROW_TILE: usize = 16;
/// Most parts that the rows of a step's token are cut into (`ROW_PARTS` there).
const PARTS_LIMIT: usize = 32;

/// How compressed rows are chosen.
#[derive(Clone, Copy)]
pub struct RowChoice {
    /// Queries `[tokens, heads, keys.dim]`.
    pub query: Span<f32>,
    /// What each head weighs, `[tokens, heads]`.
    pub factors: Span<f32>,
    /// Scratch `[tokens, most]`; where it has more, a step's tokens use it to choose in parts.
    pub scores: Span<f32>,
    /// `[tokens, top]`: the rows of tokens that see more than `top`, ascending.
    pub chosen: Span<u32>,
    /// The rows' keys.
    pub keys: StoredRows,
    /// Heads.
    pub heads: usize,
    /// Rows that a token sees at most.
    pub top: usize,
    /// Most compressed rows that there are of a sequence.
    pub most: usize,
    /// Whether queries are split (`splits_queries`): rows are then tokens.
    pub split: bool,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ScoreArguments {
    rows: SequenceRowsArguments,
    query: u64,
    factors: u64,
    scores: u64,
    chosen: u64,
    candidates: u64,
    heads: u32,
    dim: u32,
    kind: u32,
    place: u32,
    bytes: u32,
    top: u32,
    stride: u32,
    together: u32,
    parts: u32,
    padding: u32,
}

/// Chooses rows for the tokens that see more than `top`: those of the greatest sums over heads of a factor times the
/// positive part of query times key; of equal ones the first.
///
/// # Errors
/// The device failed.
pub fn choose_rows(
    stream: &Stream,
    rows: &SequenceRows,
    choice: &RowChoice,
) -> Result<(), CudaError> {
    let (tokens, dim) = (rows.tokens(), choice.keys.dim);
    assert!(dim <= INDEX_DIM, "keys within the kernels' limit");
    expect("queries", choice.query.len(), tokens * choice.heads * dim);
    expect("factors of heads", choice.factors.len(), tokens * choice.heads);
    expect("scores", choice.scores.len(), tokens * choice.most);
    expect("chosen rows", choice.chosen.len(), tokens * choice.top);
    if choice.most <= choice.top {
        return Ok(());
    }
    let (kernel, shared) = match (choice.split, dim) {
        (false, _) => (Kernel::ScoreRows, plain_shared(choice.heads)),
        (true, 64) => (Kernel::ScoreSplit64, split_shared(choice.heads, dim)),
        (true, _) => (Kernel::ScoreSplit128, split_shared(choice.heads, dim)),
    };
    let scoring = Scoring {
        kernel,
        shared,
        query: choice.query.address,
        factors: choice.factors.address,
        scores: choice.scores,
        chosen: choice.chosen,
        keys: choice.keys,
        heads: choice.heads,
        top: choice.top,
        most: choice.most,
        together: if choice.split && !rows.places.single { TOGETHER } else { 1 },
    };
    scoring.launch(stream, rows)
}

/// Bytes of shared memory of scores in f32: a token's queries.
pub(super) fn plain_shared(heads: usize) -> usize {
    heads * INDEX_DIM * 4
}

/// Tokens of a prompt for which a block scores keys together: it reads them once.
pub(super) const TOGETHER: usize = 8;

/// The second half of [`choose_rows`]: chooses by `scores` `[tokens, most]`, of tokens that see more than `top` rows;
/// with scratch as there.
///
/// # Errors
/// The device failed.
pub fn choose_scored(
    stream: &Stream,
    rows: &SequenceRows,
    (scores, most): (Span<f32>, usize),
    chosen: Span<u32>,
    top: usize,
) -> Result<(), CudaError> {
    let tokens = rows.tokens();
    expect("scores", scores.len(), tokens * most);
    expect("chosen rows", chosen.len(), tokens * top);
    let keys = StoredRows { dim: 0, kind: None, place: 0, bytes: 0 };
    let scoring = Scoring {
        kernel: Kernel::ChooseRows,
        shared: 0,
        query: 0,
        factors: 0,
        scores,
        chosen,
        keys,
        heads: 0,
        top,
        most,
        together: 1,
    };
    scoring.choose(stream, rows, &scoring.arguments(rows))
}

/// What rows or units are scored and chosen by; its user has checked the lengths.
pub(super) struct Scoring {
    pub(super) kernel: Kernel,
    /// Bytes of shared memory of a block.
    pub(super) shared: usize,
    pub(super) query: u64,
    /// What each head weighs; 0 without.
    pub(super) factors: u64,
    pub(super) scores: Span<f32>,
    pub(super) chosen: Span<u32>,
    pub(super) keys: StoredRows,
    pub(super) heads: usize,
    pub(super) top: usize,
    pub(super) most: usize,
    /// Tokens that a block scores.
    pub(super) together: usize,
}

impl Scoring {
    /// Scores, then chooses for every token.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn launch(&self, stream: &Stream, rows: &SequenceRows) -> Result<(), CudaError> {
        let arguments = self.arguments(rows);
        let tokens = rows.tokens();
        let grid = (self.most.div_ceil(SCORED_ROWS), tokens.div_ceil(self.together), 1);
        // SAFETY: the structure is the kernel's; lengths were checked by the user, places of keys by its layout.
        unsafe {
            stream.launch_overlapping(self.kernel, grid, SCORED_ROWS, self.shared, &arguments)?;
        }
        self.choose(stream, rows, &arguments)
    }

    fn choose(
        &self,
        stream: &Stream,
        rows: &SequenceRows,
        arguments: &ScoreArguments,
    ) -> Result<(), CudaError> {
        let (tokens, parts) = (rows.tokens(), arguments.parts as usize);
        // SAFETY: the structure is both kernels'; lengths were checked by the user, room for candidates by `parts`.
        unsafe {
            if parts > 0 {
                let grid = (parts, tokens, 1);
                stream.launch_overlapping(Kernel::ChooseParts, grid, 1024, 0, arguments)?;
            }
            stream.launch_overlapping(Kernel::ChooseRows, (tokens, 1, 1), 1024, 0, arguments)
        }
    }

    /// Parts in which rows are chosen first, so that a step's few tokens have more than a block each; 0 without.
    fn parts(&self, rows: &SequenceRows) -> usize {
        let (tokens, parts) = (rows.tokens(), self.most.div_ceil(CHOICE_PART));
        let room = tokens * (self.most + 2 * parts * self.top) <= self.scores.len();
        let few = rows.places.single && parts > 1 && self.top <= CHOICE_PART;
        if few && room { parts } else { 0 }
    }

    fn arguments(&self, rows: &SequenceRows) -> ScoreArguments {
        ScoreArguments {
            rows: rows.arguments(),
            query: self.query,
            factors: self.factors,
            scores: self.scores.address,
            chosen: self.chosen.address,
            candidates: self.scores.address + (4 * rows.tokens() * self.most) as u64,
            heads: self.heads as u32,
            dim: self.keys.dim as u32,
            kind: self.keys.code(),
            place: self.keys.place as u32,
            bytes: self.keys.bytes as u32,
            top: self.top as u32,
            stride: self.most as u32,
            together: self.together as u32,
            parts: self.parts(rows) as u32,
            padding: 0,
        }
    }
}

/// Attention over rows that are key and value of all heads.
#[derive(Clone, Copy)]
pub struct RowAttention {
    /// `[tokens, heads, stored.dim]`
    pub query: Span<f32>,
    /// As `query`.
    pub out: Span<f32>,
    /// Scratch of [`row_attention_scratch`] values for tokens that are runs of their own.
    pub partial: Span<f32>,
    /// Rows of the batch's tokens, as [`super::store_window_rows`] left them.
    pub span: Span<u8>,
    /// Chosen rows `[tokens, top]`, and `top`; `None` where all compressed rows are seen.
    pub chosen: Option<(Span<u32>, usize)>,
    /// Scores that only take weight from the others, `[heads]`.
    pub sinks: Span<f32>,
    /// Heads.
    pub heads: usize,
    /// Most rows that a token sees.
    pub most: usize,
    /// How rows are stored; `place` is that of compressed rows.
    pub stored: StoredRows,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct RowAttentionArguments {
    rows: SequenceRowsArguments,
    query: u64,
    out: u64,
    partial: u64,
    span: u64,
    chosen: u64,
    sinks: u64,
    heads: u32,
    dim: u32,
    kind: u32,
    plain: u32,
    place: u32,
    bytes: u32,
    top: u32,
    parts: u32,
    part_rows: u32,
    scale: f32,
}

/// Parts that up to `most` rows of a step's token are cut into, and rows of a part.
fn parts(most: usize) -> (usize, usize) {
    let rows = most.div_ceil(PARTS_LIMIT).next_multiple_of(ROW_TILE);
    (most.div_ceil(rows), rows)
}

/// Values of the scratch of [`attend_rows`] for `tokens` tokens that are runs of their own and see up to `most` rows.
pub fn row_attention_scratch(tokens: usize, heads: usize, dim: usize, most: usize) -> usize {
    tokens * heads * parts(most).0 * (dim + 2)
}

/// Attention of each token over the rows of its window, then the compressed rows that it sees.
///
/// # Errors
/// The device failed.
pub fn attend_rows(
    stream: &Stream,
    rows: &SequenceRows,
    attention: &RowAttention,
) -> Result<(), CudaError> {
    let (tokens, heads, dim) = (rows.tokens(), attention.heads, attention.stored.dim);
    assert!(dim <= ROW_DIM, "rows within the kernels' limit");
    let (parts, part_rows) = if rows.places.single { parts(attention.most) } else { (1, 0) };
    expect("queries", attention.query.len(), tokens * heads * dim);
    expect("context", attention.out.len(), tokens * heads * dim);
    expect("rows of the batch", attention.span.len(), tokens * attention.stored.bytes);
    expect("sinks", attention.sinks.len(), heads);
    if let Some((chosen, top)) = attention.chosen {
        expect("chosen rows", chosen.len(), tokens * top);
    }
    if parts > 1 {
        expect("scratch of parts", attention.partial.len(), tokens * heads * parts * (dim + 2));
    }
    let arguments = RowAttentionArguments {
        rows: rows.arguments(),
        query: attention.query.address,
        out: attention.out.address,
        partial: attention.partial.address,
        span: attention.span.address,
        chosen: attention.chosen.map_or(0, |(chosen, _)| chosen.address),
        sinks: attention.sinks.address,
        heads: heads as u32,
        dim: dim as u32,
        kind: attention.stored.code(),
        plain: attention.stored.plain(),
        place: attention.stored.place as u32,
        bytes: attention.stored.bytes as u32,
        top: attention.chosen.map_or(0, |(_, top)| top as u32),
        parts: parts as u32,
        part_rows: part_rows as u32,
        scale: (dim as f32).powf(-0.5),
    };
    let grid = (heads.div_ceil(ROW_HEADS), tokens, parts);
    let shared = ROW_TILE * dim * 4;
    // SAFETY: the structure is the kernels'; lengths were checked above, places of rows by the caller's layout.
    unsafe {
        stream.launch_overlapping(Kernel::AttendRows, grid, 512, shared, &arguments)?;
        if parts > 1 {
            stream.launch_overlapping(
                Kernel::JoinRowParts,
                (heads, tokens, 1),
                128,
                0,
                &arguments,
            )?;
        }
    }
    Ok(())
}

mirrors! {
    ScoreArguments as ScoreArguments {
        rows, query, factors, scores, chosen, candidates, heads, dim, kind, place, bytes, top, stride, together, parts,
        padding
    } for ScoreRows, ChooseParts, ChooseRows, ScoreUnits, ScoreSplit64, ScoreSplit128;
    RowAttentionArguments as RowAttentionArguments {
        rows, query, out, partial, span, chosen, sinks, heads, dim, kind, plain, place, bytes, top, parts, part_rows,
        scale
    } for AttendRows, JoinRowParts;
}

//! Launches of a head: what its layer reads, experts that a draft leaves out, and the way from one draft to the next.

use super::{Kernel, TOP_K_LIMIT, TokenPlaces, expect};
use crate::abi::mirrors;
use crate::{CudaError, Span, Stream};

#[derive(Clone, Copy)]
#[repr(C)]
struct PairArguments {
    embedded: u64,
    outputs: u64,
    ring: u64,
    positions: u64,
    sequences: u64,
    starts: u64,
    drafted: u64,
    embedding_norm: u64,
    output_norm: u64,
    pairs: u64,
    ring_stride: u64,
    ring_rows: u32,
    ring_width: u32,
    hidden: u32,
    keep: u32,
    epsilon: f32,
    padding: u32,
}

/// Outputs of the trunk that sequences keep, by position: of each `rows` rows, `width` values apart.
#[derive(Clone, Copy)]
pub struct OutputRing {
    /// From the first sequence's ring on.
    pub values: Span<f32>,
    /// Values from one sequence's ring to the next one's.
    pub stride: usize,
    /// Positions that have a row.
    pub rows: usize,
    /// Values from one row to the next; an output is at its beginning.
    pub width: usize,
}

/// What the token of a pair has before it.
#[derive(Clone, Copy)]
pub enum PairsOf {
    /// Runs of a step: outputs of the trunk `[tokens, hidden]`, which the ring keeps, and of each token the first of
    /// its run. Runs have fewer tokens than the ring has rows.
    Step(Span<f32>, Span<u32>),
    /// One run of a prompt: the same outputs, and none is kept.
    Prompt(Span<f32>),
    /// A draft: behind others the head's own output `[hidden]`, and how many others there were.
    Draft(Span<f32>, Span<u32>),
}

/// Where [`pair_rows`] reads and writes.
#[derive(Clone, Copy)]
pub struct Pairs {
    /// Embeddings of the tokens, `[tokens, hidden]`.
    pub embedded: Span<f32>,
    /// What lies before them.
    pub of: PairsOf,
    /// Outputs from before the runs.
    pub ring: OutputRing,
    /// Norms of an embedding and of an output, `[hidden]` each.
    pub norms: [Span<f32>; 2],
    /// Added to the mean square.
    pub epsilon: f32,
    /// `[tokens, 2, hidden]`
    pub pairs: Span<f32>,
}

/// The halves of each token's pair, normed: its embedding, and the output at the token before it, which is zero before
/// a sequence's first.
///
/// # Errors
/// The device failed.
pub fn pair_rows(stream: &Stream, places: &TokenPlaces, rows: &Pairs) -> Result<(), CudaError> {
    let (tokens, hidden) = (places.positions.len(), rows.norms[0].len());
    let (outputs, starts, drafted, keep) = match rows.of {
        PairsOf::Step(outputs, starts) => (outputs, Some(starts), None, true),
        PairsOf::Prompt(outputs) => (outputs, None, None, false),
        PairsOf::Draft(output, drafted) => (output, None, Some(drafted), false),
    };
    expect("starts of runs", starts.map_or(tokens, |starts| starts.len()), tokens);
    assert!(drafted.is_none() || tokens == 1, "a draft is one token");
    expect("embeddings", rows.embedded.len(), tokens * hidden);
    expect("outputs", outputs.len(), tokens * hidden);
    expect("norm of outputs", rows.norms[1].len(), hidden);
    expect("pairs", rows.pairs.len(), 2 * tokens * hidden);
    expect("sequences of tokens", places.sequences.len(), tokens);
    expect("values of a ring's row", rows.ring.width, hidden);
    expect("a ring", rows.ring.values.len(), rows.ring.rows * rows.ring.width);
    let arguments = PairArguments {
        embedded: rows.embedded.address,
        outputs: outputs.address,
        ring: rows.ring.values.address,
        positions: places.positions.address,
        sequences: places.sequences.address,
        starts: starts.map_or(0, |starts| starts.address),
        drafted: drafted.map_or(0, |drafted| drafted.address),
        embedding_norm: rows.norms[0].address,
        output_norm: rows.norms[1].address,
        pairs: rows.pairs.address,
        ring_stride: rows.ring.stride as u64,
        ring_rows: rows.ring.rows as u32,
        ring_width: rows.ring.width as u32,
        hidden: hidden as u32,
        keep: u32::from(keep),
        epsilon: rows.epsilon,
        padding: 0,
    };
    // SAFETY: the structure is the kernel's; lengths were checked above, positions, sequences and runs by the caller's
    // batch.
    unsafe { stream.launch_overlapping(Kernel::PairRows, (2, tokens, 1), 256, 0, &arguments) }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct LeaveOutArguments {
    chosen: u64,
    weights: u64,
    addresses: u64,
    k: u32,
    padding: u32,
}

/// Leaves the experts out of one token's choice that have no address, so that nothing waits for them.
///
/// # Errors
/// The device failed.
pub fn leave_out_absent(
    stream: &Stream,
    chosen: Span<u32>,
    weights: Span<f32>,
    addresses: Span<u64>,
) -> Result<(), CudaError> {
    let k = chosen.len();
    assert!(k <= TOP_K_LIMIT, "top-k within the kernels' limit");
    expect("weights", weights.len(), k);
    expect("addresses", addresses.len(), k);
    let arguments = LeaveOutArguments {
        chosen: chosen.address,
        weights: weights.address,
        addresses: addresses.address,
        k: k as u32,
        padding: 0,
    };
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch_overlapping(Kernel::LeaveOutAbsent, (1, 1, 1), 32, 0, &arguments) }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct TakeDraftArguments {
    token: u64,
    uses: u64,
    input: u64,
    position: u64,
    row: u64,
    drafted: u64,
    tokens: u64,
    used: u64,
    k: u32,
    padding: u32,
}

/// Where [`take_draft`] reads and writes. Words where nothing else is said.
#[derive(Clone, Copy)]
pub struct TakeDraft {
    /// The draft, as [`super::arg_max`] gives it.
    pub token: Span<u32>,
    /// The experts that its mixture chose, `[k]`.
    pub uses: Span<u32>,
    /// Becomes the draft, which the next one reads.
    pub input: Span<u32>,
    /// Becomes the next one's position.
    pub position: Span<u32>,
    /// Becomes the next one's row among those that drafts see.
    pub row: Span<u32>,
    /// Counts drafts, from 0.
    pub drafted: Span<u32>,
    /// By draft: the token, in pinned memory.
    pub tokens: Span<u32>,
    /// By draft: the experts, in pinned memory.
    pub used: Span<u32>,
}

/// Goes on to the next draft. `tokens` and `used` have room for all that are made before `drafted` is set to 0 again.
///
/// # Errors
/// The device failed.
pub fn take_draft(stream: &Stream, draft: &TakeDraft) -> Result<(), CudaError> {
    let k = draft.uses.len();
    assert!(k <= TOP_K_LIMIT, "top-k within the kernels' limit");
    expect("experts of all drafts", draft.used.len(), draft.tokens.len() * k);
    for word in [draft.token, draft.input, draft.position, draft.row, draft.drafted] {
        expect("a word", word.len(), 1);
    }
    let arguments = TakeDraftArguments {
        token: draft.token.address,
        uses: draft.uses.address,
        input: draft.input.address,
        position: draft.position.address,
        row: draft.row.address,
        drafted: draft.drafted.address,
        tokens: draft.tokens.address,
        used: draft.used.address,
        k: k as u32,
        padding: 0,
    };
    // SAFETY: the structure is the kernel's; lengths were checked above, how many drafts there are by the caller.
    unsafe { stream.launch(Kernel::TakeDraft, (1, 1, 1), 32, 0, &arguments) }
}

mirrors! {
    PairArguments as PairArguments {
        embedded, outputs, ring, positions, sequences, starts, drafted, embedding_norm, output_norm, pairs,
        ring_stride, ring_rows, ring_width, hidden, keep, epsilon, padding
    } for PairRows;
    LeaveOutArguments as LeaveOutArguments { chosen, weights, addresses, k, padding } for LeaveOutAbsent;
    TakeDraftArguments as TakeDraftArguments {
        token, uses, input, position, row, drafted, tokens, used, k, padding
    } for TakeDraft;
}

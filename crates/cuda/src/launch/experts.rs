//! Launches of the mixture of experts: routing, the feed-forward of few and of many tokens.

use super::parts::{ExpertActivation, ExpertPartsArguments};
use super::scored::{Scored, ScoredRouteArguments};
use super::tile_few::few_tiles;
use super::tiles::SMALL_TOKENS;
use super::{DEPTH_WORDS, EXPERTS_LIMIT, Kernel, STATUS_WORDS, TOP_K_LIMIT, expect, staged};
use crate::abi::{BlockKind, mirrors};
use crate::{CudaError, ExpertShapes, Matrix, Span, Stream};

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct RouteArguments {
    logits: u64,
    replaced: u64,
    table: u64,
    chosen: u64,
    weights: u64,
    addresses: u64,
    uses: u64,
    ring: u64,
    posted: u64,
    status: u64,
    copies: u64,
    expert_scales: u64,
    guess: GuessArguments,
    experts: u32,
    k: u32,
    normalise: u32,
    first_key: u32,
    ring_mask: u32,
    ask: u32,
    layer: u32,
    padding: u32,
}

/// What [`route`] guesses of the next layer's choice.
#[derive(Clone, Copy)]
pub struct Guess {
    /// What the next layer's router makes of this layer's input, `[tokens, experts]`.
    pub logits: Span<f32>,
    /// The next layer's row of the address table, `[experts]`.
    pub table: Span<u64>,
    /// The experts guessed, `[tokens, k]`, best first.
    pub guesses: Span<u32>,
    /// [`DEPTH_WORDS`] in pinned memory: how many ranks are asked for when their records are in host memory, and when
    /// they are on disk. Requests go to [`Routing::ring`] with [`super::PREFETCH`].
    pub depths: Span<u32>,
    /// Records here are not asked for.
    pub device_slots: Span<u8>,
    /// Told at once when all that this layer chose is there.
    pub ended: Ended,
}

/// All zero where nothing is guessed.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct GuessArguments {
    logits: u64,
    table: u64,
    guesses: u64,
    depths: u64,
    ended: u64,
    device_slots: u64,
    device_bytes: u64,
}

impl GuessArguments {
    fn new(guess: &Guess) -> Self {
        Self {
            logits: guess.logits.address,
            table: guess.table.address,
            guesses: guess.guesses.address,
            depths: guess.depths.address,
            ended: guess.ended.word.address,
            device_slots: guess.device_slots.address,
            device_bytes: guess.device_slots.length as u64,
        }
    }
}

/// Where the host is told that a layer has read all that it reads over the bus.
#[derive(Clone, Copy)]
pub struct Ended {
    /// A word of device memory, 0 at first.
    pub blocks: Span<u32>,
    /// A word of pinned memory: becomes 1 + `layer`.
    pub word: Span<u32>,
    /// The layer.
    pub layer: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct EndedArguments {
    blocks: u64,
    word: u64,
    layer: u32,
    padding: u32,
}

impl EndedArguments {
    pub(super) fn new(ended: Option<&Ended>) -> Self {
        Self {
            blocks: ended.map_or(0, |ended| ended.blocks.address),
            word: ended.map_or(0, |ended| ended.word.address),
            layer: ended.map_or(0, |ended| ended.layer),
            padding: 0,
        }
    }
}

/// Where [`route`] reads and writes. Choices are `[tokens, k]`, ascending by expert within a token.
#[derive(Clone, Copy)]
pub struct Routing {
    /// `[tokens, experts]`
    pub logits: Span<f32>,
    /// Used instead of `logits` where given.
    pub replaced: Option<Span<f32>>,
    /// The layer's row of the address table, `[experts]`.
    pub table: Span<u64>,
    /// The experts chosen.
    pub chosen: Span<u32>,
    /// Their weights.
    pub weights: Span<f32>,
    /// Where their records are; 0 for those asked for.
    pub addresses: Span<u64>,
    /// A copy of `chosen`, one for each layer of a step; with [`super::FROM_COPY`] where a copy is read.
    pub uses: Span<u32>,
    /// Requests, a power of two of words in pinned memory: key + 1, zeroed by the thread that takes them.
    pub ring: Span<u64>,
    /// Requests so far; selects the word of the next.
    pub posted: Span<u32>,
    /// [`STATUS_WORDS`] in pinned memory; the first becomes 1 + the token whose logits are not numbers.
    pub status: Span<u32>,
    /// Addresses of copies of the layer's records, `[experts]`: 0 where there is none, with [`super::COPYING`] where it
    /// is under way.
    pub copies: Option<Span<u64>>,
    /// Factors of the chosen experts' weights, `[experts]`.
    pub expert_scales: Option<Span<f32>>,
    /// What is guessed of the next layer.
    pub guess: Option<Guess>,
    /// Key of the layer's first expert.
    pub first_key: u32,
    /// Experts per token.
    pub k: usize,
    /// Whether weights are scaled to sum to one.
    pub normalise: bool,
    /// What experts are chosen by, where it is not the softmax of the logits alone.
    pub scored: Option<Scored>,
    /// Whether missing records are asked for.
    pub ask: bool,
}

/// Softmax over all experts, or scores of another kind, the `k` best, their records' addresses.
///
/// # Errors
/// The device failed.
pub fn route(stream: &Stream, tokens: usize, routing: &Routing) -> Result<(), CudaError> {
    let (experts, k) = (routing.table.len(), routing.k);
    let kernel = match experts {
        0..=256 => Kernel::Route256,
        257..=512 => Kernel::Route512,
        _ => Kernel::Route1024,
    };
    let arguments = route_arguments(tokens, routing);
    let grid = (tokens, 1 + usize::from(routing.guess.is_some()), 1);
    if let Some(scored) = &routing.scored {
        let all = ScoredRouteArguments::new(arguments, scored, experts, k);
        // SAFETY: as below.
        return unsafe { stream.launch_overlapping(Kernel::RouteScored, grid, 32, 0, &all) };
    }
    // SAFETY: the structure is the kernel's; its lengths were checked.
    unsafe { stream.launch_overlapping(kernel, grid, 32, 0, &arguments) }
}

/// What kernels that route are told; lengths are checked.
pub(super) fn route_arguments(tokens: usize, routing: &Routing) -> RouteArguments {
    let (experts, k) = (routing.table.len(), routing.k);
    assert!(k <= TOP_K_LIMIT && k <= experts, "top-k within the kernels' limit");
    assert!(experts <= EXPERTS_LIMIT, "experts within the kernels' limit");
    assert!(routing.ring.len().is_power_of_two(), "a ring of a power of two");
    expect("words of status", routing.status.len(), STATUS_WORDS);
    expect("router logits", routing.replaced.unwrap_or(routing.logits).len(), tokens * experts);
    let shortest =
        [routing.chosen.len(), routing.weights.len(), routing.addresses.len(), routing.uses.len()];
    shortest.iter().for_each(|&length| expect("choices", length, tokens * k));
    if let Some(guess) = &routing.guess {
        expect("guessed logits", guess.logits.len(), tokens * experts);
        expect("table of the next layer", guess.table.len(), experts);
        expect("guesses", guess.guesses.len(), tokens * k);
        expect("depths", guess.depths.len(), DEPTH_WORDS);
    }
    expect("copies", routing.copies.map_or(experts, |span| span.len()), experts);
    let scales = routing.expert_scales.map_or(experts, |span| span.len());
    expect("factors of experts", scales, experts);
    RouteArguments {
        logits: routing.logits.address,
        replaced: routing.replaced.map_or(0, |span| span.address),
        table: routing.table.address,
        chosen: routing.chosen.address,
        weights: routing.weights.address,
        addresses: routing.addresses.address,
        uses: routing.uses.address,
        ring: routing.ring.address,
        posted: routing.posted.address,
        status: routing.status.address,
        copies: routing.copies.map_or(0, |span| span.address),
        expert_scales: routing.expert_scales.map_or(0, |span| span.address),
        guess: routing.guess.as_ref().map(GuessArguments::new).unwrap_or_default(),
        experts: experts as u32,
        k: k as u32,
        normalise: u32::from(routing.normalise),
        first_key: routing.first_key,
        ring_mask: routing.ring.len() as u32 - 1,
        ask: u32::from(routing.ask),
        layer: routing.guess.map_or(0, |guess| guess.ended.layer),
        padding: 0,
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ExpertArguments {
    x: u64,
    chosen: u64,
    weights: u64,
    addresses: u64,
    answers: u64,
    status: u64,
    inner: u64,
    shared_inner: u64,
    shared_gate: u64,
    out: u64,
    copies: u64,
    experts: ExpertShapes,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
    ended: EndedArguments,
    hidden: u32,
    k: u32,
    first_key: u32,
    padding: u32,
}

/// The shared expert of a layer for [`experts`].
#[derive(Clone, Copy)]
pub struct SharedExpert {
    /// `[shared, hidden]`
    pub gate: Matrix,
    /// `[shared, hidden]`
    pub up: Matrix,
    /// `[hidden, shared]`
    pub down: Matrix,
    /// Its weight before the sigmoid, `[tokens]`.
    pub factor: Span<f32>,
    /// Scratch `[tokens, shared]`.
    pub inner: Span<f32>,
}

/// Where [`experts`] reads and writes.
#[derive(Clone, Copy)]
pub struct ExpertStep {
    /// The normed stream, `[tokens, hidden]`.
    pub x: Span<f32>,
    /// From [`route`].
    pub chosen: Span<u32>,
    /// From [`route`].
    pub weights: Span<f32>,
    /// From [`route`].
    pub addresses: Span<u64>,
    /// By key, in pinned memory: the address of a record asked for, or [`super::FAILED`].
    pub answers: Span<u64>,
    /// [`STATUS_WORDS`] in pinned memory; word [`super::GIVEN_UP`] ends the waiting for answers when the host sets it,
    /// and is set by the device when it has waited for as long as word [`super::PATIENCE`] says.
    pub status: Span<u32>,
    /// Scratch `[tokens, k, inner]`.
    pub inner: Span<f32>,
    /// The residual stream, `[tokens, hidden]`, to which the mixture is added.
    pub out: Span<f32>,
    /// As in [`Routing`].
    pub copies: Option<Span<u64>>,
    /// Told when the last record has been read.
    pub ended: Option<Ended>,
    /// Key of the layer's first expert.
    pub first_key: u32,
    /// Experts per token.
    pub k: usize,
}

/// `out += sum of experts by ascending id + shared expert`, for few tokens. Records that were asked for are
/// waited for by the blocks that need them; a failed one leaves the output undefined, and its reader knows.
///
/// # Errors
/// The device failed.
pub fn experts(
    stream: &Stream,
    tokens: usize,
    step: &ExpertStep,
    shapes: &ExpertShapes,
    shared: Option<&SharedExpert>,
) -> Result<(), CudaError> {
    experts_activated(stream, tokens, step, shapes, shared, None)
}

/// True for experts in 4-bit floats whose rows are at most two stages of 64 columns a lane: of these a warp asks for a
/// whole row at once.
fn in_planes(shapes: &ExpertShapes) -> bool {
    let planes = Some(BlockKind::Mxfp4Planes as u32);
    let served = |matrix: &Matrix| {
        let columns = matrix.columns();
        matrix.block_kind() == planes && columns.is_multiple_of(64) && columns <= 2 * 32 * 64
    };
    [shapes.gate, shapes.up, shapes.down].iter().all(served)
}

/// As [`experts`], where routed experts compute something else than SwiGLU.
///
/// # Errors
/// The device failed.
pub fn experts_activated(
    stream: &Stream,
    tokens: usize,
    step: &ExpertStep,
    shapes: &ExpertShapes,
    shared: Option<&SharedExpert>,
    activation: Option<&ExpertActivation>,
) -> Result<(), CudaError> {
    let (hidden, inner, k) = (shapes.gate.columns(), shapes.inner(), step.k);
    expect("input of the experts", step.x.len(), tokens * hidden);
    expect("output of the experts", step.out.len(), tokens * hidden);
    expect("inner values", step.inner.len(), tokens * k * inner);
    expect("words of status", step.status.len(), STATUS_WORDS);
    for length in [step.chosen.len(), step.weights.len(), step.addresses.len()] {
        expect("choices", length, tokens * k);
    }
    let width = shared.map_or(0, |shared| shared.gate.rows());
    if let Some(shared) = shared {
        expect("factors of the shared expert", shared.factor.len(), tokens);
        expect("inner values of the shared expert", shared.inner.len(), tokens * width);
    }
    let none = Matrix { rows: 0, ..shapes.gate };
    let arguments = ExpertArguments {
        x: step.x.address,
        chosen: step.chosen.address,
        weights: step.weights.address,
        addresses: step.addresses.address,
        answers: step.answers.address,
        status: step.status.address,
        inner: step.inner.address,
        shared_inner: shared.map_or(0, |shared| shared.inner.address),
        shared_gate: shared.map_or(0, |shared| shared.factor.address),
        out: step.out.address,
        copies: step.copies.map_or(0, |span| span.address),
        experts: *shapes,
        gate: shared.map_or(none, |shared| shared.gate),
        up: shared.map_or(none, |shared| shared.up),
        down: shared.map_or(none, |shared| shared.down),
        ended: EndedArguments::new(step.ended.as_ref()),
        hidden: hidden as u32,
        k: k as u32,
        first_key: step.first_key,
        padding: 0,
    };
    let dense = shared.into_iter().flat_map(|shared| [shared.gate, shared.up, shared.down]);
    let blocks = [shapes.gate, shapes.up, shapes.down].into_iter().chain(dense);
    let [first, second] = match blocks.into_iter().any(|matrix| matrix.has_blocks()) {
        true => [Kernel::ExpertInnerBlocks, Kernel::ExpertOuterBlocks],
        false => [Kernel::ExpertInner, Kernel::ExpertOuter],
    };
    let ranks = k + usize::from(shared.is_some());
    let inner_grid = (inner.max(width).div_ceil(8), ranks, tokens);
    let outer_shared = k * staged(inner) + staged(width);
    let outer_grid = (hidden.div_ceil(8), tokens, 1);
    if let Some(activation) = activation {
        let count = activation.experts(shapes);
        let all = ExpertPartsArguments::new(arguments, activation, shapes, count);
        let [first, second] = match shared.is_none() && in_planes(shapes) {
            true => [Kernel::ExpertInnerPartsPlanes, Kernel::ExpertOuterPartsPlanes],
            false => [Kernel::ExpertInnerParts, Kernel::ExpertOuterParts],
        };
        // SAFETY: as below.
        return unsafe {
            stream.launch_overlapping(first, inner_grid, 256, staged(hidden), &all)?;
            stream.launch_overlapping(second, outer_grid, 256, outer_shared, &all)
        };
    }
    // SAFETY: the structure is the kernels'; lengths were checked above; records lie where the table says.
    unsafe {
        stream.launch(first, inner_grid, 256, staged(hidden), &arguments)?;
        stream.launch(second, outer_grid, 256, outer_shared, &arguments)
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct GroupArguments {
    chosen: u64,
    starts: u64,
    pair_token: u64,
    place: u64,
    tokens: u32,
    k: u32,
    experts: u32,
    padding: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct SwigluArguments {
    gate: u64,
    up: u64,
    count: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct CombineArguments {
    routed: u64,
    place: u64,
    weights: u64,
    shared: u64,
    shared_gate: u64,
    out: u64,
    hidden: u32,
    k: u32,
}

/// The pairs (token, expert) of a batch, sorted by expert.
#[derive(Clone, Copy)]
pub struct Groups {
    /// First pair of each expert, and one past the last: `[experts + 1]`.
    pub starts: Span<u32>,
    /// Token of each pair, `[pairs]`.
    pub pair_token: Span<u32>,
    /// Where each token's pairs are, `[tokens, k]`.
    pub place: Span<u32>,
    /// Scratch: `[tile_limit(pairs, experts), 3]`.
    pub tiles: Span<u32>,
    /// Scratch: one word.
    pub tile_count: Span<u32>,
}

/// Most tiles that the pairs of a batch make.
pub fn tile_limit(pairs: usize, experts: usize) -> usize {
    (pairs / SMALL_TOKENS).max(few_tiles(pairs, experts)) + experts.min(pairs)
}

/// Sorts the choices `[tokens, k]` by expert.
///
/// # Errors
/// The device failed.
pub fn group(
    stream: &Stream,
    chosen: Span<u32>,
    tokens: usize,
    k: usize,
    groups: &Groups,
) -> Result<(), CudaError> {
    let experts = groups.starts.len() - 1;
    for length in [chosen.len(), groups.pair_token.len(), groups.place.len()] {
        expect("pairs", length, tokens * k);
    }
    let arguments = GroupArguments {
        chosen: chosen.address,
        starts: groups.starts.address,
        pair_token: groups.pair_token.address,
        place: groups.place.address,
        tokens: tokens as u32,
        k: k as u32,
        experts: experts as u32,
        padding: 0,
    };
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch(Kernel::GroupPairs, (1, 1, 1), 1024, experts * 4, &arguments) }
}

/// `gate = SiLU(gate) * up` over `count` values.
///
/// # Errors
/// The device failed.
pub fn swiglu(
    stream: &Stream,
    gate: Span<f32>,
    up: Span<f32>,
    count: usize,
) -> Result<(), CudaError> {
    expect("gate values", gate.len(), count);
    expect("up values", up.len(), count);
    let arguments = SwigluArguments { gate: gate.address, up: up.address, count: count as u64 };
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch(Kernel::Swiglu, (count.div_ceil(256), 1, 1), 256, 0, &arguments) }
}

/// Adds the experts of each token to `out` `[tokens, hidden]` by ascending id, the shared expert (outputs and
/// factors before the sigmoid) last.
///
/// # Errors
/// The device failed.
#[allow(clippy::too_many_arguments, reason = "what the kernel is told, in its order")]
pub fn combine(
    stream: &Stream,
    tokens: usize,
    hidden: usize,
    k: usize,
    routed: Span<f32>,
    groups: &Groups,
    weights: Span<f32>,
    shared: Option<(Span<f32>, Span<f32>)>,
    out: Span<f32>,
) -> Result<(), CudaError> {
    expect("outputs of pairs", routed.len(), tokens * k * hidden);
    expect("weights", weights.len(), tokens * k);
    expect("residual stream", out.len(), tokens * hidden);
    let arguments = CombineArguments {
        routed: routed.address,
        place: groups.place.address,
        weights: weights.address,
        shared: shared.map_or(0, |(values, _)| values.address),
        shared_gate: shared.map_or(0, |(_, factors)| factors.address),
        out: out.address,
        hidden: hidden as u32,
        k: k as u32,
    };
    // Of few tokens, the columns are shared out as well.
    let busy = 2 * stream.device().info().multiprocessors;
    let slices = (busy / tokens.max(1)).clamp(1, hidden.div_ceil(256));
    // SAFETY: the structure is the kernel's; lengths were checked above.
    unsafe { stream.launch(Kernel::Combine, (tokens, slices, 1), 256, 0, &arguments) }
}

mirrors! {
    GuessArguments as Guess { logits, table, guesses, depths, ended, device_slots, device_bytes };
    RouteArguments as RouteArguments {
        logits, replaced, table, chosen, weights, addresses, uses, ring, posted, status, copies, expert_scales, guess,
        experts, k, normalise, first_key, ring_mask, ask, layer, padding
    } for Route256, Route512, Route1024;
    EndedArguments as Ended { blocks, word, layer, padding };
    ExpertArguments as ExpertArguments {
        x, chosen, weights, addresses, answers, status, inner, shared_inner, shared_gate, out, copies, experts, gate,
        up, down, ended, hidden, k, first_key, padding
    } for ExpertInner, ExpertOuter, ExpertInnerBlocks, ExpertOuterBlocks;
    GroupArguments as GroupArguments { chosen, starts, pair_token, place, tokens, k, experts, padding } for GroupPairs;
    SwigluArguments as SwigluArguments { gate, up, count } for Swiglu;
    CombineArguments as CombineArguments { routed, place, weights, shared, shared_gate, out, hidden, k } for Combine;
}

//! Launches of the routed experts of many tokens: each expert's tokens together, in tiles.

use super::parts::{ExpertActivation, prepare_pairs};
use super::tile_few::{Few, few_tile, launch_few_grouped};
use super::tiles::{SMALL_TOKENS, TileArguments, TileSplitArguments, launch_split, tile_kernel};
use super::{
    Groups, Kernel, SPLIT_TOKENS, SplitForm, SplitTokens, TILE_TOKENS, expect, split, split_form,
    swiglu, tile_limit,
};
use crate::abi::{ExpertPart, mirrors};
use crate::{CudaError, Device, ExpertShapes, Matrix, Span, Stream};

#[derive(Clone, Copy)]
#[repr(C)]
struct TileListArguments {
    starts: u64,
    addresses: u64,
    tiles: u64,
    count: u64,
    experts: u32,
    tile: u32,
}

/// Buffers of the routed experts of many tokens.
#[derive(Clone, Copy)]
pub struct PairBuffers {
    /// `[pairs, inner]`
    pub gate: Span<f32>,
    /// `[pairs, inner]`
    pub up: Span<f32>,
    /// `[pairs, hidden]`
    pub out: Span<f32>,
}

/// Split activations of the routed experts of many tokens.
#[derive(Clone, Copy)]
pub struct ExpertParts {
    /// The tokens, already split.
    pub tokens: SplitTokens,
    /// Memory for the inner values of all pairs.
    pub inner: SplitTokens,
}

/// True when products of many tokens with these experts take split activations, weights being aligned to
/// [`super::STEP_ALIGNMENT`].
pub fn split_serves_experts(device: &Device, shapes: &ExpertShapes) -> bool {
    split_form_of_experts(device, shapes).is_some()
}

/// The form in which those take them.
pub fn split_form_of_experts(device: &Device, shapes: &ExpertShapes) -> Option<SplitForm> {
    let [gate, up, down] =
        [&shapes.gate, &shapes.up, &shapes.down].map(|matrix| split_form(device, matrix));
    let alike = shapes.gate.bits == shapes.up.bits && shapes.gate.group == shapes.up.group;
    let alike = alike || gate == Some(SplitForm::Blocks);
    gate.filter(|_| alike && gate == up && gate == down)
}

/// True when one launch makes the products of both.
fn same_kernel(gate: &Matrix, up: &Matrix) -> bool {
    match gate.quantised_bits() {
        None => (gate.kind, gate.bits) == (up.kind, up.bits),
        bits => bits == up.quantised_bits(),
    }
}

/// Feed-forward of all pairs whose expert has an address in `addresses` `[experts]`; with `parts` where
/// [`split_serves_experts`] the shapes. Where there is an `activation`, the experts compute that instead of SwiGLU;
/// biases of down are left out then: [`super::add_pair_bias`] adds them once all pairs are done.
///
/// # Errors
/// The device failed.
#[allow(clippy::too_many_arguments, reason = "what the kernel is told, in its order")]
pub fn experts_tiles(
    stream: &Stream,
    x: Span<f32>,
    pairs: usize,
    groups: &Groups,
    addresses: Span<u64>,
    shapes: &ExpertShapes,
    buffers: &PairBuffers,
    parts: Option<&ExpertParts>,
    activation: Option<&ExpertActivation>,
) -> Result<(), CudaError> {
    let experts = groups.starts.len() - 1;
    let (hidden, inner) = (shapes.gate.columns(), shapes.inner());
    let limit = tile_limit(pairs, experts);
    expect("addresses", addresses.len(), experts);
    expect("tiles", groups.tiles.len(), 3 * limit);
    expect("gate values", buffers.gate.len(), pairs * inner);
    expect("up values", buffers.up.len(), pairs * inner);
    expect("outputs of pairs", buffers.out.len(), pairs * hidden);
    let prepare = || match activation {
        None => Ok(()),
        Some(activation) => {
            let both = (buffers.gate, buffers.up);
            prepare_pairs(stream, both, groups, addresses, activation, shapes)
        }
    };
    let all = [shapes.gate, shapes.up, shapes.down];
    let few = few_tile(pairs, experts).filter(|_| parts.is_some()).and_then(|tokens| {
        all.map(|matrix| Few::of(&matrix, tokens)).into_iter().collect::<Option<Vec<_>>>()
    });
    let few = few.filter(|few| few[0] == few[1]);
    // Experts of few tokens take tiles that leave room for more of them.
    let most = match &few {
        Some(few) => few[0].tile(),
        None if pairs < SMALL_TOKENS * experts => SMALL_TOKENS,
        None => SPLIT_TOKENS,
    };
    let limits = [&shapes.gate, &shapes.up, &shapes.down].map(super::tile_blocks::most_tokens);
    let split_tile = limits.into_iter().fold(most, usize::min);
    let list = TileListArguments {
        starts: groups.starts.address,
        addresses: addresses.address,
        tiles: groups.tiles.address,
        count: groups.tile_count.address,
        experts: experts as u32,
        tile: if parts.is_some() { split_tile } else { TILE_TOKENS } as u32,
    };
    if let Some(parts) = parts {
        let first = TileSplitArguments {
            gather: groups.pair_token.address,
            out: buffers.gate.address,
            out_second: buffers.up.address,
            addresses: addresses.address,
            places: shapes.places,
            tiles: groups.tiles.address,
            tile_count: groups.tile_count.address,
            first_piece: ExpertPart::Gate as u32,
            grouped: 1,
            tile: split_tile as u32,
            ..TileSplitArguments::new(&parts.tokens, shapes.gate, shapes.up)
        };
        let second = TileSplitArguments {
            parts: parts.inner.parts.address,
            sums: parts.inner.sums.address,
            gather: 0,
            out: buffers.out.address,
            matrix: shapes.down,
            second: shapes.down,
            first_piece: ExpertPart::Down as u32,
            ..first
        };
        let limit = pairs / split_tile + experts.min(pairs);
        let (gate, up) = (buffers.gate, buffers.up);
        let listed = Groups { tiles: groups.tiles.part(0, 3 * limit), ..*groups };
        // SAFETY: the structures are the kernels'; lengths were checked above; records lie where `addresses` says.
        return unsafe {
            stream.launch(Kernel::ListTiles, (1, 1, 1), 1024, 0, &list)?;
            if let Some(few) = &few {
                let jobs = [
                    (shapes.gate, gate.address, ExpertPart::Gate as u32),
                    (shapes.up, up.address, ExpertPart::Up as u32),
                ];
                launch_few_grouped(stream, few[0], &jobs, limit, &first)?;
            } else if same_kernel(&shapes.gate, &shapes.up) {
                launch_split(stream, first, limit, 2)?;
            } else {
                let first_piece = ExpertPart::Up as u32;
                let other = TileSplitArguments {
                    matrix: shapes.up,
                    second: shapes.up,
                    out: up.address,
                    first_piece,
                    ..first
                };
                launch_split(stream, first, limit, 1)?;
                launch_split(stream, other, limit, 1)?;
            }
            prepare()?;
            split(stream, gate, Some(up), (pairs, inner), Some(&listed), &parts.inner)?;
            match &few {
                Some(few) => {
                    let down = (shapes.down, buffers.out.address, ExpertPart::Down as u32);
                    launch_few_grouped(stream, few[2], &[down], limit, &second)
                }
                None => launch_split(stream, second, limit, 1),
            }
        };
    }
    let first = TileArguments {
        x: x.address,
        gather: groups.pair_token.address,
        out: buffers.gate.address,
        out_second: buffers.up.address,
        addresses: addresses.address,
        places: shapes.places,
        tiles: groups.tiles.address,
        tile_count: groups.tile_count.address,
        matrix: shapes.gate,
        second: shapes.up,
        tokens: 0,
        add: 0,
        first_piece: ExpertPart::Gate as u32,
        grouped: 1,
    };
    let second = TileArguments {
        x: buffers.gate.address,
        gather: 0,
        out: buffers.out.address,
        out_second: 0,
        matrix: shapes.down,
        second: shapes.down,
        first_piece: ExpertPart::Down as u32,
        ..first
    };
    // SAFETY: the structures are the kernels'; lengths were checked above; records lie where `addresses` says.
    unsafe {
        stream.launch(Kernel::ListTiles, (1, 1, 1), 1024, 0, &list)?;
        if same_kernel(&shapes.gate, &shapes.up) {
            let (kernel, rows, shared) = tile_kernel(stream, &shapes.gate);
            let grid = (inner.div_ceil(rows), limit, 2);
            stream.launch(kernel, grid, 256, shared, &first)?;
        } else {
            for (matrix, out, part) in [
                (shapes.gate, buffers.gate, ExpertPart::Gate),
                (shapes.up, buffers.up, ExpertPart::Up),
            ] {
                let (kernel, rows, shared) = tile_kernel(stream, &matrix);
                let grid = (inner.div_ceil(rows), limit, 1);
                let first_piece = part as u32;
                let one = TileArguments { matrix, out: out.address, first_piece, ..first };
                stream.launch(kernel, grid, 256, shared, &one)?;
            }
        }
        prepare()?;
        swiglu(stream, buffers.gate, buffers.up, pairs * inner)?;
        let (kernel, rows, shared) = tile_kernel(stream, &shapes.down);
        let grid = (hidden.div_ceil(rows), limit, 1);
        stream.launch(kernel, grid, 256, shared, &second)
    }
}

mirrors! {
    TileListArguments as TileListArguments { starts, addresses, tiles, count, experts, tile } for ListTiles;
}

//! Every kernel that can be asked for. [`crate::Gpu::prepare`] compiles no other: in debug builds, tests among them, a
//! kernel that is missing here is a panic.

use kernels::format::BlockFormat;

use super::Op;
use super::attention::Cache;
use super::convolution::TAPS_LIMIT;
use super::delta::KEY_DIM_LIMIT;
use super::experts::{self, Half};
use super::packing::{Float, Packing};
use super::product::{self, TILE};
use crate::Slabs;

/// Bits of affine values, and values of a group.
const WIDTHS: [u8; 6] = [2, 3, 4, 5, 6, 8];
const GROUPS: [u16; 3] = [32, 64, 128];
const FLOATS: [Float; 3] = [Float::F32, Float::F16, Float::Bf16];
/// Tokens of a tile: of a product, and of experts.
const TILES: [u32; 2] = [1, TILE];

/// All packings.
fn packings() -> impl Iterator<Item = Packing> {
    let affine = WIDTHS.into_iter().flat_map(|bits| {
        GROUPS.into_iter().flat_map(move |group| {
            FLOATS.into_iter().map(move |scale| Packing::Affine { bits, group, scale })
        })
    });
    let blocks = BlockFormat::ALL.iter().copied().map(Packing::Block);
    FLOATS.into_iter().map(Packing::Float).chain(affine).chain(blocks)
}

/// Products of a packing.
fn products(packing: Packing) -> impl Iterator<Item = Op> {
    TILES.into_iter().flat_map(move |tokens| {
        [false, true].map(|add| Op::Product(product::Spec { packing, tokens, add }))
    })
}

/// Halves of experts of a packing.
fn halves(packing: Packing) -> impl Iterator<Item = Op> {
    [Half::GateUp, Half::Down].into_iter().flat_map(move |half| {
        TILES.into_iter().flat_map(move |tokens| {
            (1..=Slabs::LIMIT as u32)
                .map(move |slabs| Op::Experts(experts::Spec { half, packing, tokens, slabs }))
        })
    })
}

/// All kernels with all numbers that their texts depend on, in a fixed order.
pub fn all() -> impl Iterator<Item = Op> {
    let plain = [
        Op::Combine { shared: false },
        Op::Combine { shared: true },
        Op::Norm,
        Op::GatedNorm,
        Op::Heads,
        Op::Split,
        Op::SigmoidGate,
        Op::SwiGlu,
        Op::DeltaHeads,
        Op::Router,
    ];
    let caches = [Cache::F32, Cache::F16];
    plain
        .into_iter()
        .chain([true, false].into_iter().flat_map(|row| [Op::MostLikely { row }, Op::Rank { row }]))
        .chain(caches.into_iter().flat_map(|cache| [Op::Append(cache), Op::Attend(cache)]))
        .chain((1..=TAPS_LIMIT as u32).map(|taps| Op::Convolve { taps }))
        .chain((1..=KEY_DIM_LIMIT as u32).map(|key_dim| Op::Delta { key_dim }))
        .chain(packings().map(Op::Embed))
        .chain(packings().flat_map(products))
        .chain(packings().flat_map(halves))
}

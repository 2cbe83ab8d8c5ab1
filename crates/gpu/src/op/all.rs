//! Every kernel that can be asked for. [`crate::Gpu::prepare`] compiles no other: in debug builds, tests among them, a
//! kernel that is missing here is a panic.

use std::collections::HashSet;
use std::sync::LazyLock;

use kernels::format::{BlockFormat, FloatType, GlobalScale, ScaleType};

use super::Op;
use super::attention::Cache;
use super::combine::Always;
use super::convolution::TAPS_LIMIT;
use super::delta::{self, KEY_DIM_LIMIT};
use super::experts::{self, Between, Half};
use super::norm::Gate;
use super::packing::{Float, Packing, Share};
use super::product::{self, TILE, team_rows};
use super::rounded::Stored;
use super::router_scored::{Moved, Score};
use super::streams::STREAMS_LIMIT;
use super::{chosen, fused, head_product, prompt, row_index, tile};
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
    let planes = integers().chain(floats_of_8()).chain([Packing::Mxfp4]).chain(
        [GlobalScale::Multiplies, GlobalScale::Divides].map(|global| Packing::Nvfp4 { global }),
    );
    FLOATS.into_iter().map(Packing::Float).chain(affine).chain(blocks).chain(planes)
}

/// Integers less a middle or a zero point.
fn integers() -> impl Iterator<Item = Packing> {
    let of = |(bits, zeros)| {
        GROUPS.into_iter().flat_map(move |group| {
            FLOATS.into_iter().map(move |scale| Packing::Integer { bits, group, scale, zeros })
        })
    };
    [(4, false), (4, true), (8, false), (8, true)].into_iter().flat_map(of)
}

/// 8-bit floats; powers of two are scales of tiles alone.
fn floats_of_8() -> impl Iterator<Item = Packing> {
    use FloatType::{Bf16, F16, F32};
    let of = |scale| {
        let share = [Share::Tile, Share::Row, Share::Matrix].into_iter();
        share.map(move |share| Packing::Fp8 { scale: ScaleType::Float(scale), share })
    };
    let powers = Packing::Fp8 { scale: ScaleType::E8m0, share: Share::Tile };
    [F32, F16, Bf16].into_iter().flat_map(of).chain([powers])
}

/// Units of a packing that are taken at once. From 32 times four units of 256 values on all are among them.
fn togethers(packing: Packing) -> impl Iterator<Item = u32> {
    [1, 2, 4]
        .into_iter()
        .filter(move |units| (1..=1024).any(|it| packing.together(it * 32) == *units))
}

/// Products of a packing: rows of a team matter where a token is alone.
fn products(packing: Packing) -> impl Iterator<Item = Op> {
    togethers(packing).flat_map(move |together| {
        let most = team_rows(packing, usize::MAX, TILE);
        let alone = [1, 2, 4].into_iter().filter(move |rows| *rows <= most).map(|rows| (1, rows));
        alone.chain([(TILE, most)]).flat_map(move |(tokens, rows)| {
            [false, true]
                .map(|add| Op::Product(product::Spec { packing, together, rows, tokens, add }))
        })
    })
}

/// Both halves of experts, and what may be between them: order of rows is a matter of the first half, and formats with
/// a grid leave no binding for biases.
fn halves_between(packing: Packing) -> impl Iterator<Item = (Half, Between)> {
    let clamped = |in_turns| Between::Clamped { in_turns };
    let of_grid = packing.block().is_some_and(|format| format.grid().is_some());
    let own = [Between::GeGlu, Between::Limited].map(|between| (Half::GateUp, between));
    let all = [Between::SwiGlu, clamped(true), clamped(false)].into_iter().flat_map(|between| {
        [Half::GateUp, Half::Down].into_iter().map(move |half| (half, between))
    });
    all.filter(move |(_, between)| *between == Between::SwiGlu || !of_grid).chain(own)
}

/// Products by head of a packing.
fn head_products(packing: Packing) -> impl Iterator<Item = Op> {
    products(packing).filter_map(|op| match op {
        Op::Product(product::Spec { packing, together, rows, tokens, add: false }) => {
            Some(Op::HeadProduct(head_product::Spec { packing, together, rows, tokens }))
        }
        _ => None,
    })
}

/// Halves of experts of a packing.
fn halves(packing: Packing) -> impl Iterator<Item = Op> {
    halves_between(packing).flat_map(move |(half, between)| {
        togethers(packing).flat_map(move |together| {
            TILES.into_iter().flat_map(move |tokens| {
                (1..=Slabs::LIMIT as u32).map(move |slabs| {
                    let spec = experts::Spec { half, between, packing, together, tokens, slabs };
                    Op::Experts(spec)
                })
            })
        })
    })
}

/// Experts of one token.
fn chosen(packing: Packing) -> impl Iterator<Item = Op> {
    let units = togethers(packing).filter(move |units| chosen::Spec::is_served(packing, *units));
    units.flat_map(move |together| {
        (1..=chosen::SLABS as u32).flat_map(move |slabs| {
            [false, true].into_iter().flat_map(move |shared| {
                let spec = chosen::Spec { packing, together, slabs, shared };
                [Op::ChosenGateUp(spec), Op::ChosenDown(spec)]
            })
        })
    })
}

/// Products of one token with more.
fn fused(packing: Packing) -> impl Iterator<Item = Op> {
    let specs = togethers(packing).flat_map(move |together| {
        let most = team_rows(packing, usize::MAX, 1);
        let rows = [1, 2, 4].into_iter().filter(move |rows| *rows <= most);
        rows.map(move |rows| fused::Spec { packing, together, rows })
    });
    let of = move |spec: fused::Spec| {
        let several = (1..=fused::MATRICES as u32)
            .flat_map(move |count| [false, true].map(|keep| Op::Several { spec, count, keep }));
        let gated = [Op::Gated(spec), Op::Choose(spec)].into_iter().filter(move |_| spec.rows == 1);
        let inputs = (2..=TAPS_LIMIT as u32).map(move |taps| Op::DeltaInputs { spec, taps });
        let products = Gate::ALL.map(|gate| Op::GatedProduct { spec, gate });
        several.chain(inputs).chain(gated).chain([Op::Close(spec)]).chain(products)
    };
    specs.filter(|spec| spec.is_served()).flat_map(of)
}

/// Attention of heads with sinks, which have no gates, and what comes before it.
fn with_sinks(cache: Cache) -> impl Iterator<Item = Op> {
    let of = move |wide| {
        let attend = Op::Attend { cache, gated: false, wide, sinks: true };
        [attend, Op::AttendSplit { cache, wide, sinks: true }]
    };
    let join = Op::AttendJoin { cache, gated: false, sinks: true };
    [false, true].into_iter().flat_map(of).chain([join, Op::PreparePlain(cache)])
}

/// Attention to rows that an indexer chooses, whose keys are floats.
fn of_chosen_rows(cache: Cache) -> impl Iterator<Item = Op> {
    use row_index::Kernel::{Attention, Rows, Scores};
    let index = [Rows(cache), Scores(cache)].into_iter().filter(move |_| cache != Cache::Q8);
    index.chain([Attention(cache)]).map(Op::ChosenRows)
}

/// Attention of a prompt's tokens by rows.
fn of_prompts(cache: Cache) -> impl Iterator<Item = Op> {
    let of = move |dim: usize| {
        let dim = dim as u32;
        [false, true].map(|gated| Op::AttendPrompt { cache, dim, gated })
    };
    prompt::DIMS.into_iter().flat_map(of)
}

/// Tiles of cooperative matrices of a packing.
fn tiles(packing: Packing) -> impl Iterator<Item = Op> {
    let dense = tile::DENSE_TOKENS.into_iter().flat_map(move |tokens| {
        [false, true].map(|add| Op::Tile(tile::Spec { packing, tokens, add }))
    });
    let experts = halves_between(packing).flat_map(move |(half, between)| {
        tile::EXPERT_TOKENS.into_iter().flat_map(move |tokens| {
            (1..=Slabs::LIMIT as u32).map(move |slabs| {
                Op::TileExperts(tile::ExpertsSpec { half, between, packing, tokens, slabs })
            })
        })
    });
    dense.chain(experts)
}

/// The delta rule over keys of a size.
fn deltas(key_dim: u32) -> impl Iterator<Item = Op> {
    let wide = [false, true].into_iter().filter(move |&it| !it || delta::wide(key_dim as usize));
    wide.flat_map(move |wide| [false, true].map(|channels| Op::Delta { key_dim, wide, channels }))
}

/// Residual streams.
fn streams() -> impl Iterator<Item = Op> {
    use super::streams::Kernel;
    let both = [false, true].into_iter();
    let weigh = both.clone().map(|reads_alone| Kernel::Weigh { reads_alone });
    let collapse = both.map(|weighed| Kernel::Collapse { weighed });
    let mix = (1..=STREAMS_LIMIT as u32).map(|count| Kernel::Mix { count });
    weigh.chain(collapse).chain([Kernel::Spread]).chain(mix).map(Op::Streams)
}

/// Compressed attention.
fn compressed() -> impl Iterator<Item = Op> {
    use super::compressed_attention::Kernel as Attention;
    use super::compressed_rows::{Kernel, Turned};
    let turn = Turned::ALL.into_iter().map(Kernel::Turn);
    let store = Stored::ROWS.into_iter().map(Kernel::Store);
    let pool = Stored::ALL.into_iter().map(Kernel::Pool);
    let rows = turn.chain(store).chain(pool).chain([Kernel::Keep]).map(Op::CompressedRows);
    let attend = Stored::ROWS.into_iter().map(Attention::Attend);
    let score = Stored::KEYS.into_iter().map(Attention::Score);
    rows.chain(attend.chain(score).map(Op::Compressed))
}

/// Whether [`all`] has a kernel. They are counted out once: doing it for each kernel that a device compiles took four
/// fifths of the time of the kernels' tests.
pub(crate) fn is_listed(op: Op) -> bool {
    static LISTED: LazyLock<HashSet<Op>> = LazyLock::new(|| all().collect());
    LISTED.contains(&op)
}

/// Choices of experts by scores.
fn routers() -> impl Iterator<Item = Op> {
    [Score::Softmax, Score::Sigmoid, Score::SqrtSoftplus]
        .into_iter()
        .flat_map(|score| Moved::ALL.map(|moved| Op::RouterScored { score, moved }))
}

/// All kernels with all numbers that their texts depend on, in a fixed order.
pub fn all() -> impl Iterator<Item = Op> {
    let plain = [
        Op::Combine { always: Always::None, add: true },
        Op::Combine { always: Always::None, add: false },
        Op::Combine { always: Always::Whole, add: true },
        Op::Combine { always: Always::Whole, add: false },
        Op::Combine { always: Always::Gated, add: true },
        Op::Norm,
        Op::NormInPlace,
        Op::NormAdd,
        Op::GatedNorm { gate: Gate::Silu },
        Op::GatedNorm { gate: Gate::Sigmoid },
        Op::Heads,
        Op::Rotate,
        Op::AddBias,
        Op::Join,
        Op::Split,
        Op::SigmoidGate,
        Op::GateHeads,
        Op::LatentTurn,
        Op::Sigmoid,
        Op::GeGlu,
        Op::Limited,
        Op::Scale,
        Op::Cap,
        Op::WeighExperts,
        Op::SwiGlu,
        Op::DeltaHeads,
        Op::DeltaDecays,
        Op::BoundedDecays,
        Op::Router { biased: false },
        Op::Router { biased: true },
        Op::Group,
        Op::ChosenRows(row_index::Kernel::Choice),
    ];
    let caches = [Cache::F32, Cache::F16, Cache::Q8];
    plain
        .into_iter()
        .chain(routers())
        .chain([true, false].into_iter().flat_map(|row| [Op::MostLikely { row }, Op::Rank { row }]))
        .chain(caches.into_iter().flat_map(|cache| {
            let gates = [false, true].into_iter();
            let of = gates.flat_map(move |gated| {
                let attend = |wide| Op::Attend { cache, gated, wide, sinks: false };
                [attend(false), attend(true), Op::Prepare { cache, gated }]
            });
            let split = [false, true].map(|wide| Op::AttendSplit { cache, wide, sinks: false });
            let join = [false, true].map(|gated| Op::AttendJoin { cache, gated, sinks: false });
            of.chain(split)
                .chain(join)
                .chain([Op::Append(cache), Op::LatentAppend(cache), Op::AttendWide(cache)])
                .chain(with_sinks(cache))
                .chain(of_chosen_rows(cache))
        }))
        .chain((1..=TAPS_LIMIT as u32).map(|taps| Op::ConvolveHeads { taps }))
        .chain(streams())
        .chain(compressed())
        .chain(packings().flat_map(fused))
        .chain(packings().flat_map(chosen))
        .chain((1..=TAPS_LIMIT as u32).map(|taps| Op::Convolve { taps }))
        .chain((1..=KEY_DIM_LIMIT as u32).flat_map(deltas))
        .chain(packings().map(Op::Embed))
        .chain(packings().flat_map(products))
        .chain(packings().flat_map(head_products))
        .chain(packings().flat_map(halves))
        .chain([Op::Halves])
        .chain([Cache::F16, Cache::Q8].into_iter().flat_map(of_prompts))
        .chain(packings().flat_map(tiles))
}

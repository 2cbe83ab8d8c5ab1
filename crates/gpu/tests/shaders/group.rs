//! Names of groups of kernels: specialisations that differ in sizes only share a name. `hashes` has a line for each
//! group; `examples/text.rs` prints kernels by these names.

use gpu::op::packing::Packing;
use gpu::op::{Op, experts, norm};

/// A packing as names of groups have it.
fn packing_name(packing: Packing) -> String {
    match packing {
        Packing::Float(float) => format!("{float:?}").to_lowercase(),
        Packing::Affine { bits, .. } => format!("{bits}-bit"),
        Packing::Integer { bits, zeros: false, .. } => format!("int{bits}"),
        Packing::Integer { bits, .. } => format!("uint{bits}"),
        Packing::Fp8 { share, .. } => format!("fp8 by {share:?}").to_lowercase(),
        Packing::Block(format) => format.name().to_owned(),
        Packing::Nvfp4 { global } => format!("nvfp4 that {global:?}").to_lowercase(),
        Packing::Mxfp4 => "mxfp4 in planes".to_owned(),
    }
}

/// The group of a kernel.
pub(crate) fn group(op: Op) -> String {
    let name = match op {
        Op::Product(spec) => format!("product {}", packing_name(spec.packing)),
        Op::Experts(spec) if spec.between != experts::Between::SwiGlu => {
            format!("experts {:?} clamped {}", spec.half, packing_name(spec.packing))
        }
        Op::Experts(spec) if spec.slabs > 1 => format!("experts {:?} of slabs", spec.half),
        Op::Experts(spec) => format!("experts {:?} {}", spec.half, packing_name(spec.packing)),
        Op::HeadProduct(spec) => format!("product by head {}", packing_name(spec.packing)),
        Op::Several { spec, .. } => format!("several {}", packing_name(spec.packing)),
        Op::DeltaInputs { spec, .. } => format!("delta inputs {}", packing_name(spec.packing)),
        Op::GatedProduct { spec, gate: norm::Gate::Silu } => {
            format!("gated product {}", packing_name(spec.packing))
        }
        Op::GatedProduct { spec, .. } => {
            format!("gated product by a sigmoid {}", packing_name(spec.packing))
        }
        Op::ChosenGateUp(spec) => format!("chosen gateup {}", packing_name(spec.packing)),
        Op::ChosenDown(spec) => format!("chosen down {}", packing_name(spec.packing)),
        Op::Gated(spec) => format!("gated {}", packing_name(spec.packing)),
        Op::Choose(spec) => format!("choose {}", packing_name(spec.packing)),
        Op::Close(spec) => format!("close {}", packing_name(spec.packing)),
        Op::ConvolveHeads { .. } => "convolveheads".to_owned(),
        Op::Embed(packing) => format!("embed {}", packing_name(packing)),
        Op::Delta { channels: false, .. } => "delta".to_owned(),
        Op::Delta { channels: true, .. } => "delta by channel".to_owned(),
        Op::Convolve { .. } => "convolve".to_owned(),
        other => format!("{other:?}").replace(['(', '{', ':'], " ").replace([')', '}'], ""),
    };
    name.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

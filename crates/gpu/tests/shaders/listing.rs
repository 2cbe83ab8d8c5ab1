//! The committed listing of Metal texts, `tests/msl/`: the text of one specialisation of each kernel, and in `hashes`
//! a line for each group of all the others. `FLASHMOE_REWRITE_MSL=1` writes it anew.

use std::collections::BTreeMap;
use std::path::PathBuf;

use gpu::op::packing::{Float, Packing};
use gpu::op::{Op, attention, chosen, experts, fused, product};
use twox_hash::XxHash3_64;

use crate::translate::Translated;

/// A packing as file names and `hashes` have it.
fn packing_name(packing: Packing) -> String {
    match packing {
        Packing::Float(float) => format!("{float:?}").to_lowercase(),
        Packing::Affine { bits, .. } => format!("{bits}-bit"),
        Packing::Block(format) => format.name().to_owned(),
        Packing::Mxfp4 => "mxfp4 in planes".to_owned(),
    }
}

/// What a line of `hashes` stands for: all specialisations with these words.
pub(crate) fn group(op: Op) -> String {
    let name = match op {
        Op::Product(spec) => format!("product {}", packing_name(spec.packing)),
        Op::Experts(spec) if spec.between != experts::Between::SwiGlu => {
            format!("experts {:?} clamped {}", spec.half, packing_name(spec.packing))
        }
        Op::Experts(spec) if spec.slabs > 1 => format!("experts {:?} of slabs", spec.half),
        Op::Experts(spec) => format!("experts {:?} {}", spec.half, packing_name(spec.packing)),
        Op::Several { spec, .. } => format!("several {}", packing_name(spec.packing)),
        Op::DeltaInputs { spec, .. } => format!("delta inputs {}", packing_name(spec.packing)),
        Op::GatedProduct(spec) => format!("gated product {}", packing_name(spec.packing)),
        Op::ChosenGateUp(spec) => format!("chosen gateup {}", packing_name(spec.packing)),
        Op::ChosenDown(spec) => format!("chosen down {}", packing_name(spec.packing)),
        Op::Gated(spec) => format!("gated {}", packing_name(spec.packing)),
        Op::Choose(spec) => format!("choose {}", packing_name(spec.packing)),
        Op::Close(spec) => format!("close {}", packing_name(spec.packing)),
        Op::ConvolveHeads { .. } => "convolveheads".to_owned(),
        Op::Embed(packing) => format!("embed {}", packing_name(packing)),
        Op::Delta { .. } => "delta".to_owned(),
        Op::Convolve { .. } => "convolve".to_owned(),
        other => format!("{other:?}").replace(['(', '{', ':'], " ").replace([')', '}'], ""),
    };
    name.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

/// The specialisations whose texts are listed, by file.
pub(crate) fn shown() -> Vec<(&'static str, Op)> {
    let packing = Packing::Affine { bits: 4, group: 64, scale: Float::Bf16 };
    let spec = fused::Spec { packing, together: 4, rows: 2 };
    let between = experts::Between::SwiGlu;
    let plain = |half| experts::Spec { half, between, packing, together: 4, tokens: 1, slabs: 2 };
    let half = |half| Op::Experts(plain(half));
    let clamped = |half| {
        let between = experts::Between::Clamped { in_turns: true };
        let packing = Packing::Mxfp4;
        Op::Experts(experts::Spec { between, packing, slabs: 1, ..plain(half) })
    };
    let chosen = |together| chosen::Spec { packing, together, slabs: 2, shared: true };
    let (cache, wide) = (attention::Cache::F16, true);
    vec![
        ("add_bias", Op::AddBias),
        ("append", Op::Append(cache)),
        ("attend", Op::Attend { cache, gated: true, wide, sinks: false }),
        ("attend_join", Op::AttendJoin { cache, gated: true, sinks: false }),
        ("attend_join_sinks", Op::AttendJoin { cache, gated: false, sinks: true }),
        ("attend_sinks", Op::Attend { cache, gated: false, wide, sinks: true }),
        ("attend_split", Op::AttendSplit { cache, wide, sinks: false }),
        ("attend_split_sinks", Op::AttendSplit { cache, wide, sinks: true }),
        ("choose", Op::Choose(fused::Spec { rows: 1, ..spec })),
        ("chosen_down", Op::ChosenDown(chosen(2))),
        ("chosen_gate_up", Op::ChosenGateUp(chosen(4))),
        ("close", Op::Close(spec)),
        ("combine", Op::Combine { shared: true }),
        ("convolve", Op::Convolve { taps: 4 }),
        ("convolve_heads", Op::ConvolveHeads { taps: 4 }),
        ("delta", Op::Delta { key_dim: 32, wide: true }),
        ("delta_heads", Op::DeltaHeads),
        ("delta_inputs", Op::DeltaInputs { spec, taps: 4 }),
        ("embed", Op::Embed(packing)),
        ("experts_down", half(experts::Half::Down)),
        ("experts_down_clamped", clamped(experts::Half::Down)),
        ("experts_gate_up", half(experts::Half::GateUp)),
        ("experts_gate_up_clamped", clamped(experts::Half::GateUp)),
        ("gated", Op::Gated(fused::Spec { rows: 1, ..spec })),
        ("gated_product", Op::GatedProduct(spec)),
        ("gated_norm", Op::GatedNorm),
        ("group", Op::Group),
        ("heads", Op::Heads),
        ("most_likely", Op::MostLikely { row: true }),
        ("norm", Op::Norm),
        ("prepare", Op::Prepare { cache: attention::Cache::F16, gated: true }),
        ("prepare_plain", Op::PreparePlain(cache)),
        (
            "product",
            Op::Product(product::Spec { packing, together: 4, rows: 2, tokens: 1, add: false }),
        ),
        ("rank", Op::Rank { row: true }),
        ("rotate", Op::Rotate),
        ("router", Op::Router { biased: false }),
        ("several", Op::Several { spec, count: 2, keep: true }),
        ("sigmoid_gate", Op::SigmoidGate),
        ("split", Op::Split),
        ("swiglu", Op::SwiGlu),
    ]
}

/// Lines of `hashes` in the making.
#[derive(Default)]
pub(crate) struct Hashes(BTreeMap<String, (usize, u64)>);

impl Hashes {
    /// Adds a kernel; kernels come in a fixed order.
    pub(crate) fn add(&mut self, kernel: &Translated) {
        let (count, hash) = self.0.entry(group(kernel.op)).or_default();
        *count += 1;
        *hash = XxHash3_64::oneshot_with_seed(*hash, kernel.metal[0].as_bytes());
    }

    /// The file.
    pub(crate) fn text(&self) -> String {
        let lines = self.0.iter();
        lines.map(|(group, (count, hash))| format!("{hash:016x} {count:4} {group}\n")).collect()
    }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/msl")
}

/// How a file of the listing differs from what was made, or nothing; it is written where that was asked for.
pub(crate) fn compare(file: &str, made: &str) -> Option<String> {
    let path = folder().join(file);
    if std::env::var_os("FLASHMOE_REWRITE_MSL").is_some() {
        return std::fs::write(&path, made).err().map(|error| format!("tests/msl/{file}: {error}"));
    }
    let listed = std::fs::read_to_string(&path).unwrap_or_default().replace("\r\n", "\n");
    if listed == made {
        return None;
    }
    let (mut old, mut new) = (listed.lines(), made.lines());
    let mut line = 0;
    loop {
        line += 1;
        let (old, new) = (old.next(), new.next());
        if old != new {
            let [old, new] = [old, new].map(|it| it.unwrap_or("(the end)"));
            return Some(format!("tests/msl/{file}:{line}: \"{old}\" is now \"{new}\""));
        }
        if old.is_none() {
            return Some(format!("tests/msl/{file}: line ends differ"));
        }
    }
}

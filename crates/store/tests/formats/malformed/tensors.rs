//! Tensors that are missing, doubled, of another type or shape, or of a quantisation that is not read.

use super::{Draft, DraftCase, run_drafts};
use crate::common::Noise;

const FILE: &str = "model.safetensors";
const CONFIG: &str = "config.json";
const PREFIX: &str = "language_model.model.layers.1";

fn name(rest: &str) -> String {
    format!("{PREFIX}.{rest}")
}

fn add(draft: &mut Draft, name: &str, dtype: &str, shape: &[usize]) {
    let bytes = shape.iter().product::<usize>() * crate::common::dtype_bytes(dtype);
    draft.tensors.add(name, dtype, shape, Noise(9).bytes(bytes));
}

#[test]
fn quantised_matrices() {
    let cases: &[DraftCase] = &[
        ("scales missing", FILE, &["layers.1.mlp.gate", "biases without scales"], |d| {
            d.remove(&name("mlp.gate.scales"));
        }),
        ("biases missing", FILE, &["layers.1.mlp.gate", "scales without biases"], |d| {
            d.remove(&name("mlp.gate.biases"));
        }),
        ("weight missing", CONFIG, &["layers.1.mlp.gate", "weight is missing"], |d| {
            d.remove(&name("mlp.gate.weight"));
        }),
        ("scales and biases missing", FILE, &["layers.1.mlp.gate", "U32 without scales"], |d| {
            d.remove(&name("mlp.gate.scales"));
            d.remove(&name("mlp.gate.biases"));
        }),
        ("weight of another type", FILE, &["layers.1.mlp.gate", "F32, not U32"], |d| {
            d.reshape(&name("mlp.gate.weight"), "F32", &[4, 16]);
        }),
        ("weight of signed words", FILE, &["layers.1.mlp.gate", "I32, not U32"], |d| {
            d.reshape(&name("mlp.gate.weight"), "I32", &[4, 16]);
        }),
        ("scales of integers", FILE, &["layers.1.mlp.gate", "scales are I32"], |d| {
            d.reshape(&name("mlp.gate.scales"), "I32", &[4, 2]);
        }),
        (
            "scales and biases differ in type",
            FILE,
            &["layers.1.mlp.gate", "another shape or type"],
            |d| {
                d.reshape(&name("mlp.gate.biases"), "F32", &[4, 2]);
            },
        ),
        (
            "scales and biases differ in shape",
            FILE,
            &["layers.1.mlp.gate", "another shape or type"],
            |d| {
                d.reshape(&name("mlp.gate.biases"), "BF16", &[2, 4]);
            },
        ),
        ("scales of other rows", FILE, &["layers.1.mlp.gate", "do not belong together"], |d| {
            d.reshape(&name("mlp.gate.scales"), "BF16", &[5, 2]);
            d.reshape(&name("mlp.gate.biases"), "BF16", &[5, 2]);
        }),
        ("scales without rows", FILE, &["layers.1.mlp.gate", "do not belong together"], |d| {
            d.reshape(&name("mlp.gate.scales"), "BF16", &[8]);
            d.reshape(&name("mlp.gate.biases"), "BF16", &[8]);
        }),
        ("too many groups", FILE, &["layers.1.mlp.gate", "contradict"], |d| {
            d.reshape(&name("mlp.gate.scales"), "BF16", &[4, 3]);
            d.reshape(&name("mlp.gate.biases"), "BF16", &[4, 3]);
        }),
        ("a weight that holds nothing", FILE, &["layers.1.mlp.gate", "holds nothing"], |d| {
            d.reshape(&name("mlp.gate.weight"), "U32", &[0, 16]);
        }),
        ("a scalar weight", FILE, &["layers.1.mlp.gate", "holds nothing"], |d| {
            d.reshape(&name("mlp.gate.weight"), "U32", &[]);
        }),
        ("8-bit scales, as mxfp4 has them", CONFIG, &["layers.1.mlp.gate", "mxfp4"], |d| {
            d.reshape(&name("mlp.gate.scales"), "U8", &[4, 4]);
            d.remove(&name("mlp.gate.biases"));
        }),
        ("fp8 scales as well", FILE, &["weight_scale_inv", "means the same"], |d| {
            add(d, &name("mlp.gate.weight_scale_inv"), "F32", &[1, 1]);
        }),
        ("one more scale", FILE, &["weight_scale", "means the same"], |d| {
            add(d, &name("mlp.gate.weight_scale"), "F32", &[1]);
        }),
        ("mxfp4 blocks without scales", FILE, &["gate_up_proj", "mxfp4"], |d| {
            add(d, &name("mlp.experts.gate_up_proj_blocks"), "U8", &[4]);
        }),
        ("GPTQ as well", FILE, &["mlp.gate", "means the same"], |d| {
            add(d, &name("mlp.gate.qweight"), "I32", &[4]);
        }),
        ("GPTQ of nothing known", FILE, &["mlp.x.qweight", "GPTQ"], |d| {
            add(d, &name("mlp.x.qweight"), "I32", &[4]);
        }),
        ("packed integers as well", FILE, &["mlp.gate", "means the same"], |d| {
            add(d, &name("mlp.gate.weight_packed"), "I32", &[4]);
        }),
        ("a norm in fp8", FILE, &["layers.1.input_layernorm", "fp8 (F8_E4M3)"], |d| {
            d.reshape(&name("input_layernorm.weight"), "F8_E4M3", &[128]);
        }),
        ("a norm of integers", FILE, &["layers.1.input_layernorm", "type I64"], |d| {
            d.reshape(&name("input_layernorm.weight"), "I64", &[128]);
        }),
        ("a norm of doubles", FILE, &["layers.1.input_layernorm", "type F64"], |d| {
            d.reshape(&name("input_layernorm.weight"), "F64", &[128]);
        }),
        ("a norm of words", FILE, &["layers.1.input_layernorm", "U32 without scales"], |d| {
            d.reshape(&name("input_layernorm.weight"), "U32", &[64]);
        }),
        ("a norm that holds nothing", FILE, &["layers.1.input_layernorm", "holds nothing"], |d| {
            d.reshape(&name("input_layernorm.weight"), "BF16", &[0]);
        }),
        ("one tensor under two names", FILE, &["lm_head", "means the same as"], |d| {
            add(d, "lm_head.weight", "U32", &[96, 16]);
        }),
        ("one norm under two prefixes", FILE, &["norm", "means the same as"], |d| {
            add(d, "model.norm.weight", "BF16", &[128]);
        }),
    ];
    run_drafts(Draft::mlx, cases);
}

#[test]
fn stacked_experts() {
    let cases: &[DraftCase] = &[
        ("a projection missing", CONFIG, &["layers.1.mlp.experts.0.up_proj", "missing"], |d| {
            for part in ["weight", "scales", "biases"] {
                d.remove(&name(&format!("mlp.switch_mlp.up_proj.{part}")));
            }
        }),
        ("a layer's experts missing", CONFIG, &["layers.2.mlp.experts", "missing"], |d| {
            d.tensors.0.retain(|entry| !entry.name.contains("layers.2.mlp.switch_mlp."));
        }),
        (
            "experts of another number",
            FILE,
            &["layers.1.mlp.switch_mlp.up_proj", "4 experts"],
            |d| {
                d.reshape(&name("mlp.switch_mlp.up_proj.weight"), "U32", &[3, 64, 16]);
                d.reshape(&name("mlp.switch_mlp.up_proj.scales"), "BF16", &[3, 64, 2]);
                d.reshape(&name("mlp.switch_mlp.up_proj.biases"), "BF16", &[3, 64, 2]);
            },
        ),
        ("experts transposed", FILE, &["layers.1.mlp.switch_mlp.down_proj", "Down is"], |d| {
            d.reshape(&name("mlp.switch_mlp.down_proj.weight"), "U32", &[4, 64, 16]);
            d.reshape(&name("mlp.switch_mlp.down_proj.scales"), "BF16", &[4, 64, 2]);
            d.reshape(&name("mlp.switch_mlp.down_proj.biases"), "BF16", &[4, 64, 2]);
        }),
        ("experts flattened", FILE, &["layers.1.mlp.switch_mlp.up_proj", "4 experts"], |d| {
            d.tensors.find(&name("mlp.switch_mlp.up_proj.weight")).shape = vec![256, 16];
            d.tensors.find(&name("mlp.switch_mlp.up_proj.scales")).shape = vec![256, 2];
            d.tensors.find(&name("mlp.switch_mlp.up_proj.biases")).shape = vec![256, 2];
        }),
        ("stacked and fused at once", FILE, &["layers.1.mlp", "another encoding"], |d| {
            add(d, &name("mlp.experts.down_proj"), "BF16", &[4, 128, 64]);
        }),
        ("convolutions of two kinds", CONFIG, &["conv1d", "others"], |d| {
            d.tensors.find(&name("linear_attn.conv1d.weight")).shape = vec![256, 1, 4];
        }),
        (
            "a flat convolution",
            FILE,
            &["layers.1.linear_attn.conv1d", "[channels, 1, width]"],
            |d| {
                d.tensors.find(&name("linear_attn.conv1d.weight")).shape = vec![256, 4];
            },
        ),
    ];
    run_drafts(Draft::mlx, cases);
}

const HF: &str = "model.language_model.layers.1.mlp.experts";

#[test]
fn hugging_face_experts() {
    let fused: &[DraftCase] = &[
        ("gate and up of odd rows", FILE, &["gate_up_proj", "odd number of rows"], |d| {
            d.reshape(&format!("{HF}.gate_up_proj"), "BF16", &[4, 127, 128]);
        }),
        ("columns for rows", FILE, &["down_proj", "is transposed"], |d| {
            d.reshape(&format!("{HF}.down_proj"), "BF16", &[4, 64, 128]);
        }),
        ("gate and up of half the rows", FILE, &["gate_up_proj", "[32, 128]"], |d| {
            d.reshape(&format!("{HF}.gate_up_proj"), "BF16", &[4, 64, 128]);
        }),
        ("down projection missing", CONFIG, &["layers.1.mlp.experts.0.down_proj"], |d| {
            d.remove(&format!("{HF}.down_proj"));
        }),
        ("experts in fp8", FILE, &["down_proj", "fp8 (F8_E4M3)"], |d| {
            d.reshape(&format!("{HF}.down_proj"), "F8_E4M3", &[4, 128, 64]);
        }),
        ("fp8 scales of floats", FILE, &["experts.down_proj", "scales without biases"], |d| {
            add(d, &format!("{HF}.down_proj_scale_inv"), "F32", &[4]);
        }),
        ("scales without quantisation", CONFIG, &["lm_head", "does not say"], |d| {
            d.reshape("lm_head.weight", "U32", &[96, 16]);
            add(d, "lm_head.scales", "BF16", &[96, 2]);
            add(d, "lm_head.biases", "BF16", &[96, 2]);
        }),
    ];
    run_drafts(|| Draft::hugging_face(true), fused);
    let single: &[DraftCase] = &[
        ("one expert missing", CONFIG, &["layers.1.mlp.experts.2.gate_proj", "missing"], |d| {
            for part in ["gate", "up", "down"] {
                d.remove(&format!("{HF}.2.{part}_proj.weight"));
            }
        }),
        ("one matrix missing", CONFIG, &["layers.1.mlp.experts.2.up_proj", "missing"], |d| {
            d.remove(&format!("{HF}.2.up_proj.weight"));
        }),
        ("an expert too many", FILE, &["experts.4.up_proj", "4 experts"], |d| {
            add(d, &format!("{HF}.4.up_proj.weight"), "BF16", &[64, 128]);
        }),
        ("an expert beyond all counting", FILE, &["4 experts"], |d| {
            let name = format!("{HF}.18446744073709551615.up_proj.weight");
            add(d, &name, "BF16", &[64, 128]);
        }),
        ("one expert in another type", FILE, &["experts.3.up_proj", "another encoding"], |d| {
            d.reshape(&format!("{HF}.3.up_proj.weight"), "F32", &[64, 128]);
        }),
        ("one expert in another shape", FILE, &["experts.3.up_proj", "Up is [128, 64]"], |d| {
            d.tensors.find(&format!("{HF}.3.up_proj.weight")).shape = vec![128, 64];
        }),
        ("fused beside single experts", FILE, &["second tensor"], |d| {
            add(d, &format!("{HF}.down_proj"), "BF16", &[4, 128, 64]);
        }),
    ];
    run_drafts(|| Draft::hugging_face(false), single);
}

/// Known tensors keep their meaning whatever unknown ones lie beside them; an index with leading zeros is
/// another name, not the same tensor twice.
#[test]
fn unknown_names_are_listed_not_guessed() {
    let mut draft = Draft::hugging_face(false);
    draft.rename(&format!("{HF}.2.up_proj.weight"), &format!("{HF}.02.up_proj.weight"));
    super::refused("leading zero", draft.write().path(), CONFIG, &["experts.2.up_proj"]);
    let mut draft = Draft::mlx();
    add(&mut draft, "language_model.model.layers.1.mystery", "F32", &[2]);
    let checkpoint = store::format::open(draft.write().path()).unwrap();
    assert_eq!(checkpoint.unused, ["language_model.model.layers.1.mystery"]);
}

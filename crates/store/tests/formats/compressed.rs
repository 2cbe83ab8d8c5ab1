//! Goal: what compressed-tensors writes besides symmetric integers and NVFP4 (zero points, 8-bit floats by row and by
//! matrix, MXFP4) is opened for what it is, packed byte by byte, and refused where its parts contradict each other.
//! Method: the tiny checkpoint with its matrices replaced.

use kernels::format::{Encoding, FloatType};
use serde_json::{Value, json};

use crate::common::Entry;
use crate::malformed::{Draft, DraftCase, run_drafts};
use crate::published::{entry, name, packed, replace};

const FILE: &str = "model.safetensors";
const CONFIG: &str = "config.json";

/// The checkpoint with matrices of a format, by what `with` makes of random bytes of each.
fn draft(
    format: &str,
    weights: &Value,
    with: impl Fn(&str, [usize; 2], &mut dyn FnMut(usize) -> Vec<u8>) -> Vec<Entry>,
) -> Draft {
    let mut draft = Draft::hugging_face(false);
    replace(&mut draft, |noise, name, shape| {
        let stem = name.strip_suffix("weight").unwrap();
        with(stem, [shape[0], shape[1]], &mut |count| noise.bytes(count))
    });
    draft.config["quantization_config"] = json!({
        "quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head"],
        "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}},
    });
    draft
}

fn zeroed(bits: usize) -> Draft {
    let weights = json!({
        "num_bits": bits, "group_size": 32, "symmetric": false, "type": "int", "strategy": "group",
    });
    draft("pack-quantized", &weights, |stem, [rows, columns], bytes| {
        let words = columns * bits / 32;
        let scales: Vec<u8> =
            bytes(rows * columns / 32).iter().flat_map(|low| [*low, 0x3c]).collect();
        let zeros = [(rows * bits).div_ceil(32), columns / 32];
        let of_zeros = bytes(4 * zeros[0] * zeros[1]);
        let numbers = [rows as u32, columns as u32].map(u32::to_le_bytes).concat();
        vec![
            entry(format!("{stem}weight_packed"), "I32", &[rows, words], bytes(4 * rows * words)),
            entry(format!("{stem}weight_scale"), "BF16", &[rows, columns / 32], scales),
            entry(format!("{stem}weight_zero_point"), "I32", &zeros, of_zeros),
            entry(format!("{stem}weight_shape"), "I32", &[2], numbers),
        ]
    })
}

fn four_bits() -> Draft {
    zeroed(4)
}

fn fp8(strategy: &str) -> Draft {
    let weights = json!({"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": true});
    draft("float-quantized", &weights, |stem, [rows, columns], bytes| {
        let codes = bytes(rows * columns).iter().map(|code| code & 0xbf).collect();
        let shape: &[usize] = if strategy == "tensor" { &[1] } else { &[rows, 1] };
        let count: usize = shape.iter().product();
        let scales = bytes(count).iter().flat_map(|low| [*low, 0x3c]).collect();
        vec![
            entry(format!("{stem}weight"), "F8_E4M3", &[rows, columns], codes),
            entry(format!("{stem}weight_scale"), "BF16", shape, scales),
            entry(format!("{stem}input_scale"), "F32", &[1], vec![0, 0, 128, 63]),
        ]
    })
}

fn by_row() -> Draft {
    fp8("channel")
}

fn mxfp4() -> Draft {
    let weights = json!({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32});
    draft("mxfp4-pack-quantized", &weights, |stem, [rows, columns], bytes| {
        let scales = bytes(rows * columns / 32).iter().map(|byte| 120 + byte % 8).collect();
        vec![
            entry(
                format!("{stem}weight_packed"),
                "U8",
                &[rows, columns / 2],
                bytes(rows * columns / 2),
            ),
            entry(format!("{stem}weight_scale"), "U8", &[rows, columns / 32], scales),
        ]
    })
}

#[test]
fn all_go_into_packs_as_they_are() {
    let scale = FloatType::Bf16;
    for bits in [4, 8] {
        let encoding = Encoding::Zeroed { bits: bits as u8, group: 32, scale };
        assert_eq!(packed(&zeroed(bits), 6), (encoding, encoding), "{bits} bits");
    }
    for (strategy, shared) in [("channel", false), ("tensor", true)] {
        let encoding = Encoding::Fp8Rows { scale, shared };
        assert_eq!(packed(&fp8(strategy), 6), (encoding, encoding), "{strategy}");
    }
    assert_eq!(packed(&mxfp4(), 3), (Encoding::Mxfp4, Encoding::Mxfp4));
}

const ZEROS: &str = "mlp.experts.2.up_proj.weight_zero_point";

#[test]
fn zero_points_that_contradict_are_refused() {
    let cases: &[DraftCase] = &[
        ("none", FILE, &["experts.2.up_proj", "no weight_zero_point"], |d| d.remove(&name(ZEROS))),
        ("one for each value of a row", FILE, &["weight_zero_point", "not I32 [8, 4]"], |d| {
            d.reshape(&name(ZEROS), "I32", &[64, 4]);
        }),
        ("bytes", FILE, &["weight_zero_point", "not I32 [8, 4]"], |d| {
            d.reshape(&name(ZEROS), "U8", &[8, 4]);
        }),
        ("other rows of scales", FILE, &["experts.2.up_proj", "contradict"], |d| {
            d.reshape(&name("mlp.experts.2.up_proj.weight_scale"), "BF16", &[63, 4]);
        }),
        ("a row alone", FILE, &["experts.2.up_proj", "contradict"], |d| {
            d.reshape(&name("mlp.experts.2.up_proj.weight_packed"), "I32", &[16]);
        }),
        ("floats with zero points", FILE, &["experts.2.up_proj", "values of BF16"], |d| {
            d.reshape(&name("mlp.experts.2.up_proj.weight_packed"), "BF16", &[64, 128]);
        }),
        ("columns in another order", FILE, &["weight_g_idx", "another order"], |d| {
            let order = name("mlp.experts.2.up_proj.weight_g_idx");
            d.tensors.add(order, "I32", &[128], vec![0; 512]);
        }),
        ("symmetric, it says", FILE, &["a weight_zero_point", "has no zero points"], |d| {
            let groups = &mut d.config["quantization_config"]["config_groups"];
            groups["group_0"]["weights"]["symmetric"] = json!(true);
        }),
        ("neither, it says", CONFIG, &["weights.symmetric", "no value"], |d| {
            let groups = &mut d.config["quantization_config"]["config_groups"];
            groups["group_0"]["weights"].as_object_mut().unwrap().remove("symmetric");
        }),
    ];
    run_drafts(four_bits, cases);
}

#[test]
fn scales_of_rows_that_contradict_are_refused() {
    let cases: &[DraftCase] = &[
        ("one for all", FILE, &["experts.2.up_proj", "with scales [1]"], |d| {
            d.reshape(&name("mlp.experts.2.up_proj.weight_scale"), "BF16", &[1]);
        }),
        ("other rows", FILE, &["experts.2.up_proj", "with scales [63, 1]"], |d| {
            d.reshape(&name("mlp.experts.2.up_proj.weight_scale"), "BF16", &[63, 1]);
        }),
        ("by token", CONFIG, &["weights.strategy", "token"], |d| {
            let groups = &mut d.config["quantization_config"]["config_groups"];
            groups["group_0"]["weights"]["strategy"] = json!("token");
        }),
        ("other tiles", CONFIG, &["weights.block_structure", "[64,64]"], |d| {
            let groups = &mut d.config["quantization_config"]["config_groups"];
            groups["group_0"]["weights"]["strategy"] = json!("block");
            groups["group_0"]["weights"]["block_structure"] = json!([64, 64]);
        }),
    ];
    run_drafts(by_row, cases);
}

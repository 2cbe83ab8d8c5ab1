//! Goal: weights of few bits as publishers store them are opened for what they are, packed byte by byte, and refused
//! where their parts contradict each other. Method: the tiny checkpoint with its matrices replaced.

use std::fs::{self, File};

use kernels::format::{Encoding, FloatType, ScaleType};
use serde_json::json;
use store::format::open;
use store::io::platform::FileExt;
use store::pack::{PackOptions, Precision, Recipe, pack, verify};

use crate::common::{Entry, Noise, TINY, Tensors, Tiny, go};
use crate::malformed::{Draft, DraftCase, run_drafts};
use crate::pack::same_bits;

const FILE: &str = "model.safetensors";
const CONFIG: &str = "config.json";
const PREFIX: &str = "model.language_model.layers.1";

pub(crate) fn name(rest: &str) -> String {
    format!("{PREFIX}.{rest}")
}

/// Replaces each matrix of the layers, routers not, by what `with` makes of its name and shape.
pub(crate) fn replace(draft: &mut Draft, with: impl Fn(&mut Noise, &str, &[usize]) -> Vec<Entry>) {
    let mut noise = Noise(7);
    let old = std::mem::take(&mut draft.tensors.0);
    for entry in old {
        let stays = ["norm", "conv1d", "mlp.gate.", "_gate.", "embed", "lm_head", "mtp", "visual"];
        let is_matrix = entry.shape.len() >= 2 && !stays.iter().any(|s| entry.name.contains(s));
        match is_matrix {
            true => draft.tensors.0.extend(with(&mut noise, &entry.name, &entry.shape)),
            false => draft.tensors.0.push(entry),
        }
    }
}

pub(crate) fn entry(name: String, dtype: &str, shape: &[usize], data: Vec<u8>) -> Entry {
    let mut one = Tensors::default();
    one.add(name, dtype, shape, data);
    one.0.remove(0)
}

/// As DeepSeek-V3 (`F32`), Qwen (`BF16`) and DeepSeek-V4 (`F8_E8M0`) store 8-bit floats.
fn fp8(scale: &'static str) -> Draft {
    fp8_of(Draft::hugging_face(false), scale)
}

fn fp8_of(mut draft: Draft, scale: &'static str) -> Draft {
    replace(&mut draft, |noise, name, shape| {
        let [rows, columns] = shape else { panic!("{name}: {shape:?}") };
        let mut codes = noise.bytes(rows * columns);
        codes.iter_mut().for_each(|code| *code &= 0xbf);
        let tiles = [rows.div_ceil(128), columns.div_ceil(128)];
        let count = tiles[0] * tiles[1];
        let (suffix, scales) = match scale {
            "F8_E8M0" => ("scale", noise.bytes(count).iter().map(|b| 120 + b % 8).collect()),
            _ => ("weight_scale_inv", noise.floats(scale, count)),
        };
        let stem = name.strip_suffix("weight").unwrap();
        vec![
            entry(name.to_owned(), "F8_E4M3", shape, codes),
            entry(format!("{stem}{suffix}"), scale, &tiles, scales),
        ]
    });
    draft.config["quantization_config"] = json!({
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    });
    draft
}

/// As DeepSeek-V4 (`I8`) and mlx-lm (`U32`) store 4-bit floats of experts.
fn mxfp4(dtype: &'static str) -> Draft {
    let mut draft = Draft::hugging_face(false);
    replace(&mut draft, |noise, name, shape| {
        let [rows, columns] = shape else { panic!("{name}: {shape:?}") };
        if !name.contains(".experts.") {
            let data = noise.floats("BF16", rows * columns);
            return vec![entry(name.to_owned(), "BF16", shape, data)];
        }
        let codes = noise.bytes(rows * columns / 2);
        let scales = noise.bytes(rows * columns / 32).iter().map(|b| 120 + b % 8).collect();
        let stem = name.strip_suffix("weight").unwrap();
        let [values, suffix, scale] = match dtype {
            "I8" => [columns / 2, 0, 0],
            _ => [columns / 8, 1, 1],
        };
        let (suffix, scale) = (["scale", "scales"][suffix], ["F8_E8M0", "U8"][scale]);
        vec![
            entry(name.to_owned(), dtype, &[*rows, values], codes),
            entry(format!("{stem}{suffix}"), scale, &[*rows, columns / 32], scales),
        ]
    });
    if dtype == "U32" {
        draft.config["quantization"] = json!({"bits": 4, "group_size": 32, "mode": "mxfp4"});
    }
    draft
}

/// As Kimi-K2 stores its experts: integers packed by compressed-tensors.
fn int4() -> Draft {
    let mut draft = Draft::hugging_face(false);
    replace(&mut draft, |noise, name, shape| {
        let [rows, columns] = shape else { panic!("{name}: {shape:?}") };
        if !name.contains(".experts.") {
            let data = noise.floats("BF16", rows * columns);
            return vec![entry(name.to_owned(), "BF16", shape, data)];
        }
        let codes = noise.bytes(rows * columns / 2);
        let scales = noise.floats("BF16", rows * columns / 32);
        let numbers = [*rows as u32, *columns as u32].map(u32::to_le_bytes).concat();
        vec![
            entry(format!("{name}_packed"), "I32", &[*rows, columns / 8], codes),
            entry(format!("{name}_scale"), "BF16", &[*rows, columns / 32], scales),
            entry(format!("{name}_shape"), "I32", &[2], numbers),
        ]
    });
    let weights = json!({
        "num_bits": 4, "group_size": 32, "symmetric": true, "type": "int", "strategy": "group",
        "actorder": null,
    });
    draft.config["quantization_config"] = json!({
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}},
        "ignore": ["lm_head", "re:.*self_attn.*"],
    });
    draft
}

/// Opens a draft, packs it, and compares; gives the pack's encodings of a trunk matrix and of experts.
pub(crate) fn packed(draft: &Draft, least_version: u32) -> (Encoding, Encoding) {
    let folder = draft.write();
    let source = open(folder.path()).unwrap();
    let target = folder.path().join("pack");
    pack(&source, &target, PackOptions::default(), &mut go).unwrap();
    let packed = open(&target).unwrap();
    same_bits(&source, &packed);
    assert!(verify(&packed, &mut go).unwrap().damaged.is_empty());
    assert_eq!(packed.pack.as_ref().unwrap().version, least_version);
    let trunk = packed.tensors["layers.1.mlp.shared_expert.up_proj"].element.encoding().unwrap();
    (trunk, packed.experts[1].as_ref().unwrap().shapes[2].encoding)
}

#[test]
fn floats_of_eight_bits_go_into_packs_as_they_are() {
    for (scale, expected) in [
        ("F32", ScaleType::Float(FloatType::F32)),
        ("BF16", ScaleType::Float(FloatType::Bf16)),
        ("F8_E8M0", ScaleType::E8m0),
    ] {
        let encoding = Encoding::Fp8 { scale: expected };
        assert_eq!(packed(&fp8(scale), 4), (encoding, encoding), "{scale}");
    }
}

#[test]
fn floats_of_four_bits_go_into_packs_as_they_are() {
    for dtype in ["I8", "U32"] {
        let bf16 = Encoding::Float(FloatType::Bf16);
        assert_eq!(packed(&mxfp4(dtype), 3), (bf16, Encoding::Mxfp4), "{dtype}");
    }
}

/// Rows of a tile are encoded anew together, experts and trunk.
#[test]
fn floats_of_eight_bits_can_be_packed_in_affine_groups() {
    let (config, tensors) = Tiny { hidden: 384, intermediate: 192, ..TINY }.hugging_face(false);
    let folder = fp8_of(Draft { config, tensors }, "F32").write();
    let source = open(folder.path()).unwrap();
    let recipe =
        Recipe { experts: Precision::Bits(8), trunk: Precision::Bits(8), ..Recipe::default() };
    let options = PackOptions { recipe, ..PackOptions::default() };
    let report = pack(&source, &folder.path().join("pack"), options, &mut go).unwrap();
    let errors = report.requantised.iter().filter(|entry| entry.from.name() == "fp8:128:f32");
    let errors: Vec<f64> = errors.map(|entry| entry.relative).collect();
    assert!(errors.len() > 12 && errors.iter().all(|&error| error < 0.02), "{errors:?}");
}

fn good() -> Draft {
    fp8("F32")
}

const SHARED: &str = "mlp.shared_expert.up_proj";

fn reshape_scales(draft: &mut Draft, dtype: &str, shape: &[usize]) {
    draft.reshape(&name(&format!("{SHARED}.weight_scale_inv")), dtype, shape);
}

#[test]
fn tiles_that_contradict_are_refused() {
    let cases: &[DraftCase] = &[
        ("scales missing", FILE, &["shared_expert.up_proj", "fp8 (F8_E4M3)"], |d| {
            d.remove(&name(&format!("{SHARED}.weight_scale_inv")));
        }),
        ("weight missing", CONFIG, &["shared_expert.up_proj", "weight is missing"], |d| {
            d.remove(&name(&format!("{SHARED}.weight")));
        }),
        ("more tiles than rows", FILE, &["shared_expert.up_proj", "with scales [2, 1]"], |d| {
            reshape_scales(d, "F32", &[2, 1]);
        }),
        ("tiles of 32", FILE, &["shared_expert.up_proj", "128 x 128"], |d| {
            reshape_scales(d, "F32", &[2, 4]);
        }),
        ("no tiles", FILE, &["shared_expert.up_proj", "with scales [0, 1]"], |d| {
            reshape_scales(d, "F32", &[0, 1]);
        }),
        ("one scale for all", FILE, &["shared_expert.up_proj", "with scales [1]"], |d| {
            reshape_scales(d, "F32", &[1]);
        }),
        ("a scale without dimensions", FILE, &["shared_expert.up_proj", "with scales []"], |d| {
            reshape_scales(d, "F32", &[]);
        }),
        ("scales of integers", FILE, &["shared_expert.up_proj", "scales of I32"], |d| {
            reshape_scales(d, "I32", &[1, 1]);
        }),
        ("values of E5M2", FILE, &["shared_expert.up_proj", "scales without biases"], |d| {
            d.reshape(&name(&format!("{SHARED}.weight")), "F8_E5M2", &[64, 128]);
        }),
        ("values that are none", FILE, &["shared_expert.up_proj", "holds nothing"], |d| {
            d.reshape(&name(&format!("{SHARED}.weight")), "F8_E4M3", &[0, 128]);
        }),
        ("scales twice", FILE, &["shared_expert.up_proj", "means the same"], |d| {
            d.tensors.add(name(&format!("{SHARED}.scale")), "F32", &[1, 1], vec![0; 4]);
        }),
        ("a stack outside the experts", FILE, &["shared_expert.up_proj", "tiles of 128"], |d| {
            d.reshape(&name(&format!("{SHARED}.weight")), "F8_E4M3", &[1, 64, 128]);
            reshape_scales(d, "F32", &[1, 1, 1]);
        }),
        ("another expert has biases", FILE, &["experts.2.up_proj", "another encoding"], |d| {
            let expert = name("mlp.experts.2.up_proj.weight");
            d.reshape(&expert, "BF16", &[64, 128]);
            d.remove(&format!("{expert}_scale_inv"));
        }),
        ("gate and up in one tile", FILE, &["experts.gate_up_proj", "share a row"], |d| {
            let of_layer = name("mlp.experts.");
            d.tensors.0.retain(|entry| !entry.name.starts_with(&of_layer));
            let names = ["gate_up_proj", "gate_up_proj_scale_inv"]
                .map(|n| name(&format!("mlp.experts.{n}")));
            d.tensors.add(&names[0], "F8_E4M3", &[4, 128, 128], vec![0; 4 * 128 * 128]);
            d.tensors.add(&names[1], "F32", &[4, 1, 1], vec![0; 16]);
        }),
        ("tiles of another size", CONFIG, &["weight_block_size", "[32,32]"], |d| {
            d.config["quantization_config"]["weight_block_size"] = json!([32, 32]);
        }),
        ("tiles without a size", CONFIG, &["weight_block_size", "no value"], |d| {
            d.config["quantization_config"] = json!({"quant_method": "fp8"});
        }),
        ("another float", CONFIG, &["quantization_config.fmt", "e5m2"], |d| {
            d.config["quantization_config"]["fmt"] = json!("e5m2");
        }),
    ];
    run_drafts(good, cases);
}

#[test]
fn groups_that_contradict_are_refused() {
    let cases: &[DraftCase] = &[
        ("groups of 16, as nvfp4", FILE, &["experts.2.up_proj", "nvfp4"], |d| {
            d.reshape(&name("mlp.experts.2.up_proj.scale"), "F8_E8M0", &[64, 8]);
        }),
        ("other rows", FILE, &["experts.2.up_proj", "do not belong together"], |d| {
            d.reshape(&name("mlp.experts.2.up_proj.scale"), "F8_E8M0", &[63, 4]);
        }),
        ("no rows at all", FILE, &["experts.2.up_proj", "do not belong together"], |d| {
            d.reshape(&name("mlp.experts.2.up_proj.weight"), "I8", &[64]);
            d.reshape(&name("mlp.experts.2.up_proj.scale"), "F8_E8M0", &[4]);
        }),
        ("scales of floats", FILE, &["experts.2.up_proj", "scales without biases"], |d| {
            d.reshape(&name("mlp.experts.2.up_proj.scale"), "F32", &[64, 4]);
        }),
        ("half a group", FILE, &["experts.2.up_proj", "nvfp4"], |d| {
            d.reshape(&name("mlp.experts.2.up_proj.weight"), "I8", &[64, 65]);
        }),
    ];
    run_drafts(|| mxfp4("I8"), cases);
}

fn weights(draft: &mut Draft) -> &mut serde_json::Value {
    &mut draft.config["quantization_config"]["config_groups"]["group_0"]["weights"]
}

#[test]
fn packed_integers_go_into_packs_as_they_are() {
    let bf16 = Encoding::Float(FloatType::Bf16);
    let scale = FloatType::Bf16;
    assert_eq!(packed(&int4(), 4), (bf16, Encoding::Symmetric { bits: 4, group: 32, scale }));
}

#[test]
fn packed_integers_that_contradict_are_refused() {
    let cases: &[DraftCase] = &[
        ("scales missing", FILE, &["experts.2.up_proj", "type I32"], |d| {
            d.remove(&name("mlp.experts.2.up_proj.weight_scale"));
        }),
        ("other groups", FILE, &["experts.2.up_proj", "contradict 4 bits in groups of 32"], |d| {
            d.reshape(&name("mlp.experts.2.up_proj.weight_scale"), "BF16", &[64, 3]);
        }),
        ("other rows", FILE, &["experts.2.up_proj", "contradict"], |d| {
            d.reshape(&name("mlp.experts.2.up_proj.weight_scale"), "BF16", &[63, 4]);
        }),
        ("scales of integers", FILE, &["experts.2.up_proj", "scales of I64"], |d| {
            d.reshape(&name("mlp.experts.2.up_proj.weight_scale"), "I64", &[64, 4]);
        }),
        ("a shape of three", FILE, &["up_proj.weight_shape", "not two integers"], |d| {
            d.reshape(&name("mlp.experts.2.up_proj.weight_shape"), "I32", &[3]);
        }),
        ("zero points", FILE, &["weight_zero_point", "zero points"], |d| {
            let point = name("mlp.experts.2.up_proj.weight_zero_point");
            d.tensors.add(point, "I32", &[8, 4], vec![0; 128]);
        }),
        ("no method", FILE, &["experts.0.down_proj", "no quantization_config"], |d| {
            d.config["quantization_config"] = json!(null);
        }),
        ("not symmetric", FILE, &["experts.", "no weight_zero_point"], |d| {
            weights(d)["symmetric"] = json!(false);
        }),
        ("floats", CONFIG, &["weights.type", "float"], |d| weights(d)["type"] = json!("float")),
        ("channels", CONFIG, &["weights.strategy", "channel"], |d| {
            weights(d)["strategy"] = json!("channel");
        }),
        ("columns in another order", CONFIG, &["weights.actorder", "group"], |d| {
            weights(d)["actorder"] = json!("group");
        }),
        ("three bits", CONFIG, &["weights.num_bits", "3"], |d| weights(d)["num_bits"] = json!(3)),
        ("no groups", CONFIG, &["config_groups", "{}"], |d| {
            d.config["quantization_config"]["config_groups"] = json!({});
        }),
        ("another packing", CONFIG, &["quantization_config.format", "marlin-24"], |d| {
            d.config["quantization_config"]["format"] = json!("marlin-24");
        }),
    ];
    run_drafts(int4, cases);
}

/// Bytes of scales at the ends of a type's range, and whether they are numbers.
fn extremes(scale: &str) -> Vec<(Vec<u8>, bool)> {
    let floats = [0.0, -0.0, -1.0, f32::MAX, -f32::MAX, f32::MIN_POSITIVE, 1e30, 1.0];
    let none = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    // In binary32, or in its upper half, where the largest would be rounded to no number.
    let bytes = |value: f32| match scale {
        "F32" => value.to_le_bytes().to_vec(),
        _ => value.to_le_bytes()[2..].to_vec(),
    };
    if scale == "F8_E8M0" {
        return [0, 1, 127, 254, 255].map(|byte| (vec![byte], byte != 255)).to_vec();
    }
    let smallest = if scale == "F32" { vec![1, 0, 0, 0] } else { vec![1, 0] };
    let all = floats.map(|value| (bytes(value), true)).into_iter();
    all.chain(none.map(|value| (bytes(value), false))).chain([(smallest, true)]).collect()
}

/// A scale that is a number, zero, negative or huge, is what the publisher's is and goes into a pack to the bit; what
/// is none is found by `verify`, named, and never packed.
#[test]
fn scales_at_the_ends_of_their_range_are_kept_or_refused() {
    let mut tried = 0;
    for (draft, scale) in [
        (fp8("F32"), "F32"),
        (fp8("BF16"), "BF16"),
        (fp8("F8_E8M0"), "F8_E8M0"),
        (mxfp4("I8"), "F8_E8M0"),
        (mxfp4("U32"), "F8_E8M0"),
        (int4(), "BF16"),
    ] {
        let folder = draft.write();
        let source = open(folder.path()).unwrap();
        let trunk = &source.tensors["layers.1.mlp.shared_expert.up_proj"];
        let experts = source.experts[1].as_ref().unwrap();
        let of_experts = experts.experts.iter().flat_map(|expert| expert.scales_biases);
        let mut scales = of_experts.chain([trunk.scales_biases]).flatten().map(|it| it.0);
        let (first, last) = (scales.clone().next().unwrap(), scales.next_back().unwrap());
        // Packing takes a while: the last scale of a plane is tried with what is no number.
        for (extent, at, all) in [(first, 0, true), (last, last.length, false)] {
            let path = &source.files[extent.file.0 as usize].path;
            let file = File::options().read(true).write(true).open(path).unwrap();
            let tried_here = extremes(scale).into_iter().filter(|(_, is_number)| all || !is_number);
            for (bytes, is_number) in tried_here {
                let offset = extent.offset + at.saturating_sub(bytes.len() as u64);
                let mut before = bytes.clone();
                file.read_exact_at(&mut before, offset).unwrap();
                file.write_all_at(&bytes, offset).unwrap();
                let changed = open(folder.path()).unwrap();
                let damaged = verify(&changed, &mut go).unwrap().damaged;
                let target = folder.path().join("pack");
                let packed = pack(&changed, &target, PackOptions::default(), &mut go);
                let what = format!("{scale} {bytes:02x?}: {damaged:?}");
                if is_number {
                    assert!(damaged.is_empty(), "{what}");
                    packed.unwrap();
                    same_bits(&changed, &open(&target).unwrap());
                    fs::remove_dir_all(&target).unwrap();
                } else {
                    assert!(damaged.len() == 1 && damaged[0].contains("not finite"), "{what}");
                    assert!(packed.is_err() && !target.exists(), "{what}");
                }
                file.write_all_at(&before, offset).unwrap();
                let _refused = fs::remove_dir_all(folder.path().join("pack.partial"));
                tried += 1;
            }
        }
    }
    assert!(tried >= 60, "{tried}");
}

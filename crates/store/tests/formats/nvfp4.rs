//! Goal: NVFP4 of both tools is opened for what it is, packed byte by byte, and refused where its parts or config.json
//! contradict each other or ask for more than is computed. Method: the tiny checkpoint with its matrices replaced.

use std::fs::{self, File};

use kernels::format::{Encoding, GlobalScale};
use serde_json::{Value, json};
use store::format::open;
use store::io::platform::FileExt;
use store::pack::{PackOptions, Precision, Recipe, pack, verify};

use crate::common::go;
use crate::malformed::{Draft, DraftCase, run_drafts};
use crate::published::{entry, name, packed, replace};

const FILE: &str = "model.safetensors";
const CONFIG: &str = "config.json";

/// Which tool wrote a draft.
#[derive(Clone, Copy, Debug)]
enum Tool {
    ModelOpt,
    CompressedTensors,
}

/// As a tool stores its matrices, with what it says of activations.
fn draft(tool: Tool) -> Draft {
    let mut draft = Draft::hugging_face(false);
    let [values, shared, activations] = match tool {
        Tool::ModelOpt => ["weight", "weight_scale_2", "input_scale"],
        Tool::CompressedTensors => ["weight_packed", "weight_global_scale", "input_global_scale"],
    };
    replace(&mut draft, |noise, name, shape| {
        let [rows, columns] = shape else { panic!("{name}: {shape:?}") };
        let codes = noise.bytes(rows * columns / 2);
        let scales = noise.bytes(rows * columns / 16).iter().map(|b| b & 0x3f | 0x20).collect();
        let stem = name.strip_suffix("weight").unwrap();
        let one = match tool {
            Tool::ModelOpt => entry(format!("{stem}{shared}"), "F32", &[], vec![0, 0, 0, 60]),
            Tool::CompressedTensors => {
                entry(format!("{stem}{shared}"), "F32", &[1], vec![0, 0, 0, 67])
            }
        };
        vec![
            entry(format!("{stem}{values}"), "U8", &[*rows, columns / 2], codes),
            entry(format!("{stem}weight_scale"), "F8_E4M3", &[*rows, columns / 16], scales),
            one,
            entry(format!("{stem}{activations}"), "F32", &[1], vec![0, 0, 128, 63]),
        ]
    });
    draft.config["quantization_config"] = match tool {
        Tool::ModelOpt => json!({
            "quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": null,
            "ignore": ["lm_head", "model.layers.*.mlp.gate*"],
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 16}}},
        }),
        Tool::CompressedTensors => json!({
            "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
            "ignore": ["lm_head", "re:.*mlp.gate$"],
            "config_groups": {"group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
                    "symmetric": true,
                },
                "input_activations": {"num_bits": 4, "type": "float", "dynamic": "local"},
            }},
        }),
    };
    draft
}

fn modelopt() -> Draft {
    draft(Tool::ModelOpt)
}

fn compressed_tensors() -> Draft {
    draft(Tool::CompressedTensors)
}

#[test]
fn both_spellings_go_into_packs_as_they_are() {
    for (tool, global) in
        [(Tool::ModelOpt, GlobalScale::Multiplies), (Tool::CompressedTensors, GlobalScale::Divides)]
    {
        let encoding = Encoding::Nvfp4 { global };
        assert_eq!(packed(&draft(tool), 6), (encoding, encoding), "{tool:?}");
    }
}

/// ModelOpt's own file says it where config.json does not, and a mixture of schemes names each layer's.
#[test]
fn what_modelopt_says_is_read_from_either_file() {
    let mut draft = modelopt();
    draft.config["quantization_config"] = Value::Null;
    draft.tensors.0.retain(|entry| !entry.name.ends_with("input_scale"));
    let folder = draft.write();
    let error = open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("weight_scale_2") && error.contains(CONFIG), "{error}");
    for quantization in [
        json!({"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}),
        json!({"quant_algo": "MIXED_PRECISION", "quantized_layers": {
            "model.layers.0.mlp.experts.0.up_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
        }}),
    ] {
        let json = json!({"producer": {"name": "modelopt"}, "quantization": quantization});
        fs::write(folder.path().join("hf_quant_config.json"), json.to_string()).unwrap();
        let checkpoint = open(folder.path()).unwrap();
        let shape = checkpoint.experts[1].as_ref().unwrap().shapes[0];
        assert_eq!(shape.encoding, Encoding::Nvfp4 { global: GlobalScale::Multiplies });
        assert!(checkpoint.unused.is_empty(), "{:?}", checkpoint.unused);
    }
}

#[test]
fn groups_of_sixteen_can_be_packed_in_affine_groups() {
    for tool in [Tool::ModelOpt, Tool::CompressedTensors] {
        let folder = draft(tool).write();
        let source = open(folder.path()).unwrap();
        let recipe =
            Recipe { experts: Precision::Bits(8), trunk: Precision::Bits(8), ..Recipe::default() };
        let options = PackOptions { recipe, ..PackOptions::default() };
        let report = pack(&source, &folder.path().join("pack"), options, &mut go).unwrap();
        let errors = report.requantised.iter().filter(|it| it.from.name().starts_with("nvfp4:"));
        let errors: Vec<f64> = errors.map(|entry| entry.relative).collect();
        assert!(errors.len() > 4 && errors.iter().all(|&error| error < 0.02), "{errors:?}");
    }
}

const CODES: &str = "mlp.experts.2.up_proj.weight";
const SCALES: &str = "mlp.experts.2.up_proj.weight_scale";
const SHARED: &str = "mlp.experts.2.up_proj.weight_scale_2";

#[test]
fn parts_that_contradict_are_refused() {
    let cases: &[DraftCase] = &[
        ("no scales", FILE, &["experts.2.up_proj", "biases without scales"], |d| {
            d.remove(&name(SCALES));
        }),
        ("no number", FILE, &["experts.2.up_proj", "without weight_scale_2"], |d| {
            d.remove(&name(SHARED));
        }),
        ("no values", CONFIG, &["experts.2.up_proj", "weight is missing"], |d| {
            d.remove(&name(CODES));
        }),
        ("groups of 32", FILE, &["experts.2.up_proj", "a scale is for eight bytes"], |d| {
            d.reshape(&name(SCALES), "F8_E4M3", &[64, 4]);
        }),
        ("scales of other rows", FILE, &["experts.2.up_proj", "a scale is for eight"], |d| {
            d.reshape(&name(SCALES), "F8_E4M3", &[63, 8]);
        }),
        ("columns past the last group", FILE, &["experts.2.up_proj", "eight bytes"], |d| {
            d.reshape(&name(CODES), "U8", &[64, 65]);
        }),
        ("rows without columns", FILE, &["experts.2.up_proj", "eight bytes"], |d| {
            d.reshape(&name(CODES), "U8", &[64]);
            d.reshape(&name(SCALES), "F8_E4M3", &[8]);
        }),
        ("scales of floats", FILE, &["experts.2.up_proj", "U8, BF16, F32"], |d| {
            d.reshape(&name(SCALES), "BF16", &[64, 8]);
        }),
        ("a number of another type", FILE, &["experts.2.up_proj", "F8_E4M3, BF16"], |d| {
            d.reshape(&name(SHARED), "BF16", &[1]);
        }),
        ("two numbers", FILE, &["weight_scale_2", "[2] for 1 matrices"], |d| {
            d.reshape(&name(SHARED), "F32", &[2]);
        }),
        ("a number of each tool", FILE, &["experts.2.up_proj", "means the same"], |d| {
            let other = name("mlp.experts.2.up_proj.weight_global_scale");
            d.tensors.add(other, "F32", &[1], vec![0, 0, 0, 67]);
        }),
        ("another expert's spelling", CONFIG, &["experts.2.up_proj", "says nothing"], |d| {
            d.remove(&name(SHARED));
            let other = name("mlp.experts.2.up_proj.weight_global_scale");
            d.tensors.add(other, "F32", &[1], vec![0, 0, 0, 67]);
        }),
        ("scales of activations", FILE, &["pre_quant_scale", "AWQ"], |d| {
            let other = name("mlp.experts.2.up_proj.pre_quant_scale");
            d.tensors.add(other, "BF16", &[128], vec![0; 256]);
        }),
        ("parts of low rank", FILE, &["svdquant_lora_a", "SVDQuant"], |d| {
            let other = name("self_attn.q_proj.svdquant_lora_a");
            d.tensors.add(other, "BF16", &[4, 128], vec![0; 1024]);
        }),
        ("another algorithm", CONFIG, &["quant_algo", "NVFP4_AWQ"], |d| {
            d.config["quantization_config"]["quant_algo"] = json!("NVFP4_AWQ");
        }),
        ("no algorithm", CONFIG, &["quant_algo", "no value"], |d| {
            d.config["quantization_config"] = json!({"quant_method": "modelopt"});
        }),
        ("another group", CONFIG, &["quantization_config.group_size", "32"], |d| {
            d.config["quantization_config"]["group_size"] = json!(32);
        }),
        ("a layer of another algorithm", CONFIG, &["layers.0.x.quant_algo", "W4A8_AWQ"], |d| {
            d.config["quantization_config"] = json!({
                "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {"layers.0.x": {"quant_algo": "W4A8_AWQ"}},
            });
        }),
        ("layers that are no object", CONFIG, &["quantized_layers", "[]"], |d| {
            d.config["quantization_config"] = json!({
                "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": [],
            });
        }),
    ];
    run_drafts(modelopt, cases);
}

#[test]
fn configurations_that_ask_for_more_are_refused() {
    fn group(draft: &mut Draft) -> &mut Value {
        &mut draft.config["quantization_config"]["config_groups"]["group_0"]
    }
    let cases: &[DraftCase] = &[
        ("rotations", CONFIG, &["transform_config"], |d| {
            d.config["quantization_config"]["transform_config"] = json!({"config_groups": {}});
        }),
        ("sparse values", CONFIG, &["sparsity_config.format", "sparse-24"], |d| {
            d.config["quantization_config"]["sparsity_config"] = json!({"format": "sparse-24"});
        }),
        ("a group of another format", CONFIG, &["group_0.format", "int-quantized"], |d| {
            group(d)["format"] = json!("int-quantized");
        }),
        ("groups of 32", CONFIG, &["weights.group_size", "32"], |d| {
            group(d)["weights"]["group_size"] = json!(32);
        }),
        ("eight bits", CONFIG, &["weights.num_bits", "8"], |d| {
            group(d)["weights"]["num_bits"] = json!(8);
        }),
        ("integers", CONFIG, &["weights.type", "int"], |d| {
            group(d)["weights"]["type"] = json!("int");
        }),
        ("no weights", CONFIG, &["weights.type", "no value"], |d| {
            group(d)["weights"] = Value::Null;
        }),
    ];
    run_drafts(compressed_tensors, cases);
}

/// Scales and the number of a matrix that are no numbers are found by `verify`, named, and never packed; a divisor of
/// zero is none either.
#[test]
fn numbers_that_are_none_are_found() {
    let (nan, infinite) = (f32::NAN.to_le_bytes(), f32::INFINITY.to_le_bytes());
    for (tool, plane, bytes) in [
        (Tool::ModelOpt, 0, &[0x7f][..]),
        (Tool::CompressedTensors, 0, &[0xff]),
        (Tool::ModelOpt, 1, &nan),
        (Tool::CompressedTensors, 1, &infinite),
        (Tool::CompressedTensors, 1, &[0; 4]),
    ] {
        let folder = draft(tool).write();
        let source = open(folder.path()).unwrap();
        let (scales, shared) =
            source.experts[1].as_ref().unwrap().experts[2].scales_biases[1].unwrap();
        let extent = [scales, shared][plane];
        let path = &source.files[extent.file.0 as usize].path;
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(bytes, extent.offset).unwrap();
        let changed = open(folder.path()).unwrap();
        let damaged = verify(&changed, &mut go).unwrap().damaged;
        let named = damaged.len() == 1 && damaged[0].contains("layer 1, expert 2");
        assert!(named && damaged[0].contains("not finite"), "{tool:?} {bytes:?}: {damaged:?}");
        let target = folder.path().join("pack");
        assert!(pack(&changed, &target, PackOptions::default(), &mut go).is_err(), "{bytes:?}");
        assert!(!target.exists());
    }
}

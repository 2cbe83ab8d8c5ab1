//! Goal: weights that lie inputs before outputs are refused, with file, field and value, where their parts contradict
//! each other or the configuration, and where they hold what no value is. Method: one damage at a time.

use serde_json::json;
use store::format::{FormatError, open_to_pack};
use store::pack::{PackOptions, pack};

use super::{Form, Layout, MATRIX, USUAL, part, write};
use crate::common::go;
use crate::malformed::{Draft, DraftCase};

const FILE: &str = "model.safetensors";
const CONFIG: &str = "config.json";

/// What is wrong with a draft: at open, or when it is packed.
fn message(draft: &Draft) -> String {
    let folder = write(draft);
    let source = match open_to_pack(folder.path()) {
        Ok(source) => source,
        Err(error) => return error.to_string(),
    };
    let target = folder.path().join("pack");
    match pack(&source, &target, PackOptions::default(), &mut go) {
        Ok(_) => "accepted".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn run(good: fn() -> Draft, cases: &[DraftCase]) {
    assert_eq!(message(&good()), "accepted");
    for (name, file, words, damage) in cases {
        let mut draft = good();
        damage(&mut draft);
        let message = message(&draft);
        let (blamed, rest) = message.split_once(": ").unwrap_or((&message, ""));
        assert!(blamed.ends_with(file), "{name}: {file} is to blame, not {message}");
        assert!(message.lines().count() == 1 && message.len() < 1000, "{name}: {message}");
        for word in *words {
            assert!(rest.contains(word), "{name}: no {word:?} in: {message}");
        }
    }
}

fn gptq() -> Draft {
    USUAL.draft().0
}

fn awq() -> Draft {
    Form { layout: Layout::Awq, ..USUAL }.draft().0
}

fn symmetric() -> Draft {
    Form { symmetric: true, ..USUAL }.draft().0
}

fn auto_round() -> Draft {
    let mut draft = symmetric();
    draft.config["quantization_config"] = json!({
        "quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4,
        "group_size": 32, "sym": true,
    });
    draft
}

/// Sets a field of the object of the configuration.
fn say(draft: &mut Draft, field: &str, value: serde_json::Value) {
    draft.config["quantization_config"][field] = value;
}

/// Gives a 32-bit word of a tensor another value.
fn word(draft: &mut Draft, end: &str, index: usize, value: u32) {
    draft.tensors.find(&part(end)).data[4 * index..][..4].copy_from_slice(&value.to_le_bytes());
}

#[test]
fn parts_that_contradict_are_refused() {
    let cases: &[DraftCase] = &[
        ("no zeros", FILE, &[MATRIX, "qzeros is missing"], |d| d.remove(&part("qzeros"))),
        ("no scales", FILE, &[MATRIX, "scales is missing"], |d| d.remove(&part("scales"))),
        ("no codes", FILE, &["qzeros", "has no qweight"], |d| {
            d.rename(&part("qweight"), &part("weight"));
        }),
        ("nothing but an order", CONFIG, &[MATRIX, "weight is missing"], |d| {
            ["qweight", "qzeros", "scales"].iter().for_each(|end| d.remove(&part(end)));
        }),
        ("weights as well", FILE, &["up_proj", "means the same"], |d| {
            d.tensors.add(part("weight"), "BF16", &[64, 128], vec![0; 64 * 128 * 2]);
        }),
        ("biases", FILE, &["up_proj.biases", "next to a qweight"], |d| {
            d.rename(&part("qzeros"), &part("biases"));
        }),
        ("codes of bytes", FILE, &["up_proj.qweight", "U8 [64, 64], not I32"], |d| {
            d.reshape(&part("qweight"), "U8", &[64, 64]);
        }),
        ("a stack", FILE, &["up_proj.qweight", "[2, 8, 64]"], |d| {
            d.reshape(&part("qweight"), "I32", &[2, 8, 64]);
        }),
        ("no codes at all", FILE, &["up_proj", "[0, 64] holds nothing"], |d| {
            d.reshape(&part("qweight"), "I32", &[0, 64]);
        }),
        ("half of the codes", FILE, &["up_proj.scales", "[4, 64]", "asks for [2, 64]"], |d| {
            d.reshape(&part("qweight"), "I32", &[8, 64]);
        }),
        ("outputs that fill no word", FILE, &["up_proj.qweight", "60 outputs", "of 8"], |d| {
            d.reshape(&part("qweight"), "I32", &[16, 60]);
        }),
        ("inputs that fill no group", FILE, &["up_proj.qweight", "120 inputs", "32"], |d| {
            d.reshape(&part("qweight"), "I32", &[15, 64]);
        }),
        ("scales turned", FILE, &["up_proj.scales", "[64, 4]", "asks for [4, 64]"], |d| {
            d.reshape(&part("scales"), "F16", &[64, 4]);
        }),
        ("scales of integers", FILE, &["up_proj.scales", "I32"], |d| {
            d.reshape(&part("scales"), "I32", &[4, 64]);
        }),
        ("zeros turned", FILE, &["up_proj.qzeros", "[8, 4]", "asks for I32 [4, 8]"], |d| {
            d.reshape(&part("qzeros"), "I32", &[8, 4]);
        }),
        ("a short order", FILE, &["up_proj.g_idx", "I32 [127], not I32 [128]"], |d| {
            d.reshape(&part("g_idx"), "I32", &[127]);
        }),
        ("all turned", FILE, &["experts.2.up_proj", "[128, 64]"], |d| {
            d.reshape(&part("qweight"), "I32", &[8, 128]);
            d.reshape(&part("scales"), "F16", &[2, 128]);
            d.reshape(&part("qzeros"), "I32", &[2, 16]);
            d.reshape(&part("g_idx"), "I32", &[64]);
        }),
    ];
    run(gptq, cases);
}

#[test]
fn configurations_that_are_not_read_are_refused() {
    let cases: &[DraftCase] = &[
        ("none", FILE, &["qweight", "no quantization_config"], |d| {
            d.config.as_object_mut().unwrap().remove("quantization_config");
        }),
        ("three bits", CONFIG, &["quantization_config.bits: 3"], |d| say(d, "bits", json!(3))),
        ("no bits", CONFIG, &["quantization_config.bits: no value"], |d| {
            say(d, "bits", json!(null));
        }),
        ("two numbers of bits", CONFIG, &["w_bit: 8"], |d| say(d, "w_bit", json!(8))),
        ("other bits", FILE, &["contradicts 8 bits in groups of 32"], |d| say(d, "bits", json!(8))),
        ("other groups", FILE, &["scales", "contradicts 4 bits in groups of 64"], |d| {
            say(d, "group_size", json!(64));
        }),
        ("a row", FILE, &["scales", "a scale for each row", "asks for [1, "], |d| {
            say(d, "group_size", json!(-1));
        }),
        ("16 a group", CONFIG, &["group_size: 16"], |d| say(d, "group_size", json!(16))),
        ("none a group", CONFIG, &["group_size: 0"], |d| say(d, "group_size", json!(0))),
        ("-2 a group", CONFIG, &["group_size: -2"], |d| say(d, "group_size", json!(-2))),
        ("many a group", CONFIG, &["group_size: 18446744073709551584"], |d| {
            say(d, "group_size", json!(18_446_744_073_709_551_584_u64));
        }),
        ("marlin", CONFIG, &["checkpoint_format: \"marlin\""], |d| {
            say(d, "checkpoint_format", json!("marlin"));
        }),
        ("two formats", CONFIG, &["format: \"gptq_v2\""], |d| say(d, "format", json!("gptq_v2"))),
        ("marlin by a flag", CONFIG, &["is_marlin_format: true"], |d| {
            say(d, "is_marlin_format", json!(true));
        }),
        ("words of 16 bits", CONFIG, &["pack_dtype: \"int16\""], |d| {
            say(d, "pack_dtype", json!("int16"));
        }),
        ("symmetric in words", CONFIG, &["sym: \"yes\""], |d| say(d, "sym", json!("yes"))),
        ("some with 8 bits", CONFIG, &["dynamic.+:.*down_proj.bits: 8"], |d| {
            say(d, "dynamic", json!({"+:.*down_proj": {"bits": 8}}));
        }),
        ("some with an adapter", CONFIG, &["dynamic..*down_proj.adapter: "], |d| {
            say(d, "dynamic", json!({".*down_proj": {"adapter": {"rank": 4}}}));
        }),
        ("rules in a list", CONFIG, &["dynamic: [1]"], |d| say(d, "dynamic", json!([1]))),
        ("act order without orders", CONFIG, &["desc_act: true, but ", "no g_idx"], |d| {
            say(d, "desc_act", json!(true));
            d.remove(&part("g_idx"));
        }),
    ];
    run(gptq, cases);
    let cases: &[DraftCase] = &[
        ("gemv", CONFIG, &["version: \"gemv\""], |d| say(d, "version", json!("gemv"))),
        ("marlin", CONFIG, &["format: \"marlin\""], |d| say(d, "format", json!("marlin"))),
        ("llm-awq", CONFIG, &["backend: \"llm-awq\""], |d| say(d, "backend", json!("llm-awq"))),
        ("8 bits", CONFIG, &["bits: 8"], |d| say(d, "bits", json!(8))),
        ("an order", FILE, &["up_proj.g_idx", "act order"], |d| {
            d.tensors.add(part("g_idx"), "I32", &[128], vec![0; 512]);
        }),
        ("read as GPTQ", FILE, &["qweight", "contradicts"], |d| {
            say(d, "quant_method", json!("gptq"));
        }),
    ];
    run(awq, cases);
}

#[test]
fn what_auto_round_says_and_is_not_read_is_refused() {
    let cases: &[DraftCase] = &[
        ("another format", CONFIG, &["packing_format: \"auto_round:gptqmodel\""], |d| {
            say(d, "packing_format", json!("auto_round:gptqmodel"));
        }),
        ("floats", CONFIG, &["data_type: \"mx_fp\""], |d| say(d, "data_type", json!("mx_fp"))),
        ("floats of compressed-tensors", FILE, &["qweight", "no quantization_config"], |d| {
            say(d, "packing_format", json!("auto_round:llm_compressor"));
            say(d, "data_type", json!("mx_fp"));
        }),
        ("a module with 3 bits", CONFIG, &["extra_config.x.bits: 3"], |d| {
            say(d, "extra_config", json!({"x": {"bits": 3}}));
        }),
        ("a pattern with 8 bits", CONFIG, &["extra_config..*x", "pattern with other"], |d| {
            say(d, "extra_config", json!({".*x": {"bits": 8}}));
        }),
        ("not quantised, it says", FILE, &["up_proj.qweight", "16 bits"], |d| {
            let module = part("").trim_end_matches('.').to_owned();
            say(d, "extra_config", json!({module: {"bits": 16, "data_type": "float"}}));
        }),
        ("quantised, it says", FILE, &["mlp.gate", "BF16", "lists it as"], |d| {
            let module = crate::published::name("mlp.gate");
            say(d, "extra_config", json!({module: {"bits": 8}}));
        }),
    ];
    run(auto_round, cases);
}

#[test]
fn bytes_that_mean_no_value_are_refused_when_they_are_packed() {
    let cases: &[DraftCase] = &[
        ("act order", FILE, &["up_proj.g_idx", "input 5 is in group 3, not 0", "act order"], |d| {
            word(d, "g_idx", 5, 3);
        }),
        ("an order below zero", FILE, &["g_idx", "input 127 is in group -1, not 3"], |d| {
            word(d, "g_idx", 127, u32::MAX);
        }),
        // Group 1, word 2 of eight: outputs 16 to 23.
        (
            "a zero point of 16",
            FILE,
            &["qzeros", "group 1 of output 17", "16 (stored as 15)"],
            |d| {
                word(d, "qzeros", 10, 0x0000_00f0);
            },
        ),
        ("a scale that is none", FILE, &["up_proj.scales", "not finite at byte"], |d| {
            d.tensors.find(&part("scales")).data[100..102].copy_from_slice(&[0, 0x7e]);
        }),
    ];
    run(gptq, cases);
    let cases: &[DraftCase] =
        &[("not in the middle", FILE, &["qzeros", "group 0 of output 2", "7, not 8"], |d| {
            word(d, "qzeros", 0, 0x7777_7677);
        })];
    run(symmetric, cases);
}

#[test]
fn a_file_that_is_cut_short_is_refused() {
    let folder = write(&gptq());
    let path = folder.path().join(FILE);
    let length = path.metadata().unwrap().len();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(length - 1).unwrap();
    assert!(matches!(open_to_pack(folder.path()), Err(FormatError::Length { .. })));
}

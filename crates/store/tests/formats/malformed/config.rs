//! Malformed `config.json`: JSON, sizes, experts, quantisation.

use super::{Draft, DraftCase, FolderCase, run_drafts, run_folders};
use crate::common::Folder;
use serde_json::{Value, json};

const FILE: &str = "config.json";

#[test]
fn files_that_are_no_configuration() {
    let cases: &[FolderCase] = &[
        ("empty file", FILE, &["JSON"], |f| drop(f.write(FILE, ""))),
        ("not JSON", FILE, &["JSON"], |f| drop(f.write(FILE, "{"))),
        ("two objects", FILE, &["JSON"], |f| drop(f.write(FILE, "{}{}"))),
        ("a list", FILE, &["config", "not a JSON object"], |f| drop(f.write(FILE, "[]"))),
        ("a text", FILE, &["config", "not a JSON object"], |f| drop(f.write(FILE, "\"x\""))),
        ("an empty object", FILE, &["model_type", "none"], |f| drop(f.write(FILE, "{}"))),
        ("a key twice", FILE, &["hidden_size", "twice"], |f| {
            drop(f.write(FILE, r#"{"hidden_size":1,"hidden_size":2}"#));
        }),
        ("a key twice, inside", FILE, &["hidden_size", "twice"], |f| {
            drop(f.write(FILE, r#"{"text_config":{"hidden_size":1,"hidden_size":2}}"#));
        }),
        ("nesting of lists", FILE, &["JSON"], |f| drop(f.write(FILE, "[".repeat(100_000)))),
        ("nesting of objects", FILE, &["JSON"], |f| {
            drop(f.write(FILE, r#"{"a":"#.repeat(100_000)));
        }),
        ("bytes that are no text", FILE, &["JSON"], |f| {
            drop(f.write(FILE, b"{\"a\":\"\xff\xfe\"}"))
        }),
        ("sixteen bits per character", FILE, &["JSON"], |f| drop(f.write(FILE, b"\xff\xfe{\0}\0"))),
        ("NaN", FILE, &["JSON"], |f| drop(f.write(FILE, r#"{"rms_norm_eps":NaN}"#))),
        ("a number beyond all bounds", FILE, &["JSON"], |f| {
            drop(f.write(FILE, r#"{"rms_norm_eps":1e999}"#));
        }),
        ("a comment", FILE, &["JSON"], |f| drop(f.write(FILE, "{/* sizes */}"))),
        ("five megabytes of spaces", FILE, &["file size", "limit"], |f| {
            drop(f.write(FILE, " ".repeat(5 << 20)));
        }),
    ];
    run_folders(Folder::mlx, cases);
}

#[test]
fn sizes() {
    let cases: &[DraftCase] = &[
        ("no layers", FILE, &["num_hidden_layers", "positive"], |d| {
            d.text()["num_hidden_layers"] = json!(0)
        }),
        ("minus one layer", FILE, &["num_hidden_layers", "-1"], |d| {
            d.text()["num_hidden_layers"] = json!(-1)
        }),
        ("2^63 layers", FILE, &["num_hidden_layers", "limit"], |d| {
            d.text()["num_hidden_layers"] = json!(1_u64 << 63);
        }),
        ("100,000 layers", FILE, &["num_hidden_layers", "limit of 1024"], |d| {
            d.text()["num_hidden_layers"] = json!(100_000);
        }),
        ("layers as text", FILE, &["num_hidden_layers"], |d| {
            d.text()["num_hidden_layers"] = json!("4")
        }),
        ("hidden size a fraction", FILE, &["hidden_size", "1.5"], |d| {
            d.text()["hidden_size"] = json!(1.5)
        }),
        ("hidden size null", FILE, &["hidden_size", "missing"], |d| {
            d.text()["hidden_size"] = Value::Null
        }),
        ("hidden size beyond reason", FILE, &["hidden_size", "limit"], |d| {
            d.text()["hidden_size"] = json!(1_u64 << 40);
        }),
        (
            "hidden size of another model",
            "model.safetensors",
            &["Down is [128, 64]", "hidden_size"],
            |d| {
                d.text()["hidden_size"] = json!(256);
            },
        ),
        ("expert width of another model", "model.safetensors", &["moe_intermediate_size"], |d| {
            d.text()["moe_intermediate_size"] = json!(32);
        }),
        ("expert width zero", FILE, &["moe_intermediate_size"], |d| {
            d.text()["moe_intermediate_size"] = json!(0);
        }),
        ("no experts", FILE, &["num_experts", "positive"], |d| d.text()["num_experts"] = json!(0)),
        ("too few experts", "model.safetensors", &["in a model of 3 experts"], |d| {
            d.text()["num_experts"] = json!(3);
        }),
        ("too many experts", "model.safetensors", &["in a model of 5 experts"], |d| {
            d.text()["num_experts"] = json!(5);
        }),
        ("70,000 experts", FILE, &["num_experts", "limit"], |d| {
            d.text()["num_experts"] = json!(70_000)
        }),
        (
            "more records than memory for tables",
            FILE,
            &["num_hidden_layers x num_experts", "limit"],
            |d| {
                d.text()["num_experts"] = json!(65_000);
            },
        ),
        ("top-k above the experts", FILE, &["num_experts_per_tok", "5 of 4 experts"], |d| {
            d.text()["num_experts_per_tok"] = json!(5);
        }),
        ("top-k zero", FILE, &["num_experts_per_tok", "positive"], |d| {
            d.text()["num_experts_per_tok"] = json!(0);
        }),
        ("top-k negative", FILE, &["num_experts_per_tok", "-2"], |d| {
            d.text()["num_experts_per_tok"] = json!(-2);
        }),
        ("a line break in a value", FILE, &["hidden_size", "a\\nb"], |d| {
            d.text()["hidden_size"] = json!("a\nb\u{1b}[31m");
        }),
        ("a value of a megabyte", FILE, &["hidden_size", "..."], |d| {
            d.text()["hidden_size"] = json!("x".repeat(1 << 20));
        }),
    ];
    run_drafts(Draft::mlx, cases);
}

fn quantise(draft: &mut Draft, value: Value) {
    draft.config["quantization"] = value;
    draft.config.as_object_mut().unwrap().shift_remove("quantization_config");
}

#[test]
fn quantisations() {
    let cases: &[DraftCase] = &[
        ("a number", FILE, &["quantization", "object"], |d| quantise(d, json!(4))),
        ("a list", FILE, &["quantization", "object"], |d| quantise(d, json!([4, 64]))),
        ("bits missing", FILE, &["quantization.bits", "missing"], |d| {
            quantise(d, json!({"group_size": 64}))
        }),
        ("group missing", FILE, &["quantization.group_size", "missing"], |d| {
            quantise(d, json!({"bits": 4}))
        }),
        ("seven bits", FILE, &["quantization.bits", "7"], |d| {
            quantise(d, json!({"bits": 7, "group_size": 64}));
        }),
        ("no bits", FILE, &["quantization.bits", "0"], |d| {
            quantise(d, json!({"bits": 0, "group_size": 64}))
        }),
        ("bits as text", FILE, &["quantization.bits"], |d| {
            quantise(d, json!({"bits": "4", "group_size": 64}))
        }),
        ("group of 48", FILE, &["quantization.group_size", "48"], |d| {
            quantise(d, json!({"bits": 4, "group_size": 48}));
        }),
        ("group of zero", FILE, &["quantization.group_size", "0"], |d| {
            quantise(d, json!({"bits": 4, "group_size": 0}));
        }),
        ("mxfp4 in groups of 64", FILE, &["quantization.mode", "mxfp4", "groups of 64"], |d| {
            quantise(d, json!({"bits": 4, "group_size": 64, "mode": "mxfp4"}));
        }),
        ("nvfp4", FILE, &["quantization.mode", "nvfp4"], |d| {
            quantise(d, json!({"bits": 4, "group_size": 16, "mode": "nvfp4"}));
        }),
        ("mode a number", FILE, &["quantization.mode", "3"], |d| {
            quantise(d, json!({"bits": 4, "group_size": 64, "mode": 3}));
        }),
        ("fp8 of affine weights", FILE, &["quantization", "does not say"], |d| {
            quantise(d, json!({"quant_method": "fp8", "weight_block_size": [128, 128]}));
        }),
        ("another tool", FILE, &["quantization.quant_method", "quip"], |d| {
            quantise(d, json!({"quant_method": "quip", "bits": 4, "group_size": 128}));
        }),
        ("gptq of 2 bits", FILE, &["quantization.bits: 2", "GPTQ"], |d| {
            quantise(d, json!({"quant_method": "gptq", "bits": 2, "group_size": 128}));
        }),
        ("bits of another checkpoint", "model.safetensors", &["contradict 8 bits"], |d| {
            quantise(d, json!({"bits": 8, "group_size": 64}));
        }),
        (
            "group of another checkpoint",
            "model.safetensors",
            &["contradict 4 bits in groups of 32"],
            |d| {
                quantise(d, json!({"bits": 4, "group_size": 32}));
            },
        ),
        ("the same shapes, another meaning", "model.safetensors", &["Down is [128, 128]"], |d| {
            quantise(d, json!({"bits": 2, "group_size": 128}));
        }),
        ("not quantised", FILE, &["quantization", "does not say"], |d| quantise(d, Value::Null)),
        (
            "an override of another width",
            "model.safetensors",
            &["layers.0.mlp.gate", "contradict 8 bits"],
            |d| {
                d.config["quantization"]["language_model.model.layers.0.mlp.gate"] =
                    json!({"bits": 8, "group_size": 64});
            },
        ),
        ("an override of nine bits", FILE, &["layers.0.mlp.gate.bits", "9"], |d| {
            d.config["quantization"]["layers.0.mlp.gate"] = json!({"bits": 9});
        }),
        ("an override in another mode", FILE, &["layers.0.mlp.gate.mode", "mxfp8"], |d| {
            d.config["quantization"]["layers.0.mlp.gate"] = json!({"mode": "mxfp8"});
        }),
        ("an override to no quantisation", FILE, &["layers.0.mlp.gate", "does not say"], |d| {
            d.config["quantization"]["layers.0.mlp.gate"] = json!(false);
        }),
        ("an override that is a number", FILE, &["layers.0.mlp.gate", "5 is not"], |d| {
            d.config["quantization"]["layers.0.mlp.gate"] = json!(5);
        }),
        ("an override of null", FILE, &["layers.0.mlp.gate", "null is not"], |d| {
            d.config["quantization"]["layers.0.mlp.gate"] = Value::Null;
        }),
        ("two overrides for one module", FILE, &["layers.0.mlp.gate", "second"], |d| {
            d.config["quantization"]["layers.0.mlp.gate"] = json!({"bits": 4});
            d.config["quantization"]["model.layers.0.mlp.gate"] = json!({"bits": 8});
        }),
        (
            "an override for a float tensor",
            "model.safetensors",
            &["norm", "lists it as quantised"],
            |d| {
                d.config["quantization"]["norm"] = json!({"bits": 8});
            },
        ),
    ];
    run_drafts(Draft::mlx, cases);
}

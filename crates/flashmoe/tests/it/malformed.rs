//! Damaged models through the real binary: exit code 3, one line on standard error that names file and field,
//! at once, in little memory, whichever command meets them. The tables of what a reader must refuse are
//! `crates/store/tests/formats/malformed`; here is a sample of them, and what only the engine can know.

use crate::support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::golden_copy;

/// Address space of a refusal, KiB: the binary's own mappings and threads' stacks are most of it.
const MEMORY_KIB_MAX: u64 = 512 << 10;
/// Longest line of a refusal, bytes: the values that it repeats are cut, the list of families is not.
const LINE_BYTES_MAX: usize = 900;
/// Usually a hundredth of this; the rest is for a busy machine.
const PATIENCE: Duration = Duration::from_secs(2);

/// Name, words that the line must contain, damage to a copy of the model.
type Case = (&'static str, &'static [&'static str], fn(&Path));

/// Changes the text part of config.json.
fn config(folder: &Path, change: impl FnOnce(&mut Value)) {
    let path = folder.join("config.json");
    let mut root: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let has_text = root.get("text_config").is_some();
    change(if has_text { &mut root["text_config"] } else { &mut root });
    fs::write(path, root.to_string()).unwrap();
}

fn set(folder: &Path, key: &str, value: Value) {
    config(folder, |text| text[key] = value);
}

/// Renames a tensor by replacing text of equal length in the header.
fn rename(folder: &Path, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let path = folder.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    fs::write(path, bytes).unwrap();
}

/// What is wrong with the way a command refuses a model; nothing when it is as it should be.
fn complaint(name: &str, command: &[&str], model: &Path, words: &[&str]) -> Option<String> {
    let started = Instant::now();
    let mut run = Command::new(env!("CARGO_BIN_EXE_flashmoe"));
    run.arg(command[0]).arg(model).args(&command[1..]);
    let output = run.output().unwrap();
    let took = started.elapsed();
    let errors = String::from_utf8_lossy(&output.stderr);
    // What loaded before the damage was met has told its progress.
    let lines: Vec<&str> = errors.lines().filter(|line| !line.starts_with("loading ")).collect();
    let [line] = lines[..] else { return Some(format!("{name}: not one line: {errors}")) };
    let holds = output.status.code() == Some(3)
        && line.starts_with("flashmoe: ")
        && output.stdout.is_empty()
        && !line.chars().any(char::is_control)
        && line.len() < LINE_BYTES_MAX
        && took < PATIENCE;
    if holds && words.iter().all(|word| line.contains(word)) {
        return None;
    }
    let code = output.status.code();
    Some(format!("{name}, {}: code {code:?} after {took:?}, wanted {words:?}: {line}", command[0]))
}

fn run_cases(model: &str, commands: &[&[&str]], cases: &[Case]) {
    let mut complaints = Vec::new();
    for (name, words, damage) in cases {
        let (_folder, copy) = golden_copy(model);
        damage(&copy);
        for command in commands {
            complaints.extend(complaint(name, command, &copy, words));
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

const ALL: &[&[&str]] = &[&["inspect"], &["run", "hello"], &["plan"]];

#[test]
fn what_only_the_engine_can_know() {
    let cases: &[Case] = &[
        ("another family", &["model_type", "llama", "supported families", "qwen3_5_moe"], |f| {
            set(f, "model_type", json!("llama"));
        }),
        ("a known family", &["model_type", "Llama 4", "supported families"], |f| {
            // Its experts have other keys and names; neither may be blamed.
            let text = fs::read_to_string(f.join("config.json")).unwrap();
            let text = text.replace("\"num_experts\"", "\"n_routed_experts\"");
            fs::write(f.join("config.json"), text).unwrap();
            set(f, "model_type", json!("llama4"));
        }),
        ("no family", &["model_type"], |f| {
            fs::write(
                f.join("config.json"),
                fs::read_to_string(f.join("config.json"))
                    .unwrap()
                    .replace("model_type", "model_sort"),
            )
            .unwrap();
        }),
        ("a family of null", &["config.json", "model_type", "null"], |f| {
            set(f, "model_type", Value::Null)
        }),
        ("a family of true", &["config.json", "model_type", "true"], |f| {
            set(f, "model_type", json!(true))
        }),
        ("a family of five", &["config.json", "model_type", "5"], |f| {
            set(f, "model_type", json!(5))
        }),
        ("two families", &["config.json", "model_type", "different"], |f| {
            set(f, "model_type", json!("qwen3_moe"))
        }),
        ("a family of 100 kB", &["config.json", "model_type", "..."], |f| {
            set(f, "model_type", json!("x".repeat(100_000)))
        }),
        ("an activation of 100 kB", &["config.json", "hidden_act", "..."], |f| {
            set(f, "hidden_act", json!("x".repeat(100_000)))
        }),
        ("a dense model", &["model_type", "qwen3"], |f| set(f, "model_type", json!("qwen3"))),
        ("heads that do not divide", &["config.json", "num_key_value_heads"], |f| {
            set(f, "num_key_value_heads", json!(3));
        }),
        ("no heads", &["config.json", "num_attention_heads"], |f| {
            set(f, "num_attention_heads", json!(0))
        }),
        ("heads of nothing", &["config.json", "head_dim"], |f| set(f, "head_dim", json!(0))),
        ("delta heads that do not divide", &["config.json", "linear_num_key_heads"], |f| {
            set(f, "linear_num_key_heads", json!(7));
        }),
        ("a convolution of no taps", &["config.json", "linear_conv_kernel_dim"], |f| {
            set(f, "linear_conv_kernel_dim", json!(0));
        }),
        ("an epsilon below zero", &["config.json", "rms_norm_eps"], |f| {
            set(f, "rms_norm_eps", json!(-1.0))
        }),
        ("an epsilon as text", &["config.json", "rms_norm_eps"], |f| {
            set(f, "rms_norm_eps", json!("x"))
        }),
        ("a rotation of another kind", &["config.json", "rope", "longrope"], |f| {
            set(f, "rope_parameters", json!({"rope_type": "longrope"}));
        }),
        ("a stretched rotation without its factor", &["config.json", "factor", "missing"], |f| {
            set(f, "rope_parameters", json!({"rope_type": "yarn", "rope_theta": 10000}));
        }),
        ("a rotation of five", &["config.json", "rope_parameters", "5"], |f| {
            set(f, "rope_parameters", json!(5))
        }),
        ("a rotation as a list", &["config.json", "rope_parameters"], |f| {
            set(f, "rope_parameters", json!([]))
        }),
        ("a rotation as text", &["config.json", "rope_parameters"], |f| {
            set(f, "rope_parameters", json!("default"))
        }),
        ("a rotation's kind an object", &["config.json", "rope_type"], |f| {
            config(f, |text| text["rope_parameters"]["rope_type"] = json!({}));
        }),
        ("a rotation's kind a number", &["config.json", "rope_type", "3"], |f| {
            config(f, |text| text["rope_parameters"]["rope_type"] = json!(3));
        }),
        ("two rotations", &["config.json", "rope_scaling", "differs"], |f| {
            set(f, "rope_scaling", json!({"rope_type": "default", "rope_theta": 5000}))
        }),
        ("two bases", &["config.json", "rope_theta", "5000"], |f| {
            set(f, "rope_theta", json!(5000))
        }),
        ("a rotation base of zero", &["config.json", "rope_theta"], |f| {
            set(f, "rope_parameters", json!({"rope_type": "default", "rope_theta": 0}));
        }),
        ("more than all rotated", &["config.json", "partial_rotary_factor"], |f| {
            set(
                f,
                "rope_parameters",
                json!({"rope_type": "default", "partial_rotary_factor": 2.0}),
            );
        }),
        ("another activation", &["config.json", "hidden_act", "gelu"], |f| {
            set(f, "hidden_act", json!("gelu"))
        }),
        ("layer kinds too few", &["config.json", "layer_types"], |f| {
            set(f, "layer_types", json!(["full_attention"]));
        }),
        ("a layer of unknown kind", &["config.json", "layer_types", "mamba"], |f| {
            config(f, |text| text["layer_types"][0] = json!("mamba"));
        }),
        ("tied as text", &["config.json", "tie_word_embeddings"], |f| {
            set(f, "tie_word_embeddings", json!("no"))
        }),
        ("an end token of minus one", &["config.json", "eos_token_id"], |f| {
            set(f, "eos_token_id", json!(-1))
        }),
        ("an end token beyond the vocabulary", &["config.json", "eos_token_id", "99999999"], |f| {
            set(f, "eos_token_id", json!(99_999_999))
        }),
        ("the first token beyond it", &["config.json", "eos_token_id", "320"], |f| {
            set(f, "eos_token_id", json!([0, 320]))
        }),
        (
            "an end token beyond it for generation",
            &["generation_config.json", "eos_token_id", "320"],
            |f| fs::write(f.join("generation_config.json"), r#"{"eos_token_id":320}"#).unwrap(),
        ),
        (
            "an end token of 100 kB for generation",
            &["generation_config.json", "eos_token_id", "..."],
            |f| {
                let text = json!({"eos_token_id": "x".repeat(100_000)}).to_string();
                fs::write(f.join("generation_config.json"), text).unwrap();
            },
        ),
        ("a vocabulary of another model", &["embed_tokens", "expected"], |f| {
            set(f, "vocab_size", json!(77))
        }),
        ("a layer more than there are", &["layers."], |f| {
            config(f, |text| {
                let layers = text["num_hidden_layers"].as_u64().unwrap() + 1;
                text["num_hidden_layers"] = json!(layers);
                if let Some(kinds) = text["layer_types"].as_array_mut() {
                    kinds.push(json!("full_attention"));
                }
            });
        }),
        ("a norm under another name", &["layers.0.inputxlayernorm", "no use"], |f| {
            rename(f, "layers.0.input_layernorm.weight", "layers.0.inputxlayernorm.weight");
        }),
        ("a bias that nothing uses", &["q_proj.bia_", "no use"], |f| {
            rename(f, "self_attn.q_norm.weight", "self_attn.q_proj.bia_.x");
        }),
    ];
    run_cases("qwen35-hf", ALL, cases);
}

#[test]
fn a_sample_of_what_readers_refuse() {
    let cases: &[Case] = &[
        ("an empty configuration", &["config.json", "JSON"], |f| {
            fs::write(f.join("config.json"), "").unwrap()
        }),
        ("a key twice", &["config.json", "twice"], |f| {
            fs::write(f.join("config.json"), r#"{"a":1,"a":2}"#).unwrap();
        }),
        ("nesting", &["config.json", "JSON"], |f| {
            fs::write(f.join("config.json"), "[".repeat(100_000)).unwrap();
        }),
        ("top-k above the experts", &["config.json", "num_experts_per_tok"], |f| {
            set(f, "num_experts_per_tok", json!(60_000));
        }),
        ("a million layers", &["config.json", "num_hidden_layers", "limit"], |f| {
            set(f, "num_hidden_layers", json!(1_000_000));
        }),
        ("mxfp4", &["config.json", "mode", "mxfp4"], |f| {
            let path = f.join("config.json");
            let mut root: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            root["quantization"] = json!({"bits": 4, "group_size": 32, "mode": "mxfp4"});
            fs::write(path, root.to_string()).unwrap();
        }),
        ("fp8", &["config.json", "weight_block_size", "fp8"], |f| {
            let path = f.join("config.json");
            let mut root: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            root["quantization_config"] = json!({"quant_method": "fp8"});
            root.as_object_mut().unwrap().shift_remove("quantization");
            fs::write(path, root.to_string()).unwrap();
        }),
        ("a header of 2^63 bytes", &["model.safetensors", "header length", "limit"], |f| {
            let path = f.join("model.safetensors");
            let mut bytes = fs::read(&path).unwrap();
            bytes[..8].copy_from_slice(&(1_u64 << 63).to_le_bytes());
            fs::write(path, bytes).unwrap();
        }),
        ("a model cut in half", &["model.safetensors", "needs a file"], |f| {
            let path = f.join("model.safetensors");
            let bytes = fs::read(&path).unwrap();
            fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
        }),
        ("a terabyte of nothing", &["model.safetensors"], |f| {
            let file = fs::File::create(f.join("model.safetensors")).unwrap();
            file.set_len(1 << 40).unwrap();
        }),
        ("a shard from above", &["index.json", "weight_map.x", "../x"], |f| {
            fs::write(f.join("model.safetensors.index.json"), r#"{"weight_map":{"x":"../x"}}"#)
                .unwrap();
        }),
        ("a manifest of another version", &["manifest.json", "version", "9"], |f| {
            fs::write(f.join("manifest.json"), r#"{"format":"flashmoe-pack","version":9}"#)
                .unwrap();
        }),
        ("a pack in progress", &["unfinished"], |f| {
            fs::write(f.join("journal"), "").unwrap();
        }),
        ("the ancestor's index, empty", &["model_weights.json", "config"], |f| {
            fs::write(f.join("model_weights.json"), "{}").unwrap();
        }),
    ];
    run_cases("qwen35-calm-mlx-mixed", ALL, cases);
    let inspected =
        |path: &str, word: &str| complaint(path, &["inspect"], Path::new(path), &[path, word]);
    assert_eq!(inspected("/dev/zero", "device"), None);
    // No model at all is a mistake of the command line, and is tested with the models' names (models.rs).
}

/// Only `run` and its kin need the text side; what is wrong there is an invalid model as well.
#[test]
fn tokenizers_and_templates() {
    let cases: &[Case] = &[
        ("a tokenizer that is no JSON", &["tokenizer.json"], |f| {
            fs::write(f.join("tokenizer.json"), "x").unwrap()
        }),
        ("an empty tokenizer", &["tokenizer.json"], |f| {
            fs::write(f.join("tokenizer.json"), "{}").unwrap()
        }),
        ("a tokenizer cut", &["tokenizer.json"], |f| {
            let bytes = fs::read(f.join("tokenizer.json")).unwrap();
            fs::write(f.join("tokenizer.json"), &bytes[..bytes.len() / 2]).unwrap();
        }),
        ("no tokenizer", &["tokenizer.json"], |f| {
            fs::remove_file(f.join("tokenizer.json")).unwrap()
        }),
        ("sampling as text", &["generation_config.json", "do_sample"], |f| {
            fs::write(f.join("generation_config.json"), r#"{"do_sample":"no"}"#).unwrap();
        }),
        ("a temperature of 100 kB", &["generation_config.json", "temperature", "..."], |f| {
            let text = json!({"temperature": "x".repeat(100_000)}).to_string();
            fs::write(f.join("generation_config.json"), text).unwrap();
        }),
        ("a tokenizer of a terabyte", &["tokenizer.json", "limit"], |f| {
            let file = fs::File::create(f.join("tokenizer.json")).unwrap();
            file.set_len(1 << 40).unwrap();
        }),
        ("a template that is none", &["template"], |f| {
            fs::write(f.join("chat_template.jinja"), "{% for %}").unwrap();
        }),
    ];
    run_cases("qwen35-calm-mlxlm-4bit", &[&["run", "hello"]], cases);
}

/// Files that announce much, under a shell's limit on memory.
#[test]
fn refusals_take_little_memory() {
    let (_folder, copy) = golden_copy("qwen35-hf");
    let limit = format!("ulimit -v {}; exec \"$0\" \"$@\"", MEMORY_KIB_MAX);
    let bomb = |name: &str, bytes: &[u8]| fs::write(copy.join(name), bytes).unwrap();
    let model = fs::read(copy.join("model.safetensors")).unwrap();
    let many = format!(
        r#"{{"weight_map":{{{}}}}}"#,
        (0..200_000).map(|n| format!(r#""t{n}":"f{n}""#)).collect::<Vec<_>>().join(",")
    );
    let header = "[".repeat(90_000_000);
    let mut deep = (header.len() as u64).to_le_bytes().to_vec();
    deep.extend(header.as_bytes());
    let cases: [(&str, &[u8]); 3] = [
        ("model.safetensors", &deep),
        ("model.safetensors.index.json", many.as_bytes()),
        ("config.json", &b"{\"a\":".repeat(800_000)),
    ];
    for (name, bytes) in cases {
        bomb("model.safetensors", &model);
        bomb(name, bytes);
        let output = Command::new("sh")
            .args(["-c", &limit, env!("CARGO_BIN_EXE_flashmoe"), "inspect"])
            .arg(&copy)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{name}: {errors}");
        assert!(errors.contains(name) && errors.lines().count() == 1, "{name}: {errors}");
        if name.ends_with("index.json") {
            fs::remove_file(copy.join(name)).unwrap();
        }
    }
}

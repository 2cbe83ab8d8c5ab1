//! Targets of the checkpoint readers: a good folder in which one file is the input.
//!
//! What opens must keep its promises: every extent inside its file, every record plannable. Then the engine's
//! readers meet the configuration and the catalogue of tensors.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::model::mixture::expert_shapes;
use engine::text::Tokenizer;
use engine::weights::Catalog;
use serde_json::{Map, Value, json};
use store::cache::{SlotBudget, StorePlan};
use store::format::{Checkpoint, Tensor, TokenizerSource, open};
use store::pack::{PackOptions, pack};
use store::synthetic::gguf::{F32, GgufFile, Q8_0};
use tempfile::TempDir;
use twox_hash::XxHash3_64;

use crate::mutate;
use crate::random::Random;
use crate::target::{Mutate, Target, golden, golden_file};

/// Keys and values that mean something to some reader.
const WORDS: &[&str] = &[
    "text_config",
    "model_type",
    "qwen3_moe",
    "qwen3_5_moe",
    "hidden_size",
    "num_hidden_layers",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "quantization",
    "quantization_config",
    "bits",
    "group_size",
    "mode",
    "affine",
    "mxfp4",
    "quant_method",
    "layer_types",
    "full_attention",
    "linear_attention",
    "rope_parameters",
    "rope_theta",
    "partial_rotary_factor",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
    "eos_token_id",
    "dtype",
    "shape",
    "data_offsets",
    "__metadata__",
    "format",
    "BF16",
    "F32",
    "U32",
    "F8_E4M3",
    "weight_map",
    "model.safetensors",
    "../x",
    "offset",
    "size",
    "tensors",
    "config",
    "version",
    "layers",
    "at",
    "weight",
    "scales",
    "biases",
    "encoding",
    "affine:4:64:bf16",
    "record_bytes",
    "trunk_bytes",
    "checksum",
    "language_model.model.layers.0.mlp.gate.scales",
    "model.layers.0.mlp.experts.0.up_proj.weight",
    "lm_head.weight_scale_inv",
    "general.architecture",
    "general.alignment",
    "qwen3moe",
    "qwen35moe",
    "qwen3moe.block_count",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.tokens",
    "blk.0.ffn_gate_up_exps.weight",
    "blk.0.attn_qkv.weight",
    "split.count",
    "chat_template",
    "template",
    "name",
    "default",
];

/// A folder in memory where there is one, because every input is a file.
fn folder() -> TempDir {
    let shared_memory = Path::new("/dev/shm");
    let made = if shared_memory.is_dir() { TempDir::new_in(shared_memory) } else { TempDir::new() };
    made.expect("a folder for inputs can be made")
}

fn copy(case: &str) -> TempDir {
    let target = folder();
    for entry in fs::read_dir(golden(case)).expect("the committed models are there").flatten() {
        let name = entry.file_name();
        fs::copy(entry.path(), target.path().join(name)).expect("a small file can be copied");
    }
    target
}

fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).expect("an input can be written");
}

/// Opens a folder and holds what opens to its promises.
fn meet(folder: &Path) {
    match open(folder) {
        Ok(checkpoint) => examine(&checkpoint),
        Err(error) => {
            let line = error.to_string();
            assert!(!line.chars().any(char::is_control), "an error of several lines: {line:?}");
            assert!(line.len() < 4096, "an error of {} bytes", line.len());
        }
    }
}

fn examine(checkpoint: &Checkpoint) {
    let experts = checkpoint.experts.iter().flatten().flat_map(|layer| &layer.experts);
    let pieces = experts.flat_map(|expert| {
        let rest = expert.scales_biases.iter().flatten().flat_map(|&(s, b)| [s, b]);
        expert.weight.into_iter().chain(rest).collect::<Vec<_>>()
    });
    for extent in checkpoint.tensors.values().flat_map(Tensor::parts).chain(pieces) {
        let file = &checkpoint.files[extent.file.0 as usize];
        let end = extent.offset.checked_add(extent.length);
        assert!(end.is_some_and(|end| end <= file.length), "{extent:?} leaves {file:?}");
    }
    if let Some(TokenizerSource::Gguf(vocabulary)) = &checkpoint.tokenizer
        && let Ok(bytes) = vocabulary.tokenizer_json()
    {
        let _ = Tokenizer::from_bytes(&bytes);
    }
    let _ = (checkpoint.fingerprint(), checkpoint.trunk_bytes(), checkpoint.expert_bytes());
    let _ = StorePlan::budget(checkpoint, SlotBudget::Slots(8), 1);
    let Ok(config) = ModelConfig::read(&checkpoint.config) else { return };
    let mut catalog = Catalog::new(checkpoint);
    if Model::declare(&config, &mut catalog).is_ok() {
        let _ = (catalog.required_bytes(), expert_shapes(checkpoint, &config));
    }
}

/// Keys and tensors of a GGUF file; the file is made as long as its tensors would be without the damage.
pub(crate) fn gguf() -> Target {
    let folder = folder();
    let path = folder.path().join("m.gguf");
    let files = [GgufFile::tiny(F32), GgufFile::tiny(Q8_0)];
    let longest = files.iter().map(|file| file.to_bytes().len()).max().unwrap_or(0) as u64;
    Target {
        seeds: files.iter().map(GgufFile::header).collect(),
        mutate: |random, input| mutate::bytes(random, input, WORDS),
        run: Box::new(move |input| {
            write(&path, input);
            let file = fs::OpenOptions::new().write(true).open(&path).expect("just written");
            file.set_len(longest).expect("a sparse file can be made");
            meet(folder.path());
        }),
    }
}

fn change_json(random: &mut Random, input: &mut Vec<u8>) {
    mutate::json(random, input, WORDS);
}

/// A target whose input is one file of a copy of a committed model.
fn one_file(case: &'static str, name: &'static str, mutate: Mutate) -> Target {
    let folder = copy(case);
    let path = folder.path().join(name);
    Target {
        seeds: vec![golden_file(case, name)],
        mutate,
        run: Box::new(move |input| {
            write(&path, input);
            meet(folder.path());
        }),
    }
}

pub(crate) fn index() -> Target {
    one_file("qwen3-calm-hf", "model.safetensors.index.json", change_json)
}

pub(crate) fn config() -> Target {
    let mut target = one_file("qwen35-calm-mlx-mixed", "config.json", change_json);
    target.seeds.push(golden_file("qwen35-hf", "config.json"));
    target.seeds.push(golden_file("qwen3-calm-hf", "config.json"));
    target
}

/// Length and JSON of a header; the file is made as long as its tensors would be without the damage.
pub(crate) fn header() -> Target {
    let folder = copy("qwen35-calm-mlx-mixed");
    let path = folder.path().join("model.safetensors");
    let whole = golden_file("qwen35-calm-mlx-mixed", "model.safetensors");
    let length = u64::from_le_bytes(whole[..8].try_into().expect("eight bytes")) as usize;
    let (header, data) = (whole[..8 + length].to_vec(), (whole.len() - 8 - length) as u64);
    Target {
        seeds: vec![header],
        mutate: |random, input| {
            if random.once_in(6) || input.len() < 8 {
                return mutate::bytes(random, input, WORDS);
            }
            let mut json = input.split_off(8);
            change_json(random, &mut json);
            *input = (json.len() as u64).to_le_bytes().to_vec();
            input.extend(json);
        },
        run: Box::new(move |input| {
            write(&path, input);
            let file = fs::OpenOptions::new().write(true).open(&path).expect("just written");
            // Sparse: the readers look at lengths only.
            file.set_len(input.len() as u64 + data).expect("a sparse file can be made");
            meet(folder.path());
        }),
    }
}

/// A pack of a committed model; the folder and the pack's path.
pub(crate) fn packed() -> (TempDir, PathBuf) {
    let folder = copy("qwen35-calm-mlx-mixed");
    let target = folder.path().join("pack");
    let source = open(folder.path()).expect("a committed model opens");
    pack(&source, &target, PackOptions::default(), &mut |_| ControlFlow::Continue(()))
        .expect("a committed model can be packed");
    (folder, target)
}

/// The manifest with the checksum that its text asks for, so that damage gets past it.
fn sign(manifest: &mut Map<String, Value>) -> Vec<u8> {
    manifest.shift_remove("checksum");
    let text = serde_json::to_string_pretty(manifest).expect("JSON becomes text");
    let body = text.strip_suffix("\n}").unwrap_or(&text);
    let sum = XxHash3_64::oneshot(body.as_bytes());
    format!("{body},\n  \"checksum\": \"{sum:016x}\"\n}}\n").into_bytes()
}

pub(crate) fn manifest() -> Target {
    let (folder, target) = packed();
    let path = target.join("manifest.json");
    Target {
        seeds: vec![fs::read(&path).expect("a pack has a manifest")],
        mutate: |random, input| {
            if random.once_in(8) {
                return mutate::bytes(random, input, WORDS);
            }
            change_json(random, input);
            if let Ok(Value::Object(mut manifest)) = serde_json::from_slice(input) {
                *input = sign(&mut manifest);
            }
        },
        run: Box::new(move |input| {
            write(&path, input);
            meet(&target);
            let _kept = &folder;
        }),
    }
}

pub(crate) fn table() -> Target {
    let (folder, target) = packed();
    let path = target.join("checksums.bin");
    let manifest_path = target.join("manifest.json");
    let text = fs::read(&manifest_path).expect("a pack has a manifest");
    let manifest: Value = serde_json::from_slice(&text).expect("a manifest is JSON");
    Target {
        seeds: vec![fs::read(&path).expect("a pack has a table")],
        mutate: |random, input| mutate::bytes(random, input, &["FLASHSUM"]),
        run: Box::new(move |input| {
            write(&path, input);
            let mut manifest = manifest.clone();
            manifest["checksums"]["xxh3"] = json!(format!("{:016x}", XxHash3_64::oneshot(input)));
            write(
                &manifest_path,
                &sign(manifest.as_object_mut().expect("a manifest is an object")),
            );
            meet(&target);
            let _kept = &folder;
        }),
    }
}

/// The ancestor's index over weights of zeros: only sizes are looked at.
pub(crate) fn ancestor() -> Target {
    let folder = folder();
    let config: Value =
        serde_json::from_slice(&golden_file("qwen35-hf", "config.json")).expect("JSON");
    let mut config = config["text_config"].clone();
    config["moe_intermediate_size"] = json!(64);
    config["hidden_size"] = json!(128);
    config["num_experts"] = json!(4);
    config["num_experts_per_tok"] = json!(2);
    let layers = config["num_hidden_layers"].as_u64().unwrap_or(1);
    let index = json!({"config": config, "tensors": {
        "model.norm.weight": {"offset": 0, "size": 256, "shape": [128], "dtype": "BF16"},
        "model.layers.0.mlp.gate.weight": {"offset": 256, "size": 256, "shape": [4, 16], "dtype": "U32"},
        "model.layers.0.mlp.gate.scales": {"offset": 512, "size": 16, "shape": [4, 2], "dtype": "BF16"},
        "model.layers.0.mlp.gate.biases": {"offset": 576, "size": 16, "shape": [4, 2], "dtype": "BF16"},
    }});
    write(&folder.path().join("model_weights.bin"), &[0; 1024]);
    let experts = folder.path().join("packed_experts");
    fs::create_dir(&experts).expect("a folder can be made");
    let record = 3 * (64 * 128 / 2 + 2 * 64 * 2 * 2);
    for layer in 0..layers {
        write(&experts.join(format!("layer_{layer:02}.bin")), &vec![0; 4 * record]);
    }
    let path = folder.path().join("model_weights.json");
    Target {
        seeds: vec![index.to_string().into_bytes()],
        mutate: change_json,
        run: Box::new(move |input| {
            write(&path, input);
            meet(folder.path());
        }),
    }
}

/// An unfinished pack's journal, met by the packer that resumes it and is stopped at once.
pub(crate) fn journal() -> Target {
    let folder = copy("qwen35-calm-mlx-mixed");
    let source = open(folder.path()).expect("a committed model opens");
    let target = folder.path().join("pack");
    let stop = &mut |_| ControlFlow::Break(());
    let _ = pack(&source, &target, PackOptions::default(), stop);
    let path = folder.path().join("pack.partial/journal");
    let begun = fs::read(&path).expect("a stopped pack leaves its journal");
    let with_files = |count: usize| {
        let mut text = String::from_utf8_lossy(&begun).into_owned();
        for file in 0..count {
            let body = format!("file {file:016x} {:016x}", u64::MAX);
            text.push_str(&format!("{body} {:016x}\n", XxHash3_64::oneshot(body.as_bytes())));
        }
        text.into_bytes()
    };
    Target {
        seeds: vec![begun.clone(), with_files(1), with_files(9)],
        mutate: |random, input| {
            mutate::bytes(random, input, &["file ", " ", "\n", "ffffffffffffffff"]);
            if random.once_in(2) {
                // Lines are believed by their checksums: most damage has the right one.
                let text = String::from_utf8_lossy(input).into_owned();
                let bodies =
                    text.lines().map(|line| line.rsplit_once(' ').map_or(line, |(b, _)| b));
                let sign =
                    |body: &str| format!("{body} {:016x}\n", XxHash3_64::oneshot(body.as_bytes()));
                *input = bodies.map(sign).collect::<String>().into_bytes();
            }
        },
        run: Box::new(move |input| {
            if !path.exists() {
                let _ = fs::create_dir_all(path.parent().expect("in a folder"));
            }
            write(&path, input);
            let stop = &mut |_| ControlFlow::Break(());
            let _ = pack(&source, &target, PackOptions::default(), stop);
            let _ = fs::remove_dir_all(&target);
            let _kept = &folder;
        }),
    }
}

/// tokenizer_config.json, chat_template.json and generation_config.json, which are read alike.
pub(crate) fn sidecars() -> Target {
    let case = "qwen35-calm-mlxlm-4bit";
    let folder = copy(case);
    let _ = fs::remove_file(folder.path().join("chat_template.jinja"));
    let names = ["tokenizer_config.json", "chat_template.json", "generation_config.json"];
    let paths = names.map(|name| folder.path().join(name));
    Target {
        seeds: vec![
            golden_file(case, "tokenizer_config.json"),
            br#"{"chat_template":[{"name":"default","template":"{{ x }}"},{"name":"t","template":"y"}]}"#.to_vec(),
            br#"{"chat_template":"{% for m in messages %}{{ m.content }}{% endfor %}"}"#.to_vec(),
            golden_file(case, "generation_config.json"),
        ],
        mutate: change_json,
        run: Box::new(move |input| {
            for path in &paths {
                write(path, input);
                meet(folder.path());
                let _ = fs::remove_file(path);
            }
        }),
    }
}

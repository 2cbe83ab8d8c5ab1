//! Targets of the checkpoint readers: a good folder in which one file is the input.
//!
//! What opens must keep its promises: every extent inside its file, every record plannable. Then the engine's
//! readers meet the configuration and the catalogue of tensors.

use std::fs;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::model::mixture::expert_shapes;
use engine::weights::Catalog;
use serde_json::{Map, Value, json};
use store::cache::{SlotBudget, StorePlan};
use store::format::{
    Checkpoint, Tensor, TokenizerSource, open, open_to_pack, read_gguf_header,
    read_safetensors_header,
};
use store::pack::{PackOptions, pack, read_journal};
use store::synthetic::gguf::{F32, GgufFile, Q8_0};
use tempfile::TempDir;
use text::Tokenizer;
use twox_hash::XxHash3_64;

use crate::mutate;
use crate::random::Random;
use crate::slim::{BOTH, ONE, slim};
use crate::target::{Mutate, Target, folder, golden, golden_file};

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
    "gptq",
    "awq",
    "auto-round",
    "desc_act",
    "qweight",
    "qzeros",
    "g_idx",
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
    // What opens in place is a part of what opens to be packed.
    match open_to_pack(folder) {
        Ok(checkpoint) => examine(&checkpoint),
        Err(error) => is_one_line(&error.to_string()),
    }
}

fn is_one_line(line: &str) {
    assert!(!line.chars().any(char::is_control), "an error of several lines: {line:?}");
    assert!(line.len() < 4096, "an error of {} bytes", line.len());
}

fn examine(checkpoint: &Checkpoint) {
    let experts = checkpoint.experts.iter().flatten().flat_map(|layer| &layer.experts);
    let pieces = experts.flat_map(|expert| {
        let rest = expert.scales_biases.iter().flatten().flat_map(|&(s, b)| [s, b]);
        expert.weight.into_iter().chain(rest).collect::<Vec<_>>()
    });
    let ends = checkpoint.row_tables.values().flat_map(|table| {
        let last = table.rows.saturating_sub(1);
        [0, last].into_iter().filter_map(|row| table.places(row)).flatten()
    });
    for extent in checkpoint.tensors.values().flat_map(Tensor::parts).chain(pieces).chain(ends) {
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

/// Keys and tensors of a GGUF file, read from memory.
pub(crate) fn gguf_header() -> Target {
    let files = [GgufFile::tiny(F32), GgufFile::tiny(Q8_0)];
    let longest = files.iter().map(|file| file.to_bytes().len()).max().unwrap_or(0) as u64;
    let path = Path::new("m.gguf");
    Target {
        seeds: files.iter().map(GgufFile::header).collect(),
        mutate: |random, input| mutate::bytes(random, input, WORDS),
        run: Box::new(move |input| {
            let length = longest.max(input.len() as u64);
            if let Err(error) = read_gguf_header(path, input.chain(std::io::repeat(0)), length) {
                is_one_line(&error.to_string());
            }
        }),
    }
}

/// Keys and tensors of a GGUF file that is opened; the file is made as long as its tensors would be without the damage.
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
    target.seeds.push(golden_file("glm5-calm-hf", "config.json"));
    target.seeds.push(golden_file("glm-next-calm-hf", "config.json"));
    target.seeds.push(golden_file("qwen3-calm-hf", "config.json"));
    target
}

fn change_header(random: &mut Random, input: &mut Vec<u8>) {
    if random.once_in(6) || input.len() < 8 {
        return mutate::bytes(random, input, WORDS);
    }
    let mut json = input.split_off(8);
    change_json(random, &mut json);
    *input = (json.len() as u64).to_le_bytes().to_vec();
    input.extend(json);
}

/// Length and JSON of a header, read from memory: the tensors that it has must tile the file.
pub(crate) fn header() -> Target {
    const DATA: u64 = 4096;
    let header = |json: Value| {
        let json = json.to_string().into_bytes();
        [&(json.len() as u64).to_le_bytes()[..], &json].concat()
    };
    let path = Path::new("model.safetensors");
    Target {
        seeds: vec![
            header(json!({"a": {"dtype": "F32", "shape": [16, 64], "data_offsets": [0, DATA]}})),
            header(json!({"__metadata__": {"format": "mlx"},
                "b": {"dtype": "BF16", "shape": [2, 512], "data_offsets": [2048, DATA]},
                "a": {"dtype": "U32", "shape": [512], "data_offsets": [0, 2048]}})),
            header(json!({"c": {"dtype": "F8_E4M3", "shape": [4, 0, 7], "data_offsets": [0, 0]},
                "d": {"dtype": "U8", "shape": [8, 8, 8, 8], "data_offsets": [0, DATA]}})),
        ],
        mutate: change_header,
        run: Box::new(move |input| {
            let length = input.len() as u64 + DATA;
            match read_safetensors_header(path, input.chain(std::io::repeat(0)), length) {
                Ok(places) => {
                    let start = input.get(..8).and_then(|bytes| bytes.try_into().ok());
                    let start = start.map_or(0, |bytes| 8 + u64::from_le_bytes(bytes));
                    let end = places.iter().fold(start, |end, place| {
                        assert_eq!(place.start, end, "a hole or an overlap");
                        place.end
                    });
                    assert_eq!(end, length, "bytes that no tensor has");
                }
                Err(error) => is_one_line(&error.to_string()),
            }
        }),
    }
}

/// Length and JSON of a header in a folder that is opened; the file is made as long as its tensors would be without
/// the damage.
pub(crate) fn header_folder() -> Target {
    let folder = slim(BOTH);
    let path = folder.path().join("model.safetensors");
    let whole = fs::read(&path).expect("just written");
    let length = u64::from_le_bytes(whole[..8].try_into().expect("eight bytes")) as usize;
    let (header, data) = (whole[..8 + length].to_vec(), (whole.len() - 8 - length) as u64);
    Target {
        seeds: vec![header],
        mutate: change_header,
        run: Box::new(move |input| {
            write(&path, input);
            let file = fs::OpenOptions::new().write(true).open(&path).expect("just written");
            // Sparse: the readers look at lengths only.
            file.set_len(input.len() as u64 + data).expect("a sparse file can be made");
            meet(folder.path());
        }),
    }
}

/// A pack of a model with the layers `kept`; the folder and the pack's path.
pub(crate) fn packed(kept: &[usize]) -> (TempDir, PathBuf) {
    let folder = slim(kept);
    let target = folder.path().join("pack");
    let source = open(folder.path()).expect("the slim model opens");
    pack(&source, &target, PackOptions::default(), &mut |_| ControlFlow::Continue(()))
        .expect("the slim model can be packed");
    (folder, target)
}

/// A manifest's text up to the checksum, with the one that it asks for, so that damage gets past it.
fn with_checksum(body: &str) -> Vec<u8> {
    let sum = XxHash3_64::oneshot(body.as_bytes());
    format!("{body},\n  \"checksum\": \"{sum:016x}\"\n}}\n").into_bytes()
}

/// A manifest without its checksum, which is added to most inputs.
pub(crate) fn manifest() -> Target {
    let (folder, target) = packed(ONE);
    let path = target.join("manifest.json");
    let whole = fs::read(&path).expect("a pack has a manifest");
    let mut manifest: Map<String, Value> = serde_json::from_slice(&whole).expect("it is JSON");
    manifest.shift_remove("checksum");
    Target {
        seeds: vec![Value::Object(manifest).to_string().into_bytes(), whole],
        mutate: change_json,
        run: Box::new(move |input| {
            let text = str::from_utf8(input).ok().and_then(|text| text.strip_suffix('}'));
            match text.filter(|_| input.len() % 8 != 0) {
                Some(body) => write(&path, &with_checksum(body)),
                None => write(&path, input),
            }
            meet(&target);
            let _kept = &folder;
        }),
    }
}

pub(crate) fn table() -> Target {
    let (folder, target) = packed(ONE);
    let path = target.join("checksums.bin");
    let manifest_path = target.join("manifest.json");
    let text = fs::read_to_string(&manifest_path).expect("a pack has a manifest");
    let table = fs::read(&path).expect("a pack has a table");
    // The manifest around the checksum of the table, and before its own: parsing it anew for each input would take
    // most of the time.
    let (body, _) = text.rsplit_once(",\n  \"checksum\"").expect("it ends with its checksum");
    let of_table = format!("{:016x}", XxHash3_64::oneshot(&table));
    let (before, after) = body.split_once(&of_table).expect("it has the table's checksum");
    let (before, after) = (before.to_owned(), after.to_owned());
    Target {
        seeds: vec![table],
        mutate: |random, input| mutate::bytes(random, input, &["FLASHSUM"]),
        run: Box::new(move |input| {
            write(&path, input);
            let body = format!("{before}{:016x}{after}", XxHash3_64::oneshot(input));
            write(&manifest_path, &with_checksum(&body));
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

fn change_journal(random: &mut Random, input: &mut Vec<u8>) {
    mutate::bytes(random, input, &["file ", " ", "\n", "ffffffffffffffff"]);
    if random.once_in(2) {
        // Lines are believed by their checksums: most damage has the right one.
        let text = String::from_utf8_lossy(input).into_owned();
        let bodies = text.lines().map(|line| line.rsplit_once(' ').map_or(line, |(b, _)| b));
        *input = bodies.map(journal_line).collect::<String>().into_bytes();
    }
}

fn journal_line(body: &str) -> String {
    format!("{body} {:016x}\n", XxHash3_64::oneshot(body.as_bytes()))
}

/// The journal `begun` with some number of files that are whole.
fn journals(begun: &[u8]) -> Vec<Vec<u8>> {
    let with_files = |count: usize| {
        let sums = format!("file {:016x} {:016x}", 1, u64::MAX);
        let errors = format!("file {:016x} {:016x} {:016x} 0 0 0", 1, 7, 64);
        let lines =
            (0..count).map(|file| journal_line(if file % 2 == 0 { &sums } else { &errors }));
        [String::from_utf8_lossy(begun).into_owned(), lines.collect()].concat().into_bytes()
    };
    vec![begun.to_vec(), with_files(1), with_files(9)]
}

/// A journal's lines: what is believed of them is what a packer that wrote them down again would believe.
pub(crate) fn journal() -> Target {
    Target {
        seeds: journals(journal_line("flashmoe-pack-journal 1 0123456789abcdef").as_bytes()),
        mutate: change_journal,
        run: Box::new(|input| {
            if let Some((identity, files)) = read_journal(input) {
                let lines = input.iter().filter(|&&byte| byte == b'\n').count();
                assert!(files < lines.max(1), "{files} files of {lines} lines");
                let text = String::from_utf8_lossy(input);
                assert!(text.starts_with(&identity), "{identity:?} is not what stands there");
            }
        }),
    }
}

/// An unfinished pack's journal, met by the packer that resumes it and is stopped at once.
pub(crate) fn journal_folder() -> Target {
    let folder = slim(ONE);
    let source = open(folder.path()).expect("the slim model opens");
    let target = folder.path().join("pack");
    let stop = &mut |_| ControlFlow::Break(());
    let _ = pack(&source, &target, PackOptions::default(), stop);
    let path = folder.path().join("pack.partial/journal");
    let begun = fs::read(&path).expect("a stopped pack leaves its journal");
    Target {
        seeds: journals(&begun),
        mutate: change_journal,
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

/// tokenizer_config.json, chat_template.json and generation_config.json, which are read alike; the input is one.
pub(crate) fn sidecars() -> Target {
    let case = "qwen35-calm-mlxlm-4bit";
    let folder = slim(ONE);
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
            let path = &paths[input.iter().map(|&byte| usize::from(byte)).sum::<usize>() % 3];
            write(path, input);
            meet(folder.path());
            let _ = fs::remove_file(path);
        }),
    }
}

//! GGUF files from end to end: the same weights give the same bits from another layout, in every storage mode, in
//! parts, and packed; every command takes them.

use crate::support;

use std::fs;
use std::path::Path;

use serde_json::Value;
use store::format::{Checkpoint, Extent, Projection, open};
use store::io::platform::FileExt;
use store::synthetic::gguf::{F32, GgufFile, GgufTensor, GgufValue, Q8_0};
use support::{Scored, flashmoe, golden};

/// Number of bfloat16 in files.
const BF16: u32 = 30;

fn run(arguments: &[&str]) -> String {
    let output = flashmoe(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn score(model: &Path, ids: &str, options: &[&str]) -> Scored {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("logits.safetensors");
    let ids_file = folder.path().join("ids.json");
    fs::write(&ids_file, ids).unwrap();
    let [model, ids, file] = [model, &ids_file, &out].map(|path| path.to_str().unwrap());
    let mut arguments = vec!["score", model, "--ids", ids, "--logits", file, "--greedy", "12"];
    arguments.extend(options);
    run(&arguments);
    Scored::read(&out)
}

/// Eight-bit blocks, with one layer of floats: records of two sizes.
fn mixed() -> GgufFile {
    let mut file = GgufFile::tiny(Q8_0);
    let floats = GgufFile::tiny(F32);
    for name in ["blk.1.ffn_down_exps.weight", "blk.1.attn_v.weight"] {
        *file.tensor(name) = floats.clone().tensor(name).clone();
    }
    file
}

const IDS: &str = "[1, 50, 201, 7, 7, 100, 12, 240, 3, 111, 90, 91, 92, 17]";

#[test]
fn storage_modes_parts_and_packs_give_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("tiny-Q8_0.gguf");
    fs::write(&whole, mixed().to_bytes()).unwrap();
    let expected = score(&whole, IDS, &[]);
    assert!(expected.logits.iter().all(|value| value.is_finite()));
    for options in [
        &["--storage", "mmap"][..],
        &["--storage", "page-cache", "--load", "mmap"],
        &["--storage", "resident", "--threads", "1"],
        &["--storage", "budget", "--slots", "4"],
    ] {
        assert_eq!(score(&whole, IDS, options), expected, "{options:?}");
    }
    let pack = folder.path().join("pack");
    run(&["pack", whole.to_str().unwrap(), pack.to_str().unwrap()]);
    assert_eq!(score(&pack, IDS, &["--check-reads"]), expected);
    let manifest: Value =
        serde_json::from_slice(&fs::read(pack.join("manifest.json")).unwrap()).unwrap();
    assert_eq!((&manifest["version"], &manifest["source"]["kind"]), (&2.into(), &"gguf".into()));
    assert!(run(&["verify", pack.to_str().unwrap()]).contains("all intact"));
    // A version that does not say what the pack holds is no version.
    let text = fs::read_to_string(pack.join("manifest.json")).unwrap();
    fs::write(pack.join("manifest.json"), text.replace("\"version\": 2", "\"version\": 1"))
        .unwrap();
    assert!(open(&pack).is_err());
}

#[test]
fn every_command_takes_a_file_and_says_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tiny.gguf");
    fs::write(&file, mixed().to_bytes()).unwrap();
    let model = file.to_str().unwrap();
    let inspected = run(&["inspect", model]);
    for word in ["Qwen3-MoE", "GGUF", "q8_0", "none in this layout"] {
        assert!(inspected.contains(word), "{word}: {inspected}");
    }
    assert!(run(&["plan", folder.path().to_str().unwrap()]).contains("slots"));
    assert!(
        run(&["verify", model]).contains("every value is a number; this layout has no checksums")
    );
    run(&["run", model, "he he", "--max-tokens", "4"]);
    run(&["bench", model, "-p", "8", "-n", "2", "-r", "1"]);
}

#[test]
fn a_scale_that_is_no_number_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    let mut file = mixed();
    file.tensor("blk.0.ffn_up_exps.weight").data[34..36].copy_from_slice(&0x7e00_u16.to_le_bytes());
    fs::write(&path, file.to_bytes()).unwrap();
    let output = flashmoe(&["verify", path.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(
        text.contains("damaged: tiny.gguf: layer 0, expert 0: a value that is not finite"),
        "{text}"
    );
}

/// The committed Qwen3-MoE as a GGUF file of the same bfloat16 values.
fn converted(source: &Checkpoint, folder: &Path) -> GgufFile {
    let bytes = |extent: Extent| {
        let file = fs::File::open(&source.files[extent.file.0 as usize].path).unwrap();
        let mut bytes = vec![0; extent.length as usize];
        file.read_exact_at(&mut bytes, extent.offset).unwrap();
        bytes
    };
    let config: Value =
        serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
    let mut file = GgufFile::tiny(F32);
    file.tensors.clear();
    for (key, name) in [
        ("block_count", "num_hidden_layers"),
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("expert_count", "num_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.key_length", "head_dim"),
        ("attention.value_length", "head_dim"),
    ] {
        let value = config[name].as_u64().unwrap() as u32;
        file.set(&format!("qwen3moe.{key}"), GgufValue::U32(value));
    }
    let theta = config["rope_theta"].as_f64().unwrap() as f32;
    file.set("qwen3moe.rope.freq_base", GgufValue::F32(theta));
    let mut add = |name: String, shape: &[usize], data: Vec<u8>| {
        let sizes = shape.iter().rev().map(|&size| size as u64).collect();
        file.tensors.push(GgufTensor { name, sizes, type_id: BF16, data, offset: None });
    };
    let names = [
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate", "ffn_gate_inp"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
    ];
    // One layer as converters with fused attention write it: rows of query, key and value in one matrix.
    let fused = ["q_proj", "k_proj", "v_proj"].map(|name| format!("layers.0.self_attn.{name}"));
    let parts = fused.each_ref().map(|name| &source.tensors[name]);
    let rows = parts.iter().map(|tensor| tensor.shape[0]).sum();
    let data = parts.iter().flat_map(|tensor| bytes(tensor.weight)).collect();
    add("blk.0.attn_qkv.weight".to_owned(), &[rows, parts[0].shape[1]], data);
    for (name, tensor) in source.tensors.iter().filter(|(name, _)| !fused.contains(name)) {
        let new = match name.as_str() {
            "embed_tokens" => "token_embd.weight".to_owned(),
            "norm" => "output_norm.weight".to_owned(),
            "lm_head" => "output.weight".to_owned(),
            name => {
                let (layer, rest) = name.strip_prefix("layers.").unwrap().split_once('.').unwrap();
                let (_, new) = names.iter().find(|(old, _)| *old == rest).unwrap();
                format!("blk.{layer}.{new}.weight")
            }
        };
        add(new, &tensor.shape, bytes(tensor.weight));
    }
    for (layer, experts) in source.experts.iter().enumerate() {
        let experts = experts.as_ref().unwrap();
        let of = |projection: Projection| {
            let all =
                experts.experts.iter().flat_map(|expert| bytes(expert.weight[projection as usize]));
            all.collect::<Vec<u8>>()
        };
        let count = experts.experts.len();
        let [gate, _, down] = experts.shapes.map(|shape| [count, shape.rows, shape.columns]);
        // Gate and up in one tensor, as some converters write them: rows of gate, then of up, expert by expert.
        let half = gate[1] * gate[2] * 2;
        let (gates, ups) = (of(Projection::Gate), of(Projection::Up));
        let both =
            gates.chunks(half).zip(ups.chunks(half)).flat_map(|(g, u)| [g, u].concat()).collect();
        add(format!("blk.{layer}.ffn_gate_up_exps.weight"), &[count, 2 * gate[1], gate[2]], both);
        add(format!("blk.{layer}.ffn_down_exps.weight"), &down, of(Projection::Down));
    }
    file
}

#[test]
fn the_same_values_give_the_same_bits_as_from_safetensors() {
    let case = golden().join("qwen3-calm-hf");
    let model = case.join("model");
    let ids = fs::read_to_string(case.join("ids.json")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    fs::write(&path, converted(&open(&model).unwrap(), &model).to_bytes()).unwrap();
    assert_eq!(score(&path, &ids, &[]), score(&model, &ids, &[]));
}

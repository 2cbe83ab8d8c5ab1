//! Latent attention and layers without experts from end to end: every part of DeepSeek-V3 changes the answer, packs are
//! copies, sizes are as published, and a GPU refuses the model by what it lacks.

use crate::support;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use store::format::{Checkpoint, Extent, Projection, open};
use store::io::platform::FileExt;
use store::synthetic::gguf::{F32, GgufFile, GgufTensor, GgufValue};
use support::{Scored, distance, flashmoe, golden, golden_copy, run};

const CASE: &str = "deepseek-calm-hf";
/// Number of the type in GGUF files.
const BF16: u32 = 30;
/// Least difference that counts: a hundred times what the case is held to.
const MATTERS: f64 = 1e-3;

fn score(model: &Path, options: &[&str]) -> Scored {
    Scored::with_ids_of(CASE, model, options)
}

/// What the reference has and a slip would leave out: without it the answer is another, so that an answer within 1e-5
/// of the reference has it.
#[test]
fn every_part_changes_the_answer() {
    let (_folder, model) = golden_copy(CASE);
    let reference = score(&model, &[]);
    let source = open(&model).unwrap();
    assert!(source.experts[0].is_none() && source.skipped.len() == 6);
    for (layer, part) in [
        (1, "mlp.gate.e_score_correction_bias"),
        (1, "mlp.shared_experts.down_proj"),
        (0, "mlp.down_proj"),
        (0, "self_attn.q_a_layernorm"),
        (0, "self_attn.kv_a_layernorm"),
    ] {
        let extent = source.tensors[&format!("layers.{layer}.{part}")].weight;
        let path = &source.files[extent.file.0 as usize].path;
        let file = fs::File::options().read(true).write(true).open(path).unwrap();
        let mut kept = vec![0; extent.length as usize];
        file.read_exact_at(&mut kept, extent.offset).unwrap();
        file.write_all_at(&vec![0; kept.len()], extent.offset).unwrap();
        let found = distance(&score(&model, &[]), &reference);
        assert!(found > MATTERS, "{part}: {found:e}");
        file.write_all_at(&kept, extent.offset).unwrap();
    }
    let path = model.join("config.json");
    let config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for (key, value) in [
        ("/n_group", json!(1)),
        ("/topk_group", json!(3)),
        ("/routed_scaling_factor", json!(2.0)),
        ("/norm_topk_prob", json!(false)),
        ("/rope_interleave", json!(false)),
        ("/rope_scaling/factor", json!(20)),
        ("/rope_scaling/mscale", json!(1.0)),
        ("/rope_scaling/mscale_all_dim", json!(0.8)),
        ("/rope_scaling", json!(null)),
    ] {
        let (place, name) = key.rsplit_once('/').unwrap();
        let mut changed = config.clone();
        changed.pointer_mut(place).unwrap()[name] = value.clone();
        let topk = if name == "n_group" { json!(1) } else { changed["topk_group"].clone() };
        changed["topk_group"] = topk;
        fs::write(&path, changed.to_string()).unwrap();
        let found = distance(&score(&model, &[]), &reference);
        assert!(found > MATTERS, "{key} {value}: {found:e}");
    }
}

/// Layers without experts and drafts contradict other keys in one line each.
#[test]
fn contradictions_are_refused_by_their_keys() {
    let (_folder, model) = golden_copy(CASE);
    let path = model.join("config.json");
    let config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for (key, value, words) in [
        ("n_group", json!(3), "3 groups of 8 experts"),
        ("topk_group", json!(5), "5 of 4 groups"),
        ("topk_group", json!(1), "1 of 4 groups"),
        ("first_k_dense_replace", json!(3), "none of 3 layers"),
        ("first_k_dense_replace", json!(0), "layers.0.mlp.gate"),
        ("first_k_dense_replace", json!(2), "layers.1.mlp.gate_proj"),
        ("num_nextn_predict_layers", json!(0), "layers.3."),
        ("scoring_func", json!("softmax"), "scoring_func"),
        ("kv_lora_rank", json!(40), "self_attn"),
        ("q_lora_rank", json!(null), "q_proj"),
        ("attention_bias", json!(true), "attention_bias"),
    ] {
        let mut changed = config.clone();
        changed[key] = value.clone();
        fs::write(&path, changed.to_string()).unwrap();
        let output = flashmoe(&["inspect", model.to_str().unwrap()]);
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && line.contains(words), "{key} {value}: {line}");
    }
}

#[test]
fn packs_give_the_bits_of_the_release() {
    for case in [CASE, "glm-flash-calm-mlxlm-4bit"] {
        let model = golden().join(case).join("model");
        let folder = tempfile::tempdir().unwrap();
        let pack = folder.path().join("pack");
        let [source, target] = [&model, &pack].map(|path| path.to_str().unwrap());
        let expected = score(&model, &[]);
        run(&["pack", source, target]);
        for options in [
            &["--check-reads"][..],
            &["--storage", "mmap", "--load", "mmap"],
            &["--storage", "budget", "--slots", "floor", "--prefill-chunk", "5"],
        ] {
            assert!(score(&pack, options) == expected, "{case} {options:?}");
        }
        assert!(run(&["verify", target]).contains("all intact"));
        let inspected = run(&["inspect", target]);
        assert!(inspected.contains("1 without experts") && inspected.contains("latent rows"));
        run(&["plan", target, "--device", "cpu"]);
        run(&["bench", target, "-p", "8", "-n", "2", "-r", "1", "--device", "cpu"]);
        run(&["run", target, "he he", "--max-tokens", "2", "--device", "cpu"]);
        let path = folder.path().join("trace");
        let out = path.to_str().unwrap();
        run(&["trace", "record", target, "he he", "--out", out, "--generate", "2"]);
        let trace = store::trace::Trace::read(&mut fs::File::open(&path).unwrap()).unwrap();
        assert!((trace.layers, trace.tokens() > 2) == (2, true), "layers with experts");
    }
}

fn bytes(source: &Checkpoint, extent: Extent) -> Vec<u8> {
    let file = fs::File::open(&source.files[extent.file.0 as usize].path).unwrap();
    let mut bytes = vec![0; extent.length as usize];
    file.read_exact_at(&mut bytes, extent.offset).unwrap();
    bytes
}

/// A committed net as llama.cpp's converter writes it, under the name of an architecture.
pub(crate) fn converted(source: &Checkpoint, config: &Value, architecture: &str) -> GgufFile {
    let mut file = GgufFile::tiny(F32);
    file.tensors.clear();
    file.keys.retain(|(key, _)| !key.starts_with("qwen3moe."));
    file.set("general.architecture", GgufValue::Text(architecture.to_owned()));
    let size = |name: &str| config[name].as_u64().unwrap() as u32;
    for (key, value) in [
        ("block_count", size("num_hidden_layers")),
        ("context_length", size("max_position_embeddings")),
        ("embedding_length", size("hidden_size")),
        ("feed_forward_length", size("intermediate_size")),
        ("leading_dense_block_count", size("first_k_dense_replace")),
        ("expert_count", size("n_routed_experts")),
        ("expert_used_count", size("num_experts_per_tok")),
        ("expert_shared_count", size("n_shared_experts")),
        ("expert_group_count", size("n_group")),
        ("expert_group_used_count", size("topk_group")),
        ("expert_gating_func", 2),
        ("expert_feed_forward_length", size("moe_intermediate_size")),
        ("attention.head_count", size("num_attention_heads")),
        ("attention.head_count_kv", 1),
        ("attention.q_lora_rank", size("q_lora_rank")),
        ("attention.kv_lora_rank", size("kv_lora_rank")),
        ("attention.key_length", size("kv_lora_rank") + size("qk_rope_head_dim")),
        ("attention.value_length", size("kv_lora_rank")),
        ("attention.key_length_mla", size("qk_nope_head_dim") + size("qk_rope_head_dim")),
        ("attention.value_length_mla", size("v_head_dim")),
        ("rope.dimension_count", size("qk_rope_head_dim")),
    ] {
        file.set(&format!("{architecture}.{key}"), GgufValue::U32(value));
    }
    let theta = config["rope_theta"].as_f64().or(config["rope_parameters"]["rope_theta"].as_f64());
    for (key, value) in [
        ("attention.layer_norm_rms_epsilon", 1e-5),
        ("rope.freq_base", theta.unwrap() as f32),
        ("expert_weights_scale", 2.5),
    ] {
        file.set(&format!("{architecture}.{key}"), GgufValue::F32(value));
    }
    if config["rope_scaling"].is_object() {
        let key = |name: &str| format!("{architecture}.rope.scaling.{name}");
        file.set(&key("type"), GgufValue::Text("yarn".to_owned()));
        file.set(&key("original_context_length"), GgufValue::U32(64));
        for (name, value) in [
            ("factor", 40.0),
            ("yarn_beta_fast", 32.0),
            ("yarn_beta_slow", 1.0),
            ("yarn_log_multiplier", 0.1),
        ] {
            file.set(&key(name), GgufValue::F32(value));
        }
    }
    file.set(&format!("{architecture}.expert_weights_norm"), GgufValue::Bool(true));
    let mut add = |name: String, shape: &[usize], type_id, data| {
        let sizes = shape.iter().rev().map(|&size| size as u64).collect();
        file.tensors.push(GgufTensor { name, sizes, type_id, data, offset: None });
    };
    for (name, tensor) in &source.tensors {
        let top = [("embed_tokens", "token_embd"), ("norm", "output_norm"), ("lm_head", "output")];
        let data = bytes(source, tensor.weight);
        if let Some((_, new)) = top.iter().find(|(old, _)| old == name) {
            add(format!("{new}.weight"), &tensor.shape, BF16, data);
            continue;
        }
        let (layer, part) = name.strip_prefix("layers.").unwrap().split_once('.').unwrap();
        let new = match part {
            "input_layernorm" => "attn_norm.weight",
            "post_attention_layernorm" => "ffn_norm.weight",
            "self_attn.q_a_proj" => "attn_q_a.weight",
            "self_attn.q_a_layernorm" => "attn_q_a_norm.weight",
            "self_attn.q_b_proj" => "attn_q_b.weight",
            "self_attn.kv_a_proj_with_mqa" => "attn_kv_a_mqa.weight",
            "self_attn.kv_a_layernorm" => "attn_kv_a_norm.weight",
            "self_attn.o_proj" => "attn_output.weight",
            "self_attn.indexer.wq_b" => "indexer.attn_q_b.weight",
            "self_attn.indexer.wk" => "indexer.attn_k.weight",
            "self_attn.indexer.k_norm" => "indexer.k_norm.weight",
            "self_attn.indexer.k_norm.bias" => "indexer.k_norm.bias",
            "self_attn.indexer.weights_proj" => "indexer.proj.weight",
            "mlp.gate" => "ffn_gate_inp.weight",
            "mlp.gate.e_score_correction_bias" => "exp_probs_b.bias",
            "mlp.gate_proj" => "ffn_gate.weight",
            "mlp.up_proj" => "ffn_up.weight",
            "mlp.down_proj" => "ffn_down.weight",
            "mlp.shared_experts.gate_proj" => "ffn_gate_shexp.weight",
            "mlp.shared_experts.up_proj" => "ffn_up_shexp.weight",
            "mlp.shared_experts.down_proj" => "ffn_down_shexp.weight",
            "self_attn.kv_b_proj" => {
                let wide = |name: &str| size(name) as usize;
                let (plain, value) = (wide("qk_nope_head_dim"), wide("v_head_dim"));
                let (heads, rank) = (wide("num_attention_heads"), wide("kv_lora_rank"));
                let row = |row: usize| data[row * rank * 2..(row + 1) * rank * 2].to_vec();
                let (mut keys, mut values) = (Vec::new(), Vec::new());
                for head in 0..heads {
                    let first = head * (plain + value);
                    for at in 0..rank {
                        let column = (first..first + plain).map(|row| (row * rank + at) * 2);
                        keys.extend(column.flat_map(|at| data[at..at + 2].to_vec()));
                    }
                    values.extend((first + plain..first + plain + value).flat_map(row));
                }
                let name = |part: &str| format!("blk.{layer}.attn_{part}_b.weight");
                add(name("k"), &[heads, rank, plain], BF16, keys);
                add(name("v"), &[heads, value, rank], BF16, values);
                continue;
            }
            other => panic!("{other}"),
        };
        let type_id = if new == "exp_probs_b.bias" { F32 } else { BF16 };
        add(format!("blk.{layer}.{new}"), &tensor.shape, type_id, data);
    }
    for (layer, experts) in source.experts.iter().enumerate() {
        let Some(experts) = experts else { continue };
        for projection in [Projection::Gate, Projection::Up, Projection::Down] {
            let matrices = experts.experts.iter();
            let data = matrices.flat_map(|it| bytes(source, it.weight[projection as usize]));
            let shape = &experts.shapes[projection as usize];
            let name = ["gate", "up", "down"][projection as usize];
            let shape = [experts.experts.len(), shape.rows, shape.columns];
            add(format!("blk.{layer}.ffn_{name}_exps.weight"), &shape, BF16, data.collect());
        }
    }
    file
}

#[test]
fn a_gguf_file_gives_the_bits_of_the_release() {
    let (folder, model) = golden_copy(CASE);
    // GGUF has no key for the other part of the magnitude: llama.cpp computes both alike, as the releases have them.
    let path = model.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["rope_scaling"]["mscale"] = json!(1.0);
    fs::write(&path, config.to_string()).unwrap();
    let source = open(&model).unwrap();
    let file = converted(&source, &config, "deepseek2");
    let gguf = folder.path().join("m.gguf");
    fs::write(&gguf, file.to_bytes()).unwrap();
    assert!(score(&gguf, &[]) == score(&model, &[]));
    assert!(run(&["inspect", gguf.to_str().unwrap()]).contains("DeepSeek-V3"));
    // DeepSeek-V2 weighs by a softmax.
    let mut other = file;
    other.set("deepseek2.expert_gating_func", GgufValue::U32(1));
    fs::write(&gguf, other.to_bytes()).unwrap();
    let output = flashmoe(&["inspect", gguf.to_str().unwrap()]);
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && line.contains("expert_gating_func"), "{line}");
}

#[test]
fn a_gpu_computes_it_over_one_row_a_token() {
    let source = open(&golden().join(CASE).join("model")).unwrap();
    let config = engine::model::config::ModelConfig::read(&source.config).unwrap();
    let mut catalog = engine::weights::Catalog::new(&source);
    let model = engine::model::Model::declare(&config, &mut catalog).unwrap();
    let shapes = engine::model::mixture::expert_shapes(&source, &config).unwrap();
    engine::backend::cuda::check_model(&config, &model.program, &catalog, &shapes).unwrap();
    let options = engine::backend::cuda::CudaOptions {
        layers: 0..config.layers.len(),
        batch_tokens: 64,
        logit_rows: 1,
        sequences: 2,
        snapshots: 0,
        snapshot_pages: 0,
        context: 1000,
        kv_type: kernels::KvType::F16,
        top_k: config.moe.top_k,
        prediction: engine::backend::cuda::Prediction::Off,
        round_tokens: 1,
    };
    let needs =
        engine::backend::cuda::CudaRequirements::of(&config, &catalog, &options, 4096, true);
    let (layers, row) = (config.layers.len(), config.attention.head_dim);
    assert_eq!(needs.key_values, (2 * 1000 * layers * row * 2) as u64);
}

/// Latent rows are what is cached, once: bytes of a token are those of the published figures.
#[test]
fn caches_take_the_bytes_of_the_published_models() {
    use engine::model::config::ModelConfig;
    use kernels::KvType;
    use store::format::Configuration;
    for (model_type, layers, bytes) in [("deepseek_v3", 61, 70_272), ("glm4_moe_lite", 47, 54_144)]
    {
        let config = json!({
            "model_type": model_type, "vocab_size": 1024, "hidden_size": 2048,
            "num_hidden_layers": layers, "num_attention_heads": 20, "kv_lora_rank": 512,
            "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
            "n_routed_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 1536,
            "intermediate_size": 10_240,
        });
        let config = Configuration::new(Path::new("config.json"), config).unwrap();
        let config = ModelConfig::read(&config).unwrap();
        let row = KvType::F16.bytes_of_head(config.attention.head_dim);
        assert_eq!(config.cache_rows() * row, bytes, "{model_type}");
    }
}

//! Latent attention and layers without experts from end to end: every part of DeepSeek-V3 changes the answer, packs are
//! copies, sizes are as published, and a GPU refuses the model by what it lacks.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::{Value, json};
use store::format::open;
use support::{Scored, flashmoe, golden};

const CASE: &str = "deepseek-calm-hf";
/// Least difference that counts: a hundred times what the case is held to.
const MATTERS: f64 = 1e-3;

fn run(arguments: &[&str]) -> String {
    let output = flashmoe(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn score(model: &Path, options: &[&str]) -> Scored {
    let folder = tempfile::tempdir().unwrap();
    let (ids, out) = (golden().join(CASE).join("ids.json"), folder.path().join("out.safetensors"));
    let [model, ids, file] = [model, &ids, &out].map(|path| path.to_str().unwrap());
    let mut arguments = vec!["score", model, "--ids", ids, "--logits", file, "--greedy", "12"];
    arguments.extend(options);
    run(&arguments);
    Scored::read(&out)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

fn distance(found: &Scored, reference: &Scored) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f32>| {
        values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt()
    };
    let pairs = found.logits.iter().zip(&reference.logits);
    norm(&mut pairs.map(|(a, b)| a - b)) / norm(&mut reference.logits.iter().copied())
}

/// What the reference has and a slip would leave out: without it the answer is another, so that an answer within 1e-5
/// of the reference has it.
#[test]
fn every_part_changes_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    copy(&golden().join(CASE).join("model"), &model);
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
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    copy(&golden().join(CASE).join("model"), &model);
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

#[test]
fn a_gpu_refuses_it_by_what_it_lacks() {
    let source = open(&golden().join(CASE).join("model")).unwrap();
    let config = engine::model::config::ModelConfig::read(&source.config).unwrap();
    let mut catalog = engine::weights::Catalog::new(&source);
    engine::model::Model::declare(&config, &mut catalog).unwrap();
    let shapes = engine::model::mixture::expert_shapes(&source, &config).unwrap();
    let error = engine::backend::cuda::check_model(&config, &catalog, &shapes).unwrap_err();
    let line = error.to_string();
    for word in ["DeepSeek-V3", "latent attention", "layers without experts", "--device cpu"] {
        assert!(line.contains(word), "{word}: {line}");
    }
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

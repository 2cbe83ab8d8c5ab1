//! gpt-oss from end to end: every part of it changes the answer, and the same weights give the same bits as a GGUF file
//! and as a pack, whose records are copies.

use crate::long::{part, skips_gpu};
use crate::support;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use store::format::{Checkpoint, Extent, Projection, open};
use store::io::platform::FileExt;
use store::synthetic::gguf::{F32, GgufFile, GgufTensor, GgufValue};
use support::{Scored, distance, golden, golden_copy, run};

const CASE: &str = "gptoss-calm-mxfp4";
/// Numbers of types in GGUF files.
const BF16: u32 = 30;
const MXFP4: u32 = 39;
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
    let weights = fs::File::options().write(true).open(model.join("model.safetensors")).unwrap();
    for part in [
        "self_attn.sinks",
        "self_attn.q_proj.bias",
        "self_attn.k_proj.bias",
        "self_attn.v_proj.bias",
        "self_attn.o_proj.bias",
        "mlp.router.bias",
        "mlp.experts.gate_up_proj_bias",
        "mlp.experts.down_proj_bias",
    ] {
        let extents = (0..source.experts.len())
            .map(|layer| source.tensors[&format!("layers.{layer}.{part}")].weight);
        let kept: Vec<_> = extents.map(|extent| (extent.offset, bytes(&source, extent))).collect();
        for (offset, bytes) in &kept {
            weights.write_all_at(&vec![0; bytes.len()], *offset).unwrap();
        }
        let found = distance(&score(&model, &[]), &reference);
        assert!(found > MATTERS, "{part}: {found:e}");
        for (offset, bytes) in &kept {
            weights.write_all_at(bytes, *offset).unwrap();
        }
    }
    let path = model.join("config.json");
    let config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let layers = config["num_hidden_layers"].as_u64().unwrap() as usize;
    let all = |kind: &str| json!(vec![kind; layers]);
    for (key, value) in [
        ("/sliding_window", json!(17)),
        ("/layer_types", all("full_attention")),
        ("/layer_types", all("sliding_attention")),
        ("/swiglu_limit", json!(7.0)),
        ("/swiglu_alpha", json!(1.0)),
        ("/rope_scaling/truncate", json!(true)),
        ("/rope_scaling/factor", json!(31.0)),
        ("/rope_scaling/beta_slow", json!(2.0)),
        ("/rope_scaling/attention_factor", json!(1.0)),
        ("/rope_scaling", json!(null)),
    ] {
        let (place, name) = key.rsplit_once('/').unwrap();
        let mut changed = config.clone();
        changed.pointer_mut(place).unwrap()[name] = value.clone();
        fs::write(&path, changed.to_string()).unwrap();
        let found = distance(&score(&model, &[]), &reference);
        assert!(found > MATTERS, "{key} {value}: {found:e}");
    }
}

fn bytes(source: &Checkpoint, extent: Extent) -> Vec<u8> {
    let file = fs::File::open(&source.files[extent.file.0 as usize].path).unwrap();
    let mut bytes = vec![0; extent.length as usize];
    file.read_exact_at(&mut bytes, extent.offset).unwrap();
    bytes
}

/// Blocks of GGUF: the exponent, then value `j` below value `j + 16`.
fn blocks(nibbles: &[u8], exponents: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (group, &exponent) in nibbles.chunks_exact(16).zip(exponents) {
        let code = |at: usize| group[at / 2] >> (4 * (at % 2)) & 15;
        out.push(exponent);
        out.extend((0..16).map(|at| code(at) | code(at + 16) << 4));
    }
    out
}

/// The committed net as llama.cpp's converter writes it.
fn converted(source: &Checkpoint, model: &Path) -> GgufFile {
    let config: Value =
        serde_json::from_slice(&fs::read(model.join("config.json")).unwrap()).unwrap();
    let mut file = GgufFile::tiny(F32);
    file.tensors.clear();
    file.keys.retain(|(key, _)| !key.starts_with("qwen3moe."));
    file.set("general.architecture", GgufValue::Text("gpt-oss".to_owned()));
    for (key, name) in [
        ("block_count", "/num_hidden_layers"),
        ("context_length", "/max_position_embeddings"),
        ("embedding_length", "/hidden_size"),
        ("expert_count", "/num_local_experts"),
        ("expert_used_count", "/num_experts_per_tok"),
        ("expert_feed_forward_length", "/intermediate_size"),
        ("attention.head_count", "/num_attention_heads"),
        ("attention.head_count_kv", "/num_key_value_heads"),
        ("attention.key_length", "/head_dim"),
        ("attention.value_length", "/head_dim"),
        ("attention.sliding_window", "/sliding_window"),
        ("rope.scaling.original_context_length", "/rope_scaling/original_max_position_embeddings"),
    ] {
        let value = config.pointer(name).unwrap().as_u64().unwrap() as u32;
        file.set(&format!("gpt-oss.{key}"), GgufValue::U32(value));
    }
    for (key, name) in [
        ("attention.layer_norm_rms_epsilon", "/rms_norm_eps"),
        ("rope.freq_base", "/rope_theta"),
        ("rope.scaling.factor", "/rope_scaling/factor"),
    ] {
        let value = config.pointer(name).unwrap().as_f64().unwrap() as f32;
        file.set(&format!("gpt-oss.{key}"), GgufValue::F32(value));
    }
    file.set("gpt-oss.rope.scaling.type", GgufValue::Text("yarn".to_owned()));
    let mut add = |name: String, shape: &[usize], type_id: u32, data: Vec<u8>| {
        let sizes = shape.iter().rev().map(|&size| size as u64).collect();
        file.tensors.push(GgufTensor { name, sizes, type_id, data, offset: None });
    };
    let names = [
        ("input_layernorm", "attn_norm.weight"),
        ("post_attention_layernorm", "post_attention_norm.weight"),
        ("mlp.router", "ffn_gate_inp.weight"),
        ("mlp.router.bias", "ffn_gate_inp.bias"),
        ("mlp.experts.down_proj_bias", "ffn_down_exps.bias"),
        ("self_attn.sinks", "attn_sinks.weight"),
        ("self_attn.q_proj", "attn_q.weight"),
        ("self_attn.k_proj", "attn_k.weight"),
        ("self_attn.v_proj", "attn_v.weight"),
        ("self_attn.o_proj", "attn_output.weight"),
        ("self_attn.q_proj.bias", "attn_q.bias"),
        ("self_attn.k_proj.bias", "attn_k.bias"),
        ("self_attn.v_proj.bias", "attn_v.bias"),
        ("self_attn.o_proj.bias", "attn_output.bias"),
    ];
    for (name, tensor) in &source.tensors {
        let data = bytes(source, tensor.weight);
        let Some((layer, rest)) =
            name.strip_prefix("layers.").and_then(|rest| rest.split_once('.'))
        else {
            let top =
                [("embed_tokens", "token_embd"), ("norm", "output_norm"), ("lm_head", "output")];
            let (_, new) = top.iter().find(|(old, _)| old == name).unwrap();
            add(format!("{new}.weight"), &tensor.shape, BF16, data);
            continue;
        };
        if rest == "mlp.experts.gate_up_proj_bias" {
            let shape = [tensor.shape[0], tensor.shape[1] / 2];
            for (turn, new) in ["ffn_gate_exps", "ffn_up_exps"].into_iter().enumerate() {
                let values = data.chunks_exact(2).skip(turn).step_by(2).flatten().copied();
                add(format!("blk.{layer}.{new}.bias"), &shape, BF16, values.collect());
            }
            continue;
        }
        let (_, new) = names.iter().find(|(old, _)| *old == rest).unwrap();
        add(format!("blk.{layer}.{new}"), &tensor.shape, BF16, data);
    }
    for (layer, experts) in source.experts.iter().enumerate() {
        let experts = experts.as_ref().unwrap();
        let count = experts.experts.len();
        // One expert's matrix as blocks.
        let matrix = |expert: usize, projection: Projection| {
            let place = &experts.experts[expert];
            let (scales, _) = place.scales_biases[projection as usize].unwrap();
            blocks(&bytes(source, place.weight[projection as usize]), &bytes(source, scales))
        };
        let [gate, _, down] = experts.shapes;
        let row = gate.columns / 32 * 17;
        for (turn, new) in ["ffn_gate_exps", "ffn_up_exps"].into_iter().enumerate() {
            let mut data = Vec::new();
            for expert in 0..count {
                let both =
                    [matrix(expert, Projection::Gate), matrix(expert, Projection::Up)].concat();
                data.extend(both.chunks_exact(row).skip(turn).step_by(2).flatten());
            }
            let shape = [count, gate.rows, gate.columns];
            add(format!("blk.{layer}.{new}.weight"), &shape, MXFP4, data);
        }
        let data = (0..count).flat_map(|expert| matrix(expert, Projection::Down)).collect();
        let shape = [count, down.rows, down.columns];
        add(format!("blk.{layer}.ffn_down_exps.weight"), &shape, MXFP4, data);
    }
    file
}

#[test]
fn a_gguf_file_and_packs_give_the_bits_of_the_release() {
    let (folder, model) = golden_copy(CASE);
    // GGUF has no key for the limit, so that files are read with the released one.
    let path = model.join("config.json");
    let text = fs::read_to_string(&path).unwrap();
    let released = text.replace("\"swiglu_limit\": 0.5", "\"swiglu_limit\": 7.0");
    assert!(released != text);
    fs::write(&path, released).unwrap();
    let source = open(&model).unwrap();
    let expected = score(&model, &[]);
    let gguf = folder.path().join("m.gguf");
    fs::write(&gguf, converted(&source, &model).to_bytes()).unwrap();
    assert!(score(&gguf, &[]) == expected, "GGUF");
    for from in [&model, &gguf] {
        let pack = folder.path().join("pack");
        let [source, target] = [from, &pack].map(|path| path.to_str().unwrap());
        run(&["pack", source, target]);
        for options in [
            &["--check-reads"][..],
            &["--storage", "mmap"],
            &["--storage", "budget", "--slots", "floor"],
        ] {
            assert!(score(&pack, options) == expected, "{from:?} {options:?}");
        }
        assert!(run(&["verify", target]).contains("all intact"));
        assert!(run(&["inspect", target]).contains("gpt-oss"));
        run(&["plan", target, "--device", "cpu"]);
        run(&["bench", target, "-p", "8", "-n", "2", "-r", "1", "--device", "cpu"]);
        run(&["run", target, "he he", "--max-tokens", "2", "--device", "cpu"]);
        fs::remove_dir_all(&pack).unwrap();
        run(&["pack", source, target, "--experts", "8bit", "--group", "32"]);
        let found = distance(&score(&pack, &[]), &expected);
        assert!(found > 0.0 && found < 0.05, "{from:?} in 8 bits: {found}");
        fs::remove_dir_all(&pack).unwrap();
    }
}

#[test]
fn records_of_a_pack_are_copies_of_what_is_published() {
    let model = golden().join(CASE).join("model");
    let folder = tempfile::tempdir().unwrap();
    let pack = folder.path().join("pack");
    run(&["pack", model.to_str().unwrap(), pack.to_str().unwrap()]);
    let [published, packed] = [&model, &pack].map(|path| open(path).unwrap());
    let mut compared = 0;
    for (before, after) in published.experts.iter().zip(&packed.experts) {
        let [before, after] = [before, after].map(|experts| experts.as_ref().unwrap());
        assert_eq!(before.shapes, after.shapes);
        for (old, new) in before.experts.iter().zip(&after.experts) {
            for projection in 0..3 {
                let planes = |checkpoint, place: &store::format::ExpertExtents| {
                    let (scales, _) = place.scales_biases[projection].unwrap();
                    [place.weight[projection], scales].map(|extent| bytes(checkpoint, extent))
                };
                assert!(planes(&published, old) == planes(&packed, new));
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 3 * published.experts.len() * 6);
}

/// Both kinds of GPU compute it, published as in a file of GGUF.
#[test]
fn gpus_compute_its_parts() {
    let (folder, model) = golden_copy(CASE);
    let gguf = folder.path().join("m.gguf");
    fs::write(&gguf, converted(&open(&model).unwrap(), &model).to_bytes()).unwrap();
    for model in [model, gguf] {
        let source = open(&model).unwrap();
        let config = engine::model::config::ModelConfig::read(&source.config).unwrap();
        let mut catalog = engine::weights::Catalog::new(&source);
        let model = engine::model::Model::declare(&config, &mut catalog).unwrap();
        let shapes = engine::model::mixture::expert_shapes(&source, &config).unwrap();
        engine::backend::cuda::check_model(&config, &model.program, &catalog, &shapes).unwrap();
        engine::backend::gpu::check_model(&config, &model.program, &catalog, &shapes).unwrap();
    }
}

/// The release, a file of GGUF (rows of gate and up apart) and a pack in 8 bits (in turns), on whatever GPU is there.
#[test]
fn any_gpu_gives_the_logits_of_the_processor_from_every_layout() {
    if skips_gpu() {
        return;
    }
    let (folder, model) = golden_copy(CASE);
    let (gguf, pack) = (folder.path().join("m.gguf"), folder.path().join("pack"));
    fs::write(&gguf, converted(&open(&model).unwrap(), &model).to_bytes()).unwrap();
    let [from, to] = [&model, &pack].map(|path| path.to_str().unwrap());
    run(&["pack", from, to, "--experts", "8bit", "--group", "32"]);
    // By default the release and its pack; GGUF files have the processor's bits elsewhere.
    for model in part([model, gguf, pack], 2) {
        let reference = score(&model, &["--device", "cpu", "--arithmetic", "f32"]);
        let all = score(&model, &["--device", "gpu:0"]);
        let apart = distance(&all, &reference);
        assert!(apart < 1e-4, "{model:?}: {apart:.1e} from the processor");
        let cut = score(&model, &["--device", "gpu:0", "--prefill-chunk", "7"]);
        assert!(all.logits == cut.logits, "{model:?}: other bits in chunks");
    }
}

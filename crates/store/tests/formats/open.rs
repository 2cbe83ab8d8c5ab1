//! Goal: every layout opens to the same description of the same bytes. Method: tiny checkpoints with
//! known content are written in each layout; what the extents name is compared with what was written.

use crate::common::{Folder, Noise, TINY, Tensors, bytes};
use kernels::format::{Encoding, FloatType};
use serde_json::json;
use store::format::{Checkpoint, Projection, SourceKind, open};

fn expert_bytes(
    checkpoint: &Checkpoint,
    layer: usize,
    expert: usize,
    projection: Projection,
) -> Vec<u8> {
    let experts = checkpoint.experts[layer].as_ref().unwrap();
    bytes(checkpoint, experts.experts[expert].weight[projection as usize])
}

#[test]
fn mlx_in_every_width_group_and_scale_type() {
    for bits in [2, 3, 4, 5, 6, 8] {
        for (group, scale, name) in [
            (32, FloatType::F32, "F32"),
            (64, FloatType::F16, "F16"),
            (64, FloatType::Bf16, "BF16"),
        ] {
            let (config, mut tensors) = TINY.mlx((bits, group, name));
            let folder = Folder::checkpoint(&config, &tensors, "mlx");
            let checkpoint = open(folder.path()).unwrap();
            assert_eq!(checkpoint.kind, SourceKind::Mlx);
            assert!(!checkpoint.norms_are_zero_centred);
            assert!(checkpoint.unused.is_empty());
            let encoding = Encoding::Affine { bits: bits as u8, group: group as u16, scale };
            let gate = &checkpoint.tensors["layers.1.mlp.gate"];
            assert_eq!((gate.element, &gate.shape[..]), (encoding.into(), &[4, 128][..]));
            let prefix = "language_model.model.layers.1.mlp";
            let (_, biases) = gate.scales_biases.unwrap();
            let expected = &tensors.find(&format!("{prefix}.gate.biases")).data;
            assert_eq!(&bytes(&checkpoint, biases), expected);
            let stacked =
                tensors.find(&format!("{prefix}.switch_mlp.down_proj.weight")).data.clone();
            let each = stacked.len() / 4;
            assert_eq!(
                expert_bytes(&checkpoint, 1, 3, Projection::Down),
                stacked[3 * each..4 * each]
            );
            let conv = &checkpoint.tensors["layers.0.linear_attn.conv1d"];
            assert_eq!(conv.shape, [256, 4]);
        }
    }
}

#[test]
fn hugging_face_fused_and_one_by_one() {
    for fused in [true, false] {
        let (config, mut tensors) = TINY.hugging_face(fused);
        let folder = Folder::checkpoint(&config, &tensors, "pt");
        let checkpoint = open(folder.path()).unwrap();
        assert_eq!(checkpoint.kind, SourceKind::HuggingFace);
        assert!(checkpoint.norms_are_zero_centred);
        assert_eq!(checkpoint.skipped.len(), 2);
        assert_eq!(checkpoint.tensors["layers.0.linear_attn.conv1d"].shape, [256, 4]);
        let up = expert_bytes(&checkpoint, 2, 1, Projection::Up);
        let experts = "model.language_model.layers.2.mlp.experts";
        if fused {
            let whole = &tensors.find(&format!("{experts}.gate_up_proj")).data;
            assert_eq!(up, whole[3 * up.len()..4 * up.len()]);
        } else {
            assert_eq!(up, tensors.find(&format!("{experts}.1.up_proj.weight")).data);
        }
    }
}

#[test]
fn shards_prefixes_and_tied_embeddings() {
    let (config, tensors) = TINY.hugging_face(true);
    let folder = Folder::new();
    let mut flat = config["text_config"].clone();
    flat["tie_word_embeddings"] = json!(true);
    folder.write("config.json", flat.to_string());
    let mut map = serde_json::Map::new();
    let mut shards = [Tensors::default(), Tensors::default()];
    for (index, mut entry) in tensors.0.into_iter().enumerate() {
        if entry.name == "lm_head.weight" {
            continue;
        }
        entry.name = entry.name.replace("model.language_model.", "model.");
        let name = format!("model-0000{}-of-00002.safetensors", index % 2 + 1);
        map.insert(entry.name.clone(), json!(name));
        shards[index % 2].0.push(entry);
    }
    for (index, shard) in shards.iter().enumerate() {
        let name = format!("model-0000{}-of-00002.safetensors", index + 1);
        folder.write(&name, shard.file("pt"));
    }
    for with_index in [false, true] {
        if with_index {
            folder.write("model.safetensors.index.json", json!({"weight_map": map}).to_string());
        }
        let checkpoint = open(folder.path()).unwrap();
        assert_eq!(checkpoint.files.len(), 2);
        assert!(!checkpoint.tensors.contains_key("lm_head"));
        assert!(checkpoint.tensors.contains_key("layers.3.self_attn.q_proj"));
        assert!(checkpoint.experts.iter().all(Option::is_some));
    }
    // Any file of the folder stands for the folder.
    open(&folder.path().join("model-00001-of-00002.safetensors")).unwrap();
    open(&folder.path().join("config.json")).unwrap();
}

#[test]
fn overrides_are_honoured_with_any_prefix() {
    let (mut config, mut tensors) = TINY.mlx((4, 64, "BF16"));
    let mut noise = Noise(3);
    let gate = "language_model.model.layers.2.mlp.gate";
    let lm_head = "language_model.lm_head";
    tensors.0.retain(|entry| !entry.name.starts_with(gate) && !entry.name.starts_with(lm_head));
    tensors.affine(&mut noise, gate, &[4, 128], (8, 32, "BF16"));
    tensors.floats(&mut noise, format!("{lm_head}.weight"), "BF16", &[96, 128]);
    config["quantization"][gate] = json!({"bits": 8, "group_size": 32});
    config["quantization"]["lm_head"] = json!(false);
    let folder = Folder::checkpoint(&config, &tensors, "mlx");
    let checkpoint = open(folder.path()).unwrap();
    let encoding = Encoding::Affine { bits: 8, group: 32, scale: FloatType::Bf16 };
    assert_eq!(checkpoint.tensors["layers.2.mlp.gate"].element, encoding.into());
    assert_eq!(checkpoint.tensors["lm_head"].element, Encoding::Float(FloatType::Bf16).into());
}

#[test]
fn norms_of_families_without_the_question_are_plain() {
    let (mut config, mut tensors) = TINY.hugging_face(false);
    config["model_type"] = json!("qwen3_moe");
    config["text_config"]["model_type"] = json!("qwen3_moe");
    tensors.0.retain(|entry| !entry.name.contains("linear_attn"));
    let folder = Folder::checkpoint(&config, &tensors, "pt");
    assert!(!open(folder.path()).unwrap().norms_are_zero_centred);
}

#[test]
fn an_unquantised_conversion_is_told_by_its_convolutions() {
    let (config, mut tensors) = TINY.hugging_face(true);
    for entry in &mut tensors.0 {
        if entry.name.ends_with("conv1d.weight") {
            entry.shape = vec![256, 4, 1];
        }
    }
    let folder = Folder::checkpoint(&config, &tensors, "mlx");
    let checkpoint = open(folder.path()).unwrap();
    assert_eq!(checkpoint.kind, SourceKind::Mlx);
    assert!(!checkpoint.norms_are_zero_centred);
}

#[test]
fn templates_in_order_of_precedence() {
    let folder = Folder::mlx();
    let template = || open(folder.path()).unwrap().chat_template;
    assert_eq!(template(), None);
    let list = json!([{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]);
    folder.write("tokenizer_config.json", json!({"chat_template": list}).to_string());
    assert_eq!(template().as_deref(), Some("d"));
    folder.write("chat_template.json", json!({"chat_template": "j"}).to_string());
    assert_eq!(template().as_deref(), Some("j"));
    folder.write("chat_template.jinja", "{{ x }}");
    assert_eq!(template().as_deref(), Some("{{ x }}"));
    folder.write("generation_config.json", json!({"top_k": 20}).to_string());
    folder.write("tokenizer.json", "{}");
    let checkpoint = open(folder.path()).unwrap();
    assert_eq!(checkpoint.generation_config.unwrap()["top_k"], 20);
    assert!(checkpoint.tokenizer.unwrap().path().ends_with("tokenizer.json"));
}

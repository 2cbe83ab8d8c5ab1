//! Shapes of Qwen3.8-Flash-Next, and the tensors that its layers have beyond those of Qwen3.5-MoE.

use engine::model::config::{Mixer, ModelConfig};
use engine::model::gated_streams::GatedStreams;
use kernels::format::{Encoding, FloatType};
use serde_json::{Value, json};
use store::format::rows::NGRAM_TABLE;

use super::tensors::{Add, Stored};

/// The release: its table alone takes 102 GB.
pub(super) fn released() -> Value {
    let mut config = shape([2560, 48, 24, 2, 256], [16, 48, 128], [512, 10, 640], 248_320);
    let text = &mut config["text_config"];
    for (key, value) in [
        ("hc_lowrank", 320),
        ("indexer_head_dim", 128),
        ("indexer_budget", 2048),
        ("ple_embed_dim", 2560),
        ("heads_per_ngram", 8),
        ("ngram_vocab_size_base", 20_000_000),
        ("make_ngram_vocab_size_divisible_by", 128),
        ("split_ngram_parts", 128),
        ("eos_token_id", 248_044),
    ] {
        text[key] = value.into();
    }
    config
}

/// One with every kind of layer.
pub(super) fn tiny() -> Value {
    shape([256, 4, 4, 2, 64], [2, 4, 64], [16, 4, 128], 512)
}

/// Streams of hyper-connections, the indexer, rows of n-grams and the rotation: the same for every shape.
fn streams_and_rows() -> Value {
    json!({
        "hc_count": 4,
        "hc_lowrank": 64,
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 32,
        "indexer_budget": 32,
        "indexer_compress_ratio": 4,
        "ple_layer_ids": [2],
        "ple_embed_dim": 256,
        "ple_conv_kernel_size": 4,
        "ngram_size": 3,
        "heads_per_ngram": 4,
        "ngram_vocab_size_base": 2000,
        "make_ngram_vocab_size_divisible_by": 16,
        "split_ngram_parts": 4,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000,
            "partial_rotary_factor": 0.25,
        },
    })
}

/// `[hidden, layers, heads, kv heads, head size]`, `[key heads, value heads, head size]` of the delta layers,
/// `[experts, top-k, width]`, vocabulary; the rest is small.
fn shape(
    [hidden, layers, heads, kv_heads, head_dim]: [usize; 5],
    [key_heads, value_heads, delta_dim]: [usize; 3],
    [experts, top_k, width]: [usize; 3],
    vocabulary: usize,
) -> Value {
    let full = |layer: usize| (layer + 1).is_multiple_of(4);
    let kinds: Vec<&str> = (0..layers)
        .map(|layer| if full(layer) { "full_attention" } else { "linear_attention" })
        .collect();
    let mut text = json!({
        "model_type": "qwen4_exp_text",
        "dtype": "bfloat16",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": delta_dim,
        "linear_value_head_dim": delta_dim,
        "linear_conv_kernel_dim": 4,
        "output_gate_type": "sigmoid",
        "moe_intermediate_size": width,
        "shared_expert_intermediate_size": width,
        "num_experts": experts,
        "num_experts_per_tok": top_k,
        "norm_topk_prob": true,
        "max_position_embeddings": 262_144,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false,
        "layer_types": kinds,
        "attention_bias": false,
        "hidden_act": "silu",
        "eos_token_id": 0,
    });
    for (key, value) in streams_and_rows().as_object().into_iter().flatten() {
        text[key] = value.clone();
    }
    json!({
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "model_type": "qwen4_exp",
        "dtype": "bfloat16",
        "tie_word_embeddings": false,
        "text_config": text,
    })
}

/// Tensors of one place where streams are read.
pub(super) fn site(
    gated: &GatedStreams,
    hidden: usize,
    prefix: &str,
    stored: Stored,
    add: &mut Add<'_>,
) {
    let wide = gated.streams * hidden;
    add(format!("{prefix}.hc_norm"), &[wide], stored.plain);
    add(format!("{prefix}.input_mix_weight_down"), &[gated.rank, wide], stored.matrices);
    add(format!("{prefix}.input_mix_weight_up"), &[wide, gated.rank], stored.matrices);
}

/// What a layer has beyond its mixer and its experts.
pub(super) fn layer(model: &ModelConfig, layer: usize, stored: Stored, add: &mut Add<'_>) {
    let Some(gated) = &model.gated else { return };
    let (hidden, wide) = (model.hidden, gated.streams * model.hidden);
    let name = |part: &str| format!("layers.{layer}.{part}");
    for block in ["attn", "mlp"] {
        let prefix = name(&format!("{block}_hyper_connection"));
        site(gated, hidden, &prefix, stored, add);
        add(format!("{prefix}.block_inject_weight"), &[gated.streams, wide], stored.plain);
    }
    if let (Some(index), Mixer::Attention) = (&model.index, model.layers[layer].mixer) {
        add(name("self_attn.indexer.index_qk_proj"), &[index.width(), hidden], stored.matrices);
        add(name("self_attn.indexer.q_layernorm"), &[index.dim], stored.plain);
        add(name("self_attn.indexer.k_layernorm"), &[index.dim], stored.plain);
    }
    let Some(ngrams) = &model.ngrams else { return };
    let Some(place) = ngrams.place(layer) else { return };
    add(name("ple.key_proj"), &[wide, ngrams.width], stored.matrices);
    add(name("ple.value_proj"), &[hidden, ngrams.width], stored.matrices);
    for norm in ["ple.norm_key", "ple.norm_query", "ple.norm_conv"] {
        add(name(norm), &[wide], stored.plain);
    }
    add(name("ple.conv1d"), &[wide, ngrams.kernel], stored.plain);
    let rows = usize::try_from(ngrams.hashes[place].rows()).unwrap_or(usize::MAX);
    let table = Encoding::Float(FloatType::Bf16);
    for part in 0..ngrams.parts {
        let count = rows * (part + 1) / ngrams.parts - rows * part / ngrams.parts;
        let part = name(&format!("{NGRAM_TABLE}.shard_{part}"));
        add(part, &[count, ngrams.columns()], table);
    }
}

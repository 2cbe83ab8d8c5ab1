//! Configurations of Gemma-4 with experts, in the sizes of its release, and what its layers have between blocks.

use engine::model::config::ModelConfig;
use kernels::format::Encoding;
use serde_json::{Value, json};

use super::tensors::Add;

/// The configuration: `[hidden, layers, heads]`, `[kv heads, head size]` of layers with a window and of the others,
/// window, `[experts, top-k, width]`, width of the dense network, vocabulary.
fn gemma(
    [hidden, layers, heads]: [usize; 3],
    [[kv_heads, head_dim], [full_kv_heads, full_head_dim]]: [[usize; 2]; 2],
    window: usize,
    [experts, top_k, width]: [usize; 3],
    inner: usize,
    vocabulary: usize,
) -> Value {
    let full = |layer: usize| (layer + 1).is_multiple_of(6) || layer + 1 == layers;
    let kind = |layer| if full(layer) { "full_attention" } else { "sliding_attention" };
    json!({
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "num_global_key_value_heads": full_kv_heads,
        "global_head_dim": full_head_dim,
        "attention_k_eq_v": true,
        "attention_bias": false,
        "layer_types": (0..layers).map(kind).collect::<Vec<_>>(),
        "sliding_window": window,
        "intermediate_size": inner,
        "enable_moe_block": true,
        "num_experts": experts,
        "top_k_experts": top_k,
        "moe_intermediate_size": width,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": 30.0,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262_144,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": 1_000_000.0,
                "partial_rotary_factor": 0.25,
            },
            "sliding_attention": { "rope_type": "default", "rope_theta": 10_000.0 },
        },
        "tie_word_embeddings": true,
    })
}

/// Gemma-4 26B-A4B.
pub(super) fn a4b() -> Value {
    gemma([2816, 30, 16], [[8, 256], [2, 512]], 1024, [128, 8, 704], 2112, 262_144)
}

/// A Gemma-4 of six layers that run anywhere.
pub(super) fn tiny() -> Value {
    gemma([256, 6, 4], [[2, 64], [1, 128]], 32, [16, 4, 128], 192, 512)
}

/// What a layer has besides its blocks, but for the norms that other families have as well.
pub(super) fn norms(model: &ModelConfig, layer: usize, plain: Encoding, add: &mut Add<'_>) {
    let mut of_layer =
        |part: &str, count: usize| add(format!("layers.{layer}.{part}"), &[count], plain);
    for (side, number) in [("pre", ""), ("pre", "_2"), ("post", ""), ("post", "_1"), ("post", "_2")]
    {
        of_layer(&format!("{side}_feedforward_layernorm{number}"), model.hidden);
    }
    of_layer("layer_scalar", 1);
    of_layer("mlp.gate.norm", model.hidden);
    of_layer("mlp.gate.expert_scale", model.moe.experts);
}

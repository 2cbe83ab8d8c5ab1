//! Configurations of models with plain attention and a router of sigmoids, in the sizes of their releases.

use serde_json::{Value, json};

/// The configuration of a GLM-4.5 and its successors: `[hidden, layers, heads, kv heads, head size]`, `[experts, top-k,
/// width]`, `[dense layers, their width]`, vocabulary, what weights of experts are multiplied by, and whether heads are
/// normed.
fn glm(
    [hidden, layers, heads, kv_heads, head_dim]: [usize; 5],
    [experts, top_k, width]: [usize; 3],
    [dense, dense_width]: [usize; 2],
    vocabulary: usize,
    (scale, head_norms): (f64, bool),
) -> Value {
    json!({
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "partial_rotary_factor": 0.5,
        "attention_bias": true,
        "use_qk_norm": head_norms,
        "n_routed_experts": experts,
        "num_experts_per_tok": top_k,
        "moe_intermediate_size": width,
        "n_shared_experts": 1,
        "first_k_dense_replace": dense,
        "intermediate_size": dense_width,
        "n_group": 1,
        "topk_group": 1,
        "scoring_func": "sigmoid",
        "norm_topk_prob": true,
        "routed_scaling_factor": scale,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131_072,
        "rope_theta": 1_000_000,
        "tie_word_embeddings": false,
    })
}

/// GLM-4.5-Air.
pub(super) fn air() -> Value {
    glm([4096, 46, 96, 8, 128], [128, 8, 1408], [1, 10_944], 151_552, (1.0, false))
}

/// GLM-4.6 and GLM-4.7, whose sizes are those of GLM-4.5.
pub(super) fn large() -> Value {
    let mut config = glm([5120, 92, 96, 8, 128], [160, 8, 1536], [3, 12_288], 151_552, (2.5, true));
    config["max_position_embeddings"] = 202_752.into();
    config
}

/// A GLM of four layers that run anywhere.
pub(super) fn tiny_glm() -> Value {
    glm([256, 4, 4, 2, 64], [16, 4, 128], [1, 256], 512, (2.5, true))
}

/// The configuration of a MiniMax-M2: `[hidden, layers, heads, kv heads, head size]`, `[experts, top-k, width]`,
/// vocabulary.
fn minimax(
    [hidden, layers, heads, kv_heads, head_dim]: [usize; 5],
    [experts, top_k, width]: [usize; 3],
    vocabulary: usize,
) -> Value {
    json!({
        "architectures": ["MiniMaxM2ForCausalLM"],
        "model_type": "minimax_m2",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rotary_dim": head_dim / 2,
        "num_local_experts": experts,
        "num_experts_per_tok": top_k,
        "scoring_func": "sigmoid",
        "shared_intermediate_size": 0,
        "use_qk_norm": true,
        "use_routing_bias": true,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 196_608,
        "rope_theta": 5_000_000,
        "tie_word_embeddings": false,
    })
}

/// MiniMax-M2.
pub(super) fn m2() -> Value {
    minimax([3072, 62, 48, 8, 128], [256, 8, 1536], 200_064)
}

/// A MiniMax-M2 of four layers that run anywhere.
pub(super) fn tiny_minimax() -> Value {
    minimax([256, 4, 4, 2, 64], [16, 4, 128], 512)
}

//! Configurations of models that are known parts under their own keys, in the sizes of their releases.

use serde_json::{Value, json};

/// The keys that such models share: `[hidden, layers, heads, kv heads]`, vocabulary and longest context.
fn common(
    model_type: &str,
    class: &str,
    [hidden, layers, heads, kv_heads]: [usize; 4],
    [vocabulary, positions]: [usize; 2],
    own: Value,
) -> Value {
    let mut all = json!({
        "architectures": [class],
        "model_type": model_type,
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_act": "silu",
        "max_position_embeddings": positions,
        "tie_word_embeddings": false,
    });
    if let (Some(all), Value::Object(own)) = (all.as_object_mut(), own) {
        all.extend(own);
    }
    all
}

/// OLMoE-1B-7B.
pub(super) fn olmoe() -> Value {
    let own = json!({
        "attention_bias": false,
        "clip_qkv": null,
        "intermediate_size": 1024,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": false,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000,
    });
    common("olmoe", "OlmoeForCausalLM", [2048, 16, 16, 16], [50_304, 4096], own)
}

/// dots.llm1.
pub(super) fn dots1() -> Value {
    let own = json!({
        "attention_bias": false,
        "intermediate_size": 10_944,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 128,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "scoring_func": "noaux_tc",
        "norm_topk_prob": true,
        "routed_scaling_factor": 2.5,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000_000,
        "max_window_layers": 62,
        "sliding_window": null,
    });
    common("dots1", "Dots1ForCausalLM", [4096, 62, 32, 32], [152_064, 32_768], own)
}

/// Hy3.
pub(super) fn hy3() -> Value {
    let own = json!({
        "attention_bias": false,
        "head_dim": 128,
        "intermediate_size": 13_312,
        "moe_intermediate_size": 1536,
        "num_experts": 192,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "route_norm": true,
        "router_scaling_factor": 2.826,
        "rms_norm_eps": 1e-5,
        "rope_theta": 11_158_840,
    });
    common("hy_v3", "HYV3ForCausalLM", [4096, 80, 64, 8], [120_832, 131_072], own)
}

/// An ERNIE 4.5: `[hidden, layers, heads, kv heads]`, `[top-k, width, shared experts]`, `[dense layers, their width]`,
/// and whether the head is the embedding. All have 64 experts.
fn ernie(
    sizes: [usize; 4],
    [top_k, width, shared]: [usize; 3],
    [dense, dense_width]: [usize; 2],
    tied: bool,
) -> Value {
    let own = json!({
        "intermediate_size": dense_width,
        "moe_intermediate_size": width,
        "moe_num_experts": 64,
        "moe_k": top_k,
        "moe_num_shared_experts": shared,
        "moe_layer_start_index": dense,
        "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000,
        "tie_word_embeddings": tied,
        "use_bias": false,
    });
    common("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", sizes, [103_424, 131_072], own)
}

/// ERNIE-4.5-21B-A3B.
pub(super) fn ernie_small() -> Value {
    ernie([2560, 28, 20, 4], [6, 1536, 2], [1, 12_288], true)
}

/// ERNIE-4.5-300B-A47B.
pub(super) fn ernie_large() -> Value {
    ernie([8192, 54, 64, 8], [8, 3584, 0], [3, 28_672], false)
}

/// K-EXAONE-236B-A23B.
pub(super) fn exaone() -> Value {
    let kind = |layer: usize| match (layer + 1).is_multiple_of(4) {
        true => "full_attention",
        false => "sliding_attention",
    };
    let own = json!({
        "head_dim": 128,
        "intermediate_size": 18_432,
        "moe_intermediate_size": 2048,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "scoring_func": "sigmoid",
        "norm_topk_prob": true,
        "routed_scaling_factor": 2.5,
        "layer_types": (0..48).map(kind).collect::<Vec<_>>(),
        "sliding_window": 128,
        "rms_norm_eps": 1e-5,
        "rope_parameters": { "rope_type": "default", "rope_theta": 1_000_000 },
    });
    common("exaone_moe", "ExaoneMoeForCausalLM", [6144, 48, 64, 8], [153_600, 262_144], own)
}

/// Solar-Open-100B.
pub(super) fn solar_open() -> Value {
    let own = json!({
        "attention_bias": false,
        "head_dim": 128,
        "moe_intermediate_size": 1280,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 1,
        "topk_group": 1,
        "scoring_func": "sigmoid",
        "norm_topk_prob": true,
        "routed_scaling_factor": 1.0,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": 65_536,
        },
    });
    common("solar_open", "SolarOpenForCausalLM", [4096, 48, 64, 8], [196_608, 131_072], own)
}

/// A Qwen3-MoE as the text of a Qwen3-VL-MoE of the same sizes.
pub(super) fn qwen3_vl(mut text: Value) -> Value {
    text["architectures"] = json!(["Qwen3VLMoeForConditionalGeneration"]);
    text["model_type"] = "qwen3_vl_moe_text".into();
    text["rope_theta"] = 5_000_000.into();
    text["max_position_embeddings"] = 262_144.into();
    text
}

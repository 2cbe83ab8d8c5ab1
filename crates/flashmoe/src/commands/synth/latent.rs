//! Configurations of models with latent attention, in the sizes of their releases.

use serde_json::{Value, json};

/// The configuration of a model of these parts: `[hidden, layers, heads, vocabulary]`, `[query rank, rank, plain,
/// rotated, value]` of the attention, `[experts, top-k, width]`, `[dense layers, their width]`.
fn published(
    model_type: &str,
    [hidden, layers, heads, vocabulary]: [usize; 4],
    [query_rank, rank, plain, rotated, value]: [usize; 5],
    [experts, top_k, width]: [usize; 3],
    [dense, dense_width]: [usize; 2],
) -> Value {
    json!({
        "model_type": model_type,
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "q_lora_rank": query_rank,
        "kv_lora_rank": rank,
        "qk_nope_head_dim": plain,
        "qk_rope_head_dim": rotated,
        "v_head_dim": value,
        "n_routed_experts": experts,
        "num_experts_per_tok": top_k,
        "moe_intermediate_size": width,
        "n_shared_experts": 1,
        "first_k_dense_replace": dense,
        "intermediate_size": dense_width,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": true,
        "attention_bias": false,
        "hidden_act": "silu",
        "tie_word_embeddings": false,
    })
}

/// Adds what differs between releases.
fn with(mut config: Value, others: Value) -> Value {
    if let (Some(config), Value::Object(others)) = (config.as_object_mut(), others) {
        config.extend(others);
    }
    config
}

/// DeepSeek-V3 and R1.
pub(super) fn deepseek_v3() -> Value {
    let sizes = [7168, 61, 128, 129_280];
    let (heads, experts) = ([1536, 512, 128, 64, 128], [256, 8, 2048]);
    let config = published("deepseek_v3", sizes, heads, experts, [3, 18_432]);
    with(
        config,
        json!({
            "architectures": ["DeepseekV3ForCausalLM"],
            "n_group": 8,
            "topk_group": 4,
            "routed_scaling_factor": 2.5,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 163_840,
            "rope_theta": 10_000,
            "rope_scaling": {
                "type": "yarn",
                "factor": 40,
                "original_max_position_embeddings": 4096,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        }),
    )
}

/// Kimi-K2.
pub(super) fn kimi_k2() -> Value {
    let sizes = [7168, 61, 64, 163_840];
    let (heads, experts) = ([1536, 512, 128, 64, 128], [384, 8, 2048]);
    let config = published("kimi_k2", sizes, heads, experts, [1, 18_432]);
    with(
        config,
        json!({
            "architectures": ["DeepseekV3ForCausalLM"],
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 2.827,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131_072,
            "rope_theta": 50_000,
            "rope_scaling": {
                "type": "yarn",
                "factor": 32,
                "original_max_position_embeddings": 4096,
                "beta_fast": 1,
                "beta_slow": 1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        }),
    )
}

/// GLM-4.7-Flash.
pub(super) fn glm_flash() -> Value {
    let sizes = [2048, 47, 20, 154_880];
    let (heads, experts) = ([768, 512, 192, 64, 256], [64, 4, 1536]);
    let config = published("glm4_moe_lite", sizes, heads, experts, [1, 10_240]);
    with(
        config,
        json!({
            "architectures": ["Glm4MoeLiteForCausalLM"],
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 1.8,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 202_752,
            "rope_theta": 1_000_000,
        }),
    )
}

/// DeepSeek-V3.2: DeepSeek-V3 with an indexer in each layer.
pub(super) fn deepseek_v32() -> Value {
    let others = json!({
        "architectures": ["DeepseekV32ForCausalLM"],
        "model_type": "deepseek_v32",
        "index_n_heads": 64,
        "index_head_dim": 128,
        "index_topk": 2048,
    });
    with(deepseek_v3(), others)
}

/// GLM-5, with an indexer in each layer.
pub(super) fn glm_5() -> Value {
    let sizes = [6144, 78, 64, 154_880];
    let (heads, experts) = ([2048, 512, 192, 64, 256], [256, 8, 2048]);
    let config = published("glm_moe_dsa", sizes, heads, experts, [3, 12_288]);
    let others = json!({
        "architectures": ["GlmMoeDsaForCausalLM"],
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 2.5,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 202_752,
        "rope_parameters": { "rope_theta": 1_000_000, "rope_type": "default" },
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_topk": 2048,
        "indexer_rope_interleave": true,
    });
    with(config, others)
}

/// GLM-5.2, with an indexer in the first three layers and then in one of four.
pub(super) fn glm_52() -> Value {
    let others = json!({
        "index_topk_freq": 4,
        "index_skip_topk_offset": 3,
        "max_position_embeddings": 1_048_576,
    });
    with(glm_5(), others)
}

/// GLM-5 of four layers that run anywhere; the last two share a choice.
pub(super) fn tiny_rows() -> Value {
    let others = json!({
        "model_type": "glm_moe_dsa",
        "n_group": 1,
        "topk_group": 1,
        "index_n_heads": 4,
        "index_head_dim": 64,
        "index_topk": 16,
        "index_topk_freq": 3,
    });
    with(tiny(), others)
}

/// DeepSeek-V3 of four layers that run anywhere.
pub(super) fn tiny() -> Value {
    let (sizes, heads) = ([256, 4, 4, 512], [64, 64, 32, 32, 64]);
    let config = published("deepseek_v3", sizes, heads, [16, 4, 128], [1, 256]);
    let others = json!({
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
        "rope_theta": 10_000,
        "max_position_embeddings": 4096,
    });
    with(config, others)
}

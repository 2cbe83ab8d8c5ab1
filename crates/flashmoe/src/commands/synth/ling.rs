//! Configurations of Ling-3, in the sizes of its release and tiny.

use serde_json::{Value, json};

/// `[hidden, layers, heads, vocabulary]`, `[rank, plain, rotated, value]` of latent attention, head size of the delta
/// rule, `[experts, top-k, width]` in `[groups, kept]`, `[layers, width]` of dense networks, layers of a group.
fn published(
    [hidden, layers, heads, vocabulary]: [usize; 4],
    [rank, plain, rotated, value]: [usize; 4],
    head_dim: usize,
    ([experts, top_k, width], [groups, kept]): ([usize; 3], [usize; 2]),
    [dense, dense_width]: [usize; 2],
    group: usize,
) -> Value {
    json!({
        "architectures": ["BailingHybridForCausalLM"],
        "model_type": "bailing_hybrid",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": head_dim,
        "kv_lora_rank": rank,
        "qk_nope_head_dim": plain,
        "qk_rope_head_dim": rotated,
        "v_head_dim": value,
        "layer_group_size": group,
        "short_conv_kernel_size": 4,
        "kda_safe_gate": true,
        "kda_lower_bound": -5.0,
        "num_experts": experts,
        "num_experts_per_token": top_k,
        "num_shared_experts": 1,
        "moe_intermediate_size": width,
        "intermediate_size": dense_width,
        "first_k_dense_replace": dense,
        "moe_renormalize": true,
        "num_expert_group": groups,
        "topk_group": kept,
        "routed_scaling_factor": 2.5,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 6_000_000,
        "model_max_length": 262_144,
        "tie_word_embeddings": false,
    })
}

/// Ling-3.0-Flash.
pub(super) fn released() -> Value {
    let (sizes, latent) = ([2560, 42, 32, 157_184], [512, 128, 64, 128]);
    published(sizes, latent, 128, ([512, 8, 768], [8, 4]), [2, 6144], 6)
}

/// Four layers that run anywhere.
pub(super) fn tiny() -> Value {
    let (sizes, latent) = ([256, 4, 4, 512], [64, 32, 32, 64]);
    published(sizes, latent, 64, ([16, 4, 128], [4, 2]), [1, 256], 2)
}

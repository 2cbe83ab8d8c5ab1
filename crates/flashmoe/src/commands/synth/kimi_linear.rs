//! Configurations of Kimi-Linear, in the sizes of its release and tiny.

use serde_json::{Value, json};

/// The layers of latent attention among `layers`, counted from one: every fourth, and the last.
fn attends(layers: usize) -> Vec<usize> {
    (1..=layers).filter(|layer| layer.is_multiple_of(4) || *layer == layers).collect()
}

/// What the delta rule has in so many layers: `[heads, head size]`.
fn delta(layers: usize, [heads, dim]: [usize; 2]) -> Value {
    let attends = attends(layers);
    let others: Vec<usize> = (1..=layers).filter(|layer| !attends.contains(layer)).collect();
    json!({
        "full_attn_layers": attends,
        "kda_layers": others,
        "num_heads": heads,
        "head_dim": dim,
        "short_conv_kernel_size": 4,
    })
}

/// Sets the kinds of layers for another number of them.
pub(super) fn set_layers(config: &mut Value, layers: usize) {
    let size = |key: &str| config["linear_attn_config"][key].as_u64().unwrap_or(0) as usize;
    let heads = ["num_heads", "head_dim"].map(size);
    config["linear_attn_config"] = delta(layers, heads);
}

/// `[hidden, layers, heads, vocabulary]`, `[rank, plain, shared, value]` of latent attention, `[heads, head size]` of
/// the delta rule, `[experts, top-k, width]`, width of the dense layer.
fn published(
    [hidden, layers, heads, vocabulary]: [usize; 4],
    [rank, plain, shared, value]: [usize; 4],
    linear: [usize; 2],
    [experts, top_k, width]: [usize; 3],
    dense_width: usize,
) -> Value {
    json!({
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "q_lora_rank": null,
        "kv_lora_rank": rank,
        "qk_nope_head_dim": plain,
        "qk_rope_head_dim": shared,
        "v_head_dim": value,
        "mla_use_nope": true,
        "linear_attn_config": delta(layers, linear),
        "num_experts": experts,
        "num_experts_per_token": top_k,
        "num_shared_experts": 1,
        "moe_intermediate_size": width,
        "intermediate_size": dense_width,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "moe_renormalize": true,
        "moe_router_activation_func": "sigmoid",
        "num_expert_group": 1,
        "topk_group": 1,
        "use_grouped_topk": true,
        "routed_scaling_factor": 2.446,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000,
        "rope_scaling": null,
        "model_max_length": 1_048_576,
        "tie_word_embeddings": false,
    })
}

/// Kimi-Linear-48B-A3B.
pub(super) fn released() -> Value {
    let (sizes, latent) = ([2304, 27, 32, 163_840], [512, 128, 64, 128]);
    published(sizes, latent, [32, 128], [256, 8, 1024], 9216)
}

/// Five layers that run anywhere.
pub(super) fn tiny() -> Value {
    published([256, 5, 4, 512], [64, 32, 32, 64], [4, 64], [16, 4, 128], 256)
}

#[cfg(test)]
mod tests {
    /// As config.json of the release has them.
    #[test]
    fn layers_of_attention_are_those_of_the_release() {
        assert_eq!(super::attends(27), [4, 8, 12, 16, 20, 24, 27]);
    }
}

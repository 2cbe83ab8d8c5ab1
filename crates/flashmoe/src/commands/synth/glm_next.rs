//! Configurations of GLM-5.3-Flash, in the sizes of its release and tiny.

use serde_json::{Value, json};

/// `[hidden, layers, heads, vocabulary]`, `[query rank, rank, plain, value]` of latent attention, `[heads, head size]`
/// of the delta rule, `[heads, head size, rows]` of the indexer, `[experts, top-k, width]`, `[layers, width]` of dense
/// networks. Every fourth layer attends.
fn published(
    [hidden, layers, heads, vocabulary]: [usize; 4],
    [query_rank, rank, plain, value]: [usize; 4],
    [linear_heads, linear_dim]: [usize; 2],
    [index_heads, index_dim, rows]: [usize; 3],
    [experts, top_k, width]: [usize; 3],
    [dense, dense_width]: [usize; 2],
) -> Value {
    let kind = |layer: usize| match layer % 4 {
        3 => "indexed_attention",
        _ => "linear_attention",
    };
    json!({
        "architectures": ["Glm5NextForConditionalGeneration"],
        "model_type": "glm5_next",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "q_lora_rank": query_rank,
        "kv_lora_rank": rank,
        "qk_nope_head_dim": plain,
        "qk_rope_head_dim": 0,
        "v_head_dim": value,
        "layer_types": (0..layers).map(kind).collect::<Vec<_>>(),
        "linear_num_heads": linear_heads,
        "linear_head_dim": linear_dim,
        "linear_conv_kernel_dim": 4,
        "linear_lower_bound": -5.0,
        "index_n_heads": index_heads,
        "index_head_dim": index_dim,
        "index_topk": rows,
        "index_kpool": 16,
        "index_kpool_always_select_tail": true,
        "n_routed_experts": experts,
        "num_experts_per_tok": top_k,
        "n_shared_experts": 1,
        "moe_intermediate_size": width,
        "intermediate_size": dense_width,
        "first_k_dense_replace": dense,
        "norm_topk_prob": true,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 2.5,
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 1_048_576,
        "tie_word_embeddings": false,
    })
}

/// GLM-5.3-Flash, 321B-A18B.
pub(super) fn released() -> Value {
    let (sizes, latent) = ([4096, 45, 64, 154_880], [1536, 512, 256, 256]);
    published(sizes, latent, [64, 128], [32, 128, 2048], [288, 8, 2048], [3, 12_288])
}

/// Five layers that run anywhere.
pub(super) fn tiny() -> Value {
    let (sizes, latent) = ([256, 5, 4, 512], [64, 64, 32, 64]);
    published(sizes, latent, [4, 64], [4, 64, 32], [16, 4, 128], [1, 256])
}

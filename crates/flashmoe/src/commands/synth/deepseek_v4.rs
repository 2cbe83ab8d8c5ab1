//! Shapes of DeepSeek-V4, and the tensors of its layers.

use engine::model::compressed_attention::CompressedConfig;
use engine::model::config::{Mixer, ModelConfig};
use engine::model::hyper_connections::HyperConfig;
use kernels::format::{Encoding, FloatType};
use serde_json::{Value, json};

use super::tensors::{Add, Stored};

/// The released V4-Flash. It has one more ratio than layers, that of a draft layer.
pub(super) fn flash() -> Value {
    let ratios = (0..43).map(|layer| match layer {
        0 | 1 => 0,
        layer if layer % 2 == 0 => 4,
        _ => 128,
    });
    let ratios: Vec<u32> = ratios.chain([0]).collect();
    shape(&ratios, [4096, 64, 512, 64, 1024, 1024, 8], [64, 128, 512], [256, 6, 2048], [129_280, 3])
}

/// One with every kind of layer; its rows of 8 tokens stand for those of 128.
pub(super) fn tiny() -> Value {
    shape(&[0, 4, 8, 4, 0], [128, 4, 64, 16, 64, 32, 2], [16, 32, 8], [16, 4, 64], [512, 1])
}

/// `[hidden, heads, head size, rotated, rank of queries, rank of outputs, groups]`, `[heads, size, rows]` of the
/// indexer, `[experts, top-k, width]`, `[vocabulary, layers with experts by token]`.
fn shape(
    ratios: &[u32],
    [hidden, heads, head_dim, rotated, query_rank, output_rank, groups]: [usize; 7],
    [index_heads, index_dim, index_top]: [usize; 3],
    [experts, top_k, width]: [usize; 3],
    [vocabulary, hashed]: [usize; 2],
) -> Value {
    json!({
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": ratios.len() - 1,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "head_dim": head_dim,
        "q_lora_rank": query_rank,
        "o_lora_rank": output_rank,
        "o_groups": groups,
        "qk_rope_head_dim": rotated,
        "sliding_window": 128,
        "index_n_heads": index_heads,
        "index_head_dim": index_dim,
        "index_topk": index_top,
        "n_routed_experts": experts,
        "num_experts_per_tok": top_k,
        "n_shared_experts": 1,
        "moe_intermediate_size": width,
        "scoring_func": "sqrtsoftplus",
        "norm_topk_prob": true,
        "routed_scaling_factor": 1.5,
        "swiglu_limit": 10.0,
        "hidden_act": "silu",
        "num_hash_layers": hashed,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "rms_norm_eps": 1e-6,
        "attention_bias": false,
        "rope_theta": 10_000,
        "compress_rope_theta": 160_000,
        "compress_ratios": ratios,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 65_536,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        },
        "max_position_embeddings": 1_048_576,
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": false,
    })
}

/// What streams are mixed by stays as precise as it is published.
const EXACT: Encoding = Encoding::Float(FloatType::F32);

/// Tensors of one place where streams are read, for so many outputs and scales.
pub(super) fn site(
    hyper: &HyperConfig,
    hidden: usize,
    prefix: &str,
    [outputs, scales]: [usize; 2],
    add: &mut Add<'_>,
) {
    add(format!("{prefix}.fn"), &[outputs, hyper.streams * hidden], EXACT);
    add(format!("{prefix}.base"), &[outputs], EXACT);
    add(format!("{prefix}.gain"), &[scales], EXACT);
}

/// Tensors of a layer's attention.
pub(super) fn attention(
    model: &ModelConfig,
    shape: &CompressedConfig,
    layer: usize,
    Stored { matrices, plain, .. }: Stored,
    add: &mut Add<'_>,
) {
    let (hidden, heads) = (model.hidden, model.attention.query_heads);
    let (dim, low) = (model.attention.head_dim, shape.output_groups * shape.output_rank);
    let name = |part: &str| format!("layers.{layer}.self_attn.{part}");
    add(name("q_a_proj"), &[shape.query_rank, hidden], matrices);
    add(name("q_a_norm"), &[shape.query_rank], plain);
    add(name("q_b_proj"), &[heads * dim, shape.query_rank], matrices);
    add(name("kv_proj"), &[dim, hidden], matrices);
    add(name("kv_norm"), &[dim], plain);
    add(name("sinks"), &[heads], EXACT);
    add(name("o_a_proj"), &[low, heads / shape.output_groups * dim], matrices);
    add(name("o_b_proj"), &[hidden, low], matrices);
    let Mixer::Compressed(Some(compression)) = model.layers[layer].mixer else { return };
    let mut compressor = |prefix: &str, dim: usize| {
        let width = compression.width(dim);
        add(name(&format!("{prefix}.kv_proj")), &[width, hidden], matrices);
        add(name(&format!("{prefix}.gate_proj")), &[width, hidden], matrices);
        add(name(&format!("{prefix}.position_bias")), &[compression.ratio, width], EXACT);
        add(name(&format!("{prefix}.kv_norm")), &[dim], plain);
    };
    compressor("compressor", dim);
    if compression.overlap {
        let index = &shape.index;
        compressor("indexer", index.dim);
        add(name("indexer.q_b_proj"), &[index.heads * index.dim, shape.query_rank], matrices);
        add(name("indexer.weights_proj"), &[index.heads, hidden], matrices);
    }
}

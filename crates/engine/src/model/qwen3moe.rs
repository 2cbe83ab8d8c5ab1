//! Qwen3-MoE (30B-A3B, 235B-A22B): attention without a gate in every layer, no shared expert, plain norms
//! (reference: transformers `modeling_qwen3_moe.py`).

use serde_json::Value;

use super::config::{AttentionConfig, Family, Mixer, ModelConfig, MoeConfig};
use super::keys::{Keys, problem};
use crate::EngineError;

/// Reads the shapes from config.json. Variants that no released checkpoint of the family uses (dense
/// layers in between, attention biases, sliding windows) are refused by key.
pub(super) fn config(text: &Keys<'_>, root: &Value) -> Result<ModelConfig, EngineError> {
    text.require_silu()?;
    let layers = text.size("num_hidden_layers", 1..=1024)?;
    let hidden = text.size("hidden_size", 1..=65536)?;
    let query_heads = text.size("num_attention_heads", 1..=1024)?;
    let head_dim = text.size_or("head_dim", hidden / query_heads, 2..=4096)?;
    if text.size_or("decoder_sparse_step", 1, 1..=1024)? != 1
        || text.0.get("mlp_only_layers").and_then(Value::as_array).is_some_and(|l| !l.is_empty())
    {
        let found = "dense layers between expert layers are not supported";
        return Err(problem("decoder_sparse_step / mlp_only_layers", found));
    }
    if text.flag_or("attention_bias", false)? {
        return Err(problem("attention_bias", "attention with biases is not supported"));
    }
    if text.flag_or("use_sliding_window", false)? {
        return Err(problem("use_sliding_window", "sliding windows are not supported"));
    }
    Ok(ModelConfig {
        family: Family::Qwen3Moe,
        hidden,
        vocabulary: text.size("vocab_size", 1..=1 << 24)?,
        layers: vec![Mixer::Attention; layers],
        rms_epsilon: text.float_or("rms_norm_eps", 1e-6)? as f32,
        attention: AttentionConfig {
            query_heads,
            key_value_heads: text.size("num_key_value_heads", 1..=1024)?,
            head_dim,
            rotary_dim: head_dim,
            rope_theta: text.rope_theta(1e4)?,
            output_gate: false,
        },
        delta: None,
        moe: MoeConfig {
            experts: text.size("num_experts", 1..=65535)?,
            top_k: text.size("num_experts_per_tok", 1..=256)?,
            intermediate: text.size("moe_intermediate_size", 1..=1 << 20)?,
            shared_intermediate: None,
            normalise: text.flag_or("norm_topk_prob", false)?,
        },
        max_positions: text.size_or("max_position_embeddings", 32_768, 1..=1 << 30)?,
        tied_head: text.tied(root)?,
        end_tokens: text.end_tokens(root)?,
    })
}

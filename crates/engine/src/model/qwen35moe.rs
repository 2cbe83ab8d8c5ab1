//! Qwen3.5-MoE and Qwen3.6-MoE: GatedDeltaNet and gated attention (usually 3 to 1), an expert layer with
//! a shared expert everywhere, zero-centred norms (reference: transformers `modeling_qwen3_5_moe.py`).

use serde_json::Value;

use super::config::{AttentionConfig, DeltaConfig, Family, Mixer, ModelConfig, MoeConfig};
use super::keys::{Keys, problem};
use crate::EngineError;

/// Reads the shapes from config.json.
///
/// `norm_topk_prob` is absent from these configurations: the reference divides unconditionally.
pub(super) fn config(text: &Keys<'_>, root: &Value) -> Result<ModelConfig, EngineError> {
    text.require_silu()?;
    let layers = text.size("num_hidden_layers", 1..=1024)?;
    let head_dim = text.size_or("head_dim", 256, 2..=4096)?;
    let rotary = text.rotary_factor(0.25)?;
    let kinds = match text.0.get("layer_types") {
        Some(Value::Array(kinds)) => kinds.iter().map(mixer).collect::<Result<Vec<_>, _>>()?,
        Some(Value::Null) | None => {
            let interval = text.size_or("full_attention_interval", 4, 1..=1024)?;
            let attention = |layer: usize| (layer + 1).is_multiple_of(interval);
            (0..layers)
                .map(|layer| if attention(layer) { Mixer::Attention } else { Mixer::DeltaNet })
                .collect()
        }
        Some(_) => return Err(problem("layer_types", "is not a list")),
    };
    if kinds.len() != layers {
        let found = format!("has {} entries for {layers} layers", kinds.len());
        return Err(problem("layer_types", found));
    }
    Ok(ModelConfig {
        family: Family::Qwen35Moe,
        hidden: text.size("hidden_size", 1..=65536)?,
        vocabulary: text.size("vocab_size", 1..=1 << 24)?,
        layers: kinds,
        rms_epsilon: text.float_or("rms_norm_eps", 1e-6)? as f32,
        attention: AttentionConfig {
            query_heads: text.size("num_attention_heads", 1..=1024)?,
            key_value_heads: text.size("num_key_value_heads", 1..=1024)?,
            head_dim,
            rotary_dim: (head_dim as f64 * rotary) as usize,
            rope_theta: text.rope_theta(1e7)?,
            output_gate: text.flag_or("attn_output_gate", true)?,
        },
        delta: Some(DeltaConfig {
            key_heads: text.size("linear_num_key_heads", 1..=1024)?,
            value_heads: text.size("linear_num_value_heads", 1..=4096)?,
            key_dim: text.size("linear_key_head_dim", 1..=4096)?,
            value_dim: text.size("linear_value_head_dim", 1..=4096)?,
            convolution_kernel: text.size_or("linear_conv_kernel_dim", 4, 2..=16)?,
        }),
        moe: MoeConfig {
            experts: text.size("num_experts", 1..=65535)?,
            top_k: text.size("num_experts_per_tok", 1..=256)?,
            intermediate: text.size("moe_intermediate_size", 1..=1 << 20)?,
            shared_intermediate: Some(text.size("shared_expert_intermediate_size", 1..=1 << 20)?),
            normalise: true,
        },
        max_positions: text.size_or("max_position_embeddings", 262_144, 1..=1 << 30)?,
        tied_head: text.tied(root)?,
        end_tokens: text.end_tokens(root)?,
    })
}

fn mixer(kind: &Value) -> Result<Mixer, EngineError> {
    match kind.as_str() {
        Some("full_attention") => Ok(Mixer::Attention),
        Some("linear_attention") => Ok(Mixer::DeltaNet),
        _ => Err(problem("layer_types", format!("{kind} is not a supported layer type"))),
    }
}

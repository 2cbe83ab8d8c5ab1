//! GLM-4.5 to GLM-4.7: attention that rotates half of each head, in the large ones with norms of heads; the router and
//! the dense first layers of DeepSeek-V3 (reference: transformers `modeling_glm4_moe.py`).

use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::config::{AttentionConfig, Mixer, ModelConfig};
use super::deepseek_v3::{self, Defaults};
use super::rope::Rope;
use super::router::Groups;

/// Reads the shapes.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    let defaults = Defaults {
        dense_layers: 1,
        rms_epsilon: 1e-5,
        groups: Groups { count: 1, kept: 1 },
        scale: 1.0,
        max_positions: 131_072,
    };
    let hidden = from.required(&keys::HIDDEN_SIZE)?;
    let query_heads = from.required(&keys::NUM_ATTENTION_HEADS)?;
    let head_dim = from.get(&keys::HEAD_DIM)?.unwrap_or(hidden / query_heads);
    let rotary = from.rotary_factor()?.unwrap_or(0.5);
    Ok(ModelConfig {
        family: from.supported_family()?,
        hidden,
        vocabulary: from.required(&keys::VOCAB_SIZE)?,
        layers: deepseek_v3::layers(from, Mixer::Attention, defaults.dense_layers)?,
        rms_epsilon: from
            .get(&keys::RMS_NORM_EPS)?
            .map_or(defaults.rms_epsilon, |epsilon| epsilon as f32),
        attention: AttentionConfig {
            query_heads,
            key_value_heads: from.required(&keys::NUM_KEY_VALUE_HEADS)?,
            head_dim,
            rope: Rope::read(from, (head_dim as f64 * rotary) as usize, 1e4)?,
            output_gate: false,
            head_norms: from.get(&keys::USE_QK_NORM)?.unwrap_or(false),
            whole_norms: false,
            biases: from.get(&keys::ATTENTION_BIAS)?.unwrap_or(false),
            output_bias: false,
            sinks: false,
        },
        latent: None,
        delta: None,
        hyper: None,
        compressed: None,
        moe: deepseek_v3::experts(from, &defaults)?,
        max_positions: from.get(&keys::MAX_POSITION_EMBEDDINGS)?.unwrap_or(defaults.max_positions),
        tied_head: from.get(&keys::TIE_WORD_EMBEDDINGS)?.unwrap_or(false),
    })
}

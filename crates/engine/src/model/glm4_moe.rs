//! GLM-4.5 to GLM-4.7: attention that rotates half of each head, in the large ones with norms of heads; the router and
//! the dense first layers of DeepSeek-V3 (reference: transformers `modeling_glm4_moe.py`).

use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::config::{AttentionConfig, Mixer, ModelConfig, StreamConfig, Values};
use super::deepseek_v3;
use super::rope::Rope;

/// Reads the shapes.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    let hidden = from.required(&keys::HIDDEN_SIZE)?;
    let query_heads = from.required(&keys::NUM_ATTENTION_HEADS)?;
    let head_dim = from.get(&keys::HEAD_DIM)?.unwrap_or(hidden / query_heads);
    let rotary = from.rotary_factor()?;
    Ok(ModelConfig {
        family: from.supported_family()?,
        hidden,
        vocabulary: from.required(&keys::VOCAB_SIZE)?,
        layers: deepseek_v3::layers(from, Mixer::Attention)?,
        rms_epsilon: from.required(&keys::RMS_NORM_EPS)? as f32,
        attention: AttentionConfig {
            query_heads,
            key_value_heads: from.required(&keys::NUM_KEY_VALUE_HEADS)?,
            head_dim,
            rope: Rope::read(from, (head_dim as f64 * rotary) as usize)?,
            output_gate: false,
            head_norms: from.required(&keys::USE_QK_NORM)?,
            whole_norms: false,
            biases: from.required(&keys::ATTENTION_BIAS)?,
            output_bias: false,
            sinks: false,
            values: Values::Projected,
            scale: None,
        },
        windowed: None,
        stream: StreamConfig::PLAIN,
        gated: None,
        index: None,
        ngrams: None,
        latent: None,
        delta: None,
        hyper: None,
        compressed: None,
        moe: deepseek_v3::experts(from)?,
        max_positions: from.required(&keys::MAX_POSITION_EMBEDDINGS)?,
        tied_head: from.required(&keys::TIE_WORD_EMBEDDINGS)?,
    })
}

//! dots.llm1: attention with norms of heads, the router and the dense first layers of DeepSeek-V3 (reference:
//! transformers `modeling_dots1.py`).

use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::config::{AttentionConfig, Mixer, ModelConfig};
use super::{deepseek_v3, plain};

/// Reads the shapes. Windows in the last layers, which no release has, are refused by their keys.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    let layers = deepseek_v3::layers(from, Mixer::Attention)?;
    let full = from.required(&keys::MAX_WINDOW_LAYERS)?;
    // Null, which families with windows refuse, is no window.
    let windowed = matches!(from.stated(&keys::SLIDING_WINDOW), Ok(Some(_)));
    if from.get(&keys::LAYER_TYPES)?.is_none() && windowed && layers.len() > full {
        let found = format!("{full} gives the last of {} layers a window", layers.len());
        return Err(from.invalid(&keys::MAX_WINDOW_LAYERS, found));
    }
    plain::full_attention(from)?;
    let attention = AttentionConfig { head_norms: true, ..plain::whole_heads(from)? };
    plain::model(from, layers, attention, deepseek_v3::experts(from)?)
}

//! K-EXAONE (236B-A23B): attention with norms of heads, over a window where heads are rotated and over all positions
//! where they are not; the router and the dense first layers of DeepSeek-V3 (reference: transformers
//! `modeling_exaone_moe.py`).

use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::config::{AttentionConfig, Mixer, ModelConfig};
use super::{deepseek_v3, plain};

/// Reads the shapes.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    let mut layers = deepseek_v3::layers(from, Mixer::Attention)?;
    plain::windows(from, from.required(&keys::LAYER_TYPES)?, &mut layers)?;
    layers.iter_mut().for_each(|layer| layer.rotates = layer.window.is_some());
    let attention = AttentionConfig { head_norms: true, ..plain::whole_heads(from)? };
    plain::model(from, layers, attention, deepseek_v3::experts(from)?)
}

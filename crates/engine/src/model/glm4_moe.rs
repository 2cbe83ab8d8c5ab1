//! GLM-4.5 to GLM-4.7 and Solar-Open: attention with biases or without, in the large GLMs with norms of heads; the
//! router and the dense first layers of DeepSeek-V3. GLM rotates half of each head (reference: transformers
//! `modeling_glm4_moe.py`, `modeling_solar_open.py`).

use store::format::config::keys;
use store::format::{Configuration, Family, FormatError};

use super::config::{AttentionConfig, Mixer, ModelConfig};
use super::{deepseek_v3, plain};

/// Reads the shapes.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    let family = from.supported_family()?;
    let attention = AttentionConfig {
        // Files of Solar-Open may have the key, and the reference does not ask for it.
        head_norms: family == Family::Glm4Moe && from.required(&keys::USE_QK_NORM)?,
        biases: from.required(&keys::ATTENTION_BIAS)?,
        ..plain::attention(from)?
    };
    let layers = deepseek_v3::layers(from, Mixer::Attention)?;
    plain::model(from, layers, attention, deepseek_v3::experts(from)?)
}

//! The keys of `glm4moe` and `minimax-m2`: plain attention whose heads are rotated in part, and a router of sigmoids.
//!
//! The format has no keys for biases and norms of attention: large GLM models have the norms and small ones do not, so
//! the first layer's tensors say it, and every other layer must have the same.

use serde_json::json;

use super::latent::router;
use super::{Entries, Found, rotation};
use crate::format::Family;
use crate::format::config::keys;
use crate::format::error::FormatError;
use crate::format::gguf::metadata::Metadata;

/// Takes the keys of GLM-4.5 to GLM-4.7.
pub(super) fn glm(entries: &mut Entries<'_>, found: Found<'_>) -> Result<(), FormatError> {
    entries.count(&keys::N_SHARED_EXPERTS, "expert_shared_count", true)?;
    entries.count(&keys::INTERMEDIATE_SIZE, "feed_forward_length", false)?;
    router(entries)?;
    entries.json.insert(keys::USE_QK_NORM.name().to_owned(), json!(found.head_norms));
    entries.json.insert(keys::ATTENTION_BIAS.name().to_owned(), json!(found.biases));
    let rotated = entries.key("rope.dimension_count");
    entries.metadata.required(&rotated, Metadata::unsigned)?;
    rotation(entries, Family::Glm4Moe)
}

/// Takes the keys of MiniMax-M2.
pub(super) fn minimax(entries: &mut Entries<'_>) -> Result<(), FormatError> {
    // A file without it does not say what experts are weighed by.
    let gating = entries.key("expert_gating_func");
    entries.metadata.required(&gating, Metadata::unsigned)?;
    let normalised = entries.key("expert_weights_norm");
    if entries.metadata.flag(&normalised)? == Some(false) {
        let remedy = "no model of this architecture that is read has it";
        return Err(entries.metadata.unsupported(&normalised, "false", remedy));
    }
    entries.count(&keys::ROTARY_DIM, "rope.dimension_count", true)
}

//! The few numbers of a configuration that decide where bytes lie.

use super::{Configuration, Family, keys};
use crate::format::Projection;
use crate::format::error::FormatError;

/// Expert records of a model: 2.8 times those of the largest known (92 layers of 512).
const RECORDS_MAX: u64 = 131_072;

/// Sizes from the text model's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dimensions {
    pub(crate) layers: usize,
    /// Layers after those, which predict further tokens and are not used.
    pub(crate) drafts: usize,
    pub(crate) hidden: usize,
    /// Routed experts of a layer.
    pub(crate) experts: usize,
    pub(crate) intermediate: usize,
}

impl Dimensions {
    /// Rows and columns of an expert's matrix.
    pub(crate) fn projection(&self, projection: Projection) -> (usize, usize) {
        match projection {
            Projection::Gate | Projection::Up => (self.intermediate, self.hidden),
            Projection::Down => (self.hidden, self.intermediate),
        }
    }

    /// Reads them. A family that is not computed is refused here, before any tensor is looked at: its experts have
    /// other keys and names, and what would be said of those would mislead.
    pub(crate) fn read(config: &Configuration) -> Result<Self, FormatError> {
        let family = config.supported_family()?;
        refuse_variants(config, family)?;
        let names = family.expert_keys();
        let layers = config.required(&keys::NUM_HIDDEN_LAYERS)?;
        let hidden = config.required(&keys::HIDDEN_SIZE)?;
        let experts = config.routed_experts()?;
        let intermediate = config.expert_width()?;
        let records = (layers * experts) as u64;
        if records > RECORDS_MAX {
            let what = "num_hidden_layers x num_experts";
            return Err(FormatError::limit(config.file(), what, records, RECORDS_MAX));
        }
        let top_k = config.get(names.per_token)?;
        if let Some(top_k) = top_k.filter(|&top_k| top_k > experts) {
            let found = format!(
                "{top_k} of {experts} experts, but a token cannot use more experts than there are"
            );
            return Err(config.invalid(names.per_token, found));
        }
        let drafts = config.get(&keys::NUM_NEXTN_PREDICT_LAYERS)?.unwrap_or(0);
        Ok(Self { layers, drafts, hidden, experts, intermediate })
    }
}

/// Refuses models of a family's line that are not computed, by the keys that tell them apart.
fn refuse_variants(config: &Configuration, family: Family) -> Result<(), FormatError> {
    if family == Family::Gemma4 {
        config.required(&keys::HIDDEN_SIZE_PER_LAYER_INPUT)?;
        config.required(&keys::NUM_KV_SHARED_LAYERS)?;
        if !config.required(&keys::ENABLE_MOE_BLOCK)? {
            let found = "false, but of Gemma-4 only the model with experts (26B-A4B) is supported";
            return Err(config.invalid(&keys::ENABLE_MOE_BLOCK, found));
        }
    }
    Ok(())
}

//! The keys of `kimi-linear`: layers of the delta rule, which have no heads in the list of heads of keys and values,
//! latent attention in the others, a router of sigmoids.
//!
//! The format has one number of heads for both kinds of layers.

use serde_json::{Map, json};

use super::Entries;
use super::latent::{normalised, rows, scaled_groups};
use crate::format::config::keys;
use crate::format::error::FormatError;
use crate::format::gguf::metadata::Metadata;

/// Takes the keys, but for those that all architectures have.
pub(super) fn enter(entries: &mut Entries<'_>, trunk: usize) -> Result<(), FormatError> {
    rows(entries)?;
    delta(entries, trunk)?;
    // A file without it does not say what experts are weighed by.
    let gating = entries.key("expert_gating_func");
    entries.metadata.required(&gating, Metadata::unsigned)?;
    entries.count(&keys::NUM_SHARED_EXPERTS, "expert_shared_count", true)?;
    scaled_groups(entries, &keys::NUM_EXPERT_GROUP)?;
    // The runtime of this format divides whether the key is there or not.
    normalised(entries, &keys::MOE_RENORMALIZE, true)
}

/// Which layers the delta rule mixes, and its sizes, as the object that a configuration has.
fn delta(entries: &mut Entries<'_>, trunk: usize) -> Result<(), FormatError> {
    let key = entries.key("attention.head_count_kv");
    let read = |metadata: &Metadata, key: &str| metadata.integers(key, super::LAYERS_MAX);
    let heads = entries.metadata.required(&key, read)?;
    if heads.len() != trunk {
        let found = format!("has {} entries for {trunk} layers", heads.len());
        return Err(entries.metadata.invalid(&key, found));
    }
    let numbers = |delta: bool| {
        let layers = heads.iter().zip(1_u64..).filter(|(count, _)| (**count == 0) == delta);
        layers.map(|(_, number)| number).collect::<Vec<_>>()
    };
    let mut object = Map::new();
    for (ours, layers) in
        [(keys::KDA_LAYERS.name(), numbers(true)), (keys::FULL_ATTN_LAYERS.name(), numbers(false))]
    {
        object.insert(ours.to_owned(), json!(layers));
        entries.names.push((ours, key.clone()));
    }
    for (ours, name) in [
        (keys::LINEAR_HEADS.name(), "attention.head_count"),
        (keys::LINEAR_HEAD_DIM.name(), "kda.head_dim"),
        (keys::SHORT_CONV_KERNEL_SIZE.name(), "ssm.conv_kernel"),
    ] {
        let full = entries.key(name);
        let found = entries.metadata.required(&full, Metadata::unsigned)?;
        object.insert(ours.to_owned(), found.into());
        entries.names.push((ours, full));
    }
    entries.json.insert(keys::LINEAR_ATTN_CONFIG.name().to_owned(), object.into());
    Ok(())
}

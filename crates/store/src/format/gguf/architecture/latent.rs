//! The keys of `deepseek2`, `deepseek32` and `glm-dsa`: latent attention, layers without experts, groups of experts,
//! and in the last two what chooses rows.
//!
//! The first name is that of all models of these parts; which it is shows in the vocabulary. DeepSeek-V2, which chooses
//! experts otherwise, has it too and is refused by its key. Files of before May 2025 do not say how wide heads are.

use serde_json::{Map, Value, json};

use super::{Entries, Found, stretched};
use crate::format::Family;
use crate::format::config::keys::{self, Key};
use crate::format::error::FormatError;
use crate::format::gguf::metadata::Metadata;

/// Sizes of vocabularies by which models of this architecture are told apart.
const VOCABULARIES: [(u64, Family); 2] =
    [(163_840, Family::KimiK2), (154_880, Family::Glm4MoeLite)];

/// Takes the keys of `deepseek2`.
pub(super) fn enter_told_apart(entries: &mut Entries<'_>) -> Result<(), FormatError> {
    let size = entries.json.get(keys::VOCAB_SIZE.name()).and_then(Value::as_u64);
    if let Some((_, family)) = VOCABULARIES.iter().find(|(known, _)| Some(*known) == size) {
        entries.json.insert(keys::MODEL_TYPE.name().to_owned(), family.model_type().into());
    }
    // A file without it is of a model that weighs experts by a softmax.
    let gating = entries.key("expert_gating_func");
    entries.metadata.required(&gating, Metadata::unsigned)?;
    enter(entries)
}

/// Takes the keys of architectures with an indexer. Which layers have one is said by a key that files since GLM-5.2
/// have; in others by their tensors.
pub(super) fn enter_chosen_rows(
    entries: &mut Entries<'_>,
    trunk: usize,
    found: Found<'_>,
) -> Result<(), FormatError> {
    entries.count(&keys::INDEX_N_HEADS, "attention.indexer.head_count", true)?;
    entries.count(&keys::INDEX_HEAD_DIM, "attention.indexer.key_length", true)?;
    entries.count(&keys::INDEX_TOPK, "attention.indexer.top_k", true)?;
    let key = entries.key("attention.indexer.types");
    let own = match entries.metadata.flags(&key)? {
        // One for all, or one for each; drafts may be told as well.
        Some(own) if own.len() == 1 => vec![own[0]; trunk],
        Some(own) => own,
        None => (0..trunk).map(|layer| found.indexed.contains(&layer)).collect(),
    };
    let kinds = own.iter().map(|&own| if own { "full" } else { "shared" }).take(trunk);
    let kinds: Vec<&str> = kinds.collect();
    entries.enter(&keys::INDEXER_TYPES, key, json!(kinds));
    enter(entries)
}

/// Takes what the architectures have in common.
fn enter(entries: &mut Entries<'_>) -> Result<(), FormatError> {
    rows(entries)?;
    entries.count(&keys::N_SHARED_EXPERTS, "expert_shared_count", true)?;
    router(entries)?;
    // The magnitude of what is rotated stays; the key has a tenth of the factor of all scores.
    let mut rope = Map::new();
    rope.insert(keys::ROPE_ATTENTION_FACTOR.name().to_owned(), json!(1.0));
    let key = entries.key("rope.scaling.yarn_log_multiplier");
    if let Some(tenth) = entries.metadata.number(&key)? {
        rope.insert(keys::ROPE_MSCALE_ALL.name().to_owned(), json!((tenth * 1e7).round() / 1e6));
        entries.names.push((keys::ROPE_MSCALE_ALL.name(), key));
    }
    stretched(entries, rope)
}

/// Takes the widths of latent rows and of what is made of them, and that of dense networks.
pub(super) fn rows(entries: &mut Entries<'_>) -> Result<(), FormatError> {
    entries.count(&keys::Q_LORA_RANK, "attention.q_lora_rank", false)?;
    entries.count(&keys::KV_LORA_RANK, "attention.kv_lora_rank", true)?;
    entries.count(&keys::V_HEAD_DIM, "attention.value_length_mla", true)?;
    entries.count(&keys::QK_ROPE_HEAD_DIM, "rope.dimension_count", true)?;
    entries.count(&keys::INTERMEDIATE_SIZE, "feed_forward_length", false)?;
    let rotated = entries.size("rope.dimension_count")?.unwrap_or(0);
    let key = entries.key("attention.key_length_mla");
    let width = entries.metadata.required(&key, Metadata::unsigned)?;
    let Some(plain) = width.checked_sub(rotated) else {
        let found = format!("{width}, {rotated} of them rotated");
        return Err(entries.metadata.invalid(&key, found));
    };
    entries.enter(&keys::QK_NOPE_HEAD_DIM, key, plain.into());
    Ok(())
}

/// Layers without experts, groups of experts, and what their weights are multiplied by.
pub(super) fn router(entries: &mut Entries<'_>) -> Result<(), FormatError> {
    scaled_groups(entries, &keys::N_GROUP)?;
    normalised(entries, &keys::NORM_TOPK_PROB, false)
}

/// The same but for whether weights are divided by their sum; a configuration has the number of groups as `groups`.
pub(super) fn scaled_groups<K>(
    entries: &mut Entries<'_>,
    groups: &Key<K>,
) -> Result<(), FormatError> {
    positive(entries, &keys::FIRST_K_DENSE_REPLACE, "leading_dense_block_count", 0)?;
    positive(entries, groups, "expert_group_count", 1)?;
    positive(entries, &keys::TOPK_GROUP, "expert_group_used_count", 1)?;
    let key = entries.key("expert_weights_scale");
    let scale = entries.metadata.number(&key)?.filter(|&scale| scale != 0.0).unwrap_or(1.0);
    entries.enter(&keys::ROUTED_SCALING_FACTOR, key, shortest(scale));
    Ok(())
}

/// Whether weights are divided by their sum, which a configuration has as `to`.
pub(super) fn normalised<K>(
    entries: &mut Entries<'_>,
    to: &Key<K>,
    absent: bool,
) -> Result<(), FormatError> {
    let key = entries.key("expert_weights_norm");
    let found = entries.metadata.flag(&key)?.unwrap_or(absent);
    entries.enter(to, key, found.into());
    Ok(())
}

/// Takes a number for which zero is as good as absent.
fn positive<K>(
    entries: &mut Entries<'_>,
    to: &Key<K>,
    name: &str,
    absent: u64,
) -> Result<(), FormatError> {
    let found = entries.size(name)?.filter(|&found| found > 0).unwrap_or(absent);
    entries.enter(to, entries.key(name), found.into());
    Ok(())
}

/// What was written as binary32, in its shortest decimal form.
pub(super) fn shortest(found: f64) -> Value {
    json!((found as f32).to_string().parse().unwrap_or(found))
}

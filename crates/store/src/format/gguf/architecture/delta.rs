//! The keys of architectures with the gated delta rule.

use serde_json::json;

use super::{Entries, ValueHeads};
use crate::format::config::keys;
use crate::format::error::FormatError;
use crate::format::gguf::metadata::Metadata;

/// The keys of the delta rule; which layers it mixes.
pub(super) fn enter(
    entries: &mut Entries<'_>,
    heads: ValueHeads,
    trunk: usize,
    blocks: usize,
) -> Result<Vec<bool>, FormatError> {
    entries.count(
        &keys::SHARED_EXPERT_INTERMEDIATE_SIZE,
        "expert_shared_feed_forward_length",
        true,
    )?;
    entries.count(&keys::LINEAR_NUM_KEY_HEADS, "ssm.group_count", true)?;
    entries.count(&keys::LINEAR_NUM_VALUE_HEADS, "ssm.time_step_rank", true)?;
    entries.count(&keys::LINEAR_KEY_HEAD_DIM, "ssm.state_size", true)?;
    entries.count(&keys::LINEAR_CONV_KERNEL_DIM, "ssm.conv_kernel", true)?;
    let key = entries.key("ssm.inner_size");
    let inner = entries.metadata.required(&key, Metadata::unsigned)?;
    let count = entries.size("ssm.time_step_rank")?.unwrap_or(0);
    let Some(width) =
        inner.checked_div(count).filter(|width| width.checked_mul(count) == Some(inner))
    else {
        return Err(entries.metadata.invalid(&key, format!("{inner} for {count} heads")));
    };
    entries.enter(&keys::LINEAR_VALUE_HEAD_DIM, key, width.into());
    if heads == ValueHeads::Tiled {
        entries.json.insert(keys::LINEAR_VALUE_HEAD_ORDER.name().to_owned(), "tiled".into());
    }
    let key = entries.key("attention.recurrent_layers");
    let linear = match entries.metadata.flags(&key)? {
        Some(flags) if flags.len() == blocks => flags[..trunk].to_vec(),
        Some(flags) if flags.len() == 1 => vec![flags[0]; trunk],
        Some(flags) => {
            let found = format!("has {} entries for {blocks} layers", flags.len());
            return Err(entries.metadata.invalid(&key, found));
        }
        None => {
            let interval_key = entries.key("full_attention_interval");
            let interval = entries.metadata.unsigned(&interval_key)?.unwrap_or(4);
            if interval == 0 {
                return Err(entries.metadata.invalid(&interval_key, "is zero"));
            }
            (1..=trunk as u64).map(|layer| !layer.is_multiple_of(interval)).collect()
        }
    };
    let names = linear.iter().map(|linear| match linear {
        true => "linear_attention",
        false => "full_attention",
    });
    let names: Vec<&str> = names.collect();
    entries.enter(&keys::LAYER_TYPES, key, json!(names));
    Ok(linear)
}

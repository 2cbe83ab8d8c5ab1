//! The keys of `gemma4`: two shapes of attention heads, windows, a dense network next to experts.
//!
//! Whether keys are values has no key: then layers without a window have no tensor for values. Which pairs of their
//! heads turn is a tensor of factors by which frequencies are divided: 1, or so much that nothing turns.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::{Entries, Found};
use crate::format::config::keys;
use crate::format::error::{DOWNLOAD_AGAIN, FormatError};
use crate::format::files;
use crate::format::gguf::header::RawTensor;
use crate::format::gguf::metadata::Metadata;

/// The tensor of factors.
pub(in crate::format::gguf) const FACTORS: &str = "rope_freqs.weight";
/// Half of the widest head.
const FACTORS_MAX: usize = 4096;
/// From here on a factor stands for no rotation.
const STILL: f32 = 1e20;
/// Base of the frequencies in layers with a window, where the file has none.
const WINDOW_THETA: f64 = 10_000.0;

/// How many pairs turn by the factors, and of how many.
pub(in crate::format::gguf) fn turning(
    path: &Path,
    tensor: &RawTensor,
) -> Result<(usize, usize), FormatError> {
    let invalid = |found: String| FormatError::invalid(path, FACTORS, found, DOWNLOAD_AGAIN);
    let count = match tensor.shape[..] {
        [count] if (1..=FACTORS_MAX).contains(&count) && tensor.ggml.name == "F32" => count,
        _ => return Err(invalid(format!("{} {:?}", tensor.ggml.name, tensor.shape))),
    };
    let mut bytes = vec![0; 4 * count];
    let mut file = files::open_regular(path)?.file;
    let read = file.seek(SeekFrom::Start(tensor.offset)).and_then(|_| file.read_exact(&mut bytes));
    read.map_err(|error| FormatError::io(path, "read", error))?;
    let factors = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    let factors: Vec<f32> = factors.collect();
    let turning = factors.iter().take_while(|&&factor| factor == 1.0).count();
    match factors[turning..].iter().find(|&&factor| factor.is_nan() || factor < STILL) {
        None => Ok((turning, count)),
        Some(other) => Err(invalid(format!("has {other}: neither 1 nor no rotation"))),
    }
}

/// Takes the keys, but for those that all architectures have.
pub(super) fn enter(entries: &mut Entries<'_>, found: Found<'_>) -> Result<(), FormatError> {
    let key = entries.key("attention.sliding_window_pattern");
    let windows = entries.metadata.required(&key, Metadata::flags)?;
    let kinds = windows.iter().map(|window| match window {
        true => "sliding_attention",
        false => "full_attention",
    });
    let kinds: Vec<&str> = kinds.collect();
    entries.enter(&keys::LAYER_TYPES, key, json!(kinds));
    entries.count(&keys::SLIDING_WINDOW, "attention.sliding_window", true)?;
    entries.count(&keys::HEAD_DIM, "attention.key_length_swa", true)?;
    entries.count(&keys::GLOBAL_HEAD_DIM, "attention.key_length", true)?;
    heads(entries, &windows)?;
    entries.count(&keys::INTERMEDIATE_SIZE, "feed_forward_length", true)?;
    let flag = |name: &str, value: bool| (name.to_owned(), Value::Bool(value));
    entries.json.extend([
        flag(keys::ENABLE_MOE_BLOCK.name(), true),
        flag(keys::ATTENTION_K_EQ_V.name(), !found.full_values),
    ]);
    for (key, name) in [
        (&keys::HIDDEN_SIZE_PER_LAYER_INPUT, "embedding_length_per_layer_input"),
        (&keys::NUM_KV_SHARED_LAYERS, "attention.shared_kv_layers"),
    ] {
        let full = entries.key(name);
        let count = entries.metadata.unsigned(&full)?.unwrap_or(0);
        entries.enter(key, full, count.into());
    }
    let key = entries.key("final_logit_softcapping");
    if let Some(cap) = entries.metadata.number(&key)?.filter(|&cap| cap != 0.0) {
        entries.enter(&keys::FINAL_LOGIT_SOFTCAPPING, key, json!(cap));
    }
    rotations(entries, found)
}

/// Heads of keys and values: one number, or one for each layer, alike in layers of a kind.
fn heads(entries: &mut Entries<'_>, windows: &[bool]) -> Result<(), FormatError> {
    let key = entries.key("attention.head_count_kv");
    // A number is read as a list of one.
    let all = entries.metadata.integers(&key, windows.len() as u64)?.unwrap_or_default();
    if all.len() < 2 {
        return entries.count(&keys::NUM_KEY_VALUE_HEADS, "attention.head_count_kv", true);
    }
    if all.len() != windows.len() {
        let found = format!("has {} entries for {} layers", all.len(), windows.len());
        return Err(entries.metadata.invalid(&key, found));
    }
    for (kind, ours) in
        [(true, &keys::NUM_KEY_VALUE_HEADS), (false, &keys::NUM_GLOBAL_KEY_VALUE_HEADS)]
    {
        let mut of_kind = all.iter().zip(windows).filter(|(_, window)| **window == kind);
        let Some((&first, _)) = of_kind.next() else { continue };
        if let Some((other, _)) = of_kind.find(|(other, _)| **other != first) {
            let found = format!("{first} and {other} in layers of one kind");
            return Err(entries.metadata.invalid(&key, found));
        }
        let Ok(count) = u64::try_from(first) else {
            return Err(entries.metadata.invalid(&key, format!("{first} heads")));
        };
        entries.enter(ours, key.clone(), count.into());
    }
    Ok(())
}

/// The rotation of each kind of layer.
fn rotations(entries: &mut Entries<'_>, found: Found<'_>) -> Result<(), FormatError> {
    for (rotated, head) in [
        ("rope.dimension_count", "attention.key_length"),
        ("rope.dimension_count_swa", "attention.key_length_swa"),
    ] {
        let (key, head) = (entries.key(rotated), entries.size(head)?);
        let rotated = entries.metadata.unsigned(&key)?;
        if rotated.is_some() && rotated != head {
            let remedy = "heads that are rotated whole, in part by factors, are read";
            let found = rotated.unwrap_or(0).to_string();
            return Err(entries.metadata.unsupported(&key, found, remedy));
        }
    }
    let key = entries.key("rope.freq_base");
    let theta = entries.metadata.required(&key, Metadata::number)?;
    let window = entries.metadata.number(&entries.key("rope.freq_base_swa"))?;
    let Some((turning, pairs)) = found.turning else {
        return Err(entries.metadata.invalid(FACTORS, "is missing"));
    };
    if entries.size("attention.key_length")? != Some(2 * pairs as u64) {
        let found = format!("{pairs} factors, but heads have other lengths");
        return Err(entries.metadata.invalid(FACTORS, found));
    }
    let object = |kind: &str, theta: f64| {
        let mut object = Map::new();
        object.insert(keys::FULL_ROPE_TYPE.name().to_owned(), kind.into());
        object.insert(keys::FULL_ROPE_THETA.name().to_owned(), json!(theta));
        object
    };
    let mut full = object("proportional", theta);
    let part = turning as f64 / pairs as f64;
    full.insert(keys::FULL_ROTARY_FACTOR.name().to_owned(), json!(part));
    let sliding = object("default", window.unwrap_or(WINDOW_THETA));
    let both = json!({ "full_attention": full, "sliding_attention": sliding });
    entries.enter(&keys::ROPE_PARAMETERS, key, both);
    Ok(())
}

//! The keys of `qwen4exp`: residual streams with gates, an indexer, and the layer of hashed n-grams.
//!
//! The format has the constants of the hash themselves, for one layer, where config.json has what they follow from.
//! They are kept and compared with those that are computed.

use serde_json::json;

use super::{Entries, Found};
use crate::format::config::keys::{self, Key};
use crate::format::error::FormatError;
use crate::format::gguf::metadata::Metadata;
use crate::format::gguf::names::NGRAM_ROWS;

/// Entries of a list of constants: heads of the longest n-grams that are read.
const CONSTANTS_MAX: u64 = 448;
/// What the rows of a table are a multiple of at most.
const DIVISOR_MAX: u64 = 1 << 20;
/// The only layers that look rows up.
const LAYERS: &str = "ple.layers";
/// Rows of each head.
const SIZES: &str = "ple.head_vocab_sizes";

/// Takes the keys, but for those that all architectures with the delta rule have; gives the layer of n-grams. `linear`
/// says which layers the delta rule mixes, of `blocks` blocks.
pub(super) fn enter(
    entries: &mut Entries<'_>,
    found: Found<'_>,
    linear: &[bool],
    blocks: usize,
) -> Result<usize, FormatError> {
    entries.count(&keys::HC_COUNT, "hyper_connection.count", true)?;
    entries.count(&keys::HC_LOWRANK, "hyper_connection.low_rank", true)?;
    // The format has no key for it.
    entries.json.insert(keys::OUTPUT_GATE_TYPE.name().to_owned(), "sigmoid".into());
    entries.count(&keys::INDEXER_N_HEADS, "attention.indexer.head_count", true)?;
    entries.count(&keys::INDEXER_HEAD_DIM, "attention.indexer.key_length", true)?;
    entries.count(&keys::INDEXER_BUDGET, "attention.indexer.top_k", true)?;
    units(entries, linear, blocks)?;
    let layer = layer(entries, linear.len())?;
    hash(entries, found)?;
    Ok(layer)
}

/// Tokens of a unit, which the format has for each block; 0 for one whose tokens see everything.
fn units(entries: &mut Entries<'_>, linear: &[bool], blocks: usize) -> Result<(), FormatError> {
    let key = entries.key("attention.compress_ratios");
    let list = |metadata: &Metadata, key: &str| metadata.integers(key, super::LAYERS_MAX);
    let ratios = entries.metadata.required(&key, list)?;
    if ratios.len() != blocks {
        let found = format!("has {} entries for {blocks} layers", ratios.len());
        return Err(entries.metadata.invalid(&key, found));
    }
    let unit = linear.iter().zip(&ratios).find(|(linear, _)| !**linear).map_or(0, |it| *it.1);
    let wrong = linear.iter().zip(&ratios).position(|(&linear, &ratio)| {
        let expected = if linear { 0 } else { unit };
        ratio != expected
    });
    if let Some(layer) = wrong {
        let found = format!(
            "{} in layer {layer}, expected 0 in layers of the delta rule and {unit} in the others",
            ratios[layer]
        );
        return Err(entries.metadata.invalid(&key, found));
    }
    let unit = u64::try_from(unit).unwrap_or(0);
    entries.enter(&keys::INDEXER_COMPRESS_RATIO, key, unit.into());
    Ok(())
}

/// The layer that looks rows up: the format counts from zero, a configuration from one.
fn layer(entries: &mut Entries<'_>, trunk: usize) -> Result<usize, FormatError> {
    let key = entries.key(LAYERS);
    let list = |metadata: &Metadata, key: &str| metadata.integers(key, super::LAYERS_MAX);
    let layers = entries.metadata.required(&key, list)?;
    let [layer] = layers[..] else {
        let remedy = "the constants of a file are those of one layer";
        let found = format!("{} layers of n-grams", layers.len());
        return Err(entries.metadata.unsupported(&key, found, remedy));
    };
    let Some(layer) = usize::try_from(layer).ok().filter(|&layer| layer < trunk) else {
        return Err(entries.metadata.invalid(&key, format!("{layer} of {trunk} layers")));
    };
    entries.enter(&keys::PLE_LAYER_IDS, key, json!([layer + 1]));
    Ok(layer)
}

/// The constants of the hash, and what they follow from.
fn hash(entries: &mut Entries<'_>, found: Found<'_>) -> Result<(), FormatError> {
    entries.count(&keys::NGRAM_SIZE, "ple.ngram_size", true)?;
    entries.count(&keys::HEADS_PER_NGRAM, "ple.heads_per_ngram", true)?;
    entries.count(&keys::PLE_CONV_KERNEL_SIZE, "ple.conv_kernel", true)?;
    entries.count(&keys::NGRAM_EOS_TOKEN_ID, "ple.eos_token_id", true)?;
    constants(entries, &keys::NGRAM_MULTIPLIERS, "ple.layer_multipliers")?;
    constants(entries, &keys::NGRAM_HEAD_OFFSETS, "ple.head_offsets")?;
    let sizes = constants(entries, &keys::NGRAM_HEAD_SIZES, SIZES)?;
    let size = |entries: &Entries<'_>, name: &str| {
        let read = |metadata: &Metadata, key: &str| metadata.unsigned(key);
        entries.metadata.required(&entries.key(name), read)
    };
    let heads = size(entries, "ple.heads_per_ngram")?;
    let rows = size(entries, "ple.ngram_size")?.saturating_sub(1).saturating_mul(heads);
    let columns = entries.key("embedding_length_per_layer_input");
    let width = entries.metadata.required(&columns, Metadata::unsigned)?.saturating_mul(rows);
    entries.enter(&keys::PLE_EMBED_DIM, columns, width.into());
    // Sizes are the primes from the base on, so that the first is as good a base.
    let key = entries.key(SIZES);
    let Some(&base) = sizes.first() else {
        return Err(entries.metadata.invalid(&key, "is empty"));
    };
    entries.enter(&keys::NGRAM_VOCAB_SIZE_BASE, key, base.into());
    entries.json.insert(keys::SPLIT_NGRAM_PARTS.name().to_owned(), 1.into());
    let Some(table) = found.ngram_rows else {
        return Err(entries.metadata.invalid(NGRAM_ROWS, "is missing"));
    };
    let used = sizes.iter().fold(0_u64, |sum, &size| sum.saturating_add(size));
    let divisor = divisor(table as u64, used).ok_or_else(|| {
        let found = format!("{table} rows, but {SIZES} ask for {used}");
        entries.metadata.invalid(NGRAM_ROWS, found)
    })?;
    entries.enter(&keys::NGRAM_VOCAB_DIVISOR, NGRAM_ROWS.to_owned(), divisor.into());
    Ok(())
}

/// The least number that `rows` are the next multiple of from `used` on; `None` where rows are missing.
fn divisor(rows: u64, used: u64) -> Option<u64> {
    let padding = rows.checked_sub(used)?;
    (padding.saturating_add(1)..=DIVISOR_MAX).find(|&number| rows.is_multiple_of(number))
}

/// A list of constants of the hash.
fn constants<K>(
    entries: &mut Entries<'_>,
    key: &Key<K>,
    name: &str,
) -> Result<Vec<u64>, FormatError> {
    let full = entries.key(name);
    let read = |metadata: &Metadata, key: &str| metadata.integers(key, CONSTANTS_MAX);
    let found = entries.metadata.required(&full, read)?;
    let list: Result<Vec<u64>, _> = found.iter().map(|&number| u64::try_from(number)).collect();
    let Ok(list) = list else {
        return Err(entries.metadata.invalid(&full, "a number below zero"));
    };
    entries.enter(key, full, json!(list));
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::divisor;

    /// Of the release, of a table without padding, and of one that was cut.
    #[test]
    fn padding_says_what_rows_are_a_multiple_of() {
        assert_eq!(divisor(320_001_536, 320_001_446), Some(113));
        assert_eq!(320_001_446_u64.next_multiple_of(113), 320_001_536);
        assert_eq!(divisor(120, 120), Some(1));
        assert_eq!(divisor(119, 120), None);
        assert_eq!(divisor(1 << 40, 1), None);
    }
}

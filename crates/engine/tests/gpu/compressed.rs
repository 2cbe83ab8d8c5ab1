//! DeepSeek-V4's cache: the logits of the processor with each type of rows, the reference's that rounds as in training,
//! the same bits however a text is cut, and memory by the bytes of such rows.

use engine::backend::PAGE_TOKENS;
use engine::backend::cpu::KvType;
use engine::backend::gpu::{GpuRequirements, MemoryClass, Pieces, check_kv_type};
use engine::model::Model;
use engine::weights::Catalog;

use super::long::{is_long, part};
use super::processor::{Sizes, engine_in};
use super::published::distance;
use super::sequences::text;
use super::support::{ALL, CHUNK, adapter, engine, limits, opened};
use super::{all_logits, reference, tensor_of};

const CASE: &str = "dsv4-calm-hf";

/// As the net was trained.
fn trained() -> KvType {
    opened(CASE).1.trained_kv_type().unwrap()
}

#[test]
fn logits_are_those_of_the_processor_with_the_same_type() {
    let Some(adapter) = adapter() else { return };
    let ids = reference(CASE).0;
    for (kv_type, bound) in [(KvType::F32, 1e-5), (KvType::F16, 2e-5), (trained(), 1e-5)] {
        let sizes = Sizes { kv_type, context: 640, cuts: &[], steps: 1, exact: true };
        let expected = all_logits(&mut engine_in(CASE, &sizes), &ids);
        let found = all_logits(&mut engine(&adapter, CASE, ALL, kv_type, CHUNK), &ids);
        let apart = distance(&found, &expected);
        assert!(apart <= bound, "{kv_type}: {apart:e}");
    }
}

/// Logarithms of the probabilities of a row.
fn logarithms(row: &[f32]) -> Vec<f64> {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&logit| f64::from(logit - most).exp()).sum();
    row.iter().map(|&logit| f64::from(logit - most) - sum.ln()).collect()
}

#[test]
fn the_default_is_the_rounding_of_the_reference() {
    let Some(adapter) = adapter() else { return };
    let (ids, _) = reference(CASE);
    let expected: Vec<f32> = tensor_of(CASE, "rounded.safetensors", "logits")
        .into_iter()
        .map(f32::from_le_bytes)
        .collect();
    let found = all_logits(&mut engine(&adapter, CASE, ALL, trained(), CHUNK), &ids);
    let found: Vec<f32> = found.into_iter().map(f32::from_bits).collect();
    let width = expected.len() / ids.len();
    let rows = expected.chunks_exact(width).zip(found.chunks_exact(width));
    let sums = rows.map(|(expected, found)| {
        let (p, q) = (logarithms(expected), logarithms(found));
        p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>()
    });
    let apart = sums.sum::<f64>() / ids.len() as f64;
    // Measured: 2.0e-13; rounding itself moves the reference by 4.4e-4.
    assert!(apart < 1e-9, "{apart:e}");
}

#[test]
fn chunks_of_any_length_give_the_same_bits() {
    let Some(adapter) = adapter() else { return };
    // Beyond a page, and beyond what an indexer shows whole.
    let tokens = text(5, if is_long() { PAGE_TOKENS + 70 } else { 90 });
    for kv_type in part([trained(), KvType::F32, KvType::F16], 3) {
        let expected = all_logits(&mut engine(&adapter, CASE, ALL, kv_type, CHUNK), &tokens);
        for chunk in part(1..=17, 4) {
            let found = all_logits(&mut engine(&adapter, CASE, ALL, kv_type, chunk), &tokens);
            assert!(found == expected, "{kv_type}: chunks of {chunk}");
        }
    }
}

#[test]
fn memory_is_counted_by_the_words_of_the_rows() {
    let (checkpoint, config) = opened(CASE);
    let mut catalog = Catalog::new(&checkpoint);
    Model::declare(&config, &mut catalog).unwrap();
    let needs = |kv_type| {
        let mut options = limits(CASE, kv_type, Pieces::Adaptive);
        options.context = 1 << 20;
        GpuRequirements::of(&config, &catalog, &options, MemoryClass::Discrete)
    };
    // Rows of 49 bytes in 52 and keys of 9 in 12 for 4 tokens in two layers, rows of 8 tokens in one.
    let [words, floats] = [2 * (52 + 12) * 2 + 52, 2 * (128 + 64) * 2 + 128];
    for (kv_type, row) in [(trained(), words), (KvType::F32, floats)] {
        let expected = 3 * (1 << 20) / 8 * row as u64;
        let found = needs(kv_type).key_values;
        assert!(found >= expected && found < expected + (1 << 20), "{kv_type}: {found} {expected}");
    }
    assert!(needs(trained()).recurrent < needs(KvType::F32).recurrent);
    let refused = check_kv_type(KvType::Q8, &config).unwrap_err().to_string();
    assert!(refused.contains("f16, f32 or fp8"), "{refused}");
    let other = check_kv_type(trained(), &opened("qwen3-calm-hf").1).unwrap_err().to_string();
    assert!(other.contains("--kv-type fp8"), "{other}");
}

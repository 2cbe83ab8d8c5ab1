//! Keys and values in q8: the logits of the processor with the same type, memory by the bytes of such rows, and nets
//! whose rows are no whole words are refused by what is wrong with them.

use engine::backend::cpu::KvType;
use engine::backend::gpu::{GpuRequirements, MemoryClass, Pieces, check_kv_type};
use engine::model::Model;
use engine::weights::Catalog;

use super::long::{is_long, part_from};
use super::processor::{Sizes, engine_in};
use super::published::distance;
use super::sequences::text;
use super::support::{ALL, CHUNK, adapter, engine, limits, opened};
use super::{all_logits, reference};

/// Nets whose rows q8 has: of heads, of windows and of latents, and the demo, a Qwen3.5, whose heads of 64 values are
/// prepared by one launch.
const SERVED: [&str; 4] = ["qwen3-calm-hf", "gptoss-calm-mxfp4", "deepseek-calm-hf", "demo"];

#[test]
fn logits_are_those_of_the_processor_with_the_same_type() {
    let Some(adapter) = adapter() else { return };
    for case in SERVED {
        let demo = || text(7, if is_long() { 90 } else { 20 });
        let ids = if case == "demo" { demo() } else { reference(case).0 };
        // f16 shows what a distance is without bytes.
        for kv_type in part_from(1, [KvType::F16, KvType::Q8], 2) {
            let sizes = Sizes { kv_type, context: 640, cuts: &[], steps: 1, exact: true };
            let expected = all_logits(&mut engine_in(case, &sizes), &ids);
            let found = all_logits(&mut engine(&adapter, case, ALL, kv_type, CHUNK), &ids);
            // Measured on lavapipe: f16 7.2e-6, q8 1.6e-5 at the most, where a last bit moves a byte.
            let apart = distance(&found, &expected);
            assert!(apart <= 5e-5, "{case}, {kv_type}: {apart:e}");
            let alone = all_logits(&mut engine(&adapter, case, ALL, kv_type, 1), &ids);
            assert!(alone == found, "{case}, {kv_type}: token by token");
        }
    }
}

#[test]
fn memory_is_counted_by_the_bytes_of_the_rows() {
    for case in SERVED {
        let (checkpoint, config) = opened(case);
        let mut catalog = Catalog::new(&checkpoint);
        Model::declare(&config, &mut catalog).unwrap();
        let needs = |kv_type| {
            let mut options = limits("qwen3-calm-hf", kv_type, Pieces::Adaptive);
            options.layers = 0..config.layers.len();
            GpuRequirements::of(&config, &catalog, &options, MemoryClass::Discrete).key_values
        };
        let [f32, q8] = [KvType::F32, KvType::Q8].map(needs);
        // A byte and a 16th instead of four bytes; blocks of memory are whole.
        let part = q8 as f64 / f32 as f64;
        assert!((part - 17.0 / 64.0).abs() < 0.01, "{case}: {part}");
    }
}

#[test]
fn rows_that_are_no_whole_words_are_refused() {
    for (case, found) in [
        ("glm-flash-calm-mlxlm-4bit", "kv_lora_rank: makes 1 x 96"),
        ("qwen35-calm-hf", "head_dim: makes 1 x 32"),
        ("glm-calm-hf", "head_dim: makes 2 x 16"),
    ] {
        let config = opened(case).1;
        assert!(check_kv_type(KvType::F16, &config).is_ok());
        let refused = check_kv_type(KvType::Q8, &config).unwrap_err().to_string();
        assert!(refused.contains("in 8 bits") && refused.contains(found), "{refused}");
    }
    let refused = check_kv_type(KvType::Bf16, &opened("demo").1).unwrap_err().to_string();
    assert!(refused.contains("--kv-type bf16"), "{refused}");
}

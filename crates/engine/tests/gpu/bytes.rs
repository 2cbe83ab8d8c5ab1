//! Keys and values in q8: the logits of the processor with the same type, and a net whose rows are no whole words is
//! refused by what it lacks.

use engine::backend::cpu::KvType;
use engine::backend::gpu::{GpuRequirements, MemoryClass, Pieces, check_kv_type};
use engine::weights::Catalog;

use super::processor::{self, Sizes, engine_in};
use super::published::distance;
use super::sequences::text;
use super::support::{ALL, CHUNK, adapter, engine, limits, opened};
use super::{all_logits, reference};

/// Nets whose rows q8 has, of heads, of windows and of latents, and the demo, whose heads of 64 values are prepared by
/// one launch; and how far the logits may be from the processor's.
const SERVED: [(&str, f64); 5] = [
    ("qwen3-calm-hf", 1e-4),
    ("gptoss-calm-mxfp4", 1e-4),
    ("deepseek-calm-hf", 1e-4),
    ("glm-flash-calm-mlxlm-4bit", 1e-4),
    ("demo", 1e-4),
];

#[test]
fn logits_are_those_of_the_processor_with_the_same_type() {
    let Some(adapter) = adapter() else { return };
    let mut told = Vec::new();
    for (case, bound) in SERVED {
        let ids = if case == "demo" { text(7, 90) } else { reference(case).0 };
        for kv_type in [KvType::F16, KvType::Q8] {
            if check_kv_type(kv_type, &opened(case).1).is_err() {
                continue;
            }
            let sizes = Sizes { kv_type, context: 640, cuts: &[], steps: 1, exact: true };
            let expected = all_logits(&mut engine_in(case, &sizes), &ids);
            let found = all_logits(&mut engine(&adapter, case, ALL, kv_type, CHUNK), &ids);
            let apart = distance(&found, &expected);
            told.push(format!("{case} {kv_type} {apart:e} of {bound:e}"));
            let alone = all_logits(&mut engine(&adapter, case, ALL, kv_type, 1), &ids);
            assert!(alone == found, "{case}, {kv_type}: token by token");
        }
    }
    panic!("{told:#?}");
}

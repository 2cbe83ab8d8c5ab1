//! Exactness: the committed checkpoints against what transformers computes from them in float32.
//!
//! The bounds are those of tests/golden/README.md; `.ci/run` repeats this over about eighty generated
//! checkpoints.

mod support;

use support::{Scored, golden};

/// ‖out − reference‖ / ‖reference‖
fn relative_error(out: &[f32], reference: &[f32]) -> f64 {
    assert_eq!(out.len(), reference.len());
    let square = |x: f32| f64::from(x) * f64::from(x);
    let error: f64 = out.iter().zip(reference).map(|(a, b)| square(a - b)).sum();
    (error / reference.iter().map(|&b| square(b)).sum::<f64>()).sqrt()
}

fn check(case: &str, options: &[&str], bound: f64) {
    let reference = Scored::read(&golden().join(case).join("reference.safetensors"));
    let out = Scored::compute(case, options);
    let error = relative_error(&out.logits, &reference.logits);
    assert!(error <= bound, "{case} {options:?}: relative error {error:e} above {bound:e}");
    assert_eq!(out.greedy, reference.greedy, "{case} {options:?}: greedy continuation");
}

#[test]
fn unquantised_weights_agree_to_1e_5() {
    for case in ["qwen3-calm-hf", "qwen35-calm-hf"] {
        check(case, &["--arithmetic", "f32"], 1e-5);
    }
}

#[test]
fn quantised_weights_agree_to_1e_4_with_the_default_arithmetic() {
    for case in ["qwen35-calm-mlx-mixed", "qwen35-calm-mlxlm-4bit"] {
        check(case, &[], 1e-4);
        check(case, &["--arithmetic", "f32"], 1e-5);
    }
}

#[test]
fn a_network_that_amplifies_rounding_agrees_to_3e_4() {
    check("qwen35-hf", &["--arithmetic", "f32"], 3e-4);
}

#[test]
fn the_chunked_delta_rule_agrees_with_the_step_form_to_1e_5() {
    let step = Scored::compute("qwen35-calm-hf", &[]);
    let chunked = Scored::compute("qwen35-calm-hf", &["--delta-rule", "chunked"]);
    let error = relative_error(&chunked.logits, &step.logits);
    assert!(error <= 1e-5, "relative error {error:e}");
    assert_ne!(chunked.logits, step.logits, "the option does nothing");
}

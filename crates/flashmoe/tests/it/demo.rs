//! The model that ships answers what a newcomer asks, streaming through a pool far smaller than it is.

use crate::support;

use std::path::Path;

use support::flashmoe;

/// What `flashmoe run` prints for a prompt, thinking hidden.
fn answer(prompt: &str, options: &[&str]) -> String {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    let mut arguments = vec!["run", model.to_str().unwrap(), prompt, "--hide-thinking"];
    arguments.extend(options);
    let output = flashmoe(&arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{prompt}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_demo_model_answers_its_first_questions() {
    for (prompt, expected) in [
        ("What is 255 factored?", "3 × 5 × 17"),
        ("What are you?", "flashmoe's small demo model"),
        ("Hello", "Hello"),
    ] {
        let text = answer(prompt, &["--slots", "200"]);
        assert!(text.contains(expected), "{prompt}: {text}");
        assert!(!text.contains("</think>"), "{prompt}: {text}");
    }
}

#[test]
fn a_stop_string_ends_the_answer_before_it() {
    let whole = answer("What is 255 factored?", &[]);
    let stopped = answer("What is 255 factored?", &["--stop", " × 17"]);
    assert!(whole.contains("3 × 5 × 17"), "{whole}");
    assert_eq!(stopped.trim(), "255 = 3 × 5");
}

#[test]
fn a_seed_repeats_a_sampled_answer() {
    let options = |seed| ["--temperature", "1.5", "--max-tokens", "40", "--seed", seed];
    let story = "Tell me a short story.";
    assert_eq!(answer(story, &options("7")), answer(story, &options("7")));
    assert_ne!(answer(story, &options("7")), answer(story, &options("8")));
}

/// Both change a story of the most likely tokens, and the same one each time.
#[test]
fn repetitions_and_the_obvious_can_be_avoided() {
    let story = |options: &[&str]| {
        let length = ["--temperature", "0", "--max-tokens", "60", "--think=false"];
        answer("Tell me a short story.", &[&length[..], options].concat())
    };
    let plain = story(&[]);
    let breaker = "--dry-sequence-breaker";
    let dry = ["--dry-multiplier", "100", "--dry-allowed-length", "1", breaker, "none"];
    assert_ne!(story(&dry), plain);
    assert_eq!(story(&dry), story(&dry));
    assert_eq!(story(&["--dry-base", "3", "--xtc-threshold", "0.3"]), plain, "both are off");
    let xtc = ["--xtc-probability", "1", "--xtc-threshold", "0.02", "--seed", "5"];
    assert_ne!(story(&xtc), plain);
    assert_eq!(story(&xtc), story(&xtc));
}

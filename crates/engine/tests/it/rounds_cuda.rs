//! Goal: rounds on an NVIDIA GPU leave the bits of single steps there. Method: as in `rounds.rs`, every length of a
//! round with every number of kept tokens, wrong drafts behind those, with all experts in device memory and with few;
//! snapshots in between, which have what was kept applied, and prompts behind. On a machine with a GPU:
//! `cargo test -p flashmoe-engine --test it -- --ignored rounds_cuda`.

use engine::backend::cpu::KvType;
use engine::drafts::ROUND_TOKENS;
use engine::engine::Engine;

use crate::nvidia::{On, engine_on};
use crate::rounds::{CONTEXT, PROMPT, run_steps, splits};
use crate::sequences::{feed, text};

/// Delta layers of three forms, attention alone, windows, latent rows, compressed rows, heads of two shapes, gated
/// streams with chosen keys and rows of n-grams.
pub(crate) const CASES: [&str; 10] = [
    "qwen35-calm-hf",
    "qwen35-calm-mlx-mixed",
    "qwen35-calm-mlxlm-4bit",
    "qwen3next-calm-hf",
    "qwen3-calm-hf",
    "gptoss-calm-mxfp4",
    "glm-flash-calm-mlxlm-4bit",
    "dsv4-calm-hf",
    "gemma4-calm-hf",
    "flash-next-calm-hf",
];
/// With draft heads, which keep rows of their own.
const HEADS: [&str; 2] = ["qwen35-calm-hf+head", "qwen3next-calm-hf+head"];
/// Tokens behind all rounds.
const BEHIND: usize = 70;

/// An engine with rounds of so many tokens, and with a slot for one of `part` records.
fn engine_of(case: &str, kv_type: KvType, round_tokens: usize, part: usize) -> Engine {
    engine_on(case, &On { kv_type, context: CONTEXT, round_tokens, part, ..On::one() })
}

fn check_splits(case: &str, kv_type: KvType, part: usize, order: usize) {
    let splits = splits(order);
    let all: usize = splits.iter().map(|split| split.1).sum();
    // Steps of an engine without rounds: kernels as they ever were.
    let mut alone = engine_of(case, kv_type, 1, part);
    let (steps, sequence) = run_steps(&mut alone, all);
    let behind = feed(&mut alone, sequence, &text(74, BEHIND));
    drop(alone);
    let mut engine = engine_of(case, kv_type, ROUND_TOKENS, part);
    assert_eq!(engine.round_tokens(), ROUND_TOKENS, "{case}");
    let sequence = engine.create_sequence().unwrap();
    feed(&mut engine, sequence, &text(70, PROMPT));
    let mut at = 0;
    for (number, (tokens, kept)) in splits.into_iter().enumerate() {
        let what = format!("{case} {kv_type}, 1 of {part}: {kept} of {tokens} from {at}");
        steps.check_round(&mut engine, sequence, at, (tokens, kept), &what);
        at += kept;
        if number % 3 == 2 {
            steps.check_file(&mut engine, sequence, at, &what);
        }
    }
    assert!(feed(&mut engine, sequence, &text(74, BEHIND)) == behind, "{case}: a prompt");
    engine.drop_sequence(sequence);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rounds_on_a_gpu_leave_the_bits_of_single_steps_there() {
    for case in CASES.into_iter().chain(HEADS) {
        for (part, order) in [(1, 1), (1, 5), (3, 7)] {
            check_splits(case, KvType::F16, part, order);
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn so_do_rounds_over_other_caches_there() {
    for (order, kv_type) in [(5, KvType::Q8), (7, KvType::F32), (35, KvType::Bf16)] {
        for case in &CASES[3..6] {
            check_splits(case, kv_type, 1, order);
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rounds_of_two_answers_there_differ_in_depth_and_a_prompt_waits_between() {
    for case in CASES {
        let (steps, _) = run_steps(&mut engine_of(case, KvType::F16, 1, 1), 40);
        let mut engine = engine_of(case, KvType::F16, ROUND_TOKENS, 1);
        let sequences = [0, 1].map(|_| engine.create_sequence().unwrap());
        sequences.iter().for_each(|&sequence| {
            feed(&mut engine, sequence, &text(70, PROMPT));
        });
        let mut at = [0, 0];
        for round in 0..9 {
            let plan = [(1 + round % 4, 1), (4 - round % 3, 2 - round % 2)];
            steps.check_two(&mut engine, sequences, plan, &mut at, &format!("{case}: {round}"));
            // A prompt of another sequence between a round and what is kept of it.
            let other = engine.create_sequence().unwrap();
            feed(&mut engine, other, &text(73, 30));
            engine.drop_sequence(other);
        }
        for it in 0..2 {
            steps.check_file(&mut engine, sequences[it], at[it], case);
        }
    }
}

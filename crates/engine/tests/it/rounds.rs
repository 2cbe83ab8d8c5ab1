//! Goal: rounds of several tokens leave the bits of single steps, in logits, snapshots and answers, whatever was
//! drafted and however much of it is kept. Method: golden checkpoints of every family; every length of a round with
//! every number of kept tokens, wrong drafts behind those; answers at several temperatures with drafts that are always,
//! sometimes and never right, and ends of every kind inside a round. By default each case has one of the samplings, and
//! two places of ends.

use crate::long::{is_long, part_from};
use crate::{processor, sequences};

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;

use engine::backend::cpu::KvType;
use engine::backend::{Cancel, PAGE_TOKENS, Run, SequenceId, Uncancelled};
use engine::drafts::{DraftSource, Drafting, ROUND_TOKENS};
use engine::engine::Engine;
use engine::generate::{Finish, Listeners};
use engine::session::{AnswerOptions, Session};
use text::sampling::SamplingOptions;

use processor::{engine_of, file_of};
use sequences::{bits, feed, text};

const CASES: [&str; 19] = [
    "qwen35-calm-hf",
    "qwen35-hf",
    "qwen35-calm-mlx-mixed",
    "qwen35-calm-mlxlm-4bit",
    "qwen3next-calm-hf",
    "qwen3-calm-hf",
    "gptoss-calm-mxfp4",
    "deepseek-calm-hf",
    "glm-flash-calm-mlxlm-4bit",
    "dsv4-calm-hf",
    "flash-next-calm-hf",
    "gemma4-calm-hf",
    "qwen35-calm-hf+head",
    "qwen3next-calm-hf+head",
    "dsv32-calm-hf",
    "glm5-calm-hf",
    "kimi-linear-calm-hf",
    "glm-next-calm-hf",
    "ling-calm-hf",
];
pub(crate) const CONTEXT: usize = 640;
/// So that rounds cross the end of a page.
pub(crate) const PROMPT: usize = PAGE_TOKENS - 45;

/// What single steps leave after each token: bits of its logits, and the file of a snapshot.
pub(crate) struct Steps {
    tokens: Vec<u32>,
    pub(crate) logits: Vec<Vec<u32>>,
    files: Vec<Vec<u8>>,
}

/// Runs `count` single steps behind a prompt, on a sequence that stays as they leave it.
pub(crate) fn run_steps(engine: &mut Engine, count: usize) -> (Steps, SequenceId) {
    let tokens = text(71, count);
    let sequence = engine.create_sequence().unwrap();
    feed(engine, sequence, &text(70, PROMPT));
    let (mut logits, mut files) = (Vec::new(), Vec::new());
    for token in &tokens {
        let run = Run { sequence, tokens: std::slice::from_ref(token) };
        engine.step(&[run], &Uncancelled).unwrap();
        logits.push(bits(engine, 0));
        files.push(file_of(&engine.backend().snapshot(sequence, None).unwrap()));
    }
    (Steps { tokens, logits, files }, sequence)
}

fn single_steps(engine: &mut Engine, count: usize) -> Steps {
    let (steps, sequence) = run_steps(engine, count);
    engine.drop_sequence(sequence);
    steps
}

impl Steps {
    /// A round of `tokens` from `at` on: the first `right` are those that the steps had.
    pub(crate) fn round(&self, at: usize, tokens: usize, right: usize) -> Vec<u32> {
        let token = |place| {
            let token = self.tokens.get(at + place).copied().unwrap_or(5);
            if place < right { token } else { (token + 1 + place as u32) % 60 }
        };
        (0..tokens).map(token).collect()
    }

    /// One round of two sequences, each at its place of the answer: `plan` has its tokens and how many are right.
    pub(crate) fn check_two(
        &self,
        engine: &mut Engine,
        sequences: [SequenceId; 2],
        plan: [(usize, usize); 2],
        at: &mut [usize; 2],
        case: &str,
    ) {
        let tokens = [0, 1].map(|it: usize| self.round(at[it], plan[it].0, plan[it].1));
        let runs = [0, 1].map(|it| Run { sequence: sequences[it], tokens: &tokens[it] });
        engine.step(&runs, &Uncancelled).unwrap();
        for it in 0..2 {
            let first = if it == 0 { 0 } else { plan[0].0 };
            for place in 0..plan[it].1 {
                let found = bits(engine, first + place);
                assert!(found == self.logits[at[it] + place], "{case}: sequence {it}");
            }
        }
        for it in 0..2 {
            if plan[it].1 < plan[it].0 {
                engine.keep_first(sequences[it], plan[it].1).unwrap();
            }
            at[it] += plan[it].1;
        }
    }

    /// Runs a round whose first `kept` of `tokens` are right, and keeps these.
    pub(crate) fn check_round(
        &self,
        engine: &mut Engine,
        sequence: SequenceId,
        at: usize,
        (tokens, kept): (usize, usize),
        what: &str,
    ) {
        let run = self.round(at, tokens, kept);
        engine.step(&[Run { sequence, tokens: &run }], &Uncancelled).unwrap();
        for place in 0..kept {
            assert!(bits(engine, place) == self.logits[at + place], "{what}: row {place}");
        }
        if kept < tokens {
            engine.keep_first(sequence, kept).unwrap();
        }
        assert_eq!(engine.sequence_length(sequence), PROMPT + at + kept, "{what}");
    }

    pub(crate) fn check_file(
        &self,
        engine: &mut Engine,
        sequence: SequenceId,
        at: usize,
        what: &str,
    ) {
        let file = file_of(&engine.backend().snapshot(sequence, None).unwrap());
        assert!(file == self.files[at - 1], "{what}: a snapshot after {at} tokens");
    }
}

/// Every length of a round, with every number of kept tokens, in one of several orders.
pub(crate) fn splits(order: usize) -> Vec<(usize, usize)> {
    let of = |tokens| (1..=tokens).map(move |kept| (tokens, kept));
    let splits: Vec<(usize, usize)> = (1..=ROUND_TOKENS).flat_map(of).collect();
    let count = splits.len();
    // 36 of them: steps that share no divisor with it visit all.
    (0..count).map(|at| splits[(at * order + order / 2) % count]).collect()
}

fn check_splits(case: &str, kv_type: KvType, order: usize) {
    let splits = splits(order);
    let all: usize = splits.iter().map(|split| split.1).sum();
    let mut engine = engine_of(case, kv_type, CONTEXT);
    assert_eq!(engine.round_tokens(), ROUND_TOKENS, "{case}");
    let steps = single_steps(&mut engine, all);
    let sequence = engine.create_sequence().unwrap();
    feed(&mut engine, sequence, &text(70, PROMPT));
    let mut at = 0;
    for (number, (tokens, kept)) in splits.into_iter().enumerate() {
        let what = format!("{case} {kv_type}: {kept} of {tokens} from {at}");
        steps.check_round(&mut engine, sequence, at, (tokens, kept), &what);
        at += kept;
        match number % 5 {
            // Given text behind a round.
            1 if at < all => {
                let found = feed(&mut engine, sequence, &steps.tokens[at..at + 1]);
                assert!(found == steps.logits[at], "{what}: a prompt behind");
                let snapshot = engine.backend().snapshot(sequence, None).unwrap();
                engine.backend().restore(sequence, &snapshot).unwrap();
                steps.check_file(&mut engine, sequence, at + 1, &what);
                return_to(&mut engine, sequence, &steps, at);
            }
            2 | 4 => steps.check_file(&mut engine, sequence, at, &what),
            _ => {}
        }
    }
    engine.drop_sequence(sequence);
}

/// Brings a sequence to `at` tokens behind the prompt, by rounds that are kept whole.
fn return_to(engine: &mut Engine, sequence: SequenceId, steps: &Steps, at: usize) {
    let scratch = engine.create_sequence().unwrap();
    feed(engine, scratch, &text(70, PROMPT));
    for tokens in steps.tokens[..at].chunks(ROUND_TOKENS) {
        engine.step(&[Run { sequence: scratch, tokens }], &Uncancelled).unwrap();
    }
    let snapshot = engine.backend().snapshot(scratch, None).unwrap();
    engine.drop_sequence(scratch);
    engine.backend().restore(sequence, &snapshot).unwrap();
}

#[test]
fn rounds_leave_the_bits_of_single_steps() {
    for case in CASES {
        check_splits(case, KvType::F16, 1);
    }
}

#[test]
fn rounds_in_another_order_and_with_other_caches_do_as_well() {
    for (order, kv_type) in [(5, KvType::Q8), (7, KvType::F32), (35, KvType::Bf16)] {
        for case in [CASES[2], CASES[6], CASES[7], CASES[9], CASES[11]] {
            check_splits(case, kv_type, order);
        }
    }
    check_splits("dsv4-calm-hf", KvType::Fp8 { rotated: 16 }, 11);
}

#[test]
fn rounds_of_two_answers_differ_in_depth_and_a_prompt_waits_between() {
    for case in CASES {
        let mut engine = engine_of(case, KvType::F16, CONTEXT);
        let steps = single_steps(&mut engine, 40);
        let sequences = [0, 1].map(|_| engine.create_sequence().unwrap());
        sequences.iter().for_each(|&sequence| {
            feed(&mut engine, sequence, &text(70, PROMPT));
        });
        let waiting = engine.create_sequence().unwrap();
        let prompt = text(73, 30);
        let mut pass = engine.start(&[Run { sequence: waiting, tokens: &prompt }], &[]).unwrap();
        let mut done = engine.advance(&mut pass, &Uncancelled).unwrap();
        let mut at = [0, 0];
        for round in 0..6 {
            if !done {
                assert!(engine.put_aside(&mut pass));
            }
            let plan = [(1 + round % 4, 1), (5 - round % 3, 2 + round % 2)];
            steps.check_two(&mut engine, sequences, plan, &mut at, &format!("{case}: {round}"));
            if !done {
                done = engine.advance(&mut pass, &Uncancelled).unwrap();
            }
        }
        while !done {
            done = engine.advance(&mut pass, &Uncancelled).unwrap();
        }
        for it in 0..2 {
            steps.check_file(&mut engine, sequences[it], at[it], case);
        }
        let snapshot = engine.backend().snapshot(waiting, None).unwrap();
        engine.drop_sequence(sequences[0]);
        let alone = engine.create_sequence().unwrap();
        feed(&mut engine, alone, &prompt);
        let expected = file_of(&engine.backend().snapshot(alone, None).unwrap());
        assert!(file_of(&snapshot) == expected, "{case}: the prompt between");
    }
}

/// Cancels when it has been asked so many times.
struct After(Cell<usize>);

impl Cancel for After {
    fn is_cancelled(&self) -> bool {
        self.0.set(self.0.get().saturating_sub(1));
        self.0.get() == 0
    }
}

#[test]
fn a_round_given_up_halfway_disturbs_no_other() {
    for case in CASES {
        let mut engine = engine_of(case, KvType::F16, CONTEXT);
        let steps = single_steps(&mut engine, 12);
        let [kept, lost] = [0, 1].map(|_| engine.create_sequence().unwrap());
        for sequence in [kept, lost] {
            feed(&mut engine, sequence, &text(70, PROMPT));
            let tokens = steps.round(0, 6, 4);
            engine.step(&[Run { sequence, tokens: &tokens }], &Uncancelled).unwrap();
            engine.keep_first(sequence, 4).unwrap();
        }
        let tokens = steps.round(4, 5, 2);
        let run = Run { sequence: lost, tokens: &tokens };
        assert!(engine.step(&[run], &After(Cell::new(4))).is_err(), "{case}");
        engine.drop_sequence(lost);
        let again = engine.create_sequence().unwrap();
        feed(&mut engine, again, &text(70, PROMPT));
        for sequence in [kept, again] {
            let at = engine.sequence_length(sequence) - PROMPT;
            let tokens = steps.round(at, 8, 8);
            engine.step(&[Run { sequence, tokens: &tokens }], &Uncancelled).unwrap();
            assert!(bits(&mut engine, 7) == steps.logits[at + 7], "{case}");
            steps.check_file(&mut engine, sequence, at + 8, case);
        }
    }
}

#[test]
fn what_is_no_round_is_refused() {
    let mut engine = engine_of(CASES[0], KvType::F16, 20);
    let [sequence, other] = [0, 1].map(|_| engine.create_sequence().unwrap());
    let tokens = text(1, 30);
    let step = |engine: &mut Engine, runs: &[Run<'_>]| {
        engine.step(runs, &Uncancelled).map_err(|error| error.to_string())
    };
    let run = |tokens| Run { sequence, tokens };
    let long = step(&mut engine, &[run(&tokens[..ROUND_TOKENS + 1])]).unwrap_err();
    assert!(long.contains("a round of 9 tokens; 8 fit"), "{long}");
    let twice = step(&mut engine, &[run(&tokens[..1]), run(&tokens[1..3])]).unwrap_err();
    assert!(twice.contains("only run"), "{twice}");
    assert!(engine.keep_first(sequence, 1).is_err(), "nothing has run");
    step(&mut engine, &[run(&tokens[..4]), Run { sequence: other, tokens: &tokens[..1] }]).unwrap();
    assert!(engine.keep_first(sequence, 5).is_err(), "more than there were");
    step(&mut engine, &[run(&tokens[4..8])]).unwrap();
    engine.keep_first(sequence, 2).unwrap();
    assert!(engine.keep_first(sequence, 1).is_err(), "once");
    assert!(engine.keep_first(other, 1).is_err(), "a single token");
    for at in [6, 14] {
        step(&mut engine, &[run(&tokens[at..(at + 8).min(20)])]).unwrap();
    }
    let full = step(&mut engine, &[run(&tokens[20..22])]).unwrap_err();
    assert!(full.contains("context of 20"), "{full}");
}

/// Drafts that are right, with the answer known, in so many of four places.
fn drafting(answer: &[u32], prompt: usize, right: usize) -> Drafting {
    let answer = answer.to_vec();
    let given = move |text: &[u32], most: usize| {
        let drafts = (text.len() - prompt..).take(most).map(|at| {
            let token = answer.get(at).copied().unwrap_or(3);
            if (at * 7 + at / 3) % 4 < right { token } else { (token + 1) % 60 }
        });
        drafts.collect()
    };
    Drafting { source: DraftSource::Given(Arc::new(given)), measured: false }
}

struct Answer {
    tokens: Vec<u32>,
    finish: Option<Finish>,
    /// Of the turn that followed.
    next: Vec<u32>,
}

struct Bounds {
    tokens: usize,
    context: usize,
    end: Option<u32>,
    stop_after: usize,
}

/// Two turns of a conversation.
fn answer(
    engine: &mut Engine,
    sampling: &SamplingOptions,
    bounds: &Bounds,
    drafting: Option<&Drafting>,
) -> Answer {
    let mut session = Session::new(engine).unwrap();
    let mut prompt = text(90, 50);
    let end_tokens: Vec<u32> = bounds.end.into_iter().collect();
    let mut turn = |prompt: &[u32], drafting| {
        let options = AnswerOptions {
            sampling,
            max_tokens: bounds.tokens,
            context: bounds.context,
            end_tokens: &end_tokens,
            tools: None,
            drafting,
            texts: None,
        };
        let mut tokens = Vec::new();
        let mut each = |token| {
            tokens.push(token);
            match tokens.len() == bounds.stop_after {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let progress = &mut |_| {};
        let listeners = Listeners { cancel: &Uncancelled, progress, each: &mut each };
        let report = session.answer(engine, prompt, 20, &options, listeners).unwrap();
        (tokens, report.finish)
    };
    let (tokens, finish) = turn(&prompt, drafting);
    prompt.extend_from_slice(&tokens);
    prompt.extend(text(91, 9));
    let next = match prompt.len() < bounds.context {
        true => turn(&prompt, None).0,
        false => Vec::new(),
    };
    session.close(engine);
    Answer { tokens, finish, next }
}

/// Tokens of an answer that has room for a round after its first.
const ROUNDS_FROM: usize = 4;

#[test]
fn drafts_change_no_answer() {
    let samplings = [
        SamplingOptions { temperature: 0.0, ..SamplingOptions::default() },
        SamplingOptions { temperature: 0.7, seed: 5, ..SamplingOptions::default() },
        SamplingOptions {
            temperature: 1.5,
            seed: 6,
            repetition_penalty: 1.2,
            presence_penalty: 0.4,
            frequency_penalty: 0.3,
            ..SamplingOptions::default()
        },
    ];
    for (number, case) in CASES.into_iter().enumerate() {
        let mut engine = engine_of(case, KvType::F16, CONTEXT);
        let samplings = samplings.iter().enumerate();
        for (which, sampling) in samplings.filter(|(which, _)| is_long() || number % 3 == *which) {
            let free = Bounds { tokens: 60, context: CONTEXT, end: None, stop_after: 0 };
            let whole = answer(&mut engine, sampling, &free, None);
            assert_eq!((whole.tokens.len(), whole.finish), (60, Some(Finish::Length)));
            // The token that comes first as late as any: an answer that repeats itself ends early by most of its own.
            let first = |token: &u32| whole.tokens.iter().position(|it| it == token);
            let end = whole.tokens.iter().copied().max_by_key(first);
            let mut bounds =
                vec![free, Bounds { tokens: 60, context: CONTEXT, end, stop_after: 0 }];
            // Ends inside a round, at every place of it; of each case with one of the three.
            let places = if number % 3 == which { 20..28 } else { 0..0 };
            for places in part_from(number, places, 8) {
                bounds.push(Bounds { tokens: places, context: CONTEXT, end: None, stop_after: 0 });
                bounds.push(Bounds { tokens: 60, context: 50 + places, end: None, stop_after: 0 });
                let stop_after = places;
                bounds.push(Bounds { tokens: 60, context: CONTEXT, end: None, stop_after });
            }
            for (bound, bounds) in bounds.iter().enumerate() {
                let expected = answer(&mut engine, sampling, bounds, None);
                let before = engine.draft_counters();
                for right in if bound < 2 { 0..5 } else { 3..5 } {
                    let own = Drafting {
                        source: match right {
                            4 => DraftSource::SuffixOrHead,
                            _ => DraftSource::Head,
                        },
                        measured: right == 4,
                    };
                    let given = drafting(&whole.tokens, 50, right);
                    let of_head = right == 3 && bound % 2 == 0 && case.ends_with(processor::HEAD);
                    let own_turn = of_head || right == 4 && bound % 2 == 1;
                    let drafting = if own_turn { own } else { given };
                    let found = answer(&mut engine, sampling, bounds, Some(&drafting));
                    let what = format!("{case}: bounds {bound}, {right} of 4 right");
                    assert_eq!(found.tokens, expected.tokens, "{what}");
                    assert_eq!(found.finish, expected.finish, "{what}");
                    assert_eq!(found.next, expected.next, "{what}: the next turn");
                }
                let after = engine.draft_counters();
                if expected.tokens.len() < ROUNDS_FROM {
                    continue;
                }
                assert!(after.rounds > before.rounds && after.drafted > before.drafted);
                assert!(after.accepted > before.accepted);
            }
        }
    }
}

//! Goal: on an NVIDIA GPU a head computes what its reference does, its drafts depend on the text alone, and they change
//! nothing of an answer. Method: as in `heads.rs`. On a machine with a GPU:
//! `cargo test -p flashmoe-engine --test it -- --ignored heads_cuda`.

use engine::backend::cpu::KvType;
use engine::backend::{PAGE_TOKENS, Run, SequenceId, Uncancelled};
use engine::drafts::ROUND_TOKENS;
use engine::engine::Engine;

use crate::heads::{CASES, Reference, drafts, error, exact, follow_in_rounds};
use crate::nvidia::{On, engine_on};
use crate::processor::HEAD;
use crate::sequences::{bits, feed, text};

const CONTEXT: usize = 640;

fn engine_of(case: &str, kv_type: KvType, part: usize) -> Engine {
    let on = On { kv_type, context: CONTEXT, round_tokens: ROUND_TOKENS, part, ..On::one() };
    engine_on(&format!("{case}{HEAD}"), &on)
}

/// Single steps of the tokens.
fn steps(engine: &mut Engine, sequence: SequenceId, tokens: &[u32]) {
    for token in tokens {
        let run = Run { sequence, tokens: std::slice::from_ref(token) };
        engine.step(&[run], &Uncancelled).unwrap();
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn heads_on_a_gpu_agree_with_their_reference() {
    for case in CASES {
        let reference = Reference::read(case);
        let (ids, expected) = (&reference.ids, reference.floats("logits"));
        let mut engine = engine_of(case, KvType::F32, 1);
        let vocabulary = engine.config().vocabulary;
        let sequence = engine.create_sequence().unwrap();
        let mut found = Vec::new();
        for at in 0..expected.len() / vocabulary {
            engine.step(&[Run { sequence, tokens: &ids[at..=at] }], &Uncancelled).unwrap();
            bits(&mut engine, 0);
            let (drafted, _) = drafts(&mut engine, sequence, ids[at + 1], 1);
            assert_eq!(drafted.len(), 1, "{case}: a draft behind {at}");
            found.extend_from_slice(engine.backend().draft_logits());
        }
        let apart = error(&found, &expected);
        println!("{case}: logits of the head differ by {apart:e} of their norm");
        assert!(apart <= 1e-4, "{case}: {apart:e}");
        // Behind prompts, several of the head's own.
        let (chains, rows) = (reference.numbers("chains"), reference.floats("chain_logits"));
        for (index, start) in reference.numbers("starts").into_iter().enumerate() {
            let start = start as usize;
            let sequence = engine.create_sequence().unwrap();
            feed(&mut engine, sequence, &ids[..start]);
            let (drafted, _) = drafts(&mut engine, sequence, ids[start], 3);
            assert_eq!(drafted, chains[3 * index..3 * (index + 1)], "{case}: behind {start}");
            let last = &rows[(3 * index + 2) * vocabulary..][..vocabulary];
            let apart = error(engine.backend().draft_logits(), last);
            assert!(apart <= 2e-3, "{case}: the third behind {start}: {apart:e}");
            engine.drop_sequence(sequence);
        }
    }
}

/// The share of a text's tokens behind which both draft the same.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn drafts_there_are_the_processors_but_for_ties() {
    for case in CASES {
        // All experts in memory, and no rounded activations.
        let processor = exact(case, KvType::F16);
        let mut engines = [processor, engine_of(case, KvType::F16, 1)];
        let answer = text(11, 200);
        let found = engines.each_mut().map(|engine| {
            let sequence = engine.create_sequence().unwrap();
            feed(engine, sequence, &text(10, 60));
            let behind = answer.iter().map(|token| {
                steps(engine, sequence, &[*token]);
                bits(engine, 0);
                drafts(engine, sequence, (*token * 7) % 60, 3).0
            });
            behind.collect::<Vec<_>>()
        });
        let [expected, found] = &found;
        for place in 0..3 {
            let same = |pair: &(&Vec<u32>, &Vec<u32>)| pair.0.get(place) == pair.1.get(place);
            let same = expected.iter().zip(found).filter(same).count();
            println!("{case}: {same} of {} drafts at place {place} are the same", answer.len());
            assert!(same * 20 >= answer.len() * 19, "{case}");
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn drafts_there_depend_on_the_text_alone() {
    for (case, kv_type) in
        [(CASES[0], KvType::F16), (CASES[0], KvType::Q8), (CASES[1], KvType::F16)]
    {
        let mut engine = engine_of(case, kv_type, 1);
        let (prompt, answer, next) = (text(70, PAGE_TOKENS - 20), text(71, 120), 7);
        let single = engine.create_sequence().unwrap();
        feed(&mut engine, single, &prompt);
        let (mut expected, mut snapshots) = (Vec::new(), Vec::new());
        for at in (0..answer.len()).step_by(40) {
            steps(&mut engine, single, &answer[at..at + 20]);
            snapshots.push((at + 20, engine.backend().snapshot(single, None).unwrap()));
            steps(&mut engine, single, &answer[at + 20..at + 40]);
            bits(&mut engine, 0);
            expected.push((at + 40, drafts(&mut engine, single, next, 5)));
        }
        assert!(expected.iter().all(|(_, (drafts, _))| drafts.len() == 5), "{case}");
        engine.drop_sequence(single);
        let (of, texts) = (format!("{case} {kv_type}"), (&prompt[..], &answer[..]));
        let settle = |engine: &mut Engine| {
            bits(engine, 0);
        };
        follow_in_rounds(&mut engine, texts, (next, &expected), settle, &of);
        for ((from, snapshot), (end, expected)) in snapshots.iter().zip(&expected) {
            let resumed = engine.create_sequence().unwrap();
            engine.backend().restore(resumed, snapshot).unwrap();
            steps(&mut engine, resumed, &answer[*from..*end]);
            bits(&mut engine, 0);
            let found = drafts(&mut engine, resumed, next, 5);
            assert_eq!(&found, expected, "{case} {kv_type}: from a snapshot");
            engine.drop_sequence(resumed);
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn drafts_there_leave_the_logits_of_the_last_batch() {
    let mut engine = engine_of(CASES[0], KvType::F16, 1);
    let [one, two] = [0, 1].map(|_| engine.create_sequence().unwrap());
    let tokens = text(5, 9);
    for sequence in [one, two] {
        feed(&mut engine, sequence, &tokens);
    }
    // The first step computes logits when they are asked for, a later one in its graph.
    for _ in 0..3 {
        let runs = [one, two].map(|sequence| Run { sequence, tokens: &tokens[..3] });
        engine.step(&runs, &Uncancelled).unwrap();
        let before = engine.logits(&[0, 2, 5]).unwrap().to_vec();
        assert_eq!(drafts(&mut engine, two, 4, 6).0.len(), 6);
        assert_eq!(engine.logits(&[0, 2, 5]).unwrap(), before);
    }
    // A context without room has no drafts, and an empty sequence none either.
    let empty = engine.create_sequence().unwrap();
    assert!(drafts(&mut engine, empty, 4, 3).0.is_empty());
    let long = text(6, CONTEXT - 3 - engine.sequence_length(two));
    feed(&mut engine, two, &long);
    assert_eq!(drafts(&mut engine, two, 4, 3).0.len(), 3);
    assert!(drafts(&mut engine, two, 4, 4).0.is_empty());
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn experts_outside_of_its_memory_are_left_out_and_come() {
    let mut engine = engine_of(CASES[0], KvType::F16, 6);
    let sequence = engine.create_sequence().unwrap();
    feed(&mut engine, sequence, &text(8, 30));
    for (round, token) in text(9, 40).into_iter().enumerate() {
        let (drafted, _) = drafts(&mut engine, sequence, token, 2);
        assert_eq!(drafted.len(), 2, "a draft waits for nothing: {round}");
        steps(&mut engine, sequence, &[token]);
        bits(&mut engine, 0);
    }
    let counters = engine.counters();
    assert!(counters.draft.hits > 0 && counters.draft.misses == 0, "{counters:?}");
}

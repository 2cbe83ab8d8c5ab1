//! Goal: whatever is under way at the same time, and whatever of it is given up, a batch gives the bits that it gives
//! alone with one device. Method: batches submitted together to two and three stages on the processor, with stores that
//! miss, against an engine with one stage.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::EngineError;
use engine::backend::cpu::KvType;
use engine::backend::{Purpose, Run, SequenceId, Snapshot, Uncancelled};
use engine::engine::Engine;
use engine::stages::{Collected, Ended, Ticket};

use crate::processor::{Sizes, engine_in, file_of};
use crate::sequences::{alone, bits, feed, resumed, text};

const CASES: [(&str, &[usize]); 10] = [
    ("qwen35-calm-mlx-mixed", &[1, 3]),
    ("dsv4-calm-hf", &[2]),
    ("flash-next-calm-hf", &[1, 2]),
    ("gemma4-calm-hf", &[1]),
    ("deepseek-calm-hf", &[1, 2]),
    ("dsv32-calm-hf", &[1, 2]),
    ("glm5-calm-hf", &[1]),
    ("kimi-linear-calm-hf", &[2]),
    // Not before the layer that sees what the one before it chose.
    ("glm-next-calm-hf", &[1, 3]),
    ("demo", &[4, 8]),
];

fn engine(case: &str, cuts: &[usize]) -> Engine {
    engine_in(case, &Sizes { kv_type: KvType::F16, context: 640, cuts, steps: 1, exact: false })
}

/// The next batch that ends.
fn next(engine: &mut Engine) -> Collected {
    let begun = std::time::Instant::now();
    loop {
        if let Some(collected) = engine.collect(Duration::from_millis(50)) {
            return collected;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing ends");
    }
}

/// Logits of the last token of each batch under way, by ticket; none of those that failed.
fn collect_all(engine: &mut Engine, last: &BTreeMap<Ticket, usize>) -> BTreeMap<Ticket, Vec<u32>> {
    let mut found = BTreeMap::new();
    for _ in 0..last.len() {
        let Collected { ticket, ended, .. } = next(engine);
        match ended {
            Ended::Done => _ = found.insert(ticket, bits(engine, last[&ticket])),
            Ended::Failed(error) => assert!(matches!(error, EngineError::Cancelled), "{error}"),
            Ended::Panicked(_) => panic!("nothing panics"),
        }
    }
    found
}

fn submit(engine: &mut Engine, sequence: SequenceId, tokens: &[u32], purpose: Purpose) -> Ticket {
    engine.submit(&[Run { sequence, tokens }], purpose, &[]).unwrap()
}

#[test]
fn batches_under_way_together_give_what_each_gives_alone() {
    for (case, cuts) in CASES {
        let (mut one, mut several) = (engine(case, &[]), engine(case, cuts));
        let (prompt, first, second) = (text(1, 170), text(2, 40), text(3, 25));
        // Two answers that go on, and a prompt whose chunks follow each other behind and between their steps.
        let expect = |one: &mut Engine, tokens: &[u32], steps: &[u32]| {
            let sequence = one.create_sequence().unwrap();
            let mut seen = vec![feed(one, sequence, tokens)];
            for token in steps {
                one.step(&[Run { sequence, tokens: &[*token] }], &Uncancelled).unwrap();
                seen.push(bits(one, 0));
            }
            one.drop_sequence(sequence);
            seen
        };
        let steps: [&[u32]; 2] = [&[5, 9, 2, 11, 4], &[7, 7, 30, 1, 8]];
        let expected = [expect(&mut one, &first, steps[0]), expect(&mut one, &second, steps[1])];
        let whole = alone(&mut one, &prompt);
        for round in 0..3 {
            let all: Vec<_> = (0..3).map(|_| several.create_sequence().unwrap()).collect();
            assert!(feed(&mut several, all[0], &first) == expected[0][0], "{case}");
            assert!(feed(&mut several, all[1], &second) == expected[1][0], "{case}");
            let mut chunks = prompt.chunks(64);
            let mut last_chunk = None;
            for step in 0..5 {
                let mut last = BTreeMap::new();
                for chunk in chunks.by_ref().take(if round == 0 { 1 } else { 3 }) {
                    let ticket = submit(&mut several, all[2], chunk, Purpose::Prompt);
                    last.insert(ticket, chunk.len() - 1);
                    last_chunk = Some(ticket);
                }
                let tickets = [0, 1].map(|answer| {
                    let tokens = &steps[answer][step..=step];
                    let ticket = submit(&mut several, all[answer], tokens, Purpose::Answers);
                    last.insert(ticket, 0);
                    ticket
                });
                let found = collect_all(&mut several, &last);
                for answer in 0..2 {
                    let (found, expected) = (&found[&tickets[answer]], &expected[answer][step + 1]);
                    assert!(found == expected, "{case}: answer {answer}, step {step}");
                }
                if let Some(found) = last_chunk.and_then(|ticket| found.get(&ticket))
                    && several.sequence_length(all[2]) == prompt.len()
                {
                    assert!(*found == whole, "{case}: the prompt");
                    last_chunk = None;
                }
            }
            assert_eq!(several.sequence_length(all[2]), prompt.len());
            assert!(last_chunk.is_none(), "{case}: the prompt's end was compared");
            all.into_iter().for_each(|sequence| several.drop_sequence(sequence));
        }
    }
}

#[test]
fn marks_and_rounds_of_batches_under_way_are_those_of_one_device() {
    for (case, cuts) in [("qwen35-calm-mlx-mixed", &[1, 3][..]), ("gptoss-calm-mxfp4", &[1])] {
        let (mut one, mut several) = (engine(case, &[]), engine(case, cuts));
        let (whole, other) = (text(4, 120), text(5, 30));
        let seen = |engine: &mut Engine| {
            let [sequence, answer] = [0, 1].map(|_| engine.create_sequence().unwrap());
            feed(engine, answer, &other);
            let parts: [&[u32]; 2] = [&whole[..30], &whole[30..60]];
            let runs = parts.map(|tokens| Run { sequence, tokens });
            engine.submit(&runs, Purpose::Prompt, &[0, 1]).unwrap();
            let round = [Run { sequence: answer, tokens: &[3, 1, 4] }];
            engine.submit(&round, Purpose::Answers, &[]).unwrap();
            submit(engine, sequence, &whole[60..], Purpose::Prompt);
            for _ in 0..3 {
                assert!(matches!(next(engine).ended, Ended::Done));
            }
            engine.keep_first(answer, 2).unwrap();
            assert!(engine.keep_first(answer, 1).is_err(), "once");
            let marks = engine.backend().take_marks();
            let mut files: Vec<_> = marks.iter().map(|(_, mark)| file_of(mark)).collect();
            assert_eq!(marks.iter().map(|(_, it)| it.length()).collect::<Vec<_>>(), [30, 60]);
            assert_eq!(engine.sequence_length(answer), 32);
            submit(engine, answer, &[9], Purpose::Answers);
            assert!(matches!(next(engine).ended, Ended::Done));
            let after = bits(engine, 0);
            let end: Snapshot = engine.backend().snapshot(sequence, None).unwrap();
            files.push(file_of(&end));
            let resumed = resumed(engine, &marks[1].1, &[5]);
            engine.drop_sequence(sequence);
            engine.drop_sequence(answer);
            (files, after, resumed)
        };
        let expected = seen(&mut one);
        for _ in 0..3 {
            assert!(seen(&mut several) == expected, "{case}");
        }
    }
}

#[test]
fn a_batch_given_up_on_its_way_leaves_the_others_as_they_were() {
    for (case, cuts) in CASES {
        let mut engine = engine(case, cuts);
        let (kept, lost) = (text(1, 40), text(2, 60));
        let expected = alone(&mut engine, &[&kept[..], &[6]].concat());
        for passed in 0..4 {
            let [sequence, gone] = [0, 1].map(|_| engine.create_sequence().unwrap());
            feed(&mut engine, sequence, &kept);
            let chunks = [0, 1].map(|_| submit(&mut engine, gone, &lost, Purpose::Prompt));
            let step = submit(&mut engine, sequence, &[6], Purpose::Answers);
            // Somewhere on its way; it may be through by then.
            let begun = std::time::Instant::now();
            while engine.layers_passed(chunks[0]) < passed && begun.elapsed().as_millis() < 500 {
                std::thread::yield_now();
            }
            chunks.iter().for_each(|chunk| engine.cancel(*chunk));
            let last = [(chunks[0], 59), (chunks[1], 59), (step, 0)].into_iter().collect();
            let found = collect_all(&mut engine, &last);
            assert!(found[&step] == expected, "{case}: given up after {passed} layers");
            engine.drop_sequence(gone);
            engine.drop_sequence(sequence);
        }
        let found = alone(&mut engine, &[&kept[..], &[6]].concat());
        assert!(found == expected, "{case}: afterwards");
    }
}

#[test]
fn what_cannot_be_under_way_is_refused_and_changes_nothing() {
    let mut engine = engine("qwen35-calm-mlx-mixed", &[2]);
    let whole = text(1, 50);
    let expected = alone(&mut engine, &[&whole[..], &[6]].concat());
    let sequence = engine.create_sequence().unwrap();
    let ticket = submit(&mut engine, sequence, &whole, Purpose::Prompt);
    let run = [Run { sequence, tokens: &[6] }];
    assert!(engine.submit(&run, Purpose::Answers, &[]).is_err(), "an answer behind its prompt");
    assert!(engine.start(&run, &[]).is_err(), "layer by layer");
    assert!(engine.backend().snapshot(sequence, None).is_err());
    assert_eq!(next(&mut engine).ticket, ticket);
    assert!(engine.collect(Duration::ZERO).is_none(), "nothing else is under way");
    // What the first stage refuses changes nothing; others go on.
    let other = engine.create_sequence().unwrap();
    let refused = submit(&mut engine, sequence, &[1; 65], Purpose::Prompt);
    let good = submit(&mut engine, other, &whole, Purpose::Prompt);
    for _ in 0..2 {
        let Collected { ticket, ended, .. } = next(&mut engine);
        match ended {
            Ended::Failed(EngineError::Request(_)) => assert_eq!(ticket, refused),
            Ended::Done => assert_eq!(ticket, good),
            other => panic!("{other:?}"),
        }
    }
    submit(&mut engine, sequence, &[6], Purpose::Answers);
    assert!(matches!(next(&mut engine).ended, Ended::Done));
    assert!(bits(&mut engine, 0) == expected);
    // As many as fit, and no more.
    let mut count = 0;
    while engine.submit(&[Run { sequence: other, tokens: &[3] }], Purpose::Prompt, &[]).is_ok() {
        count += 1;
        assert!(count < 100, "nothing bounds what is under way");
    }
    // An engine may end with batches under way.
    drop(engine);
}

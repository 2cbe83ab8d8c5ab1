//! Goal: layers spread over several stages give what one device gives: logits, snapshots, files and counts of experts.
//! Method: every cut of all golden nets into two stages, some of the demo model, and some into more, all on the
//! processor, with stores that miss; against an engine with one stage, to the bit.

use std::cell::Cell;

use engine::EngineError;
use engine::backend::cpu::KvType;
use engine::backend::{Cancel, PAGE_TOKENS, Run, SequenceId, Snapshot, Uncancelled};
use engine::engine::Engine;
use engine::stages::Stages;

use crate::long::part;
use crate::processor::{Sizes, config_of, engine_in, file_of};
use crate::sequences::{alone, bits, feed, resumed, text};

const CASES: [&str; 13] = [
    "deepseek-calm-hf",
    "dsv4-calm-hf",
    "flash-next-calm-hf",
    "gemma4-calm-hf",
    "glm-flash-calm-mlxlm-4bit",
    "gptoss-calm-mxfp4",
    "qwen3-calm-hf",
    "qwen35-calm-hf",
    "qwen35-calm-mlx-mixed",
    "qwen35-calm-mlxlm-4bit",
    "qwen35-hf",
    "qwen3next-calm-hf",
    "dsv32-calm-hf",
];
const CONTEXT: usize = 640;

fn engine(case: &str, kv_type: KvType, cuts: &[usize]) -> Engine {
    engine_in(case, &Sizes { kv_type, context: CONTEXT, cuts, steps: 1, exact: false })
}

/// Every cut of a net into two, and the one into as many stages as there are layers.
fn cuts(case: &str) -> Vec<Vec<usize>> {
    let layers = config_of(case).layers.len();
    let mut cuts: Vec<Vec<usize>> = (1..layers).map(|cut| vec![cut]).collect();
    cuts.push((1..layers).collect());
    cuts
}

fn room_of(engine: &mut Engine) -> (usize, usize) {
    let room = engine.backend().room();
    (room.pages, room.states)
}

/// Everything that can be seen of some work: prompts that share chunks, marks, answers together, rounds that keep less
/// than they ran, passes put aside, snapshots, their files, and sequences that go on from both.
pub(crate) fn seen(engine: &mut Engine) -> Vec<Vec<u32>> {
    let whole = text(3, PAGE_TOKENS + 90);
    let mut seen = Vec::new();
    let sequence = engine.create_sequence().unwrap();
    seen.push(feed(engine, sequence, &whole[..150]));
    let runs = [&whole[150..170], &whole[170..180], &whole[180..210]];
    let runs = runs.map(|tokens| Run { sequence, tokens });
    let mut pass = engine.start(&runs, &[0, 1]).unwrap();
    let other = engine.create_sequence().unwrap();
    while !engine.advance(&mut pass, &Uncancelled).unwrap() {
        assert!(engine.put_aside(&mut pass));
        engine.forward(&[Run { sequence: other, tokens: &[7] }], &Uncancelled).unwrap();
        seen.push(bits(engine, 0));
    }
    seen.push(bits(engine, 59));
    let marks = engine.backend().take_marks();
    let marks: Vec<_> = marks.into_iter().map(|(_, mark)| mark).collect();
    assert_eq!(marks.iter().map(Snapshot::length).collect::<Vec<_>>(), [170, 180]);
    seen.extend(marks.iter().map(|mark| words(&file_of(mark))));
    seen.push(feed(engine, sequence, &whole[210..]));
    // Answers together; one has drafts.
    let tokens: [&[u32]; 2] = [&[3, 1, 4], &[9]];
    let runs = [Run { sequence, tokens: tokens[0] }, Run { sequence: other, tokens: tokens[1] }];
    engine.step(&runs, &Uncancelled).unwrap();
    seen.extend((0..4).map(|token| bits(engine, token)));
    engine.keep_first(sequence, 2).unwrap();
    let snapshot = engine.backend().snapshot(sequence, None).unwrap();
    assert_eq!(snapshot.length(), whole.len() + 2);
    let file = file_of(&snapshot);
    let bytes = snapshot.full_pages() as u64 * snapshot.page_bytes() + snapshot.rest_bytes();
    assert_eq!(bytes, file.len() as u64, "as many bytes as are said");
    seen.push(words(&file));
    engine.drop_sequence(sequence);
    seen.push(resumed(engine, &snapshot, &[5, 9, 2]));
    drop(snapshot);
    let read = engine.backend().read_snapshot(whole.len() + 2, &mut file.as_slice()).unwrap();
    seen.push(resumed(engine, &read, &[5, 9, 2]));
    if let Some(earlier) = read.truncated(PAGE_TOKENS + 3) {
        seen.push(words(&file_of(&earlier)));
        seen.push(resumed(engine, &earlier, &[8]));
    }
    drop((read, marks));
    engine.drop_sequence(other);
    seen.push(alone(engine, &whole[..9]));
    seen
}

fn words(file: &[u8]) -> Vec<u32> {
    let word = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
    file.chunks(4).map(word).collect()
}

/// Compares engines that are cut in these ways with one device. True where its store missed records of prompts and of
/// answers.
fn compare(case: &str, kv_type: KvType, all: &[Vec<usize>]) -> bool {
    let mut one = engine(case, kv_type, &[]);
    let (expected, empty) = (seen(&mut one), room_of(&mut one));
    let counted = one.counters();
    for cuts in all {
        let mut cut = engine(case, kv_type, cuts);
        let what = format!("{case} {kv_type}: stages from {cuts:?}");
        let found = seen(&mut cut);
        assert_eq!(found.len(), expected.len(), "{what}");
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(found == expected, "{what}: number {index} of what is seen");
        }
        assert_eq!(room_of(&mut cut), empty, "{what}: all room is given back");
        let counters = cut.counters();
        for (found, one) in [(counters.decode, counted.decode), (counters.prefill, counted.prefill)]
        {
            assert_eq!((found.visits, found.requests), (one.visits, one.requests), "{what}");
        }
        let stages = cut.backend().counters_by_stage();
        assert_eq!(stages.map(|it| it.bytes_read).sum::<u64>(), counters.bytes_read, "{what}");
    }
    counted.decode.misses > 0 && counted.prefill.misses > 0
}

#[test]
fn every_cut_gives_what_one_device_gives() {
    let mut missing = 0;
    for case in CASES {
        let kinds: &[KvType] = match case {
            "dsv4-calm-hf" => &[KvType::F16, KvType::Fp8 { rotated: 16 }],
            "qwen35-calm-mlx-mixed" | "gemma4-calm-hf" => &[KvType::F16, KvType::Q8],
            _ => &[KvType::F16],
        };
        for &kv_type in kinds {
            missing += usize::from(compare(case, kv_type, &cuts(case)));
        }
    }
    // A layer of the smallest nets has no more experts than a step needs.
    assert!(missing >= 4, "stores of {missing} engines missed records");
}

#[test]
fn cuts_of_the_demo_model_give_what_one_device_gives() {
    let cuts = part([vec![11], vec![1], vec![4, 8], vec![3], vec![3, 6, 9]], 2);
    assert!(compare("demo", KvType::F16, &cuts.collect::<Vec<_>>()), "its store misses records");
}

/// The bytes on disk do not say how layers were spread: any engine reads what any other wrote.
#[test]
fn files_of_one_cut_are_read_by_all_others() {
    for case in ["qwen35-calm-mlx-mixed", "dsv4-calm-hf", "flash-next-calm-hf", "gemma4-calm-hf"] {
        let whole = text(5, PAGE_TOKENS + 33);
        let mut all: Vec<Engine> = vec![engine(case, KvType::F16, &[])];
        all.extend(cuts(case).iter().map(|cuts| engine(case, KvType::F16, cuts)));
        let expected = alone(&mut all[0], &[&whole[..], &[4]].concat());
        let files: Vec<Vec<u8>> = all.iter_mut().map(|engine| file(engine, &whole)).collect();
        for (index, engine) in all.iter_mut().enumerate() {
            for file in &files {
                let read = engine.backend().read_snapshot(whole.len(), &mut file.as_slice());
                let found = resumed(engine, &read.unwrap(), &[4]);
                assert!(found == expected, "{case}: engine {index}");
            }
            let short = &mut &files[0][..files[0].len() - 1];
            assert!(engine.backend().read_snapshot(whole.len(), short).is_err(), "{case}: a byte");
            let expected = 6.min(engine.backend().room().states);
            assert_eq!(engine.backend().room().states, expected, "a failed read holds nothing");
        }
    }
}

fn file(engine: &mut Engine, tokens: &[u32]) -> Vec<u8> {
    let sequence = engine.create_sequence().unwrap();
    feed(engine, sequence, tokens);
    let snapshot = engine.backend().snapshot(sequence, None).unwrap();
    engine.drop_sequence(sequence);
    file_of(&snapshot)
}

#[test]
fn warm_equals_cold_whatever_the_slots() {
    let whole = text(8, 100);
    for case in ["qwen35-calm-mlx-mixed", "deepseek-calm-hf", "demo"] {
        let expected = alone(&mut engine(case, KvType::F16, &[]), &whole);
        for steps in [1, 2, 100] {
            let sizes = Sizes {
                kv_type: KvType::F16,
                context: CONTEXT,
                cuts: &[1, 2],
                steps,
                exact: false,
            };
            let mut engine = engine_in(case, &sizes);
            for round in 0..3 {
                let found = alone(&mut engine, &whole);
                assert!(found == expected, "{case}: slots of {steps} steps, round {round}");
            }
        }
    }
}

/// Cancels when it is asked for the n-th time.
struct After(Cell<usize>);

impl Cancel for After {
    fn is_cancelled(&self) -> bool {
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        left == 0
    }
}

#[test]
fn a_batch_cancelled_anywhere_leaves_the_others_as_they_were() {
    for case in ["qwen35-calm-mlx-mixed", "gptoss-calm-mxfp4"] {
        let mut engine = engine(case, KvType::F16, &[1, 3]);
        let (kept, cancelled) = (text(1, 40), text(2, 60));
        let expected = alone(&mut engine, &[&kept[..], &[6]].concat());
        let sequence = engine.create_sequence().unwrap();
        feed(&mut engine, sequence, &kept);
        let snapshot = engine.backend().snapshot(sequence, None).unwrap();
        let mut count = 0;
        loop {
            let gone = engine.create_sequence().unwrap();
            let run = Run { sequence: gone, tokens: &cancelled };
            let (cancel, mut layers) = (After(Cell::new(count)), 0);
            let mut pass = engine.start(&[run], &[]).unwrap();
            let result = loop {
                match engine.advance(&mut pass, &cancel) {
                    Ok(false) => layers += 1,
                    Ok(true) => break Ok(()),
                    Err(error) => break Err(error),
                }
            };
            if result.is_err() {
                assert_eq!(pass.layers(), layers);
                engine.give_up(&pass);
            }
            engine.drop_sequence(gone);
            match result {
                Err(EngineError::Cancelled) => {}
                other => break other.unwrap(),
            }
            count += 1;
            assert!(resumed(&mut engine, &snapshot, &[6]) == expected, "{case}: cancelled {count}");
        }
        assert!(count > 8, "{case}: asked {count} times");
        let found = feed(&mut engine, sequence, &[6]);
        assert!(found == expected, "{case}: the sequence that was there all the time");
    }
}

/// Gives up a prompt of another sequence when it has passed so many layers.
pub(crate) fn give_up_before(engine: &mut Engine, layer: usize) {
    let (sequence, prompt) = (engine.create_sequence().unwrap(), text(9, 60));
    let mut pass = engine.start(&[Run { sequence, tokens: &prompt }], &[0]).unwrap();
    for _ in 0..layer {
        assert!(!engine.advance(&mut pass, &Uncancelled).unwrap());
    }
    engine.give_up(&pass);
    engine.drop_sequence(sequence);
}

/// A token beyond the vocabulary, more tokens than a batch has, and none are refused.
pub(crate) fn refuses_wrong_runs(engine: &mut Engine, sequence: SequenceId) {
    for tokens in [vec![1_000_000], vec![1; 65], vec![]] {
        let refused = engine.forward(&[Run { sequence, tokens: &tokens }], &Uncancelled);
        assert!(matches!(refused, Err(EngineError::Request(_))), "{tokens:?}");
    }
}

#[test]
fn a_batch_given_up_between_two_layers_is_forgotten_by_all_stages() {
    let mut engine = engine("dsv4-calm-hf", KvType::F16, &[2]);
    let whole = text(1, 50);
    let expected = alone(&mut engine, &whole);
    for layers in 1..4 {
        give_up_before(&mut engine, layers);
        assert!(alone(&mut engine, &whole) == expected, "given up before layer {layers}");
    }
}

#[test]
fn what_one_stage_refuses_changes_no_sequence() {
    let mut engine = engine("qwen35-calm-mlx-mixed", KvType::F16, &[2]);
    let whole = text(1, 30);
    let expected = alone(&mut engine, &[&whole[..], &[6]].concat());
    let sequence = engine.create_sequence().unwrap();
    feed(&mut engine, sequence, &whole);
    refuses_wrong_runs(&mut engine, sequence);
    let others: Vec<SequenceId> = (0..2).map(|_| engine.create_sequence().unwrap()).collect();
    assert!(engine.create_sequence().is_err(), "a fourth of three");
    others.into_iter().for_each(|other| engine.drop_sequence(other));
    let kept: Vec<_> = (0..6).map(|_| engine.backend().snapshot(sequence, None).unwrap()).collect();
    assert!(engine.backend().snapshot(sequence, None).is_err(), "a seventh of six");
    assert!(engine.start(&[Run { sequence, tokens: &[1] }], &[0]).is_err(), "a mark");
    drop(kept);
    assert!(feed(&mut engine, sequence, &[6]) == expected);
}

#[test]
fn a_stage_has_nothing_of_layers_that_are_not_its_own() {
    let case = "qwen35-calm-mlx-mixed";
    let state = |cuts: &[usize]| {
        let mut engine = engine(case, KvType::F16, cuts);
        let sequence = engine.create_sequence().unwrap();
        feed(&mut engine, sequence, &text(1, 10));
        let stages: Vec<_> = engine.stages().counters_by_stage().collect();
        let snapshot = engine.backend().snapshot(sequence, None).unwrap();
        (snapshot.state_bytes(), snapshot.page_bytes(), stages.len())
    };
    let (one, two) = (state(&[]), state(&[1]));
    assert_eq!((one.0, one.1), (two.0, two.1), "not twice");
    assert_eq!((one.2, two.2), (1, 2));
}

#[test]
#[allow(clippy::single_range_in_vec_init, reason = "a list of one stage")]
fn stages_that_do_not_follow_each_other_are_refused() {
    for ranges in [vec![0..1, 2..4], vec![1..4], vec![0..3], vec![0..2, 1..4], vec![0..4, 4..4]] {
        let refused = Stages::check(4, &ranges);
        assert!(matches!(refused, Err(EngineError::Request(_))), "{ranges:?}");
    }
    assert!(Stages::check(4, &[0..1, 1..4]).is_ok());
}

//! Steps where an expert may be missing: recorded ahead, stopped by a flag, served and handed over again. Neither
//! misses nor pieces show in a bit, a failed read is an error of the request that met it alone, and what is all there
//! is waited for once a token.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use engine::EngineError;
use engine::backend::cpu::KvType;
use engine::backend::gpu::{Adapter, GpuOptions, Pieces, Prediction};
use engine::backend::{Run, SequenceId, Uncancelled};
use engine::engine::Engine;
use store::cache::{QueueCounters, ReadCause, StoreError};
use store::io::{Fault, FaultPlan, Simulator};

use super::long::{is_campaign, is_long, part_from};
use super::support::{
    ALL, CHUNK, MIXERS, STEPPED, adapter, all_records, engine, engine_with, limits, opened,
};

const PROMPT: [u32; 20] = [5, 9, 2, 44, 7, 7, 31, 12, 3, 60, 18, 25, 1, 39, 40, 8, 21, 33, 6, 14];
pub(super) const STEPS: usize = 6;

fn greedy(logits: &[f32]) -> u32 {
    (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}

fn prompted(engine: &mut Engine, prompt: &[u32]) -> Result<(SequenceId, u32), EngineError> {
    let sequence = engine.create_sequence()?;
    let mut last = 0;
    let mut each = |_: &mut Engine, _, length| {
        last = length - 1;
        Ok(())
    };
    let done = engine.prefill(sequence, prompt, &Uncancelled, &mut |_| {}, &mut each);
    let token = done.and_then(|()| engine.logits(&[last]).map(|logits| greedy(logits)));
    match token {
        Ok(token) => Ok((sequence, token)),
        Err(error) => {
            engine.drop_sequence(sequence);
            Err(error)
        }
    }
}

/// A prompt and a few greedy tokens; the logits of each, as bits.
pub(super) fn request(engine: &mut Engine) -> Result<Vec<u32>, EngineError> {
    let (sequence, mut token) = prompted(engine, &PROMPT)?;
    let mut bits = Vec::new();
    let mut step = |engine: &mut Engine| {
        engine.forward(&[Run { sequence, tokens: &[token] }], &Uncancelled)?;
        let logits = engine.logits(&[0])?;
        bits.extend(logits.iter().map(|value| value.to_bits()));
        token = greedy(logits);
        Ok(())
    };
    let done = (0..STEPS).try_for_each(|_| step(engine));
    engine.drop_sequence(sequence);
    done.map(|()| bits)
}

/// Three answers at once; the logits of each step, as bits.
pub(super) fn together(engine: &mut Engine) -> Vec<u32> {
    let prompts = [&PROMPT[..], &PROMPT[1..], &PROMPT[2..]];
    let mut open = prompts.map(|prompt| prompted(engine, prompt).unwrap());
    let mut bits = Vec::new();
    for _ in 0..STEPS {
        let tokens = open.map(|(_, token)| [token]);
        let runs = [0, 1, 2].map(|at| Run { sequence: open[at].0, tokens: &tokens[at] });
        engine.forward(&runs, &Uncancelled).unwrap();
        for (at, open) in open.iter_mut().enumerate() {
            let logits = engine.logits(&[at]).unwrap();
            bits.extend(logits.iter().map(|value| value.to_bits()));
            open.1 = greedy(logits);
        }
    }
    for (sequence, _) in open {
        engine.drop_sequence(sequence);
    }
    bits
}

fn with_pieces(
    adapter: &Adapter,
    case: &str,
    slots: usize,
    pieces: Pieces,
    storage: Option<Simulator>,
) -> Engine {
    let limits = limits(case, KvType::F16, pieces);
    engine_with(adapter, case, slots, limits, storage, CHUNK).0
}

#[test]
fn neither_misses_nor_the_length_of_pieces_show_in_a_bit() {
    let Some(adapter) = adapter() else { return };
    for (number, case) in STEPPED.into_iter().enumerate() {
        let config = opened(case).1;
        let (k, [layers, records]) = (config.moe.top_k, all_records(&config));
        let mut whole = engine(&adapter, case, ALL, KvType::F16, CHUNK);
        let expected = (request(&mut whole).unwrap(), together(&mut whole));
        let ways = [
            (Pieces::Adaptive, k + 2),
            (Pieces::Adaptive, records - 3),
            (Pieces::Layers(1), k + 2),
            (Pieces::Layers(1), records - 3),
            (Pieces::Layers(2), 1),
            (Pieces::Layers(2), records / 2),
            (Pieces::Layers(16), k + 2),
            (Pieces::Layers(16), records - 3),
        ];
        for (pieces, slots) in part_from(number, ways, 3) {
            let context = format!("{case}, {pieces:?}, {slots} slots");
            let mut other = with_pieces(&adapter, case, slots, pieces, None);
            let before = other.counters();
            let found = request(&mut other).unwrap();
            let spent = other.counters().since(&before);
            assert!(found == expected.0, "{context}");
            assert!(together(&mut other) == expected.1, "{context}: three at once");
            if slots <= k + 2 {
                // Layers take turns with the slots: only the first step may find what the prompt has left.
                let found = spent.device.hits as usize;
                assert!(found <= k, "{context}: {spent:?}");
                let copied = spent.device.copied as usize;
                assert!(copied + found >= layers * STEPS * k, "{context}: {spent:?}");
            }
        }
    }
}

#[test]
fn guesses_show_in_no_bit_and_are_counted() {
    let Some(adapter) = adapter() else { return };
    for (number, case) in STEPPED.into_iter().enumerate() {
        let config = opened(case).1;
        let (k, [_, records]) = (config.moe.top_k, all_records(&config));
        let mut whole = engine(&adapter, case, ALL, KvType::F16, CHUNK);
        let expected = (request(&mut whole).unwrap(), together(&mut whole));
        let ways = [
            (Prediction::On, Pieces::Adaptive, k + 2),
            (Prediction::On, Pieces::Adaptive, records / 2),
            (Prediction::On, Pieces::Layers(1), 1),
            (Prediction::On, Pieces::Layers(1), records - 3),
            (Prediction::On, Pieces::Layers(16), records / 2),
            (Prediction::Auto, Pieces::Layers(2), records / 2),
        ];
        for (prediction, pieces, slots) in part_from(number, ways, 3) {
            let context = format!("{case}, {prediction:?}, {pieces:?}, {slots} slots");
            let options = GpuOptions { prediction, ..limits(case, KvType::F16, pieces) };
            let mut other = engine_with(&adapter, case, slots, options, None, CHUNK).0;
            assert!(request(&mut other).unwrap() == expected.0, "{context}");
            assert!(together(&mut other) == expected.1, "{context}: three at once");
            let found = other.counters().device.prefetched;
            assert!(found.guessed > 0 && found.right <= found.guessed, "{context}: {found:?}");
            assert!(found.bus_used <= found.bus_copied, "{context}: {found:?}");
            assert!(found.disk_used <= found.disk_read, "{context}: {found:?}");
        }
    }
}

/// A store whose reads fail one by one, and arrive late.
pub(super) struct Disk {
    /// Reads until one fails; below zero none does.
    pub(super) until: Arc<AtomicI64>,
    pub(super) late: Arc<AtomicU64>,
}

impl Disk {
    pub(super) fn new(seed: u64) -> (Self, Simulator) {
        let (until, late) = (Arc::new(AtomicI64::new(-1)), Arc::new(AtomicU64::new(0)));
        let disk = Self { until: Arc::clone(&until), late: Arc::clone(&late) };
        let mut state = seed | 1;
        let plan: FaultPlan = Box::new(move |_| {
            if until.fetch_sub(1, Ordering::SeqCst) == 0 {
                return Fault::Error(5);
            }
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            match late.load(Ordering::SeqCst) {
                0 => Fault::None,
                most => Fault::Late(Duration::from_micros((state >> 33) % most)),
            }
        });
        (disk, Simulator::new(plan, seed))
    }
}

#[test]
fn whichever_read_fails_the_session_goes_on_to_the_bit() {
    let Some(adapter) = adapter() else { return };
    for (first, (case, pieces)) in [
        (0, (MIXERS[0], Pieces::Adaptive)),
        (3, (MIXERS[0], Pieces::Layers(2))),
        (6, (MIXERS[1], Pieces::Layers(16))),
    ] {
        let slots = opened(case).1.moe.top_k + 2;
        let (disk, simulator) = Disk::new(3);
        let mut engine = with_pieces(&adapter, case, slots, pieces, Some(simulator));
        let expected = request(&mut engine).unwrap();
        disk.late.store(1500, Ordering::SeqCst);
        assert!(request(&mut engine).unwrap() == expected, "{case}, {pieces:?}: late reads");
        disk.late.store(0, Ordering::SeqCst);
        let mut failed = 0;
        let step = if is_campaign() {
            10
        } else if is_long() {
            20
        } else {
            60
        };
        for number in (first..).step_by(step) {
            disk.until.store(number, Ordering::SeqCst);
            let found = request(&mut engine);
            let fired = disk.until.swap(-1, Ordering::SeqCst) < 0;
            let context = format!("{case}, {pieces:?}, read {number}");
            match found {
                Ok(bits) => assert!(bits == expected, "{context}"),
                Err(EngineError::Store(StoreError::Read { cause, .. })) => {
                    assert!(matches!(cause, ReadCause::System(5)), "{context}: {cause}");
                    failed += 1;
                }
                Err(other) => panic!("{context}: {other}"),
            }
            if !fired {
                break;
            }
            assert!(request(&mut engine).unwrap() == expected, "{context}: the next request");
        }
        assert!(
            failed > if is_long() { 4 } else { 1 },
            "{case}, {pieces:?}: {failed} requests failed"
        );
    }
}

/// What has been asked for again after a failed read is computed then; nothing of the failed attempt is left.
#[test]
fn a_step_whose_read_failed_can_be_asked_for_again() {
    let Some(adapter) = adapter() else { return };
    let (case, pieces) = (MIXERS[0], Pieces::Layers(16));
    let slots = opened(case).1.moe.top_k + 2;
    let (disk, simulator) = Disk::new(5);
    let mut engine = with_pieces(&adapter, case, slots, pieces, Some(simulator));
    let expected = request(&mut engine).unwrap();
    let vocabulary = expected.len() / STEPS;
    for number in 0..3 {
        let (sequence, token) = prompted(&mut engine, &PROMPT).unwrap();
        engine.forward(&[Run { sequence, tokens: &[token] }], &Uncancelled).unwrap();
        disk.until.store(number, Ordering::SeqCst);
        let found = engine.logits(&[0]).map(|logits| logits.to_vec());
        disk.until.store(-1, Ordering::SeqCst);
        assert!(matches!(found, Err(EngineError::Store(_))), "read {number}: no error");
        let again = engine.logits(&[0]).unwrap().iter().map(|value| value.to_bits());
        assert!(again.eq(expected[..vocabulary].iter().copied()), "read {number}");
        engine.drop_sequence(sequence);
    }
}

/// Steps whose result nothing has asked for are part of their sequences all the same.
#[test]
fn steps_that_nothing_asked_for_are_ended_before_the_next_begins() {
    let Some(adapter) = adapter() else { return };
    for case in STEPPED {
        let slots = opened(case).1.moe.top_k + 2;
        let mut whole = engine(&adapter, case, ALL, KvType::F16, CHUNK);
        let mut few = engine(&adapter, case, slots, KvType::F16, CHUNK);
        let [expected, found] = [&mut whole, &mut few].map(|engine| {
            let (sequence, _) = prompted(engine, &PROMPT).unwrap();
            for token in [3, 14, 15] {
                engine.forward(&[Run { sequence, tokens: &[token] }], &Uncancelled).unwrap();
            }
            let snapshot = engine.backend().snapshot(sequence, None).unwrap();
            engine.forward(&[Run { sequence, tokens: &[9] }], &Uncancelled).unwrap();
            engine.drop_sequence(sequence);
            let sequence = engine.create_sequence().unwrap();
            engine.backend().restore(sequence, &snapshot).unwrap();
            engine.forward(&[Run { sequence, tokens: &[26] }], &Uncancelled).unwrap();
            engine.logits(&[0]).unwrap().iter().map(|value| value.to_bits()).collect::<Vec<_>>()
        });
        assert!(found == expected, "{case}");
    }
}

#[test]
fn the_host_waits_once_a_token_where_nothing_is_missing() {
    let Some(adapter) = adapter() else { return };
    for case in STEPPED {
        let config = opened(case).1;
        let [_, records] = all_records(&config);
        // A slot less than records: misses are possible, but the same token soon has its experts in slots.
        for slots in [ALL, records - 1] {
            let mut engine = engine(&adapter, case, slots, KvType::F16, CHUNK);
            let (sequence, _) = prompted(&mut engine, &PROMPT).unwrap();
            let mut quiet = 0;
            for _ in 0..24 {
                let before = engine.counters();
                engine.forward(&[Run { sequence, tokens: &[7] }], &Uncancelled).unwrap();
                engine.most_likely(0).unwrap().unwrap();
                let spent = engine.counters().since(&before);
                let QueueCounters { dispatches, submissions, waits, .. } = spent.device.queue;
                if spent.device.copied == 0 && quiet > 0 {
                    assert!(waits <= 1, "{case}, {slots} slots: {waits}");
                    assert!(dispatches < 25 * config.layers.len() as u64, "{case}: {dispatches}");
                    // Handed over after 8, 16, 32 and 64 launches, so that the device begins early.
                    assert!(submissions <= 4, "{case}, {slots} slots: {submissions}");
                }
                quiet += u64::from(spent.device.copied == 0);
            }
            assert!(quiet > 4, "{case}, {slots} slots: {quiet} steps without a miss");
        }
    }
}

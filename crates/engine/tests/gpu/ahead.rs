//! The next step is recorded while the one before runs: a token's bits are those of a prompt, which nothing is recorded
//! ahead for, whether the recording was used, or was dropped because another sequence, another position or another
//! number of answers came, or was never asked for.

use engine::backend::cpu::KvType;
use engine::backend::gpu::Adapter;
use engine::backend::{Run, SequenceId, Uncancelled};
use engine::engine::Engine;

use super::long::part_from;
use super::support::{ALL, CHUNK, MIXERS, adapter, engine};

/// An adapter without matrices: by these a prompt has other bits.
fn plain_adapter() -> Option<Adapter> {
    let mut adapter = adapter()?;
    adapter.matrices = false;
    Some(adapter)
}

/// Token `at` of a text.
fn token(text: u32, at: usize) -> u32 {
    (at as u32 * 7 + text * 13 + 5) % 61
}

fn tokens(text: u32, length: usize) -> Vec<u32> {
    (0..length).map(|at| token(text, at)).collect()
}

/// The logits behind a prompt, as bits.
fn prompted(engine: &mut Engine, tokens: &[u32]) -> (SequenceId, Vec<u32>) {
    let sequence = engine.create_sequence().unwrap();
    let mut last = 0;
    let mut each = |_: &mut Engine, _, length| {
        last = length - 1;
        Ok(())
    };
    engine.prefill(sequence, tokens, &Uncancelled, &mut |_| {}, &mut each).unwrap();
    (sequence, logits(engine, last))
}

fn logits(engine: &mut Engine, at: usize) -> Vec<u32> {
    engine.logits(&[at]).unwrap().iter().map(|value| value.to_bits()).collect()
}

/// Answers whose every token is compared with a prompt's.
struct Answers {
    engine: Engine,
    plain: Engine,
    context: String,
}

impl Answers {
    fn new(adapter: &Adapter, case: &str) -> Self {
        let [engine, plain] = [0; 2].map(|_| engine(adapter, case, ALL, KvType::F16, CHUNK));
        Self { engine, plain, context: case.to_owned() }
    }

    fn open(&mut self, text: u32, length: usize) -> (SequenceId, u32, usize) {
        let (sequence, _) = prompted(&mut self.engine, &tokens(text, length));
        (sequence, text, length)
    }

    /// A step of some answers: compares all of them, and says how many of the dispatches were recorded ahead.
    fn step(&mut self, of: &mut [&mut (SequenceId, u32, usize)]) -> (u64, u64) {
        let next: Vec<_> = of.iter().map(|(_, text, length)| [token(*text, *length)]).collect();
        let runs = of.iter().zip(&next);
        let runs: Vec<_> =
            runs.map(|(answer, tokens)| Run { sequence: answer.0, tokens }).collect();
        let before = self.engine.counters();
        self.engine.forward(&runs, &Uncancelled).unwrap();
        let first = logits(&mut self.engine, 0);
        let spent = self.engine.counters().since(&before).device.queue;
        for (at, answer) in of.iter_mut().enumerate() {
            answer.2 += 1;
            let found = if at == 0 { first.clone() } else { logits(&mut self.engine, at) };
            let (sequence, expected) = prompted(&mut self.plain, &tokens(answer.1, answer.2));
            self.plain.drop_sequence(sequence);
            let (context, text, length) = (&self.context, answer.1, answer.2);
            assert!(found == expected, "{context}: text {text} of {length}");
        }
        (spent.ahead, spent.dispatches)
    }
}

#[test]
fn what_was_recorded_ahead_and_what_was_dropped_leave_the_same_bits() {
    let Some(adapter) = plain_adapter() else { return };
    for case in part_from(0, MIXERS, 3) {
        let mut all = Answers::new(&adapter, case);
        let (mut one, mut two) = (all.open(1, 20), all.open(2, 33));
        for _ in 0..2 {
            assert_eq!(all.step(&mut [&mut one]).0, 0, "{case}: two steps have to be alike");
        }
        for _ in 0..3 {
            let (ahead, dispatches) = all.step(&mut [&mut one]);
            assert!((1..=dispatches).contains(&ahead), "{case}: {ahead} of {dispatches}");
        }
        // Another sequence comes.
        let (ahead, dispatches) = all.step(&mut [&mut two]);
        assert!(ahead < dispatches, "{case}: {ahead} of {dispatches}");
        for _ in 0..4 {
            all.step(&mut [&mut one]);
        }
        // Another position of the same sequence comes.
        let snapshot = all.engine.backend().snapshot(one.0, None).unwrap();
        let kept = one;
        for _ in 0..3 {
            all.step(&mut [&mut one]);
        }
        all.engine.backend().restore(one.0, &snapshot).unwrap();
        one = kept;
        let (ahead, dispatches) = all.step(&mut [&mut one]);
        assert!(ahead < dispatches, "{case}: {ahead} of {dispatches}");
        // Another number of answers comes, again and again.
        for _ in 0..4 {
            all.step(&mut [&mut one, &mut two]);
        }
        all.step(&mut [&mut two, &mut one]);
        for _ in 0..3 {
            all.step(&mut [&mut two]);
        }
        // Nothing asks for a step, and its sequence goes on; a prompt comes between; a token is drawn.
        let tokens = [token(2, two.2)];
        let run = Run { sequence: two.0, tokens: &tokens };
        all.engine.forward(&[run], &Uncancelled).unwrap();
        two.2 += 1;
        for _ in 0..3 {
            all.step(&mut [&mut two]);
        }
        let mut three = all.open(3, 9);
        all.step(&mut [&mut two]);
        all.step(&mut [&mut two]);
        let tokens = [token(2, two.2)];
        let run = Run { sequence: two.0, tokens: &tokens };
        all.engine.forward(&[run], &Uncancelled).unwrap();
        all.engine.most_likely(0).unwrap().unwrap();
        two.2 += 1;
        // The sequence is dropped and its place is another's.
        for _ in 0..3 {
            all.step(&mut [&mut three]);
        }
        all.engine.drop_sequence(three.0);
        let mut three = all.open(4, 12);
        for answer in [&mut three, &mut two, &mut one] {
            all.step(&mut [answer]);
        }
    }
}

/// The number of a token's launches, and of their workgroups, changes where another block of positions begins.
#[test]
fn blocks_of_attention_begin_where_one_less_was_expected() {
    let Some(adapter) = plain_adapter() else { return };
    for case in part_from(1, MIXERS, 3) {
        let mut all = Answers::new(&adapter, case);
        for length in [61, 125] {
            let mut one = all.open(1, length);
            let steps: Vec<_> = (0..7).map(|_| all.step(&mut [&mut one])).collect();
            assert!(steps.iter().any(|(ahead, _)| *ahead > 0), "{case}: {steps:?}");
            all.engine.drop_sequence(one.0);
        }
    }
}

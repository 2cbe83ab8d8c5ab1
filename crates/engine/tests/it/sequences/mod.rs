//! Texts, and the bits of a sequence's logits however it was computed: what tests of sequences share.

use engine::backend::{SequenceId, Snapshot, Uncancelled};
use engine::engine::Engine;

/// `length` token ids below 60.
pub(crate) fn text(seed: u32, length: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % 60
    };
    (0..length).map(|_| next()).collect()
}

/// Logits after the pass's token `token`.
pub(crate) fn bits(engine: &mut Engine, token: usize) -> Vec<u32> {
    engine.logits(&[token]).unwrap().iter().map(|value| value.to_bits()).collect()
}

/// Logits after `tokens`, which go on a sequence.
pub(crate) fn feed(engine: &mut Engine, sequence: SequenceId, tokens: &[u32]) -> Vec<u32> {
    let mut last = 0;
    let each = &mut |_: &mut Engine, _, length| {
        last = length - 1;
        Ok(())
    };
    engine.prefill(sequence, tokens, &Uncancelled, &mut |_| {}, each).unwrap();
    bits(engine, last)
}

/// Logits after `tokens`, computed alone.
pub(crate) fn alone(engine: &mut Engine, tokens: &[u32]) -> Vec<u32> {
    let sequence = engine.create_sequence().unwrap();
    let bits = feed(engine, sequence, tokens);
    engine.drop_sequence(sequence);
    bits
}

/// Logits after `rest`, which goes on from a snapshot.
pub(crate) fn resumed(engine: &mut Engine, from: &Snapshot, rest: &[u32]) -> Vec<u32> {
    let sequence = engine.create_sequence().unwrap();
    engine.backend().restore(sequence, from).unwrap();
    let bits = feed(engine, sequence, rest);
    engine.drop_sequence(sequence);
    bits
}

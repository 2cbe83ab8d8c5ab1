//! Layers with a window keep its rows alone: an answer so long that places are made free again, from prompts cut
//! anywhere and from snapshots, has the bits of the whole text as one prompt.

use engine::backend::cpu::KvType;
use engine::backend::{Run, Uncancelled};
use engine::engine::Engine;

use super::long::part_from;
use super::sequences::{alone, bits, feed, text};
use super::support::{ALL, CHUNK, adapter, engine};

const CASE: &str = "gptoss-calm-mxfp4";

fn answer(engine: &mut Engine, sequence: engine::backend::SequenceId, tokens: &[u32]) {
    for token in tokens.chunks(1) {
        engine.forward(&[Run { sequence, tokens: token }], &Uncancelled).unwrap();
    }
}

#[test]
fn long_answers_have_the_bits_of_a_prompt() {
    let Some(adapter) = adapter() else { return };
    let types = [KvType::F16, KvType::Q8].into_iter().enumerate();
    for (number, kv_type) in part_from(1, types, 2) {
        let mut engine = engine(&adapter, CASE, ALL, kv_type, CHUNK);
        // A place of the case has 256 rows: it is made free twice.
        let tokens = text(31, 480);
        let expected = alone(&mut engine, &tokens);
        for prompt in part_from(number, [50, 1, 200], 3) {
            let sequence = engine.create_sequence().unwrap();
            feed(&mut engine, sequence, &tokens[..prompt]);
            answer(&mut engine, sequence, &tokens[prompt..300]);
            let snapshot = engine.backend().snapshot(sequence, None).unwrap();
            answer(&mut engine, sequence, &tokens[300..]);
            assert!(bits(&mut engine, 0) == expected, "{kv_type}, behind a prompt of {prompt}");
            engine.backend().restore(sequence, &snapshot).unwrap();
            answer(&mut engine, sequence, &tokens[300..]);
            assert!(
                bits(&mut engine, 0) == expected,
                "{kv_type}, from a snapshot, behind {prompt}"
            );
            engine.drop_sequence(sequence);
        }
    }
}

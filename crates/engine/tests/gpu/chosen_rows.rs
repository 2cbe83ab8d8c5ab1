//! Latent attention to the rows that an indexer chooses: neither chunks nor what is scored together, neither snapshots
//! nor batches put aside show in a bit, in texts that are longer than the budget of rows.

use engine::backend::cpu::KvType;
use engine::backend::gpu::{GpuOptions, Pieces};
use engine::backend::{PAGE_TOKENS, Run, Uncancelled};
use engine::engine::Engine;
use engine::routing::Routing;

use super::long::part_from;
use super::sequences::{alone, bits, feed, resumed, text};
use super::support::{ALL, CHUNK, adapter, engine, engine_cut, engine_with, limits};
use super::{all_logits, started_aside};

/// Every layer chooses 13 rows; two layers choose 17, and two see what the one before chose.
const CASES: [&str; 2] = ["dsv32-calm-hf", "glm5-calm-hf"];

/// Feeds tokens one by one, as an answer.
fn answer(engine: &mut Engine, sequence: engine::backend::SequenceId, tokens: &[u32]) {
    for token in tokens.chunks(1) {
        engine.forward(&[Run { sequence, tokens: token }], &Uncancelled).unwrap();
    }
}

#[test]
fn chunks_around_the_budget_show_in_no_bit() {
    let Some(adapter) = adapter() else { return };
    let tokens = text(41, 70);
    for (number, case) in CASES.into_iter().enumerate() {
        let kv_type = [KvType::F32, KvType::F16][number];
        let whole = all_logits(&mut engine(&adapter, case, ALL, kv_type, CHUNK), &tokens);
        for chunk in part_from(number, 1..=17, 6) {
            let found = all_logits(&mut engine(&adapter, case, ALL, kv_type, chunk), &tokens);
            assert!(found == whole, "{case}, chunks of {chunk}");
        }
        // So long a context that scores of a few tokens alone are made at once, and one in which no token chooses.
        let of = |context: usize, tokens: &[u32]| {
            let limits =
                GpuOptions { context, sequences: 1, ..limits(case, kv_type, Pieces::Adaptive) };
            all_logits(&mut engine_with(&adapter, case, ALL, limits, None, CHUNK).0, tokens)
        };
        assert!(of(1 << 19, &tokens) == whole, "{case}: a long context");
        // The later layers on a device of their own: two see what an earlier one chose.
        let limits = limits(case, kv_type, Pieces::Adaptive);
        let mut cut = engine_cut(&adapter, case, &[1], ALL, &limits, &Routing::default());
        assert!(all_logits(&mut cut, &tokens) == whole, "{case}: two parts");
        let few = &tokens[..13];
        assert!(of(13, few)[..] == whole[..whole.len() / 70 * 13], "{case}: a short context");
    }
}

#[test]
fn warm_answers_have_the_bits_of_cold_ones() {
    let Some(adapter) = adapter() else { return };
    for (number, case) in CASES.into_iter().enumerate() {
        let kv_type = [KvType::F16, KvType::F32][number];
        let mut engine = engine(&adapter, case, ALL, kv_type, CHUNK);
        let (trunk, rest) = (text(42, PAGE_TOKENS + 40), text(43, 21));
        for cut in part_from(number, [5, PAGE_TOKENS, PAGE_TOKENS + 31], 2) {
            let expected = alone(&mut engine, &[&trunk[..cut], &rest[..]].concat());
            let sequence = engine.create_sequence().unwrap();
            feed(&mut engine, sequence, &trunk[..cut - 3]);
            answer(&mut engine, sequence, &trunk[cut - 3..cut]);
            let snapshot = engine.backend().snapshot(sequence, None).unwrap();
            answer(&mut engine, sequence, &rest);
            assert!(bits(&mut engine, 0) == expected, "{case}: an answer behind {cut}");
            // Where the place has other tokens' index keys, and where it is another.
            engine.backend().restore(sequence, &snapshot).unwrap();
            answer(&mut engine, sequence, &rest);
            assert!(bits(&mut engine, 0) == expected, "{case}: back to {cut}");
            assert!(resumed(&mut engine, &snapshot, &rest) == expected, "{case}: from {cut}");
            let mut file = Vec::new();
            (0..snapshot.full_pages()).for_each(|at| snapshot.write_page(at, &mut file).unwrap());
            snapshot.write_rest(&mut file).unwrap();
            engine.drop_sequence(sequence);
            drop(snapshot);
            alone(&mut engine, &text(44, PAGE_TOKENS + 50));
            let read = engine.backend().read_snapshot(cut, &mut file.as_slice()).unwrap();
            assert!(resumed(&mut engine, &read, &rest) == expected, "{case}: a file of {cut}");
        }
    }
}

/// Layer by layer, with another prompt between: what a layer chose is there for those that see the same.
#[test]
fn choices_of_a_batch_that_is_put_aside_stay() {
    let Some(adapter) = adapter() else { return };
    for case in CASES {
        let mut engine = engine(&adapter, case, ALL, KvType::F16, CHUNK);
        let texts = [text(45, 50), text(46, 50)];
        let expected = texts.each_ref().map(|tokens| alone(&mut engine, tokens));
        let (_, mut passes) = started_aside(&mut engine, &texts);
        let mut open = [true, true];
        while open.contains(&true) {
            for index in 0..2 {
                if open[index] {
                    open[index] = !engine.advance(&mut passes[index], &Uncancelled).unwrap();
                    match open[index] {
                        true => assert!(engine.put_aside(&mut passes[index])),
                        false => {
                            let found = bits(&mut engine, 49);
                            assert!(found == expected[index], "{case}: text {index}");
                        }
                    }
                }
            }
        }
    }
}

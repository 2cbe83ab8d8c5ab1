//! Goal: layers spread over several stages on NVIDIA GPUs give what one gives, to the bit. Method: as in `stages.rs`:
//! every cut of golden nets behind a layer with experts, with all experts in device memory and with few, with rounds,
//! guesses and a generator's routing; stages on one GPU, and on all that there are. On a machine with a GPU:
//! `cargo test -p flashmoe-engine --test it -- --ignored stages_cuda`.

use engine::backend::cpu::KvType;
use engine::backend::cuda::Prediction;
use engine::backend::{Run, Uncancelled};
use engine::drafts::ROUND_TOKENS;
use engine::engine::Engine;
use engine::routing::Routing;

use crate::nvidia::{On, devices, ends, engine_on, opened};
use crate::rounds_cuda::CASES;
use crate::sequences::{alone, bits, feed, text};
use crate::stages::{give_up_before, refuses_wrong_runs, seen};

/// Every cut into two, and the one into as many stages as layers allow.
fn cuts(case: &str) -> Vec<Vec<usize>> {
    let ends = ends(case);
    let mut cuts: Vec<Vec<usize>> = ends.iter().map(|&end| vec![end]).collect();
    cuts.extend(Some(ends).filter(|ends| ends.len() > 1));
    cuts
}

/// Steps of one answer, eager ones and replayed ones, and of three; as bits.
fn answers(engine: &mut Engine) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    let sequences = [20, 31, 1].map(|length| {
        let sequence = engine.create_sequence().unwrap();
        all.push(feed(engine, sequence, &text(length as u32, length)));
        sequence
    });
    for token in 0..6 {
        engine.forward(&[Run { sequence: sequences[0], tokens: &[token] }], &Uncancelled).unwrap();
        all.push(bits(engine, 0));
    }
    for token in 0..4 {
        let tokens = [token, token + 9, token + 5].map(|token| [token]);
        let runs = [0, 1, 2].map(|it| Run { sequence: sequences[it], tokens: &tokens[it] });
        engine.forward(&runs, &Uncancelled).unwrap();
        all.extend((0..3).map(|token| bits(engine, token)));
        // Whole steps: nothing asks for the logits of every other.
        engine.forward(&runs, &Uncancelled).unwrap();
    }
    // A step is counted once its end was awaited.
    all.extend((0..3).map(|token| bits(engine, token)));
    sequences.into_iter().for_each(|sequence| engine.drop_sequence(sequence));
    all
}

fn compare(case: &str, on: &On<'_>, cuts: &[Vec<usize>]) {
    let all = |engine: &mut Engine| {
        let mut all = answers(engine);
        if on.round_tokens > 1 {
            all.extend(seen(engine));
        }
        all
    };
    let mut one = engine_on(case, on);
    let expected = all(&mut one);
    let counted = one.counters();
    drop(one);
    for cuts in cuts {
        let what = format!("{case} {} 1 of {}: stages from {cuts:?}", on.kv_type, on.part);
        let mut cut = engine_on(case, &On { cuts, ..on.clone() });
        let found = all(&mut cut);
        assert_eq!(found.len(), expected.len(), "{what}");
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(found == expected, "{what}: number {index} of what is seen");
        }
        // A stage all of whose experts have slots counts choices, one that can miss counts records: in a step of
        // several tokens they differ, and with few slots a stage may be either.
        if on.part == 1 {
            let counters = cut.counters();
            assert_eq!(counters.decode.requests, counted.decode.requests, "{what}");
            assert_eq!(counters.prefill.requests, counted.prefill.requests, "{what}");
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_cut_on_one_gpu_gives_what_it_gives_alone() {
    for case in CASES {
        for part in [1, 3] {
            compare(case, &On { part, ..On::one() }, &cuts(case));
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn so_it_does_with_rounds_snapshots_and_passes_put_aside() {
    for case in CASES {
        for part in [1, 3] {
            let on = On { part, round_tokens: ROUND_TOKENS, ..On::one() };
            compare(case, &on, &cuts(case));
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn so_it_does_over_other_caches() {
    for (kv_type, case) in
        [(KvType::Q8, CASES[1]), (KvType::F32, CASES[7]), (KvType::Fp8 { rotated: 16 }, CASES[7])]
    {
        compare(case, &On { kv_type, round_tokens: ROUND_TOKENS, ..On::one() }, &cuts(case));
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn neither_guesses_nor_a_generator_show_a_cut() {
    for case in [CASES[1], CASES[4], CASES[5]] {
        let config = opened(case).1;
        let generator = Routing::calibrated(5, config.layers.len(), config.moe.experts);
        for (prediction, routing) in [
            (Prediction::On, Routing::default()),
            (Prediction::Off, generator.clone()),
            (Prediction::On, generator),
        ] {
            compare(case, &On { part: 3, prediction, routing, ..On::one() }, &cuts(case));
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn stages_on_several_gpus_give_what_one_gives() {
    if devices() < 2 {
        return;
    }
    for case in CASES {
        for part in [1, 3] {
            let on = On { part, round_tokens: ROUND_TOKENS, ..On::one() };
            let expected = seen(&mut engine_on(case, &on));
            for cuts in cuts(case) {
                let cut = On { cuts: &cuts, spread: true, ..on.clone() };
                let found = seen(&mut engine_on(case, &cut));
                assert!(found == expected, "{case}, 1 of {part}: stages from {cuts:?}");
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_batch_given_up_in_the_first_stage_leaves_the_second_as_it_was() {
    for case in [CASES[1], CASES[7]] {
        let cuts = cuts(case);
        let mut engine = engine_on(case, &On { cuts: &cuts[0], part: 3, ..On::one() });
        let whole = text(1, 50);
        let expected = alone(&mut engine, &whole);
        let step = |engine: &mut Engine, token| {
            let sequence = engine.create_sequence().unwrap();
            feed(engine, sequence, &whole[..20]);
            engine.forward(&[Run { sequence, tokens: &[token] }], &Uncancelled).unwrap();
            let found = bits(engine, 0);
            engine.drop_sequence(sequence);
            found
        };
        let of_step = step(&mut engine, 5);
        for layers in 1..3 {
            give_up_before(&mut engine, layers);
            assert!(alone(&mut engine, &whole) == expected, "{case}: given up before {layers}");
            assert!(step(&mut engine, 5) == of_step, "{case}: a step behind it");
        }
        let sequence = engine.create_sequence().unwrap();
        refuses_wrong_runs(&mut engine, sequence);
    }
}

//! Tokens drawn on the device are those that the host draws from the same logits.

use engine::backend::cpu::KvType;
use engine::backend::{Run, Uncancelled};
use text::sampling::{Mask, Sampler, SamplingOptions};

use super::support::{ALL, CHUNK, adapter, engine, mixers, opened};

#[test]
fn the_device_draws_what_the_host_would() {
    let Some(adapter) = adapter() else { return };
    for case in mixers(0) {
        let config = opened(case).1;
        for slots in [ALL, config.moe.top_k + 2] {
            let mut engine = engine(&adapter, case, slots, KvType::F16, CHUNK);
            let sequences = [0; 3].map(|_| engine.create_sequence().unwrap());
            let options = |top_k, seed| SamplingOptions {
                temperature: 1.3,
                top_k,
                top_p: 0.98,
                seed,
                ..SamplingOptions::default()
            };
            let samplers = |options: SamplingOptions| {
                [0; 2].map(|_| Sampler::new(options.clone(), config.vocabulary).unwrap())
            };
            let mut tokens = [3u32, 14, 15];
            for step in 0..8 {
                let runs = [0, 1, 2].map(|at| Run {
                    sequence: sequences[at],
                    tokens: std::slice::from_ref(&tokens[at]),
                });
                engine.forward(&runs, &Uncancelled).unwrap();
                let context = format!("{case}, {slots} slots, step {step}");
                let mut next = tokens;
                for (at, next) in next.iter_mut().enumerate() {
                    let [mut ours, mut theirs] = samplers(options(5 + 20 * at, step));
                    let [mut greedy, mut first] = samplers(SamplingOptions::greedy());
                    // Each way comes first in turn: it is what waits for the step.
                    let mut both = [None, None];
                    for way in [step as usize % 2, 1 - step as usize % 2] {
                        let sampler = if way == 0 { &mut greedy } else { &mut ours };
                        both[way] = Some(engine.draw(at, sampler, None).unwrap().unwrap());
                    }
                    // The most likely is forbidden, and every ninth token: 64 leave enough for a top-k of 45.
                    let not = [both[0].unwrap()]
                        .into_iter()
                        .chain((0..config.vocabulary as u32).step_by(9));
                    let mask = Mask::all(config.vocabulary).without(&not.collect::<Vec<_>>());
                    let [mut ours, mut masked] = samplers(options(5 + 20 * at, step));
                    let under = [&mut greedy, &mut ours]
                        .map(|sampler| engine.draw(at, sampler, Some(&mask)).unwrap().unwrap());
                    let mut logits = engine.logits(&[at]).unwrap().to_vec();
                    for (sampler, found) in [&mut first, &mut masked].into_iter().zip(under) {
                        let row = &mut logits.clone();
                        let expected = sampler.sample_allowed(row, &[], Some(&mask)).unwrap().token;
                        assert_eq!(found, expected, "{context}: under a mask");
                    }
                    let expected = first.sample(&mut logits.clone(), &[]).unwrap().token;
                    assert_eq!(both[0], Some(expected), "{context}: most likely");
                    let expected = theirs.sample(&mut logits, &[]).unwrap().token;
                    assert_eq!(both[1], Some(expected), "{context}: top-k");
                    *next = expected;
                }
                tokens = next;
            }
        }
    }
}

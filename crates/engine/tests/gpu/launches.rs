//! Goal: a change of how operations become launches changes no launch. Method: every launch of prompts, an answer and
//! several answers of each golden net is written to the file that `FLASHMOE_LAUNCHES` names, by two builds on one
//! machine, and the files are compared (`cargo test --test gpu launches -- --ignored`). All experts have slots: what is
//! launched where some are missing depends on when reads end.

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use engine::backend::gpu::{Gpu, Pieces};
use engine::backend::{Run, Uncancelled};
use engine::routing::Routing;
use store::cache::{SlotBudget, StorageMode, StoreOptions};

use super::CASES;
use super::sequences::{bits, feed, text};
use super::support::{ALL, CHUNK, adapter, engine_on, limits, opened};
use engine::backend::cpu::KvType;

/// Lengths of the prompts: one token, few, a chunk and more than one.
const PROMPTS: [usize; 6] = [1, 2, 7, 9, CHUNK, CHUNK + 19];
/// Steps behind each prompt.
const STEPS: u32 = 12;

#[test]
#[ignore = "writes a file that two builds are compared by"]
fn launches_are_written_down() {
    let path = std::env::var_os("FLASHMOE_LAUNCHES").expect("FLASHMOE_LAUNCHES names a file");
    let Some(adapter) = adapter() else { return };
    let all = Arc::new(Mutex::new(String::new()));
    for (case, _) in CASES {
        for kv_type in [KvType::F32, KvType::F16] {
            let mut gpu = Gpu::open(adapter.clone()).unwrap();
            let seen = Arc::clone(&all);
            gpu.observe_launches(move |launch| {
                writeln!(seen.lock().unwrap(), "{launch:?}").unwrap();
            });
            let note = |what: String| writeln!(all.lock().unwrap(), "# {what}").unwrap();
            let minimum = 3 * opened(case).1.moe.top_k;
            let mut options = StoreOptions::new(StorageMode::Budget, minimum);
            options.slots = SlotBudget::Steps(1);
            let limits = limits(case, kv_type, Pieces::Adaptive);
            let routing = Routing::default();
            let mut engine = engine_on(gpu, opened(case), ALL, limits, options, CHUNK, routing).0;
            for (seed, length) in PROMPTS.into_iter().enumerate() {
                note(format!("{case} {kv_type}: a prompt of {length}"));
                let sequence = engine.create_sequence().unwrap();
                feed(&mut engine, sequence, &text(seed as u32, length));
                for token in 0..STEPS {
                    note(format!("{case} {kv_type}: a step"));
                    engine.forward(&[Run { sequence, tokens: &[token] }], &Uncancelled).unwrap();
                    bits(&mut engine, 0);
                }
                engine.drop_sequence(sequence);
            }
            let sequences = [0, 1, 2].map(|_| engine.create_sequence().unwrap());
            for token in 0..STEPS {
                note(format!("{case} {kv_type}: a step of several"));
                let tokens = &[token];
                let runs = sequences.map(|sequence| Run { sequence, tokens });
                engine.forward(&runs, &Uncancelled).unwrap();
                bits(&mut engine, 2);
            }
        }
    }
    std::fs::write(path, &*all.lock().unwrap()).unwrap();
}

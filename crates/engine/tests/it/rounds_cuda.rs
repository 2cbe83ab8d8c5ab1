//! Goal: rounds on an NVIDIA GPU leave the bits of single steps there. Method: as in `rounds.rs`, every length of a
//! round with every number of kept tokens, wrong drafts behind those, with all experts in device memory and with few;
//! snapshots in between, which have what was kept applied, and prompts behind. Without a GPU nothing is compared,
//! unless FLASHMOE_CUDA_TESTS says that there is one.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use engine::backend::cpu::KvType;
use engine::backend::cuda::{
    self, CudaBackend, CudaOptions, ExpertMemory, Prediction, SlotShare, check_model,
};
use engine::backend::{PAGE_TOKENS, Run, SequenceId, Uncancelled};
use engine::drafts::ROUND_TOKENS;
use engine::engine::Engine;
use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::model::mixture::expert_shapes;
use engine::routing::Routing;
use engine::weights::Catalog;
use store::cache::{ExpertStore, SlotBudget, StorageMode, StoreOptions, StorePlan};
use store::trunk::LoadMode;

use crate::processor::file_of;
use crate::sequences::{bits, feed, text};

/// Delta layers of three forms, attention alone, windows, latent rows, compressed rows, heads of two shapes.
const CASES: [&str; 9] = [
    "qwen35-calm-hf",
    "qwen35-calm-mlx-mixed",
    "qwen35-calm-mlxlm-4bit",
    "qwen3next-calm-hf",
    "qwen3-calm-hf",
    "gptoss-calm-mxfp4",
    "glm-flash-calm-mlxlm-4bit",
    "dsv4-calm-hf",
    "gemma4-calm-hf",
];
const CONTEXT: usize = 640;
/// So that rounds cross the end of a page.
const PROMPT: usize = PAGE_TOKENS - 45;
/// Tokens behind all rounds.
const BEHIND: usize = 70;

fn is_there() -> bool {
    match cuda::probe(0) {
        Ok(_) => true,
        Err(error) => {
            assert!(std::env::var_os("FLASHMOE_CUDA_TESTS").is_none(), "no GPU: {error}");
            false
        }
    }
}

/// Where the golden checkpoints lie: the crate's folder at run time, where it was told, for binaries that travel.
fn golden() -> PathBuf {
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    folder.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into()).join("../../tests/golden")
}

/// An engine with rounds of so many tokens, and with a slot for one of `part` records.
fn engine_of(case: &str, kv_type: KvType, round_tokens: usize, part: usize) -> Engine {
    let checkpoint = Arc::new(store::format::open(&golden().join(case).join("model")).unwrap());
    let config = ModelConfig::read(&checkpoint.config).unwrap();
    let mut catalog = Catalog::new(&checkpoint);
    let model = Model::declare(&config, &mut catalog).unwrap();
    let shapes = expert_shapes(&checkpoint, &config).unwrap();
    check_model(&config, &model.program, &catalog, &shapes).unwrap();
    let mut options = StoreOptions::new(StorageMode::Budget, 3 * config.moe.top_k);
    options.slots = SlotBudget::Steps(1);
    let records = StorePlan::resident(&checkpoint).unwrap();
    let slot_bytes = records.classes.iter().map(|class| class.slot_bytes).max().unwrap();
    let memory = ExpertMemory {
        store: Arc::new(ExpertStore::open(checkpoint.clone(), options).unwrap()),
        slot_bytes,
        device_slots: SlotShare::fixed(records.experts() / part),
        progress: None,
    };
    let limits = CudaOptions {
        batch_tokens: 64,
        logit_rows: 8,
        sequences: 3,
        snapshots: 6,
        snapshot_pages: 24,
        context: CONTEXT,
        kv_type,
        top_k: config.moe.top_k,
        prediction: Prediction::Off,
        round_tokens,
    };
    let mut routing = Routing::default();
    routing.set_routers(model.program.routers(), model.program.router_biases());
    let backend = CudaBackend::new(
        config.clone(),
        &catalog,
        LoadMode::Read,
        memory,
        &shapes,
        routing,
        0,
        limits,
        &mut |_| ControlFlow::Continue(()),
    );
    Engine::new(config, model, Box::new(backend.unwrap()), 64)
}

/// What single steps leave after each token: bits of its logits, and the file of a snapshot.
struct Steps {
    tokens: Vec<u32>,
    logits: Vec<Vec<u32>>,
    files: Vec<Vec<u8>>,
    /// Logits of a prompt behind all of them.
    behind: Vec<u32>,
}

fn single_steps(engine: &mut Engine, count: usize) -> Steps {
    let tokens = text(71, count);
    let sequence = engine.create_sequence().unwrap();
    feed(engine, sequence, &text(70, PROMPT));
    let (mut logits, mut files) = (Vec::new(), Vec::new());
    for token in &tokens {
        let run = Run { sequence, tokens: std::slice::from_ref(token) };
        engine.step(&[run], &Uncancelled).unwrap();
        logits.push(bits(engine, 0));
        files.push(file_of(&engine.backend().snapshot(sequence, None).unwrap()));
    }
    let behind = feed(engine, sequence, &text(74, BEHIND));
    engine.drop_sequence(sequence);
    Steps { tokens, logits, files, behind }
}

impl Steps {
    /// A round of `tokens` from `at` on: the first `right` are those that the steps had.
    fn round(&self, at: usize, tokens: usize, right: usize) -> Vec<u32> {
        let token = |place| {
            let token = self.tokens.get(at + place).copied().unwrap_or(5);
            if place < right { token } else { (token + 1 + place as u32) % 60 }
        };
        (0..tokens).map(token).collect()
    }

    fn check_file(&self, engine: &mut Engine, sequence: SequenceId, at: usize, what: &str) {
        let file = file_of(&engine.backend().snapshot(sequence, None).unwrap());
        assert!(file == self.files[at - 1], "{what}: a snapshot after {at} tokens");
    }
}

fn check_splits(case: &str, kv_type: KvType, part: usize, order: usize) {
    let of = |tokens| (1..=tokens).map(move |kept| (tokens, kept));
    let splits: Vec<(usize, usize)> = (1..=ROUND_TOKENS).flat_map(of).collect();
    let count = splits.len();
    let splits: Vec<_> = (0..count).map(|at| splits[(at * order + order / 2) % count]).collect();
    let all: usize = splits.iter().map(|split| split.1).sum();
    // Steps of an engine without rounds: kernels as they ever were.
    let steps = single_steps(&mut engine_of(case, kv_type, 1, part), all);
    let mut engine = engine_of(case, kv_type, ROUND_TOKENS, part);
    assert_eq!(engine.round_tokens(), ROUND_TOKENS, "{case}");
    let sequence = engine.create_sequence().unwrap();
    feed(&mut engine, sequence, &text(70, PROMPT));
    let mut at = 0;
    for (number, (tokens, kept)) in splits.into_iter().enumerate() {
        let what = format!("{case} {kv_type}, 1 of {part}: {kept} of {tokens} from {at}");
        let run = steps.round(at, tokens, kept);
        engine.step(&[Run { sequence, tokens: &run }], &Uncancelled).unwrap();
        for place in 0..kept {
            assert!(bits(&mut engine, place) == steps.logits[at + place], "{what}: row {place}");
        }
        if kept < tokens {
            engine.keep_first(sequence, kept).unwrap();
        }
        at += kept;
        assert_eq!(engine.sequence_length(sequence), PROMPT + at, "{what}");
        if number % 3 == 2 {
            steps.check_file(&mut engine, sequence, at, &what);
        }
    }
    assert!(feed(&mut engine, sequence, &text(74, BEHIND)) == steps.behind, "{case}: a prompt");
    engine.drop_sequence(sequence);
}

#[test]
fn rounds_on_a_gpu_leave_the_bits_of_single_steps_there() {
    for case in CASES.into_iter().filter(|_| is_there()) {
        for (part, order) in [(1, 1), (1, 5), (3, 7)] {
            check_splits(case, KvType::F16, part, order);
        }
    }
}

#[test]
fn so_do_rounds_over_other_caches_there() {
    for (order, kv_type) in [(5, KvType::Q8), (7, KvType::F32), (35, KvType::Bf16)] {
        for case in CASES[3..6].iter().filter(|_| is_there()) {
            check_splits(case, kv_type, 1, order);
        }
    }
}

#[test]
fn rounds_of_two_answers_there_differ_in_depth_and_a_prompt_waits_between() {
    for case in CASES.into_iter().filter(|_| is_there()) {
        let steps = single_steps(&mut engine_of(case, KvType::F16, 1, 1), 40);
        let mut engine = engine_of(case, KvType::F16, ROUND_TOKENS, 1);
        let sequences = [0, 1].map(|_| engine.create_sequence().unwrap());
        sequences.iter().for_each(|&sequence| {
            feed(&mut engine, sequence, &text(70, PROMPT));
        });
        let mut at = [0, 0];
        for round in 0..9 {
            let plan = [(1 + round % 4, 1), (4 - round % 3, 2 - round % 2)];
            let tokens = [0, 1].map(|it: usize| steps.round(at[it], plan[it].0, plan[it].1));
            let runs = [0, 1].map(|it| Run { sequence: sequences[it], tokens: &tokens[it] });
            engine.step(&runs, &Uncancelled).unwrap();
            for it in 0..2 {
                let first = if it == 0 { 0 } else { plan[0].0 };
                for place in 0..plan[it].1 {
                    let found = bits(&mut engine, first + place);
                    assert!(found == steps.logits[at[it] + place], "{case}: {it} in {round}");
                }
            }
            for it in 0..2 {
                if plan[it].1 < plan[it].0 {
                    engine.keep_first(sequences[it], plan[it].1).unwrap();
                }
                at[it] += plan[it].1;
            }
            // A prompt of another sequence between a round and what is kept of it.
            let other = engine.create_sequence().unwrap();
            feed(&mut engine, other, &text(73, 30));
            engine.drop_sequence(other);
        }
        for it in 0..2 {
            steps.check_file(&mut engine, sequences[it], at[it], case);
        }
    }
}

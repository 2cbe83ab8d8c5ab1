//! Goal: a head computes what its reference does, and its drafts depend on the text alone, however that was computed.
//! Method: nets with heads against an oracle in numpy (`tests/reference/heads.py`), token by token and from prompts;
//! then drafts behind rounds that were kept in part, behind snapshots and behind prompts that waited, bit for bit.

use crate::processor::{self, Sizes, engine_from, engine_in};
use crate::sequences::{feed, text};

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use engine::backend::cpu::KvType;
use engine::backend::{PAGE_TOKENS, Run, SequenceId, Uncancelled, cuda, gpu};
use engine::drafts::ROUND_TOKENS;
use engine::engine::Engine;
use engine::model::Model;
use engine::model::config::Mixer;
use engine::model::mixture::expert_shapes;
use engine::weights::Catalog;
use store::format::read_safetensors_header;
use store::pack::PackOptions;

pub(crate) const CASES: [&str; 2] = ["qwen35-calm-hf", "qwen3next-calm-hf"];
const CONTEXT: usize = 640;

pub(crate) fn exact(case: &str, kv_type: KvType) -> Engine {
    let sizes = Sizes { kv_type, context: CONTEXT, cuts: &[], steps: 1, exact: true };
    engine_in(&format!("{case}{}", processor::HEAD), &sizes)
}

/// What the oracle says of a case.
pub(crate) struct Reference {
    pub(crate) ids: Vec<u32>,
    values: BTreeMap<String, Vec<u8>>,
}

impl Reference {
    pub(crate) fn read(case: &str) -> Self {
        let folder = processor::golden();
        let ids = std::fs::read_to_string(folder.join(case).join("ids.json")).unwrap();
        let ids = ids.trim().trim_matches(['[', ']']).split(", ");
        let path = folder.join("heads").join(case).join("reference.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        read_safetensors_header(&path, &bytes[..], bytes.len() as u64).unwrap();
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        let values = header.as_object().unwrap().iter().map(|(name, entry)| {
            let at = |index: usize| entry["data_offsets"][index].as_u64().unwrap() as usize;
            (name.clone(), bytes[8 + length + at(0)..8 + length + at(1)].to_vec())
        });
        Self { ids: ids.map(|id| id.parse().unwrap()).collect(), values: values.collect() }
    }

    pub(crate) fn floats(&self, name: &str) -> Vec<f32> {
        self.values[name]
            .chunks_exact(4)
            .map(|it| f32::from_le_bytes(it.try_into().unwrap()))
            .collect()
    }

    pub(crate) fn numbers(&self, name: &str) -> Vec<u32> {
        self.values[name]
            .chunks_exact(4)
            .map(|it| u32::from_le_bytes(it.try_into().unwrap()))
            .collect()
    }
}

pub(crate) fn error(found: &[f32], expected: &[f32]) -> f64 {
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|it| it * it).sum::<f64>();
    let pairs = found.iter().zip(expected);
    let apart = square(&mut pairs.map(|(a, b)| f64::from(a - b)));
    (apart / square(&mut expected.iter().map(|&it| f64::from(it)))).sqrt()
}

/// Drafts, and the bits of the last one's logits.
pub(crate) type Drafts = (Vec<u32>, Vec<u32>);

/// Drafts behind the next token of a sequence.
pub(crate) fn drafts(engine: &mut Engine, sequence: SequenceId, token: u32, most: usize) -> Drafts {
    let mut drafts = Vec::new();
    engine.backend().draft(sequence, token, most, &mut drafts);
    let logits = engine.backend().draft_logits();
    (drafts, logits.iter().map(|logit| logit.to_bits()).collect())
}

/// Feeds an answer behind a prompt in rounds whose last drafts are wrong, with drafts of the head between. Drafts of
/// five behind `next` must be those `expected` behind as many tokens of the answer. `settle` follows each step.
pub(crate) fn follow_in_rounds(
    engine: &mut Engine,
    (prompt, answer): (&[u32], &[u32]),
    (next, expected): (u32, &[(usize, Drafts)]),
    settle: impl Fn(&mut Engine),
    of: &str,
) {
    let rounds = engine.create_sequence().unwrap();
    feed(engine, rounds, prompt);
    let (mut at, mut count) = (0, 0);
    while at < answer.len() {
        if let Some((_, expected)) = expected.iter().find(|(end, _)| *end == at) {
            let found = drafts(engine, rounds, next, 5);
            assert_eq!(&found, expected, "{of}: rounds, {at}");
        }
        let tokens = (1 + count % ROUND_TOKENS).min(answer.len() - at);
        let end = at.next_multiple_of(40).max(at + 1);
        let kept = (1 + (count * 5) % tokens).min(end - at);
        let mut run = answer[at..at + tokens].to_vec();
        run[kept..].iter_mut().for_each(|token| *token = (*token + 1) % 60);
        if count % 3 == 0 {
            drafts(engine, rounds, run[0], 4);
        }
        engine.step(&[Run { sequence: rounds, tokens: &run }], &Uncancelled).unwrap();
        settle(engine);
        if kept < tokens {
            engine.keep_first(rounds, kept).unwrap();
        }
        (at, count) = (at + kept, count + 1);
    }
    let (_, last) = expected.last().unwrap();
    assert_eq!(&drafts(engine, rounds, next, 5), last, "{of}: rounds");
    engine.drop_sequence(rounds);
}

#[test]
fn heads_agree_with_their_reference_to_1e_5() {
    for case in CASES {
        let reference = Reference::read(case);
        let (ids, expected) = (&reference.ids, reference.floats("logits"));
        let mut engine = exact(case, KvType::F32);
        let vocabulary = engine.config().vocabulary;
        let sequence = engine.create_sequence().unwrap();
        let mut found = Vec::new();
        let rows = expected.len() / vocabulary;
        for at in 0..rows {
            engine.step(&[Run { sequence, tokens: &ids[at..=at] }], &Uncancelled).unwrap();
            let (drafted, _) = drafts(&mut engine, sequence, ids[at + 1], 1);
            assert_eq!(drafted.len(), 1, "{case}: a draft behind {at}");
            found.extend_from_slice(engine.backend().draft_logits());
        }
        let apart = error(&found, &expected);
        assert!(apart <= 1e-5, "{case}: {apart:e}");
        // Behind prompts, several of the head's own.
        let chains = reference.numbers("chains");
        let rows = reference.floats("chain_logits");
        for (index, start) in reference.numbers("starts").into_iter().enumerate() {
            let start = start as usize;
            let sequence = engine.create_sequence().unwrap();
            feed(&mut engine, sequence, &ids[..start]);
            let (drafted, _) = drafts(&mut engine, sequence, ids[start], 3);
            assert_eq!(drafted, chains[3 * index..3 * (index + 1)], "{case}: behind {start}");
            let last = &rows[(3 * index + 2) * vocabulary..][..vocabulary];
            let apart = error(engine.backend().draft_logits(), last);
            assert!(apart <= 1e-5, "{case}: the third behind {start}: {apart:e}");
            engine.drop_sequence(sequence);
        }
    }
}

#[test]
fn drafts_depend_on_the_text_alone() {
    for (case, kv_type) in
        [(CASES[0], KvType::F16), (CASES[0], KvType::Q8), (CASES[1], KvType::F16)]
    {
        let mut engine = exact(case, kv_type);
        let prompt = text(70, PAGE_TOKENS - 20);
        let answer = text(71, 120);
        let next = 7;
        // By single steps, which the head reads when its ring is full.
        let steps = engine.create_sequence().unwrap();
        feed(&mut engine, steps, &prompt);
        let (mut expected, mut snapshots) = (Vec::new(), Vec::new());
        for (at, token) in answer.iter().enumerate() {
            let run = Run { sequence: steps, tokens: std::slice::from_ref(token) };
            engine.step(&[run], &Uncancelled).unwrap();
            if at % 40 == 39 {
                expected.push((at + 1, drafts(&mut engine, steps, next, 5)));
            }
            if at % 40 == 20 {
                snapshots.push((at + 1, engine.backend().snapshot(steps, None).unwrap()));
            }
        }
        assert!(expected.iter().all(|(_, (drafts, _))| drafts.len() == 5), "{case}");
        engine.drop_sequence(steps);
        let of = format!("{case} {kv_type}");
        follow_in_rounds(&mut engine, (&prompt, &answer), (next, &expected), |_| {}, &of);
        // As one prompt, and from snapshots.
        for (end, expected) in &expected {
            let whole = engine.create_sequence().unwrap();
            feed(&mut engine, whole, &[&prompt[..], &answer[..*end]].concat());
            assert_eq!(
                &drafts(&mut engine, whole, next, 5),
                expected,
                "{case} {kv_type}: a prompt"
            );
            engine.drop_sequence(whole);
        }
        for ((from, snapshot), (end, expected)) in snapshots.iter().zip(&expected) {
            let resumed = engine.create_sequence().unwrap();
            engine.backend().restore(resumed, snapshot).unwrap();
            feed(&mut engine, resumed, &answer[*from..*end]);
            let found = drafts(&mut engine, resumed, next, 5);
            assert_eq!(&found, expected, "{case} {kv_type}: from a snapshot");
            engine.drop_sequence(resumed);
        }
    }
}

#[test]
fn drafts_leave_the_logits_of_the_last_batch() {
    let mut engine = exact(CASES[0], KvType::F16);
    let [one, two] = [0, 1].map(|_| engine.create_sequence().unwrap());
    let tokens = text(5, 9);
    for sequence in [one, two] {
        feed(&mut engine, sequence, &tokens);
    }
    let runs = [one, two].map(|sequence| Run { sequence, tokens: &tokens[..3] });
    engine.step(&runs, &Uncancelled).unwrap();
    let before = engine.logits(&[0, 2, 5]).unwrap().to_vec();
    drafts(&mut engine, two, 4, 6);
    assert_eq!(engine.logits(&[0, 2, 5]).unwrap(), before);
    // A context without room has no drafts, and an empty sequence none either.
    let empty = engine.create_sequence().unwrap();
    assert!(drafts(&mut engine, empty, 4, 3).0.is_empty());
    let long = text(6, CONTEXT - 15);
    feed(&mut engine, two, &long);
    assert_eq!(drafts(&mut engine, two, 4, 3).0.len(), 3);
    assert!(drafts(&mut engine, two, 4, 4).0.is_empty());
}

#[test]
fn packs_keep_heads() {
    for case in CASES {
        let folder = processor::folder_of(&format!("{case}{}", processor::HEAD));
        let source = store::format::open(&folder).unwrap();
        let place = tempfile::tempdir().unwrap();
        let pack = place.path().join("pack");
        let goes_on = &mut |_| ControlFlow::Continue(());
        store::pack::pack(&source, &pack, PackOptions::default(), goes_on).unwrap();
        let packed = store::format::open(&pack).unwrap();
        assert!(store::pack::verify(&packed, goes_on).unwrap().damaged.is_empty(), "{case}");
        assert_eq!(packed.experts.len(), source.experts.len(), "{case}: the trunk alone");
        let config = processor::config_of(&format!("{case}{}", processor::HEAD));
        let packed = packed.with_head().unwrap();
        let sizes =
            Sizes { kv_type: KvType::F16, context: CONTEXT, cuts: &[], steps: 1, exact: true };
        let found =
            [exact(case, KvType::F16), engine_from(&packed, config, &sizes)].map(|mut engine| {
                let sequence = engine.create_sequence().unwrap();
                feed(&mut engine, sequence, &text(8, 30));
                drafts(&mut engine, sequence, 9, 4)
            });
        assert_eq!(found[0], found[1], "{case}");
    }
}

#[test]
fn experts_that_are_not_in_memory_are_left_out_and_asked_for() {
    let case = format!("{}{}", CASES[0], processor::HEAD);
    let mut engine = processor::engine_of(&case, KvType::F16, CONTEXT);
    let sequence = engine.create_sequence().unwrap();
    feed(&mut engine, sequence, &text(8, 30));
    for round in 0..20 {
        let (drafted, _) = drafts(&mut engine, sequence, 9 + round, 2);
        assert_eq!(drafted.len(), 2, "a draft waits for nothing");
    }
    let counters = engine.counters();
    assert_eq!(counters.draft.misses, 0, "{counters:?}");
    assert!(counters.ahead_issued > 0, "{counters:?}");
}

#[test]
fn a_head_with_a_tensor_missing_is_none_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let joined = processor::folder_of(&format!("{}{}", CASES[0], processor::HEAD));
    for entry in joined.read_dir().unwrap() {
        let entry = entry.unwrap();
        let bytes = std::fs::read(entry.path()).unwrap();
        let name = entry.file_name();
        let bytes = match name.to_str() {
            // A name of the same length that no head has.
            Some("mtp.safetensors") => {
                let at = bytes.windows(8).position(|it| it == b"mtp.fc.w").unwrap();
                [&bytes[..at], b"mtp.fx.w", &bytes[at + 8..]].concat()
            }
            _ => bytes,
        };
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let checkpoint = store::format::open(folder.path()).unwrap();
    let why = checkpoint.clone().with_head().unwrap_err();
    assert!(why.contains("mtp.fx.weight is not known"), "{why}");
    assert!(checkpoint.skipped.iter().any(|name| name == "mtp.norm.weight"));
}

#[test]
fn one_kind_of_gpu_computes_a_head_and_the_other_refuses_it_by_the_name_of_its_operation() {
    for case in CASES {
        let folder = processor::folder_of(&format!("{case}{}", processor::HEAD));
        let checkpoint = store::format::open(&folder).unwrap().with_head().unwrap();
        let config = processor::config_of(&format!("{case}{}", processor::HEAD));
        let mut catalog = Catalog::new(&checkpoint);
        let program = Model::declare(&config, &mut catalog).unwrap().program;
        let shapes = expert_shapes(&checkpoint, &config).unwrap();
        cuda::check_model(&config, &program, &catalog, &shapes).unwrap();
        let why = gpu::check_model(&config, &program, &catalog, &shapes).unwrap_err().to_string();
        assert!(why.contains("norms of a pair") && why.contains("--device cpu"), "{why}");
    }
}

#[test]
fn a_gpu_counts_the_outputs_that_a_head_keeps() {
    let case = CASES[0];
    let [trunk, head] = ["", processor::HEAD].map(|head| {
        let (checkpoint, config) = processor::opened(&format!("{case}{head}"));
        let mut catalog = Catalog::new(&checkpoint);
        Model::declare(&config, &mut catalog).unwrap();
        let options = cuda::CudaOptions {
            layers: 0..config.layers.len(),
            batch_tokens: 64,
            logit_rows: 8,
            sequences: 3,
            snapshots: 0,
            snapshot_pages: 0,
            context: CONTEXT,
            kv_type: KvType::F16,
            top_k: config.moe.top_k,
            prediction: cuda::Prediction::Off,
            round_tokens: ROUND_TOKENS,
        };
        (cuda::CudaRequirements::of(&config, &catalog, &options, 4096, true), config)
    });
    let (hidden, layers) = (trunk.1.hidden as u64, trunk.1.layers.len());
    // A ring of 32 rows with room for a token's id, for each sequence.
    assert_eq!(head.0.recurrent - trunk.0.recurrent, 3 * 32 * (hidden + 1) * 4);
    let attention = trunk.1.layers.iter().filter(|it| it.mixer == Mixer::Attention).count() as u64;
    assert!(attention > 0 && layers > attention as usize, "{case}");
    let one = trunk.0.key_values / attention;
    assert_eq!(head.0.key_values - trunk.0.key_values, one, "keys and values of one layer more");
    // Pairs of a batch's tokens, and what a draft has for itself.
    let least = 64 * 3 * hidden * 4 + 2 * hidden * 4;
    assert!(head.0.activations - trunk.0.activations >= least, "{head:?} {trunk:?}");
}

#[test]
fn a_trunk_without_its_head_is_what_it_was() {
    for case in CASES {
        let folder = processor::golden().join(case).join("model");
        let plain = store::format::open(&folder).unwrap();
        assert!(plain.with_head().unwrap_err().contains("no head"), "{case}");
        let config = processor::config_of(&format!("{case}{}", processor::HEAD));
        let trunk = processor::config_of(case);
        assert_eq!(
            (config.layers.len(), config.trunk_layers()),
            (trunk.layers.len() + 1, trunk.layers.len())
        );
    }
}

//! A worker over a small checkpoint, and jobs asked of it from a test's own thread.

pub(crate) mod apart;
pub(crate) mod faulty;
pub(crate) mod paced;
pub(crate) mod served;

use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::backend::Backend;
use engine::backend::cpu::{CpuBackend, CpuOptions, KvGrowth, KvType};
use engine::drafts::{Drafting, ROUND_TOKENS};
use engine::engine::Engine;
use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::model::mixture::expert_shapes;
use engine::stages::Stage;
use engine::weights::Catalog;
use kernels::{Arithmetic, Compute, ComputeOptions, DeltaForm, Isa};
use server::Log;
use server::work::{
    Conversation, DiskOptions, EngineWorker, Event, Finish, FinishReason, Job, ModelCard,
    Preparing, SharedOptions, SlotOptions, Ticket, TokenLogprob, Worker, WorkerOptions,
};
use store::cache::{ExpertStore, SlotBudget, StorageMode, StoreOptions};
use store::format::Checkpoint;
use store::io::{Fault, Operation, Simulator};
use store::rows::RowOptions;
use store::trunk::LoadMode;
use text::{Language, Message, OnFull, Role, TemplateHost};

/// A backend on the heap, as the engine takes it.
pub(crate) type Device = Box<dyn Backend + Send>;

/// Puts another backend before one; nothing by default.
#[derive(Clone, Default)]
pub(crate) struct Between(pub(crate) Option<Arc<dyn Fn(Device) -> Device + Send + Sync>>);

impl std::fmt::Debug for Between {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Between").field(&self.0.is_some()).finish()
    }
}

/// A net of the demo model's family with both of its kinds of layers, which computes in microseconds: for all that
/// looks at where tokens come from and not at words.
pub(crate) const TINY: &str = "qwen35-calm-mlx-mixed";

/// Microseconds of a disk whose reads fail.
pub(crate) const UNREADABLE: u64 = u64::MAX;

/// How a worker is made.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) context: usize,
    pub(crate) chunk: usize,
    pub(crate) sequences: usize,
    pub(crate) snapshots: usize,
    pub(crate) queue: usize,
    /// The demo model, or else a tiny random one of this golden case, read with the demo model's tokenizer.
    pub(crate) golden: Option<&'static str>,
    pub(crate) disk: Option<DiskOptions>,
    pub(crate) shared: Option<SharedOptions>,
    /// Experts are streamed from a disk that takes this many microseconds for every read, one after the other, or fails
    /// every one (`UNREADABLE`).
    pub(crate) slow: Option<Arc<AtomicU64>>,
    pub(crate) log: Log,
    /// What stands between the engine and the processor's backend.
    pub(crate) between: Between,
    /// Panics of the engine within a minute that the server does not survive.
    pub(crate) panics: usize,
    /// How answers are drafted.
    pub(crate) drafting: Option<Drafting>,
    /// Whether the golden net's head is loaded with it.
    pub(crate) head: bool,
    /// The first layers of stages but the first.
    pub(crate) cuts: &'static [usize],
    /// Where slots are saved.
    pub(crate) slots: Option<SlotOptions>,
    /// What clients call the model.
    pub(crate) name: &'static str,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            context: 2048,
            chunk: 256,
            sequences: 2,
            snapshots: 12,
            queue: 8,
            golden: None,
            disk: None,
            shared: None,
            slow: None,
            log: Log::default(),
            between: Between::default(),
            panics: 3,
            drafting: None,
            head: false,
            cuts: &[],
            slots: None,
            name: "demo",
        }
    }
}

impl Setting {
    /// With a tiny net in the place of the demo model.
    pub(crate) fn tiny() -> Self {
        Self { golden: Some(TINY), ..Self::default() }
    }
}

pub(crate) fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo")
}

/// Rows of the demo model's logits.
pub(crate) fn vocabulary() -> usize {
    let checkpoint = store::format::open(&demo()).unwrap();
    ModelConfig::read(&checkpoint.config).unwrap().vocabulary
}

fn opened(folder: &Path) -> (Checkpoint, ModelConfig) {
    let checkpoint = store::format::open(folder).unwrap();
    let config = ModelConfig::read(&checkpoint.config).unwrap();
    (checkpoint, config)
}

/// Where the model of the setting lies, without a head of its own.
pub(crate) fn folder_of(setting: &Setting) -> PathBuf {
    let golden = |case| demo().join("../../tests/golden").join(case).join("model");
    setting.golden.map_or_else(demo, golden)
}

/// A worker over the model of the setting.
pub(crate) fn worker(setting: &Setting) -> EngineWorker {
    let folder = folder_of(setting);
    // Read into memory below: the folder may go.
    let joined = tempfile::tempdir().unwrap();
    let (mut checkpoint, mut config) = match setting.head {
        false => opened(&folder),
        true => {
            for entry in folder.read_dir().unwrap() {
                let entry = entry.unwrap();
                std::fs::copy(entry.path(), joined.path().join(entry.file_name())).unwrap();
            }
            let heads = demo().join("../../tests/golden/heads");
            let head = heads.join(setting.golden.unwrap()).join("mtp.safetensors");
            std::fs::copy(head, joined.path().join("mtp.safetensors")).unwrap();
            opened(joined.path())
        }
    };
    if setting.head {
        (checkpoint, config) = (checkpoint.with_head().unwrap(), config.with_head().unwrap());
    }
    let checkpoint = Arc::new(checkpoint);
    let model = Model::declare(&config, &mut Catalog::new(&checkpoint)).unwrap();
    let starts = std::iter::once(0).chain(setting.cuts.iter().copied());
    let ends = setting.cuts.iter().copied().chain([config.layers.len()]);
    let stages = starts.zip(ends).map(|(start, end)| Stage {
        layers: start..end,
        backend: device(&checkpoint, &config, start..end, setting, false),
    });
    let stages = stages.collect();
    start(Engine::over(config, model, stages, setting.chunk).unwrap(), setting)
}

/// The device of a stage, which leaves what is behind the last layer to another or has it where it has that layer.
fn device(
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    layers: Range<usize>,
    setting: &Setting,
    leaves_behind: bool,
) -> Device {
    let mut catalog = Catalog::new(checkpoint);
    Model::declare(config, &mut catalog).unwrap();
    catalog.restrict(layers.clone());
    if leaves_behind {
        catalog.leave_behind();
    }
    let rows = catalog.open_rows(|_| RowOptions::default()).unwrap();
    let weights = catalog.load(LoadMode::Read, &mut |_| ControlFlow::Continue(())).unwrap();
    let minimum = (setting.sequences * config.moe.top_k).min(config.moe.experts);
    let options = match &setting.slow {
        None => StoreOptions::new(StorageMode::Resident, minimum),
        Some(micros) => {
            let micros = Arc::clone(micros);
            let late = move |_: &Operation| match micros.load(Ordering::Relaxed) {
                UNREADABLE => Fault::Error(5),
                micros => Fault::Late(Duration::from_micros(micros)),
            };
            let storage = Some(Box::new(Simulator::new(Box::new(late), 1)) as _);
            // Two layers' experts of the demo model; what a small net with two sizes of records needs.
            let layers = SlotBudget::Slots(2 * config.moe.experts);
            let slots = if setting.golden.is_none() { layers } else { SlotBudget::Steps(2) };
            StoreOptions { slots, storage, ..StoreOptions::new(StorageMode::Budget, minimum) }
        }
    };
    let own = Arc::new(checkpoint.experts_of(&layers));
    let experts = Arc::new(ExpertStore::open(own, options).unwrap());
    let limits = CpuOptions {
        layers,
        batch_tokens: setting.chunk,
        logit_rows: 8,
        sequences: setting.sequences,
        snapshots: setting.snapshots,
        context: setting.context,
        kv_growth: KvGrowth::Grow,
        kv_type: config.trained_kv_type().unwrap_or(KvType::F16),
        delta_form: DeltaForm::Step,
        top_k: config.moe.top_k,
        round_tokens: setting.drafting.as_ref().map_or(1, |_| ROUND_TOKENS),
        row_cache: 0,
    };
    let options = ComputeOptions { threads: 1, arithmetic: Arithmetic::Int16, isa: Isa::Auto };
    let shapes = expert_shapes(checkpoint, config).unwrap();
    let compute = Compute::new(options).unwrap();
    let mut backend =
        CpuBackend::new(config.clone(), weights, experts, shapes, compute, limits).unwrap();
    backend.set_rows(rows).unwrap();
    let device: Device = Box::new(backend);
    match &setting.between.0 {
        Some(between) => between(device),
        None => device,
    }
}

/// A worker over an engine that has the setting's limits, with the demo model's words.
pub(crate) fn start(engine: Engine, setting: &Setting) -> EngineWorker {
    let vocabulary = engine.config().vocabulary;
    let words = store::format::open(&demo()).unwrap();
    let language = Language::load(&words, usize::MAX, &TemplateHost::here()).unwrap();
    let options = WorkerOptions {
        model: ModelCard {
            id: setting.name.into(),
            context: setting.context,
            vocabulary,
            ..ModelCard::default()
        },
        context: setting.context,
        sequences: setting.sequences,
        queue: setting.queue,
        system: None,
        on_full: OnFull::Stop,
        disk: setting.disk.clone(),
        shared: setting.shared.clone(),
        slots: setting.slots.clone(),
        panics: setting.panics,
        drafting: setting.drafting.clone(),
        log: setting.log.clone(),
    };
    EngineWorker::start(engine, Arc::new(language), options).unwrap()
}

/// A conversation of user and assistant turns in turn.
pub(crate) fn conversation(system: &str, turns: &[&str]) -> Conversation {
    let system = (!system.is_empty()).then(|| Message::new(Role::System, system));
    let roles = [Role::User, Role::Assistant].into_iter().cycle();
    let turns = roles.zip(turns).map(|(role, text)| Message::new(role, *text));
    Conversation {
        messages: system.into_iter().chain(turns).collect(),
        thinking: Some(false),
        ..Conversation::default()
    }
}

/// A job that answers a conversation greedily, as the worker's model understands it.
pub(crate) fn job(worker: &EngineWorker, conversation: &Conversation, max_tokens: usize) -> Job {
    let mut job = Job::new("test", worker.prepare(conversation, Preparing::PATIENT).unwrap());
    job.max_tokens = Some(max_tokens);
    // A small net has fewer tokens than the demo model's tokenizer.
    let vocabulary = worker.model().vocabulary as u32;
    job.prompt.tokens = job.prompt.tokens.iter().map(|token| token % vocabulary).collect();
    job
}

/// What became of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) reasoning: String,
    pub(crate) text: String,
    pub(crate) calls: Vec<(String, String)>,
    pub(crate) progress: Vec<(usize, usize, usize)>,
    /// Generated tokens and the bits of their log-probabilities, where they were asked for.
    pub(crate) tokens: Vec<(u32, u32)>,
    pub(crate) finish: Option<Finish>,
    pub(crate) error: Option<String>,
}

impl Outcome {
    pub(crate) fn reason(&self) -> FinishReason {
        self.finish.as_ref().unwrap_or_else(|| panic!("{:?}", self.error)).reason.clone()
    }

    fn take(&mut self, logprobs: &[TokenLogprob]) {
        self.tokens.extend(logprobs.iter().map(|token| (token.id, token.logprob.to_bits())));
    }

    pub(crate) fn cached(&self) -> usize {
        self.finish.as_ref().unwrap().usage.cached
    }
}

/// Reads a job to its end and checks the order of its events.
pub(crate) fn collect(mut ticket: Ticket) -> Outcome {
    let mut outcome = Outcome::default();
    let mut open = None;
    while let Some(event) = ticket.events.blocking_recv() {
        assert!(outcome.finish.is_none() && outcome.error.is_none(), "{event:?} after the end");
        match event {
            Event::Queued { .. } | Event::Prompt(_) | Event::Next(_) => {}
            Event::Progress { processed, total, cached, .. } => {
                outcome.progress.push((processed, total, cached));
            }
            Event::Reasoning(piece) => {
                outcome.reasoning.push_str(&piece.text);
                outcome.take(&piece.logprobs);
            }
            Event::Text(piece) => {
                outcome.text.push_str(&piece.text);
                outcome.take(&piece.logprobs);
            }
            Event::CallStarted { index, id, name } => {
                assert!(open.is_none() && index == outcome.calls.len() && id.len() >= 24);
                open = Some(index);
                outcome.calls.push((name, String::new()));
            }
            Event::CallArguments { index, delta } => {
                assert_eq!(open, Some(index));
                outcome.calls[index].1.push_str(&delta);
            }
            Event::CallEnded { index } => assert_eq!(open.take(), Some(index)),
            Event::Finished(finish) => {
                outcome.take(&finish.logprobs);
                outcome.finish = Some(*finish);
            }
            Event::Failed(error) => outcome.error = Some(error.to_string()),
        }
    }
    assert!(open.is_none(), "a call was left open");
    assert!(outcome.finish.is_some() || outcome.error.is_some(), "no terminal event");
    outcome
}

/// Submits and reads to the end.
pub(crate) fn ask(worker: &EngineWorker, job: Job) -> Outcome {
    collect(worker.submit(job).unwrap())
}

/// Waits until `done` of the status, at most forty seconds.
pub(crate) fn wait_until(worker: &EngineWorker, done: impl Fn(&server::work::Status) -> bool) {
    for _ in 0..8000 {
        if done(&worker.status()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("nothing happened: {:?}", worker.status().running);
}

//! From what was typed to what will happen: every byte accounted for before anything is loaded.
//!
//! [`Plan::resolve`] opens the checkpoint (headers only), sizes trunk, state, buffers and slots against
//! the budget, and refuses with the numbers when they do not fit. [`Plan::load`] then does exactly that.

mod auto;
mod choice;
mod conversations;
pub(crate) mod device;
mod devices;
mod floor;
mod head;
pub(crate) mod language;
pub(crate) mod load;
pub(crate) mod machine;
pub(crate) mod requests;
mod slots;
pub(crate) mod stages;
pub(crate) mod sweep;

use std::sync::Arc;

use anyhow::{Context, Result};
use engine::backend::PAGE_TOKENS;
use engine::backend::cpu::{CpuOptions, KvGrowth, KvType, Requirements};
use engine::backend::cuda;
use engine::backend::gpu;
use engine::drafts::ROUND_TOKENS;
use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::model::mixture::expert_shapes;
use engine::model::ngram::NgramHash;
use engine::weights::{Catalog, PART_BYTES};
use kernels::{Arithmetic, DeltaForm};
use store::cache::{SlotBudget, StorePlan};
use store::format::{Checkpoint, Tensor, TokenizerSource};
use store::rows::RowStore;

use crate::arguments::{
    ArithmeticChoice, AssumedMachine, ByteSize, DeltaChoice, DeviceChoice, Devices, DraftChoice,
    KvChoice, KvTypeChoice, ModelArguments, RoutingChoice,
};
use crate::failure::{Failure, in_words};
use crate::hosts;
use crate::progress::{say, tell};
use crate::requantisation;
use choice::{Choice, gpus_own};
use conversations::automatic_sequences;
use device::{DevicePlan, FoundDevice};
use devices::{PlannedModel, drivers, plan_devices};
use machine::Memory;
use requests::RequestPlan;
pub(crate) use requests::Seats;
use stages::StagePlan;

/// Where the budget comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BudgetSource {
    /// `--memory`
    Asked,
    /// The control group's limit.
    Group,
    /// What the machine has available.
    Machine,
}

/// One line of the memory account.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) bytes: u64,
}

/// A resolved run of a model.
pub(crate) struct Plan {
    pub(crate) arguments: ModelArguments,
    pub(crate) checkpoint: Arc<Checkpoint>,
    pub(crate) config: ModelConfig,
    pub(crate) memory: Memory,
    pub(crate) budget: u64,
    pub(crate) budget_source: BudgetSource,
    /// The least budget that works; not known for a GPU, whose host tier depends on what the device holds.
    pub(crate) least_memory: Option<u64>,
    pub(crate) threads: usize,
    pub(crate) backend: CpuOptions,
    /// The GPU's part of each stage; empty when the processor computes.
    pub(crate) devices: Vec<DevicePlan>,
    /// Why no GPU was taken, where one was looked for.
    pub(crate) no_device: Option<String>,
    /// Everything in the process's memory but the slots.
    pub(crate) parts: Vec<Part>,
    /// What a server's requests may take; `None` where there is no server.
    pub(crate) requests: Option<RequestPlan>,
    /// The slots of all stages; `None` in the modes without a pool.
    pub(crate) slots: Option<StorePlan>,
    /// What the slots of all stages were planned from.
    slot_budget: SlotBudget,
    /// The stages that the layers are cut into; one where one device computes.
    pub(crate) stages: Vec<StagePlan>,
}

/// How keys and values are stored where neither the user nor the model's training says it (docs/decisions.md, "keys and
/// values in sixteen bits").
pub(crate) const DEFAULT_KV_TYPE: KvType = KvType::F16;

/// Share of the spare memory that an automatic budget takes: the rest stays for the system, for other
/// processes' growth, and for the page cache of everything that is not the model.
pub(crate) const AUTOMATIC_SHARE: f64 = 0.85;
/// Code, stacks, allocator slack and io queues, measured with an empty model.
const PROCESS_BYTES: u64 = 48 << 20;
/// What the driver takes of the process's memory: an estimate.
pub(crate) const DRIVER_BYTES: u64 = 320 << 20;
/// Memory of a loaded tokenizer per byte of tokenizer.json, measured on a 248k-token vocabulary.
const TOKENIZER_FACTOR: u64 = 20;
/// Automatic context: as much as this part of the budget holds, within these bounds.
const CONTEXT_PART: u64 = 10;
const CONTEXT_BOUNDS: (usize, usize) = (2048, 32_768);
/// Automatic number of snapshots: what this share of the budget holds, within these bounds, and one for each
/// sequence at work.
const SNAPSHOT_SHARE: f64 = 0.06;
const SNAPSHOT_BOUNDS: (u64, u64) = (4, 32);
/// Keys and values of snapshots beside a GPU: this share of the budget at most.
const PAGES_SHARE: f64 = 0.1;
/// Usual prefill chunk: what a twentieth of the budget holds, within these bounds.
const CHUNK_BOUNDS: (usize, usize) = (128, 2048);
/// Cache of rows of n-grams, for each table: this part of the budget, within these bounds. A token needs a few rows,
/// and those that come again are few: memory does more for experts.
const ROW_CACHE_PART: u64 = 64;
const ROW_CACHE_BOUNDS: (u64, u64) = (1 << 20, 256 << 20);
/// What holds rows of n-grams in the process's memory.
const ROWS: &str = "rows of n-grams";
/// Logit rows of one call; scoring asks for many.
const LOGIT_ROWS: usize = 8;

impl Plan {
    /// Works out a plan for `arguments` with room for `seats`.
    pub(crate) fn resolve(arguments: &ModelArguments, seats: Seats) -> Result<Self> {
        Self::resolve_on(arguments, seats, None)
    }

    /// As [`Plan::resolve`]; with `assumed` for a machine that is not here.
    pub(crate) fn resolve_on(
        arguments: &ModelArguments,
        seats: Seats,
        assumed: Option<&AssumedMachine>,
    ) -> Result<Self> {
        let with_head = arguments.draft == DraftChoice::Head;
        let mut automatic = None;
        let planned = Self::resolve_with(arguments, seats, assumed, with_head, &mut automatic);
        let (Err(error), Some(name)) = (&planned, automatic) else { return planned };
        if gpus_own(arguments).is_some() {
            return planned;
        }
        // The user asked for no GPU: where the model does not fit into the one that was found, the processor computes.
        let because = format!("{name}: {}", in_words(error));
        let device = Devices::from(DeviceChoice::Cpu);
        let on_processor = ModelArguments { device, ..arguments.clone() };
        let mut plan = Self::resolve_with(&on_processor, seats, assumed, with_head, &mut None)?;
        say(&format!("the processor computes: {because}"));
        plan.no_device = Some(because);
        Ok(plan)
    }

    /// As [`Plan::resolve_on`], with or without the model's head; `automatic` gets the name of a GPU that was not asked
    /// for.
    fn resolve_with(
        arguments: &ModelArguments,
        seats: Seats,
        assumed: Option<&AssumedMachine>,
        with_head: bool,
        automatic: &mut Option<String>,
    ) -> Result<Self> {
        let checkpoint = crate::models::open(&arguments.model)?;
        let blame = || arguments.model.display().to_string();
        let config = ModelConfig::read(&checkpoint.config).map_err(Failure::engine)?;
        let (checkpoint, config) = match with_head {
            true => head::add(arguments, checkpoint, config)?,
            false => (checkpoint, config),
        };
        let checkpoint = Arc::new(checkpoint);
        let memory = assumed.map_or_else(Memory::read, |machine| Memory::of(machine.ram));
        let (budget, budget_source) = budget(arguments, &memory);
        let mut catalog = Catalog::new(&checkpoint);
        let model =
            Model::declare(&config, &mut catalog).map_err(Failure::engine).with_context(blame)?;
        let shapes =
            expert_shapes(&checkpoint, &config).map_err(Failure::engine).with_context(blame)?;
        let mut stages = stages::cut(arguments, &checkpoint, (&catalog, &config))?;
        let stored = kv_type(arguments.kv_type, &config)?;
        let serves = |device| match device {
            DeviceChoice::Gpu(_) => gpu::check_model(&config, &model.program, &catalog, &shapes)
                .and_then(|()| gpu::check_kv_type(stored, &config)),
            _ => cuda::check_model(&config, &model.program, &catalog, &shapes),
        };
        let choice = match assumed {
            Some(machine) => choice::assumed(machine, arguments, serves(arguments.device.first()))?,
            None => choice::choose_for(arguments, &serves)?,
        };
        let on_gpu = matches!(choice, Choice::Gpu(_));
        if on_gpu {
            let experts: Vec<_> = checkpoint.experts.iter().map(Option::is_some).collect();
            hosts::on_gpu(arguments, &mut stages, &experts)?;
        }
        if hosts::leaves_behind(arguments, on_gpu) {
            catalog.leave_behind();
        }
        let computes_heads = match &choice {
            Choice::Cpu { .. } => true,
            Choice::Gpu(found) => found.iter().all(|found| found.portable.is_none()),
        };
        if !with_head
            && computes_heads
            && head::is_used(arguments, &checkpoint, &config)
            // Where its weights do not fit, the model still does.
            && let Ok(plan) = Self::resolve_with(arguments, seats, assumed, true, &mut None)
        {
            return Ok(plan);
        }
        if let Choice::Gpu(found) = &choice {
            *automatic = found.iter().find(|it| it.automatic).map(|it| it.info.name.clone());
        }
        if let Choice::Gpu(found) = &choice
            && found.iter().any(|found| found.portable.is_none())
            && arguments.draft != DraftChoice::Off
        {
            cuda::check_rounds(&config, &model.program).map_err(Failure::engine)?;
        }
        let (found, no_device) = match choice {
            Choice::Gpu(found) => {
                let within =
                    |it: FoundDevice| it.within(arguments, budget, stages.len(), memory.total);
                (found.into_iter().map(within).collect(), None)
            }
            Choice::Cpu { because } => (Vec::new(), because),
        };
        let sizing = match found.iter().map(|found| found.budget).sum() {
            0 => budget,
            all => all,
        };
        let mut backend = backend_options(arguments, &config, sizing, seats)?;
        // Rows lie in the process's memory wherever layers are computed.
        backend.row_cache = row_cache(&config, budget);
        let devices = match found.is_empty() {
            true => Vec::new(),
            false => {
                let pages = snapshot_pages(&config, &backend, budget);
                let model = PlannedModel { config: &config, catalog: &catalog, shapes: &shapes };
                plan_devices(arguments, found, model, &stages, &mut backend, pages)?
            }
        };
        let threads = arguments.threads.map_or_else(default_threads, usize::from);
        let process = process_bytes(&checkpoint);
        let trunk = stages::trunk_bytes(&stages, &catalog);
        let constant = floor::Constant { trunk, process, stages: &stages };
        if devices.is_empty() {
            let chunk = sweep::streaming_chunk(
                arguments,
                &checkpoint,
                &config,
                &backend,
                constant,
                budget,
                seats,
            )?;
            backend.batch_tokens = chunk.unwrap_or(backend.batch_tokens);
        }
        let snapshots = device::snapshot_bytes(&config, &backend, devices.first());
        let requests = RequestPlan::of(seats, budget, &backend);
        let mut parts = match devices.is_empty() {
            true => floor::parts(&config, &backend, constant),
            false => parts_with_devices(&devices, catalog.required_bytes(), snapshots, process),
        };
        let on_cuda = devices.iter().filter(|device| device.portable.is_none());
        let rows = |device: &DevicePlan| {
            cuda::CudaRequirements::row_bytes(&config, &device.options, backend.row_cache)
        };
        let rows = Part { name: ROWS, bytes: on_cuda.map(rows).sum() };
        parts.extend(Some(rows).filter(|part| part.bytes > 0));
        parts.extend(requests.map(|plan| Part { name: "requests", bytes: plan.bytes }));
        let fixed: u64 = parts.iter().map(|part| part.bytes).sum();
        let least_memory =
            devices.is_empty().then(|| floor::least_memory(arguments, &config, constant, seats));
        let mut plan = Self {
            least_memory: least_memory.transpose()?,
            arguments: arguments.clone(),
            checkpoint,
            config,
            memory,
            budget,
            budget_source,
            threads,
            backend,
            devices,
            no_device,
            parts,
            requests,
            slots: None,
            slot_budget: SlotBudget::Slots(0),
            stages,
        };
        let sequences = plan.backend.sequences;
        plan.slot_budget = plan.slot_budget(fixed)?;
        plan.slots = plan.plan_slots(fixed, sequences)?;
        plan.check(fixed)?;
        plan.tell();
        Ok(plan)
    }

    /// Says what it takes, and where that is more than there is.
    fn tell(&self) {
        if let Some(excess) = self.beyond_the_machine() {
            say(&excess);
        }
        tell(&format!(
            "{}: {} of memory, {} for experts, budget {}, {} threads, context of {} tokens",
            store::shown::path(&self.arguments.model),
            ByteSize(self.total_bytes()),
            ByteSize(self.slots.as_ref().map_or(0, StorePlan::bytes)),
            ByteSize(self.budget),
            self.threads,
            self.backend.context
        ));
    }

    /// What this run does that is not exactly the model, one line each.
    pub(crate) fn approximations(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let (k, trained) = (self.backend.top_k, self.config.moe.top_k);
        if k != trained {
            lines.push(format!(
                "approximation: {k} experts per token, the model was trained with {trained}"
            ));
        }
        lines.extend(requantisation::line(&self.checkpoint));
        lines.extend(requantisation::linked(&self.checkpoint));
        if self.arguments.routing == RoutingChoice::Calibrated {
            let text = "experts are chosen by the calibrated generator: for speed, not for answers";
            lines.push(format!("approximation: {text}"));
        }
        let kv_type = self.backend.kv_type;
        if matches!(kv_type, KvType::Bf16 | KvType::Q8) {
            lines.push(format!("approximation: keys and values are stored as {kv_type}"));
        }
        lines
    }

    fn check(&self, fixed: u64) -> Result<()> {
        let total = self.total_bytes();
        if total > self.budget {
            let slots = ByteSize(total - fixed);
            let (total, budget) = (ByteSize(total), ByteSize(self.budget));
            let mut reason = format!("needs {total}, the budget is {budget}:");
            reason.push_str(&format!(" {}, experts {slots}. ", self.named_parts()));
            reason.push_str(
                "Lower --context or --prefill-chunk, raise --memory, or use --storage budget",
            );
            reason.push_str(&self.crowd());
            if let Some(least) = self.least_memory {
                reason.push_str(&format!("; {}", floor::advice(least)));
            }
            return Err(Failure::memory(reason).into());
        }
        let spare = self.memory.spare();
        if self.budget_source == BudgetSource::Asked && total > spare {
            let (total, spare) = (ByteSize(total), ByteSize(spare));
            let reason = format!("the plan takes {total}, but only {spare} can be had now");
            return Err(Failure::memory(reason).into());
        }
        Ok(())
    }

    /// What there is to say of a budget that no machine of this size can give.
    pub(crate) fn beyond_the_machine(&self) -> Option<String> {
        let (what, most) = match &self.memory.group {
            Some(group) => ("control group", group.limit),
            None => ("machine", self.memory.total),
        };
        let beyond = self.budget_source == BudgetSource::Asked && self.budget > most && most > 0;
        beyond.then(|| {
            let (asked, most) = (ByteSize(self.budget), ByteSize(most));
            format!("--memory {asked} is more than the {most} of this {what}")
        })
    }

    /// The parts with their sizes.
    fn named_parts(&self) -> String {
        let parts = self.parts.iter().filter(|part| part.bytes > 0);
        let parts = parts.map(|part| format!("{} {}", part.name, ByteSize(part.bytes)));
        parts.collect::<Vec<_>>().join(", ")
    }

    /// What several sequences have to do with a lack of memory.
    fn crowd(&self) -> String {
        match (self.backend.sequences, self.backend.context) {
            (1, _) => String::new(),
            (count, context) => format!(
                " (room for {count} conversations of {context} tokens each: lower --sequences or --context)"
            ),
        }
    }

    /// Bytes of dense weights that a token reads: the trunk without the embedding (it reads one row of that).
    pub(crate) fn trunk_bytes_per_token(&self) -> u64 {
        let embedding = match self.config.tied_head {
            false => self.checkpoint.tensors.get("embed_tokens").map_or(0, Tensor::bytes),
            true => 0,
        };
        let trunk = match self.devices.is_empty() {
            true => self.parts[0].bytes,
            false => self.devices.iter().map(|device| device.parts[0].bytes).sum(),
        };
        trunk.saturating_sub(embedding)
    }

    /// What a process holds for its code and the tokenizer.
    pub(crate) fn process_bytes(&self) -> u64 {
        process_bytes(&self.checkpoint)
    }

    /// Everything that the process will hold.
    pub(crate) fn total_bytes(&self) -> u64 {
        let slots = self.slots.as_ref().map_or(0, StorePlan::bytes);
        self.parts.iter().map(|part| part.bytes).sum::<u64>() + slots
    }
}

/// Pages of keys and values that snapshots of a GPU's sequences may hold beside them: as many as the sequences have,
/// at most a share of the budget, but always one whole context.
fn snapshot_pages(config: &ModelConfig, options: &CpuOptions, budget: u64) -> usize {
    if options.snapshots == 0 {
        return 0;
    }
    let context = options.context.div_ceil(PAGE_TOKENS) + 1;
    let page = Requirements::key_value_bytes_per_token(config, options) * PAGE_TOKENS as u64;
    let share = (budget as f64 * PAGES_SHARE) as u64 / page.max(1);
    (options.sequences * context).min(share as usize).max(context)
}

/// The process's memory: as asked, else a share of what the machine or its control group has.
fn budget(arguments: &ModelArguments, memory: &Memory) -> (u64, BudgetSource) {
    match (arguments.memory, &memory.group) {
        (Some(size), _) => (size.0, BudgetSource::Asked),
        (None, group) => {
            let bytes = (memory.spare() as f64 * AUTOMATIC_SHARE) as u64;
            let grouped = group.is_some() && memory.spare() < memory.available;
            (bytes, if grouped { BudgetSource::Group } else { BudgetSource::Machine })
        }
    }
}

/// Parts of the process's memory where GPUs compute; `trunk` bytes pass a buffer while they are loaded.
fn parts_with_devices(
    devices: &[DevicePlan],
    trunk: u64,
    snapshots: u64,
    process: u64,
) -> Vec<Part> {
    let shared = devices.iter().map(DevicePlan::shared_bytes).sum();
    let process = process + DRIVER_BYTES * drivers(devices);
    vec![
        Part { name: "GPU's buffers, slots and all", bytes: shared },
        Part { name: "loading buffer", bytes: trunk.min(PART_BYTES) },
        Part { name: "snapshots", bytes: snapshots },
        Part { name: "tokenizer and process", bytes: process },
    ]
}

/// How keys and values are stored: as asked, else as the model was trained.
fn kv_type(asked: Option<KvTypeChoice>, config: &ModelConfig) -> Result<KvType> {
    let trained = config.trained_kv_type();
    match asked.map(KvTypeChoice::kv_type) {
        None => Ok(trained.unwrap_or(DEFAULT_KV_TYPE)),
        Some(Some(kind)) => Ok(kind),
        Some(None) => trained.ok_or_else(|| {
            let reason = "--kv-type fp8: this model was not trained with keys and values in 8-bit floats; q8 is as \
                small, f16 the default";
            Failure::usage(reason.to_owned()).into()
        }),
    }
}

/// Experts a token uses: as asked, else as trained.
fn top_k(arguments: &ModelArguments, config: &ModelConfig) -> Result<usize> {
    let trained = config.moe.top_k;
    match arguments.experts_per_token.map(usize::from) {
        None => Ok(trained),
        Some(k) if (1..=trained).contains(&k) => Ok(k),
        Some(k) => {
            let reason =
                format!("-k {k}: the model was trained with {trained}; 1 to {trained} work");
            Err(Failure::usage(reason).into())
        }
    }
}

/// Tokens of a conversation: as asked, else of a part of the tokens that the budget holds for each.
fn context(arguments: &ModelArguments, config: &ModelConfig, held: u64) -> Result<usize> {
    let limit = config.max_positions;
    match arguments.context.map(|tokens| tokens as usize) {
        Some(tokens) if tokens > limit => {
            let reason = format!("--context {tokens}: the model was made for {limit} positions");
            Err(Failure::usage(reason).into())
        }
        Some(tokens) => Ok(tokens),
        None => {
            let (low, high) = CONTEXT_BOUNDS;
            let fits = (held / CONTEXT_PART) as usize / 1024 * 1024;
            Ok(fits.clamp(low, high).min(limit))
        }
    }
}

fn backend_options(
    arguments: &ModelArguments,
    config: &ModelConfig,
    budget: u64,
    Seats { sequences, snapshots, .. }: Seats,
) -> Result<CpuOptions> {
    let mut options = CpuOptions {
        layers: 0..config.layers.len(),
        batch_tokens: 1,
        logit_rows: LOGIT_ROWS,
        sequences: 1,
        snapshots: 0,
        context: 1,
        kv_growth: match arguments.kv {
            None | Some(KvChoice::Grow) => KvGrowth::Grow,
            Some(KvChoice::Ahead) => KvGrowth::Ahead,
        },
        kv_type: kv_type(arguments.kv_type, config)?,
        delta_form: match arguments.delta_rule {
            None | Some(DeltaChoice::Step) => DeltaForm::Step,
            Some(DeltaChoice::Chunked) => DeltaForm::Chunked,
        },
        top_k: top_k(arguments, config)?,
        round_tokens: match arguments.draft {
            DraftChoice::Off => 1,
            DraftChoice::Ngram | DraftChoice::Head | DraftChoice::Auto => ROUND_TOKENS,
        },
        row_cache: row_cache(config, budget),
    };
    let per_token = Requirements::key_value_bytes_per_token(config, &options).max(1);
    let sequences = sequences.unwrap_or_else(|| {
        let asked = arguments.context.map(|tokens| tokens as usize);
        automatic_sequences(budget / per_token, asked, config.max_positions)
    });
    options.sequences = sequences;
    options.logit_rows = LOGIT_ROWS.max(sequences);
    options.snapshots = match snapshots {
        Some(snapshots) => snapshots,
        None => {
            let (low, high) = SNAPSHOT_BOUNDS;
            let one = Requirements::snapshot_bytes(config, &options).max(1);
            ((budget as f64 * SNAPSHOT_SHARE) as u64 / one).clamp(low, high) as usize + sequences
        }
    };
    options.context = context(arguments, config, budget / (per_token * sequences as u64))?;
    options.batch_tokens = match arguments.prefill_chunk {
        Some(tokens) => tokens as usize,
        None => {
            let (low, high) = CHUNK_BOUNDS;
            let per_token = Requirements::activation_bytes_per_token(config, &options).max(1);
            let fits = (budget / 20 / per_token) as usize / 64 * 64;
            fits.clamp(low, high).min(options.context)
        }
    }
    .max(sequences)
    .max(options.round_tokens);
    Ok(options)
}

/// Bytes of the cache of rows of each table: what the budget has for it, and no more than holds all of them.
fn row_cache(config: &ModelConfig, budget: u64) -> u64 {
    let Some(ngrams) = &config.ngrams else { return 0 };
    let rows = ngrams.hashes.iter().map(NgramHash::rows).max().unwrap_or(0);
    let all = RowStore::cache_bytes(ngrams.columns() * size_of::<f32>(), rows);
    (budget / ROW_CACHE_PART).clamp(ROW_CACHE_BOUNDS.0, ROW_CACHE_BOUNDS.1).min(all)
}

/// Code, and the tokenizer as it is loaded.
fn process_bytes(checkpoint: &Checkpoint) -> u64 {
    let tokenizer = checkpoint.tokenizer.as_ref().map_or(0, TokenizerSource::bytes);
    PROCESS_BYTES + tokenizer * TOKENIZER_FACTOR
}

/// One thread per processor that this process may run on.
fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The kernels' arithmetic for the argument.
pub(crate) fn arithmetic(choice: Option<ArithmeticChoice>) -> Arithmetic {
    match choice {
        None | Some(ArithmeticChoice::Int16) => Arithmetic::Int16,
        Some(ArithmeticChoice::F32) => Arithmetic::F32,
    }
}

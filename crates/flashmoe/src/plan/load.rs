//! A plan made real: weights in memory, experts at hand, an engine that answers.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use engine::backend::Backend;
use engine::backend::cpu::{CpuBackend, CpuOptions};
use engine::backend::cuda::{CudaBackend, ExpertMemory, PREFILL_PART};
use engine::backend::gpu::{self, Adapter, Gpu, GpuBackend, Import};
use engine::engine::Engine;
use engine::model::Model;
use engine::model::mixture::expert_shapes;
use engine::routing::Routing;
use engine::stages::Stage;
use engine::weights::Catalog;
use kernels::{Compute, ComputeOptions, Isa};
use store::cache::{ExpertStore, LoadProgress, PolicyKind, StorageMode, StoreOptions};
use store::format::ProjectionShape;
use store::io::{DirectIo, IoEngine};
use store::rows::{RowOptions, RowStore};
use store::trunk::LoadMode;

use super::device::{DevicePlan, portable_options};
use super::stages::StagePlan;
use super::{Plan, arithmetic};
use crate::arguments::{IoChoice, LoadChoice, PolicyChoice, RoutingChoice, StorageChoice};
use crate::failure::Failure;
use crate::hosts::{self, StagesFile};
use crate::progress::{Progress, Unit, say};

/// Seed of calibrated routing: every run of a benchmark meets the same choices.
const ROUTING_SEED: u64 = 0;

/// Told which share of the bytes (0 to 1) is there.
pub(crate) type Tell = Arc<dyn Fn(f64) + Send + Sync>;

/// A loaded model.
pub(crate) struct Loaded {
    pub(crate) engine: Engine,
    /// Time from the start of loading until the engine could take tokens.
    pub(crate) load_time: Duration,
}

/// What every device begins with: the model's parts, counted and not yet read.
struct Declared<'a> {
    catalog: Catalog<'a>,
    shapes: Vec<Option<[ProjectionShape; 3]>>,
    mode: LoadMode,
    routing: Routing,
}

/// A stage to load: `before` bytes of other stages are there, of `all`.
#[derive(Clone, Copy)]
struct Part<'a> {
    stage: &'a StagePlan,
    before: f64,
    all: f64,
}

impl Plan {
    /// Loads what the plan says, with progress on standard error.
    pub(crate) fn load(&self) -> Result<Loaded> {
        self.load_with(self.routing())
    }

    /// As [`Plan::load`], with routing of the caller's.
    pub(crate) fn load_with(&self, routing: Routing) -> Result<Loaded> {
        self.load_telling(routing, &(Arc::new(|_| {}) as Tell))
    }

    /// Routing as the arguments ask for it.
    pub(crate) fn routing(&self) -> Routing {
        match self.arguments.routing {
            RoutingChoice::Model => Routing::default(),
            RoutingChoice::Calibrated => {
                let (layers, experts) = (self.config.layers.len(), self.config.moe.experts);
                Routing::calibrated(ROUTING_SEED, layers, experts)
            }
        }
    }

    /// As [`Plan::load_with`]; `tell` learns how far it is.
    pub(crate) fn load_telling(&self, routing: Routing, tell: &Tell) -> Result<Loaded> {
        let started = Instant::now();
        let (model, stages) = self.load_stages(routing, tell)?;
        let (config, chunk) = (self.config.clone(), self.backend.batch_tokens);
        let engine = match StagesFile::of(&self.arguments)? {
            None => Engine::over(config, model, stages, chunk).map_err(Failure::engine)?,
            Some(file) => self.over_hosts(model, stages, &file)?,
        };
        Ok(Loaded { engine, load_time: started.elapsed() })
    }

    /// An engine of the first layers and the head, with the stages in other processes that a file names.
    fn over_hosts(&self, model: Model, stages: Vec<Stage>, file: &StagesFile) -> Result<Engine> {
        let mut stages = stages.into_iter();
        let (Some(first), head) = (stages.next(), stages.next()) else {
            anyhow::bail!("the first process has the first layers");
        };
        let others = hosts::reach(self, file)?;
        let (config, chunk) = (self.config.clone(), self.backend.batch_tokens);
        let engine = Engine::over_hosts(config, model, first, others, head, chunk);
        Ok(engine.map_err(Failure::engine)?)
    }

    /// Loads the layers of `flashmoe stage`, with the model as it is declared.
    pub(crate) fn load_stage(&self) -> Result<(Stage, Model)> {
        let (model, stages) = self.load_stages(self.routing(), &(Arc::new(|_| {}) as Tell))?;
        let stage = stages.into_iter().next();
        Ok((stage.ok_or_else(|| anyhow::anyhow!("a plan without stages"))?, model))
    }

    /// The stages of this process, loaded, and the model as it is declared.
    fn load_stages(&self, mut routing: Routing, tell: &Tell) -> Result<(Model, Vec<Stage>)> {
        let mut catalog = self.catalog();
        let model = Model::declare(&self.config, &mut catalog).map_err(Failure::engine)?;
        routing.set_routers(model.program.routers(), model.program.router_biases());
        let shapes = expert_shapes(&self.checkpoint, &self.config).map_err(Failure::engine)?;
        let mode = match self.arguments.load {
            LoadChoice::Read => LoadMode::Read,
            LoadChoice::Mmap => LoadMode::Mmap,
        };
        let declared = Declared { catalog, shapes, mode, routing };
        let stages = match self.devices.is_empty() {
            true => self.on_processors(&declared, tell)?,
            false => self.on_gpus(&declared, tell)?,
        };
        Ok((model, stages))
    }

    /// The stages of the plan on their GPUs, one after the other.
    fn on_gpus(&self, declared: &Declared<'_>, tell: &Tell) -> Result<Vec<Stage>> {
        let catalog = |stage: &StagePlan| declared.catalog.of_layers(stage.layers.clone());
        let bytes = |(stage, device): (&StagePlan, &DevicePlan)| {
            let slots = device.slots.start as f64 * device.slot_bytes as f64;
            catalog(stage).required_bytes() as f64 + slots
        };
        let both = || self.stages.iter().zip(&self.devices);
        let all = both().map(bytes).sum::<f64>();
        let (mut before, mut stages) = (0.0, Vec::new());
        for (stage, device) in both() {
            let own = bytes((stage, device));
            let part: Tell = {
                let tell = Arc::clone(tell);
                Arc::new(move |share| tell((before + own * share) / all.max(1.0)))
            };
            let catalog = catalog(stage);
            let backend = match &device.portable {
                Some(adapter) => {
                    self.on_any_gpu(declared, &catalog, stage, device, adapter, &part)?
                }
                None => self.on_cuda(declared, &catalog, stage, device, &part)?,
            };
            stages.push(Stage { layers: stage.layers.clone(), backend });
            before += own;
        }
        Ok(stages)
    }

    /// The host tier of a stage.
    fn store_of(&self, stage: &StagePlan, progress: Option<LoadProgress>) -> Result<ExpertStore> {
        let mut options = self.store_options();
        if self.pins_all(stage) {
            options.mode = StorageMode::Resident;
        }
        options.slots = stage.slot_budget();
        options.progress = progress;
        let store = ExpertStore::open(Arc::clone(stage.checkpoint()), options);
        Ok(store.map_err(Failure::store)?)
    }

    /// The stages of the plan, one after the other.
    fn on_processors(&self, declared: &Declared<'_>, tell: &Tell) -> Result<Vec<Stage>> {
        let bytes = |stage: &StagePlan| {
            declared.catalog.of_layers(stage.layers.clone()).required_bytes() as f64
        };
        let all = self.stages.iter().map(bytes).sum::<f64>() + self.loaded_expert_bytes();
        let mut done = 0.0;
        let mut stages = Vec::new();
        let options = ComputeOptions {
            threads: self.threads,
            arithmetic: arithmetic(self.arguments.arithmetic),
            isa: Isa::Auto,
        };
        // Stages take turns with the threads of one pool.
        let compute = Compute::new(options).map_err(|e| Failure::usage(e.to_string()))?;
        for stage in &self.stages {
            let part = Part { stage, before: done, all };
            let backend = Box::new(self.on_processor(declared, part, compute.sharing(), tell)?);
            stages.push(Stage { layers: stage.layers.clone(), backend });
            done += bytes(stage);
            if self.store_options().mode == StorageMode::Resident {
                done += stage.slots.as_ref().map_or(0.0, |plan| plan.expert_read_bytes() as f64);
            }
        }
        Ok(stages)
    }

    fn on_processor(
        &self,
        declared: &Declared<'_>,
        Part { stage, before, all }: Part<'_>,
        compute: Compute,
        tell: &Tell,
    ) -> Result<CpuBackend> {
        let catalog = declared.catalog.of_layers(stage.layers.clone());
        let bytes = catalog.required_bytes() as f64;
        let rows = self.row_stores(&catalog)?;
        let told: Tell = {
            let tell = Arc::clone(tell);
            Arc::new(move |share| tell(before / all.max(1.0) + share))
        };
        let weights = read_trunk(bytes, all, &told, |watch| catalog.load(declared.mode, watch))
            .map_err(Failure::engine)?;
        let progress: LoadProgress = match self.stages.len() {
            1 => after(bytes, tell),
            _ => {
                let tell = Arc::clone(tell);
                Box::new(move |done: u64, _: u64| {
                    tell(((before + bytes + done as f64) / all).min(1.0))
                })
            }
        };
        let experts = Arc::new(self.store_of(stage, Some(progress))?);
        let limits = CpuOptions { layers: stage.layers.clone(), ..self.backend.clone() };
        let (config, shapes) = (self.config.clone(), declared.shapes.clone());
        let backend = CpuBackend::new(config, weights, experts, shapes, compute, limits);
        let mut backend = backend.map_err(Failure::engine)?;
        backend.set_rows(rows).map_err(Failure::engine)?;
        backend.set_routing(declared.routing.of_layers(&stage.layers));
        Ok(backend)
    }

    /// Opens the tables whose rows the model looks up.
    fn row_stores(&self, catalog: &Catalog<'_>) -> Result<Vec<RowStore>> {
        let options = self.store_options();
        let buffered = matches!(options.mode, StorageMode::PageCache | StorageMode::Mmap);
        let rows = catalog.open_rows(|_| RowOptions {
            io: options.io,
            direct: if buffered { DirectIo::Never } else { options.direct },
            drop_behind: !buffered,
            cache_bytes: self.backend.row_cache,
            storage: None,
        });
        Ok(rows.map_err(Failure::engine)?)
    }

    fn on_cuda(
        &self,
        Declared { shapes, mode, routing, .. }: &Declared<'_>,
        catalog: &Catalog<'_>,
        stage: &StagePlan,
        device: &DevicePlan,
        tell: &Tell,
    ) -> Result<Box<dyn Backend + Send>> {
        let bytes = catalog.required_bytes() as f64;
        let memory = ExpertMemory {
            store: Arc::new(self.store_of(stage, None)?),
            slot_bytes: device.slot_bytes,
            device_slots: device.slots,
            progress: Some(after(bytes, tell)),
        };
        let all = bytes + device.slots.start as f64 * device.slot_bytes as f64;
        let rows = self.row_stores(catalog)?;
        let backend = read_trunk(bytes, all, tell, |watch| {
            CudaBackend::new(
                self.config.clone(),
                catalog,
                *mode,
                memory,
                shapes,
                routing.clone(),
                device.info.ordinal,
                device.options.clone(),
                watch,
            )
        });
        let mut backend = backend.map_err(Failure::engine)?;
        backend.set_rows(rows).map_err(Failure::engine)?;
        Ok(Box::new(backend))
    }

    /// On a GPU of any maker.
    fn on_any_gpu(
        &self,
        Declared { shapes, mode, routing, .. }: &Declared<'_>,
        catalog: &Catalog<'_>,
        stage: &StagePlan,
        device: &DevicePlan,
        adapter: &Adapter,
        tell: &Tell,
    ) -> Result<Box<dyn Backend + Send>> {
        let bytes = catalog.required_bytes() as f64;
        let memory = gpu::ExpertMemory {
            store: Arc::new(self.store_of(stage, None)?),
            slot_bytes: device.slot_bytes,
            slots: device.slots.full,
            progress: Some(after(bytes, tell)),
        };
        let all = bytes + device.slots.full as f64 * device.slot_bytes as f64;
        let opened = Gpu::open(adapter.clone()).map_err(|error| Failure::engine(error.into()))?;
        let opened = (opened, portable_options(&device.options));
        let backend = read_trunk(bytes, all, tell, |watch| {
            GpuBackend::new(self.config.clone(), catalog, *mode, memory, shapes, opened, watch)
        });
        let mut backend = backend.map_err(Failure::engine)?;
        if backend.host_copies() && adapter.options.import == Import::Auto {
            say(match adapter.host_alignment {
                None => {
                    "the GPU's driver does not share RAM: the host copies experts without a slot, which is slower"
                }
                Some(_) => {
                    "the host copies experts without a slot: --gpu-import on has the GPU read them in RAM"
                }
            });
        }
        backend.set_routing(routing.clone()).map_err(Failure::engine)?;
        Ok(Box::new(backend))
    }

    /// An empty catalogue that compares what it loads with its checksums, unless that was declined.
    fn catalog(&self) -> Catalog<'_> {
        let mut catalog = Catalog::new(&self.checkpoint);
        if self.arguments.no_check {
            catalog.decline_check();
        }
        if hosts::leaves_behind(&self.arguments, !self.devices.is_empty()) {
            catalog.leave_behind();
        }
        catalog
    }

    /// Bytes of experts that are read before the first token.
    fn loaded_expert_bytes(&self) -> f64 {
        if self.store_options().mode != StorageMode::Resident {
            return 0.0;
        }
        let files = self.checkpoint.files.iter().filter_map(|file| file.path.metadata().ok());
        files.map(|file| file.len() as f64).sum()
    }

    fn store_options(&self) -> StoreOptions {
        let arguments = &self.arguments;
        let mode = match arguments.storage {
            StorageChoice::Resident if !self.devices.is_empty() => StorageMode::Budget,
            StorageChoice::Resident => StorageMode::Resident,
            StorageChoice::Budget => StorageMode::Budget,
            StorageChoice::Buffered => StorageMode::Buffered,
            StorageChoice::PageCache => StorageMode::PageCache,
            StorageChoice::Mmap => StorageMode::Mmap,
        };
        let minimum = self.minimum_slots(self.backend.sequences);
        let mut options = StoreOptions::new(mode, minimum);
        if !self.devices.is_empty() {
            options.prefill_part = PREFILL_PART;
        }
        options.io = match arguments.io {
            IoChoice::Auto => IoEngine::Auto,
            IoChoice::Uring => IoEngine::Uring,
            // A plan with `--io gds` was refused.
            IoChoice::Gds | IoChoice::Pread => IoEngine::Pread,
        };
        options.policy = match arguments.policy {
            PolicyChoice::Lru => PolicyKind::Lru,
            PolicyChoice::Lfu => PolicyKind::Lfu,
            PolicyChoice::Lfru => PolicyKind::DecayedLfru,
        };
        options.queue_depth = arguments.queue_depth.map(usize::from);
        options.check_reads = arguments.check_reads;
        options.residency_advice = arguments.residency_advice;
        options
    }
}

/// Reads `bytes` of dense weights of `all` that are read before the first token, with progress on standard error.
fn read_trunk<T>(
    bytes: f64,
    all: f64,
    tell: &Tell,
    read: impl FnOnce(&mut dyn FnMut(u64) -> ControlFlow<()>) -> T,
) -> T {
    let mut progress = Progress::new("loading trunk", Unit::Bytes, bytes);
    let done = read(&mut |done| {
        progress.set(done as f64);
        tell(done as f64 / all);
        ControlFlow::Continue(())
    });
    progress.finish();
    done
}

/// Tells of experts that come after `before` bytes of other weights.
fn after(before: f64, tell: &Tell) -> Box<dyn Fn(u64, u64) + Send> {
    let tell = Arc::clone(tell);
    Box::new(move |done, all| tell((before + done as f64) / (before + all as f64)))
}

//! The expert store: what opens it, what it reads ahead, what it counts. Visits are `visit.rs`, the bookkeeping that
//! they share with I/O threads is `shared.rs`.

use std::sync::Arc;

use crate::cache::StoreCounters;
use crate::cache::error::StoreError;
use crate::cache::layout::StorePlan;
use crate::cache::mapped::MappedExperts;
use crate::cache::opening::{StoreReport, allocate, default_depth, refuse_unchecked, used_files};
use crate::cache::options::{Phase, StorageMode, StoreOptions};
use crate::cache::shared::Shared;
use crate::cache::state::Purpose;
use crate::format::Checkpoint;
use crate::io::{CompletionSink, DirectIo, FileSet, Storage, start_engine};
use crate::{ExpertId, LayerId};

/// Expert records of a checkpoint, in memory as far as the budget goes.
pub struct ExpertStore {
    pub(super) shared: Arc<Shared>,
    pub(super) source: Source,
    pub(super) report: StoreReport,
}

/// Who brings the bytes.
pub(super) enum Source {
    /// An engine that reads into slots.
    Engine(Box<dyn Storage>),
    /// The system, by page faults.
    Mapped(MappedExperts),
}

impl ExpertStore {
    /// Opens the experts of a checkpoint: allocates every slot, starts the engine, and in `Resident`
    /// mode loads everything. Refuses a budget below `minimum_slots`, with the numbers.
    pub fn open(
        checkpoint: Arc<Checkpoint>,
        mut options: StoreOptions,
    ) -> Result<Self, StoreError> {
        let mode = options.mode;
        if options.check_reads {
            refuse_unchecked(&checkpoint, mode)?;
        }
        let mut plan = match mode {
            StorageMode::Resident => StorePlan::resident(&checkpoint)?,
            _ => StorePlan::budget(&checkpoint, options.slots, options.minimum_slots)?,
        };
        let budget_records = plan.slots();
        if mode == StorageMode::Mmap {
            plan.release_slots();
        }
        let direct = match mode {
            StorageMode::Buffered | StorageMode::PageCache | StorageMode::Mmap => DirectIo::Never,
            StorageMode::Resident | StorageMode::Budget => options.direct,
        };
        // Where reads cannot be direct, a fixed footprint still must not grow the page cache.
        let drop_behind = matches!(mode, StorageMode::Resident | StorageMode::Budget);
        let used = used_files(&checkpoint);
        let files = FileSet::open(&checkpoint.files, &used, direct, drop_behind)
            .map_err(|(path, cause)| StoreError::Open { path, cause: cause.to_string() })?;
        let files = Arc::new(files);
        let (arenas, first_slots) = allocate(&plan, &options)?;
        let queue_depth = options.queue_depth.unwrap_or_else(|| default_depth(&plan));
        let huge = arenas.iter().map(|arena| arena.huge_page_bytes());
        let huge_page_bytes = huge.sum::<Option<usize>>().map(|bytes| bytes as u64);
        let mut report = StoreReport {
            mode,
            engine: "mmap",
            queue_depth,
            direct: files.direct(),
            policy: options.policy,
            slots: plan.slots(),
            experts: plan.experts(),
            slot_bytes: plan.bytes(),
            huge_page_bytes,
        };
        let slots = (arenas, first_slots);
        let shared = Shared::new(checkpoint.clone(), Arc::clone(&files), plan, slots, &options);
        let shared = Arc::new(shared);
        let source = if mode == StorageMode::Mmap {
            let advised = options.residency_advice.then_some(budget_records);
            Source::Mapped(MappedExperts::new(checkpoint, files, advised)?)
        } else {
            let sink: Arc<dyn CompletionSink> = Arc::clone(&shared) as _;
            let started = match options.storage.take() {
                Some(mut storage) => storage.start(files, shared.arenas(), sink).map(|()| storage),
                None => start_engine(options.io, queue_depth, &files, shared.arenas(), &sink),
            };
            let engine = options.io.name();
            let storage =
                started.map_err(|cause| StoreError::Engine { engine, cause: cause.to_string() })?;
            report.engine = storage.name();
            Source::Engine(storage)
        };
        let store = Self { shared, source, report };
        if mode == StorageMode::Resident {
            store.load_all(options.progress.as_deref())?;
        }
        Ok(store)
    }

    /// Reads what a later visit of this layer will need, as far as slots are free for it, after all
    /// demand. Experts that the checkpoint does not have are an error of the later visit.
    pub fn read_ahead(&self, layer: LayerId, experts: &[ExpertId]) {
        let Ok(records) = self.shared.records(layer) else { return };
        if self.mapped().is_some() || self.shared.whole().is_err() {
            return;
        }
        let mut state = self.shared.lock();
        if state.starving > 0 || state.visits.iter().any(|visit| visit.unassigned > 0) {
            return;
        }
        for &expert in experts.iter().filter(|expert| expert.index() < records.len()) {
            let key = state.residency.key(layer, expert);
            if state.residency.find(key).is_some() {
                continue;
            }
            if self.shared.start_read(&mut state, layer, expert, Purpose::Ahead).is_none() {
                break;
            }
            state.counters.ahead_issued += 1;
        }
        self.submit(&mut state);
    }

    /// Says whether mapped files are what they were; asked after experts were used and before a result is handed
    /// on. Files that are read are compared at every read.
    ///
    /// # Errors
    /// The file that was cut or written to.
    pub fn check_files(&self) -> Result<(), StoreError> {
        self.mapped().map_or(Ok(()), MappedExperts::check_files)
    }

    /// Says whether the bookkeeping is whole. A panic that has cut a change of it short ends the store's service: it
    /// may name the wrong slot.
    ///
    /// # Errors
    /// [`StoreError::Interrupted`].
    pub fn check_bookkeeping(&self) -> Result<(), StoreError> {
        self.shared.whole()
    }

    /// Everything counted since the store was opened.
    pub fn counters(&self) -> StoreCounters {
        let state = self.shared.lock();
        let mut counters = state.counters;
        counters.in_flight = state.in_flight as u64;
        counters.device.in_both = state.residency.evictable_copies() as u64;
        counters
    }

    /// How the store was opened.
    pub fn report(&self) -> &StoreReport {
        &self.report
    }

    /// The mapped experts in `Mmap` mode.
    pub(super) fn mapped(&self) -> Option<&MappedExperts> {
        match &self.source {
            Source::Mapped(mapped) => Some(mapped),
            Source::Engine(_) => None,
        }
    }

    fn load_all(&self, progress: Option<&(dyn Fn(u64, u64) + Send)>) -> Result<(), StoreError> {
        let total = self.shared.plan().expert_read_bytes();
        let mut loaded = 0;
        let layers = &self.shared.plan().layers;
        for (index, layer) in layers.iter().enumerate() {
            let Some(plan) = layer else { continue };
            let all: Vec<ExpertId> = (0..plan.records.len() as u16).map(ExpertId).collect();
            let visit = self.visit(LayerId(index as u16), &all, Phase::Prefill)?;
            // The next layer's reads follow without a gap.
            if layers.get(index + 1).is_some_and(Option::is_some) {
                self.read_ahead(LayerId(index as u16 + 1), &all);
            }
            for (member, record) in plan.records.iter().enumerate() {
                visit.wait(member)?;
                loaded += record.read_bytes();
                if let Some(report) = progress {
                    report(loaded, total);
                }
            }
        }
        // Loading is not use.
        let mut state = self.shared.lock();
        state.counters = StoreCounters::default();
        Ok(())
    }
}

impl Drop for ExpertStore {
    fn drop(&mut self) {
        if let Source::Engine(storage) = &mut self.source {
            storage.stop();
        }
    }
}

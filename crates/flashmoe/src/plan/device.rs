//! The GPU's part of a plan: how much of its memory, and what goes there.

use anyhow::Result;
use engine::backend::PAGE_TOKENS;
use engine::backend::cpu::{CpuOptions, Requirements};
use engine::backend::cuda::{CudaOptions, CudaRequirements, DeviceInfo, SlotShare};
use engine::backend::gpu::{self, Adapter, GpuOptions, GpuRequirements, MemoryClass, Pieces};
use engine::model::config::ModelConfig;
use engine::weights::Catalog;
use store::cache::StorePlan;

use super::Part;
use super::machine::unified::Shared;
use super::sweep::{LONGEST_CHUNK, Room};
use crate::arguments::{ByteSize, KvChoice, ModelArguments};
use crate::failure::Failure;

/// The part of the plan that keys and values are.
const KEY_VALUES: &str = "key-value cache";

/// A GPU that can be used.
pub(crate) struct FoundDevice {
    pub(crate) info: DeviceInfo,
    /// The adapter where the portable backend computes.
    pub(crate) portable: Option<Adapter>,
    /// Bytes of its memory that may be taken.
    pub(crate) budget: u64,
    /// `--device auto` took it as one of any maker: the processor computes where the model does not fit.
    pub(crate) automatic: bool,
}

impl FoundDevice {
    /// Where the GPU's memory is the machine's own, takes at most this part of what the process may use, with `stages`
    /// others and itself, unless another was asked for. `ram` is what the machine has.
    pub(crate) fn within(
        mut self,
        arguments: &ModelArguments,
        budget: u64,
        stages: usize,
        ram: u64,
    ) -> Self {
        if is_shared(self.portable.as_ref()) && arguments.vram.is_none() {
            let part = budget / stages as u64;
            self.budget = match self.of_metal(ram) {
                Some(shared) => shared.automatic(part, arguments.memory.is_some()),
                None => self.budget.min(part / 4 * 3),
            };
        }
        self
    }

    /// What bounds a GPU that Metal reaches and that shares the machine's RAM.
    fn of_metal(&self, ram: u64) -> Option<Shared> {
        shared_by(self.portable.as_ref()?, ram)
    }

    /// Tokens of a prefill chunk where the user asked for none; `options` have the usual number.
    pub(crate) fn chunk(
        &self,
        config: &ModelConfig,
        catalog: &Catalog<'_>,
        records: &StorePlan,
        options: &CudaOptions,
    ) -> usize {
        let experts = records.experts();
        let slot_bytes = slot_bytes(records);
        let slots = |batch_tokens: usize| {
            let options = CudaOptions { batch_tokens, ..options.clone() };
            let left = |all| {
                let needs = self.needs(config, catalog, &options, slot_bytes, all);
                Some((self.budget.checked_sub(needs.total())? / slot_bytes as u64) as usize)
            };
            left(true).filter(|&slots| slots >= experts).or_else(|| left(false))
        };
        let layers = &config.layers[options.layers.clone()];
        let mixtures = layers.iter().filter(|layer| layer.feed_forward.has_mixture()).count();
        let (context, per_token) = (options.context, options.top_k * mixtures);
        Room { experts, per_token, context, longest: LONGEST_CHUNK, slots }
            .chunk(options.batch_tokens)
    }

    /// What a backend will hold, slots not counted.
    fn needs(
        &self,
        config: &ModelConfig,
        catalog: &Catalog<'_>,
        options: &CudaOptions,
        slot_bytes: usize,
        all: bool,
    ) -> CudaRequirements {
        let Some(adapter) = &self.portable else {
            return CudaRequirements::of(config, catalog, options, slot_bytes, all);
        };
        let GpuRequirements { weights, key_values, recurrent, activations, staging } =
            GpuRequirements::of(config, catalog, &portable_options(options), adapter.memory);
        let prefetched = 0;
        CudaRequirements { weights, key_values, recurrent, activations, staging, prefetched }
    }
}

/// What bounds a GPU of Metal's that shares `ram` bytes.
pub(super) fn shared_by(adapter: &Adapter, ram: u64) -> Option<Shared> {
    let unified = adapter.memory == MemoryClass::Unified && adapter.is_metal();
    adapter.memory_bytes.filter(|_| unified).map(|working_set| Shared { ram, working_set })
}

/// Whether the GPU's memory is the machine's own.
fn is_shared(adapter: Option<&Adapter>) -> bool {
    adapter.is_some_and(|adapter| adapter.memory == MemoryClass::Unified)
}

/// The limits of a batch as the portable backend takes them.
pub(crate) fn portable_options(options: &CudaOptions) -> GpuOptions {
    GpuOptions {
        layers: options.layers.clone(),
        batch_tokens: options.batch_tokens,
        logit_rows: options.logit_rows,
        sequences: options.sequences,
        snapshots: options.snapshots,
        snapshot_pages: options.snapshot_pages,
        context: options.context,
        kv_type: options.kv_type,
        top_k: options.top_k,
        pieces: Pieces::Adaptive,
        prediction: options.prediction,
    }
}

/// Bytes of the largest record.
fn slot_bytes(records: &StorePlan) -> usize {
    records.classes.iter().map(|class| class.slot_bytes).max().unwrap_or(4096)
}

/// What a GPU will hold.
pub(crate) struct DevicePlan {
    pub(crate) info: DeviceInfo,
    pub(crate) budget: u64,
    /// Limits of a batch and of what is kept.
    pub(crate) options: CudaOptions,
    /// Everything but the slots, at the start.
    pub(crate) parts: Vec<Part>,
    /// Keys and values when every conversation has its full context.
    pub(crate) full_cache_bytes: u64,
    /// The adapter where the portable backend computes.
    pub(crate) portable: Option<Adapter>,
    /// Bytes of one slot.
    pub(crate) slot_bytes: usize,
    pub(crate) slots: SlotShare,
    /// Experts of the model.
    pub(crate) experts: usize,
}

/// Why a batch does not fit into a device's memory.
fn too_large(found: &FoundDevice, parts: &[Part], needed: u64) -> Failure {
    let (name, needed, budget) = (&found.info.name, ByteSize(needed), ByteSize(found.budget));
    let mut reason = format!("{name} needs {needed} of GPU memory, the cap is {budget}:");
    for part in parts.iter().filter(|part| part.bytes > 0) {
        reason.push_str(&format!(" {} {},", part.name, ByteSize(part.bytes)));
    }
    reason.push_str(
        " no expert slot yet. Lower --context or --prefill-chunk, raise --vram, or use --device cpu",
    );
    Failure::memory(reason)
}

impl DevicePlan {
    /// Shares the device's memory out: what a batch needs, then slots with what is left. On the portable backend a
    /// slot has `portable_slot` bytes.
    ///
    /// # Errors
    /// Less than what a batch needs.
    pub(crate) fn new(
        found: FoundDevice,
        config: &ModelConfig,
        catalog: &Catalog<'_>,
        records: &StorePlan,
        portable_slot: Option<usize>,
        options: CudaOptions,
        kv: Option<KvChoice>,
    ) -> Result<Self> {
        let slot_bytes = portable_slot.unwrap_or_else(|| slot_bytes(records));
        let experts = records.experts();
        let needs = |all| found.needs(config, catalog, &options, slot_bytes, all);
        let budget = found.budget;
        let left =
            |needs: &CudaRequirements| budget.saturating_sub(needs.total()) / slot_bytes as u64;
        let mut requirements = needs(true);
        let mut slots = left(&requirements) as usize;
        if slots < experts {
            requirements = needs(false);
            slots = left(&requirements) as usize;
        }
        let mut parts = vec![
            Part { name: "dense trunk", bytes: requirements.weights },
            Part { name: KEY_VALUES, bytes: requirements.key_values },
            Part { name: "recurrent state", bytes: requirements.recurrent },
            Part { name: "activations", bytes: requirements.activations },
            Part { name: "staging", bytes: requirements.staging },
            Part { name: "prefetched experts", bytes: requirements.prefetched },
        ];
        if requirements.total() > budget {
            return Err(too_large(&found, &parts, requirements.total()).into());
        }
        let FoundDevice { info, portable, budget, .. } = found;
        let mut slots = slots.min(experts);
        if let Some(adapter) = &portable {
            slots = slots.min(gpu::most_slots(adapter, slot_bytes));
            if slots == 0 {
                let (room, one) =
                    (ByteSize(budget - requirements.total()), ByteSize(slot_bytes as u64));
                let reason = format!("--vram leaves {room} for experts, one takes {one}: raise it");
                return Err(Failure::memory(reason).into());
            }
        }
        let room = budget - requirements.total() + requirements.key_values;
        let grows = portable.is_none() && info.pages && kv != Some(KvChoice::Ahead);
        let growing = SlotShare::growing(config, &options, room, slot_bytes, experts)
            .filter(|_| grows && slots < experts);
        if let Some(share) = &growing {
            let cache = parts.iter_mut().filter(|part| part.name == KEY_VALUES);
            cache.for_each(|part| part.bytes = share.first_cache_bytes());
        }
        let slots = growing.unwrap_or_else(|| SlotShare::fixed(slots));
        let full_cache_bytes = requirements.key_values;
        Ok(Self {
            info,
            budget,
            options,
            parts,
            full_cache_bytes,
            portable,
            slot_bytes,
            slots,
            experts,
        })
    }

    /// True when every record always has a slot of its own in device memory.
    pub(crate) fn holds_all(&self) -> bool {
        self.slots.full >= self.experts
    }

    /// Bytes of device memory that will be taken.
    pub(crate) fn total_bytes(&self) -> u64 {
        let parts: u64 = self.parts.iter().map(|part| part.bytes).sum();
        match self.slots.grows() {
            true => parts - self.slots.first_cache_bytes() + self.slots.shared_bytes(),
            false => parts + self.slot_bytes_at_start(),
        }
    }

    /// The bytes among them that are the machine's own memory.
    pub(crate) fn shared_bytes(&self) -> u64 {
        if is_shared(self.portable.as_ref()) { self.total_bytes() } else { 0 }
    }

    /// Bytes of the slots that there are at the start.
    pub(crate) fn slot_bytes_at_start(&self) -> u64 {
        (self.slots.start * self.slot_bytes) as u64
    }
}

/// Bytes of all snapshots' pages and states in the process's memory; of a GPU those that its places have.
pub(super) fn snapshot_bytes(
    config: &ModelConfig,
    options: &CpuOptions,
    device: Option<&DevicePlan>,
) -> u64 {
    let pages = device.map_or(0, |device| device.options.snapshot_pages as u64);
    let [page, state] = match device.and_then(|device| device.portable.as_ref()) {
        Some(_) => GpuRequirements::snapshot_bytes(config, options.kv_type),
        None => {
            let row = Requirements::key_value_bytes_per_token(config, options);
            [row * PAGE_TOKENS as u64, Requirements::snapshot_bytes(config, options)]
        }
    };
    pages * page + options.snapshots as u64 * state
}

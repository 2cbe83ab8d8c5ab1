//! The GPU's part of a plan: which device, how much of its memory, and what goes there.

use anyhow::Result;
use engine::EngineError;
use engine::backend::cuda::{
    CudaError, CudaOptions, CudaRequirements, DeviceInfo, SlotShare, probe,
};
use engine::backend::gpu::{self, Adapter, GpuOptions, GpuRequirements, MemoryClass, Pieces};
use engine::model::config::ModelConfig;
use engine::weights::Catalog;
use store::cache::StorePlan;

use super::Part;
use super::sweep::{LONGEST_CHUNK, Room};
use crate::arguments::{
    AssumedMachine, ByteSize, DeltaChoice, DeviceChoice, DraftChoice, IoChoice, KvChoice,
    KvTypeChoice, ModelArguments, PredictChoice, StorageChoice,
};
use crate::failure::Failure;

/// Device memory that an automatic cap leaves free: a desktop's needs, and what the driver takes as it goes.
const RESERVE_BYTES: u64 = 512 << 20;

/// The part of the plan that keys and values are.
const KEY_VALUES: &str = "key-value cache";

/// A GPU that can be used.
pub(crate) struct FoundDevice {
    pub(crate) info: DeviceInfo,
    /// The adapter where the portable backend computes.
    pub(crate) portable: Option<Adapter>,
    /// Bytes of its memory that may be taken.
    pub(crate) budget: u64,
}

impl FoundDevice {
    /// Where the GPU's memory is the machine's own, takes at most this part of what the process may use, unless another
    /// was asked for.
    pub(crate) fn within(mut self, arguments: &ModelArguments, budget: u64) -> Self {
        if is_shared(self.portable.as_ref()) && arguments.vram.is_none() {
            self.budget = self.budget.min(budget / 4 * 3);
        }
        self
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
        let (context, per_token) = (options.context, options.top_k * config.mixtures());
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

/// What computes on a machine that is not here.
pub(crate) fn assumed(
    machine: &AssumedMachine,
    arguments: &ModelArguments,
    serves: Result<(), EngineError>,
) -> Result<Choice> {
    let (Some((vram, _)), true) = (machine.gpu, arguments.device.first() != DeviceChoice::Cpu)
    else {
        return Ok(Choice::Cpu { because: None });
    };
    serves.map_err(Failure::engine)?;
    let info = DeviceInfo {
        ordinal: 0,
        name: AssumedMachine::gpu_name(vram),
        capability: (0, 0),
        multiprocessors: 0,
        cache_bytes: 0,
        total_bytes: vram,
        free_bytes: vram,
        driver: (0, 0),
        pages: true,
    };
    let asked = arguments.vram.map(|size| size.0);
    let budget = asked.unwrap_or(vram.saturating_sub(RESERVE_BYTES));
    if budget > vram {
        let (asked, vram) = (ByteSize(budget), ByteSize(vram));
        return Err(Failure::memory(format!("--vram {asked}: --machine has {vram}")).into());
    }
    Ok(Choice::Gpu(Box::new(FoundDevice { info, portable: None, budget })))
}

/// Whether the GPU's memory is the machine's own.
fn is_shared(adapter: Option<&Adapter>) -> bool {
    adapter.is_some_and(|adapter| adapter.memory == MemoryClass::Unified)
}

/// The limits of a batch as the portable backend takes them.
pub(crate) fn portable_options(options: &CudaOptions) -> GpuOptions {
    GpuOptions {
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

/// What is said of a device whichever backend computes on it.
fn described(adapter: &Adapter, asked: Option<ByteSize>) -> Result<DeviceInfo> {
    let Some(bytes) = adapter.memory_bytes.or(asked.map(|size| size.0)) else {
        let name = &adapter.name;
        let reason = format!("{name} does not say how much memory it has: give --vram");
        return Err(Failure::usage(reason).into());
    };
    Ok(DeviceInfo {
        ordinal: adapter.index,
        name: format!("{} ({}, {})", adapter.name, adapter.api, adapter.driver),
        capability: (0, 0),
        multiprocessors: 0,
        cache_bytes: 0,
        total_bytes: bytes,
        free_bytes: bytes,
        driver: (0, 0),
        pages: false,
    })
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

/// What computes, and why when the user left it open.
pub(crate) enum Choice {
    Cpu {
        /// Why no GPU was taken, where one was looked for.
        because: Option<String>,
    },
    Gpu(Box<FoundDevice>),
}

/// Finds the device that the arguments ask for.
///
/// # Errors
/// A device asked for by name that cannot be used, or options that it does not know.
fn choose(arguments: &ModelArguments) -> Result<Choice> {
    let mut portable = None;
    if arguments.io == IoChoice::Gds {
        let reason =
            "--io gds: this build has no GPUDirect Storage reader; use auto, uring or pread";
        return Err(Failure::usage(reason).into());
    }
    if let Some(option) = arguments.driver.first()
        && !matches!(arguments.device.first(), DeviceChoice::Gpu(_))
    {
        return Err(Failure::usage(format!("{option} needs --device gpu")).into());
    }
    let (info, named) = match arguments.device.first() {
        DeviceChoice::Cpu => (None, false),
        DeviceChoice::Cuda(ordinal) => {
            let info = probe(ordinal).map_err(|error| {
                Failure::usage(format!("--device {}: {error}", arguments.device))
            })?;
            (Some(info), true)
        }
        DeviceChoice::Gpu(number) => {
            let adapter = gpu::choose(number).map_err(|error| {
                Failure::usage(format!("--device {}: {error}", arguments.device))
            })?;
            if let Some(what) = beyond_portable(arguments) {
                return Err(Failure::usage(format!("{what}: use --device cuda or cpu")).into());
            }
            let adapter = adapter
                .with(arguments.driver.options())
                .map_err(|error| Failure::usage(error.to_string()))?;
            let info = described(&adapter, arguments.vram)?;
            portable = Some(adapter);
            (Some(info), true)
        }
        DeviceChoice::Auto => match probe(0) {
            Ok(info) => (Some(info), false),
            Err(error) => {
                if let Some(option) = gpus_own(arguments) {
                    return Err(Failure::usage(format!("{option} needs a GPU: {error}")).into());
                }
                // Most machines have no such GPU: no driver is no news there.
                let because = match error {
                    EngineError::Cuda(CudaError::NoDriver) => None,
                    error => Some(error.to_string()),
                };
                return Ok(Choice::Cpu { because });
            }
        },
    };
    let mapped = matches!(arguments.storage, StorageChoice::PageCache | StorageChoice::Mmap);
    let Some(info) = info else {
        if let Some(option) = gpus_own(arguments) {
            return Err(Failure::usage(format!("{option} needs --device cuda")).into());
        }
        return Ok(Choice::Cpu { because: None });
    };
    if mapped && !named && gpus_own(arguments).is_none() {
        let because = "the storage mode has no pinned records for a GPU to read".to_owned();
        return Ok(Choice::Cpu { because: Some(because) });
    }
    if mapped {
        let reason = "a GPU reads records from pinned memory: use --storage budget or resident";
        return Err(Failure::usage(reason).into());
    }
    if let Some(what) = processors_own(arguments) {
        let reason = format!("{what}; leave it out, or use --device cpu");
        return Err(Failure::usage(reason).into());
    }
    let budget = match arguments.vram {
        Some(ByteSize(asked)) if asked > info.free_bytes => {
            let (asked, free) = (ByteSize(asked), ByteSize(info.free_bytes));
            let reason = format!("--vram {asked}: {} has {free} free", info.name);
            return Err(Failure::memory(reason).into());
        }
        Some(ByteSize(asked)) => asked,
        None => info.free_bytes.saturating_sub(RESERVE_BYTES),
    };
    Ok(Choice::Gpu(Box::new(FoundDevice { info, portable, budget })))
}

/// Takes the processor instead where the user left the choice open and the GPU's kernels do not serve the model.
///
/// # Errors
/// The GPU was asked for, by its name or by an option of its own: what it does not serve.
pub(crate) fn choose_for(
    arguments: &ModelArguments,
    serves: Result<(), EngineError>,
) -> Result<Choice> {
    let Err(error) = serves else { return choose(arguments) };
    if arguments.device.first() == DeviceChoice::Auto && gpus_own(arguments).is_none() {
        let because = error.to_string();
        let because = because.trim_end_matches(": use --device cpu").to_owned();
        return Ok(Choice::Cpu { because: Some(because) });
    }
    match choose(arguments)? {
        Choice::Gpu(_) => Err(Failure::engine(error).into()),
        found => Ok(found),
    }
}

/// The first option that the portable backend does not know.
fn beyond_portable(arguments: &ModelArguments) -> Option<&'static str> {
    let given = [
        (
            !matches!(arguments.kv_type, None | Some(KvTypeChoice::F16 | KvTypeChoice::F32)),
            "--kv-type: --device gpu stores keys and values as f16 or f32",
        ),
        (
            arguments.kv == Some(KvChoice::Grow),
            "--kv grow: --device gpu allocates keys and values at the start",
        ),
        (
            arguments.draft != DraftChoice::Off,
            "--draft: a step of --device gpu computes one token of each answer, with no way back from more",
        ),
    ];
    given.into_iter().find_map(|(given, what)| given.then_some(what))
}

/// The first option that means nothing without a GPU, and why where that is not plain.
fn gpus_own(arguments: &ModelArguments) -> Option<&'static str> {
    if arguments.vram.is_some() {
        return Some("--vram");
    }
    (arguments.predict != PredictChoice::Off).then_some(
        "--predict, which moves records while the GPU computes something else, and the processor has no time to spare,",
    )
}

/// The first option that only the processor's backend knows, and what a GPU does instead.
fn processors_own(arguments: &ModelArguments) -> Option<&'static str> {
    let given = [
        (
            arguments.delta_rule == Some(DeltaChoice::Chunked),
            "--delta-rule chunked is the processor's: a GPU goes token by token",
        ),
        (
            arguments.arithmetic.is_some(),
            "--arithmetic is the processor's: a GPU multiplies quantised weights by activations of 22 bits or more and \
             sums in f32",
        ),
        (
            arguments.threads.is_some(),
            "--threads is the processor's: a GPU computes without threads of the host",
        ),
    ];
    given.into_iter().find_map(|(given, what)| given.then_some(what))
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
            let (needed, budget) = (ByteSize(requirements.total()), ByteSize(budget));
            let name = &found.info.name;
            let mut reason = format!("{name} needs {needed} of GPU memory, the cap is {budget}:");
            for part in parts.iter().filter(|part| part.bytes > 0) {
                reason.push_str(&format!(" {} {},", part.name, ByteSize(part.bytes)));
            }
            reason.push_str(
                " no expert slot yet. Lower --context or --prefill-chunk, raise --vram, \
                             or use --device cpu",
            );
            return Err(Failure::memory(reason).into());
        }
        let FoundDevice { info, portable, budget } = found;
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// A model that the kernels do not serve is computed on the processor, unless a GPU was asked for.
    #[test]
    fn a_model_that_no_kernel_serves_is_the_processors() {
        let unserved = || -> Result<(), EngineError> {
            let problem =
                "is stored as iq2_s, which the CUDA kernels do not read: use --device cpu";
            Err(EngineError::Request(problem.to_owned()))
        };
        for options in ["", "--threads 1", "--storage mmap"] {
            match choose_for(&parse(options), unserved()).expect(options) {
                Choice::Cpu { because: Some(reason) } => assert!(
                    reason.contains("iq2_s") && !reason.contains("--device"),
                    "{options}: {reason}"
                ),
                _ => panic!("{options}: not the processor, or without a reason"),
            }
        }
        let named = choose_for(&parse("--device cpu"), unserved()).expect("cpu");
        assert!(matches!(named, Choice::Cpu { because: None }));
        for options in ["--device cuda", "--vram 4G", "--predict on"] {
            assert!(choose_for(&parse(options), unserved()).is_err(), "{options}");
        }
    }

    /// The arguments of a model alone.
    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        model: ModelArguments,
    }

    fn parse(options: &str) -> ModelArguments {
        let words = ["flashmoe", "MODEL"].into_iter().chain(options.split_whitespace());
        Only::try_parse_from(words).expect("options that exist").model
    }

    #[test]
    fn a_gpu_refuses_what_is_the_processors_and_says_what_it_does_instead() {
        for (options, flag, instead) in [
            ("--delta-rule chunked", "--delta-rule", "token by token"),
            ("--arithmetic int16", "--arithmetic", "f32"),
            ("--arithmetic f32", "--arithmetic", "f32"),
            ("--threads 2", "--threads", "without threads"),
        ] {
            let what = processors_own(&parse(options)).expect(options);
            assert!(what.starts_with(flag) && what.contains(instead), "{options}: {what}");
        }
        for options in ["--draft ngram", "--draft auto"] {
            let what = beyond_portable(&parse(options)).expect(options);
            assert!(what.starts_with("--draft") && what.contains("one token of each"), "{what}");
        }
        for options in [
            "",
            "--draft off",
            "--draft ngram",
            "--kv ahead",
            "--kv grow",
            "--kv-type f32",
            "--delta-rule step",
            "--slots 64",
        ] {
            assert_eq!(processors_own(&parse(options)), None, "{options}");
        }
    }

    #[test]
    fn what_is_the_gpus_needs_one_and_no_build_reads_past_the_processor() {
        for (options, needed) in [
            ("--device cpu --vram 4G", "--device cuda"),
            ("--device cpu --predict on", "--device cuda"),
            ("--device cpu --predict auto", "--device cuda"),
            ("--device cpu --gpu-import on", "--device gpu"),
            ("--device cuda --gpu-residency on", "--device gpu"),
            ("--gpu-wait spin", "--device gpu"),
            ("--io gds", "pread"),
            ("--io gds --device cuda", "pread"),
        ] {
            let refused = choose(&parse(options)).err().expect(options).to_string();
            assert!(refused.contains(needed), "{options}: {refused}");
        }
    }
}

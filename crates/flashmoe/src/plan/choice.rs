//! Which devices compute: what the arguments ask for and what is there; options that a kind of device does not know.

use anyhow::Result;
use engine::EngineError;
use engine::backend::cuda::{DeviceInfo, probe};
use engine::backend::gpu::{self, Adapter};

use super::auto;
use super::device::{FoundDevice, shared_by};
use super::machine::Memory;
use crate::arguments::{
    AssumedMachine, ByteSize, DeltaChoice, DeviceChoice, DraftChoice, IoChoice, KvChoice,
    KvTypeChoice, ModelArguments, PredictChoice, StorageChoice, VramCaps,
};
use crate::failure::Failure;

/// Device memory that an automatic cap leaves free: a desktop's needs, and what the driver takes as it goes.
const RESERVE_BYTES: u64 = 512 << 20;

/// Whether the kernels of a device serve the model.
pub(crate) type Serves<'a> = &'a dyn Fn(DeviceChoice) -> Result<(), EngineError>;

/// What computes, and why when the user left it open.
pub(crate) enum Choice {
    Cpu {
        /// Why no GPU was taken, where one was looked for.
        because: Option<String>,
    },
    /// One for each stage.
    Gpu(Vec<FoundDevice>),
}

/// Finds the device that the arguments ask for.
///
/// # Errors
/// A device asked for by name that cannot be used, or options that it does not know.
fn choose(arguments: &ModelArguments, serves: Serves<'_>) -> Result<Choice> {
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
    let (found, named) = match arguments.device.first() {
        DeviceChoice::Cpu => (Vec::new(), false),
        DeviceChoice::Cuda(_) | DeviceChoice::Gpu(_) => {
            let stages = arguments.device.all().iter().enumerate();
            let found = stages.map(|(stage, &device)| look_up(arguments, stage, device));
            (found.collect::<Result<_>>()?, true)
        }
        DeviceChoice::Auto => match probe(0) {
            Ok(info) => (vec![(info, None)], false),
            Err(error) => return auto::any_maker(arguments, serves, error),
        },
    };
    let mapped = matches!(arguments.storage, StorageChoice::PageCache | StorageChoice::Mmap);
    if found.is_empty() {
        if let Some(option) = gpus_own(arguments) {
            return Err(Failure::usage(format!("{option} needs --device cuda")).into());
        }
        return Ok(Choice::Cpu { because: None });
    }
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
    found_devices(arguments, found)
}

/// GPUs, one for each stage, with what may be taken of their memory.
///
/// # Errors
/// More was asked for than there is.
pub(super) fn found_devices(
    arguments: &ModelArguments,
    found: Vec<(DeviceInfo, Option<Adapter>)>,
) -> Result<Choice> {
    for (stage, (_, portable)) in found.iter().enumerate() {
        let asked = arguments.vram.as_ref().and_then(|caps| caps.of(stage));
        let shared = portable.as_ref().and_then(|it| shared_by(it, Memory::read().total));
        if let (Some(ByteSize(asked)), Some(shared)) = (asked, shared)
            && let Some(reason) = shared.refusal(asked)
        {
            return Err(Failure::memory(reason).into());
        }
    }
    let free: Vec<(usize, u64)> =
        found.iter().map(|(info, _)| (info.ordinal, info.free_bytes)).collect();
    let budgets = match budgets(&free, arguments.vram.as_ref()) {
        Ok(budgets) => budgets,
        Err((stage, asked)) => {
            let (info, asked) = (&found[stage].0, ByteSize(asked));
            let free = ByteSize(info.free_bytes);
            let reason = format!("--vram {asked}: {} has {free} free", info.name);
            return Err(Failure::memory(reason).into());
        }
    };
    let found = found.into_iter().zip(budgets);
    let found = found.map(|((info, portable), budget)| FoundDevice {
        info,
        portable,
        budget,
        automatic: false,
    });
    Ok(Choice::Gpu(found.collect()))
}

/// What each stage may take of its device, by number and free bytes: as asked, else its part of what is free, less a
/// reserve.
///
/// # Errors
/// The first stage with which more is asked of a device than it has free, and what all of its stages ask for.
fn budgets(free: &[(usize, u64)], vram: Option<&VramCaps>) -> Result<Vec<u64>, (usize, u64)> {
    let of_stage = |(stage, &(ordinal, free_bytes)): (usize, &(usize, u64))| {
        let on_it = || free.iter().enumerate().filter(move |(_, it)| it.0 == ordinal);
        let Some(caps) = vram else {
            return Ok(free_bytes.saturating_sub(RESERVE_BYTES) / on_it().count() as u64);
        };
        let cap = |stage| caps.of(stage).map_or(0, |size| size.0);
        let asked: u64 = on_it().map(|(stage, _)| cap(stage)).sum();
        if asked > free_bytes { Err((stage, asked)) } else { Ok(cap(stage)) }
    };
    free.iter().enumerate().map(of_stage).collect()
}

/// The device of a stage, with the adapter where the portable backend computes.
///
/// # Errors
/// It cannot be used, or options that its backend does not know.
fn look_up(
    arguments: &ModelArguments,
    stage: usize,
    device: DeviceChoice,
) -> Result<(DeviceInfo, Option<Adapter>)> {
    let refuse = |error: String| Failure::usage(format!("--device {}: {error}", arguments.device));
    let number = match device {
        DeviceChoice::Gpu(number) => number,
        DeviceChoice::Cuda(ordinal) => {
            return Ok((probe(ordinal).map_err(|error| refuse(error.to_string()))?, None));
        }
        DeviceChoice::Auto | DeviceChoice::Cpu => unreachable!("a list of GPUs"),
    };
    let adapter = gpu::choose(number).map_err(|error| refuse(error.to_string()))?;
    if let Some(what) = beyond_portable(arguments) {
        return Err(Failure::usage(format!("{what}: use --device cuda or cpu")).into());
    }
    let adapter = adapter
        .with(arguments.driver.options())
        .map_err(|error| Failure::usage(error.to_string()))?;
    let asked = arguments.vram.as_ref().and_then(|caps| caps.of(stage));
    Ok((described(&adapter, asked)?, Some(adapter)))
}

/// Takes the processor instead where the user left the choice open and the GPU's kernels do not serve the model.
///
/// # Errors
/// The GPU was asked for, by its name or by an option of its own: what it does not serve.
pub(crate) fn choose_for(arguments: &ModelArguments, serves: Serves<'_>) -> Result<Choice> {
    let Err(error) = serves(arguments.device.first()) else { return choose(arguments, serves) };
    let left_open = arguments.device.first() == DeviceChoice::Auto;
    if left_open && gpus_own(arguments).is_none() && probe(0).is_ok() {
        return Ok(Choice::Cpu { because: Some(without_advice(&error)) });
    }
    match choose(arguments, serves)? {
        // CUDA's kernels do not serve the model, those of the portable backend do.
        Choice::Gpu(found) if found.iter().any(|found| found.automatic) => Ok(Choice::Gpu(found)),
        Choice::Gpu(_) => Err(Failure::engine(error).into()),
        Choice::Cpu { because } if left_open => {
            Ok(Choice::Cpu { because: because.or_else(|| Some(without_advice(&error))) })
        }
        chosen => Ok(chosen),
    }
}

/// A refusal without what to do, where that was done.
fn without_advice(error: &EngineError) -> String {
    error.to_string().trim_end_matches(": use --device cpu").to_owned()
}

/// The first option that the portable backend does not know.
pub(super) fn beyond_portable(arguments: &ModelArguments) -> Option<&'static str> {
    let given = [
        (
            arguments.kv_type == Some(KvTypeChoice::Bf16),
            "--kv-type: --device gpu stores keys and values as f16, f32 or q8",
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
pub(super) fn gpus_own(arguments: &ModelArguments) -> Option<&'static str> {
    if arguments.vram.is_some() {
        return Some("--vram");
    }
    (arguments.predict != PredictChoice::Off).then_some(
        "--predict, which moves records while the GPU computes something else, and the processor has no time to spare,",
    )
}

/// The first option that only the processor's backend knows, and what a GPU does instead.
pub(super) fn processors_own(arguments: &ModelArguments) -> Option<&'static str> {
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
    let info = |ordinal| DeviceInfo {
        ordinal,
        name: AssumedMachine::gpu_name(vram),
        capability: (0, 0),
        multiprocessors: 0,
        total_bytes: vram,
        free_bytes: vram,
        driver: (0, 0),
        pages: true,
    };
    // A card of that size for each stage.
    let found = (0..arguments.device.all().len()).map(|stage| {
        let asked = arguments.vram.as_ref().and_then(|caps| caps.of(stage));
        let budget = asked.map_or(vram.saturating_sub(RESERVE_BYTES), |size| size.0);
        if budget > vram {
            let (asked, vram) = (ByteSize(budget), ByteSize(vram));
            return Err(Failure::memory(format!("--vram {asked}: --machine has {vram}")).into());
        }
        Ok(FoundDevice { info: info(stage), portable: None, budget, automatic: false })
    });
    Ok(Choice::Gpu(found.collect::<Result<_>>()?))
}

/// What is said of a device whichever backend computes on it.
pub(super) fn described(adapter: &Adapter, asked: Option<ByteSize>) -> Result<DeviceInfo> {
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
        total_bytes: bytes,
        free_bytes: bytes,
        driver: (0, 0),
        pages: false,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// A model that the kernels do not serve is computed on the processor, unless a GPU was asked for.
    #[test]
    fn a_model_that_no_kernel_serves_is_the_processors() {
        let unserved: Serves<'_> = &|_| -> Result<(), EngineError> {
            let problem =
                "is stored as iq2_s, which the CUDA kernels do not read: use --device cpu";
            Err(EngineError::Request(problem.to_owned()))
        };
        for options in ["", "--threads 1", "--storage mmap"] {
            match choose_for(&parse(options), unserved).expect(options) {
                Choice::Cpu { because: Some(reason) } => assert!(
                    reason.contains("iq2_s") && !reason.contains("--device"),
                    "{options}: {reason}"
                ),
                _ => panic!("{options}: not the processor, or without a reason"),
            }
        }
        let named = choose_for(&parse("--device cpu"), unserved).expect("cpu");
        assert!(matches!(named, Choice::Cpu { because: None }));
        for options in ["--device cuda", "--vram 4G", "--predict on"] {
            assert!(choose_for(&parse(options), unserved).is_err(), "{options}");
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
    fn stages_on_one_device_share_what_it_has_free() {
        let (two, free) = (4 * RESERVE_BYTES, [(0, 9 * RESERVE_BYTES), (1, 3 * RESERVE_BYTES)]);
        let caps = |text: &str| text.parse::<VramCaps>().expect(text);
        assert_eq!(budgets(&free, None), Ok(vec![8 * RESERVE_BYTES, 2 * RESERVE_BYTES]));
        let shared = [free[0], free[0]];
        assert_eq!(budgets(&shared, None), Ok(vec![4 * RESERVE_BYTES; 2]));
        assert_eq!(budgets(&shared, Some(&caps("2G"))), Ok(vec![two; 2]));
        assert_eq!(budgets(&shared, Some(&caps("1G,2G"))), Ok(vec![two / 2, two]));
        assert_eq!(budgets(&shared, Some(&caps("3G"))), Err((0, 6 << 30)), "both of one");
        assert_eq!(budgets(&free, Some(&caps("2G"))), Err((1, 2 << 30)));
        assert_eq!(budgets(&free, Some(&caps("4G,1G"))), Ok(vec![4 << 30, 1 << 30]));
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
            let refused = choose(&parse(options), &|_| Ok(())).err().expect(options).to_string();
            assert!(refused.contains(needed), "{options}: {refused}");
        }
    }
}

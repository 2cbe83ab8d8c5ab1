//! `--device auto` where CUDA has no GPU: one of any maker, where it is capable and its kernels are right here.
//!
//! Capable is a GPU that is no software, says how much memory it has, and, where it is a part of a processor's chip
//! that Vulkan reaches, reads memory at least as fast as the processor: an answer is bounded by that. A chip of Apple's
//! is.

use anyhow::Result;
use engine::EngineError;
use engine::backend::cuda::CudaError;
use engine::backend::gpu::{Adapter, Kind, adapters, choose};

use super::choice::{self, Choice, Serves};
use super::machine::{has_nvidia_card, may_have_gpu};
use crate::arguments::{DeviceChoice, ModelArguments, StorageChoice};
use crate::failure::Failure;
use crate::gpu_check::{Hook, Verdict, Verdicts, short};
use crate::progress::say;

/// What is said where a card has no driver.
const NO_DRIVER: &str =
    "an NVIDIA card is here, and no driver for it: install it (580 or newer), or use --device cpu";

/// What `--device auto` comes to where CUDA has no GPU, for the reason `error`.
///
/// # Errors
/// An option was given that needs a GPU, and there is none; more of its memory was asked for than there is.
pub(super) fn any_maker(
    arguments: &ModelArguments,
    serves: Serves<'_>,
    error: EngineError,
) -> Result<Choice> {
    let unfit = |arguments: &ModelArguments| {
        let mapped = matches!(arguments.storage, StorageChoice::PageCache | StorageChoice::Mmap);
        let mapped = mapped.then_some("the storage mode has no pinned records for a GPU to read");
        mapped
            .or_else(|| choice::beyond_portable(arguments))
            .or_else(|| choice::processors_own(arguments))
    };
    let because = match look(arguments, unfit, || serves(DeviceChoice::Gpu(None))) {
        Found::Gpu(adapter) => {
            let adapter = adapter
                .with(arguments.driver.options())
                .map_err(|error| Failure::usage(error.to_string()))?;
            let asked = arguments.vram.as_ref().and_then(|caps| caps.of(0));
            let info = choice::described(&adapter, asked)?;
            let mut choice = choice::found_devices(arguments, vec![(info, Some(adapter))])?;
            if let Choice::Gpu(found) = &mut choice {
                found.iter_mut().for_each(|found| found.automatic = true);
            }
            return Ok(choice);
        }
        Found::Processor(because) => because,
    };
    // Most machines have no such GPU: no driver is no news there, unless a card waits for it.
    let cuda = match error {
        EngineError::Cuda(CudaError::NoDriver) => has_nvidia_card().then(|| NO_DRIVER.to_owned()),
        ref error => Some(error.to_string()),
    };
    let because = because.or(cuda);
    match choice::gpus_own(arguments) {
        None => Ok(Choice::Cpu { because }),
        Some(option) => {
            let reason = because.unwrap_or_else(|| error.to_string());
            Err(Failure::usage(format!("{option} needs a GPU: {reason}")).into())
        }
    }
}

/// What was found.
enum Found {
    /// This GPU computes.
    Gpu(Box<Adapter>),
    /// The processor does, and why, where there is a GPU to speak of.
    Processor(Option<String>),
}

/// Looks for a GPU. `unfit` is what of the arguments it does not know, `serves` whether its kernels serve the model.
fn look(
    arguments: &ModelArguments,
    unfit: impl Fn(&ModelArguments) -> Option<&'static str>,
    serves: impl Fn() -> Result<(), EngineError>,
) -> Found {
    // Drivers are loaded to be asked, which takes longer than a short answer where there is none.
    let hooked = Hook::Look.is_set() || Hook::Software.is_set();
    if !may_have_gpu() && !hooked {
        return Found::Processor(None);
    }
    let adapter = match one() {
        Ok(adapter) => adapter,
        Err(reason) => return Found::Processor(reason),
    };
    let name = adapter.name.clone();
    let refused = |reason: String| Found::Processor(Some(format!("{name}: {reason}")));
    if let Some(reason) = unfit(arguments) {
        return refused(reason.to_owned());
    }
    if let Err(error) = serves() {
        return refused(error.to_string().trim_end_matches(": use --device cpu").to_owned());
    }
    if adapter.memory_bytes.is_none() {
        return refused("it does not say how much memory it has".to_owned());
    }
    let known = Verdicts::of(&adapter);
    let first = known.is_none();
    let verdict = known.unwrap_or_else(|| short(&adapter));
    if first {
        say(&first_line(&name, &verdict));
    }
    match verdict.refusal() {
        Some(reason) => refused(reason),
        None => Found::Gpu(Box::new(adapter)),
    }
}

/// The GPU that is looked at; else why there is none, where a driver that computes on the processor is there.
fn one() -> Result<Adapter, Option<String>> {
    let found = adapters().map_err(|_| None)?;
    if Hook::Software.is_set() {
        return found.into_iter().next().ok_or(None);
    }
    choose(None).map_err(|_| {
        let software = found.iter().find(|adapter| adapter.kind == Kind::Software)?;
        let (name, number) = (&software.name, software.index);
        Some(format!(
            "{name} is no GPU, it computes on the processor (--device gpu:{number} takes it)"
        ))
    })
}

/// What the first start says.
fn first_line(name: &str, verdict: &Verdict) -> String {
    let seconds = verdict.milliseconds as f64 / 1000.0;
    match verdict.refusal() {
        None => format!(
            "{name} computes: {} checks of its kernels are right ({seconds:.1} s, once; flashmoe doctor --gpu-check \
             runs all, --device cpu is without it)",
            verdict.checks
        ),
        Some(reason) => format!(
            "the processor computes, not {name}: {reason} (flashmoe doctor --gpu-check shows more, --device gpu takes \
             it all the same)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_start_says_what_computes_and_why() {
        let mut verdict = Verdict {
            holds: true,
            short: true,
            checks: 14,
            reason: None,
            slow: None,
            milliseconds: 1_240,
        };
        let line = first_line("A Card", &verdict);
        assert!(line.starts_with("A Card computes: 14 checks") && line.contains("1.2 s"), "{line}");
        verdict.slow = Some("it reads memory at 12 GB/s, the processor at 40".to_owned());
        let line = first_line("A Card", &verdict);
        assert!(line.starts_with("the processor computes, not A Card: it reads"), "{line}");
        (verdict.holds, verdict.reason) = (false, Some("2 of 14 are wrong".to_owned()));
        let line = first_line("A Card", &verdict);
        assert!(line.contains("2 of 14 are wrong") && !line.contains("GB/s"), "{line}");
        assert_eq!(line.lines().count(), 1);
    }
}

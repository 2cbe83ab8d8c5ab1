//! `flashmoe doctor --gpu-check`: the kernels of `--device gpu` against the scalar reference, as a report that is
//! printed as it is found. Each group of checks runs in a process of its own: a driver that crashes is a line of the
//! report.

use std::io::Write;

use anyhow::{Context, Result};
use engine::EngineError;
use engine::backend::gpu::{Adapter, GpuError, adapters, check};

use crate::failure::Failure;
use crate::gpu_check::{
    Ended, GROUP_LIMIT, HOLDS, Hook, Verdict, Verdicts, WRONG, run_group, slower,
};
use crate::plan::machine::{Identity, Memory};

/// Checks every adapter and prints a line for each kernel.
///
/// # Errors
/// No adapter, or one on which a kernel is wrong or does not run.
pub(super) fn run(out: &mut dyn Write) -> Result<()> {
    let found = found()?;
    for line in head() {
        tell(out, &line)?;
    }
    let mut wrong = 0;
    for adapter in found {
        tell(out, &format!("\n{adapter}"))?;
        wrong += usize::from(!check_one(&adapter, out)?.holds);
    }
    match wrong {
        0 => Ok(()),
        _ => {
            let found = "kernels are wrong or did not run: report the lines above".to_owned();
            Err(Failure::engine(EngineError::Request(found)).into())
        }
    }
}

/// Every adapter.
///
/// # Errors
/// There is none.
fn found() -> Result<Vec<Adapter>> {
    let found = adapters().map_err(|error| Failure::engine(error.into()))?;
    if found.is_empty() {
        let error = GpuError::NoAdapter { others: Vec::new() };
        return Err(Failure::engine(error.into()).into());
    }
    Ok(found)
}

/// What the program and the machine are.
pub(super) fn head() -> Vec<String> {
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("FLASHMOE_COMMIT"));
    let (system, machine) = (std::env::consts::OS, std::env::consts::ARCH);
    let identity = Identity::read();
    let page = identity.page.map(|bytes| format!(", pages of {bytes} bytes")).unwrap_or_default();
    let ram = crate::arguments::ByteSize(Memory::read().total);
    vec![
        format!("flashmoe {version} ({commit}), {system} on {machine}"),
        format!("{}; {}, {ram} RAM{page}", identity.system, identity.chip),
    ]
}

/// Checks an adapter, keeps the verdict for `--device auto`, and says what it is.
pub(super) fn check_one(adapter: &Adapter, out: &mut dyn Write) -> Result<Verdict> {
    let mut groups = Vec::new();
    for name in check::groups() {
        // The name first: what comes behind it may be a crash.
        tell(out, &format!("{name}:"))?;
        let mut told = Ok(());
        let group = run_group(adapter.index, name, GROUP_LIMIT, &mut |line| {
            if told.is_ok() {
                told = tell(out, &format!("  {line}"));
            }
        });
        told?;
        if let Ended::Early(reason) = &group.ended {
            tell(out, &format!("  stopped: {reason}"))?;
        }
        groups.push((name, group));
    }
    let mut verdict = Verdict::of(&groups);
    verdict.slow = slower(adapter, &verdict);
    let wrong: usize = groups.iter().map(|(_, group)| group.wrong).sum();
    let stopped = groups.iter().filter(|(_, group)| group.ended != Ended::Whole).count();
    let seconds = verdict.milliseconds as f64 / 1000.0;
    let checks = verdict.checks;
    tell(
        out,
        &format!("{checks} checks, {wrong} wrong, {stopped} groups stopped, {seconds:.1} s"),
    )?;
    if let Some(slow) = &verdict.slow {
        tell(out, &format!("--device auto leaves it to the processor: {slow}"))?;
    }
    if let Err(error) = Verdicts::keep(adapter, &verdict) {
        tell(out, &format!("the verdict is not kept for --device auto: {error}"))?;
    }
    Ok(verdict)
}

/// Runs one group in this process and prints a line for each check, as [`check_one`] hears them.
///
/// # Errors
/// No such adapter or group; a check that is wrong; a driver that refused or failed.
pub(super) fn run_here(number: usize, group: &str, out: &mut dyn Write) -> Result<()> {
    let adapter = found()?.into_iter().nth(number);
    let none = || Failure::usage(format!("there is no GPU {number}"));
    let adapter = adapter.ok_or_else(none)?;
    let mut wrong = 0;
    let mut told = Ok(());
    let mut hear = |finding: &check::Finding| {
        let holds = finding.holds() && !Hook::Wrong.is_set();
        wrong += usize::from(!holds);
        let verdict = if holds { HOLDS } else { WRONG };
        let alone = if finding.alone_equal { "" } else { ", and bits differ" };
        let (name, difference, bound) = (&finding.name, finding.difference, finding.bound);
        if told.is_ok() {
            told = tell(out, &format!("{verdict}{name}: {difference:.1e} of {bound:.0e}{alone}"));
        }
        if Hook::Crash.is_set() {
            std::process::abort();
        }
    };
    let checked = check::run_group(&adapter, group, &mut hear);
    told?;
    checked.map_err(|error| Failure::engine(error.into()))?;
    match wrong {
        0 => Ok(()),
        wrong => {
            Err(Failure::engine(EngineError::Request(format!("{wrong} checks are wrong"))).into())
        }
    }
}

/// A line that can be read at once.
pub(super) fn tell(out: &mut dyn Write, line: &str) -> Result<()> {
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(Failure::io)
        .context("the report cannot be written")
}

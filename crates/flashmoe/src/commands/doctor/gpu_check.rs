//! `flashmoe doctor --gpu-check`: the kernels of `--device gpu` against the scalar reference, as a report.

use std::io::Write;
use std::time::Instant;

use anyhow::Result;
use engine::EngineError;
use engine::backend::gpu::{Adapter, Gpu, GpuError, adapters, check};

use crate::failure::Failure;

/// Checks every adapter and prints a line for each kernel.
///
/// # Errors
/// No adapter, or one on which a kernel is wrong or does not run.
pub(super) fn run(out: &mut dyn Write) -> Result<()> {
    let found = adapters().map_err(|error| Failure::engine(error.into()))?;
    if found.is_empty() {
        let error = GpuError::NoAdapter { others: Vec::new() };
        return Err(Failure::engine(error.into()).into());
    }
    let (version, system) = (env!("CARGO_PKG_VERSION"), std::env::consts::OS);
    let machine = std::env::consts::ARCH;
    writeln!(out, "flashmoe {version}, {system} on {machine}").map_err(Failure::io)?;
    let mut wrong = 0;
    for adapter in found {
        wrong += check_one(adapter, out)?;
    }
    match wrong {
        0 => Ok(()),
        wrong => {
            let found = format!("{wrong} kernels are wrong or did not run: report the lines above");
            Err(Failure::engine(EngineError::Request(found)).into())
        }
    }
}

/// Kernels that are wrong on this adapter.
fn check_one(adapter: Adapter, out: &mut dyn Write) -> Result<usize> {
    writeln!(out, "\n{adapter}").map_err(Failure::io)?;
    let started = Instant::now();
    let mut lines = Vec::new();
    let mut tell = |finding: &check::Finding| {
        let verdict = if finding.holds() { "ok   " } else { "WRONG" };
        let alone = if finding.alone_equal { "" } else { ", and bits differ" };
        let (name, difference, bound) = (&finding.name, finding.difference, finding.bound);
        lines.push(format!("{verdict} {name}: {difference:.1e} of {bound:.0e}{alone}"));
    };
    let checked = Gpu::open(adapter.clone()).and_then(|mut gpu| {
        let mut findings = check::run(&mut gpu, &mut tell)?;
        drop(gpu);
        findings.extend(check::run_driver_options(&adapter, &mut tell)?);
        Ok(findings)
    });
    for line in &lines {
        writeln!(out, "{line}").map_err(Failure::io)?;
    }
    let seconds = started.elapsed().as_secs_f64();
    let wrong = match checked {
        Ok(findings) => {
            let wrong = findings.iter().filter(|finding| !finding.holds()).count();
            let count = findings.len();
            writeln!(out, "{count} checks, {wrong} wrong, {seconds:.1} s").map_err(Failure::io)?;
            wrong
        }
        Err(error) => {
            writeln!(out, "stopped: {error}").map_err(Failure::io)?;
            1
        }
    };
    Ok(wrong)
}

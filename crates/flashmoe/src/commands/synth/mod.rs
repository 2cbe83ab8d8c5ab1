//! `flashmoe synth`: checkpoints of real shapes with random weights, at disk speed.
//!
//! They stand in for models that are too large to ship or to fetch: every byte is where a real
//! checkpoint has it, activations stay finite, and the same seed makes the same bytes in any layout.
//! What they say is noise, and their routers choose nearly at random: measure with `--routing
//! calibrated`.

mod blocks;
mod content;
mod deepseek_v4;
#[cfg(test)]
mod figures;
mod flash_next;
mod gemma4;
mod glm_next;
mod head;
mod kimi_linear;
mod latent;
mod ling;
mod plain;
mod shape;
mod sigmoid;
mod tensors;
mod values;

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};
use store::synthetic::{GenerateError, GeneratedLayout, required_bytes};

use crate::arguments::{ByteSize, LayoutChoice, SynthArguments};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::progress::{Progress, Unit};

use content::RandomContent;

pub(crate) fn synth(arguments: &SynthArguments, out: &mut dyn Write) -> Result<()> {
    let shape = shape::resolve(arguments)?;
    let layout = match arguments.layout {
        LayoutChoice::Mlx => GeneratedLayout::Mlx,
        LayoutChoice::Native => GeneratedLayout::Native,
    };
    let bytes = required_bytes(&shape.model, layout).map_err(failure)?;
    let content = RandomContent::new(&shape, arguments.seed);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let interrupt = Interrupt::listen()?;
    let mut progress = Progress::new("writing", Unit::Bytes, bytes as f64);
    let started = Instant::now();
    let written = store::synthetic::write(
        &shape.model,
        layout,
        &arguments.destination,
        threads,
        &content,
        &mut |done| {
            progress.set(done as f64);
            if interrupt.flag().load(Ordering::Relaxed) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        },
    );
    progress.finish();
    written.map_err(failure)?;
    let seconds = started.elapsed().as_secs_f64();
    let line = format!(
        "{}: {} in {seconds:.1} s, {:.2} GB/s to the disk",
        arguments.destination.display(),
        ByteSize(bytes),
        bytes as f64 / seconds.max(1e-6) / 1e9,
    );
    writeln!(out, "{line}").map_err(Failure::io)?;
    Ok(())
}

/// What a pack notes of how it was made.
fn recipe(arguments: &SynthArguments) -> Value {
    let mut recipe = json!({ "shape": arguments.shape, "seed": arguments.seed });
    if let Some(distinct) = arguments.distinct {
        recipe["distinct"] = distinct.into();
    }
    recipe
}

fn failure(error: GenerateError) -> Failure {
    match error {
        GenerateError::Stopped => Failure::Interrupted,
        GenerateError::Space { path, needed, free } => Failure::disk(format!(
            "the checkpoint takes {}, {} has {} free; fewer --layers or fewer bits take less",
            ByteSize(needed),
            path.display(),
            ByteSize(free),
        )),
        error @ (GenerateError::Exists(_) | GenerateError::Shape { .. }) => {
            Failure::usage(error.to_string())
        }
        error @ GenerateError::Io { .. } => Failure::io(error),
    }
}

//! What the processes of a model have to agree on, as a plan has it.

use std::ops::Range;

use anyhow::Result;
use engine::stages::remote::{Limits, Terms};

use crate::arguments::VERSION;
use crate::commands::numerics_of;
use crate::failure::Failure;
use crate::plan::Plan;
use crate::progress::say;

/// Reading so many bytes takes a while, and is said.
const TOLD_BYTES: u64 = 1 << 30;

/// The terms of a stage with these layers. The model's contents are read for them where neither a pack nor a note has
/// their sums.
///
/// # Errors
/// The model cannot be read.
pub(crate) fn terms(plan: &Plan, layers: Range<usize>) -> Result<Terms> {
    let checkpoint = &plan.checkpoint;
    if checkpoint.contents_bytes() > TOLD_BYTES {
        say("stages compare the model's contents by a sum of all its bytes, which is noted");
    }
    let note = crate::state::cache_folder().and_then(|folder| {
        store::io::platform::create_private_folder(&folder).ok()?;
        Some(folder.join("contents"))
    });
    let contents = checkpoint.contents(note.as_deref()).map_err(Failure::io)?;
    let (config, backend) = (&plan.config, &plan.backend);
    Ok(Terms {
        build: VERSION.to_owned(),
        contents,
        device: match plan.device() {
            None => "cpu",
            Some(device) if device.portable.is_none() => "cuda",
            Some(_) => "gpu",
        }
        .to_owned(),
        arithmetic: numerics_of(plan),
        model_layers: config.layers.len(),
        head: plan.device().is_some() && layers.end == config.layers.len(),
        layers,
        limits: Limits {
            sequences: backend.sequences,
            context: backend.context,
            batch_tokens: backend.batch_tokens,
            round_tokens: backend.round_tokens,
            width: config.streams() * config.hidden,
            vocabulary: config.vocabulary,
        },
    })
}

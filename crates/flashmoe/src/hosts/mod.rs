//! A model in several processes, on this host or others: which of its layers are whose, what the processes have to
//! agree on, and how the first reaches the others.

mod file;
mod reach;
mod terms;

use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use engine::stages::Stages;
use engine::stages::remote::Channel;
use wire::{Identity, WireError};

use crate::arguments::{ModelArguments, ServeArguments};
use crate::failure::Failure;
use crate::plan::stages::StagePlan;
use crate::progress::say;
pub(crate) use file::StagesFile;
pub(crate) use reach::reach;
pub(crate) use terms::terms;

/// A connection as the engine takes it.
pub(crate) fn channel(connection: wire::Connection) -> Channel {
    let wire::Connection { reader, writer, end, look, address } = connection;
    Channel { reader, writer, end, look: Arc::new(move |time| look.set(time)), address }
}

/// The layers that this process computes, of a model in several processes: of a stage its own; of the first process
/// the first ones, and none behind the last layer for the head. `None` where one process computes all.
///
/// # Errors
/// Layers that the model does not have, a file that leaves some out, or what is not served in several processes.
pub(crate) fn ranges(
    arguments: &ModelArguments,
    layers: usize,
) -> Result<Option<Vec<Range<usize>>>> {
    let what = match (&arguments.part, &arguments.stages) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            let reason = "--stages is the first process's: a stage has --layers";
            return Err(Failure::usage(reason).into());
        }
        (Some(_), None) => "stage",
        (None, Some(_)) => "--stages",
    };
    if arguments.device.all().len() > 1 {
        let shown = &arguments.device;
        let reason = format!("{what}: --device {shown}: each process has one device, and a stage");
        return Err(Failure::usage(reason).into());
    }
    if let Some(part) = &arguments.part {
        if part.start == 0 || part.end > layers {
            let Range { start, end } = part;
            let reason = format!(
                "--layers {start}:{end}: of {layers} layers the first is the first process's: 1:{layers} at the most"
            );
            return Err(Failure::usage(reason).into());
        }
        return Ok(Some(vec![part.clone()]));
    }
    let file = StagesFile::of(arguments)?.expect("asked for where there is one");
    let first = 0..file.stages[0].layers.start;
    let others = file.stages.iter().map(|stage| stage.layers.clone());
    let all: Vec<_> = std::iter::once(first.clone()).chain(others).collect();
    Stages::check(layers, &all).map_err(|error| {
        let file = store::shown::path(arguments.stages.as_deref().unwrap_or("".as_ref()));
        Failure::usage(format!("--stages {file}: {error}"))
    })?;
    Ok(Some(vec![first, layers..layers]))
}

/// Whether a stage of this process leaves what is behind the last layer to another. On GPUs, which draw by themselves,
/// the last stage has the head; of processors the first process has it.
pub(crate) fn leaves_behind(arguments: &ModelArguments, on_gpu: bool) -> bool {
    arguments.part.is_some() && !on_gpu
}

/// The stages of this process on a GPU: without a stage for the head.
///
/// # Errors
/// One would end with a layer that has no experts.
pub(crate) fn on_gpu(
    arguments: &ModelArguments,
    stages: &mut Vec<StagePlan>,
    experts: &[bool],
) -> Result<()> {
    if arguments.part.is_none() && arguments.stages.is_none() {
        return Ok(());
    }
    stages.truncate(1);
    let last = stages.first().map_or(0, |stage| stage.layers.end - 1);
    if last + 1 < experts.len() && !experts[last] {
        let reason = format!(
            "a stage would end with layer {last}, which has no experts: a GPU's ends with one that has"
        );
        return Err(Failure::usage(reason).into());
    }
    Ok(())
}

/// Refuses what a server cannot do for a model in several processes.
///
/// # Errors
/// The first such option, and why.
pub(crate) fn check_served(arguments: &ServeArguments) -> Result<()> {
    if arguments.model.stages.is_none() {
        return Ok(());
    }
    let given = [
        ("--cache-disk", arguments.cache_disk.is_some()),
        ("--cache-shared", arguments.cache_shared.is_some()),
        ("--slot-save-path", arguments.slot_save_path.is_some()),
    ];
    if let Some((option, _)) = given.into_iter().find(|(_, given)| *given) {
        let reason = format!(
            "{option} with --stages: what was computed is in the memory of every process, and none writes its part yet"
        );
        return Err(Failure::usage(reason).into());
    }
    if !arguments.more.is_empty() {
        let reason = "--stages: the stages are those of one model; serve no others with it";
        return Err(Failure::usage(reason).into());
    }
    Ok(())
}

/// A failure to connect, sorted by its kind.
pub(crate) fn failure(error: WireError) -> Failure {
    match error {
        WireError::Open(_) | WireError::Absent => Failure::usage(error.to_string()),
        WireError::Address { .. }
        | WireError::File { .. }
        | WireError::Handshake { .. }
        | WireError::Unanswered { .. } => Failure::io(error),
    }
}

/// Says that a key is no secret.
pub(crate) fn warn_of_readers(identity: &Identity) {
    if identity.is_readable_by_others() {
        let file = store::shown::path(&identity.certificate()).to_string();
        say(&format!("the key next to {file}: others than its owner may read it"));
    }
}

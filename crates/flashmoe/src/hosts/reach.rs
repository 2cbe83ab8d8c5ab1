//! The first process's way to the stages that its file names.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use engine::stages::remote::{JoinError, Reached, Terms};
use wire::WireError;

use super::file::{RemoteStage, StagesFile};
use super::{channel, failure, terms};
use crate::failure::Failure;
use crate::plan::Plan;
use crate::progress::say;

/// How long a stage may take to answer a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(300);

/// Greets every stage of the file, in their order; one that is not there yet is waited for.
///
/// # Errors
/// A stage that is not there in time, is not the one that is trusted, or differs in something.
pub(crate) fn reach(plan: &Plan, file: &StagesFile) -> Result<Vec<Reached>> {
    let all = file.stages.iter().map(|stage| {
        let own = terms(plan, stage.layers.clone())?;
        reach_one(file, stage, &own)
            .with_context(|| format!("stage {} at {}", shown(stage), stage.address))
    });
    all.collect()
}

fn shown(stage: &RemoteStage) -> String {
    format!("{}:{}", stage.layers.start, stage.layers.end)
}

fn reach_one(file: &StagesFile, stage: &RemoteStage, own: &Terms) -> Result<Reached> {
    let credentials = file.credentials(stage)?;
    let (begun, mut said) = (Instant::now(), false);
    loop {
        let error = match wire::connect(&stage.address, credentials.as_ref(), CONNECT) {
            Ok(connection) => {
                return Reached::over(channel(connection), own, file.silence).map_err(refused);
            }
            Err(error) => error,
        };
        if !error.is_absence() || begun.elapsed() >= file.start {
            return Err(given_up(error, file).into());
        }
        if !std::mem::replace(&mut said, true) {
            say(&format!("waiting for the stage at {} ({error})", stage.address));
        }
        std::thread::sleep(PAUSE);
    }
}

fn given_up(error: WireError, file: &StagesFile) -> Failure {
    match error.is_absence() {
        true => Failure::Lost(anyhow::anyhow!(
            "it was not there within {} s: {error}",
            file.start.as_secs()
        )),
        false => failure(error),
    }
}

/// Why a stage and this process do not work together.
fn refused(error: JoinError) -> anyhow::Error {
    match error {
        JoinError::Differs { .. } => Failure::usage(error.to_string()).into(),
        JoinError::Connection(_) | JoinError::Protocol(_) => Failure::io(error).into(),
    }
}

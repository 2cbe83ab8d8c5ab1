//! The first process's way to the stages that its file names.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use engine::stages::remote::{JoinError, Reached, Terms};
use thiserror::Error;
use wire::{Credentials, WireError};

use super::file::{RemoteStage, StagesFile};
use super::{channel, failure, terms};
use crate::failure::Failure;
use crate::plan::Plan;
use crate::progress::say;

/// How long a stage may take to answer a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(300);
/// How long one may be waited for that takes connections and says nothing, or ends them: it is another's until it has
/// seen that this one is lost, or has too many to greet.
const BUSY: Duration = Duration::from_secs(60);

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
    // Since when it takes connections, and does not greet.
    let mut busy: Option<Instant> = None;
    loop {
        let error = match greet(file, stage, credentials.as_ref(), own) {
            Ok(reached) => return Ok(reached.within(stage.deadline)),
            Err(error) => error,
        };
        let (absent, answers) = (error.is_absence(), error.answers());
        busy = answers.then(|| busy.unwrap_or_else(Instant::now));
        let waited = busy.map_or(begun.elapsed(), |since| since.elapsed());
        if !absent || waited >= busy.map_or(file.start, |_| file.start.min(BUSY)) {
            return Err(error.given_up(waited).into());
        }
        if !std::mem::replace(&mut said, true) {
            say(&format!("waiting for the stage at {} ({error})", stage.address));
        }
        std::thread::sleep(PAUSE);
    }
}

fn greet(
    file: &StagesFile,
    stage: &RemoteStage,
    credentials: Option<&Credentials>,
    own: &Terms,
) -> Result<Reached, NotReached> {
    let connection = wire::connect(&stage.address, credentials, CONNECT)?;
    Ok(Reached::over(channel(connection), own, file.silence)?)
}

/// Why a stage was not reached.
#[derive(Debug, Error)]
enum NotReached {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Join(#[from] JoinError),
}

impl NotReached {
    /// Whether it may be there in a moment.
    fn is_absence(&self) -> bool {
        match self {
            Self::Wire(error) => error.is_absence(),
            Self::Join(JoinError::Connection(error)) => wire::ended(error),
            Self::Join(_) => false,
        }
    }

    /// Whether something took the connection.
    fn answers(&self) -> bool {
        matches!(self, Self::Join(_) | Self::Wire(WireError::Unanswered { .. }))
    }

    fn given_up(self, waited: Duration) -> Failure {
        let absent = self.is_absence();
        match self {
            error if absent => Failure::Lost(anyhow::anyhow!(
                "it was not there within {} s: {error}",
                waited.as_secs()
            )),
            Self::Wire(error) => failure(error),
            Self::Join(error @ JoinError::Differs { .. }) => Failure::usage(error.to_string()),
            Self::Join(error) => Failure::io(error),
        }
    }
}

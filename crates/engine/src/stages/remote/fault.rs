//! Why a batch or a command failed, as stages and the first process write it.

use super::bytes::{Malformed, Reading, Writing};
use crate::EngineError;
use crate::stages::batch::Failure;
use crate::stages::worker::words;

/// Why a batch or a command failed, as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Cancelled,
    Panicked,
    Request(String),
    NotFinite(usize),
    Choice(usize, usize),
    /// An operation panicked, with these words.
    Panic(String),
    /// Something else, in words.
    Other(String),
    /// Weights could not be read for now, in words.
    Unread(String),
}

impl Fault {
    pub(super) fn of(failure: &Failure) -> Self {
        match failure {
            Failure::Panic(payload) => Self::Panic(words(payload.as_ref())),
            Failure::Error(EngineError::Cancelled) => Self::Cancelled,
            Failure::Error(EngineError::Panicked) => Self::Panicked,
            Failure::Error(EngineError::Request(found)) => Self::Request(found.clone()),
            &Failure::Error(EngineError::NotFinite { position }) => Self::NotFinite(position),
            &Failure::Error(EngineError::Choice { layer, position }) => {
                Self::Choice(layer, position)
            }
            Failure::Error(error) if error.is_unread() => Self::Unread(error.to_string()),
            Failure::Error(error) => Self::Other(error.to_string()),
        }
    }

    /// As the first process reports it; `stage` names who did.
    pub(super) fn failure(self, stage: &str) -> Failure {
        let on_stage = |problem, unread| {
            let stage = stage.to_owned();
            EngineError::OnStage { stage, problem, unread }
        };
        Failure::Error(match self {
            Self::Cancelled => EngineError::Cancelled,
            Self::Panicked => EngineError::Panicked,
            Self::Request(found) => EngineError::Request(found),
            Self::NotFinite(position) => EngineError::NotFinite { position },
            Self::Choice(layer, position) => EngineError::Choice { layer, position },
            Self::Panic(words) => return Failure::Panic(Box::new(format!("{stage}: {words}"))),
            Self::Other(problem) => on_stage(problem, false),
            Self::Unread(problem) => on_stage(problem, true),
        })
    }

    pub(super) fn write(&self, to: &mut Writing) {
        let (tag, numbers, text) = match self {
            Self::Cancelled => (0, [0; 2], ""),
            Self::Panicked => (1, [0; 2], ""),
            Self::Request(text) => (2, [0; 2], text.as_str()),
            &Self::NotFinite(position) => (3, [position, 0], ""),
            &Self::Choice(layer, position) => (4, [layer, position], ""),
            Self::Panic(text) => (5, [0; 2], text.as_str()),
            Self::Other(text) => (6, [0; 2], text.as_str()),
            Self::Unread(text) => (7, [0; 2], text.as_str()),
        };
        to.byte(tag);
        numbers.into_iter().for_each(|number| to.size(number));
        to.text(text);
    }

    pub(super) fn read(from: &mut Reading<'_>) -> Result<Self, Malformed> {
        let (tag, first, second) = (from.byte()?, from.size()?, from.size()?);
        let text = from.text()?;
        Ok(match tag {
            0 => Self::Cancelled,
            1 => Self::Panicked,
            2 => Self::Request(text),
            3 => Self::NotFinite(first),
            4 => Self::Choice(first, second),
            5 => Self::Panic(text),
            6 => Self::Other(text),
            7 => Self::Unread(text),
            _ => return Err(Malformed("a failure of no kind")),
        })
    }
}

pub(super) fn write_fault(fault: Option<&Fault>, to: &mut Writing) {
    to.flag(fault.is_some());
    if let Some(fault) = fault {
        fault.write(to);
    }
}

pub(super) fn read_fault(from: &mut Reading<'_>) -> Result<Option<Fault>, Malformed> {
    from.flag()?.then(|| Fault::read(from)).transpose()
}

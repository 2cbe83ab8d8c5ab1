//! Failures by what the shell should hear: the exit codes.
//!
//! 0 success, 1 failed at run time, 2 wrong usage, 3 the model is invalid, 4 not enough memory or disk,
//! 5 input or output failed, 6 a stage in another process was lost, 130 interrupted.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::EngineError;
use engine::backend::cuda::CudaError;
use engine::backend::gpu::GpuError;
use hub::HubError;
use store::cache::StoreError;
use store::trunk::TrunkError;
use thiserror::Error;

use crate::arguments::ByteSize;

/// An error with an exit code.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// The arguments make no sense together or for this model.
    #[error("{0}")]
    Usage(String),
    /// The model cannot be used.
    #[error(transparent)]
    Model(anyhow::Error),
    /// Memory is short.
    #[error("not enough memory: {0}")]
    Memory(String),
    /// Disk space is short.
    #[error("not enough disk space: {0}")]
    Disk(String),
    /// Reading or writing failed.
    #[error(transparent)]
    Io(anyhow::Error),
    /// Something else went wrong while running.
    #[error(transparent)]
    Run(anyhow::Error),
    /// A process of the same model, on this host or another, is lost: all of them are to be started anew.
    #[error(transparent)]
    Lost(anyhow::Error),
    /// The user asked to stop.
    #[error("interrupted")]
    Interrupted,
}

impl Failure {
    /// Wrong usage.
    pub(crate) fn usage(reason: impl Into<String>) -> Self {
        Self::Usage(reason.into())
    }

    /// An invalid model.
    pub(crate) fn model(error: anyhow::Error) -> Self {
        Self::Model(error)
    }

    /// Not enough memory.
    pub(crate) fn memory(reason: impl Into<String>) -> Self {
        Self::Memory(reason.into())
    }

    /// Not enough disk space.
    pub(crate) fn disk(reason: impl Into<String>) -> Self {
        Self::Disk(reason.into())
    }

    /// A file named on the command line that cannot be read or written.
    pub(crate) fn io(error: impl Into<anyhow::Error>) -> Self {
        Self::Io(error.into())
    }

    /// An error of the hub or of its cache, sorted by its kind.
    pub(crate) fn hub(error: HubError) -> Self {
        match error {
            HubError::Interrupted => Self::Interrupted,
            HubError::Disk { folder, needed, free } => {
                let (needed, free) = (ByteSize(needed), ByteSize(free));
                let folder = store::shown::path(&folder);
                Self::Disk(format!(
                    "{needed} more are needed in {folder}, {free} are free; free some or set HF_HUB_CACHE"
                ))
            }
            HubError::Name { .. }
            | HubError::Offline { .. }
            | HubError::Setting { .. }
            | HubError::Content { .. }
            | HubError::NotFound { .. } => Self::Usage(error.to_string()),
            HubError::TokenMissing { .. }
            | HubError::TokenRefused { .. }
            | HubError::Gated { .. }
            | HubError::Status { .. }
            | HubError::Busy { .. }
            | HubError::Network { .. }
            | HubError::Answer { .. }
            | HubError::Checksum { .. }
            | HubError::Io { .. } => Self::Io(error.into()),
        }
    }

    /// An engine error, sorted by its kind.
    pub(crate) fn engine(error: EngineError) -> Self {
        match error {
            EngineError::Cancelled => Self::Interrupted,
            EngineError::Store(error) => Self::store(error),
            EngineError::Trunk(TrunkError::Damaged(error)) => Self::Model(error.into()),
            EngineError::Trunk(_) => Self::Io(error.into()),
            EngineError::Format(_) | EngineError::Config { .. } | EngineError::Tensor { .. } => {
                Self::Model(error.into())
            }
            EngineError::Gpu(ref cause) => match cause {
                GpuError::OutOfMemory { .. }
                | GpuError::TooLarge { .. }
                | GpuError::Exhausted(_) => Self::Memory(error.to_string()),
                GpuError::NoLoader
                | GpuError::NoDriver { .. }
                | GpuError::NoAdapter { .. }
                | GpuError::NoSuchAdapter { .. }
                | GpuError::Lacks { .. }
                | GpuError::DriverOption { .. }
                | GpuError::NotInPlace(_) => Self::Usage(error.to_string()),
                GpuError::Open { .. } | GpuError::Lost(_) | GpuError::Refused(_) => {
                    Self::Run(error.into())
                }
            },
            EngineError::Cuda(CudaError::Memory { .. }) => Self::Memory(error.to_string()),
            EngineError::Cuda(_) => Self::Run(error.into()),
            EngineError::Compute(_) => Self::Usage(error.to_string()),
            EngineError::StageLost(_) => Self::Lost(error.into()),
            EngineError::Request(_)
            | EngineError::OnStage { .. }
            | EngineError::Sampling { .. }
            | EngineError::NotFinite { .. }
            | EngineError::Choice { .. }
            | EngineError::Panicked => Self::Run(error.into()),
        }
    }

    /// A store error, sorted by its kind.
    pub(crate) fn store(error: StoreError) -> Self {
        match error {
            StoreError::Budget { .. } => Self::Memory(error.to_string()),
            StoreError::Extents { .. } => Self::Model(error.into()),
            StoreError::Unchecked { .. } => Self::Usage(error.to_string()),
            other => Self::Io(other.into()),
        }
    }

    /// Whether this is why there is no result: the user asked to stop.
    pub(crate) fn is_interruption(error: &anyhow::Error) -> bool {
        matches!(error.downcast_ref(), Some(Self::Interrupted))
    }

    /// The process's exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Run(_) => 1,
            Self::Usage(_) => 2,
            Self::Model(_) => 3,
            Self::Memory(_) | Self::Disk(_) => 4,
            Self::Io(_) => 5,
            Self::Lost(_) => 6,
            Self::Interrupted => 130,
        }
    }
}

/// What the library panics with where a thread cannot be made.
const NO_THREAD: [&str; 2] = ["failed to spawn thread", "OS can't spawn"];
/// A server works: a panic is no reason to end the process.
static SERVING: AtomicBool = AtomicBool::new(false);

/// From now on the program ends with a line and a code where the system gives it no thread. Loading a model starts some
/// that it cannot do without, in ways that panic.
pub(crate) fn end_without_threads() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let payload = panic.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let words = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or_default();
        let no_thread = NO_THREAD.iter().any(|start| words.starts_with(start));
        if !no_thread || SERVING.load(Ordering::Relaxed) {
            return usual(panic);
        }
        crate::progress::complain(
            "flashmoe: the system gives this program no more threads: raise its limit (ulimit -u, pids.max)",
        );
        std::process::exit(
            Failure::io(io::Error::from(io::ErrorKind::WouldBlock)).exit_code().into(),
        );
    }));
}

/// The model is loaded: from now on a panic ends what it was for, not the process.
pub(crate) fn serves() {
    SERVING.store(true, Ordering::Relaxed);
}

/// An error and its causes, outermost first, each said once: many errors' own words contain those of their cause.
pub(crate) fn in_words(error: &anyhow::Error) -> String {
    let mut words = String::new();
    for cause in error.chain() {
        let cause = without_numbers(&cause.to_string());
        if words.contains(&cause) {
            continue;
        }
        if !words.is_empty() {
            words.push_str(": ");
        }
        words.push_str(&cause);
    }
    words
}

/// A text without the numbers of the system's errors, whose words say the same.
fn without_numbers(text: &str) -> String {
    let mut text = text.to_owned();
    while let Some(start) = text.find(" (os error ")
        && let Some(length) = text[start..].find(')')
    {
        text.replace_range(start..=start + length, "");
    }
    text
}

/// Whether the reader of standard output has gone, as `head` does: no reader is left to be told.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let inner = error.chain().find_map(|cause| match cause.downcast_ref() {
        Some(Failure::Io(inner)) => inner.chain().find_map(|it| it.downcast_ref::<io::Error>()),
        _ => cause.downcast_ref::<io::Error>(),
    });
    inner.is_some_and(|error| {
        error.kind() == io::ErrorKind::BrokenPipe
            && error.to_string().starts_with("standard output")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use text::sampling::SamplingError;

    #[test]
    fn nothing_is_said_twice() {
        let reason = SamplingError::BadLogit { id: 0, value: f32::NAN };
        let error = Failure::engine(EngineError::Sampling { position: 2, reason });
        let words = in_words(&error.into());
        let expected = "position 2: the logit of token 0 is NaN; the forward pass has failed";
        assert_eq!(words, expected);
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        let error = anyhow::Error::new(missing).context("a.json: cannot open: entity not found");
        assert_eq!(in_words(&error), "a.json: cannot open: entity not found");
        let busy = std::io::Error::from_raw_os_error(98);
        let error = anyhow::Error::new(busy).context("cannot listen");
        assert!(!in_words(&error).contains("os error"), "{}", in_words(&error));
        let inner = anyhow::anyhow!("inner").context("middle");
        assert_eq!(in_words(&inner.context("outer")), "outer: middle: inner");
    }
}

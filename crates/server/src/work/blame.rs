//! What a client is told of a failure of the engine: of which kind it is, and under which name the server's log has the
//! rest. Files, folders and addresses of the machine are the operator's.

use engine::EngineError;
use engine::backend::gpu::GpuError;
use store::cache::{ReadCause, StoreError};

use super::JobError;

/// The kind of a failure; `None` where its own words are of the request alone.
fn kind(error: &EngineError) -> Option<&'static str> {
    Some(match error {
        EngineError::Store(StoreError::Read { cause: ReadCause::Changed(change), .. })
            if change.is_known() =>
        {
            "a file of the model changed while it was served"
        }
        EngineError::Store(StoreError::Read { .. }) => "an expert of the model could not be read",
        EngineError::Store(_) => "the cache of experts failed",
        EngineError::Trunk(_) => "the weights of the model could not be read",
        EngineError::Gpu(GpuError::Lost(_)) => "the GPU was lost",
        EngineError::Gpu(_) | EngineError::Cuda(_) => "the GPU failed",
        EngineError::StageLost(_) => "stage_lost: a part of the model is in a process that is lost",
        EngineError::OnStage { .. } => "a stage of the model failed",
        EngineError::Format(_)
        | EngineError::Config { .. }
        | EngineError::Tensor { .. }
        | EngineError::Compute(_) => "the model cannot be used",
        EngineError::Request(_)
        | EngineError::Sampling { .. }
        | EngineError::NotFinite { .. }
        | EngineError::Choice { .. }
        | EngineError::Panicked
        | EngineError::Cancelled => return None,
    })
}

/// A failure in the words that the client of job `id` gets.
pub(super) fn told(error: &EngineError, id: &str) -> JobError {
    if let EngineError::Panicked = error {
        return JobError::Panicked;
    }
    if let EngineError::StageLost(_) = error {
        return JobError::StageLost;
    }
    JobError::Engine(match kind(error) {
        Some(kind) => format!("{kind}; the server's log has the cause under {id}"),
        None => error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use store::io::FileChange;
    use store::{ExpertId, LayerId};

    use super::*;

    /// A file system that fails for a moment says nothing of the file, and asks for no restart.
    #[test]
    fn a_file_whose_times_cannot_be_read_has_not_changed() {
        let read = |change| {
            let cause = ReadCause::Changed(change);
            let (layer, expert) = (LayerId(1), ExpertId(2));
            let path = "model.safetensors".into();
            EngineError::Store(StoreError::Read {
                path,
                offset: 0,
                length: 1,
                layer,
                expert,
                cause,
            })
        };
        assert!(told(&read(FileChange::Unknown), "7").to_string().contains("could not be read"));
        assert!(told(&read(FileChange::Modified), "7").to_string().contains("changed"));
    }
}

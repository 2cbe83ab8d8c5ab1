//! What a client is told of a failure of the engine: of which kind it is, and under which name the server's log has the
//! rest. Files, folders and addresses of the machine are the operator's.

use engine::EngineError;
use engine::backend::gpu::GpuError;
use store::cache::StoreError;

use super::JobError;

/// The kind of a failure; `None` where its own words are of the request alone.
fn kind(error: &EngineError) -> Option<&'static str> {
    Some(match error {
        _ if error.is_changed_file() => "a file of the model changed while it was served",
        _ if error.is_unread() => "weights of the model could not be read, try again",
        EngineError::Store(StoreError::Read { .. } | StoreError::Row { .. }) => {
            "weights of the model are damaged"
        }
        EngineError::Store(_) => "the cache of experts failed",
        EngineError::Trunk(_) => "the weights of the model cannot be used",
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
    let words = match kind(error) {
        Some(kind) => format!("{kind}; the server's log has the cause under {id}"),
        None => error.to_string(),
    };
    if error.is_unread() { JobError::Unread(words) } else { JobError::Engine(words) }
}

#[cfg(test)]
mod tests {
    use store::cache::ReadCause;
    use store::io::FileChange;
    use store::trunk::TrunkError;
    use store::{ExpertId, LayerId};

    use super::*;

    const EIO: i32 = 5;

    /// Errors of all readers of weights with one cause.
    fn errors(cause: &ReadCause) -> Vec<EngineError> {
        let path = || "model.safetensors".into();
        let (layer, expert, offset, length) = (LayerId(1), ExpertId(2), 0, 1);
        let mut errors = vec![
            EngineError::Store(StoreError::Read {
                path: path(),
                offset,
                length,
                layer,
                expert,
                cause: cause.clone(),
            }),
            EngineError::Store(StoreError::Row {
                path: path(),
                offset,
                length,
                row: 3,
                cause: cause.clone(),
            }),
        ];
        if let &ReadCause::Changed(change) = cause {
            errors.push(EngineError::Store(StoreError::Changed { path: path(), change }));
            errors.push(EngineError::Trunk(TrunkError::Changed { path: path(), change }));
        }
        errors
    }

    /// A file system that fails for a moment says nothing of the file and asks for no restart: who asked may try again.
    #[test]
    fn a_file_whose_times_cannot_be_read_has_not_changed() {
        let causes = [
            ReadCause::Changed(FileChange::Unknown),
            ReadCause::System(EIO),
            ReadCause::Interrupted(64),
            ReadCause::Short { got: 1, expected: 2 },
        ];
        for error in causes.iter().flat_map(errors) {
            let said = told(&error, "7");
            let JobError::Unread(words) = &said else { panic!("{error}: {said:?}") };
            assert!(words.contains("could not be read") && words.contains('7'), "{words}");
            assert!(!words.contains("safetensors") && !error.is_changed_file(), "{error}");
        }
    }

    /// What another try cannot mend is no reason for one.
    #[test]
    fn a_file_that_changed_or_is_damaged_stays_so() {
        for error in errors(&ReadCause::Changed(FileChange::Modified)) {
            let JobError::Engine(words) = told(&error, "7") else { panic!("{error}") };
            assert!(words.contains("changed") && error.is_changed_file(), "{words}");
        }
        for error in errors(&ReadCause::Checksum { expected: 1, found: 2 }) {
            let JobError::Engine(words) = told(&error, "7") else { panic!("{error}") };
            assert!(words.contains("damaged") && !error.is_changed_file(), "{words}");
        }
    }
}

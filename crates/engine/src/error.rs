//! What can go wrong in the engine, told so that a user can act on it.

use thiserror::Error;

use store::cache::StoreError;
use store::shown::{message, shown};

use crate::stages::remote::StageLost;

/// A model or request that the engine cannot serve.
#[derive(Debug, Error)]
pub enum EngineError {
    /// The configuration is not one that the engine can follow.
    #[error(transparent)]
    Format(#[from] store::format::FormatError),
    /// A configuration that is right in itself, but beyond what the device computes.
    #[error("config.json: {key}: {}", message(problem))]
    Config {
        /// The key.
        key: &'static str,
        /// What is wrong with its value.
        problem: String,
    },
    /// A tensor that the architecture needs is missing or has another shape.
    #[error("tensor {}: {}", shown(name), message(problem))]
    Tensor {
        /// Canonical name.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// A request that the engine as configured cannot take.
    #[error("{}", message(.0))]
    Request(String),
    /// The forward pass was cancelled; the sequences of that batch are no longer usable.
    #[error("cancelled")]
    Cancelled,
    /// A panic on the thread of a stage lost what this batch needs; its sequences must be dropped.
    #[error("the engine panicked over another batch that held the same stage or sequence")]
    Panicked,
    /// A computation produced a value that is not a number, so no token can be chosen.
    #[error(
        "the logits at position {position} are not finite: the model's weights are damaged, or its keys and values \
         are beyond what f16 holds (--kv-type bf16 would tell)"
    )]
    NotFinite {
        /// Position in the sequence.
        position: usize,
    },
    /// A token was to use one expert twice, which no router chooses.
    #[error(
        "layer {layer} would use an expert twice at position {position}: the choice of experts is wrong, report it"
    )]
    Choice {
        /// The layer.
        layer: usize,
        /// Position in the sequence.
        position: usize,
    },
    /// The sampler refused its options or the logits.
    #[error("position {position}: {reason}")]
    Sampling {
        /// Position in the sequence.
        position: usize,
        /// The cause; not a `source`, because this error's own words contain it.
        reason: text::sampling::SamplingError,
    },
    /// The arithmetic could not be set up as asked.
    #[error(transparent)]
    Compute(#[from] kernels::ComputeError),
    /// Reading the dense weights failed.
    #[error(transparent)]
    Trunk(#[from] store::trunk::TrunkError),
    /// The GPU cannot be used or failed.
    #[error(transparent)]
    Cuda(#[from] cuda::CudaError),
    /// A GPU of any maker cannot be used or failed.
    #[error(transparent)]
    Gpu(#[from] gpu::GpuError),
    /// A stage in another process cannot be reached any more; its processes are to be started anew.
    #[error(transparent)]
    StageLost(#[from] StageLost),
    /// A stage in another process reports what is not told apart here.
    #[error("{stage}: {}", message(problem))]
    OnStage {
        /// Its layers and its address.
        stage: String,
        /// What it reports.
        problem: String,
        /// It could not read weights, which the next request may find well.
        unread: bool,
    },
    /// Reading experts failed.
    #[error(transparent)]
    Store(StoreError),
}

impl From<StoreError> for EngineError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::GivenUp => Self::Cancelled,
            other => Self::Store(other),
        }
    }
}

impl EngineError {
    /// Whether a file of the model is not what it was when it was opened: what is not in memory stays refused.
    pub fn is_changed_file(&self) -> bool {
        match self {
            Self::Store(error) => error.change(),
            Self::Trunk(store::trunk::TrunkError::Changed { change, .. }) => Some(*change),
            _ => None,
        }
        .is_some_and(store::io::FileChange::is_known)
    }

    /// Whether weights could not be read for now, which says nothing of the next read. Damaged bytes stay damaged.
    pub fn is_unread(&self) -> bool {
        use store::trunk::TrunkError;
        match self {
            Self::Store(error) => error.is_unread(),
            Self::Trunk(TrunkError::Read { .. }) => true,
            Self::Trunk(TrunkError::Changed { change, .. }) => !change.is_known(),
            Self::OnStage { unread, .. } => *unread,
            _ => false,
        }
    }

    /// A tensor error, from parts.
    pub(crate) fn tensor(name: &str, problem: impl Into<String>) -> Self {
        Self::Tensor { name: name.to_owned(), problem: problem.into() }
    }
}

impl From<std::convert::Infallible> for EngineError {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

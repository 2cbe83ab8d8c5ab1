//! What a batch of the CUDA backend consists of, and how its operations are carried out.

use super::super::SequenceId;

/// What is being done with the operations of the current batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Launched as they come.
    Eager,
    /// Recorded; launched at the end.
    Capture,
    /// Known already; launched at the end.
    Replay,
}

/// Tokens of one sequence in the batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) sequence: SequenceId,
    pub(super) first: usize,
    pub(super) tokens: usize,
    /// Of its first token in the sequence.
    pub(super) position: usize,
}

//! The parts of a device: what every device does with the sequences that it holds and at the border of its layers, and
//! what some can do, which the others do not have to mention: choose the next token, and guess the tokens behind it.

use std::any::Any;
use std::sync::Arc;

use text::sampling::{Ranked, Wanted};

use crate::EngineError;
use crate::sequences::{SequenceId, Sequences, SnapshotPart, Suspended};
use crate::weights::{MatrixId, VectorId};

/// Sequences on a device: their states and caches. What needs no memory of the device is [`Sequences`].
pub trait SequenceDevice {
    /// Makes an empty sequence, at the place of `home` where that is free: what it goes on from may lie there.
    ///
    /// # Errors
    /// All sequences that the plan allows exist already.
    fn create_sequence(&mut self, home: Option<SequenceId>) -> Result<SequenceId, EngineError>;
    /// What is known of the sequences without asking the device.
    fn sequences(&self) -> &Sequences;
    /// As [`SequenceDevice::sequences`], to change it.
    fn sequences_mut(&mut self) -> &mut Sequences;

    /// The point where the sequence is.
    ///
    /// # Errors
    /// There is no room, or the device failed.
    fn take_snapshot(&mut self, sequence: SequenceId) -> Result<SnapshotPart, EngineError>;
    /// Sets `sequence` to a point of any sequence of this device; what it held is forgotten.
    ///
    /// # Errors
    /// The device failed.
    fn restore(&mut self, sequence: SequenceId, snapshot: &SnapshotPart)
    -> Result<(), EngineError>;
    /// Keeps the first `tokens` of the last batch's run of `sequence`, which was a run of several tokens of an answer:
    /// the sequence is as if the others had never been there. Once, before anything else is done with the sequence.
    ///
    /// # Errors
    /// There was no such run.
    fn keep_first(&mut self, sequence: SequenceId, tokens: usize) -> Result<(), EngineError> {
        let _ = (sequence, tokens);
        Err(EngineError::Request("this device computes no rounds".to_owned()))
    }

    /// Puts the batch in progress aside, between two layers, so that another can run; `None` where the device
    /// has to finish it first.
    fn suspend(&mut self) -> Option<Suspended>;
    /// Goes on with a batch that was put aside; no other is in progress.
    ///
    /// # Errors
    /// The device failed.
    fn resume(&mut self, suspended: Suspended) -> Result<(), EngineError>;
}

/// The border between the layers of one device and of the next: all that a layer leaves is `Residual`.
pub trait LayerBorder {
    /// Copies `Residual` of the batch in progress to `to`, for the device with the layers that follow.
    ///
    /// # Errors
    /// The device failed.
    fn read_residual(&mut self, to: &mut Vec<f32>) -> Result<(), EngineError>;
    /// Sets `Residual` of the batch in progress to what the device before this one left, or leaves: what follows in
    /// this batch runs behind it.
    ///
    /// # Errors
    /// The device failed, or cannot wait for the one before it.
    fn write_residual(&mut self, from: Incoming<'_>) -> Result<(), EngineError>;
    /// What the step just committed will leave, where the device behind can wait for it by itself. Such a step may
    /// still fail: [`LayerBorder::read_residual`] says so.
    fn residual_ahead(&mut self) -> Option<Crossing> {
        None
    }
    /// Serves the step that runs until it has ended, on the device with the last layers: its thread has nothing else to
    /// do, and kernels that wait for it hold up other engines of the process. The next operation tells of a failure.
    fn await_step(&mut self) {}
}

/// Choosing of next tokens on the device: only what is chosen from, or the choice, crosses the bus.
pub trait Ranking {
    /// Says after which tokens of the batch next ones will be drawn one by one: their logits may be computed together.
    fn expect_rows(&mut self, rows: &[usize]) {
        let _ = rows;
    }
    /// The most likely next token after one token of the batch; ties go to the lowest id.
    ///
    /// # Errors
    /// The device failed.
    fn most_likely(
        &mut self,
        token: usize,
        norm: Option<VectorId>,
        head: MatrixId,
    ) -> Result<u32, EngineError>;
    /// What a sampler wants of the logits after one token of the batch, into `out`. `None` where the device does not
    /// rank so: the sampler then has to see the logits.
    fn rank(
        &mut self,
        token: usize,
        norm: Option<VectorId>,
        head: MatrixId,
        wanted: Wanted,
        out: &mut Ranked,
    ) -> Option<Result<(), EngineError>>;
    /// Logits of the row that was ranked last, from token `start` on.
    ///
    /// # Errors
    /// The device failed, or leaves no logits of what it ranks.
    fn ranked_logits(&mut self, start: usize, out: &mut [f32]) -> Result<(), EngineError>;
}

/// Guessing of tokens by the model's own head for drafts.
pub trait Drafting {
    /// Appends to `drafts` at most `most` tokens that the head guesses behind `token`, which is drawn and not yet part
    /// of `sequence`. Nothing where the model has no head. No batch is in progress; logits of the last may still be
    /// asked for.
    fn draft(&mut self, sequence: SequenceId, token: u32, most: usize, drafts: &mut Vec<u32>);
    /// Logits of the last draft, of as many tokens as drafts are chosen from; empty without one.
    fn draft_logits(&mut self) -> &[f32];
}

/// What a device leaves to the next of a step that it still computes: the next one goes on behind it, and its thread
/// waits for neither. Devices of one kind understand each other's.
#[derive(Clone)]
pub struct Crossing(pub(super) Arc<dyn Any + Send + Sync>);

/// What the device before leaves of a batch.
#[derive(Clone, Copy)]
pub enum Incoming<'a> {
    /// The residual stream.
    Values(&'a [f32]),
    /// Of a step that it still computes.
    Ahead(&'a Crossing),
}

impl<'a> Incoming<'a> {
    /// Of a device that cannot wait for another.
    ///
    /// # Errors
    /// The device before still computes it.
    pub(super) fn values(self) -> Result<&'a [f32], EngineError> {
        match self {
            Self::Values(values) => Ok(values),
            Self::Ahead(_) => {
                let found = "this device cannot wait for the one before it".to_owned();
                Err(EngineError::Request(found))
            }
        }
    }
}

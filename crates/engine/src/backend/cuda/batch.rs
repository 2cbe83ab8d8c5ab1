//! What the operations of a batch name: how it runs, its parts, weights, rows of registers; and its end.

use cuda::launch::TokenPlaces;
use cuda::{Matrix, Span};

use super::super::{Backend, Purpose, Run, SequenceId};
use super::{CudaBackend, Register, STEP_TOKENS};
use crate::EngineError;
use crate::weights::{MatrixId, VectorId};

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
    /// Position of the first row that layers with a window have at the sequence's place when the part begins.
    pub(super) base: usize,
}

impl CudaBackend {
    pub(super) fn matrix(&self, id: MatrixId) -> Matrix {
        self.matrices[id.index()]
    }

    pub(super) fn vector(&self, id: VectorId) -> Span<f32> {
        self.vectors[id.index()]
    }

    /// The rows of the batch in a register.
    pub(super) fn register(&self, register: Register) -> Span<f32> {
        let all = &self.buffers.registers[register as usize];
        all.part(0, self.sizes.registers[register as usize] / self.sizes.tokens * self.tokens)
    }

    /// Words of the batch's inputs: tokens, positions and sequences in turn; with windows, positions from the bases of
    /// their rows.
    pub(super) fn input(&self, which: usize, first: usize, tokens: usize) -> Span<u32> {
        self.buffers.inputs.span((which * self.tokens + first) * 4, tokens)
    }

    /// The runs of the batch: all tokens at once when each is its own run.
    pub(super) fn places(&self) -> Vec<(usize, TokenPlaces)> {
        let places = |first, tokens, single| TokenPlaces {
            positions: self.input(1, first, tokens),
            sequences: self.input(2, first, tokens),
            single,
        };
        if self.single {
            return vec![(0, places(0, self.tokens, true))];
        }
        self.parts.iter().map(|part| (part.first, places(part.first, part.tokens, false))).collect()
    }

    /// Checks a batch against the plan, makes room for it and brings its inputs to where the device reads them.
    pub(super) fn begin_batch(
        &mut self,
        runs: &[Run<'_>],
        purpose: Purpose,
    ) -> Result<(), EngineError> {
        self.finish_step()?;
        self.end_given_up()?;
        let total: usize = runs.iter().map(|run| run.tokens.len()).sum();
        let limit = match purpose {
            Purpose::Prompt => self.options.batch_tokens,
            Purpose::Answers => self.options.batch_tokens.min(STEP_TOKENS),
        };
        super::super::check_batch(runs, limit, self.config.vocabulary)?;
        self.parts.clear();
        self.snapshots.clear_marks();
        let mut first = 0;
        for run in runs {
            // Runs of one sequence continue each other.
            let earlier = self.parts.iter().filter(|part| part.sequence == run.sequence);
            let earlier = earlier.map(|part| part.tokens).sum::<usize>();
            let (position, tokens) =
                (self.sequence_length(run.sequence) + earlier, run.tokens.len());
            if position + tokens > self.options.context {
                let context = self.options.context;
                let found = format!("{position} + {tokens} tokens exceed the context of {context}");
                return Err(EngineError::Request(found));
            }
            self.parts.push(Part { sequence: run.sequence, first, tokens, position, base: 0 });
            self.snapshots.held.note_written(run.sequence.0 as usize, position);
            first += tokens;
        }
        self.hold_batch()?;
        self.tokens = total;
        self.single = purpose == Purpose::Answers;
        self.place_windows()?;
        let tokens = runs.iter().flat_map(|run| run.tokens.iter().copied());
        self.write_inputs(tokens);
        self.begin_step()
    }

    /// Waits until nothing is running.
    pub(super) fn settle(&mut self) -> Result<(), EngineError> {
        self.finish_step()?;
        self.stream.wait()?;
        self.steps.unended = false;
        self.failure.take().map_or(Ok(()), |error| Err(error.into()))
    }
}

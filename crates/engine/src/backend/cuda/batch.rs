//! A batch from its beginning to its end: its inputs, how it runs, what its operations name (parts, weights, rows of
//! registers), and how it is put aside between two layers.

use cuda::launch::{StepRuns, TokenPlaces};
use cuda::{CudaError, Matrix, Span};

use super::super::{Purpose, Run};
use super::buffers::Input;
use super::{CudaBackend, Register, STEP_TOKENS};
use crate::EngineError;
use crate::sequences::{SequenceId, SnapshotPart, Suspended};
use crate::weights::{MatrixId, VectorId};

/// What is being done with the operations of the current batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Launched as they come.
    Eager,
    /// To be recorded from the first on.
    Due,
    /// Recorded; launched at the end.
    Capture,
    /// Known already; launched at the end.
    Replay,
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

    /// What is said of tokens of the batch.
    pub(super) fn input(&self, which: Input, first: usize, tokens: usize) -> Span<u32> {
        self.buffers.inputs.span((which as usize * self.tokens + first) * 4, tokens)
    }

    /// The runs of a step, where they may have several tokens.
    pub(super) fn step_runs(&self) -> Option<StepRuns> {
        let tokens = self.tokens;
        let all = |which| self.input(which, 0, tokens);
        let runs = || StepRuns { starts: all(Input::Start), lags: all(Input::Lag) };
        (self.single && self.computes_rounds()).then(runs)
    }

    /// The runs of the batch: all tokens at once when each is its own run.
    pub(super) fn places(&self) -> Vec<(usize, TokenPlaces)> {
        let places = |first, tokens, single, end| TokenPlaces {
            positions: self.input(Input::Position, first, tokens),
            sequences: self.input(Input::Sequence, first, tokens),
            single,
            runs: self.step_runs(),
            end,
        };
        if self.single {
            return vec![(0, places(0, self.tokens, true, 0))];
        }
        let spans = self.sequences.spans().iter();
        spans.map(|span| (span.first, places(span.first, span.tokens, false, span.end()))).collect()
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
        if purpose == Purpose::Prompt {
            runs.iter().try_for_each(|run| self.catch_up(run.sequence))?;
        }
        self.sequences.begin(runs)?;
        self.hold_batch()?;
        self.tokens = total;
        self.at_work = false;
        self.single = purpose == Purpose::Answers;
        self.place_windows()?;
        if self.single {
            let (sequences, mut memory) = self.sequences_in();
            sequences.begin_rounds(&mut memory)?;
        }
        let tokens = runs.iter().flat_map(|run| run.tokens.iter().copied());
        self.expect_ngrams(tokens.clone(), true);
        self.write_inputs(tokens);
        self.begin_step()
    }

    /// Says where the windows of the batch's sequences lie.
    pub(super) fn place_windows(&mut self) -> Result<(), CudaError> {
        let answers = self.single;
        let (sequences, mut memory) = self.sequences_in();
        sequences.place_windows(&mut memory, answers)
    }

    /// Tokens, positions and sequences of the batch, for the device to fetch.
    pub(super) fn write_inputs(&self, tokens: impl Iterator<Item = u32>) {
        let (inputs, total) = (&self.buffers.pinned.inputs, self.tokens);
        inputs.hand_over(0, tokens);
        for span in self.sequences.spans() {
            let positions = (span.position..span.end()).map(|place| place as u32);
            inputs.hand_over(total + span.first, positions);
            let lag = self.sequences.lag(span.sequence) as u32;
            let of_run = [
                (Input::Sequence, span.sequence.0),
                (Input::Start, span.first as u32),
                (Input::Lag, lag),
            ];
            for (which, word) in of_run {
                let words = std::iter::repeat_n(word, span.tokens);
                inputs.hand_over(which as usize * total + span.first, words);
            }
        }
        self.write_window_positions();
    }

    /// Positions of the batch's tokens from the bases of their windows' rows, for the device to fetch.
    fn write_window_positions(&self) {
        let Some(rows) = self.sizes.layout.window_rows() else { return };
        for span in self.sequences.spans() {
            let first = rows.first_row(span, self.single);
            let positions = (first..first + span.tokens).map(|place| place as u32);
            let at = Input::WindowPosition as usize * self.tokens + span.first;
            self.buffers.pinned.inputs.hand_over(at, positions);
        }
    }

    /// Brings them to the device.
    pub(super) fn upload_inputs(&self) -> Result<(), CudaError> {
        let count = self.sizes.input_rows() * self.tokens;
        let from = self.buffers.pinned.inputs.span(0, count);
        self.stream.copy(from, self.buffers.inputs.span(0, count))
    }

    /// Sets a sequence to a point of any.
    pub(super) fn return_to(
        &mut self,
        sequence: SequenceId,
        snapshot: &SnapshotPart,
    ) -> Result<(), EngineError> {
        self.settle()?;
        self.hold_cache(std::iter::once((sequence.place(), snapshot.length())))?;
        if let Some(ngrams) = &mut self.ngrams {
            ngrams.restore(sequence.place(), snapshot);
        }
        let (sequences, mut memory) = self.sequences_in();
        sequences.restore(&mut memory, sequence, snapshot)
    }

    /// Ends the batch.
    pub(super) fn end_batch(&mut self) {
        if let Some(ngrams) = &mut self.ngrams {
            ngrams.commit(self.sequences.spans());
        }
        let answers = self.single;
        let (sequences, mut memory) = self.sequences_in();
        if let Err(error) = sequences.commit(&mut memory, answers) {
            self.failure = Some(error);
        }
    }

    /// The batch in progress, between two layers of a prompt; `None` for a step and when a copy fails. Records that
    /// were read ahead for the next layer stay where they are.
    pub(super) fn put_aside(&mut self) -> Option<Suspended> {
        if self.single || self.failure.is_some() || self.stream.wait().is_err() {
            return None;
        }
        let mut residual = Vec::new();
        if self.at_work {
            residual.resize(self.register(Register::Residual).len(), 0.0);
            self.buffers.registers[Register::Residual as usize].read(0, &mut residual).ok()?;
        }
        let tokens = self.buffers.pinned.inputs.collect(0..self.tokens).collect();
        let side = self.side.as_ref().filter(|_| self.config.shares_choices());
        let chosen = side.map(|side| side.read_chosen(self.tokens)).transpose().ok()?;
        let mut suspended = self.sequences.suspend(tokens, residual);
        suspended.chosen = chosen.unwrap_or_default();
        Some(suspended)
    }

    /// Goes on with a prompt's batch.
    pub(super) fn take_up(&mut self, suspended: Suspended) -> Result<(), EngineError> {
        self.finish_step()?;
        self.end_given_up()?;
        self.stream.wait()?;
        if let Some(side) = self.side.as_ref().filter(|_| !suspended.chosen.is_empty()) {
            side.write_chosen(&suspended.chosen)?;
        }
        let (tokens, residual) = self.sequences.resume(suspended);
        self.tokens = tokens.len();
        self.single = false;
        self.place_windows()?;
        // Rows are asked for again where their layer is still to come.
        self.expect_ngrams(tokens.iter().copied(), false);
        self.write_inputs(tokens.into_iter());
        self.upload_inputs()?;
        self.at_work = !residual.is_empty();
        if self.at_work {
            self.buffers.registers[Register::Residual as usize].write(0, &residual)?;
        }
        self.begin_step()
    }

    /// Waits until nothing is running.
    pub(super) fn settle(&mut self) -> Result<(), EngineError> {
        self.finish_step()?;
        self.stream.wait()?;
        self.forget_batch();
        self.failure.take().map_or(Ok(()), |error| Err(error.into()))
    }
}

//! Batches that are submitted, and collected once they have ended: as many under way as there are stages keep all of
//! them busy. With one device a batch has ended when it is submitted.

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::time::Duration;

use super::{Engine, PrefillProgress};
use crate::EngineError;
use crate::backend::{Cancel, Purpose, Run, SequenceId, Uncancelled};
use crate::model::StageTimes;
use crate::stages::{Collected, Ended, Ticket};

/// How long a thread waits for a batch before it looks whether that is still wanted.
const LOOK: Duration = Duration::from_millis(5);

impl Engine {
    /// Gives a batch to the stages, with snapshots at the end of the runs `marks`
    /// ([`crate::stages::Stages::take_marks`]).
    /// A sequence may have several batches of prompts under way, which follow each other, or one of answers; nothing
    /// else may be done with it until they are collected.
    ///
    /// # Errors
    /// Too many batches are under way, or one of these sequences that is of another kind. With one device, what
    /// [`Engine::forward`] reports.
    pub fn submit(
        &mut self,
        runs: &[Run<'_>],
        purpose: Purpose,
        marks: &[usize],
    ) -> Result<Ticket, EngineError> {
        if let Some(pipeline) = self.backend.pipeline() {
            return pipeline.submit(runs, purpose, marks);
        }
        self.backend.begin(runs, purpose)?;
        marks.iter().try_for_each(|&run| self.backend.mark(run))?;
        self.backend.embed()?;
        for layer in 0..self.config.trunk_layers() {
            self.run_layer(layer, &Uncancelled)?;
        }
        self.backend.check_files()?;
        self.backend.commit()?;
        self.backend.keep_marks();
        let ticket = Ticket::next(self.done);
        self.done = Some(ticket);
        self.uncollected.push_back(ticket);
        Ok(ticket)
    }

    /// A batch that has ended, in the order in which they do: [`Engine::logits`] and the like answer for its tokens
    /// until the next is collected, or [`Engine::release`]. Waits for one, at most for `patience`, and less where a
    /// prompt passes a layer meanwhile.
    pub fn collect(&mut self, patience: Duration) -> Option<Collected> {
        let Some(pipeline) = self.backend.pipeline() else {
            let ticket = self.uncollected.pop_front()?;
            return Some(Collected { ticket, ended: Ended::Done, times: StageTimes::default() });
        };
        let collected = pipeline.collect(patience)?;
        self.clock.add_all(collected.times);
        Some(collected)
    }

    /// Says that logits of the batch collected last are not asked for any more: the last stage may go on.
    pub fn release(&mut self) {
        if let Some(pipeline) = self.backend.pipeline() {
            pipeline.release();
        }
    }

    /// Gives a batch under way up: it ends soon, as cancelled unless it is done by then.
    pub fn cancel(&mut self, ticket: Ticket) {
        if let Some(pipeline) = self.backend.pipeline() {
            pipeline.cancel(ticket);
        }
    }

    /// Layers that a batch under way has passed.
    pub fn layers_passed(&mut self, ticket: Ticket) -> usize {
        self.backend.pipeline().map_or(0, |pipeline| pipeline.layers(ticket))
    }

    /// Counts signs of life of the stages' threads: while it changes they work.
    pub fn pulse(&mut self) -> u64 {
        self.backend.pipeline().map_or(0, |pipeline| pipeline.pulse())
    }

    /// Waits for a batch, the first of those under way to end. Cancelled, it is still waited for.
    pub(super) fn await_batch(
        &mut self,
        ticket: Ticket,
        cancel: &dyn Cancel,
        layers_done: &mut dyn FnMut(usize),
    ) -> Result<(), EngineError> {
        let mut passed = 0;
        loop {
            if let Some(Collected { ticket: found, ended, .. }) = self.collect(LOOK) {
                assert_eq!(found, ticket, "batches of one kind end in their order");
                return match ended {
                    Ended::Done => Ok(()),
                    Ended::Failed(error) => Err(error),
                    Ended::Panicked(payload) => resume_unwind(payload),
                };
            }
            let layers = self.layers_passed(ticket);
            if layers > passed {
                passed = layers;
                layers_done(layers);
            }
            if cancel.is_cancelled() {
                self.cancel(ticket);
            }
        }
    }

    /// Appends `tokens` to `sequence`, chunk by chunk; with several stages chunks follow each other through them.
    /// `each` is called after every chunk with the index of the chunk's first token in `tokens` and its length, while
    /// the chunk's logits can be asked for; `progress` after every layer.
    ///
    /// # Errors
    /// As [`Engine::forward`], or what `each` returns.
    pub fn prefill(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        cancel: &dyn Cancel,
        progress: &mut dyn FnMut(PrefillProgress),
        each: &mut dyn FnMut(&mut Self, usize, usize) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        if self.backend.len() > 1 {
            return self.prefill_stages(sequence, tokens, cancel, progress, each);
        }
        let part = self.shares(tokens.len());
        let mut done = 0;
        while done < tokens.len() {
            let position = self.sequence_length(sequence);
            let length = self.chunk_at(position).min(tokens.len() - done);
            let run = Run { sequence, tokens: &tokens[done..done + length] };
            let mut passed = |layer| progress(part(done, length, layer));
            self.forward_with(&[run], Purpose::Prompt, cancel, &mut passed)?;
            each(self, done, length)?;
            done += length;
        }
        Ok(())
    }

    /// Tokens from a position to the next multiple of the chunk, where a prompt is cut: how much of it was there before
    /// does not move the cuts.
    fn chunk_at(&self, position: usize) -> usize {
        self.chunk - position % self.chunk
    }

    /// What is done of `total` tokens once a chunk of so many tokens behind so many has passed so many layers.
    fn shares(&self, total: usize) -> impl Fn(usize, usize, usize) -> PrefillProgress + use<> {
        let layers = self.config.trunk_layers() as f64;
        move |done, length, layer| {
            let tokens = done as f64 + length as f64 * layer as f64 / layers;
            PrefillProgress { tokens, total }
        }
    }

    fn prefill_stages(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        cancel: &dyn Cancel,
        progress: &mut dyn FnMut(PrefillProgress),
        each: &mut dyn FnMut(&mut Self, usize, usize) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let (part, layers) = (self.shares(tokens.len()), self.config.trunk_layers());
        let (mut submitted, mut under_way) = (0, VecDeque::new());
        let mut result = Ok(());
        loop {
            // One more than there are stages: the first has the next chunk when it has ended one.
            while result.is_ok()
                && submitted < tokens.len()
                && under_way.len() <= self.backend.len()
            {
                let position = self.backend.length_ahead(sequence);
                let length = self.chunk_at(position).min(tokens.len() - submitted);
                let run = Run { sequence, tokens: &tokens[submitted..submitted + length] };
                match self.submit(&[run], Purpose::Prompt, &[]) {
                    Ok(ticket) => under_way.push_back((ticket, submitted, length)),
                    Err(error) => result = Err(error),
                }
                submitted += length;
            }
            let Some((ticket, done, length)) = under_way.pop_front() else { return result };
            let mut passed = |layer| progress(part(done, length, layer));
            let ended = self.await_batch(ticket, cancel, &mut passed);
            if result.is_ok() {
                if ended.is_ok() {
                    progress(part(done, length, layers));
                }
                result = ended.and_then(|()| each(self, done, length));
            }
            if result.is_err() {
                under_way.iter().for_each(|(ticket, ..)| self.cancel(*ticket));
            }
        }
    }
}

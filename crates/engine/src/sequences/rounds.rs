//! Rounds: the next token of an answer with drafts behind it, of which the first tokens alone may be kept afterwards.
//!
//! The way back is a length. Pages, latent rows and compressed rows are written again; of what has a fixed size (rings
//! of windows, unfinished rows) the bytes that each token of a round writes over are put aside before, and put back for
//! those that are not kept, so that a snapshot has the bytes of a sequence that never had drafts. Recurrent states have
//! no such rows: they stay behind by the tokens of the last round ([`Sequences::lag`]), which the device applies once
//! it is known how many were kept; and it sets their convolution tails.

use super::port::StateMemory;
use super::{Place, SequenceId, Sequences};
use crate::EngineError;

/// A round of a place.
pub(super) struct Round {
    /// Position of its first token.
    position: usize,
    tokens: usize,
    /// What it has written over, token by token; nothing where the device holds that.
    overwritten: Vec<u8>,
}

impl Place {
    /// Another point is there.
    pub(super) fn forget_round(&mut self) {
        (self.round, self.lag) = (None, 0);
    }
}

impl Sequences {
    /// Most tokens of a round, as far as what sequences keep decides it.
    pub(crate) fn round_tokens(&self) -> usize {
        self.layout.round_tokens()
    }

    /// Says of the batch just begun that runs of several tokens are rounds, each the only run of its sequence: less of
    /// them may be kept.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn begin_rounds<M: StateMemory + ?Sized>(
        &mut self,
        memory: &mut M,
    ) -> Result<(), M::Error> {
        for index in 0..self.spans.len() {
            let span = self.spans[index];
            if span.tokens == 1 {
                continue;
            }
            let (place, position) = (span.sequence.place(), span.position);
            let tokens = position..span.end();
            let regions = tokens.flat_map(|position| self.layout.overwritten(place, position));
            let overwritten = memory.put_aside(&regions.collect::<Vec<_>>())?;
            let round = Round { position, tokens: span.tokens, overwritten };
            self.places[place].round = Some(round);
        }
        Ok(())
    }

    /// Keeps the first `tokens` of the last round of a sequence, and nothing of the others. Once, and before anything
    /// else is done with the sequence.
    ///
    /// # Errors
    /// The last batch of the sequence was no round of as many tokens, or the device failed.
    pub(crate) fn keep_first<M: StateMemory + ?Sized>(
        &mut self,
        memory: &mut M,
        sequence: SequenceId,
        tokens: usize,
    ) -> Result<(), EngineError> {
        let place = &mut self.places[sequence.place()];
        let Some(round) = place.round.take().filter(|it| (1..=it.tokens).contains(&tokens)) else {
            let found = format!("the last batch of a sequence was no round of {tokens} tokens");
            return Err(EngineError::Request(found));
        };
        let length = round.position + tokens;
        (place.length, place.lag) = (Some(length), tokens);
        if self.shares_pages {
            place.pages.truncate(self.layout.pages(length));
        }
        let lost = length..round.position + round.tokens;
        let regions = lost.flat_map(|position| self.layout.overwritten(sequence.place(), position));
        let each = round.overwritten.len() / round.tokens;
        let bytes = &round.overwritten[tokens * each..];
        memory.put_back(&regions.collect::<Vec<_>>(), bytes).map_err(Into::into)
    }

    /// Tokens at the end of a sequence that its recurrent states do not have yet.
    pub(crate) fn lag(&self, sequence: SequenceId) -> usize {
        self.places[sequence.place()].lag
    }

    /// The recurrent states of a sequence have all of its tokens.
    pub(crate) fn caught_up(&mut self, sequence: SequenceId) {
        self.places[sequence.place()].lag = 0;
    }
}

//! Ranking a row of logits on the device, behind the step that computes it.

use cuda::launch::{self, Weights};

use super::CudaBackend;
use crate::EngineError;
use crate::weights::{MatrixId, VectorId};
use text::sampling::{RANKED_TOKENS, Ranked, SUM_TOKENS, Wanted};

// The kernels' sizes are the sampler's.
const _: () = assert!(launch::KEPT == RANKED_TOKENS && launch::WEIGHED == SUM_TOKENS);

impl CudaBackend {
    /// True when the kernels rank rows of this vocabulary.
    pub(super) fn ranks(&self) -> bool {
        self.sizes.vocabulary <= launch::ROW_LIMIT
    }

    /// What is wanted of the logits of `token`. It is asked for while the step still runs.
    pub(super) fn rank_row(
        &mut self,
        token: usize,
        norm: Option<VectorId>,
        head: MatrixId,
        wanted: Wanted,
        out: &mut Ranked,
    ) -> Result<(), EngineError> {
        let place = match self.steps.coming_row(token) {
            Some(place) => place,
            None => self.step_head(&[token], norm, head)?.unwrap_or(token),
        };
        self.steps.ranked_place = place;
        let (vocabulary, words) =
            (self.sizes.vocabulary, launch::draw_words(self.sizes.vocabulary));
        let weights = match wanted {
            Wanted::Top => None,
            Wanted::Weights { temperature, least } => Some(Weights { temperature, least }),
        };
        let scratch = launch::draw_scratch(vocabulary);
        let row = self.buffers.logits.part(place * vocabulary, vocabulary);
        let ranked = self.buffers.ranked.span(scratch * 8, words);
        let to = self.buffers.pinned.ranked.span(0, words);
        launch::rank(&self.stream, row, weights, self.buffers.ranked.span(0, scratch), ranked)?;
        self.stream.copy(ranked, to)?;
        self.settle()?;
        let ranked = &self.buffers.pinned.ranked;
        let words = ranked.collect(0..ranked.len());
        out.top.clear();
        for word in words.clone().take(RANKED_TOKENS) {
            match launch::ranked(word) {
                None => {
                    let part = self.sequences.spans().iter().rfind(|part| part.first <= token);
                    let position = part.map_or(0, |part| part.position + token - part.first);
                    return Err(EngineError::NotFinite { position });
                }
                Some((_, f32::NEG_INFINITY)) => break,
                Some(token) => out.top.push(token),
            }
        }
        out.sums.clear();
        if weights.is_some() {
            out.sums.extend(words.skip(RANKED_TOKENS).take(vocabulary.div_ceil(SUM_TOKENS)));
        }
        Ok(())
    }
}

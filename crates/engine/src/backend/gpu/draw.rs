//! Logits of a batch's tokens, and tokens drawn from them on the device.
//!
//! The head of a small batch is computed for all of its tokens at once, and its most likely tokens are read together.
//! Sums of weights for the other ways of drawing are the host's: a shader's division and contractions are the driver's
//! choice, and a draw must not depend on them.

use gpu::op::{draw, elementwise, norm, product};
use gpu::{Buffer, Gpu};

use super::step::{STEP_TOKENS, words};
use super::{Backend, GpuBackend, requirements::Sizes};
use crate::EngineError;
use crate::weights::{MatrixId, VectorId};
use text::sampling::{RANKED_TOKENS, Ranked};

// The kernels' ranking is the sampler's.
const _: () = assert!(draw::RANKED == RANKED_TOKENS);

/// Buffers of the head, and what they hold for the batch in progress.
pub(super) struct Head {
    selected: Buffer,
    selected_normed: Buffer,
    logits: Buffer,
    scratch: [Buffer; 2],
    drawn: Buffer,
    host_logits: Vec<f32>,
    /// The first so many tokens of the batch have their logits in the rows of their numbers.
    rows: usize,
    /// The most likely tokens of the batch's first tokens.
    chosen: Vec<u32>,
}

impl Head {
    pub(super) fn new(gpu: &mut Gpu, sizes: &Sizes) -> Result<Self, EngineError> {
        let mut numbers = |what: &str, count: usize| gpu.buffer(what, 4 * count as u64);
        Ok(Self {
            selected: numbers("rows", sizes.selected)?,
            selected_normed: numbers("rows", sizes.selected)?,
            logits: numbers("logits", sizes.logits)?,
            scratch: [numbers("ranking", sizes.ranking)?, numbers("ranking", sizes.ranking)?],
            drawn: numbers("most likely tokens", sizes.drawn)?,
            host_logits: vec![0.0; sizes.logits],
            rows: 0,
            chosen: Vec::new(),
        })
    }

    /// Another batch begins.
    pub(super) fn forget(&mut self) {
        self.rows = 0;
        self.chosen.clear();
    }
}

impl GpuBackend {
    /// Records the head of some of the batch's tokens.
    fn record_head(
        &mut self,
        tokens: &[usize],
        (norm, head): (VectorId, MatrixId),
    ) -> Result<(), EngineError> {
        let (count, hidden) = (tokens.len(), self.config.hidden);
        let row = 4 * hidden as u64;
        for (index, &token) in tokens.iter().enumerate() {
            let residual = self.stream_rows().clone();
            let (start, at) = (token as u64 * row, index as u64 * row);
            self.residency.device_mut().gpu.copy(&residual, start, &self.head.selected, at, row);
        }
        let (weight, to) = (&self.vectors[norm.index()], &self.head.selected_normed);
        let buffers = (&self.head.selected, weight, to);
        norm::launch(
            &mut self.residency.device_mut().gpu,
            buffers,
            (count, hidden),
            self.config.rms_epsilon,
        )?;
        let head = self.trunk.matrix(head.index());
        product::launch(
            &mut self.residency.device_mut().gpu,
            head,
            to,
            &self.head.logits,
            count,
            false,
        )?;
        if let Some(cap) = self.config.stream.softcap {
            let (logits, numbers) = (&self.head.logits, count * self.config.vocabulary);
            elementwise::launch_cap(&mut self.residency.device_mut().gpu, logits, cap, numbers)?;
        }
        Ok(())
    }

    /// Logits of some of the batch's tokens, on the host.
    pub(super) fn host_logits(
        &mut self,
        tokens: &[usize],
        weights: (VectorId, MatrixId),
    ) -> Result<&mut [f32], EngineError> {
        let numbers = tokens.len() * self.config.vocabulary;
        let logits = self.head.logits.clone();
        self.head.rows = 0;
        let mut record = |this: &mut Self| this.record_head(tokens, weights);
        let bytes = self.finish(&mut record, &[(&logits, 0, 4 * numbers as u64)])?;
        for (logit, bytes) in self.head.host_logits.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *logit = f32::from_le_bytes(*bytes);
        }
        self.check_files()?;
        Ok(&mut self.head.host_logits[..numbers])
    }

    /// The tokens whose head is computed where that of `token` is wanted: all of a small batch.
    fn head_tokens(&self, token: usize) -> Vec<usize> {
        match self.tokens <= STEP_TOKENS.min(self.options.logit_rows) {
            true => (0..self.tokens).collect(),
            false => vec![token],
        }
    }

    /// The most likely token after one of the batch.
    pub(super) fn drawn(
        &mut self,
        token: usize,
        weights: (VectorId, MatrixId),
    ) -> Result<u32, EngineError> {
        let mut chosen = self.head.chosen.get(token).copied();
        if chosen.is_none() {
            let tokens = self.head_tokens(token);
            let shape = (tokens.len(), self.config.vocabulary);
            let out = self.head.drawn.clone();
            self.head.rows = 0;
            let mut record = |this: &mut Self| {
                this.record_head(&tokens, weights)?;
                let (gpu, head) = (&mut this.residency.device_mut().gpu, &this.head);
                let (logits, scratch) = (&head.logits, &head.scratch[0]);
                Ok(draw::launch_most_likely(gpu, logits, scratch, &head.drawn, shape)?)
            };
            let bytes = self.finish(&mut record, &[(&out, 0, 4 * tokens.len() as u64)])?;
            self.check_files()?;
            let found = words(&bytes);
            chosen = tokens.iter().position(|&it| it == token).map(|place| found[place]);
            if tokens.len() == self.tokens {
                self.head.rows = self.tokens;
                self.head.chosen = found;
            }
        }
        match chosen {
            Some(draw::NOT_FINITE) | None => Err(self.not_finite(token)),
            Some(chosen) => Ok(chosen),
        }
    }

    /// The most likely tokens after one of the batch and their logits, best first.
    pub(super) fn ranked(
        &mut self,
        token: usize,
        weights: (VectorId, MatrixId),
        out: &mut Ranked,
    ) -> Result<(), EngineError> {
        let tokens = self.head_tokens(token);
        let known = token < self.head.rows;
        let place = tokens.iter().position(|&it| it == token).unwrap_or(0);
        let vocabulary = self.config.vocabulary;
        let from = self.head.scratch[draw::ranking_place(vocabulary)].clone();
        if !known {
            self.head.rows = 0;
        }
        let mut record = |this: &mut Self| {
            if !known {
                this.record_head(&tokens, weights)?;
            }
            let (gpu, head) = (&mut this.residency.device_mut().gpu, &this.head);
            let [first, second] = &head.scratch;
            let row = (place * vocabulary, vocabulary);
            Ok(draw::launch_rank(gpu, &head.logits, [first, second], row)?)
        };
        let bytes = self.finish(&mut record, &[(&from, 0, 8 * draw::RANKED as u64)])?;
        self.check_files()?;
        if tokens.len() == self.tokens {
            self.head.rows = self.tokens;
        }
        out.sums.clear();
        out.top.clear();
        for pair in words(&bytes).as_chunks::<2>().0 {
            match draw::ranked(pair[0], pair[1]) {
                None => return Err(self.not_finite(token)),
                Some((_, f32::NEG_INFINITY)) => break,
                Some(token) => out.top.push(token),
            }
        }
        Ok(())
    }
}

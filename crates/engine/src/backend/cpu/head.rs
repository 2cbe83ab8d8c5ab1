//! A head on the processor: what it keeps of every token, and its drafts.
//!
//! Of a token at position `p` the head's keys and values lie where the token's others do, in the row of `p`: they are
//! made of the token and the trunk's output at `p - 1`, so a round is undone by its length. The first token has no
//! output before it: its row is there, and no draft sees it. Outputs lie in a ring of the sequence's state until the
//! head reads them, many tokens at once: when the ring is full, before a snapshot, in a prompt, and for a draft.
//!
//! A draft never waits for a disk: experts that are not in memory are left out of its mixture, and asked for.

use kernels::{AttentionShape, MatmulJob, Tokens};
use store::cache::Phase;
use store::{ExpertId, LayerId};

use super::attention::attention_shape;
use super::mixture::Assignments;
use super::{CpuBackend, CpuOptions};
use crate::EngineError;
use crate::backend::{Register, SequenceId, Uncancelled};
use crate::model::config::ModelConfig;
use crate::model::head::{DRAFT_ROWS, Head};
use crate::model::program::{Op, Stage};
use crate::sequences::{Part, Span};
use crate::weights::VectorId;

/// Buffers of a head.
pub(super) struct HeadScratch {
    /// Outputs of the trunk of a batch's tokens, `[batch_tokens, hidden]`.
    outputs: Vec<f32>,
    /// The output that the next pair has.
    output: Vec<f32>,
    /// What the first row of the stream held before a draft.
    residual: Vec<f32>,
    logits: Vec<f32>,
    /// By place: tokens whose keys and values the head has.
    filled: Vec<usize>,
    /// Experts that a draft left out, until they are asked for.
    absent: Vec<ExpertId>,
}

/// The batch that a head's own runs put aside.
struct Aside {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    spans: Vec<Span>,
}

impl HeadScratch {
    /// `None` for models without a head.
    pub(super) fn new(config: &ModelConfig, options: &CpuOptions) -> Option<Self> {
        let [outputs, row, logits] = Self::values(config, options)?;
        Some(Self {
            outputs: vec![0.0; outputs],
            output: vec![0.0; row],
            residual: vec![0.0; row],
            logits: vec![0.0; logits],
            filled: vec![0; options.sequences],
            absent: Vec::new(),
        })
    }

    /// Those of the last draft.
    pub(super) fn logits(&self) -> &[f32] {
        &self.logits
    }

    fn values(config: &ModelConfig, options: &CpuOptions) -> Option<[usize; 3]> {
        let (hidden, rows) = (config.hidden, config.vocabulary.min(DRAFT_ROWS));
        config.head.then_some([options.batch_tokens * hidden, hidden, rows])
    }

    /// Bytes that [`HeadScratch::new`] will hold.
    pub(super) fn bytes(config: &ModelConfig, options: &CpuOptions) -> usize {
        let values = Self::values(config, options);
        let floats = values.map_or(0, |[outputs, row, logits]| outputs + 2 * row + logits);
        floats * size_of::<f32>()
    }
}

impl CpuBackend {
    /// Whether a layer is a head's.
    pub(super) fn is_head(&self, layer: LayerId) -> bool {
        self.config.head && layer.index() == self.config.trunk_layers()
    }

    /// A sequence is at another point: of its first `tokens` the head has everything.
    pub(super) fn note_filled(&mut self, sequence: SequenceId, tokens: usize) {
        if let Some(scratch) = &mut self.head {
            scratch.filled[sequence.place()] = tokens;
        }
    }

    /// At the end of a batch: keeps what the head will read of its tokens; of a prompt it reads all at once.
    pub(super) fn keep_outputs(&mut self) {
        let program = std::sync::Arc::clone(&self.program);
        let (Some(head), true) = (&program.head, self.head.is_some()) else { return };
        let (hidden, count) = (self.config.hidden, self.tokens.len());
        let width = self.registers.width(Register::Residual);
        let scratch = self.head.as_mut().expect("a head has buffers");
        let weight = self.weights.vector(head.trunk_norm);
        let residual = self.registers.get(Register::Residual);
        debug_assert_eq!(width, hidden, "a head reads one stream");
        let outputs = &mut scratch.outputs[..count * hidden];
        self.compute.rms_norm(residual, weight, self.config.rms_epsilon, outputs);
        for run in 0..self.spans.len() {
            let span = self.spans[run];
            if self.answers {
                self.make_room_for(head, span);
            } else {
                self.fill_held(head, span.sequence, span.position);
                self.fill_run(head, span);
            }
            let (ring, rows) = self.sequences.ring(span.sequence, head.layer, Part::Outputs);
            let scratch = self.head.as_ref().expect("a head has buffers");
            for at in span.tokens.saturating_sub(ring.rows())..span.tokens {
                let (row, token) = (&mut rows[ring.row(span.position + at)], span.first + at);
                row[..hidden].copy_from_slice(&scratch.outputs[token * hidden..][..hidden]);
                row[hidden] = f32::from_bits(self.tokens[token]);
            }
            self.sequences.keep(head.layer, Part::Outputs, run);
        }
    }

    /// Reads what is held of a sequence where a step's tokens would not fit behind it.
    fn make_room_for(&mut self, head: &Head, span: Span) {
        let filled = self.filled(span.sequence);
        let (ring, _) = self.sequences.ring(span.sequence, head.layer, Part::Outputs);
        // The pair of the first token that is not filled has the output before it.
        if span.end() - filled + 1 > ring.rows() {
            self.fill_held(head, span.sequence, span.position);
        }
    }

    fn filled(&self, sequence: SequenceId) -> usize {
        self.head.as_ref().map_or(0, |scratch| scratch.filled[sequence.place()])
    }

    /// Before a snapshot: the head has read everything that a sequence holds.
    pub(super) fn fill_all(&mut self, sequence: SequenceId) {
        let program = std::sync::Arc::clone(&self.program);
        if let (Some(head), true) = (&program.head, self.head.is_some()) {
            self.fill_held(head, sequence, self.sequences.length(sequence));
        }
    }

    /// Keys and values of the tokens before `end` whose outputs are held.
    fn fill_held(&mut self, head: &Head, sequence: SequenceId, end: usize) {
        let filled = self.filled(sequence);
        let most = self.options.batch_tokens;
        let mut position = filled;
        while position < end {
            let tokens = most.min(end - position);
            let span = Span { sequence, first: 0, tokens, position, base: 0 };
            let (ring, rows) = self.sequences.ring(sequence, head.layer, Part::Outputs);
            let bits = |position: usize| rows[ring.row(position)][self.config.hidden].to_bits();
            let own: Vec<u32> = (position..span.end()).map(bits).collect();
            let aside = self.put_aside(own, span);
            for at in 0..tokens {
                self.set_pair(head, sequence, at, None);
            }
            self.run_head_ops(head.layer, &head.fill);
            self.take_back(aside);
            position += tokens;
        }
        self.note_filled(sequence, filled.max(end));
    }

    /// Keys and values of the tokens of a prompt's run.
    fn fill_run(&mut self, head: &Head, span: Span) {
        let own = self.tokens[span.first..span.first + span.tokens].to_vec();
        let aside = self.put_aside(own, Span { first: 0, ..span });
        for at in 0..span.tokens {
            self.set_pair(head, span.sequence, at, at.checked_sub(1).map(|at| span.first + at));
        }
        self.run_head_ops(head.layer, &head.fill);
        self.take_back(aside);
        self.note_filled(span.sequence, span.end());
    }

    /// Puts the batch aside for one of a head.
    fn put_aside(&mut self, tokens: Vec<u32>, span: Span) -> Aside {
        self.registers.resize(tokens.len());
        let positions = (span.position..span.end()).map(|position| position as u32).collect();
        Aside {
            tokens: std::mem::replace(&mut self.tokens, tokens),
            positions: std::mem::replace(&mut self.positions, positions),
            spans: std::mem::replace(&mut self.spans, vec![span]),
        }
    }

    /// The batch is again the one that was put aside.
    fn take_back(&mut self, Aside { tokens, positions, spans }: Aside) {
        self.registers.resize(tokens.len());
        (self.tokens, self.positions, self.spans) = (tokens, positions, spans);
    }

    /// `Pair` of a token of a head's batch: its embedding, and the trunk's output before it. That is the output of
    /// token `from` of the trunk's batch, or else the one that is held.
    fn set_pair(&mut self, head: &Head, sequence: SequenceId, at: usize, from: Option<usize>) {
        let hidden = self.config.hidden;
        let before = (self.positions[at] as usize).checked_sub(1);
        let (ring, rows) = self.sequences.ring(sequence, head.layer, Part::Outputs);
        let outputs = &self.head.as_ref().expect("a head has buffers").outputs;
        let pair = &mut self.registers.get_mut(Register::Pair)[2 * hidden * at..][..2 * hidden];
        let (embedding, output) = pair.split_at_mut(hidden);
        let table = self.weights.matrix(head.embedding);
        kernels::format::decode_row(&table, self.tokens[at] as usize, embedding);
        let scale = self.config.stream.embedding_scale;
        embedding.iter_mut().for_each(|value| *value *= scale);
        match (from, before) {
            (Some(token), _) => output.copy_from_slice(&outputs[token * hidden..][..hidden]),
            (None, Some(position)) => output.copy_from_slice(&rows[ring.row(position)][..hidden]),
            (None, None) => output.fill(0.0),
        }
    }

    /// Runs operations that read nothing from a file.
    fn run_head_ops(&mut self, layer: LayerId, ops: &[Op]) {
        for op in ops {
            let done = self.run_op(layer, op, &Uncancelled);
            debug_assert!(done.is_ok(), "{}: {done:?}", op.name());
        }
    }

    /// The halves of each pair, normed.
    pub(super) fn norm_pair(&mut self, weights: [VectorId; 2]) {
        let (hidden, epsilon) = (self.config.hidden, self.config.rms_epsilon);
        let pairs = self.registers.get_mut(Register::Pair);
        let half = &mut self.projected[..pairs.len() / 2];
        for (start, weight) in [0, hidden].into_iter().zip(weights) {
            let part = start..start + hidden;
            for (row, pair) in half.chunks_exact_mut(hidden).zip(pairs.chunks_exact(2 * hidden)) {
                row.copy_from_slice(&pair[part.clone()]);
            }
            self.compute.rms_norm_in_place(half, self.weights.vector(weight), epsilon);
            for (row, pair) in half.chunks_exact(hidden).zip(pairs.chunks_exact_mut(2 * hidden)) {
                pair[part.clone()].copy_from_slice(row);
            }
        }
    }

    /// Appends keys and values of the batch to a layer's cache.
    pub(super) fn keep_keys(&mut self, layer: LayerId) {
        let attention = self.config.attention_of(layer.index());
        let shape: AttentionShape = attention_shape(attention, self.options.kv_type);
        let width = attention.key_width();
        for span in &self.spans {
            let rows = span.first * width..(span.first + span.tokens) * width;
            let [keys, values] = [Register::Key, Register::Value]
                .map(|register| &self.registers.get(register)[rows.clone()]);
            self.sequences.append(span.sequence, layer, &shape, span.position, &[keys, values]);
        }
    }

    /// What a visit of a layer's experts is for.
    pub(super) fn phase(&self, layer: LayerId) -> Phase {
        let single = self.spans.iter().all(|span| span.tokens == 1);
        match single || self.answers {
            _ if self.is_head(layer) => Phase::Draft,
            true => Phase::Decode,
            false => Phase::Prefill,
        }
    }

    /// Keeps of the experts chosen for a draft's token those that are in memory, and notes the others for
    /// [`CpuBackend::ask_for_absent`].
    pub(super) fn leave_out_absent(&mut self, layer: LayerId) {
        let Assignments { experts, starts, weights, .. } = &mut self.scratch.assignments;
        let absent = &mut self.head.as_mut().expect("a head has buffers").absent;
        absent.clear();
        let mut kept = 0;
        // The only token of the batch has a pair for each.
        for index in 0..experts.len() {
            if self.experts.is_resident(layer, experts[index]) {
                (experts[kept], weights[kept]) = (experts[index], weights[index]);
                kept += 1;
            } else {
                absent.push(experts[index]);
            }
        }
        experts.truncate(kept);
        starts.truncate(kept + 1);
    }

    /// Asks for what a draft left out. After its visit has begun: before, their slots could be those of the kept, and
    /// the draft would wait for a disk.
    pub(super) fn ask_for_absent(&self, layer: LayerId) {
        let absent = self.head.as_ref().map(|head| &head.absent).filter(|it| !it.is_empty());
        if let Some(absent) = absent {
            self.experts.read_certain(&[(layer, absent.clone())]);
        }
    }

    /// Drafts at most `most` tokens behind `token`, which is drawn and not yet part of `sequence`.
    pub(super) fn run_draft(
        &mut self,
        sequence: SequenceId,
        token: u32,
        most: usize,
        drafts: &mut Vec<u32>,
    ) {
        let program = std::sync::Arc::clone(&self.program);
        let (Some(head), true) = (&program.head, self.head.is_some()) else { return };
        let length = self.sequences.length(sequence);
        // Without room for its rows there are no drafts.
        if length == 0 || self.sequences.reserve_rows(sequence, most).is_err() {
            return;
        }
        self.fill_all(sequence);
        let hidden = self.config.hidden;
        let (ring, rows) = self.sequences.ring(sequence, head.layer, Part::Outputs);
        let scratch = self.head.as_mut().expect("a head has buffers");
        scratch.output.copy_from_slice(&rows[ring.row(length - 1)][..hidden]);
        let mut token = token;
        for position in length..length + most {
            let span = Span { sequence, first: 0, tokens: 1, position, base: 0 };
            let aside = self.put_aside(vec![token], span);
            let drafted = self.draft_one(head);
            self.take_back(aside);
            match drafted {
                Ok(next) => token = next,
                // A head without finite numbers drafts nothing; it is no part of the answer.
                Err(_) => break,
            }
            drafts.push(token);
        }
        self.sequences.release_rows(sequence);
    }

    /// One draft: the token of the batch, behind the output at hand, which becomes the head's own.
    fn draft_one(&mut self, head: &Head) -> Result<u32, EngineError> {
        let (hidden, layer) = (self.config.hidden, head.layer);
        let sequence = self.spans[0].sequence;
        self.set_pair(head, sequence, 0, None);
        let scratch = self.head.as_mut().expect("a head has buffers");
        self.registers.get_mut(Register::Pair)[hidden..].copy_from_slice(&scratch.output);
        // The answers' batch may still be asked for its logits.
        scratch.residual.copy_from_slice(self.registers.get(Register::Residual));
        let program = std::sync::Arc::clone(&self.program);
        let ops = Stage::ALL.map(|stage| program.layers[layer.index()].stage(stage));
        let mut ops = head.enter.iter().chain(ops.into_iter().flatten());
        let done = ops.try_for_each(|op| self.run_op(layer, op, &Uncancelled));
        let scratch = self.head.as_mut().expect("a head has buffers");
        let norm = self.weights.vector(head.norm);
        let residual = self.registers.get_mut(Register::Residual);
        self.compute.rms_norm(residual, norm, self.config.rms_epsilon, &mut scratch.output);
        residual.copy_from_slice(&scratch.residual);
        done?;
        let matrix = self.weights.matrix(head.output);
        let matrix = matrix.part(0, scratch.logits.len());
        self.compute.prepare(&scratch.output, hidden, &[matrix.encoding], &mut self.prepared);
        let out = &mut scratch.logits[..];
        let job = MatmulJob { matrix, x: &self.prepared, tokens: Tokens::All, out };
        self.compute.matmul(&mut [job]);
        let mut best = (0, f32::NEG_INFINITY);
        for (token, &logit) in scratch.logits.iter().enumerate() {
            if logit > best.1 {
                best = (token as u32, logit);
            }
        }
        let position = self.positions[0] as usize;
        if best.1.is_finite() { Ok(best.0) } else { Err(EngineError::NotFinite { position }) }
    }
}

//! A head on an NVIDIA GPU: what its layer keeps of every token, and its drafts.
//!
//! Keys and values of a token at position `p` are made of the token and the trunk's output at `p - 1`, and lie in the
//! row of `p`: a round is undone by its length. Every batch ends with them, a step's in its graph, so that a head is
//! never behind its sequence. What a batch has to know of the one before, the trunk's last output, lies in a ring of
//! the sequence's state, which has one for every token of a round.
//!
//! A draft is one graph for each token. Token, position and count lie in device memory and one draft leaves them to the
//! next, so that all of them are one wait. Experts that no address is known of are left out of the mixture and asked
//! for: a draft never waits for a disk. Its residual stream and its inputs are its own, as the last batch may still be
//! asked for logits.

use std::sync::Arc;

use cuda::launch::{
    self, Factor, KeyValueCache, OutputRing, Pairs, PairsOf, Routing, STATUS_WORDS, TakeDraft,
    TokenPlaces,
};
use cuda::{CudaError, Device, DeviceBuffer, Graph, PinnedBuffer, Span};
use store::{ExpertId, LayerId};

use super::buffers::{Floats, Input, Sizes};
use super::fuse::Kind;
use super::{CudaBackend, CudaOptions, Mode, Register, STEP_TOKENS};
use crate::EngineError;
use crate::backend::{SequenceId, Uncancelled};
use crate::model::config::ModelConfig;
use crate::model::head::{DRAFT_ROWS, Head};
use crate::model::program::Stage;
use crate::sequences::{Memory, Part};
use crate::weights::VectorId;

/// Sizes of what a head has for itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadSizes {
    /// Its layer.
    pub(super) layer: LayerId,
    hidden: usize,
    /// Rows of the output head that drafts look at.
    rows: usize,
    top_k: usize,
}

impl HeadSizes {
    /// `None` without a head.
    pub(super) fn new(config: &ModelConfig, options: &CudaOptions) -> Option<Self> {
        let layer = config.trunk_layers();
        let here = config.head && options.layers.contains(&layer);
        here.then(|| Self {
            layer: LayerId(layer as u16),
            hidden: config.hidden,
            rows: config.vocabulary.min(DRAFT_ROWS),
            top_k: options.top_k,
        })
    }

    /// Words of a draft's inputs: those of a token, how many drafts there were, the most likely token, and its row.
    fn words(&self, input_rows: usize) -> usize {
        input_rows + 3
    }

    /// Bytes of device memory that [`DraftMemory::new`] will hold.
    pub(super) fn bytes(&self, input_rows: usize) -> usize {
        let floats = 2 * self.hidden + self.rows;
        let words = self.words(input_rows) + self.top_k + STATUS_WORDS;
        4 * (floats + words) + 8 * launch::ARG_MAX_BLOCKS
    }
}

/// How a draft is launched.
enum Drafting {
    /// There was none.
    First,
    /// The next one is recorded.
    Due,
    /// Recorded.
    Known(Graph),
}

/// What drafts are made with.
pub(super) struct DraftMemory {
    sizes: HeadSizes,
    /// What the model declares, once the program is prepared.
    head: Option<Arc<Head>>,
    /// The residual stream of a draft; that of the batch while one is launched.
    residual: Floats,
    /// As [`super::buffers::Buffers::inputs`], of one token, then the words of [`HeadSizes::words`]; those of the batch
    /// while a draft is launched.
    words: DeviceBuffer,
    /// The head's own output.
    output: Floats,
    logits: Floats,
    arg_max: DeviceBuffer,
    uses: DeviceBuffer,
    /// In the place of a step's status: router logits that are no numbers are no fault of an answer.
    status: DeviceBuffer,
    /// What `words` begin with.
    inputs: PinnedBuffer<u32>,
    /// By draft.
    tokens: PinnedBuffer<u32>,
    /// By draft, experts of each.
    used: PinnedBuffer<u32>,
    drafting: Drafting,
    /// A draft is being launched.
    launching: bool,
    host_logits: Vec<f32>,
}

impl DraftMemory {
    /// `None` without a head.
    pub(super) fn new(device: &Device, sizes: &Sizes) -> Result<Option<Self>, CudaError> {
        let Some(head) = sizes.head else { return Ok(None) };
        let words = |count: usize| DeviceBuffer::new(device, 4 * count);
        let count = head.words(sizes.input_rows());
        Ok(Some(Self {
            sizes: head,
            head: None,
            residual: Floats::new(device, head.hidden)?,
            words: words(count)?,
            output: Floats::new(device, head.hidden)?,
            logits: Floats::new(device, head.rows)?,
            arg_max: DeviceBuffer::new(device, 8 * launch::ARG_MAX_BLOCKS)?,
            uses: words(head.top_k)?,
            status: words(STATUS_WORDS)?,
            inputs: PinnedBuffer::new(device, count)?,
            tokens: PinnedBuffer::new(device, STEP_TOKENS)?,
            used: PinnedBuffer::new(device, STEP_TOKENS * head.top_k)?,
            drafting: Drafting::First,
            launching: false,
            host_logits: Vec::new(),
        }))
    }

    /// The program is known.
    pub(super) fn declare(&mut self, head: Option<Head>) {
        self.head = head.map(Arc::new);
    }

    /// Of a draft's routing: nothing of it concerns a step.
    pub(super) fn redirect(&self, routing: &mut Routing) {
        routing.uses = self.uses.span(0, self.sizes.top_k);
        routing.status = self.status.span(0, STATUS_WORDS);
    }
}

/// The outputs that a sequence of `length` tokens has, and the one of them that the next token needs.
fn ring_rows(ring: &OutputRing, sequence: SequenceId, length: usize) -> (Span<f32>, Span<f32>) {
    let all = ring.values.part(sequence.place() * ring.stride, ring.rows * ring.width);
    (all, all.part((length - 1) % ring.rows * ring.width, ring.width))
}

impl CudaBackend {
    /// What drafts of a layer are made with, where that is a head's.
    pub(super) fn drafts_of(&self, layer: LayerId) -> Option<&DraftMemory> {
        self.drafts.as_ref().filter(|drafts| drafts.sizes.layer == layer)
    }

    /// Behind the trunk: keys and values that the head's layer has of the batch's tokens.
    ///
    /// # Errors
    /// As [`CudaBackend::launch`].
    pub(super) fn fill_head(&mut self) -> Result<(), EngineError> {
        let head = self.drafts.as_ref().and_then(|drafts| drafts.head.clone());
        let Some(head) = head else { return Ok(()) };
        self.rms_norm(Register::Residual, head.trunk_norm, Register::Normed);
        head.fill.iter().try_for_each(|op| self.run_op(head.layer, op, &Uncancelled))
    }

    /// The outputs of the trunk that the places of sequences have.
    fn output_ring(&self, layer: LayerId) -> OutputRing {
        let layout = &self.sizes.layout;
        let ring = layout.side().outputs(layer.index()).expect("the layer of a head");
        let side = layout.memory_range(Memory::Side);
        let start = layout.range(layer, Part::Outputs).start - side.start;
        let stride = side.len();
        let values =
            self.place_buffers.side().states.part(start, self.sizes.sequences * stride - start);
        OutputRing { values, stride, rows: ring.rows(), width: ring.row(0).len() }
    }

    /// Before a snapshot: clears outputs that nothing will read, so that it depends on the text alone.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn forget_outputs(&self, sequence: SequenceId) -> Result<(), CudaError> {
        let length = self.sequences.length(sequence);
        let (Some(drafts), true) = (&self.drafts, length > 0) else { return Ok(()) };
        let (rows, kept) = ring_rows(&self.output_ring(drafts.sizes.layer), sequence, length);
        // Free between drafts.
        let (kept, free) = (kept.part(0, self.sizes.hidden), drafts.output.all());
        self.stream.copy(kept, free)?;
        self.stream.clear(rows)?;
        self.stream.copy(free, kept)
    }

    /// `Pair` of the batch's tokens: their embeddings, and the trunk's outputs before them, both normed. `Normed` has
    /// the outputs of the batch. Leaves the outputs that the next batch will need.
    pub(super) fn norm_pair(&mut self, norms: [VectorId; 2]) {
        let mut marks = self.sequences.take_pending();
        self.run(|this| {
            let Some((drafts, head)) =
                this.drafts.as_ref().and_then(|drafts| Some((drafts, drafts.head.as_ref()?)))
            else {
                return Ok(());
            };
            let (hidden, tokens) = (this.sizes.hidden, this.input(Input::Token, 0, this.tokens));
            // Free until the pairs are multiplied.
            let embedded = this.register(Register::Entered);
            launch::embed(&this.stream, this.matrix(head.embedding), tokens, embedded)?;
            let scale = this.config.stream.embedding_scale;
            if scale != 1.0 {
                launch::scale(&this.stream, embedded, Factor::Constant(scale))?;
            }
            let ring = this.output_ring(head.layer);
            let pairs = |first: usize, count: usize, of: PairsOf| Pairs {
                embedded: embedded.part(first * hidden, count * hidden),
                of,
                ring,
                norms: norms.map(|norm| this.vector(norm)),
                epsilon: this.config.rms_epsilon,
                pairs: this.register(Register::Pair).part(2 * first * hidden, 2 * count * hidden),
            };
            let outputs = this.register(Register::Normed);
            if drafts.launching {
                let of = PairsOf::Draft(drafts.output.all(), this.drafted());
                return launch::pair_rows(&this.stream, &this.places()[0].1, &pairs(0, 1, of));
            }
            if this.single {
                let starts = this.input(Input::Start, 0, this.tokens);
                let all = pairs(0, this.tokens, PairsOf::Step(outputs, starts));
                return launch::pair_rows(&this.stream, &this.places()[0].1, &all);
            }
            for (run, (first, places)) in this.places().into_iter().enumerate() {
                let span = this.sequences.spans()[run];
                let of = PairsOf::Prompt(outputs.part(first * hidden, span.tokens * hidden));
                launch::pair_rows(&this.stream, &places, &pairs(first, span.tokens, of))?;
                // Behind the launch that may read the same row.
                let last = outputs.part((first + span.tokens - 1) * hidden, hidden);
                let (rows, row) = ring_rows(&ring, span.sequence, span.end());
                this.stream.clear(rows)?;
                this.stream.copy(last, row.part(0, hidden))?;
                let part = (head.layer, Part::Outputs);
                marks.keep(&this.sequences, &mut this.memory(), part, run)?;
            }
            Ok(())
        });
        self.sequences.put_pending(marks);
    }

    /// Appends keys and values of the batch to a layer's cache.
    pub(super) fn keep_keys(&mut self, layer: LayerId) {
        self.run(|this| {
            let (shape, cache) = (this.attention_shape(layer), this.cache(layer));
            let width = shape.key_value_heads * shape.dim;
            this.places().into_iter().try_for_each(|(first, places)| {
                let count = places.positions.len();
                let [keys, values] = [Register::Key, Register::Value].map(|register| {
                    this.buffers.registers[register as usize].part(first * width, count * width)
                });
                launch::append(&this.stream, &shape, &places, &cache, keys, values)
            })
        });
    }

    /// While a draft is launched: how many there were before.
    fn drafted(&self) -> Span<u32> {
        self.buffers.inputs.span(4 * self.sizes.input_rows(), 1)
    }

    /// While a draft is launched: its row among those that it sees.
    fn draft_row(&self) -> Span<u32> {
        self.buffers.inputs.span(4 * (self.sizes.input_rows() + 2), 1)
    }

    /// Where the token of a draft that is launched lies in the head's layer, and the rows that it sees; `None` for
    /// batches. The first token's row is made of no output before it: rows begin behind it.
    pub(super) fn draft_rows(&self, layer: LayerId) -> Option<(TokenPlaces, KeyValueCache)> {
        self.drafts_of(layer).filter(|drafts| drafts.launching)?;
        let (cache, row) = (self.cache(layer), self.sizes.cache_row);
        let behind = |rows: Span<u8>| rows.part(row, rows.len() - row);
        let cache =
            KeyValueCache { keys: behind(cache.keys), values: behind(cache.values), ..cache };
        Some((TokenPlaces { positions: self.draft_row(), ..self.places()[0].1 }, cache))
    }

    /// Drafts at most `most` tokens behind `token`, which is drawn and not yet part of `sequence`.
    pub(super) fn run_draft(
        &mut self,
        sequence: SequenceId,
        token: u32,
        most: usize,
        drafts: &mut Vec<u32>,
    ) {
        let head = self.drafts.as_ref().and_then(|drafts| drafts.head.clone());
        let (Some(head), length) = (head, self.sequences.length(sequence)) else { return };
        let most = most.min(STEP_TOKENS);
        // Without room for its rows there are no drafts.
        let room = length > 0 && most > 0 && length + most <= self.options.context;
        if !room || self.steps.is_under_way() || self.failure.is_some() {
            return;
        }
        match self.draft_tokens(&head, (sequence, token, length), most) {
            Ok(found) => drafts.extend(found),
            // The next operation that can says that the device failed; a draft is no part of an answer.
            Err(EngineError::Cuda(error)) => self.failure = Some(error),
            Err(_) => {}
        }
    }

    fn draft_tokens(
        &mut self,
        head: &Head,
        (sequence, token, length): (SequenceId, u32, usize),
        most: usize,
    ) -> Result<Vec<u32>, EngineError> {
        self.hold_cache(std::iter::once((sequence.place(), length + most)))?;
        self.experts.residency.begin_draft();
        self.upload_table()?;
        let rows = self.sizes.input_rows();
        let Some(drafts) = &self.drafts else { return Ok(Vec::new()) };
        let mut words = vec![0; drafts.inputs.len()];
        words[Input::Token as usize] = token;
        words[Input::Position as usize] = length as u32;
        words[Input::Sequence as usize] = sequence.0;
        words[rows + 2] = length as u32 - 1;
        debug_assert!(rows <= Input::WindowPosition as usize, "no model with windows has a head");
        drafts.inputs.hand_over(0, words);
        self.stream.copy(drafts.inputs.all(), drafts.words.span(0, drafts.inputs.len()))?;
        for _ in 0..most {
            self.launch_draft(head)?;
        }
        self.stream.wait()?;
        let Some(drafts) = &self.drafts else { return Ok(Vec::new()) };
        let found = drafts.tokens.collect(0..most).take_while(|&token| token != u32::MAX);
        let found: Vec<u32> = found.collect();
        let used = drafts.used.collect(0..found.len() * drafts.sizes.top_k);
        let used = used.map(|expert| ExpertId(expert as u16));
        self.experts.residency.end_draft(used);
        Ok(found)
    }

    /// Launches the next draft.
    fn launch_draft(&mut self, head: &Head) -> Result<(), EngineError> {
        let Some(drafts) = &mut self.drafts else { return Ok(()) };
        match &drafts.drafting {
            Drafting::Known(graph) => return Ok(self.stream.launch_graph(graph)?),
            Drafting::First => {
                drafts.drafting = Drafting::Due;
                return self.as_draft(|this| this.launch_draft_ops(head));
            }
            Drafting::Due => {}
        }
        self.stream.begin_capture()?;
        let recorded = self.as_draft(|this| this.launch_draft_ops(head));
        // The capture has to end whatever happened in it.
        let graph = self.stream.end_capture();
        recorded?;
        let graph = graph?;
        self.stream.launch_graph(&graph)?;
        if let Some(drafts) = &mut self.drafts {
            drafts.drafting = Drafting::Known(graph);
        }
        Ok(())
    }

    /// Does `launch` with a draft in place of the batch.
    fn as_draft(
        &mut self,
        launch: impl FnOnce(&mut Self) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        self.exchange(true);
        let batch = (self.tokens, self.single, self.mode);
        (self.tokens, self.single, self.mode) = (1, true, Mode::Eager);
        let done = launch(self);
        (self.tokens, self.single, self.mode) = batch;
        self.exchange(false);
        done
    }

    /// Puts a draft's residual stream and inputs in the place of the batch's, and back.
    fn exchange(&mut self, launching: bool) {
        let Some(drafts) = &mut self.drafts else { return };
        let residual = &mut self.buffers.registers[Register::Residual as usize];
        std::mem::swap(residual, &mut drafts.residual);
        std::mem::swap(&mut self.buffers.inputs, &mut drafts.words);
        drafts.launching = launching;
    }

    fn launch_draft_ops(&mut self, head: &Head) -> Result<(), EngineError> {
        for op in &head.enter {
            self.run_op(head.layer, op, &Uncancelled)?;
        }
        let prepared = Arc::clone(&self.prepared);
        for stage in Stage::ALL {
            for launch in prepared.of(Kind::Step as usize, head.layer, stage) {
                self.launch(head.layer, launch, &Uncancelled)?;
            }
        }
        self.run(|this| this.choose_draft(head));
        self.failure.take().map_or(Ok(()), |error| Err(error.into()))
    }

    /// The head's own output, its most likely token, and what the next draft begins with.
    fn choose_draft(&self, head: &Head) -> Result<(), CudaError> {
        let Some(drafts) = &self.drafts else { return Ok(()) };
        let (residual, output) = (self.register(Register::Residual), drafts.output.all());
        let (norm, epsilon) = (self.vector(head.norm), self.config.rms_epsilon);
        launch::rms_norm(&self.stream, 1, residual, None, norm, epsilon, output)?;
        let (rows, logits) = (drafts.sizes.rows, drafts.logits.all());
        let matrix = self.matrix(head.output).first_rows(rows);
        self.products(output, &[(matrix, logits)], false)?;
        let scratch = drafts.arg_max.span(0, launch::ARG_MAX_BLOCKS);
        let token = self.buffers.inputs.span(4 * (self.sizes.input_rows() + 1), 1);
        launch::arg_max(&self.stream, logits, rows, scratch, token)?;
        let taken = TakeDraft {
            token,
            uses: drafts.uses.span(0, drafts.sizes.top_k),
            input: self.input(Input::Token, 0, 1),
            position: self.input(Input::Position, 0, 1),
            row: self.draft_row(),
            drafted: self.drafted(),
            tokens: drafts.tokens.all(),
            used: drafts.used.all(),
        };
        launch::take_draft(&self.stream, &taken)
    }

    /// Logits of the last draft; none where the device failed.
    pub(super) fn read_draft_logits(&mut self) -> &[f32] {
        let Some(drafts) = &mut self.drafts else { return &[] };
        if !matches!(drafts.drafting, Drafting::First) {
            drafts.host_logits.resize(drafts.sizes.rows, 0.0);
            if drafts.logits.read(0, &mut drafts.host_logits).is_err() {
                drafts.host_logits.clear();
            }
        }
        &drafts.host_logits
    }
}

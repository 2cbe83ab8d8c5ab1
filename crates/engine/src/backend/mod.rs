//! What a device must be able to do: the operations from which every model's forward pass is written.
//!
//! A backend owns the activations of the running batch (named [`Register`]s, `[tokens, width]` row-major
//! f32), the state of every sequence, and its way to the experts. Operations are coarse, up to a whole
//! mixture layer, so that a device can fuse and overlap inside them. They cannot fail on shapes: weights
//! and configuration were checked against each other before. What can fail is a read or an allocation.
//!
//! A token's result must not depend on what else is in the batch (bit for bit on the same device).

pub mod cpu;
pub mod cuda;
pub mod gpu;

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};

use store::LayerId;
use store::cache::StoreCounters;

use crate::EngineError;
use crate::model::compressed_attention::CompressedAttention;
use crate::model::config::{Mixer, ModelConfig};
use crate::model::dense::Dense;
use crate::model::hyper_connections::Site;
use crate::model::latent::LatentAttention;
use crate::model::mixture::Mixture;
use crate::model::part::Part;
use crate::sampling::{Ranked, Wanted};
use crate::weights::{MatrixId, TableId, VectorId};

pub use crate::sequences::{PAGE_TOKENS, Room, Run, SequenceId, Snapshot, Suspended};

/// What the tokens of a batch are. Devices may compute the two in different ways, and with different bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Given text: prompts, and what is scored.
    Prompt,
    /// The next token of each of several answers: every run is one token.
    Answers,
}

/// An activation buffer of the running batch, one row per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// The residual streams, `hidden` wide each; most models have one.
    Residual,
    /// The normed stream, `hidden`.
    Normed,
    /// Queries and gates as projected, per head query then gate: `2 * query_heads * head_dim`.
    QueryGate,
    /// Queries, `query_heads * head_dim`; in latent attention per head plain and rotated values.
    Query,
    /// Output gates, as wide as the queries.
    Gate,
    /// Keys, `key_value_heads * head_dim`; in latent attention the row that is cached.
    Key,
    /// Values, as wide as the keys.
    Value,
    /// Output of a mixer before its projection: attention's or the delta rule's width.
    Context,
    /// Delta rule: queries, keys and values before the convolution.
    Mixed,
    /// Delta rule: queries, keys and values after it.
    Convolved,
    /// Delta rule: the output gate.
    Z,
    /// Delta rule: write strengths before the sigmoid, one per value head.
    Beta,
    /// Delta rule: decays before the softplus, one per value head.
    Decay,
    /// Compressed attention: queries between their two matrices.
    QueryLow,
    /// Latent and compressed attention: the row from which queries are made.
    QueryLatent,
    /// Compressed attention: a token's values for compressed rows.
    CompressedValues,
    /// Their gates.
    CompressedGates,
    /// Compressed attention: a token's values for keys of the indexer.
    IndexValues,
    /// Their gates.
    IndexGates,
    /// Compressed attention: queries of the indexer.
    IndexQuery,
    /// What each of its heads weighs.
    IndexWeights,
    /// Compressed attention: the output between its two matrices.
    OutputLow,
}

impl Register {
    /// How many registers there are.
    pub const COUNT: usize = Self::OutputLow as usize + 1;

    /// Values per token of every register.
    fn widths(config: &ModelConfig) -> [usize; Self::COUNT] {
        let attention = &config.attention;
        let keys = attention.key_value_heads * attention.head_dim;
        let (queries, latent_values, query_latent) = match &config.latent {
            None => (attention.query_heads * attention.head_dim, None, 0),
            Some(latent) => (
                attention.query_heads * (latent.plain_dim + attention.rope.dims),
                Some(attention.query_heads * latent.value_dim),
                latent.query_rank.unwrap_or(0),
            ),
        };
        let (channels, values, heads) = match &config.delta {
            Some(delta) => (delta.channels(), delta.value_width(), delta.value_heads),
            None => (0, 0, 0),
        };
        let gate = if attention.output_gate { queries } else { 0 };
        let streams = config.hyper.map_or(1, |hyper| hyper.streams);
        let mut widths = [0; Self::COUNT];
        for (register, width) in [
            (Self::Residual, streams * config.hidden),
            (Self::Normed, config.hidden),
            (Self::QueryGate, 2 * gate),
            (Self::Query, queries),
            (Self::Gate, gate),
            (Self::Key, keys),
            (Self::Value, if latent_values.is_some() { 0 } else { keys }),
            (Self::Context, latent_values.unwrap_or(queries).max(values)),
            (Self::Mixed, channels),
            (Self::Convolved, channels),
            (Self::Z, values),
            (Self::Beta, heads),
            (Self::Decay, heads),
            (Self::QueryLatent, query_latent),
        ] {
            widths[register as usize] = width;
        }
        if let Some(compressed) = &config.compressed {
            let (dim, index) = (attention.head_dim, &compressed.index);
            let kinds = config.layers.iter().filter_map(|layer| match layer.mixer {
                Mixer::Compressed(compression) => compression,
                _ => None,
            });
            let (mut rows, mut keys) = (0, 0);
            for kind in kinds {
                rows = rows.max(kind.width(dim));
                keys = keys.max(if kind.overlap { kind.width(index.dim) } else { 0 });
            }
            let heads = if keys > 0 { index.heads } else { 0 };
            for (register, width) in [
                (Self::QueryLow, compressed.query_rank),
                (Self::QueryLatent, compressed.query_rank),
                (Self::CompressedValues, rows),
                (Self::CompressedGates, rows),
                (Self::IndexValues, keys),
                (Self::IndexGates, keys),
                (Self::IndexQuery, heads * index.dim),
                (Self::IndexWeights, heads),
                (Self::OutputLow, compressed.output_groups * compressed.output_rank),
            ] {
                widths[register as usize] = width;
            }
        }
        widths
    }
}

/// Asked between layers whether to stop.
pub trait Cancel {
    /// True when the work in progress is no longer wanted.
    fn is_cancelled(&self) -> bool;
}

impl Cancel for AtomicBool {
    fn is_cancelled(&self) -> bool {
        self.load(Ordering::Relaxed)
    }
}

/// Never cancelled.
#[derive(Clone, Copy, Debug)]
pub struct Uncancelled;

impl Cancel for Uncancelled {
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Refuses a batch that the plan does not allow: too many tokens, or one outside the vocabulary.
fn check_batch(runs: &[Run<'_>], limit: usize, vocabulary: usize) -> Result<(), EngineError> {
    let total: usize = runs.iter().map(|run| run.tokens.len()).sum();
    if total == 0 || total > limit {
        return Err(EngineError::Request(format!("a batch of {total} tokens; 1 to {limit} fit")));
    }
    let outside = |token: &&u32| **token as usize >= vocabulary;
    if let Some(token) = runs.iter().flat_map(|run| run.tokens).find(outside) {
        let found = format!("token id {token} is outside the vocabulary of {vocabulary}");
        return Err(EngineError::Request(found));
    }
    Ok(())
}

/// Ends an operation that a device does not have: it has refused the models that ask for it when they were loaded.
fn lacks(part: Part) -> ! {
    unreachable!("a device without {} runs a model that has it", part.name())
}

/// A device that runs models.
pub trait Backend {
    /// Makes an empty sequence.
    ///
    /// # Errors
    /// All sequences that the plan allows exist already.
    fn create_sequence(&mut self) -> Result<SequenceId, EngineError>;
    /// Forgets a sequence and frees its state.
    fn drop_sequence(&mut self, sequence: SequenceId);
    /// Tokens that the sequence holds.
    fn sequence_length(&self, sequence: SequenceId) -> usize;

    /// The point where the sequence is. `base` is an earlier point of the same tokens, if there is one: what it
    /// holds need not be held twice.
    ///
    /// # Errors
    /// There is no room ([`Backend::room`]), or the device failed.
    fn snapshot(
        &mut self,
        sequence: SequenceId,
        base: Option<&Snapshot>,
    ) -> Result<Snapshot, EngineError>;
    /// Sets `sequence` to a point of any sequence of this backend; what it held is forgotten.
    ///
    /// # Errors
    /// The device failed.
    fn restore(&mut self, sequence: SequenceId, snapshot: &Snapshot) -> Result<(), EngineError>;
    /// What can still be held.
    fn room(&self) -> Room;
    /// Pages that `tokens` more of a sequence may take from the room while they are computed.
    fn batch_pages(&self, tokens: usize) -> usize {
        tokens / PAGE_TOKENS + 2
    }
    /// Pages that a snapshot of a sequence takes once it has `length` tokens, beside those it shares.
    fn snapshot_pages(&self, sequence: SequenceId, length: usize) -> usize {
        let _ = (sequence, length);
        0
    }
    /// Reads a snapshot of `length` tokens, the pages of [`Snapshot::write_page`] before what
    /// [`Snapshot::write_rest`] wrote. There must be room for its pages and state.
    ///
    /// # Errors
    /// What `input` reports, no room, or a device that keeps no snapshots.
    fn read_snapshot(&mut self, length: usize, input: &mut dyn Read) -> std::io::Result<Snapshot> {
        let _ = (length, input);
        Err(std::io::Error::other("this device keeps no snapshots"))
    }

    /// Positions of a prompt where it may be cut without changing a bit of what follows: multiples of this. 1
    /// where a token's result depends on the tokens before it alone; `usize::MAX` where every cut shows.
    fn cut_tokens(&self) -> usize {
        1
    }
    /// True where a token that was computed as part of an answer leaves the same bits as in a prompt: only then may
    /// another prompt go on from the end of an answer.
    fn answers_replay(&self) -> bool {
        true
    }

    /// Puts the batch in progress aside, between two layers, so that another can run; `None` where the device
    /// has to finish it first.
    fn suspend(&mut self) -> Option<Suspended> {
        None
    }
    /// Goes on with a batch that was put aside; no other is in progress.
    ///
    /// # Errors
    /// The device failed.
    fn resume(&mut self, suspended: Suspended) -> Result<(), EngineError> {
        let _ = suspended;
        Err(EngineError::Request("this device cannot put a batch aside".to_owned()))
    }

    /// Starts a batch: checks it against the plan and makes room in the sequences' caches.
    ///
    /// # Errors
    /// Too many tokens, a token outside the vocabulary, a full context.
    fn begin(&mut self, runs: &[Run<'_>], purpose: Purpose) -> Result<(), EngineError>;
    /// Says of the batch just begun that the tables decide, by its token ids, the experts of these layers, ascending:
    /// their reads may begin.
    fn expect_given(&mut self, layers: &[(LayerId, TableId)]) {
        let _ = layers;
    }
    /// Asks for a snapshot of a sequence at the end of one run of the batch just begun, for which
    /// [`Backend::room`] must have a state. Several runs of a batch may belong to one sequence: they continue each
    /// other. Only where [`Backend::cut_tokens`] is 1.
    ///
    /// # Errors
    /// There is no room, or the device cannot.
    fn mark(&mut self, run: usize) -> Result<(), EngineError> {
        let _ = run;
        Err(EngineError::Request("this device cannot mark a place inside a batch".to_owned()))
    }
    /// The batch in progress, or one put aside, stops before `layer`: what was read ahead for that is not needed.
    fn give_up(&mut self, layer: LayerId) {
        let _ = layer;
    }
    /// Says whether the files behind mapped weights are what they were; asked before a result is handed on.
    ///
    /// # Errors
    /// The file that was cut or written to: what was computed from it is wrong.
    fn check_files(&self) -> Result<(), EngineError> {
        Ok(())
    }
    /// Ends the batch: its tokens are now part of their sequences.
    fn commit(&mut self);
    /// The snapshots that were asked for in the batch that has ended, in the order asked.
    fn take_marks(&mut self) -> Vec<Snapshot> {
        Vec::new()
    }

    /// `Residual` = rows of `table` for the batch's tokens.
    fn embed(&mut self, table: MatrixId);
    /// `to` = `from / rms(from) * weight`.
    fn rms_norm(&mut self, from: Register, weight: VectorId, to: Register);
    /// Several products of the same input: `to = matrix from`.
    fn linear(&mut self, from: Register, products: &[(MatrixId, Register)]);
    /// `to += matrix from`.
    fn linear_add(&mut self, from: Register, matrix: MatrixId, to: Register);
    /// `Query`, `Gate` = the halves of each head in `QueryGate`.
    fn split_query_gate(&mut self);
    /// RMS norm over each head of `heads` (`Query` or `Key`), then rotation by position.
    fn norm_and_rotate(&mut self, heads: Register, weight: VectorId);
    /// Rotation of `heads` (`Query` or `Key`) by position. Only for models with [`Part::PlainHeads`].
    fn rotate(&mut self, heads: Register) {
        let _ = heads;
        lacks(Part::PlainHeads)
    }
    /// `register += bias` for every token. Only for models with [`Part::ProjectionBiases`].
    fn add_bias(&mut self, register: Register, bias: VectorId) {
        let _ = (register, bias);
        lacks(Part::ProjectionBiases)
    }
    /// `Normed` = the normed sum of the streams that a block reads; what it gives back to each is remembered until
    /// [`Backend::close_streams`]. This and the following are only for models with [`Part::HyperConnections`].
    fn open_streams(&mut self, site: &Site, norm: VectorId) {
        let _ = (site, norm);
        lacks(Part::HyperConnections)
    }
    /// `Residual` = the streams, mixed, with `from` added to each as [`Backend::open_streams`] weighed it.
    fn close_streams(&mut self, from: Register) {
        let _ = from;
        lacks(Part::HyperConnections)
    }
    /// The streams of each token become one, which [`Backend::logits`] reads; the batch's last operation before that.
    ///
    /// # Errors
    /// What the batch has met since its last operation that can report it.
    fn merge_streams(&mut self, site: &Site) -> Result<(), EngineError> {
        let _ = site;
        lacks(Part::HyperConnections)
    }
    /// From what the layer's matrices gave to `Context`: norms, rotations, compressed rows, their choice, attention
    /// and the rotation back. Only for models with [`Part::CompressedAttention`].
    fn attend_compressed(&mut self, layer: LayerId, weights: &CompressedAttention) {
        let _ = (layer, weights);
        lacks(Part::CompressedAttention)
    }
    /// `to` = products of the parts of `from` with as many parts of the rows of `matrix`. Only for models with
    /// [`Part::CompressedAttention`].
    fn grouped_linear(&mut self, from: Register, matrix: MatrixId, to: Register) {
        let _ = (from, matrix, to);
        lacks(Part::CompressedAttention)
    }
    /// Appends `Key`, `Value` to the layer's cache; `Context` = causal attention of `Query` over the layer's window,
    /// with a score for each head that only takes weight from the others where the model has [`Part::Sinks`].
    fn attend(&mut self, layer: LayerId, sinks: Option<VectorId>);
    /// RMS norm of each token's row of `register` in place. Only for models with [`Part::WholeNorms`] or
    /// [`Part::LatentAttention`].
    fn norm_row(&mut self, register: Register, weight: VectorId) {
        let _ = (register, weight);
        lacks(Part::WholeNorms)
    }
    /// Norms and rotates the row in `Key` and appends it to the layer's cache; `Context` = causal attention of `Query`
    /// over the rows, per head the values of what it gives. Only for models with [`Part::LatentAttention`].
    fn attend_latent(&mut self, layer: LayerId, weights: &LatentAttention) {
        let _ = (layer, weights);
        lacks(Part::LatentAttention)
    }
    /// `x *= sigmoid(gate)`.
    fn sigmoid_gate(&mut self, x: Register, gate: Register);
    /// `Convolved` = SiLU of the causal convolution of `Mixed`; the layer's tail is carried in the sequence.
    fn convolve(&mut self, layer: LayerId, weight: VectorId);
    /// `Context` = gated delta rule of `Convolved`, `Beta`, `Decay`; updates the layer's state.
    fn delta_rule(&mut self, layer: LayerId, decay_rate: VectorId, decay_bias: VectorId);
    /// `Context` = RMS norm of each head of `Context`, times SiLU of `Z`.
    fn gated_norm(&mut self, weight: VectorId);
    /// `Residual += mixture(Normed)`: routing, shared expert and routed experts. `cancel` is asked while experts are
    /// awaited: reads that have not begun are then given up.
    ///
    /// # Errors
    /// An expert could not be read, the router produced no finite number, or [`EngineError::Cancelled`].
    fn mixture(
        &mut self,
        layer: LayerId,
        mixture: &Mixture,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError>;
    /// [`Backend::rms_norm`] of `Residual` into `Normed`, then [`Backend::linear`] of that. This and the following
    /// are for devices that do more in one go; `Normed` and what else lies between is undefined after them.
    fn norm_linear(&mut self, norm: VectorId, products: &[(MatrixId, Register)]) {
        self.rms_norm(Register::Residual, norm, Register::Normed);
        self.linear(Register::Normed, products);
    }
    /// [`Backend::norm_linear`] with `mixed` into `Mixed` first, then [`Backend::convolve`].
    fn delta_inputs(
        &mut self,
        layer: LayerId,
        norm: VectorId,
        mixed: MatrixId,
        others: &[(MatrixId, Register)],
        convolution: VectorId,
    ) {
        let mut products = vec![(mixed, Register::Mixed)];
        products.extend_from_slice(others);
        self.norm_linear(norm, &products);
        self.convolve(layer, convolution);
    }
    /// [`Backend::gated_norm`], then `Residual += matrix Context`.
    fn delta_output(&mut self, norm: VectorId, matrix: MatrixId) {
        self.gated_norm(norm);
        self.linear_add(Register::Context, matrix, Register::Residual);
    }
    /// From `QueryGate` (else `Query`), `Key` and `Value` as projected to `Context`.
    fn attend_heads(
        &mut self,
        layer: LayerId,
        gated: bool,
        query_norm: VectorId,
        key_norm: VectorId,
    ) {
        if gated {
            self.split_query_gate();
        }
        self.norm_and_rotate(Register::Query, query_norm);
        self.norm_and_rotate(Register::Key, key_norm);
        self.attend(layer, None);
    }
    /// From `Query`, `Key` and `Value` as projected to `Context`: [`Backend::add_bias`] of each, [`Backend::rotate`] of
    /// queries and keys, [`Backend::attend`]. False where the device does not do that in one go; nothing is done then.
    fn attend_biased(
        &mut self,
        layer: LayerId,
        biases: [VectorId; 3],
        sinks: Option<VectorId>,
    ) -> bool {
        let _ = (layer, biases, sinks);
        false
    }
    /// `Residual += matrix Context`, `Context` times the sigmoid of its gate where it is gated.
    fn attention_output(&mut self, gated: bool, matrix: MatrixId) {
        if gated {
            self.sigmoid_gate(Register::Context, Register::Gate);
        }
        self.linear_add(Register::Context, matrix, Register::Residual);
    }
    /// [`Backend::rms_norm`] of `Residual` into `Normed`, then [`Backend::mixture`].
    ///
    /// # Errors
    /// As for [`Backend::mixture`].
    fn norm_mixture(
        &mut self,
        layer: LayerId,
        norm: VectorId,
        mixture: &Mixture,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        self.rms_norm(Register::Residual, norm, Register::Normed);
        self.mixture(layer, mixture, cancel)
    }

    /// `Residual +=` the network of `Residual`, normed; `Normed` is undefined after it. Only for models with
    /// [`Part::DenseLayers`].
    fn norm_dense(&mut self, norm: VectorId, dense: &Dense) {
        let _ = (norm, dense);
        lacks(Part::DenseLayers)
    }

    /// Logits `[tokens.len(), vocabulary]` of the given tokens of the batch (indices into it).
    ///
    /// # Errors
    /// More tokens than the plan's logit rows.
    fn logits(
        &mut self,
        tokens: &[usize],
        norm: VectorId,
        head: MatrixId,
    ) -> Result<&mut [f32], EngineError>;

    /// The most likely next token after one token of the batch, chosen on the device so that only its id
    /// crosses the bus; ties go to the lowest id. `None` where the device gives logits alone.
    fn most_likely(
        &mut self,
        token: usize,
        norm: VectorId,
        head: MatrixId,
    ) -> Option<Result<u32, EngineError>> {
        let _ = (token, norm, head);
        None
    }

    /// What a sampler wants of the logits after one token of the batch, into `out`, ranked on the device so that the
    /// row does not cross the bus. `None` where the device gives logits alone.
    fn rank(
        &mut self,
        token: usize,
        norm: VectorId,
        head: MatrixId,
        wanted: Wanted,
        out: &mut Ranked,
    ) -> Option<Result<(), EngineError>> {
        let _ = (token, norm, head, wanted, out);
        None
    }

    /// Logits of the row that was ranked last, from token `start` on.
    ///
    /// # Errors
    /// The device failed, or ranks nothing.
    fn ranked_logits(&mut self, start: usize, out: &mut [f32]) -> Result<(), EngineError> {
        let _ = (start, out);
        Err(EngineError::Request("this device ranks no tokens".to_owned()))
    }

    /// Everything counted about experts since the model was loaded.
    fn counters(&self) -> StoreCounters;
}

/// Refuses more logits than a plan has rows for.
fn check_logit_rows(asked: usize, limit: usize) -> Result<(), EngineError> {
    if asked > limit {
        return Err(EngineError::Request(format!("logits of {asked} tokens; {limit} fit")));
    }
    Ok(())
}

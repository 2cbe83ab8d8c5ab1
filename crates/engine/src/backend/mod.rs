//! What a device must be able to do: run the operations ([`crate::model::program::Op`]) of a model's layers.
//!
//! A backend owns the activations of the running batch (named [`Register`]s, `[tokens, width]` row-major
//! f32), the state of every sequence, and its way to the experts. Operations are coarse, up to a whole
//! mixture layer, so that a device can fuse and overlap inside them. They cannot fail on shapes: weights
//! and configuration were checked against each other before. What can fail is a read or an allocation.
//!
//! A device turns a model's program into its own launches once, in [`Backend::prepare`]: by one table of patterns over
//! operations that follow each other (`gpu/fuse.rs`, `cuda/fuse.rs`; the processor runs them one by one).
//!
//! A token's result must not depend on what else is in the batch (bit for bit on the same device).

pub mod cpu;
pub mod cuda;
pub mod gpu;
mod ngram_rows;
mod parts;
mod prepared;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use store::LayerId;
use store::cache::StoreCounters;

use crate::EngineError;
use crate::model::config::{ModelConfig, Sees};
use crate::model::program::{Program, Stage};
pub use crate::model::register::Register;
use crate::weights::{MatrixId, TableId, VectorId};

pub use crate::sequences::{
    PAGE_TOKENS, Room, Run, SequenceId, Sequences, Snapshot, SnapshotPart, Suspended,
};
pub use parts::{Crossing, Drafting, Incoming, LayerBorder, Ranking, SequenceDevice};
pub use prepared::Listing;

/// What the tokens of a batch are. Devices may compute the two in different ways, and with different bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Given text: prompts, and what is scored.
    Prompt,
    /// The next token of each of several answers, each with drafts of the tokens behind it where the device computes
    /// rounds ([`BatchRules::round_tokens`]): every run is a sequence's only one.
    Answers,
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

/// What a device says that has no models without a norm before the head.
const NORM_BEFORE_HEAD: &str = "models without a norm before the head are refused";

/// Whether no layers are asked for, but what is behind the last: the norm and the head.
fn is_head_alone(layers: &Range<usize>, config: &ModelConfig) -> bool {
    let count = config.layers.len();
    *layers == (count..count)
}

/// Refuses a range of layers that the model does not have.
fn check_layers(layers: &Range<usize>, config: &ModelConfig) -> Result<(), EngineError> {
    let count = config.layers.len();
    if layers.is_empty() || layers.end > count {
        let Range { start, end } = layers;
        let found = format!("layers {start} to {end} of a model of {count} layers");
        return Err(EngineError::Request(found));
    }
    if config.layers[layers.start].sees == Sees::AsBefore {
        let first = layers.start;
        let found = format!(
            "layer {first} sees what an earlier layer chose: the layers of a device do not begin there"
        );
        return Err(EngineError::Request(found));
    }
    Ok(())
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

/// What batches a device takes, and what of them shows in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRules {
    /// Positions of a prompt where it may be cut without changing a bit of what follows: multiples of this. 1 where a
    /// token's result depends on the tokens before it alone; `usize::MAX` where every cut shows.
    pub cut_tokens: usize,
    /// True where a token that was computed as part of an answer leaves the same bits as in a prompt: only then may
    /// another prompt go on from the end of an answer.
    pub answers_replay: bool,
    /// Most tokens of a run of answers: the first, and drafts. 1 where the device computes no rounds.
    pub round_tokens: usize,
    /// Most tokens of prompts of any sequences that are one batch, run to its end without another between its layers,
    /// because each alone would cost almost as much. 0 where a prompt is a batch of its own.
    pub joint_tokens: usize,
    /// True where the thread that owns the device spins while a step runs: other threads of the same model may then
    /// look for each other's messages instead of sleeping.
    pub spins: bool,
}

impl Default for BatchRules {
    fn default() -> Self {
        Self { cut_tokens: 1, answers_replay: true, round_tokens: 1, joint_tokens: 0, spins: false }
    }
}

impl BatchRules {
    /// What holds of two devices.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            cut_tokens: self.cut_tokens.max(other.cut_tokens),
            answers_replay: self.answers_replay && other.answers_replay,
            round_tokens: self.round_tokens.min(other.round_tokens),
            joint_tokens: self.joint_tokens.min(other.joint_tokens),
            spins: self.spins && other.spins,
        }
    }
}

/// A device that runs models, or a range of a model's layers ([`crate::stages`]). Layers have the model's numbers.
pub trait Backend: SequenceDevice + LayerBorder {
    /// Asked once on the thread that calls every other operation from here on, where that is not the thread that made
    /// the device.
    ///
    /// # Errors
    /// The device cannot be used from this thread.
    fn enter_thread(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// What batches may be: the same whatever the device has computed.
    fn rules(&self) -> BatchRules {
        BatchRules::default()
    }
    /// Turns a model's operations into launches. Asked once, before the first batch, of a device that serves all of
    /// them ([`Program::check`]).
    fn prepare(&mut self, program: Arc<Program>);

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
    /// `Residual` = rows of `table` for the batch's tokens.
    fn embed(&mut self, table: MatrixId);
    /// Runs a stage of a layer. `cancel` is asked while experts are awaited: reads that have not begun are then given
    /// up.
    ///
    /// # Errors
    /// An expert could not be read, the router produced no finite number, or [`EngineError::Cancelled`].
    fn run_stage(
        &mut self,
        layer: LayerId,
        stage: Stage,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError>;
    /// The batch in progress, or one put aside, stops before `layer`: what was read ahead for that is not needed.
    fn give_up(&mut self, layer: LayerId) {
        let _ = layer;
    }
    /// Ends the batch: its tokens are now part of their sequences.
    fn commit(&mut self);

    /// Logits `[tokens.len(), vocabulary]` of the given tokens of the batch (indices into it).
    ///
    /// # Errors
    /// More tokens than the plan's logit rows.
    fn logits(
        &mut self,
        tokens: &[usize],
        norm: Option<VectorId>,
        head: MatrixId,
    ) -> Result<&mut [f32], EngineError>;
    /// Choosing of next tokens, where the device can.
    fn ranking(&mut self) -> Option<&mut dyn Ranking> {
        None
    }
    /// Guessing of tokens behind the next, where the device can.
    fn drafting(&mut self) -> Option<&mut dyn Drafting> {
        None
    }

    /// Says whether the files behind mapped weights are what they were; asked before a result is handed on.
    ///
    /// # Errors
    /// The file that was cut or written to: what was computed from it is wrong.
    fn check_files(&self) -> Result<(), EngineError> {
        Ok(())
    }
    /// Everything counted about experts since the model was loaded.
    fn counters(&self) -> StoreCounters;
    /// Makes the device as good as new after a panic out of any of its operations: the batch in progress is forgotten,
    /// and every sequence but those of `live`, which no operation of that batch may have changed. What was suspended
    /// stays.
    ///
    /// # Errors
    /// The device cannot tell what the panic left behind: it must not be used any more.
    fn recover(&mut self, live: &[SequenceId]) -> Result<(), EngineError> {
        let _ = live;
        Err(EngineError::Request("this device cannot go on after a panic".to_owned()))
    }
}

/// Refuses more logits than a plan has rows for.
fn check_logit_rows(asked: usize, limit: usize) -> Result<(), EngineError> {
    if asked > limit {
        return Err(EngineError::Request(format!("logits of {asked} tokens; {limit} fit")));
    }
    Ok(())
}

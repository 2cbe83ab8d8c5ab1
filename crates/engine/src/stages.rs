//! The devices that a model's layers are spread over: a stage each, with a range of layers that follow each other.
//!
//! Layers have the model's numbers everywhere. A stage holds what its layers need and nothing else: weights, experts
//! (in a store of its own: the residency of a device counts on owning its store's slots), keys, values and states. The
//! embedding is the first stage's, the norm before the head and the head are the last one's. All that a layer leaves to
//! the next is the residual stream, which is copied from stage to stage through the process's memory.
//!
//! Every stage hears of the same sequences and batches, in the same order, so that a sequence has one number
//! everywhere and states cannot part. A batch is begun on all stages before any computes, and ended on all after the
//! last has: what one refuses changes no sequence. With one stage every call is that device's, with nothing around it.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use store::LayerId;
use store::cache::StoreCounters;

use crate::EngineError;
use crate::backend::{
    Backend, Cancel, Purpose, Room, Run, SequenceId, Snapshot, SnapshotPart, Suspended,
};
use crate::model::program::{self, Program};
use crate::weights::{MatrixId, TableId, VectorId};
use text::sampling::{Ranked, Wanted};

/// A device and the layers that it computes.
pub struct Stage {
    /// The layers, by their numbers in the model.
    pub layers: Range<usize>,
    /// The device.
    pub backend: Box<dyn Backend + Send>,
}

/// All devices of a model, in the order of their layers.
pub struct Stages {
    stages: Vec<Stage>,
    /// By stage: its layers whose experts token ids decide.
    given: Vec<Vec<(LayerId, TableId)>>,
    /// What goes from one stage to the next.
    residual: Vec<f32>,
    /// What the next operation reports.
    failure: Option<EngineError>,
}

/// A batch put aside, on every stage.
#[derive(Debug)]
pub struct PutAside(Vec<Suspended>);

impl Stages {
    /// One device for all `layers` of a model.
    pub fn one(layers: usize, backend: Box<dyn Backend + Send>) -> Self {
        let stages = vec![Stage { layers: 0..layers, backend }];
        Self { stages, given: vec![Vec::new()], residual: Vec::new(), failure: None }
    }

    /// Several devices for the `layers` of a model.
    ///
    /// # Errors
    /// Ranges that do not follow each other from the first layer to the last.
    pub fn new(layers: usize, stages: Vec<Stage>) -> Result<Self, EngineError> {
        let ranges: Vec<_> = stages.iter().map(|stage| stage.layers.clone()).collect();
        Self::check(layers, &ranges)?;
        let given = stages.iter().map(|_| Vec::new()).collect();
        Ok(Self { stages, given, residual: Vec::new(), failure: None })
    }

    /// Whether ranges are a way to spread the `layers` of a model.
    ///
    /// # Errors
    /// Ranges that do not follow each other from the first layer to the last.
    pub fn check(layers: usize, ranges: &[Range<usize>]) -> Result<(), EngineError> {
        let mut next = 0;
        for &Range { start, end } in ranges {
            if start != next || end <= start || end > layers {
                let found = format!("a stage of layers {start} to {end}, expected one from {next}");
                return Err(EngineError::Request(found));
            }
            next = end;
        }
        if next != layers {
            let found = format!("stages end at layer {next} of {layers}");
            return Err(EngineError::Request(found));
        }
        Ok(())
    }

    /// [`Backend::prepare`] of every stage. `given` are layers whose experts token ids decide.
    pub(crate) fn prepare(&mut self, program: &Arc<Program>, given: &[(LayerId, TableId)]) {
        for (stage, own) in self.stages.iter_mut().zip(&mut self.given) {
            let all = given.iter().copied();
            own.extend(all.filter(|(layer, _)| stage.layers.contains(&layer.index())));
            stage.backend.prepare(Arc::clone(program));
        }
    }

    fn first(&self) -> &(dyn Backend + Send) {
        self.stages[0].backend.as_ref()
    }

    fn last_mut(&mut self) -> &mut (dyn Backend + Send) {
        self.stages.last_mut().expect("a model has a layer").backend.as_mut()
    }

    fn backends(&self) -> impl Iterator<Item = &(dyn Backend + Send + 'static)> {
        self.stages.iter().map(|stage| stage.backend.as_ref())
    }

    fn backends_mut(&mut self) -> impl Iterator<Item = &mut (dyn Backend + Send + 'static)> {
        self.stages.iter_mut().map(|stage| stage.backend.as_mut())
    }

    /// The layers of every stage.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.stages.iter().map(|stage| stage.layers.clone())
    }

    /// Everything counted about experts since the model was loaded, by stage.
    pub fn counters_by_stage(&self) -> impl Iterator<Item = StoreCounters> {
        self.backends().map(|backend| backend.counters())
    }

    /// Everything counted about experts since the model was loaded.
    pub fn counters(&self) -> StoreCounters {
        let mut all = self.first().counters();
        self.backends().skip(1).for_each(|backend| all.add(&backend.counters()));
        all
    }
}

/// Sequences and snapshots.
impl Stages {
    /// Makes an empty sequence.
    ///
    /// # Errors
    /// All sequences that the plan allows exist already, or a device failed.
    pub fn create_sequence(&mut self) -> Result<SequenceId, EngineError> {
        let sequence = self.stages[0].backend.create_sequence()?;
        for index in 1..self.stages.len() {
            match self.stages[index].backend.create_sequence() {
                Ok(same) => assert_eq!(same, sequence, "stages know the same sequences"),
                Err(error) => {
                    let made = self.backends_mut().take(index);
                    made.for_each(|backend| backend.sequences_mut().remove(sequence));
                    return Err(error);
                }
            }
        }
        Ok(sequence)
    }

    /// Forgets a sequence and frees its state.
    pub fn drop_sequence(&mut self, sequence: SequenceId) {
        self.backends_mut().for_each(|backend| backend.sequences_mut().remove(sequence));
    }

    /// Tokens that the sequence holds.
    pub fn sequence_length(&self, sequence: SequenceId) -> usize {
        self.first().sequences().length(sequence)
    }

    /// The point where the sequence is. `base` is an earlier point of the same tokens, if there is one: what it holds
    /// need not be held twice.
    ///
    /// # Errors
    /// There is no room, or a device failed.
    pub fn snapshot(
        &mut self,
        sequence: SequenceId,
        base: Option<&Snapshot>,
    ) -> Result<Snapshot, EngineError> {
        let _ = base;
        let parts = self.backends_mut().map(|backend| backend.take_snapshot(sequence));
        Ok(Snapshot::of(parts.collect::<Result<_, _>>()?))
    }

    /// Sets `sequence` to a point of any sequence of these stages; what it held is forgotten.
    ///
    /// # Errors
    /// A device failed; the sequence is undefined.
    pub fn restore(
        &mut self,
        sequence: SequenceId,
        snapshot: &Snapshot,
    ) -> Result<(), EngineError> {
        let parts = snapshot.parts();
        assert_eq!(parts.len(), self.stages.len(), "a snapshot of as many stages");
        let mut both = self.stages.iter_mut().zip(parts);
        both.try_for_each(|(stage, part)| stage.backend.restore(sequence, part))
    }

    /// Reads a snapshot of `length` tokens, the pages of [`Snapshot::write_page`] before what
    /// [`Snapshot::write_rest`] wrote, by these stages or others. There must be room for its pages and state.
    ///
    /// # Errors
    /// What `input` reports, or no room.
    pub fn read_snapshot(&mut self, length: usize, input: &mut dyn Read) -> io::Result<Snapshot> {
        let parts = self.backends().map(|backend| backend.sequences().blank(length));
        Snapshot::read(parts.collect::<Result<_, _>>()?, input)
    }

    /// The snapshots that were asked for in the batch that has ended and their sequences, in the order asked.
    pub fn take_marks(&mut self) -> Vec<(SequenceId, Snapshot)> {
        let marks = self.backends_mut().map(|backend| backend.sequences_mut().take_marks());
        let mut marks: Vec<_> = marks.map(Vec::into_iter).collect();
        let mut all = Vec::new();
        while let Some(parts) = marks.iter_mut().map(Iterator::next).collect::<Option<Vec<_>>>() {
            // One that a stage has no room for is none.
            let sequence = parts[0].0;
            let parts: Option<Vec<SnapshotPart>> =
                parts.into_iter().map(|(_, part)| part).collect();
            all.extend(parts.map(|parts| (sequence, Snapshot::of(parts))));
        }
        all
    }

    /// What can still be held on every stage.
    pub fn room(&self) -> Room {
        let least = |a: Room, b: Room| {
            let (pages, states) = (a.pages.min(b.pages), a.states.min(b.states));
            Room { pages, states }
        };
        let rooms = self.backends().map(|backend| backend.sequences().room());
        rooms.reduce(least).expect("a model has a layer")
    }

    /// Pages that `tokens` more of a sequence may take from the room while they are computed.
    pub fn batch_pages(&self, tokens: usize) -> usize {
        let pages = self.backends().map(|backend| backend.sequences().batch_pages(tokens));
        pages.max().unwrap_or(0)
    }

    /// Pages that a snapshot of a sequence takes once it has `length` tokens, without those it shares.
    pub fn snapshot_pages(&self, sequence: SequenceId, length: usize) -> usize {
        let pages =
            self.backends().map(|backend| backend.sequences().snapshot_pages(sequence, length));
        pages.max().unwrap_or(0)
    }

    /// [`Backend::cut_tokens`].
    pub fn cut_tokens(&self) -> usize {
        self.backends().map(|backend| backend.cut_tokens()).max().unwrap_or(1)
    }

    /// [`Backend::answers_replay`].
    pub fn answers_replay(&self) -> bool {
        self.backends().all(|backend| backend.answers_replay())
    }

    /// [`Backend::joint_tokens`]: the least of any stage.
    pub fn joint_tokens(&self) -> usize {
        self.backends().map(|backend| backend.joint_tokens()).min().unwrap_or(0)
    }

    /// [`Backend::expect_rows`] of the last stage.
    pub fn expect_rows(&mut self, rows: &[usize]) {
        self.last_mut().expect_rows(rows);
    }

    /// [`Backend::step_tokens`]: the least of any stage.
    pub fn step_tokens(&self) -> usize {
        self.backends().map(|backend| backend.step_tokens()).min().unwrap_or(1)
    }

    /// [`Backend::round_tokens`].
    pub fn round_tokens(&self) -> usize {
        self.backends().map(|backend| backend.round_tokens()).min().unwrap_or(1)
    }

    /// [`Backend::keep_first`].
    ///
    /// # Errors
    /// There was no such run.
    pub fn keep_first(&mut self, sequence: SequenceId, tokens: usize) -> Result<(), EngineError> {
        self.backends_mut().try_for_each(|backend| backend.keep_first(sequence, tokens))
    }

    /// [`Backend::recover`] of every stage.
    ///
    /// # Errors
    /// A device cannot tell what the panic left behind: none must be used any more.
    pub fn recover(&mut self, live: &[SequenceId]) -> Result<(), EngineError> {
        self.backends_mut().try_for_each(|backend| backend.recover(live))
    }
}

/// Batches.
impl Stages {
    /// Starts a batch on every stage, and the reads that its tokens decide.
    ///
    /// # Errors
    /// A batch that the plan does not allow.
    pub(crate) fn begin(&mut self, runs: &[Run<'_>], purpose: Purpose) -> Result<(), EngineError> {
        self.failure = None;
        for (stage, given) in self.stages.iter_mut().zip(&self.given) {
            stage.backend.begin(runs, purpose)?;
            if !given.is_empty() {
                stage.backend.expect_given(given);
            }
        }
        Ok(())
    }

    /// Asks for a snapshot at the end of one run of the batch.
    ///
    /// # Errors
    /// There is no room.
    pub(crate) fn mark(&mut self, run: usize) -> Result<(), EngineError> {
        self.backends_mut().try_for_each(|backend| backend.sequences_mut().mark(run))
    }

    /// [`Backend::embed`] of the first stage.
    pub(crate) fn embed(&mut self, table: MatrixId) {
        self.stages[0].backend.embed(table);
    }

    /// [`Backend::run_stage`] of the stage that has the layer, which takes the residual stream over from the stage
    /// before if it is its first.
    ///
    /// # Errors
    /// As [`Backend::run_stage`], or a device failed.
    pub(crate) fn run_stage(
        &mut self,
        layer: LayerId,
        stage: program::Stage,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        let index = self.stages.partition_point(|stage| stage.layers.end <= layer.index());
        let first = self.stages[index].layers.start == layer.index();
        if index > 0 && first && stage == program::Stage::Mixer {
            self.stages[index - 1].backend.read_residual(&mut self.residual)?;
            self.stages[index].backend.write_residual(&self.residual)?;
        }
        self.stages[index].backend.run_stage(layer, stage, cancel)
    }

    /// [`Backend::check_files`] of every stage.
    ///
    /// # Errors
    /// The file that was cut or written to.
    pub(crate) fn check_files(&self) -> Result<(), EngineError> {
        self.backends().try_for_each(|backend| backend.check_files())
    }

    /// Ends the batch: its tokens are now part of their sequences.
    pub(crate) fn commit(&mut self) {
        self.backends_mut().for_each(|backend| backend.commit());
    }

    /// [`Backend::give_up`] of every stage.
    pub(crate) fn give_up(&mut self, layer: LayerId) {
        self.backends_mut().for_each(|backend| backend.give_up(layer));
    }

    /// Puts the batch in progress aside; `None` where the devices have to finish it first.
    pub(crate) fn suspend(&mut self) -> Option<PutAside> {
        let mut aside = Vec::with_capacity(self.stages.len());
        for stage in &mut self.stages {
            match stage.backend.suspend() {
                Some(suspended) => aside.push(suspended),
                None => break,
            }
        }
        if aside.len() == self.stages.len() {
            return Some(PutAside(aside));
        }
        // The batch goes on. What a device cannot take up again, its next operation reports.
        self.failure = self.resume(PutAside(aside)).err();
        None
    }

    /// Goes on with a batch that was put aside; no other is in progress.
    ///
    /// # Errors
    /// A device failed.
    pub(crate) fn resume(&mut self, aside: PutAside) -> Result<(), EngineError> {
        let mut both = self.backends_mut().zip(aside.0);
        both.try_for_each(|(backend, suspended)| backend.resume(suspended))
    }

    /// [`Backend::logits`] of the last stage.
    ///
    /// # Errors
    /// More tokens than the plan's logit rows.
    pub(crate) fn logits(
        &mut self,
        tokens: &[usize],
        norm: Option<VectorId>,
        head: MatrixId,
    ) -> Result<&mut [f32], EngineError> {
        self.last_mut().logits(tokens, norm, head)
    }

    /// [`Backend::most_likely`] of the last stage.
    pub(crate) fn most_likely(
        &mut self,
        token: usize,
        norm: Option<VectorId>,
        head: MatrixId,
    ) -> Option<Result<u32, EngineError>> {
        self.last_mut().most_likely(token, norm, head)
    }

    /// [`Backend::rank`] of the last stage.
    pub(crate) fn rank(
        &mut self,
        token: usize,
        norm: Option<VectorId>,
        head: MatrixId,
        wanted: Wanted,
        out: &mut Ranked,
    ) -> Option<Result<(), EngineError>> {
        self.last_mut().rank(token, norm, head, wanted, out)
    }

    /// [`Backend::ranked_logits`] of the last stage.
    ///
    /// # Errors
    /// The device failed, or ranks nothing.
    pub(crate) fn ranked_logits(
        &mut self,
        start: usize,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        self.last_mut().ranked_logits(start, out)
    }
}

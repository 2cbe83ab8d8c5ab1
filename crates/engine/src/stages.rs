//! The devices that a model's layers are spread over: a stage each, with a range of layers that follow each other.
//!
//! Layers have the model's numbers everywhere. A stage holds what its layers need and nothing else: weights, experts
//! (in a store of its own: the residency of a device counts on owning its store's slots), keys, values and states. The
//! embedding is the first stage's, the norm before the head and the head are the last one's. All that a layer leaves to
//! the next is the residual stream, which is copied from stage to stage through the process's memory.
//!
//! With one stage every call is that device's, on the caller's thread, with nothing around it. Several stages have a
//! thread each ([`worker`]) which owns the device. Every stage hears of the same sequences in the same order, so that a
//! sequence has one number everywhere and states cannot part. A batch goes from stage to stage, and while one computes
//! it another computes the next ([`Stages::submit`], [`Stages::collect`]): as many batches as there are stages keep all
//! of them busy.

mod ahead;
mod batch;
mod calls;
mod command;
mod layer;
mod pass;
mod pipeline;
mod port;
pub mod remote;
mod wait;
mod worker;

use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use store::cache::StoreCounters;

use crate::EngineError;
use crate::backend::{Backend, BatchRules, Room, SequenceId, Snapshot};
use crate::model::Model;
use crate::sequences::SnapshotShare;
use crate::weights::{MatrixId, VectorId};
use batch::Marked;
pub use batch::{StageWork, Ticket};
use calls::settle;
use command::{HeadCommand, HeadPlace, Reply};
pub(crate) use layer::run_layer;
use pass::InPass;
pub use pass::PutAside;
pub use pipeline::{Collected, Ended};
use pipeline::{Common, Member, Pipeline};
use remote::Reached;
use text::sampling::{Ranked, Wanted};
use worker::shared;

/// A device and the layers that it computes.
pub struct Stage {
    /// The layers, by their numbers in the model.
    pub layers: Range<usize>,
    /// The device.
    pub backend: Box<dyn Backend + Send>,
}

/// All devices of a model, in the order of their layers.
pub struct Stages {
    inner: Inner,
    /// A batch that runs layer by layer over several stages.
    pass: InPass,
    /// Of one stage: snapshots of marks of batches that were submitted.
    marks: Vec<(SequenceId, Snapshot)>,
    /// Whether the last stage ranks tokens, where it was asked: the most likely one, and as a sampler wants them.
    ranks: [Option<bool>; 3],
}

enum Inner {
    One(Stage),
    Several(Pipeline),
}

impl Inner {
    fn several(members: Vec<Member>, model: &Model) -> Result<Self, EngineError> {
        let (program, embedding) = (&model.program, model.embedding);
        let common = Common { program, given: &program.given_layers(), embedding };
        Pipeline::start(members, &common).map(Self::Several)
    }
}

/// Snapshots of a batch's marks from what each stage has of them, in the order asked.
fn joined_marks(marks: Vec<Marked>) -> Vec<(SequenceId, Snapshot)> {
    let mut marks: Vec<_> = marks.into_iter().map(Vec::into_iter).collect();
    let mut all = Vec::new();
    while let Some(parts) = marks.iter_mut().map(Iterator::next).collect::<Option<Vec<_>>>() {
        let Some(&(sequence, _)) = parts.first() else { break };
        // One that a stage has no room for is none.
        let parts: Option<Vec<SnapshotShare>> = parts.into_iter().map(|(_, part)| part).collect();
        all.extend(parts.map(|parts| (sequence, Snapshot::of(parts).made_of(sequence))));
    }
    all
}

impl Stages {
    /// Makes the devices ready for a model that is spread over them. Several get a thread each.
    ///
    /// # Errors
    /// Ranges that do not follow each other from the first layer to the last, or no threads.
    pub(crate) fn new(mut stages: Vec<Stage>, model: &Model) -> Result<Self, EngineError> {
        let program = &model.program;
        let ranges: Vec<_> = stages.iter().map(|stage| stage.layers.clone()).collect();
        Self::check(program.layers.len(), &ranges)?;
        let inner = if stages.len() == 1 {
            let mut stage = stages.remove(0);
            stage.backend.prepare(Arc::clone(program));
            Inner::One(stage)
        } else {
            Inner::several(stages.into_iter().map(Member::Here).collect(), model)?
        };
        let pass = InPass::new(model);
        Ok(Self { inner, pass, marks: Vec::new(), ranks: [None; 3] })
    }

    /// As [`Stages::new`]; those between the first and the last are processes that were reached. The last,
    /// `head`, has no layers and what is behind them all: the norm and the head; without one the last process has them.
    ///
    /// # Errors
    /// Ranges that do not follow each other from the first layer to the last, or no threads.
    pub(crate) fn over_hosts(
        first: Stage,
        others: Vec<Reached>,
        head: Option<Stage>,
        model: &Model,
    ) -> Result<Self, EngineError> {
        let ranges = std::iter::once(first.layers.clone());
        let ranges: Vec<_> = ranges.chain(others.iter().map(Reached::layers)).collect();
        let layers = model.program.layers.len();
        Self::check(layers, &ranges)?;
        if let Some(Range { start, end }) = head.as_ref().map(|head| head.layers.clone())
            && (start, end) != (layers, layers)
        {
            let found = format!("a head with the layers {start} to {end}");
            return Err(EngineError::Request(found));
        }
        let (last, between) = others.split_last().map_or((false, 0), |(last, between)| {
            (last.has_head(), between.iter().filter(|it| it.has_head()).count())
        });
        if last == head.is_some() || between > 0 {
            let found = "the head is in the first process or in the last, and in no other";
            return Err(EngineError::Request(found.to_owned()));
        }
        let members = std::iter::once(Member::Here(first));
        let members = members.chain(others.into_iter().map(Box::new).map(Member::There));
        let members = members.chain(head.map(Member::Here)).collect();
        let (inner, pass) = (Inner::several(members, model)?, InPass::new(model));
        Ok(Self { inner, pass, marks: Vec::new(), ranks: [None; 3] })
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

    /// How many they are.
    #[allow(clippy::len_without_is_empty, reason = "a model has a layer")]
    pub fn len(&self) -> usize {
        match &self.inner {
            Inner::One(_) => 1,
            Inner::Several(pipeline) => pipeline.len(),
        }
    }

    /// The layers of every stage.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let ranges: Vec<_> = match &self.inner {
            Inner::One(stage) => vec![stage.layers.clone()],
            Inner::Several(pipeline) => pipeline.ranges().collect(),
        };
        ranges.into_iter()
    }

    /// Everything counted about experts since the model was loaded, by stage. While batches are under way it may lack
    /// the last of them.
    pub fn counters_by_stage(&self) -> impl Iterator<Item = StoreCounters> + use<> {
        let counters = match &self.inner {
            Inner::One(stage) => vec![stage.backend.counters()],
            Inner::Several(pipeline) => pipeline.counters(),
        };
        counters.into_iter()
    }

    /// Everything counted about experts since the model was loaded.
    pub fn counters(&self) -> StoreCounters {
        match &self.inner {
            Inner::One(stage) => stage.backend.counters(),
            Inner::Several(pipeline) => {
                let mut all = StoreCounters::default();
                pipeline.counters().iter().for_each(|counters| all.add(counters));
                all
            }
        }
    }

    /// What each of several stages has done; nothing for one, which computes whatever is computed.
    pub fn work_by_stage(&self) -> Vec<StageWork> {
        match &self.inner {
            Inner::One(_) => Vec::new(),
            Inner::Several(pipeline) => pipeline.work().collect(),
        }
    }

    /// The first stage in another process that cannot be reached any more: nothing will be computed.
    pub fn lost(&self) -> Option<remote::StageLost> {
        match &self.inner {
            Inner::One(_) => None,
            Inner::Several(pipeline) => pipeline.lost(),
        }
    }

    /// Several stages.
    pub(crate) fn pipeline(&mut self) -> Option<&mut Pipeline> {
        match &mut self.inner {
            Inner::One(_) => None,
            Inner::Several(pipeline) => Some(pipeline),
        }
    }
}

/// Sequences and snapshots.
impl Stages {
    /// Makes an empty sequence, that will go on from `point` if there is one.
    ///
    /// # Errors
    /// All sequences that the plan allows exist already, or a device failed.
    pub fn create_sequence(&mut self, point: Option<&Snapshot>) -> Result<SequenceId, EngineError> {
        let home = point.and_then(Snapshot::home);
        match &mut self.inner {
            Inner::One(stage) => stage.backend.create_sequence(home),
            Inner::Several(pipeline) => pipeline.create_sequence(home),
        }
    }

    /// Forgets a sequence and frees its state.
    pub fn drop_sequence(&mut self, sequence: SequenceId) {
        match &mut self.inner {
            Inner::One(stage) => stage.backend.sequences_mut().remove(sequence),
            Inner::Several(pipeline) => pipeline.remove(sequence),
        }
    }

    /// Tokens that the sequence holds; those of batches under way are not counted.
    pub fn sequence_length(&self, sequence: SequenceId) -> usize {
        match &self.inner {
            Inner::One(stage) => stage.backend.sequences().length(sequence),
            Inner::Several(pipeline) => pipeline.length(sequence),
        }
    }

    /// Tokens that the sequence will hold once all batches under way have ended.
    pub fn length_ahead(&self, sequence: SequenceId) -> usize {
        match &self.inner {
            Inner::One(stage) => stage.backend.sequences().length(sequence),
            Inner::Several(pipeline) => pipeline.length_ahead(sequence),
        }
    }

    /// The point where the sequence is. `base` is an earlier point of the same tokens, if there is one: what it holds
    /// need not be held twice.
    ///
    /// # Errors
    /// There is no room, a batch of it is under way, or a device failed.
    pub fn snapshot(
        &mut self,
        sequence: SequenceId,
        base: Option<&Snapshot>,
    ) -> Result<Snapshot, EngineError> {
        let _ = base;
        match &mut self.inner {
            Inner::One(stage) => stage.backend.take_snapshot(sequence).map(Snapshot::of_one),
            Inner::Several(pipeline) => pipeline.snapshot(sequence),
        }
        .map(|snapshot| snapshot.made_of(sequence))
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
        match &mut self.inner {
            Inner::One(stage) => match parts {
                [SnapshotShare::Here(part)] => stage.backend.restore(sequence, part),
                _ => panic!("a snapshot of as many stages"),
            },
            Inner::Several(pipeline) => pipeline.restore(sequence, parts),
        }
    }

    /// Reads a snapshot of `length` tokens, the pages of [`Snapshot::write_page`] before what
    /// [`Snapshot::write_rest`] wrote, by these stages or others. There must be room for its pages and state.
    ///
    /// # Errors
    /// What `input` reports, or no room.
    pub fn read_snapshot(&mut self, length: usize, input: &mut dyn Read) -> io::Result<Snapshot> {
        let parts = match &self.inner {
            Inner::One(stage) => vec![stage.backend.sequences().blank(length)?],
            Inner::Several(pipeline) => {
                pipeline.views().map(|view| view.blank(length)).collect::<Result<_, _>>()?
            }
        };
        Snapshot::read(parts, input)
    }

    /// The snapshots that were asked for in the batches that have ended and their sequences, in the order asked.
    pub fn take_marks(&mut self) -> Vec<(SequenceId, Snapshot)> {
        match &mut self.inner {
            Inner::One(stage) => {
                let mut marks = std::mem::take(&mut self.marks);
                marks
                    .extend(joined_marks(vec![shared(stage.backend.sequences_mut().take_marks())]));
                marks
            }
            Inner::Several(pipeline) => std::mem::take(&mut pipeline.marks),
        }
    }

    /// Keeps the marks of the batch that has ended until they are taken: another may begin before.
    pub(crate) fn keep_marks(&mut self) {
        self.marks = self.take_marks();
    }

    /// What can still be held on every stage, without what batches under way may still take.
    pub fn room(&self) -> Room {
        let pipeline = match &self.inner {
            Inner::One(stage) => return stage.backend.sequences().room(),
            Inner::Several(pipeline) => pipeline,
        };
        let least = |a: Room, b: Room| {
            let (pages, states) = (a.pages.min(b.pages), a.states.min(b.states));
            Room { pages, states }
        };
        let rooms = pipeline.views().map(|view| view.room());
        let room = rooms.reduce(least).expect("a model has a layer");
        let taken = pipeline.tokens_ahead().map(|tokens| self.batch_pages(tokens)).sum();
        let states = room.states.saturating_sub(pipeline.marks_ahead());
        Room { pages: room.pages.saturating_sub(taken), states }
    }

    /// Pages that `tokens` more of a sequence may take from the room while they are computed.
    pub fn batch_pages(&self, tokens: usize) -> usize {
        match &self.inner {
            Inner::One(stage) => stage.backend.sequences().batch_pages(tokens),
            Inner::Several(pipeline) => {
                pipeline.views().map(|view| view.batch_pages(tokens)).max().unwrap_or(0)
            }
        }
    }

    /// Pages that a snapshot of a sequence takes once it has `length` tokens, without those it shares.
    pub fn snapshot_pages(&self, sequence: SequenceId, length: usize) -> usize {
        match &self.inner {
            Inner::One(stage) => stage.backend.sequences().snapshot_pages(sequence, length),
            Inner::Several(pipeline) => pipeline.snapshot_pages(sequence, length),
        }
    }

    /// [`Backend::rules`], which of several stages are those of all.
    pub fn rules(&self) -> BatchRules {
        match &self.inner {
            Inner::One(stage) => stage.backend.rules(),
            Inner::Several(pipeline) => pipeline.rules,
        }
    }

    /// [`SequenceDevice::keep_first`].
    ///
    /// # Errors
    /// There was no such run.
    pub fn keep_first(&mut self, sequence: SequenceId, tokens: usize) -> Result<(), EngineError> {
        match &mut self.inner {
            Inner::One(stage) => stage.backend.keep_first(sequence, tokens),
            Inner::Several(pipeline) => pipeline.keep_first(sequence, tokens),
        }
    }

    /// [`Drafting::draft`]; nothing of several stages, which have no head.
    pub fn draft(&mut self, sequence: SequenceId, token: u32, most: usize, drafts: &mut Vec<u32>) {
        if let Inner::One(stage) = &mut self.inner
            && let Some(head) = stage.backend.drafting()
        {
            head.draft(sequence, token, most, drafts);
        }
    }

    /// [`Drafting::draft_logits`]; empty of several stages.
    pub fn draft_logits(&mut self) -> &[f32] {
        match &mut self.inner {
            Inner::One(stage) => stage.backend.drafting().map_or(&[], |head| head.draft_logits()),
            Inner::Several(_) => &[],
        }
    }

    /// [`Backend::recover`] of every stage. Batches of `live` that are under way go on.
    ///
    /// # Errors
    /// A device cannot tell what the panic left behind: none must be used any more.
    pub fn recover(&mut self, live: &[SequenceId]) -> Result<(), EngineError> {
        match &mut self.inner {
            Inner::One(stage) => stage.backend.recover(live),
            Inner::Several(pipeline) => pipeline.recover(live),
        }
    }
}

/// What follows from a batch: asked of the last stage.
impl Stages {
    /// [`Ranking::expect_rows`].
    pub fn expect_rows(&mut self, rows: &[usize]) {
        match &mut self.inner {
            Inner::One(stage) => {
                if let Some(ranking) = stage.backend.ranking() {
                    ranking.expect_rows(rows);
                }
            }
            Inner::Several(pipeline) => {
                // What it expects is no promise; a stage that cannot be asked says so when its logits are.
                let pending = pipeline.ask_head(HeadCommand::Expect(rows.to_vec()));
                if pipeline.draws_here() {
                    // Panics go on here. Another process is not waited for.
                    _ = settle(pending.wait());
                }
            }
        }
    }

    fn on_last(&mut self, command: HeadCommand) -> Result<Reply, EngineError> {
        let pipeline = self.pipeline().expect("one stage is asked without a thread");
        settle(pipeline.ask_head(command).wait())
    }

    /// [`Backend::logits`]; the `last` that is asked of the batch.
    ///
    /// # Errors
    /// More tokens than the plan's logit rows.
    pub(crate) fn logits(
        &mut self,
        tokens: &[usize],
        norm: Option<VectorId>,
        head: MatrixId,
        last: bool,
    ) -> Result<&mut [f32], EngineError> {
        match &mut self.inner {
            Inner::One(stage) => stage.backend.logits(tokens, norm, head),
            Inner::Several(pipeline) => {
                let (tokens, into) = (tokens.to_vec(), std::mem::take(&mut pipeline.rows));
                let place = HeadPlace { norm, head };
                let command = HeadCommand::Logits { place, tokens, last, into };
                match settle(pipeline.ask_head(command).wait())? {
                    Reply::Rows(rows) => pipeline.rows = rows,
                    other => panic!("logits are {other:?}"),
                }
                Ok(&mut pipeline.rows)
            }
        }
    }

    /// [`Ranking::most_likely`]; `None` where the device gives logits alone.
    pub(crate) fn most_likely(
        &mut self,
        token: usize,
        norm: Option<VectorId>,
        head: MatrixId,
    ) -> Option<Result<u32, EngineError>> {
        if let Inner::One(stage) = &mut self.inner {
            return stage.backend.ranking().map(|it| it.most_likely(token, norm, head));
        }
        if self.ranks[0] == Some(false) {
            return None;
        }
        let place = HeadPlace { norm, head };
        let chosen = match self.on_last(HeadCommand::MostLikely { place, token }) {
            Ok(Reply::Chosen(chosen)) => Ok(chosen),
            Ok(other) => panic!("a token is {other:?}"),
            Err(error) => Err(error),
        };
        self.ranks[0] = Some(!matches!(chosen, Ok(None)));
        chosen.transpose()
    }

    /// [`Ranking::rank`].
    pub(crate) fn rank(
        &mut self,
        token: usize,
        norm: Option<VectorId>,
        head: MatrixId,
        wanted: Wanted,
        out: &mut Ranked,
    ) -> Option<Result<(), EngineError>> {
        if let Inner::One(stage) = &mut self.inner {
            return stage.backend.ranking()?.rank(token, norm, head, wanted, out);
        }
        let known = 1 + usize::from(wanted == Wanted::Top);
        if self.ranks[known] == Some(false) {
            return None;
        }
        let (place, into) = (HeadPlace { norm, head }, std::mem::take(out));
        let ranked = match self.on_last(HeadCommand::Rank { place, token, wanted, into }) {
            Ok(Reply::Ranked(ranked)) => Ok(ranked),
            Ok(other) => panic!("what is ranked is {other:?}"),
            Err(error) => Err(error),
        };
        self.ranks[known] = Some(!matches!(ranked, Ok(None)));
        ranked.transpose().map(|ranked| ranked.map(|own| *out = own))
    }

    /// [`Ranking::ranked_logits`].
    ///
    /// # Errors
    /// The device failed, or ranks nothing.
    pub(crate) fn ranked_logits(
        &mut self,
        start: usize,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        if let Inner::One(stage) = &mut self.inner {
            let ranking = stage.backend.ranking().ok_or_else(command::ranks_nothing)?;
            return ranking.ranked_logits(start, out);
        }
        let count = out.len();
        match self.on_last(HeadCommand::RankedLogits { start, count })? {
            Reply::Rows(own) if own.len() == count => out.copy_from_slice(&own),
            other => panic!("logits are {other:?}"),
        }
        Ok(())
    }
}

//! What the engine's thread has every stage do with sequences, as data: a stage is a thread of this process, or a
//! process of its own to which these are written ([`super::remote`]).

use store::cache::StoreCounters;

use text::sampling::{Ranked, Wanted};

use super::batch::{Failure, Ticket};
use super::worker::Worker;
use crate::EngineError;
use crate::backend::SequenceId;
use crate::sequences::SnapshotShare;
use crate::weights::{MatrixId, VectorId};

/// Something to do between two layers of prompts, and before any step that has not begun.
#[derive(Clone, Debug)]
pub(super) enum Command {
    /// Nothing, behind all that was sent before.
    Nothing,
    /// An empty sequence.
    Create(Option<SequenceId>),
    /// Forgets a sequence that has no batch under way.
    Remove(SequenceId),
    /// The point where a sequence is.
    Snapshot(SequenceId),
    /// Sets a sequence to a point.
    Restore(SequenceId, SnapshotShare),
    /// Pages that a snapshot of a sequence takes once it has so many tokens.
    SnapshotPages(SequenceId, usize),
    /// Keeps the first tokens of a round.
    KeepFirst(SequenceId, usize),
    /// Forgets all sequences but these.
    Recover(Vec<SequenceId>),
    /// What was counted of experts.
    Counters,
    /// What follows from the batch that the last stage keeps, or that ran layer by layer.
    Head(Option<Ticket>, HeadCommand),
}

/// Where the norm before the head and the head are.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadPlace {
    pub(super) norm: Option<VectorId>,
    pub(super) head: MatrixId,
}

/// Asked of the stage that has the head.
#[derive(Clone, Debug)]
pub(super) enum HeadCommand {
    /// [`crate::backend::Ranking::expect_rows`].
    Expect(Vec<usize>),
    /// [`crate::backend::Backend::logits`] of these tokens, into a buffer; whether nothing more is asked.
    Logits { place: HeadPlace, tokens: Vec<usize>, last: bool, into: Vec<f32> },
    /// [`crate::backend::Ranking::most_likely`] after a token.
    MostLikely { place: HeadPlace, token: usize },
    /// [`crate::backend::Ranking::rank`] after a token, into a buffer.
    Rank { place: HeadPlace, token: usize, wanted: Wanted, into: Ranked },
    /// [`crate::backend::Ranking::ranked_logits`]: so many from a token on.
    RankedLogits { start: usize, count: usize },
}

/// What a command gave.
#[derive(Debug)]
pub(super) enum Reply {
    Done,
    Sequence(SequenceId),
    Part(SnapshotShare),
    Pages(usize),
    Counters(Box<StoreCounters>),
    /// Logits.
    Rows(Vec<f32>),
    /// The most likely token; `None` where the device chooses none.
    Chosen(Option<u32>),
    /// What a sampler wants; `None` where the device ranks nothing.
    Ranked(Option<Ranked>),
}

/// Where the reply to a command goes; called once.
pub(super) type Answer = Box<dyn FnOnce(Result<Reply, Failure>) + Send>;

/// A command on its way to a stage.
pub(super) struct Asked {
    pub(super) command: Command,
    /// After a panic these are undefined.
    pub(super) touched: Vec<SequenceId>,
    pub(super) answer: Answer,
}

impl Asked {
    /// Does it, on the stage's thread.
    pub(super) fn serve(self, worker: &mut Worker) {
        let Self { command, touched, answer } = self;
        answer(worker.guarded(&touched, |worker| command.run(worker)));
    }
}

impl Command {
    fn run(self, worker: &mut Worker) -> Result<Reply, EngineError> {
        match self {
            Self::Nothing => {}
            Self::Create(home) => {
                return worker.backend().create_sequence(home).map(Reply::Sequence);
            }
            Self::Remove(sequence) => {
                worker.backend().sequences_mut().remove(sequence);
                worker.define(sequence);
            }
            Self::Snapshot(sequence) => {
                let part = worker.backend().take_snapshot(sequence)?;
                return Ok(Reply::Part(SnapshotShare::Here(part)));
            }
            Self::Restore(sequence, SnapshotShare::Here(part)) => {
                worker.backend().restore(sequence, &part)?;
                worker.define(sequence);
            }
            Self::Restore(_, SnapshotShare::There(_)) => {
                let found = "this part of a snapshot is another process's".to_owned();
                return Err(EngineError::Request(found));
            }
            Self::SnapshotPages(sequence, length) => {
                let pages = worker.backend().sequences().snapshot_pages(sequence, length);
                return Ok(Reply::Pages(pages));
            }
            Self::KeepFirst(sequence, tokens) => worker.backend().keep_first(sequence, tokens)?,
            Self::Recover(live) => worker.recover(&live)?,
            Self::Counters => return Ok(Reply::Counters(Box::new(worker.counters()))),
            Self::Head(ticket, command) => return command.run(ticket, worker),
        }
        Ok(Reply::Done)
    }
}

impl HeadCommand {
    fn run(self, ticket: Option<Ticket>, worker: &mut Worker) -> Result<Reply, EngineError> {
        let backend = worker.head(ticket)?;
        Ok(match self {
            Self::Expect(rows) => {
                if let Some(ranking) = backend.ranking() {
                    ranking.expect_rows(&rows);
                }
                Reply::Done
            }
            Self::Logits { place: HeadPlace { norm, head }, tokens, last, mut into } => {
                into.clear();
                into.extend_from_slice(backend.logits(&tokens, norm, head)?);
                if last {
                    worker.release(ticket);
                }
                Reply::Rows(into)
            }
            Self::MostLikely { place: HeadPlace { norm, head }, token } => {
                let chosen = backend.ranking().map(|it| it.most_likely(token, norm, head));
                Reply::Chosen(chosen.transpose()?)
            }
            Self::Rank { place: HeadPlace { norm, head }, token, wanted, mut into } => {
                let ranked = backend.ranking();
                let ranked = ranked.and_then(|it| it.rank(token, norm, head, wanted, &mut into));
                Reply::Ranked(ranked.transpose()?.map(|()| into))
            }
            Self::RankedLogits { start, count } => {
                let mut own = vec![0.0; count];
                let ranking = backend.ranking().ok_or_else(ranks_nothing)?;
                ranking.ranked_logits(start, &mut own)?;
                Reply::Rows(own)
            }
        })
    }
}

/// What a device says that is asked for logits of a ranked row and ranks none.
pub(super) fn ranks_nothing() -> EngineError {
    EngineError::Request("this device ranks no tokens".to_owned())
}

//! What the engine's thread has every stage do with sequences, as data: a stage is a thread of this process, or a
//! process of its own to which these are written ([`super::remote`]).

use store::cache::StoreCounters;

use super::batch::Failure;
use super::worker::Worker;
use crate::EngineError;
use crate::backend::SequenceId;
use crate::sequences::SnapshotShare;

/// Something to do between two layers of prompts, and before any step that has not begun.
#[derive(Clone, Debug)]
pub(super) enum Command {
    /// Nothing, behind all that was sent before.
    Nothing,
    /// An empty sequence.
    Create,
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
}

/// What a command gave.
#[derive(Debug)]
pub(super) enum Reply {
    Done,
    Sequence(SequenceId),
    Part(SnapshotShare),
    Pages(usize),
    Counters(Box<StoreCounters>),
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
            Self::Create => return worker.backend().create_sequence().map(Reply::Sequence),
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
        }
        Ok(Reply::Done)
    }
}

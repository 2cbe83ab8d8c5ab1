//! How a stage is reached: by the inbox of its thread, or over a connection to its process. Who sends does not see
//! which.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use super::batch::{Mailbox, Message, Ticket};
use super::remote::{Connected, StageLost};
use crate::backend::Room;
use crate::sequences::{BlankPart, PAGE_TOKENS, SequencesView};

/// The way to a stage.
pub(super) trait Port: Send + Sync {
    /// Gives it a message, which follows all that were given before by the same thread. Of a stage that has ended, the
    /// message's sender hears by what it waits for.
    fn send(&self, message: Message);

    /// Says that a batch was given up, where the stage does not see it by itself.
    fn cancel(&self, ticket: Ticket) {
        _ = ticket;
    }

    /// Ends a stage that does not end with its last sender.
    fn close(&self) {}

    /// Whether closures may be sent: the stage is a thread of this process.
    fn is_here(&self) -> bool;
}

/// A stage that is a thread of this process.
pub(super) struct ThreadPort(pub(super) SyncSender<Message>);

impl Port for ThreadPort {
    fn send(&self, message: Message) {
        // A thread that has ended drops the message, which who waits for it sees.
        _ = self.0.send(message);
    }

    fn is_here(&self) -> bool {
        true
    }
}

/// Behind a last stage in another process: where batches end.
pub(super) struct MailboxPort(pub(super) Arc<Mailbox>);

impl Port for MailboxPort {
    fn send(&self, message: Message) {
        if let Message::Batch(mut moving) = message {
            self.0.give_back(std::mem::take(&mut moving.residual));
            self.0.put(moving);
        }
    }

    fn is_here(&self) -> bool {
        false
    }
}

/// What of a stage's sequences may be asked while it computes.
pub(super) enum View {
    /// Of a device of this process.
    Here(SequencesView),
    /// Of a stage that is a process of its own.
    There(Arc<Connected>),
}

impl View {
    /// Most sequences at a time.
    pub(super) fn places(&self) -> usize {
        match self {
            Self::Here(view) => view.places(),
            Self::There(stage) => stage.facts().places,
        }
    }

    /// What can still be held.
    pub(super) fn room(&self) -> Room {
        match self {
            Self::Here(view) => view.room(),
            Self::There(stage) => stage.room(),
        }
    }

    /// Why the stage cannot be reached any more.
    pub(super) fn lost(&self) -> Option<StageLost> {
        match self {
            Self::Here(_) => None,
            Self::There(stage) => stage.lost().cloned(),
        }
    }

    /// Whether sequences and snapshots share pages.
    pub(super) fn shares_pages(&self) -> bool {
        match self {
            Self::Here(view) => view.shares_pages(),
            Self::There(stage) => stage.facts().shares_pages,
        }
    }

    /// Pages that `tokens` more of a sequence may take while they are computed.
    pub(super) fn batch_pages(&self, tokens: usize) -> usize {
        if self.shares_pages() { tokens / PAGE_TOKENS + 2 } else { 0 }
    }

    /// Memory for a snapshot that is read.
    ///
    /// # Errors
    /// There is no room, or the stage is another process.
    pub(super) fn blank(&self, length: usize) -> io::Result<BlankPart> {
        match self {
            Self::Here(view) => view.blank(length),
            Self::There(_) => Err(io::Error::other("a stage in another process reads no files")),
        }
    }
}

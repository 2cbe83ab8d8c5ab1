//! Stages in other processes, on this host or another: the same messages as between threads, over a connection.
//!
//! The first process has the embedding, the first layers and what is behind the last one, so that a hop carries a
//! residual stream and never a row of logits. It reaches every other stage by a connection of its own ([`Reached`],
//! [`Connected`]), over which go batches, commands and their replies in the order in which a thread would get them; a
//! stage process serves one first process from the first message to the last ([`Joined::serve`]). What carries the
//! connection is not known here ([`Channel`]).
//!
//! Both sides say each second that they are there. A side that says nothing for as long as was agreed, a connection
//! that ends and a message that is none are one thing: the stage is lost ([`StageLost`]), and all that waits for it
//! fails with that. Nothing is taken up again; processes are started anew.

mod bytes;
mod connected;
mod fault;
mod frames;
mod head;
mod messages;
mod parts;
mod served;
mod terms;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use thiserror::Error;

pub(super) use connected::Connected;
pub use connected::Reached;
pub use frames::Channel;
pub use served::{Ended, Joined};
pub use terms::{Facts, JoinError, Limits, PROTOCOL, Terms};

/// Reads bytes as every kind of message between a first process and a stage; how many kinds take them. For fuzzers.
pub fn read_as_any(bytes: &[u8]) -> usize {
    let limits = Limits {
        sequences: 3,
        context: 64,
        batch_tokens: 16,
        round_tokens: 4,
        width: 5,
        vocabulary: 50,
    };
    let (mut into, from) = (Vec::new(), || bytes::Reading::new(bytes));
    let taken = [
        messages::Batch::read(from(), &limits, &mut into).is_ok(),
        messages::Batch::read_order(from(), &limits).is_ok(),
        messages::Done::read(from(), &limits, &mut into).is_ok(),
        messages::Ask::read(from(), &limits).is_ok(),
        messages::Replied::read(from(), &limits).is_ok(),
        messages::Beat::read(from()).is_ok(),
        messages::read_numbers(from()).is_ok(),
        Terms::read(from()).is_ok(),
        Facts::read(from()).is_ok(),
    ];
    // No buffer is larger than what arrived.
    assert!(into.capacity() <= bytes.len() + 64, "{} for {}", into.capacity(), bytes.len());
    taken.into_iter().filter(|taken| *taken).count()
}

/// How often each side says that it is there.
const BEAT: Duration = Duration::from_secs(1);

/// A stage that cannot be reached any more.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("stage_lost: layers {} to {} at {address}: {cause}", layers.start, layers.end - 1)]
pub struct StageLost {
    /// Its layers.
    pub layers: Range<usize>,
    /// Where it was reached.
    pub address: String,
    /// Why it was given up.
    pub cause: LostCause,
}

/// Why the other side of a connection was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LostCause {
    /// It said nothing for so long.
    Silent(Duration),
    /// It had work, and ended no layer for so long.
    Stuck(Duration),
    /// It ended the connection.
    Closed,
    /// The connection failed.
    Failed(String),
    /// It said what is none of the protocol.
    Protocol(String),
}

impl fmt::Display for LostCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(time) => write!(f, "no sign of life for {} s", time.as_secs_f32()),
            Self::Stuck(time) => write!(f, "it ended no layer for {} s", time.as_secs_f32()),
            Self::Closed => f.write_str("it ended the connection"),
            Self::Failed(why) => write!(f, "the connection failed: {why}"),
            Self::Protocol(why) => write!(f, "a message that is none: {why}"),
        }
    }
}

impl From<std::io::Error> for LostCause {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind::{
            BrokenPipe, ConnectionAborted, ConnectionReset, InvalidData, UnexpectedEof,
        };
        match error.kind() {
            UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe => Self::Closed,
            InvalidData => Self::Protocol(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl From<bytes::Malformed> for LostCause {
    fn from(bytes::Malformed(why): bytes::Malformed) -> Self {
        Self::Protocol(why.to_owned())
    }
}

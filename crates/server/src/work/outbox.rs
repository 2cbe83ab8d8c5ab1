//! Events on their way to a client that may be slower than the model.
//!
//! The engine's thread never waits for a client. What the channel does not take is held and joined: neighbouring
//! pieces of text become one, a newer progress replaces an older one, so that what is held stays about as
//! large as the answer itself.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{self, error::TrySendError};

use super::{Event, Piece};

/// Events that a channel holds.
pub(super) const CHANNEL_EVENTS: usize = 64;

/// The sending end of a job's channel.
#[derive(Debug)]
pub(super) struct Outbox {
    sender: mpsc::Sender<Event>,
    held: VecDeque<Event>,
    /// Since when the client has taken nothing.
    stuck: Option<Instant>,
}

impl Outbox {
    pub(super) fn new(sender: mpsc::Sender<Event>) -> Self {
        Self { sender, held: VecDeque::new(), stuck: None }
    }

    /// Another way to the same client.
    pub(super) fn sender(&self) -> mpsc::Sender<Event> {
        self.sender.clone()
    }

    /// True when the client has gone.
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Sends an event after all that are held.
    pub(super) fn send(&mut self, event: Event) {
        self.hold(event);
        self.flush();
    }

    fn hold(&mut self, event: Event) {
        let joined = match (self.held.back_mut(), event) {
            (Some(Event::Text(held)), Event::Text(piece))
            | (Some(Event::Reasoning(held)), Event::Reasoning(piece)) => {
                join(held, piece);
                return;
            }
            (
                Some(Event::CallArguments { index, delta }),
                Event::CallArguments { index: next, delta: more },
            ) if *index == next => {
                delta.push_str(&more);
                return;
            }
            (Some(Event::Prompt(held)), Event::Prompt(more)) => {
                held.extend(more);
                return;
            }
            (Some(last @ Event::Progress { .. }), event @ Event::Progress { .. }) => {
                *last = event;
                return;
            }
            (_, event) => event,
        };
        self.held.push_back(joined);
    }

    /// Sends what the channel takes; true when nothing is held any more.
    pub(super) fn flush(&mut self) -> bool {
        while let Some(event) = self.held.pop_front() {
            match self.sender.try_send(event) {
                Ok(()) => self.stuck = None,
                Err(TrySendError::Full(event)) => {
                    self.held.push_front(event);
                    self.stuck.get_or_insert_with(Instant::now);
                    return false;
                }
                Err(TrySendError::Closed(_)) => {
                    self.held.clear();
                    return true;
                }
            }
        }
        true
    }

    /// Sends what is held, as fast as clients take it, and waits for them for `patience` at the most.
    pub(super) fn deliver(mut all: Vec<Self>, patience: Duration) {
        let until = Instant::now() + patience;
        loop {
            all.retain_mut(|outbox| !outbox.flush());
            if all.is_empty() || Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// How long the client has taken nothing while there was something.
    pub(super) fn stuck_for(&self) -> Duration {
        self.stuck.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

fn join(held: &mut Piece, piece: Piece) {
    held.text.push_str(&piece.text);
    held.logprobs.extend(piece.logprobs);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
mod tests {
    use super::*;

    fn text(text: &str) -> Event {
        Event::Text(Piece { text: text.to_owned(), logprobs: Vec::new() })
    }

    #[test]
    fn what_a_slow_client_misses_is_joined_and_nothing_is_lost() {
        let (sender, mut receiver) = mpsc::channel(1);
        let mut outbox = Outbox::new(sender);
        for word in ["a", "b", "c"] {
            outbox.send(text(word));
        }
        outbox.send(Event::CallStarted { index: 0, id: "x".into(), name: "f".into() });
        outbox.send(text("d"));
        let mut found = String::new();
        let mut events = 0;
        while let Ok(event) = receiver.try_recv() {
            events += 1;
            match event {
                Event::Text(piece) => found.push_str(&piece.text),
                Event::CallStarted { .. } => found.push('|'),
                other => panic!("{other:?}"),
            }
            outbox.flush();
        }
        assert_eq!((found.as_str(), events), ("abc|d", 4));
        drop(receiver);
        assert!(outbox.is_closed() && outbox.flush());
    }
}

//! How threads of a pipeline wait for each other: they look for a while before they sleep, where that is worth a core.
//!
//! To wake a thread that sleeps costs 20 to 50 us, and a token of one stream takes five wakes with two stages: 0.11 ms
//! a hop on two H200s. Stages that replay steps on a GPU have a thread each that spins while a step runs, so looking
//! takes no core that a step would leave free.

use std::sync::mpsc::{Receiver, RecvError, TryRecvError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// The longest that a thread looks: steps that take longer wait for a drive, and a wake is nothing to them.
const LONGEST: Duration = Duration::from_millis(10);

/// How long threads of a pipeline look before they sleep: by default not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waits(Duration);

impl Waits {
    /// For stages whose threads spin while a step runs, or do not. All of their threads and the engine's have to have a
    /// core each, and one has to remain.
    pub(super) fn of(spinning: bool, stages: usize) -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        Self::with_cores(spinning, stages, cores)
    }

    fn with_cores(spinning: bool, stages: usize, cores: usize) -> Self {
        Self(if spinning && cores > stages + 1 { LONGEST } else { Duration::ZERO })
    }

    /// The longest that a thread looks.
    pub(super) fn longest(self) -> Duration {
        self.0
    }

    /// The same, but no longer than `time`.
    pub(super) fn at_most(self, time: Duration) -> Self {
        Self(self.0.min(time))
    }

    /// Looks until `found` gives something; `None` once it has looked for long enough, and at once where threads sleep.
    pub(super) fn look<T>(self, mut found: impl FnMut() -> Option<T>) -> Option<T> {
        if self.0.is_zero() {
            return None;
        }
        let began = Instant::now();
        loop {
            for _ in 0..32 {
                if let Some(value) = found() {
                    return Some(value);
                }
                std::hint::spin_loop();
            }
            if began.elapsed() >= self.0 {
                return None;
            }
        }
    }

    /// The next message.
    ///
    /// # Errors
    /// Nothing can send any more.
    pub(super) fn receive<T>(self, inbox: &Receiver<T>) -> Result<T, RecvError> {
        let looked = self.look(|| match inbox.try_recv() {
            Ok(message) => Some(Ok(message)),
            Err(TryRecvError::Disconnected) => Some(Err(RecvError)),
            Err(TryRecvError::Empty) => None,
        });
        looked.unwrap_or_else(|| inbox.recv())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn threads_look_where_steps_spin_and_a_core_remains() {
        assert_eq!(Waits::with_cores(true, 2, 4), Waits(LONGEST));
        assert_eq!(Waits::with_cores(true, 2, 3), Waits::default());
        assert_eq!(Waits::with_cores(false, 2, 64), Waits::default());
    }

    #[test]
    fn nothing_is_looked_for_longer_than_allowed() {
        let began = Instant::now();
        assert_eq!(
            Waits(Duration::from_secs(60)).at_most(Duration::from_millis(2)).look(|| None::<()>),
            None
        );
        assert!(began.elapsed() >= Duration::from_millis(2));
        assert_eq!(Waits(LONGEST).at_most(Duration::ZERO), Waits::default());
    }

    #[test]
    fn a_message_is_received_while_looking_and_asleep_and_an_end_is_seen() {
        for waits in [Waits(LONGEST), Waits::default()] {
            let (sender, inbox) = sync_channel(1);
            let late = std::thread::spawn(move || {
                for (number, pause) in [(1, 0), (2, 1), (3, 20)] {
                    std::thread::sleep(Duration::from_millis(pause));
                    sender.send(number).unwrap();
                }
            });
            let received: Vec<_> = std::iter::from_fn(|| waits.receive(&inbox).ok()).collect();
            late.join().unwrap();
            assert_eq!(received, [1, 2, 3]);
        }
    }
}

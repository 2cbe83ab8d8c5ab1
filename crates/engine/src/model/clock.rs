//! Where the time of passes goes, by kind of work: sums since the model was loaded.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time of each kind of layer. On a GPU, which computes by itself, the time of handing it the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// Layers of attention, over latent rows too.
    pub attention: Duration,
    /// Layers of the delta rule.
    pub delta_net: Duration,
    /// Routers and experts, waiting for these included, and networks in their place.
    pub mixture: Duration,
    /// Logits of the tokens that were asked for, and what a device chooses of them.
    pub head: Duration,
}

impl StageTimes {
    /// What was added since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            attention: self.attention.saturating_sub(earlier.attention),
            delta_net: self.delta_net.saturating_sub(earlier.delta_net),
            mixture: self.mixture.saturating_sub(earlier.mixture),
            head: self.head.saturating_sub(earlier.head),
        }
    }

    /// Adds the times of another pass.
    pub fn add(&mut self, other: Self) {
        self.attention += other.attention;
        self.delta_net += other.delta_net;
        self.mixture += other.mixture;
        self.head += other.head;
    }

    /// All of them.
    pub fn sum(self) -> Duration {
        self.attention + self.delta_net + self.mixture + self.head
    }
}

/// Sums in nanoseconds, added to by the thread that computes.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    pub(crate) attention: AtomicU64,
    pub(crate) delta_net: AtomicU64,
    pub(crate) mixture: AtomicU64,
    pub(crate) head: AtomicU64,
}

impl Clock {
    /// Adds the time since `begun`, and gives the time of now.
    pub(crate) fn add(sum: &AtomicU64, begun: Instant) -> Instant {
        let now = Instant::now();
        let spent = u64::try_from((now - begun).as_nanos()).unwrap_or(u64::MAX);
        sum.fetch_add(spent, Ordering::Relaxed);
        now
    }

    /// The sums, which begin anew.
    pub(crate) fn take(&self) -> StageTimes {
        let times = self.read();
        for sum in [&self.attention, &self.delta_net, &self.mixture, &self.head] {
            sum.store(0, Ordering::Relaxed);
        }
        times
    }

    /// Adds the times of a pass of other threads.
    pub(crate) fn add_all(&self, times: StageTimes) {
        let sums = [
            (&self.attention, times.attention),
            (&self.delta_net, times.delta_net),
            (&self.mixture, times.mixture),
            (&self.head, times.head),
        ];
        for (sum, time) in sums {
            let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            sum.fetch_add(time, Ordering::Relaxed);
        }
    }

    pub(crate) fn read(&self) -> StageTimes {
        let time = |sum: &AtomicU64| Duration::from_nanos(sum.load(Ordering::Relaxed));
        StageTimes {
            attention: time(&self.attention),
            delta_net: time(&self.delta_net),
            mixture: time(&self.mixture),
            head: time(&self.head),
        }
    }
}

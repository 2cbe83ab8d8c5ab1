//! Where the time of a run went, for people: kinds of layers, choosing experts, waiting for them, computing them, head.

use std::time::Duration;

use engine::model::StageTimes;
use store::cache::StoreCounters;

/// Times that add up to that of the run. Of the processor: a GPU computes while the host only submits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Phases {
    attention: Duration,
    delta_net: Duration,
    routing: Duration,
    /// Waiting for records that were still being read.
    wait: Duration,
    /// Routed and shared experts, and networks in their place.
    experts: Duration,
    head: Duration,
    /// Embedding, drawing tokens, text.
    other: Duration,
}

impl Phases {
    /// Of a run that took `time` and added these sums.
    pub(crate) fn of(stages: &StageTimes, spent: &StoreCounters, time: Duration) -> Self {
        let both = |count: fn(&store::cache::PhaseCounters) -> u64| {
            Duration::from_micros(count(&spent.prefill) + count(&spent.decode))
        };
        let (routing, wait) = (both(|phase| phase.routing_us), both(|phase| phase.stall_us));
        Self {
            attention: stages.attention,
            delta_net: stages.delta_net,
            routing,
            wait,
            experts: stages.mixture.saturating_sub(routing + wait),
            head: stages.head,
            other: time.saturating_sub(stages.sum()),
        }
    }

    /// Adds another run's.
    pub(crate) fn add(&mut self, other: &Self) {
        self.attention += other.attention;
        self.delta_net += other.delta_net;
        self.routing += other.routing;
        self.wait += other.wait;
        self.experts += other.experts;
        self.head += other.head;
        self.other += other.other;
    }

    /// All of them with their names.
    pub(crate) fn named(&self) -> [(&'static str, Duration); 7] {
        [
            ("attention", self.attention),
            ("delta net", self.delta_net),
            ("routing", self.routing),
            ("waiting for experts", self.wait),
            ("experts", self.experts),
            ("head", self.head),
            ("other", self.other),
        ]
    }

    /// One line: the largest first, those below one percent left out.
    pub(crate) fn line(&self) -> String {
        let mut parts = self.named();
        parts.sort_by_key(|part| std::cmp::Reverse(part.1));
        let sum: Duration = parts.iter().map(|part| part.1).sum();
        let share = |time: Duration| 100.0 * time.as_secs_f64() / sum.as_secs_f64().max(1e-9);
        let shown = parts.iter().map(|&(name, time)| (name, share(time)));
        let shown = shown.filter(|(_, share)| *share >= 1.0);
        let shown: Vec<_> = shown.map(|(name, share)| format!("{name} {share:.0} %")).collect();
        format!("{:.1} s: {}", sum.as_secs_f64(), shown.join(" · "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_add_up_to_the_time() {
        let ms = Duration::from_millis;
        let (attention, delta_net) = (ms(100), ms(200));
        let stages = StageTimes { attention, delta_net, mixture: ms(600), head: ms(50) };
        let mut spent = StoreCounters::default();
        (spent.decode.routing_us, spent.decode.stall_us) = (30_000, 250_000);
        spent.prefill.stall_us = 20_000;
        let phases = Phases::of(&stages, &spent, ms(1000));
        assert_eq!(phases.named().iter().map(|part| part.1).sum::<Duration>(), ms(1000));
        assert_eq!((phases.experts, phases.wait, phases.other), (ms(300), ms(270), ms(50)));
        assert_eq!(
            phases.line(),
            "1.0 s: experts 30 % · waiting for experts 27 % · delta net 20 % · attention 10 % · \
             head 5 % · other 5 % · routing 3 %"
        );
    }
}

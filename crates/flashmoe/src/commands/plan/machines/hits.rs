//! How often a token finds its experts in slots that hold a share of them, by a model's own numbers of experts.
//!
//! The same share holds more of what comes next where a layer has more experts and a token uses fewer of them: 19 %
//! serve 76 % of the uses where 6 of 128 are used, and 81 % where 8 of 256 are. So the generator that was fitted to a
//! real model's trace, which `--routing calibrated` takes as well, is replayed through the slots' own policy.

use store::cache::PolicyKind;
use store::trace::generator::{self, QWEN3_30B};
use store::trace::replay::{Scope, replay};

use crate::plan::sweep::between;

/// Shares of the experts for which it is replayed.
const SHARES: [f64; 8] = [0.031_25, 0.062_5, 0.125, 0.187_5, 0.25, 0.375, 0.5, 0.75];
/// Layers of the trace, which share slots as a model's do: forty give what four give within a percent.
const LAYERS: usize = 4;
/// Tokens of it, and those that come before slots hold what is used most.
const TOKENS: usize = 1000;
const WARMING: usize = 500;

/// Hit rates by share, from nothing to everything.
#[derive(Clone, Debug)]
pub(super) struct HitCurve(Vec<(f64, f64)>);

impl HitCurve {
    /// Of a model whose tokens use so many of a layer's experts.
    pub(super) fn of(experts: usize, used: usize) -> Self {
        let mut points = vec![(0.0, 0.0)];
        // Where all are used, none is more likely than another.
        if (1..experts).contains(&used) {
            let mut trace = generator::trace(QWEN3_30B, 0, LAYERS, experts, used, TOKENS);
            trace.prompt_tokens = WARMING;
            points.extend(SHARES.map(|share| {
                let slots = (share * (LAYERS * experts) as f64) as usize;
                let policy = || PolicyKind::default().build();
                let found = replay(&trace, Scope::Global(slots.max(used)), policy);
                (share, found.percent() / 100.0)
            }));
        }
        points.push((1.0, 1.0));
        Self(points)
    }

    /// At a share of the experts.
    pub(super) fn at(&self, share: f64) -> f64 {
        between(&self.0, share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `bench --routing calibrated` counted of the 35B shape (bench/disks.py): in one process, and in two stages.
    #[test]
    fn hits_are_those_that_were_counted() {
        let curve = HitCurve::of(256, 8);
        for (slots, counted) in [(786.0, 0.546), (2115.0, 0.829)] {
            let found = curve.at(slots / 10_240.0);
            assert!((found - counted).abs() < 0.02, "{found:.3} for {counted}");
        }
    }

    /// The trace that the generator was fitted to (docs/benchmarks.md, "Cache policies"), to which a curve for other
    /// numbers would not come near.
    #[test]
    fn the_trace_it_was_fitted_to_is_met() {
        let curve = HitCurve::of(128, 6);
        for (share, counted) in [(0.125, 0.637), (0.25, 0.825), (0.5, 0.959)] {
            assert!((curve.at(share) - counted).abs() < 0.02, "{share}: {:.3}", curve.at(share));
        }
    }

    #[test]
    fn curves_rise_from_nothing_to_everything() {
        for (experts, used) in [(4, 2), (8, 8), (64, 8), (512, 10), (0, 0)] {
            let curve = HitCurve::of(experts, used);
            assert_eq!((curve.at(0.0), curve.at(1.0)), (0.0, 1.0));
            let rates: Vec<_> = (0..=50).map(|at| curve.at(f64::from(at) / 50.0)).collect();
            assert!(rates.windows(2).all(|pair| pair[0] <= pair[1]), "{experts} {used}: {rates:?}");
        }
    }
}

//! Hit rates of a trace under a policy and a number of slots, by the residency code of the store.
//!
//! One decode visit per token and layer: what is resident is pinned, then the missing experts take the
//! slots of the least valuable others. Belady's rule, which knows the future, bounds what any
//! policy could reach; it follows the same visit discipline.

use std::collections::BTreeSet;

use super::Trace;
use crate::cache::Phase;
use crate::cache::policy::Policy;
use crate::cache::state::{Purpose, Residency};
use crate::{ExpertId, LayerId};

/// How slots are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// This many slots for each layer.
    PerLayer(usize),
    /// This many slots for all layers together.
    Global(usize),
}

/// What was counted in the decode part of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HitRate {
    /// Experts asked for.
    pub requests: u64,
    /// Experts found resident.
    pub hits: u64,
}

impl HitRate {
    /// Hits per request, in percent.
    pub fn percent(&self) -> f64 {
        if self.requests == 0 { 0.0 } else { 100.0 * self.hits as f64 / self.requests as f64 }
    }
}

/// Replays a trace under a policy. The prompt warms the slots and is not counted.
pub fn replay(trace: &Trace, scope: Scope, policy: impl Fn() -> Box<dyn Policy>) -> HitRate {
    let mut rate = HitRate::default();
    match scope {
        Scope::PerLayer(slots) => {
            for layer in 0..trace.layers {
                run(trace, layer..layer + 1, slots, policy(), &mut rate);
            }
        }
        Scope::Global(slots) => run(trace, 0..trace.layers, slots, policy(), &mut rate),
    }
    rate
}

fn run(
    trace: &Trace,
    layers: std::ops::Range<usize>,
    slots: usize,
    policy: Box<dyn Policy>,
    rate: &mut HitRate,
) {
    let mut residency =
        Residency::new(trace.layers, trace.experts, &[slots], trace.top_k, 1, policy, true);
    let mut pinned = Vec::with_capacity(trace.top_k);
    for token in 0..trace.tokens() {
        for layer in layers.clone() {
            residency.step(LayerId(layer as u16));
            pinned.clear();
            let mut missing = Vec::with_capacity(trace.top_k);
            for &expert in trace.chosen(token, layer) {
                let key = residency.key(LayerId(layer as u16), ExpertId(expert));
                residency.touch(key);
                match residency.find(key) {
                    Some(slot) => {
                        residency.pin(slot, Phase::Decode);
                        pinned.push(slot);
                    }
                    None => missing.push(key),
                }
            }
            if token >= trace.prompt_tokens {
                rate.requests += trace.top_k as u64;
                rate.hits += pinned.len() as u64;
            }
            for key in missing {
                let Some(claim) = residency.claim(0, key, Purpose::Decode) else { continue };
                residency.pin(claim.slot, Phase::Decode);
                residency.publish(claim.slot, None);
                pinned.push(claim.slot);
            }
            pinned.iter().for_each(|&slot| residency.unpin(slot));
        }
    }
}

/// Hit rate of a fixed set: of each layer the `slots` experts that the whole trace uses most. It knows the future, as
/// no list that is made beforehand does.
pub fn fixed(trace: &Trace, slots: usize) -> HitRate {
    let mut rate = HitRate::default();
    for layer in 0..trace.layers {
        let mut uses = vec![0u64; trace.experts];
        for token in trace.prompt_tokens..trace.tokens() {
            trace.chosen(token, layer).iter().for_each(|&expert| uses[usize::from(expert)] += 1);
        }
        uses.sort_unstable_by(|a, b| b.cmp(a));
        rate.requests += uses.iter().sum::<u64>();
        rate.hits += uses.iter().take(slots).sum::<u64>();
    }
    rate
}

/// Replays a trace under Belady's rule: what is needed furthest in the future goes first.
pub fn replay_belady(trace: &Trace, scope: Scope) -> HitRate {
    let mut rate = HitRate::default();
    match scope {
        Scope::PerLayer(slots) => {
            for layer in 0..trace.layers {
                run_belady(trace, layer..layer + 1, slots, &mut rate);
            }
        }
        Scope::Global(slots) => run_belady(trace, 0..trace.layers, slots, &mut rate),
    }
    rate
}

fn run_belady(trace: &Trace, layers: std::ops::Range<usize>, slots: usize, rate: &mut HitRate) {
    const NEVER: u64 = u64::MAX;
    // Next use of each request, found by walking backwards.
    let width = trace.layers * trace.top_k;
    let mut next_of = vec![NEVER; trace.ids.len()];
    let mut upcoming = vec![NEVER; trace.layers * trace.experts];
    for index in (0..trace.ids.len()).rev() {
        let layer = index % width / trace.top_k;
        let key = layer * trace.experts + usize::from(trace.ids[index]);
        next_of[index] = std::mem::replace(&mut upcoming[key], index as u64);
    }
    // Residents by next use, and the next use of each resident.
    let mut order: BTreeSet<(u64, usize)> = BTreeSet::new();
    let mut due: Vec<Option<u64>> = vec![None; trace.layers * trace.experts];
    for token in 0..trace.tokens() {
        for layer in layers.clone() {
            let first = (token * trace.layers + layer) * trace.top_k;
            let mut fresh = Vec::with_capacity(trace.top_k);
            let mut hits = 0;
            let span = first..first + trace.top_k;
            for (&id, &next) in trace.ids[span.clone()].iter().zip(&next_of[span]) {
                let key = layer * trace.experts + usize::from(id);
                if let Some(old) = due[key].take() {
                    order.remove(&(old, key));
                    hits += 1;
                }
                fresh.push((next, key));
            }
            while order.len() + fresh.len() > slots
                && order.pop_last().is_some_and(|(_, key)| {
                    due[key] = None;
                    true
                })
            {}
            for (next, key) in fresh {
                due[key] = Some(next);
                order.insert((next, key));
            }
            if token >= trace.prompt_tokens {
                rate.requests += trace.top_k as u64;
                rate.hits += hits;
            }
        }
    }
}

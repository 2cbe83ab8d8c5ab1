//! What each of several stages has done: a line each, by the number of the stage.

use std::ops::Range;

use engine::stages::StageWork;
use serde_json::{Value, json};
use store::cache::{PhaseCounters, StoreCounters};

use super::exposition::Exposition;
use crate::work::Status;

/// Nothing where one device computes all layers: everything else on the page is of that.
pub(super) fn write(page: &mut Exposition, status: &Status) {
    let work = &status.work;
    let mut each = |name: &str, help: &str, value: &dyn Fn(usize) -> f64| {
        if work.is_empty() {
            return;
        }
        page.family(name, "counter", help);
        for stage in 0..work.len() {
            page.sample(name, &[("stage", &stage.to_string())], value(stage));
        }
    };
    let experts = |stage: usize| status.stages.get(stage).map(|(_, counters)| counters);
    let sum = |stage: usize, of: &dyn Fn(&StoreCounters) -> u64| {
        experts(stage).map_or(0.0, |counters| of(counters) as f64)
    };
    each("stage_batches_total", "Batches that a stage computed.", &|it| work[it].batches as f64);
    let help = "Time in which a stage computed.";
    each("stage_busy_seconds_total", help, &|it| work[it].busy.as_secs_f64());
    let help = "Time in which a stage had nothing to compute while others had.";
    each("stage_wait_seconds_total", help, &|it| work[it].waited.as_secs_f64());
    let help = "Experts that a stage's layers asked for.";
    each("stage_expert_requests_total", help, &|it| {
        sum(it, &|counters| counters.prefill.requests + counters.decode.requests)
    });
    let help = "Of these, found in a slot.";
    each("stage_expert_hits_total", help, &|it| {
        sum(it, &|counters| counters.prefill.hits + counters.decode.hits)
    });
    let help = "Bytes of experts that a stage read.";
    each("stage_expert_bytes_total", help, &|it| sum(it, &|counters| counters.bytes_read));
}

/// The same for the status: of one stage its layers and experts alone. `phase` shows the counters of prompts, or of
/// answers.
pub(super) fn json(status: &Status, phase: impl Fn(&PhaseCounters) -> Value) -> Value {
    let stage = |(index, (layers, experts)): (usize, &(Range<usize>, StoreCounters))| {
        let mut shown = json!({
            "layers": [layers.start, layers.end],
            "prefill": phase(&experts.prefill),
            "decode": phase(&experts.decode),
            "bytes_read": experts.bytes_read,
        });
        if let Some(&StageWork { batches, busy, waited }) = status.work.get(index) {
            shown["batches"] = batches.into();
            shown["busy_s"] = busy.as_secs_f64().into();
            shown["waited_s"] = waited.as_secs_f64().into();
        }
        shown
    };
    status.stages.iter().enumerate().map(stage).collect()
}

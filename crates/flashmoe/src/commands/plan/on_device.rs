//! How fast a model will be on GPUs: device memory, pinned memory over the bus, disk. The most used records are in
//! device memory. What a prompt computes is not predicted: products of a GPU are not measured by `plan`.

use engine::backend::cuda::{PREFILL_PART, RECORDS_IN_BOTH};
use serde_json::{Value, json};
use store::LayerId;

use super::predict::{Range, shown, two_digits};
use crate::plan::Plan;
use crate::plan::device::DevicePlan;
use crate::plan::sweep::hit_rate;
use crate::speed::Speeds;

/// What a layer of a step on a GPU takes besides reading its weights: kernels that wait for one another. Fitted with
/// [`STEP_BANDWIDTH`] to the 35B shape of 40 and the 397B shape of 12 layers on an H100 (docs/benchmarks.md, "CUDA").
const LAYER_SECONDS: f64 = 43e-6;
/// And at least and at most, of rows of docs/benchmarks.md: 36 us of 40 layers of the 35B shape on an H200, 73 of six
/// layers of gpt-oss-20b in its first answer.
const LAYER_RANGE: [f64; 2] = [25e-6, 75e-6];
/// The most of layers with latent rows, compressed attention or streams: 220 us of four layers of DeepSeek-V4-Flash.
const HEAVY_LAYER_SECONDS: f64 = 220e-6;
/// What a token takes at most that no layer explains: the head and the way to the host.
const TOKEN_SECONDS: f64 = 350e-6;
/// The share of the measured bandwidth at which a step reads what is in device memory.
const STEP_BANDWIDTH: f64 = 0.85;
/// And at least and at most: narrow matrices leave multiprocessors idle.
const BANDWIDTH_RANGE: [f64; 2] = [0.5, 0.95];
/// How much shorter and longer bus and disk may take than the curve of hits says: 81 % were found where it says 73.
const MISS_RANGE: [f64; 2] = [0.6, 1.6];
/// A GPU that is reached by Vulkan or Metal is so much slower at most (docs/apple.md).
const PORTABLE: f64 = 3.0;
/// What a first answer may be slower by, while records that it needs are not where they will be.
const COLD: f64 = 4.0;

/// Seconds of a token on a GPU, of `layers` layers, whose weights device memory, bus and disk give in so many seconds.
/// The three take turns: a layer's experts are known when its mixer has been computed.
pub(super) fn token_seconds(layers: usize, memory: f64, bus: f64, disk: f64) -> f64 {
    layers as f64 * LAYER_SECONDS + memory / STEP_BANDWIDTH + bus + disk
}

/// The share of the experts that is in some memory.
pub(super) struct Coverage {
    /// When a step asks for them.
    pub(super) step: f64,
    /// When a prompt passes, which needs all of them and room for those that it reads.
    pub(super) prompt: f64,
}

/// What GPU memory with a share `slots` of the experts and pinned memory with a share `pinned` hold together: a record
/// is in one of them, but for a share `both`.
pub(super) fn coverage(slots: f64, pinned: f64, both: f64) -> Coverage {
    let kept = pinned * (1.0 - 1.0 / PREFILL_PART as f64);
    Coverage { step: (slots + (pinned - both).max(0.0)).min(1.0), prompt: (slots + kept).min(1.0) }
}

/// Seconds of a token, by where its bytes come from.
#[derive(Clone, Copy, Debug)]
struct Sources {
    layers: usize,
    memory: f64,
    bus: f64,
    disk: f64,
    /// Whether its layers are many small kernels.
    heavy: bool,
    /// Whether the GPU is reached by Vulkan or Metal.
    portable: bool,
}

impl Sources {
    /// Tokens per second, from the least to the most.
    fn range(&self) -> Range {
        let layers = self.layers as f64;
        let missed = self.bus + self.disk;
        let least =
            layers * LAYER_RANGE[0] + self.memory / BANDWIDTH_RANGE[1] + missed * MISS_RANGE[0];
        let layer = if self.heavy { HEAVY_LAYER_SECONDS } else { LAYER_RANGE[1] };
        let computing = TOKEN_SECONDS + layers * layer + self.memory / BANDWIDTH_RANGE[0];
        let computing = if self.portable { computing * PORTABLE } else { computing };
        Range { low: 1.0 / (computing + missed * MISS_RANGE[1]), high: 1.0 / least }
    }

    /// What takes longest, and its seconds.
    fn limit(&self) -> (&'static str, f64) {
        let slowest = self.memory.max(self.bus).max(self.disk);
        let name = match slowest {
            _ if slowest == self.disk && self.disk > 0.0 => "disk",
            _ if slowest == self.bus => "the bus",
            _ => "GPU memory",
        };
        (name, slowest.max(1e-9))
    }
}

/// What is expected of a plan on GPUs.
#[derive(Clone, Debug)]
pub(super) struct DevicePrediction {
    /// Tokens per second once the caches are warm.
    pub(super) rate: f64,
    /// From the least to the most of it.
    decode: Range,
    /// Of the first answer.
    cold: Range,
    sources: Sources,
    /// The share of experts found in GPU memory, and in any memory.
    found: [f64; 2],
    /// Seconds of moving records for a chunk of a prompt.
    sweep: f64,
}

impl DevicePrediction {
    pub(super) fn of(plan: &Plan, speeds: &Speeds) -> Self {
        let (config, layers) = (&plan.config, plan.config.trunk_layers());
        let record =
            |layer: usize| plan.checkpoint.record_bytes(LayerId(layer as u16)).unwrap_or(0);
        let routed: u64 = (0..layers).map(|layer| record(layer) * plan.backend.top_k as u64).sum();
        let all: u64 = plan.checkpoint.expert_bytes();
        let bus_speed = speeds.bus.unwrap_or(f64::INFINITY);
        let (slots, experts) = plan.device_slots();
        let (slots, experts) = (slots as f64 / experts.max(1) as f64, experts.max(1) as f64);
        let holds_all = plan.devices.iter().all(DevicePlan::holds_all);
        let pinned = match (&plan.slots, holds_all) {
            (Some(records), false) => records.slots() as f64 / records.experts().max(1) as f64,
            _ => 0.0,
        };
        let inside = hit_rate(slots.min(1.0));
        let both = (RECORDS_IN_BOTH * plan.devices.len()) as f64 / experts;
        let Coverage { step, prompt } = match plan.pinned_all() {
            true => Coverage { step: 1.0, prompt: 1.0 },
            false => coverage(slots, pinned, both),
        };
        let found = hit_rate(step);
        let routed = routed as f64;
        let sources = Sources {
            layers,
            memory: (plan.trunk_bytes_per_token() as f64 + routed) / speeds.memory,
            bus: routed * (1.0 - inside) / bus_speed,
            disk: routed * (1.0 - found) / speeds.disk,
            heavy: config.latent.is_some() || config.compressed.is_some() || config.gated.is_some(),
            portable: plan.devices.iter().any(|device| device.portable.is_some()),
        };
        let outside = all as f64 * (1.0 - slots.min(1.0));
        let decode = sources.range();
        let cold = if holds_all { decode.low } else { decode.low / COLD };
        Self {
            rate: 1.0 / token_seconds(layers, sources.memory, sources.bus, sources.disk),
            decode,
            cold: Range { low: cold, high: decode.high },
            sources,
            found: [inside, found],
            sweep: (outside / bus_speed).max(all as f64 * (1.0 - prompt) / speeds.disk),
        }
    }

    pub(super) fn lines(&self, plan: &Plan, speeds: &Speeds, measured: &str) -> Vec<String> {
        let ([inside, found], (limit, slowest)) = (self.found, self.sources.limit());
        vec![
            format!(
                "disk {:.2} GB/s, bus {:.1} GB/s, GPU memory {:.0} GB/s ({measured})",
                speeds.disk / 1e9,
                speeds.bus.unwrap_or(f64::INFINITY) / 1e9,
                speeds.memory / 1e9
            ),
            format!(
                "decode, warm: about {} tok/s, {} expected, at most {}, limited by {limit}; {:.0} % of experts \
                 found in GPU memory, {:.0} % in pinned memory",
                two_digits(self.rate),
                shown(self.decode),
                two_digits(1.0 / slowest),
                inside * 100.0,
                (found - inside).max(0.0) * 100.0
            ),
            format!(
                "prefill: {:.2} s of moving records per chunk of {} tokens once all experts are needed",
                self.sweep, plan.backend.batch_tokens
            ),
        ]
    }

    /// With the names of a processor's prediction.
    pub(super) fn json(&self) -> Value {
        let range = |range: Range| json!([range.low, range.high]);
        let (limit, slowest) = self.sources.limit();
        json!({
            "decode_tok_per_s": range(self.decode),
            "decode_bound_tok_per_s": 1.0 / slowest,
            "decode_limit": limit,
            "decode_cold_tok_per_s": range(self.cold),
            "hit_ratio": self.found[0],
            "prefill_tok_per_s": null,
            "prompt_of_20000_tokens_seconds": null,
            "with_more_memory": null,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_count_together_but_for_what_is_in_both() {
        let Coverage { step, prompt } = coverage(0.2, 0.2, 0.00625);
        assert!((step - 0.39375).abs() < 1e-12 && (prompt - 0.375).abs() < 1e-12);
        // Less room than what is on its way, room for everything, nothing outside GPU memory.
        assert_eq!(coverage(0.5, 0.004, 0.00625).step, 0.5);
        assert_eq!(coverage(0.6, 0.6, 0.00625).step, 1.0);
        assert_eq!(coverage(1.0, 0.0, 0.00625).prompt, 1.0);
    }

    #[test]
    fn a_token_takes_as_long_as_was_measured_on_the_card_that_it_was_fitted_to() {
        // Layers, milliseconds of memory as planned, of bus and disk as measured, tokens per second as measured.
        for (layers, memory, bus, disk, measured) in [
            (40, 0.66, 0.0, 0.0, 403.0),
            (40, 0.66, 0.53, 0.0, 330.0),
            (40, 0.66, 1.17, 0.0, 273.0),
            (40, 0.66, 2.14, 0.0, 219.0),
            (40, 0.66, 5.89, 0.0, 116.5),
            (40, 0.66, 2.45, 52.94, 16.2),
            (12, 0.97, 0.0, 0.0, 598.0),
            (12, 0.97, 2.49, 0.0, 231.0),
        ] {
            let expected = 1.0 / token_seconds(layers, memory / 1e3, bus / 1e3, disk / 1e3);
            assert!((expected / measured - 1.0).abs() < 0.08, "{expected:.0} for {measured}");
        }
    }
    /// Rows of docs/benchmarks.md on an H200: layers, milliseconds of memory and bus, tokens per second.
    #[test]
    fn measured_rows_lie_in_the_range_that_is_expected() {
        for (layers, memory, bus, heavy, measured) in [
            (40, 0.40, 0.0, false, 526.0),
            (40, 0.40, 2.8, false, 247.0),
            (12, 0.57, 0.0, false, 691.0),
            (6, 0.43, 0.0, false, 842.0),
            (6, 0.18, 0.0, false, 867.0),
            (4, 0.47, 0.0, true, 693.0),
            (2, 0.32, 0.0, true, 1357.0),
            (8, 0.10, 0.0, true, 1140.0),
        ] {
            let (memory, bus) = (memory / 1e3, bus / 1e3);
            let sources = Sources { layers, memory, bus, disk: 0.0, heavy, portable: false };
            let Range { low, high } = sources.range();
            assert!((low..high).contains(&measured), "{low:.0} to {high:.0} for {measured}");
        }
    }
}

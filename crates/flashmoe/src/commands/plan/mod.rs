//! `flashmoe plan`: what goes where and how fast it will be, measured on this disk and this memory.
//!
//! The account is the one that loading follows: what is refused here does not start, what is granted does
//! not overrun. Speeds come from the roofline of docs/benchmarks.md: per token the bytes that must come
//! from disk over its bandwidth at this record size, and the bytes that arithmetic must touch over the
//! memory's; the slower of the two limits. What is expected is said beside that. A model that is not downloaded is
//! planned from its headers.

mod machines;
mod predict;
mod preview;

use std::io::Write;
use std::ops::Range;

use anyhow::Result;
use engine::backend::cpu::Requirements;
use engine::backend::cuda::{PREFILL_PART, RECORDS_IN_BOTH};
use serde_json::json;
use store::LayerId;
use store::format::Head;

use super::table::machine_name;
use crate::arguments::{
    AssumedMachine, ByteSize, ModelArguments, PlanArguments, QUEUE_DEFAULT, RoutingChoice,
};
use crate::failure::Failure;
use crate::plan::device::DevicePlan;
use crate::plan::requests::RequestPlan;
use crate::plan::stages::StagePlan;
use crate::plan::sweep::hit_rate;
use crate::plan::{BudgetSource, Plan, Seats, machine};
use crate::progress::duration;
use crate::speed::Speeds;
use predict::{Prediction, Sizes, two_digits};

/// Programs that run or wait for each of our threads from which on a measurement is not of this machine alone.
const BUSY: f64 = 0.5;

pub(crate) fn plan(arguments: &PlanArguments, out: &mut dyn Write) -> Result<()> {
    if let Some(file) = &arguments.machines {
        return machines::plan(arguments, file, out);
    }
    let forecast = Forecast::make(&arguments.model, arguments.machine)?;
    let text = match arguments.json {
        true => format!("{}\n", forecast.json()),
        false => forecast.text(),
    };
    out.write_all(text.as_bytes()).map_err(Failure::io)?;
    Ok(())
}

/// A plan, what was measured for it, and what is expected of it.
pub(super) struct Forecast {
    plan: Plan,
    /// Where the model is not downloaded.
    preview: Option<preview::Preview>,
    speeds: Speeds,
    /// On the processor.
    prediction: Option<Prediction>,
    /// Of the machine, while it was measured.
    load: Option<f64>,
    /// The machine is none that was measured.
    assumed: bool,
}

impl Forecast {
    /// Plans a model and measures this machine, or plans it for another one.
    pub(super) fn make(
        arguments: &ModelArguments,
        assumed: Option<AssumedMachine>,
    ) -> Result<Self> {
        if arguments.routing != RoutingChoice::Model {
            let reason = "--routing has no part in a plan; give it to bench, run or score";
            return Err(Failure::usage(reason).into());
        }
        let mut model = arguments.clone();
        let remote = crate::models::remote(&model.model)?;
        let assumed = assumed.as_ref();
        let spare = assumed.map(|machine| ByteSize(machine::Memory::of(machine.ram).spare()));
        let budget = model.memory.or(spare);
        let preview = remote.map(|name| preview::preview(&name, budget)).transpose()?;
        if let Some(preview) = &preview {
            model.model.clone_from(&preview.headers.path);
        }
        let plan = Plan::resolve_on(&model, Seats::CONVERSATION, assumed)?;
        let load = assumed.is_none().then(machine::load).flatten();
        let speeds = match assumed {
            Some(machine) => Speeds::assumed(machine, &plan)?,
            None => Speeds::measure_at(&plan, preview.as_ref().map(|it| it.place.as_path()))?,
        };
        let ours = load.map_or(1.0, |load| machine::share(load, plan.threads));
        let prediction = plan.devices.is_empty().then(|| Sizes::of(&plan).predict(&speeds, ours));
        Ok(Self { plan, preview, speeds, prediction, load, assumed: assumed.is_some() })
    }

    /// For programs: sizes in bytes, speeds in bytes and operations per second.
    pub(super) fn json(&self) -> serde_json::Value {
        as_json(&self.plan, &self.speeds, self.prediction.as_ref(), self.load)
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let Self { plan, preview, speeds, prediction, load, assumed } = self;
        let measured = match assumed {
            true => "assumed by --machine".to_owned(),
            false => measured(plan, *load),
        };
        let (expected, details) = match (prediction, plan.device_names()) {
            (Some(prediction), _) => (
                format!(
                    "on the processor, about {} tok/s; 20,000 tokens of prompt in about {}",
                    two_digits(prediction.decode.middle()),
                    duration(prediction.prompt.middle())
                ),
                prediction.lines(plan, speeds, &measured),
            ),
            (None, Some(names)) => {
                let (rate, lines) = device_prediction(plan, speeds, &measured);
                (format!("on {names}, about {} tok/s", two_digits(rate)), lines)
            }
            (None, None) => Default::default(),
        };
        let name = match preview {
            Some(preview) => preview.name.clone(),
            None => crate::models::short_name(&plan.arguments.model),
        };
        let place = if *assumed { "would run there" } else { "runs here" };
        let mut lines = vec![headline(plan, &name), format!("{place}: yes, {expected}")];
        if let Some(preview) = preview {
            lines.extend(preview.lines.iter().cloned());
        }
        lines.push(String::new());
        lines.extend(account(plan, *assumed));
        lines.push(String::new());
        lines.extend(details);
        lines.push(String::new());
        lines.join("\n")
    }
}

/// What the model is.
fn headline(plan: &Plan, name: &str) -> String {
    let experts = plan.checkpoint.experts.iter().flatten().next();
    let encoding = experts.map_or("none".to_owned(), |it| it.shapes[0].encoding.label());
    let bytes = plan.checkpoint.files.iter().map(|file| file.length).sum();
    let family = plan.config.family.name();
    format!("{name}: {family}, experts in {encoding}, {}", ByteSize(bytes))
}

/// How speeds were measured: other programs take their part of what is measured.
fn measured(plan: &Plan, load: Option<f64>) -> String {
    match load.filter(|&load| load >= BUSY * plan.threads as f64) {
        Some(load) => format!("measured while other programs were running: load {load:.1}"),
        None => "measured now".to_owned(),
    }
}

/// Sizes in bytes, speeds in bytes and operations per second.
fn as_json(
    plan: &Plan,
    speeds: &Speeds,
    prediction: Option<&Prediction>,
    load: Option<f64>,
) -> serde_json::Value {
    let parts = plan.parts.iter().map(|part| (machine_name(part.name), part.bytes.into()));
    let parts: serde_json::Map<_, _> = parts.collect();
    let device = plan.device().map(device_json);
    let stages = plan.stages.iter().enumerate();
    let stages = stages.map(|(index, stage)| stage_json(stage, plan.devices.get(index)));
    json!({
        "parts": parts,
        "slots": plan.slots.as_ref().map(store::cache::StorePlan::slots),
        "slot_bytes": plan.slots.as_ref().map(store::cache::StorePlan::bytes),
        "experts": plan.slots.as_ref().map(store::cache::StorePlan::experts),
        "total_bytes": plan.total_bytes(),
        "budget_bytes": plan.budget,
        "least_budget_bytes": plan.least_memory,
        "context": plan.backend.context,
        "prefill_chunk": plan.backend.batch_tokens,
        "threads": plan.threads,
        "device": device,
        "stages": stages.collect::<Vec<_>>(),
        "head": head_bytes(plan).map(|[weights, experts]| {
            json!({ "bytes": weights, "expert_bytes": experts, "used": plan.config.head })
        }),
        "trunk_bytes_per_token": plan.trunk_bytes_per_token(),
        "disk_bytes_per_s": speeds.disk,
        "memory_bytes_per_s": speeds.memory,
        "bus_bytes_per_s": speeds.bus,
        "operations_per_s": speeds.compute,
        "load": load,
        "expected": prediction.map(Prediction::json),
    })
}

/// A GPU of the plan.
fn device_json(device: &DevicePlan) -> serde_json::Value {
    json!({
        "name": device.info.name,
        "bytes": device.total_bytes(),
        "slots": device.slots.start,
        "slots_at_full_context": device.slots.full,
    })
}

/// A stage of the plan.
fn stage_json(stage: &StagePlan, device: Option<&DevicePlan>) -> serde_json::Value {
    let slots = stage.slots.as_ref();
    json!({
        "layers": [stage.layers.start, stage.layers.end],
        "device": device.map(device_json),
        "slots": slots.map(store::cache::StorePlan::slots),
        "slot_bytes": slots.map(store::cache::StorePlan::bytes),
        "experts": slots.map(store::cache::StorePlan::experts),
    })
}

/// What the model's head takes of what is planned, or would take; nothing for models without.
fn head_bytes(plan: &Plan) -> Option<[u64; 2]> {
    match &plan.checkpoint.head {
        Head::Apart(head) => Some([head.trunk_bytes(), head.expert_bytes()]),
        Head::Added => {
            let layer = plan.config.trunk_layers();
            let own = |name: &String| name.starts_with(&format!("layers.{layer}."));
            let tensors = plan.checkpoint.tensors.iter().filter(|(name, _)| own(name));
            let record = plan.checkpoint.record_bytes(LayerId(layer as u16)).unwrap_or(0);
            let experts = record * plan.config.moe.experts as u64;
            Some([tensors.map(|(_, tensor)| tensor.bytes()).sum(), experts])
        }
        Head::Absent | Head::Unusable(_) => None,
    }
}

/// Bytes of its weights, and the rest in words.
fn head(plan: &Plan) -> Option<(u64, String)> {
    let [weights, experts] = head_bytes(plan)?;
    let experts = ByteSize(experts);
    let used = match plan.config.head {
        true => "in the parts above",
        false => "not loaded: --draft head or auto loads it, on the processor or an NVIDIA GPU",
    };
    Some((weights, format!("and experts of {experts}, {used}")))
}

/// Lines of a name, bytes and what is to be said of them.
#[derive(Default)]
struct Rows(Vec<String>);

impl Rows {
    fn add(&mut self, name: &str, bytes: u64, note: String) {
        self.0.push(format!("{name:<24} {:>12}  {note}", ByteSize(bytes).to_string()));
    }
}

fn account(plan: &Plan, assumed: bool) -> Vec<String> {
    let mut rows = Rows::default();
    for (device, stage) in plan.devices.iter().zip(&plan.stages) {
        of_device(plan, device, stage, &mut rows);
    }
    of_process(plan, &mut rows);
    rows.add("in all", plan.total_bytes(), String::new());
    of_machine(plan, assumed, &mut rows);
    rows.0
}

/// A GPU's memory.
fn of_device(plan: &Plan, device: &DevicePlan, stage: &StagePlan, rows: &mut Rows) {
    let free = format!("{} free", ByteSize(device.info.free_bytes));
    let free = match plan.devices.len() {
        1 => free,
        _ => format!("{free}; layers {} to {}", stage.layers.start, stage.layers.end - 1),
    };
    rows.add(&device.info.name, device.info.total_bytes, free);
    for part in device.parts.iter().filter(|part| part.bytes > 0) {
        let note = match (part.name, plan.arguments.prefill_chunk) {
            ("activations", None) if !device.holds_all() => format!(
                "prefill chunk of {} tokens, which moves the fewest records",
                plan.backend.batch_tokens
            ),
            ("activations", _) => {
                format!("prefill chunk of {} tokens", plan.backend.batch_tokens)
            }
            ("key-value cache", _) if device.slots.grows() => format!(
                "at the start; taken from expert slots as conversations grow, at most {}",
                ByteSize(device.full_cache_bytes)
            ),
            ("prefetched experts", _) => {
                "records that steps fetch before they are chosen".to_owned()
            }
            _ => String::new(),
        };
        rows.add(&format!("  {}", part.name), part.bytes, note);
    }
    if device.holds_all() && device.options.prediction != engine::backend::cuda::Prediction::Off {
        let note = "nothing to predict: every expert has a slot";
        rows.add("  prefetched experts", 0, note.to_owned());
    }
    let slots = device.slots;
    let mut note = format!("{} slots for {} experts", slots.start, device.experts);
    if slots.grows() {
        note.push_str(&format!(" at the start, {} at full context", slots.full));
    }
    rows.add("  expert slots", device.slot_bytes_at_start(), note);
    rows.add("  in all", device.total_bytes(), format!("of {}", ByteSize(device.budget)));
}

/// The process's own memory: parts, and the slots of experts.
fn of_process(plan: &Plan, rows: &mut Rows) {
    for part in &plan.parts {
        let note = match part.name {
            "key-value cache" => {
                let each = Requirements::key_value_bytes_per_token(&plan.config, &plan.backend);
                let (context, kv_type) = (plan.backend.context, plan.backend.kv_type);
                format!("context of {context} tokens, {} each in {kv_type}", ByteSize(each))
            }
            "activations" => format!("prefill chunk of {} tokens", plan.backend.batch_tokens),
            _ => String::new(),
        };
        rows.add(part.name, part.bytes, note);
    }
    if plan.stages.len() > 1 {
        for stage in &plan.stages {
            let Range { start, end } = stage.layers;
            let slots = stage.slots.as_ref();
            let note = slots.map_or(String::new(), |slots| {
                format!("{} slots for {} experts", slots.slots(), slots.experts())
            });
            let name = format!("  layers {start} to {}", end - 1);
            rows.add(&name, slots.map_or(0, store::cache::StorePlan::bytes), note);
        }
    }
    if let Some(slots) = &plan.slots {
        let note = format!("{} slots for {} experts", slots.slots(), slots.experts());
        rows.add("expert slots", slots.bytes(), note);
    }
}

/// What serving adds, the budget and what the machine has.
fn of_machine(plan: &Plan, assumed: bool, rows: &mut Rows) {
    let requests = RequestPlan::new(plan.budget, plan.backend.context, 1 + QUEUE_DEFAULT);
    let note = format!(
        "with serve: bodies of up to {}, {} connections",
        ByteSize(requests.limits.body_bytes as u64),
        requests.limits.connections
    );
    rows.add("requests", requests.bytes, note);
    let source = match plan.budget_source {
        BudgetSource::Asked => "asked for with --memory",
        BudgetSource::Group => "85 % of what the control group leaves",
        BudgetSource::Machine if assumed => "85 % of the memory that --machine leaves",
        BudgetSource::Machine => "85 % of the memory available now",
    };
    rows.add("budget", plan.budget, source.to_owned());
    if let Some((bytes, note)) = head(plan) {
        rows.add("draft head", bytes, note);
    }
    if let Some(least) = plan.least_memory {
        let typed = ByteSize(least).typed();
        rows.add("least budget", least, format!("--memory {typed} works with these arguments"));
    }
    let excess = match plan.beyond_the_machine() {
        Some(_) => ", less than --memory",
        None => "",
    };
    let available = format!("{} available{excess}", ByteSize(plan.memory.available));
    rows.add("RAM", plan.memory.total, available);
    if let Some(group) = &plan.memory.group {
        rows.add("control group limit", group.limit, format!("{} in use", ByteSize(group.used)));
    }
}

/// What a layer of a step on a GPU takes besides reading its weights: kernels that wait for one another. Fitted with
/// [`STEP_BANDWIDTH`] to the 35B shape of 40 and the 397B shape of 12 layers on an H100 (docs/benchmarks.md, "CUDA").
const LAYER_SECONDS: f64 = 43e-6;
/// The share of the measured bandwidth at which a step reads what is in device memory.
const STEP_BANDWIDTH: f64 = 0.85;

/// Seconds of a token on a GPU, of `layers` layers, whose weights device memory, bus and disk give in so many seconds.
/// The three take turns: a layer's experts are known when its mixer has been computed.
fn token_seconds(layers: usize, memory: f64, bus: f64, disk: f64) -> f64 {
    layers as f64 * LAYER_SECONDS + memory / STEP_BANDWIDTH + bus + disk
}

/// The share of the experts that is in some memory.
struct Coverage {
    /// When a step asks for them.
    step: f64,
    /// When a prompt passes, which needs all of them and room for those that it reads.
    prompt: f64,
}

/// What GPU memory with a share `slots` of the experts and pinned memory with a share `pinned` hold together: a record
/// is in one of them, but for a share `both`.
fn coverage(slots: f64, pinned: f64, both: f64) -> Coverage {
    let kept = pinned * (1.0 - 1.0 / PREFILL_PART as f64);
    Coverage { step: (slots + (pinned - both).max(0.0)).min(1.0), prompt: (slots + kept).min(1.0) }
}

/// The tiers of a GPU: device memory, pinned memory over the bus, disk. The most used records are in device memory.
/// Gives the tokens per second that are expected, and the lines.
fn device_prediction(plan: &Plan, speeds: &Speeds, measured: &str) -> (f64, Vec<String>) {
    let layers = plan.config.trunk_layers();
    let record = |layer: usize| plan.checkpoint.record_bytes(LayerId(layer as u16)).unwrap_or(0);
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
    let memory = (plan.trunk_bytes_per_token() as f64 + routed) / speeds.memory;
    let (bus, disk) = (routed * (1.0 - inside) / bus_speed, routed * (1.0 - found) / speeds.disk);
    let slowest = memory.max(bus).max(disk);
    let limit = match slowest {
        _ if slowest == disk && disk > 0.0 => "disk",
        _ if slowest == bus => "the bus",
        _ => "GPU memory",
    };
    let outside = all as f64 * (1.0 - slots.min(1.0));
    let sweep = (outside / bus_speed).max(all as f64 * (1.0 - prompt) / speeds.disk);
    let rate = 1.0 / token_seconds(plan.config.trunk_layers(), memory, bus, disk);
    let lines = vec![
        format!(
            "disk {:.2} GB/s, bus {:.1} GB/s, GPU memory {:.0} GB/s ({measured})",
            speeds.disk / 1e9,
            bus_speed / 1e9,
            speeds.memory / 1e9
        ),
        format!(
            "decode, warm: about {} tok/s, at most {}, limited by {limit}; {:.0} % of experts found in GPU \
             memory, {:.0} % in pinned memory",
            two_digits(rate),
            two_digits(1.0 / slowest.max(1e-9)),
            inside * 100.0,
            (found - inside).max(0.0) * 100.0
        ),
        format!(
            "prefill: {sweep:.2} s of moving records per chunk of {} tokens once all experts are needed",
            plan.backend.batch_tokens
        ),
    ];
    (rate, lines)
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
}

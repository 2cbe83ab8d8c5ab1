//! `flashmoe plan`: what goes where and how fast it will be, measured on this disk and this memory.
//!
//! The account is the one that loading follows: what is refused here does not start, what is granted does
//! not overrun. Speeds come from the roofline of docs/benchmarks.md: per token the bytes that must come
//! from disk over its bandwidth at this record size, and the bytes that arithmetic must touch over the
//! memory's; the slower of the two limits. What is expected is said beside that. A model that is not downloaded is
//! planned from its headers.

mod machines;
mod on_device;
mod predict;
mod preview;

use std::io::Write;
use std::ops::Range;

use anyhow::Result;
use engine::backend::cpu::Requirements;
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
use crate::plan::{BudgetSource, Plan, Seats, machine};
use crate::progress::duration;
use crate::speed::Speeds;
use on_device::{Coverage, DevicePrediction, coverage, token_seconds};
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

/// What is expected of a plan.
enum Expected {
    OnProcessor(Prediction),
    OnDevice(DevicePrediction),
}

/// A plan, what was measured for it, and what is expected of it.
pub(super) struct Forecast {
    plan: Plan,
    /// Where the model is not downloaded.
    preview: Option<preview::Preview>,
    speeds: Speeds,
    expected: Expected,
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
        let expected = match plan.devices.is_empty() {
            true => Expected::OnProcessor(Sizes::of(&plan).predict(&speeds, ours)),
            false => Expected::OnDevice(DevicePrediction::of(&plan, &speeds)),
        };
        Ok(Self { plan, preview, speeds, expected, load, assumed: assumed.is_some() })
    }

    /// For programs: sizes in bytes, speeds in bytes and operations per second.
    pub(super) fn json(&self) -> serde_json::Value {
        as_json(&self.plan, &self.speeds, &self.expected, self.load)
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let Self { plan, preview, speeds, expected, load, assumed } = self;
        let measured = match assumed {
            true => "assumed by --machine".to_owned(),
            false => measured(plan, *load),
        };
        let (expected, details) = match expected {
            Expected::OnProcessor(found) => (
                format!(
                    "on the processor, about {} tok/s; 20,000 tokens of prompt in about {}",
                    two_digits(found.decode.middle()),
                    duration(found.prompt.middle())
                ),
                found.lines(plan, speeds, &measured),
            ),
            Expected::OnDevice(found) => {
                let names = plan.device_names().unwrap_or_default();
                let rate = two_digits(found.rate);
                (format!("on {names}, about {rate} tok/s"), found.lines(plan, speeds, &measured))
            }
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
    expected: &Expected,
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
        "token_bytes_per_s": speeds.token,
        "bus_bytes_per_s": speeds.bus,
        "operations_per_s": speeds.compute,
        "load": load,
        "expected": match expected {
            Expected::OnProcessor(found) => found.json(),
            Expected::OnDevice(found) => found.json(),
        },
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

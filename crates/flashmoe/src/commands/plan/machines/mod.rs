//! `flashmoe plan --machines FILE`: how the layers of a model are cut over machines, and how fast that will be. The
//! formula and the cut alone: no queues, no simulation.

mod cost;
mod file;
mod hits;

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use engine::backend::cpu::{CpuOptions, Requirements};
use engine::model::Model;
use engine::weights::Catalog;
use serde_json::json;
use store::LayerId;
use store::format::Tensor;

use super::predict::{Sizes, two_digits};
use crate::arguments::{AssumedMachine, ByteSize, DeviceChoice, Devices, PlanArguments};
use crate::failure::Failure;
use crate::plan::machine::Memory;
use crate::plan::{AUTOMATIC_SHARE, DRIVER_BYTES, Plan, Seats, stages};
use crate::progress::duration;
use crate::speed::Speeds;
use cost::{Cost, Cut, Layer, Room, Shape};
use file::{Machine, Machines};
use hits::HitCurve;

/// GPU memory that is left to others.
const RESERVE_BYTES: f64 = (512 << 20) as f64;
/// A stage that ends no layer for so many times what a layer is expected to take is lost, and for no less than this.
const DEADLINE: (f64, f64) = (10.0, 10.0);

pub(super) fn plan(arguments: &PlanArguments, path: &Path, out: &mut dyn Write) -> Result<()> {
    let machines = Machines::read(path)?;
    let group = Group::of(arguments, machines)?;
    let toml = group.stages_file();
    if let Some(file) = &arguments.write_stages {
        let shown = || format!("--write-stages {}", store::shown::path(file));
        std::fs::write(file, &toml).map_err(Failure::io).with_context(shown)?;
    }
    let text = match arguments.json {
        true => format!("{}\n", group.json(&toml)),
        false => group.text(&toml),
    };
    out.write_all(text.as_bytes()).map_err(Failure::io)?;
    Ok(())
}

/// A model over machines.
struct Group {
    machines: Machines,
    plan: Plan,
    cut: Cut,
    /// What the first machine does alone, where the model fits.
    alone: Option<Cost>,
}

impl Group {
    fn of(arguments: &PlanArguments, machines: Machines) -> Result<Self> {
        let all = &machines.all;
        // Sizes alone are taken of this plan: of one machine with the memory of all, on which nothing is scarce.
        let whole = AssumedMachine {
            ram: all.iter().map(|machine| machine.has.ram).sum(),
            gpu: None,
            ..all[0].has
        };
        let mut model = arguments.model.clone();
        model.device = Devices::from(DeviceChoice::Cpu);
        let plan = Plan::resolve_on(&model, Seats::CONVERSATION, Some(&whole))?;
        let on_gpus = all[0].has.gpu.is_some();
        let compute = match all.iter().any(|it| it.has.gpu.is_none() && it.has.compute.is_none()) {
            true => Speeds::assumed(&whole, &plan)?.compute,
            false => 0.0,
        };
        let process = plan.process_bytes() + if on_gpus { DRIVER_BYTES } else { 0 };
        let rooms = all.iter().map(|machine| {
            let own = (Memory::of(machine.has.ram).spare() as f64 * AUTOMATIC_SHARE) as u64;
            let budget = machine.budget.unwrap_or(own).saturating_sub(process);
            Room::of(machine, budget as f64, compute, RESERVE_BYTES)
        });
        let rooms: Vec<_> = rooms.collect();
        let shape = shape(&plan, on_gpus)?;
        let Some(cut) = Cut::best(&shape, &rooms, arguments.streams > 1) else {
            let reason = format!(
                "no cut of {} layers over these machines holds the model's weights, with a context of {} tokens",
                shape.layers.len(),
                plan.backend.context
            );
            return Err(Failure::memory(reason).into());
        };
        let alone = shape.cost(&(0..shape.layers.len()), &rooms[0], true);
        Ok(Self { machines, plan, cut, alone })
    }

    fn machine(&self, index: usize) -> &Machine {
        &self.machines.all[index]
    }

    /// Those that would make it slower.
    fn left_out(&self) -> Vec<&str> {
        let used: Vec<_> = self.cut.0.iter().map(|(machine, ..)| *machine).collect();
        let all = self.machines.all.iter().enumerate();
        all.filter(|(index, _)| !used.contains(index)).map(|(_, it)| it.name.as_str()).collect()
    }

    /// Seconds of a layer's part of a chunk, and of the chunk on its way, many times.
    fn deadline(&self, layers: usize, cost: &Cost) -> u64 {
        let (times, least) = DEADLINE;
        (times * (cost.chunk.max(cost.token) / layers as f64 + cost.chunk_hop)).max(least).ceil()
            as u64
    }

    /// What `serve --stages` reads.
    fn stages_file(&self) -> String {
        let mut lines = vec!["# Written by flashmoe plan --machines".to_owned()];
        if let Some(identity) = &self.machines.identity {
            lines.push(format!("identity = {}", quoted(identity)));
        }
        for (machine, range, cost) in self.cut.0.iter().skip(1) {
            let machine = self.machine(*machine);
            let Some(way) = &machine.way else { continue };
            lines.push(format!("\n[[stage]] # {}", without_controls(&machine.name)));
            lines.push(format!("address = {}", quoted(&way.address)));
            lines.push(format!("layers = \"{}:{}\"", range.start, range.end));
            if let Some(certificate) = &way.certificate {
                lines.push(format!("certificate = {}", quoted(certificate)));
            }
            lines.push(format!("deadline = \"{}s\"", self.deadline(range.len(), cost)));
        }
        lines.push(String::new());
        lines.join("\n")
    }

    /// Seconds of a long prompt.
    fn prompt(&self) -> f64 {
        self.cut.prompt(self.plan.backend.batch_tokens as f64)
    }

    fn json(&self, toml: &str) -> serde_json::Value {
        let stage = |(machine, range, cost): &(usize, std::ops::Range<usize>, Cost)| {
            json!({
                "machine": self.machine(*machine).name,
                "layers": [range.start, range.end],
                "token_seconds": cost.token,
                "hop_seconds": cost.hop,
                "chunk_seconds": cost.chunk,
                "chunk_hop_seconds": cost.chunk_hop,
                "hit_ratio": cost.found,
                "slot_bytes": cost.slots as u64,
            })
        };
        json!({
            "stages": self.cut.0.iter().map(stage).collect::<Vec<_>>(),
            "left_out": self.left_out(),
            "one_stream_tok_per_s": 1.0 / self.cut.token(),
            "streams": self.cut.0.len(),
            "streams_together_tok_per_s": self.cut.together(),
            "first_alone_tok_per_s": self.alone.map(|cost| 1.0 / cost.token),
            "prompt_of_20000_tokens_seconds": self.prompt(),
            "context": self.plan.backend.context,
            "prefill_chunk": self.plan.backend.batch_tokens,
            "stages_file": toml,
        })
    }

    fn text(&self, toml: &str) -> String {
        let mut lines = vec![format!(
            "{:<16} {:>10} {:>12} {:>7} {:>10} {:>9} {:>9}",
            "machine", "layers", "experts", "found", "a token", "its hops", "a chunk"
        )];
        let ms = |seconds: f64| format!("{:.2} ms", seconds * 1e3);
        for (machine, range, cost) in &self.cut.0 {
            lines.push(format!(
                "{:<16} {:>10} {:>12} {:>5.0} % {:>10} {:>9} {:>9}",
                without_controls(&self.machine(*machine).name),
                format!("{} to {}", range.start, range.end - 1),
                ByteSize(cost.slots as u64).to_string(),
                cost.found * 100.0,
                ms(cost.token),
                ms(cost.hop),
                duration(cost.chunk + cost.chunk_hop),
            ));
        }
        let count = self.cut.0.len();
        lines.push(String::new());
        lines.push(format!("one stream: about {} tok/s", two_digits(1.0 / self.cut.token())));
        if let Some(alone) = self.alone {
            lines.push(format!("the first alone: about {} tok/s", two_digits(1.0 / alone.token)));
        }
        if count > 1 {
            let together = two_digits(self.cut.together());
            lines.push(format!("{count} streams, one in each stage: about {together} tok/s"));
        }
        let moved =
            if self.machines.all[0].has.gpu.is_some() { ", for moving records alone" } else { "" };
        lines.push(format!(
            "a prompt of 20,000 tokens in chunks of {}: about {}{moved}",
            self.plan.backend.batch_tokens,
            duration(self.prompt())
        ));
        for name in self.left_out() {
            let name = without_controls(name);
            lines.push(format!("left out: {name}: with it, it would be slower"));
        }
        if count > 1 {
            lines.push(String::new());
            lines.extend(self.starts());
            lines.push(format!("\nthe file of --stages:\n\n{toml}"));
        }
        lines.push(String::new());
        lines.join("\n")
    }

    /// The command line of each stage.
    fn starts(&self) -> Vec<String> {
        let model = store::shown::path(&self.plan.arguments.model).to_string();
        let (context, chunk) = (self.plan.backend.context, self.plan.backend.batch_tokens);
        let device = if self.machines.all[0].has.gpu.is_some() { "cuda" } else { "cpu" };
        let sizes = format!("--device {device} --context {context} --prefill-chunk {chunk}");
        let stages = self.cut.0.iter().skip(1).map(|(machine, range, _)| {
            let machine = self.machine(*machine);
            let address = machine.way.as_ref().map_or("", |way| way.address.as_str());
            let port = address.rsplit(':').next().unwrap_or("7777");
            let tls = match &self.machines.identity {
                Some(_) => format!("0.0.0.0:{port} --identity FOLDER --trust FIRST.pem"),
                None => format!("127.0.0.1:{port}"),
            };
            let (name, range) =
                (without_controls(&machine.name), format!("{}:{}", range.start, range.end));
            format!("{name}$ flashmoe stage {model} --layers {range} --listen {tls} {sizes}")
        });
        stages.collect()
    }
}

/// A string of a TOML file.
fn quoted(text: &str) -> String {
    // What JSON escapes, TOML does in the same way.
    serde_json::Value::from(text).to_string()
}

/// A name as it may be on a terminal and in a remark.
fn without_controls(name: &str) -> String {
    name.chars().filter(|letter| !letter.is_control()).take(40).collect()
}

/// The model by layers.
fn shape(plan: &Plan, on_gpus: bool) -> Result<Shape> {
    let (checkpoint, config) = (&plan.checkpoint, &plan.config);
    let mut catalog = Catalog::new(checkpoint);
    Model::declare(config, &mut catalog).map_err(Failure::engine)?;
    let count = config.trunk_layers();
    let head = catalog.of_layers(count..count).required_bytes() as f64;
    catalog.leave_behind();
    let embedding = match config.tied_head {
        true => 0,
        false => checkpoint.tensors.get("embed_tokens").map_or(0, Tensor::bytes),
    };
    let begins = stages::may_begin(checkpoint, config, on_gpus);
    let layer = |index: usize| {
        let held = catalog.of_layers(index..index + 1).required_bytes();
        let own = if index == 0 { embedding } else { 0 };
        let record = checkpoint.record_bytes(LayerId(index as u16)).unwrap_or(0);
        let experts = checkpoint.experts[index].as_ref().map_or(0, |it| it.experts.len());
        let used = if experts > 0 { plan.backend.top_k as u64 } else { 0 };
        Layer {
            held: held as f64,
            read: held.saturating_sub(own) as f64,
            routed: (record * used) as f64,
            experts: (record * experts as u64) as f64,
            count: experts,
            begins: begins[index],
        }
    };
    // The plan holds all records: what a slot has for each byte of one.
    let slots = plan.slots.as_ref().map_or(0, store::cache::StorePlan::bytes);
    let slot = (slots as f64 / checkpoint.expert_bytes().max(1) as f64).max(1.0);
    let (config, options) = (config.clone(), plan.backend.clone());
    let rest = move |layers| {
        let needs = Requirements::of(&config, &CpuOptions { layers, ..options.clone() });
        (needs.key_values + needs.recurrent + needs.activations + needs.rows) as f64
    };
    Ok(Shape {
        layers: (0..count).map(layer).collect(),
        head,
        head_is_last: on_gpus,
        whole: Sizes::of(plan),
        hits: HitCurve::of(plan.config.moe.experts, plan.backend.top_k),
        stream: (plan.config.streams() * plan.config.hidden * size_of::<f32>()) as f64,
        rest: Box::new(rest),
        slot: if on_gpus { 1.0 } else { slot },
    })
}

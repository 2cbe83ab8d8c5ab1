//! From samples to a row: means, and the roofline that they are compared with.
//!
//! Per token, T_ssd is the bytes read over the disk's bandwidth at this record size, T_mem the bytes that
//! arithmetic has to touch over the memory's: the trunk (without the embedding, where a token reads
//! one row) once per pass, the experts visited, the keys and values attended to. An engine that overlaps
//! both perfectly takes the larger, one that alternates takes the sum; arithmetic itself is not
//! counted, so a prefill that is limited by it stays below both.

use std::time::Duration;

use clap::ValueEnum;
use engine::backend::cpu::Requirements;
use serde_json::{Value, json};
use store::LayerId;
use store::cache::{PrefetchCounters, QueueCounters, StoreCounters, StorePlan};

use super::measure::{OfStage, Sample};
use crate::arguments::{ByteSize, KvChoice, ModelArguments, StorageChoice};
use crate::commands::fingerprint::Fingerprint;
use crate::commands::table::Row;
use crate::phases::Phases;
use crate::plan::Plan;
use crate::plan::device::DevicePlan;
use crate::speed::Speeds;

/// Columns that only machines read.
const DETAILS: [&str; 17] = [
    "model",
    "size GiB",
    "commit",
    "runs",
    "sd",
    "kv",
    "threads",
    "disk probe GB/s",
    "memory probe GB/s",
    "prefetched copies/token",
    "prefetched reads/token",
    "RAM hits %",
    "reads/token",
    "copies/token",
    "returned/token",
    "in both",
    "stages",
];

/// Columns of the narrow table, beside settings in which rows differ.
const NARROW: [&str; 8] =
    ["test", "tok/s", "mode", "budget GiB", "hits %", "VRAM hits %", "GB/token", "of bound %"];
/// What the columns of phases end in.
const PHASE_UNIT: &str = " ms/token";
/// Settings of arms.
const SETTINGS: [&str; 12] = [
    "device",
    "VRAM GiB",
    "prefill chunk",
    "policy",
    "io",
    "load",
    "kv",
    "kv type",
    "routing",
    "k",
    "predict",
    "threads",
];

/// The columns that a table leaves out. `phases` where those of the time were asked for.
pub(super) fn hidden(rows: &[Row], wide: bool, phases: bool) -> Vec<&str> {
    let Some(first) = rows.first() else { return Vec::new() };
    let of_phase = |name: &str| name.ends_with(PHASE_UNIT);
    if wide {
        let left_out = |name: &&str| DETAILS.contains(name) || (of_phase(name) && !phases);
        return first.keys().map(String::as_str).filter(left_out).collect();
    }
    let differs = |name: &str| rows.iter().any(|row| row[name] != first[name]);
    let shown = |name: &str| {
        NARROW.contains(&name)
            || (SETTINGS.contains(&name) && differs(name))
            || (phases && of_phase(name))
    };
    first.keys().map(String::as_str).filter(|name| !shown(name)).collect()
}

/// The storage mode's name.
pub(super) fn mode(plan: &Plan) -> String {
    name(&plan.arguments.storage)
}

fn name(choice: &impl ValueEnum) -> String {
    choice.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The row of a test in an arm.
pub(super) fn row(plan: &Plan, speeds: &Speeds, test: String, samples: &[Sample]) -> Row {
    let rate = mean(samples, Sample::rate);
    let mut fields = Row::new();
    fields.insert("test".to_owned(), test.into());
    fields.insert("tok/s".to_owned(), round(rate, 3).into());
    fields.insert("sd".to_owned(), round(deviation(samples, rate), 3).into());
    fields.insert("runs".to_owned(), samples.len().into());
    fields.extend(settings(plan));
    fields.extend(found(plan, samples));
    fields.extend(times(plan, speeds, samples, rate));
    fields.insert("threads".to_owned(), plan.threads.into());
    let check = Fingerprint::of_all(samples.iter().map(|sample| sample.check));
    fields.insert("check".to_owned(), check.short().into());
    let tiers = tiers(samples, device_uses(samples).1).into_iter();
    // All rows have the same columns.
    fields.extend(tiers.map(|(name, value)| (name, plan.device().map_or(Value::Null, |_| value))));
    fields.extend(queue(samples));
    fields.extend(phases(plan, samples));
    fields.insert("stages".to_owned(), stages(plan, samples));
    fields.insert("model".to_owned(), crate::models::short_name(&plan.arguments.model).into());
    fields.insert("size GiB".to_owned(), gibibytes(model_bytes(plan)).into());
    fields.insert("commit".to_owned(), env!("FLASHMOE_COMMIT").into());
    fields
}

fn mean(samples: &[Sample], value: impl Fn(&Sample) -> f64) -> f64 {
    samples.iter().map(value).sum::<f64>() / samples.len() as f64
}

fn deviation(samples: &[Sample], rate: f64) -> f64 {
    if samples.len() < 2 {
        return 0.0;
    }
    let squares: f64 = samples.iter().map(|sample| (sample.rate() - rate).powi(2)).sum();
    (squares / (samples.len() - 1) as f64).sqrt()
}

/// Tokens of all samples, one at least.
fn tokens(samples: &[Sample]) -> usize {
    samples.iter().map(|sample| sample.tokens).sum::<usize>().max(1)
}

/// Experts of decoding that the GPU had in its memory, and all that it used.
fn device_uses(samples: &[Sample]) -> (u64, u64) {
    samples.iter().fold((0, 0), |(hits, uses), sample| {
        let device = &sample.counters.device;
        (hits + device.hits, uses + device.hits + device.over_bus + sample.counters.decode.misses)
    })
}

fn columns(object: Value) -> Row {
    let Value::Object(columns) = object else { unreachable!("written as an object") };
    columns
}

/// What was asked for.
fn settings(plan: &Plan) -> Row {
    let arguments = &plan.arguments;
    columns(json!({
        "device": plan.device_names().unwrap_or_else(|| "cpu".to_owned()),
        "mode": mode(plan),
        "budget GiB": round(plan.budget as f64 / (1u64 << 30) as f64, 2),
        "VRAM GiB": plan.device().map(|_| {
            gibibytes(plan.devices.iter().map(DevicePlan::total_bytes).sum())
        }),
        "VRAM slots": plan.device().map(|_| plan.device_slots().0),
        "slots": plan.slots.as_ref().map_or(0, StorePlan::slots),
        "prefill chunk": plan.backend.batch_tokens,
        "policy": name(&arguments.policy),
        "io": name(&arguments.io),
        "load": name(&arguments.load),
        "kv": name(&match plan.device() {
            None => arguments.kv.unwrap_or(KvChoice::Grow),
            Some(device) if device.slots.grows() => KvChoice::Grow,
            Some(_) => KvChoice::Ahead,
        }),
        "kv type": plan.backend.kv_type.name(),
        "routing": name(&arguments.routing),
        "k": plan.backend.top_k,
    }))
}

/// Where experts were found.
fn found(plan: &Plan, samples: &[Sample]) -> Row {
    let arguments = &plan.arguments;
    let (hits, requests) = samples.iter().fold((0, 0), |(hits, requests), sample| {
        let (decode, prefill) = (&sample.counters.decode, &sample.counters.prefill);
        (hits + decode.hits + prefill.hits, requests + decode.requests + prefill.requests)
    });
    let (on_device, uses) = device_uses(samples);
    let prefetched = |value: &dyn Fn(&PrefetchCounters) -> u64| {
        samples.iter().map(|sample| value(&sample.counters.device.prefetched)).sum::<u64>()
    };
    // Nothing where steps prefetched nothing of the kind.
    let share = |part: u64, all: u64| (all > 0).then(|| percent(part, all));
    let (copied, read) = (prefetched(&|f| f.bus_copied), prefetched(&|f| f.disk_read));
    let tokens = tokens(samples) as f64;
    let each = |count: u64| plan.device().map(|_| round(count as f64 / tokens, 2));
    // Without a pool nothing is found in slots.
    let pooled = arguments.storage.has_slots() || arguments.storage == StorageChoice::Resident;
    columns(json!({
        "hits %": pooled.then(|| percent(hits, requests)),
        "VRAM hits %": plan.device().map(|_| percent(on_device, uses)),
        "predict": plan.device().map(|_| name(&arguments.predict)),
        "prefetched %": share(prefetched(&|f| f.right), prefetched(&|f| f.guessed)),
        "copies used %": share(prefetched(&|f| f.bus_used), copied),
        "reads used %": share(prefetched(&|f| f.disk_used), read),
        "prefetched copies/token": each(copied),
        "prefetched reads/token": each(read),
    }))
}

/// What was read, how long it took, and the bound of both.
fn times(plan: &Plan, speeds: &Speeds, samples: &[Sample], rate: f64) -> Row {
    let tokens = tokens(samples) as f64;
    let per_token =
        |value: &dyn Fn(&Sample) -> f64| samples.iter().map(value).sum::<f64>() / tokens;
    let seconds: f64 = samples.iter().map(|sample| sample.time.as_secs_f64()).sum();
    let read: u64 = samples.iter().map(|sample| sample.counters.bytes_read).sum();
    let bytes = per_token(&|sample| sample.counters.bytes_read as f64);
    let touched = per_token(&|sample| touched(plan, sample));
    let (ssd, memory) = (bytes / speeds.disk, touched / speeds.memory);
    let crossed = per_token(&|sample| over_bus(plan, sample));
    let bus = speeds.bus.map_or(0.0, |speed| crossed / speed);
    let bound = 1.0 / ssd.max(memory).max(bus).max(1e-12);
    let first: Vec<f64> =
        samples.iter().filter_map(|s| s.first).map(|time| time.as_secs_f64()).collect();
    let first = (!first.is_empty()).then(|| first.iter().sum::<f64>() / first.len() as f64);
    // Of several machines each has a bound of its own: no figure of this one is the whole's.
    let here = plan.arguments.stages.is_none();
    let bounded = |value: f64| here.then_some(value);
    // Page faults are not counted.
    let counted = plan.arguments.storage != StorageChoice::Mmap;
    columns(json!({
        "GB/token": counted.then(|| round(bytes / 1e9, 4)),
        "disk GB/s": counted.then(|| round(read as f64 / seconds.max(1e-9) / 1e9, 3)),
        "TTFT s": first.map(|seconds| round(seconds, 2)),
        "peak GiB": round(mean(samples, |s| s.peak as f64) / (1u64 << 30) as f64, 2),
        "cache growth GiB": round(mean(samples, |s| s.cache_growth as f64) / (1u64 << 30) as f64, 2),
        "T_ssd ms": bounded(ssd).filter(|_| counted).map(|ssd| round(ssd * 1e3, 2)),
        "T_mem ms": bounded(round(memory * 1e3, 2)),
        "T_bus ms": speeds.bus.and_then(|_| bounded(round(bus * 1e3, 2))),
        "bound tok/s": bounded(round(bound, 2)),
        "of bound %": bounded(round(100.0 * rate / bound, 1)),
        "serial tok/s": bounded(round(1.0 / (ssd + memory + bus).max(1e-12), 2)),
        "disk probe GB/s": round(speeds.disk / 1e9, 2),
        "memory probe GB/s": round(speeds.memory / 1e9, 2),
    }))
}

/// Settings in words, for one that cannot be measured.
pub(super) fn setting(arguments: &ModelArguments) -> String {
    let memory = arguments.memory.map_or("the usual memory".to_owned(), |size| size.to_string());
    format!("{} in {memory}", name(&arguments.storage))
}

/// The row of settings that do not fit: the columns of `rows`; those of its own settings have a value.
pub(super) fn unfit(arguments: &ModelArguments, rows: &[Row]) -> Row {
    let mut row: Row =
        rows.iter().take(1).flat_map(Row::keys).map(|key| (key.clone(), Value::Null)).collect();
    let set = [
        ("test", json!("does not fit")),
        ("mode", json!(name(&arguments.storage))),
        ("budget GiB", json!(arguments.memory.map(|ByteSize(bytes)| gibibytes(bytes)))),
        ("k", json!(arguments.experts_per_token)),
    ];
    for (column, value) in set {
        row.insert(column.to_owned(), value);
    }
    row
}

/// What every row of a table has in common: the model, what computed, and the build.
pub(super) fn caption(plan: &Plan) -> String {
    let device = plan.device_names().unwrap_or_else(|| format!("cpu, {} threads", plan.threads));
    format!(
        "{}, {}; {device}; flashmoe {} ({})",
        crate::models::short_name(&plan.arguments.model),
        ByteSize(model_bytes(plan)),
        env!("CARGO_PKG_VERSION"),
        env!("FLASHMOE_COMMIT")
    )
}

fn model_bytes(plan: &Plan) -> u64 {
    plan.checkpoint.files.iter().map(|file| file.length).sum()
}

/// What the tiers below device memory answered of so many `uses` in decode, and what moved between them.
fn tiers(samples: &[Sample], uses: u64) -> Row {
    let sum = |value: &dyn Fn(&StoreCounters) -> u64| {
        samples.iter().map(|sample| value(&sample.counters)).sum::<u64>()
    };
    let tokens: usize = samples.iter().map(|sample| sample.tokens).sum();
    let each = |count: u64| json!(round(count as f64 / tokens.max(1) as f64, 2));
    let in_ram = sum(&|counters| counters.decode.hits.saturating_sub(counters.device.hits));
    let in_both = samples.last().map_or(0, |sample| sample.counters.device.in_both);
    let fields = [
        ("RAM hits %", json!(percent(in_ram, uses))),
        ("reads/token", each(sum(&|counters| counters.records_read))),
        ("copies/token", each(sum(&|counters| counters.device.copied))),
        ("returned/token", each(sum(&|counters| counters.device.returned))),
        ("in both", json!(in_both)),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// What the host handed to a device for each token and waited for, and its own time: neither waiting for the device nor
/// for records. Nothing where a backend does not count it.
fn queue(samples: &[Sample]) -> Row {
    let sum = |value: &dyn Fn(&QueueCounters) -> u64| {
        samples.iter().map(|sample| value(&sample.counters.device.queue)).sum::<u64>()
    };
    let tokens = samples.iter().map(|sample| sample.tokens).sum::<usize>().max(1) as f64;
    let counted = sum(&|queue| queue.dispatches) > 0;
    let each = |count: u64| match counted {
        true => json!(round(count as f64 / tokens, 2)),
        false => Value::Null,
    };
    let stalled = |sample: &Sample| {
        let counters = &sample.counters;
        counters.decode.stall_us + counters.prefill.stall_us + counters.device.queue.waited_us
    };
    let elsewhere: u64 = samples.iter().map(stalled).sum();
    let all: f64 = samples.iter().map(|sample| sample.time.as_secs_f64()).sum();
    let host = (all * 1e3 - elsewhere as f64 / 1e3).max(0.0) / tokens;
    let fields = [
        ("dispatches/token", each(sum(&|queue| queue.dispatches))),
        ("ahead/token", each(sum(&|queue| queue.ahead))),
        ("submissions/token", each(sum(&|queue| queue.submissions))),
        ("waits/token", each(sum(&|queue| queue.waits))),
        ("host ms/token", if counted { json!(round(host, 3)) } else { Value::Null }),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Of each of several stages its layers, slots, hits, bytes read and the time that it waited for its neighbours;
/// nothing where one device computes all layers.
fn stages(plan: &Plan, samples: &[Sample]) -> Value {
    let Some(first) = samples.first().filter(|sample| sample.of_stages.len() > 1) else {
        return Value::Null;
    };
    let tokens = samples.iter().map(|sample| sample.tokens).sum::<usize>().max(1) as f64;
    let stage = |(index, stage): (usize, &OfStage)| {
        let own = samples.iter().filter_map(|sample| sample.of_stages.get(index));
        let (mut counters, mut waited) = (StoreCounters::default(), Duration::ZERO);
        own.for_each(|spent| {
            counters.add(&spent.experts);
            waited += spent.waited;
        });
        let (decode, prefill) = (&counters.decode, &counters.prefill);
        let requests = decode.requests + prefill.requests;
        // Those of another process are known there.
        let planned = plan.stages.iter().find(|planned| planned.layers == stage.layers);
        let slots = planned.map(|planned| planned.slots.as_ref().map_or(0, StorePlan::slots));
        json!({
            "layers": [stage.layers.start, stage.layers.end],
            "slots": slots,
            "hits_percent": percent(decode.hits + prefill.hits, requests),
            "gb_per_token": round(counters.bytes_read as f64 / tokens / 1e9, 4),
            "waited_ms_per_token": round(waited.as_secs_f64() * 1e3 / tokens, 3),
        })
    };
    first.of_stages.iter().enumerate().map(stage).collect()
}

/// Where the time of a token went. Nothing on a GPU, which runs a step as one piece.
fn phases(plan: &Plan, samples: &[Sample]) -> Row {
    let tokens = samples.iter().map(|sample| sample.tokens).sum::<usize>().max(1) as u32;
    let sums = samples.iter().fold(Phases::default(), |mut sums, sample| {
        sums.add(&Phases::of(&sample.stages, &sample.counters, sample.time));
        sums
    });
    let each = |time: Duration| match plan.device() {
        None => json!(round((time / tokens).as_secs_f64() * 1e3, 3)),
        Some(_) => Value::Null,
    };
    let named = sums.named().into_iter();
    named.map(|(name, time)| (format!("{name}{PHASE_UNIT}"), each(time))).collect()
}

/// Bytes of memory that the arithmetic of a run reads.
fn touched(plan: &Plan, sample: &Sample) -> f64 {
    let trunk = plan.trunk_bytes_per_token();
    let layers = plan.config.trunk_layers();
    let record = |layer: usize| plan.checkpoint.record_bytes(LayerId(layer as u16)).unwrap_or(0);
    let record = (0..layers).map(record).sum::<u64>() as f64 / plan.config.mixtures() as f64;
    let requests = sample.counters.decode.requests + sample.counters.prefill.requests;
    let position = Requirements::key_value_bytes_per_token(&plan.config, &plan.backend);
    trunk as f64 * sample.passes as f64
        + requests as f64 * record
        + sample.attended as f64 * position as f64
}

/// Bytes that a run moved to the GPU: records read over the bus by decode, and copied there.
fn over_bus(plan: &Plan, sample: &Sample) -> f64 {
    let layers = plan.config.trunk_layers();
    let record = |layer: usize| plan.checkpoint.record_bytes(LayerId(layer as u16)).unwrap_or(0);
    let record = (0..layers).map(record).sum::<u64>() as f64 / plan.config.mixtures() as f64;
    let counters = &sample.counters;
    let staged = counters.prefill.requests - counters.prefill.hits.min(counters.device.resident);
    (counters.device.over_bus + counters.decode.misses + counters.device.copied + staged) as f64
        * record
}

/// A share of `all`; zero of nothing.
fn percent(part: u64, all: u64) -> f64 {
    round(100.0 * part as f64 / all.max(1) as f64, 1)
}

fn gibibytes(bytes: u64) -> f64 {
    round(bytes as f64 / (1u64 << 30) as f64, 2)
}

fn round(value: f64, digits: i32) -> f64 {
    let unit = 10f64.powi(digits);
    // Zero has no sign.
    (value * unit).round() / unit + 0.0
}

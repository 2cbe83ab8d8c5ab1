//! `/metrics` for Prometheus (text format 0.0.4) and `/status` for the page: the same numbers twice.
//!
//! Both are written from one copy of the worker's status, which never waits for the engine. Names are in base units
//! (seconds, bytes), sums end in `_total`, labels have few values; layers and experts are in `/status` alone. Where
//! vLLM or llama.cpp have a name for a figure it is theirs with our prefix, so that dashboards are easily changed; what
//! routers and scalers look for is there under vLLM's own names as well (`vllm`), and as JSON (`loads`).

mod exposition;
mod loads;
mod stages;
mod vllm;

pub(crate) use loads::{loads, model_info, server_info};

use std::time::Duration;

use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use self::exposition::Exposition;
use crate::http::Answer;
use crate::registry::{Counts, Models, View};
use crate::temperature::Temperature;
use crate::work::{Loading, Measures, ModelCard, RunningJob, Stage, Status};

const PREFIX: &str = "flashmoe_";
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the worker does not know.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    /// Keep-alives sent in streams.
    pub(crate) heartbeats: u64,
    /// Memory that the process has.
    pub(crate) process_bytes: u64,
    /// Of the machine's disks, as far as it tells.
    pub(crate) temperatures: Vec<Temperature>,
}

/// `/metrics`; where there are several models, all that is one's has its name as a label.
pub(crate) fn response(views: &[View], outside: &Outside) -> Response<Answer> {
    let mut page = Exposition::new(PREFIX);
    let version = env!("CARGO_PKG_VERSION");
    page.family("build_info", "gauge", "The program.");
    page.sample("build_info", &[("version", version)], 1);
    let cards: Vec<ModelCard> = views.iter().map(|view| view.loading.model()).collect();
    let label = |card: &ModelCard| (views.len() > 1).then(|| ("model", card.id.clone()));
    for (view, card) in views.iter().zip(&cards) {
        page.go_on_as(PREFIX, None);
        page.family("model_info", "gauge", "What is served.");
        page.sample("model_info", &[("model", &card.id), ("family", &card.family)], 1);
        page.go_on_as(PREFIX, label(card));
        write_model(&mut page, view, card);
    }
    page.go_on_as(PREFIX, None);
    page.family("memory_bytes", "gauge", MEMORY);
    page.sample("memory_bytes", &[("kind", "process")], outside.process_bytes);
    let worker = |view: &View| view.loading.worker().map(|worker| worker.status());
    let statuses: Vec<Option<Status>> = views.iter().map(worker).collect();
    let there = || cards.iter().zip(&statuses).filter_map(|(card, it)| Some((card, it.as_ref()?)));
    for (card, status) in there() {
        page.go_on_as(PREFIX, label(card));
        write_status(&mut page, status);
    }
    page.go_on_as(PREFIX, None);
    let sent = "Keep-alives in streams that had nothing else to send.";
    page.single("sse_heartbeats_total", "counter", sent, outside.heartbeats);
    if !outside.temperatures.is_empty() {
        let help = "Temperature of a disk, as the system reports it.";
        page.family("ssd_temperature_celsius", "gauge", help);
        for Temperature { device, celsius } in &outside.temperatures {
            page.sample("ssd_temperature_celsius", &[("device", device)], celsius);
        }
    }
    for (card, status) in there() {
        vllm::write(&mut page, card, status);
    }
    Answer::whole(StatusCode::OK, CONTENT_TYPE, page.text())
}

const MEMORY: &str = "Memory, by what it is for, as planned; process: as used.";

/// What is known of a model whether it is loaded or not.
fn write_model(page: &mut Exposition, view: &View, card: &ModelCard) {
    let pairs = [
        ("model_context_tokens", "Most tokens of a conversation.", card.context as u64),
        ("model_bytes", "Bytes of the checkpoint.", card.bytes),
    ];
    for (name, help, value) in pairs {
        page.single(name, "gauge", help, value);
    }
    let loaded = f64::from(view.loading.percent()) / 100.0;
    page.single("model_load_ratio", "gauge", "Share of the model that is loaded.", loaded);
    if page.has_label() {
        let Counts { loads, unloads, failures } = view.counts;
        let mut count = |name, help, value: u64| page.single(name, "counter", help, value);
        count("model_loads_total", "Times that it was loaded.", loads);
        count("model_unloads_total", "Times that it was unloaded.", unloads);
        count("model_load_failures_total", "Times that it could not be loaded.", failures);
    }
    page.family("memory_bytes", "gauge", MEMORY);
    for (kind, bytes) in &card.memory {
        page.sample("memory_bytes", &[("kind", kind)], bytes);
    }
}

fn write_status(page: &mut Exposition, status: &Status) {
    let gauge =
        |page: &mut Exposition, name, help, value: f64| page.single(name, "gauge", help, value);
    gauge(page, "num_requests_waiting", "Requests in the queue.", status.queued as f64);
    gauge(page, "num_requests_running", "Requests with a sequence.", status.running.len() as f64);
    gauge(page, "sequences", "Sequences decoded together at most.", status.sequences as f64);
    let decode = "Tokens per second of all sequences together.";
    gauge(page, "predicted_tokens_seconds", decode, status.decode_rate);
    let prefill = "Tokens per second of the running or last prefill.";
    gauge(page, "prompt_tokens_seconds", prefill, status.prefill_rate);
    let progress = "Share of the prompt that is done, of the prefill that runs; 1 without one.";
    gauge(page, "prefill_progress_ratio", progress, prefill_progress(status));

    let count =
        |page: &mut Exposition, name, help, value: u64| page.single(name, "counter", help, value);
    count(page, "prompt_tokens_total", "Prompt tokens computed.", status.prompt_tokens);
    count(page, "generation_tokens_total", "Tokens generated.", status.generated_tokens);
    let drafts = &status.drafts;
    count(page, "draft_rounds_total", "Steps of answers that had drafts.", drafts.rounds);
    count(page, "draft_tokens_total", "Tokens drafted.", drafts.drafted);
    let accepted = "Drafted tokens that were drawn.";
    count(page, "draft_tokens_accepted_total", accepted, drafts.accepted);
    let head = &drafts.by_head;
    let rounds = "Steps of answers that had drafts of the model's head.";
    count(page, "draft_head_rounds_total", rounds, head.rounds);
    count(page, "draft_head_tokens_total", "Tokens drafted by the model's head.", head.drafted);
    let accepted = "Tokens drafted by the model's head that were drawn.";
    count(page, "draft_head_tokens_accepted_total", accepted, head.accepted);
    let panics = "Panics of the engine; each ended the requests that were at work.";
    count(page, "engine_panics_total", panics, status.panics);
    count(page, "requests_refused_total", "Refused: the queue was full.", status.refused);
    page.labelled("requests_completed_total", "Ended, by reason.", "reason", &status.finished);
    page.labelled("requests_cancelled_total", "Cancelled, by stage.", "stage", &status.cancelled);
    let repairs = "Deviations in tool calls that were put right, by kind.";
    page.labelled("tool_parse_repairs_total", repairs, "kind", &status.tool_repairs);
    count(page, "prefill_sweeps_total", "Parts of prompts, each one pass.", status.chunks);
    write_stages(page, status);
    stages::write(page, status);
    write_measures(page, status);
    write_prefix(page, status);
    write_experts(page, status);
}

/// Where the time of answers goes. Experts are read while others are computed: `expert_wait` is what is waited for.
fn write_stages(page: &mut Exposition, status: &Status) {
    let help = "Time of answers: layers by kind, waiting for experts, output head, drawing tokens; \
                on a GPU layers count while they are handed over and the rest is other.";
    page.family("decode_stage_seconds_total", "counter", help);
    let stages = &status.decode_stages;
    let wait = Duration::from_micros(status.experts.decode.stall_us);
    let times = [
        ("attention", stages.attention),
        ("delta_net", stages.delta_net),
        ("mixture", stages.mixture.saturating_sub(wait)),
        ("expert_wait", wait),
        ("head", status.head_time),
        ("sample", status.draw_time.saturating_sub(status.head_time)),
        ("other", status.decode_time.saturating_sub(stages.sum())),
    ];
    for (stage, time) in times {
        page.sample("decode_stage_seconds_total", &[("stage", stage)], time.as_secs_f64());
    }
}

fn write_measures(page: &mut Exposition, status: &Status) {
    let measures = &status.measures;
    page.histogram("queue_seconds", "Time in the queue.", &measures.queue);
    write_latencies(page, measures);
    let families = [
        (
            "request_prefill_time_seconds",
            "From the first work to the first token.",
            &measures.prefill,
        ),
        ("request_decode_time_seconds", "From the first token to the last.", &measures.decode),
        (
            "request_prefill_tokens_per_second",
            "Speed of a prompt, without what was known of it.",
            &measures.prefill_rate,
        ),
        (
            "bytes_per_token",
            "Bytes read per token of prompt and answer that was computed.",
            &measures.bytes_per_token,
        ),
    ];
    for (name, help, histogram) in families {
        page.histogram(name, help, histogram);
    }
}

/// The latencies that have one name here and elsewhere.
fn write_latencies(page: &mut Exposition, measures: &Measures) {
    let latencies = [
        (
            "time_to_first_token_seconds",
            "From submission to the first token.",
            &measures.first_token,
        ),
        ("inter_token_latency_seconds", "Between two tokens of one answer.", &measures.token),
        (
            "e2e_request_latency_seconds",
            "From submission to the end of a complete answer.",
            &measures.whole,
        ),
    ];
    for (name, help, histogram) in latencies {
        page.histogram(name, help, histogram);
    }
}

fn write_prefix(page: &mut Exposition, status: &Status) {
    let prefix = &status.prefix;
    let mut count = |name, help, value: u64| page.single(name, "counter", help, value);
    let asked = prefix.tokens_reused + prefix.tokens_computed;
    count("prefix_cache_queries_total", "Prompt tokens that were looked for.", asked);
    count("prefix_cache_hits_total", "Prompt tokens that were found.", prefix.tokens_reused);
    count("prefix_tokens_reused_total", "Prompt tokens not computed again.", prefix.tokens_reused);
    count("prefix_tokens_recomputed_total", "Prompt tokens computed.", prefix.tokens_computed);
    let (disk, shared) = (&prefix.disk, &prefix.shared);
    count("cache_written_bytes_total", "Written to the disk tier.", disk.bytes_written);
    let help = "Written to the folder that servers share.";
    count("cache_shared_written_bytes_total", help, shared.bytes_written);
    let help = "Failures of its file system; each was a miss.";
    count("cache_shared_errors_total", help, shared.failed);
    let mut tiers = |name, help, found: &[(&str, u64)]| {
        page.family(name, "counter", help);
        for &(tier, value) in found {
            page.sample(name, &[("tier", tier)], value);
        }
    };
    tiers("snapshot_saved_total", "Snapshots taken.", &[("ram", prefix.saved)]);
    let restored = [("ram", prefix.restored), ("disk", disk.restored), ("shared", shared.restored)];
    tiers("snapshot_restored_total", "Snapshots restored.", &restored);
    tiers("snapshot_evicted_total", "Given up for others.", &[("ram", prefix.evicted)]);
    let rejected = [("disk", disk.rejected), ("shared", shared.rejected)];
    tiers("snapshot_corrupt_total", "Damaged or foreign.", &rejected);
    let reason = "Snapshots that were not written to disk, by reason.";
    page.labelled("cache_disk_dropped_total", reason, "reason", &disk.dropped);
    let reason = "Snapshots that were not shared, by reason.";
    page.labelled("cache_shared_dropped_total", reason, "reason", &shared.dropped);
    let reason = "Prompts that began from nothing, by reason.";
    page.labelled("full_reprefill_total", reason, "reason", &prefix.full_prefills);
    let mut gauge = |name, help, value: u64| page.single(name, "gauge", help, value);
    gauge("snapshots", "Snapshots in memory.", prefix.snapshots.len() as u64);
    gauge("snapshot_bytes", "Bytes of snapshots in memory.", prefix.snapshot_bytes);
    gauge("cache_disk_bytes", "Bytes of the disk tier.", disk.bytes);
    let help = "Bytes of the shared folder, as far as this server knows.";
    gauge("cache_shared_bytes", help, shared.bytes);
}

fn write_experts(page: &mut Exposition, status: &Status) {
    write_places(page, status);
    write_reads(page, status);
    write_rows(page, status);
    write_prefetches(page, status);
    write_read_times(page, status);
}

/// Where experts were found and moved to, and the time that computation waited for them.
fn write_places(page: &mut Exposition, status: &Status) {
    let experts = &status.experts;
    let phases = [("prefill", &experts.prefill), ("decode", &experts.decode)];
    let vram = [experts.device.resident, experts.device.hits];
    page.family("expert_requests_total", "counter", "Experts asked for, by where they were found.");
    for ((phase, counters), vram) in phases.into_iter().zip(vram) {
        let found = [
            ("vram", vram),
            ("ram", counters.hits.saturating_sub(vram)),
            ("inflight", counters.joined),
            ("disk", counters.misses),
        ];
        for (tier, value) in found {
            page.sample("expert_requests_total", &[("phase", phase), ("tier", tier)], value);
        }
    }
    page.family("expert_moves_total", "counter", "Experts copied between memories, by where to.");
    for (tier, value) in [("vram", experts.device.copied), ("ram", experts.device.returned)] {
        page.sample("expert_moves_total", &[("tier", tier)], value);
    }
    let both = "Experts that are in GPU memory and in RAM.";
    page.single("expert_in_both", "gauge", both, experts.device.in_both);
    let slots =
        "Experts that GPU memory has room for; keys and values take some of it as they grow.";
    page.single("expert_vram_slots", "gauge", slots, experts.device.slots);
    let cache = "GPU memory that keys and values have.";
    page.single("kv_vram_bytes", "gauge", cache, experts.device.cache_bytes);
    page.family(
        "expert_wait_seconds_total",
        "counter",
        "Time that computation waited for experts.",
    );
    for (phase, counters) in phases {
        let seconds = counters.stall_us as f64 / 1e6;
        page.sample("expert_wait_seconds_total", &[("phase", phase)], seconds);
    }
}

/// Reads of experts from the disk.
fn write_reads(page: &mut Exposition, status: &Status) {
    let experts = &status.experts;
    let inflight = "Reads of experts that the disk has not answered.";
    page.single("disk_inflight", "gauge", inflight, experts.in_flight);
    let mut count = |name, help, value: u64| page.single(name, "counter", help, value);
    count("expert_bytes_read_total", "Bytes read for experts.", experts.bytes_read);
    count("expert_records_read_total", "Experts read.", experts.records_read);
    count("expert_withdrawn_total", "Reads given up before they began.", experts.withdrawn);
    let given_up = "Experts whose GPU memory went to keys and values.";
    count("expert_vram_given_up_total", given_up, experts.device.given_up);
    count("expert_evictions_total", "Experts that gave way to others.", experts.evictions);
    count(
        "expert_prefetch_wasted_total",
        "Read ahead of a sweep for nothing.",
        experts.ahead_wasted,
    );
    count("disk_retries_total", "Reads that were continued.", experts.retries);
    count("disk_errors_total", "Experts that could not be read.", experts.errors);
}

/// Rows of n-grams.
fn write_rows(page: &mut Exposition, status: &Status) {
    let rows = &status.experts.rows;
    for (name, help, value) in [
        ("row_requests_total", "Rows of n-grams that were asked for.", rows.asked),
        ("row_distinct_total", "Of these, once in a batch.", rows.distinct),
        ("row_cached_total", "Of these, found in the cache.", rows.hits),
        ("row_reads_total", "Reads of rows.", rows.reads),
        ("row_bytes_read_total", "Bytes read for rows.", rows.bytes_read),
        ("row_errors_total", "Rows that could not be read.", rows.errors),
    ] {
        page.single(name, "counter", help, value);
    }
    page.single(
        "row_wait_seconds_total",
        "counter",
        "Time that computation waited for rows.",
        rows.wait_us as f64 / 1e6,
    );
}

/// What was fetched before it was asked for.
fn write_prefetches(page: &mut Exposition, status: &Status) {
    let experts = &status.experts;
    // A sweep of a prompt reads ahead; steps on a GPU prefetch what to copy over the bus and what to read from disk.
    let prefetched = &experts.device.prefetched;
    let issued = [prefetched.bus_copied, prefetched.disk_read, experts.ahead_issued];
    let used = [prefetched.bus_used, prefetched.disk_used, experts.ahead_used];
    for (name, help, values) in [
        ("expert_prefetch_issued_total", "Experts fetched before they were asked for.", issued),
        ("expert_prefetch_used_total", "Of these, asked for later.", used),
    ] {
        page.family(name, "counter", help);
        for (source, value) in ["bus", "disk", "sweep"].into_iter().zip(values) {
            page.sample(name, &[("source", source)], value);
        }
    }
}

/// The times of reads, as a histogram.
fn write_read_times(page: &mut Exposition, status: &Status) {
    let experts = &status.experts;
    let help = "From the request of an expert to its arrival.";
    page.family("expert_read_seconds", "histogram", help);
    let buckets = experts.read_time.buckets();
    let mut sum = 0;
    // Bucket i ends at 2^(i+1) microseconds; the last has no end.
    let edges = buckets.iter().enumerate().take(buckets.len() - 1).map(|(index, bucket)| {
        sum += bucket;
        ((2u64 << index) as f64 / 1e6, sum)
    });
    let (total, seconds) = (experts.read_time.count(), experts.read_time.total_us() as f64 / 1e6);
    page.buckets("expert_read_seconds", edges, total, seconds);
}

fn prefill_progress(status: &Status) -> f64 {
    let running = status.running.iter().find(|job| job.stage == Stage::Prefill);
    running.map_or(1.0, |job| job.processed as f64 / job.prompt.max(1) as f64)
}

/// Jobs that run, of `/status`.
fn running(status: &Status) -> Vec<Value> {
    let seconds = |duration: Option<Duration>| duration.map(|duration| duration.as_secs_f64());
    let one = |job: &RunningJob| {
        json!({
            "id": job.id,
            "stage": job.stage.name(),
            "prompt": job.prompt,
            "processed": job.processed,
            "cached": job.cached,
            "generated": job.generated,
            "eta_s": seconds(job.eta),
        })
    };
    status.running.iter().map(one).collect()
}

/// Counters of a phase, of `/status`.
fn phase(counters: &store::cache::PhaseCounters) -> Value {
    json!({
        "requests": counters.requests,
        "hits": counters.hits,
        "joined": counters.joined,
        "misses": counters.misses,
        "wait_s": counters.stall_us as f64 / 1e6,
    })
}

/// Where experts were found, of `/status`.
fn experts(status: &Status) -> Value {
    let experts = &status.experts;
    json!({
        "prefill": phase(&experts.prefill),
        "decode": phase(&experts.decode),
        "vram_hits": experts.device.hits + experts.device.resident,
        "bytes_read": experts.bytes_read,
        "read_us_median": experts.read_time.quantile_us(0.5),
        "ahead_used": experts.ahead_used,
        "ahead_wasted": experts.ahead_wasted,
        "errors": experts.errors,
    })
}

/// `/status`: what the page shows of one model, and where there are others, where each is.
pub(crate) fn status(models: &Models, loading: &Loading) -> Response<Answer> {
    let status = loading.worker().map(|worker| worker.status()).unwrap_or_default();
    let card = loading.model();
    let examples = card.examples.iter();
    let examples = examples.map(|one| json!({ "text": one.text, "tools": one.tools }));
    let examples: serde_json::Value = examples.collect();
    let mut body = json!({
        "model": {
            "id": card.id,
            "context": card.context,
            "layers": card.layers,
            "experts": card.experts,
            "experts_per_token": card.experts_per_token,
            "bytes": card.bytes,
            "approximations": card.approximations,
            "about": card.about,
            "examples": examples,
        },
        "loaded_percent": loading.percent(),
        "queued": status.queued,
        "sequences": status.sequences,
        "running": running(&status),
        "decode_rate": status.decode_rate,
        "prefill_rate": status.prefill_rate,
        "prompt_tokens": status.prompt_tokens,
        "generated_tokens": status.generated_tokens,
        "drafts": {
            "rounds": status.drafts.rounds,
            "drafted": status.drafts.drafted,
            "accepted": status.drafts.accepted,
            "head_rounds": status.drafts.by_head.rounds,
            "head_drafted": status.drafts.by_head.drafted,
            "head_accepted": status.drafts.by_head.accepted,
        },
        "prefix": {
            "snapshots": status.prefix.snapshots,
            "snapshot_bytes": status.prefix.snapshot_bytes,
            "tokens_reused": status.prefix.tokens_reused,
            "tokens_computed": status.prefix.tokens_computed,
            "full_prefills": status.prefix.full_prefills,
            "disk_bytes": status.prefix.disk.bytes,
            "shared_bytes": status.prefix.shared.bytes,
        },
        "experts": experts(&status),
        "stages": stages::json(&status, phase),
        "expert_heat": status.expert_heat,
    });
    if models.only().is_none() {
        let one = |view: &View| {
            json!({
                "id": view.loading.model().id,
                "state": view.state.name(),
                "percent": view.loading.percent(),
                "failed": view.failed,
            })
        };
        body["models"] = models.views().iter().map(one).collect();
    }
    Answer::json(StatusCode::OK, &body)
}

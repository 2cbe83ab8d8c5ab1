//! `/metrics` for Prometheus (text format 0.0.4) and `/status` for the page: the same numbers twice.
//!
//! Both are written from one copy of the worker's status, which never waits for the engine. Names are in base units
//! (seconds, bytes), sums end in `_total`, labels have few values; layers and experts are in `/status` alone.

use std::fmt::{Display, Write};
use std::time::Duration;

use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use crate::http::Answer;
use crate::work::{LatencyTotals, Stage, Status, Worker};

const PREFIX: &str = "flashmoe_";
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// `/metrics`
pub(crate) fn response(worker: &dyn Worker) -> Response<Answer> {
    let card = worker.model();
    let mut page = Exposition::default();
    let version = env!("CARGO_PKG_VERSION");
    page.family("build_info", "gauge", "The program.");
    page.sample("build_info", &[("version", version)], 1);
    page.family("model_info", "gauge", "What is served.");
    page.sample("model_info", &[("model", &card.id), ("family", &card.family)], 1);
    let pairs = [
        ("model_context_tokens", "Most tokens of a conversation.", card.context as u64),
        ("model_bytes", "Bytes of the checkpoint.", card.bytes),
    ];
    for (name, help, value) in pairs {
        page.single(name, "gauge", help, value);
    }
    write_status(&mut page, &worker.status());
    Answer::whole(StatusCode::OK, CONTENT_TYPE, page.text)
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
    count(page, "requests_refused_total", "Refused: the queue was full.", status.refused);
    page.labelled("requests_completed_total", "Ended, by reason.", "reason", &status.finished);
    page.labelled("requests_cancelled_total", "Cancelled, by stage.", "stage", &status.cancelled);
    let repairs = "Deviations in tool calls that were put right, by kind.";
    page.labelled("tool_parse_repairs_total", repairs, "kind", &status.tool_repairs);
    page.summary("queue_seconds", "Time in the queue.", &status.queue_time);
    let first = "From submission to the first token.";
    page.summary("time_to_first_token_seconds", first, &status.first_token_time);
    page.summary("inter_token_latency_seconds", "Between two tokens.", &status.token_time);

    write_prefix(page, status);
    write_experts(page, status);
}

fn write_prefix(page: &mut Exposition, status: &Status) {
    let prefix = &status.prefix;
    let mut count = |name, help, value: u64| page.single(name, "counter", help, value);
    count("prefix_tokens_reused_total", "Prompt tokens not computed again.", prefix.tokens_reused);
    count("prefix_tokens_recomputed_total", "Prompt tokens computed.", prefix.tokens_computed);
    count("snapshot_saved_total", "Snapshots taken.", prefix.saved);
    count("snapshot_restored_total", "Snapshots restored.", prefix.restored);
    count("snapshot_evicted_total", "Snapshots given up for others.", prefix.evicted);
    count("cache_disk_restored_total", "Sessions restored from disk.", prefix.disk_restored);
    count("cache_disk_rejected_total", "Damaged or foreign files.", prefix.disk_rejected);
    count("cache_written_bytes_total", "Written to the disk tier.", prefix.disk_bytes_written);
    let reason = "Prompts that began from nothing, by reason.";
    page.labelled("full_reprefill_total", reason, "reason", &prefix.full_prefills);
    let mut gauge = |name, help, value: u64| page.single(name, "gauge", help, value);
    gauge("snapshots", "Snapshots in memory.", prefix.snapshots.len() as u64);
    gauge("snapshot_bytes", "Bytes of snapshots in memory.", prefix.snapshot_bytes);
    gauge("cache_disk_bytes", "Bytes of the disk tier.", prefix.disk_bytes);
}

fn write_experts(page: &mut Exposition, status: &Status) {
    let experts = &status.experts;
    let phases = [("prefill", &experts.prefill), ("decode", &experts.decode)];
    page.family("expert_requests_total", "counter", "Experts asked for, by where they were found.");
    for (phase, counters) in phases {
        let found =
            [("ram", counters.hits), ("inflight", counters.joined), ("disk", counters.misses)];
        for (tier, value) in found {
            page.sample("expert_requests_total", &[("phase", phase), ("tier", tier)], value);
        }
    }
    let vram = experts.device.hits;
    page.sample("expert_requests_total", &[("phase", "decode"), ("tier", "vram")], vram);
    page.family(
        "expert_wait_seconds_total",
        "counter",
        "Time that computation waited for experts.",
    );
    for (phase, counters) in phases {
        let seconds = counters.stall_us as f64 / 1e6;
        page.sample("expert_wait_seconds_total", &[("phase", phase)], seconds);
    }
    let mut count = |name, help, value: u64| page.single(name, "counter", help, value);
    count("expert_bytes_read_total", "Bytes read for experts.", experts.bytes_read);
    count("expert_records_read_total", "Experts read.", experts.records_read);
    count("expert_evictions_total", "Experts that gave way to others.", experts.evictions);
    count("expert_prefetch_issued_total", "Experts read ahead.", experts.ahead_issued);
    count("expert_prefetch_used_total", "Read ahead and used.", experts.ahead_used);
    count("expert_prefetch_wasted_total", "Read ahead for nothing.", experts.ahead_wasted);
    count("disk_retries_total", "Reads that were continued.", experts.retries);
    count("disk_errors_total", "Experts that could not be read.", experts.errors);

    page.family(
        "expert_read_seconds",
        "histogram",
        "From the request of an expert to its arrival.",
    );
    let mut sum = 0;
    for (index, bucket) in experts.read_time.buckets().iter().enumerate() {
        sum += bucket;
        // Bucket i ends at 2^(i+1) microseconds.
        let edge = (2u64 << index) as f64 / 1e6;
        let edge = edge.to_string();
        page.sample("expert_read_seconds_bucket", &[("le", &edge)], sum);
    }
    page.sample("expert_read_seconds_bucket", &[("le", "+Inf")], sum);
    page.sample("expert_read_seconds_sum", &[], experts.read_time.total_us() as f64 / 1e6);
    page.sample("expert_read_seconds_count", &[], sum);
}

fn prefill_progress(status: &Status) -> f64 {
    let running = status.running.iter().find(|job| job.stage == Stage::Prefill);
    running.map_or(1.0, |job| job.processed as f64 / job.prompt.max(1) as f64)
}

/// Prometheus' text format.
#[derive(Debug, Default)]
struct Exposition {
    text: String,
}

impl Exposition {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}\n"));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> =
            labels.iter().map(|(label, text)| format!("{label}=\"{}\"", escaped(text))).collect();
        let braces = |inner: String| if inner.is_empty() { inner } else { format!("{{{inner}}}") };
        self.line(format_args!("{PREFIX}{name}{} {value}\n", braces(labels.join(","))));
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    fn labelled<'a>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'a &'static str, &'a u64)>,
    ) {
        self.family(name, "counter", help);
        for (text, value) in values {
            self.sample(name, &[(label, text)], value);
        }
    }

    fn summary(&mut self, name: &str, help: &str, totals: &LatencyTotals) {
        self.family(name, "summary", help);
        self.sample(&format!("{name}_sum"), &[], totals.sum.as_secs_f64());
        self.sample(&format!("{name}_count"), &[], totals.count);
    }

    fn line(&mut self, arguments: std::fmt::Arguments<'_>) {
        self.text.write_fmt(arguments).expect("a string takes all text");
    }
}

/// A label's text between its quotes.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// `/status`: what the page shows.
pub(crate) fn status(worker: &dyn Worker) -> Response<Answer> {
    let status = worker.status();
    let card = worker.model();
    let seconds = |duration: Option<Duration>| duration.map(|duration| duration.as_secs_f64());
    let running: Vec<Value> = status
        .running
        .iter()
        .map(|job| {
            json!({
                "id": job.id,
                "stage": job.stage.name(),
                "prompt": job.prompt,
                "processed": job.processed,
                "cached": job.cached,
                "generated": job.generated,
                "eta_s": seconds(job.eta),
            })
        })
        .collect();
    let experts = &status.experts;
    let phase = |counters: &store::cache::PhaseCounters| {
        json!({
            "requests": counters.requests,
            "hits": counters.hits,
            "joined": counters.joined,
            "misses": counters.misses,
            "wait_s": counters.stall_us as f64 / 1e6,
        })
    };
    let body = json!({
        "model": {
            "id": card.id,
            "context": card.context,
            "layers": card.layers,
            "experts": card.experts,
            "experts_per_token": card.experts_per_token,
            "bytes": card.bytes,
            "approximations": card.approximations,
        },
        "queued": status.queued,
        "sequences": status.sequences,
        "running": running,
        "decode_rate": status.decode_rate,
        "prefill_rate": status.prefill_rate,
        "prompt_tokens": status.prompt_tokens,
        "generated_tokens": status.generated_tokens,
        "prefix": {
            "snapshots": status.prefix.snapshots,
            "snapshot_bytes": status.prefix.snapshot_bytes,
            "tokens_reused": status.prefix.tokens_reused,
            "tokens_computed": status.prefix.tokens_computed,
            "full_prefills": status.prefix.full_prefills,
            "disk_bytes": status.prefix.disk_bytes,
        },
        "experts": {
            "prefill": phase(&experts.prefill),
            "decode": phase(&experts.decode),
            "vram_hits": experts.device.hits,
            "bytes_read": experts.bytes_read,
            "read_us_median": experts.read_time.quantile_us(0.5),
            "ahead_used": experts.ahead_used,
            "ahead_wasted": experts.ahead_wasted,
            "errors": experts.errors,
        },
        "expert_heat": status.expert_heat,
    });
    Answer::json(StatusCode::OK, &body)
}

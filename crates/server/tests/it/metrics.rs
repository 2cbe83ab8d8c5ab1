//! `/metrics`: the text is what Prometheus reads, and the figures are those that were counted.
//!
//! The reader here is strict: it knows the text format 0.0.4 and the rules that `promtool check metrics` adds.

use crate::support;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use server::work::FinishReason;
use server::{Limits, ServeOptions};
use support::{Reply, Scripted, Serving, Step, finish, text};

/// Samples of a family, by name and labels.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

fn is_name(text: &str) -> bool {
    let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(letter)
}

fn labels(text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").expect("a label has a value");
        let mut value = String::new();
        let mut letters = after.char_indices();
        let end = loop {
            match letters.next().expect("a value ends") {
                (_, '\\') => value.push(match letters.next().unwrap().1 {
                    'n' => '\n',
                    other => other,
                }),
                (at, '"') => break at,
                (_, other) => value.push(other),
            }
        };
        assert!(is_name(name), "{name}");
        assert_eq!(labels.insert(name.to_owned(), value), None, "{name} is there twice");
        rest = &after[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    labels
}

/// Reads a page, and refuses what Prometheus or its linter would.
fn families(page: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    assert!(page.ends_with('\n'));
    for line in page.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').expect("help is not empty");
            let own = name.strip_prefix("flashmoe_").or(name.strip_prefix("vllm:"));
            assert!(own.is_some_and(is_name) && !help.is_empty(), "{line}");
            assert!(!families.contains_key(name), "{name} is there twice");
            current = name.to_owned();
            continue;
        }
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, current, "help and type go together");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            families.insert(current.clone(), Family { kind: kind.to_owned(), ..Family::default() });
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, inner) = match series.split_once('{') {
            Some((name, rest)) => (name, rest.strip_suffix('}').unwrap()),
            None => (series, ""),
        };
        let family = families.get_mut(&current).expect("a sample follows its type");
        let ending = name.strip_prefix(&current).expect("samples of a family stand together");
        let endings: &[&str] =
            if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        assert!(endings.contains(&ending), "{line}");
        let value: f64 = value.parse().unwrap();
        assert!(value.is_finite(), "{line}");
        let sample = (name.to_owned(), labels(inner), value);
        let twice = family.samples.iter().any(|(n, l, _)| *n == sample.0 && *l == sample.1);
        assert!(!twice, "{series} is there twice");
        family.samples.push(sample);
    }
    for (name, family) in families.iter().filter(|(_, family)| family.kind == "histogram") {
        histogram(name, family);
    }
    families
}

/// Buckets grow with their edges, and the last one holds everything.
fn histogram(name: &str, family: &Family) {
    let of = |ending: &str| {
        let wanted = format!("{name}_{ending}");
        family.samples.iter().filter(move |(other, ..)| *other == wanted)
    };
    let edge = |text: &str| if text == "+Inf" { f64::INFINITY } else { text.parse().unwrap() };
    let buckets: Vec<(f64, f64)> =
        of("bucket").map(|(_, labels, value)| (edge(&labels["le"]), *value)).collect();
    assert!(buckets.len() > 5, "{name} has few buckets");
    for pair in buckets.windows(2) {
        assert!(pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1, "{name}: {pair:?}");
    }
    let (last, all) = *buckets.last().unwrap();
    assert_eq!(last, f64::INFINITY, "{name}");
    let single = |ending| {
        let mut found = of(ending);
        let value = found.next().expect("is there").2;
        assert!(found.next().is_none());
        value
    };
    assert_eq!(all, single("count"), "{name}");
    assert!(single("sum") >= 0.0, "{name}");
}

fn value(families: &BTreeMap<String, Family>, name: &str, wanted: &[(&str, &str)]) -> f64 {
    let name = if name.contains(':') { name.to_owned() } else { format!("flashmoe_{name}") };
    let all = families.values().flat_map(|family| &family.samples);
    let has = |labels: &BTreeMap<String, String>| {
        wanted.iter().all(|(label, value)| labels.get(*label).is_some_and(|it| it == value))
    };
    let mut found = all.filter(|(other, labels, _)| *other == name && has(labels));
    let value = found.next().unwrap_or_else(|| panic!("no {name} {wanted:?}")).2;
    assert!(found.next().is_none(), "{name} {wanted:?} is there twice");
    value
}

#[test]
fn the_page_is_what_prometheus_reads() {
    let worker = Scripted::new(Reply::Play(Vec::new()));
    let serving = Serving::start(worker.clone());
    let empty = serving.get("/metrics");
    assert_eq!(empty.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let before = families(&empty.body);
    assert_eq!(value(&before, "time_to_first_token_seconds_count", &[]), 0.0);
    {
        let mut status = worker.status.lock().unwrap();
        let measures = &mut status.measures;
        for seconds in [0.0004, 0.3, 7.0, 100_000.0] {
            measures.first_token.add(seconds);
            measures.queue.add_time(Duration::from_secs_f64(seconds));
        }
        measures.prefill_rate.add(35.0);
        status.finished.insert("stop", 3);
        status.cancelled.extend([("queued", 1), ("prefill", 2)]);
        status.prefix.full_prefills.insert("nothing_kept", 4);
        status.prefix.tokens_reused = 70;
        status.prefix.tokens_computed = 30;
        status.prefix.disk.restored = 5;
        status.chunks = 6;
        status.experts.ahead_issued = 9;
        status.experts.device.prefetched.bus_copied = 8;
        status.experts.device.prefetched.disk_used = 7;
    }
    let now = families(&serving.get("/metrics").body);
    let bucket = |edge| value(&now, "time_to_first_token_seconds_bucket", &[("le", edge)]);
    assert_eq!([bucket("0.001"), bucket("0.2"), bucket("0.5")], [1.0, 1.0, 2.0]);
    assert_eq!([bucket("10"), bucket("7200"), bucket("+Inf")], [3.0, 3.0, 4.0]);
    assert_eq!(value(&now, "time_to_first_token_seconds_sum", &[]), 100_007.300_4);
    assert_eq!(value(&now, "queue_seconds_count", &[]), 4.0);
    let speed = |edge| value(&now, "request_prefill_tokens_per_second_bucket", &[("le", edge)]);
    assert_eq!([speed("20"), speed("50")], [0.0, 1.0]);
    assert_eq!(value(&now, "requests_cancelled_total", &[("stage", "prefill")]), 2.0);
    assert_eq!(value(&now, "requests_completed_total", &[("reason", "stop")]), 3.0);
    assert_eq!(value(&now, "full_reprefill_total", &[("reason", "nothing_kept")]), 4.0);
    assert_eq!(value(&now, "prefix_cache_queries_total", &[]), 100.0);
    assert_eq!(value(&now, "prefix_cache_hits_total", &[]), 70.0);
    assert_eq!(value(&now, "snapshot_restored_total", &[("tier", "disk")]), 5.0);
    assert_eq!(value(&now, "prefill_sweeps_total", &[]), 6.0);
    let fetched = |name, source| value(&now, name, &[("source", source)]);
    assert_eq!(fetched("expert_prefetch_issued_total", "sweep"), 9.0);
    assert_eq!(fetched("expert_prefetch_issued_total", "bus"), 8.0);
    assert_eq!(fetched("expert_prefetch_used_total", "disk"), 7.0);
}

#[test]
fn heartbeats_are_counted() {
    let silence = vec![
        Step::Wait(Duration::from_millis(500)),
        Step::Say(text("Hello.")),
        Step::Say(finish(FinishReason::Stop)),
    ];
    let worker = Scripted::new(Reply::Play(silence));
    let limits = Limits { heartbeat: Duration::from_millis(50), ..Limits::default() };
    let options = ServeOptions { limits, ..ServeOptions::default() };
    let serving = Serving::start_with(worker, options);
    let sent = || value(&families(&serving.get("/metrics").body), "sse_heartbeats_total", &[]);
    assert_eq!(sent(), 0.0);
    let chat = json!({ "stream": true, "messages": [{ "role": "user", "content": "Go on." }] });
    let answer = serving.post("/v1/chat/completions", &chat);
    let comments = answer.body.lines().filter(|line| line.starts_with(": heartbeat")).count();
    assert!((2..=12).contains(&comments), "{}", answer.body);
    assert_eq!(sent(), comments as f64);
}

#[test]
fn routers_find_their_names_and_shapes() {
    let worker = Scripted::new(Reply::Play(vec![Step::Say(finish(FinishReason::Stop))]));
    {
        let mut status = worker.status.lock().unwrap();
        status.queued = 3;
        status.sequences = 2;
        status.running = vec![server::work::RunningJob {
            slot: 0,
            id: "a".into(),
            stage: server::work::Stage::Decode,
            prompt: 300,
            processed: 300,
            cached: 100,
            generated: 100,
            eta: None,
        }];
        status.prefix.tokens_reused = 30;
        status.prefix.tokens_computed = 10;
        status.decode_time = Duration::from_secs(7);
        status.decode_stages.attention = Duration::from_secs(2);
        status.decode_stages.mixture = Duration::from_secs(4);
        status.experts.decode.stall_us = 1_500_000;
        (status.draw_time, status.head_time) = (Duration::from_secs(3), Duration::from_secs(2));
        status.finished.insert("stop", 2);
        status.finished.insert("tool_calls", 3);
    }
    let serving = Serving::start(worker);
    let found = families(&serving.get("/metrics").body);
    let model = ("model_name", "scripted");
    for (name, wanted) in [
        ("vllm:num_requests_waiting", 3.0),
        ("vllm:num_requests_running", 1.0),
        ("vllm:kv_cache_usage_perc", 0.2),
        ("vllm:prefix_cache_queries_total", 40.0),
        ("vllm:prefix_cache_hits_total", 30.0),
        ("vllm:time_to_first_token_seconds_count", 0.0),
        ("vllm:inter_token_latency_seconds_count", 0.0),
        ("vllm:e2e_request_latency_seconds_count", 0.0),
    ] {
        assert_eq!(value(&found, name, &[model]), wanted, "{name}");
    }
    let stopped = [model, ("finished_reason", "stop")];
    assert_eq!(value(&found, "vllm:request_success_total", &stopped), 5.0);
    let blocks = [model, ("block_size", "256"), ("num_gpu_blocks", "8")];
    assert_eq!(value(&found, "vllm:cache_config_info", &blocks), 1.0);
    for (stage, seconds) in [
        ("attention", 2.0),
        ("delta_net", 0.0),
        ("mixture", 2.5),
        ("expert_wait", 1.5),
        ("head", 2.0),
        ("sample", 1.0),
        ("other", 1.0),
    ] {
        let found = value(&found, "decode_stage_seconds_total", &[("stage", stage)]);
        assert_eq!(found, seconds, "{stage}");
    }
    assert!(value(&found, "memory_bytes", &[("kind", "process")]) > 0.0);
    assert_eq!(value(&found, "disk_inflight", &[]), 0.0);
    for path in ["/v1/loads", "/loads"] {
        let load = &serving.get(path).json()["loads"][0];
        assert_eq!((&load["num_waiting_reqs"], &load["num_used_tokens"]), (&json!(3), &json!(400)));
    }
    for path in ["/server_info", "/get_server_info"] {
        assert_eq!(serving.get(path).json()["max_running_requests"], 2);
    }
    for path in ["/model_info", "/get_model_info"] {
        assert_eq!(serving.get(path).json()["is_generation"], true);
    }
}

#[test]
fn the_dashboard_asks_for_names_that_there_are() {
    let worker = Scripted::new(Reply::Play(vec![Step::Say(finish(FinishReason::Stop))]));
    let serving = Serving::start(worker);
    let found = families(&serving.get("/metrics").body);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/grafana/flashmoe.json");
    let text = std::fs::read_to_string(file).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut names = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let letter = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
            for word in expression.split(|c| !letter(c)) {
                if !word.starts_with("flashmoe_") && !word.starts_with("vllm:") {
                    continue;
                }
                names += 1;
                let family = ["_bucket", "_sum", "_count"];
                let family = family.iter().find_map(|end| {
                    let family = word.strip_suffix(end)?;
                    found.get(family).filter(|family| family.kind == "histogram")
                });
                assert!(family.is_some() || found.contains_key(word), "{word} in {expression}");
            }
        }
    }
    assert!(names > 10, "{names} names");
}

#[test]
fn several_stages_are_counted_each() {
    let worker = Scripted::new(Reply::Play(vec![Step::Say(finish(FinishReason::Stop))]));
    let serving = Serving::start(std::sync::Arc::clone(&worker));
    let page = serving.get("/metrics").body;
    assert!(!page.contains("stage_batches_total"), "one device has no neighbours");
    {
        let mut status = worker.status.lock().unwrap();
        let mut counters = store::cache::StoreCounters::default();
        (counters.decode.requests, counters.decode.hits, counters.bytes_read) = (20, 15, 4096);
        status.stages = vec![(0..4, counters), (4..12, counters)];
        let work = |batches, waited| engine::stages::StageWork {
            batches,
            busy: Duration::from_secs(3),
            waited: Duration::from_secs(waited),
        };
        status.work = vec![work(7, 1), work(6, 2)];
    }
    let found = families(&serving.get("/metrics").body);
    for (name, wanted) in [
        ("stage_batches_total", [7.0, 6.0]),
        ("stage_busy_seconds_total", [3.0, 3.0]),
        ("stage_wait_seconds_total", [1.0, 2.0]),
        ("stage_expert_requests_total", [20.0, 20.0]),
        ("stage_expert_hits_total", [15.0, 15.0]),
        ("stage_expert_bytes_total", [4096.0, 4096.0]),
    ] {
        let each = ["0", "1"].map(|stage| value(&found, name, &[("stage", stage)]));
        assert_eq!(each, wanted, "{name}");
    }
    let stages = &serving.get("/status").json()["stages"];
    assert_eq!(stages[1]["layers"], json!([4, 12]));
    assert_eq!((&stages[1]["batches"], &stages[1]["waited_s"]), (&json!(6), &json!(2.0)));
}

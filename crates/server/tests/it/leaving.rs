//! Clients that leave: in the middle of a request, while they wait, while they are answered.
//!
//! Two thousand of them, at random moments. Every job must end at once, and nothing may be left behind: the count of
//! descriptors returns to what it was, memory as good as does, and the next answer is the same as before. Both are
//! counted of a process, and the other tests of this program open files and allocate next to this one (63 MiB were
//! counted of them once), so the test starts this program again with itself as the only one.

use crate::support;

use std::io::{Read, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use server::work::{Event, FinishReason};
use support::{Reply, Scripted, Serving, Step, finish, progress, request, say, text};

/// Memory that two thousand requests may leave in use: what allocators keep, not what a leak would take.
const GROWTH_KIB_MAX: usize = 32 << 10;

/// Set in the process that has no other test to run.
const ALONE: &str = "FLASHMOE_TEST_ALONE";

fn hello() -> Vec<Step> {
    say([text("Hello."), finish(FinishReason::Stop)])
}

fn chat(stream: bool) -> String {
    json!({ "stream": stream, "messages": [{ "role": "user", "content": "Go on." }] }).to_string()
}

fn assert_serves(serving: &Serving) {
    let headers = ["Content-Type: application/json"];
    let response = serving.send("POST", "/v1/chat/completions", &headers, &chat(false));
    assert_eq!(response.json()["choices"][0]["message"]["content"], "Hello.");
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[test]
fn clients_that_leave_take_their_jobs_along() {
    if std::env::var_os(ALONE).is_some() {
        return leave_two_thousand_times();
    }
    let program = std::env::current_exe().unwrap();
    let test = "leaving::clients_that_leave_take_their_jobs_along";
    let output = Command::new(program)
        .args([test, "--exact", "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("1 passed"), "the test was not found: {said}");
}

fn leave_two_thousand_times() {
    let worker = Scripted::new(Reply::Play(hello()));
    let serving = Serving::start(worker.clone());
    assert_serves(&serving);
    let before = descriptors();
    let mut resident = 0;
    let scripts = [
        vec![Step::Wait(Duration::from_secs(600))],
        [say([Event::Queued { position: 3 }]), vec![Step::Wait(Duration::from_secs(600))]].concat(),
        [say([progress(1, 9, 0, None)]), vec![Step::Wait(Duration::from_secs(600))]].concat(),
        [say([text("a")]), vec![Step::Wait(Duration::from_secs(600))]].concat(),
        vec![Step::Forever],
    ];
    let body = |stream| {
        request(
            "POST",
            "/v1/messages",
            &["Content-Type: application/json"],
            &chat(stream).to_string(),
        )
    };
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..2000usize {
        if round == 500 {
            resident = resident_kib();
        }
        worker.set(Reply::Play(scripts[round % scripts.len()].clone()));
        let bytes = body(round % 3 != 0);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut stream = serving.connect();
        // Somewhere in the request, after it, or after the first bytes of the answer.
        let cut = (random >> 33) as usize % (bytes.len() * 2);
        stream.write_all(&bytes.as_bytes()[..cut.min(bytes.len())]).unwrap();
        if cut > bytes.len() && round % 3 != 0 && round % scripts.len() == 3 {
            let _some = stream.read(&mut [0; 16]);
        }
        // So that the server is at different places when the connection ends.
        std::thread::sleep(Duration::from_micros((random >> 20) % 1500));
    }
    worker.assert_idle_within(Duration::from_secs(5));
    worker.set(Reply::Play(hello()));
    assert_serves(&serving);
    let started = Instant::now();
    while descriptors() > before + 8 {
        assert!(
            started.elapsed() < Duration::from_secs(5),
            "{} descriptors, {before} before",
            descriptors()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let grown = resident_kib().saturating_sub(resident);
    assert!(grown < GROWTH_KIB_MAX, "{grown} KiB more after 1,500 further clients");
}

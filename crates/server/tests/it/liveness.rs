//! Goal: a layer that takes long is a sign of life, an engine's thread that is stuck is none. Method: the engine over a
//! disk that answers late, whose layer takes longer than the patience; and a log that does not return, which is where
//! the test can hold the thread.

use crate::engine_support;
use crate::engine_support::served;

use std::sync::atomic::AtomicU64;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine_support::{Setting, conversation, job};
use served::Served;
use server::work::Worker;
use server::{Level, Limits, Log, ServeOptions};

/// Longer than a busy machine keeps a thread from running.
const PATIENCE: Duration = Duration::from_secs(2);

fn options() -> ServeOptions {
    let limits = Limits { silence: PATIENCE, ..Limits::default() };
    ServeOptions { limits, ..ServeOptions::default() }
}

#[test]
fn a_layer_that_takes_longer_than_the_patience_is_alive() {
    let slow = Arc::new(AtomicU64::new(400_000));
    let setting = Setting { slow: Some(slow), ..Setting::default() };
    let served = Served::start_with(options(), &setting);
    let talk = conversation("", &["What is 255 factored?"]);
    let ticket = served.worker.submit(job(&served.worker, &talk, 4)).unwrap();
    let begun = Instant::now();
    // The first layer alone has more reads than this has time for.
    while begun.elapsed() < 3 * PATIENCE {
        let live = served.get("/livez");
        assert_eq!(live.status, 200, "{}", live.body);
        std::thread::sleep(Duration::from_millis(100));
    }
    let status = served.worker.status();
    assert_eq!(status.generated_tokens, 0, "it was to take longer");
    drop(ticket);
}

#[test]
fn a_thread_that_is_stuck_is_not_alive() {
    let (release, held) = channel::<()>();
    let held = Mutex::new(held);
    let log = Log::new(Level::Debug, move |line| {
        if line.text.contains("computed from the start") {
            let _released = held.lock().unwrap().recv();
        }
    });
    let served = Served::start_with(options(), &Setting { log, ..Setting::default() });
    assert_eq!(served.get("/livez").status, 200);
    let talk = conversation("", &["What is 255 factored?"]);
    let ticket = served.worker.submit(job(&served.worker, &talk, 4)).unwrap();
    let begun = Instant::now();
    while served.get("/livez").status == 200 {
        assert!(begun.elapsed() < Duration::from_secs(20), "it was never called dead");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(begun.elapsed() > PATIENCE / 2);
    assert_eq!(served.get("/livez").json()["status"], "stuck");
    drop(release);
    drop(ticket);
}

//! Goal: a panic of the engine ends the jobs that were at work and no other; the next request is answered, in time and
//! to the bit. Method: a backend that panics before, after or inside any of its operations, under eight clients; by
//! default a GPU's at some of them.

use crate::engine_support;
use crate::engine_support::faulty;
use crate::gpu_lost::engine;
use crate::long::{is_long, part};
use crate::support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_support::{Outcome, Setting, TINY, ask, collect, conversation, job, wait_until, worker};
use faulty::{Trip, When};
use server::work::{
    DiskOptions, EngineWorker, Failing, JobError, Loading, Refusal, Ticket, Worker,
};
use server::{Limits, ServeError, ServeOptions, Server};
use support::{exchange, request};

/// How long the next good answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Clients at a time.
const CLIENTS: usize = 8;
/// More panics than any test makes.
const UNLIMITED: usize = usize::MAX / 8;
/// A system prompt that all share, so that snapshots are taken at its end and gone on from.
const SYSTEM: &str =
    "You are a careful accountant of small numbers and answer in one word, whatever is asked.";

fn setting(trip: &Arc<Trip>, golden: Option<&'static str>) -> Setting {
    Setting {
        golden,
        between: trip.between(),
        panics: UNLIMITED,
        // Smaller than a prompt, so that prompts are suspended between layers.
        chunk: 32,
        sequences: 3,
        queue: 2 * CLIENTS,
        ..Setting::default()
    }
}

fn asked(worker: &EngineWorker, client: usize) -> server::work::Job {
    let question = format!("What are the factors of {} and of {}?", 100 + client, 7 * client + 3);
    let mut job = job(worker, &conversation(SYSTEM, &[&question]), 3);
    job.id = format!("client {client}");
    job.top_logprobs = Some(1);
    job
}

/// All clients at once. A worker that has ended meanwhile refuses.
fn storm(worker: &EngineWorker) -> Vec<Outcome> {
    let submit = |client| match worker.submit(asked(worker, client)) {
        Err(Refusal::ShuttingDown) => None,
        ticket => Some(ticket.unwrap()),
    };
    let tickets: Vec<_> = (0..CLIENTS).map(submit).collect();
    let outcome = |ticket: Option<Ticket>| match ticket {
        Some(ticket) => collect(ticket),
        None => Outcome { error: Some(Refusal::ShuttingDown.to_string()), ..Outcome::default() },
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            tickets.into_iter().map(|ticket| scope.spawn(|| outcome(ticket))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// What an answer says, to the bit.
fn said(outcome: &Outcome) -> (&str, &str, &[(u32, u32)]) {
    (&outcome.text, &outcome.reasoning, &outcome.tokens)
}

/// Panics at every operation that `golden` uses. Gives how many panics there were.
fn panics_everywhere(golden: Option<&'static str>) -> u64 {
    panics_on(&[], golden)
}

/// The same with layers cut into stages.
fn panics_on(cuts: &'static [usize], golden: Option<&'static str>) -> u64 {
    let trip = Arc::new(Trip::default());
    panics_at(&trip, &Setting { cuts, ..setting(&trip, golden) })
}

fn panics_at(trip: &Trip, setting: &Setting) -> u64 {
    let worker = worker(setting);
    let right: Vec<_> = (0..CLIENTS).map(|client| ask(&worker, asked(&worker, client))).collect();
    assert!(right.iter().all(|outcome| outcome.tokens.len() == 3), "{right:?}");
    let before = trip.calls();
    for (outcome, right) in storm(&worker).iter().zip(&right) {
        assert_eq!(said(outcome), said(right), "without a panic");
    }
    let calls = trip.calls();
    for (&operation, &count) in &calls {
        let in_a_storm = count - before.get(operation).copied().unwrap_or(0);
        for when in [When::Before, When::After] {
            // Early, and in the midst of the others' work.
            for passed in [0, in_a_storm / 2] {
                trip.arm(operation, when, passed);
                let panics = worker.status().panics;
                let outcomes = storm(&worker);
                let tripped = !trip.disarm();
                let case = format!("{operation} {when:?} after {passed}");
                let mut ended = 0;
                for (client, (outcome, right)) in outcomes.iter().zip(&right).enumerate() {
                    match &outcome.error {
                        None => assert_eq!(said(outcome), said(right), "{case}: client {client}"),
                        Some(error) => {
                            assert_eq!(*error, JobError::Panicked.to_string(), "{case}");
                            ended += 1;
                        }
                    }
                }
                assert!(ended == 0 || tripped, "{case}");
                assert!(ended < CLIENTS, "{case}: all were ended");
                let begun = Instant::now();
                let next = ask(&worker, asked(&worker, 5));
                assert!(begun.elapsed() < PATIENCE, "{case}: {:?}", begun.elapsed());
                assert_eq!((next.error.as_deref(), said(&next)), (None, said(&right[5])), "{case}");
                let expected = panics + u64::from(tripped);
                wait_until(&worker, |it| it.failing.is_none() && it.panics == expected);
            }
        }
    }
    worker.status().panics
}

#[test]
fn a_panic_ends_its_job_in_a_model_with_delta_layers() {
    assert!(panics_everywhere(Some("qwen35-calm-hf")) > 60);
}

#[test]
fn a_panic_ends_its_job_in_a_model_with_networks_next_to_each_other() {
    assert!(panics_everywhere(Some("gemma4-calm-hf")) > 60);
}

#[test]
fn a_panic_ends_its_job_in_a_model_with_latent_attention() {
    assert!(panics_everywhere(Some("deepseek-calm-hf")) > 60);
}

#[test]
fn a_panic_ends_its_job_in_a_model_with_chosen_rows() {
    assert!(panics_everywhere(Some("glm5-calm-hf")) > 60);
}

#[test]
fn a_panic_ends_its_job_in_a_model_with_sinks_and_windows() {
    assert!(panics_everywhere(Some("gptoss-calm-mxfp4")) > 60);
}

#[test]
fn a_panic_ends_its_job_in_a_model_with_rows_of_n_grams() {
    assert!(panics_everywhere(Some("flash-next-calm-hf")) > 60);
}

#[test]
fn a_panic_ends_its_job_in_a_model_with_several_streams() {
    assert!(panics_everywhere(Some("dsv4-calm-hf")) > 60);
}

#[test]
fn a_panic_ends_its_job_where_layers_are_cut_into_stages() {
    assert!(panics_on(&[2], Some("qwen35-calm-hf")) > 60);
}

#[test]
fn a_panic_ends_its_job_where_three_stages_have_batches_under_way() {
    assert!(panics_on(&[1, 3], Some("qwen35-calm-hf")) > 60);
}

#[test]
fn a_panic_ends_the_jobs_whose_prompts_are_one_batch() {
    let trip = Arc::new(Trip::default());
    let setting = setting(&trip, Some("qwen35-calm-hf"));
    let between = trip.between_joint(100);
    assert!(panics_at(&trip, &Setting { between, chunk: 128, ..setting }) > 60);
}

#[test]
fn a_panic_while_a_kept_prompt_is_restored_ends_its_job() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Some(DiskOptions::new(folder.path().join("kept"), 7, 1 << 30));
    let question = "word ".repeat(120);
    let long = |worker: &EngineWorker| {
        let mut job = job(worker, &conversation("", &[&question]), 2);
        job.top_logprobs = Some(1);
        job
    };
    let first = worker(&Setting { disk: disk.clone(), ..Setting::default() });
    let right = ask(&first, long(&first));
    first.stop();
    drop(first);
    for when in [When::Before, When::After] {
        let trip = Arc::new(Trip::default());
        let setting = Setting { disk: disk.clone(), ..setting(&trip, None) };
        let setting = Setting { chunk: Setting::default().chunk, ..setting };
        let second = worker(&setting);
        trip.arm("restore", when, 0);
        let ended = ask(&second, long(&second));
        assert_eq!(ended.error, Some(JobError::Panicked.to_string()), "{when:?}");
        let next = ask(&second, long(&second));
        assert_eq!(said(&next), said(&right), "{when:?}");
        assert!(next.cached() > 0, "{when:?}: it was kept");
    }
}

/// Starts a server whose engine panics, and gives how it ended with what `/livez` and `/metrics` said before.
fn served_to_its_end(setting: &Setting, panics: usize) -> (ServeError, [String; 2]) {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    // Long enough to ask for its health.
    let limits = Limits { drain_delay: Duration::from_secs(4), ..Limits::default() };
    let server = Server::bind(ServeOptions { address, limits, ..ServeOptions::default() }).unwrap();
    let address = server.address().unwrap();
    let worker = Arc::new(worker(setting));
    let loading = Arc::new(Loading::finished(Arc::clone(&worker) as Arc<dyn Worker>));
    let serving = std::thread::spawn(move || server.run(loading));
    let get = |path| exchange(address, request("GET", path, &[], "").as_bytes());
    assert_eq!(get("/livez").status, 200);
    for _ in 0..panics {
        assert_eq!(worker.status().failing.filter(|failing| *failing == Failing::Broken), None);
        let ended = ask(&worker, asked(&worker, 1));
        assert_eq!(ended.error, Some(JobError::Panicked.to_string()));
    }
    assert_eq!(worker.status().failing, Some(Failing::Broken));
    let live = get("/livez");
    assert_eq!(live.status, 503, "{}", live.body);
    let metrics = get("/metrics").body;
    let ended = serving.join().unwrap().unwrap_err();
    worker.stop();
    (ended, [live.body, metrics])
}

#[test]
fn the_third_panic_within_a_minute_ends_the_server_in_order() {
    let trip = Arc::new(Trip::default());
    trip.arm_for_good("embed");
    let setting = Setting { panics: 3, ..setting(&trip, Some("qwen3-calm-hf")) };
    let (ended, [live, metrics]) = served_to_its_end(&setting, 3);
    assert!(matches!(ended, ServeError::Broken), "{ended}");
    assert!(live.contains("ended"), "{live}");
    assert!(metrics.contains("flashmoe_engine_panics_total 3"), "{metrics}");
}

#[test]
fn a_panic_that_cuts_the_bookkeeping_of_experts_ends_the_server() {
    let trip = Arc::new(Trip::default());
    trip.arm("mixture of experts", When::Inside, 0);
    // Experts are streamed, so that a mixture asks under the store's lock whether it is still wanted.
    let slow = Some(Arc::new(std::sync::atomic::AtomicU64::new(1)));
    let setting = Setting { slow, ..setting(&trip, Some("qwen3-calm-hf")) };
    let (ended, _) = served_to_its_end(&setting, 1);
    assert!(matches!(ended, ServeError::Broken), "{ended}");
}

/// Waits until a worker takes no job any more.
fn ends(worker: &EngineWorker, case: &str) {
    // The last job hears of its end before the worker's thread has ended itself.
    let deadline = Instant::now() + PATIENCE;
    loop {
        match worker.submit(asked(worker, 0)) {
            Err(Refusal::ShuttingDown) => break,
            _ if Instant::now() > deadline => panic!("{case}: jobs are still taken"),
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    assert_eq!(worker.status().failing, Some(Failing::Broken), "{case}");
}

/// What a backend is asked; there is nothing after it where it could panic.
const QUESTIONS: [&str; 4] = ["sequences", "rules", "check_files", "counters"];

/// A GPU cannot tell what a panic left behind: every job ends, with all of its answer or an error, and so does the
/// server.
#[test]
fn a_panic_at_any_operation_of_a_gpu_ends_every_job_and_takes_no_more() {
    let trip = Arc::new(Trip::default());
    let setting = Setting { context: 512, ..setting(&trip, Some(TINY)) };
    let start = || {
        let (engine, _) = engine(&setting)?;
        Some(engine_support::start(engine, &setting))
    };
    let Some(worker) = start() else { return };
    let before = trip.calls();
    assert_eq!(ask(&worker, asked(&worker, 0)).tokens.len(), 3);
    let calls = trip.calls();
    worker.stop();
    let mut tripped = 0;
    let of_one = |(&operation, &count)| {
        let of_one = count - before.get(operation).copied().unwrap_or(0);
        (of_one > 0).then_some((operation, of_one))
    };
    for (number, (operation, of_one)) in part(calls.iter().filter_map(of_one).enumerate(), 5) {
        let is_question = QUESTIONS.contains(&operation);
        let when = if is_question || number % 2 == 0 { When::Before } else { When::After };
        let case = format!("{operation} {when:?}");
        let worker = start().unwrap();
        trip.arm(operation, when, of_one / 2);
        let outcomes = storm(&worker);
        assert!(!trip.disarm(), "{case}: no panic");
        let is_whole = |outcome: &Outcome| outcome.error.is_some() || outcome.tokens.len() == 3;
        assert!(outcomes.iter().all(is_whole), "{case}: {outcomes:?}");
        assert!(outcomes.iter().any(|outcome| outcome.error.is_some()), "{case}");
        ends(&worker, &case);
        worker.stop();
        tripped += 1;
    }
    assert!(tripped > if is_long() { 15 } else { 3 }, "{tripped} of {calls:?}");
}

/// Jobs that come while a broken engine goes, which takes a device's memory a while.
#[test]
fn a_job_that_comes_after_the_end_of_an_engine_is_refused_or_hears_of_it() {
    let trip = Arc::new(Trip::default());
    let worker = worker(&setting(&trip, Some("qwen3-calm-hf")));
    ask(&worker, asked(&worker, 0));
    trip.linger(Duration::from_millis(500));
    trip.arm("embed", When::Before, 0);
    trip.arm_for_good("recover");
    assert!(ask(&worker, asked(&worker, 0)).error.is_some());
    let (begun, mut refused) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_millis(400) {
        match worker.submit(asked(&worker, 1)) {
            // It is an error of the test to get no last event.
            Ok(ticket) => assert!(collect(ticket).error.is_some()),
            Err(Refusal::ShuttingDown) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(refused > 0, "an engine that has broken takes jobs");
    ends(&worker, "embed");
}

#[test]
fn a_backend_that_cannot_recover_ends_every_job_and_takes_no_more() {
    let trip = Arc::new(Trip::default());
    let worker = worker(&setting(&trip, Some("qwen3-calm-hf")));
    ask(&worker, asked(&worker, 0));
    trip.arm("embed", When::Before, 3);
    trip.arm_for_good("recover");
    let outcomes = storm(&worker);
    assert!(outcomes.iter().any(|outcome| outcome.error.is_some()));
    ends(&worker, "embed");
}

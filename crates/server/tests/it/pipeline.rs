//! Goal: with several stages as many groups of answers, and chunks of prompts, are under way as there are stages.
//! Method: devices that compute nothing and take a fixed time for each batch; how many are busy at a time is counted,
//! and clients together are compared with one by the clock, with stages in this process and in processes of their own.
//! `FLASHMOE_QUIET=1` holds the clock to what is wanted (1.9 times with two stages, 7 with eight); without it, on
//! machines that others use, to what no sequence of turns reaches.

use crate::engine_support;
use crate::engine_support::apart::Apart;
use crate::engine_support::paced::Pace;
use crate::long::is_long;

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_support::{Setting, ask, collect, worker};
use server::work::{EngineWorker, Job, Prompt, Worker};

/// Tokens of an answer: enough that filling the stages at the start counts little.
fn tokens() -> usize {
    if is_long() { 48 } else { 20 }
}

fn setting(pace: &Arc<Pace>, cuts: &'static [usize], sequences: usize) -> Setting {
    let (between, queue) = (pace.between(), 2 * sequences);
    Setting { between, cuts, sequences, queue, chunk: 32, ..Setting::default() }
}

fn job(prompt: usize, client: u32, tokens: usize) -> Job {
    let tokens_of = (0..prompt as u32).map(|token| 10 + (token * 7 + client) % 50);
    let prompt = Prompt { tokens: tokens_of.collect::<Vec<_>>().into(), ..Prompt::default() };
    let mut job = Job::new(format!("client {client}"), prompt);
    job.max_tokens = Some(tokens);
    // An end token is a token as any other.
    job.min_tokens = tokens;
    job.cache_prompt = false;
    job
}

/// Tokens per second of so many clients at a time.
fn rate(worker: &EngineWorker, clients: u32) -> f64 {
    let begun = Instant::now();
    let tokens = tokens();
    let submit = |client| worker.submit(job(4, client, tokens)).unwrap();
    let tickets: Vec<_> = (0..clients).map(submit).collect();
    for ticket in tickets {
        let outcome = collect(ticket);
        assert_eq!(outcome.finish.unwrap().usage.completion, tokens);
    }
    f64::from(clients) * tokens as f64 / begun.elapsed().as_secs_f64()
}

/// What as many clients as stages give of what one gives.
fn gain(cuts: &'static [usize], delay: Duration) -> f64 {
    let (pace, stages) = (Pace::new(delay), cuts.len() + 1);
    let worker = worker(&setting(&pace, cuts, stages));
    ask(&worker, job(4, 9, 2));
    assert_eq!(pace.most(), 1, "one answer is in one stage at a time");
    let one = rate(&worker, 1);
    let all = rate(&worker, stages as u32);
    assert_eq!(pace.most(), stages, "all stages are busy at the same time");
    all / one
}

/// The same of stages in processes of their own, for a test of this name.
fn gain_apart(test: &str, cuts: &'static [usize], delay: Duration) -> Option<f64> {
    let (pace, stages) = (Pace::new(delay), cuts.len() + 1);
    let apart = Apart::start(test, &setting(&pace, cuts, stages))?;
    ask(&apart.worker, job(4, 9, 2));
    let one = rate(&apart.worker, 1);
    // One answer passes every stage's delay, those of the others too.
    let turns = one * delay.as_secs_f64() * stages as f64;
    assert!(turns <= 1.0, "{turns:.2}: a stage took no time");
    let all = rate(&apart.worker, stages as u32);
    apart.end();
    Some(all / one)
}

fn least(quiet: f64, shared: f64) -> f64 {
    if std::env::var("FLASHMOE_QUIET").is_ok() { quiet } else { shared }
}

#[test]
fn two_groups_of_answers_keep_two_stages_busy() {
    let gain = gain(&[6], Duration::from_millis(40));
    assert!(gain >= least(1.9, 1.5), "two groups give {gain:.2} times one");
}

#[test]
fn eight_groups_of_answers_keep_eight_stages_busy() {
    let gain = gain(&[1, 2, 3, 4, 5, 6, 7], Duration::from_millis(20));
    assert!(gain >= least(7.0, 4.0), "eight groups give {gain:.2} times one");
}

#[test]
fn two_groups_of_answers_keep_two_processes_busy() {
    let test = "pipeline::two_groups_of_answers_keep_two_processes_busy";
    let Some(gain) = gain_apart(test, &[6], Duration::from_millis(40)) else { return };
    assert!(gain >= least(1.9, 1.5), "two groups give {gain:.2} times one");
}

#[test]
fn eight_groups_of_answers_keep_eight_processes_busy() {
    let test = "pipeline::eight_groups_of_answers_keep_eight_processes_busy";
    let cuts = &[1, 2, 3, 4, 5, 6, 7];
    let Some(gain) = gain_apart(test, cuts, Duration::from_millis(20)) else { return };
    assert!(gain >= least(7.0, 4.0), "eight groups give {gain:.2} times one");
}

#[test]
fn chunks_of_one_prompt_follow_each_other_through_the_stages() {
    let delay = Duration::from_millis(40);
    let pace = Pace::new(delay);
    let worker = worker(&setting(&pace, &[4, 8], 1));
    let chunks = 12;
    let begun = Instant::now();
    ask(&worker, job(chunks * 32, 1, 1));
    let took = begun.elapsed().as_secs_f64() / delay.as_secs_f64();
    assert_eq!(pace.most(), 3, "all stages are busy at the same time");
    // One after the other they take 36 delays, behind each other 14.
    assert!(took < least(17.0, 28.0), "12 chunks through 3 stages took {took:.1} delays");
}

#[test]
fn a_group_is_a_share_of_the_answers_and_prompts_come_between() {
    let pace = Pace::new(Duration::from_millis(5));
    let worker = worker(&setting(&pace, &[4, 8], 7));
    let submit = |client| worker.submit(job(70 * (1 + client as usize % 3), client, 12)).unwrap();
    let tickets: Vec<_> = (0..12).map(submit).collect();
    for ticket in tickets {
        assert_eq!(collect(ticket).finish.unwrap().usage.completion, 12);
    }
    assert_eq!(pace.most(), 3);
}

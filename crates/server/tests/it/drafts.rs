//! Goal: drafts change no answer of a server, whatever stands over its tokens and whoever is computed with it. Method:
//! the demo model behind workers with and without drafts; jobs with every kind of rule, end and probability, drafts
//! that are always, sometimes and never right, several clients at a time, some of which leave.

use crate::long::part;
use crate::{engine_support, oracle};

use engine::drafts::{DraftCounters, DraftSource, Drafting};
use engine_support::{Outcome, Setting, ask, collect, conversation, job, wait_until, worker};
use oracle::Oracle;
use serde_json::json;
use server::work::{Constraint, DiskOptions, EngineWorker, Job, OutputRules, Prompt, Worker};
use text::sampling::SamplingOptions;

/// Jobs with all that decides about tokens. Log-probabilities say which they were.
fn jobs(worker: &EngineWorker) -> Vec<Job> {
    let tool = json!({"type": "function", "function": {
        "name": "get_weather", "description": "Current weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
        "required": ["city"]}}});
    let question = |text: &str, tokens| {
        let mut job = job(worker, &conversation("", &[text]), tokens);
        job.top_logprobs = Some(2);
        job.cache_prompt = false;
        job
    };
    let mut all: Vec<Job> =
        part(4..12, 2).map(|tokens| question("Count to five.", tokens)).collect();
    let mut free = question("Name a colour.", 24);
    free.sampling = SamplingOptions { temperature: 0.7, seed: 11, ..SamplingOptions::default() };
    let mut wild = question("Tell a story.", 30);
    wild.sampling = SamplingOptions {
        temperature: 1.5,
        seed: 12,
        repetition_penalty: 1.1,
        frequency_penalty: 0.2,
        presence_penalty: 0.2,
        logit_bias: vec![(7, -2.0)],
        ..SamplingOptions::default()
    };
    let mut stopped = question("Count to five.", 24);
    stopped.stop = vec!["thr".to_owned(), "Three".to_owned(), "3".to_owned()];
    let mut schema = question("What is two plus two?", 60);
    schema.constraint = Some(Constraint::JsonSchema(json!({
        "type": "object", "properties": {"answer": {"type": "integer"}, "why": {"type": "string", "maxLength": 30}},
        "required": ["answer", "why"], "additionalProperties": false,
    })));
    let mut asking = conversation("", &["What is the weather in Paris?"]);
    asking.tools = vec![tool.clone()];
    let mut call = job(worker, &asking, 120);
    call.output = OutputRules { tools: vec![tool], parallel_tool_calls: false, raw: false };
    call.top_logprobs = Some(0);
    let mut thinking = conversation("", &["What is 255 factored?"]);
    thinking.thinking = Some(true);
    let budget = |budget| {
        let mut job = job(worker, &thinking, 40);
        (job.thinking_budget, job.top_logprobs) = (Some(budget), Some(0));
        job.cache_prompt = false;
        job
    };
    all.extend([free, wild, stopped, schema, call]);
    all.extend([1, 6, 7, 8, 9].map(budget));
    for (number, job) in all.iter_mut().enumerate() {
        job.id = format!("job {number}");
    }
    all
}

fn same(found: &Outcome, expected: &Outcome, what: &str) {
    assert_eq!(found.tokens, expected.tokens, "{what}: {:?}", found.error);
    assert_eq!((&found.text, &found.reasoning), (&expected.text, &expected.reasoning), "{what}");
    let calls = |outcome: &Outcome| {
        outcome.calls.iter().map(|(name, text)| (name.clone(), text.clone())).collect::<Vec<_>>()
    };
    assert_eq!(calls(found), calls(expected), "{what}");
    assert_eq!(found.reason(), expected.reason(), "{what}");
    let usage = |outcome: &Outcome| outcome.finish.as_ref().unwrap().usage.completion;
    assert_eq!(usage(found), usage(expected), "{what}");
}

/// How much of a test's jobs is asked one by one, and how much together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Alone,
    Together,
}

fn drafting_worker(drafting: Drafting) -> EngineWorker {
    worker(&Setting { sequences: 3, drafting: Some(drafting), ..Setting::default() })
}

/// Asks a worker that drafts, and gives what became of its drafts.
fn compare(
    worker: &EngineWorker,
    jobs: &[Job],
    expected: &[Outcome],
    (asked, name): (Asked, &str),
) -> DraftCounters {
    if asked == Asked::Alone {
        for (job, expected) in jobs.iter().zip(expected) {
            same(&ask(worker, job.clone()), expected, &format!("{name}: {}", job.id));
        }
        return worker.status().drafts;
    }
    // In another order, so that depths differ; every fourth leaves.
    let order: Vec<usize> = (0..jobs.len()).map(|at| (at * 7 + 3) % jobs.len()).collect();
    for group in order.chunks(3) {
        let tickets = group.iter().map(|&at| (at, worker.submit(jobs[at].clone()).unwrap()));
        let tickets: Vec<_> = tickets.collect();
        for (at, ticket) in tickets {
            if at % 4 == 1 {
                drop(ticket);
            } else {
                same(&collect(ticket), &expected[at], &format!("{name}: {}", jobs[at].id));
            }
        }
    }
    wait_until(worker, |status| status.running.is_empty());
    worker.status().drafts
}

#[test]
fn drafts_change_no_answer_of_a_server() {
    let plain = worker(&Setting::default());
    let jobs = jobs(&plain);
    let expected: Vec<Outcome> = jobs.iter().map(|job| ask(&plain, job.clone())).collect();
    assert_eq!(plain.status().drafts, DraftCounters::default());
    let oracle = Oracle::default();
    let check = |drafting, asked| compare(&drafting_worker(drafting), &jobs, &expected, asked);
    let none = check(oracle.listening(), (Asked::Alone, "none"));
    assert_eq!(none, DraftCounters::default());
    let right = check(oracle.drafting(4), (Asked::Alone, "all right"));
    // Behind the end of an answer nothing is known.
    assert!(right.accepted * 2 > right.drafted && right.accepted > 100, "{right:?}");
    let some = check(oracle.drafting(2), (Asked::Together, "some right"));
    assert!(some.accepted > 0 && some.accepted * 2 < some.drafted, "{some:?}");
    let wrong = check(oracle.drafting(0), (Asked::Together, "all wrong"));
    assert!(wrong.rounds > 0 && wrong.accepted == 0, "{wrong:?}");
    let suffixes = Drafting { source: DraftSource::Suffix, measured: false };
    let found = check(suffixes, (Asked::Together, "suffixes"));
    assert!(found.rounds > 0 && found.accepted > 0, "{found:?}");
}

/// The drafts of a model's head, with prompts that are kept, on disk as well, and clients that leave.
#[test]
fn a_head_changes_no_answer_of_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Some(DiskOptions::new(folder.path().join("kept"), 9, 1 << 24));
    let golden = Some("qwen35-calm-hf");
    let plain = worker(&Setting { golden, snapshots: 0, sequences: 1, ..Setting::default() });
    let jobs: Vec<Job> = (0..24)
        .map(|number: u32| {
            // Three conversations, each turn longer than the last.
            let length = 30 + 40 * (number / 3) as usize;
            let token = |at: usize| ((at as u32 * 7 + number % 3 * 11 + at as u32 / 9) % 60) + 3;
            let tokens: Vec<u32> = (0..length).map(token).collect();
            let boundaries = vec![length / 2, length - 1];
            let prompt = Prompt { tokens: tokens.into(), boundaries, ..Prompt::default() };
            let mut job = Job::new(format!("job {number}"), prompt);
            (job.max_tokens, job.top_logprobs) = (Some(20), Some(1));
            let temperature = [0.0, 0.8][number as usize % 2];
            job.sampling = SamplingOptions { temperature, seed: 3, ..SamplingOptions::default() };
            job
        })
        .collect();
    let expected: Vec<Outcome> = jobs.iter().map(|job| ask(&plain, job.clone())).collect();
    for round in 0..2 {
        let sources = [DraftSource::Head, DraftSource::SuffixOrHead];
        let drafting = Drafting { source: sources[round].clone(), measured: round == 1 };
        let head = worker(&Setting {
            golden,
            head: true,
            sequences: 3,
            snapshots: 5,
            disk: disk.clone(),
            drafting: Some(drafting),
            ..Setting::default()
        });
        compare(&head, &jobs, &expected, (Asked::Alone, "a head, alone"));
        let found = compare(&head, &jobs, &expected, (Asked::Together, "a head, together"));
        assert!(found.by_head.rounds > 0 && found.by_head.drafted >= found.by_head.rounds);
        assert!(found.by_head.drafted <= found.drafted, "{found:?}");
    }
}

/// An answer that is kept is kept at its own length: the next turn goes on from there.
#[test]
fn a_next_turn_goes_on_from_an_answer_that_ended_inside_a_round() {
    let oracle = Oracle::default();
    let first = conversation("", &["Count to five."]);
    let listening = drafting_worker(oracle.listening());
    ask(&listening, job(&listening, &first, 30));
    let [drafting, plain] = [drafting_worker(oracle.drafting(4)), worker(&Setting::default())];
    for tokens in 2..8 {
        let outcomes = [&drafting, &plain].map(|worker| {
            let mut begun = job(worker, &first, tokens);
            begun.top_logprobs = Some(0);
            let begun = ask(worker, begun);
            let turns = ["Count to five.", &begun.text, "And on to ten."];
            let mut next = job(worker, &conversation("", &turns), 6);
            next.top_logprobs = Some(0);
            let next = ask(worker, next);
            (begun, next)
        });
        let [(begun, next), (expected_begun, expected_next)] = &outcomes;
        same(begun, expected_begun, "the first turn");
        same(next, expected_next, "the second turn");
        assert_eq!(next.cached(), expected_next.cached(), "{tokens} tokens");
    }
    assert!(drafting.status().drafts.accepted > 0);
}

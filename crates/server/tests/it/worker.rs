//! Goal: the worker answers as a sequence computed alone would, whatever else runs, whatever was cached, and whichever
//! clients went away meanwhile. Method: the demo model behind a real worker, jobs from this thread, every answer
//! compared with one that used nothing kept (`cache_prompt` off, alone).

use crate::engine_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use engine_support::faulty::Trip;
use engine_support::{
    Between, Outcome, Setting, UNREADABLE, ask, collect, conversation, job, wait_until, worker,
};
use server::work::{
    Constraint, Conversation, Failing, FinishReason, Job, OutputRules, PrepareError, Preparing,
    Priority, Refusal, RunningJob, Worker,
};
use text::OnFull;

const SYSTEM: &str = "You are a helpful assistant who answers briefly and politely.";

fn long_text(words: usize) -> String {
    (0..words).map(|n| format!("word{} ", n * 7919 % 1000)).collect()
}

#[test]
fn a_second_turn_computes_only_what_is_new() {
    let worker = worker(&Setting::default());
    let first = job(&worker, &conversation(SYSTEM, &["My name is Alice."]), 24);
    let turn = *first.prompt.boundaries.last().unwrap();
    let first = ask(&worker, first);
    assert_eq!(first.cached(), 0);
    let turns = ["My name is Alice.", &first.text, "What is my name?"];
    let again = job(&worker, &conversation(SYSTEM, &turns), 24);
    let mut cold = again.clone();
    cold.cache_prompt = false;
    let total = again.prompt.tokens.len();
    let warm = ask(&worker, again);
    assert!(warm.cached() >= turn, "{} of {total} cached, {turn} were known", warm.cached());
    let cold = ask(&worker, cold);
    assert_eq!((cold.cached(), &cold.text), (0, &warm.text));
    // Another conversation under the same system prompt.
    let other = ask(&worker, job(&worker, &conversation(SYSTEM, &["Count to three."]), 8));
    assert!(other.cached() > 0, "the system prompt was not kept");
    // The same prompt once more, as a client does after its timeout.
    let prompt = job(&worker, &conversation(SYSTEM, &turns), 24);
    let retry = ask(&worker, prompt);
    assert!(total - retry.cached() < 12, "{} of {total} cached", retry.cached());
    assert_eq!(retry.text, warm.text);
    let status = worker.status();
    assert!(status.prefix.full_prefills.values().sum::<u64>() >= 1, "{:?}", status.prefix);
}

#[test]
fn what_a_job_took_is_measured() {
    let worker = worker(&Setting::default());
    let outcome = ask(&worker, job(&worker, &conversation(SYSTEM, &["Tell me a story."]), 8));
    let finish = outcome.finish.unwrap();
    wait_until(&worker, |status| status.measures.whole.count() == 1);
    let status = worker.status();
    let measures = &status.measures;
    let once = [&measures.queue, &measures.first_token, &measures.prefill, &measures.decode];
    assert!(once.iter().all(|histogram| histogram.count() == 1), "{measures:?}");
    assert_eq!(measures.token.count(), finish.usage.completion as u64 - 1);
    assert_eq!((measures.prefill_rate.count(), measures.bytes_per_token.count()), (1, 1));
    let parts = measures.queue.sum() + measures.prefill.sum() + measures.decode.sum();
    assert!((measures.whole.sum() - parts).abs() < 1e-9);
    assert!((measures.prefill.sum() - finish.timings.prefill.as_secs_f64()).abs() < 1e-9);
    assert!(measures.token.sum() <= measures.decode.sum() + 1e-9);
    assert!(status.chunks >= 1 && status.prompt_tokens == finish.usage.prompt as u64);
}

#[test]
fn thinking_ends_at_its_budget_and_the_answer_begins() {
    let worker = worker(&Setting::default());
    let mut question = conversation("", &["What is 255 factored?"]);
    question.thinking = Some(true);
    let asked = |budget: Option<usize>, constraint| {
        let mut job = job(&worker, &question, 120);
        (job.thinking_budget, job.constraint) = (budget, constraint);
        ask(&worker, job)
    };
    let thought = |outcome: &Outcome| outcome.finish.as_ref().unwrap().usage.reasoning;
    let free = asked(None, None);
    let whole = thought(&free);
    assert!(whole > 12, "the question is one to think about: {}", free.reasoning);
    // A budget that is not reached changes nothing.
    let enough = asked(Some(whole), None);
    assert_eq!((&enough.reasoning, &enough.text), (&free.reasoning, &free.text));
    for budget in [1, 8] {
        let short = asked(Some(budget), None);
        // The block is closed by a line break and its token.
        assert_eq!(thought(&short), budget + 2, "{}", short.reasoning);
        assert!(free.reasoning.starts_with(short.reasoning.trim_end()), "{}", short.reasoning);
        assert!(!short.text.is_empty() && !short.text.contains("think>"), "{}", short.text);
        let json = asked(Some(budget), Some(Constraint::JsonObject));
        assert_eq!(thought(&json), budget + 2);
        assert!(json.text.trim_start().starts_with('{'), "{}", json.text);
    }
}

#[test]
fn answers_computed_together_are_those_computed_alone() {
    let worker = worker(&Setting { sequences: 4, ..Setting::default() });
    let questions =
        ["What is two plus two?", "Name a colour.", "My name is Bob.", "Count to five."];
    let alone: Vec<_> = questions
        .map(|question| ask(&worker, uncached(&worker, &conversation("", &[question]), 30)))
        .into();
    let tickets = questions
        .map(|question| worker.submit(uncached(&worker, &conversation("", &[question]), 30)));
    for (ticket, alone) in tickets.into_iter().zip(alone) {
        assert_eq!(collect(ticket.unwrap()).text, alone.text);
    }
}

#[test]
fn short_prompts_in_one_batch_are_those_computed_alone() {
    let trip = Arc::new(Trip::default());
    let between = trip.between_joint(100);
    let worker = worker(&Setting { sequences: 6, between, ..Setting::default() });
    let topics = ["two plus two", "a colour", "Bob", "counting", "rain", "seven"];
    let turn = |topic: &str| conversation(SYSTEM, &[&format!("Say a word about {topic}.")]);
    let alone = topics.map(|topic| ask(&worker, uncached(&worker, &turn(topic), 12)));
    let batches = || trip.calls().get("begin").copied().unwrap_or(0);
    // Kept is the end of the system message: what is left of each prompt is short.
    for kept in [false, true] {
        let jobs = topics.map(|topic| match kept {
            false => uncached(&worker, &turn(topic), 12),
            true => job(&worker, &turn(topic), 12),
        });
        let (begun, chunks) = (batches(), worker.status().chunks);
        let tickets = jobs.map(|job| worker.submit(job).unwrap());
        for (ticket, alone) in tickets.into_iter().zip(&alone) {
            let together = collect(ticket);
            assert_eq!((&together.text, &together.tokens), (&alone.text, &alone.tokens), "{kept}");
        }
        // Answers of twelve tokens in step are eleven batches, and prompts fewer than there are parts of them.
        let (begun, chunks) = (batches() - begun, worker.status().chunks - chunks);
        assert!(kept || begun < 6 * 12, "{begun} batches, {chunks} parts");
    }
    assert!(worker.status().prefix.saved > 0);
}

/// Where no expert is read from a disk a prompt that is about to end is not left for another, which would have both
/// wait for the last of them; elsewhere prompts pass a layer one after the other.
#[test]
fn short_prompts_run_one_after_the_other_where_nothing_is_read() {
    let suspended = |between: fn(&Arc<Trip>) -> Between| {
        let trip = Arc::new(Trip::default());
        let setting = Setting { sequences: 4, chunk: 1024, ..Setting::default() };
        let worker = worker(&Setting { between: between(&trip), ..setting });
        let texts = [30, 31, 32].map(long_text);
        let jobs = texts.map(|text| uncached(&worker, &conversation("", &[&text]), 1));
        let tickets = jobs.map(|job| worker.submit(job).unwrap());
        for ticket in tickets {
            assert_eq!(collect(ticket).reason(), FinishReason::Length);
        }
        trip.calls().get("suspend").copied().unwrap_or(0)
    };
    assert_eq!(suspended(|trip| trip.between_joint(1)), 0);
    assert!(suspended(Trip::between) > 0);
}

/// Where several short prompts wait, the answer of the first has steps before the last of them begins: answers that
/// began at a time would else also end at a time, and so would those of all turns that follow.
#[test]
fn answers_get_ahead_of_those_whose_short_prompts_wait() {
    let trip = Arc::new(Trip::default());
    let setting = Setting { sequences: 8, chunk: 1024, ..Setting::default() };
    let worker = worker(&Setting { between: trip.between_joint(1), ..setting });
    // While the long one is computed the others come. Five times there are several that wait; three are enough for 25
    // tokens.
    let jobs = [(100, 1), (3, 25), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1), (9, 1)];
    let jobs = jobs.map(|(length, tokens)| {
        uncached(&worker, &conversation("", &[&long_text(length)]), tokens)
    });
    let tickets = jobs.map(|job| worker.submit(job).unwrap());
    let ended = tickets.map(|ticket| {
        std::thread::spawn(move || {
            assert_eq!(collect(ticket).reason(), FinishReason::Length);
            std::time::Instant::now()
        })
    });
    let [_, first, .., last] = ended.map(|thread| thread.join().unwrap());
    assert!(first < last, "the first answer waited for all prompts");
}

fn uncached(
    worker: &server::work::EngineWorker,
    conversation: &server::work::Conversation,
    tokens: usize,
) -> server::work::Job {
    let mut job = job(worker, conversation, tokens);
    job.cache_prompt = false;
    job
}

#[test]
fn a_short_prompt_is_answered_while_a_long_one_is_processed() {
    let worker = worker(&Setting { chunk: 64, ..Setting::default() });
    let text = long_text(400);
    let long = job(&worker, &conversation("", &[&text]), 4);
    assert!(long.prompt.tokens.len() > 10 * 64);
    let alone = ask(&worker, {
        let mut job = long.clone();
        job.cache_prompt = false;
        job
    });
    // The status may still show the first one.
    let long = worker.submit(Job { id: "again".to_owned(), ..long }).unwrap();
    let begun = |job: &RunningJob| job.id == "again" && job.processed > 0;
    wait_until(&worker, |status| status.running.iter().any(begun));
    let short = ask(&worker, uncached(&worker, &conversation("", &["Name a colour."]), 4));
    assert_eq!(short.reason(), FinishReason::Length);
    assert!(
        worker.status().running.iter().any(|job| job.generated == 0 && job.processed < job.prompt),
        "the long prompt was finished first"
    );
    let long = collect(long);
    assert_eq!(long.text, alone.text);
    assert!(long.progress.len() > 1 && long.progress.windows(2).all(|pair| pair[0].0 <= pair[1].0));
}

#[test]
fn a_cancelled_prompt_is_resumed_by_its_retry() {
    let worker = worker(&Setting { chunk: 64, ..Setting::default() });
    let text = long_text(400);
    let long = job(&worker, &conversation("", &[&text]), 4);
    let cold = ask(&worker, {
        let mut job = long.clone();
        job.cache_prompt = false;
        job
    });
    // The status may still show the first one.
    let ticket = worker.submit(Job { id: "again".to_owned(), ..long.clone() }).unwrap();
    let well_begun = |job: &RunningJob| job.id == "again" && job.processed > 300;
    wait_until(&worker, |status| status.running.iter().any(well_begun));
    drop(ticket);
    wait_until(&worker, |status| status.running.is_empty());
    let status = worker.status();
    assert_eq!(status.cancelled.get("prefill"), Some(&1), "{:?}", status.cancelled);
    let retry = ask(&worker, long);
    assert_eq!(retry.text, cold.text);
    assert!(retry.cached() > 0 || status.prefix.snapshots.is_empty(), "{:?}", status.prefix);
}

/// Milliseconds until no job computes, after `leave`.
fn time_to_idle(worker: &server::work::EngineWorker, leave: impl FnOnce()) -> u128 {
    leave();
    let left = Instant::now();
    wait_until(worker, |status| status.running.is_empty());
    left.elapsed().as_millis()
}

#[test]
fn who_leaves_a_slow_disk_in_the_middle_of_a_layer_does_not_wait_for_it() {
    // 12 layers of 64 experts of nine reads: a chunk takes more than three seconds.
    let micros = Arc::new(AtomicU64::new(500));
    let slow = Setting { chunk: 64, slow: Some(Arc::clone(&micros)), ..Setting::default() };
    let (worker, fast) = (worker(&slow), worker(&Setting::default()));
    let text = long_text(100);
    let long = job(&worker, &conversation("", &[&text]), 4);
    assert!(long.prompt.tokens.len() > 200);
    let cold = ask(&fast, long.clone());
    let ticket = worker.submit(long.clone()).unwrap();
    wait_until(&worker, |status| status.running.iter().any(|job| job.processed > 140));
    // Now a layer takes five seconds.
    micros.store(10_000, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(200));
    let took = time_to_idle(&worker, || drop(ticket));
    assert!(took < 1000, "{took} ms after leaving in prefill");
    let status = worker.status();
    assert_eq!(status.cancelled.get("prefill"), Some(&1), "{:?}", status.cancelled);
    assert!(status.experts.withdrawn > 0, "{:?}", status.experts);
    micros.store(0, Ordering::Relaxed);
    // Chunks that were done are not computed again, and nothing of the one given up is used.
    let retry = ask(&worker, long.clone());
    assert!(retry.cached() >= 128, "{} cached", retry.cached());
    assert_eq!(retry.text, cold.text);

    // In decode: alone, a step is given up; in company, it is finished for the others.
    let mut endless = long.clone();
    endless.max_tokens = Some(1000);
    let ticket = worker.submit(endless.clone()).unwrap();
    wait_until(&worker, |status| status.running.iter().any(|job| job.generated > 1));
    micros.store(10_000, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(200));
    let took = time_to_idle(&worker, || drop(ticket));
    assert!(took < 1000, "{took} ms after leaving in decode");
    micros.store(300, Ordering::Relaxed);
    let leaving = worker.submit(endless).unwrap();
    let mut staying = job(&worker, &conversation("", &["Count to five."]), 6);
    staying.cache_prompt = false;
    let alone = ask(&fast, staying.clone());
    let staying = worker.submit(staying).unwrap();
    wait_until(&worker, |status| status.running.iter().all(|job| job.generated > 0));
    drop(leaving);
    assert_eq!(collect(staying).text, alone.text);
    micros.store(0, Ordering::Relaxed);
    assert_eq!(ask(&worker, long).text, cold.text);
}

#[test]
fn prompts_of_like_size_read_their_experts_once() {
    // Room for two layers' experts of twelve.
    let slow = Setting { slow: Some(Arc::new(AtomicU64::new(100))), ..Setting::default() };
    let texts: Vec<String> = [7, 11].map(|n| long_text(n + 90)[n..].to_owned()).into();
    let ask_both = |together: bool| {
        let worker = worker(&slow);
        let jobs = texts.iter().map(|text| uncached(&worker, &conversation("", &[text]), 1));
        let jobs: Vec<_> = jobs.collect();
        let answers: Vec<String> = if together {
            let tickets: Vec<_> = jobs.into_iter().map(|job| worker.submit(job).unwrap()).collect();
            tickets.into_iter().map(|ticket| collect(ticket).text).collect()
        } else {
            jobs.into_iter().map(|job| ask(&worker, job).text).collect()
        };
        let records = worker.status().experts.records_read;
        (answers, records)
    };
    let (alone, one_by_one) = ask_both(false);
    let (both, together) = ask_both(true);
    assert_eq!(alone, both);
    // Twelve layers of 64 experts, and what the first read before the second came.
    assert!(together * 3 < one_by_one * 2, "{together} records together, {one_by_one} one by one");
}

#[test]
fn identical_prompts_in_flight_are_computed_once() {
    let worker = worker(&Setting { context: 8192, chunk: 64, ..Setting::default() });
    let text = long_text(300);
    let long = job(&worker, &conversation("", &[&text]), 6);
    let tokens = long.prompt.tokens.len();
    let first = worker.submit(long.clone()).unwrap();
    let second = worker.submit(long).unwrap();
    let (first, second) = (collect(first), collect(second));
    assert_eq!(first.text, second.text);
    assert_eq!(first.cached(), 0);
    // It waits while there is more to gain than a few tokens.
    assert!(tokens - second.cached() < 80, "{} of {tokens} cached", second.cached());
}

#[test]
fn the_queue_is_bounded_and_side_jobs_wait() {
    let worker = worker(&Setting { sequences: 1, queue: 2, context: 4096, ..Setting::default() });
    let busy = worker.submit(job(&worker, &conversation("", &["Count."]), 2000)).unwrap();
    wait_until(&worker, |status| !status.running.is_empty());
    let mut side = job(&worker, &conversation("", &["A title, please."]), 4);
    side.priority = Priority::Side;
    side.id = "side".to_owned();
    let side = worker.submit(side).unwrap();
    let normal = worker.submit(job(&worker, &conversation("", &["Name a colour."]), 4)).unwrap();
    let refused = worker.submit(job(&worker, &conversation("", &["One more."]), 4));
    assert!(matches!(refused, Err(Refusal::QueueFull { waiting: 2, .. })), "{refused:?}");
    drop(busy);
    let normal = collect(normal).finish.unwrap();
    let side = collect(side).finish.unwrap();
    assert!(side.timings.queued >= normal.timings.queued, "the title went first");
    assert_eq!(worker.status().refused, 1);
}

#[test]
fn all_that_come_at_once_and_for_whom_there_are_sequences_are_taken() {
    let (sequences, queue) = (4, 1);
    let worker = worker(&Setting { sequences, queue, context: 4096, ..Setting::default() });
    // While the engine's thread is in a batch it takes none of them.
    let text = (0..600).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
    let jobs = (0..sequences + queue)
        .map(|n| job(&worker, &conversation("", &[&format!("{n} {text}")]), 2000));
    let tickets: Vec<_> =
        jobs.collect::<Vec<_>>().into_iter().map(|job| worker.submit(job)).collect();
    assert!(tickets.iter().all(Result::is_ok), "four run and one waits");
    let refused = worker.submit(job(&worker, &conversation("", &["One more."]), 4));
    assert!(matches!(refused, Err(Refusal::QueueFull { .. })), "{refused:?}");
}

#[test]
fn tools_stop_strings_limits_and_probabilities() {
    let worker = worker(&Setting::default());
    let plain = ask(&worker, job(&worker, &conversation("", &["Count to five."]), 40));
    let word = plain.text.split_whitespace().nth(1).expect("more than one word").to_owned();
    let mut stopped = job(&worker, &conversation("", &["Count to five."]), 40);
    stopped.stop = vec![word.clone()];
    let stopped = ask(&worker, stopped);
    assert_eq!(stopped.reason(), FinishReason::StopString(word.clone()));
    assert_eq!(stopped.text, plain.text.split(&word).next().unwrap());
    let mut measured = job(&worker, &conversation("", &["Count to five."]), 5);
    measured.top_logprobs = Some(2);
    let ticket = worker.submit(measured).unwrap();
    let finish = collect(ticket).finish.unwrap();
    assert_eq!((finish.reason, finish.usage.completion), (FinishReason::Length, 5));
    let tool = serde_json::json!({"type": "function", "function": {
        "name": "get_weather", "description": "Current weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
        "required": ["city"]}}});
    let mut asking = conversation("", &["What is the weather in Paris?"]);
    asking.tools = vec![tool.clone()];
    let mut call = job(&worker, &asking, 120);
    call.output = OutputRules { tools: vec![tool], parallel_tool_calls: false, raw: false };
    let call = ask(&worker, call);
    assert_eq!(call.reason(), FinishReason::ToolCalls, "{call:?}");
    assert_eq!(call.calls[0].0, "get_weather");
    let arguments: serde_json::Value = serde_json::from_str(&call.calls[0].1).unwrap();
    assert_eq!(arguments["city"], "Paris");
}

#[test]
fn stopping_ends_every_job_with_a_word() {
    let worker = worker(&Setting { context: 4096, ..Setting::default() });
    let tickets: Vec<_> = (0..4)
        .map(|_| worker.submit(job(&worker, &conversation("", &["Count."]), 3000)).unwrap())
        .collect();
    wait_until(&worker, |status| status.running.len() == 2);
    worker.stop();
    for ticket in tickets {
        let outcome = collect(ticket);
        assert!(outcome.error.unwrap().contains("shutting down"));
    }
    let late = worker.submit(job(&worker, &conversation("", &["Count."]), 3));
    assert!(matches!(late, Err(Refusal::ShuttingDown)));
}

#[test]
fn a_full_context_goes_on_without_its_oldest_turns_where_that_is_asked_for() {
    let worker = worker(&Setting { context: 300, ..Setting::default() });
    let told: Vec<String> = (0..31).map(|turn| format!("{turn} {}", long_text(4))).collect();
    let turns: Vec<&str> = told.iter().map(String::as_str).collect();
    let mut asked = conversation(SYSTEM, &turns);
    asked.answer_tokens = Some(24);
    let refused = worker.prepare(&asked, Preparing::PATIENT).unwrap_err();
    assert!(matches!(refused, PrepareError::TooLong { context: 300, .. }), "{refused}");
    asked.on_full = Some(OnFull::DropOldest);
    let prompt = worker.prepare(&asked, Preparing::PATIENT).unwrap();
    assert!(prompt.tokens.len() + 24 <= 300, "{} tokens", prompt.tokens.len());
    let dropped = prompt.dropped_turns;
    assert!((1..15).contains(&dropped), "{dropped}");
    // It is the prompt of what is left, and the system prompt is part of that.
    let kept = conversation(SYSTEM, &turns[2 * dropped..]);
    assert_eq!(worker.prepare(&kept, Preparing::PATIENT).unwrap().tokens, prompt.tokens);
    let first = ask(&worker, job(&worker, &asked, 2));
    assert_eq!(first.finish.unwrap().dropped_turns, dropped);
    // Most turns go on from the one before: their beginning is the same.
    let lengths = (15..31).step_by(2).map(|length| {
        let asked = Conversation { messages: asked.messages[..=length].to_vec(), ..asked.clone() };
        (worker.prepare(&asked, Preparing::PATIENT).unwrap().dropped_turns, asked)
    });
    let lengths: Vec<(usize, Conversation)> = lengths.collect();
    let mut changes: Vec<usize> = lengths.iter().map(|(dropped, _)| *dropped).collect();
    assert!(changes.is_sorted(), "{changes:?}");
    changes.dedup();
    assert!(changes.len() <= 4, "{changes:?}");
    let pair = lengths.windows(2).find(|pair| pair[0].0 == pair[1].0 && pair[0].0 > 0).unwrap();
    let [before, after] =
        [&pair[0].1, &pair[1].1].map(|asked| ask(&worker, job(&worker, asked, 2)));
    let prompt = before.finish.unwrap().usage.prompt;
    assert!(after.cached() + 40 > prompt, "{} of {prompt}", after.cached());
    // Who counts is told of all turns.
    let counting = Preparing { count: true, gone: &|| false };
    let counted = worker.prepare(&asked, counting).unwrap_err();
    assert!(matches!(counted, PrepareError::TooLong { prompt, .. } if prompt > 300), "{counted}");
    // What cannot be dropped does not fit: the figures are its own.
    let long = long_text(100);
    let mut last = conversation(SYSTEM, &["Hi.", "Hi.", &long]);
    last.on_full = Some(OnFull::DropOldest);
    let refused = worker.prepare(&last, Preparing::PATIENT).unwrap_err();
    let PrepareError::LastTurnTooLong { prompt, context: 300, counted: true } = refused else {
        panic!("{refused}");
    };
    assert!(prompt > 300 && refused.to_string().contains("the last turn alone"), "{refused}");
}

/// A disk that fails for a moment fails the requests that read then, and says nothing of the model's files: the next
/// answer is right, and so is the health.
#[test]
fn weights_that_cannot_be_read_for_a_moment_are_read_by_the_next_request() {
    let micros = Arc::new(AtomicU64::new(0));
    let worker = worker(&Setting { slow: Some(Arc::clone(&micros)), ..Setting::default() });
    let asked = |number: usize| {
        let mut job = job(&worker, &conversation("", &[&format!("What is {number} factored?")]), 6);
        job.cache_prompt = false;
        job
    };
    let right: Vec<String> = (0..3).map(|number| ask(&worker, asked(number)).text).collect();
    for _ in 0..5 {
        micros.store(UNREADABLE, Ordering::Relaxed);
        let tickets: Vec<_> = (0..3).map(|it| worker.submit(asked(it)).unwrap()).collect();
        for ticket in tickets {
            let error = collect(ticket).error.expect("weights that cannot be read");
            assert!(error.contains("could not be read") && error.contains("log"), "{error}");
            assert!(!error.contains("model.safetensors"), "{error}");
        }
        assert_eq!(worker.status().failing, Some(Failing::LastJob));
        micros.store(0, Ordering::Relaxed);
        for (number, right) in right.iter().enumerate() {
            assert_eq!(ask(&worker, asked(number)).text, *right);
        }
        assert_eq!(worker.status().failing, None);
    }
}

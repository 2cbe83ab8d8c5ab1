//! Goal: nothing that an answer tells depends on prompts of another API key, and the holder of one key still goes on
//! from its own. Method: several owners ask prompts of one random tree, in memory and over a folder that outlives the
//! worker; the tokens said to be cached are never more than the longest beginning that the same owner had before. Then
//! the same over HTTP with real keys.

use crate::engine_support;
use crate::engine_support::served;
use crate::support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine_support::{Setting, ask, collect, conversation, job, wait_until, worker};
use serde_json::json;
use served::Served;
use server::ServeOptions;
use server::work::{DiskOptions, Job, Owner, Prompt, Worker};
use support::{Reply, Scripted, Serving, finish, say, text};
use text::sampling::Xoshiro256;

/// One hybrid family and one of attention alone, which can be left at any token and so tells the most.
const FAMILIES: [&str; 2] = ["qwen35-calm-mlx-mixed", "qwen3-calm-hf"];

fn setting(golden: &'static str, folder: Option<&Path>) -> Setting {
    Setting {
        context: 4096,
        chunk: 32,
        snapshots: 40,
        golden: Some(golden),
        disk: folder.map(|folder| DiskOptions::new(folder.to_owned(), 7, 1 << 24)),
        ..Setting::default()
    }
}

fn owners() -> [Owner; 3] {
    [Owner::everybody(), Owner::of_key("first"), Owner::of_key("second")]
}

fn asked(tokens: &[u32], owner: &Owner) -> Job {
    let boundaries = vec![tokens.len() / 2, tokens.len() - 1];
    let prompt = Prompt { tokens: tokens.into(), boundaries, ..Prompt::default() };
    let mut job = Job::new("test", prompt);
    job.owner = owner.clone();
    job.max_tokens = Some(4);
    job.top_logprobs = Some(0);
    job
}

fn shared(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[test]
fn owners_never_go_on_from_each_other_and_always_from_themselves() {
    for golden in FAMILIES {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("kept");
        let prompt: Vec<u32> = (0..300).map(|n| n * 7 % 60).collect();
        let mut next = prompt.clone();
        let first = worker(&setting(golden, Some(&place)));
        for owner in &owners() {
            let cold = ask(&first, asked(&prompt, owner));
            assert_eq!(cold.cached(), 0, "{golden}: {owner:?} found another's prompt");
            let warm = ask(&first, asked(&prompt, owner));
            assert!(warm.cached() > 256, "{golden}: {owner:?} found {} tokens", warm.cached());
            assert_eq!(warm.tokens, cold.tokens);
            next.truncate(prompt.len());
            next.extend(cold.tokens.iter().map(|(id, _)| *id).chain([1, 2, 3]));
        }
        first.stop();
        drop(first);
        // After a restart every owner finds its own file, and a new one finds nothing.
        let second = worker(&setting(golden, Some(&place)));
        let stranger = ask(&second, asked(&next, &Owner::of_key("third")));
        assert_eq!(stranger.cached(), 0, "{golden}: from disk");
        for owner in &owners() {
            let warm = ask(&second, asked(&next, owner));
            assert!(warm.cached() > 256, "{golden}: {owner:?} found {} tokens", warm.cached());
        }
        wait_until(&second, |status| status.prefix.disk.restored == 3);
        assert_eq!(second.status().prefix.disk.rejected, 0);
    }
}

#[test]
fn what_is_cached_is_explained_by_the_owner_s_own_requests() {
    for (seed, golden) in FAMILIES.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("kept");
        let mut random = Xoshiro256::new(seed as u64 + 40);
        let mut below = move |limit: u64| (random.next_u64() % limit) as usize;
        let mut had: [Vec<Vec<u32>>; 3] = Default::default();
        let mut running = worker(&setting(golden, Some(&place)));
        let mut reused = 0;
        for request in 0..90 {
            if request % 30 == 29 {
                running.stop();
                drop(running);
                running = worker(&setting(golden, Some(&place)));
            }
            let whose = below(3);
            // A few beginnings that all owners have in common, then something of the owner's own or nothing.
            let beginning = 40 + 60 * below(3);
            let mut tokens: Vec<u32> = (0..beginning as u32).map(|n| n * 11 % 60).collect();
            tokens.extend((0..below(4) * 20).map(|_| below(60) as u32));
            if let Some(earlier) = had[whose].last().filter(|_| below(3) == 0) {
                tokens.clone_from(earlier);
            }
            let found = ask(&running, asked(&tokens, &owners()[whose]));
            let most = had[whose].iter().map(|earlier| shared(earlier, &tokens)).max();
            let most = most.unwrap_or(0);
            assert!(
                found.cached() <= most,
                "{golden}, request {request}: {} tokens cached, the owner had {most}",
                found.cached()
            );
            reused += usize::from(found.cached() > 0);
            tokens.extend(found.tokens.iter().map(|(id, _)| *id));
            had[whose].push(tokens);
        }
        assert!(reused > 20, "{golden}: little was reused: {reused}");
    }
}

/// Two jobs of one prompt at a time: one owner's waits for the snapshot of the other's only if it may have it.
#[test]
fn no_job_waits_for_a_beginning_that_another_owner_computes() {
    // A read takes so long that the first cannot end before the second is admitted, however fast the machine is.
    let micros = Arc::new(AtomicU64::new(20_000));
    let setting = Setting {
        slow: Some(Arc::clone(&micros)),
        golden: Some(FAMILIES[0]),
        ..Setting::default()
    };
    let worker = worker(&setting);
    let prompt: Vec<u32> = (0..400).map(|n| n * 7 % 60).collect();
    let [_, first, second] = owners();
    let one = worker.submit(asked(&prompt, &first)).unwrap();
    wait_until(&worker, |status| !status.running.is_empty());
    let two = worker.submit(asked(&prompt, &second)).unwrap();
    wait_until(&worker, |status| status.running.len() == 2 || status.running.is_empty());
    assert_eq!(worker.status().running.len(), 2, "the second waited for the first");
    micros.store(0, Ordering::Relaxed);
    assert_eq!((collect(one).cached(), collect(two).cached()), (0, 0));
}

fn cached_tokens(served: &Served, key: &str, question: &str) -> u64 {
    let body = json!({
        "messages": [{ "role": "user", "content": question }], "max_tokens": 2, "temperature": 0,
    });
    let key = format!("Authorization: Bearer {key}");
    let headers = [key.as_str(), "Content-Type: application/json"];
    let answer = served.send("/v1/chat/completions", &headers, &body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.body);
    let usage = &answer.json()["usage"];
    let timings = answer.json()["timings"]["cache_n"].as_u64();
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert_eq!(cached, timings);
    cached.unwrap()
}

#[test]
fn two_keys_are_two_caches_over_http_unless_they_share() {
    let question = "The password is hunter2, and the answer to everything is forty-two. Go on.";
    let keys = || vec!["sesame".to_owned(), "second".to_owned()];
    let apart = Served::start(ServeOptions { keys: keys(), ..ServeOptions::default() });
    assert_eq!(cached_tokens(&apart, "sesame", question), 0);
    assert!(cached_tokens(&apart, "sesame", question) > 0, "one key goes on from itself");
    assert_eq!(cached_tokens(&apart, "second", question), 0, "another's prompt was found");
    assert!(cached_tokens(&apart, "second", question) > 0);
    drop(apart);
    let options = ServeOptions { keys: keys(), share_prefixes: true, ..ServeOptions::default() };
    let together = Served::start(options);
    assert_eq!(cached_tokens(&together, "sesame", question), 0);
    assert!(cached_tokens(&together, "second", question) > 0, "the keys share");
}

#[test]
fn every_protocol_passes_its_key_on_and_a_server_without_keys_has_one_owner() {
    let bodies = [
        ("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": "Go on." }] })),
        ("/v1/responses", json!({ "input": "Go on." })),
        (
            "/v1/messages",
            json!({ "max_tokens": 9, "messages": [{ "role": "user", "content": "Go on." }] }),
        ),
    ];
    let keys = || vec!["sesame".to_owned(), "second".to_owned()];
    for (keys, shares) in [(keys(), false), (keys(), true), (Vec::new(), false)] {
        let told_apart = !keys.is_empty() && !shares;
        let script = say([text("Hello."), finish(server::work::FinishReason::Stop)]);
        let scripted = Scripted::new(Reply::Play(script));
        let options = ServeOptions { keys, share_prefixes: shares, ..ServeOptions::default() };
        let serving = Serving::start_with(scripted.clone(), options);
        for (path, body) in &bodies {
            for header in ["Authorization: Bearer sesame", "x-api-key: second"] {
                let headers = [header, "Content-Type: application/json"];
                assert_eq!(serving.send("POST", path, &headers, &body.to_string()).status, 200);
                let key = header.rsplit(' ').next().unwrap();
                let expected = if told_apart { Owner::of_key(key) } else { Owner::everybody() };
                assert_eq!(scripted.last_job().owner, expected, "{path} with {header}");
            }
        }
        scripted.assert_idle_within(Duration::from_secs(5));
    }
    let demo = worker(&Setting::default());
    let plain = job(&demo, &conversation("", &["Go on."]), 1);
    assert_eq!(plain.owner, Owner::everybody());
}

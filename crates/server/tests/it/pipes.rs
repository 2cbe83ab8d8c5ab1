//! Goal: whatever lies in the place of a kept prompt's file, no thread waits for it: the prompt is computed, and the
//! answer is the same. Files of an older format are a miss as well, and go. Method: pipes and old numbers put in the
//! place of every file that a worker has kept, in its own folder and in a shared one.
#![cfg(unix)]

use crate::engine_support;
use crate::long::is_long;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use engine_support::{Outcome, Setting, ask, conversation, job, worker};
use server::work::{DiskOptions, EngineWorker, SharedOptions, kept};

/// Longer than any answer here takes, shorter than for ever.
const PATIENCE: Duration = Duration::from_secs(30);

fn setting(folder: &Path, shared: bool) -> Setting {
    let (folder, most) = (folder.to_owned(), 1 << 30);
    let disk = (!shared).then(|| DiskOptions::new(folder.clone(), 7, most));
    let shared = shared.then(|| SharedOptions::new(folder, 7, most));
    Setting { disk, shared, ..Setting::tiny() }
}

fn say(worker: &EngineWorker) -> Outcome {
    // More than two pages of tokens.
    let text: String = (0..160).map(|n| format!("word{} ", n * 7919 % 1000)).collect();
    let begun = Instant::now();
    let mut asked = job(worker, &conversation("", &[&text]), 4);
    asked.top_logprobs = Some(0);
    let outcome = ask(worker, asked);
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    outcome
}

/// The files that are kept, of either kind.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "page" || it == "prefix") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn make_pipe(path: &Path) {
    std::fs::remove_file(path).unwrap();
    let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

/// What a worker answers that has kept its prompt and ended, with the files.
fn kept_by_one(folder: &Path, shared: bool) -> (Vec<(u32, u32)>, Vec<PathBuf>) {
    let first = worker(&setting(folder, shared));
    let answer = say(&first).tokens;
    first.stop();
    drop(first);
    let again = worker(&setting(folder, shared));
    assert!(say(&again).cached() > 0, "it is gone on from as long as nothing is wrong");
    again.stop();
    let files = files(folder);
    assert!(files.iter().any(|path| path.extension().unwrap() == "page"), "{files:?}");
    (answer, files)
}

#[test]
fn a_pipe_in_the_place_of_a_kept_file_is_a_miss() {
    for shared in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("kept");
        let (answer, found) = kept_by_one(&place, shared);
        // By default one of pages and one of prompts.
        let mut kinds = BTreeSet::new();
        for path in &found {
            if !path.exists() || !kinds.insert(path.extension()) && !is_long() {
                continue;
            }
            // While a server uses it, and at the start of the next.
            let running = worker(&setting(&place, shared));
            make_pipe(path);
            assert_eq!(say(&running).tokens, answer, "{}", path.display());
            running.stop();
            drop(running);
            if path.exists() {
                make_pipe(path);
            }
            let next = worker(&setting(&place, shared));
            assert_eq!(say(&next).tokens, answer, "{}", path.display());
            next.stop();
        }
    }
}

#[test]
fn kept_prompts_are_listed_and_verified_around_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("kept");
    let (_, found) = kept_by_one(&place, false);
    for path in &found {
        make_pipe(path);
    }
    let listed = kept::list(&place, None).unwrap();
    assert!(listed[0].snapshots.iter().all(|snapshot| snapshot.tokens.is_none()));
    let verified = kept::verify(&place, None).unwrap();
    assert_eq!((verified.files, verified.damaged.len()), (0, found.len()));
    let purged = kept::purge(&place, None, None).unwrap();
    assert!(purged.snapshots > 0 && files(&place).is_empty());
}

#[test]
fn files_of_an_older_format_are_a_miss_and_go() {
    for shared in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("kept");
        let (answer, found) = kept_by_one(&place, shared);
        for path in &found {
            let mut bytes = std::fs::read(path).unwrap();
            assert_eq!(bytes[8..12], 5u32.to_le_bytes());
            bytes[8..12].copy_from_slice(&4u32.to_le_bytes());
            std::fs::write(path, bytes).unwrap();
            if shared {
                // Names were others: of another hash.
                let name: String =
                    path.file_stem().unwrap().to_str().unwrap().chars().rev().collect();
                let suffix = path.extension().unwrap().to_str().unwrap();
                std::fs::rename(path, path.with_file_name(format!("{name}.{suffix}"))).unwrap();
            }
        }
        let next = worker(&setting(&place, shared));
        let outcome = say(&next);
        assert_eq!((&outcome.tokens, outcome.cached()), (&answer, 0));
        if !shared {
            assert!(found.iter().all(|path| !path.exists()), "its folder is its own");
        }
        next.stop();
        drop(next);
        assert!(say(&worker(&setting(&place, shared))).cached() > 0, "it is kept anew");
    }
}

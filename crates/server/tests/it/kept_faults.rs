//! Goal: a full disk, a folder that cannot be written and a clock that is set cost what was kept and nothing else: the
//! server answers as before, says what it could not write and where, and writes again when it can. Method: a
//! small net over small file systems in memory (mounting them takes root: without it those tests say so and pass), and
//! files whose times lie in other years.
#![allow(clippy::print_stdout, reason = "a skipped test says why")]

use crate::engine_support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use engine_support::{Outcome, Setting, ask, conversation, job, worker};
use server::work::{DiskOptions, EngineWorker, Worker, kept};

const DAY: Duration = Duration::from_secs(86_400);

fn on(folder: &Path, limit: impl FnOnce(&mut DiskOptions)) -> EngineWorker {
    let mut disk = DiskOptions::new(folder.to_owned(), 7, 1 << 30);
    disk.model = "demo".to_owned();
    limit(&mut disk);
    worker(&Setting { disk: Some(disk), ..Setting::tiny() })
}

/// More than a page of tokens; another for each number.
fn long_text(number: usize) -> String {
    (0..150).map(|n| format!("word{} ", (n + 31 * number) * 7919 % 1000)).collect()
}

/// Gives tokens with the bits of their log-probabilities, by which answers are compared.
fn say(worker: &EngineWorker, text: &str) -> Outcome {
    let mut job = job(worker, &conversation("", &[text]), 6);
    job.top_logprobs = Some(0);
    ask(worker, job)
}

/// Asks twice, in memory and from what is there; then ends the worker, which writes what it has.
fn use_and_stop(
    worker: EngineWorker,
    number: usize,
    expected: &[(u32, u32)],
) -> server::work::PrefixStatus {
    let text = long_text(number);
    for _ in 0..2 {
        assert_eq!(say(&worker, &text).tokens, expected);
    }
    worker.stop();
    worker.status().prefix
}

fn reference(number: usize) -> Vec<(u32, u32)> {
    let plain = worker(&Setting::tiny());
    say(&plain, &long_text(number)).tokens
}

/// A file system in memory that ends with the test.
struct Mounted(tempfile::TempDir);

impl Mounted {
    /// `None`, with the reason told, where it cannot be had.
    fn new(options: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let options = format!("mode=0700,{options}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder.path());
        match mount.output() {
            Ok(done) if done.status.success() => Some(Self(folder)),
            Ok(done) => {
                println!("skipped: {}", String::from_utf8_lossy(&done.stderr).trim());
                None
            }
            Err(error) => {
                println!("skipped: mount: {error}");
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        let done = Command::new("mount").args(["-o", &options]).arg(self.path()).status();
        assert!(done.unwrap().success(), "{options}");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

fn files(folder: &Path, suffix: &str) -> Vec<PathBuf> {
    let inside = std::fs::read_dir(folder.join("0000000000000007")).unwrap();
    let mut found: Vec<_> = inside.flatten().map(|entry| entry.path()).collect();
    found.retain(|path| path.extension().is_some_and(|it| it == suffix));
    found.sort();
    found
}

#[test]
fn a_full_disk_costs_what_was_not_kept() {
    let expected = reference(0);
    // Bytes that end, and names that end: the second is only found when a file is made.
    for (limit, more) in [("size=32k", "size=64m"), ("nr_inodes=8", "nr_inodes=1000")] {
        let Some(mounted) = Mounted::new(limit) else { return };
        let status = use_and_stop(on(mounted.path(), |_| {}), 0, &expected);
        let full = status.disk.dropped.get("disk_full").copied().unwrap_or(0);
        assert!(full > 0 && status.disk.dropped.len() == 1, "{limit}: {status:?}");
        assert!(files(mounted.path(), "new").is_empty(), "{limit}: half a file was left");
        let whole = kept::verify(mounted.path(), None).unwrap();
        assert!(whole.damaged.is_empty(), "{limit}: {whole:?}");
        mounted.remount(more);
        let status = use_and_stop(on(mounted.path(), |_| {}), 0, &expected);
        assert!(status.disk.dropped.is_empty() && status.disk.bytes_written > 0, "{status:?}");
        let warm = on(mounted.path(), |_| {});
        let again = say(&warm, &long_text(0));
        assert!(again.cached() > 0 && again.tokens == expected);
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let Some(mounted) = Mounted::new("size=1m") else { return };
    mounted.remount("ro");
    let folder = mounted.path().join("kept");
    let failed = std::panic::catch_unwind(|| on(&folder, |_| {}));
    let panic = failed.err().expect("a folder of a read-only file system was taken");
    let told = panic.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(told.contains(folder.to_str().unwrap()), "{told}");
    assert!(told.contains("Read-only"), "{told}");
}

#[test]
fn a_clock_that_is_set_keeps_no_file_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("kept");
    let texts: Vec<_> = (0..3).map(reference).collect();
    for (number, text) in texts.iter().enumerate().take(2) {
        use_and_stop(on(&place, |_| {}), number, text);
    }
    // The clock was ten years ahead when all of this was written.
    let bytes: u64 = kept::list(&place, None).unwrap()[0].bytes;
    for file in files(&place, "prefix") {
        let file = std::fs::File::options().write(true).open(file).unwrap();
        file.set_modified(SystemTime::now() + 3650 * DAY).unwrap();
    }
    let before = files(&place, "prefix");
    let status = use_and_stop(on(&place, |options| options.bytes_max = bytes), 2, &texts[2]);
    assert!(status.disk.dropped.is_empty(), "{status:?}");
    let after = files(&place, "prefix");
    let stayed = before.iter().filter(|file| after.contains(file)).count();
    assert!(stayed < before.len(), "what a wrong clock wrote was never let go");
    let warm = on(&place, |options| options.bytes_max = bytes);
    let again = say(&warm, &long_text(2));
    assert!(again.cached() > 0, "the newest was let go instead");
}

#[test]
fn the_day_s_bytes_survive_a_clock_that_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("kept");
    let expected = reference(0);
    use_and_stop(on(&place, |_| {}), 0, &expected);
    let note = place.join("written");
    let text = std::fs::read_to_string(&note).unwrap();
    let (day, bytes) = text.trim().split_once(' ').unwrap();
    let (day, bytes): (u64, u64) = (day.parse().unwrap(), bytes.parse().unwrap());
    kept::purge(&place, None, None).unwrap();
    // Written under a date to come: the limit holds, and the note is of today afterwards.
    std::fs::write(&note, format!("{} {bytes}\n", day + 3650)).unwrap();
    let status = use_and_stop(on(&place, |options| options.bytes_per_day = bytes), 0, &expected);
    assert!(status.disk.dropped.contains_key("daily_limit"), "{status:?}");
    let status = use_and_stop(on(&place, |_| {}), 0, &expected);
    assert!(status.disk.bytes_written > 0);
    let text = std::fs::read_to_string(&note).unwrap();
    let today = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let (noted, _) = text.split_once(' ').unwrap();
    assert!(noted.parse::<u64>().unwrap() <= today.as_secs() / DAY.as_secs(), "{text}");
    // A day that is over counts no more.
    kept::purge(&place, None, None).unwrap();
    std::fs::write(&note, format!("{} {}\n", day - 1, u64::MAX / 2)).unwrap();
    let status = use_and_stop(on(&place, |options| options.bytes_per_day = 1 << 30), 0, &expected);
    assert!(status.disk.dropped.is_empty() && status.disk.bytes_written > 0, "{status:?}");
}

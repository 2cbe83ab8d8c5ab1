//! Goal: kept prompts on disk are shared by page, limited in every way that was promised, checked, and removable while
//! a server works; writing them delays no request. Method: a small net behind a worker over a folder of the
//! test's, files counted and damaged from outside.

use crate::engine_support;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use engine_support::{Outcome, Setting, ask, conversation, job, worker};
use server::work::kept::{self, KeptError};
use server::work::{DiskOptions, EngineWorker, Job, Worker};

fn setting(folder: &Path) -> Setting {
    let mut disk = DiskOptions::new(folder.to_owned(), 7, 1 << 30);
    disk.model = "demo".to_owned();
    Setting { disk: Some(disk), ..Setting::tiny() }
}

fn limited(folder: &Path, limit: impl FnOnce(&mut DiskOptions)) -> EngineWorker {
    let mut setting = setting(folder);
    limit(setting.disk.as_mut().unwrap());
    worker(&setting)
}

/// With log-probabilities, by whose bits answers are compared.
fn measured(worker: &EngineWorker, turns: &[&str]) -> Job {
    let mut job = job(worker, &conversation("", turns), 8);
    job.top_logprobs = Some(0);
    job
}

fn say(worker: &EngineWorker, text: &str) -> Outcome {
    ask(worker, measured(worker, &[text]))
}

/// More than a page of tokens.
fn long_text() -> String {
    (0..150).map(|n| format!("word{} ", n * 7919 % 1000)).collect()
}

fn files(folder: &Path, suffix: &str) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let inside =
        folders.filter(|path| path.is_dir()).flat_map(|path| std::fs::read_dir(path).unwrap());
    let mut found: Vec<_> = inside.flatten().map(|entry| entry.path()).collect();
    found.retain(|path| path.extension().is_some_and(|it| it == suffix));
    found
}

#[test]
fn the_turns_of_a_conversation_share_their_pages() {
    let folder = tempfile::tempdir().unwrap();
    let place = &folder.path().join("kept");
    let text = long_text();
    let first_worker = worker(&setting(place));
    let first = say(&first_worker, &text);
    first_worker.stop();
    let written = first_worker.status().prefix.disk.bytes_written;
    drop(first_worker);
    let listed = kept::list(place, None).unwrap();
    assert_eq!((listed.len(), listed[0].model.as_str(), listed[0].in_use), (1, "demo", false));
    let (pages, bytes) = (listed[0].pages, listed[0].bytes);
    assert!(pages >= 1 && listed[0].snapshots.len() >= 2, "{listed:?}");
    let tokens = listed[0].snapshots.iter().filter_map(|snapshot| snapshot.tokens).max().unwrap();
    assert_eq!(pages, tokens / 256, "every page is there once");

    let second_worker = worker(&setting(place));
    let turns = [text.as_str(), &first.text, "And now?"];
    let second = measured(&second_worker, &turns);
    let warm = ask(&second_worker, second.clone());
    assert!(warm.cached() > 256, "{} cached", warm.cached());
    assert!(kept::list(place, Some("demo")).unwrap()[0].in_use);
    // Another server must not write into the same folder.
    let refused = std::panic::catch_unwind(|| worker(&setting(place)));
    assert!(refused.is_err());
    second_worker.stop();
    let status = second_worker.status().prefix;
    assert_eq!((status.disk.restored, status.disk.rejected), (1, 0));
    assert!(status.disk.dropped.is_empty(), "{:?}", status.disk.dropped);
    drop(second_worker);
    let page = std::fs::metadata(&files(place, "page")[0]).unwrap().len();
    let more = kept::list(place, None).unwrap();
    let longest = more[0].snapshots.iter().filter_map(|snapshot| snapshot.tokens).max().unwrap();
    assert_eq!(more[0].pages, longest / 256);
    let added = more[0].snapshots.len() - listed[0].snapshots.len();
    let own = more[0].snapshots.iter().map(|snapshot| snapshot.bytes).max().unwrap();
    let expected = added as u64 * own + (more[0].pages - pages) as u64 * page;
    assert!(more[0].bytes - bytes <= expected, "{} > {expected}", more[0].bytes - bytes);
    assert!(written > 0);

    let mut cold = second;
    cold.cache_prompt = false;
    let reference = worker(&Setting::tiny());
    assert_eq!(ask(&reference, cold).tokens, warm.tokens);
}

#[test]
fn limits_are_kept_and_what_they_cost_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let place = &folder.path().join("kept");
    let text = long_text();
    type Limit = fn(&mut DiskOptions);
    let limits: [(&str, Limit); 3] = [
        ("daily_limit", |options| options.bytes_per_day = 1000),
        ("disk_full", |options| options.bytes_free = Some(1 << 60)),
        ("folder_full", |options| options.bytes_max = 1000),
    ];
    for (reason, limit) in limits {
        let worker = limited(place, limit);
        say(&worker, &text);
        worker.stop();
        let status = worker.status().prefix;
        assert!(status.disk.dropped.get(reason).is_some_and(|&count| count > 0), "{status:?}");
        assert_eq!((status.disk.dropped.len(), status.disk.bytes_written), (1, 0), "{status:?}");
        assert!(files(place, "page").is_empty() && files(place, "new").is_empty());
    }
    // The day's bytes are those of all servers of the day.
    let worker = limited(place, |options| options.bytes_per_day = 64 << 20);
    say(&worker, &text);
    worker.stop();
    let written = worker.status().prefix.disk.bytes_written;
    assert!(written > 0);
    drop(worker);
    kept::purge(place, None, None).unwrap();
    let worker = limited(place, |options| options.bytes_per_day = written);
    say(&worker, &text);
    worker.stop();
    let dropped = worker.status().prefix.disk.dropped;
    assert!(dropped.contains_key("daily_limit"), "{dropped:?}");
}

#[test]
fn kept_prompts_are_listed_checked_and_removed_while_a_server_works() {
    let folder = tempfile::tempdir().unwrap();
    let place = &folder.path().join("kept");
    assert!(matches!(kept::list(folder.path(), None), Err(KeptError::NotKept { .. })));
    assert!(matches!(kept::list(place, None), Err(KeptError::Io { .. })));
    let text = long_text();
    let first = worker(&setting(place));
    let answer = say(&first, &text);
    first.stop();
    drop(first);
    let wrong = kept::list(place, Some("another")).unwrap_err().to_string();
    assert!(wrong.contains("another") && wrong.contains("demo"), "{wrong}");
    let whole = kept::verify(place, None).unwrap();
    assert!(whole.files > 1 && whole.damaged.is_empty(), "{whole:?}");
    for suffix in ["page", "prefix"] {
        let file = files(place, suffix).remove(0);
        let intact = std::fs::read(&file).unwrap();
        let mut bytes = intact.clone();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        std::fs::write(&file, &bytes).unwrap();
        let found = kept::verify(place, None).unwrap();
        assert_eq!((found.files, found.damaged.len()), (whole.files - 1, 1));
        assert_eq!(found.damaged[0].0, file);
        std::fs::write(&file, &intact[..middle]).unwrap();
        assert_eq!(kept::verify(place, None).unwrap().damaged.len(), 1);
        std::fs::write(&file, &intact).unwrap();
    }
    // Only what is old goes, and pages stay that something else needs.
    let hour = Duration::from_secs(3600);
    let listed = kept::list(place, None).unwrap().remove(0);
    let old = &listed.snapshots.iter().min_by_key(|snapshot| snapshot.tokens).unwrap().path;
    let aged = std::fs::File::options().write(true).open(old).unwrap();
    aged.set_modified(SystemTime::now() - 3 * hour).unwrap();
    let purged = kept::purge(place, None, Some(2 * hour)).unwrap();
    assert_eq!(purged.snapshots, 1);
    let after = kept::list(place, None).unwrap().remove(0);
    assert_eq!((after.snapshots.len(), after.pages), (listed.snapshots.len() - 1, listed.pages));

    let second = worker(&setting(place));
    let purged = kept::purge(place, Some("demo"), None).unwrap();
    assert!(purged.snapshots == after.snapshots.len() && purged.bytes > 0, "{purged:?}");
    let again = say(&second, &text);
    assert_eq!((again.cached(), &again.tokens), (0, &answer.tokens));
    second.stop();
    drop(second);
    // What the server kept after the purge is whole.
    let whole = kept::verify(place, None).unwrap();
    assert!(whole.files > 1 && whole.damaged.is_empty(), "{whole:?}");
    let third = worker(&setting(place));
    assert!(say(&third, &text).cached() > 0);
}

#[test]
fn no_request_waits_for_what_is_being_written() {
    let folder = tempfile::tempdir().unwrap();
    let place = &folder.path().join("kept");
    // A snapshot takes minutes at this pace.
    let slow = limited(place, |options| options.bytes_per_second = 64);
    let text = long_text();
    let asked = measured(&slow, &[&text]);
    let answer = ask(&slow, asked.clone());
    // Writing begins ten seconds after the last answer.
    let begun = Instant::now();
    while files(place, "new").is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "nothing is written");
        std::thread::sleep(Duration::from_millis(50));
    }
    let asking = Instant::now();
    let again = ask(&slow, asked);
    assert!(asking.elapsed() < Duration::from_secs(3), "{:?}", asking.elapsed());
    assert_eq!(again.tokens, answer.tokens);
    // The end waits for no pace.
    let stopping = Instant::now();
    slow.stop();
    assert!(stopping.elapsed() < Duration::from_secs(5), "{:?}", stopping.elapsed());
    let whole = kept::verify(place, None).unwrap();
    assert!(whole.files > 1 && whole.damaged.is_empty(), "{whole:?}");
    assert!(files(place, "new").is_empty());
}

/// Links that somebody has left in the folder while it was open to others.
#[cfg(unix)]
#[test]
fn planted_links_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let place = &folder.path().join("kept");
    let first = worker(&setting(place));
    first.stop();
    drop(first);
    let root = std::fs::read_dir(place).unwrap().flatten().map(|entry| entry.path());
    let root = root.into_iter().find(|path| path.is_dir()).unwrap();
    let victim = folder.path().join("victim");
    std::fs::write(&victim, "keep me").unwrap();
    let refused = || std::panic::catch_unwind(|| worker(&setting(place)).stop()).is_err();
    for name in ["lock", "about"] {
        let link = root.join(name);
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        assert!(refused(), "{name}");
        std::fs::remove_file(&link).unwrap();
        drop(worker(&setting(place)));
    }
    std::os::unix::fs::symlink(&victim, root.join("purged")).unwrap();
    kept::purge(place, None, None).unwrap_err();
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "keep me");
    let elsewhere = folder.path().join("elsewhere");
    std::fs::rename(&root, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &root).unwrap();
    assert!(refused(), "the folder itself");
}

/// Files of kept prompts cut at every byte of their heads and tokens, and through what follows: `verify` names each,
/// and a server that finds a folder full of them computes its answer.
#[test]
fn kept_files_cut_anywhere_are_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let place = &folder.path().join("kept");
    let text = long_text();
    let first = worker(&setting(place));
    let cold = say(&first, &text).tokens;
    first.stop();
    drop(first);
    let whole = kept::verify(place, None).unwrap().files;
    let mut cuts = Vec::new();
    for suffix in ["page", "prefix"] {
        let file = files(place, suffix).remove(0);
        let good = std::fs::read(&file).unwrap();
        for at in (0..good.len()).rev().filter(|at| *at < 3000 || at % 4093 == 0) {
            let cut = std::fs::File::options().write(true).open(&file).unwrap();
            cut.set_len(at as u64).unwrap();
            let found = kept::verify(place, None).unwrap();
            let damaged: Vec<_> = found.damaged.iter().map(|(path, _)| path).collect();
            assert_eq!((found.files, damaged), (whole - 1, vec![&file]), "{suffix} cut at {at}");
            cuts.push((suffix, good[..at].to_vec()));
        }
        std::fs::write(&file, &good).unwrap();
    }
    // Nothing whole is left: the answer has to be computed.
    let model = kept::list(place, None).unwrap().remove(0).folder;
    kept::purge(place, None, None).unwrap();
    for (number, (suffix, bytes)) in cuts.iter().enumerate() {
        std::fs::write(model.join(format!("{number:032x}.{suffix}")), bytes).unwrap();
    }
    let second = worker(&setting(place));
    assert_eq!(say(&second, &text).tokens, cold);
}

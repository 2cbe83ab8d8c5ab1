//! Goal: servers go on from each other's prompts over a common folder, also after one has died; nothing in it is
//! believed that is damaged, half-written or of another model, and it stays within its limit. Method: workers of the
//! small net over one folder, objects damaged from outside, answers compared with a worker that keeps nothing.

use crate::engine_support;
use crate::long::is_long;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use engine_support::{Outcome, Setting, ask, conversation, job, wait_until, worker};
use server::work::{DiskOptions, EngineWorker, Owner, SharedOptions, Worker};
use store::io::platform::{Access, access};

const LIMIT: u64 = 1 << 30;

fn setting(folder: &Path) -> Setting {
    setting_of(folder, 7, LIMIT)
}

fn setting_of(folder: &Path, fingerprint: u64, bytes_max: u64) -> Setting {
    let shared = SharedOptions::new(folder.to_owned(), fingerprint, bytes_max);
    Setting { shared: Some(shared), ..Setting::tiny() }
}

/// More than two pages of tokens; another for each number.
fn long_text(number: usize) -> String {
    (0..160).map(|n| format!("word{} ", (n + 31 * number) * 7919 % 1000)).collect()
}

/// With log-probabilities, by whose bits answers are compared.
fn say_as(worker: &EngineWorker, turns: &[&str], owner: Owner) -> Outcome {
    let mut job = job(worker, &conversation("", turns), 6);
    (job.owner, job.top_logprobs) = (owner, Some(0));
    ask(worker, job)
}

fn say(worker: &EngineWorker, turns: &[&str]) -> Outcome {
    say_as(worker, turns, Owner::everybody())
}

/// Objects in the folder, by the ending of their names.
fn files(folder: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == suffix) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn bytes_in(folder: &Path) -> u64 {
    let all = ["page", "prefix", "new"].into_iter().flat_map(|suffix| files(folder, suffix));
    all.map(|path| path.metadata().unwrap().len()).sum()
}

/// Waits until a worker has shared all that it has to share, though it is not at its end.
fn wait_until_shared(worker: &EngineWorker, folder: &Path) {
    let mut before = (0, 0);
    for _ in 0..100 {
        // Looked at twice a second by the engine's thread.
        std::thread::sleep(Duration::from_millis(700));
        let now = (worker.status().prefix.shared.bytes_written, files(folder, "prefix").len());
        if now == before && now.1 > 0 && files(folder, "new").is_empty() {
            return;
        }
        before = now;
    }
    panic!("it never ends: {before:?}");
}

#[test]
fn conversations_of_a_dead_server_go_on_at_another() {
    let folder = tempfile::tempdir().unwrap();
    let place = &folder.path().join("shared");
    let (first, alone) = (worker(&setting(place)), worker(&Setting::tiny()));
    let second = worker(&setting(place));
    let texts: Vec<String> = (0..4).map(long_text).collect();
    let mut answers = Vec::new();
    for text in &texts {
        answers.push(say(&first, &[text]));
    }
    // It is busy with something else and has no time to end: what it shared lies there already.
    wait_until_shared(&first, place);
    assert_eq!(access(place).unwrap(), Access::OwnerOnly);
    let (mut found, mut wanted) = (0, 0);
    for (text, answer) in texts.iter().zip(&answers) {
        let turns = [text.as_str(), &answer.text, "And now?"];
        assert_eq!(say(&alone, &[text]).tokens, answer.tokens);
        let (after, reference) = (say(&second, &turns), say(&alone, &turns));
        assert_eq!(after.tokens, reference.tokens);
        found += after.cached();
        wanted += reference.cached();
    }
    assert!(wanted > 4 * 512 && found * 10 >= wanted * 9, "{found} of {wanted} tokens");
    wait_until(&second, |status| status.prefix.shared.restored == 4);
    let status = second.status().prefix.shared;
    assert_eq!((status.rejected, status.failed), (0, 0), "{status:?}");
    // A third one, of what both have written.
    drop(second);
    drop(first);
    let third = worker(&setting(place));
    let turns = [texts[0].as_str(), &answers[0].text, "And now?"];
    let again = say(&third, &turns);
    assert!(again.cached() > 512 && again.tokens == say(&alone, &turns).tokens);
}

#[test]
fn what_is_damaged_or_half_written_is_computed_and_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let place = &folder.path().join("shared");
    let text = long_text(0);
    let cold = say(&worker(&Setting::tiny()), &[&text]);
    drop({
        let writer = worker(&setting(place));
        say(&writer, &[&text]);
        writer
    });
    let warm = say(&worker(&setting(place)), &[&text]);
    assert!(warm.cached() > 512 && warm.tokens == cold.tokens);
    type Damage = fn(&Path, Vec<u8>);
    let damages: [(&str, Damage); 6] = [
        ("a bit of the content", |path, mut bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 4;
            std::fs::write(path, bytes).unwrap();
        }),
        ("a bit of the header", |path, mut bytes| {
            bytes[17] ^= 1;
            std::fs::write(path, bytes).unwrap();
        }),
        ("half of it", |path, bytes| std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap()),
        ("nothing of it", |path, _| std::fs::write(path, "").unwrap()),
        ("more than it", |path, bytes| {
            std::fs::write(path, [bytes, vec![0]].concat()).unwrap();
        }),
        ("a name that does not stand for a file", |path, _| {
            std::fs::remove_file(path).unwrap();
            std::fs::create_dir(path).unwrap();
        }),
    ];
    for suffix in ["page", "prefix"] {
        // By default each in one of the two kinds of files.
        let shown = |case| is_long() || case % 2 == usize::from(suffix == "prefix");
        for (case, (name, damage)) in damages.iter().enumerate().filter(|(case, _)| shown(*case)) {
            let read = |path: &PathBuf| (path.clone(), std::fs::read(path).unwrap());
            let intact: Vec<_> = files(place, suffix).iter().map(read).collect();
            intact.iter().for_each(|(path, bytes)| damage(path, bytes.clone()));
            let reader = worker(&setting(place));
            let found = say(&reader, &[&text]);
            let lost = if suffix == "page" { found.cached() < 256 } else { found.cached() == 0 };
            assert!(
                lost && found.tokens == cold.tokens,
                "{suffix}, {name}: {} kept",
                found.cached()
            );
            wait_until(&reader, |status| {
                status.prefix.shared.rejected + status.prefix.shared.failed > 0
            });
            drop(reader);
            if case == 0 {
                // What is refused is removed, and written again by the next server that computes it.
                for _ in 0..3 {
                    let writer = worker(&setting(place));
                    assert_eq!(say(&writer, &[&text]).tokens, cold.tokens);
                }
                let healed = say(&worker(&setting(place)), &[&text]);
                assert!(healed.cached() > 512, "{suffix}, {name}: {} kept", healed.cached());
                assert_eq!(healed.tokens, cold.tokens);
            }
            for (path, bytes) in intact {
                if path.is_dir() {
                    std::fs::remove_dir(&path).unwrap();
                }
                std::fs::write(path, bytes).unwrap();
            }
        }
    }
}

#[test]
fn another_model_another_key_and_unfinished_names_are_not_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let place = &folder.path().join("shared");
    let text = long_text(0);
    let with_key = |worker: &EngineWorker, key: &str| say_as(worker, &[&text], Owner::of_key(key));
    let first = worker(&setting(place));
    let cold = with_key(&first, "one");
    drop(first);
    let second = worker(&setting(place));
    assert_eq!(with_key(&second, "two").cached(), 0);
    assert_eq!(say(&second, &[&text]).cached(), 0);
    // The key's domain is the same at every server.
    let warm = with_key(&second, "one");
    assert!(warm.cached() > 512 && warm.tokens == cold.tokens);
    drop(second);
    let other = worker(&setting_of(place, 8, LIMIT));
    assert_eq!(with_key(&other, "one").cached(), 0);
    drop(other);
    // Objects of one model in the place of another's.
    let [ours, theirs] = ["0000000000000007", "0000000000000008"].map(|name| place.join(name));
    std::fs::remove_dir_all(&ours).unwrap();
    std::fs::rename(&theirs, &ours).unwrap();
    let third = worker(&setting(place));
    let found = with_key(&third, "one");
    assert_eq!((found.cached(), &found.tokens), (0, &cold.tokens));
    drop(third);
    // A server died in the middle of writing: its unfinished files go when they are old.
    let object = files(place, "prefix").remove(0);
    let half = object.with_extension("0123456789abcdef.new");
    std::fs::write(&half, "half").unwrap();
    let young = object.with_extension("fedcba9876543210.new");
    std::fs::write(&young, "half").unwrap();
    let hours = SystemTime::now() - Duration::from_secs(3 * 3600);
    std::fs::File::options().write(true).open(&half).unwrap().set_modified(hours).unwrap();
    let fourth = worker(&setting(place));
    say(&fourth, &[&long_text(1)]);
    drop(fourth);
    assert_eq!(files(place, "new"), [young]);
}

#[test]
fn the_folder_stays_within_its_limit_and_the_oldest_goes() {
    let folder = tempfile::tempdir().unwrap();
    let place = &folder.path().join("shared");
    drop({
        let first = worker(&setting(place));
        say(&first, &[&long_text(0)]);
        first
    });
    let one = bytes_in(place);
    for path in ["page", "prefix"].into_iter().flat_map(|suffix| files(place, suffix)) {
        let days = SystemTime::now() - Duration::from_secs(3 * 86_400);
        std::fs::File::options().write(true).open(path).unwrap().set_modified(days).unwrap();
    }
    // What lies beside is not ours to remove.
    std::fs::write(place.join("note"), "keep me").unwrap();
    let limit = 3 * one + one / 2;
    for number in 1..6 {
        drop({
            let next = worker(&setting_of(place, 7, limit));
            say(&next, &[&long_text(number)]);
            next
        });
        assert!(bytes_in(place) <= limit, "{} > {limit}", bytes_in(place));
    }
    assert!(bytes_in(place) > limit / 2);
    let reader = worker(&setting_of(place, 7, limit));
    assert_eq!(say(&reader, &[&long_text(0)]).cached(), 0, "the oldest is still there");
    assert!(say(&reader, &[&long_text(5)]).cached() > 512, "the newest was let go");
    drop(reader);
    assert_eq!(std::fs::read_to_string(place.join("note")).unwrap(), "keep me");
    let small = worker(&setting_of(place, 8, 1000));
    say(&small, &[&long_text(0)]);
    wait_until(&small, |status| status.prefix.shared.dropped.contains_key("folder_full"));
}

#[test]
fn both_levels_work_together_and_a_folder_open_to_others_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let place = &folder.path().join("shared");
    let own = |name: &str| {
        let disk = DiskOptions::new(folder.path().join(name), 9, LIMIT);
        Setting { disk: Some(disk), ..setting(place) }
    };
    let text = long_text(0);
    let first = worker(&own("first"));
    let cold = say(&first, &[&text]);
    drop(first);
    // Its own folder is nearer; the other's is empty, so it takes the shared one, and has its own afterwards.
    let again = worker(&own("first"));
    assert!(say(&again, &[&text]).cached() > 512);
    wait_until(&again, |status| status.prefix.disk.restored == 1);
    assert_eq!(again.status().prefix.shared.restored, 0);
    drop(again);
    let second = worker(&own("second"));
    assert!(say(&second, &[&text]).cached() > 512);
    wait_until(&second, |status| status.prefix.shared.restored == 1);
    assert_eq!(second.status().prefix.disk.restored, 0);
    drop(second);
    std::fs::remove_dir_all(place).unwrap();
    let third = worker(&own("second"));
    let warm = say(&third, &[&text]);
    assert!(warm.cached() > 512 && warm.tokens == cold.tokens);
    drop(third);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(place, std::fs::Permissions::from_mode(0o750)).unwrap();
        let refused = std::panic::catch_unwind(|| worker(&own("third"))).err().unwrap();
        let told = refused.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(told.contains("chmod 700") && told.contains(place.to_str().unwrap()), "{told}");
    }
}

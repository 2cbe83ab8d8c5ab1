//! What came of a GPU's checks, kept in a small file of the user's cache folder: checking takes a second or minutes,
//! and a driver that crashes should not be tried at every start.

use std::io;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use engine::backend::gpu::{Adapter, check};
use serde::{Deserialize, Serialize};
use store::io::platform::{Links, create_private_folder, read_regular};
use store::io::{Readers, replace};

use super::child::{Ended, Group};
use crate::state;

const FILE: &str = "gpu-checks.json";
const FILE_BYTES_MAX: u64 = 256 << 10;
/// Verdicts that are kept; the oldest goes first.
const KEPT: usize = 16;
/// Letters of a reason: a driver's words have no limit.
const REASON_LETTERS: usize = 300;

/// What was checked, and how it went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// All checks were right, and all ran.
    pub(crate) holds: bool,
    /// A kernel of each kind alone, not all groups.
    pub(crate) short: bool,
    pub(crate) checks: usize,
    /// What was wrong.
    pub(crate) reason: Option<String>,
    /// Why the processor computes although all is right: it is faster.
    #[serde(default)]
    pub(crate) slow: Option<String>,
    /// How long it took.
    pub(crate) milliseconds: u64,
}

impl Verdict {
    /// Of groups that were run.
    pub(crate) fn of(groups: &[(&str, Group)]) -> Self {
        let checks = groups.iter().map(|(_, group)| group.checks).sum();
        let wrong: usize = groups.iter().map(|(_, group)| group.wrong).sum();
        let early = groups.iter().find_map(|(name, group)| match &group.ended {
            Ended::Early(why) => Some(format!("the check of its kernels ({name}) {why}")),
            Ended::Whole => None,
        });
        let wrong =
            (wrong > 0).then(|| format!("{wrong} of {checks} checks of its kernels are wrong"));
        let reason = early.or(wrong).map(|reason| reason.chars().take(REASON_LETTERS).collect());
        Self {
            holds: !groups.is_empty() && groups.iter().all(|(_, group)| group.holds()),
            short: groups.iter().all(|(name, _)| *name == check::SHORT),
            checks,
            reason,
            slow: None,
            milliseconds: groups.iter().map(|(_, group)| group.time.as_millis() as u64).sum(),
        }
    }

    /// Why the GPU is not taken.
    pub(crate) fn refusal(&self) -> Option<String> {
        match (self.holds, &self.reason) {
            (true, _) => self.slow.clone(),
            (false, Some(reason)) => Some(reason.clone()),
            (false, None) => Some("its kernels were not checked".to_owned()),
        }
    }
}

/// Whose verdict it is: another driver or another build has to be checked anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Key {
    adapter: String,
    api: String,
    driver: String,
    build: String,
}

impl Key {
    fn of(adapter: &Adapter) -> Self {
        Self {
            adapter: adapter.name.clone(),
            api: adapter.api.clone(),
            driver: adapter.driver.clone(),
            build: build(),
        }
    }
}

/// What tells this build from others: version and commit, and size and time of the program for those between commits.
fn build() -> String {
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("FLASHMOE_COMMIT"));
    let facts = std::env::current_exe().and_then(|path| path.metadata());
    let (bytes, changed) = facts.map_or((0, 0), |facts| {
        let changed = facts.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        (facts.len(), changed.map_or(0, |since| since.as_nanos()))
    });
    format!("{version} {commit} {bytes} {changed}")
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    key: Key,
    verdict: Verdict,
    /// Seconds since 1970, for people.
    at: u64,
}

/// The file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Verdicts {
    checks: Vec<Kept>,
}

impl Verdicts {
    fn path() -> Option<PathBuf> {
        Some(state::cache_folder()?.join(FILE))
    }

    /// What is kept; nothing where the file is none of ours.
    fn read() -> Self {
        let bytes = Self::path().map(|path| read_regular(&path, Links::Refused, FILE_BYTES_MAX));
        let bytes = bytes.and_then(Result::ok).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    /// What is known of an adapter with its present driver and this build.
    pub(crate) fn of(adapter: &Adapter) -> Option<Verdict> {
        Self::read().find(&Key::of(adapter))
    }

    /// Keeps what came of checks, over an earlier verdict.
    ///
    /// # Errors
    /// The folder cannot be made or written, or the user has none.
    pub(crate) fn keep(adapter: &Adapter, verdict: &Verdict) -> io::Result<()> {
        let path = Self::path().ok_or(io::ErrorKind::NotFound)?;
        let mut all = Self::read();
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        all.add(Kept { key: Key::of(adapter), verdict: verdict.clone(), at });
        create_private_folder(path.parent().unwrap_or(&path))?;
        let bytes = serde_json::to_vec_pretty(&all)?;
        replace(&path, Readers::Owner, &bytes)
    }

    fn find(&self, key: &Key) -> Option<Verdict> {
        self.checks.iter().rev().find(|kept| kept.key == *key).map(|kept| kept.verdict.clone())
    }

    fn add(&mut self, new: Kept) {
        self.checks.retain(|kept| kept.key != new.key);
        self.checks.push(new);
        let over = self.checks.len().saturating_sub(KEPT);
        self.checks.drain(..over);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn group(checks: usize, wrong: usize, ended: Ended) -> Group {
        Group { checks, wrong, ended, time: Duration::from_millis(20) }
    }

    #[test]
    fn a_verdict_is_good_where_every_check_ran_and_was_right() {
        let right = Verdict::of(&[("short", group(14, 0, Ended::Whole))]);
        assert!(right.holds && right.short && right.checks == 14 && right.refusal().is_none());
        let all = Verdict::of(&[
            ("layers", group(9, 0, Ended::Whole)),
            ("pairs", group(4, 0, Ended::Whole)),
        ]);
        assert!(all.holds && !all.short && all.milliseconds == 40);
        let wrong = Verdict::of(&[
            ("layers", group(9, 2, Ended::Whole)),
            ("pairs", group(4, 0, Ended::Whole)),
        ]);
        assert_eq!(wrong.refusal().expect("wrong"), "2 of 13 checks of its kernels are wrong");
        let crashed = Ended::Early("crashed (signal: 6)".to_owned());
        let crashed =
            Verdict::of(&[("layers", group(9, 0, Ended::Whole)), ("pairs", group(1, 0, crashed))]);
        let reason = crashed.refusal().expect("not all ran");
        assert_eq!(reason, "the check of its kernels (pairs) crashed (signal: 6)");
        // No check is no verdict.
        assert!(!Verdict::of(&[("layers", group(0, 0, Ended::Whole))]).holds);
        assert!(!Verdict::of(&[]).holds);
        let long = Ended::Early("x".repeat(10_000));
        let long = Verdict::of(&[("layers", group(1, 0, long))]).refusal().expect("not all ran");
        assert_eq!(long.len(), REASON_LETTERS);
    }

    #[test]
    fn another_driver_or_build_has_no_verdict_and_the_oldest_goes() {
        let key = |adapter: &str, driver: &str, build: &str| Key {
            adapter: adapter.to_owned(),
            api: "vulkan".to_owned(),
            driver: driver.to_owned(),
            build: build.to_owned(),
        };
        let verdict = |checks| Verdict {
            holds: true,
            short: true,
            checks,
            reason: None,
            slow: None,
            milliseconds: 1,
        };
        let mut all = Verdicts::default();
        all.add(Kept { key: key("a", "1", "x"), verdict: verdict(1), at: 0 });
        all.add(Kept { key: key("a", "1", "x"), verdict: verdict(2), at: 1 });
        assert_eq!(all.checks.len(), 1, "a later verdict replaces it");
        assert_eq!(all.find(&key("a", "1", "x")), Some(verdict(2)));
        for other in [key("a", "2", "x"), key("a", "1", "y"), key("b", "1", "x")] {
            assert_eq!(all.find(&other), None);
        }
        let text = serde_json::to_vec(&all).unwrap();
        assert_eq!(serde_json::from_slice::<Verdicts>(&text).unwrap(), all);
        for number in 0..KEPT {
            all.add(Kept { key: key("c", &number.to_string(), "x"), verdict: verdict(3), at: 2 });
        }
        assert_eq!((all.checks.len(), all.find(&key("a", "1", "x"))), (KEPT, None));
    }
}

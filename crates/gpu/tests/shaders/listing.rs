//! The committed hashes of Metal texts, `hashes`: a line for each group of kernels with the hash of all its texts, the
//! one of its first and its last, and how many there are. What has changed is written to a folder, because a hash
//! cannot be read. `FLASHMOE_REWRITE_MSL=1` writes the hashes anew, of all texts.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use gpu::op::Op;
use twox_hash::XxHash3_64;

use crate::group::group;
use crate::long::is_long;
use crate::translate::Translated;

/// Places of the first and of the last kernel of each group.
pub(crate) fn ends(ops: &[Op]) -> BTreeSet<usize> {
    let mut ends: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    for (place, op) in ops.iter().enumerate() {
        ends.entry(group(*op)).or_insert([place; 2])[1] = place;
    }
    ends.into_values().flatten().collect()
}

/// What stands in the place of a hash of all texts where not all were translated.
const NOT_ALL: &str = "................";

/// A line of `hashes` in the making.
#[derive(Default)]
struct Line {
    count: usize,
    all: u64,
    ends: u64,
}

/// Lines of `hashes` in the making.
pub(crate) struct Hashes {
    lines: BTreeMap<String, Line>,
    /// First and last kernels of the groups.
    ends: HashSet<Op>,
}

impl Hashes {
    /// Of groups of kernels none of which is added yet.
    pub(crate) fn of(ops: &[Op]) -> Self {
        let mut lines: BTreeMap<String, Line> = BTreeMap::new();
        ops.iter().for_each(|op| lines.entry(group(*op)).or_default().count += 1);
        Self { lines, ends: ends(ops).into_iter().map(|place| ops[place]).collect() }
    }

    /// Adds a kernel; kernels come in a fixed order.
    pub(crate) fn add(&mut self, kernel: &Translated) {
        let line = self.lines.entry(group(kernel.op)).or_default();
        let next = |hash| XxHash3_64::oneshot_with_seed(hash, kernel.metal[0].as_bytes());
        line.all = next(line.all);
        if self.ends.contains(&kernel.op) {
            line.ends = next(line.ends);
        }
    }

    /// The file, without the hashes of all texts where not all are translated.
    pub(crate) fn text(&self) -> String {
        let lines = self.lines.iter();
        let lines = lines.map(|(group, Line { count, all, ends })| {
            let all = if is_long() { format!("{all:016x}") } else { NOT_ALL.to_owned() };
            format!("{all} {ends:016x} {count:4} {group}\n")
        });
        lines.collect()
    }
}

/// A line of the file without the hash of all texts.
fn without_all(line: &str) -> String {
    line.split_once(' ').map_or_else(String::new, |(_, rest)| format!("{NOT_ALL} {rest}\n"))
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shaders/hashes")
}

/// Groups whose line is another one than in the committed file, or is in one of the two only. With
/// `FLASHMOE_REWRITE_MSL` the file is written and nothing differs.
pub(crate) fn changed(made: &str) -> BTreeSet<String> {
    if std::env::var_os("FLASHMOE_REWRITE_MSL").is_some() {
        assert!(is_long(), "FLASHMOE_REWRITE_MSL needs FLASHMOE_LONG_TESTS=1: all texts");
        std::fs::write(file(), made).expect("the file of hashes can be written");
    }
    let mut listed = std::fs::read_to_string(file()).unwrap_or_default();
    if !is_long() {
        listed = listed.lines().map(without_all).collect();
    }
    differences(&listed, made)
}

/// Names of groups whose lines differ between two texts of `hashes`.
pub(crate) fn differences(listed: &str, made: &str) -> BTreeSet<String> {
    let [listed, made] = [listed, made].map(|text| text.lines().collect::<BTreeSet<_>>());
    let name = |line: &&str| line.split_whitespace().skip(3).collect::<Vec<_>>().join(" ");
    listed.symmetric_difference(&made).map(name).collect()
}

/// Writes the texts of the groups `wanted` to `folder`, one file each, named by group and number.
pub(crate) fn write<'a>(
    folder: &Path,
    kernels: impl Iterator<Item = &'a Translated>,
    wanted: impl Fn(&str) -> bool,
) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for kernel in kernels {
        let name = group(kernel.op);
        if wanted(&name) {
            let count = counts.entry(name.clone()).or_default();
            *count += 1;
            let file = format!("{}.{count}.metal", name.replace(' ', "-"));
            std::fs::write(folder.join(file), &kernel.metal[0])?;
        }
    }
    Ok(())
}

//! The committed hashes of Metal texts, `hashes`: a line for each group of kernels with the hash of all its texts. What
//! has changed is written to a folder, because a hash cannot be read. `FLASHMOE_REWRITE_MSL=1` writes the hashes anew.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_64;

use crate::group::group;
use crate::translate::Translated;

/// Lines of `hashes` in the making.
#[derive(Default)]
pub(crate) struct Hashes(BTreeMap<String, (usize, u64)>);

impl Hashes {
    /// Adds a kernel; kernels come in a fixed order.
    pub(crate) fn add(&mut self, kernel: &Translated) {
        let (count, hash) = self.0.entry(group(kernel.op)).or_default();
        *count += 1;
        *hash = XxHash3_64::oneshot_with_seed(*hash, kernel.metal[0].as_bytes());
    }

    /// The file.
    pub(crate) fn text(&self) -> String {
        let lines = self.0.iter();
        lines.map(|(group, (count, hash))| format!("{hash:016x} {count:4} {group}\n")).collect()
    }
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shaders/hashes")
}

/// Groups whose line is another one than in the committed file, or is in one of the two only. With
/// `FLASHMOE_REWRITE_MSL` the file is written and nothing differs.
pub(crate) fn changed(made: &str) -> BTreeSet<String> {
    if std::env::var_os("FLASHMOE_REWRITE_MSL").is_some() {
        std::fs::write(file(), made).expect("the file of hashes can be written");
    }
    differences(&std::fs::read_to_string(file()).unwrap_or_default(), made)
}

/// Names of groups whose lines differ between two texts of `hashes`.
pub(crate) fn differences(listed: &str, made: &str) -> BTreeSet<String> {
    let [listed, made] = [listed, made].map(|text| text.lines().collect::<BTreeSet<_>>());
    let name = |line: &&str| line.split_whitespace().skip(2).collect::<Vec<_>>().join(" ");
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

//! Goal: docs/hardening.md names no test that is not there. Method: every name in its tables is looked for among the
//! functions and the files of the crates.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const CRATES: [&str; 10] =
    ["kernels", "cuda", "gpu", "store", "text", "hub", "wire", "engine", "server", "flashmoe"];
/// Shorter names in backticks are keys and options.
const NAME_BYTES_MIN: usize = 20;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every source file under a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") {
            found.push(path);
        }
    }
}

/// The names of all functions of the crates.
fn functions() -> BTreeSet<String> {
    let mut files = Vec::new();
    for name in CRATES {
        for part in ["src", "tests"] {
            let folder = root().join("crates").join(name).join(part);
            if folder.is_dir() {
                sources(&folder, &mut files);
            }
        }
    }
    let mut names = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(file).unwrap();
        let after = text.split("fn ").skip(1);
        let name = |rest: &str| {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            rest[..end.unwrap_or(rest.len())].to_owned()
        };
        names.extend(after.map(name));
    }
    names
}

/// The rows of the tables, as cells.
fn rows() -> Vec<Vec<String>> {
    let text = fs::read_to_string(root().join("docs/hardening.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| "));
    // A bar inside a cell is escaped.
    let cells = |line: &str| {
        let line = line.replace("\\|", "\u{1}");
        line.trim_matches('|').split('|').map(|cell| cell.trim().replace('\u{1}', "|")).collect()
    };
    rows.map(cells).collect()
}

#[test]
fn every_test_of_the_table_exists() {
    let (functions, mut named, mut missing) = (functions(), 0, Vec::new());
    for row in rows() {
        for cell in &row {
            for name in cell.split('`').skip(1).step_by(2) {
                let (stem, whole) = match name.strip_suffix("...") {
                    Some(stem) => (stem, false),
                    None => (name, true),
                };
                let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
                if stem.len() < NAME_BYTES_MIN || !stem.chars().all(plain) {
                    continue;
                }
                named += 1;
                let is_there = match whole {
                    true => functions.contains(stem),
                    false => functions.iter().any(|other| other.starts_with(stem)),
                };
                if !is_there {
                    missing.push(name.to_owned());
                }
            }
        }
    }
    assert!(missing.is_empty(), "docs/hardening.md names {missing:?}");
    assert!(named > 30, "only {named} names were found");
}

/// `text pieces` is crates/text/tests/it/pieces.rs, `store io/uring.rs` a source of that crate.
#[test]
fn every_file_of_the_table_exists() {
    let (mut named, mut missing) = (0, Vec::new());
    for row in rows() {
        let Some(cell) = row.get(if row.len() > 3 { 3 } else { 2 }) else { continue };
        for entry in cell.split([',', ';']).map(str::trim) {
            let words: Vec<&str> = entry.split(' ').map(|word| word.trim_matches('`')).collect();
            let [name, file, ..] = words[..] else { continue };
            if !CRATES.contains(&name) {
                continue;
            }
            named += 1;
            let folder = root().join("crates").join(name);
            let places = [
                folder.join("tests/it").join(format!("{file}.rs")),
                folder.join("tests").join(format!("{file}.rs")),
                folder.join("tests").join(file),
                folder.join("src").join(file),
                folder.join("src").join(format!("{file}.rs")),
                folder.join("src").join(file).join("mod.rs"),
            ];
            if !places.iter().any(|place| place.exists()) {
                missing.push(entry.to_owned());
            }
        }
    }
    assert!(missing.is_empty(), "docs/hardening.md names {missing:?}");
    assert!(named > 40, "only {named} files were found");
}

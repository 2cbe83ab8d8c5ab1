//! House rules that a compiler does not check, over every source file of the workspace.
//!
//! Files stay short enough to read at one sitting and say in their first lines why they exist; `unsafe`
//! stays in the places that own it; the crates depend on each other in one direction only; nothing
//! unfinished, no debris of debugging and no path of somebody's machine is committed.
//!
//! Each rule is a function from a file to its breaches, and each is shown below to catch one.

use std::path::{Path, PathBuf};

const LINES_MAX: usize = 600;
const COLUMNS_MAX: usize = 120;
const DECISION_LINES_MAX: usize = 12;

/// Folders and files that may contain `unsafe`, relative to the workspace.
const UNSAFE_ALLOWED: &[&str] = &[
    "crates/kernels/src/",
    "crates/store/src/arena.rs",
    "crates/store/src/heap.rs",
    "crates/store/src/io/",
    "crates/cuda/src/",
    "crates/gpu/src/check/driver_options.rs",
    "crates/gpu/src/compile.rs",
    "crates/gpu/src/instance.rs",
    "crates/gpu/src/memory.rs",
    "crates/gpu/src/metal.rs",
    "crates/gpu/src/vulkan.rs",
];

/// Workspace crates from the bottom up: each may use those before it.
const LAYERS: &[&str] =
    &["kernels", "store", "text", "hub", "wire", "cuda", "gpu", "engine", "server", "flashmoe"];

/// Folders whose files must not name another part of their crate, and the part.
const CLOSED_ROOMS: &[(&str, &str)] = &[
    ("crates/engine/src/residency/", "crate::backend"),
    ("crates/engine/src/residency/", "use cuda::"),
    ("crates/engine/src/residency/", "use gpu::"),
    ("crates/engine/src/model/", "crate::backend"),
];

/// Places of the sources that open files in other ways than `open_regular`, and why.
const PLAIN_OPENS: &[(&str, &str)] = &[
    ("crates/store/src/io/platform/", "where files are opened for all"),
    ("crates/store/src/arena.rs", "/proc/self/smaps"),
    ("crates/server/src/temperature.rs", "/sys"),
    ("crates/server/src/http/app.rs", "/proc/self/status"),
    ("crates/flashmoe/src/plan/machine/proc.rs", "/proc and /sys"),
    ("crates/flashmoe/src/signals.rs", "/proc/self/status"),
    ("crates/flashmoe/src/commands/doctor.rs", "/proc and /sys"),
    ("crates/flashmoe/src/commands/serve.rs", "a file of the command line may be a pipe"),
    ("crates/flashmoe/src/commands/trace/mod.rs", "the same"),
    ("crates/flashmoe/src/commands/eval/", "the same"),
    ("crates/flashmoe/src/commands/score.rs", "the same"),
    ("crates/flashmoe/src/commands/synth/shape.rs", "the same"),
];

struct Source {
    /// Relative to the workspace, with forward slashes.
    path: String,
    text: String,
}

impl Source {
    fn has_extension(&self, extensions: &[&str]) -> bool {
        extensions.iter().any(|extension| self.path.ends_with(&format!(".{extension}")))
    }

    fn is_code(&self) -> bool {
        self.has_extension(&["rs", "py", "cu", "cuh", "sh"]) || self.path == ".ci/run"
    }
}

/// A rule's complaints about one file: "line: what".
type Breaches = Vec<String>;
type Rule = fn(&Source) -> Breaches;

const RULES: &[Rule] = &[
    short_enough,
    narrow_enough,
    explained,
    finished,
    free_of_machine_paths,
    unsafe_where_allowed,
    dependencies_point_down,
    rooms_point_down,
    short_decisions,
    opens_regular_files,
];

fn short_enough(source: &Source) -> Breaches {
    let lines = source.text.lines().count();
    // A list that a test writes and compares with what it is made of.
    let written = source.path.ends_with("crates/cuda/kernels/layouts.cuh");
    if source.is_code() && lines > LINES_MAX && !written {
        return vec![format!("{lines} lines, more than {LINES_MAX}: split it by subject")];
    }
    Vec::new()
}

fn narrow_enough(source: &Source) -> Breaches {
    if !source.has_extension(&["rs", "cu", "cuh"]) {
        return Vec::new(); // Python in the tree holds tables of text, which do not break well
    }
    numbered(source, |line| {
        let columns = line.chars().count();
        (columns > COLUMNS_MAX).then(|| format!("{columns} columns, more than {COLUMNS_MAX}"))
    })
}

fn explained(source: &Source) -> Breaches {
    let opening = source.text.lines().find(|line| !line.starts_with("#!")).unwrap_or_default();
    let explains = if source.has_extension(&["rs"]) {
        opening.starts_with("//!")
    } else if source.has_extension(&["py"]) {
        opening.starts_with("\"\"\"")
    } else if source.is_code() {
        opening.starts_with("//") || opening.starts_with("/*") || opening.starts_with('#')
    } else {
        true
    };
    if explains { Vec::new() } else { vec!["does not begin by saying why it exists".into()] }
}

fn finished(source: &Source) -> Breaches {
    // Spelled in halves, so that this file does not break its own rule.
    let words = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("db", "g!("),
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
    ];
    numbered(source, |line| {
        words.iter().find(|word| line.contains(**word)).map(|word| format!("leftover {word}"))
    })
}

fn free_of_machine_paths(source: &Source) -> Breaches {
    let roots = [
        concat!("/ho", "me/"),
        concat!("/ro", "ot/"),
        concat!("/wo", "rk/"),
        concat!("/t", "mp/"),
        concat!("/Us", "ers/"),
    ];
    numbered(source, |line| {
        let starts_a_path = |at: usize| {
            !line[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || "._-/}~)".contains(c))
        };
        let root =
            roots.iter().find(|root| line.match_indices(**root).any(|(at, _)| starts_a_path(at)));
        root.map(|root| format!("a path of some machine: {root}"))
    })
}

fn unsafe_where_allowed(source: &Source) -> Breaches {
    let allowed = UNSAFE_ALLOWED.iter().any(|place| source.path.starts_with(place));
    if !source.has_extension(&["rs"]) || allowed {
        return Vec::new();
    }
    let forms = ["{", "fn ", "impl ", "extern ", "trait "];
    numbered(source, |line| {
        let code = line.split("//").next().unwrap_or_default();
        let used = forms.iter().any(|form| code.contains(&format!(concat!("uns", "afe {}"), form)));
        used.then(|| "unsafe outside the crates and modules that own it".into())
    })
}

fn dependencies_point_down(source: &Source) -> Breaches {
    let Some(name) =
        source.path.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/Cargo.toml"))
    else {
        return Vec::new();
    };
    let Some(rank) = LAYERS.iter().position(|layer| *layer == name) else {
        return vec![format!("crate {name} has no place in the layers of this test")];
    };
    numbered(source, |line| {
        let used = LAYERS[rank..].iter().find(|layer| {
            line.starts_with(&format!("flashmoe-{layer}."))
                || line.starts_with(&format!("flashmoe-{layer} "))
        });
        used.map(|layer| format!("{name} must not use {layer}"))
    })
}

fn rooms_point_down(source: &Source) -> Breaches {
    let closed = CLOSED_ROOMS.iter().filter(|(room, _)| source.path.starts_with(room));
    let parts: Vec<&str> = closed.map(|(_, part)| *part).collect();
    numbered(source, |line| {
        let named = parts.iter().find(|part| line.contains(**part));
        named.map(|part| format!("this room must not know of {part}"))
    })
}

/// The decisions stay readable: the contents name each, each has at most [`DECISION_LINES_MAX`] lines, and no line has
/// more than [`COLUMNS_MAX`] columns.
fn short_decisions(source: &Source) -> Breaches {
    if source.path != "docs/decisions.md" {
        return Vec::new();
    }
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (contents, decisions) = source.text.split_once("\n### ").unwrap_or((&source.text, ""));
    let contents = words(contents);
    let mut breaches = numbered(source, |line| {
        (line.chars().count() > COLUMNS_MAX).then(|| format!("more than {COLUMNS_MAX} columns"))
    });
    for decision in decisions.split("\n### ").filter(|decision| !decision.is_empty()) {
        let (heading, body) = decision.split_once('\n').unwrap_or((decision, ""));
        let body = body.split("\n## ").next().unwrap_or_default();
        let lines = body.lines().filter(|line| !line.is_empty()).count();
        if lines > DECISION_LINES_MAX {
            breaches.push(format!(" {heading}: {lines} lines, at most {DECISION_LINES_MAX}"));
        }
        if !contents.contains(&words(heading)) {
            breaches.push(format!(" {heading}: not in the contents"));
        }
    }
    breaches
}

/// A pipe in the place of a data file would hold a thread for ever: data files are opened by `open_regular` and
/// `read_regular`.
fn opens_regular_files(source: &Source) -> Breaches {
    let inside = source.path.starts_with("crates/") && source.path.contains("/src/");
    let tests = source.path.ends_with("/tests.rs") || source.path.contains("/tests/");
    let allowed = PLAIN_OPENS.iter().any(|(place, _)| source.path.starts_with(place));
    if !inside || tests || allowed || !source.has_extension(&["rs"]) {
        return Vec::new();
    }
    let code = source.text.split("#[cfg(test)]\n").next().unwrap_or_default();
    let forms = ["File::open(", "File::options(", "fs::read(", "fs::read_to_string("];
    let lines = code.lines().enumerate();
    let complaint = |(index, line): (usize, &str)| {
        let form = forms.iter().find(|form| line.contains(**form))?;
        // A method of another type, such as `MappedFile::open`.
        let own = line
            .split(form)
            .next()
            .is_some_and(|before| before.ends_with(|letter: char| letter.is_ascii_alphanumeric()));
        let what = "use open_regular or read_regular of store::io::platform";
        (!own).then(|| format!("{}: {form} waits at a pipe: {what}", index + 1))
    };
    lines.filter_map(complaint).collect()
}

fn numbered(source: &Source, complaint: impl Fn(&str) -> Option<String>) -> Breaches {
    let complaints = source.text.lines().enumerate();
    complaints
        .filter_map(|(index, line)| complaint(line).map(|what| format!("{}: {what}", index + 1)))
        .collect()
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the workspace exists")
}

fn collect(folder: &Path, root: &Path, sources: &mut Vec<Source>) {
    let mut entries: Vec<_> = std::fs::read_dir(folder)
        .expect("a folder of the workspace is readable")
        .map(|entry| entry.expect("its entries are readable").path())
        .collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            let generated = ["target", "__pycache__"].contains(&name.as_str());
            let hidden = name.starts_with('.') && name != ".ci";
            if !generated && !hidden {
                collect(&path, root, sources);
            }
            continue;
        }
        let relative = path.strip_prefix(root).expect("below the root").to_string_lossy();
        let relative = relative.replace('\\', "/");
        let known = ["rs", "py", "cu", "cuh", "sh", "md", "toml"];
        if known.iter().any(|extension| relative.ends_with(&format!(".{extension}")))
            || relative == ".ci/run"
        {
            let text = std::fs::read_to_string(&path).expect("source files are UTF-8");
            sources.push(Source { path: relative, text });
        }
    }
}

#[test]
fn every_file_keeps_the_house_rules() {
    let root = workspace();
    let mut sources = Vec::new();
    collect(&root, &root, &mut sources);
    assert!(sources.len() > 20, "only {} files found: is the walk broken?", sources.len());
    let mut complaints = Vec::new();
    for source in &sources {
        for rule in RULES {
            complaints
                .extend(rule(source).into_iter().map(|what| format!("{}:{what}", source.path)));
        }
    }
    assert!(complaints.is_empty(), "house rules broken:\n{}", complaints.join("\n"));
}

#[test]
fn every_rule_catches_a_breach() {
    let source = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
    let long = "//! Doc.\n".repeat(LINES_MAX + 1);
    let wide = format!("//! {}\n", "x".repeat(COLUMNS_MAX));
    let decisions = |text: &str| source("docs/decisions.md", &format!("## Contents\n\n{text}"));
    let breaches: &[(Rule, Source)] = &[
        (short_enough, source("a.rs", &long)),
        (narrow_enough, source("a.rs", &wide)),
        (explained, source("a.rs", "use std::fs;\n")),
        (explained, source("a.py", "#!/usr/bin/env python3\nimport os\n")),
        (finished, source("a.md", concat!("TO", "DO later\n"))),
        (free_of_machine_paths, source("a.md", concat!("see /ho", "me/me/model\n"))),
        (
            unsafe_where_allowed,
            source("crates/engine/src/a.rs", concat!("let a = uns", "afe { b };\n")),
        ),
        (
            dependencies_point_down,
            source("crates/store/Cargo.toml", "flashmoe-engine.workspace = true\n"),
        ),
        (
            rooms_point_down,
            source("crates/engine/src/residency/a.rs", "use crate::backend::cuda::CudaBackend;\n"),
        ),
        (short_decisions, decisions("One\n\n## Room\n\n### Other\n\nWhy.\n")),
        (
            short_decisions,
            decisions(&format!("One\n\n## Room\n\n### One\n\n{}", "Why.\n".repeat(13))),
        ),
        (
            short_decisions,
            decisions(&format!("One\n\n## Room\n\n### One\n\n{}\n", "x".repeat(121))),
        ),
        (
            opens_regular_files,
            source("crates/server/src/a.rs", "let file = std::fs::File::open(path)?;\n"),
        ),
    ];
    for (index, (rule, source)) in breaches.iter().enumerate() {
        assert!(!rule(source).is_empty(), "breach {index} was not caught");
    }
}

//! The shape of the sources in numbers that may fall and must not rise: long functions, parameters that are tuples,
//! methods of the trait of devices, circles between modules of the engine, lines for sequences, sizes of two documents.
//!
//! `cargo test --workspace --test it -- shape --nocapture` prints the table of docs/architecture.md, "Shape". Where a
//! number has fallen, its limit follows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// A number, what it is now at the most, and what is wanted.
struct Measure {
    name: &'static str,
    found: usize,
    limit: usize,
    wanted: usize,
}

/// Lines of a function from `fn` to its last brace that are too many to read at once.
const LONG: usize = 70;
/// Parameters that clippy allows: tuples must not hide more.
const PARAMETERS: usize = 7;

/// Files of devices that are memory of sequences: what they hold decides, not their names.
const SEQUENCE_FILES: [&str; 3] = ["cpu/state.rs", "cuda/state.rs", "gpu/places.rs"];

/// Folders and files of the engine that are a module of their own in the count of circles.
const ENGINE: &str = "crates/engine/src/";

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Files below a folder, by their paths from the workspace on.
fn files(folder: &str, wanted: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(workspace().join(&folder)).expect("a folder of sources");
        for entry in entries {
            let entry = entry.expect("an entry");
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                folders.push(path);
            } else if wanted(&path) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Code that is no test.
fn is_source(path: &str) -> bool {
    let test = path.contains("/tests/") || path.ends_with("/tests.rs");
    path.ends_with(".rs") && path.contains("/src/") && !test
}

fn read(path: &str) -> String {
    std::fs::read_to_string(workspace().join(path)).expect("a source")
}

/// The text with blanks in the place of comments, strings and characters, and of modules of tests; its lines keep their
/// numbers.
fn code_of(text: &str) -> String {
    let text: Vec<char> = text.chars().collect();
    let at = |index: usize| text.get(index).copied().unwrap_or('\0');
    let (mut code, mut index) = (String::new(), 0);
    while index < text.len() {
        let end = match (at(index), at(index + 1)) {
            ('/', '/') => (index..text.len()).find(|&i| at(i) == '\n').unwrap_or(text.len()),
            ('/', '*') => {
                let over = |&i: &usize| at(i - 1) == '*' && at(i) == '/';
                (index + 3..text.len()).find(over).unwrap_or(text.len()) + 1
            }
            ('r', '"' | '#') if !at(index.wrapping_sub(1)).is_alphanumeric() => {
                let hashes = (index + 1..).take_while(|&i| at(i) == '#').count();
                if at(index + 1 + hashes) != '"' {
                    index + 1
                } else {
                    let close =
                        |&i: &usize| at(i) == '"' && (1..=hashes).all(|hash| at(i + hash) == '#');
                    let first = index + 2 + hashes;
                    (first..text.len()).find(close).unwrap_or(text.len()) + 1 + hashes
                }
            }
            ('"', _) => {
                let mut i = index + 1;
                while i < text.len() && at(i) != '"' {
                    i += if at(i) == '\\' { 2 } else { 1 };
                }
                i + 1
            }
            ('\'', '\\') => (index + 3..text.len()).find(|&i| at(i) == '\'').unwrap_or(index) + 1,
            ('\'', _) if at(index + 2) == '\'' => index + 3,
            _ => {
                code.push(at(index));
                index += 1;
                continue;
            }
        };
        if end == index + 1 && at(index) == 'r' {
            code.push('r');
        } else {
            code.extend((index..end).map(|i| if at(i) == '\n' { '\n' } else { ' ' }));
        }
        index = end;
    }
    match code.find("#[cfg(test)]\nmod tests {") {
        Some(start) => code[..start].to_owned(),
        None => code,
    }
}

/// Where the bracket at `open` is closed.
fn closed(code: &[u8], open: usize) -> usize {
    let pair = match code[open] {
        b'(' => b')',
        b'{' => b'}',
        _ => b'>',
    };
    let mut depth = 0;
    for index in open..code.len() {
        let arrow = code[index] == b'>' && code[index - 1] == b'-';
        if code[index] == code[open] {
            depth += 1;
        } else if code[index] == pair && !arrow {
            depth -= 1;
        }
        if depth == 0 {
            return index;
        }
    }
    code.len() - 1
}

/// Text between commas that are in no bracket.
fn parts(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut found, mut before) = (0, 0, Vec::new(), ' ');
    for (index, letter) in text.char_indices() {
        match letter {
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '>' if before != '-' => depth -= 1,
            ',' if depth == 0 => {
                found.push(text[start..index].trim());
                start = index + 1;
            }
            _ => {}
        }
        before = letter;
    }
    found.push(text[start..].trim());
    found.retain(|part| !part.is_empty());
    found
}

/// A function: its name, the line where it begins, its lines, its parameters.
struct Function {
    name: String,
    line: usize,
    lines: usize,
    parameters: Vec<String>,
}

fn functions(code: &str) -> Vec<Function> {
    let bytes = code.as_bytes();
    let mut found = Vec::new();
    for (start, _) in code.match_indices("fn ") {
        let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let name: String =
            code[start + 3..].chars().take_while(|it| it.is_alphanumeric() || *it == '_').collect();
        let mut next = start + 3 + name.len();
        if name.is_empty() || (start > 0 && word(bytes[start - 1])) {
            continue;
        }
        if bytes.get(next) == Some(&b'<') {
            next = closed(bytes, next) + 1;
        }
        if bytes.get(next) != Some(&b'(') {
            continue;
        }
        let end = closed(bytes, next);
        let parameters = parts(&code[next + 1..end]).into_iter().map(str::to_owned).collect();
        let Some(body) = code[end..].find(['{', ';']).map(|at| end + at) else { continue };
        let last = if bytes[body] == b'{' { closed(bytes, body) } else { body };
        let lines = code[start..last].matches('\n').count() + 1;
        let line = code[..start].matches('\n').count() + 1;
        found.push(Function { name, line, lines, parameters });
    }
    found
}

/// How many parameters a function would have without tuples, and whether it has one.
fn unfolded(function: &Function) -> (usize, bool) {
    let tuple = |parameter: &&String| parameter.trim_start_matches("mut ").starts_with('(');
    let count = |parameter: &String| match tuple(&parameter) {
        true => {
            let end = closed(parameter.as_bytes(), parameter.find('(').unwrap_or(0));
            parts(&parameter[parameter.find('(').unwrap_or(0) + 1..end]).len()
        }
        false => 1,
    };
    let has = function.parameters.iter().any(|parameter| tuple(&parameter));
    (function.parameters.iter().map(count).sum(), has)
}

/// Modules of the engine that name each other, pair by pair. Tests and links of comments do not count.
fn circles() -> Vec<String> {
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in files("crates/engine/src", &is_source) {
        let rest = path.trim_start_matches(ENGINE);
        let module = rest.split(['/', '.']).next().unwrap_or_default().to_owned();
        let code = code_of(&read(&path));
        for (at, _) in code.match_indices("crate::") {
            let name = code[at + 7..].chars().take_while(|it| it.is_lowercase() || *it == '_');
            uses.entry(module.clone()).or_default().insert(name.collect());
        }
    }
    let mutual = |a: &str, b: &str| uses.get(b).is_some_and(|names| names.contains(a));
    let pairs = uses.iter().flat_map(|(a, names)| names.iter().map(move |b| (a, b)));
    pairs.filter(|(a, b)| a < b && mutual(a, b)).map(|(a, b)| format!("{a} and {b}")).collect()
}

/// Methods of a trait that a device implements.
fn device_methods(file: &str, name: &str) -> usize {
    let code = code_of(&read(&format!("crates/engine/src/backend/{file}")));
    let start = code.find(&format!("pub trait {name}")).expect("a trait of devices");
    let body = start + code[start..].find('{').expect("its body");
    functions(&code[body..closed(code.as_bytes(), body)]).len()
}

/// Methods of all traits of devices: what each computes, and its parts.
fn all_device_methods() -> usize {
    let parts = ["SequenceDevice", "LayerBorder", "Ranking", "Drafting"];
    let parts = parts.iter().map(|name| device_methods("parts.rs", name)).sum::<usize>();
    device_methods("mod.rs", "Backend") + parts
}

/// Lines of all devices for what sequences keep in their memory.
fn sequence_lines() -> usize {
    let backend = format!("{ENGINE}backend");
    let names_memory = |path: &String| {
        let code = code_of(&read(path));
        code.contains("StateMemory") || code.contains("Region")
    };
    let found = files(&backend, &is_source).into_iter().filter(names_memory);
    let found: Vec<_> = found.map(|path| path[backend.len() + 1..].to_owned()).collect();
    assert_eq!(found, SEQUENCE_FILES, "files that name regions of places");
    found.iter().map(|path| read(&format!("{backend}/{path}")).lines().count()).sum()
}

/// Binaries that `cargo test --workspace` links: of each crate its unit tests, unless it has none, and each file or
/// folder with a `main.rs` of `tests`.
fn test_binaries() -> usize {
    let crates = std::fs::read_dir(workspace().join("crates")).expect("the crates");
    let folders = crates.map(|entry| entry.expect("a crate").path());
    let count = |folder: PathBuf| {
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
        let unit = usize::from(!manifest.contains("\ntest = false"));
        let tests = std::fs::read_dir(folder.join("tests")).into_iter().flatten().flatten();
        let binary = |path: PathBuf| {
            path.extension().is_some_and(|it| it == "rs") || path.join("main.rs").is_file()
        };
        unit + tests.filter(|entry| binary(entry.path())).count()
    };
    folders.chain([workspace().join("fuzz")]).map(count).sum()
}

fn size(path: &str) -> usize {
    std::fs::metadata(workspace().join(path)).map_or(0, |it| it.len() as usize) / 1000
}

/// Lines of a crate that are not blank, by what they are for.
#[derive(Default)]
struct Lines {
    code: usize,
    comments: usize,
    tests: usize,
}

fn lines() -> BTreeMap<String, Lines> {
    let mut all: BTreeMap<String, Lines> = BTreeMap::new();
    let rust = |path: &str| path.ends_with(".rs");
    for path in files("crates", &rust).into_iter().chain(files("fuzz/src", &rust)) {
        let name = path.trim_start_matches("crates/").split('/').next().unwrap_or_default();
        let lines = all.entry(name.to_owned()).or_default();
        let text = read(&path);
        let filled = |text: &str| text.lines().filter(|line| !line.trim().is_empty()).count();
        if is_source(&path) {
            let code = code_of(&text);
            let kept = text.lines().take(code.lines().count()).collect::<Vec<_>>().join("\n");
            lines.code += filled(&code);
            lines.comments += filled(&kept) - filled(&code);
            lines.tests += filled(&text) - filled(&kept);
        } else {
            lines.tests += filled(&text);
        }
    }
    all
}

/// Places of functions that a rule counts.
struct Counted {
    long: Vec<String>,
    hidden: Vec<String>,
    tuples: usize,
}

fn counted() -> Counted {
    let mut counted = Counted { long: Vec::new(), hidden: Vec::new(), tuples: 0 };
    for path in files("crates", &is_source).into_iter().chain(files("fuzz/src", &is_source)) {
        for function in functions(&code_of(&read(&path))) {
            let Function { name, line, lines, .. } = &function;
            if *lines > LONG {
                counted.long.push(format!("{lines:4} {path}:{line} {name}"));
            }
            let (parameters, tuple) = unfolded(&function);
            counted.tuples += usize::from(tuple);
            if tuple && parameters > PARAMETERS {
                counted.hidden.push(format!("{parameters:4} {path}:{line} {name}"));
            }
        }
    }
    counted.long.sort_by(|a, b| b.cmp(a));
    counted
}

#[test]
fn the_sources_keep_their_shape() {
    let (counted, circles) = (counted(), circles());
    let measures = [
        Measure {
            name: "functions over 70 lines",
            found: counted.long.len(),
            limit: 25,
            wanted: 30,
        },
        Measure {
            name: "functions whose tuples hide more than 7 parameters",
            found: counted.hidden.len(),
            limit: 7,
            wanted: 10,
        },
        Measure {
            name: "methods of the device trait",
            found: device_methods("mod.rs", "Backend"),
            limit: 15,
            wanted: 20,
        },
        Measure { name: "with its parts", found: all_device_methods(), limit: 33, wanted: 33 },
        Measure {
            name: "pairs of the engine's modules that name each other",
            found: circles.len(),
            limit: 0,
            wanted: 0,
        },
        Measure {
            name: "lines of devices for sequences",
            found: sequence_lines(),
            limit: 600,
            wanted: 600,
        },
        Measure { name: "test binaries", found: test_binaries(), limit: 24, wanted: 25 },
        Measure {
            name: "decisions.md, kB",
            found: size("docs/decisions.md"),
            limit: 80,
            wanted: 80,
        },
        Measure {
            name: "benchmarks.md, kB",
            found: size("docs/benchmarks.md"),
            limit: 45,
            wanted: 45,
        },
    ];
    let mut table = String::from("\n| measure | now | at most | wanted |\n|---|---|---|---|\n");
    for Measure { name, found, limit, wanted } in &measures {
        let _ = writeln!(table, "| {name} | {found} | {limit} | {wanted} |");
    }
    let Counted { long, hidden, tuples } = counted;
    let _ = writeln!(table, "\nfunctions with a tuple as a parameter: {tuples}");
    table.push_str("\n| crate | code | comments | tests |\n|---|---|---|---|\n");
    for (name, Lines { code, comments, tests }) in lines() {
        let _ = writeln!(table, "| {name} | {code} | {comments} | {tests} |");
    }
    let lists = [long.join("\n"), hidden.join("\n"), circles.join("\n")].join("\n\n");
    let _ =
        std::io::Write::write_all(&mut std::io::stdout(), format!("{table}\n{lists}\n").as_bytes());
    let risen: Vec<_> =
        measures.iter().filter(|it| it.found > it.limit).map(|it| it.name).collect();
    assert!(risen.is_empty(), "has risen: {}\n{table}\n{lists}", risen.join(", "));
}

#[test]
fn code_is_counted_as_it_is_written() {
    let lines = "    let a = 1;\n".repeat(LONG);
    let text = format!(
        "/// fn in_a_comment() {{}}\nfn long(\n    (a, b): (u32, u32),\n    c: &dyn Fn(u32, u32) -> u32,\n\
         ) {{\n{lines}}}\n\
         fn short<T: Into<u32>>(text: T) -> char {{ let _ = \"fn in_text() {{\"; '{{' }}\n\
         #[cfg(test)]\nmod tests {{ fn a_test() {{}} }}\n"
    );
    let found = functions(&code_of(&text));
    let names: Vec<_> = found.iter().map(|it| (it.name.as_str(), it.line, it.lines)).collect();
    assert_eq!(names, [("long", 2, LONG + 5), ("short", 2 + LONG + 5, 1)]);
    assert_eq!(found.iter().map(unfolded).collect::<Vec<_>>(), [(3, true), (1, false)]);
}

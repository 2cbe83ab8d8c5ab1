//! What a report leaves out: where files lie, and the names of this machine and its user.

use std::path::Path;

use serde_json::Value;

use crate::models::short_name;

/// Folders of the system, which are the same everywhere.
const COMMON: [&str; 3] = ["/sys/", "/proc/", "/dev/"];
/// Shorter names are letters that a text has anyway.
const NAME_BYTES_MIN: usize = 2;
/// What ends a path in a sentence.
const AFTER_A_PATH: [char; 9] = ['"', '\'', '`', ')', ',', ';', ':', '|', '>'];

/// What is replaced.
pub(in crate::commands) struct Private {
    /// Paths that may contain blanks, the longest first, and what stands in their place.
    paths: Vec<(String, String)>,
    /// Names, and what stands in their place.
    names: Vec<(String, &'static str)>,
}

impl Private {
    /// For a report of a model.
    pub(in crate::commands) fn of(model: &Path) -> Self {
        let user = ["USER", "LOGNAME", "USERNAME"].map(|name| (std::env::var(name).ok(), "(user)"));
        let host = [(host(), "(host)")];
        let names = user.into_iter().chain(host);
        let names = names.filter_map(|(name, word)| Some((name?, word)));
        Self::new(model, names.collect())
    }

    fn new(model: &Path, mut names: Vec<(String, &'static str)>) -> Self {
        names.retain(|(name, _)| name.len() >= NAME_BYTES_MIN);
        let name = short_name(model);
        let mut paths = Vec::new();
        for path in [Some(model.to_owned()), model.canonicalize().ok()].into_iter().flatten() {
            let mut known = |path: &Path, word: &str| {
                let text = path.to_string_lossy().into_owned();
                if text.contains(std::path::is_separator) && text.len() > 1 {
                    paths.push((text, word.to_owned()));
                }
            };
            known(&path, &name);
            if let Some(parent) = path.parent() {
                known(parent, "");
            }
        }
        paths.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        Self { paths, names }
    }

    /// A text without what is private: of a path the last part stays.
    pub(in crate::commands) fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (path, word) in &self.paths {
            text = text.replace(path, word);
        }
        text = without_paths(&text);
        for (name, word) in &self.names {
            text = without_word(&text, name, word);
        }
        text
    }

    /// [`Private::text`] of all texts in a value.
    pub(super) fn json(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.json(value)),
            Value::Object(fields) => fields.values_mut().for_each(|value| self.json(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// The name of this machine.
#[cfg(unix)]
fn host() -> Option<String> {
    Some(rustix::system::uname().nodename().to_string_lossy().into_owned())
}

/// The name of this machine.
#[cfg(not(unix))]
fn host() -> Option<String> {
    std::env::var("COMPUTERNAME").ok()
}

/// A text with the last part of each absolute path alone.
fn without_paths(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut before = ' ';
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        // Not within a word, `GB/s`, nor behind the first stroke of an address.
        let begins = !before.is_alphanumeric() && before != '/' && begins_path(rest);
        if begins && !is_common(rest) {
            let drive = if rest[1..].starts_with(':') { 2 } else { 0 };
            let ends = |c: char| c.is_whitespace() || AFTER_A_PATH.contains(&c);
            let end = drive + rest[drive..].find(ends).unwrap_or(rest.len() - drive);
            let last = rest[..end].rsplit(std::path::is_separator).find(|part| !part.is_empty());
            out.push_str(last.unwrap_or_default());
            before = 'x';
            rest = &rest[end..];
            continue;
        }
        out.push(letter);
        before = letter;
        rest = &rest[letter.len_utf8()..];
    }
    out
}

/// Whether an absolute path begins a text: `/a`, `~/a`, `C:\a`.
fn begins_path(text: &str) -> bool {
    let mut letters = text.chars();
    let [first, second, third] = std::array::from_fn(|_| letters.next().unwrap_or(' '));
    match first {
        '/' => second.is_alphanumeric() || second == '.' || second == '_',
        '~' => second == '/',
        _ => first.is_ascii_alphabetic() && second == ':' && third == '\\',
    }
}

fn is_common(text: &str) -> bool {
    COMMON.iter().any(|start| text.starts_with(start))
}

/// A text with `word` for each `name` that stands by itself.
fn without_word(text: &str, name: &str, word: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(name) {
        let (before, after) = (&rest[..at], &rest[at + name.len()..]);
        let joins = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
        let last = before.chars().next_back().or(out.chars().next_back());
        out.push_str(before);
        let alone = !joins(last) && !joins(after.chars().next());
        out.push_str(if alone { word } else { name });
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_names_are_left_out_and_figures_stay() {
        let names = vec![("alice".to_owned(), "(user)"), ("box7".to_owned(), "(host)")];
        let private = Private::new(Path::new("/srv/alice/My Models/Qwen-30B"), names);
        for (text, expected) in [
            ("4.2 GB/s, 3 tok/s and/or 1 / 2", "4.2 GB/s, 3 tok/s and/or 1 / 2"),
            ("/srv/alice/My Models/Qwen-30B/a.gguf: cut", "Qwen-30B/a.gguf: cut"),
            ("cannot read \"/srv/x y\": no", "cannot read \"x y\": no"),
            ("(/opt/lib/libcuda.so.1)", "(libcuda.so.1)"),
            ("see ~/.config/flashmoe/config.toml.", "see config.toml."),
            ("C:\\Users\\alice: gone", "(user): gone"),
            ("/srv/alice", "(user)"),
            ("alice@box7 and malice", "(user)@(host) and malice"),
            ("echo madvise > /sys/kernel/mm/x", "echo madvise > /sys/kernel/mm/x"),
            ("see https://a.example/b c", "see https://a.example/b c"),
            ("ärger über /ä/b", "ärger über b"),
        ] {
            if cfg!(unix) && text.contains('\\') {
                continue; // the other system's separator
            }
            assert_eq!(private.text(text), expected, "{text}");
        }
        let mut value = serde_json::json!({"a": ["/srv/alice/x", 3], "alice": null});
        private.json(&mut value);
        assert_eq!(value, serde_json::json!({"a": ["x", 3], "alice": null}));
    }

    #[test]
    fn a_model_named_as_it_lies_there_keeps_its_name() {
        for model in ["demo", "models/demo", "./demo"] {
            let private = Private::new(Path::new(model), Vec::new());
            let text = private.text(&format!("{model}: 25 MiB"));
            assert_eq!(text, "demo: 25 MiB", "{model}");
        }
    }
}

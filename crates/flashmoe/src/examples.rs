//! `examples.json` in a model's folder: what its users should know, and what it can be asked.
//!
//! The page of the server shows both before a conversation begins. A model without the file has no examples.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Map, Value};
use server::work::Example;
use store::format::{Checkpoint, SourceKind};
use store::io::platform::{Links, read_regular};
use store::shown;

use crate::failure::Failure;

const NAME: &str = "examples.json";
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Questions that a page has room for.
const EXAMPLES_MAX: usize = 8;
/// Characters of a text that a page has room for.
const TEXT_MAX: usize = 300;

/// What a model says of itself.
#[derive(Debug, Default)]
pub(crate) struct Examples {
    /// What its users should know; empty for nothing.
    pub(crate) about: String,
    /// Questions that it answers well.
    pub(crate) examples: Vec<Example>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    about: String,
    #[serde(default)]
    examples: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    text: String,
    #[serde(default)]
    tools: bool,
}

impl Examples {
    /// Those of a checkpoint. A GGUF file has none: other files of its folder are other models.
    ///
    /// # Errors
    /// A file that is not as described above.
    pub(crate) fn of(checkpoint: &Checkpoint) -> Result<Self> {
        match checkpoint.kind {
            SourceKind::Gguf => Ok(Self::default()),
            _ => Self::read(&checkpoint.root.join(NAME)),
        }
    }

    fn read(path: &Path) -> Result<Self> {
        let place = || shown::path(path).to_string();
        let wrong = |problem: String| Failure::model(anyhow::anyhow!("{}: {problem}", place()));
        let bytes = match read_regular(path, Links::Followed, FILE_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) if error.kind() == ErrorKind::FileTooLarge => {
                return Err(wrong(format!("has more than {FILE_BYTES_MAX} bytes")).into());
            }
            Err(error) => return Err(Failure::io(error)).with_context(place),
        };
        // A list is refused: serde would take it for the fields in order.
        let object: Map<String, Value> =
            serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        let file = File::deserialize(object).map_err(|error| wrong(error.to_string()))?;
        if file.examples.len() > EXAMPLES_MAX {
            return Err(wrong(format!("has more than {EXAMPLES_MAX} examples")).into());
        }
        let texts = file.examples.iter().map(|example| &example.text).chain([&file.about]);
        if texts.into_iter().any(|text| text.chars().count() > TEXT_MAX) {
            return Err(wrong(format!("has a text of more than {TEXT_MAX} characters")).into());
        }
        let examples = file.examples.into_iter();
        let examples = examples.map(|Entry { text, tools }| Example { text, tools }).collect();
        Ok(Self { about: file.about, examples })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_has_examples_and_a_wrong_file_is_named() {
        let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo/examples.json");
        let found = Examples::read(Path::new(demo)).expect("is right");
        assert!(found.about.contains("44 million") && found.examples.len() == 4);
        assert!(found.examples.iter().any(|example| example.tools));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(NAME);
        assert!(Examples::read(&path).expect("is none").examples.is_empty());
        let long = format!("{{\"about\": \"{}\"}}", "x".repeat(TEXT_MAX + 1));
        let many = format!("{{\"examples\": [{}]}}", ["{\"text\": \"a\"}"; 9].join(","));
        for text in ["", "{", "[]", "{\"abuot\": 1}", "{\"examples\": [1]}", &long, &many] {
            std::fs::write(&path, text).expect("is written");
            let error = Examples::read(&path).expect_err("is refused").to_string();
            assert!(error.contains(NAME), "{text}: {error}");
        }
    }
}

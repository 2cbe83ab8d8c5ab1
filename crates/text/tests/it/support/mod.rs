//! What the text tests share: the golden folder, and a seeded source of random choices.

use serde_json::Value;
use std::path::PathBuf;
use text::sampling::Xoshiro256;
use text::{AnswerEvent, Tokenizer};

pub(crate) fn golden(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/text").join(file)
}

pub(crate) fn golden_json(file: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(golden(file)).unwrap()).unwrap()
}

pub(crate) fn tokenizer() -> Tokenizer {
    Tokenizer::from_file(golden("tokenizer.json")).unwrap()
}

/// Random choices from a seed that failures print.
pub(crate) struct Choices(Xoshiro256);

impl Choices {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Xoshiro256::new(seed))
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.0.next_u64() % bound as u64) as usize
    }

    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// One to five random edits: overwrite, insert, delete, repeat a slice, cut.
    pub(crate) fn mutate(&mut self, bytes: &mut Vec<u8>, dictionary: &[&str]) {
        for _ in 0..=self.below(5) {
            let at = self.below(bytes.len() + 1);
            let end = (at + self.below(40)).min(bytes.len());
            match self.below(6) {
                0 if at < bytes.len() => bytes[at] = self.below(256) as u8,
                1 => bytes.insert(at, *self.pick(b"{}[]\",:0-9e<>|\\\n")),
                2 => drop(bytes.drain(at..end)),
                3 => {
                    let piece = bytes[at..end].to_vec();
                    let to = self.below(bytes.len() + 1);
                    bytes.splice(to..to, piece);
                }
                4 => {
                    let word = self.pick(dictionary).as_bytes().to_vec();
                    bytes.splice(at..end, word);
                }
                _ if self.below(20) == 0 => bytes.truncate(at),
                _ => {}
            }
        }
    }
}

/// Calls start, give arguments and end in order; the arguments of each join to one object.
pub(crate) fn check_order(events: &[AnswerEvent]) {
    let mut open: Option<(usize, String)> = None;
    let mut calls = 0;
    for event in events {
        match event {
            AnswerEvent::CallStarted { index, .. } => {
                assert!(open.is_none() && *index == calls);
                open = Some((*index, String::new()));
            }
            AnswerEvent::CallArguments { index, delta } => {
                let (current, text) = open.as_mut().unwrap();
                assert_eq!(current, index);
                text.push_str(delta);
            }
            AnswerEvent::CallEnded { index } => {
                let (current, text) = open.take().unwrap();
                assert_eq!(current, *index);
                assert!(serde_json::from_str::<Value>(&text).unwrap().is_object(), "{text}");
                calls += 1;
            }
            AnswerEvent::Reasoning(text) | AnswerEvent::Text(text) => assert!(!text.is_empty()),
        }
    }
    assert!(open.is_none());
}

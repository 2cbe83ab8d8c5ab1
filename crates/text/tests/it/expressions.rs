//! Goal: whatever expression a stranger's tokenizer.json divides texts by, the file is refused in one line, or every
//! text gets the tokenizer library's tokens, which say it again, or an error, soon. Method: expressions of a grammar
//! that has everything the engines read and much that they do not, and damaged ones of known families; each takes texts
//! that are short, long, and endless repetitions. Files have no normalizer: composed text is not the text.
//!
//! The ordinary run tries a few hundred; `FLASHMOE_CAMPAIGN=N` tries N, 20,000 for 1, and says what came of them.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use store::split_mix::SplitMix64;
use text::{TextError, Tokenizer};
use tokenizers::Tokenizer as Library;

use crate::hostile::{bytes, changed, sequence, split};

/// Expressions of the ordinary run.
const FEW: u64 = 300;
/// Longest time for a file or a text, on a machine with other work.
const SOON: Duration = Duration::from_secs(20);
/// Length of the texts that the library takes as well.
const SHORT_BYTES: usize = 200;
/// Longest refusal, bytes.
const LINE_BYTES_MAX: usize = 2000;

const ATOMS: [&str; 40] = [
    "a",
    "A",
    "1",
    " ",
    "'s",
    "é",
    "天",
    "\u{1f600}",
    r"\n",
    r"\r",
    r"\t",
    r"\p{L}",
    r"\p{N}",
    r"\P{L}",
    r"\p{Lu}",
    r"\p{M}",
    r"\p{Han}",
    r"\s",
    r"\S",
    r"\w",
    r"\W",
    r"\d",
    ".",
    "[a-z]",
    "[^a]",
    r"[^\s\p{L}\p{N}]",
    r"[\s\S]",
    r"[a-z&&[^b]]",
    "[[:alpha:]]",
    r"\x41",
    r"\u{1F600}",
    r"\/",
    r"\-",
    "^",
    "$",
    r"\b",
    r"\B",
    r"\A",
    r"\z",
    r"\1",
];
const QUANTIFIERS: [&str; 20] = [
    "*",
    "+",
    "?",
    "*?",
    "+?",
    "??",
    "*+",
    "++",
    "?+",
    "{0}",
    "{1}",
    "{1,3}",
    "{2,}",
    "{0,1000}",
    "{1000}",
    "{99999}",
    "{3,1}",
    "{,3}",
    "{1,2}{1,2}",
    "**",
];
const GROUPS: [(&str, &str); 14] = [
    ("(?:", ")"),
    ("(", ")"),
    ("(?i:", ")"),
    ("(?s:", ")"),
    ("(?x: ", ")"),
    ("(?=", ")"),
    ("(?!", ")"),
    ("(?<=", ")"),
    ("(?<!", ")"),
    ("(?>", ")"),
    ("(?<name>", ")"),
    ("(?:", ""),
    ("", ")"),
    ("(?#", ")"),
];
const KNOWN: [&str; 4] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{M}]*[\p{Ll}\p{Lo}\p{M}]+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+",
    r"\s?\p{L}+|\s?\p{P}+|[一-龥ࠀ-一가-퟿]+|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
];

struct Source(SplitMix64);

impl Source {
    fn below(&mut self, limit: usize) -> usize {
        (self.0.next_u64() % limit as u64) as usize
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// An expression; what is deep is short.
    fn expression(&mut self, depth: usize) -> String {
        let mut text = String::new();
        for number in 0..1 + self.below(3) {
            if number > 0 && self.below(3) == 0 {
                text.push('|');
            }
            match self.below(3) {
                0 if depth > 0 => {
                    // Broken brackets now and then.
                    let common = if self.below(4) == 0 { GROUPS.len() } else { 3 };
                    let (open, close) = self.of(&GROUPS[..common]);
                    text = format!("{text}{open}{}{close}", self.expression(depth - 1));
                }
                _ => text.push_str(self.of(&ATOMS)),
            }
            if self.below(2) == 0 {
                text.push_str(self.of(&QUANTIFIERS));
            }
        }
        text
    }

    /// One of a known family with letters removed, doubled, exchanged, or another piece put in.
    fn damaged(&mut self) -> String {
        let mut letters: Vec<char> = self.of(&KNOWN).chars().collect();
        for _ in 0..1 + self.below(3) {
            let at = self.below(letters.len());
            match self.below(4) {
                0 => drop(letters.remove(at)),
                1 => letters.insert(at, letters[at]),
                2 => {
                    let other = self.below(letters.len());
                    letters.swap(at, other);
                }
                _ => {
                    let piece =
                        if self.below(2) == 0 { self.of(&ATOMS) } else { self.of(&QUANTIFIERS) };
                    letters.splice(at..at, piece.chars());
                }
            }
        }
        letters.into_iter().collect()
    }

    fn steps(&mut self) -> Value {
        let mut steps = Vec::new();
        for _ in 0..1 + self.below(3) / 2 {
            let mut pattern = if self.below(3) == 0 { self.damaged() } else { self.expression(3) };
            if self.below(8) == 0 {
                // What the engine that backtracks takes.
                pattern.push_str(r"|\s+(?!\S)|\s+");
            }
            let mut step = split(json!({ "Regex": pattern }));
            step["behavior"] = json!(self.of(&[
                "Isolated",
                "Isolated",
                "Isolated",
                "Removed",
                "MergedWithPrevious",
                "MergedWithNext",
                "Contiguous"
            ]));
            step["invert"] = json!(self.below(8) == 0);
            steps.push(step);
        }
        if self.below(8) == 0 {
            let individual = self.below(2) == 0;
            steps.push(json!({"type": "Digits", "individual_digits": individual}));
        }
        let mut last = bytes();
        last["add_prefix_space"] = json!(self.below(8) == 0);
        last["use_regex"] = json!(self.below(4) == 0);
        steps.push(last);
        sequence(steps)
    }
}

fn texts_of(length: usize) -> Vec<String> {
    let mixed =
        "It's 12345 o'clock,\r\n\r\n  \u{5929}\u{6c17}  is\u{a0} \t fine!! e\u{301} \u{1f600}";
    let units = ["a", " ", "1", "A1 ", "\n", "\u{5929}", "a ", "!", "e\u{301}", "'s"];
    let long = units.iter().map(|unit| unit.repeat(length / unit.len()));
    ["", "a", mixed].map(str::to_owned).into_iter().chain(long).collect()
}

fn one_line(line: &str) {
    assert!(line.len() < LINE_BYTES_MAX && !line.chars().any(char::is_control), "{line}");
}

#[derive(Debug, Default)]
struct Counts {
    refused: usize,
    taken: usize,
    texts: usize,
    texts_refused: usize,
    compared: usize,
    longest: Duration,
}

/// Runs what may not panic, and soon ends.
fn soon<T>(counts: &mut Counts, about: &Value, run: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let made = std::panic::catch_unwind(AssertUnwindSafe(run));
    let made = made.unwrap_or_else(|_| panic!("a panic at {about}"));
    let took = begun.elapsed();
    assert!(took < SOON, "{took:?} for {about}");
    counts.longest = counts.longest.max(took);
    made
}

/// The library's tokenizer, without the control tokens, which text of users never is.
fn library(mut file: Value) -> Library {
    file["added_tokens"] = json!([]);
    Library::from_bytes(file.to_string()).expect("the library takes what is taken here")
}

fn try_one(steps: &Value, texts: &[String], short: &[String], counts: &mut Counts) {
    let mut file: Value =
        serde_json::from_slice(&changed("/pre_tokenizer", steps.clone())).unwrap();
    file["normalizer"] = Value::Null;
    let bytes = file.to_string();
    let tokenizer = match soon(counts, steps, || Tokenizer::from_bytes(bytes.as_bytes())) {
        Ok(tokenizer) => tokenizer,
        Err(error) => {
            assert!(matches!(error, TextError::Tokenizer { .. }), "{error}");
            let line = error.to_string();
            assert!(line.contains("pre_tokenizer"), "{line}");
            one_line(&line);
            counts.refused += 1;
            return;
        }
    };
    counts.taken += 1;
    let library = library(file);
    // One behaviour leaves out what matches, or what does not, and one option adds spaces, as a file may ask for.
    let steps_of = steps["pretokenizers"].as_array().unwrap();
    let changes = |step: &Value| step["behavior"] == "Removed" || step["add_prefix_space"] == true;
    let keeps = !steps_of.iter().any(changes);
    for text in texts.iter().chain(short) {
        counts.texts += 1;
        let found = soon(counts, steps, || tokenizer.encode(text));
        let ids = match found {
            Ok(ids) => ids,
            Err(error) => {
                assert!(matches!(error, TextError::Encode { .. }), "{error}");
                one_line(&error.to_string());
                counts.texts_refused += 1;
                continue;
            }
        };
        assert!(!keeps || tokenizer.decode(&ids) == *text, "other words by {steps}: {text:?}");
        if text.len() <= SHORT_BYTES {
            counts.compared += 1;
            let whole = library.encode_fast(text.as_str(), false).unwrap();
            assert_eq!(
                ids,
                whole.get_ids(),
                "other tokens than the library's by {steps}: {text:?}"
            );
        }
    }
}

#[test]
fn expressions_are_refused_or_divide_every_text_into_itself() {
    let asked = std::env::var("FLASHMOE_CAMPAIGN").ok();
    let many =
        asked.as_ref().map(|asked| asked.parse().ok().filter(|&asked| asked > 1).unwrap_or(20_000));
    let texts = texts_of(if many.is_some() { 20_000 } else { 2_000 });
    let short = texts_of(SHORT_BYTES);
    let mut counts = Counts::default();
    for seed in 0..many.unwrap_or(FEW) {
        let steps = Source(SplitMix64(seed)).steps();
        try_one(&steps, &texts, &short, &mut counts);
    }
    if many.is_some() {
        let said = format!("expressions: {counts:?}\n");
        std::io::Write::write_all(&mut std::io::stderr(), said.as_bytes()).unwrap();
    }
    assert!(counts.refused > 50 && counts.taken > 20, "{counts:?}");
}

/// Steps that list their matches take a bounded text; the others take any, with the library's tokens.
#[test]
fn long_texts_are_divided_or_refused_by_the_behaviour() {
    let text = "ab 12, ".repeat((1 << 20) / 7 + 1);
    for (behavior, takes) in [("Isolated", true), ("MergedWithNext", false), ("Contiguous", false)]
    {
        let mut step = split(json!({"Regex": r"\d+"}));
        step["behavior"] = json!(behavior);
        let steps = sequence(vec![step, bytes()]);
        let file = changed("/pre_tokenizer", steps);
        let found = Tokenizer::from_bytes(&file).unwrap().encode(&text);
        match found {
            Ok(ids) => {
                let whole = library(serde_json::from_slice(&file).unwrap());
                let whole = whole.encode_fast(text.as_str(), false).unwrap();
                assert!(takes && ids == whole.get_ids(), "{behavior}");
            }
            Err(error) => {
                let line = error.to_string();
                assert!(!takes && line.contains("texts of at most 1048576 bytes"), "{line}");
            }
        }
    }
}

//! The steps of a tokenizer.json that come before its merges: only those of the supported families, each checked.
//!
//! Byte-level BPE tokenizers (Qwen, gpt-oss, DeepSeek, GLM, Llama 3) compose characters or leave them, divide text by
//! regular expressions or at digits, and spell the parts as bytes. The library knows dozens of further steps, some of
//! which grow a text without a bound, panic, or take any amount of time, at load or with the first text. A file is
//! written by a stranger: a step that is not listed here is refused by its place in the file.
//!
//! A regular expression must be one that the linear engine can run. The one exception that these families need is
//! `\s+(?!\S)`, alone in a branch: it gives back one character and is done. With any other look-around or reference
//! the library backtracks, and where it gives up after a million steps it goes on with wrong words and says nothing.

use super::TextError;
use super::effort::Effort;
use fancy_regex::Expr;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, SplitDelimiterBehavior};

/// DeepSeek has six.
const STEPS_MAX: usize = 16;
/// The longest known expression has 400 bytes.
const PATTERN_BYTES_MAX: usize = 4096;
/// Compiled size of all expressions of a file; the largest known takes about one.
const PATTERN_COMPILED_BYTES_MAX: usize = 8 << 20;
/// The expression that is not regular, and the one that must be a branch as well: then something matches at white
/// space in any case, and what finding it reads is what is counted.
const TRAILING_SPACE: &str = r"\s+(?!\S)";
const SPACE: &str = r"\s+";
/// As DeepSeek's tokenizer.json has them; the rule of GGUF files has them as numbers.
const IDEOGRAPHS: &str = "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+";
/// The library gives up, and says nothing, on a million characters of white space in a row.
const SPACE_CHARS_MAX: usize = 500_000;

/// A list of steps, each read when its place is known.
#[derive(Deserialize)]
struct Steps<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow, default, alias = "normalizers", alias = "pretokenizers", alias = "decoders")]
    steps: Option<Vec<&'a RawValue>>,
}

/// The fields of all steps; those of a step must be there, others must not matter to it.
#[derive(Deserialize)]
struct Step {
    #[serde(rename = "type")]
    kind: String,
    pattern: Option<SplitPattern>,
    behavior: Option<SplitDelimiterBehavior>,
    invert: Option<bool>,
    individual_digits: Option<bool>,
    add_prefix_space: Option<bool>,
    trim_offsets: Option<bool>,
    use_regex: Option<bool>,
}

/// The normalizer of a file: none, or composition.
pub(super) fn normalizer(raw: Option<&RawValue>) -> Result<Option<NormalizerWrapper>, TextError> {
    let mut composes = false;
    for (field, step) in flatten("normalizer", raw)? {
        let step: Step = parse(&field, step)?;
        if step.kind != "NFC" {
            let problem = format!("{:?} is not supported, only \"NFC\"", step.kind);
            return Err(TextError::tokenizer(field, problem));
        }
        composes = true;
    }
    Ok(composes.then_some(NormalizerWrapper::NFC(NFC)))
}

/// The pre-tokenizer of a file: divisions of the text, then its bytes.
pub(super) fn pre_tokenizer(raw: Option<&RawValue>) -> Result<PreTokenizerWrapper, TextError> {
    let mut steps = Vec::new();
    let mut spelled = false;
    let flat = flatten("pre_tokenizer", raw)?;
    // The last one has no expression.
    let compiled_bytes = PATTERN_COMPILED_BYTES_MAX / flat.len().saturating_sub(1).max(1);
    for (field, raw) in flat {
        if spelled {
            let problem = "follows a ByteLevel step, which must be the last";
            return Err(TextError::tokenizer(field, problem));
        }
        let step: Step = parse(&field, raw)?;
        spelled = step.kind == "ByteLevel";
        steps.push(pre_tokenizer_step(&field, step, compiled_bytes)?);
    }
    if !spelled {
        return Err(TextError::tokenizer(
            "pre_tokenizer",
            "has no ByteLevel step; only byte-level BPE tokenizers are supported",
        ));
    }
    match steps.len() {
        1 => Ok(steps.swap_remove(0)),
        _ => Ok(PreTokenizerWrapper::Sequence(Sequence::new(steps))),
    }
}

/// Decoding is ours (`decode.rs`); the file must mean the same by it.
pub(super) fn check_decoder(raw: Option<&RawValue>) -> Result<(), TextError> {
    for (field, raw) in flatten("decoder", raw)? {
        let step: Step = parse(&field, raw)?;
        if step.kind != "ByteLevel" {
            let problem = "is not ByteLevel; only byte-level BPE tokenizers are supported";
            return Err(TextError::tokenizer(field, problem));
        }
    }
    Ok(())
}

/// Refuses a text on which the library's engine would give up without a word.
pub(super) fn check_text(text: &str) -> Result<(), TextError> {
    if text.len() < SPACE_CHARS_MAX {
        return Ok(());
    }
    let mut run = 0;
    for c in text.chars() {
        run = if c.is_whitespace() { run + 1 } else { 0 };
        if run == SPACE_CHARS_MAX {
            let problem = format!("{SPACE_CHARS_MAX} characters of white space in a row");
            return Err(TextError::Encode { bytes: text.len(), problem });
        }
    }
    Ok(())
}

/// The steps of a component with their places in the file: itself, or those of a sequence.
pub(super) fn flatten<'a>(
    field: &str,
    raw: Option<&'a RawValue>,
) -> Result<Vec<(String, &'a RawValue)>, TextError> {
    let Some(raw) = raw.filter(|raw| raw.get() != "null") else { return Ok(Vec::new()) };
    let whole: Steps<'_> = parse(field, raw)?;
    match whole.steps {
        Some(steps) if whole.kind == "Sequence" => {
            if steps.len() > STEPS_MAX {
                let problem = format!("{} steps are more than {STEPS_MAX}", steps.len());
                return Err(TextError::tokenizer(field, problem));
            }
            let place = |(index, step)| (format!("{field}[{index}]"), step);
            Ok(steps.into_iter().enumerate().map(place).collect())
        }
        _ => Ok(vec![(field.to_owned(), raw)]),
    }
}

fn parse<'a, T: Deserialize<'a>>(field: &str, raw: &'a RawValue) -> Result<T, TextError> {
    serde_json::from_str(raw.get()).map_err(|error| TextError::tokenizer(field, error.to_string()))
}

fn pre_tokenizer_step(
    field: &str,
    step: Step,
    compiled_bytes: usize,
) -> Result<PreTokenizerWrapper, TextError> {
    let wrong = |problem: String| TextError::tokenizer(field, problem);
    let missing = |name: &str| wrong(format!("{name} is missing"));
    match step.kind.as_str() {
        "ByteLevel" => {
            // The library's own defaults, as in the files that leave them out.
            let (space, trim) = (step.add_prefix_space, step.trim_offsets);
            let space = space.ok_or_else(|| missing("add_prefix_space"))?;
            let regex = step.use_regex.unwrap_or(true);
            Ok(ByteLevel::new(space, trim.unwrap_or(true), regex).into())
        }
        "Digits" => Ok(Digits::new(step.individual_digits.unwrap_or(false)).into()),
        "Split" => {
            let pattern = step.pattern.ok_or_else(|| missing("pattern"))?;
            let behavior = step.behavior.ok_or_else(|| missing("behavior"))?;
            let invert = step.invert.ok_or_else(|| missing("invert"))?;
            check_pattern(&pattern, compiled_bytes)
                .map_err(|problem| TextError::tokenizer(format!("{field}.pattern"), problem))?;
            let split = Split::new(pattern, behavior, invert);
            Ok(split.map_err(|error| wrong(error.to_string()))?.into())
        }
        kind => Err(wrong(format!("{kind:?} is not supported, only Split, Digits and ByteLevel"))),
    }
}

fn check_pattern(pattern: &SplitPattern, compiled_bytes: usize) -> Result<(), String> {
    let (SplitPattern::String(text) | SplitPattern::Regex(text)) = pattern;
    if text.is_empty() || text.len() > PATTERN_BYTES_MAX {
        return Err(format!("has {} bytes, not 1 to {PATTERN_BYTES_MAX}", text.len()));
    }
    if matches!(pattern, SplitPattern::String(_)) {
        return Ok(());
    }
    let parse = |text: &str| Expr::parse_tree(text).map(|tree| tree.expr);
    let whole = parse(text).map_err(|error| error.to_string())?;
    let trailing = parse(TRAILING_SPACE).map_err(|error| error.to_string())?;
    let branches = match &whole {
        Expr::Alt(branches) => branches.as_slice(),
        one => std::slice::from_ref(one),
    };
    if !branches.iter().all(|branch| *branch == trailing || is_regular(branch)) {
        return Err(format!(
            "has a look-around or a reference other than the branch {TRAILING_SPACE}"
        ));
    }
    let space = parse(SPACE).map_err(|error| error.to_string())?;
    if branches.contains(&trailing) && !branches.contains(&space) {
        return Err(format!("has the branch {TRAILING_SPACE} without the branch {SPACE}"));
    }
    // All branches together, so that there is one limit on what the library compiles one by one.
    let mut builder = regex::RegexBuilder::new(&regular(text));
    builder.size_limit(compiled_bytes).build().map(drop).map_err(|error| match error {
        regex::Error::CompiledTooBig(limit) => {
            format!("compiles to more than {} KiB", limit >> 10)
        }
        other => other.to_string(),
    })
}

/// A checked expression with its one branch that is not regular made so.
pub(super) fn regular(text: &str) -> String {
    text.replace(TRAILING_SPACE, SPACE)
}

/// The expressions of the known families: each reads a byte of any text a few times (`effort.rs` has the test).
pub(super) fn known() -> impl Iterator<Item = &'static str> {
    store::format::word_expressions().chain([IDEOGRAPHS])
}

/// Whether finding a checked pattern is to be counted: a text is found in one pass, and the known expressions read
/// little.
pub(super) fn is_counted(pattern: &SplitPattern) -> bool {
    match pattern {
        SplitPattern::String(_) => false,
        SplitPattern::Regex(text) => known().all(|known| known != text),
    }
}

/// What finding a checked pattern reads, one of `count` that are counted; `None` for one that is not.
pub(super) fn effort(pattern: &SplitPattern, count: usize) -> Result<Option<Effort>, TextError> {
    let (SplitPattern::Regex(text), true) = (pattern, is_counted(pattern)) else { return Ok(None) };
    let made = Effort::new(&regular(text), count);
    made.map(Some).map_err(|problem| TextError::tokenizer("pre_tokenizer.pattern", problem))
}

/// Whether the linear engine can run an expression.
fn is_regular(expression: &Expr) -> bool {
    match expression {
        Expr::Empty
        | Expr::Any { .. }
        | Expr::Assertion(_)
        | Expr::Literal { .. }
        | Expr::Delegate { .. } => true,
        Expr::Concat(parts) | Expr::Alt(parts) => parts.iter().all(is_regular),
        Expr::Group(inner) | Expr::Repeat { child: inner, .. } => is_regular(inner),
        _ => false,
    }
}

//! The steps of a tokenizer.json that come before its merges: only those of the supported families, each checked.
//!
//! Byte-level BPE tokenizers (Qwen, gpt-oss, DeepSeek, GLM, Llama 3) compose characters or leave them, divide text by
//! regular expressions or at digits, and spell the parts as bytes (`division.rs`). The `tokenizers` crate knows dozens
//! of further steps. Some grow a text without a bound, panic, or take any amount of time, at load or with the first
//! text. A file is written by a stranger: a step that is not listed here is refused by its place in the file.
//!
//! A regular expression must be one that the linear engine can run. The one exception that these families need is
//! `\s+(?!\S)`, alone in a branch: it gives back one character and is done. With any other look-around or reference
//! the engine backtracks, up to a million steps.

use super::TextError;
use super::division::{Behavior, Divider, Division, Matcher};
use super::effort::Effort;
use super::pieces::Normal;
use fancy_regex::{Expr, Regex};
use serde::Deserialize;
use serde_json::value::RawValue;

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
/// A `ByteLevel` step's own expression, GPT-2's (`encoder.py` of its release), where the file does not switch it off.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// The engine gives up on a million characters of white space in a row.
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
    pattern: Option<Pattern>,
    behavior: Option<Behavior>,
    invert: Option<bool>,
    individual_digits: Option<bool>,
    add_prefix_space: Option<bool>,
    /// Of no meaning to ids, but of a type.
    #[serde(rename = "trim_offsets")]
    _trim_offsets: Option<bool>,
    use_regex: Option<bool>,
}

/// What a `Split` step divides by.
#[derive(Deserialize)]
enum Pattern {
    String(String),
    Regex(String),
}

/// A checked step.
enum Known {
    Split { pattern: Pattern, behavior: Behavior, invert: bool },
    Digits { individual: bool },
    Bytes { prefix_space: bool, use_regex: bool },
}

/// The normalizer of a file: none, or composition.
pub(super) fn normalizer(raw: Option<&RawValue>) -> Result<Normal, TextError> {
    let mut normal = Normal::Nothing;
    for (field, step) in flatten("normalizer", raw)? {
        let step: Step = parse(&field, step)?;
        if step.kind != "NFC" {
            let problem = format!("{:?} is not supported, only \"NFC\"", step.kind);
            return Err(TextError::tokenizer(field, problem));
        }
        normal = Normal::Composed;
    }
    Ok(normal)
}

/// The pre-tokenizer of a file: divisions of the text, then its bytes.
pub(super) fn pre_tokenizer(raw: Option<&RawValue>) -> Result<Division, TextError> {
    let flat = flatten("pre_tokenizer", raw)?;
    // The last one has no expression.
    let compiled_bytes = PATTERN_COMPILED_BYTES_MAX / flat.len().saturating_sub(1).max(1);
    let mut steps: Vec<(String, Known)> = Vec::new();
    for (field, raw) in flat {
        if let Some((_, Known::Bytes { .. })) = steps.last() {
            let problem = "follows a ByteLevel step, which must be the last";
            return Err(TextError::tokenizer(field, problem));
        }
        let step = known_step(&field, parse(&field, raw)?, compiled_bytes)?;
        steps.push((field, step));
    }
    let Some((_, Known::Bytes { prefix_space, use_regex })) = steps.pop() else {
        return Err(TextError::tokenizer(
            "pre_tokenizer",
            "has no ByteLevel step; only byte-level BPE tokenizers are supported",
        ));
    };
    let is_counted =
        |step: &Known| matches!(step, Known::Split { pattern, .. } if is_counted(pattern));
    let counted = steps.iter().filter(|(_, step)| is_counted(step)).count();
    let dividers = steps.into_iter().filter_map(|(field, step)| divider(&field, step, counted));
    let last = use_regex.then(|| Divider {
        matcher: Matcher::expression(Regex::new(GPT2).expect("tests compile it"), None),
        behavior: Behavior::Isolated,
        invert: false,
    });
    Ok(Division { dividers: dividers.collect::<Result<_, _>>()?, prefix_space, last })
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

/// Refuses a text on which the engine would give up.
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

fn known_step(field: &str, step: Step, compiled_bytes: usize) -> Result<Known, TextError> {
    let wrong = |problem: String| TextError::tokenizer(field, problem);
    let missing = |name: &str| wrong(format!("{name} is missing"));
    match step.kind.as_str() {
        "ByteLevel" => Ok(Known::Bytes {
            prefix_space: step.add_prefix_space.ok_or_else(|| missing("add_prefix_space"))?,
            // A file that leaves it out means true, as in the `tokenizers` crate.
            use_regex: step.use_regex.unwrap_or(true),
        }),
        "Digits" => Ok(Known::Digits { individual: step.individual_digits.unwrap_or(false) }),
        "Split" => {
            let pattern = step.pattern.ok_or_else(|| missing("pattern"))?;
            let behavior = step.behavior.ok_or_else(|| missing("behavior"))?;
            let invert = step.invert.ok_or_else(|| missing("invert"))?;
            check_pattern(&pattern, compiled_bytes)
                .map_err(|problem| TextError::tokenizer(format!("{field}.pattern"), problem))?;
            Ok(Known::Split { pattern, behavior, invert })
        }
        kind => Err(wrong(format!("{kind:?} is not supported, only Split, Digits and ByteLevel"))),
    }
}

/// What divides in a step of a file with so many expressions whose reading is counted; `None` of bytes.
fn divider(field: &str, step: Known, counted: usize) -> Option<Result<Divider, TextError>> {
    let (pattern, behavior, invert) = match step {
        Known::Split { pattern, behavior, invert } => (pattern, behavior, invert),
        Known::Digits { individual } => {
            let behavior = if individual { Behavior::Isolated } else { Behavior::Contiguous };
            return Some(Ok(Divider { matcher: Matcher::Digit, behavior, invert: false }));
        }
        Known::Bytes { .. } => return None,
    };
    let wrong = |problem: String| TextError::tokenizer(format!("{field}.pattern"), problem);
    let regex = match &pattern {
        Pattern::String(text) => Regex::new(&regex::escape(text)),
        Pattern::Regex(expression) => Regex::new(expression),
    };
    let matcher = regex.map_err(|error| wrong(error.to_string())).and_then(|regex| {
        let effort = effort(&pattern, counted).map_err(wrong)?;
        Ok(Matcher::expression(regex, effort))
    });
    Some(matcher.map(|matcher| Divider { matcher, behavior, invert }))
}

fn check_pattern(pattern: &Pattern, compiled_bytes: usize) -> Result<(), String> {
    let (Pattern::String(text) | Pattern::Regex(text)) = pattern;
    if text.is_empty() || text.len() > PATTERN_BYTES_MAX {
        return Err(format!("has {} bytes, not 1 to {PATTERN_BYTES_MAX}", text.len()));
    }
    if matches!(pattern, Pattern::String(_)) {
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
    // All branches together, so that there is one limit on what is compiled one by one.
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
    store::format::word_expressions().chain([IDEOGRAPHS, GPT2])
}

/// Whether finding a checked pattern is to be counted: a text is found in one pass, and the known expressions read
/// little.
fn is_counted(pattern: &Pattern) -> bool {
    match pattern {
        Pattern::String(_) => false,
        Pattern::Regex(text) => known().all(|known| known != text),
    }
}

/// What finding a checked pattern reads, one of `count` that are counted; `None` for one that is not.
fn effort(pattern: &Pattern, count: usize) -> Result<Option<Effort>, String> {
    match pattern {
        Pattern::Regex(text) if is_counted(pattern) => Effort::new(&regular(text), count).map(Some),
        _ => Ok(None),
    }
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

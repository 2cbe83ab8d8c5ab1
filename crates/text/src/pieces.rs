//! Text to token ids piece by piece, up to a limit: what a tokenizer.json says, without its library's copies.
//!
//! The library keeps about 150 bytes for each byte of a text until all of it is encoded. Here the same steps run
//! from left to right: white space that is a token of its own, normalisation, the regular expression that divides text
//! into words, and the merging of each word. One word is in work at a time, and encoding ends as soon as there are more
//! tokens than anybody can use. The ids are those of the whole text, because the words are: the expression runs over
//! the whole text as it does there.
//!
//! Steps that are expressions and then bytes are done this way: Qwen's and gpt-oss's one, DeepSeek's three. Others go
//! through the library, for texts of a bounded length.

use super::TextError;
use super::control::ControlToken;
use super::effort::{Count, Effort};
use super::ids::Ids;
use super::nfc;
use super::spaced::SPACE;
use super::steps;
use super::words::Words;
use aho_corasick::{AhoCorasick, MatchKind};
use fancy_regex::Regex;
use std::borrow::Cow;
use tokenizers::pattern::Invert;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::{
    NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizedString, PreTokenizer, PreTokenizerWrapper, SplitDelimiterBehavior,
};

/// Longest text for the library's own steps.
const LIBRARY_BYTES_MAX: usize = 1 << 20;

/// The way of ordinary text to ids.
pub(super) struct Pieces {
    normal: Normal,
    /// White space that is a token of its own, as written and as normalised.
    raw: Option<Blanks>,
    normalised: Option<Blanks>,
    split: Split,
    words: Words,
}

/// What is done to text before it is divided.
pub(super) enum Normal {
    Nothing,
    /// Unicode's composed form.
    Composed,
    /// `▁` is a space.
    Spaced,
    Library(NormalizerWrapper),
}

/// A step that divides by an expression. The expression is compiled here, since the library's own finds nothing more
/// where its engine gives up, and does not say so.
struct Divider {
    expression: Regex,
    effort: Option<Effort>,
    behavior: SplitDelimiterBehavior,
    invert: bool,
}

/// How text becomes words.
enum Split {
    /// By expressions: each divides what the one before it left, and nothing else divides.
    Expressions(Vec<Divider>),
    /// In steps of the library's.
    Library(Vec<LibraryStep>),
}

enum LibraryStep {
    Divide(Box<Divider>),
    Other(PreTokenizerWrapper),
}

struct Blanks {
    finder: AhoCorasick,
    ids: Vec<u32>,
}

impl Blanks {
    /// Leftmost and of these longest, as the library finds added tokens.
    fn new(tokens: Vec<(String, u32)>) -> Result<Option<Self>, TextError> {
        if tokens.is_empty() {
            return Ok(None);
        }
        let wrong = |error: aho_corasick::BuildError| {
            TextError::tokenizer("added_tokens", error.to_string())
        };
        let (texts, ids): (Vec<String>, Vec<u32>) = tokens.into_iter().unzip();
        let builder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts);
        Ok(Some(Self { finder: builder.map_err(wrong)?, ids }))
    }

    /// Text and tokens in turn.
    fn each<'t>(
        blanks: Option<&Self>,
        text: &'t str,
        mut visit: impl FnMut(Result<&'t str, u32>) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        let mut start = 0;
        if let Some(Self { finder, ids }) = blanks {
            for found in finder.find_iter(text) {
                visit(Ok(&text[start..found.start()]))?;
                visit(Err(ids[found.pattern().as_usize()]))?;
                start = found.end();
            }
        }
        visit(Ok(&text[start..]))
    }
}

impl Pieces {
    /// `blanks` are the white-space tokens of the file, with whether they are looked for in normalised text.
    pub(super) fn new(
        normal: Normal,
        pre_tokenizer: Option<PreTokenizerWrapper>,
        blanks: Vec<(ControlToken, bool)>,
        words: Words,
    ) -> Result<Self, TextError> {
        let (normalised, raw): (Vec<_>, Vec<_>) =
            blanks.into_iter().partition(|(_, normalised)| *normalised);
        let raw = raw.into_iter().map(|(token, _)| (token.text, token.id)).collect();
        let mut spelled = Vec::new();
        for (token, _) in normalised {
            spelled.push((normal.apply(&token.text)?.into_owned(), token.id));
        }
        let (raw, normalised) = (Blanks::new(raw)?, Blanks::new(spelled)?);
        let mut steps = Vec::new();
        pre_tokenizer.into_iter().for_each(|step| flatten(step, &mut steps));
        Ok(Self { normal, raw, normalised, split: Split::of(steps)?, words })
    }

    pub(super) fn words(&self) -> &Words {
        &self.words
    }

    /// Bytes of text that `tokens` tokens hold at most; `None` where that is not known.
    pub(super) fn bytes_max(&self, tokens: usize) -> Option<usize> {
        let factor = match self.normal {
            Normal::Nothing => 1,
            Normal::Composed => nfc::SHRINK_MAX,
            Normal::Spaced => SPACE.len_utf8(),
            Normal::Library(_) => return None,
        };
        let blanks = [&self.raw, &self.normalised].into_iter().flatten();
        let longest = blanks.map(|blanks| blanks.finder.max_pattern_len()).max();
        let longest = longest.unwrap_or(0).max(self.words.longest());
        Some(tokens.saturating_mul(longest).saturating_mul(factor))
    }

    /// Appends the ids of a text.
    pub(super) fn encode(&self, text: &str, ids: &mut Ids<'_>) -> Result<(), TextError> {
        steps::check_text(text)?;
        Blanks::each(self.raw.as_ref(), text, |part| match part {
            Err(id) => ids.push(&[id]),
            Ok(part) => {
                let part = self.normal.apply(part)?;
                Blanks::each(self.normalised.as_ref(), &part, |part| match part {
                    Err(id) => ids.push(&[id]),
                    Ok(part) => self.split.each(part, &mut |word| self.words.encode(word, ids)),
                })
            }
        })
    }
}

impl Normal {
    /// What a normalizer of the library does.
    pub(super) fn of(normalizer: Option<NormalizerWrapper>) -> Self {
        match normalizer {
            None => Self::Nothing,
            Some(NormalizerWrapper::NFC(_)) => Self::Composed,
            Some(other) => Self::Library(other),
        }
    }

    fn apply<'t>(&self, text: &'t str) -> Result<Cow<'t, str>, TextError> {
        match self {
            Self::Nothing => Ok(Cow::Borrowed(text)),
            Self::Composed => nfc::composed(text),
            Self::Spaced if text.contains(SPACE) => Ok(Cow::Owned(text.replace(SPACE, " "))),
            Self::Spaced => Ok(Cow::Borrowed(text)),
            Self::Library(normalizer) => {
                check_length(text)?;
                let mut normalised = NormalizedString::from(text);
                normalizer.normalize(&mut normalised).map_err(|error| failed(text, &error))?;
                Ok(Cow::Owned(normalised.get().to_owned()))
            }
        }
    }
}

impl Split {
    fn of(mut steps: Vec<PreTokenizerWrapper>) -> Result<Self, TextError> {
        if steps.is_empty() {
            return Ok(Self::Expressions(Vec::new()));
        }
        let is_counted = |step: &&PreTokenizerWrapper| match step {
            PreTokenizerWrapper::Split(split) => steps::is_counted(&split.pattern),
            _ => false,
        };
        let counted = steps.iter().filter(is_counted).count();
        let plain = |step: &PreTokenizerWrapper| match step {
            PreTokenizerWrapper::ByteLevel(bytes) => !bytes.use_regex && !bytes.add_prefix_space,
            _ => false,
        };
        let expression = |step: &PreTokenizerWrapper| match step {
            PreTokenizerWrapper::Split(split) => {
                split.behavior == SplitDelimiterBehavior::Isolated && !split.invert
            }
            _ => false,
        };
        let whole = match steps.split_last() {
            Some((last, first)) => !first.is_empty() && plain(last) && first.iter().all(expression),
            None => false,
        };
        if whole {
            steps.pop();
            let split = |step| match step {
                PreTokenizerWrapper::Split(split) => Some(split),
                _ => None,
            };
            let splits = steps.into_iter().filter_map(split);
            let dividers = splits.map(|split| Divider::new(&split, counted));
            return dividers.collect::<Result<_, _>>().map(Self::Expressions);
        }
        let step = |step| match step {
            PreTokenizerWrapper::Split(split) => {
                Divider::new(&split, counted).map(|it| LibraryStep::Divide(Box::new(it)))
            }
            other => Ok(LibraryStep::Other(other)),
        };
        steps.into_iter().map(step).collect::<Result<_, _>>().map(Self::Library)
    }

    /// The bytes of each word, in order.
    fn each(
        &self,
        text: &str,
        visit: &mut dyn FnMut(&[u8]) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        match self {
            Self::Expressions(splits) => divide(splits, text, visit),
            Self::Library(steps) => {
                check_length(text)?;
                if text.is_empty() {
                    return Ok(());
                }
                let mut parts = PreTokenizedString::from(text);
                for step in steps {
                    step.apply(text, &mut parts)?;
                }
                let parts = parts.get_splits(OffsetReferential::Normalized, OffsetType::None);
                for (part, _, _) in parts {
                    // Spelled in the byte alphabet by now: a ByteLevel step is among them.
                    let bytes: Option<Vec<u8>> =
                        part.chars().map(super::decode::char_to_byte).collect();
                    visit(&bytes.ok_or_else(|| failed(text, &"a part is not bytes".into()))?)?;
                }
                Ok(())
            }
        }
    }
}

impl LibraryStep {
    /// Divides the parts of a text further.
    fn apply(&self, text: &str, parts: &mut PreTokenizedString) -> Result<(), TextError> {
        match self {
            Self::Other(step) => step.pre_tokenize(parts),
            Self::Divide(divider) => {
                if divider.effort.is_some() {
                    let inputs = parts.get_splits(OffsetReferential::Normalized, OffsetType::None);
                    for (part, _, _) in inputs {
                        divider.each_match(part, |_, _| Ok(()))?;
                    }
                }
                let (expression, behavior) = (&divider.expression, divider.behavior);
                parts.split(|_, part| match divider.invert {
                    true => part.split(Invert(expression), behavior),
                    false => part.split(expression, behavior),
                })
            }
        }
        .map_err(|error| failed(text, &error))
    }
}

impl Divider {
    /// A checked step, one of `counted` whose reading is counted.
    fn new(
        split: &tokenizers::pre_tokenizers::split::Split,
        counted: usize,
    ) -> Result<Self, TextError> {
        let effort = steps::effort(&split.pattern, counted)?;
        let expression = match &split.pattern {
            SplitPattern::String(text) => Regex::new(&regex::escape(text)),
            SplitPattern::Regex(expression) => Regex::new(expression),
        };
        let expression = expression
            .map_err(|error| TextError::tokenizer("pre_tokenizer.pattern", error.to_string()))?;
        Ok(Self { expression, effort, behavior: split.behavior, invert: split.invert })
    }

    /// Visits what the expression finds, unless finding it reads too much or its engine gives up.
    fn each_match(
        &self,
        text: &str,
        mut visit: impl FnMut(usize, usize) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        let mut count = self.effort.as_ref().map(|effort| effort.count(text));
        let mut matches = self.expression.find_iter(text);
        loop {
            count.as_mut().map_or(Ok(()), Count::before_next)?;
            let Some(found) = matches.next() else { return Ok(()) };
            let found = found.map_err(|error| failed(text, &error.into()))?;
            let (start, end) = (found.start(), found.end());
            if let Some(count) = &mut count {
                count.found(end, start == end);
            }
            visit(start, end)?;
        }
    }
}

/// The words of a text: the parts that the first expression makes, each divided by the others.
fn divide(
    dividers: &[Divider],
    text: &str,
    visit: &mut dyn FnMut(&[u8]) -> Result<(), TextError>,
) -> Result<(), TextError> {
    if text.is_empty() {
        return Ok(());
    }
    let Some((divider, others)) = dividers.split_first() else {
        return visit(text.as_bytes());
    };
    let mut last = 0;
    divider.each_match(text, |start, end| {
        divide(others, &text[last..start], visit)?;
        divide(others, &text[start..end], visit)?;
        last = end;
        Ok(())
    })?;
    divide(others, &text[last..], visit)
}

fn flatten(step: PreTokenizerWrapper, steps: &mut Vec<PreTokenizerWrapper>) {
    match step {
        PreTokenizerWrapper::Sequence(sequence) => {
            sequence.as_ref().iter().for_each(|step| flatten(step.clone(), steps));
        }
        other => steps.push(other),
    }
}

fn check_length(text: &str) -> Result<(), TextError> {
    if text.len() > LIBRARY_BYTES_MAX {
        let problem = format!("this tokenizer takes texts of at most {LIBRARY_BYTES_MAX} bytes");
        return Err(TextError::Encode { bytes: text.len(), problem });
    }
    Ok(())
}

fn failed(text: &str, error: &tokenizers::Error) -> TextError {
    TextError::Encode { bytes: text.len(), problem: error.to_string() }
}

//! Text to token ids piece by piece, up to a limit: what a tokenizer.json says, without its library's copies.
//!
//! The library keeps about 150 bytes for each byte of a text until all of it is encoded. Here the same steps run
//! from left to right: white space that is a token of its own, normalisation, the regular expression that divides text
//! into words, and the merging of each word. One word is in work at a time, and encoding ends as soon as there are more
//! tokens than anybody can use. The ids are those of the whole text, because the words are: the expression runs over
//! the whole text as it does there.
//!
//! The steps of Qwen's tokenizers are done this way. Others go through the library, for texts of a bounded length.

use super::TextError;
use super::control::ControlToken;
use super::ids::Ids;
use super::nfc;
use super::steps;
use super::words::Words;
use aho_corasick::{AhoCorasick, MatchKind};
use std::borrow::Cow;
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
enum Normal {
    Nothing,
    /// Unicode's composed form.
    Composed,
    Library(NormalizerWrapper),
}

/// How text becomes words.
enum Split {
    /// By an expression; nothing else divides.
    Expression(tokenizers::pre_tokenizers::split::Split),
    /// In steps of the library's.
    Library(Vec<PreTokenizerWrapper>),
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
        normalizer: Option<NormalizerWrapper>,
        pre_tokenizer: Option<PreTokenizerWrapper>,
        blanks: Vec<(ControlToken, bool)>,
        words: Words,
    ) -> Result<Self, TextError> {
        let normal = match normalizer {
            None => Normal::Nothing,
            Some(NormalizerWrapper::NFC(_)) => Normal::Composed,
            Some(other) => Normal::Library(other),
        };
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
        Ok(Self { normal, raw, normalised, split: Split::of(steps), words })
    }

    pub(super) fn words(&self) -> &Words {
        &self.words
    }

    /// Bytes of text that `tokens` tokens hold at most; `None` where that is not known.
    pub(super) fn bytes_max(&self, tokens: usize) -> Option<usize> {
        let factor = match self.normal {
            Normal::Nothing => 1,
            Normal::Composed => nfc::SHRINK_MAX,
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
    fn apply<'t>(&self, text: &'t str) -> Result<Cow<'t, str>, TextError> {
        match self {
            Self::Nothing => Ok(Cow::Borrowed(text)),
            Self::Composed => nfc::composed(text),
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
    fn of(mut steps: Vec<PreTokenizerWrapper>) -> Self {
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
        match steps.as_slice() {
            [first, second] if expression(first) && plain(second) => match steps.swap_remove(0) {
                PreTokenizerWrapper::Split(split) => Self::Expression(split),
                other => Self::Library(vec![other]),
            },
            _ => Self::Library(steps),
        }
    }

    /// The bytes of each word, in order.
    fn each(
        &self,
        text: &str,
        visit: &mut dyn FnMut(&[u8]) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        match self {
            Self::Expression(split) => {
                let mut word = |start: usize, end: usize| match &text.as_bytes()[start..end] {
                    [] => Ok(()),
                    bytes => visit(bytes),
                };
                let mut last = 0;
                for (start, end) in split.regex.find_iter(text) {
                    word(last, start)?;
                    word(start, end)?;
                    last = end;
                }
                // Also what is left where the expression gave up: as one word, as the library has it.
                word(last, text.len())
            }
            Self::Library(steps) => {
                check_length(text)?;
                if text.is_empty() {
                    return Ok(());
                }
                let mut parts = PreTokenizedString::from(text);
                for step in steps {
                    step.pre_tokenize(&mut parts).map_err(|error| failed(text, &error))?;
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

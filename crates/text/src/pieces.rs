//! Text to token ids piece by piece, up to a limit.
//!
//! White space that is a token of its own, normalisation, the division of text into words, and the merging of each word
//! run from left to right. One word is in work at a time, and encoding ends as soon as there are more tokens than
//! anybody can use. The ids are those of the whole text, because the words are: expressions run over the whole text.

use super::TextError;
use super::control::ControlToken;
use super::division::Division;
use super::ids::Ids;
use super::nfc;
use super::spaced::SPACE;
use super::steps;
use super::words::Words;
use aho_corasick::{AhoCorasick, MatchKind};
use std::borrow::Cow;

/// The way of ordinary text to ids.
pub(super) struct Pieces {
    normal: Normal,
    /// White space that is a token of its own, as written and as normalised.
    raw: Option<Blanks>,
    normalised: Option<Blanks>,
    division: Division,
    words: Words,
}

/// What is done to text before it is divided.
pub(super) enum Normal {
    Nothing,
    /// Unicode's composed form.
    Composed,
    /// `▁` is a space.
    Spaced,
}

struct Blanks {
    finder: AhoCorasick,
    ids: Vec<u32>,
}

impl Blanks {
    /// Leftmost and of these longest, as the `tokenizers` crate finds added tokens.
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
        division: Division,
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
        Ok(Self { normal, raw, normalised, division, words })
    }

    pub(super) fn words(&self) -> &Words {
        &self.words
    }

    /// Bytes of text that `tokens` tokens hold at most.
    pub(super) fn bytes_max(&self, tokens: usize) -> usize {
        let factor = match self.normal {
            Normal::Nothing => 1,
            Normal::Composed => nfc::SHRINK_MAX,
            Normal::Spaced => SPACE.len_utf8(),
        };
        let blanks = [&self.raw, &self.normalised].into_iter().flatten();
        let longest = blanks.map(|blanks| blanks.finder.max_pattern_len()).max();
        let longest = longest.unwrap_or(0).max(self.words.longest());
        tokens.saturating_mul(longest).saturating_mul(factor)
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
                    Ok(part) => {
                        let mut encode = |word: &str| self.words.encode(word.as_bytes(), ids);
                        self.division.each(part, &mut encode)
                    }
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
            Self::Spaced if text.contains(SPACE) => Ok(Cow::Owned(text.replace(SPACE, " "))),
            Self::Spaced => Ok(Cow::Borrowed(text)),
        }
    }
}

//! The fields of a tokenizer.json, typed. Strings borrow the file's text: a vocabulary of a quarter million tokens and
//! its merges are three quarters of a million strings.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use store::shown::quoted;

/// Four times the largest known vocabulary.
const TOKENS_MAX: usize = 1 << 20;
/// Several merges may make one token.
const MERGES_MAX: usize = 2 << 20;

#[derive(Deserialize)]
pub(super) struct File<'a> {
    pub(super) version: Option<String>,
    #[serde(default)]
    pub(super) added_tokens: Vec<Added>,
    #[serde(borrow)]
    pub(super) normalizer: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) decoder: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) model: Model<'a>,
}

#[derive(Deserialize)]
pub(crate) struct Added {
    pub(crate) id: u32,
    pub(crate) content: String,
    #[serde(default)]
    pub(super) single_word: bool,
    #[serde(default)]
    pub(super) lstrip: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
    #[serde(default)]
    pub(crate) normalized: bool,
    #[serde(default)]
    pub(super) special: bool,
}

#[derive(Deserialize)]
pub(super) struct Model<'a> {
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) dropout: Option<f32>,
    pub(super) continuing_subword_prefix: Option<String>,
    pub(super) end_of_word_suffix: Option<String>,
    pub(super) ignore_merges: Option<bool>,
    pub(super) byte_fallback: Option<bool>,
    #[serde(borrow, deserialize_with = "tokens")]
    pub(super) vocab: Vec<Token<'a>>,
    #[serde(borrow, deserialize_with = "merges")]
    pub(super) merges: Vec<Merge<'a>>,
}

/// A token as it is spelled, and its id.
pub(crate) type Token<'a> = (Cow<'a, str>, u32);

/// A string of the file: borrowed where it has no escapes.
struct Text<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// The vocabulary in the file's order; that no token is there twice is for who looks them up.
fn tokens<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Token<'de>>, D::Error> {
    struct TokensVisitor;
    impl<'de> Visitor<'de> for TokensVisitor {
        type Value = Vec<Token<'de>>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object of tokens and their ids")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<Token<'de>>, A::Error> {
            let mut tokens = Vec::new();
            while let Some((Text(text), id)) = map.next_entry()? {
                if tokens.len() == TOKENS_MAX {
                    let problem = format!("model.vocab has more than {TOKENS_MAX} tokens");
                    return Err(A::Error::custom(problem));
                }
                tokens.push((text, id));
            }
            Ok(tokens)
        }
    }
    deserializer.deserialize_map(TokensVisitor)
}

fn merges<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Merge<'de>>, D::Error> {
    struct MergesVisitor;
    impl<'de> Visitor<'de> for MergesVisitor {
        type Value = Vec<Merge<'de>>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list of merges")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<Merge<'de>>, A::Error> {
            let mut merges = Vec::new();
            while let Some(merge) = seq.next_element()? {
                if merges.len() == MERGES_MAX {
                    let problem = format!("model.merges has more than {MERGES_MAX} entries");
                    return Err(A::Error::custom(problem));
                }
                merges.push(merge);
            }
            Ok(merges)
        }
    }
    deserializer.deserialize_seq(MergesVisitor)
}

/// A merge is `["a", "b"]`, or `"a b"` in older files.
pub(super) struct Merge<'a>(pub(super) Cow<'a, str>, pub(super) Cow<'a, str>);

fn halves(text: &str) -> Option<(&str, &str)> {
    text.split_once(' ').filter(|(_, b)| !b.contains(' '))
}

fn not_halves<E: serde::de::Error>(text: &str) -> E {
    E::custom(format!("merge {} is not two tokens and one space", quoted(text)))
}

impl<'de> Deserialize<'de> for Merge<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergeVisitor;
        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = Merge<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a pair of strings, or one string with one space")
            }

            fn visit_borrowed_str<E: serde::de::Error>(
                self,
                text: &'de str,
            ) -> Result<Merge<'de>, E> {
                let (a, b) = halves(text).ok_or_else(|| not_halves(text))?;
                Ok(Merge(a.into(), b.into()))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Merge<'de>, E> {
                let (a, b) = halves(text).ok_or_else(|| not_halves(text))?;
                Ok(Merge(a.to_owned().into(), b.to_owned().into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merge<'de>, A::Error> {
                let short = || A::Error::custom("a merge is a pair of strings");
                let Text(a) = seq.next_element()?.ok_or_else(short)?;
                let Text(b) = seq.next_element()?.ok_or_else(short)?;
                match seq.next_element::<serde::de::IgnoredAny>()? {
                    None => Ok(Merge(a, b)),
                    Some(_) => Err(short()),
                }
            }
        }
        deserializer.deserialize_any(MergeVisitor)
    }
}

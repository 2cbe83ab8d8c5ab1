//! The tokenizer and the chat template of a GGUF file.
//!
//! A file holds the tokens, their merges and the name of the rule that divides text into words. From these comes the
//! tokenizer.json that the model had before it was converted, so that one reader with one set of limits serves every
//! layout; a file that carries tokenizer.json whole gives that. It is built when it is asked for and not kept.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::metadata::Metadata;
use super::rules::{self, Rule};
use crate::format::error::FormatError;
use crate::format::sidecar::{GENERATION_CONFIG, TEMPLATE_BYTES_MAX, TOKENIZER_BYTES_MAX};
use crate::shown::quoted;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const WHOLE: &str = "tokenizer.huggingface.json";
const TEMPLATE: &str = "tokenizer.chat_template";
const BEGIN: &str = "tokenizer.ggml.add_bos_token";
const END: &str = "tokenizer.ggml.add_eos_token";
/// Bytes of all tokens, and of all merges: eight times the largest known.
const TEXTS_BYTES_MAX: u64 = 64 << 20;
/// Four times the largest known vocabulary.
const TOKENS_MAX: u64 = 1 << 20;
/// Several merges may make one token.
const MERGES_MAX: u64 = 2 << 20;
/// Longest name of a model or rule.
const NAME_BYTES_MAX: u64 = 4096;
/// tokenizer.json spells every token and merge again, with quotes, commas and escapes.
const JSON_FACTOR: u64 = 2;
/// The same per entry: quotes, commas and the token's number.
const JSON_ENTRY_BYTES: u64 = 16;

/// Keys of ids with the names of their tokens in tokenizer_config.json.
const NAMED: [(&str, &str); 4] = [
    ("tokenizer.ggml.bos_token_id", "bos_token"),
    ("tokenizer.ggml.eos_token_id", "eos_token"),
    ("tokenizer.ggml.padding_token_id", "pad_token"),
    ("tokenizer.ggml.unknown_token_id", "unk_token"),
];
/// Keys of ids that end an answer.
const ENDS: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
/// Texts of control tokens that end an answer whatever the keys say.
const END_TEXTS: [&str; 10] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<turn|>",
    "<|user|>",
    "<|observation|>",
];

/// How a file's tokenizer is given.
#[derive(Clone, Copy)]
enum Kind {
    /// tokenizer.json whole.
    Whole,
    /// Byte-level BPE, with the rule that divides text into words.
    Bytes(&'static Rule),
    /// BPE of characters, `▁` for a space, tokens of bytes.
    Spaced,
}

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Normal,
    Control,
    UserDefined,
    Unused,
}

/// Where a file's tokenizer lies, and the few tokens of it that have a meaning.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    metadata: Metadata,
    /// Ids that end an answer, ascending.
    ends: Vec<u32>,
    /// Texts of named tokens.
    named: Vec<(&'static str, String)>,
}

impl Vocabulary {
    /// Reads the ids that have a meaning; `rows` are those of the embedding.
    pub(super) fn read(metadata: Metadata, rows: Option<usize>) -> Result<Self, FormatError> {
        let count = metadata.texts_size(TOKENS).1;
        if let Some(rows) = rows.filter(|&rows| count > rows as u64) {
            let found = format!("{count} for an embedding of {rows} rows");
            return Err(metadata.invalid(TOKENS, found));
        }
        let tokens = metadata.texts(TOKENS, TEXTS_BYTES_MAX, TOKENS_MAX)?.unwrap_or_default();
        let id = |key: &str| -> Result<Option<u32>, FormatError> {
            let Some(id) = metadata.unsigned(key)? else { return Ok(None) };
            match usize::try_from(id).ok().filter(|&id| id < tokens.len()) {
                Some(id) => Ok(Some(id as u32)),
                None => Err(metadata.invalid(key, format!("{id} of {} tokens", tokens.len()))),
            }
        };
        let mut ends = Vec::new();
        let mut named = Vec::new();
        if !tokens.is_empty() {
            for key in ENDS {
                ends.extend(id(key)?);
            }
            for (key, name) in NAMED {
                if let Some(id) = id(key)? {
                    named.push((name, tokens[id as usize].clone()));
                }
            }
        }
        // In harmony `<|end|>` ends a message and not the answer.
        let has = |text: &str| tokens.iter().any(|token| token == text);
        let harmony = has("<|return|>") && has("<|call|>");
        let by_text = tokens.iter().enumerate().filter(|(_, text)| !harmony || *text != "<|end|>");
        let by_text = by_text.filter(|(_, text)| END_TEXTS.contains(&text.as_str()));
        ends.extend(by_text.map(|(id, _)| id as u32));
        ends.sort_unstable();
        ends.dedup();
        Ok(Self { metadata, ends, named })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        self.metadata.path()
    }

    /// About how many bytes [`Vocabulary::tokenizer_json`] has.
    pub fn bytes(&self) -> u64 {
        let size = |key| {
            let (bytes, count) = self.metadata.texts_size(key);
            bytes * JSON_FACTOR + count * JSON_ENTRY_BYTES
        };
        size(TOKENS) + size(MERGES)
    }

    /// What generation_config.json would say: the tokens that end an answer.
    pub(super) fn generation_config(&self) -> Option<Value> {
        (!self.ends.is_empty()).then(|| json!({"eos_token_id": self.ends}))
    }

    /// What tokenizer_config.json would say: the texts of named tokens, which templates print.
    pub(super) fn tokenizer_config(&self) -> Value {
        let named = self.named.iter().map(|(name, text)| ((*name).to_owned(), text.clone().into()));
        Value::Object(named.collect::<Map<_, _>>())
    }

    /// The chat template; of several the one without a name.
    pub(super) fn chat_template(&self) -> Result<Option<String>, FormatError> {
        self.metadata.text(TEMPLATE, TEMPLATE_BYTES_MAX)
    }

    /// The content of one of the small files that other layouts have beside their weights.
    pub(crate) fn file(&self, name: &str) -> Result<Option<Vec<u8>>, FormatError> {
        let json = |value: Value| value.to_string().into_bytes();
        Ok(match name {
            "tokenizer.json" => Some(self.tokenizer_json()?),
            "tokenizer_config.json" => Some(json(self.tokenizer_config())),
            "chat_template.jinja" => self.chat_template()?.map(String::into_bytes),
            GENERATION_CONFIG => self.generation_config().map(json),
            _ => None,
        })
    }

    /// What the tokenizer is, by the file's short keys.
    ///
    /// # Errors
    /// A tokenizer that is not one that is read.
    fn kind(&self) -> Result<Kind, FormatError> {
        for key in [BEGIN, END] {
            // A template that prints the first token itself leaves nothing to add.
            let printed = key == BEGIN && self.template_begins()?;
            if self.metadata.flag(key)?.unwrap_or(false) && !printed {
                let remedy = "prompts are taken without added tokens";
                return Err(self.metadata.unsupported(key, "true", remedy));
            }
        }
        if self.metadata.has(WHOLE) {
            return Ok(Kind::Whole);
        }
        let name = |key: &str| {
            self.metadata.required(key, |metadata, key| metadata.text(key, NAME_BYTES_MAX))
        };
        let model = name(MODEL)?;
        if model == "gemma4" {
            return Ok(Kind::Spaced);
        }
        if model != "gpt2" {
            let remedy = "byte-level BPE (gpt2) and Gemma's BPE (gemma4) are read";
            return Err(self.metadata.unsupported(MODEL, quoted(&model).to_string(), remedy));
        }
        let pre = name(PRE)?;
        let unknown = || self.metadata.unsupported(PRE, quoted(&pre).to_string(), rules::KNOWN);
        rules::find(&pre).map(Kind::Bytes).ok_or_else(unknown)
    }

    /// Refuses a tokenizer that is not one that is read, by a few short keys: before anything of size is read.
    ///
    /// # Errors
    /// As [`Vocabulary::tokenizer_json`] has for these keys.
    pub fn check(&self) -> Result<(), FormatError> {
        self.kind().map(drop)
    }

    /// The bytes of tokenizer.json.
    ///
    /// # Errors
    /// A key that is missing, or whose tokenizer is not one that is read.
    pub fn tokenizer_json(&self) -> Result<Vec<u8>, FormatError> {
        let kind = self.kind()?;
        if let Kind::Whole = kind {
            let whole = self.metadata.text(WHOLE, TOKENIZER_BYTES_MAX)?;
            return Ok(whole.unwrap_or_default().into_bytes());
        }
        let texts = |key: &str, most: u64| {
            self.metadata.required(key, |metadata, key| metadata.texts(key, TEXTS_BYTES_MAX, most))
        };
        let tokens = texts(TOKENS, TOKENS_MAX)?;
        let uses = self.uses(tokens.len())?;
        let merges = texts(MERGES, MERGES_MAX)?;
        let mut vocab = Map::new();
        let mut added = Vec::new();
        // Merges of Gemma's may make tokens that are listed as added ones as well.
        let spaced = matches!(kind, Kind::Spaced);
        for ((id, text), kind) in tokens.into_iter().enumerate().zip(uses) {
            if matches!(kind, Use::Control | Use::UserDefined) {
                added.push(json!({
                    "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": kind == Use::Control,
                }));
            }
            match kind {
                Use::Unused => {}
                Use::Control | Use::UserDefined if !spaced => {}
                Use::Normal | Use::Control | Use::UserDefined => {
                    if vocab.insert(text, id.into()).is_some() {
                        let found = format!("token {id} has the text of another");
                        return Err(self.metadata.invalid(TOKENS, found));
                    }
                }
            }
        }
        let pairs: Vec<[&str; 2]> = merges
            .iter()
            .enumerate()
            .map(|(index, merge)| {
                self.pair(merge).ok_or_else(|| {
                    let found = format!("entry {index} is not two tokens with a space between");
                    self.metadata.invalid(MERGES, found)
                })
            })
            .collect::<Result<_, _>>()?;
        let whole = match kind {
            Kind::Bytes(rule) => byte_level(rule, added, vocab, &pairs),
            Kind::Whole | Kind::Spaced => spaced_json(added, vocab, &pairs),
        };
        Ok(whole.to_string().into_bytes())
    }

    /// Whether the chat template prints the token that begins a text.
    fn template_begins(&self) -> Result<bool, FormatError> {
        let Some(template) = self.chat_template()? else { return Ok(false) };
        let begin = self.named.iter().find(|(name, _)| *name == "bos_token");
        let spelled = begin.is_some_and(|(_, text)| !text.is_empty() && template.contains(text));
        Ok(spelled || template.contains("bos_token"))
    }

    /// What each token is for.
    fn uses(&self, tokens: usize) -> Result<Vec<Use>, FormatError> {
        let Some(types) = self.metadata.integers(TYPES, TOKENS_MAX)? else {
            return Ok(vec![Use::Normal; tokens]);
        };
        if types.len() != tokens {
            let found = format!("has {} entries for {tokens} tokens", types.len());
            return Err(self.metadata.invalid(TYPES, found));
        }
        let kind = |kind: i128| {
            Ok(match kind {
                1 | 2 | 6 => Use::Normal,
                3 => Use::Control,
                4 => Use::UserDefined,
                5 => Use::Unused,
                other => return Err(self.metadata.invalid(TYPES, format!("{other} is no type"))),
            })
        };
        types.into_iter().map(kind).collect()
    }

    /// The two tokens of a merge: the space that divides them is never the first byte.
    fn pair<'a>(&self, merge: &'a str) -> Option<[&'a str; 2]> {
        let first = merge.chars().next()?.len_utf8();
        let at = first + merge[first..].find(' ')?;
        Some([&merge[..at], &merge[at + 1..]])
    }
}

/// tokenizer.json of byte-level BPE.
fn byte_level(
    rule: &Rule,
    added: Vec<Value>,
    vocab: Map<String, Value>,
    merges: &[[&str; 2]],
) -> Value {
    let split = |pattern: &&str| {
        json!({
            "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false,
        })
    };
    let mut steps: Vec<Value> = rule.patterns.iter().map(split).collect();
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false,
    });
    steps.push(bytes.clone());
    json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": rule.composes.then(|| json!({"type": "NFC"})),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": bytes,
        "model": {
            "type": "BPE", "byte_fallback": false, "ignore_merges": rule.ignores_merges,
            "vocab": vocab, "merges": merges,
        },
    })
}

/// tokenizer.json of BPE of characters with `▁` for a space.
fn spaced_json(added: Vec<Value>, vocab: Map<String, Value>, merges: &[[&str; 2]]) -> Value {
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": replace(" ", "▁"),
        "pre_tokenizer": null,
        "decoder": {"type": "Sequence", "decoders": [
            replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"},
        ]},
        "model": {
            "type": "BPE", "byte_fallback": true, "fuse_unk": true, "ignore_merges": false,
            "vocab": vocab, "merges": merges,
        },
    })
}

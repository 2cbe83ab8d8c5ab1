//! The small files beside the weights: tokenizer, chat template, generation defaults.
//!
//! All are optional here; code that needs one says so. The chat template is taken from
//! `chat_template.jinja`, else `chat_template.json`, else `tokenizer_config.json`, where it is a text
//! or a list of named templates (the one called `default` counts).

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::error::FormatError;
use super::{Checkpoint, Configuration, Family, Vocabulary, deepseek_v4, files, json};
use crate::shown::shown;

/// Templates are programs of a few kilobytes.
pub(crate) const TEMPLATE_BYTES_MAX: u64 = 1 << 20;
/// tokenizer.json: the largest known has 35 MB.
pub(crate) const TOKENIZER_BYTES_MAX: u64 = 256 << 20;
/// tokenizer.json, the largest, and its neighbours.
pub(crate) const COPIED_BYTES_MAX: u64 = TOKENIZER_BYTES_MAX;
/// tokenizer_config.json lists added tokens; real ones are below 100 KB.
const TOKENIZER_CONFIG_BYTES_MAX: u64 = 16 << 20;

/// What the model's makers recommend for sampling, and the tokens that end an answer.
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";

/// File names of everything that is read or copied from beside the weights.
pub(crate) const FILES: [&str; 5] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    GENERATION_CONFIG,
];

/// Where a checkpoint has its tokenizer.
#[derive(Clone, Debug)]
pub enum TokenizerSource {
    /// In a tokenizer.json.
    File(PathBuf),
    /// In the keys of a GGUF file.
    Gguf(Box<Vocabulary>),
}

impl TokenizerSource {
    /// The file to blame.
    pub fn path(&self) -> &Path {
        match self {
            Self::File(path) => path,
            Self::Gguf(vocabulary) => vocabulary.path(),
        }
    }

    /// Refuses what can be told to be unreadable by a few keys, before weights are read.
    ///
    /// # Errors
    /// The key, its value, and what is read.
    pub fn check(&self) -> Result<(), FormatError> {
        match self {
            Self::File(_) => Ok(()),
            Self::Gguf(vocabulary) => vocabulary.check(),
        }
    }

    /// About how many bytes its tokenizer.json has.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::File(path) => path.metadata().map_or(0, |file| file.len()),
            Self::Gguf(vocabulary) => vocabulary.bytes(),
        }
    }
}

/// What lies beside the weights.
pub(crate) struct Sidecar {
    pub(crate) generation_config: Option<Value>,
    pub(crate) tokenizer: Option<TokenizerSource>,
    pub(crate) tokenizer_config: Option<Value>,
    pub(crate) chat_template: Option<String>,
}

impl Sidecar {
    pub(crate) fn read(folder: &Path, config: &Configuration) -> Result<Self, FormatError> {
        let tokenizer = files::find(folder, "tokenizer.json")?;
        if let Some(path) = &tokenizer {
            let length = files::open_regular(path)?.length;
            if length > TOKENIZER_BYTES_MAX {
                let field = "file size in bytes";
                return Err(FormatError::limit(path, field, length, TOKENIZER_BYTES_MAX));
            }
        }
        let tokenizer_config = object(folder, "tokenizer_config.json", TOKENIZER_CONFIG_BYTES_MAX)?;
        let generation_config = object(folder, GENERATION_CONFIG, json::CONFIG_BYTES_MAX)?;
        if let Some(json) = &generation_config {
            config.generation_end_tokens(&folder.join(GENERATION_CONFIG), json)?;
        }
        let family = config.family()?;
        let own = || (family == Some(Family::DeepseekV4)).then(|| deepseek_v4::TEMPLATE.to_owned());
        let chat_template = chat_template(folder, tokenizer_config.as_ref())?.or_else(own);
        let tokenizer = tokenizer.map(TokenizerSource::File);
        Ok(Self { generation_config, tokenizer, tokenizer_config, chat_template })
    }
}

/// The small files of a checkpoint, as a pack copies them: name and bytes.
pub(crate) fn copies(source: &Checkpoint) -> Result<Vec<(&'static str, Vec<u8>)>, FormatError> {
    let mut copies = Vec::new();
    for name in FILES {
        let bytes = match &source.tokenizer {
            // Other files in the folder belong to other models.
            Some(TokenizerSource::Gguf(vocabulary)) => vocabulary.file(name)?,
            _ => match files::find(&source.root, name)? {
                Some(path) => Some(files::read_small(&path, COPIED_BYTES_MAX)?),
                None => None,
            },
        };
        copies.extend(bytes.map(|bytes| (name, bytes)));
    }
    Ok(copies)
}

fn object(folder: &Path, name: &str, limit: u64) -> Result<Option<Value>, FormatError> {
    let Some(path) = files::find(folder, name)? else { return Ok(None) };
    let value = json::read(&path, limit)?;
    if !value.is_object() {
        let remedy = "replace it by the model's own file";
        return Err(FormatError::invalid(&path, "JSON", "not an object", remedy));
    }
    Ok(Some(value))
}

fn chat_template(
    folder: &Path,
    tokenizer_config: Option<&Value>,
) -> Result<Option<String>, FormatError> {
    if let Some(path) = files::find(folder, "chat_template.jinja")? {
        let bytes = files::read_small(&path, TEMPLATE_BYTES_MAX)?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let remedy = "save the template as UTF-8";
            FormatError::invalid(&path, "text", error.to_string(), remedy)
        })?;
        return Ok(Some(text));
    }
    if let Some(value) = object(folder, "chat_template.json", TEMPLATE_BYTES_MAX)? {
        return template_of(&folder.join("chat_template.json"), &value);
    }
    match tokenizer_config {
        Some(value) => template_of(&folder.join("tokenizer_config.json"), value),
        None => Ok(None),
    }
}

fn template_of(file: &Path, value: &Value) -> Result<Option<String>, FormatError> {
    let invalid = |found: &str| {
        let remedy = "it must be a text or a list of {name, template}";
        FormatError::invalid(file, "chat_template", found, remedy)
    };
    match value.get("chat_template") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(list)) => {
            let named = |item: &&Value| item.get("name").and_then(Value::as_str) == Some("default");
            let Some(item) = list.iter().find(named).or(list.first()) else { return Ok(None) };
            let text = item.get("template").and_then(Value::as_str);
            let text = text.ok_or_else(|| invalid("an entry without template"))?;
            Ok(Some(text.to_owned()))
        }
        Some(other) => Err(invalid(&shown(other).to_string())),
    }
}

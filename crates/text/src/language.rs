//! The text side of a model: tokenizer, chat template and end tokens of a checkpoint, loaded and checked together.
//!
//! The command line and the server make their prompts here, so that both say the same to the model.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use store::format::{Checkpoint, FormatError, TokenizerSource};
use store::shown;
use thiserror::Error;

use super::least::{self, TextLimit};
use super::{
    ChatTemplate, Dialect, EncodeLimit, Message, RenderOptions, SampledTurn, TemplateHost,
    TemplateTokens, TextError, Thinking, Tokenizer,
};

/// A checkpoint whose text side cannot be used.
#[derive(Debug, Error)]
pub enum LanguageError {
    /// The folder has no tokenizer.
    #[error("{}: no tokenizer.json; copy it from the model", folder.display())]
    NoTokenizer {
        /// The model's folder.
        folder: PathBuf,
    },
    /// A file is not what it should be.
    #[error("{}", in_file(file, reason))]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it. Not the error's source: it is in its words.
        reason: TextError,
    },
    /// config.json or generation_config.json is not what it should be.
    #[error(transparent)]
    Config(#[from] FormatError),
}

/// A file and what is wrong with it, which may begin with the file's name.
fn in_file(file: &Path, reason: &TextError) -> String {
    let (words, name) = (reason.to_string(), file.file_name().unwrap_or_default());
    let rest = words.strip_prefix(&*name.to_string_lossy()).and_then(|it| it.strip_prefix(": "));
    format!("{}: {}", shown::path(file), rest.unwrap_or(&words))
}

/// The dialect of a checkpoint's answers: that of its chat template, or Qwen's where it has none.
pub fn dialect(checkpoint: &Checkpoint) -> Dialect {
    checkpoint.chat_template.as_deref().map_or(Dialect::QwenXml, Dialect::of)
}

/// Tokenizer, template and end tokens of a model.
pub struct Language {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The chat template, if the model has one.
    pub template: Option<ChatTemplate>,
    /// The template prints the content of every message.
    pub prints_contents: bool,
    /// How the template teaches the model to call tools.
    pub dialect: Dialect,
    /// Tokens that end an answer, ascending.
    pub end_tokens: Vec<u32>,
    /// How long loading took.
    pub load_time: Duration,
}

/// A conversation as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatPrompt {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Where each turn begins, ascending; the last is the assistant's header when one was asked for.
    pub turns: Vec<usize>,
    /// Where it leaves the model's thinking.
    pub thinking: Thinking,
    /// It ends inside a thinking block.
    pub opens_reasoning: bool,
}

impl Language {
    /// Loads tokenizer and template of a checkpoint and checks them against an embedding of `vocabulary` rows. The
    /// template runs where `host` says.
    ///
    /// # Errors
    /// The file that is missing or invalid.
    pub fn load(
        checkpoint: &Checkpoint,
        vocabulary: usize,
        host: &TemplateHost,
    ) -> Result<Self, LanguageError> {
        let started = Instant::now();
        let folder = &checkpoint.root;
        let source = checkpoint.tokenizer.as_ref();
        let source = source.ok_or_else(|| LanguageError::NoTokenizer { folder: folder.clone() })?;
        let wrap = |error| LanguageError::File { file: source.path().to_owned(), reason: error };
        let tokenizer = match source {
            TokenizerSource::File(path) => Tokenizer::from_file(path).map_err(wrap)?,
            TokenizerSource::Gguf(vocabulary) => {
                let bytes = vocabulary.tokenizer_json()?;
                Tokenizer::from_bytes(&bytes).map_err(wrap)?
            }
        };
        tokenizer.check_vocabulary(vocabulary).map_err(wrap)?;
        let config = checkpoint.tokenizer_config.clone().unwrap_or_default();
        let template = checkpoint.chat_template.as_ref().map(|source| {
            let tokens = TemplateTokens::from_config(&config);
            let controls = tokenizer.control_tokens().clone();
            let template = ChatTemplate::new(source, tokens, controls, host);
            template.map_err(|reason| LanguageError::File { file: folder.clone(), reason })
        });
        let dialect = dialect(checkpoint);
        let end_tokens = tokenizer.end_tokens(&config);
        let mut end_tokens = end_tokens.map_err(|reason| LanguageError::File {
            file: folder.join("tokenizer_config.json"),
            reason,
        })?;
        let listed = checkpoint.end_tokens()?;
        end_tokens.extend(listed.into_iter().flatten().flatten());
        let controls = tokenizer.control_tokens().tokens();
        let ends = controls.iter().filter(|token| dialect.ends().contains(&token.text.as_str()));
        end_tokens.extend(ends.map(|token| token.id));
        end_tokens.sort_unstable();
        end_tokens.dedup();
        let template = template.transpose()?;
        let prints_contents = template.as_ref().is_some_and(least::prints_contents);
        let load_time = started.elapsed();
        Ok(Self { tokenizer, template, prints_contents, dialect, end_tokens, load_time })
    }

    /// Renders `messages` by `template`, which is this language's.
    ///
    /// # Errors
    /// What the template refuses.
    pub fn render(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
        tools: &[Value],
        options: &RenderOptions,
    ) -> Result<ChatPrompt, TextError> {
        let none = &mut |_: &Message| None;
        self.render_within(template, messages, tools, options, none, EncodeLimit::NONE)
    }

    /// [`Language::render`] up to a limit of tokens, with answers that were sampled here in the place of their messages
    /// ([`ChatTemplate::render_replaying`]). Text that cannot fit is refused before it is rendered.
    ///
    /// # Errors
    /// What the template refuses; [`TextError::TooMuchText`], [`TextError::TooManyTokens`] and [`TextError::Gone`]
    /// by the limit.
    pub fn render_within(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
        tools: &[Value],
        options: &RenderOptions,
        sampled: &mut dyn FnMut(&Message) -> Option<Arc<SampledTurn>>,
        limit: EncodeLimit<'_>,
    ) -> Result<ChatPrompt, TextError> {
        let most = self.text_limit(limit.tokens);
        most.check(messages)?;
        if (limit.gone)() {
            return Err(TextError::Gone);
        }
        let options = RenderOptions { bytes_max: Some(most.bytes), ..options.clone() };
        let rendered = template.render_replaying(messages, tools, &options, sampled)?;
        let (tokens, places) = self.tokenizer.encode_with_controls(&rendered, limit)?;
        // Templates open every turn with the token that opens the first.
        let first = places.first().map(|&place| tokens[place]);
        let turns = places.into_iter().filter(|&place| Some(tokens[place]) == first).collect();
        let thinking = rendered.thinking();
        let opens_reasoning = thinking == Thinking::Open;
        Ok(ChatPrompt { tokens, turns, thinking, opens_reasoning })
    }

    /// The tokens of a text without a template, up to a limit.
    ///
    /// # Errors
    /// As [`Language::render_within`].
    pub fn encode_within(&self, text: &str, limit: EncodeLimit<'_>) -> Result<Vec<u32>, TextError> {
        self.check_length(text, limit)?;
        self.tokenizer.encode_within(text, limit)
    }

    /// As [`Language::encode_within`], with control tokens where their texts stand.
    ///
    /// # Errors
    /// As [`Language::render_within`].
    pub fn encode_marked(&self, text: &str, limit: EncodeLimit<'_>) -> Result<Vec<u32>, TextError> {
        self.check_length(text, limit)?;
        self.tokenizer.encode_marked(text, limit)
    }

    fn check_length(&self, text: &str, limit: EncodeLimit<'_>) -> Result<(), TextError> {
        let most = self.text_limit(limit.tokens).bytes;
        if text.len() > most {
            return Err(TextError::TooMuchText { bytes: text.len(), all: true, most });
        }
        Ok(())
    }

    /// The most text of a prompt of `tokens` tokens.
    pub fn text_limit(&self, tokens: usize) -> TextLimit {
        TextLimit::new(&self.tokenizer, self.prints_contents, tokens)
    }
}

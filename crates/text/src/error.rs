//! The one error type of the text room.
//!
//! Everything here is fed by files from strangers (tokenizer.json, chat templates, configuration) or by
//! clients (messages, tools, sampling options), so every variant says which input was wrong, where,
//! and what would be accepted. The server turns `is_client_mistake` errors into status 400, all others
//! are faults of the model folder.

use store::shown::{message, shown};

/// What can go wrong between text and tokens. Fields and problems may repeat what files and clients wrote: `Display`
/// cuts and escapes them, so that it is one short line whatever they are.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file of the model folder could not be read.
    #[error("cannot read {}: {source}", message(path))]
    Read {
        /// The file.
        path: String,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// tokenizer.json is not what a byte-level BPE tokenizer file must be.
    #[error("tokenizer.json: {}: {}", shown(field), message(problem))]
    Tokenizer {
        /// The JSON field, dotted.
        field: String,
        /// What is wrong and what would be accepted.
        problem: String,
    },
    /// The tokenizer can produce ids that have no embedding row.
    #[error(
        "tokenizer.json: the vocabulary ends at id {last_id}, but the checkpoint has {rows} embedding rows; \
         the tokenizer belongs to another model"
    )]
    VocabularyTooLarge {
        /// Largest id of the tokenizer.
        last_id: u32,
        /// Rows of the embedding matrix.
        rows: usize,
    },
    /// The tokenizer's own regular expression gave up on a text.
    #[error("cannot tokenise {bytes} bytes of text: {}", message(problem))]
    Encode {
        /// Length of the text.
        bytes: usize,
        /// The reason given by the tokenizer.
        problem: String,
    },
    /// More tokens than the limit of an encoding.
    #[error("the text has {}{tokens} tokens", if *all { "" } else { "more than " })]
    TooManyTokens {
        /// Tokens that were counted.
        tokens: usize,
        /// All were.
        all: bool,
    },
    /// More text than its tokens could hold.
    #[error("the prompt has {}{bytes} bytes of text, more than the {most} that the context holds",
        if *all { "" } else { "more than " })]
    TooMuchText {
        /// Bytes that were seen.
        bytes: usize,
        /// All were.
        all: bool,
        /// Most bytes.
        most: usize,
    },
    /// The tokens are no longer awaited.
    #[error("given up")]
    Gone,
    /// The chat template does not parse.
    #[error("chat template: {}", message(problem))]
    TemplateSyntax {
        /// Message with line number.
        problem: String,
    },
    /// The chat template refused the conversation (`raise_exception`).
    #[error("the chat template refuses this conversation: {}", store::shown::message(message))]
    TemplateRefused {
        /// The template's own words.
        message: String,
    },
    /// The chat template failed while rendering, or passed one of its limits.
    #[error("chat template: {}", message(problem))]
    TemplateFailed {
        /// Message with line number, or the limit that was passed.
        problem: String,
    },
    /// The process that runs the chat template was lost: it could not be started, it was ended, or it did not answer in
    /// time. The conversation need not be at fault.
    #[error("chat template: {}", message(problem))]
    TemplateLost {
        /// What became of it.
        problem: String,
    },
    /// A message of the conversation is not acceptable.
    #[error("messages[{index}]{}: {}", shown(field), message(problem))]
    Message {
        /// Position in the list of messages.
        index: usize,
        /// Path below the message, with its leading dot; empty for the message itself.
        field: String,
        /// What is wrong and what would be accepted.
        problem: String,
    },
    /// Another value given by the caller is not acceptable.
    #[error("{}: {}", shown(field), message(problem))]
    Value {
        /// Name of the parameter.
        field: String,
        /// What is wrong and what would be accepted.
        problem: String,
    },
}

impl TextError {
    /// Whether the request, not the model folder, is at fault.
    pub fn is_client_mistake(&self) -> bool {
        matches!(
            self,
            Self::Encode { .. }
                | Self::TooManyTokens { .. }
                | Self::TooMuchText { .. }
                | Self::TemplateRefused { .. }
                | Self::Message { .. }
                | Self::Value { .. }
        )
    }

    pub(crate) fn tokenizer(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Tokenizer { field: field.into(), problem: one_line(&problem.into()) }
    }

    pub(crate) fn message(
        index: usize,
        field: impl Into<String>,
        problem: impl Into<String>,
    ) -> Self {
        Self::Message { index, field: field.into(), problem: problem.into() }
    }

    pub(crate) fn value(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Value { field: field.into(), problem: problem.into() }
    }
}

/// Characters of a message that came out of a stranger's file; they may be all of it.
const MESSAGE_CHARS_MAX: usize = 400;

/// The beginning of a text that may be anything, on one line and without a terminal's control characters.
pub(super) fn one_line(text: &str) -> String {
    let mut line = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == MESSAGE_CHARS_MAX {
            line.push_str("...");
            break;
        }
        match c {
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
}

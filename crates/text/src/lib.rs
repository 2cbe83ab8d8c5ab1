//! Text: from conversations to token ids, from logits to the next token, and from token ids to answers. Nothing here
//! knows a model's layers or a device.
//!
//! `Tokenizer` (tokenizer.json) and `ChatTemplate` (the checkpoint's Jinja program) make prompts; `DecodeStream` and
//! `StopStrings` take sampled tokens apart again.
//! Everything is synchronous, bounded, and free of panics on any file or request; errors are `TextError`.
//!
//! The promise that runs through all of it: **text of users never becomes a control token** (`template.rs` says
//! how).
//!
//! [`sampling`] turns logits into tokens, [`constraint`] says which of them an answer may have.
#![forbid(unsafe_code)]

mod answer;
mod clock;
pub mod constraint;
mod control;
mod decode;
mod division;
mod effort;
mod error;
mod file;
mod full;
mod ids;
mod language;
mod least;
mod merges;
mod messages;
mod nfc;
mod pieces;
mod program;
mod python;
mod replay;
mod responses;
pub mod sampling;
mod single;
mod spaced;
mod steps;
mod stop;
mod template;
mod tokenizer;
mod words;

pub use answer::{AnswerEvent, AnswerParser, AnswerReader, Dialect, Repairs, collect, joined};
pub(crate) use answer::{Body, CallForm, Lead, schema};
pub use clock::date;
pub use control::{ControlToken, ControlTokens};
pub use decode::{DecodeStream, TokenTexts};
pub use error::TextError;
pub use full::{Fitted, OnFull, RenderTurns, Room, fit};
pub use ids::EncodeLimit;
pub use language::{ChatPrompt, Language, LanguageError, dialect};
pub use least::TextLimit;
pub use messages::{Message, Role, ToolCall, arrange_system, parse_arguments};
#[cfg(windows)]
pub use program::memory_is_bounded;
pub use program::{TemplateHost, is_template_process, template_process};
pub use replay::{SampledTurn, SampledTurns};
pub use stop::{STOP_STRING_BYTES_MAX, STOP_STRINGS_MAX, StopOutcome, StopStrings};
pub use template::{
    ChatTemplate, ControlSpan, RenderOptions, Rendered, ReplayedSpan, TemplateTokens, Thinking,
};
pub use tokenizer::Tokenizer;

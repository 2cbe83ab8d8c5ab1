//! Conversations that cannot fit, found before anything is rendered: what a template prints in any case.
//!
//! A token holds a bounded number of bytes, so a context does. What counts is text that reaches the prompt: templates
//! leave out thinking of earlier turns and trim white space, so neither counts, and a template that leaves out more is
//! found by a conversation with words of its own in every place. For such a template only the rendered prompt counts.

use super::{ChatTemplate, Message, RenderOptions, Role, TextError, Tokenizer};

/// The most text of a prompt of some number of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextLimit {
    /// Bytes that the tokens hold at most.
    pub bytes: usize,
    /// The template prints the content of every message.
    prints_contents: bool,
}

impl TextLimit {
    /// The limit for prompts of `tokens` tokens.
    pub fn new(tokenizer: &Tokenizer, prints_contents: bool, tokens: usize) -> Self {
        Self { bytes: tokenizer.text_bytes_max(tokens), prints_contents }
    }

    /// Refuses messages that cannot fit.
    ///
    /// # Errors
    /// [`TextError::TooMuchText`] with the bytes that will be printed in any case.
    pub fn check(&self, messages: &[Message]) -> Result<(), TextError> {
        if !self.prints_contents {
            return Ok(());
        }
        let bytes: usize = messages.iter().map(printed).sum();
        if bytes > self.bytes {
            return Err(TextError::TooMuchText { bytes, all: true, most: self.bytes });
        }
        Ok(())
    }
}

/// Bytes of a message that a template prints if it prints contents.
fn printed(message: &Message) -> usize {
    let content = match message.role {
        // Thinking in a content is split off.
        Role::Assistant => message.content.rsplit("</think>").next().unwrap_or_default(),
        _ => message.content.as_str(),
    };
    content.trim().len()
}

/// Whether a template prints the content of every message of a usual conversation.
pub(super) fn prints_contents(template: &ChatTemplate) -> bool {
    let roles = [Role::User, Role::Assistant, Role::User, Role::Assistant, Role::User];
    let word = |index: usize| format!("probe{index}word");
    let mut messages: Vec<Message> =
        (0..).zip(roles).map(|(index, role)| Message::new(role, word(index))).collect();
    messages.insert(0, Message::new(Role::System, word(roles.len())));
    let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    let rendered = template.render(&messages, &[], &options);
    rendered
        .is_ok_and(|rendered| (0..=roles.len()).all(|index| rendered.text().contains(&word(index))))
}

//! What was said, what of it can be taken back, and its file.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use store::io::platform::{Links, read_regular};
use text::{Message, Role};

/// Longest file of a conversation.
const SAVED_BYTES_MAX: u64 = 64 << 20;

/// Messages, and the conversations that they took the place of.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    messages: Vec<Message>,
    replaced: Vec<Replaced>,
}

/// A conversation that a command ended.
#[derive(Debug)]
struct Replaced {
    messages: Vec<Message>,
    /// Messages that took its place at once.
    by: usize,
}

/// What [`Conversation::undo`] took back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Undone {
    /// The last message of the user and its answer.
    Turn,
    /// The command that ended a conversation: it goes on.
    Replacement,
}

impl Conversation {
    /// A conversation under a system prompt.
    pub(super) fn new(system: Option<&str>) -> Self {
        let messages = system.map(|text| Message::new(Role::System, text)).into_iter().collect();
        Self { messages, replaced: Vec::new() }
    }

    pub(super) fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The system prompt, if there is one.
    pub(super) fn system(&self) -> Option<&str> {
        let first = self.messages.first().filter(|first| first.role == Role::System);
        first.map(|first| first.content.as_str())
    }

    pub(super) fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Takes back the last message, whoever spoke.
    pub(super) fn pop(&mut self) {
        self.messages.pop();
    }

    /// Goes back to the last message of the user; false if there is none.
    pub(super) fn return_to_question(&mut self) -> bool {
        let last = self.messages.iter().rposition(|message| message.role == Role::User);
        if let Some(last) = last {
            self.messages.truncate(last + 1);
        }
        last.is_some()
    }

    /// Starts over under the same system prompt.
    pub(super) fn clear(&mut self) {
        let system = self.system().map(str::to_owned);
        self.set_system(system.as_deref());
    }

    /// Starts over under another system prompt, or none.
    pub(super) fn set_system(&mut self, system: Option<&str>) {
        self.replace(Self::new(system).messages);
    }

    /// Goes on with other messages.
    fn replace(&mut self, messages: Vec<Message>) {
        let by = messages.len();
        if messages != self.messages {
            let messages = std::mem::replace(&mut self.messages, messages);
            self.replaced.push(Replaced { messages, by });
        }
    }

    /// Takes back what was done last.
    pub(super) fn undo(&mut self) -> Option<Undone> {
        let by = self.replaced.last().map_or(0, |replaced| replaced.by);
        let said = self.messages.iter().rposition(|message| message.role == Role::User);
        match (said.filter(|&said| said >= by), self.replaced.pop()) {
            (Some(said), replaced) => {
                self.replaced.extend(replaced);
                self.messages.truncate(said);
                Some(Undone::Turn)
            }
            (None, Some(replaced)) => {
                self.messages = replaced.messages;
                Some(Undone::Replacement)
            }
            (None, None) => None,
        }
    }

    /// Writes the conversation; `over` an existing file only if it may.
    pub(super) fn save(&self, path: &str, over: bool) -> std::io::Result<()> {
        let messages: Vec<serde_json::Value> = self
            .messages
            .iter()
            .map(|message| {
                let mut object = serde_json::json!({
                    "role": message.role.name(),
                    "content": message.content,
                });
                if let Some(reasoning) = &message.reasoning {
                    object["reasoning_content"] = reasoning.as_str().into();
                }
                object
            })
            .collect();
        let bytes = serde_json::to_vec_pretty(&messages)?;
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(over).create_new(!over).truncate(over);
        options.open(path)?.write_all(&bytes)
    }

    /// Goes on with a conversation that [`Conversation::save`] wrote, and says how many messages it has.
    pub(super) fn load(&mut self, path: &str) -> Result<usize> {
        let bytes = read_regular(Path::new(path), Links::Followed, SAVED_BYTES_MAX)?;
        let values: Vec<serde_json::Value> = serde_json::from_slice(&bytes)?;
        self.replace(Message::from_openai(&values)?);
        Ok(self.messages.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(conversation: &mut Conversation, text: &str) {
        conversation.push(Message::new(Role::User, text));
        conversation.push(Message::new(Role::Assistant, text));
    }

    #[test]
    fn what_a_command_ended_comes_back() {
        let mut conversation = Conversation::new(Some("Be brief."));
        turn(&mut conversation, "one");
        turn(&mut conversation, "two");
        conversation.clear();
        assert_eq!((conversation.messages().len(), conversation.system()), (1, Some("Be brief.")));
        conversation.set_system(Some("Be long."));
        turn(&mut conversation, "three");
        // The turn goes first, then the system prompt, then the end of the first conversation, then its turns.
        let mut undone = Vec::new();
        while let Some(what) = conversation.undo() {
            undone.push((what, conversation.messages().len()));
        }
        let (turn, replacement) = (Undone::Turn, Undone::Replacement);
        assert_eq!(undone, [(turn, 1), (replacement, 1), (replacement, 5), (turn, 3), (turn, 1)]);
        assert_eq!(conversation.system(), Some("Be brief."));
    }

    #[test]
    fn a_loaded_conversation_is_one_step() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved.json");
        let path = path.to_str().unwrap();
        let mut conversation = Conversation::default();
        turn(&mut conversation, "saved");
        conversation.save(path, false).unwrap();
        let error = conversation.save(path, false).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
        turn(&mut conversation, "more");
        conversation.save(path, true).unwrap();
        let mut other = Conversation::default();
        turn(&mut other, "other");
        assert_eq!(other.load(path).unwrap(), 4);
        turn(&mut other, "after");
        assert_eq!((other.undo(), other.messages().len()), (Some(Undone::Turn), 4));
        assert_eq!((other.undo(), other.messages().len()), (Some(Undone::Replacement), 2));
        assert_eq!(other.messages()[0].content, "other");
        // A load that fails changes nothing.
        std::fs::write(path, "[").unwrap();
        assert!(other.load(path).is_err());
        assert_eq!((other.undo(), other.undo()), (Some(Undone::Turn), None));
    }

    #[test]
    fn an_answer_is_made_again_from_its_question() {
        let mut conversation = Conversation::default();
        assert!(!conversation.return_to_question());
        turn(&mut conversation, "one");
        assert!(conversation.return_to_question());
        assert_eq!(conversation.messages().len(), 1);
    }
}

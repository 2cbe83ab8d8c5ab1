//! Conversations that outgrow their context: refused, or without their oldest turns.
//!
//! A turn begins with a message of the user and ends before the next one. Whole turns are dropped, never the system
//! prompt and never the last turn, and a tool's result is dropped together with its call. Nothing is remembered between
//! two calls: what is dropped follows from the messages alone. Turns go in blocks of text, so that a conversation which
//! grows by one turn keeps its beginning, and its prompt goes on from the one before. Dropping as few turns as possible
//! would compute the whole prompt anew in every turn.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;
use store::shown::quoted;

use super::{EncodeLimit, Message, Role, TextError};

/// Tokens that are left for an answer of no given length.
const ANSWER_TOKENS: usize = 1024;
/// An answer is left this part of the context at most: requests name far more tokens than they use.
const ANSWER_PART: usize = 4;
/// Bytes of text in a block, for each token of the context: about a quarter of it.
const BLOCK_BYTES: usize = 1;

/// What is done with a conversation that does not fit its context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// It is refused.
    #[default]
    Stop,
    /// It goes on without its oldest turns.
    DropOldest,
}

impl OnFull {
    /// Their names.
    pub const NAMES: [&str; 2] = ["stop", "drop-oldest"];

    /// As it is typed.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl fmt::Display for OnFull {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for OnFull {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Self::Stop, Self::DropOldest].into_iter().find(|it| it.name() == text);
        known.ok_or_else(|| format!("{} is not one of {}", quoted(text), Self::NAMES.join(", ")))
    }
}

/// What a prompt has to leave room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// What happens where it is too long.
    pub on_full: OnFull,
    /// Most tokens of the answer; `None` where no length was given.
    pub answer: Option<usize>,
}

/// A prompt that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fitted<T> {
    /// What `render` made of the messages that are left.
    pub prompt: T,
    /// Turns that were dropped.
    pub dropped: usize,
}

/// Makes a prompt of messages, within a limit.
pub type RenderTurns<'a, T> = dyn FnMut(&[Message], EncodeLimit<'_>) -> Result<T, TextError> + 'a;

/// The prompt that `render` makes of `messages` within `limit`, whose tokens are the context.
///
/// With [`OnFull::DropOldest`] a prompt that leaves no room for its answer is made without its oldest turns. The last
/// turn alone may take the room of the answer.
///
/// # Errors
/// What `render` reports; [`TextError::TooManyTokens`] and [`TextError::TooMuchText`] have the figures of the last turn
/// alone where older ones were dropped.
pub fn fit<T>(
    messages: &[Message],
    room: Room,
    limit: EncodeLimit<'_>,
    render: &mut RenderTurns<'_, T>,
) -> Result<Fitted<T>, TextError> {
    let whole = |prompt| Fitted { prompt, dropped: 0 };
    let turns = Turns::of(messages);
    let candidates = turns.candidates(messages, BLOCK_BYTES * limit.tokens);
    let Some(&last) = candidates.last().filter(|_| room.on_full == OnFull::DropOldest) else {
        return render(messages, limit).map(whole);
    };
    let answer = room.answer.unwrap_or(ANSWER_TOKENS).min(limit.tokens / ANSWER_PART);
    // How much too long an attempt is, matters for the last one only.
    let within = EncodeLimit { tokens: limit.tokens - answer, counted: 0, gone: limit.gone };
    match render(messages, within) {
        Err(error) if is_too_long(&error) => {}
        other => return other.map(whole),
    }
    let (mut low, mut high, mut found) = (0, candidates.len(), None);
    while low < high {
        let middle = low.midpoint(high);
        let dropped = candidates[middle];
        match render(&turns.without(messages, dropped), within) {
            Ok(prompt) => (high, found) = (middle, Some(Fitted { prompt, dropped })),
            Err(error) if is_too_long(&error) => low = middle + 1,
            Err(error) => return Err(error),
        }
    }
    found.map_or_else(
        || {
            let prompt = render(&turns.without(messages, last), limit)?;
            Ok(Fitted { prompt, dropped: last })
        },
        Ok,
    )
}

fn is_too_long(error: &TextError) -> bool {
    matches!(error, TextError::TooManyTokens { .. } | TextError::TooMuchText { .. })
}

/// Where the turns of a conversation begin.
struct Turns {
    /// Messages before the first turn: the system prompt.
    head: usize,
    /// The first message of each turn, ascending.
    starts: Vec<usize>,
}

impl Turns {
    fn of(messages: &[Message]) -> Self {
        let head = messages.iter().take_while(|message| message.role == Role::System).count();
        let mut starts = Vec::new();
        for (index, message) in messages.iter().enumerate().skip(head) {
            match message.role {
                Role::User => starts.push(index),
                Role::Tool => {
                    // No turn begins between a call and its result.
                    let call = call_of(&messages[..index], message).unwrap_or(index);
                    starts.retain(|&start| start <= call);
                }
                Role::System | Role::Assistant => {}
            }
        }
        // What comes before the first message of the user belongs to the first turn.
        if starts.first().is_some_and(|&first| first > head) {
            starts.insert(0, head);
        }
        Self { head, starts }
    }

    /// The numbers of turns that may be dropped, ascending: the first that make up each block of text, and all but the
    /// last turn. Empty where there is one turn.
    fn candidates(&self, messages: &[Message], block: usize) -> Vec<usize> {
        let (mut bytes, mut wanted, mut candidates) = (0, block, Vec::new());
        for (turn, pair) in self.starts.windows(2).enumerate() {
            bytes += messages[pair[0]..pair[1]].iter().map(weight).sum::<usize>();
            if bytes >= wanted || turn + 2 == self.starts.len() {
                candidates.push(turn + 1);
                wanted = (bytes / block.max(1) + 1) * block;
            }
        }
        candidates
    }

    /// The messages without the first turns.
    fn without(&self, messages: &[Message], dropped: usize) -> Vec<Message> {
        [&messages[..self.head], &messages[self.starts[dropped]..]].concat()
    }
}

/// Where the call is that `result` answers: by its identifier, else the last call before it.
fn call_of(before: &[Message], result: &Message) -> Option<usize> {
    let named = |message: &Message| {
        let wanted = result.tool_call_id.as_ref();
        wanted.is_some() && message.tool_calls.iter().any(|call| call.id.as_ref() == wanted)
    };
    let named = before.iter().rposition(named);
    named.or_else(|| before.iter().rposition(|message| !message.tool_calls.is_empty()))
}

/// Bytes of a message, roughly, as far as templates print them in later turns.
fn weight(message: &Message) -> usize {
    let arguments = |(name, value): (&String, &Value)| {
        name.len() + value.as_str().map_or_else(|| value.to_string().len(), str::len)
    };
    let calls = message
        .tool_calls
        .iter()
        .map(|call| call.name.len() + call.arguments.iter().map(arguments).sum::<usize>());
    message.content.len() + calls.sum::<usize>()
}

//! Turns as they were sampled, so that a conversation that comes back is the same tokens.
//!
//! A client sends the history as messages; the template renders them anew, and what comes out need not be what the
//! model wrote: arguments in another order or with other blanks, thinking that the client did not keep, words
//! spelled in other tokens. Then everything behind that place is computed again. [`SampledTurns`] keeps the tokens
//! of an answer by the ids of its calls, and `ChatTemplate::render_replaying` puts them where the template would
//! have printed the message.
//!
//! A turn is replayed only if the message says what the answer said: same text, same calls with equal arguments, and
//! the same thinking or none. Thinking is replayed where the template prints the thinking of that turn, and only
//! there. The tokens are the model's own and control tokens among them stay so: ids are random and given out by the
//! server, and no client can put tokens here.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::{Message, Role, Tokenizer};

/// An answer as it was sampled.
#[derive(Debug, Clone, PartialEq)]
pub struct SampledTurn {
    /// Everything after the prompt, without the end token; a thinking block that the model opened itself begins inside.
    tokens: Arc<[u32]>,
    /// Where the visible answer begins.
    content_at: usize,
    /// A thinking block is part of the tokens.
    thinks: bool,
    /// The text of all tokens; the visible answer begins at byte `content_text_at`.
    text: String,
    content_text_at: usize,
    reasoning: Option<String>,
    content: String,
    calls: Vec<(String, Map<String, Value>)>,
}

impl SampledTurn {
    /// A turn of `tokens`, sampled behind a prompt and without the end token, that was parsed to `message`.
    /// `opens_reasoning` says that the prompt ended inside a thinking block. `None` where the tokens cannot be
    /// put in the place of a message: the thinking has no end, or the answer does not begin with a token of its own.
    pub fn new(
        tokenizer: &Tokenizer,
        tokens: &[u32],
        message: &Message,
        opens_reasoning: bool,
    ) -> Option<Self> {
        let control = |id: u32, text: &str| {
            tokenizer.is_control(id) && tokenizer.token_bytes(id) == text.as_bytes()
        };
        let blank = |id: u32| tokenizer.token_bytes(id).iter().all(u8::is_ascii_whitespace);
        let mut tokens = tokens;
        let opened = tokens.first().is_some_and(|&id| control(id, "<think>"));
        if opened {
            // The template prints the opening and its line break.
            let line_break = usize::from(tokens.get(1).is_some_and(|&id| blank(id)));
            tokens = &tokens[1 + line_break..];
        }
        let mut content_at = 0;
        let thinks = opened || opens_reasoning;
        if thinks {
            content_at = 1 + tokens.iter().position(|&id| control(id, "</think>"))?;
        }
        let gap = tokens[content_at..].iter().take_while(|&&id| blank(id)).count();
        content_at += gap;
        let first = tokens.get(content_at)?;
        if tokenizer.token_bytes(*first).first()?.is_ascii_whitespace() {
            return None;
        }
        let calls = message.tool_calls.iter();
        Some(Self {
            content_at,
            thinks,
            text: tokenizer.decode(tokens),
            content_text_at: tokenizer.decode(&tokens[..content_at]).len(),
            tokens: tokens.into(),
            reasoning: message.reasoning.clone(),
            content: message.content.trim().to_owned(),
            calls: calls.map(|call| (call.name.clone(), call.arguments.clone())).collect(),
        })
    }

    /// Whether a message of the history says what this answer said.
    pub fn is(&self, message: &Message) -> bool {
        let calls = message.tool_calls.iter().map(|call| (&call.name, &call.arguments));
        let thought = message.reasoning.as_deref().map(str::trim).filter(|text| !text.is_empty());
        message.role == Role::Assistant
            && message.content.trim() == self.content
            && calls.eq(self.calls.iter().map(|(name, arguments)| (name, arguments)))
            && thought
                .is_none_or(|thought| self.reasoning.as_deref().map(str::trim) == Some(thought))
    }

    /// Whether there is a thinking block to replay.
    pub(super) fn thinks(&self) -> bool {
        self.thinks
    }

    /// The thinking as text.
    pub(super) fn reasoning(&self) -> &str {
        self.reasoning.as_deref().unwrap_or_default().trim()
    }

    /// The tokens of a part that is replayed as tokens.
    pub(super) fn part(&self, part: Part) -> &[u32] {
        let from = if part == Part::Both { 0 } else { self.content_at };
        &self.tokens[from..]
    }

    /// The text of a part that is replayed as tokens.
    pub(super) fn text(&self, part: Part) -> &str {
        let from = if part == Part::Both { 0 } else { self.content_text_at };
        self.text.get(from..).unwrap_or_default()
    }

    /// Memory, roughly.
    fn bytes(&self) -> usize {
        let text =
            self.text.len() + self.content.len() + self.reasoning.as_ref().map_or(0, String::len);
        // Arguments are part of the text already; as values they take several times that.
        256 + self.tokens.len() * 4 + text + 4 * self.text.len()
    }
}

/// Sampled turns by the ids of their calls, the least recently used dropped first.
#[derive(Debug)]
pub struct SampledTurns {
    bytes_max: usize,
    bytes: usize,
    clock: u64,
    /// By a number of its own: the turn, its ids, and when it was used last.
    turns: HashMap<u64, (Arc<SampledTurn>, Vec<String>, u64)>,
    by_id: HashMap<String, u64>,
}

impl SampledTurns {
    /// An empty map that takes about `bytes_max` bytes at most.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: 0, clock: 0, turns: HashMap::new(), by_id: HashMap::new() }
    }

    /// Keeps a turn under the ids that its calls were given; what stands before an id's last `_` does not count,
    /// because each protocol has a prefix of its own. A turn larger than the whole map is not kept, and
    /// neither is one without ids.
    pub fn insert(&mut self, ids: Vec<String>, turn: SampledTurn) {
        let bytes = size(&turn, &ids);
        if ids.is_empty() || bytes > self.bytes_max {
            return;
        }
        let ids: Vec<String> = ids.iter().map(|id| bare(id).to_owned()).collect();
        for id in &ids {
            if let Some(&number) = self.by_id.get(id) {
                self.remove(number);
            }
        }
        while self.bytes + bytes > self.bytes_max {
            let oldest = self.turns.iter().min_by_key(|(_, (_, _, used))| *used);
            let Some(number) = oldest.map(|(number, _)| *number) else { break };
            self.remove(number);
        }
        self.clock += 1;
        self.bytes += bytes;
        self.by_id.extend(ids.iter().map(|id| (id.clone(), self.clock)));
        self.turns.insert(self.clock, (Arc::new(turn), ids, self.clock));
    }

    /// The turn that a message of the history was, if one of its calls has a known id and nothing was changed.
    pub fn find(&mut self, message: &Message) -> Option<Arc<SampledTurn>> {
        let ids = message.tool_calls.iter().filter_map(|call| call.id.as_ref());
        let number = ids.into_iter().find_map(|id| self.by_id.get(bare(id)).copied())?;
        let (turn, _, used) = self.turns.get_mut(&number)?;
        if !turn.is(message) {
            return None;
        }
        self.clock += 1;
        *used = self.clock;
        Some(Arc::clone(turn))
    }

    /// Turns that are kept.
    pub fn len(&self) -> usize {
        self.turns.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Memory in use, roughly; never more than the limit.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn remove(&mut self, number: u64) {
        let Some((turn, ids, _)) = self.turns.remove(&number) else { return };
        self.bytes -= size(&turn, &ids);
        for id in ids {
            self.by_id.remove(&id);
        }
    }
}

/// An id without the prefix that a protocol gives it (`call_`, `toolu_`).
fn bare(id: &str) -> &str {
    id.rsplit('_').next().unwrap_or(id)
}

fn size(turn: &SampledTurn, ids: &[String]) -> usize {
    turn.bytes() + ids.iter().map(|id| 2 * id.len() + 64).sum::<usize>()
}

/// A part of a sampled turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// The thinking alone: it is printed apart from the answer, so its tokens are not known to fit.
    Reasoning,
    /// The visible answer with its calls.
    Content,
    /// All of it.
    Both,
}

/// A piece of a template's output.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Segment<'a> {
    /// What the template printed.
    Plain(&'a str),
    /// The place of a turn, by its index among those replayed.
    Sampled { turn: usize, part: Part },
}

/// What stands for a part of turn `index` while the template runs. `sign` occurs in no text of the conversation.
pub(super) fn stand_in(sign: char, part: Part, index: usize) -> String {
    let letter = if part == Part::Reasoning { 'r' } else { 'c' };
    format!("{sign}{letter}{index}{sign}")
}

/// Cuts a template's output at its stand-ins. Thinking and answer with nothing but the end of the thinking between
/// them are one segment.
pub(super) fn cut(output: &str, sign: char) -> Vec<Segment<'_>> {
    let mut segments: Vec<Segment<'_>> = Vec::new();
    let mut parts = output.split(sign);
    segments.extend(parts.next().map(Segment::Plain));
    // Stand-ins and what is between them take turns: the sign is nowhere else.
    while let (Some(name), Some(plain)) = (parts.next(), parts.next()) {
        let turn = name.get(1..).and_then(|digits| digits.parse().ok());
        let Some(turn) = turn else { continue };
        let part = if name.starts_with('r') { Part::Reasoning } else { Part::Content };
        let thought = Segment::Sampled { turn, part: Part::Reasoning };
        let whole = match segments.as_slice() {
            [.., before, Segment::Plain(between)] => {
                part == Part::Content && *before == thought && between.trim() == "</think>"
            }
            _ => false,
        };
        if whole {
            segments.truncate(segments.len() - 2);
        }
        segments.push(Segment::Sampled { turn, part: if whole { Part::Both } else { part } });
        segments.push(Segment::Plain(plain));
    }
    segments
}

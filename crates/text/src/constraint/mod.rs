//! Constrained decoding: which tokens may come next so that an answer is JSON, follows a schema, or is a call.
//!
//! [`Grammars`] belongs to a model: it knows the tokenizer and keeps compiled grammars. [`Constraint`] belongs to one
//! answer. It begins after the thinking: a grammar over the thinking would kill it. While the model thinks,
//! control tokens other than `</think>` are excluded, end tokens among them, so that the answer that was asked for
//! comes at all; a token limit still holds. Afterwards the mask is the grammar's, over the bytes of
//! ordinary tokens and the ids of control tokens; end tokens are allowed exactly where the answer is complete.
//!
//! Where the model may call tools and need not, [`CallWatch`] stands by: nothing is excluded until it begins a call.
//!
//! The automaton is llguidance (pure Rust; docs/decisions.md has sizes and times). Its masks know nothing of
//! probabilities, so they hold at any temperature. The sampler applies them (`Sampler::sample_allowed`).

mod bare;
mod error;
mod gbnf;
mod grammar;
mod limits;
mod plain;
mod references;
mod spelling;
mod watch;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, panic_utils};
use serde_json::Value;
use store::shown::message;

use crate::sampling::Mask;
use crate::{Dialect, Lead, Thinking, Tokenizer};

pub use error::ConstraintError;
pub use grammar::Rule;
pub use watch::CallWatch;

/// What errors call the place of a rule that the client wrote: that of a schema in chat completions. Other protocols
/// and fields have names of their own.
pub const SCHEMA_FIELD: &str = "response_format.json_schema.schema";

/// Compiled grammars that are kept, and the bytes of their texts: compiled, a grammar takes some ninety times its text.
const CACHED_MAX: usize = 32;
const CACHED_BYTES_MAX: usize = 256 << 10;
/// Longest token that the automaton's tree takes; longer ones are never allowed.
const TOKEN_BYTES_MAX: usize = 512;
/// Work of compiling a grammar's expressions; a tenth of the default, about 2 ms a unit of 100,000.
const COMPILE_FUEL: u64 = 1_000_000;
/// Symbols of a grammar.
const GRAMMAR_SIZE_MAX: usize = 200_000;
/// Ways in which an answer may go on; four for each property that may be left out.
const ROW_ITEMS_MAX: usize = 16_000;
/// Ways that are looked at for one token, about 20,000 a millisecond; ten times the default, because a grammar of
/// characters has more of them than one of JSON.
const STEP_ITEMS_MAX: usize = 500_000;
/// States of a grammar's automaton, about 1.5 KB each.
const STATES_MAX: usize = 40_000;

/// What a model needs for constrained answers. Shared by all threads.
pub struct Grammars {
    tokenizer: Tokenizer,
    dialect: Dialect,
    end_tokens: Arc<[u32]>,
    vocabulary: usize,
    think_start: Option<u32>,
    think_end: Option<u32>,
    /// The control token that begins a call, or a message where these have channels.
    call_start: Option<u32>,
    /// While thinking: everything but control tokens, and the end of the thinking.
    thinking: Arc<Mask>,
    /// Made at first use: it takes a quarter of a second for a vocabulary of 150,000.
    factory: OnceLock<Result<ParserFactory, ConstraintError>>,
    /// Fresh states by grammar text, the most recently used last.
    cache: Mutex<VecDeque<(String, Matcher)>>,
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").field("vocabulary", &self.vocabulary).finish_non_exhaustive()
    }
}

impl Grammars {
    /// For the model of a tokenizer whose rows of logits have `vocabulary` entries; `end_tokens` end an answer.
    ///
    /// # Errors
    /// No end token within the vocabulary.
    pub fn new(
        tokenizer: &Tokenizer,
        dialect: Dialect,
        end_tokens: &[u32],
        vocabulary: usize,
    ) -> Result<Self, ConstraintError> {
        let known = vocabulary.min(tokenizer.vocabulary_size());
        let end_tokens: Arc<[u32]> =
            end_tokens.iter().copied().filter(|&id| (id as usize) < known).collect();
        if end_tokens.is_empty() {
            let problem = "there is no end token".to_owned();
            return Err(ConstraintError::Tokenizer { problem });
        }
        let control = |text: &str| {
            let mut controls = tokenizer.control_tokens().tokens().iter();
            controls.find(|token| token.text == text).map(|token| token.id)
        };
        let form = dialect.calls();
        // Where thinking is a channel of its own, it is part of the grammar.
        let (think_start, think_end) = match form.lead {
            Lead::Channels => (None, None),
            Lead::Breaks => {
                let [start, end] = dialect.thinking();
                (control(start), control(end))
            }
        };
        let call_start = match (form.lead, form.begins_block) {
            (Lead::Channels, _) => control("<|start|>"),
            (Lead::Breaks, true) => spelling::trigger(form.block[0], tokenizer),
            (Lead::Breaks, false) => spelling::trigger(form.call[0], tokenizer),
        };
        let mut thinking = Mask::none(vocabulary);
        for id in 0..u32::try_from(known).unwrap_or(u32::MAX) {
            let plain = !tokenizer.is_control(id) && !tokenizer.token_bytes(id).is_empty();
            if (plain && !end_tokens.contains(&id)) || Some(id) == think_end {
                thinking.allow(id);
            }
        }
        Ok(Self {
            think_start,
            call_start,
            think_end,
            thinking: Arc::new(thinking),
            tokenizer: tokenizer.clone(),
            dialect,
            end_tokens,
            vocabulary,
            factory: OnceLock::new(),
            cache: Mutex::default(),
        })
    }

    /// The constraint of one answer. `thinking` says how the prompt ends (`Rendered::thinking`); `tools` are those of
    /// the request, in the shape of chat completions.
    ///
    /// # Errors
    /// A schema that cannot be compiled or is too large, a tool that is not there: mistakes of the client. A model
    /// without a control token that ends the thinking whose prompt opens the thinking.
    pub fn compile(
        &self,
        rule: &Rule,
        tools: &[Value],
        thinking: Thinking,
    ) -> Result<Constraint, ConstraintError> {
        if thinking == Thinking::Open && self.think_end.is_none() {
            let problem = format!("there is no token {}", self.dialect.thinking()[1]);
            return Err(ConstraintError::Tokenizer { problem });
        }
        let text = grammar::of(rule, tools, thinking, self.dialect, &self.tokenizer)?;
        let matcher = self.matcher(rule, text)?;
        let (start, end) = (self.think_start, self.think_end);
        let phase = match (thinking, start, end) {
            (Thinking::Open, _, Some(end)) => Phase::Thinking { end },
            (Thinking::Unopened, Some(start), Some(end)) => Phase::First { start, end },
            _ => Phase::Answer,
        };
        Ok(Constraint {
            matcher,
            phase,
            end_tokens: Arc::clone(&self.end_tokens),
            thinking: Arc::clone(&self.thinking),
            mask: Mask::none(self.vocabulary),
            current: false,
        })
    }

    /// The compiled grammars by text. Entries are whole and independent of each other: a panic can at most lose one.
    fn cached(&self) -> MutexGuard<'_, VecDeque<(String, Matcher)>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn matcher(&self, rule: &Rule, text: String) -> Result<Matcher, ConstraintError> {
        let mut cache = self.cached();
        if let Some(place) = cache.iter().position(|(known, _)| *known == text) {
            let entry = cache.remove(place).expect("the place was just found");
            let matcher = entry.1.deep_clone();
            cache.push_back(entry);
            return Ok(matcher);
        }
        drop(cache);
        let factory = self.factory.get_or_init(|| self.factory()).as_ref().map_err(Clone::clone)?;
        let made = panic_utils::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let grammar = TopLevelGrammar::from_lark(text.clone());
            factory.create_parser(grammar)
        }));
        let matcher = Matcher::new(made);
        if let Some(problem) = matcher.get_error() {
            return Err(refused(rule, &problem));
        }
        // A grammar that no answer can begin would fail at the first token: that is known now.
        if let Err(problem) = matcher.deep_clone().compute_mask_or_eos() {
            return Err(refused(rule, &problem.to_string()));
        }
        let mut cache = self.cached();
        let bytes = |cache: &VecDeque<(String, Matcher)>| -> usize {
            cache.iter().map(|(text, _)| text.len()).sum()
        };
        while cache.len() == CACHED_MAX || bytes(&cache) + text.len() > CACHED_BYTES_MAX {
            if cache.pop_front().is_none() {
                return Ok(matcher);
            }
        }
        cache.push_back((text, matcher.deep_clone()));
        Ok(matcher)
    }

    fn factory(&self) -> Result<ParserFactory, ConstraintError> {
        let count = self.vocabulary.min(self.tokenizer.vocabulary_size());
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let word = |id: u32| {
            let bytes = self.tokenizer.token_bytes(id);
            // A leading 0xFF marks control tokens and is never part of UTF-8.
            if self.tokenizer.is_control(id) || self.end_tokens.contains(&id) {
                [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat()
            } else if bytes.len() > TOKEN_BYTES_MAX || bytes.contains(&0xff) {
                Vec::new()
            } else {
                bytes.to_vec()
            }
        };
        let words: Vec<Vec<u8>> = (0..count).map(word).collect();
        let built = panic_utils::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let info = TokRxInfo::new(count, self.end_tokens[0]);
            let trie = TokTrie::from(&info, &words).with_eos_tokens(&self.end_tokens);
            let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            ParserFactory::new_simple(&environment)
        }));
        let mut factory = built.map_err(|error| ConstraintError::Tokenizer {
            problem: first_line(&error.to_string()),
        })?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.initial_lexer_fuel = COMPILE_FUEL;
        limits.max_grammar_size = GRAMMAR_SIZE_MAX;
        limits.max_lexer_states = STATES_MAX;
        limits.max_items_in_row = ROW_ITEMS_MAX;
        limits.step_max_items = STEP_ITEMS_MAX;
        limits.verbose_errors = false;
        Ok(factory)
    }
}

/// Where an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing was generated; the model may open a thinking block itself.
    First { start: u32, end: u32 },
    /// Inside the thinking.
    Thinking { end: u32 },
    /// In what the rule is about.
    Answer,
    /// An end token was taken.
    Ended,
}

/// The state of one answer under a rule.
pub struct Constraint {
    matcher: Matcher,
    phase: Phase,
    end_tokens: Arc<[u32]>,
    thinking: Arc<Mask>,
    mask: Mask,
    /// `mask` belongs to the present state.
    current: bool,
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("phase", &self.phase).finish_non_exhaustive()
    }
}

impl Constraint {
    /// The tokens that may come next; at least one.
    ///
    /// # Errors
    /// A state beyond the limits of the automaton.
    pub fn allowed(&mut self) -> Result<&Mask, ConstraintError> {
        if let Phase::Thinking { .. } = self.phase {
            return Ok(&self.thinking);
        }
        if !self.current {
            let words = self.matcher.compute_mask_or_eos().map_err(failed)?;
            self.mask.set(words.as_slice());
            if let Phase::First { start, .. } = self.phase {
                self.mask.allow(start);
            }
            self.current = true;
        }
        Ok(&self.mask)
    }

    /// Takes the token that was drawn.
    ///
    /// # Errors
    /// A token that [`Constraint::allowed`] does not have.
    pub fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.current = false;
        self.phase = match self.phase {
            Phase::First { start, end } if token == start => Phase::Thinking { end },
            Phase::Thinking { end } if token == end => Phase::Answer,
            Phase::Thinking { end } if self.thinking.allows(token) => Phase::Thinking { end },
            Phase::First { .. } | Phase::Answer if self.ends(token) => Phase::Ended,
            Phase::First { .. } | Phase::Answer => {
                self.matcher.consume_token(token).map_err(failed)?;
                Phase::Answer
            }
            Phase::Thinking { .. } | Phase::Ended => {
                let problem = format!("token {token} is not allowed here");
                return Err(ConstraintError::Failed { problem });
            }
        };
        Ok(())
    }

    /// Whether `token` ends an answer that nothing can follow.
    fn ends(&self, token: u32) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error() && self.end_tokens.contains(&token)
    }

    /// Whether the answer is complete: only an end token may follow, so that a caller may stop at once.
    pub fn finished(&self) -> bool {
        self.phase == Phase::Ended || (self.phase == Phase::Answer && self.matcher.is_stopped())
    }
}

fn failed(error: impl std::fmt::Display) -> ConstraintError {
    ConstraintError::Failed { problem: first_line(&error.to_string()) }
}

/// Why a grammar was refused, in the words of its compiler.
fn refused(rule: &Rule, problem: &str) -> ConstraintError {
    let field = match rule {
        Rule::JsonObject
        | Rule::JsonSchema(_)
        | Rule::Grammar(_)
        | Rule::Regex(_)
        | Rule::OneOf(_) => SCHEMA_FIELD,
        Rule::Calls { .. } | Rule::CallBody | Rule::CallHead => "tools",
    };
    // The compiler panics on numbers that overflow (`multipleOf` of ten digits).
    let problem = if problem.starts_with("panic") {
        "a number or a combination of keywords is beyond what can be compiled".to_owned()
    } else {
        first_line(problem)
    };
    ConstraintError::Schema { field: field.to_owned(), problem }
}

/// The first line of a message: what follows quotes the grammar.
fn first_line(problem: &str) -> String {
    message(problem.lines().next().unwrap_or_default()).to_string()
}

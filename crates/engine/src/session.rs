//! A conversation with a model: prompts in, tokens out, nothing computed twice.
//!
//! A turn is rendered whole by the chat template, and what the sequence already holds is kept when the new
//! prompt begins with it. Templates drop the thinking of earlier turns, so a new prompt usually leaves the
//! old sequence at the first answer; recurrent state cannot be rolled back to there, but the state at
//! the end of the last user turn was kept (`mark`), and the sequence goes on from it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::EngineError;
use crate::backend::{SequenceId, Snapshot};
use crate::drafts::{Drafter, Drafting};
use crate::engine::Engine;
use crate::generate::{Drawing, Finish, Limits, Listeners, generate};
use text::constraint::Grammars;
use text::sampling::{Sampler, SamplingOptions};
use text::{Thinking, TokenTexts};

/// What an answer cost.
#[derive(Clone, Debug, Default)]
pub struct AnswerReport {
    /// Tokens of the prompt that were already held.
    pub reused_tokens: usize,
    /// Tokens prefilled.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub answer_tokens: usize,
    /// Prefill time.
    pub prefill_time: Duration,
    /// Time from the end of prefill to the last token.
    pub decode_time: Duration,
    /// Why it ended; `None` when it was cancelled.
    pub finish: Option<Finish>,
}

/// A sequence and what it holds.
pub struct Session {
    sequence: SequenceId,
    tokens: Vec<u32>,
    mark: Option<(Vec<u32>, Snapshot)>,
}

/// How an answer is made.
pub struct AnswerOptions<'a> {
    /// How tokens are drawn.
    pub sampling: &'a SamplingOptions,
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// Most tokens of the sequence, prompt included.
    pub context: usize,
    /// Tokens that end the answer.
    pub end_tokens: &'a [u32],
    /// Tools that calls are held to, once the answer begins one.
    pub tools: Option<OfferedTools<'a>>,
    /// How tokens are drafted; `None` for not at all.
    pub drafting: Option<&'a Drafting>,
    /// The texts of tokens, for sampling that looks at them.
    pub texts: Option<TokenTexts>,
}

/// Tools of one answer.
#[derive(Clone, Copy)]
pub struct OfferedTools<'a> {
    /// Makes grammars of them.
    pub grammars: &'a Arc<Grammars>,
    /// In the shape of chat completions.
    pub tools: &'a [Value],
    /// How the prompt ends.
    pub thinking: Thinking,
}

impl Session {
    /// An empty session.
    ///
    /// # Errors
    /// All sequences of the plan are in use.
    pub fn new(engine: &mut Engine) -> Result<Self, EngineError> {
        Ok(Self { sequence: engine.create_sequence()?, tokens: Vec::new(), mark: None })
    }

    /// Answers `prompt`, whose first `marked` tokens are worth returning to.
    ///
    /// # Errors
    /// What the engine reports. After a cancelled or failed pass the session starts over by itself.
    pub fn answer(
        &mut self,
        engine: &mut Engine,
        prompt: &[u32],
        marked: usize,
        options: &AnswerOptions<'_>,
        listeners: Listeners<'_>,
    ) -> Result<AnswerReport, EngineError> {
        let result = self.try_answer(engine, prompt, marked, options, listeners);
        if result.is_err() {
            // A pass that stopped half-way leaves layers at different positions.
            engine.drop_sequence(self.sequence);
            self.sequence = engine.create_sequence()?;
            self.tokens.clear();
            self.mark = None;
        }
        result
    }

    fn try_answer(
        &mut self,
        engine: &mut Engine,
        prompt: &[u32],
        marked: usize,
        options: &AnswerOptions<'_>,
        listeners: Listeners<'_>,
    ) -> Result<AnswerReport, EngineError> {
        let Listeners { cancel, progress, each } = listeners;
        self.return_to_prefix(engine, prompt)?;
        let reused = self.tokens.len();
        let started = Instant::now();
        if marked > reused {
            let part = &prompt[reused..marked];
            engine.prefill(self.sequence, part, cancel, progress, &mut |_, _, _| Ok(()))?;
            self.tokens.extend_from_slice(part);
            self.mark = None;
            let snapshot = engine.backend().snapshot(self.sequence, None)?;
            self.mark = Some((self.tokens.clone(), snapshot));
        }
        let held = self.tokens.len();
        let limits = Limits {
            tokens: options.max_tokens,
            context: options.context,
            end_tokens: options.end_tokens.to_vec(),
        };
        let texts = options.texts.clone();
        let vocabulary = engine.config().vocabulary;
        let sampler = Sampler::with_texts(options.sampling.clone(), vocabulary, texts)
            .map_err(|error| EngineError::Request(error.to_string()))?;
        let tools = options.tools;
        let calls =
            tools.and_then(|offered| offered.grammars.watch(offered.tools, offered.thinking));
        let (mut history, mut first, mut count) = (self.tokens.clone(), None, 0);
        let mut counted = |token| {
            first.get_or_insert_with(Instant::now);
            count += 1;
            each(token)
        };
        let drafter = options.drafting.map(Drafter::new);
        let drawing = Drawing { sampler, calls, drafter, history: &mut history };
        let listeners = Listeners { cancel, progress, each: &mut counted };
        let finish = generate(engine, self.sequence, &prompt[held..], drawing, &limits, listeners)?;
        history.truncate(engine.sequence_length(self.sequence));
        self.tokens = history;
        let prefilled = first.unwrap_or_else(Instant::now);
        Ok(AnswerReport {
            reused_tokens: reused,
            prompt_tokens: prompt.len() - reused,
            answer_tokens: count,
            prefill_time: prefilled - started,
            decode_time: prefilled.elapsed(),
            finish: Some(finish),
        })
    }

    /// Frees the sequence.
    pub fn close(self, engine: &mut Engine) {
        engine.drop_sequence(self.sequence);
    }

    /// Brings the sequence to the longest prefix of `prompt` that it can go back to.
    fn return_to_prefix(&mut self, engine: &mut Engine, prompt: &[u32]) -> Result<(), EngineError> {
        // At least one token must remain to be run: the answer begins with its logits.
        let usable = |tokens: &[u32]| tokens.len() < prompt.len() && prompt.starts_with(tokens);
        if usable(&self.tokens) {
            return Ok(());
        }
        match &self.mark {
            Some((tokens, snapshot)) if usable(tokens) => {
                engine.backend().restore(self.sequence, snapshot)?;
                self.tokens.clone_from(tokens);
            }
            _ => {
                engine.drop_sequence(self.sequence);
                self.sequence = engine.create_sequence()?;
                self.tokens.clear();
                self.mark = None;
            }
        }
        Ok(())
    }
}

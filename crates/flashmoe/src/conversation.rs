//! A conversation with a model: messages in, streamed answer out, nothing computed twice.
//!
//! A turn is rendered whole by the chat template, and what the sequence already holds is kept when the new
//! prompt begins with it. Templates drop the thinking of earlier turns, so a new prompt usually leaves the
//! old sequence at the first answer; recurrent state cannot be rolled back to there, but the state at
//! the end of the last user turn was kept (`mark`), and the sequence goes on from it.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use engine::EngineError;
use engine::backend::{Cancel, SequenceId, Snapshot};
use engine::engine::{Engine, PrefillProgress};
use engine::generate::{Finish, Limits, generate};
use engine::sampling::{Sampler, SamplingOptions};
use engine::text::{ChatTemplate, Message, RenderOptions, TemplateTokens, Tokenizer};
use store::format::Checkpoint;

use crate::failure::Failure;

/// The text side of a model.
pub(crate) struct Language {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) end_tokens: Vec<u32>,
    /// How long tokenizer and template took to load.
    pub(crate) load_time: Duration,
}

impl Language {
    /// Loads tokenizer and template of a checkpoint and checks them against its embedding.
    pub(crate) fn load(checkpoint: &Checkpoint, vocabulary: usize) -> Result<Self> {
        let started = Instant::now();
        let path = checkpoint.tokenizer.as_ref().ok_or_else(|| {
            let folder = checkpoint.root.display();
            Failure::model(anyhow::anyhow!("{folder}: no tokenizer.json; copy it from the model"))
        })?;
        let invalid = |error: engine::text::TextError| Failure::model(error.into());
        let tokenizer = Tokenizer::from_file(path)
            .map_err(invalid)
            .with_context(|| path.display().to_string())?;
        tokenizer.check_vocabulary(vocabulary).map_err(invalid)?;
        let config = checkpoint.tokenizer_config.clone().unwrap_or_default();
        let template = checkpoint.chat_template.as_ref().map(|source| {
            let tokens = TemplateTokens::from_config(&config);
            ChatTemplate::new(source, tokens, tokenizer.control_tokens().clone())
        });
        let template = template.transpose().map_err(invalid).context("chat template")?;
        let generation = checkpoint.generation_config.clone().unwrap_or_default();
        let mut end_tokens = tokenizer.end_tokens(&config).map_err(invalid)?;
        for source in
            [&generation, checkpoint.config.get("text_config").unwrap_or(&checkpoint.config)]
        {
            let value = source.get("eos_token_id").unwrap_or(&serde_json::Value::Null);
            let listed = engine::model::keys::token_ids("eos_token_id", value);
            end_tokens.extend(listed.map_err(Failure::engine)?);
        }
        end_tokens.sort_unstable();
        end_tokens.dedup();
        Ok(Self { tokenizer, template, end_tokens, load_time: started.elapsed() })
    }
}

/// What an answer cost.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnswerReport {
    /// Tokens of the prompt that were already held.
    pub(crate) reused_tokens: usize,
    /// Tokens prefilled.
    pub(crate) prompt_tokens: usize,
    /// Tokens generated.
    pub(crate) answer_tokens: usize,
    /// Prefill time.
    pub(crate) prefill_time: Duration,
    /// Time from the end of prefill to the last token.
    pub(crate) decode_time: Duration,
    /// Why it ended; `None` when it was cancelled.
    pub(crate) finish: Option<Finish>,
}

/// A sequence and what it holds.
pub(crate) struct Session {
    sequence: SequenceId,
    tokens: Vec<u32>,
    mark: Option<(Vec<u32>, Snapshot)>,
}

/// How an answer is made.
pub(crate) struct AnswerOptions<'a> {
    pub(crate) sampling: &'a SamplingOptions,
    pub(crate) max_tokens: usize,
    pub(crate) context: usize,
    pub(crate) end_tokens: &'a [u32],
}

impl Session {
    /// An empty session.
    pub(crate) fn new(engine: &mut Engine) -> Result<Self, EngineError> {
        Ok(Self { sequence: engine.create_sequence()?, tokens: Vec::new(), mark: None })
    }

    /// Renders `messages` and gives the prompt and the length of the part before the assistant's turn.
    pub(crate) fn render(
        language: &Language,
        template: &ChatTemplate,
        messages: &[Message],
        tools: &[serde_json::Value],
        think: Option<bool>,
    ) -> Result<(Vec<u32>, usize, bool)> {
        let render = |add_generation_prompt| {
            let options = RenderOptions {
                add_generation_prompt,
                enable_thinking: think,
                ..RenderOptions::default()
            };
            template.render(messages, tools, &options)
        };
        let full = render(true).map_err(|error| Failure::Run(error.into()))?;
        let opens_reasoning = full.opens_reasoning();
        let encode =
            |rendered: &engine::text::Rendered| language.tokenizer.encode_rendered(rendered);
        let prompt = encode(&full).map_err(|error| Failure::Run(error.into()))?;
        let turn = render(false).map_err(|error| Failure::Run(error.into()))?;
        let turn = encode(&turn).map_err(|error| Failure::Run(error.into()))?;
        let marked = if prompt.starts_with(&turn) { turn.len() } else { 0 };
        Ok((prompt, marked, opens_reasoning))
    }

    /// Answers `prompt`, whose first `marked` tokens are worth returning to.
    ///
    /// # Errors
    /// What the engine reports. After a cancelled or failed pass the session starts over by itself.
    pub(crate) fn answer(
        &mut self,
        engine: &mut Engine,
        prompt: &[u32],
        marked: usize,
        options: &AnswerOptions<'_>,
        cancel: &dyn Cancel,
        progress: &mut dyn FnMut(PrefillProgress),
        each: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<AnswerReport, EngineError> {
        let result = self.try_answer(engine, prompt, marked, options, cancel, progress, each);
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
        cancel: &dyn Cancel,
        progress: &mut dyn FnMut(PrefillProgress),
        each: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<AnswerReport, EngineError> {
        self.return_to_prefix(engine, prompt)?;
        let reused = self.tokens.len();
        let started = Instant::now();
        if marked > reused {
            let part = &prompt[reused..marked];
            engine.prefill(self.sequence, part, cancel, progress, &mut |_, _, _| Ok(()))?;
            self.tokens.extend_from_slice(part);
            let snapshot = engine.backend().snapshot(self.sequence)?;
            self.mark = Some((self.tokens.clone(), snapshot));
        }
        let held = self.tokens.len();
        let limits = Limits {
            tokens: options.max_tokens,
            context: options.context,
            end_tokens: options.end_tokens.to_vec(),
        };
        let mut sampler = Sampler::new(options.sampling.clone(), engine.config().vocabulary)
            .map_err(|error| EngineError::Request(error.to_string()))?;
        let (mut history, mut first, mut count) = (self.tokens.clone(), None, 0);
        let finish = generate(
            engine,
            self.sequence,
            &prompt[held..],
            &mut sampler,
            &mut history,
            &limits,
            cancel,
            progress,
            &mut |token| {
                first.get_or_insert_with(Instant::now);
                count += 1;
                each(token)
            },
        )?;
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
    pub(crate) fn close(self, engine: &mut Engine) {
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

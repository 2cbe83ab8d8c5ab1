//! A loaded model with its language and one conversation, as the commands on a terminal use it.

use std::cell::RefCell;
use std::io::Write;
use std::ops::ControlFlow;

use anyhow::Result;
use engine::engine::PrefillProgress;
use engine::session::{AnswerOptions, AnswerReport, Session};
use engine::text::{
    ChatPrompt, ChatTemplate, EncodeLimit, Language, Message, RenderOptions, TemplateHost,
    TextError,
};

use crate::arguments::RunArguments;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::plan::load::Loaded;
use crate::plan::{Plan, Seats};
use crate::printer::AnswerPrinter;
use crate::progress::{Progress, Unit, say};
use crate::sampling::sampling_options;

/// A prompt that is too long is counted up to so many times the context.
const COUNTED_CONTEXTS: usize = 4;

/// Everything that a conversation on the terminal needs.
pub(crate) struct Terminal {
    pub(crate) plan: Plan,
    pub(crate) loaded: Loaded,
    pub(crate) language: Language,
    pub(crate) session: Session,
    pub(crate) interrupt: Interrupt,
}

impl Terminal {
    /// Plans and loads the model that `arguments` name, and says what it approximates.
    pub(crate) fn open(arguments: &RunArguments) -> Result<Self> {
        let plan = Plan::resolve(&arguments.model, Seats::CONVERSATION)?;
        let vocabulary = plan.config.vocabulary;
        let checkpoint = plan.checkpoint.clone();
        // The tokenizer takes as long to parse as a small trunk to read: both at once.
        let language = std::thread::spawn(move || {
            Language::load(&checkpoint, vocabulary, &TemplateHost::own_program())
        });
        let interrupt = Interrupt::listen()?;
        for line in plan.approximations() {
            say(&line);
        }
        let mut loaded = plan.load()?;
        let language =
            language.join().map_err(|_| anyhow::anyhow!("loading the tokenizer failed"))?;
        let language = language.map_err(|error| Failure::model(error.into()))?;
        if arguments.stats {
            match (&plan.device, &plan.no_device) {
                (Some(device), _) => say(&format!("runs on {}", device.info.name)),
                (None, Some(reason)) => say(&format!("runs on the processor: {reason}")),
                (None, None) => {}
            }
            say(&format!(
                "loaded in {:.2} s (tokenizer and template in {:.2} s beside it)",
                loaded.load_time.as_secs_f64(),
                language.load_time.as_secs_f64()
            ));
        }
        let session = Session::new(&mut loaded.engine).map_err(Failure::engine)?;
        Ok(Self { plan, loaded, language, session, interrupt })
    }

    /// Tokens of `messages` as the template renders them for an answer.
    pub(crate) fn prompt_tokens(&self, think: Option<bool>, messages: &[Message]) -> Result<usize> {
        let template = self.language.template.as_ref().ok_or_else(no_template)?;
        if messages.is_empty() {
            return Ok(0);
        }
        Ok(self.render(template, messages, think, EncodeLimit::NONE)?.tokens.len())
    }

    fn render(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
        think: Option<bool>,
        limit: EncodeLimit<'_>,
    ) -> Result<ChatPrompt> {
        let options = RenderOptions {
            add_generation_prompt: true,
            enable_thinking: think,
            ..RenderOptions::default()
        };
        let none = &mut |_: &Message| None;
        let prompt = self.language.render_within(template, messages, &[], &options, none, limit);
        prompt.map_err(|error| self.refused(error).into())
    }

    /// Tokens beyond the context are of no use.
    fn limit<'a>(&self, gone: &'a dyn Fn() -> bool) -> EncodeLimit<'a> {
        let tokens = self.plan.backend.context;
        EncodeLimit { tokens, counted: COUNTED_CONTEXTS * tokens, gone }
    }

    fn refused(&self, error: TextError) -> Failure {
        let context = self.plan.backend.context;
        match error {
            TextError::Gone => Failure::Interrupted,
            TextError::TooManyTokens { tokens, all } => {
                let more = if all { "" } else { "more than " };
                let reason = format!(
                    "the prompt has {more}{tokens} tokens, the context {context}: see --context"
                );
                Failure::Run(anyhow::anyhow!(reason))
            }
            other => Failure::Run(other.into()),
        }
    }

    /// Answers `messages` (or `raw` as it is, when asked for), streaming the visible text to `out`.
    /// `think` opens or closes the thinking block; `None` leaves it to the template.
    pub(crate) fn answer(
        &mut self,
        arguments: &RunArguments,
        think: Option<bool>,
        messages: &[Message],
        raw: Option<&str>,
        out: &mut dyn Write,
    ) -> Result<(Message, AnswerReport)> {
        self.interrupt.reset();
        let interrupt = self.interrupt.clone();
        let gone = move || interrupt.is_set();
        let template = self.language.template.as_ref().filter(|_| !arguments.raw);
        let (prompt, marked, opens_reasoning) = match (template, raw) {
            (Some(template), _) => {
                let prompt = self.render(template, messages, think, self.limit(&gone))?;
                let marked = prompt.turns.last().copied().unwrap_or(0);
                (prompt.tokens, marked, prompt.opens_reasoning)
            }
            (None, Some(text)) => {
                let ids = self.language.encode_within(text, self.limit(&gone));
                (ids.map_err(|error| self.refused(error))?, 0, false)
            }
            (None, None) => return Err(no_template().into()),
        };
        let options = sampling_options(&arguments.sampling, &self.plan.checkpoint)?;
        let context = self.plan.backend.context;
        let options = AnswerOptions {
            sampling: &options,
            max_tokens: arguments.max_tokens.unwrap_or(context),
            context,
            end_tokens: &self.language.end_tokens,
            tools: None,
        };
        let mut printer = AnswerPrinter::new(
            &self.language,
            opens_reasoning,
            arguments.hide_thinking,
            &arguments.stop,
            out,
        )?;
        let bar = RefCell::new(Some(Progress::new("prefill", Unit::Tokens, prompt.len() as f64)));
        let mut failed = None;
        let answered = self.session.answer(
            &mut self.loaded.engine,
            &prompt,
            marked,
            &options,
            self.interrupt.flag(),
            &mut |progress: PrefillProgress| {
                if let Some(bar) = bar.borrow_mut().as_mut() {
                    bar.set(progress.tokens);
                }
            },
            &mut |token| {
                if let Some(bar) = bar.borrow_mut().take() {
                    bar.finish();
                }
                match printer.push(token) {
                    Ok(flow) => flow,
                    Err(error) => {
                        failed = Some(error);
                        ControlFlow::Break(())
                    }
                }
            },
        );
        if let Some(error) = failed {
            return Err(error);
        }
        let report = match answered {
            Ok(report) => report,
            Err(engine::EngineError::Cancelled) => AnswerReport::default(),
            Err(error) => return Err(Failure::engine(error).into()),
        };
        Ok((printer.finish()?, report))
    }
}

fn no_template() -> Failure {
    Failure::usage("the model has no chat template; give a prompt with --raw")
}

//! A loaded model with its language and one conversation, as the commands on a terminal use it.

use std::cell::RefCell;
use std::io::Write;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::Result;
use engine::generate::{Finish, Listeners};
use engine::session::{AnswerOptions, AnswerReport, Session};
use text::sampling::SamplingOptions;
use text::{
    ChatPrompt, ChatTemplate, EncodeLimit, Fitted, Language, Message, OnFull, RenderOptions, Role,
    Room, StopStrings, TextError, fit,
};
use thiserror::Error;

use crate::arguments::RunArguments;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::plan::language::LanguageBeside;
use crate::plan::load::Loaded;
use crate::plan::{Plan, Seats};
use crate::printer::{AnswerPrinter, ThinkingStyle};
use crate::progress::{Progress, Unit, say};
use crate::sampling::sampling_options;

/// Tokens that a template adds to a conversation's texts, amply.
const TEMPLATE_TOKENS: usize = 512;
/// A prompt that is too long is counted up to so many times the context.
const COUNTED_CONTEXTS: usize = 4;

/// An answer and what it took.
pub(crate) struct Answered {
    pub(crate) message: Message,
    pub(crate) report: AnswerReport,
    /// The oldest turns that its prompt does not have.
    pub(crate) dropped_turns: usize,
}

impl Answered {
    /// Whether the end of the context ended it.
    pub(crate) fn is_full(&self) -> bool {
        self.report.finish == Some(Finish::Full)
    }

    /// What is said under an answer that was cut off in a context of so many tokens.
    pub(crate) fn cut(&self, context: usize) -> Option<String> {
        let tokens = self.report.answer_tokens;
        let thought = self.message.content.is_empty();
        match self.report.finish {
            Some(Finish::Full) => {
                let thought = if thought { ", the answer ended in its thinking" } else { "" };
                Some(format!("context full: {context} of {context} tokens{thought}"))
            }
            Some(Finish::Length) if thought => Some(format!(
                "the answer ended in its thinking, after {tokens} tokens: see --max-tokens, --think=false"
            )),
            Some(Finish::Length) => {
                Some(format!("the answer was cut after {tokens} tokens: see --max-tokens"))
            }
            Some(Finish::End | Finish::Stopped) | None => None,
        }
    }
}

/// A prompt that does not fit the context.
#[derive(Debug, Error)]
#[error("{what} {tokens} tokens, the context {context}: shorten it or raise --context")]
pub(crate) struct TooLong {
    /// With its verb.
    what: &'static str,
    /// As far as they were counted.
    tokens: String,
    context: usize,
}

impl TooLong {
    /// Whether this is why there is no answer.
    pub(crate) fn is(error: &anyhow::Error) -> bool {
        matches!(error.downcast_ref(), Some(Failure::Run(reason)) if reason.is::<Self>())
    }
}

/// Everything that a conversation on the terminal needs.
pub(crate) struct Terminal {
    pub(crate) plan: Plan,
    pub(crate) loaded: Loaded,
    pub(crate) language: Language,
    pub(crate) session: Session,
    /// In place of the temperature of the arguments, once a chat has set one.
    pub(crate) temperature: Option<f32>,
    /// What happens where the conversation does not fit the context.
    pub(crate) on_full: OnFull,
    pub(crate) interrupt: Interrupt,
}

impl Terminal {
    /// Plans and loads the model that `arguments` name, and says what it approximates. What cannot be asked of it, or
    /// does not fit its context, is refused before anything is loaded.
    pub(crate) fn open(
        arguments: &RunArguments,
        raw: Option<&str>,
        messages: &[Message],
    ) -> Result<Self> {
        let plan = Plan::resolve(&arguments.model, Seats::CONVERSATION)?;
        sampling_options(&arguments.sampling, &plan.checkpoint)?;
        StopStrings::new(arguments.stop.clone()).map_err(|it| Failure::usage(it.to_string()))?;
        let language = LanguageBeside::start(&plan)?;
        let interrupt = Interrupt::listen()?;
        for line in plan.approximations() {
            say(&line);
        }
        // A token has a byte at least: a short prompt fits, whatever the tokenizer makes of it.
        let bytes: usize = messages.iter().map(|message| message.content.len()).sum();
        let fits = bytes + TEMPLATE_TOKENS <= plan.backend.context;
        let (language, mut loaded) = if fits && plan.checkpoint.tokenizer.is_some() {
            let loaded = plan.load()?;
            (language.joined()?, loaded)
        } else {
            let language = language.joined()?;
            let gone = || interrupt.is_set();
            if raw.is_some() {
                let asked = Asked::of(arguments, arguments.think, arguments.on_full);
                prepare(&language, plan.backend.context, asked, messages, raw, &gone)?;
            }
            (language, plan.load()?)
        };
        if raw.is_none() && language.template.is_none() {
            return Err(no_template().into());
        }
        if arguments.stats {
            match (plan.device_names(), &plan.no_device) {
                (Some(names), _) => say(&format!("runs on {names}")),
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
        let on_full = arguments.on_full;
        Ok(Self { plan, loaded, language, session, temperature: None, on_full, interrupt })
    }

    /// Tokens of `messages` as the template renders them for an answer.
    pub(crate) fn prompt_tokens(&self, think: Option<bool>, messages: &[Message]) -> Result<usize> {
        let template = self.language.template.as_ref().ok_or_else(no_template)?;
        if messages.is_empty() {
            return Ok(0);
        }
        let context = self.plan.backend.context;
        let limit = EncodeLimit::NONE;
        let prompt = render(&self.language, template, messages, think, limit);
        let prompt = prompt.map_err(|error| refused(context, error, messages, OnFull::Stop))?;
        Ok(prompt.tokens.len())
    }

    /// How tokens are drawn: as the arguments say, but for a temperature that was set since.
    fn sampling(&self, arguments: &RunArguments) -> Result<SamplingOptions> {
        let options = sampling_options(&arguments.sampling, &self.plan.checkpoint)?;
        let temperature = self.temperature.unwrap_or(options.temperature);
        Ok(SamplingOptions { temperature, ..options })
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
    ) -> Result<Answered> {
        self.interrupt.reset();
        let interrupt = self.interrupt.clone();
        let gone = move || interrupt.is_set();
        let context = self.plan.backend.context;
        let asked = Asked::of(arguments, think, self.on_full);
        let prepared = prepare(&self.language, context, asked, messages, raw, &gone)?;
        let Prepared { tokens: prompt, marked, opens_reasoning, dropped_turns } = prepared;
        say_dropped(dropped_turns);
        let options = self.sampling(arguments)?;
        let drafting = self.plan.arguments.draft.drafting();
        let options = AnswerOptions {
            sampling: &options,
            max_tokens: arguments.max_tokens.unwrap_or(context),
            context,
            end_tokens: &self.language.end_tokens,
            tools: None,
            drafting: drafting.as_ref(),
            texts: Some(self.language.tokenizer.texts()),
        };
        let mut printer = printer(&self.language, arguments, opens_reasoning, out)?;
        let bar = RefCell::new(Some(Progress::new("prefill", Unit::Tokens, prompt.len() as f64)));
        let mut failed = None;
        let started = Instant::now();
        let (mut count, mut first) = (0, None);
        let listeners = Listeners {
            cancel: self.interrupt.flag(),
            progress: &mut |progress| {
                if let Some(bar) = bar.borrow_mut().as_mut() {
                    bar.set(progress.tokens);
                }
            },
            each: &mut |token| {
                count += 1;
                first.get_or_insert_with(Instant::now);
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
        };
        let engine = &mut self.loaded.engine;
        let answered = self.session.answer(engine, &prompt, marked, &options, listeners);
        if let Some(error) = failed {
            return Err(error);
        }
        let report = match answered {
            Ok(report) => report,
            Err(engine::EngineError::Cancelled) => stopped(prompt.len(), count, started, first),
            Err(error) => return Err(Failure::engine(error).into()),
        };
        Ok(Answered { message: printer.finish()?, report, dropped_turns })
    }
}

/// Prints an answer as the arguments say.
fn printer<'a>(
    language: &'a Language,
    arguments: &RunArguments,
    opens_reasoning: bool,
    out: &'a mut dyn Write,
) -> Result<AnswerPrinter<'a>> {
    let style = ThinkingStyle::of_output(arguments.show_thinking, arguments.hide_thinking);
    AnswerPrinter::new(language, opens_reasoning, style, &arguments.stop, out)
}

fn say_dropped(turns: usize) {
    match turns {
        0 => {}
        1 => say("the context is full: the oldest turn is left out"),
        count => say(&format!("the context is full: the {count} oldest turns are left out")),
    }
}

/// What the engine does not report of an answer that was stopped after `count` tokens, the first of them at `first`.
fn stopped(prompt: usize, count: usize, started: Instant, first: Option<Instant>) -> AnswerReport {
    AnswerReport {
        prompt_tokens: if count > 0 { prompt } else { 0 },
        answer_tokens: count,
        prefill_time: first.map_or(Duration::ZERO, |first| first - started),
        decode_time: first.map_or(Duration::ZERO, |first| first.elapsed()),
        ..AnswerReport::default()
    }
}

/// What is asked of the template.
#[derive(Clone, Copy)]
struct Asked {
    think: Option<bool>,
    /// Nothing: the prompt is fed as it is.
    raw: bool,
    room: Room,
}

impl Asked {
    fn of(arguments: &RunArguments, think: Option<bool>, on_full: OnFull) -> Self {
        let room = Room { on_full, answer: arguments.max_tokens };
        Self { think, raw: arguments.raw, room }
    }
}

/// A prompt in tokens.
struct Prepared {
    tokens: Vec<u32>,
    /// Its first tokens that are worth returning to.
    marked: usize,
    opens_reasoning: bool,
    dropped_turns: usize,
}

/// Tokens of `messages` by the template, or of `raw` where there is none, as far as a context holds them.
fn prepare(
    language: &Language,
    context: usize,
    asked: Asked,
    messages: &[Message],
    raw: Option<&str>,
    gone: &dyn Fn() -> bool,
) -> Result<Prepared> {
    // Tokens beyond the context are of no use.
    let limit = EncodeLimit { tokens: context, counted: COUNTED_CONTEXTS * context, gone };
    let template = language.template.as_ref().filter(|_| !asked.raw);
    Ok(match (template, raw) {
        (Some(template), _) => {
            let render = &mut |messages: &[Message], limit: EncodeLimit<'_>| {
                render(language, template, messages, asked.think, limit)
            };
            let fitted = fit(messages, asked.room, limit, render);
            let Fitted { prompt, dropped: dropped_turns } =
                fitted.map_err(|error| refused(context, error, messages, asked.room.on_full))?;
            let ChatPrompt { tokens, turns, opens_reasoning, .. } = prompt;
            let marked = turns.last().copied().unwrap_or(0);
            Prepared { tokens, marked, opens_reasoning, dropped_turns }
        }
        (None, Some(text)) => {
            let ids = language.encode_within(text, limit);
            let tokens = ids.map_err(|error| refused(context, error, messages, OnFull::Stop))?;
            Prepared { tokens, marked: 0, opens_reasoning: false, dropped_turns: 0 }
        }
        (None, None) => return Err(no_template().into()),
    })
}

fn render(
    language: &Language,
    template: &ChatTemplate,
    messages: &[Message],
    think: Option<bool>,
    limit: EncodeLimit<'_>,
) -> Result<ChatPrompt, TextError> {
    let options = RenderOptions {
        add_generation_prompt: true,
        enable_thinking: think,
        ..RenderOptions::default()
    };
    let none = &mut |_: &Message| None;
    language.render_within(template, messages, &[], &options, none, limit)
}

/// Why `messages` are no prompt.
fn refused(context: usize, error: TextError, messages: &[Message], on_full: OnFull) -> Failure {
    match error {
        TextError::Gone => Failure::Interrupted,
        TextError::TooManyTokens { tokens, all } => {
            let more = if all { "" } else { "more than " };
            let turns = messages.iter().filter(|message| message.role == Role::User).count();
            let what = match (on_full, turns) {
                (_, 0 | 1) => "the prompt has",
                (OnFull::Stop, _) => "the conversation has",
                (OnFull::DropOldest, _) => "the system prompt and the last turn alone have",
            };
            let tokens = format!("{more}{tokens}");
            Failure::Run(TooLong { what, tokens, context }.into())
        }
        other => Failure::Run(other.into()),
    }
}

fn no_template() -> Failure {
    Failure::usage("the model has no chat template; give a prompt with --raw")
}

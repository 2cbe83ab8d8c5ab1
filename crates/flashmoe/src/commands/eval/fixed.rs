//! Questions and a text that come with the program, as `report` asks them of any model.

use anyhow::Result;
use engine::engine::Engine;
use serde_json::Value;
use text::Language;

use super::report::Report;
use super::tasks::{self, Asker};
use super::text as scoring;
use crate::arguments::ModelArguments;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::plan::{Plan, Seats};

/// Answers to fixed questions.
pub(in crate::commands) struct FixedAnswers {
    /// As `eval --answers` writes them.
    pub(in crate::commands) answers: Vec<Value>,
    /// As `eval --json` prints them.
    pub(in crate::commands) figures: Value,
}

/// Asks `questions`, a line each as in a file of tasks; an answer has at most `max_tokens` tokens.
pub(in crate::commands) fn ask_fixed(
    model: &ModelArguments,
    questions: &str,
    max_tokens: usize,
) -> Result<FixedAnswers> {
    let items = tasks::parse(questions.as_bytes(), "fixed questions", None)?;
    let (mut lines, interrupt) = (Vec::<u8>::new(), Interrupt::listen()?);
    let outcome = with_model(model, |plan, language, engine| {
        let interrupt = &interrupt;
        let mut asker =
            Asker { plan, language, interrupt, max_tokens, recorder: None, grammars: None };
        asker.ask_all(&items, engine, Some(&mut lines), false)
    })?;
    if outcome.interrupted {
        return Err(Failure::Interrupted.into());
    }
    let answers = serde_json::Deserializer::from_slice(&lines).into_iter();
    let answers = answers.collect::<Result<_, _>>().map_err(|error| Failure::Run(error.into()))?;
    let figures = Report { tasks: Some(outcome), ..Report::default() }.json();
    Ok(FixedAnswers { answers, figures })
}

/// Perplexity of a text, as `eval --json` prints it.
pub(in crate::commands) fn score_fixed(model: &ModelArguments, text: &str) -> Result<Value> {
    let interrupt = Interrupt::listen()?;
    let outcome = with_model(model, |plan, language, engine| {
        let documents = scoring::windows(text, language, plan.backend.context)?;
        scoring::measure(&documents, (engine, None), plan.backend.batch_tokens, &interrupt)
    })?;
    if outcome.interrupted {
        return Err(Failure::Interrupted.into());
    }
    Ok(Report { text: Some(outcome), ..Report::default() }.json())
}

/// Plans and loads a model for `work`.
fn with_model<T>(
    model: &ModelArguments,
    work: impl FnOnce(&Plan, &Language, &mut Engine) -> Result<T>,
) -> Result<T> {
    let plan = Plan::resolve(model, Seats::MEASUREMENT)?;
    let language = plan.language()?;
    let mut loaded = plan.load()?;
    work(&plan, &language, &mut loaded.engine)
}

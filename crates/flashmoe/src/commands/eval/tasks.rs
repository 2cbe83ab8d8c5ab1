//! Questions with checks: read from a file (`item.rs`), asked greedily, tallied by task.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use engine::engine::Engine;
use engine::generate::Listeners;
use engine::routing::Recorder;
use engine::session::{AnswerOptions, AnswerReport, OfferedTools, Session};
use serde_json::json;
use text::constraint::Grammars;
use text::sampling::SamplingOptions;
use text::{AnswerParser, Language, Message, RenderOptions};

use super::check;
use super::item::{self, Item};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::plan::Plan;
use crate::progress::{Progress, Unit, say};

/// Results of one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) passed: usize,
    pub(super) asked: usize,
}

/// Results of all tasks.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Not all questions were asked.
    pub(super) interrupted: bool,
    pub(super) tasks: BTreeMap<String, Tally>,
    /// Questions whose right answer is JSON; passed: the answer parses.
    pub(super) json: Tally,
    /// Answers with a call or an attempt at one; passed: every call names an offered tool with known
    /// and all required parameters, and nothing that looks like a call was left in the text.
    pub(super) calls: Tally,
    pub(super) answer_tokens: usize,
    pub(super) seconds: f64,
}

impl Outcome {
    pub(super) fn total(&self) -> Tally {
        let add = |sum: Tally, tally: &Tally| Tally {
            passed: sum.passed + tally.passed,
            asked: sum.asked + tally.asked,
        };
        self.tasks.values().fold(Tally::default(), add)
    }
}

/// Reads the tasks of a file, or only those named `only`.
pub(super) fn read(path: &Path, only: Option<&str>) -> Result<Vec<Item>> {
    let named = path.display().to_string();
    let file = std::fs::File::open(path).map_err(Failure::io).with_context(|| named.clone())?;
    parse(std::io::BufReader::new(file), &named, only)
}

/// As [`read`], of lines that are called `named`.
pub(super) fn parse(lines: impl BufRead, named: &str, only: Option<&str>) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    for (index, line) in lines.lines().enumerate() {
        let line = line.map_err(Failure::io).with_context(|| named.to_owned())?;
        let item = item::parse(&line)
            .map_err(|error| Failure::usage(format!("{named}, line {}: {error}", index + 1)))?;
        let Some(item) = item else { continue };
        if only.is_none_or(|only| only == item.task) {
            items.push(item);
        }
    }
    if items.is_empty() {
        return Err(Failure::usage(format!("{named}: no tasks")).into());
    }
    Ok(items)
}

/// Asks questions.
pub(super) struct Asker<'a> {
    pub(super) plan: &'a Plan,
    pub(super) language: &'a Language,
    pub(super) interrupt: &'a Interrupt,
    /// Most tokens of an answer.
    pub(super) max_tokens: usize,
    /// Listens while an answer is generated.
    pub(super) recorder: Option<&'a Recorder>,
    /// Calls are held to the offered tools by these.
    pub(super) grammars: Option<Arc<Grammars>>,
}

/// A generated answer.
struct Answer {
    message: Message,
    tokens: Vec<u32>,
    report: AnswerReport,
}

impl Asker<'_> {
    /// Asks all of `items`; `answers` receives one line for each.
    pub(super) fn ask_all(
        &mut self,
        items: &[Item],
        engine: &mut Engine,
        mut answers: Option<&mut impl Write>,
        show_failures: bool,
    ) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let mut bar = Progress::new("evaluating", Unit::Questions, items.len() as f64);
        for (index, item) in items.iter().enumerate() {
            let answer = match self.ask(item, engine) {
                // What was answered so far counts.
                Err(error) if Failure::is_interruption(&error) => {
                    outcome.interrupted = true;
                    break;
                }
                answer => answer?,
            };
            let passed = outcome.count(item, &answer);
            let (message, task) = (&answer.message, &item.task);
            if !passed && show_failures {
                say(&format!("failed {task}: {:?} {:?}", message.content, message.tool_calls));
            }
            if let Some(file) = &mut answers {
                let line = json!({
                    "task": task,
                    "passed": passed,
                    "content": message.content,
                    "tokens": answer.tokens,
                });
                writeln!(file, "{line}").map_err(Failure::io)?;
                // A minute's answers are not lost with the process.
                file.flush().map_err(Failure::io)?;
            }
            bar.set(index as f64 + 1.0);
        }
        bar.finish();
        Ok(outcome)
    }

    fn ask(&mut self, item: &Item, engine: &mut Engine) -> Result<Answer> {
        let (plan, language) = (self.plan, self.language);
        let template = language
            .template
            .as_ref()
            .ok_or_else(|| Failure::usage("the model has no chat template: it cannot be asked"))?;
        let messages = Message::from_openai(&item.messages)
            .map_err(|error| Failure::usage(error.to_string()))?;
        let options = RenderOptions {
            add_generation_prompt: true,
            enable_thinking: item.enable_thinking,
            ..RenderOptions::default()
        };
        let prompt = language.render(template, &messages, &item.tools, &options);
        let prompt = prompt.map_err(|error| Failure::Run(error.into()))?;
        let mut session = Session::new(engine).map_err(Failure::engine)?;
        let sampling = SamplingOptions::greedy();
        let drafting = plan.arguments.draft.drafting();
        let options = AnswerOptions {
            sampling: &sampling,
            max_tokens: self.max_tokens,
            context: plan.backend.context,
            end_tokens: &language.end_tokens,
            tools: self.grammars.as_ref().map(|grammars| OfferedTools {
                grammars,
                tools: &item.tools,
                thinking: prompt.thinking,
            }),
            drafting: drafting.as_ref(),
            texts: None,
        };
        let mut parser = AnswerParser::new(language.dialect, &item.tools, prompt.opens_reasoning);
        let (mut stream, mut events) = (language.tokenizer.stream(), Vec::new());
        let mut tokens = Vec::new();
        let recorder = self.recorder;
        let listeners = Listeners {
            cancel: self.interrupt.flag(),
            progress: &mut |_| {},
            each: &mut |token| {
                // The first token comes out of the prompt's pass: what runs from here on is the answer's.
                recorder.iter().for_each(|recorder| recorder.listen(true));
                tokens.push(token);
                if !language.end_tokens.contains(&token)
                    && let Some(text) = stream.push(token)
                {
                    events.extend(parser.push(&text));
                }
                ControlFlow::Continue(())
            },
        };
        let answered = session.answer(engine, &prompt.tokens, 0, &options, listeners);
        recorder.iter().for_each(|recorder| recorder.listen(false));
        session.close(engine);
        let report = answered.map_err(Failure::engine)?;
        if let Some(rest) = stream.flush() {
            events.extend(parser.push(&rest));
        }
        events.extend(parser.finish());
        Ok(Answer { message: text::collect(&events), tokens, report })
    }
}

impl Outcome {
    /// Adds one answer; true if it is right.
    fn count(&mut self, item: &Item, answer: &Answer) -> bool {
        let (message, report) = (&answer.message, &answer.report);
        self.answer_tokens += report.answer_tokens;
        self.seconds += (report.prefill_time + report.decode_time).as_secs_f64();
        if check::attempts_call(message) {
            self.calls.asked += 1;
            self.calls.passed += usize::from(check::calls_are_valid(message, &item.tools));
        }
        if let Some(valid) = item.check.json_is_valid(message) {
            self.json.asked += 1;
            self.json.passed += usize::from(valid);
        }
        let passed = item.check.passes(message);
        let tally = self.tasks.entry(item.task.clone()).or_default();
        tally.asked += 1;
        tally.passed += usize::from(passed);
        passed
    }
}

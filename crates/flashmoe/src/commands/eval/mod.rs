//! `flashmoe eval`: a model's answers to a file of tasks with checks, greedy, as a table.
//!
//! The file holds one JSON object a line: `task`, `messages` and `tools` as in the chat completions protocol,
//! `enable_thinking`, and `check` (`check.rs`; documented in models/demo/README.md).

mod check;

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::ops::ControlFlow;

use anyhow::{Context, Result};
use engine::sampling::SamplingOptions;
use engine::text::{AnswerParser, Dialect, Message};
use serde::Deserialize;
use serde_json::Value;

use crate::account::rate;
use crate::arguments::{EvalArguments, EvalFormat};
use crate::conversation::{AnswerOptions, Language, Session};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::plan::Plan;
use crate::plan::load::Loaded;
use crate::progress::{Progress, Unit, say};
use check::Check;

/// One question.
#[derive(Debug, Deserialize)]
struct Item {
    task: String,
    messages: Vec<Value>,
    #[serde(default)]
    tools: Vec<Value>,
    enable_thinking: Option<bool>,
    check: Check,
}

/// Results of one task.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    passed: usize,
    asked: usize,
}

/// Results of a run.
#[derive(Debug, Default)]
struct Outcome {
    tasks: BTreeMap<String, Tally>,
    /// Answers that contain a call, and those of them whose calls all name an offered tool and parse.
    calls_made: usize,
    calls_valid: usize,
    answer_tokens: usize,
    seconds: f64,
}

pub(crate) fn eval(arguments: &EvalArguments, out: &mut dyn Write) -> Result<()> {
    let items = read_items(arguments)?;
    let plan = Plan::resolve(&arguments.model, 1)?;
    for line in plan.approximations() {
        say(&line);
    }
    let language = Language::load(&plan.checkpoint, plan.config.vocabulary)?;
    let mut loaded = plan.load()?;
    let interrupt = Interrupt::listen()?;
    let mut outcome = Outcome::default();
    let mut bar = Progress::new("evaluating", Unit::Questions, items.len() as f64);
    for (index, item) in items.iter().enumerate() {
        outcome.ask(item, &plan, &language, &mut loaded, &interrupt, arguments.failures)?;
        bar.set(index as f64 + 1.0);
    }
    bar.finish();
    let text = match arguments.output {
        EvalFormat::Markdown => outcome.markdown(),
        EvalFormat::Json => format!("{}\n", outcome.json()),
    };
    out.write_all(text.as_bytes()).map_err(Failure::io)?;
    Ok(())
}

fn read_items(arguments: &EvalArguments) -> Result<Vec<Item>> {
    let path = &arguments.tasks;
    let named = || format!("{}", path.display());
    let file = std::fs::File::open(path).map_err(Failure::io).with_context(named)?;
    let mut items = Vec::new();
    for (index, line) in std::io::BufReader::new(file).lines().enumerate() {
        let line = line.map_err(Failure::io).with_context(named)?;
        if line.trim().is_empty() {
            continue;
        }
        let item = serde_json::from_str(&line).map_err(|error| {
            Failure::usage(format!("{}, line {}: {error}", path.display(), index + 1))
        })?;
        items.push(item);
    }
    if let Some(task) = &arguments.only {
        items.retain(|item: &Item| &item.task == task);
    }
    if items.is_empty() {
        return Err(Failure::usage(format!("{}: no tasks", path.display())).into());
    }
    Ok(items)
}

impl Outcome {
    fn ask(
        &mut self,
        item: &Item,
        plan: &Plan,
        language: &Language,
        loaded: &mut Loaded,
        interrupt: &Interrupt,
        show_failures: bool,
    ) -> Result<()> {
        let (answer, report) = answer(item, plan, language, loaded, interrupt)?;
        self.answer_tokens += report.answer_tokens;
        self.seconds += (report.prefill_time + report.decode_time).as_secs_f64();
        if !answer.tool_calls.is_empty() {
            self.calls_made += 1;
            self.calls_valid += usize::from(check::calls_are_valid(&answer, &item.tools));
        }
        let passed = item.check.passes(&answer);
        let tally = self.tasks.entry(item.task.clone()).or_default();
        tally.asked += 1;
        tally.passed += usize::from(passed);
        if !passed && show_failures {
            say(&format!("failed {}: {:?} {:?}", item.task, answer.content, answer.tool_calls));
        }
        Ok(())
    }

    fn total(&self) -> Tally {
        let add = |sum: Tally, tally: &Tally| Tally {
            passed: sum.passed + tally.passed,
            asked: sum.asked + tally.asked,
        };
        self.tasks.values().fold(Tally::default(), add)
    }

    fn markdown(&self) -> String {
        let mut lines =
            vec!["| task | passed | asked | % |".to_owned(), "|---|---|---|---|".to_owned()];
        let row = |name: &str, tally: Tally| {
            let percent = 100.0 * tally.passed as f64 / tally.asked.max(1) as f64;
            format!("| {name} | {} | {} | {percent:.1} |", tally.passed, tally.asked)
        };
        lines.extend(self.tasks.iter().map(|(name, tally)| row(name, *tally)));
        lines.push(row("all", self.total()));
        lines.push(String::new());
        lines.push(format!(
            "valid tool calls: {} of {} · {} tokens in {:.0} s ({:.1} tok/s)",
            self.calls_valid,
            self.calls_made,
            self.answer_tokens,
            self.seconds,
            rate(self.answer_tokens, std::time::Duration::from_secs_f64(self.seconds)),
        ));
        lines.push(String::new());
        lines.join("\n")
    }

    fn json(&self) -> Value {
        let tally =
            |tally: &Tally| serde_json::json!({"passed": tally.passed, "asked": tally.asked});
        let tasks: serde_json::Map<String, Value> =
            self.tasks.iter().map(|(name, value)| (name.clone(), tally(value))).collect();
        serde_json::json!({
            "tasks": tasks,
            "all": tally(&self.total()),
            "tool_calls": {"made": self.calls_made, "valid": self.calls_valid},
            "answer_tokens": self.answer_tokens,
            "seconds": self.seconds,
        })
    }
}

/// Tokens of an answer at the most: longer than any working of the tasks.
const ANSWER_TOKENS: usize = 1024;

fn answer(
    item: &Item,
    plan: &Plan,
    language: &Language,
    loaded: &mut Loaded,
    interrupt: &Interrupt,
) -> Result<(Message, crate::conversation::AnswerReport)> {
    let template = language
        .template
        .as_ref()
        .ok_or_else(|| Failure::usage("the model has no chat template: it cannot be asked"))?;
    let messages =
        Message::from_openai(&item.messages).map_err(|error| Failure::usage(error.to_string()))?;
    let (prompt, _, opens_reasoning) =
        Session::render(language, template, &messages, &item.tools, item.enable_thinking)?;
    let mut session = Session::new(&mut loaded.engine).map_err(Failure::engine)?;
    let sampling = SamplingOptions::greedy();
    let options = AnswerOptions {
        sampling: &sampling,
        max_tokens: ANSWER_TOKENS,
        context: plan.backend.context,
        end_tokens: &language.end_tokens,
    };
    let source = plan.checkpoint.chat_template.as_deref().unwrap_or_default();
    let mut parser = AnswerParser::new(Dialect::of(source), &item.tools, opens_reasoning);
    let (mut stream, mut events) = (language.tokenizer.stream(), Vec::new());
    let answered = session.answer(
        &mut loaded.engine,
        &prompt,
        0,
        &options,
        interrupt.flag(),
        &mut |_| {},
        &mut |token| {
            if !language.end_tokens.contains(&token)
                && let Some(text) = stream.push(token)
            {
                events.extend(parser.push(&text));
            }
            ControlFlow::Continue(())
        },
    );
    session.close(&mut loaded.engine);
    let report = answered.map_err(Failure::engine)?;
    if let Some(rest) = stream.flush() {
        events.extend(parser.push(&rest));
    }
    events.extend(parser.finish());
    Ok((engine::text::collect(&events), report))
}

//! Perplexity over held-out text, and divergence from a reference over the same positions.
//!
//! A file that ends in `.jsonl` holds one document a line: `text`, or a conversation (`messages`, `tools`,
//! `enable_thinking`) that the chat template renders; what follows the prompt of its last turn is the
//! answer and is counted once more on its own. Any other file is plain text, cut into windows of the
//! context. Every token but the first of a document is predicted from those before it.

use std::path::Path;

use anyhow::{Context, Result};
use engine::backend::Run;
use engine::engine::{Engine, check_finite};
use serde::Deserialize;
use serde_json::Value;
use text::{Language, Message, RenderOptions, Role};

use super::divergence::Sums;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::progress::{Progress, Unit};

/// Rows of logits computed at once; the plan's buffer holds them.
const ROWS: usize = 8;

/// Token ids to predict.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Document {
    tokens: Vec<u32>,
    /// Index of the answer's first token; the length if there is no answer.
    answer: usize,
}

/// Figures over all documents.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Not all text was scored.
    pub(super) interrupted: bool,
    pub(super) documents: usize,
    pub(super) all: Sums,
    pub(super) answers: Sums,
    /// Whether the sums hold a comparison.
    pub(super) compared: bool,
}

/// A line of a `.jsonl` file.
#[derive(Deserialize)]
struct Line {
    text: Option<String>,
    messages: Option<Vec<Value>>,
    #[serde(default)]
    tools: Vec<Value>,
    enable_thinking: Option<bool>,
}

/// Reads a text file as documents of at most `context` tokens.
pub(super) fn read(path: &Path, language: &Language, context: usize) -> Result<Vec<Document>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(Failure::io);
    let text = text.with_context(|| shown.to_string())?;
    let documents = if path.extension().is_some_and(|extension| extension == "jsonl") {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let document = |(index, line): (usize, &str)| {
            let named =
                |reason: String| Failure::usage(format!("{shown}, line {}: {reason}", index + 1));
            let line = serde_json::from_str(line).map_err(|error| named(error.to_string()))?;
            let document =
                document(&line, language).map_err(|error| named(format!("{error:#}")))?;
            let length = document.tokens.len();
            if !(2..=context).contains(&length) {
                let reason = format!("{length} tokens; 2 to {context} (--context) can be scored");
                return Err(named(reason));
            }
            Ok(document)
        };
        lines.map(document).collect::<Result<Vec<_>, Failure>>()?
    } else {
        windows(&text, language, context)?
    };
    if documents.is_empty() {
        return Err(Failure::usage(format!("{shown}: no text to predict")).into());
    }
    Ok(documents)
}

/// Plain text as documents of at most `context` tokens.
pub(super) fn windows(text: &str, language: &Language, context: usize) -> Result<Vec<Document>> {
    let ids = language.tokenizer.encode(text).map_err(|error| Failure::Run(error.into()))?;
    let windows = ids.chunks(context).filter(|window| window.len() > 1);
    Ok(windows.map(|ids| Document { tokens: ids.to_vec(), answer: ids.len() }).collect())
}

fn document(line: &Line, language: &Language) -> Result<Document> {
    match (&line.text, &line.messages) {
        (Some(text), None) => {
            let tokens = language.tokenizer.encode(text)?;
            let answer = tokens.len();
            Ok(Document { tokens, answer })
        }
        (None, Some(messages)) => conversation(messages, line, language),
        _ => anyhow::bail!("expected either text or messages"),
    }
}

fn conversation(messages: &[Value], line: &Line, language: &Language) -> Result<Document> {
    let template = language.template.as_ref().context("the model has no chat template")?;
    let messages = Message::from_openai(messages)?;
    let render = |messages: &[Message], add_generation_prompt| {
        let enable_thinking = line.enable_thinking;
        let options =
            RenderOptions { add_generation_prompt, enable_thinking, ..RenderOptions::default() };
        let rendered = template.render(messages, &line.tools, &options)?;
        anyhow::Ok(language.tokenizer.encode_rendered(&rendered)?)
    };
    let mut tokens = render(&messages, false)?;
    // What the template writes after the last end of turn is never generated.
    if let Some(end) = tokens.iter().rposition(|token| language.end_tokens.contains(token)) {
        tokens.truncate(end + 1);
    }
    let answer = match messages.split_last() {
        Some((last, before)) if last.role == Role::Assistant && !before.is_empty() => {
            let prompt = render(before, true)?;
            tokens.iter().zip(&prompt).take_while(|(a, b)| a == b).count()
        }
        _ => tokens.len(),
    };
    Ok(Document { tokens, answer })
}

/// Scores `documents` by the model and, when there is one, beside the reference, in passes of at most
/// `chunk` tokens.
pub(super) fn measure(
    documents: &[Document],
    engines: (&mut Engine, Option<&mut Engine>),
    chunk: usize,
    interrupt: &Interrupt,
) -> Result<Outcome> {
    let (engine, mut reference) = engines;
    let total: usize = documents.iter().map(|document| document.tokens.len()).sum();
    let mut bar = Progress::new("scoring", Unit::Tokens, total as f64);
    let mut outcome = Outcome { compared: reference.is_some(), ..Outcome::default() };
    let mut done = 0;
    'documents: for document in documents {
        let sequence = engine.create_sequence().map_err(Failure::engine)?;
        let other = reference.as_mut().map(|reference| reference.create_sequence());
        let other = other.transpose().map_err(Failure::engine)?;
        for (index, tokens) in document.tokens.chunks(chunk).enumerate() {
            if interrupt.is_set() {
                outcome.interrupted = true;
                break 'documents;
            }
            let run = Run { sequence, tokens };
            engine.forward(&[run], interrupt.flag()).map_err(Failure::engine)?;
            if let (Some(reference), Some(sequence)) = (&mut reference, other) {
                let run = Run { sequence, tokens };
                reference.forward(&[run], interrupt.flag()).map_err(Failure::engine)?;
            }
            outcome.score(
                document,
                index * chunk,
                tokens.len(),
                engine,
                reference.as_deref_mut(),
            )?;
            done += tokens.len();
            bar.set(done as f64);
        }
        engine.drop_sequence(sequence);
        if let (Some(reference), Some(sequence)) = (&mut reference, other) {
            reference.drop_sequence(sequence);
        }
        outcome.documents += 1;
    }
    bar.finish();
    Ok(outcome)
}

impl Outcome {
    /// Scores the `length` tokens from `first` on, whose logits both engines hold.
    fn score(
        &mut self,
        document: &Document,
        first: usize,
        length: usize,
        engine: &mut Engine,
        mut reference: Option<&mut Engine>,
    ) -> Result<()> {
        let vocabulary = engine.config().vocabulary;
        // The last token of the document predicts nothing.
        let length = length.min(document.tokens.len() - 1 - first);
        for start in (0..length).step_by(ROWS) {
            let rows: Vec<usize> = (start..length.min(start + ROWS)).collect();
            let logits = engine.logits(&rows).map_err(Failure::engine)?;
            let expected = match &mut reference {
                Some(reference) => reference.logits(&rows).map_err(Failure::engine)?,
                None => &mut [],
            };
            for logits in [&*logits, &*expected] {
                check_finite(logits, vocabulary, first + start).map_err(Failure::engine)?;
            }
            for (index, row) in rows.iter().enumerate() {
                let (next, span) = (first + row + 1, index * vocabulary..(index + 1) * vocabulary);
                let (logits, expected) = (&logits[span.clone()], expected.get(span));
                let token = document.tokens[next] as usize;
                self.all.add(logits, token, expected);
                if next >= document.answer {
                    self.answers.add(logits, token, expected);
                }
            }
        }
        Ok(())
    }
}

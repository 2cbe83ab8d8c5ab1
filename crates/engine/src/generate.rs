//! One sequence, one answer: prefill, then token by token, or round by round, until something ends it.

use std::ops::ControlFlow;
use std::time::Instant;

use crate::EngineError;
use crate::backend::{Cancel, Run, SequenceId};
use crate::drafts::{DraftRoom, Drafter};
use crate::engine::{Engine, PrefillProgress};
use text::constraint::CallWatch;
use text::sampling::{Sampler, SamplingError};

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model produced an end token.
    End,
    /// The token limit was reached.
    Length,
    /// The end of the context was reached.
    Full,
    /// The caller asked to stop.
    Stopped,
}

/// What bounds an answer.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most tokens to generate.
    pub tokens: usize,
    /// Most tokens of the sequence, prompt included.
    pub context: usize,
    /// Tokens that end the answer; they are fed to `each` as well.
    pub end_tokens: Vec<u32>,
}

/// How the tokens of an answer are drawn.
pub struct Drawing<'a> {
    /// Draws each token.
    pub sampler: Sampler,
    /// Watches over calls that begin.
    pub calls: Option<CallWatch>,
    /// Drafts tokens to compute together with the next; they change no token.
    pub drafter: Option<Drafter>,
    /// Receives every token of the sequence: for penalties, and for the caller.
    pub history: &'a mut Vec<u32>,
}

/// What hears of an answer while it is made, and may end it.
pub struct Listeners<'a> {
    /// Asked within a pass whether to give it up.
    pub cancel: &'a dyn Cancel,
    /// Hears how far the prompt is.
    pub progress: &'a mut dyn FnMut(PrefillProgress),
    /// Hears every generated token, and may stop.
    pub each: &'a mut dyn FnMut(u32) -> ControlFlow<()>,
}

/// # Errors
/// A prompt of no tokens, or of more than the context has behind those that are `held`.
fn check_length(held: usize, prompt: usize, context: usize) -> Result<(), EngineError> {
    let needed = held + prompt;
    if prompt == 0 {
        return Err(EngineError::Request("the prompt is empty".to_owned()));
    }
    if needed > context {
        let found = format!("the conversation of {needed} tokens exceeds the context of {context}");
        return Err(EngineError::Request(found));
    }
    Ok(())
}

impl Limits {
    /// Whether an answer ends with `token` at `position`; `flow` is what its listener says.
    fn finish(&self, token: u32, flow: ControlFlow<()>, position: usize) -> Option<Finish> {
        if self.end_tokens.contains(&token) {
            Some(Finish::End)
        } else if flow.is_break() {
            Some(Finish::Stopped)
        } else {
            (position == self.context).then_some(Finish::Full)
        }
    }
}

/// Ends a round: its sequence keeps the tokens that were `drawn` of it, and the drafter learns which of its drafts were
/// right.
fn settle(
    engine: &mut Engine,
    sequence: SequenceId,
    drafter: Option<&mut Drafter>,
    drafts: &[u32],
    drawn: &[u32],
) -> Result<(), EngineError> {
    if drawn.len() <= drafts.len() {
        engine.keep_first(sequence, drawn.len())?;
    }
    if let (Some(drafter), false) = (drafter, drafts.is_empty()) {
        engine.note_drafts(drafter, drafts, drawn);
    }
    Ok(())
}

/// Draws a token from a row of logits, within a call by the rule of its arguments.
fn sample(
    sampler: &mut Sampler,
    calls: &mut Option<CallWatch>,
    logits: &mut [f32],
    history: &[u32],
) -> Result<u32, SamplingError> {
    let sampled = match calls {
        Some(watch) => watch.sample(sampler, logits, history),
        None => sampler.sample(logits, history),
    };
    Ok(sampled?.token)
}

/// Appends `prompt` to `sequence` and generates.
///
/// The last generated token is not yet part of the sequence when this returns: the next prompt begins
/// with it.
///
/// # Errors
/// An empty prompt, a prompt longer than the context, or what [`Engine::forward`] reports.
pub fn generate(
    engine: &mut Engine,
    sequence: SequenceId,
    prompt: &[u32],
    drawing: Drawing<'_>,
    limits: &Limits,
    listeners: Listeners<'_>,
) -> Result<Finish, EngineError> {
    let Drawing { mut sampler, mut calls, mut drafter, history } = drawing;
    let Listeners { cancel, progress, each } = listeners;
    check_length(engine.sequence_length(sequence), prompt.len(), limits.context)?;
    history.extend_from_slice(prompt);
    sampler.set_prompt_tokens(history.len());
    let mut last = 0;
    engine.prefill(sequence, prompt, cancel, progress, &mut |_, _, length| {
        last = length - 1;
        Ok(())
    })?;
    let vocabulary = engine.config().vocabulary;
    // The row of the last batch after which the next token is drawn; those behind it have run the drafts.
    let (mut row, mut drafts) = (last, Vec::new());
    let (mut left, mut began) = (limits.tokens, None::<Instant>);
    while left > 0 {
        let held = engine.sequence_length(sequence) - drafts.len();
        let free = drafts.is_empty() && calls.as_ref().is_none_or(|watch| !watch.in_call());
        let chosen = if free { engine.draw(row, &mut sampler, None) } else { None };
        let mut chosen = chosen.transpose()?;
        let logits = match chosen {
            Some(_) => &mut [],
            None => engine.logits(&(row..=row + drafts.len()).collect::<Vec<_>>())?,
        };
        let time = began.map(|began| began.elapsed());
        let (mut kept, mut finish, mut token) = (0, None, 0);
        while finish.is_none() && left > 0 {
            let position = held + kept;
            token = match chosen.take() {
                Some(token) => token,
                None => {
                    let logits = &mut logits[kept * vocabulary..(kept + 1) * vocabulary];
                    let sampled = sample(&mut sampler, &mut calls, logits, history);
                    sampled.map_err(|reason| EngineError::Sampling { position, reason })?
                }
            };
            if let Some(watch) = &mut calls {
                watch.accept(token);
            }
            history.push(token);
            left -= 1;
            let flow = each(token);
            finish = limits.finish(token, flow, position);
            kept += 1;
            if drafts.get(kept - 1) != Some(&token) {
                break;
            }
        }
        if let Some(time) = time {
            engine.note_step(drafts.len() + 1, time);
        }
        let drawn = &history[history.len() - kept..];
        settle(engine, sequence, drafter.as_mut(), &drafts, drawn)?;
        if let Some(finish) = finish {
            return Ok(finish);
        }
        let free = limits.context - engine.sequence_length(sequence) - 1;
        let room = DraftRoom { most: free.min(left.saturating_sub(1)), others: 0 };
        drafts = drafter
            .as_mut()
            .map_or_else(Vec::new, |drafter| engine.propose(drafter, sequence, history, room));
        began = Some(Instant::now());
        let tokens = [&[token], &drafts[..]].concat();
        engine.step(&[Run { sequence, tokens: &tokens }], cancel)?;
        row = 0;
    }
    Ok(Finish::Length)
}

//! One sequence, one answer: prefill, then token by token until something ends it.

use std::ops::ControlFlow;

use crate::EngineError;
use crate::backend::{Cancel, Run, SequenceId};
use crate::engine::{Engine, PrefillProgress};
use text::constraint::CallWatch;
use text::sampling::Sampler;

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model produced an end token.
    End,
    /// The token limit or the end of the context was reached.
    Length,
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
    let Drawing { mut sampler, mut calls, history } = drawing;
    let Listeners { cancel, progress, each } = listeners;
    if prompt.is_empty() {
        return Err(EngineError::Request("the prompt is empty".to_owned()));
    }
    let needed = engine.sequence_length(sequence) + prompt.len();
    if needed > limits.context {
        let context = limits.context;
        let found = format!("the conversation of {needed} tokens exceeds the context of {context}");
        return Err(EngineError::Request(found));
    }
    history.extend_from_slice(prompt);
    sampler.set_prompt_tokens(history.len());
    let mut last = 0;
    engine.prefill(sequence, prompt, cancel, progress, &mut |_, _, length| {
        last = length - 1;
        Ok(())
    })?;
    for _ in 0..limits.tokens {
        let position = engine.sequence_length(sequence);
        let free = calls.as_ref().is_none_or(|watch| !watch.in_call());
        let token = match if free { engine.draw(last, &mut sampler) } else { None } {
            Some(token) => token?,
            None => {
                let logits = engine.logits(&[last])?;
                let sampled = match &mut calls {
                    Some(watch) => watch.sample(&mut sampler, logits, history),
                    None => sampler.sample(logits, history),
                };
                sampled.map_err(|error| EngineError::Sampling { position, reason: error })?.token
            }
        };
        if let Some(watch) = &mut calls {
            watch.accept(token);
        }
        history.push(token);
        let flow = each(token);
        if limits.end_tokens.contains(&token) {
            return Ok(Finish::End);
        }
        if flow.is_break() {
            return Ok(Finish::Stopped);
        }
        if position == limits.context {
            return Ok(Finish::Length);
        }
        engine.forward(&[Run { sequence, tokens: &[token] }], cancel)?;
        last = 0;
    }
    Ok(Finish::Length)
}

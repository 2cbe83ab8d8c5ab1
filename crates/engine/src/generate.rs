//! One sequence, one answer: prefill, then token by token until something ends it.

use std::ops::ControlFlow;

use crate::EngineError;
use crate::backend::{Cancel, Run, SequenceId};
use crate::constraint::CallWatch;
use crate::engine::{Engine, PrefillProgress};
use crate::sampling::Sampler;

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

/// Appends `prompt` to `sequence` and generates. `history` receives every token of the sequence (for
/// penalties and for the caller); `calls` watches over calls that begin; `each` hears every generated token and may
/// stop.
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
    sampler: &mut Sampler,
    mut calls: Option<CallWatch>,
    history: &mut Vec<u32>,
    limits: &Limits,
    cancel: &dyn Cancel,
    progress: &mut dyn FnMut(PrefillProgress),
    each: &mut dyn FnMut(u32) -> ControlFlow<()>,
) -> Result<Finish, EngineError> {
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
        let token = match if free { engine.draw(last, sampler) } else { None } {
            Some(token) => token?,
            None => {
                let logits = engine.logits(&[last])?;
                let sampled = match &mut calls {
                    Some(watch) => watch.sample(sampler, logits, history),
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

//! How much is to be thought, under the names that servers have given it.

use serde_json::Value;

use super::{Draft, Fields};
use crate::http::ApiError;

/// Names of the most tokens of thinking: Qwen's service, llama.cpp, vLLM.
const BUDGETS: [&str; 5] = [
    "thinking_budget",
    "reasoning_budget",
    "reasoning_budget_tokens",
    "thinking_budget_tokens",
    "thinking_token_budget",
];

/// What a protocol without words of its own for it may say: efforts, budgets, and the template's variables, which are
/// nearest to it and win.
pub(crate) fn read_thinking(fields: &Fields<'_>, draft: &mut Draft) -> Result<(), ApiError> {
    if let Some(effort) = fields.string("reasoning_effort")? {
        draft.set_effort(effort, "reasoning_effort")?;
    }
    if let Some(thinks) = fields.boolean("enable_thinking")? {
        draft.conversation.thinking = Some(thinks);
    }
    for name in BUDGETS {
        set_budget(fields, name, draft)?;
    }
    // OpenRouter's object.
    if let Some(reasoning) = fields.object("reasoning")? {
        if let Some(effort) = reasoning.string("effort")? {
            draft.set_effort(effort, "reasoning.effort")?;
        }
        if let Some(thinks) = reasoning.boolean("enabled")? {
            draft.conversation.thinking = Some(thinks);
        }
        set_budget(&reasoning, "max_tokens", draft)?;
    }
    // Anthropic's, which others have taken over.
    if let Some(thinking) = fields.object("thinking")? {
        match thinking.string("type")? {
            Some("enabled") => draft.conversation.thinking = Some(true),
            Some("disabled") => draft.conversation.thinking = Some(false),
            _ => {}
        }
        set_budget(&thinking, "budget_tokens", draft)?;
    }
    let Some(variables) = fields.object("chat_template_kwargs")? else { return Ok(()) };
    if let Some(thinks) = variables.boolean("enable_thinking")? {
        draft.conversation.thinking = Some(thinks);
    }
    for (name, value) in variables.map() {
        if name != "enable_thinking" {
            let value: Value = value.clone();
            draft.conversation.template_variables.insert(name.clone(), value);
        }
    }
    Ok(())
}

/// Takes a budget: none at all where it is 0.
fn set_budget(fields: &Fields<'_>, name: &str, draft: &mut Draft) -> Result<(), ApiError> {
    if fields.integer(name)? == Some(0) {
        draft.conversation.thinking = Some(false);
    } else if let Some(budget) = fields.token_limit(name)? {
        draft.thinking_budget = Some(budget);
    }
    Ok(())
}

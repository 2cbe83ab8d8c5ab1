//! `/tokenize`, `/detokenize` and `/apply-template`, with the fields of llama.cpp's server and of vLLM's.
//!
//! llama.cpp sends `content` and reads `tokens` and `content`; vLLM sends `prompt` or `messages` and reads `count`,
//! `max_model_len` and `prompt`. Both are answered at once, so that a client of either need not know which it asks.

use serde_json::{Map, Value, json};
use text::OnFull;

use crate::chat;
use crate::http::ApiError;
use crate::protocol::{Defaults, Fields, Understand, token_ids};
use crate::work::{PrepareError, Preparing, Prompt, Worker};

/// The tokens of a text or of a conversation.
pub(crate) fn tokenize(
    worker: &dyn Worker,
    body: &Map<String, Value>,
    defaults: Defaults,
    preparing: Preparing<'_>,
) -> Result<Value, ApiError> {
    let fields = Fields::of(body);
    let prompt = match fields.string("content")?.or(fields.string("prompt")?) {
        Some(text) => text_prompt(worker, &fields, text, preparing)?,
        None if fields.get("messages").is_some() => {
            let mut request = chat::Request::parse(&fields, defaults)?;
            // All turns are asked for, also where an answer would leave some out.
            let conversation = &mut request.draft_mut().conversation;
            conversation.on_full = Some(OnFull::Stop);
            worker.prepare(conversation, preparing)?
        }
        None => return Err(fields.error("content", "is missing; prompt or messages will do")),
    };
    let ids = &*prompt.tokens;
    let text = |id: &u32| String::from_utf8_lossy(&worker.token_bytes(*id)).into_owned();
    let tokens: Value = if fields.boolean("with_pieces")?.unwrap_or(false) {
        let piece = |id: &u32| {
            let bytes = worker.token_bytes(*id);
            let piece = String::from_utf8(bytes)
                .map_or_else(|error| json!(error.into_bytes()), Value::String);
            json!({ "id": id, "piece": piece })
        };
        ids.iter().map(piece).collect()
    } else {
        json!(ids)
    };
    let mut answer = json!({
        "tokens": tokens,
        "count": ids.len(),
        "max_model_len": worker.context_length(),
    });
    if fields.boolean("return_token_strs")?.unwrap_or(false) {
        answer["token_strs"] = ids.iter().map(text).collect();
    }
    Ok(answer)
}

fn text_prompt(
    worker: &dyn Worker,
    fields: &Fields<'_>,
    text: &str,
    preparing: Preparing<'_>,
) -> Result<Prompt, ApiError> {
    // These models begin a text with no token of their own: there is nothing to add.
    let _nothing = fields.boolean("add_special")?.or(fields.boolean("add_special_tokens")?);
    let marked = fields.boolean("parse_special")?.unwrap_or(true);
    let prompt = if text.is_empty() {
        Ok(Prompt::default())
    } else if marked {
        worker.prepare_marked(text, preparing)
    } else {
        worker.prepare_text(text, preparing)
    };
    prompt.map_err(|error| match error {
        PrepareError::Conversation(problem) => ApiError::field("content", problem),
        other => other.into(),
    })
}

/// The text of a conversation's prompt, in the words of llama.cpp's server.
pub(crate) fn apply_template(
    worker: &dyn Worker,
    body: &Map<String, Value>,
    defaults: Defaults,
    preparing: Preparing<'_>,
) -> Result<Value, ApiError> {
    let request = chat::Request::parse(&Fields::of(body), defaults)?;
    let prompt = worker.prepare(&request.draft().conversation, preparing)?;
    let bytes: Vec<u8> = prompt.tokens.iter().flat_map(|&id| worker.token_bytes(id)).collect();
    Ok(json!({ "prompt": String::from_utf8_lossy(&bytes) }))
}

/// The text of tokens.
pub(crate) fn detokenize(
    worker: &dyn Worker,
    body: &Map<String, Value>,
    vocabulary: usize,
) -> Result<Value, ApiError> {
    let fields = Fields::of(body);
    let items = fields.list("tokens")?.ok_or_else(|| fields.error("tokens", "is missing"))?;
    let tokens = token_ids("tokens", items, vocabulary)?;
    let bytes: Vec<u8> = tokens.iter().flat_map(|&token| worker.token_bytes(token)).collect();
    let text = String::from_utf8_lossy(&bytes);
    Ok(json!({ "content": text, "prompt": text }))
}

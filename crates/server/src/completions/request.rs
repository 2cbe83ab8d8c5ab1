//! The request: every field is honoured, refused by name, or is one that asks for nothing.

use serde_json::Value;
use text::OnFull;
use text::sampling::TOP_LOGPROBS_MAX;

use super::text::Echo;
use crate::http::ApiError;
use crate::protocol::{Defaults, Draft, Fields, kind, response_format, token_ids};
use crate::work::{PrepareError, Preparing, Prompt, Worker};

/// The protocol's default, unlike that of conversations, which go to their end.
const MAX_TOKENS: usize = 16;
/// A token with its probability until it is written.
const LOGPROB_BYTES: usize = 160;
/// Most prompts of a request.
const PROMPTS_MAX: usize = 128;

/// A prompt as it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    Text(String),
    Tokens(Vec<u32>),
}

/// A request as understood.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) draft: Draft,
    pub(crate) stream: bool,
    /// It says how many tokens the answer may have.
    pub(crate) limited: bool,
    pub(super) include_usage: bool,
    prompts: Vec<Given>,
    suffix: Option<String>,
    /// Texts of control tokens are those tokens.
    marked: bool,
    /// The answer begins with the prompt.
    repeats: bool,
    /// Tokens of the longest prompt whose probabilities are wanted.
    judged: usize,
    /// Known once the prompts are made; empty where nothing is repeated.
    pub(super) echo: Vec<Echo>,
}

impl Request {
    pub(crate) fn read(fields: &Fields<'_>, defaults: Defaults) -> Result<Self, ApiError> {
        refuse_unsupported(fields)?;
        let vocabulary = defaults.vocabulary;
        let mut draft = Draft::new(fields, defaults)?;
        draft.output.raw = true;
        if draft.conversation.on_full == Some(OnFull::DropOldest) {
            let problem = "a text has no turns to leave out; use /v1/chat/completions";
            return Err(fields.error("on_full", problem));
        }
        let limits = ["max_tokens", "n_predict", "max_new_tokens"];
        let limited = limits.iter().any(|name| fields.get(name).is_some());
        draft.max_tokens = match fields.integer("max_tokens")? {
            Some(0) => Some(0),
            Some(_) => fields.token_limit("max_tokens")?,
            None if limited => draft.max_tokens,
            None => Some(MAX_TOKENS),
        };
        draft.note_limits(fields, &["max_tokens"])?;
        draft.set_format(response_format(fields)?)?;
        draft.set_stop(fields.strings("stop")?, "stop")?;
        draft.top_logprobs = read_logprobs(fields)?;
        let repeats = fields.boolean("echo")?.unwrap_or(false);
        draft.prompt_logprobs = repeats && draft.top_logprobs.is_some();
        let prompts = read_prompts(fields, vocabulary)?;
        let suffix = fields.string("suffix")?.filter(|suffix| !suffix.is_empty());
        if suffix.is_some()
            && (repeats || prompts.iter().any(|one| matches!(one, Given::Tokens(_))))
        {
            return Err(fields.error("suffix", "needs a prompt of text, and no echo"));
        }
        let options = fields.object("stream_options")?;
        let include_usage = options.map(|options| options.boolean("include_usage")).transpose()?;
        Ok(Self {
            draft,
            limited,
            stream: fields.boolean("stream")?.unwrap_or(false),
            include_usage: include_usage.flatten().unwrap_or(false),
            prompts,
            suffix: suffix.map(str::to_owned),
            marked: fields.boolean("parse_special")?.unwrap_or(true),
            repeats,
            judged: 0,
            echo: Vec::new(),
        })
    }

    /// The prompts as tokens. What was sent is not needed any more then.
    pub(super) fn make_prompts(
        &mut self,
        worker: &dyn Worker,
        preparing: Preparing<'_>,
    ) -> Result<Vec<Prompt>, ApiError> {
        let mut made = Vec::with_capacity(self.prompts.len());
        for given in std::mem::take(&mut self.prompts) {
            let prompt = match (given, &self.suffix) {
                (Given::Tokens(tokens), _) => {
                    worker.prepare_tokens(tokens).map_err(at("prompt"))?
                }
                (Given::Text(text), Some(suffix)) => {
                    let prompt = worker.prepare_infill(&text, suffix, preparing);
                    prompt.map_err(at("suffix"))?
                }
                (Given::Text(text), None) if self.marked => {
                    worker.prepare_marked(&text, preparing).map_err(at("prompt"))?
                }
                (Given::Text(text), None) => {
                    worker.prepare_text(&text, preparing).map_err(at("prompt"))?
                }
            };
            if self.repeats {
                let bytes = |token: &u32| worker.token_bytes(*token);
                let text: Vec<u8> = prompt.tokens.iter().flat_map(bytes).collect();
                let text = String::from_utf8_lossy(&text).into_owned();
                let first = prompt.tokens.first().map(bytes).unwrap_or_default();
                self.echo.push(Echo { text, first });
                if self.draft.prompt_logprobs {
                    self.judged = self.judged.max(prompt.tokens.len());
                }
            }
            made.push(prompt);
        }
        Ok(made)
    }

    /// Memory of texts that are repeated, and of the probabilities of one prompt, which a stream sends together.
    pub(super) fn prompt_bytes(&self) -> usize {
        let texts: usize =
            self.echo.iter().map(|echo| 2 * echo.text.len() + size_of::<Echo>()).sum();
        let alternatives = 1 + usize::from(self.draft.top_logprobs.unwrap_or(0));
        texts + self.judged * alternatives * LOGPROB_BYTES
    }
}

/// Names the field of what the work room refuses.
fn at(field: &'static str) -> impl Fn(PrepareError) -> ApiError {
    move |error| match error {
        PrepareError::Conversation(problem) => ApiError::field(field, problem),
        other => other.into(),
    }
}

fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), ApiError> {
    for field in ["tools", "messages"] {
        if fields.get(field).is_some() {
            return Err(fields.error(field, "is not supported; use /v1/chat/completions"));
        }
    }
    Ok(())
}

fn read_logprobs(fields: &Fields<'_>) -> Result<Option<u8>, ApiError> {
    let Some(top) = fields.integer("logprobs")? else { return Ok(None) };
    let most = i64::try_from(TOP_LOGPROBS_MAX).unwrap_or(i64::MAX);
    let known = u8::try_from(top).ok().filter(|_| top <= most);
    let wrong = || fields.error("logprobs", format!("must be from 0 to {most}, not {top}"));
    known.map(Some).ok_or_else(wrong)
}

/// A text, a list of texts, a list of token ids, or a list of such lists.
fn read_prompts(fields: &Fields<'_>, vocabulary: usize) -> Result<Vec<Given>, ApiError> {
    let form = "must be a string, a list of strings, a list of token ids, or a list of such lists";
    let wrong = || fields.error("prompt", form);
    let given = fields.get("prompt").ok_or_else(|| fields.error("prompt", "is missing"))?;
    let items = match given {
        Value::String(text) => return Ok(vec![Given::Text(text.clone())]),
        Value::Array(items) => items,
        other => return Err(fields.error("prompt", format!("{form}, not {}", kind(other)))),
    };
    if items.first().is_some_and(Value::is_number) {
        return Ok(vec![Given::Tokens(token_ids("prompt", items, vocabulary)?)]);
    }
    if items.is_empty() || items.len() > PROMPTS_MAX {
        let problem = format!("has {} prompts; 1 to {PROMPTS_MAX} can be sent", items.len());
        return Err(fields.error("prompt", problem));
    }
    let one = |(index, item): (usize, &Value)| match item {
        Value::String(text) => Ok(Given::Text(text.clone())),
        Value::Array(ids) => {
            token_ids(&format!("prompt[{index}]"), ids, vocabulary).map(Given::Tokens)
        }
        _ => Err(wrong()),
    };
    items.iter().enumerate().map(one).collect()
}

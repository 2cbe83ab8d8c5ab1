//! What a request amounts to once its protocol's envelope is taken off: everything of a job but its prompt.

use serde_json::Value;
use store::shown::quoted;
use text::sampling::{SamplingError, SamplingOptions};
use text::{OnFull, StopStrings, TextError};

use super::constraint::{self, Placed};
use super::{Choice, Fields, bias, repetition, weight};
use crate::http::{ApiError, Kind};
use crate::work::{Constraint, Conversation, Job, OutputRules, Owner, Priority, Prompt};

/// Suffix of a model's name that asks for low priority: clients let their user name a model for titles and
/// summaries, and this is the one thing that they say about such requests.
pub(crate) const SIDE_SUFFIX: &str = ":side";

/// Longest name of a model: every event of an answer repeats it.
const MODEL_BYTES_MAX: usize = 512;

/// Memory of tools and schemas where they are enforced, in times of their own, copies included: measured over
/// schemas of 900 properties, which take 5 MB each.
const GRAMMAR_FACTOR: usize = 10;

/// Most tokens that end an answer, besides those of the model.
const STOP_TOKENS_MAX: usize = 64;

/// What requests leave open.
#[derive(Clone, Debug)]
pub(crate) struct Defaults {
    /// The sampling that the model recommends.
    pub(crate) sampling: SamplingOptions,
    /// Tokens in the vocabulary.
    pub(crate) vocabulary: usize,
    /// Most tokens of a conversation.
    pub(crate) context: usize,
    /// Drawn for this request.
    pub(crate) seed: u64,
    /// `x-session-id` of the request.
    pub(crate) session: Option<String>,
}

/// A job without its prompt.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    /// The model's name as the client wrote it; it is told the same name back.
    pub(crate) model: String,
    pub(crate) conversation: Conversation,
    pub(crate) sampling: SamplingOptions,
    pub(crate) max_tokens: Option<usize>,
    /// Fewest tokens of the answer; all that there is room for where its end is to be ignored.
    pub(crate) min_tokens: usize,
    /// Tokens that end the answer, besides those of the model.
    pub(crate) stop_tokens: Vec<u32>,
    /// Most tokens of thinking.
    pub(crate) thinking_budget: Option<usize>,
    pub(crate) stop: Vec<String>,
    pub(crate) output: OutputRules,
    pub(crate) constraint: Option<Constraint>,
    /// The field that has the constraint.
    pub(crate) place: Option<String>,
    pub(crate) top_logprobs: Option<u8>,
    /// Of the prompt's tokens too.
    pub(crate) prompt_logprobs: bool,
    pub(crate) priority: Priority,
    pub(crate) session: Option<String>,
    pub(crate) cache_prompt: bool,
    /// The slot under which the conversation is found afterwards.
    pub(crate) slot: Option<usize>,
    /// The model is to be unloaded once it has answered.
    pub(crate) unloads: bool,
    /// What the client should know of its request, for the header `x-warning`.
    pub(crate) notes: Vec<String>,
}

impl Draft {
    /// Reads what all protocols name alike: model, sampling, session.
    pub(crate) fn new(fields: &Fields<'_>, defaults: Defaults) -> Result<Self, ApiError> {
        Self::with_options(fields, fields, defaults)
    }

    /// [`Draft::new`] where sampling stands in an object of its own.
    pub(crate) fn with_options(
        fields: &Fields<'_>,
        options: &Fields<'_>,
        defaults: Defaults,
    ) -> Result<Self, ApiError> {
        let model = fields.string("model")?.unwrap_or_default().to_owned();
        if model.len() > MODEL_BYTES_MAX {
            let problem = format!("has {} bytes, more than {MODEL_BYTES_MAX}", model.len());
            return Err(fields.error("model", problem));
        }
        let priority = if model.ends_with(SIDE_SUFFIX) { Priority::Side } else { Priority::Normal };
        let mut sampling = defaults.sampling;
        sampling.seed = options.seed("seed")?.unwrap_or(defaults.seed);
        read_sampling(options, &mut sampling, defaults.vocabulary)?;
        let hint = fields.string("session_id")?.or(fields.string("prompt_cache_key")?);
        let conversation =
            Conversation { on_full: read_on_full(fields)?, ..Conversation::default() };
        let (constraint, place) = constraint::of_others(options)?.unzip();
        Ok(Self {
            model,
            conversation,
            sampling,
            max_tokens: read_most(options)?,
            min_tokens: read_least(options)?,
            stop_tokens: read_stop_tokens(options, defaults.vocabulary)?,
            thinking_budget: None,
            stop: Vec::new(),
            output: OutputRules::default(),
            constraint,
            place,
            top_logprobs: None,
            prompt_logprobs: false,
            priority,
            session: hint.map(str::to_owned).or(defaults.session),
            cache_prompt: fields.boolean("cache_prompt")?.unwrap_or(true),
            slot: read_slot(options)?,
            unloads: false,
            notes: Vec::new(),
        })
    }

    /// Takes the format that a protocol's own field asks for.
    pub(crate) fn set_format(&mut self, format: Option<Placed>) -> Result<(), ApiError> {
        let Some((constraint, place)) = format else { return Ok(()) };
        if let Some(other) = &self.place {
            return Err(constraint::exclude(&place, other));
        }
        (self.constraint, self.place) = (Some(constraint), Some(place));
        Ok(())
    }

    /// Takes stop strings, if there are not too many and none is empty or too long.
    pub(crate) fn set_stop(&mut self, stop: Vec<String>, param: &str) -> Result<(), ApiError> {
        StopStrings::new(stop.clone()).map_err(|error| match error {
            TextError::Value { problem, .. } => ApiError::field(param, problem),
            other => ApiError::field(param, other),
        })?;
        self.stop = stop;
        Ok(())
    }

    /// Takes tools and the choice among them. Without permission to call, the model is not shown any: what it
    /// cannot see it cannot try to call.
    pub(crate) fn set_tools(
        &mut self,
        tools: Vec<Value>,
        choice: &Choice,
        param: &str,
    ) -> Result<(), ApiError> {
        let constraint = choice.constraint(&tools, param)?;
        if constraint.is_some() && self.constraint.is_some() {
            let problem = "a required call and a required format of the answer exclude each other";
            return Err(ApiError::field(param, problem));
        }
        self.constraint = constraint.or(self.constraint.take());
        if *choice != Choice::None {
            self.conversation.tools.clone_from(&tools);
            self.output.tools = tools;
        }
        Ok(())
    }

    /// Effort in the words of the protocols: `none` is no thinking; the others are told to the template, which
    /// may know them.
    pub(crate) fn set_effort(&mut self, effort: &str, param: &str) -> Result<(), ApiError> {
        let known = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
        if !known.contains(&effort) {
            let problem = format!("{} is not one of {}", quoted(effort), known.join(", "));
            return Err(ApiError::field(param, problem));
        }
        self.conversation.thinking = Some(effort != "none");
        if effort != "none" {
            let variables = &mut self.conversation.template_variables;
            variables.insert("reasoning_effort".to_owned(), Value::String(effort.to_owned()));
        }
        Ok(())
    }

    /// Memory, roughly, that is kept until the answer's end: tools and schema here, in the job, and compiled.
    pub(crate) fn kept_bytes(&self) -> usize {
        let schema = match &self.constraint {
            Some(Constraint::JsonSchema(schema)) => weight(schema),
            Some(Constraint::Grammar(text) | Constraint::Regex(text)) => text.len(),
            Some(Constraint::OneOf(texts)) => texts.iter().map(String::len).sum(),
            None | Some(Constraint::JsonObject | Constraint::Tool(_)) => 0,
        };
        let tools: usize = self.output.tools.iter().map(weight).sum();
        let session = self.session.as_ref().map_or(0, String::len);
        GRAMMAR_FACTOR * (tools + schema)
            + 3 * session
            + size_of_val(self.sampling.logit_bias.as_slice())
            + self.sampling.dry.breakers.iter().map(String::len).sum::<usize>()
    }

    /// The job.
    pub(crate) fn into_job(self, id: String, prompt: Prompt, client: String, owner: Owner) -> Job {
        Job {
            id,
            prompt,
            sampling: self.sampling,
            max_tokens: self.max_tokens,
            min_tokens: self.min_tokens,
            stop_tokens: self.stop_tokens,
            thinking_budget: self.thinking_budget,
            stop: self.stop,
            output: self.output,
            constraint: self.constraint,
            top_logprobs: self.top_logprobs,
            prompt_logprobs: self.prompt_logprobs,
            priority: self.priority,
            client,
            owner,
            session: self.session,
            trace: None,
            cache_prompt: self.cache_prompt,
            slot: self.slot,
        }
    }

    /// Notes which limits of the answer count for nothing because an earlier name says another; the endpoint's own are
    /// first.
    pub(crate) fn note_limits(
        &mut self,
        fields: &Fields<'_>,
        own: &[&str],
    ) -> Result<(), ApiError> {
        let mut first = None;
        for &name in own.iter().chain(&LIMITS) {
            let Some(value) = fields.integer(name)? else { continue };
            match first {
                None => first = Some((name, value)),
                Some((_, holds)) if holds == value => {}
                Some((holds, _)) => {
                    self.notes.push(format!("{name} was ignored: {holds} limits the answer"));
                }
            }
        }
        Ok(())
    }
}

/// What happens where the conversation does not fit the context.
fn read_on_full(fields: &Fields<'_>) -> Result<Option<OnFull>, ApiError> {
    let named = fields.string("on_full")?.map(str::parse::<OnFull>);
    named.transpose().map_err(|problem| fields.error("on_full", problem))
}

/// Most tokens of an answer under the names of others: the first counts.
const LIMITS: [&str; 2] = ["n_predict", "max_new_tokens"];

/// Their value; 0 computes the prompt alone.
fn read_most(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    for name in LIMITS {
        match fields.integer(name)? {
            None => {}
            Some(0) => return Ok(Some(0)),
            // -2 fills the context, which is where all answers end.
            Some(-2) => return Ok(None),
            Some(_) => return fields.token_limit(name),
        }
    }
    Ok(None)
}

/// The slot of a conversation; -1 for any.
fn read_slot(options: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    match options.integer("id_slot")? {
        None | Some(-1) => Ok(None),
        Some(slot) => {
            let wrong =
                |_| options.error("id_slot", format!("must be a slot's number or -1, not {slot}"));
            usize::try_from(slot).map(Some).map_err(wrong)
        }
    }
}

/// Fewest tokens of an answer.
fn read_least(fields: &Fields<'_>) -> Result<usize, ApiError> {
    let least = fields.integer("min_tokens")?.unwrap_or(0);
    let wrong = |_| fields.error("min_tokens", format!("must be 0 or above, not {least}"));
    let least = usize::try_from(least).map_err(wrong)?;
    Ok(if fields.boolean("ignore_eos")?.unwrap_or(false) { usize::MAX } else { least })
}

fn read_stop_tokens(fields: &Fields<'_>, vocabulary: usize) -> Result<Vec<u32>, ApiError> {
    let Some(items) = fields.list("stop_token_ids")? else { return Ok(Vec::new()) };
    if items.len() > STOP_TOKENS_MAX {
        let problem = format!("has {} entries, more than {STOP_TOKENS_MAX}", items.len());
        return Err(fields.error("stop_token_ids", problem));
    }
    token_ids(&fields.name("stop_token_ids"), items, vocabulary)
}

/// Token ids of a vocabulary; `path` is the list's place in the request.
pub(crate) fn token_ids(
    path: &str,
    items: &[Value],
    vocabulary: usize,
) -> Result<Vec<u32>, ApiError> {
    let one = |(index, item): (usize, &Value)| {
        let id = item.as_u64().and_then(|id| u32::try_from(id).ok());
        id.filter(|&id| (id as usize) < vocabulary).ok_or_else(|| {
            let problem = format!("is no token: the vocabulary has {vocabulary}");
            ApiError::field(format!("{path}[{index}]"), problem)
        })
    };
    items.iter().enumerate().map(one).collect()
}

fn read_sampling(
    fields: &Fields<'_>,
    sampling: &mut SamplingOptions,
    vocabulary: usize,
) -> Result<(), ApiError> {
    let set = |name: &str, target: &mut f32| -> Result<(), ApiError> {
        if let Some(number) = fields.number(name)? {
            *target = number;
        }
        Ok(())
    };
    set("temperature", &mut sampling.temperature)?;
    set("top_p", &mut sampling.top_p)?;
    set("min_p", &mut sampling.min_p)?;
    set("presence_penalty", &mut sampling.presence_penalty)?;
    set("frequency_penalty", &mut sampling.frequency_penalty)?;
    set("repeat_penalty", &mut sampling.repetition_penalty)?;
    set("repetition_penalty", &mut sampling.repetition_penalty)?;
    match fields.integer("top_k")? {
        None => {}
        Some(-1) => sampling.top_k = 0,
        Some(top_k) => {
            let wrong = |_| fields.error("top_k", format!("must be -1 or above, not {top_k}"));
            sampling.top_k = usize::try_from(top_k).map_err(wrong)?;
        }
    }
    for name in ["repeat_last_n", "penalty_last_n"] {
        match fields.integer(name)? {
            None => {}
            Some(-1) => sampling.penalty_window = None,
            Some(last) => {
                let wrong = |_| fields.error(name, format!("must be -1 or above, not {last}"));
                sampling.penalty_window = Some(usize::try_from(last).map_err(wrong)?);
            }
        }
    }
    repetition::read(fields, sampling)?;
    if fields.get("logit_bias").is_some() {
        bias::read(fields, vocabulary, &mut sampling.logit_bias)?;
    }
    sampling.validate().map_err(|error| {
        let refusal = ApiError::new(Kind::InvalidRequest, error.to_string());
        match error {
            SamplingError::Parameter { name, .. } => refusal.at(name),
            _ => refusal,
        }
    })
}

/// A conversation that the text room refuses, with its place as the parameter.
pub(crate) fn text_error(error: TextError) -> ApiError {
    match &error {
        TextError::Message { index, field, problem } => {
            ApiError::field(format!("messages[{index}]{field}"), problem)
        }
        TextError::Value { field, problem } => ApiError::field(field.clone(), problem),
        other => ApiError::new(Kind::InvalidRequest, other.to_string()),
    }
}

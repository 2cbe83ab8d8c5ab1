//! Requests that the model works for: from a body to a job's answer, by whichever protocol.
//!
//! Where a server has several models, the body says which; the request then waits here until its model is loaded, and
//! holds it until its answer has ended.

use std::sync::Arc;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Map, Value, json};
use store::shown::shown;

use super::answer::Answer;
use super::app::App;
use super::body::model_named;
use super::client::Client;
use super::error::ApiError;
use super::prepare::Received;
use super::several::one_after_another;
use super::stream::stream;
use super::whole::whole;
use crate::protocol::{Defaults, Envelope, Fields, Gathered, Protocol, Understand, judge};
use crate::registry::{Chosen, plain};
use crate::work::{Conversation, Job, Preparing, Prompt, Ticket, Worker};
use crate::{messages, ollama};

/// Says which field of a request was ignored although another was meant.
const WARNING: HeaderName = HeaderName::from_static("x-warning");
/// Longest key of a conversation that is given back.
const SESSION_BYTES_MAX: usize = 256;

impl App {
    /// The model that a body names, once it is loaded; its request holds it from here on.
    pub(super) async fn chosen(
        &self,
        received: Received,
    ) -> Result<(Arc<Chosen>, Received), ApiError> {
        if self.models.only().is_some() {
            // Its body is read once, where the prompt is made.
            return Ok((Arc::new(self.models.choose("").await?), received));
        }
        let values = self.limits.body_values;
        let look = move |received: &mut Received, _: &dyn Fn() -> bool| {
            let name = model_named(&received.bytes, values)?;
            Ok((name, std::mem::take(&mut received.bytes)))
        };
        let ((name, bytes), mut share) = self.preparation.run(received, look).await?;
        let mut chosen = self.models.choose(&name).await?;
        share.hold(chosen.lease.take());
        Ok((Arc::new(chosen), Received { bytes, share, warning: None }))
    }

    /// The name in a body, where no model is needed for what is asked.
    async fn name_in(&self, received: Received) -> Result<String, ApiError> {
        let values = self.limits.body_values;
        let look = move |received: &mut Received, _: &dyn Fn() -> bool| {
            let mut body = received.object(values)?;
            let name = body.remove("model").or_else(|| body.remove("name"));
            match name {
                Some(Value::String(name)) => Ok(name),
                Some(_) => Err(ApiError::field("model", "must be a string")),
                None => Err(ApiError::field("model", "is missing")),
            }
        };
        Ok(self.preparation.run(received, look).await?.0)
    }

    /// Has a model loaded or unloaded, as llama.cpp's router does: the answer does not wait for it.
    pub(super) async fn order(
        &self,
        received: Received,
        loaded: bool,
    ) -> Result<Response<Answer>, ApiError> {
        let name = self.name_in(received).await?;
        let changed = self.models.order(&name, loaded)?;
        Ok(Answer::json(StatusCode::OK, &json!({ "success": true, "changed": changed })))
    }

    /// `/api/show` of one of several models.
    pub(super) async fn show(&self, received: Received) -> Result<Response<Answer>, ApiError> {
        let name = self.name_in(received).await?;
        Ok(ollama::show(&*self.models.view(&name)?))
    }

    /// Works on a body's object with the model that it names, on the thread for such work.
    pub(super) async fn with_object(
        self: &Arc<Self>,
        received: Received,
        client: Client,
        work: impl FnOnce(
            &dyn Worker,
            &Map<String, Value>,
            Defaults,
            Preparing<'_>,
        ) -> Result<Value, ApiError>
        + Send
        + 'static,
    ) -> Result<Response<Answer>, ApiError> {
        let (chosen, received) = self.chosen(received).await?;
        let app = Arc::clone(self);
        let work = move |received: &mut Received, gone: &dyn Fn() -> bool| {
            let body = received.object(app.limits.body_values)?;
            let preparing = Preparing { count: false, gone };
            let defaults = chosen.defaults(&client, app.identify.seed());
            work(&**chosen.worker()?, &body, defaults, preparing)
        };
        let value = self.preparation.run(received, work).await?.0;
        Ok(Answer::json(StatusCode::OK, &value))
    }

    /// Answers a request of a protocol, streamed or whole.
    pub(super) async fn generate<P: Protocol>(
        self: Arc<Self>,
        received: Received,
        client: Client,
    ) -> Result<Response<Answer>, ApiError> {
        let (chosen, received) = self.chosen(received).await?;
        let app = self.clone();
        let prepare = move |received: &mut Received, gone: &dyn Fn() -> bool| {
            let preparing = Preparing { count: false, gone };
            let (mut request, prompts) =
                app.understand::<P>(received, &chosen, &client, preparing)?;
            let draft = request.draft_mut();
            draft.conversation = Conversation::default();
            if draft.unloads && chosen.of_several {
                // Its own answer is waited for, as all others.
                let _left = app.models.order(&chosen.loading.model().id, false)?;
            }
            let model = match draft.model.as_str() {
                "" => chosen.loading.model().id,
                named => named.to_owned(),
            };
            let envelope = Envelope {
                id: format!("{}{}", P::ID_PREFIX, client.identifier),
                created_s: app.identify.now_s(),
                model,
                prompt_tokens: prompts.iter().map(|prompt| prompt.tokens.len()).sum(),
            };
            if let Some(body) = request.idle(&envelope) {
                let answer = Answer::json(StatusCode::OK, &body);
                return Ok((Understood::Answered(answer), received.warning.take()));
            }
            received.share.set(request.kept_bytes() + further_bytes(&prompts))?;
            let mut jobs = prompts.into_iter().enumerate().map(|(index, prompt)| {
                let id = job_id(&client, index);
                let (name, owner) = (client.name.clone(), client.owner.clone());
                let job = request.draft().clone().into_job(id, prompt, name, owner);
                Job { trace: client.trace, ..job }
            });
            let worker = chosen.worker()?;
            let first = jobs.next().ok_or_else(no_prompt)?;
            let submitted = worker.submit(first);
            let place = request.draft().place.as_deref();
            let ticket = submitted.map_err(|refusal| match place {
                Some(place) => refusal.with_constraint_at(place),
                None => refusal,
            })?;
            let aside = Arc::clone(&app.aside);
            let ticket = one_after_another(Arc::clone(worker), aside, ticket, jobs.collect());
            Ok((Understood::Queued { request, envelope, ticket }, received.warning.take()))
        };
        let ((understood, warning), share) = self.preparation.run(received, prepare).await?;
        let closing = self.closing.subscribe();
        let mut session = None;
        let mut response = match understood {
            Understood::Answered(answer) => answer,
            Understood::Queued { request, envelope, ticket } => {
                session.clone_from(&request.draft().session);
                if request.streams() {
                    let heartbeats = Arc::clone(&self.heartbeats);
                    let writer = request.writer(envelope);
                    stream(ticket, writer, self.limits, heartbeats, closing, share)
                } else {
                    let write = move |gathered: Gathered| request.body(&envelope, &gathered);
                    whole(ticket, closing, share, write).await?
                }
            }
        };
        add_headers(response.headers_mut(), warning, session);
        Ok(response)
    }

    /// The tokens of a request's prompt.
    pub(super) async fn count(
        self: &Arc<Self>,
        received: Received,
        client: &Client,
    ) -> Result<usize, ApiError> {
        let (chosen, received) = self.chosen(received).await?;
        let (app, client) = (self.clone(), client.clone());
        let count = move |received: &mut Received, gone: &dyn Fn() -> bool| {
            let preparing = Preparing { count: true, gone };
            let (_, prompts) =
                app.understand::<messages::Count>(received, &chosen, &client, preparing)?;
            Ok(prompts.iter().map(|prompt| prompt.tokens.len()).sum())
        };
        Ok(self.preparation.run(received, count).await?.0)
    }

    /// Reads a body and makes its prompts.
    fn understand<P: Understand>(
        &self,
        received: &mut Received,
        chosen: &Chosen,
        client: &Client,
        preparing: Preparing<'_>,
    ) -> Result<(P, Vec<Prompt>), ApiError> {
        let body = received.object(self.limits.body_values)?;
        let fields = Fields::of(&body);
        let mut request = P::parse(&fields, chosen.defaults(client, self.identify.seed()))?;
        let mut notes = std::mem::take(&mut request.draft_mut().notes);
        if request.draft().unloads && !chosen.of_several {
            notes.push("keep_alive: the model stays loaded until the server ends".to_owned());
        }
        notes.extend(judge(&fields)?);
        notes.extend(chosen.other_model(&request.draft().model));
        received.warning = (!notes.is_empty()).then(|| notes.join("; "));
        drop(body);
        let prompts = request.prepare(&**chosen.worker()?, preparing)?;
        let dropped: usize = prompts.iter().map(|prompt| prompt.dropped_turns).sum();
        if dropped > 0 {
            let turns = if dropped == 1 { "oldest turn was" } else { "oldest turns were" };
            let full = format!("the context is full: {dropped} {turns} left out");
            received.warning = Some(
                received.warning.take().map_or(full.clone(), |first| format!("{first}; {full}")),
            );
        }
        Ok((request, prompts))
    }
}

impl Chosen {
    /// What is said of a model's name that is not the only one's: requests are answered all the same, because clients
    /// have names of their own.
    fn other_model(&self, name: &str) -> Option<String> {
        let served = self.loading.model().id;
        let plain = plain(name);
        let same = self.of_several || plain.is_empty() || plain == served;
        (!same).then(|| format!("the model is {}, whatever name is asked for", shown(&served)))
    }

    /// What a request leaves open.
    pub(super) fn defaults(&self, client: &Client, seed: u64) -> Defaults {
        let card = self.loading.model();
        Defaults {
            sampling: card.sampling,
            vocabulary: card.vocabulary,
            context: card.context,
            seed,
            session: client.session.clone(),
        }
    }
}

/// What a client may learn besides its answer.
fn add_headers(headers: &mut HeaderMap, warning: Option<String>, session: Option<String>) {
    if let Some(warning) = warning.and_then(|text| HeaderValue::try_from(text).ok()) {
        headers.insert(WARNING, warning);
    }
    // Routers that keep a conversation at its server may learn its key here.
    let session = session.filter(|key| key.len() <= SESSION_BYTES_MAX);
    if let Some(session) = session.and_then(|key| HeaderValue::try_from(key).ok()) {
        headers.insert("x-session-id", session);
    }
}

/// Bytes of prompts that wait for the first of their request.
fn further_bytes(prompts: &[Prompt]) -> usize {
    prompts.iter().skip(1).map(|prompt| size_of_val(&*prompt.tokens) + size_of::<Job>()).sum()
}

/// The first job of a request has the request's number, the others one behind it.
fn job_id(client: &Client, index: usize) -> String {
    match index {
        0 => client.id(),
        _ => format!("{}-{index}", client.id()),
    }
}

fn no_prompt() -> ApiError {
    ApiError::field("prompt", "is missing")
}

/// A request that was understood.
enum Understood<P> {
    /// Nothing is computed for it.
    Answered(Response<Answer>),
    /// Its job is queued.
    Queued { request: P, envelope: Envelope, ticket: Ticket },
}

//! One request from its head to its response.
//!
//! Everything that a client can have got wrong is found before the response begins: the guard's checks, the
//! body's limits, the fields, the template, the length of the prompt. So a status is always true, and a stream
//! that has begun can only fail for reasons that are not the client's.
//!
//! Reading a body of JSON and making its prompt can take a tenth of a second, so both run on a thread for such
//! work (`prepare`), one request at a time, because each may take as much memory as the server has planned for that;
//! what runs on the few threads that serve connections takes microseconds.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hyper::body::{Body, Bytes};
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, CONNECTION, CONTENT_ENCODING,
    CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT, VARY,
};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;
use store::shown::shown;
use tokio::sync::watch;

use super::answer::Answer;
use super::body::{read, too_large};
use super::desk::Desk;
use super::drain::{Drain, Phase};
use super::error::{ApiError, Kind};
use super::follow::{Trace, given_id};
use super::guard::Guard;
use super::heads::{Framing, Seen};
use super::identify::Identify;
use super::options::{Limits, ServeOptions};
use super::prepare::{Preparation, Received};
use super::room::Room;
use super::route::{Route, route, shape};
use super::several::one_after_another;
use super::stream::stream;
use super::told::{Ending, Told};
use super::whole::whole;
use crate::log::{Level, Line};
use crate::metrics::Outside;
use crate::protocol::{Defaults, Envelope, Gathered, Protocol, Understand, near_miss};
use crate::throttle::Throttle;
use crate::work::{Conversation, Failing, Job, Loading, Owner, Preparing, Prompt, Worker};
use crate::{
    chat, completions, messages, metrics, models, ollama, responses, temperature, timeline, tokens,
};

/// What a browser may send when it asks first.
const CORS_HEADERS: &str = "authorization, content-type, x-api-key, anthropic-version, \
                            anthropic-beta, anthropic-dangerous-direct-browser-access, \
                            x-session-id, x-request-id, traceparent, tracestate, \
                            x-stainless-arch, x-stainless-lang, x-stainless-os, \
                            x-stainless-package-version, x-stainless-retry-count, \
                            x-stainless-runtime, x-stainless-runtime-version, x-stainless-timeout";
/// Says which field of a request was ignored although another was meant.
const WARNING: HeaderName = HeaderName::from_static("x-warning");
/// Longest key of a conversation that is given back.
const SESSION_BYTES_MAX: usize = 256;
/// Bytes of a client's name that count.
const CLIENT_BYTES_MAX: usize = 200;

/// All that requests share.
pub(crate) struct App {
    worker: Arc<Loading>,
    guard: Guard,
    limits: Limits,
    identify: Arc<dyn Identify>,
    log: Arc<Throttle>,
    started_s: u64,
    /// Keep-alives sent in streams.
    heartbeats: Arc<AtomicU64>,
    drain: Drain,
    /// Answers that are still running are to be ended: the server stops.
    closing: watch::Sender<bool>,
    /// Where bodies are counted, and what is kept of them.
    room: Room,
    preparation: Preparation,
    /// For what takes a moment and is no request's preparation.
    aside: Arc<Desk>,
}

impl App {
    /// # Errors
    /// The system has no threads to give.
    pub(crate) fn new(
        options: &ServeOptions,
        worker: Arc<Loading>,
        identify: Arc<dyn Identify>,
    ) -> io::Result<Self> {
        let guard = Guard::new(options);
        let started_s = identify.now_s();
        let log = Arc::new(Throttle::new(options.log.clone()));
        let (limits, heartbeats) = (options.limits, Arc::default());
        let room = Room::new(limits.requests_bytes);
        let preparation = Preparation::start()?;
        let aside = Arc::new(Desk::start("aside")?);
        let closing = watch::Sender::new(false);
        Ok(Self {
            worker,
            guard,
            limits,
            identify,
            log,
            started_s,
            heartbeats,
            drain: Drain::default(),
            closing,
            room,
            preparation,
            aside,
        })
    }

    /// Ends every answer that is still running, each with its protocol's error.
    pub(crate) fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Goes on to a phase of the end.
    pub(crate) fn drain(&self, phase: Phase) {
        self.drain.go_on(phase);
    }

    /// Requests that were taken and are not answered to their end.
    pub(crate) fn requests(&self) -> usize {
        self.room.requests()
    }

    /// Whether the engine is not usable any more.
    pub(crate) fn is_broken(&self) -> bool {
        let worker = self.worker.worker();
        worker.is_some_and(|worker| worker.status().failing == Some(Failing::Broken))
    }

    /// Logs what the server does by itself.
    pub(crate) fn say(&self, level: Level, text: &str) {
        self.log.say(level, text);
    }

    /// Tells how many lines of the log were left out, if any were.
    pub(crate) fn tell_log(&self) {
        self.log.tell();
    }

    /// Answers a request.
    pub(crate) async fn handle<B>(
        self: Arc<Self>,
        request: Request<B>,
        peer: IpAddr,
        framing: Framing,
        seen: Arc<Seen>,
    ) -> Response<Told>
    where
        B: Body<Data = Bytes> + Send,
    {
        let started = Instant::now();
        let id = format!("req_{}", self.identify.identifier());
        let given = given_id(request.headers()).map(str::to_owned);
        let trace = Trace::of(request.headers());
        let shape = shape(request.uri().path());
        let method = request.method().clone();
        // Only what is served is named in the log: other paths are the client's text.
        let (path, polled) = match route(&method, request.uri().path()) {
            Ok(route) => (shown(request.uri().path()).to_string(), route.is_polled()),
            Err(_) => ("-".to_owned(), false),
        };
        let admitted = match framing {
            Framing::Plain | Framing::Last => self.guard.check_origin(request.headers()),
            Framing::Ambiguous => {
                let message = "Content-Length and Transfer-Encoding exclude each other";
                Err(ApiError::new(Kind::InvalidRequest, message))
            }
        };
        let (mut response, origin) = match admitted {
            Ok(origin) => {
                let origin = origin.map(str::to_owned);
                let result = self.clone().answer(request, peer, origin.is_some(), seen).await;
                (result.unwrap_or_else(|error| error.response(shape, &id)), origin)
            }
            Err(error) => (error.response(shape, &id), None),
        };
        let headers = response.headers_mut();
        if let Ok(id) = HeaderValue::from_str(&id) {
            headers.insert("request-id", id);
        }
        if let Ok(id) = HeaderValue::from_str(given.as_ref().unwrap_or(&id)) {
            headers.insert("x-request-id", id);
        }
        // The span's number says nothing but that it is another than its parent.
        if let Some(parent) = trace.and_then(|trace| trace.header(self.identify.seed())) {
            headers.insert("traceparent", parent);
        }
        if let Some(origin) = origin.and_then(|origin| HeaderValue::from_str(&origin).ok()) {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            let exposed = HeaderValue::from_static(
                "request-id, x-request-id, x-session-id, x-warning, retry-after, traceparent",
            );
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
            headers.insert(VARY, HeaderValue::from_static("origin"));
        }
        if framing != Framing::Plain || self.drain.phase() == Phase::Closed {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let status = response.status().as_u16();
        let headless = method == Method::HEAD;
        let head = started.elapsed();
        let method = shown(method).to_string();
        let log = Arc::clone(&self.log);
        let level = match status {
            500.. => Level::Error,
            _ if polled && status < 400 => Level::Debug,
            _ => Level::Info,
        };
        let tell = move |ending: Ending| {
            let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            let cut = if ending.cut { ", cut" } else { "" };
            let took = ms(ending.took);
            let text = format!("{id} {peer} {method} {path} {status} {took} ms{cut}");
            let mut fields = vec![
                ("id", id.into()),
                ("client", peer.to_string().into()),
                ("method", method.into()),
                ("path", path.into()),
                ("status", status.into()),
                ("head_ms", ms(head).into()),
                ("ms", took.into()),
                ("cut", ending.cut.into()),
            ];
            fields.extend(given.map(|given| ("x_request_id", given.into())));
            fields.extend(trace.map(|trace| ("trace_id", format!("{:032x}", trace.id).into())));
            log.line(Line { level, text, fields });
        };
        response.map(|body| Told::new(body, started, headless, tell))
    }

    async fn answer<B>(
        self: Arc<Self>,
        request: Request<B>,
        peer: IpAddr,
        foreign: bool,
        seen: Arc<Seen>,
    ) -> Result<Response<Answer>, ApiError>
    where
        B: Body<Data = Bytes> + Send,
    {
        let (head, body) = request.into_parts();
        self.guard.check_host(head.version, &head.uri, &head.headers)?;
        if head.method == Method::OPTIONS {
            return Ok(preflight(foreign));
        }
        let route = route(&head.method, head.uri.path())?;
        if !matches!(route, Route::Asset(_)) {
            self.guard.check_site(&head.headers)?;
        }
        let owner = match route.is_public() {
            true => Owner::everybody(),
            false => self.guard.check_key(&head.headers)?,
        };
        let client = Client::of(&head.headers, peer, owner);
        if route.is_work() && self.drain.phase() == Phase::Closed {
            return Err(ApiError::new(Kind::Unavailable, "the server is shutting down"));
        }
        // No body is read for a request that would be refused anyway.
        let ready = self.worker().map(|_| ());
        let (limits, mut share) = (self.limits, self.room.share());
        let bytes = async {
            ready?;
            check_content(&head.headers)?;
            let bytes = tokio::select! {
                biased;
                () = seen.chunks_too_large() => Err(too_large(&limits)),
                bytes = read(body, &limits, &mut share) => bytes,
            }?;
            Ok::<_, ApiError>(Received { bytes, share, warning: None })
        };
        match route {
            Route::Asset(asset) => Ok(asset.response(&head.headers)),
            Route::Health => Ok(models::health(&self.worker, self.drain.phase())),
            Route::Live => {
                let preparing = self.preparation.busy_for();
                Ok(models::live(&self.worker, preparing, self.limits.silence))
            }
            Route::Metrics => {
                let app = self.clone();
                self.aside.run(move || app.metrics()).await
            }
            Route::Models => Ok(models::list(&self.worker, self.started_s)),
            Route::Model(id) => models::one(&self.worker, &id, self.started_s),
            Route::Props => Ok(models::props(&**self.worker()?)),
            Route::Slots => Ok(models::slots(&**self.worker()?)),
            Route::Status => Ok(metrics::status(&self.worker)),
            Route::Trace => timeline::response(head.uri.query(), &self.aside).await,
            Route::Loads => Ok(metrics::loads(&self.worker)),
            Route::ServerInfo => Ok(metrics::server_info(&self.worker)),
            Route::ModelInfo => Ok(metrics::model_info(&self.worker)),
            Route::Version => Ok(models::version()),
            Route::Ollama(ollama::Place::Tags) => Ok(ollama::tags(&self.worker, self.started_s)),
            Route::Ollama(ollama::Place::Running) => Ok(ollama::running(&self.worker)),
            Route::Ollama(ollama::Place::Show) => Ok(ollama::show(&self.worker)),
            Route::Ollama(ollama::Place::Chat) => {
                self.generate::<ollama::Chat>(bytes.await?, client).await
            }
            Route::Ollama(ollama::Place::Generate) => {
                self.generate::<ollama::Generate>(bytes.await?, client).await
            }
            Route::Completions => self.generate::<completions::Request>(bytes.await?, client).await,
            Route::Chat => self.generate::<chat::Request>(bytes.await?, client).await,
            Route::Responses => self.generate::<responses::Request>(bytes.await?, client).await,
            Route::Messages => self.generate::<messages::Request>(bytes.await?, client).await,
            Route::CountTokens => {
                let received = bytes.await?;
                let tokens = match self.count(received, &client).await {
                    Ok(tokens) => tokens,
                    // To be told how much too long is what a client asks for.
                    Err(error) => match error.kind() {
                        Kind::ContextLength { prompt, counted: true, .. } => prompt,
                        _ => return Err(error),
                    },
                };
                let count = json!({ "input_tokens": tokens });
                Ok(Answer::json(StatusCode::OK, &count))
            }
            Route::Tokenize => {
                let (received, app) = (bytes.await?, self.clone());
                let tokenize = move |received: &mut Received, gone: &dyn Fn() -> bool| {
                    let body = received.object(app.limits.body_values)?;
                    let preparing = Preparing { count: false, gone };
                    let defaults = app.defaults(&client);
                    tokens::tokenize(&**app.worker()?, &body, defaults, preparing)
                };
                let tokens = self.preparation.run(received, tokenize).await?.0;
                Ok(Answer::json(StatusCode::OK, &tokens))
            }
            Route::Detokenize => {
                let (received, app) = (bytes.await?, self.clone());
                let detokenize = move |received: &mut Received, _: &dyn Fn() -> bool| {
                    let body = received.object(app.limits.body_values)?;
                    let vocabulary = app.worker.model().vocabulary;
                    tokens::detokenize(&**app.worker()?, &body, vocabulary)
                };
                let text = self.preparation.run(received, detokenize).await?.0;
                Ok(Answer::json(StatusCode::OK, &text))
            }
        }
    }

    /// Answers a request of a protocol, streamed or whole.
    async fn generate<P: Protocol>(
        self: Arc<Self>,
        received: Received,
        client: Client,
    ) -> Result<Response<Answer>, ApiError> {
        let app = self.clone();
        let prepare = move |received: &mut Received, gone: &dyn Fn() -> bool| {
            let preparing = Preparing { count: false, gone };
            let (mut request, prompts) = app.understand::<P>(received, &client, preparing)?;
            let draft = request.draft_mut();
            draft.conversation = Conversation::default();
            let model = match draft.model.as_str() {
                "" => app.worker.model().id,
                named => named.to_owned(),
            };
            let envelope = Envelope {
                id: format!("{}{}", P::ID_PREFIX, app.identify.identifier()),
                created_s: app.identify.now_s(),
                model,
                prompt_tokens: prompts.iter().map(|prompt| prompt.tokens.len()).sum(),
            };
            received.share.set(request.kept_bytes() + further_bytes(&prompts))?;
            let mut jobs = prompts.into_iter().enumerate().map(|(index, prompt)| {
                let id = match index {
                    0 => envelope.id.clone(),
                    _ => format!("{}-{index}", envelope.id),
                };
                let (name, owner) = (client.name.clone(), client.owner.clone());
                let job = request.draft().clone().into_job(id, prompt, name, owner);
                Job { trace: client.trace, ..job }
            });
            let worker = app.worker()?;
            let first = jobs.next().ok_or_else(no_prompt)?;
            let submitted = worker.submit(first);
            let ticket = submitted.map_err(|refusal| refusal.with_schema_at(P::SCHEMA_FIELD))?;
            let aside = Arc::clone(&app.aside);
            let ticket = one_after_another(Arc::clone(worker), aside, ticket, jobs.collect());
            Ok((request, envelope, ticket, received.warning.take()))
        };
        let ((request, envelope, ticket, warning), share) =
            self.preparation.run(received, prepare).await?;
        let closing = self.closing.subscribe();
        let session = request.draft().session.clone();
        if let Some(warning) = &warning {
            self.log.say(Level::Warn, &format!("{}: {warning}", envelope.id));
        }
        let mut response = if request.streams() {
            let heartbeats = Arc::clone(&self.heartbeats);
            let writer = request.writer(envelope);
            stream(ticket, writer, self.limits, heartbeats, closing, share)
        } else {
            let write = move |gathered: Gathered| request.body(&envelope, &gathered);
            whole(ticket, closing, share, write).await?
        };
        if let Some(warning) = warning.and_then(|text| HeaderValue::try_from(text).ok()) {
            response.headers_mut().insert(WARNING, warning);
        }
        // Routers that keep a conversation at its server may learn its key here.
        let session = session.filter(|key| key.len() <= SESSION_BYTES_MAX);
        if let Some(session) = session.and_then(|key| HeaderValue::try_from(key).ok()) {
            response.headers_mut().insert("x-session-id", session);
        }
        Ok(response)
    }

    /// The tokens of a request's prompt.
    async fn count(
        self: &Arc<Self>,
        received: Received,
        client: &Client,
    ) -> Result<usize, ApiError> {
        let (app, client) = (self.clone(), client.clone());
        let count = move |received: &mut Received, gone: &dyn Fn() -> bool| {
            let preparing = Preparing { count: true, gone };
            let (_, prompts) = app.understand::<messages::Count>(received, &client, preparing)?;
            Ok(prompts.iter().map(|prompt| prompt.tokens.len()).sum())
        };
        Ok(self.preparation.run(received, count).await?.0)
    }

    /// The worker, or how far it is as an error.
    fn worker(&self) -> Result<&Arc<dyn Worker>, ApiError> {
        self.worker.worker().ok_or_else(|| {
            let percent = self.worker.percent();
            let message = format!("Loading model: {percent} %");
            ApiError::new(Kind::Loading { percent }, message)
        })
    }

    fn metrics(&self) -> Response<Answer> {
        let outside = Outside {
            heartbeats: self.heartbeats.load(Ordering::Relaxed),
            process_bytes: process_bytes(),
            temperatures: temperature::read(Path::new(temperature::SENSORS)),
        };
        metrics::response(&self.worker, &outside)
    }

    /// Reads a body and makes its prompts.
    fn understand<P: Understand>(
        &self,
        received: &mut Received,
        client: &Client,
        preparing: Preparing<'_>,
    ) -> Result<(P, Vec<Prompt>), ApiError> {
        let body = received.object(self.limits.body_values)?;
        let mut request = P::parse(&body, self.defaults(client))?;
        received.warning = near_miss(&body);
        drop(body);
        let prompts = request.prepare(&**self.worker()?, preparing)?;
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

    /// What a request leaves open.
    fn defaults(&self, client: &Client) -> Defaults {
        let card = self.worker.model();
        Defaults {
            sampling: card.sampling,
            vocabulary: card.vocabulary,
            seed: self.identify.seed(),
            session: client.session.clone(),
        }
    }
}

/// Bytes of prompts that wait for the first of their request.
fn further_bytes(prompts: &[Prompt]) -> usize {
    prompts.iter().skip(1).map(|prompt| size_of_val(&*prompt.tokens) + size_of::<Job>()).sum()
}

/// Memory that the process has, as far as the system says.
fn process_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = resident.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
}

fn no_prompt() -> ApiError {
    ApiError::field("prompt", "is missing")
}

/// Who asks, as far as the scheduler cares.
#[derive(Clone)]
struct Client {
    /// Clients take turns by this name.
    name: String,
    /// Which conversation, by a header.
    session: Option<String>,
    /// Whose kept prompts it may go on from.
    owner: Owner,
    /// The trace it is part of.
    trace: Option<u128>,
}

impl Client {
    fn of(headers: &HeaderMap, peer: IpAddr, owner: Owner) -> Self {
        let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let agent = text(&USER_AGENT).unwrap_or_default();
        let agent: String = agent.chars().take(CLIENT_BYTES_MAX).collect();
        let session = ["x-session-id", "session_id", "session-id", "x-claude-code-session-id"]
            .into_iter()
            .find_map(|name| text(&HeaderName::from_static(name)));
        let trace = Trace::of(headers).map(|trace| trace.id);
        let session = session.map(str::to_owned);
        Self { name: format!("{peer} {agent}"), session, owner, trace }
    }
}

/// Bodies are JSON and not compressed. A wrong type is refused and not guessed: a browser sends
/// `text/plain` to any server without asking it first.
fn check_content(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or("?"));
    if text(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        let message = "compressed bodies are not supported";
        return Err(ApiError::new(Kind::MediaType, message));
    }
    let media_type = text(CONTENT_TYPE).unwrap_or("application/json");
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(ApiError::new(
        Kind::MediaType,
        "Content-Type must be application/json: with curl, add -H 'Content-Type: application/json'",
    ))
}

/// Says yes to a listed page and nothing to others; the guard has refused foreign ones already.
fn preflight(foreign: bool) -> Response<Answer> {
    let mut response = Answer::empty(StatusCode::NO_CONTENT);
    if foreign {
        let headers = response.headers_mut();
        let methods = HeaderValue::from_static("GET, POST, OPTIONS");
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(CORS_HEADERS));
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    }
    response
}

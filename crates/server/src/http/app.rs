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
use std::time::Instant;

use hyper::body::{Body, Bytes};
use hyper::header::{CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;
use store::shown::shown;
use tokio::sync::watch;

use super::access_log::{Logged, Record};
use super::answer::Answer;
use super::body::{read, too_large};
use super::client::{Asked, Client, request_id};
use super::cors;
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
use super::route::{Route, named, route, shape};
use crate::log::Level;
use crate::metrics::Outside;
use crate::protocol::Defaults;
use crate::registry::{Models, not_loaded};
use crate::throttle::Throttle;
use crate::work::{Failing, Owner, Preparing, Worker};
use crate::{
    chat, completions, messages, metrics, models, native, ollama, responses, temperature, timeline,
    tokens,
};

/// All that requests share.
pub(crate) struct App {
    pub(super) models: Arc<Models>,
    guard: Guard,
    pub(super) limits: Limits,
    pub(super) identify: Arc<dyn Identify>,
    log: Arc<Throttle>,
    started_s: u64,
    /// Keep-alives sent in streams.
    pub(super) heartbeats: Arc<AtomicU64>,
    drain: Drain,
    /// Answers that are still running are to be ended: the server stops.
    pub(super) closing: watch::Sender<bool>,
    /// Where bodies are counted, and what is kept of them.
    room: Room,
    pub(super) preparation: Preparation,
    /// For what takes a moment and is no request's preparation.
    pub(super) aside: Arc<Desk>,
}

impl App {
    /// # Errors
    /// The system has no threads to give.
    pub(crate) fn new(
        options: &ServeOptions,
        models: Arc<Models>,
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
            models,
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

    /// Why the engine is not usable any more.
    pub(crate) fn broken(&self) -> Option<Failing> {
        self.models.broken()
    }

    /// Runs what may wait for a disk and is no request; nothing where there was no time for it.
    pub(crate) async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.aside.run(work).await.ok()
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
    ) -> Response<Logged>
    where
        B: Body<Data = Bytes> + Send,
    {
        let started = Instant::now();
        let identifier = self.identify.identifier();
        let id = request_id(&identifier);
        let given = given_id(request.headers()).map(str::to_owned);
        let trace = Trace::of(request.headers());
        let shape = shape(request.uri().path());
        let method = request.method().clone();
        let (path, polled) = logged_path(&method, request.uri().path());
        let admitted = match framing {
            Framing::Plain | Framing::Last => self.guard.check_origin(request.headers()),
            Framing::Ambiguous => {
                let message = "Content-Length and Transfer-Encoding exclude each other";
                Err(ApiError::new(Kind::InvalidRequest, message))
            }
        };
        let (result, origin) = match admitted {
            Ok(origin) => {
                let origin = origin.map(str::to_owned);
                let asked = Asked { peer, foreign: origin.is_some(), identifier };
                (self.clone().answer(request, asked, seen).await, origin)
            }
            Err(error) => (Err(error), None),
        };
        let reason = result.as_ref().err().map(|error| error.message().to_owned());
        let mut response = result.unwrap_or_else(|error| error.response(shape, &id));
        let warning = response.headers().get("x-warning").and_then(|it| it.to_str().ok());
        let warning = warning.map(str::to_owned);
        let headers = response.headers_mut();
        name(headers, &id, given.as_ref());
        // The span's number says nothing but that it is another than its parent.
        if let Some(parent) = trace.and_then(|trace| trace.header(self.identify.seed())) {
            headers.insert("traceparent", parent);
        }
        if let Some(origin) = origin.and_then(|origin| HeaderValue::from_str(&origin).ok()) {
            cors::allow(headers, origin);
        }
        if framing != Framing::Plain || self.drain.phase() == Phase::Closed {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let status = response.status().as_u16();
        let headless = method == Method::HEAD;
        let record = Record {
            level: self.level(status, polled),
            id,
            peer,
            method: shown(method).to_string(),
            path,
            status,
            head: started.elapsed(),
            reason,
            warning,
            given,
            trace,
        };
        let log = Arc::clone(&self.log);
        let tell = move |ending| log.line(record.line(ending));
        response.map(|body| Logged::new(body, started, headless, tell))
    }

    /// How much a status matters; `polled` is asked for every few seconds.
    fn level(&self, status: u16, polled: bool) -> Level {
        // A probe asks whether the server is ready: that it is not yet, or no more, is an answer and no fault.
        let changing = || self.drain.phase() != Phase::Open || self.models.starting().is_some();
        match status {
            503 if polled && changing() => Level::Debug,
            500.. => Level::Error,
            _ if polled && status < 400 => Level::Debug,
            _ => Level::Info,
        }
    }

    async fn answer<B>(
        self: Arc<Self>,
        request: Request<B>,
        asked: Asked,
        seen: Arc<Seen>,
    ) -> Result<Response<Answer>, ApiError>
    where
        B: Body<Data = Bytes> + Send,
    {
        let (head, body) = request.into_parts();
        let Asked { peer, foreign, .. } = asked;
        self.guard.check_host(head.version, &head.uri, &head.headers)?;
        if head.method == Method::OPTIONS {
            return Ok(cors::preflight(foreign));
        }
        let route = route(&head.method, head.uri.path())?;
        if !matches!(route, Route::Asset(_)) {
            self.guard.check_site(&head.headers)?;
        }
        let owner = match route.is_public() {
            true => Owner::everybody(),
            false => self.guard.check_key(&head.headers)?,
        };
        let client = Client::of(&head.headers, peer, owner, asked.identifier);
        if route.is_work() && self.drain.phase() == Phase::Closed {
            return Err(ApiError::new(Kind::Unavailable, "the server is shutting down"));
        }
        // No body is read for a request that would be refused anyway.
        let ready = match self.models.only() {
            Some(only) if only.worker().is_none() => Err(not_loaded(only.percent())),
            _ => Ok(()),
        };
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
        self.dispatch(route, &head, client, bytes).await
    }

    /// What answers each route; `bytes` reads the body, for those that have one.
    async fn dispatch(
        self: Arc<Self>,
        route: Route,
        head: &Parts,
        client: Client,
        bytes: impl Future<Output = Result<Received, ApiError>>,
    ) -> Result<Response<Answer>, ApiError> {
        let one = || self.models.view(&named(head.uri.query())?);
        let worker = || {
            let one = one()?;
            let worker = one.worker().cloned();
            worker.ok_or_else(|| not_loaded(one.percent()))
        };
        match route {
            Route::Asset(asset) => Ok(asset.response(&head.headers)),
            Route::Health => Ok(models::health(&self.models, self.drain.phase())),
            Route::Live => {
                let preparing = self.preparation.busy_for();
                Ok(models::live(&self.models, preparing, self.limits.silence))
            }
            Route::Metrics => {
                let app = self.clone();
                self.aside.run(move || app.metrics()).await
            }
            Route::Models => Ok(models::list(&self.models, self.started_s)),
            Route::Model(id) => models::one(&self.models, &id, self.started_s),
            Route::Props => Ok(models::props(&*worker()?)),
            Route::TokenizerInfo => Ok(models::tokenizer_info(&*worker()?)),
            Route::Slots => Ok(models::slots(&*worker()?)),
            Route::Status => Ok(metrics::status(&self.models, &*one()?)),
            Route::Trace => timeline::response(head.uri.query(), &self.aside).await,
            Route::Loads => Ok(metrics::loads(&*one()?)),
            Route::ServerInfo => Ok(metrics::server_info(&*one()?)),
            Route::ModelInfo => Ok(metrics::model_info(&*one()?)),
            Route::Version => Ok(models::version()),
            Route::Ollama(place) => self.ollama(place, client, bytes).await,
            Route::Completions => self.generate::<completions::Request>(bytes.await?, client).await,
            Route::Chat => self.generate::<chat::Request>(bytes.await?, client).await,
            Route::Responses => self.generate::<responses::Request>(bytes.await?, client).await,
            Route::Messages => self.generate::<messages::Request>(bytes.await?, client).await,
            Route::CountTokens => {
                let tokens = match self.count(bytes.await?, &client).await {
                    Ok(tokens) => tokens,
                    // To be told how much too long is what a client asks for.
                    Err(error) => match error.kind() {
                        Kind::ContextLength { prompt, counted: true, .. } => prompt,
                        _ => return Err(error),
                    },
                };
                Ok(Answer::json(StatusCode::OK, &json!({ "input_tokens": tokens })))
            }
            Route::Tokenize => self.with_object(bytes.await?, client, tokens::tokenize).await,
            Route::ApplyTemplate => {
                self.with_object(bytes.await?, client, tokens::apply_template).await
            }
            Route::Completion => self.generate::<native::Completion>(bytes.await?, client).await,
            Route::Infill => self.generate::<native::Infill>(bytes.await?, client).await,
            Route::Detokenize => {
                let read = |worker: &dyn Worker, body: &_, defaults: Defaults, _: Preparing<'_>| {
                    tokens::detokenize(worker, body, defaults.vocabulary)
                };
                self.with_object(bytes.await?, client, read).await
            }
            Route::Slot(slot) => self.slot(bytes.await?, slot, head.uri.query(), client).await,
            Route::Load => self.order(bytes.await?, true).await,
            Route::Unload => self.order(bytes.await?, false).await,
        }
    }

    /// What answers each route of ollama's protocol.
    async fn ollama(
        self: Arc<Self>,
        place: ollama::Place,
        client: Client,
        bytes: impl Future<Output = Result<Received, ApiError>>,
    ) -> Result<Response<Answer>, ApiError> {
        match place {
            ollama::Place::Tags => Ok(ollama::tags(&self.models, self.started_s)),
            ollama::Place::Running => Ok(ollama::running(&self.models)),
            ollama::Place::Show => match self.models.only() {
                Some(only) => Ok(ollama::show(only)),
                None => self.show(bytes.await?).await,
            },
            ollama::Place::Chat => self.generate::<ollama::Chat>(bytes.await?, client).await,
            ollama::Place::Generate => {
                self.generate::<ollama::Generate>(bytes.await?, client).await
            }
        }
    }

    fn metrics(&self) -> Response<Answer> {
        let outside = Outside {
            heartbeats: self.heartbeats.load(Ordering::Relaxed),
            process_bytes: process_bytes(),
            temperatures: temperature::read(Path::new(temperature::SENSORS)),
        };
        metrics::response(&self.models.views(), &outside)
    }
}

/// Memory that the process has, as far as the system says.
fn process_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = resident.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
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

/// A path as the log names it, and whether it is asked for every few seconds. Only what is served is named: other paths
/// are the client's text.
fn logged_path(method: &Method, path: &str) -> (String, bool) {
    match route(method, path) {
        Ok(route) => (shown(path).to_string(), route.is_polled()),
        Err(_) => ("-".to_owned(), false),
    }
}

/// Names a response by the server's number of the request, and by the client's own where it gave one.
fn name(headers: &mut HeaderMap, id: &String, given: Option<&String>) {
    for (header, id) in [("request-id", id), ("x-request-id", given.unwrap_or(id))] {
        if let Ok(id) = HeaderValue::from_str(id) {
            headers.insert(header, id);
        }
    }
}

//! A server without a model: a worker that plays scripts, identifiers that count, and a client that shows bytes.
//!
//! The worker's tokens are the words of a conversation, so counts can be read off. What it answers is the script it
//! was given; how it was asked is kept for the test to look at.

pub(crate) mod sse;
pub(crate) mod transcripts;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use server::registry::Models;
use server::work::{
    Conversation, Event, Experts, Finish, FinishReason, Job, Loading, ModelCard, Piece,
    PrepareError, Preparing, Prompt, Refusal, Status, Ticket, Timings, TokenLogprob, TopLogprob,
    Usage, Worker,
};
use server::{Identify, ServeOptions, Server, Stopper};
use text::OnFull;
use tokio::sync::mpsc;

/// Most words of a conversation.
pub(crate) const CONTEXT: usize = 1000;

/// A step of a script.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Say(Event),
    Wait(Duration),
    /// Events until the client has gone.
    Forever,
    /// Closes the channel without an end.
    Break,
}

/// What `submit` does.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Play(Vec<Step>),
    Refuse(Refusal),
}

/// Plays one reply for every job.
#[derive(Debug)]
pub(crate) struct Scripted {
    name: String,
    /// It was told to end.
    pub(crate) stopped: AtomicBool,
    reply: Mutex<Reply>,
    /// The jobs that were submitted.
    pub(crate) jobs: Mutex<Vec<Job>>,
    pub(crate) conversations: Mutex<Vec<Conversation>>,
    /// Jobs whose ticket is held.
    pub(crate) running: Arc<AtomicUsize>,
    /// What the worker says of itself.
    pub(crate) status: Mutex<Status>,
}

impl Scripted {
    pub(crate) fn new(reply: Reply) -> Arc<Self> {
        Self::named("scripted", reply)
    }

    /// One of several models.
    pub(crate) fn named(name: &str, reply: Reply) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            stopped: AtomicBool::new(false),
            reply: Mutex::new(reply),
            jobs: Mutex::default(),
            conversations: Mutex::default(),
            running: Arc::default(),
            status: Mutex::new(Status {
                sequences: 2,
                expert_heat: vec![vec![1, 2, 3, 4]; 2],
                ..Status::default()
            }),
        })
    }

    pub(crate) fn set(&self, reply: Reply) {
        *self.reply.lock().unwrap() = reply;
    }

    pub(crate) fn last_job(&self) -> Job {
        self.jobs.lock().unwrap().last().expect("a job was submitted").clone()
    }

    pub(crate) fn last_conversation(&self) -> Conversation {
        self.conversations.lock().unwrap().last().expect("a prompt was prepared").clone()
    }

    /// Waits until every job has ended or was cancelled.
    pub(crate) fn assert_idle_within(&self, limit: Duration) {
        let started = std::time::Instant::now();
        while self.running.load(Ordering::SeqCst) > 0 {
            assert!(started.elapsed() < limit, "jobs still run after {limit:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Worker for Scripted {
    fn prepare(
        &self,
        conversation: &Conversation,
        _preparing: Preparing<'_>,
    ) -> Result<Prompt, PrepareError> {
        self.conversations.lock().unwrap().push(conversation.clone());
        let words = conversation.messages.iter().map(|message| {
            if message.content.contains("TEMPLATE-REFUSES") {
                return Err(PrepareError::Conversation("the template refuses this".to_owned()));
            }
            Ok(message.content.split_whitespace().count() + 1)
        });
        let count = words.sum::<Result<usize, _>>()?;
        if count > CONTEXT {
            return Err(PrepareError::TooLong { prompt: count, context: CONTEXT, counted: true });
        }
        let tokens: Vec<u32> = (0..u32::try_from(count).unwrap()).collect();
        let dropped_turns = if conversation.on_full == Some(OnFull::DropOldest) { 3 } else { 0 };
        Ok(Prompt { tokens: tokens.into(), dropped_turns, ..Prompt::default() })
    }

    fn prepare_text(&self, text: &str, _: Preparing<'_>) -> Result<Prompt, PrepareError> {
        let tokens: Vec<u32> = text.split_whitespace().zip(0..).map(|(_, id)| id).collect();
        Ok(Prompt { tokens: tokens.into(), ..Prompt::default() })
    }

    fn prepare_marked(&self, text: &str, preparing: Preparing<'_>) -> Result<Prompt, PrepareError> {
        self.prepare_text(text, preparing)
    }

    fn prepare_infill(
        &self,
        prefix: &str,
        suffix: &str,
        preparing: Preparing<'_>,
    ) -> Result<Prompt, PrepareError> {
        if suffix == "NO-TOKENS" {
            return Err(PrepareError::Conversation("the vocabulary has none".to_owned()));
        }
        self.prepare_text(&format!("{prefix} GAP {suffix}"), preparing)
    }

    fn prepare_tokens(&self, tokens: Vec<u32>) -> Result<Prompt, PrepareError> {
        if tokens.len() >= CONTEXT {
            let (prompt, context) = (tokens.len(), CONTEXT);
            return Err(PrepareError::TooLong { prompt, context, counted: true });
        }
        Ok(Prompt { tokens: tokens.into(), ..Prompt::default() })
    }

    fn token_bytes(&self, token: u32) -> Vec<u8> {
        format!("w{token} ").into_bytes()
    }

    fn context_length(&self) -> usize {
        CONTEXT
    }

    fn model(&self) -> ModelCard {
        card(&self.name)
    }

    fn submit(&self, job: Job) -> Result<Ticket, Refusal> {
        let steps = match self.reply.lock().unwrap().clone() {
            Reply::Play(steps) => steps,
            Reply::Refuse(refusal) => return Err(refusal),
        };
        self.jobs.lock().unwrap().push(job);
        self.running.fetch_add(1, Ordering::SeqCst);
        let running = Running(self.running.clone());
        let (sender, events) = mpsc::channel(16);
        tokio::spawn(async move {
            let _running = running;
            for step in steps {
                match step {
                    Step::Say(event) => {
                        if sender.send(event).await.is_err() {
                            return;
                        }
                    }
                    Step::Wait(time) => {
                        tokio::select! {
                            () = tokio::time::sleep(time) => {}
                            () = sender.closed() => return,
                        }
                    }
                    Step::Forever => {
                        while sender.send(text("more and more ")).await.is_ok() {}
                        return;
                    }
                    Step::Break => return,
                }
            }
        });
        Ok(Ticket { events })
    }

    fn status(&self) -> Status {
        self.status.lock().unwrap().clone()
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }
}

/// The card of a scripted model.
pub(crate) fn card(name: &str) -> ModelCard {
    ModelCard {
        id: name.to_owned(),
        family: "none".to_owned(),
        context: CONTEXT,
        vocabulary: 100,
        layers: 2,
        experts: 4,
        experts_per_token: 1,
        bytes: 1 << 20,
        ..ModelCard::default()
    }
}

/// Identifiers that count, at a time that stands still.
#[derive(Debug, Default)]
pub(crate) struct Counting(AtomicU64);

impl Identify for Counting {
    fn identifier(&self) -> String {
        format!("{:04}", self.0.fetch_add(1, Ordering::SeqCst))
    }

    fn seed(&self) -> u64 {
        7
    }

    fn now_s(&self) -> u64 {
        1_800_000_000
    }
}

pub(crate) fn text(text: &str) -> Event {
    Event::Text(Piece { text: text.to_owned(), logprobs: Vec::new() })
}

pub(crate) fn reasoning(text: &str) -> Event {
    Event::Reasoning(Piece { text: text.to_owned(), logprobs: Vec::new() })
}

/// A token with one alternative.
pub(crate) fn logprob(token: &str) -> TokenLogprob {
    let top = TopLogprob { id: 2, token: "b".into(), bytes: b"b".to_vec(), logprob: -1.5 };
    TokenLogprob { id: 1, token: token.into(), bytes: token.into(), logprob: -0.25, top: vec![top] }
}

pub(crate) fn finish(reason: FinishReason) -> Event {
    Event::Finished(Box::new(Finish {
        reason,
        usage: Usage { prompt: 12, cached: 8, completion: 5, reasoning: 2 },
        timings: Timings {
            queued: Duration::from_millis(1),
            prefill: Duration::from_millis(200),
            decode: Duration::from_millis(400),
        },
        experts: Experts {
            hits: 30,
            misses: 10,
            bytes_read: 1 << 20,
            wait: Duration::from_millis(60),
            elapsed: Duration::from_millis(600),
        },
        seed: 7,
        dropped_turns: 0,
        logprobs: Vec::new(),
    }))
}

pub(crate) fn progress(processed: usize, total: usize, cached: usize, eta_s: Option<u64>) -> Event {
    Event::Progress {
        processed,
        total,
        cached,
        elapsed: Duration::from_millis(1500),
        eta: eta_s.map(Duration::from_secs),
    }
}

/// A call with its arguments in the given pieces.
pub(crate) fn call(index: usize, name: &str, pieces: &[&str]) -> Vec<Event> {
    let id = format!("{:024x}", index + 0xabc);
    let mut events = vec![Event::CallStarted { index, id, name: name.to_owned() }];
    events.extend(
        pieces.iter().map(|piece| Event::CallArguments { index, delta: (*piece).to_owned() }),
    );
    events.push(Event::CallEnded { index });
    events
}

/// Steps that say events without a pause.
pub(crate) fn say(events: impl IntoIterator<Item = Event>) -> Vec<Step> {
    events.into_iter().map(Step::Say).collect()
}

/// A server on a free port of loopback.
pub(crate) struct Serving {
    pub(crate) address: SocketAddr,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    pub(crate) fn start(worker: Arc<Scripted>) -> Self {
        Self::start_with(worker, ServeOptions::default())
    }

    pub(crate) fn start_with(worker: Arc<Scripted>, options: ServeOptions) -> Self {
        Self::start_loading(Arc::new(Loading::finished(worker)), options)
    }

    /// A server whose worker may come later.
    pub(crate) fn start_loading(loading: Arc<Loading>, options: ServeOptions) -> Self {
        Self::start_models(Arc::new(Models::one(loading)), options)
    }

    /// A server of one or several models.
    pub(crate) fn start_models(models: Arc<Models>, options: ServeOptions) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::bind(ServeOptions { address, ..options }).expect("listens");
        let address = server.address().expect("has an address");
        let stopper = server.stopper();
        let identify = Arc::new(Counting::default());
        let run = move || server.run_models(models, identify).expect("serves");
        Self { address, stopper, thread: Some(std::thread::spawn(run)) }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        connect(self.address)
    }

    /// Sends bytes as they are and reads until the connection ends.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Response {
        exchange(self.address, bytes)
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &[&str], body: &str) -> Response {
        self.raw(request(method, path, headers, body).as_bytes())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        self.send("POST", path, &["Content-Type: application/json"], &body.to_string())
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.send("GET", path, &[], "")
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

/// A connection to a server.
pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connects");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("is set");
    stream
}

/// Sends bytes as they are and reads until the connection ends.
pub(crate) fn exchange(address: SocketAddr, bytes: &[u8]) -> Response {
    exchange_on(connect(address), bytes)
}

/// The same, waiting for a silence of `patience`.
pub(crate) fn exchange_within(address: SocketAddr, bytes: &[u8], patience: Duration) -> Response {
    let stream = connect(address);
    stream.set_read_timeout(Some(patience)).expect("is set");
    exchange_on(stream, bytes)
}

fn exchange_on(mut stream: TcpStream, bytes: &[u8]) -> Response {
    // A server that refuses early may have closed already; what it said is there all the same.
    let _sent = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ended = stream.read_to_end(&mut answer);
    Response::parse(&answer)
}

/// A request that ends its connection.
pub(crate) fn request(method: &str, path: &str, headers: &[&str], body: &str) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|header| header.to_ascii_lowercase().starts_with("host:")) {
        text.push_str("Host: localhost\r\n");
    }
    for header in headers {
        text.push_str(header);
        text.push_str("\r\n");
    }
    if !body.is_empty() {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    text + "\r\n" + body
}

/// A response taken apart.
#[derive(Debug, Default)]
pub(crate) struct Response {
    /// 0 when there was none.
    pub(crate) status: u16,
    /// Lower-case names.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
    /// A chunked body had its last chunk.
    pub(crate) complete: bool,
}

impl Response {
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return Self::default() };
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let chunked = headers.iter().any(|(name, _)| name == "transfer-encoding");
        let (body, complete) = if chunked { dechunked(body) } else { (body.to_owned(), true) };
        Self { status: status.unwrap_or(0), headers, body, complete }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

fn dechunked(mut rest: &str) -> (String, bool) {
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size, 16) else { break };
        if size == 0 {
            return (body, true);
        }
        let Some(chunk) = after.get(..size) else { break };
        body.push_str(chunk);
        rest = after.get(size + 2..).unwrap_or_default();
    }
    (body, false)
}

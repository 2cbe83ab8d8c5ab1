//! From a job's events to bytes on the wire, with a heartbeat whenever nothing else was sent for a while.
//!
//! One task per streamed answer owns the job's ticket and is the only one that writes, so a heartbeat can never come
//! inside another frame. It ends, and with it the job, when the answer is complete, when the client is gone, or
//! when the client leaves what was sent unread for too long. What a protocol does is behind [`EventWriter`], a state
//! machine without I/O.
//!
//! The heartbeat comes from the clock and not from the job's progress: a prefill may be silent for minutes
//! inside one chunk, and a tool call may be withheld while it is being parsed. Clients give up after 300 s, some
//! of them counting only frames of their own protocol (which is why the protocols write their own).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::answer::{Aborted, Answer};
use super::options::Limits;
use super::room::Share;
use crate::work::{Event, JobError, Ticket};

/// Bytes gathered before they are sent although more events are there.
const BATCH_BYTES: usize = 16 << 10;
/// Batches between the task and the connection: what a slow reader can hold back.
const BATCHES: usize = 8;

/// Frames of server-sent events, or lines of JSON, one after another.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    /// `data: VALUE`
    pub(crate) fn data(&mut self, value: &Value) {
        self.line("data", value);
        self.bytes.push(b'\n');
    }

    /// `event: NAME` and `data: VALUE`
    pub(crate) fn event(&mut self, name: &str, value: &Value) {
        self.bytes.extend_from_slice(b"event: ");
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(b'\n');
        self.data(value);
    }

    /// `data: [DONE]`
    pub(crate) fn done(&mut self) {
        self.bytes.extend_from_slice(b"data: [DONE]\n\n");
    }

    /// A line of JSON, for the protocol that has no events.
    pub(crate) fn json(&mut self, value: &Value) {
        serde_json::to_writer(&mut self.bytes, value).expect("a value is written to memory");
        self.bytes.push(b'\n');
    }

    /// A comment; `text` must be one line.
    pub(crate) fn comment(&mut self, text: &str) {
        self.bytes.extend_from_slice(b": ");
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.extend_from_slice(b"\n\n");
    }

    /// JSON has no line break outside of strings as serde_json writes it, and none inside of them.
    fn line(&mut self, name: &str, value: &Value) {
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(b": ");
        serde_json::to_writer(&mut self.bytes, value).expect("a value is written to memory");
        self.bytes.push(b'\n');
    }

    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

/// Where a prefill is, as its last event said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    queued: Option<usize>,
    prefill: Option<(usize, usize, Option<Duration>)>,
}

impl Waiting {
    /// Notes what `event` says; anything but waiting ends it.
    pub(crate) fn note(&mut self, event: &Event) {
        match event {
            Event::Queued { position } => self.queued = Some(*position),
            Event::Progress { processed, total, eta, .. } => {
                self.queued = None;
                self.prefill = Some((*processed, *total, *eta));
            }
            _ => *self = Self::default(),
        }
    }

    /// In words, for the comment of a heartbeat.
    pub(crate) fn comment(&self) -> String {
        match (self.queued, self.prefill) {
            (Some(position), _) => format!("queued position={position}"),
            (None, Some((processed, total, Some(eta)))) => {
                format!("prefill {processed}/{total} eta={}s", eta.as_secs_f64().ceil())
            }
            (None, Some((processed, total, None))) => format!("prefill {processed}/{total}"),
            (None, None) => "heartbeat".to_owned(),
        }
    }
}

/// A protocol's way of writing an answer while it comes. After `Finished` or `Failed` nothing is asked of it.
pub(crate) trait EventWriter: Send + 'static {
    /// Of the stream.
    const CONTENT_TYPE: &'static str = "text/event-stream; charset=utf-8";

    /// What is sent before anything is known.
    fn open(&mut self, out: &mut Frames);

    /// What an event leads to.
    fn event(&mut self, event: Event, out: &mut Frames);

    /// A sign of life.
    fn heartbeat(&mut self, out: &mut Frames);
}

/// Streams a job. The response is there at once, before the prompt is processed. Heartbeats are counted. Once `closing`
/// is true the stream ends with its protocol's error.
pub(crate) fn stream<W: EventWriter>(
    ticket: Ticket,
    writer: W,
    limits: Limits,
    heartbeats: Arc<AtomicU64>,
    closing: watch::Receiver<bool>,
    share: Share,
) -> Response<Answer> {
    let (sender, receiver) = mpsc::channel(BATCHES);
    tokio::spawn(async move {
        pump(ticket, writer, sender, limits, heartbeats, closing).await;
        drop(share);
    });
    let mut response = Response::new(Answer::Pieces(receiver));
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(W::CONTENT_TYPE));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    let unbuffered = HeaderName::from_static("x-accel-buffering");
    headers.insert(unbuffered, HeaderValue::from_static("no"));
    response
}

async fn pump(
    mut ticket: Ticket,
    mut writer: impl EventWriter,
    sender: mpsc::Sender<Result<Bytes, Aborted>>,
    limits: Limits,
    heartbeats: Arc<AtomicU64>,
    mut closing: watch::Receiver<bool>,
) {
    let mut frames = Frames::default();
    writer.open(&mut frames);
    let mut over = false;
    let mut heartbeat_at = Instant::now() + limits.heartbeat;
    while !over {
        let bytes = frames.take();
        if !bytes.is_empty() {
            heartbeat_at = Instant::now() + limits.heartbeat;
            let sent = timeout(limits.unread, sender.send(Ok(Bytes::from(bytes)))).await;
            if !matches!(sent, Ok(Ok(()))) {
                return;
            }
        }
        tokio::select! {
            biased;
            () = sender.closed() => return,
            _ = closing.wait_for(|closing| *closing) => {
                over = take(Some(Event::Failed(JobError::ShuttingDown)), &mut writer, &mut frames);
            }
            event = ticket.events.recv() => {
                over = take(event, &mut writer, &mut frames);
                while !over && frames.bytes.len() < BATCH_BYTES {
                    let Ok(event) = ticket.events.try_recv() else { break };
                    over = take(Some(event), &mut writer, &mut frames);
                }
            }
            () = sleep_until(heartbeat_at) => {
                heartbeat_at = Instant::now() + limits.heartbeat;
                heartbeats.fetch_add(1, Ordering::Relaxed);
                writer.heartbeat(&mut frames);
            }
        }
    }
    // The last batch; whether it arrives no longer matters to the job.
    let last = Bytes::from(frames.take());
    let _gone = timeout(limits.unread, sender.send(Ok(last))).await;
}

/// Writes an event; true after the last. A channel that closes before it is a worker that broke down.
fn take(event: Option<Event>, writer: &mut impl EventWriter, frames: &mut Frames) -> bool {
    let event = event.unwrap_or_else(|| Event::Failed(broken()));
    let over = matches!(event, Event::Finished(_) | Event::Failed(_));
    writer.event(event, frames);
    over
}

/// What is said of a job whose events end without an end.
pub(crate) fn broken() -> JobError {
    JobError::Engine("the job ended without a result".to_owned())
}

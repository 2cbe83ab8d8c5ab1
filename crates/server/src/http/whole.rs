//! Answers that are not streamed: the events of a job gathered, then one JSON body.
//!
//! A body that is not streamed has no heartbeat of its own, and clients give up after 300 s of silence. JSON allows
//! white space before its value, so after ten seconds of waiting the headers are sent and a space follows every ten
//! seconds. From then on a failure can no longer change the status: the connection is closed instead, which no
//! client takes for an answer.

use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::answer::{Aborted, Answer};
use super::error::{ApiError, Kind};
use super::room::Share;
use super::stream::broken;
use crate::protocol::Gathered;
use crate::work::{Event, JobError, Ticket, TokenLogprob};

/// Silence after which white space is sent.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// A log-probability as JSON: an object of three, one of them a list of bytes.
const LOGPROB_BYTES: usize = 2048;
/// Copies of an answer's text when it is written.
const TEXT_COPIES: usize = 4;

/// Waits for a job's end; `write` makes the body.
pub(crate) async fn whole(
    mut ticket: Ticket,
    mut closing: watch::Receiver<bool>,
    mut share: Share,
    write: impl FnOnce(Gathered) -> Value + Send + 'static,
) -> Result<Response<Answer>, ApiError> {
    let mut gathered = Gathered::default();
    let gathering = gather(&mut ticket, &mut closing, &mut gathered, &mut share);
    if let Ok(result) = timeout(SILENCE_MAX, gathering).await {
        result?;
        return Ok(Answer::json(StatusCode::OK, &write(gathered)));
    }
    let (sender, receiver) = mpsc::channel(2);
    tokio::spawn(async move {
        loop {
            let space = sender.send(Ok(Bytes::from_static(b" ")));
            let waited = tokio::select! {
                biased;
                () = sender.closed() => return,
                waited = async {
                    if space.await.is_err() { return None; }
                    let gathering = gather(&mut ticket, &mut closing, &mut gathered, &mut share);
                    Some(timeout(SILENCE_MAX, gathering).await)
                } => waited,
            };
            match waited {
                None => return,
                Some(Err(_)) => {}
                Some(Ok(Ok(()))) => break,
                Some(Ok(Err(_))) => {
                    let _gone = sender.send(Err(Aborted)).await;
                    return;
                }
            }
        }
        let body = write(gathered).to_string();
        drop(share);
        let _gone = sender.send(Ok(Bytes::from(body))).await;
    });
    let mut response = Response::new(Answer::Pieces(receiver));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Takes events until the last, or until the server closes. May be given up and called again: nothing is lost between.
async fn gather(
    ticket: &mut Ticket,
    closing: &mut watch::Receiver<bool>,
    gathered: &mut Gathered,
    share: &mut Share,
) -> Result<(), ApiError> {
    loop {
        let event = tokio::select! {
            biased;
            event = ticket.events.recv() => event,
            _ = closing.wait_for(|closing| *closing) => return Err(JobError::ShuttingDown.into()),
        };
        match event {
            Some(Event::Failed(error)) => return Err(error.into()),
            Some(event) => {
                let larger = |_| {
                    let message = "there is no room for an answer of this size in one piece: stream it, \
                                   or ask for fewer log-probabilities";
                    ApiError::new(Kind::InvalidRequest, message)
                };
                share.grow(weight(&event)).map_err(larger)?;
                if gathered.push(event) {
                    return Ok(());
                }
            }
            None => return Err(broken().into()),
        }
    }
}

/// Memory, roughly, that an event takes in an answer: its text, and log-probabilities as JSON.
fn weight(event: &Event) -> usize {
    let tokens = |tokens: &[TokenLogprob]| -> usize {
        tokens.iter().map(|token| (1 + token.top.len()) * LOGPROB_BYTES).sum()
    };
    match event {
        Event::Reasoning(piece) | Event::Text(piece) => {
            TEXT_COPIES * piece.text.len() + tokens(&piece.logprobs)
        }
        Event::CallArguments { delta, .. } => TEXT_COPIES * delta.len(),
        Event::Finished(finish) | Event::Next(finish) => tokens(&finish.logprobs),
        Event::Prompt(prompt) => tokens(prompt),
        _ => 0,
    }
}

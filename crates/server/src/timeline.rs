//! `/debug/trace?seconds=10`: a recording of the next seconds in Chrome's trace-event format.
//!
//! It opens in ui.perfetto.dev and chrome://tracing. Threads have their spans (`ph: X`), reads in flight overlap and
//! are asynchronous (`ph: b`, `e`). Times are microseconds since the recording began. It holds stages, layers,
//! experts and counts; no text of anybody. Format: the "Trace Event Format" document of the Chromium project.

use std::time::{Duration, Instant};

use hyper::{Response, StatusCode};
use serde_json::{Map, Value, json};
use store::timeline::{Event, Recorder, Recording, Track};

use crate::http::{Answer, ApiError, Desk, Kind};

/// Seconds, if the request does not say.
const SECONDS: f64 = 10.0;
/// Longer recordings would be full before they end.
const SECONDS_MAX: f64 = 60.0;

/// Records for as long as `query` says and answers with what happened. A client that leaves ends it.
pub(crate) async fn response(
    query: Option<&str>,
    aside: &Desk,
) -> Result<Response<Answer>, ApiError> {
    let seconds = seconds(query)?;
    let recorder = Recorder::start().ok_or_else(|| {
        let message = "another recording is under way; ask again when it is over";
        ApiError::new(Kind::Unavailable, message)
    })?;
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    let recording = recorder.stop();
    let text = aside.run(move || trace(&recording).to_string()).await?;
    Ok(Answer::whole(StatusCode::OK, "application/json", text))
}

fn seconds(query: Option<&str>) -> Result<f64, ApiError> {
    let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let mut seconds = SECONDS;
    for pair in pairs {
        let Some(value) = pair.strip_prefix("seconds=") else {
            return Err(ApiError::new(Kind::InvalidRequest, "only seconds can be given"));
        };
        let known = value.parse().ok().filter(|value| (0.01..=SECONDS_MAX).contains(value));
        let problem = || format!("is not between 0.01 and {SECONDS_MAX}");
        seconds = known.ok_or_else(|| ApiError::field("seconds", problem()))?;
    }
    Ok(seconds)
}

/// A recording as a trace.
fn trace(recording: &Recording) -> Value {
    let named = |name: &str, thread: u32, value: &str| {
        let args = json!({ "name": value });
        json!({ "name": name, "ph": "M", "pid": 1, "tid": thread, "args": args })
    };
    let mut events = vec![named("process_name", 0, "flashmoe")];
    events.extend(recording.threads.iter().map(|(id, name)| named("thread_name", *id, name)));
    for (number, event) in recording.events.iter().enumerate() {
        push(&mut events, recording.begun, number, event);
    }
    json!({
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": { "version": env!("CARGO_PKG_VERSION"), "dropped": recording.dropped },
    })
}

fn push(events: &mut Vec<Value>, begun: Instant, number: usize, event: &Event) {
    let us = |time: Instant| time.duration_since(begun).as_nanos() as f64 / 1000.0;
    let (from, to) = (us(event.begun), us(event.ended));
    let numbers = event.numbers.iter().take_while(|(name, _)| !name.is_empty());
    let mut args: Map<_, _> =
        numbers.map(|&(name, value)| (name.to_owned(), Value::from(value))).collect();
    // The number of a trace has more digits than a number of JSON.
    if let (Some(high), Some(low)) = (args.remove("trace_high"), args.remove("trace_low")) {
        let half = |half: Value| half.as_u64().unwrap_or_default();
        let trace = format!("{:016x}{:016x}", half(high), half(low));
        args.insert("trace_id".to_owned(), trace.into());
    }
    match event.track {
        Track::Thread(thread) => events.push(json!({
            "name": event.name, "cat": "work", "ph": "X", "ts": from, "dur": to - from,
            "pid": 1, "tid": thread, "args": args,
        })),
        Track::Flight => {
            let at = |phase, time| {
                json!({
                    "name": event.name, "cat": "reads", "ph": phase, "id": number, "ts": time,
                    "pid": 1, "tid": 0, "args": args,
                })
            };
            events.extend([at("b", from), at("e", to)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_becomes_trace_events() {
        let begun = Instant::now();
        let at = |us| begun + Duration::from_micros(us);
        let numbers = [("layer", 7), ("", 0), ("", 0)];
        let event =
            |track, from, to| Event { name: "x", track, begun: at(from), ended: at(to), numbers };
        let events = vec![event(Track::Thread(4), 10, 30), event(Track::Flight, 12, 50)];
        let threads = vec![(4, "engine".to_owned())];
        let value = trace(&Recording { begun, events, threads, dropped: 2 });
        let events = value["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 5);
        assert_eq!(events[1]["args"]["name"], "engine");
        assert_eq!((&events[2]["ts"], &events[2]["dur"]), (&json!(10.0), &json!(20.0)));
        assert_eq!(events[2]["args"], json!({ "layer": 7 }));
        assert_eq!((&events[3]["ph"], &events[4]["ph"]), (&json!("b"), &json!("e")));
        assert_eq!(events[3]["id"], events[4]["id"]);
        assert_eq!(value["otherData"]["dropped"], 2);
    }

    #[test]
    fn lengths_are_limited() {
        assert_eq!(seconds(None), Ok(SECONDS));
        assert_eq!(seconds(Some("seconds=0.5")), Ok(0.5));
        for bad in ["seconds=0", "seconds=61", "seconds=nan", "seconds=x", "second=1", "seconds="] {
            assert!(seconds(Some(bad)).is_err(), "{bad}");
        }
    }
}

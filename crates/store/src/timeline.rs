//! A recording of where time goes, for trace viewers: spans of threads, and reads in flight.
//!
//! Recording is off but for the seconds that somebody asks for; off, a span costs one relaxed load. One recording
//! at a time in a process, and it is bounded: what comes after [`EVENTS_MAX`] is counted and dropped. It lives in
//! this crate because reads happen here; layers and steps above use it. Spans name stages and numbers, never text.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Ten seconds of decoding are about 20,000.
pub const EVENTS_MAX: usize = 200_000;

static ON: AtomicBool = AtomicBool::new(false);
static RECORDING: Mutex<Option<Recording>> = Mutex::new(None);
static THREADS: AtomicU32 = AtomicU32::new(1);

thread_local! {
    static THREAD: OnceCell<u32> = const { OnceCell::new() };
}

/// What a span is drawn on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Track {
    /// A thread, by number; its spans lie inside each other.
    Thread(u32),
    /// Something in flight, which overlaps with others of its kind.
    Flight,
}

/// A span of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// What was done.
    pub name: &'static str,
    /// Where.
    pub track: Track,
    /// When it began.
    pub begun: Instant,
    /// When it ended.
    pub ended: Instant,
    /// Numbers that go with it; an empty name ends them.
    pub numbers: [(&'static str, u64); 3],
}

/// What was recorded.
#[derive(Debug)]
pub struct Recording {
    /// When the recording began.
    pub begun: Instant,
    /// The spans, in the order of their ends.
    pub events: Vec<Event>,
    /// Number and name of each thread with spans.
    pub threads: Vec<(u32, String)>,
    /// Spans for which there was no room.
    pub dropped: u64,
}

/// A recording that is under way; dropping it ends it.
#[derive(Debug)]
pub struct Recorder(());

impl Recorder {
    /// Begins to record; `None` while another recording is under way.
    pub fn start() -> Option<Self> {
        let mut recording = lock();
        if recording.is_some() {
            return None;
        }
        let begun = Instant::now();
        *recording = Some(Recording { begun, events: Vec::new(), threads: Vec::new(), dropped: 0 });
        ON.store(true, Ordering::Relaxed);
        Some(Self(()))
    }

    /// Ends the recording; spans that are still open are not in it.
    pub fn stop(self) -> Recording {
        ON.store(false, Ordering::Relaxed);
        lock().take().expect("only the one recorder takes the recording")
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        ON.store(false, Ordering::Relaxed);
        *lock() = None;
    }
}

/// A span of the calling thread, from its creation until it is dropped.
#[derive(Debug)]
pub struct Span {
    begun: Option<Instant>,
    name: &'static str,
    numbers: [(&'static str, u64); 3],
}

/// Begins a span of the calling thread.
pub fn span(name: &'static str, numbers: [(&'static str, u64); 3]) -> Span {
    let begun = ON.load(Ordering::Relaxed).then(Instant::now);
    Span { begun, name, numbers }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(begun) = self.begun {
            let Self { name, numbers, .. } = *self;
            record(Event { name, track: thread(), begun, ended: Instant::now(), numbers });
        }
    }
}

/// Notes something that was in flight since `begun`.
pub fn flight(name: &'static str, begun: Instant, numbers: [(&'static str, u64); 3]) {
    if ON.load(Ordering::Relaxed) {
        record(Event { name, track: Track::Flight, begun, ended: Instant::now(), numbers });
    }
}

/// Notes a span of the calling thread that is over.
pub fn past(name: &'static str, begun: Instant, numbers: [(&'static str, u64); 3]) {
    if ON.load(Ordering::Relaxed) {
        record(Event { name, track: thread(), begun, ended: Instant::now(), numbers });
    }
}

/// A panic leaves a recording with or without the event that was being added; both are recordings.
fn lock() -> MutexGuard<'static, Option<Recording>> {
    RECORDING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn thread() -> Track {
    let next = || THREADS.fetch_add(1, Ordering::Relaxed);
    Track::Thread(THREAD.with(|number| *number.get_or_init(next)))
}

fn record(event: Event) {
    let mut recording = lock();
    let Some(recording) = recording.as_mut().filter(|recording| event.begun >= recording.begun)
    else {
        return;
    };
    if recording.events.len() == EVENTS_MAX {
        recording.dropped += 1;
        return;
    }
    if let Track::Thread(number) = event.track
        && recording.threads.iter().all(|&(known, _)| known != number)
    {
        let name = std::thread::current().name().unwrap_or("thread").to_owned();
        recording.threads.push((number, name));
    }
    recording.events.push(event);
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [(&str, u64); 3] = [("", 0); 3];

    /// One test, because recordings are of the whole process.
    #[test]
    fn spans_are_recorded_only_while_somebody_records() {
        drop(span("before", NONE));
        let open = span("open when it begins", NONE);
        let recorder = Recorder::start().unwrap();
        assert!(Recorder::start().is_none());
        drop(open);
        let outer = span("outer", [("layer", 3), ("", 0), ("", 0)]);
        let begun = Instant::now();
        drop(span("inner", NONE));
        flight("read", begun, NONE);
        drop(outer);
        let named = std::thread::Builder::new().name("other".into());
        named.spawn(|| drop(span("there", NONE))).unwrap().join().unwrap();
        let recording = recorder.stop();
        drop(span("after", NONE));
        let names: Vec<_> = recording.events.iter().map(|event| event.name).collect();
        assert_eq!(names, ["inner", "read", "outer", "there"]);
        let outer = recording.events[2];
        assert_eq!(outer.numbers[0], ("layer", 3));
        assert!(
            outer.begun <= recording.events[0].begun && recording.events[0].ended <= outer.ended
        );
        assert_eq!(recording.events[1].track, Track::Flight);
        assert_eq!(recording.threads.len(), 2);
        assert_eq!(recording.threads[1].1, "other");
        assert_ne!(recording.threads[0].0, recording.threads[1].0);
        let recorder = Recorder::start().unwrap();
        (0..EVENTS_MAX + 2).for_each(|_| past("many", Instant::now(), NONE));
        let recording = recorder.stop();
        assert_eq!((recording.events.len(), recording.dropped), (EVENTS_MAX, 2));
        drop(Recorder::start().unwrap());
        assert!(Recorder::start().is_some());
    }
}

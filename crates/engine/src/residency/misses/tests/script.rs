//! Steps that follow a script, over a store whose reads end while a gate is open, or fail.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use store::io::{Fault, Operation};

use super::super::super::port::{Found, Request};
use super::super::super::serving::PREFETCH_AT_ONCE;
use super::super::*;
use super::{Device, Host, K, UNIFORM};

/// Long beside a read of the tiny model's records.
const PAUSE: Duration = Duration::from_millis(20);
/// EIO
const IO_ERROR: i32 = 5;

/// What a scripted step does.
#[derive(Clone, Copy, Debug)]
enum Event {
    Prefetch(u32),
    Demand(u32),
    /// Until the key is answered.
    Await(u32),
    /// A while in which nothing new is asked for.
    Pause,
    /// Reads end from now on, or do not.
    Open(bool),
}

use Event::{Await, Demand, Open, Pause, Prefetch};

/// What was called on a scripted device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Asked {
        key: u32,
        prefetched: bool,
    },
    CopyAhead(u32),
    /// The record, and whether it is there.
    Answer(u32, bool),
    Done,
}

/// Far beyond any read of a test: a step that waits so long would wait for ever.
const STANDS_STILL: Duration = Duration::from_secs(120);

/// A device that follows a script, in order.
struct Script {
    began: Instant,
    events: VecDeque<Event>,
    calls: Vec<Call>,
    gate: Arc<AtomicBool>,
    answers: HashMap<u32, Option<u64>>,
    /// Since when nothing new is asked for.
    paused: Option<Instant>,
}

impl RunningStep for Script {
    fn copy_ahead(&mut self, _layer: LayerId, key: u32, _held: &Held) {
        self.calls.push(Call::CopyAhead(key));
    }

    fn take_request(&mut self) -> Option<Request> {
        loop {
            match *self.events.front()? {
                event @ (Prefetch(key) | Demand(key)) => {
                    self.events.pop_front();
                    let prefetched = matches!(event, Prefetch(_));
                    self.calls.push(Call::Asked { key, prefetched });
                    return Some(Request { key, prefetched });
                }
                Await(key) if self.answers.contains_key(&key) => {}
                Await(key) => {
                    let still = self.began.elapsed() > STANDS_STILL;
                    assert!(!still, "the step stands still: record {key} is not answered");
                    return None;
                }
                Pause => {
                    if self.paused.get_or_insert_with(Instant::now).elapsed() < PAUSE {
                        return None;
                    }
                    self.paused = None;
                }
                Open(open) => self.gate.store(open, Ordering::SeqCst),
            }
            self.events.pop_front();
        }
    }

    fn answer(&mut self, key: u32, found: Option<Found<'_>>) {
        self.calls.push(Call::Answer(key, found.is_some()));
        self.answers.insert(key, found.map(|found| found.address));
    }

    fn is_done(&mut self) -> Result<bool, EngineError> {
        if self.events.is_empty() {
            self.calls.push(Call::Done);
        }
        Ok(self.events.is_empty())
    }
}

/// Lets the reads of a store end while it is open. A test that fails opens it, or the store would wait for ever.
struct Gate(Arc<AtomicBool>);

impl Drop for Gate {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Gate {
    /// A device that does what `events` say, in order.
    fn script(&self, events: &[Event]) -> Script {
        let events = events.iter().copied().collect();
        let (gate, answers) = (Arc::clone(&self.0), HashMap::new());
        Script { began: Instant::now(), events, calls: Vec::new(), gate, answers, paused: None }
    }
}

/// A store whose reads end while the gate is open, which it is.
fn gated(slots: usize) -> (Host, Gate) {
    gated_by(slots, |_| Fault::None)
}

/// The same with faults.
fn gated_by(
    slots: usize,
    fault: impl Fn(&Operation) -> Fault + Send + Sync + 'static,
) -> (Host, Gate) {
    let gate = Arc::new(AtomicBool::new(true));
    let open = Arc::clone(&gate);
    let wait = move |read: &Operation| {
        while !open.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_micros(50));
        }
        fault(read)
    };
    (Host::open(UNIFORM, slots, Box::new(wait)), Gate(gate))
}

#[test]
fn a_step_is_told_in_the_order_of_its_requests_and_of_the_reads_ends() {
    let (mut host, gate) = failing(1);
    let [x, a, b] = [host.key(0, 0), host.key(1, 0), host.key(1, 1)];
    // Every place fails once: the first prefetched read of a record is silent, a demanded one is not.
    let events = [Prefetch(a), Pause, Prefetch(a), Await(a), Prefetch(a), Demand(a), Demand(a)];
    let mut script = gate.script(&events);
    host.serve(&mut script).unwrap();
    let asked = |key, prefetched| Call::Asked { key, prefetched };
    let answer = |key| Call::Answer(key, true);
    let expected = [
        asked(a, true),
        asked(a, true),
        answer(a),
        asked(a, true),
        Call::CopyAhead(a),
        asked(a, false),
        answer(a),
        asked(a, false),
        answer(a),
        Call::Done,
    ];
    assert_eq!(script.calls, expected);
    // A read that the step comes to wait for fails once more, and is begun anew at once.
    let events = [Open(false), Prefetch(b), Pause, Demand(b), Open(true), Await(b), Prefetch(b)];
    let mut script = gate.script(&events);
    assert_eq!(host.serve(&mut script).unwrap(), 1);
    let expected = [
        asked(b, true),
        asked(b, false),
        answer(b),
        asked(b, true),
        Call::CopyAhead(b),
        Call::Done,
    ];
    assert_eq!(script.calls, expected);
    // One that cannot be read ends the step soon, and is the step's failure.
    let mut script = gate.script(&[Demand(x), Await(x)]);
    assert!(host.serve(&mut script).is_err());
    assert_eq!(script.calls, [asked(x, false), Call::Answer(x, false), Call::Done]);
}

#[test]
fn reads_are_counted_as_used_when_the_step_asks_for_them() {
    let (mut host, gate) = gated(64);
    let [a, b, c] = [0, 1, 2].map(|expert| host.key(1, expert));
    let [e, f] = [0, 1].map(|expert| host.key(2, expert));
    let events = [
        Prefetch(a),
        Prefetch(b),
        Prefetch(c),
        Await(a),
        Await(b),
        Await(c),
        // Two that have landed are asked for, one of them by two tokens.
        Demand(a),
        Demand(b),
        Demand(b),
        Open(false),
        Prefetch(e),
        Prefetch(f),
        Pause,
        // This one is on its way; the other is not asked for when the step ends.
        Demand(e),
        Demand(e),
        Open(true),
        Await(e),
    ];
    assert_eq!(host.serve(&mut gate.script(&events)).unwrap(), 0);
    assert_eq!(host.service.prefetch_reads(), (5, 3));
    // What the step before had read is nothing that this one prefetched.
    assert_eq!(host.serve(&mut gate.script(&[Demand(c), Await(c)])).unwrap(), 0);
    assert_eq!(host.service.prefetch_reads(), (5, 3));
    host.settle();
}

#[test]
fn demanded_reads_go_first_and_a_layer_that_has_chosen_is_not_prefetched() {
    let experts = gated(64).0.experts as u32;
    let (x, x2, a, b, y, z) = (0, 1, experts, experts + 1, experts + 2, 2 * experts);
    // Events, and the only record that is read because it was prefetched.
    let cases: [(&[Event], Option<u32>); 5] = [
        // Layer 1 chooses before the drive is free for its guesses: another record, or the guessed one.
        (
            &[Open(false), Demand(x), Prefetch(a), Pause, Demand(y), Open(true), Await(y), Pause],
            None,
        ),
        (
            &[Open(false), Demand(x), Prefetch(a), Pause, Demand(a), Open(true), Await(a), Pause],
            None,
        ),
        // The guesses come late.
        (&[Demand(y), Prefetch(a), Await(y), Pause, Prefetch(b), Pause], None),
        // Layer 2 is prefetched when layer 1 chooses.
        (
            &[Open(false), Demand(x), Prefetch(a), Prefetch(z), Open(true), Await(x), Await(z)],
            Some(z),
        ),
        // Two tokens of layer 0 ask for records before and after layer 1 is guessed.
        (&[Demand(x), Prefetch(a), Demand(x2), Await(a)], Some(a)),
    ];
    for (events, read) in cases {
        let (mut host, gate) = gated(64);
        let mut script = gate.script(events);
        host.serve(&mut script).unwrap();
        let reads = (u64::from(read.is_some()), 0);
        assert_eq!(host.service.prefetch_reads(), reads, "{events:?}");
        for event in events {
            if let Demand(key) = event {
                assert!(matches!(script.answers.get(key), Some(Some(_))), "{events:?}");
            }
        }
        assert!(read.is_none_or(|key| host.placement.in_host(key)), "{events:?}");
        host.settle();
    }
}

#[test]
fn few_prefetch_reads_are_in_flight_and_those_of_a_step_that_ends_are_dropped() {
    let (mut host, gate) = gated(2 * PREFETCH_AT_ONCE);
    let mut events = vec![Open(false)];
    events.extend((0..host.experts).map(|expert| Prefetch(host.key(1, expert))));
    events.push(Pause);
    host.serve(&mut gate.script(&events)).unwrap();
    let (read, used) = host.service.prefetch_reads();
    assert!((read, used) == (PREFETCH_AT_ONCE as u64, 0) && PREFETCH_AT_ONCE < host.experts);
    assert_eq!(host.placement.idle_host_copies().count(), 0);
    // Their slots come back when the reads end, to steps that need all of them.
    let wanted: Vec<Vec<u32>> =
        (0..host.layers).map(|layer| vec![host.key(layer, 3), host.key(layer, 4)]).collect();
    let words = host.placement.words().to_vec();
    let mut device = Device::new(&words, &wanted, &[], 1);
    let open = Arc::clone(&gate.0);
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        open.store(true, Ordering::SeqCst);
    });
    host.serve(&mut device).unwrap();
    opener.join().unwrap();
    assert!(!device.failed && device.seen.len() == host.layers * K);
    host.settle();
}

/// Reads ahead for a prompt's next layer hold slots that no tier counts while they are under way. A step between two
/// layers of the prompt finds all others held, and its demand has no slot until one of those reads ends. It is polled
/// and not waited for, so it has to be given that slot when it is looked at.
#[test]
fn a_step_between_two_layers_of_a_prompt_waits_for_reads_ahead_to_end() {
    let (mut host, gate) = gated(8);
    let named = [0, 1, 2].map(|expert| host.key(0, expert));
    let events: Vec<Event> = named.iter().flat_map(|&key| [Demand(key), Await(key)]).collect();
    host.serve(&mut gate.script(&events)).unwrap();
    gate.0.store(false, Ordering::SeqCst);
    let all: Vec<ExpertId> = (0..host.experts as u16).map(ExpertId).collect();
    host.store.read_ahead(LayerId(2), &all);
    assert_eq!(host.store.counters().ahead_issued as usize, host.pools[0] - named.len());
    // By what is counted there is room.
    host.service.make_room(&host.store, &mut host.placement);
    assert_eq!(host.placement.host_slots(0), named.len());
    let asked = [3, 4].map(|expert| host.key(1, expert));
    let mut events: Vec<Event> = asked.iter().map(|&key| Demand(key)).collect();
    events.extend([Pause, Open(true)]);
    events.extend(asked.iter().map(|&key| Await(key)));
    let mut script = gate.script(&events);
    assert_eq!(host.serve(&mut script).unwrap(), asked.len());
    assert!(asked.iter().all(|key| script.answers[key].is_some()));
    host.settle();
}

#[test]
fn prefetch_reads_take_only_room_that_no_layer_can_need() {
    let (mut host, gate) = gated(12);
    // The pool is filled but for one slot more than a layer needs.
    let filled = host.pools[0] - (K + 1);
    let others = [0, 1, 3].into_iter().flat_map(|layer| (0..5).map(move |expert| (layer, expert)));
    let keys: Vec<u32> =
        others.take(filled).map(|(layer, expert)| host.key(layer, expert)).collect();
    let guesses = [0, 1, 2].map(|expert| host.key(2, expert));
    let events: Vec<Event> = keys.iter().flat_map(|&key| [Demand(key), Await(key)]).collect();
    host.serve(&mut gate.script(&events)).unwrap();
    let mut events: Vec<Event> = guesses.iter().map(|&key| Prefetch(key)).collect();
    events.extend([Await(guesses[0]), Pause]);
    host.serve(&mut gate.script(&events)).unwrap();
    assert_eq!(host.service.prefetch_reads(), (1, 0), "one slot, one read");
    assert!(
        keys.iter().all(|&key| host.placement.in_host(key)),
        "nothing was given back for a guess"
    );
    // Before the next step, room is made for another.
    host.service.make_room(&host.store, &mut host.placement);
    assert!(host.pools[0] - host.placement.host_slots(0) > K);
    host.settle();
}

/// A store in which every read of a place fails as often as this before it succeeds, while the gate is open.
fn failing(count: u64) -> (Host, Gate) {
    gated_by(
        64,
        move |read| if read.repetition < count { Fault::Error(IO_ERROR) } else { Fault::None },
    )
}

#[test]
fn a_failed_prefetched_read_is_read_again_when_the_step_asks_for_it() {
    // It is not asked for, so it is not reported; a later step reads it anew.
    let (mut host, gate) = failing(1);
    let (a, b) = (host.key(1, 0), host.key(1, 1));
    let mut script = gate.script(&[Prefetch(a), Pause]);
    host.serve(&mut script).unwrap();
    assert!(script.answers.is_empty() && host.store.counters().errors == 1);
    let mut script = gate.script(&[Demand(a), Await(a)]);
    host.serve(&mut script).unwrap();
    assert!(script.answers[&a].is_some());
    // The step asks for it before it fails.
    let events = [Open(false), Prefetch(b), Pause, Demand(b), Open(true), Await(b)];
    let mut script = gate.script(&events);
    assert_eq!(host.serve(&mut script).unwrap(), 1);
    assert!(script.answers[&b].is_some());
    // What fails again fails the step.
    let (mut host, gate) = failing(2);
    let mut script = gate.script(&events);
    assert!(host.serve(&mut script).is_err());
    assert_eq!(script.answers[&b], None);
}

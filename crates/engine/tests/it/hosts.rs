//! Goal: stages behind connections give what one device gives, to the bit; what is lost, stopped or wrong is a typed
//! error in time. Method: every cut of golden nets into two and some into three, the stages behind sockets of this
//! host; peers that say nothing, garbage, other terms, or that end.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine::EngineError;
use engine::backend::cpu::KvType;
use engine::backend::{PAGE_TOKENS, Purpose, Run, Snapshot, Uncancelled};
use engine::drafts::ROUND_TOKENS;
use engine::engine::Engine;
use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::stages::Stage;
use engine::stages::remote::{
    Channel, Ended, Facts, JoinError, Joined, Limits, LostCause, Reached, Terms,
};
use engine::weights::Catalog;

use crate::long::part;
use crate::processor::{Sizes, backend_leaving, backend_of, config_of, engine_in, opened};
use crate::sequences::{bits, feed, resumed, text};

const PATIENCE: Duration = Duration::from_secs(2);
/// What a first process gives a stage to compute.
const BATCH: u8 = 4;

fn sizes() -> Sizes<'static> {
    Sizes { kv_type: KvType::F16, context: 640, cuts: &[], steps: 1, exact: false }
}

/// A socket as a channel.
fn channel(stream: TcpStream) -> Channel {
    stream.set_nodelay(true).unwrap();
    let closed = stream.try_clone().unwrap();
    Channel {
        address: stream.peer_addr().unwrap().to_string(),
        reader: Box::new(stream.try_clone().unwrap()),
        writer: Box::new(stream),
        end: Arc::new(move || _ = closed.shutdown(Shutdown::Both)),
        look: Arc::new(|_| {}),
    }
}

fn terms(config: &ModelConfig, layers: Range<usize>) -> Terms {
    terms_with(config, layers, false)
}

/// Of a stage that has the head, or not.
fn terms_with(config: &ModelConfig, layers: Range<usize>, head: bool) -> Terms {
    Terms {
        head,
        build: "1".to_owned(),
        contents: 2,
        device: "cpu".to_owned(),
        arithmetic: "f16".to_owned(),
        model_layers: config.layers.len(),
        layers,
        limits: Limits {
            sequences: 3,
            context: 640,
            batch_tokens: 64,
            round_tokens: ROUND_TOKENS,
            width: config.streams() * config.hidden,
            vocabulary: config.vocabulary,
        },
    }
}

/// A stage that serves one first process, and where it is.
fn stage(case: &str, layers: Range<usize>) -> (TcpStream, JoinHandle<Ended>) {
    stage_with(case, layers, false)
}

fn stage_with(case: &str, layers: Range<usize>, head: bool) -> (TcpStream, JoinHandle<Ended>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let case = case.to_owned();
    let serving = std::thread::spawn(move || {
        let (checkpoint, config) = opened(&case);
        let model = Model::declare(&config, &mut Catalog::new(&checkpoint)).unwrap();
        let backend = backend_leaving(&checkpoint, &config, layers.clone(), &sizes(), !head);
        let own = terms_with(&config, layers.clone(), head);
        let stream = channel(listener.accept().unwrap().0);
        let joined = Joined::over(stream, &own, &Facts::of(&backend, 64), PATIENCE).unwrap();
        joined.serve(Stage { layers, backend: Box::new(backend) }, &model).unwrap()
    });
    (stream, serving)
}

/// An engine whose stages but the first are behind connections.
fn over(case: &str, streams: Vec<(TcpStream, Range<usize>)>, head: bool) -> Engine {
    let (checkpoint, config) = opened(case);
    let model = Model::declare(&config, &mut Catalog::new(&checkpoint)).unwrap();
    let first = 0..streams[0].1.start;
    let layers = config.layers.len();
    let reach = |(stream, own): (_, Range<usize>)| {
        let terms = terms_with(&config, own.clone(), head && own.end == layers);
        Reached::over(channel(stream), &terms, PATIENCE).unwrap()
    };
    let others = streams.into_iter().map(reach).collect();
    let here = |layers: Range<usize>| Stage {
        layers: layers.clone(),
        backend: Box::new(backend_of(&checkpoint, &config, layers, &sizes())),
    };
    let (first, own) = (here(first), (!head).then(|| here(layers..layers)));
    Engine::over_hosts(config.clone(), model, first, others, own, 64).unwrap()
}

/// The same with stages that serve, cut at the layers `cuts`; the last may have the head.
fn hosted(case: &str, cuts: &[usize], head: bool) -> (Engine, Vec<JoinHandle<Ended>>) {
    let layers = config_of(case).layers.len();
    let ends = cuts.iter().copied().skip(1).chain([layers]);
    let (mut streams, mut serving) = (Vec::new(), Vec::new());
    for (start, end) in cuts.iter().copied().zip(ends) {
        let (stream, thread) = stage_with(case, start..end, head && end == layers);
        streams.push((stream, start..end));
        serving.push(thread);
    }
    (over(case, streams, head), serving)
}

/// What can be seen of prompts with marks, answers together, rounds that keep less than they ran, and snapshots.
fn seen(engine: &mut Engine) -> Vec<Vec<u32>> {
    let whole = text(3, PAGE_TOKENS + 90);
    let mut seen = Vec::new();
    let sequence = engine.create_sequence().unwrap();
    seen.push(feed(engine, sequence, &whole[..150]));
    let runs = [&whole[150..170], &whole[170..180]].map(|tokens| Run { sequence, tokens });
    engine.submit(&runs, Purpose::Prompt, &[0, 1]).unwrap();
    while engine.collect(Duration::from_millis(50)).is_none() {}
    seen.push(bits(engine, 29));
    let marks = engine.backend().take_marks();
    let marks: Vec<_> = marks.into_iter().map(|(_, mark)| mark).collect();
    assert_eq!(marks.iter().map(Snapshot::length).collect::<Vec<_>>(), [170, 180]);
    seen.push(feed(engine, sequence, &whole[180..]));
    let other = engine.create_sequence().unwrap();
    feed(engine, other, &[1, 2]);
    let runs = [Run { sequence, tokens: &[3, 1, 4] }, Run { sequence: other, tokens: &[9] }];
    engine.step(&runs, &Uncancelled).unwrap();
    seen.extend((0..4).map(|token| bits(engine, token)));
    engine.keep_first(sequence, 2).unwrap();
    let snapshot = engine.backend().snapshot(sequence, None).unwrap();
    assert_eq!(snapshot.length(), whole.len() + 2);
    engine.step(&[Run { sequence, tokens: &[8] }], &Uncancelled).unwrap();
    seen.push(bits(engine, 0));
    engine.drop_sequence(sequence);
    seen.push(resumed(engine, &snapshot, &[5, 9, 2]));
    seen.push(resumed(engine, &marks[0], &whole[170..180]));
    let earlier = snapshot.truncated(PAGE_TOKENS + 3);
    seen.extend(earlier.map(|earlier| resumed(engine, &earlier, &[8])));
    drop((snapshot, marks));
    engine.drop_sequence(other);
    let room = engine.backend().room();
    seen.push(vec![room.states as u32]);
    seen
}

fn compare(case: &str, all: &[Vec<usize>]) {
    let mut one = engine_in(case, &sizes());
    let expected = seen(&mut one);
    for (index, cuts) in all.iter().enumerate() {
        // The head in the first process, or in the last.
        let (mut engine, serving) = hosted(case, cuts, index % 2 == 1);
        let found = seen(&mut engine);
        assert_eq!(found.len(), expected.len(), "{case} {cuts:?}");
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(found == expected, "{case} {cuts:?}: number {index} of what is seen");
        }
        let (counters, one) = (engine.counters(), one.counters());
        assert_eq!(counters.decode.visits, one.decode.visits, "{case} {cuts:?}");
        assert_eq!(counters.prefill.requests, one.prefill.requests, "{case} {cuts:?}");
        drop(engine);
        let ended = serving.into_iter().map(|thread| thread.join().unwrap());
        assert!(ended.into_iter().all(|ended| ended == Ended::InOrder), "{case} {cuts:?}");
    }
}

#[test]
fn every_cut_over_connections_gives_what_one_device_gives() {
    for case in [
        "deepseek-calm-hf",
        "dsv32-calm-hf",
        "dsv4-calm-hf",
        "flash-next-calm-hf",
        "gemma4-calm-hf",
        "glm-flash-calm-mlxlm-4bit",
        "gptoss-calm-mxfp4",
        "qwen3-calm-hf",
        "qwen35-calm-mlx-mixed",
        "qwen3next-calm-hf",
    ] {
        let layers = config_of(case).layers.len();
        let mut cuts: Vec<Vec<usize>> = (1..layers).map(|cut| vec![cut]).collect();
        if layers > 2 {
            cuts.push(vec![1, 2]);
        }
        compare(case, &cuts);
    }
}

#[test]
fn cuts_of_the_demo_model_over_connections_give_what_one_device_gives() {
    let mut cuts: Vec<Vec<usize>> = part(1..12, 5).map(|cut| vec![cut]).collect();
    cuts.push(vec![4, 8]);
    compare("demo", &cuts);
}

const CASE: &str = "qwen35-calm-mlx-mixed";

/// An engine of one stage that is played by `peer`, which gets the stream once it was greeted as a true one.
fn played(peer: impl FnOnce(TcpStream) + Send + 'static) -> (Engine, JoinHandle<()>) {
    // A true stage behind a relay that can be cut: what it says in the first message is right.
    let (stream, serving) = stage(CASE, 2..4);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    let relay = std::thread::spawn(move || {
        let (mut far, mut stream) = (far, stream);
        for (from, to) in [(0, 1), (1, 0)] {
            let mut both = [far.try_clone().unwrap(), stream.try_clone().unwrap()];
            let mut header = [0; 5];
            both[from].read_exact(&mut header).unwrap();
            let length = u32::from_le_bytes(header[..4].try_into().unwrap());
            let mut content = vec![0; length as usize - 1];
            both[from].read_exact(&mut content).unwrap();
            both[to].write_all(&header).unwrap();
            both[to].write_all(&content).unwrap();
        }
        stream.flush().unwrap();
        drop(stream);
        far.flush().unwrap();
        peer(far);
        assert!(matches!(serving.join().unwrap(), Ended::Lost(_)), "its first process went");
    });
    (over(CASE, vec![(near, 2..4)], false), relay)
}

fn lost(engine: &mut Engine, within: Duration) -> LostCause {
    let begun = Instant::now();
    let sequence = engine.create_sequence();
    let error = match sequence {
        Err(error) => error,
        Ok(sequence) => {
            engine.forward(&[Run { sequence, tokens: &[1, 2, 3] }], &Uncancelled).unwrap_err()
        }
    };
    assert!(begun.elapsed() < within, "{:?}", begun.elapsed());
    let EngineError::StageLost(lost) = error else { panic!("{error}") };
    assert_eq!(lost.layers, 2..4);
    // And so does all that follows, at once.
    let begun = Instant::now();
    assert!(matches!(engine.create_sequence(), Err(EngineError::StageLost(_))));
    assert!(begun.elapsed() < Duration::from_millis(500));
    lost.cause
}

#[test]
fn a_stage_that_says_nothing_is_lost_in_time() {
    let (done, waits) = std::sync::mpsc::channel::<()>();
    let (mut engine, relay) = played(move |far| {
        // The connection stays open.
        _ = waits.recv();
        drop(far);
    });
    assert_eq!(lost(&mut engine, PATIENCE + Duration::from_secs(2)), LostCause::Silent(PATIENCE));
    drop(engine);
    drop(done);
    relay.join().unwrap();
}

/// Passes messages on, but not those of a kind.
fn pass(mut from: TcpStream, mut to: TcpStream, without: Option<u8>) {
    let mut header = [0; 5];
    while from.read_exact(&mut header).is_ok() {
        let length = u32::from_le_bytes(header[..4].try_into().unwrap());
        let mut content = vec![0; length as usize - 1];
        from.read_exact(&mut content).unwrap();
        if Some(header[4]) != without {
            to.write_all(&[&header[..], &content].concat()).unwrap();
        }
    }
    _ = to.shutdown(Shutdown::Both);
}

/// Its beats come, and no work is done: as where its drive does not answer.
#[test]
fn a_stage_that_is_there_and_does_nothing_is_lost_by_its_deadline() {
    let (checkpoint, config) = opened(CASE);
    let here = |layers: Range<usize>| Stage {
        layers: layers.clone(),
        backend: Box::new(backend_of(&checkpoint, &config, layers, &sizes())),
    };
    let deadline = Duration::from_secs(3);
    for without in [None, Some(BATCH)] {
        let (stream, serving) = stage(CASE, 2..4);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        let both = || (far.try_clone().unwrap(), stream.try_clone().unwrap());
        let ((out, back), (returned, answers)) = (both(), both());
        std::thread::spawn(move || pass(out, back, without));
        std::thread::spawn(move || pass(answers, returned, None));
        let reached = Reached::over(channel(near), &terms(&config, 2..4), PATIENCE).unwrap();
        let others = vec![reached.within(Some(deadline))];
        let model = Model::declare(&config, &mut Catalog::new(&checkpoint)).unwrap();
        let (first, own, config) = (here(0..2), here(4..4), config.clone());
        let mut engine = Engine::over_hosts(config, model, first, others, Some(own), 64).unwrap();
        // Without work no deadline passes.
        std::thread::sleep(deadline + Duration::from_secs(1));
        if without.is_some() {
            let found = lost(&mut engine, deadline + Duration::from_secs(2));
            assert_eq!(found, LostCause::Stuck(deadline));
        } else {
            let sequence = engine.create_sequence().unwrap();
            engine.forward(&[Run { sequence, tokens: &[1, 2, 3] }], &Uncancelled).unwrap();
        }
        drop(engine);
        _ = serving.join().unwrap();
    }
}

#[test]
fn a_stage_that_ends_is_lost_at_once() {
    let (mut engine, relay) = played(drop);
    assert_eq!(lost(&mut engine, Duration::from_secs(1)), LostCause::Closed);
    relay.join().unwrap();
}

#[test]
fn a_stage_that_says_what_is_no_message_is_lost() {
    for garbage in [&[0xff; 64][..], &[1, 0, 0, 0, 5], &[3, 0, 0, 0, 7, 9, 9], &[9; 5]] {
        let (mut engine, relay) = played(move |mut far| {
            far.write_all(garbage).unwrap();
            // Not by its end, but by what it said.
            let mut rest = Vec::new();
            _ = far.read_to_end(&mut rest);
        });
        let cause = lost(&mut engine, Duration::from_secs(1));
        assert!(matches!(cause, LostCause::Protocol(_)), "{garbage:?}: {cause}");
        drop(engine);
        relay.join().unwrap();
    }
}

/// A stage that is left alone ends, whether its first process goes, stops or says what is no message.
#[test]
fn a_stage_whose_first_process_is_lost_ends() {
    type End = fn(&mut TcpStream);
    let ends: [(&str, End); 3] = [
        ("goes", |stream| stream.shutdown(Shutdown::Both).unwrap()),
        ("stops", |_| {}),
        ("says garbage", |stream| stream.write_all(&[0xee; 100]).unwrap()),
    ];
    for (what, end) in ends {
        let (stream, serving) = stage(CASE, 2..4);
        let mut own = stream.try_clone().unwrap();
        let config = config_of(CASE);
        let reached = Reached::over(channel(stream), &terms(&config, 2..4), PATIENCE).unwrap();
        let begun = Instant::now();
        end(&mut own);
        let ended = serving.join().unwrap();
        assert!(begun.elapsed() < PATIENCE + Duration::from_secs(2), "{what}");
        let Ended::Lost(lost) = ended else { panic!("{what}: {ended:?}") };
        let right = match what {
            "goes" => lost.cause == LostCause::Closed,
            "stops" => lost.cause == LostCause::Silent(PATIENCE),
            _ => matches!(lost.cause, LostCause::Protocol(_)),
        };
        assert!(right, "{what}: {lost}");
        drop(reached);
    }
}

#[test]
fn what_differs_is_refused_with_both_values() {
    let config = config_of(CASE);
    let (checkpoint, _) = opened(CASE);
    let backend = backend_leaving(&checkpoint, &config, 2..4, &sizes(), true);
    let (facts, own) = (Facts::of(&backend, 64), terms(&config, 2..4));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let greet = |first: &Terms| {
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        let first = first.clone();
        let asked =
            std::thread::spawn(move || Reached::over(channel(near), &first, PATIENCE).map(drop));
        let joined = Joined::over(channel(far), &own, &facts, PATIENCE).map(drop);
        (asked.join().unwrap(), joined)
    };
    let limited = |change: fn(&mut Limits)| {
        let mut limits = own.limits;
        change(&mut limits);
        Terms { limits, ..own.clone() }
    };
    for (what, first) in [
        ("build", Terms { build: "2".to_owned(), ..own.clone() }),
        ("contents of the model", Terms { contents: 3, ..own.clone() }),
        ("device", Terms { device: "cuda".to_owned(), ..own.clone() }),
        ("arithmetic", Terms { arithmetic: "f32".to_owned(), ..own.clone() }),
        ("layers of the model", Terms { model_layers: 5, ..own.clone() }),
        ("layers", Terms { layers: 1..4, ..own.clone() }),
        ("head in the stage", Terms { head: true, ..own.clone() }),
        ("tokens that there are", limited(|limits| limits.vocabulary += 1)),
        ("width of the residual stream", limited(|limits| limits.width += 1)),
        ("--sequences", limited(|limits| limits.sequences += 1)),
        ("--context", limited(|limits| limits.context += 1)),
    ] {
        let (asked, joined) = greet(&first);
        for result in [asked, joined] {
            match result {
                Err(JoinError::Differs { what: found, first, stage }) => {
                    assert_eq!(found, what);
                    assert_ne!(first, stage, "{what}: both values");
                }
                other => panic!("{what}: {other:?}"),
            }
        }
    }
    let (asked, joined) = greet(&limited(|limits| limits.context -= 1));
    assert!(asked.is_ok() && joined.is_ok(), "a stage may hold more");
}

#[test]
fn a_greeting_that_is_none_is_refused() {
    let config = config_of(CASE);
    let (checkpoint, _) = opened(CASE);
    let backend = backend_leaving(&checkpoint, &config, 2..4, &sizes(), true);
    let own = terms(&config, 2..4);
    for said in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 16], &[2, 0, 0, 0, 1, 7], &[]] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        near.write_all(said).unwrap();
        near.shutdown(Shutdown::Write).unwrap();
        let joined = Joined::over(channel(far), &own, &Facts::of(&backend, 64), PATIENCE);
        assert!(joined.is_err(), "{said:?}");
    }
}

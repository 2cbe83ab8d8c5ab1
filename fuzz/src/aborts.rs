//! Clients of a server that vanish: in their request, while they wait, while they are answered. Four vanish for every
//! input; then nothing may be at work, and an answer that goes on from what was kept is that of one computed from
//! nothing, to the bit.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::work::{EngineWorker, Loading, Worker};
use server::{ServeOptions, Server};

use crate::net::{Room, no_panic, worker};
use crate::random::Random;
use crate::target::Target;

const CONTEXT: usize = 600;
/// Clients that vanish for an input.
const VANISH: usize = 4;
/// Longest time before they do.
const LONGEST_US: usize = 12_000;
/// A job whose client has gone ends within this.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn aborts() -> Target {
    let room = Room { context: CONTEXT, sequences: 3, snapshots: 7, check_reads: false };
    let worker = Arc::new(worker("qwen35-calm-mlx-mixed", &room));
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::bind(ServeOptions { address, ..ServeOptions::default() });
    let server = server.expect("a port of loopback is free");
    let address = server.address().expect("it is bound");
    let loading = Arc::new(Loading::finished(Arc::clone(&worker) as Arc<dyn Worker>));
    std::thread::spawn(move || server.run(loading).expect("it serves"));
    Target {
        seeds: vec![vec![0; 8]],
        mutate: |random, input| *input = random.next().to_le_bytes().to_vec(),
        run: Box::new(move |input| {
            let number = input.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
            let mut random = Random::of(number, 1);
            for _ in 0..VANISH {
                vanish(address, &mut random);
            }
            compare(address, &mut random);
            idle(&worker);
            no_panic(&worker);
        }),
    }
}

/// A prompt of a few conversations that share beginnings, so that there is much to go on from.
fn prompt(random: &mut Random) -> Vec<usize> {
    let mut ids: Vec<usize> =
        (0..30 * (1 + random.below(3))).map(|at| (at * at + 7) % 60).collect();
    for turn in 0..random.below(4) {
        let branch = random.below(3);
        ids.extend((0..20 + 25 * branch).map(|at| (at * (branch + 3) + turn) % 60));
    }
    ids.extend((0..random.below(9)).map(|at| at % 60));
    ids
}

fn body(random: &mut Random) -> Value {
    json!({
        "prompt": prompt(random), "max_tokens": 1 + random.below(12), "temperature": random.below(2),
        "seed": random.below(1000), "logprobs": 1, "ignore_eos": true, "model": "net",
    })
}

fn request(body: &Value) -> Vec<u8> {
    let body = body.to_string();
    format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    stream
}

fn vanish(address: SocketAddr, random: &mut Random) {
    let mut body = body(random);
    body["stream"] = random.once_in(2).into();
    let bytes = request(&body);
    let mut stream = connect(address);
    // One in five goes in the middle of its own request.
    let sent = if random.once_in(5) { random.below(bytes.len()) } else { bytes.len() };
    // The server may have closed before all was written: that is an abort as well.
    let _ = stream.write_all(&bytes[..sent]);
    if sent == bytes.len() && random.once_in(4) {
        let _ = stream.read(&mut [0; 64]);
    }
    std::thread::sleep(Duration::from_micros(random.below(LONGEST_US) as u64));
    if random.once_in(3) {
        let _ = stream.shutdown(Shutdown::Write);
    }
}

/// The answer's choices.
fn answer(address: SocketAddr, body: &Value) -> Value {
    let mut stream = connect(address);
    stream.write_all(&request(body)).expect("a request can be sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer comes to its end");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    assert!(head.starts_with("HTTP/1.1 200"), "{text}");
    let from = body.find('{').unwrap_or(0);
    let until = body.rfind('}').map_or(0, |at| at + 1);
    let body: Value = serde_json::from_str(&body[from..until]).expect("an answer is JSON");
    body["choices"].clone()
}

fn compare(address: SocketAddr, random: &mut Random) {
    let mut body = body(random);
    let warm = answer(address, &body);
    body["cache_prompt"] = false.into();
    let cold = answer(address, &body);
    assert_eq!(warm, cold, "{body}");
    assert!(
        warm[0]["logprobs"]["tokens"].as_array().is_some_and(|list| !list.is_empty()),
        "{warm}"
    );
}

fn idle(worker: &EngineWorker) {
    let started = Instant::now();
    while !worker.status().running.is_empty() {
        assert!(started.elapsed() < PATIENCE, "still at work: {:?}", worker.status().running);
        std::thread::sleep(Duration::from_micros(200));
    }
}

//! Goal: a server that is short of descriptors still answers, and one whose files changed says that it fails. Method:
//! the real binary with the demo model, and a client that speaks bytes.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo")
}

/// A server that ends with the test.
struct Serving {
    child: Child,
    address: String,
}

impl Serving {
    /// `before` is a command of the shell that runs first.
    fn start(before: &str, model: &Path, options: &[&str]) -> Self {
        let mut command = Command::new("sh");
        let script = format!("{before}; exec \"$0\" serve \"$@\"");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_flashmoe")]).arg(model);
        command.args(["--port", "0", "--device", "cpu"]).args(options);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit("http://").next().unwrap().to_owned();
        assert!(address.contains(':'), "the server said: {line}");
        Self { child, address }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Status and body.
    fn exchange(&self, head: &str, body: &str) -> (u16, String) {
        let mut stream = self.connect();
        let request = format!(
            "{head} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn health(&self) -> (u16, String) {
        self.exchange("GET /health", "")
    }

    fn ask(&self, question: &str) -> (u16, String) {
        let body = format!(
            "{{\"max_tokens\":8,\"messages\":[{{\"role\":\"user\",\"content\":\"{question}\"}}]}}"
        );
        self.exchange("POST /v1/chat/completions", &body)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

#[test]
fn idle_connections_do_not_use_up_the_descriptors() {
    let serving = Serving::start("ulimit -n 60", &demo(), &[]);
    let idle: Vec<TcpStream> = (0..100).map(|_| serving.connect()).collect();
    let begun = Instant::now();
    for _ in 0..3 {
        assert_eq!(serving.health().0, 200);
    }
    assert_eq!(serving.ask("What is 2 + 2?").0, 200);
    // Ten seconds on, their time for a head would be over in any case.
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    drop(idle);
}

#[test]
fn a_model_that_changed_is_not_healthy_again_when_it_is_put_back() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    std::fs::create_dir(&model).unwrap();
    let files = [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    for file in files {
        std::fs::copy(demo().join(file), model.join(file)).unwrap();
    }
    let streamed = ["--storage", "budget", "--slots", "floor"];
    let serving = Serving::start("true", &model, &streamed);
    assert_eq!(serving.ask("What is 2 + 2?").0, 200);
    assert_eq!(serving.health().0, 200);
    let weights = model.join("model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &bytes[..bytes.len() / 2]).unwrap();
    let (status, body) = serving.ask("Which colour has the sky?");
    assert_eq!(status, 500, "{body}");
    let (status, body) = serving.health();
    assert!(status == 503 && body.contains("failing") && body.contains("restart"), "{body}");
    // The same bytes once more, at another time: the server cannot know that they are.
    std::fs::write(&weights, &bytes).unwrap();
    let later = SystemTime::now() + Duration::from_secs(3);
    std::fs::File::options().write(true).open(&weights).unwrap().set_modified(later).unwrap();
    assert_eq!(serving.ask("Which colour has the sea?").0, 500);
    assert_eq!(serving.health().0, 503, "requests fail and health says ok");
    // A restart helps, as it says.
    drop(serving);
    let again = Serving::start("true", &model, &streamed);
    assert_eq!((again.ask("Which colour has the sea?").0, again.health().0), (200, 200));
}

//! `--memory` holds whatever is asked: the real server, hostile bodies, and the kernel's own account of its peak.
//!
//! bench/serve/hostile.py is the long form of this, with more kinds of bodies and more of each.
#![cfg(target_os = "linux")]

use crate::long::{is_long, part};
use crate::support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(model: &Path, memory: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_flashmoe"))
            .args(["serve", model.to_str().unwrap(), "--memory", memory, "--port", "0"])
            .args(["--device", "cpu"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (_, address) = line.trim().split_once("http://").expect("the server starts");
        Self { process, address: address.to_owned() }
    }

    /// Bytes that were resident at most.
    fn peak(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        stream
    }

    fn head(path: &str, length: usize) -> String {
        format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        )
    }

    /// Status and body.
    fn post(&self, path: &str, body: &str) -> (u16, String) {
        let mut stream = self.connect();
        stream.write_all(Self::head(path, body.len()).as_bytes()).unwrap();
        // What is too large is refused before it was sent.
        let _sent = stream.write_all(body.as_bytes());
        let mut answer = Vec::new();
        let _ended = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned();
        (status, body)
    }

    /// The greedy answer, which a full server gives later.
    fn answer(&self) -> String {
        let question = json!({
            "messages": [{ "role": "user", "content": "What is 255 factored?" }],
            "temperature": 0, "max_tokens": 12, "cache_prompt": false,
        });
        for _ in 0..600 {
            let (status, body) = self.post(CHAT, &question.to_string());
            if status == 200 {
                // An answer that takes long comes in chunks.
                let value = body.find('{').zip(body.rfind('}')).map(|(from, to)| &body[from..=to]);
                let body: Value = serde_json::from_str(value.unwrap_or(&body)).unwrap();
                return body["choices"][0]["message"].to_string();
            }
            assert_eq!(status, 429, "{body}");
            std::thread::sleep(Duration::from_millis(200));
        }
        panic!("no answer");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _waited = self.process.wait();
    }
}

/// Path, body and the text of its refusal, empty where it may be answered.
fn hostile() -> Vec<(&'static str, String, &'static str)> {
    let user =
        |text: &str| format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]}}");
    let run = "a".repeat(1_000_000);
    let part = "{\"type\":\"text\",\"text\":\"\"}";
    let tool = "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}";
    let many = |item: &str, count| vec![item; count].join(",");
    let tools = |count| {
        let tools = many(tool, count);
        format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"a\"}}],\"tools\":[{tools}]}}")
    };
    vec![
        (CHAT, user(&run), "1000000 bytes of text"),
        ("/v1/messages", user(&run), "prompt is too long: more than"),
        ("/v1/messages/count_tokens", user(&run), "prompt is too long: more than"),
        ("/v1/responses", format!("{{\"input\":\"{run}\"}}"), "1000000 bytes of text"),
        ("/tokenize", format!("{{\"content\":\"{run}\"}}"), "1000000 bytes of text"),
        (CHAT, user(&"\\u0020".repeat(200_000)), ""),
        (CHAT, user(&"a".repeat(8_000_000)), "--context"),
        (CHAT, user(&"a".repeat(60_000_000)), "--context"),
        (CHAT, format!("{{\"messages\":[{}]}}", many(part, 1_000_000)), "--context"),
        (CHAT, format!("{{\"messages\":[{}]}}", many("1", 500_000)), "JSON values"),
        (CHAT, tools(100_000), "--context"),
        (CHAT, tools(2_000), "tools: has 2000 entries"),
        (CHAT, format!("{{\"messages\":{}", "[".repeat(500_000)), "JSON values"),
        (CHAT, format!("{{\"model\":\"{run}\"}}"), "model: has 1000000 bytes"),
    ]
}

/// The demo model with an expression that no known family has: its reading is counted, by automata whose memory is
/// part of the plan as well.
fn with_an_expression_of_its_own() -> tempfile::TempDir {
    let demo = demo();
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(&demo).unwrap().map(|entry| entry.unwrap()) {
        if entry.path().is_file() {
            std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
    }
    let path = folder.path().join("tokenizer.json");
    let mut file: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let pattern = &mut file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"];
    assert!(pattern.is_string());
    *pattern = r"\p{L}{1,20}|\p{N}{1,20}|[^\p{L}\p{N}]{1,20}".into();
    std::fs::write(&path, file.to_string()).unwrap();
    folder
}

fn demo() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo")
}

#[test]
fn the_cap_holds_against_hostile_requests() {
    let strange = with_an_expression_of_its_own();
    let (demo, strange) = (demo(), strange.path());
    let servers = [
        (demo.as_path(), "265M", 265 << 20),
        (&demo, "300M", 300 << 20),
        (&demo, "1G", 1 << 30),
        (strange, "265M", 265 << 20),
    ];
    // More than are taken at a time.
    let clients = if is_long() { 64 } else { 24 };
    for (model, memory, bytes) in part(servers, 3) {
        let server = Server::start(model, memory);
        let within = |what: &str| {
            let peak = server.peak();
            assert!(peak <= bytes, "{memory}, after {what}: {peak} bytes");
        };
        let first = server.answer();
        for (path, body, reason) in hostile() {
            let (status, answer) = server.post(path, &body);
            let start: String = body.chars().take(60).collect();
            if reason.is_empty() {
                assert!([200, 400].contains(&status), "{status} for {path} {start}: {answer}");
            } else {
                assert!([400, 413].contains(&status), "{status} for {path} {start}: {answer}");
                assert!(answer.contains(reason), "{path} {start}: {answer}");
            }
            within(&start);
        }
        // Bodies that are held back before their end: few are taken, and others are served meanwhile.
        let held: Vec<TcpStream> = (0..40)
            .map(|_| {
                let mut stream = server.connect();
                let length = 1_400_000;
                let bytes = Server::head(CHAT, length) + &" ".repeat(length - 1);
                let _taken = stream.write_all(bytes.as_bytes());
                stream
            })
            .collect();
        within("held bodies");
        assert_eq!(server.answer(), first, "{memory}, beside held bodies");
        std::thread::scope(|scope| {
            let bodies = hostile();
            for (path, body, _) in bodies.into_iter().take(6) {
                scope.spawn({
                    let server = &server;
                    move || server.post(path, &body)
                });
            }
            let asked: Vec<_> = (0..clients).map(|_| scope.spawn(|| server.answer())).collect();
            for client in asked {
                assert_eq!(client.join().unwrap(), first, "{memory}, among {clients} clients");
            }
        });
        drop(held);
        within("everything");
        assert_eq!(server.answer(), first, "{memory}, afterwards");
    }
}

#[test]
fn a_prompt_beyond_the_context_is_refused_by_run_with_the_numbers() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    let model = model.to_str().unwrap();
    let refused = |prompt: &str, extra: &[&str]| {
        let mut arguments = vec!["run", model, prompt, "--context", "256", "--device", "cpu"];
        arguments.extend(extra);
        let output = support::flashmoe(&arguments);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for extra in [&[][..], &["--raw"]] {
        let error = refused(&"a".repeat(100_000), extra);
        assert!(error.contains("100000 bytes of text, more than the 15360"), "{error}");
        let error = refused(&"word ".repeat(400), extra);
        assert!(
            error.contains(" tokens, the context 256: shorten it or raise --context"),
            "{error}"
        );
    }
}

#[test]
fn a_budget_without_room_for_requests_is_refused_with_the_numbers() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    let model = model.to_str().unwrap();
    let output = support::flashmoe(&["serve", model, "--memory", "100M", "--port", "0"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{error}");
    for part in ["100 MiB", "requests"] {
        assert!(error.contains(part), "{error}");
    }
    let plan = support::flashmoe(&["plan", model, "--memory", "300M", "--device", "cpu"]);
    let plan = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert!(plan.lines().any(|line| line.starts_with("requests ")), "{plan}");
}

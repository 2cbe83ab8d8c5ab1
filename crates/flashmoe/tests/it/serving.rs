//! Goal: a server that is short of descriptors still answers, one whose files changed says that it fails, and a gpt-oss
//! speaks harmony. Method: the real binary with the demo model or a synthetic one, and a client that speaks bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

/// What tokenizer.json of gpt-oss divides text by.
const O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

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
        // A line of the log: it has a time, and says what web pages need.
        assert!(line.starts_with("20") && line.contains("Z info "), "{line}");
        assert!(line.contains("--allow-origin"), "{line}");
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

#[test]
fn the_system_prompt_is_there_before_the_first_conversation() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("system.txt");
    std::fs::write(&file, "Answer in one word. ".repeat(40)).unwrap();
    let file = ["--system-file", file.to_str().unwrap()];
    // Shared by all who are served, or of the one key that there is.
    for key in [None, Some("a-key-of-a-test")] {
        let mut options = file.to_vec();
        options.extend(key.iter().flat_map(|key| ["--api-key", key]));
        let serving = Serving::start("true", &demo(), &options);
        let head = |line: &str| match key {
            None => line.to_owned(),
            Some(key) => format!("{line} HTTP/1.1\r\nAuthorization: Bearer {key}\r\nX-Rest:"),
        };
        let begun = Instant::now();
        let computed = |text: &str| {
            let status: Value = serde_json::from_str(text).unwrap();
            status["prefix"]["snapshots"].as_array().is_some_and(|it| !it.is_empty())
        };
        while !computed(&serving.exchange(&head("GET /status"), "").1) {
            assert!(begun.elapsed() < Duration::from_secs(20), "nothing is computed");
            std::thread::sleep(Duration::from_millis(20));
        }
        let body =
            json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": "Is it?" }] });
        let head = head("POST /v1/chat/completions");
        let (status, answer) = serving.exchange(&head, &body.to_string());
        assert_eq!(status, 200, "{answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert!(cached.as_u64().unwrap() > 100, "{answer}");
    }
}

/// Names, states and the memory of two models, by the real program.
#[test]
fn two_models_answer_by_name_and_take_turns_where_one_fits() {
    let model = demo();
    let second = model.to_str().unwrap();
    let named = ["--served-name", "one", "--served-name", "two"];
    let options = |more: &[&'static str]| [&[second], named.as_slice(), more].concat();
    let ask = |serving: &Serving, model: &str| {
        let body = json!({ "model": model, "max_tokens": 8, "temperature": 0,
            "messages": [{ "role": "user", "content": "What is 2 + 2?" }] });
        let (status, answer) = serving.exchange("POST /v1/chat/completions", &body.to_string());
        assert_eq!(status, 200, "{answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    let states = |serving: &Serving| {
        let models: Value =
            serde_json::from_str(&serving.exchange("GET /v1/models", "").1).unwrap();
        let models = models["data"].as_array().unwrap().clone();
        let state = |it: &Value| format!("{} {}", it["id"], it["status"]["value"]).replace('"', "");
        models.iter().map(state).collect::<Vec<_>>()
    };
    let serving = Serving::start("true", &model, &options(&["--memory", "1400M"]));
    assert_eq!(states(&serving), ["one loaded", "two unloaded"]);
    let answer = ask(&serving, "one");
    assert_eq!(ask(&serving, "two"), answer);
    assert_eq!(states(&serving), ["one loaded", "two loaded"]);
    drop(serving);
    let serving = Serving::start("true", &model, &options(&["--models-max", "1"]));
    for name in ["two", "one", "two"] {
        assert_eq!(ask(&serving, name), answer);
    }
    assert_eq!(states(&serving), ["one unloaded", "two loaded"]);
    drop(serving);
    let refused = |more: &[&str]| {
        let program = Command::new(env!("CARGO_BIN_EXE_flashmoe"))
            .args(["serve", second, "--port", "0", "--device", "cpu"])
            .args(more)
            .output()
            .unwrap();
        assert_eq!(program.status.code(), Some(2));
        String::from_utf8(program.stderr).unwrap()
    };
    assert!(refused(&[second]).contains("two models have the name"));
    assert!(refused(&[second, "--served-name", "x"]).contains("--served-name is given 1 times"));
    assert!(refused(&["--models-max", "2"]).contains("several models"));
}

/// gpt-oss from end to end: its own template, the words of o200k, and the channels of its answers.
#[test]
fn a_gpt_oss_is_asked_in_harmony_and_answers_in_channels() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/text-dialects");
    let mut tokenizer: Value = read(&text.join("tokenizer.json"));
    tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!(O200K);
    let words = folder.path().join("tokenizer.json");
    std::fs::write(&words, tokenizer.to_string()).unwrap();
    let [path, words] = [&model, &words].map(|path| path.to_str().unwrap());
    let made = Command::new(env!("CARGO_BIN_EXE_flashmoe"))
        .args(["synth", "tiny-oss", path, "--layout", "native", "--experts", "mxfp4:planes"])
        .args(["--trunk", "bf16", "--tokenizer", words])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let golden: Value = read(&text.join("conversations.json"));
    let template = golden["templates"]["harmony"].as_str().unwrap();
    std::fs::write(model.join("chat_template.jinja"), template).unwrap();
    let said =
        Command::new(env!("CARGO_BIN_EXE_flashmoe")).args(["inspect", path]).output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("gpt-oss") && said.contains("harmony"), "{said}");
    let serving = Serving::start("true", &model, &[]);
    let tool = json!({"type": "function", "function": {"name": "look", "description": "Looks.", "parameters":
        {"type": "object", "properties": {"deep": {"type": "boolean"}}, "required": ["deep"],
         "additionalProperties": false}}});
    let mut body = json!({"max_tokens": 400, "temperature": 1.0, "seed": 3, "tools": [tool],
        "tool_choice": "required", "messages": [{"role": "user", "content": "Hello."}]});
    let (status, answer) = serving.exchange("POST /v1/chat/completions", &body.to_string());
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    let call = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(call["name"], "look", "{answer}");
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["deep"].is_boolean(), "{answer}");
    // Without a call the grammar lets the model write what it likes, which is noise, but no marker gets out.
    body["tool_choice"] = json!("none");
    let (status, answer) = serving.exchange("POST /v1/chat/completions", &body.to_string());
    assert!(status == 200 && !answer.contains("<|channel|>"), "{answer}");
}

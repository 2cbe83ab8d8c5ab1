//! Goal: a model whose layers are computed by several processes answers as one process does, to the bit, with TLS and
//! without; a stage that is killed, stopped, of another model or another build is a typed error in time, and what is
//! started anew answers right. Method: the real binary, stages as child processes on loopback addresses.

use crate::long::skips_gpu;
use crate::support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use support::Scored;

/// What both sides have to have alike, or at least so much of.
const SIZES: [&str; 8] =
    ["--device", "cpu", "--context", "1024", "--prefill-chunk", "64", "--memory", "2G"];

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo")
}

fn net(case: &str) -> PathBuf {
    support::golden().join(case).join("model")
}

/// A child that ends with the test.
struct Running(Child);

impl Running {
    /// The exit code, within a while.
    fn code(&mut self, patience: Duration) -> i32 {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(begun.elapsed() < patience, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn signal(&self, name: &str) {
        let id = self.0.id().to_string();
        let sent = Command::new("sh").args(["-c", &format!("kill -{name} {id}")]).status();
        assert!(sent.unwrap().success());
    }

    fn said(&mut self) -> String {
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

/// A stage that listens, and its address.
fn stage(model: &Path, layers: &str, options: &[&str]) -> (Running, String) {
    stage_with(model, layers, &[&SIZES[..], options].concat())
}

fn stage_with(model: &Path, layers: &str, options: &[&str]) -> (Running, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flashmoe"));
    command.arg("stage").arg(model).args(["--layers", layers, "--sequences", "4"]);
    if !options.contains(&"--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    let mut child = Running(
        command.args(options).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(),
    );
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let Some((_, address)) = line.trim().rsplit_once(" at ") else {
        panic!("{line:?} {}", child.said());
    };
    (child, address.to_owned())
}

/// Stages of these layers, and the file that names them.
fn stages(model: &Path, folder: &Path, layers: &[&str]) -> (Vec<Running>, PathBuf) {
    stages_with(model, folder, layers, &SIZES)
}

fn stages_with(
    model: &Path,
    folder: &Path,
    layers: &[&str],
    sizes: &[&str],
) -> (Vec<Running>, PathBuf) {
    let (mut children, mut text) = (Vec::new(), "silence = \"3s\"\nstart = \"20s\"\n".to_owned());
    for layers in layers {
        let (child, address) = stage_with(model, layers, &[sizes, &["--silence", "3s"]].concat());
        children.push(child);
        text.push_str(&format!("[[stage]]\naddress = \"{address}\"\nlayers = \"{layers}\"\n"));
    }
    let file = folder.join("stages.toml");
    std::fs::write(&file, text).unwrap();
    (children, file)
}

/// The cuts of a model of so many layers into two, and one into three.
fn cuts(layers: usize) -> Vec<Vec<String>> {
    let range = |start, end| format!("{start}:{end}");
    let mut all: Vec<_> = (1..layers).map(|cut| vec![range(cut, layers)]).collect();
    if layers > 2 {
        all.push(vec![range(1, 2), range(2, layers)]);
    }
    all
}

#[test]
fn processes_answer_as_one_does() {
    let folder = tempfile::tempdir().unwrap();
    for (case, layers) in
        [("qwen35-calm-mlx-mixed", 4), ("deepseek-calm-hf", 3), ("dsv4-calm-hf", 4)]
    {
        let reference = Scored::compute(case, &SIZES);
        for cut in cuts(layers) {
            let cut: Vec<&str> = cut.iter().map(String::as_str).collect();
            let (mut children, file) = stages(&net(case), folder.path(), &cut);
            let file = file.to_str().unwrap();
            let found = Scored::compute(case, &[&SIZES[..], &["--stages", file]].concat());
            assert!(found == reference, "{case} {cut:?}: the bits differ");
            for child in &mut children {
                assert_eq!(child.code(Duration::from_secs(5)), 0, "{case} {cut:?}: in order");
            }
        }
    }
}

#[test]
fn processes_on_any_gpu_answer_as_one_does() {
    if skips_gpu() {
        return;
    }
    let case = "qwen35-calm-mlx-mixed";
    let sizes = ["--device", "gpu:0", "--context", "1024", "--prefill-chunk", "64"];
    let folder = tempfile::tempdir().unwrap();
    let reference = Scored::compute(case, &sizes);
    for cut in [&["1:4"][..], &["2:3", "3:4"]] {
        let (mut children, file) = stages_with(&net(case), folder.path(), cut, &sizes);
        let options = [&sizes[..], &["--stages", file.to_str().unwrap()]].concat();
        assert!(Scored::compute(case, &options) == reference, "{cut:?}: the bits differ");
        for child in &mut children {
            assert_eq!(child.code(Duration::from_secs(5)), 0, "{cut:?}: in order");
        }
    }
}

fn run(options: &[&str]) -> Output {
    let demo = demo();
    let mut command = Command::new(env!("CARGO_BIN_EXE_flashmoe"));
    command.args(["run", demo.to_str().unwrap(), "Count to ten.", "-n", "24", "--seed", "7"]);
    command.args(SIZES).args(options).output().unwrap()
}

#[test]
fn every_cut_of_the_demo_model_says_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let reference = run(&[]);
    assert!(reference.status.success() && !reference.stdout.is_empty());
    for cut in cuts(12) {
        let cut: Vec<&str> = cut.iter().map(String::as_str).collect();
        let (_children, file) = stages(&demo(), folder.path(), &cut);
        let found = run(&["--stages", file.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&found.stderr);
        assert!(found.status.success(), "{cut:?}: {said}");
        assert_eq!(found.stdout, reference.stdout, "{cut:?}");
    }
}

/// The demo model cut as `plan --machines` says, by the file that it writes.
#[test]
fn a_plan_over_machines_is_a_file_that_runs_and_benches() {
    let folder = tempfile::tempdir().unwrap();
    let (machines, file) = (folder.path().join("machines.toml"), folder.path().join("stages.toml"));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let has = "has = \"ram=4G,disk=0.05,memory=20,compute=200\"\n";
    let machine = |name: &str, more: &str| format!("[[machine]]\nname = \"{name}\"\n{has}{more}\n");
    let way = format!("address = \"{address}\"\nlink = 1\nlatency = 0.1");
    let text = machine("first", "budget = \"{}\"") + &machine("second", &way);
    let demo = demo();
    let plan = |budget: &str| {
        std::fs::write(&machines, text.replace("{}", budget)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_flashmoe"));
        command.arg("plan").arg(&demo).arg("--machines").arg(&machines).args(["--json"]);
        command.arg("--write-stages").arg(&file).args(&SIZES[2..6]);
        let found = command.output().unwrap();
        assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
        serde_json::from_slice::<serde_json::Value>(&found.stdout).unwrap()
    };
    let found = plan("3G");
    assert_eq!(found["left_out"][0], "second", "{found}");
    assert_eq!(found["one_stream_tok_per_s"], found["first_alone_tok_per_s"], "{found}");
    let found = plan("84M");
    let both = found["stages"].as_array().unwrap();
    assert_eq!(both.len(), 2, "{found}");
    assert_eq!(both[0]["layers"][1], both[1]["layers"][0]);
    assert_eq!(both[1]["layers"][1], 12);
    let layers = format!("{}:12", both[1]["layers"][0]);
    for command in [&["run", "Count to ten.", "-n", "24", "--seed", "7"][..], &["bench", "-n", "8"]]
    {
        let own = ["--listen", &address, "--silence", "3s"];
        let (mut child, _) = stage(&demo, &layers, &own);
        let mut flashmoe = Command::new(env!("CARGO_BIN_EXE_flashmoe"));
        flashmoe.arg(command[0]).arg(&demo).args(&command[1..]).arg("--stages").arg(&file);
        if command[0] == "run" {
            flashmoe.args(SIZES);
        } else {
            flashmoe.args(["-p", "32", "-r", "1", "--json", "--device", "cpu", "--memory", "2G"]);
            flashmoe.args(["--prefill-chunk", "64"]);
        }
        let found = flashmoe.output().unwrap();
        assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
        if command[0] == "run" {
            assert_eq!(found.stdout, run(&[]).stdout);
        } else {
            let rows = String::from_utf8(found.stdout).unwrap();
            assert_eq!(rows.lines().count(), 4, "{rows}");
            for row in rows.lines() {
                let row: serde_json::Value = serde_json::from_str(row).unwrap();
                assert!(row["tok_per_s"].as_f64().unwrap() > 0.0, "{row}");
                assert_eq!(row.get("bound_tok_per_s"), Some(&serde_json::Value::Null), "{row}");
                assert_eq!(row["stages"][1]["layers"][1], 12, "{row}");
            }
        }
        assert_eq!(child.code(Duration::from_secs(5)), 0);
    }
}

/// Makes an identity; its certificate.
#[cfg(not(target_os = "macos"))]
fn identity(folder: &Path, name: &str) -> (String, String) {
    let own = folder.join(name);
    let mut command = Command::new(env!("CARGO_BIN_EXE_flashmoe"));
    let made = command.args(["stage", "--identity"]).arg(&own).output().unwrap();
    let said = String::from_utf8(made.stdout).unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert!(said.contains("certificate.pem") && said.contains("SHA-256"), "{said}");
    let certificate = own.join("certificate.pem").to_str().unwrap().to_owned();
    (own.to_str().unwrap().to_owned(), certificate)
}

#[test]
#[cfg(not(target_os = "macos"))]
fn processes_that_know_each_other_speak_tls_and_no_other_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second, stranger] =
        ["first", "second", "stranger"].map(|name| identity(folder.path(), name));
    let own = ["--identity", &second.0, "--trust", &first.1, "--silence", "3s"];
    let (mut child, address) = stage(&demo(), "5:12", &own);
    let file = |name: &str, identity: Option<&str>, certificate: Option<&str>| {
        let line = |key, value: Option<&str>| {
            value.map_or(String::new(), |value| format!("{key} = \"{value}\"\n"))
        };
        let text = format!(
            "{}[[stage]]\naddress = \"{address}\"\nlayers = \"5:12\"\n{}",
            line("identity", identity),
            line("certificate", certificate),
        );
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    for (what, file) in [
        ("a first process without a certificate", file("plain.toml", None, None)),
        ("a stranger", file("stranger.toml", Some(&stranger.0), Some(&second.1))),
        ("one that trusts another stage", file("other.toml", Some(&first.0), Some(&stranger.1))),
    ] {
        let begun = Instant::now();
        let found = run(&["--stages", &file]);
        let said = String::from_utf8_lossy(&found.stderr);
        assert_eq!(found.status.code(), Some(5), "{what}: {said}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
    }
    // A connection that says nothing, and one that says garbage, keep no other waiting.
    let silent = TcpStream::connect(&address).unwrap();
    TcpStream::connect(&address).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let found = run(&["--stages", &file("right.toml", Some(&first.0), Some(&second.1))]);
    let said = String::from_utf8_lossy(&found.stderr);
    assert!(found.status.success(), "{said}");
    assert_eq!(found.stdout, run(&[]).stdout);
    drop(silent);
    assert_eq!(child.code(Duration::from_secs(5)), 0);
    let said = child.said();
    assert!(said.matches("refused").count() >= 3, "{said}");
}

#[test]
fn what_is_not_served_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = |text: &str| {
        let file = folder.path().join("stages.toml");
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let right = "[[stage]]\naddress = \"127.0.0.1:1\"\nlayers = \"5:12\"\n";
    let demo = demo();
    let refused = |command: &str, options: &[&str], words: &[&str]| {
        let mut flashmoe = Command::new(env!("CARGO_BIN_EXE_flashmoe"));
        let output = flashmoe.arg(command).arg(&demo).args(options).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{options:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{options:?}: no \"{word}\" in {said}");
        }
    };
    for (text, words) in [
        ("", &["0 stages"][..]),
        ("[[stage]]\naddress = \"127.0.0.1:1\"\nlayers = \"5:11\"\n", &["layer 11 of 12"]),
        ("[[stage]]\naddress = \"127.0.0.1:1\"\nlayers = \"0:12\"\n", &["layers 0 to 0"]),
        ("[[stage]]\naddress = \"127.0.0.1:1\"\nlayers = \"5-12\"\n", &["5-12", "12:24"]),
        ("[[stage]]\naddress = \"a:1\"\nlayers = \"5:12\"\nport = 3\n", &["port"]),
        ("silence = \"1s\"\n[[stage]]\naddress = \"a:1\"\nlayers = \"5:12\"\n", &["silence"]),
        (
            "[[stage]]\naddress = \"a:1\"\nlayers = \"5:12\"\ndeadline = \"1s\"\n",
            &["deadline", "3s"],
        ),
    ] {
        refused("run", &["hi", "--stages", &file(text)], &[&["--stages"], words].concat());
    }
    let right = file(right);
    for (options, words) in [
        (&["--cache-disk", "kept"][..], &["--cache-disk", "--stages"][..]),
        (&["--cache-shared", "kept"], &["--cache-shared"]),
        (&["--slot-save-path", "kept"], &["--slot-save-path"]),
        (&["--device", "cpu,cpu"], &["--device cpu,cpu", "one device"]),
        (&["--draft", "head"], &["--draft head", "--stages"]),
        (&["--split", "5,7"], &["--split"]),
    ] {
        refused("serve", &[&["--stages", &right], options].concat(), words);
    }
    for (options, words) in [
        (&["--layers", "0:4", "--listen", "127.0.0.1:0"][..], &["--layers 0:4", "1:12"][..]),
        (&["--layers", "4:13", "--listen", "127.0.0.1:0"], &["--layers 4:13", "12 layers"]),
        (&["--layers", "4", "--listen", "127.0.0.1:0"], &["12:24"]),
        (&["--layers", "4:12"], &["--listen"]),
        (&["--layers", "4:12", "--listen", "0.0.0.0:0"], &["0.0.0.0", "--identity"]),
        (&["--layers", "4:12", "--listen", "127.0.0.1:0", "--identity", "none"], &["none"]),
    ] {
        refused("stage", &[options, &SIZES[..2]].concat(), words);
    }
    // And one on another machine is not reached without a certificate.
    let far = file("[[stage]]\naddress = \"192.0.2.1:7777\"\nlayers = \"5:12\"\n");
    refused("run", &["hi", "--stages", &far, "--device", "cpu"], &["192.0.2.1", "--identity"]);
}

#[test]
fn what_differs_is_said_with_both_values() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    for entry in demo().read_dir().unwrap().map(Result::unwrap) {
        if entry.path().is_file() {
            std::fs::copy(entry.path(), other.join(entry.file_name())).unwrap();
        }
    }
    let weights = other.join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    for (model, options, layers, word) in [
        (other.as_path(), &[][..], "5:12", "contents of the model"),
        (&demo(), &["--kv-type", "f32"], "5:12", "arithmetic"),
        (&demo(), &[], "4:12", "layers: 4:12 in the first process, 5:12 in the stage"),
    ] {
        let (mut child, address) = stage(model, "5:12", options);
        let file = folder.path().join("stages.toml");
        let text = format!("[[stage]]\naddress = \"{address}\"\nlayers = \"{layers}\"\n");
        std::fs::write(&file, text).unwrap();
        let found = run(&["--stages", file.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&found.stderr);
        assert_eq!(found.status.code(), Some(2), "{said}");
        assert!(said.contains(word) && said.contains("in the stage"), "{said}");
        // It waits for the right one.
        assert_eq!(child.0.try_wait().unwrap(), None);
    }
}

/// A server over stages that ends with the test.
struct Serving {
    running: Running,
    address: String,
}

impl Serving {
    fn start(file: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flashmoe"));
        command.arg("serve").arg(demo()).args(["--port", "0"]).args(SIZES);
        command.args(["--sequences", "2", "--stages"]).arg(file);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut running = Running(child);
        let mut line = String::new();
        BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit("http://").next().unwrap().to_owned();
        assert!(address.contains(':'), "{line:?} {}", running.said());
        Self { running, address }
    }

    /// The whole response to a question.
    fn ask(&self, question: &str) -> String {
        let body = format!(
            "{{\"max_tokens\":16,\"temperature\":0,\"messages\":[{{\"role\":\"user\",\"content\":\"{question}\"}}]}}"
        );
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let request = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{}: {}\r\n\r\n{body}",
            "Content-Length",
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

fn content(answer: &str) -> String {
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    body["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

#[test]
#[cfg(unix)]
fn a_server_whose_stage_is_lost_says_so_and_ends() {
    let folder = tempfile::tempdir().unwrap();
    let mut expected = None;
    for end in ["KILL", "STOP"] {
        let (mut children, file) = stages(&demo(), folder.path(), &["5:9", "9:12"]);
        let mut serving = Serving::start(&file);
        let answer = serving.ask("What is 2 + 2?");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        // What was kept of the prompt is used by the second.
        assert_eq!(content(&serving.ask("What is 2 + 2?")), content(&answer));
        let expected = expected.get_or_insert(content(&answer));
        assert_eq!(content(&answer), *expected, "the same after a start anew");
        children[1].signal(end);
        let begun = Instant::now();
        let answer = serving.ask("And 3 + 3?");
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("stage_lost"), "{answer}");
        assert!(answer.to_lowercase().contains("retry-after"), "{answer}");
        // Silence of 3 s, and a beat.
        assert!(begun.elapsed() < Duration::from_secs(6), "{end}: {:?}", begun.elapsed());
        assert_eq!(serving.running.code(Duration::from_secs(10)), 6, "{end}");
        // The other stage ends with it.
        let code = children[0].code(Duration::from_secs(6));
        assert!(code == 0 || code == 6, "{end}: {code}");
    }
}

/// What starts processes starts them in any order, and before others have ended.
#[test]
#[cfg(unix)]
fn a_stage_that_is_taken_or_ends_connections_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let expected = run(&[]).stdout;
    let (mut children, file) = stages(&demo(), folder.path(), &["5:12"]);
    let text = std::fs::read_to_string(&file).unwrap();
    let address = text.split('"').nth(5).unwrap();
    let serving = Serving::start(&file);
    let waiting = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flashmoe"));
        command.args(["run", demo().to_str().unwrap(), "Count to ten.", "-n", "24", "--seed", "7"]);
        command.args(SIZES).arg("--stages").arg(&file);
        // What this test's own input holds would be part of the prompt.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Running(command.spawn().unwrap());
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(child.0.try_wait().unwrap(), None, "{}", child.said());
        child
    };
    let come = |mut child: Running| {
        let _stage = stage(&demo(), "5:12", &["--silence", "3s", "--listen", address]);
        assert_eq!(child.code(Duration::from_secs(20)), 0, "{}", child.said());
        let mut said = Vec::new();
        child.0.stdout.take().unwrap().read_to_end(&mut said).unwrap();
        assert_eq!(said, expected);
    };
    let child = waiting();
    assert!(serving.ask("What is 2 + 2?").starts_with("HTTP/1.1 200"), "it is not disturbed");
    drop(serving);
    assert_eq!(children[0].code(Duration::from_secs(6)), 6);
    come(child);
    // Something that ends every connection before a word.
    let listener = std::net::TcpListener::bind(address).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (done, over) = std::sync::mpsc::channel::<()>();
    let ending = std::thread::spawn(move || {
        let mut ended = 0;
        while over.recv_timeout(Duration::from_millis(20)).is_err() {
            ended += usize::from(listener.accept().is_ok());
        }
        ended
    });
    let child = waiting();
    done.send(()).unwrap();
    assert!(ending.join().unwrap() > 1, "it tries again");
    come(child);
}

#[test]
#[cfg(unix)]
fn a_stage_whose_first_process_is_killed_ends() {
    let folder = tempfile::tempdir().unwrap();
    for end in ["KILL", "STOP"] {
        let (mut children, file) = stages(&demo(), folder.path(), &["5:12"]);
        let serving = Serving::start(&file);
        assert!(serving.ask("What is 2 + 2?").starts_with("HTTP/1.1 200"));
        serving.running.signal(end);
        assert_eq!(children[0].code(Duration::from_secs(6)), 6, "{end}");
        assert!(children[0].said().contains("the first process"), "{end}");
    }
}

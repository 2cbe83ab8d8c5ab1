//! Goal: a supervisor hears that the server is ready, alive and stopping, SIGTERM ends it with 0 after what it took,
//! and the log and the file of keys are as the command line says. Method: the real binary, a socket of the test.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn send(address: &str, text: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_supervisor_hears_of_every_turn() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "# ours\nsesame\n\n  second  \n").unwrap();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    let mut child = Command::new(env!("CARGO_BIN_EXE_flashmoe"))
        .arg("serve")
        .arg(demo)
        .args(["--port", "0", "--device", "cpu", "--log-format", "json", "--drain-timeout", "60s"])
        .arg("--api-key-file")
        .arg(&keys)
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "400000")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let first: serde_json::Value = serde_json::from_str(&line).unwrap();
    let address = first["url"].as_str().unwrap().rsplit("http://").next().unwrap().to_owned();
    let mut heard = Vec::new();
    let mut hear = |wanted: &str| {
        let begun = Instant::now();
        let mut buffer = [0; 4096];
        loop {
            assert!(begun.elapsed() < Duration::from_secs(60), "{wanted} was not heard: {heard:?}");
            let count = socket.recv(&mut buffer).unwrap();
            let text = String::from_utf8_lossy(&buffer[..count]).into_owned();
            let found = text.lines().any(|line| line == wanted);
            heard.push(text);
            if found {
                return;
            }
        }
    };
    hear("READY=1");
    hear("WATCHDOG=1");
    hear("WATCHDOG=1");
    hear("STATUS=serving: 0 running, 0 waiting");
    let get = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    assert!(send(&address, &format!("{get}\r\n")).starts_with("HTTP/1.1 401"));
    for key in ["sesame", "second"] {
        let head = format!("{get}Authorization: Bearer {key}\r\n\r\n");
        assert!(send(&address, &head).starts_with("HTTP/1.1 200"), "{key}");
    }
    // An answer that is on its way when the signal comes.
    let body = r#"{"max_tokens":64,"temperature":0,"stream":true,"messages":[{"role":"user","content":"Hello"}]}"#;
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nx-api-key: sesame\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut asking = TcpStream::connect(&address).unwrap();
    asking.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    asking.write_all(request.as_bytes()).unwrap();
    let mut first = [0; 32];
    asking.read_exact(&mut first).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    hear("STOPPING=1");
    let mut rest = String::new();
    asking.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    let lines = log.lines().filter(|line| line.starts_with('{'));
    let lines: Vec<serde_json::Value> =
        lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    let chat = lines.iter().find(|line| line["path"] == "/v1/chat/completions").unwrap();
    assert_eq!(
        (&chat["status"], &chat["level"], &chat["cut"]),
        (&200.into(), &"info".into(), &false.into())
    );
    assert!(chat["time"].as_str().unwrap().ends_with('Z'), "{chat}");
}

#[test]
fn a_file_without_keys_does_not_open_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "# none yet\n").unwrap();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    let output = Command::new(env!("CARGO_BIN_EXE_flashmoe"))
        .arg("serve")
        .arg(demo)
        .args(["--port", "0", "--api-key-file"])
        .arg(&keys)
        .output()
        .unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("has no key"), "{error}");
}

/// Files that options name are read up to a limit: a device without an end takes no memory.
#[test]
fn files_of_options_have_a_limit() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    for option in ["--api-key-file", "--system-file"] {
        let output = Command::new(env!("CARGO_BIN_EXE_flashmoe"))
            .arg("serve")
            .arg(&demo)
            .args(["--port", "0", option, "/dev/zero"])
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(&format!("{option} /dev/zero has more than")), "{error}");
    }
}

//! Goal: a system that gives no threads or descriptors costs a line and a code, or one request, never a hang; signals
//! that end a session end the server in order. Method: the real binary under limits of a control group and of the
//! shell. A control group takes root: without it the test says so and passes.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the next good answer may take.
const SOON: Duration = Duration::from_secs(5);

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo")
}

/// Runs a command of a shell that ends in `flashmoe` with `arguments`.
fn shell(before: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{before}exec \"$0\" \"$@\"")]);
    command.arg(env!("CARGO_BIN_EXE_flashmoe")).args(arguments);
    command
}

struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit("http://").next().unwrap().to_owned();
        Self { child, address }
    }

    fn send(&self, text: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(SOON))?;
        stream.write_all(text.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn get(&self, path: &str) -> std::io::Result<String> {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
    }

    fn chat(&self) -> std::io::Result<String> {
        let body =
            r#"{"max_tokens":2,"temperature":0,"messages":[{"role":"user","content":"Hello"}]}"#;
        self.send(&format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    /// Sends a signal and waits for the end.
    fn end(mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < PATIENCE, "it did not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

fn serve(before: &str, further: &[&str]) -> Command {
    let demo = demo();
    let mut arguments = vec!["serve", demo.to_str().unwrap(), "--port", "0", "--device", "cpu"];
    arguments.extend(further);
    shell(before, &arguments)
}

/// A control group of our own that counts processes.
struct Group(PathBuf);

impl Group {
    fn new() -> Result<Self, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let found = groups.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            match controllers {
                "pids" => Some(("/sys/fs/cgroup/pids", path)),
                "" => Some(("/sys/fs/cgroup", path)),
                _ => None,
            }
        });
        let (root, path) = found.ok_or("no control group of processes")?;
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("flashmoe-limits-{}-{number}", std::process::id());
        let folder = Path::new(root).join(path.trim_start_matches('/')).join(name);
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let group = Self(folder);
        group.set("max").map_err(|error| format!("no limit can be set: {error}"))?;
        Ok(group)
    }

    fn set(&self, limit: &str) -> std::io::Result<()> {
        fs::write(self.0.join("pids.max"), limit)
    }

    fn count(&self) -> String {
        fs::read_to_string(self.0.join("pids.current")).unwrap().trim().to_owned()
    }

    fn enter(&self) -> String {
        format!("echo $$ > {}/cgroup.procs && ", self.0.display())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn group() -> Option<Group> {
    Group::new()
        .map_err(|why| std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes()))
        .ok()
}

#[test]
fn a_server_that_gets_no_thread_answers_and_ends() {
    let Some(group) = group() else { return };
    let served = Served::start(serve(&group.enter(), &[]));
    assert!(served.chat().unwrap().contains("200 OK"));
    // Threads that the library had to spare are gone.
    std::thread::sleep(Duration::from_secs(11));
    group.set(&group.count()).unwrap();
    for _ in 0..3 {
        assert!(served.chat().unwrap().contains("200 OK"));
        assert!(served.get("/metrics").unwrap().contains("flashmoe_engine_panics_total 0"));
        assert!(served.get("/livez").unwrap().contains("200 OK"));
    }
    assert_eq!(served.end(Signal::TERM), Some(0));
}

/// Processes that a process has started, whichever of its threads did.
fn children(process: u32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let lists = threads.map(|thread| {
        fs::read_to_string(thread.unwrap().path().join("children")).unwrap_or_default()
    });
    let lists: Vec<String> = lists.collect();
    lists.iter().flat_map(|list| list.split_whitespace()).map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn a_template_process_that_is_stopped_is_replaced_at_once() {
    let served = Served::start(serve("", &[]));
    assert!(served.chat().unwrap().contains("200 OK"));
    for _ in 0..2 {
        let idle = children(served.child.id());
        assert_eq!(idle.len(), 1);
        kill_process(Pid::from_raw(idle[0]).unwrap(), Signal::STOP).unwrap();
        let answer = served.chat().unwrap();
        assert!(answer.contains("200 OK"), "{answer}");
        assert!(!Path::new(&format!("/proc/{}", idle[0])).exists(), "it is ended");
    }
    assert_eq!(served.end(Signal::TERM), Some(0));
}

/// What must be a line and a code.
fn is_told(output: &Output, case: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{case}");
    // 2 where the command line asked for so many.
    assert!(matches!(output.status.code(), Some(2 | 5)), "{case}: {error}");
    assert!(!error.contains("panicked") && !error.contains("backtrace"), "{case}: {error}");
    assert!(error.lines().any(|line| line.starts_with("flashmoe: ")), "{case}: {error}");
}

#[test]
fn too_few_threads_are_a_line_and_a_code() {
    let Some(group) = group() else { return };
    let demo = demo();
    let model = demo.to_str().unwrap();
    for limit in [2, 3, 5] {
        group.set(&limit.to_string()).unwrap();
        for command in ["run", "serve"] {
            let further =
                if command == "run" { ["Hello", "--max-tokens"] } else { ["--port", "0"] };
            let mut arguments = vec![command, model, "--device", "cpu", "--threads", "4"];
            arguments.extend(further);
            if command == "run" {
                arguments.push("2");
            }
            let mut command = shell(&group.enter(), &arguments);
            let mut child = command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let begun = Instant::now();
            while child.try_wait().unwrap().is_none() && begun.elapsed() < 3 * SOON {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _served = child.kill();
            let output = child.wait_with_output().unwrap();
            if !output.status.success() && output.status.code().is_some() {
                is_told(&output, &format!("{arguments:?} with {limit} threads"));
            }
        }
    }
}

#[test]
fn too_few_descriptors_are_a_line_and_a_code_or_a_server_that_answers() {
    for limit in [16, 18, 24] {
        let mut command = serve(&format!("ulimit -n {limit} && "), &[]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.is_empty() {
            is_told(&child.wait_with_output().unwrap(), &format!("{limit} descriptors"));
            continue;
        }
        let address = line.trim().rsplit("http://").next().unwrap().to_owned();
        let served = Served { child, address };
        assert!(served.chat().unwrap().contains("200 OK"), "{limit} descriptors");
        assert_eq!(served.end(Signal::TERM), Some(0));
    }
}

#[test]
fn signals_that_end_a_session_end_a_server_in_order() {
    // Tests that were started by nohup hand on that it is ignored.
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.unwrap_or("0").trim(), 16).unwrap();
    let hangs_up = ignored & 1 == 0;
    let signals = [Signal::HUP, Signal::QUIT, Signal::INT];
    for signal in signals.into_iter().filter(|signal| hangs_up || *signal != Signal::HUP) {
        let folder = tempfile::tempdir().unwrap();
        let kept = folder.path().join("kept");
        // Whatever this machine's disk has free: by default 16 GB stay so.
        let cache = ["--cache-disk", kept.to_str().unwrap(), "--cache-disk-reserve", "0"];
        let served = Served::start(serve("", &cache));
        assert!(served.chat().unwrap().contains("200 OK"));
        assert_eq!(served.end(signal), Some(0), "{signal:?}");
        let models = fs::read_dir(&kept).unwrap().flatten().map(|entry| entry.path());
        let files =
            models.filter(|path| path.is_dir()).flat_map(|path| fs::read_dir(path).unwrap());
        let written = files
            .flatten()
            .filter(|file| file.path().extension().is_some_and(|suffix| suffix == "prefix"));
        assert!(written.count() > 0, "{signal:?}: nothing was kept");
    }
    // Ignored from the start, as by nohup.
    let served = Served::start(serve("trap '' HUP; ", &[]));
    kill_process(Pid::from_child(&served.child), Signal::HUP).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(served.get("/livez").unwrap().contains("200 OK"));
}

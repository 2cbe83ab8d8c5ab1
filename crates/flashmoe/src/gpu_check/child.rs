//! A group of checks in a process of its own, so that a driver that crashes or hangs takes nothing else with it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// What a line of a check that holds begins with, and of one that does not.
pub(crate) const HOLDS: &str = "ok    ";
pub(crate) const WRONG: &str = "WRONG ";
/// Lines that are kept of what a process complains, and letters of each.
const LINES: usize = 8;
const LETTERS: usize = 2000;

/// How a group ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// All of it ran.
    Whole,
    /// Not all of it ran, and why.
    Early(String),
}

/// What came of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Checks that ran.
    pub(crate) checks: usize,
    /// Those of them that were wrong.
    pub(crate) wrong: usize,
    pub(crate) ended: Ended,
    pub(crate) time: Duration,
}

impl Group {
    pub(crate) fn holds(&self) -> bool {
        self.wrong == 0 && self.checks > 0 && self.ended == Ended::Whole
    }
}

/// Checks a group on the adapter of a number; `each` hears of its lines as they come.
pub(crate) fn run_group(
    adapter: usize,
    group: &str,
    limit: Duration,
    each: &mut dyn FnMut(&str),
) -> Group {
    let started = Instant::now();
    let mut found = Group { checks: 0, wrong: 0, ended: Ended::Whole, time: Duration::ZERO };
    let mut hear = |line: &str| {
        let wrong = line.starts_with(WRONG);
        found.checks += usize::from(wrong || line.starts_with(HOLDS));
        found.wrong += usize::from(wrong);
        each(line);
    };
    let number = adapter.to_string();
    let words = ["doctor", "--gpu-check", "--gpu-group", group, "--gpu-number", &number];
    let ended = match own_program(&words) {
        Ok(command) => listen(command, limit, &mut hear),
        Err(reason) => Err(reason),
    };
    match ended {
        // Wrong checks are counted above.
        Ok((status, complaint))
            if !status.success() && (found.wrong == 0 || status.code() != Some(1)) =>
        {
            found.ended = Ended::Early(reason(status, &complaint));
        }
        Ok(_) => {}
        Err(reason) => found.ended = Ended::Early(reason),
    }
    found.time = started.elapsed();
    found
}

/// This program with other arguments.
pub(crate) fn own_program(words: &[&str]) -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| format!("no program: {error}"))?;
    let mut command = Command::new(program);
    command.args(words);
    Ok(command)
}

/// Runs a command to its end; `each` hears of its lines as they come. Gives its status and the end of what it
/// complained.
///
/// # Errors
/// It could not be started, or did not end in time: in words.
pub(crate) fn listen(
    mut command: Command,
    limit: Duration,
    each: &mut dyn FnMut(&str),
) -> Result<(ExitStatus, String), String> {
    let deadline = Instant::now() + limit;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| format!("cannot be started: {error}"))?;
    let mut child = Running(child);
    let (out, error) = (child.0.stdout.take(), child.0.stderr.take());
    let complaint = std::thread::spawn(move || last_words(error.into_iter()));
    let (told, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let lines = out.map(|out| BufReader::new(out).lines().map_while(Result::ok));
        // A listener that has gone wants no more.
        let _ = lines
            .into_iter()
            .flatten()
            .map(|line| told.send(line))
            .take_while(Result::is_ok)
            .count();
    });
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match lines.recv_timeout(left) {
            Ok(line) => each(&line),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                return Err(format!("did not end within {} s", limit.as_secs()));
            }
        }
    }
    while Instant::now() < deadline {
        match child.0.try_wait() {
            Ok(Some(status)) => return Ok((status, complaint.join().unwrap_or_default())),
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
            Err(error) => return Err(error.to_string()),
        }
    }
    Err(format!("did not end within {} s", limit.as_secs()))
}

/// Ends with its owner.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended is only forgotten.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The last lines of what a process complains that say anything.
fn last_words(streams: impl Iterator<Item = impl Read>) -> String {
    let mut words: Vec<String> = Vec::new();
    for stream in streams {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            let line: String =
                String::from_utf8_lossy(&line).trim().chars().take(LETTERS).collect();
            if !line.is_empty() {
                words.push(line);
            }
            let over = words.len().saturating_sub(LINES);
            words.drain(..over);
        }
    }
    words.join("\n")
}

/// Why a process ended early, in words.
pub(crate) fn reason(status: ExitStatus, complaint: &str) -> String {
    let last = complaint.lines().next_back().unwrap_or_default();
    let complaint = last.trim_start_matches("flashmoe: ");
    match (status.code(), complaint) {
        (None, "") => format!("crashed ({status})"),
        (None, complaint) => format!("crashed ({status}): {complaint}"),
        (Some(_), "") => format!("ended ({status})"),
        (Some(_), complaint) => complaint.to_owned(),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn lines_come_before_a_crash_and_its_reason_behind_them() {
        let mut heard = Vec::new();
        let script = "echo one; echo two; echo 'flashmoe: it is gone' >&2; kill -ABRT $$";
        let ended = listen(shell(script), Duration::from_secs(20), &mut |line| {
            heard.push(line.to_owned());
        });
        let (status, complaint) = ended.expect("it ran");
        assert_eq!(heard, ["one", "two"]);
        let reason = reason(status, &complaint);
        assert!(reason.starts_with("crashed") && reason.ends_with("it is gone"), "{reason}");
    }

    #[test]
    fn what_hangs_is_ended() {
        let started = Instant::now();
        let mut heard = 0;
        let ended =
            listen(shell("echo one; exec sleep 30"), Duration::from_millis(300), &mut |_| {
                heard += 1;
            });
        assert!(ended.expect_err("it was late").contains("did not end"));
        assert!(heard == 1 && started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn what_does_not_exist_is_said() {
        let none = listen(Command::new("/no/such/program"), Duration::from_secs(1), &mut |_| {});
        assert!(none.expect_err("no program").contains("cannot be started"));
    }
}

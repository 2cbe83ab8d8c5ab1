//! Chat templates in processes of their own, from the side of the program that needs the prompts.
//!
//! A process is started when there is work and none is idle, kept for the next request, and given up when it ends,
//! is late, or has taken a large request (its memory would stay large). A process that has ended while it was idle
//! costs nothing but a new one; one that ends with its first request was ended by the template.

use super::channel::Channel;
use super::child::last_words;
use super::wire::{self, Head};
use super::{STACK_BYTES, TEMPLATE_TIME, memory_bytes, output_bytes};
use crate::TextError;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Processes of one template at a time: a slow conversation does not hold up a short one.
const PROCESSES_MAX: usize = 2;
/// A process that has taken more than this is not kept.
const KEPT_REQUEST_BYTES: usize = 4 << 20;

/// The processes of one template.
#[derive(Debug)]
pub(crate) struct Processes {
    program: PathBuf,
    arguments: Vec<OsString>,
    source: String,
    pool: Mutex<Pool>,
    free: Condvar,
}

#[derive(Debug, Default)]
struct Pool {
    idle: Vec<Process>,
    /// Idle or at work.
    count: usize,
}

impl Processes {
    /// Starts a process and compiles the template in it.
    pub(super) fn start(
        program: PathBuf,
        arguments: Vec<OsString>,
        source: &str,
    ) -> Result<Self, TextError> {
        let (pool, free) = (Mutex::default(), Condvar::new());
        let processes = Self { program, arguments, source: source.to_owned(), pool, free };
        let mut place = Place::take(&processes);
        place.process = Some(processes.fresh()?);
        drop(place);
        Ok(processes)
    }

    /// What the template prints for `context`, a JSON object: at most `most` bytes.
    pub(super) fn run(&self, context: &[u8], most: usize) -> Result<String, TextError> {
        let most = output_bytes(context.len()).min(most);
        let mut place = Place::take(self);
        let head = Head {
            kind: wire::RENDER,
            memory_bytes: memory_bytes(context.len()),
            output_bytes: most as u64,
            length: context.len() as u64,
        };
        let mut answer = None;
        if let Some(process) = place.process.take() {
            // It may have ended since: the system ends such processes first when memory is short.
            answer = match process.ask(head, context) {
                Err(Ended::Gone(_)) => None,
                other => Some(other),
            };
        }
        let answer = match answer {
            Some(answer) => answer,
            None => self.fresh()?.ask(head, context),
        };
        let (process, kind, text) = answer.map_err(|ended| ended.into_error(head.memory_bytes))?;
        if context.len() <= KEPT_REQUEST_BYTES {
            place.process = Some(process);
        }
        drop(place);
        if kind == wire::LONG {
            return Err(TextError::TooMuchText { bytes: most, all: false, most });
        }
        answered(kind, text)
    }

    fn fresh(&self) -> Result<Process, TextError> {
        let process = Process::spawn(self).map_err(|error| TextError::TemplateLost {
            problem: format!("its process cannot be started: {error}; free some resources"),
        })?;
        let head = Head {
            kind: wire::COMPILE,
            memory_bytes: memory_bytes(self.source.len()),
            output_bytes: 0,
            length: self.source.len() as u64,
        };
        let (process, kind, text) = process
            .ask(head, self.source.as_bytes())
            .map_err(|ended| ended.into_error(head.memory_bytes))?;
        answered(kind, text).map(|_| process)
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        // Nothing panics while it is held, and a process is idle or it is not.
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn answered(kind: u8, text: String) -> Result<String, TextError> {
    match kind {
        wire::OUTPUT => Ok(text),
        wire::SYNTAX => Err(TextError::TemplateSyntax { problem: text }),
        wire::REFUSED => Err(TextError::TemplateRefused { message: text }),
        _ => Err(TextError::TemplateFailed { problem: text }),
    }
}

/// The right to one process, and an idle one if there was one.
struct Place<'a> {
    processes: &'a Processes,
    process: Option<Process>,
}

impl<'a> Place<'a> {
    fn take(processes: &'a Processes) -> Self {
        let full = |pool: &mut Pool| pool.idle.is_empty() && pool.count >= PROCESSES_MAX;
        let pool = processes.free.wait_while(processes.pool(), full);
        let mut pool = pool.unwrap_or_else(PoisonError::into_inner);
        let process = pool.idle.pop();
        if process.is_none() {
            pool.count += 1;
        }
        Self { processes, process }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut pool = self.processes.pool();
        match self.process.take() {
            Some(process) => pool.idle.push(process),
            None => pool.count -= 1,
        }
        drop(pool);
        self.processes.free.notify_one();
    }
}

/// A process, at work or idle; dropping it ends it.
#[derive(Debug)]
struct Process {
    child: Child,
    channel: Channel,
}

/// Why a process gave no answer.
enum Ended {
    /// It is gone; these were its last words.
    Gone(String),
    /// It did not answer in time.
    Late,
}

impl Ended {
    fn into_error(self, memory_bytes: u64) -> TextError {
        let problem = match self {
            Self::Late => {
                let seconds = TEMPLATE_TIME.as_secs();
                let problem = format!("did not finish within {seconds} s and was ended");
                return TextError::TemplateLost { problem };
            }
            Self::Gone(words) if words.contains("overflowed its stack") => format!(
                "nests deeper than {} MiB of stack hold; its process was ended",
                STACK_BYTES >> 20
            ),
            Self::Gone(words) if words.contains("memory allocation of") => {
                format!(
                    "needs more than {} MiB of memory; its process was ended",
                    memory_bytes >> 20
                )
            }
            Self::Gone(status) => {
                let problem = format!("its process was ended: {status}");
                return TextError::TemplateLost { problem };
            }
        };
        TextError::TemplateFailed { problem }
    }
}

impl Process {
    fn spawn(processes: &Processes) -> io::Result<Self> {
        let mut command = Command::new(&processes.program);
        command
            .args(&processes.arguments)
            .env_clear()
            // glibc: one heap for both threads, so that what they use is what is counted.
            .env("MALLOC_ARENA_MAX", "1")
            .stderr(Stdio::piped());
        let (child, channel) = Channel::start(&mut command)?;
        Ok(Self { child, channel })
    }

    /// Sends a request; the process comes back with the answer.
    fn ask(mut self, head: Head, body: &[u8]) -> Result<(Self, u8, String), Ended> {
        let answer = self
            .channel
            .converse(TEMPLATE_TIME, head.memory_bytes, |channel| converse(channel, head, body));
        match answer {
            Ok((kind, text)) => Ok((self, kind, text)),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(Ended::Late),
            Err(error) => Err(Ended::Gone(self.epitaph(&error))),
        }
    }

    /// Ends it and tells what it said last, or else how it ended.
    fn epitaph(&mut self, error: &io::Error) -> String {
        // It is ending by itself, as a rule; its own signal says more than ours. One that talks nonsense or was stopped
        // is not.
        let stays = [io::ErrorKind::InvalidData, io::ErrorKind::ConnectionAborted];
        if stays.contains(&error.kind()) {
            let _ = self.child.kill();
        }
        let words = self.child.stderr.as_mut().map(last_words).unwrap_or_default();
        match self.child.wait() {
            _ if !words.trim().is_empty() => words,
            Ok(status) => format!("{status}"),
            Err(_) => error.to_string(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn converse(
    channel: &mut (impl Read + Write),
    head: Head,
    body: &[u8],
) -> io::Result<(u8, String)> {
    head.write(channel)?;
    channel.write_all(body)?;
    channel.flush()?;
    let answer = Head::read(channel)?;
    // A message is short; an output keeps to the limit that it was given.
    if answer.length > head.output_bytes.max(64 << 10) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let text = wire::read_body(channel, answer.length)?;
    let text = String::from_utf8(text).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok((answer.kind, text))
}

//! The process that runs one chat template: it compiles and renders what its parent sends (`channel`).
//!
//! Whatever the template does, the parent loses this process at most. So the process's memory is bounded
//! before each request, it offers itself first when the machine runs out of it, leaves no core file with a
//! conversation in it, and ends itself if it takes far longer than its parent would wait.

use super::channel::Parent;
use super::interpreter::Interpreter;
use super::wire::{self, Head};
use super::{STACK_BYTES, TEMPLATE_TIME};
use crate::TextError;
use serde::Deserialize;
use serde_json::Value;
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::sync::mpsc;

/// Whether this process was started to run a template (`TemplateHost::own_program`).
pub fn is_template_process() -> bool {
    std::env::args_os().nth(1).is_some_and(|first| first == super::TEMPLATE_PROCESS)
}

/// Serves the parent on standard input until it hangs up. A program whose `TemplateHost` is itself calls this first
/// of all in `main` if [`is_template_process`] says so.
pub fn template_process() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve() -> io::Result<()> {
    let mut parent = Parent::join()?;
    // Panics are answers here (`Interpreter`); what they print would end up in the parent's report.
    std::panic::set_hook(Box::new(|_| {}));
    let (work, orders) = mpsc::channel::<(Head, Vec<u8>)>();
    let (results, answers) = mpsc::channel();
    // Not the main thread, whose stack is as large as the user's shell has it.
    std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
        let mut interpreter = None;
        for (head, body) in orders {
            let result = obey(&mut interpreter, head, &body);
            if results.send(result).is_err() {
                break;
            }
        }
    })?;
    loop {
        let head = match Head::read(&mut parent) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        };
        parent.bound_memory(head.memory_bytes);
        let body = wire::read_body(&mut parent, head.length)?;
        let gone = |_| io::Error::from(io::ErrorKind::TimedOut);
        work.send((head, body)).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        let (kind, text) = match answers.recv_timeout(2 * TEMPLATE_TIME).map_err(gone)? {
            Ok(output) => (wire::OUTPUT, output),
            Err(TextError::TemplateSyntax { problem }) => (wire::SYNTAX, problem),
            Err(TextError::TemplateRefused { message }) => (wire::REFUSED, message),
            Err(TextError::TemplateFailed { problem }) => (wire::FAILED, problem),
            Err(TextError::TooMuchText { .. }) => (wire::LONG, String::new()),
            Err(other) => (wire::FAILED, other.to_string()),
        };
        let length = text.len() as u64;
        Head { kind, memory_bytes: 0, output_bytes: 0, length }.write(&mut parent)?;
        parent.write_all(text.as_bytes())?;
        parent.flush()?;
    }
}

fn obey(
    interpreter: &mut Option<Interpreter>,
    head: Head,
    body: &[u8],
) -> Result<String, TextError> {
    let failed = |problem: &str| TextError::TemplateFailed { problem: problem.to_owned() };
    if head.kind == wire::COMPILE {
        let source = std::str::from_utf8(body).map_err(|_| failed("the source is not UTF-8"))?;
        *interpreter = Some(Interpreter::new(source)?);
        return Ok(String::new());
    }
    let interpreter = interpreter.as_ref().ok_or_else(|| failed("nothing was compiled"))?;
    let mut reader = serde_json::Deserializer::from_slice(body);
    // The context is ours: requests were parsed with a limit, and stand a few levels deeper in it.
    reader.disable_recursion_limit();
    let context = Value::deserialize(&mut reader).map_err(|error| failed(&error.to_string()))?;
    interpreter.run(&context, usize::try_from(head.output_bytes).unwrap_or(usize::MAX))
}

/// What a process has said on its standard error, as far as it is of use.
pub(super) fn last_words(from: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = from.take(4096).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

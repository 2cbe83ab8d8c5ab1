//! The program of a chat template and where it runs.
//!
//! Templates come from strangers' model folders. Their interpreter recurses over source and values without a limit of
//! its own, and its filters allocate what they are asked for; neither can be caught where it happens. So
//! `run`, `serve` and `eval` run them in a process with little memory, a known stack and a deadline
//! (`process.rs`, `child.rs`); its end is an error like any other.

mod channel;
mod child;
mod interpreter;
mod process;
mod wire;

#[cfg(windows)]
pub use channel::memory_is_bounded;
pub use child::{is_template_process, template_process};

use super::TextError;
use interpreter::Interpreter;
use process::Processes;
use serde_json::Value;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The first argument of a program that is started to run a template.
const TEMPLATE_PROCESS: &str = "template-process";
/// A template's process has this long to compile or render; usual is a thousandth of it.
const TEMPLATE_TIME: Duration = Duration::from_secs(10);
/// Stack of the thread that interprets.
const STACK_BYTES: usize = 16 << 20;
/// Longest prompt, whatever the conversation: several times the longest context.
const OUTPUT_BYTES_MAX: usize = 64 << 20;

/// How often a mark of the conversation may stand in the output, and bytes of marks that are always allowed.
const MARK_REPEATS: usize = 4;
const MARKED_MORE: usize = 4096;

/// Longest output for `input` bytes of conversation. Templates repeat little of it, and `tojson` with an indent
/// takes the most room; the rest is the template's own text, whose source is limited.
const fn output_bytes(input: usize) -> usize {
    let bytes = input.saturating_mul(16).saturating_add(4 << 20);
    if bytes < OUTPUT_BYTES_MAX { bytes } else { OUTPUT_BYTES_MAX }
}

/// Address space of a process for `input` bytes of conversation: program, stack and twice the longest output of
/// a short one, and the values of the input, at most about 50 bytes for each of its own.
const fn memory_bytes(input: usize) -> u64 {
    (input as u64).saturating_mul(64).saturating_add(192 << 20)
}

/// Where the programs of chat templates run.
#[derive(Clone, Debug)]
pub struct TemplateHost(Place);

#[derive(Clone, Debug)]
enum Place {
    Here,
    Process { program: PathBuf, arguments: Vec<OsString> },
}

impl TemplateHost {
    /// In this process, with limits on steps, recursion and output only. For templates that are trusted: others can
    /// end the process.
    pub fn here() -> Self {
        Self(Place::Here)
    }

    /// In processes that `program` with `arguments` starts; it must call [`template_process`].
    pub fn process(
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Self {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Self(Place::Process { program: program.into(), arguments })
    }

    /// In processes of a program that can be started with the argument for it, and then calls [`template_process`].
    pub fn program(program: impl Into<PathBuf>) -> Self {
        Self::process(program, [TEMPLATE_PROCESS])
    }

    /// In processes of the program that is running, which asks [`is_template_process`] first of all in `main`.
    pub fn own_program() -> Self {
        // The link leads to the file that was started, even if another was put in its place.
        let path = if cfg!(target_os = "linux") {
            PathBuf::from("/proc/self/exe")
        } else {
            std::env::current_exe().unwrap_or_default()
        };
        Self::program(path)
    }
}

/// Longest output of a template.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutputLimit {
    /// Bytes without marks; `None` for no limit but the program's own.
    pub(super) text_bytes: Option<usize>,
    /// Characters that are taken out of the output again.
    pub(super) marks: [char; 2],
}

impl OutputLimit {
    /// Bytes with marks: room for every mark of the context, printed as often as templates repeat a message.
    fn with_marks(&self, context: &Value) -> usize {
        let marked = MARK_REPEATS * self.count_marks(context);
        let most =
            self.text_bytes.map(|most| most.saturating_add(marked).saturating_add(MARKED_MORE));
        most.unwrap_or(OUTPUT_BYTES_MAX).min(OUTPUT_BYTES_MAX)
    }

    /// Bytes of the marks in a value's strings.
    fn count_marks(&self, value: &Value) -> usize {
        match value {
            Value::String(text) => self.bytes_of_marks(text),
            Value::Array(values) => values.iter().map(|value| self.count_marks(value)).sum(),
            Value::Object(values) => values.values().map(|value| self.count_marks(value)).sum(),
            _ => 0,
        }
    }

    fn bytes_of_marks(&self, text: &str) -> usize {
        text.matches(self.marks).map(str::len).sum()
    }

    /// Refuses an output with more text.
    fn check(&self, output: Result<String, TextError>) -> Result<String, TextError> {
        let too_much = |bytes, most| TextError::TooMuchText { bytes, all: false, most };
        match (output, self.text_bytes) {
            (Ok(output), Some(most)) => {
                let bytes = output.len() - self.bytes_of_marks(&output);
                if bytes > most { Err(too_much(bytes, most)) } else { Ok(output) }
            }
            (Err(TextError::TooMuchText { bytes, .. }), Some(most)) => Err(too_much(bytes, most)),
            (Err(TextError::TooMuchText { most, .. }), None) => Err(TextError::TemplateFailed {
                problem: format!("the output is longer than {most} bytes"),
            }),
            (other, _) => other,
        }
    }
}

/// A compiled template, wherever it runs.
#[derive(Clone, Debug)]
pub(super) enum Program {
    Here(Box<Interpreter>),
    Process(Arc<Processes>),
}

impl Program {
    pub(super) fn compile(source: &str, host: &TemplateHost) -> Result<Self, TextError> {
        match &host.0 {
            Place::Here => Ok(Self::Here(Box::new(Interpreter::new(source)?))),
            Place::Process { program, arguments } => {
                let processes = Processes::start(program.clone(), arguments.clone(), source)?;
                Ok(Self::Process(Arc::new(processes)))
            }
        }
    }

    /// What the template prints for the variables of `context`.
    ///
    /// # Errors
    /// [`TextError::TooMuchText`] when it prints more than `limit` allows.
    pub(super) fn run(&self, context: Value, limit: OutputLimit) -> Result<String, TextError> {
        let output = match self {
            Self::Here(interpreter) => interpreter.run(&context, limit.with_marks(&context)),
            Self::Process(processes) => {
                let most = limit.with_marks(&context);
                let bytes = serde_json::to_vec(&context)
                    .map_err(|error| TextError::TemplateFailed { problem: error.to_string() })?;
                drop(context);
                processes.run(&bytes, most)
            }
        };
        limit.check(output)
    }
}

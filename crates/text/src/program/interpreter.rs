//! The interpreter of chat templates: minijinja with Python's habits, and limits on steps, recursion and output.
//!
//! These limits do not make a stranger's program harmless: nesting in its source or its values overflows the
//! stack, and one filter can ask for any amount of memory. That is what the process is for (`process.rs`).

use crate::error::one_line;
use crate::{TextError, python};
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, syntax::SyntaxConfig};
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Steps of the interpreter; a thousand messages take a few hundred thousand.
const FUEL: u64 = 20_000_000;
/// Nesting of macros, loops and calls.
const RECURSION_MAX: usize = 128;
const NAME: &str = "chat_template";

/// A compiled template.
#[derive(Clone, Debug)]
pub(crate) struct Interpreter {
    environment: Environment<'static>,
}

impl Interpreter {
    pub(super) fn new(source: &str) -> Result<Self, TextError> {
        let syntax_error =
            |error: minijinja::Error| TextError::TemplateSyntax { problem: describe(&error) };
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(syntax_error)?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION_MAX);
        python::install(&mut environment);
        let plain = python::without_generation_tags(source);
        contained(|| environment.add_template_owned(NAME, plain))
            .map_err(|problem| TextError::TemplateSyntax { problem })?
            .map_err(syntax_error)?;
        Ok(Self { environment })
    }

    /// What the template prints for the variables of `context`, at most `output_bytes`.
    pub(super) fn run(&self, context: &Value, output_bytes: usize) -> Result<String, TextError> {
        let context = minijinja::Value::from(Serde(context));
        let failed = |problem| TextError::TemplateFailed { problem };
        let template =
            self.environment.get_template(NAME).map_err(|error| failed(describe(&error)))?;
        let mut output = Bounded { bytes: Vec::new(), limit: output_bytes, passed: false };
        let rendered =
            contained(|| template.render_captured_to(context, &mut output)).map_err(failed)?;
        if output.passed {
            let (bytes, most) = (output_bytes, output_bytes);
            return Err(TextError::TooMuchText { bytes, all: false, most });
        }
        rendered.map_err(|error| match python::raised(&error) {
            Some(message) => TextError::TemplateRefused { message: one_line(&message) },
            None if error.kind() == ErrorKind::OutOfFuel => {
                failed(format!("did not finish within {FUEL} steps"))
            }
            None => failed(describe(&error)),
        })?;
        String::from_utf8(output.bytes).map_err(|_| failed("the output is not UTF-8".to_owned()))
    }
}

/// Runs the interpreter on a program that came with a model; a panic in it comes back as text. minijinja 3.0.5
/// indexes past the end in `[][::-1]` (found by fuzzing; `messages[::-1]` is in Qwen's own template).
fn contained<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    // What a panic may leave half-done, the environment and the output, is not used after one.
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        format!("the interpreter gave up: {}", one_line(text.unwrap_or("without a reason")))
    })
}

fn describe(error: &minijinja::Error) -> String {
    match error.line() {
        Some(line) => format!("line {line}: {}", one_line(&error.to_string())),
        None => one_line(&error.to_string()),
    }
}

/// Output up to the limit.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
    /// More was written; the interpreter does not hand the reason on.
    passed: bool,
}

impl std::io::Write for Bounded {
    fn write(&mut self, piece: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + piece.len() > self.limit {
            self.passed = true;
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

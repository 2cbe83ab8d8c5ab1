//! What answers look like: on a terminal their Markdown is rendered and lines end between words, anywhere else bytes go
//! out as they are.

mod ends;
mod markdown;
mod wrap;

use std::io::{IsTerminal, Write};

use anyhow::Result;
use console::Term;

use crate::failure::Failure;
use markdown::Markdown;
use wrap::{Style, Wrap};

pub(crate) use wrap::wrapped;

/// Where an answer is written.
pub(crate) struct Screen<'a> {
    out: &'a mut dyn Write,
    terminal: Option<Look>,
}

/// How text looks on a terminal.
struct Look {
    wrap: Wrap,
    /// Renders answers, unless the terminal has no styles: then marks are all that there is.
    markdown: Option<Markdown>,
}

impl<'a> Screen<'a> {
    /// `out` stands for standard output, which may be a terminal. Text that is continued is not rendered.
    pub(crate) fn new(out: &'a mut dyn Write, renders: bool) -> Self {
        let styled = has_colour();
        let terminal = std::io::stdout().is_terminal().then(|| Look {
            wrap: Wrap::new(width(&Term::stdout()), styled),
            markdown: (styled && renders).then(Markdown::default),
        });
        Self { out, terminal }
    }

    /// Writes thinking, or a heading of it.
    pub(crate) fn thinking(&mut self, text: &str) -> Result<()> {
        self.with(text, |look, text| look.wrap.text(Style::DIM, text))
    }

    /// Writes a mark of our own as it is.
    pub(crate) fn mark(&mut self, text: &str) -> Result<()> {
        self.with(text, |look, text| look.wrap.text(Style::PLAIN, text))
    }

    /// Writes a piece of an answer.
    pub(crate) fn answer(&mut self, text: &str) -> Result<()> {
        self.with(text, |look, text| match &mut look.markdown {
            Some(markdown) => markdown.push(text, &mut look.wrap),
            None => look.wrap.text(Style::PLAIN, text),
        })
    }

    /// The answer is over: nothing is held.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let Some(look) = &mut self.terminal else { return Ok(()) };
        if let Some(markdown) = &mut look.markdown {
            markdown.finish(&mut look.wrap);
        }
        let rest = look.wrap.finish();
        self.write(&rest)
    }

    /// Writes what `show` makes of a text on a terminal, whose control characters must not command it.
    fn with(&mut self, text: &str, show: impl FnOnce(&mut Look, &str)) -> Result<()> {
        let Some(look) = &mut self.terminal else { return self.write(text) };
        look.wrap.set_width(width(&Term::stdout()));
        show(look, &store::shown::for_terminal(text));
        let text = look.wrap.take();
        self.write(&text)
    }

    fn write(&mut self, text: &str) -> Result<()> {
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        Ok(written.map_err(Failure::io)?)
    }
}

/// Columns of a terminal, as far as it says.
pub(crate) fn width(terminal: &Term) -> Option<usize> {
    terminal.size_checked().map(|(_, columns)| usize::from(columns))
}

/// Whether a terminal is to be sent colours (https://no-color.org).
pub(crate) fn has_colour() -> bool {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}

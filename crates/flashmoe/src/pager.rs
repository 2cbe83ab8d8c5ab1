//! Long texts on a terminal: formatted by `man` and through the user's pager, and as they are where there is neither.

use std::io::{self, IsTerminal, Write};
use std::process::{Command, Stdio};

/// What pages where $PAGER does not say.
const PAGER: &str = "less";
/// How less behaves unless $LESS says: short texts stay on the screen, colours are colours.
const LESS: &str = "FRX";

/// Shows a manual page in roff. False where there is no terminal or no `man` for it: nothing was shown.
pub(crate) fn manual(roff: &[u8]) -> bool {
    // Of a `man` that does not know the option, the words would only confuse.
    on_terminal() && through(Command::new("man").args(["-l", "-"]).stderr(Stdio::null()), roff)
}

/// Shows a text. False where there is no terminal or no pager: nothing was shown.
pub(crate) fn text(text: &[u8]) -> bool {
    let asked = std::env::var("PAGER").unwrap_or_default();
    let mut words = asked.split_whitespace();
    let mut pager = Command::new(words.next().unwrap_or(PAGER));
    if std::env::var_os("LESS").is_none() {
        pager.env("LESS", LESS);
    }
    on_terminal() && through(pager.args(words), text)
}

fn on_terminal() -> bool {
    io::stdout().is_terminal() && io::stdin().is_terminal()
}

/// Whether `command` took `bytes` and ended well.
fn through(command: &mut Command, bytes: &[u8]) -> bool {
    let Ok(mut child) = command.stdin(Stdio::piped()).spawn() else { return false };
    if let Some(mut input) = child.stdin.take() {
        // A pager that is left before its end closes its input.
        let _left = input.write_all(bytes);
    }
    child.wait().is_ok_and(|status| status.success())
}

//! The prompt of `flashmoe run`: what was typed, what came on standard input, or both.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::failure::Failure;
use crate::progress::say;

/// Most bytes of a prompt, as of a request's body.
const PROMPT_BYTES_MAX: u64 = 64 << 20;
/// After this long without an end of standard input, it is said what is waited for.
const PATIENCE: Duration = Duration::from_secs(3);

/// The prompt that `typed` and standard input make together; `None` for a chat.
pub(crate) fn prompt(typed: Option<&str>) -> Result<Option<String>> {
    match typed {
        // An empty prompt asks for nothing: a chat.
        None => Ok(None),
        Some("") if !has_input() => Ok(None),
        Some("-") => Ok(Some(standard_input()?)),
        Some(typed) if has_input() => {
            let text = standard_input()?;
            let text = text.trim_end();
            Ok(Some(match (typed.is_empty(), text.is_empty()) {
                (_, true) => typed.to_owned(),
                (true, false) => text.to_owned(),
                (false, false) => format!("{typed}\n\n{text}"),
            }))
        }
        Some(typed) => Ok(Some(typed.to_owned())),
    }
}

/// Whether standard input is a pipe or a file: a terminal, a device or a socket was not meant as a prompt.
#[cfg(unix)]
fn has_input() -> bool {
    use std::os::unix::fs::FileTypeExt;
    let kind = std::path::Path::new("/dev/stdin").metadata().map(|input| input.file_type());
    kind.is_ok_and(|kind| kind.is_fifo() || kind.is_file())
}

/// Whether standard input is no terminal. Devices cannot be told from files there; the null device is empty.
#[cfg(windows)]
fn has_input() -> bool {
    use std::io::IsTerminal;
    !std::io::stdin().is_terminal()
}

fn standard_input() -> Result<String> {
    let ended = Arc::new(AtomicBool::new(false));
    let watched = Arc::clone(&ended);
    // Without the thread nothing is said.
    let _unsaid = std::thread::Builder::new().spawn(move || {
        std::thread::sleep(PATIENCE);
        if !watched.load(Ordering::Relaxed) {
            say(
                "waiting for the end of standard input, which becomes part of the prompt (< /dev/null leaves it out)",
            );
        }
    });
    let mut bytes = Vec::new();
    let read = std::io::stdin().take(PROMPT_BYTES_MAX + 1).read_to_end(&mut bytes);
    ended.store(true, Ordering::Relaxed);
    read.map_err(Failure::io).context("cannot read the prompt from standard input")?;
    if bytes.len() as u64 > PROMPT_BYTES_MAX {
        let reason = format!(
            "the prompt on standard input has more than {PROMPT_BYTES_MAX} bytes; no context holds that"
        );
        return Err(Failure::usage(reason).into());
    }
    String::from_utf8(bytes)
        .map_err(|_| Failure::usage("the prompt on standard input is not text in UTF-8").into())
}

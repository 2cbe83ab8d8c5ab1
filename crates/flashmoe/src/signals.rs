//! What asks the program to stop: SIGINT and SIGTERM on Unix, and for a server SIGQUIT and SIGHUP; Ctrl-C, Ctrl-Break
//! and the end of the session on Windows.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Calls `told` for every signal, on a thread of its own. SIGHUP counts unless it was ignored when the program was
/// started, as by nohup.
#[cfg(unix)]
pub(crate) fn listen(mut told: impl FnMut() + Send + 'static) -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    let mut wanted = vec![SIGINT, SIGTERM, SIGQUIT];
    if !is_ignored(SIGHUP) {
        wanted.push(SIGHUP);
    }
    let mut signals = signal_hook::iterator::Signals::new(wanted)?;
    let listener = std::thread::Builder::new().name("signals".to_owned());
    listener.spawn(move || signals.forever().for_each(|_| told())).map(|_| ())
}

/// Whether a signal is ignored, where the system says so: on Linux.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

/// Sets `flag` at a signal; ends the program, with the code of an interrupted one, where it is set already.
#[cfg(unix)]
pub(crate) fn set_flag(flag: Arc<AtomicBool>) -> io::Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    for signal in [SIGINT, SIGTERM] {
        // Registered first, so that it sees the flag before the second registration sets it.
        signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone())?;
        signal_hook::flag::register(signal, flag.clone())?;
    }
    Ok(())
}

/// As on Unix.
#[cfg(windows)]
pub(crate) fn set_flag(flag: Arc<AtomicBool>) -> io::Result<()> {
    listen(move || {
        if flag.swap(true, std::sync::atomic::Ordering::Relaxed) {
            std::process::exit(130);
        }
    })
}

/// As on Unix. The system's handler is one for the process: it calls all that listen.
#[cfg(windows)]
pub(crate) fn listen(told: impl FnMut() + Send + 'static) -> io::Result<()> {
    use std::sync::{Mutex, PoisonError};
    static LISTENERS: Mutex<Vec<Box<dyn FnMut() + Send>>> = Mutex::new(Vec::new());
    let mut listeners = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
    if listeners.is_empty() {
        let handle = || {
            let mut listeners = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
            listeners.iter_mut().for_each(|told| told());
        };
        ctrlc::set_handler(handle).map_err(io::Error::other)?;
    }
    listeners.push(Box::new(told));
    Ok(())
}

//! Ctrl-C: the first stops the answer in progress, a second within it ends the program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};

use crate::signals;

/// Set by Ctrl-C.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens for Ctrl-C and for a polite termination.
    ///
    /// The process has one flag: a second listener with a flag of its own would take the first Ctrl-C of an answer for
    /// the second one, once a download before it was stopped.
    pub(crate) fn listen() -> Result<Self> {
        static LISTENING: OnceLock<Interrupt> = OnceLock::new();
        if let Some(interrupt) = LISTENING.get() {
            return Ok(interrupt.clone());
        }
        let interrupt = LISTENING.get_or_init(Self::default).clone();
        let flag = interrupt.0.clone();
        signals::set_flag(flag).context("cannot listen for signals")?;
        Ok(interrupt)
    }

    /// Ready for the next answer.
    pub(crate) fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether Ctrl-C was pressed since the last reset.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The flag itself, for the engine.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.0
    }
}

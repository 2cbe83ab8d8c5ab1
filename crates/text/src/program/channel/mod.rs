//! What joins the program and the process of a chat template, and what bounds that process: a socket and limits that
//! it sets for itself on Unix, two pipes and a job object of its parent on Windows.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(super) use unix::{Channel, Parent};
#[cfg(windows)]
pub use windows::memory_is_bounded;
#[cfg(windows)]
pub(super) use windows::{Channel, Parent};

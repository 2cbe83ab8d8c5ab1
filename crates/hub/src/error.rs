//! What can go wrong between a model's name and its files. Each message is one line and says what to do about it.
//!
//! Texts of the hub (paths, headers) are cut and escaped before they become part of a message.

use std::io;
use std::path::{Path, PathBuf};

use store::shown;
use thiserror::Error;

/// A model that cannot be had, and why.
#[derive(Debug, Error)]
pub enum HubError {
    /// A text that is no name of a model.
    #[error("{text} is not a model's name: {reason}; write OWNER/NAME or OWNER/NAME:QUANT")]
    Name {
        /// The text, quoted.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The environment forbids requests.
    #[error(
        "{what} is not downloaded, and HF_HUB_OFFLINE forbids requests; unset it and try again"
    )]
    Offline {
        /// What was to be fetched.
        what: String,
    },
    /// A setting that cannot be used.
    #[error("{name}: {reason}")]
    Setting {
        /// The environment variable or file.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The hub wants to know who asks, or does not know the name.
    #[error(
        "{name}: the hub refuses access without a token (401): check the name, or if the model is private or gated \
         ask for access at {page}, make a token in the settings of your account, and give it as HF_TOKEN or by \
         `hf auth login`"
    )]
    TokenMissing {
        /// The model.
        name: String,
        /// Its page.
        page: String,
    },
    /// The token was refused.
    #[error(
        "{name}: the hub refuses the token from {origin} (401): make a new one and give it as HF_TOKEN"
    )]
    TokenRefused {
        /// The model.
        name: String,
        /// Where the token came from.
        origin: String,
    },
    /// The account has no access.
    #[error(
        "{name}: access is not granted (403): accept the model's terms at {page} with the account of your token"
    )]
    Gated {
        /// The model.
        name: String,
        /// Its page.
        page: String,
    },
    /// The hub has no such model or file.
    #[error("{name}: the hub has no such {what} (404): check the name at {page}")]
    NotFound {
        /// The model.
        name: String,
        /// `model` or `file`.
        what: String,
        /// Where to look.
        page: String,
    },
    /// An answer that stays wrong after all attempts.
    #[error(
        "{url}: the hub answered {status} {attempts} times; try again later, the download goes on where it was"
    )]
    Status {
        /// What was asked.
        url: String,
        /// The HTTP status.
        status: u16,
        /// How many times.
        attempts: u32,
    },
    /// The hub asks to wait for longer than it is sensible to.
    #[error(
        "{url}: the hub asks to wait {seconds} s before the next request; try again then, or log in with HF_TOKEN"
    )]
    Busy {
        /// What was asked.
        url: String,
        /// Seconds of `Retry-After`.
        seconds: u64,
    },
    /// No connection, or one that broke too often.
    #[error(
        "{url}: {reason}; check the network, HTTPS_PROXY and HF_ENDPOINT; the same command goes on where it was"
    )]
    Network {
        /// What was asked.
        url: String,
        /// The client's words.
        reason: String,
    },
    /// An answer that is not what the hub's interface promises, or that tries to do harm.
    #[error("{url}: refused: {reason}")]
    Answer {
        /// What was asked.
        url: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// The repository has nothing that can be run.
    #[error("{name}: {reason}")]
    Content {
        /// The model.
        name: String,
        /// What is missing, and what there is.
        reason: String,
    },
    /// Bytes that do not have their checksum.
    #[error(
        "{file}: the bytes have checksum {found}, the hub says {expected}; they were removed, pull again"
    )]
    Checksum {
        /// The file in its repository.
        file: String,
        /// The checksum of the hub.
        expected: String,
        /// The checksum of the bytes.
        found: String,
    },
    /// The disk is too small.
    #[error(
        "{}: {needed} more bytes are needed, {free} are free; free some or set HF_HUB_CACHE",
        shown::path(folder)
    )]
    Disk {
        /// The cache.
        folder: PathBuf,
        /// Bytes to be written.
        needed: u64,
        /// Bytes that can be had.
        free: u64,
    },
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", shown::path(path))]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The caller gave up.
    #[error("interrupted; the same command goes on where it was")]
    Interrupted,
}

impl HubError {
    pub(crate) fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), action, source }
    }

    pub(crate) fn answer(url: &str, reason: impl std::fmt::Display) -> Self {
        Self::Answer { url: shown_url(url), reason: shown::message(reason).to_string() }
    }

    pub(crate) fn content(name: impl std::fmt::Display, reason: impl Into<String>) -> Self {
        Self::Content { name: name.to_string(), reason: shown::line(reason.into()).to_string() }
    }
}

/// A URL without its query, which on a CDN is a signature that grants access.
pub(crate) fn shown_url(url: &str) -> String {
    shown::message(url.split(['?', '#']).next().unwrap_or_default()).to_string()
}

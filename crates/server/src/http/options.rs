//! What the server is told: where it listens, whom it lets in, and what it refuses to be drowned by.
//!
//! The defaults are safe: loopback, no foreign origin, limits on everything that a client controls. Listening
//! elsewhere without a key is refused unless it is asked for by name, because everyone who reaches the port may then
//! use the machine.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use super::tls::{TlsOptions, TlsProblem};
use crate::log::Log;
use crate::work::Failing;

/// Values and names of a body, unless fewer are allowed. Each takes up to 200 bytes of memory, whatever it says.
pub(crate) const VALUES_MAX: usize = 100_000;

/// How a server is set up.
#[derive(Clone)]
pub struct ServeOptions {
    /// Where it listens; port 0 takes a free one.
    pub address: SocketAddr,
    /// A request must have one of these keys; without any, every request is let in.
    pub keys: Vec<String>,
    /// Requests go on from each other's prompts although their keys differ; the holder of one key can then find out
    /// what those of others asked.
    pub share_prefixes: bool,
    /// Listens on addresses other machines can reach although there is no key.
    pub allow_remote_without_key: bool,
    /// Names, beside those of loopback, that a `Host` header may have; `*` allows all.
    pub allowed_hosts: Vec<String>,
    /// Origins of web pages, beside its own, that may call it, as browsers write them: `https://example.org`.
    pub allowed_origins: Vec<String>,
    /// Speaks HTTPS by these; `None` speaks plain HTTP.
    pub tls: Option<TlsOptions>,
    /// Bounds on what clients can make it do.
    pub limits: Limits,
    /// Gets one line per request, without text of a prompt or an answer.
    pub log: Log,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080),
            keys: Vec::new(),
            share_prefixes: false,
            allow_remote_without_key: false,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            tls: None,
            limits: Limits::default(),
            log: Log::default(),
        }
    }
}

impl fmt::Debug for ServeOptions {
    /// Without the keys.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ServeOptions")
            .field("address", &self.address)
            .field("keys", &self.keys.len())
            .field("share_prefixes", &self.share_prefixes)
            .field("allow_remote_without_key", &self.allow_remote_without_key)
            .field("allowed_hosts", &self.allowed_hosts)
            .field("allowed_origins", &self.allowed_origins)
            .field("tls", &self.tls)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl ServeOptions {
    /// Refuses what is unsafe or cannot be meant.
    ///
    /// # Errors
    /// [`ServeError::Exposed`] and [`ServeError::BadKey`].
    pub fn validate(&self) -> Result<(), ServeError> {
        if !self.address.ip().is_loopback()
            && self.keys.is_empty()
            && !self.allow_remote_without_key
        {
            return Err(ServeError::Exposed { address: self.address });
        }
        let sendable = |key: &String| {
            !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ')
        };
        if !self.keys.iter().all(sendable) {
            return Err(ServeError::BadKey);
        }
        Ok(())
    }
}

/// Bounds on what clients can make a server do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request's body. Anthropic's own limit is half of the default.
    pub body_bytes: usize,
    /// Why no more, as the end of a sentence; empty for no reason.
    pub body_reason: &'static str,
    /// JSON values and names of a request's body.
    pub body_values: usize,
    /// Bytes of a body that must come each second, but for one pause of [`Limits::body_idle`].
    pub body_rate: usize,
    /// Bytes of all requests at once: bodies being read, and what is kept of them until they are answered.
    pub requests_bytes: usize,
    /// Bytes of a request's line and headers together.
    pub head_bytes: usize,
    /// From the first moment of a connection, or the end of the last answer, to the end of a request's head.
    pub head_time: Duration,
    /// Between two pieces of a body.
    pub body_idle: Duration,
    /// Connections at a time. Where there are more, the ones that have waited longest for a request are closed; those
    /// with a request in progress never are, and further ones wait in the listener's queue.
    pub connections: usize,
    /// The longest silence of a stream: then a heartbeat is sent.
    pub heartbeat: Duration,
    /// How long a client may leave a stream unread before its job is cancelled.
    pub unread: Duration,
    /// How long work is still taken once the server is being stopped, so that routers have time to learn of it.
    pub drain_delay: Duration,
    /// How long requests that were taken may go on after that; then they end with an error.
    pub grace: Duration,
    /// How long the engine's thread may give no sign of life before the server calls itself dead.
    pub silence: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 64 << 20,
            body_reason: "",
            body_values: VALUES_MAX,
            body_rate: 16 << 10,
            requests_bytes: 256 << 20,
            head_bytes: 32 << 10,
            head_time: Duration::from_secs(10),
            body_idle: Duration::from_secs(30),
            connections: 4096,
            heartbeat: Duration::from_secs(5),
            unread: Duration::from_secs(60),
            drain_delay: Duration::ZERO,
            grace: Duration::from_secs(5),
            silence: Duration::from_secs(300),
        }
    }
}

/// A server that does not start, or stops.
#[derive(Debug, Error)]
pub enum ServeError {
    /// It would be reachable by others without a key.
    #[error(
        "refusing to listen on {address} without a key: other machines could use it; \
         give --api-key, listen on 127.0.0.1, or say --allow-remote-without-key"
    )]
    Exposed {
        /// The address asked for.
        address: SocketAddr,
    },
    /// A key that no header can carry.
    #[error("a key must be printable ASCII and not empty")]
    BadKey,
    /// It cannot prove who it is.
    #[error("{}: {reason}", store::shown::path(file))]
    Tls {
        /// The file of a certificate or of a key.
        file: PathBuf,
        /// What is wrong with it. Not the error's source: it is in its words.
        reason: TlsProblem,
    },
    /// This program has no TLS.
    #[error("this build has no TLS for macOS: put a proxy that has it in front of the server")]
    NoTls,
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The engine is not usable any more, so the server has ended.
    #[error("the engine failed again and again, so the server has ended; the lines above say why")]
    Broken,
    /// A stage of the model, in another process, was lost, so the server has ended.
    #[error(
        "stage_lost: a part of the model is in a process that is lost, so the server has ended"
    )]
    StageLost,
    /// There are too few descriptors to take connections.
    #[error("too few files may be open to take connections: raise the limit (ulimit -n): {0}")]
    Descriptors(std::io::Error),
    /// The threads that serve cannot be started.
    #[error("cannot start the server's threads: {0}")]
    Threads(std::io::Error),
}

impl ServeError {
    /// Why a server ended whose engine is not usable any more.
    pub(super) fn of(failing: Failing) -> Self {
        if failing == Failing::StageLost { Self::StageLost } else { Self::Broken }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(address: &str) -> ServeOptions {
        ServeOptions { address: address.parse().expect("an address"), ..ServeOptions::default() }
    }

    #[test]
    fn only_loopback_is_served_without_a_key() {
        for address in ["127.0.0.1:1", "127.8.8.8:1", "[::1]:1"] {
            assert!(on(address).validate().is_ok(), "{address}");
        }
        for address in ["0.0.0.0:1", "[::]:1", "192.168.1.2:1", "[fe80::1]:1"] {
            let error = on(address).validate().expect_err("must be refused");
            assert!(error.to_string().contains("--allow-remote-without-key"), "{error}");
            let with_key = ServeOptions { keys: vec!["k".into()], ..on(address) };
            assert!(with_key.validate().is_ok());
            let asked = ServeOptions { allow_remote_without_key: true, ..on(address) };
            assert!(asked.validate().is_ok());
        }
    }

    #[test]
    fn a_key_is_printable_and_never_printed() {
        for key in ["", "two\nlines", "ключ"] {
            let options = ServeOptions { keys: vec![key.into()], ..ServeOptions::default() };
            assert!(matches!(options.validate(), Err(ServeError::BadKey)), "{key:?}");
        }
        let options = ServeOptions { keys: vec!["sesame".into()], ..ServeOptions::default() };
        assert!(!format!("{options:?}").contains("sesame"));
    }
}

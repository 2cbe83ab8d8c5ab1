//! Connections between the processes that compute one model: TCP with TLS 1.3 and a certificate of each side, or plain
//! TCP between addresses of this host.
//!
//! Each process has an [`Identity`], a folder with a key and a certificate of its own that vouches for itself, and a
//! list of certificates that it trusts: those that were copied to it. There is no authority and no name to keep. Both
//! halves of a [`Connection`] block, and can be used by threads of their own. What is said is not known here.
#![forbid(unsafe_code)]

mod connection;
mod error;
mod identity;
mod look;
#[cfg(target_os = "macos")]
#[path = "tls_absent.rs"]
mod tls;
#[cfg(not(target_os = "macos"))]
mod tls;

pub use connection::{Connection, Listener, connect};
pub use error::{WireError, ended};
pub use identity::{Identity, Trusted};
pub use look::Look;
pub use tls::Credentials;

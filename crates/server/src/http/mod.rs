//! HTTP: connections, limits, who is let in, errors, streams.
//!
//! `listener` owns sockets and hands each request to `app`, which lets it in (`guard`), finds what it asks for
//! (`route`) and answers. Protocols see none of this: they read a JSON object and write events (`stream`) or a body
//! (`whole`).

mod access_log;
mod answer;
mod app;
mod body;
mod client;
mod cors;
mod descriptors;
mod desk;
mod drain;
mod error;
mod follow;
mod generate;
mod guard;
mod heads;
mod identify;
mod idle;
mod listener;
mod options;
mod prepare;
mod room;
mod route;
mod several;
mod slots;
mod stream;
mod tls;
mod whole;

pub use descriptors::check_descriptors;
pub use identify::{Identify, System};
pub use listener::{Server, Stopper};
pub use options::{Limits, ServeError, ServeOptions};
pub use tls::{TlsOptions, TlsProblem};

pub(crate) use answer::Answer;
pub(crate) use body::object;
pub(crate) use desk::Desk;
pub(crate) use drain::Phase;
pub(crate) use error::{ApiError, Kind};
pub(crate) use options::VALUES_MAX;
pub(crate) use route::shape;
pub(crate) use stream::{EventWriter, Frames, Waiting};

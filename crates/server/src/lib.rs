//! The local endpoint: requests of clients in, streamed answers of a model out.
//!
//! [`work`] runs the model: it prepares prompts, queues jobs, decodes several sequences together and keeps
//! what was computed for the next turn; it is synchronous, on threads of its own. The protocols (`chat`,
//! `completions`, `responses`, `messages`, `ollama`, `native`) are state machines without I/O: a JSON object becomes
//! a job, its events become frames. They speak to the work room through the [`work::Worker`] trait alone, over
//! bounded channels, and never see a tensor. `http` has the sockets and everything that keeps strangers out.
#![forbid(unsafe_code)]

mod calendar;
mod chat;
mod completions;
mod http;
mod log;
mod messages;
mod metrics;
mod models;
mod native;
mod ollama;
mod page;
mod protocol;
pub mod registry;
mod responses;
mod temperature;
mod throttle;
mod timeline;
mod tokens;
pub mod understanding;
pub mod work;

pub use http::{
    Identify, Limits, ServeError, ServeOptions, Server, Stopper, System, TlsOptions, TlsProblem,
    check_descriptors,
};
pub use log::{Level, Line, Log};
pub use protocol::{experts_json, timings_json};

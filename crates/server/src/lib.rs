//! The local endpoint: requests of clients in, streamed answers of a model out.
//!
//! [`work`] runs the model: it prepares prompts, queues jobs, decodes several sequences together and keeps
//! what was computed for the next turn; it is synchronous, on threads of its own. The protocols speak to
//! it through the [`work::Worker`] trait alone, over bounded channels, and never see a tensor.
#![forbid(unsafe_code)]

pub mod work;

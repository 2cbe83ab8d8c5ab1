//! Models, sequences and answers.
//!
//! [`model`] holds the families and their forward pass, [`backend`] the operations it is written in and
//! the devices that run them, [`weights`] the dense tensors; [`engine`] joins them, [`generate`] makes
//! answers and [`session`] conversations of one sequence, [`drafts`] tokens that an answer may go on with; [`stages`]
//! spreads layers over devices. Tokens, templates, samplers and constraints are the `text` crate's, experts come from
//! the `store` crate.
#![forbid(unsafe_code)]

pub mod backend;
pub mod drafts;
pub mod engine;
mod error;
pub mod generate;
pub mod model;
mod residency;
pub mod routing;
mod sequences;
pub mod session;
pub mod stages;
pub mod weights;

pub use error::EngineError;

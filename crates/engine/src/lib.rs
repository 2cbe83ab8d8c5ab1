//! Models, sequences, sampling and text.
//!
//! [`model`] holds the families and their forward pass, [`backend`] the operations it is written in and
//! the devices that run them, [`weights`] the dense tensors; [`engine`] joins them, [`generate`] makes
//! answers and [`session`] conversations of one sequence, [`drafts`] tokens that an answer may go on with. [`text`] turns conversations into tokens and back,
//! [`sampling`] logits into tokens, [`constraint`] says which of them an answer may have. Experts come
//! from the `store` crate.
#![forbid(unsafe_code)]

pub mod backend;
pub mod constraint;
pub mod drafts;
pub mod engine;
mod error;
pub mod generate;
pub mod model;
mod residency;
pub mod routing;
pub mod sampling;
mod sequences;
pub mod session;
pub mod text;
pub mod weights;

pub use error::EngineError;

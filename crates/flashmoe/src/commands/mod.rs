//! One file per command.

mod chat;
mod doctor;
mod inspect;
mod plan;
mod run;
mod score;

pub(crate) use doctor::doctor;
pub(crate) use inspect::inspect;
pub(crate) use plan::plan;
pub(crate) use run::run;
pub(crate) use score::score;

//! One file per command.

mod chat;
mod run;
mod score;

pub(crate) use run::run;
pub(crate) use score::score;

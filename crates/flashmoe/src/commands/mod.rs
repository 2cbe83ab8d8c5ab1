//! One file per command.

mod bench;
mod cache;
mod chat;
mod doctor;
mod eval;
mod ids;
mod inspect;
mod launch;
mod models;
mod pack;
mod plan;
mod pull;
mod run;
mod score;
mod serve;
mod synth;
mod table;
mod trace;

pub(crate) use bench::bench;
pub(crate) use cache::cache;
pub(crate) use doctor::doctor;
pub(crate) use eval::eval;
pub(crate) use inspect::inspect;
pub(crate) use launch::launch;
pub(crate) use models::{list, remove, show};
pub(crate) use pack::{pack, verify};
pub(crate) use plan::plan;
pub(crate) use pull::{download, pull};
pub(crate) use run::run;
pub(crate) use score::score;
pub(crate) use serve::serve;
pub(crate) use synth::synth;
pub(crate) use trace::trace;

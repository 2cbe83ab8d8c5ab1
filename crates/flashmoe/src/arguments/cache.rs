//! Arguments of `flashmoe cache`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};

use super::Age;

/// `flashmoe cache`
#[derive(Args, Clone, Debug)]
pub(crate) struct CacheArguments {
    /// What to do with kept prompts
    #[command(subcommand)]
    pub(crate) command: CacheCommand,
}

#[derive(Subcommand, Clone, Debug)]
pub(crate) enum CacheCommand {
    /// What is kept: models, tokens, bytes, and when each was last used
    Ls(CacheFolder),
    /// Check every checksum; changes nothing
    Verify(CacheFolder),
    /// Remove what is kept
    Purge(CachePurgeArguments),
}

/// Where, and which model's.
#[derive(Args, Clone, Debug)]
pub(crate) struct CacheFolder {
    /// Folder of `serve --cache-disk`
    pub(crate) folder: PathBuf,
    /// Only this model: its name, or the beginning of the hash that `ls` shows
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `flashmoe cache purge`
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("what").required(true).args(["all", "older_than"]))]
pub(crate) struct CachePurgeArguments {
    #[command(flatten)]
    pub(crate) place: CacheFolder,
    /// Everything
    #[arg(long)]
    pub(crate) all: bool,
    /// What was not used for so long: 90m, 12h, 7d
    #[arg(long, value_name = "AGE")]
    pub(crate) older_than: Option<Age>,
}

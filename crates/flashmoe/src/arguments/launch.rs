//! `flashmoe launch`

use std::ffi::OsString;

use clap::{Args, ValueEnum};

/// A client that `launch` knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClientChoice {
    /// Claude Code
    Claude,
    /// Codex
    Codex,
    /// opencode
    Opencode,
    /// aider
    Aider,
}

/// `flashmoe launch`
#[derive(Debug, Args)]
pub(crate) struct LaunchArguments {
    /// The client
    pub(crate) client: ClientChoice,
    /// Where `flashmoe serve` listens
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub(crate) url: String,
    /// Key of the server, if it has one
    #[arg(long, value_name = "KEY", env = "FLASHMOE_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
    /// Run the client instead of printing how to
    #[arg(long)]
    pub(crate) exec: bool,
    /// Arguments for the client, after `--`
    #[arg(last = true)]
    pub(crate) arguments: Vec<OsString>,
}

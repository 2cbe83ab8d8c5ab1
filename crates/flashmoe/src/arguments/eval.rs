//! Arguments of `flashmoe eval`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::ModelArguments;

/// `flashmoe eval`
#[derive(Debug, Args)]
pub(crate) struct EvalArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// Tasks, one JSON object a line
    pub(crate) tasks: PathBuf,
    /// Only this task
    #[arg(long, value_name = "TASK")]
    pub(crate) only: Option<String>,
    /// Print each failed answer to standard error
    #[arg(long)]
    pub(crate) failures: bool,
    /// How the table is printed
    #[arg(short, long, value_name = "FORMAT", default_value = "md")]
    pub(crate) output: EvalFormat,
}

/// `--output` of `eval`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EvalFormat {
    /// A Markdown table
    #[value(name = "md")]
    Markdown,
    /// JSON
    Json,
}

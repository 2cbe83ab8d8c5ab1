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
    #[arg(required_unless_present = "text")]
    pub(crate) tasks: Option<PathBuf>,
    /// Only this task
    #[arg(long, value_name = "TASK", requires = "tasks")]
    pub(crate) only: Option<String>,
    /// Most tokens of an answer, thinking included
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(crate) max_tokens: usize,
    /// Print each failed answer to standard error
    #[arg(long, requires = "tasks")]
    pub(crate) failures: bool,
    /// Write every answer, its token ids and whether it is right to this file, one JSON object a line
    #[arg(long, value_name = "FILE", requires = "tasks")]
    pub(crate) answers: Option<PathBuf>,
    /// Write which experts the tokens of the answers chose to this trace; it must not exist
    #[arg(long, value_name = "FILE", requires = "tasks")]
    pub(crate) trace: Option<PathBuf>,
    /// Measure, over the tokens of the answers, how well the next layer's router, applied to this layer's
    /// input, prefetches the next layer's experts
    #[arg(long, requires = "tasks")]
    pub(crate) lookahead: bool,
    /// Hold calls that the model begins to the tools that were offered, as `serve` does
    #[arg(long, requires = "tasks")]
    pub(crate) watch_calls: bool,
    /// Text for perplexity: JSON lines (`messages` or `text`) in a file that ends in .jsonl, else plain
    /// text, cut into windows of the context
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Compare with this model over the text: KL divergence and top-1 agreement. It runs as trained,
    /// with keys and values in f32, whatever -k and --kv-type say, so it may be the same folder. The two
    /// share the memory equally
    #[arg(long, value_name = "MODEL", requires = "text")]
    pub(crate) reference: Option<PathBuf>,
    /// How the results are printed
    #[arg(short, long, value_name = "FORMAT", default_value = "md")]
    output: EvalFormat,
    /// Print JSON: as -o json
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

impl EvalArguments {
    /// How the results are printed.
    pub(crate) fn format(&self) -> EvalFormat {
        if self.json { EvalFormat::Json } else { self.output }
    }
}

/// `--output` of `eval`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EvalFormat {
    /// Markdown tables
    #[value(name = "md")]
    Markdown,
    /// JSON
    Json,
}

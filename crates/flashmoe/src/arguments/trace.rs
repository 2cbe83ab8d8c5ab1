//! Arguments of `flashmoe trace`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{FormArguments, ModelArguments};

/// `flashmoe trace`
#[derive(Args, Clone, Debug)]
pub(crate) struct TraceArguments {
    /// What to do with traces
    #[command(subcommand)]
    pub(crate) command: TraceCommand,
}

#[derive(Subcommand, Clone, Debug)]
pub(crate) enum TraceCommand {
    /// Run a prompt and write down which experts each token chose
    Record(Box<TraceRecordArguments>),
    /// Hit rates of each policy over slot counts
    Replay(TraceReplayArguments),
    /// Overlap of consecutive tokens, concentration, coverage, windows of 30 tokens, and what a layer says of the next
    Stats(TraceStatsArguments),
}

/// `flashmoe trace record`
#[derive(Args, Clone, Debug)]
pub(crate) struct TraceRecordArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// The prompt, rendered by the model's chat template where it has one
    #[arg(required_unless_present = "ids")]
    pub(crate) prompt: Option<String>,
    /// JSON array of token ids to run instead of a prompt
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    pub(crate) ids: Option<PathBuf>,
    /// Tokens to generate after it, greedily
    #[arg(short = 'n', long, value_name = "TOKENS", default_value_t = 128)]
    pub(crate) generate: usize,
    /// File to write; it must not exist
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
}

/// Traces to read.
#[derive(Args, Clone, Debug)]
pub(crate) struct TraceFiles {
    /// Traces: recorded here, `route_trace v1` CSV, or JSON lines
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Experts of a layer, which JSON lines do not say
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) experts: Option<u16>,
    #[command(flatten)]
    pub(crate) form: FormArguments,
}

/// `flashmoe trace replay`
#[derive(Args, Clone, Debug)]
pub(crate) struct TraceReplayArguments {
    #[command(flatten)]
    pub(crate) input: TraceFiles,
    /// Slots as percentages of all experts (list)
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "6.25,12.5,25,50")]
    pub(crate) slots: Vec<f64>,
    /// Half-lives of the policy `lfru` to compare, in steps (list): short ones are LRU, long ones LFU
    #[arg(long, value_name = "STEPS", value_delimiter = ',')]
    pub(crate) half_life: Vec<f64>,
    /// One pool for all layers instead of one for each
    #[arg(long)]
    pub(crate) shared: bool,
}

/// `flashmoe trace stats`
#[derive(Args, Clone, Debug)]
pub(crate) struct TraceStatsArguments {
    #[command(flatten)]
    pub(crate) input: TraceFiles,
}

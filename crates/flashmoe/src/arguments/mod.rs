//! The command line as typed. What it means on this machine is worked out in `plan`.
//!
//! Help, man page and shell completions are generated from these definitions.

mod bench;
mod cache;
mod eval;
mod launch;
mod model;
mod models;
mod pack;
mod serve;
mod synth;
mod trace;
mod values;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub(crate) use bench::{BenchArguments, OutputChoice};
pub(crate) use cache::{CacheArguments, CacheCommand, CacheFolder};
pub(crate) use eval::{EvalArguments, EvalFormat};
pub(crate) use launch::{ClientChoice, LaunchArguments};
pub(crate) use model::{
    ArithmeticChoice, DeltaChoice, IoChoice, KvChoice, KvTypeChoice, LoadChoice, ModelArguments,
    PolicyChoice, PredictChoice, RoutingChoice, SamplingArguments, StorageChoice,
};
pub(crate) use models::{ListArguments, PullArguments, RemoveArguments, ShowArguments};
pub(crate) use pack::PackArguments;
pub(crate) use serve::{LogFormat, QUEUE_DEFAULT, ServeArguments};
pub(crate) use synth::{LayoutChoice, StoredAs, SynthArguments};
pub(crate) use trace::{
    TraceArguments, TraceCommand, TraceFiles, TraceRecordArguments, TraceReplayArguments,
};
pub(crate) use values::{Age, ByteSize, DeviceChoice, SlotCount};

/// Runs Mixture-of-Experts models larger than memory on one ordinary machine: the dense trunk stays in
/// memory, the experts stream from the SSD.
#[derive(Debug, Parser)]
#[command(name = "flashmoe", version, propagate_version = true)]
pub(crate) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer one prompt, or chat when none is given
    Run(RunArguments),
    /// Download a model of the Hugging Face hub by its name
    Pull(PullArguments),
    /// The models on this disk
    #[command(visible_alias = "ls")]
    List(ListArguments),
    /// The files of a model and where they lie
    Show(ShowArguments),
    /// Remove a model from this disk
    Rm(RemoveArguments),
    /// Answer the clients of OpenAI's and Anthropic's protocols over HTTP
    Serve(Box<ServeArguments>),
    /// Look at, check or remove the prompts that servers keep on disk
    Cache(CacheArguments),
    /// What a model is: shapes, encodings, sizes
    Inspect(PathArguments),
    /// Make a native pack: one aligned, checksummed record per expert
    Pack(PackArguments),
    /// Check every checksum of a native pack
    Verify(PathArguments),
    /// Ask a file of tasks and print how many answers are right
    Eval(EvalArguments),
    /// Print shell completions
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man,
    /// What goes where in memory and how fast it will be, without loading anything
    Plan(ModelArguments),
    /// What this machine offers, with a read test when a model is given
    Doctor(DoctorArguments),
    /// Teacher-forced logits and negative log-likelihood of given token ids
    Score(ScoreArguments),
    /// Make a checkpoint of a real shape with random weights
    Synth(SynthArguments),
    /// Measure prefill and decode, and how close they come to what disk and memory allow
    Bench(BenchArguments),
    /// Set up a coding agent for a running server
    Launch(LaunchArguments),
    /// Record, replay and measure routing traces
    Trace(TraceArguments),
}

/// `flashmoe run`
#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// The prompt; `-` reads standard input; without one an interactive chat starts
    pub(crate) prompt: Option<String>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArguments,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Most tokens of an answer, thinking included
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<usize>,
    /// Answer without a thinking block, or ask for one (default: the template's own)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) think: Option<bool>,
    /// Do not print the thinking block
    #[arg(long)]
    pub(crate) hide_thinking: bool,
    /// Feed the prompt as it is, without the chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// Stop before this text (may be repeated)
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Print hits, bytes read and speed after each answer
    #[arg(long)]
    pub(crate) stats: bool,
}

/// `flashmoe score`
#[derive(Debug, Args)]
pub(crate) struct ScoreArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// JSON array of token ids
    #[arg(long, value_name = "FILE")]
    pub(crate) ids: PathBuf,
    /// Write the tensor `logits` [tokens, vocabulary] in f32 (and `greedy`) to this safetensors file
    #[arg(long, value_name = "FILE")]
    pub(crate) logits: Option<PathBuf>,
    /// Continue greedily for N tokens after the ids
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) greedy: usize,
}

/// A command that only needs the model's folder.
#[derive(Debug, Args)]
pub(crate) struct PathArguments {
    /// Folder of the model
    pub(crate) model: PathBuf,
}

/// `flashmoe doctor`
#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Model whose disk is tested
    pub(crate) model: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

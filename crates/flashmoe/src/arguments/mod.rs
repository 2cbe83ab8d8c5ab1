//! The command line as typed. What it means on this machine is worked out in `plan`.
//!
//! Help, man page and shell completions are generated from these definitions.

mod bench;
mod cache;
mod driver;
mod eval;
mod launch;
mod machine;
mod model;
mod models;
mod pack;
mod repetition;
mod report;
mod serve;
mod stage;
mod synth;
mod trace;
mod values;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use text::OnFull;

pub(crate) use bench::{BenchArguments, FormArguments, OutputChoice};
pub(crate) use cache::{CacheArguments, CacheCommand, CacheFolder};
pub(crate) use driver::DriverArguments;
pub(crate) use eval::{EvalArguments, EvalFormat};
pub(crate) use launch::{ClientChoice, LaunchArguments};
pub(crate) use machine::AssumedMachine;
pub(crate) use model::{
    ArithmeticChoice, DeltaChoice, DraftChoice, IoChoice, KvChoice, KvTypeChoice, LoadChoice,
    ModelArguments, PolicyChoice, PredictChoice, RoutingChoice, SamplingArguments, StorageChoice,
};
pub(crate) use models::{ListArguments, PullArguments, RemoveArguments, ShowArguments};
pub(crate) use pack::PackArguments;
pub(crate) use report::ReportArguments;
pub(crate) use serve::{LogFormat, QUEUE_DEFAULT, ServeArguments};
pub(crate) use stage::{Layers, StageArguments};
pub(crate) use synth::{LayoutChoice, StoredAs, SynthArguments};
pub(crate) use trace::{
    TraceArguments, TraceCommand, TraceFiles, TraceRecordArguments, TraceReplayArguments,
};
use values::on_full;
pub(crate) use values::{
    Age, ByteSize, DeviceChoice, Devices, SlotCount, Split, VramCaps, memory_size, token_count,
};

/// The version with its commit.
pub(crate) const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("FLASHMOE_COMMIT"), ")");
/// What this build can do as well.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("FLASHMOE_COMMIT"),
    ")\nfeatures: x86-64 and NEON kernels, CUDA (driver loaded at run time), io_uring, hub over https"
);

/// Runs Mixture-of-Experts models larger than memory on one ordinary machine: the dense trunk stays in
/// memory, the experts stream from the SSD.
#[derive(Debug, Parser)]
#[command(
    name = "flashmoe",
    version = VERSION,
    long_version = LONG_VERSION,
    after_help = "Alone, `flashmoe` says which models are here. `flashmoe help COMMAND` explains a command."
)]
pub(crate) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Say nothing on standard error but why something failed
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = "Everywhere")]
    pub(crate) quiet: bool,
    /// Say also what is done on the way
    #[arg(short, long, global = true, help_heading = "Everywhere")]
    pub(crate) verbose: bool,
    /// Folder with models of your own, which `list` shows and names reach (may be repeated)
    #[arg(long, global = true, value_name = "FOLDER", help_heading = "Everywhere")]
    pub(crate) models_dir: Vec<PathBuf>,
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
    /// Compute a range of a model's layers for a `serve --stages`, `run --stages` on this host or another
    Stage(Box<StageArguments>),
    /// Look at, check or remove the prompts that servers keep on disk
    Cache(CacheArguments),
    /// What a model is: shapes, encodings, sizes
    Inspect(InspectArguments),
    /// Make a native pack: one aligned, checksummed record per expert
    Pack(PackArguments),
    /// Check every checksum of a native pack
    Verify(PathArguments),
    /// Ask a file of tasks and print how many answers are right
    Eval(EvalArguments),
    /// Print shell completions, which know the names of models in bash, zsh and fish
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual: everything on one page, or a page per command into a folder
    Man {
        /// Write flashmoe.1, flashmoe-run.1 and so on into this folder
        #[arg(long, value_name = "FOLDER")]
        all: Option<PathBuf>,
    },
    /// What goes where in memory and how fast it will be, without loading anything
    Plan(PlanArguments),
    /// What this machine offers, with a read test when a model is given
    Doctor(DoctorArguments),
    /// Teacher-forced logits and negative log-likelihood of given token ids
    Score(ScoreArguments),
    /// Make a checkpoint of a real shape with random weights
    Synth(SynthArguments),
    /// Measure prefill and decode, and how close they come to what disk and memory allow
    Bench(BenchArguments),
    /// Measure all of this for an issue: the machine, the plan, speed, files, ten answers, perplexity
    Report(ReportArguments),
    /// Set up a coding agent for a running server
    Launch(LaunchArguments),
    /// Record, replay and measure routing traces
    Trace(TraceArguments),
    /// The configuration file, and what holds with where it came from
    Config {
        /// What to do
        #[command(subcommand)]
        command: ConfigCommand,
    },
}

/// `flashmoe config`
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// What holds for a command, and whether by file, environment or default
    Show {
        /// The command
        #[arg(default_value = "run")]
        command: String,
        /// Defaults as well
        #[arg(long)]
        all: bool,
    },
    /// Write a configuration file to begin with: all settings that many want, as remarks
    Init,
    /// Where the configuration file is
    Path,
}

/// `flashmoe run`
#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// The prompt; what comes through a pipe is added to it, `-` stands for that alone; without a prompt a chat starts
    pub(crate) prompt: Option<String>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArguments,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Most tokens of an answer, thinking included (default: what the context leaves)
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        visible_alias = "n-predict",
        value_parser = token_count,
        allow_negative_numbers = true
    )]
    pub(crate) max_tokens: Option<usize>,
    /// Ask for a thinking block, or with --think=false for none (default: as the model's template has it)
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub(crate) think: Option<bool>,
    /// Print the thinking block although standard output is no terminal
    #[arg(long, conflicts_with = "hide_thinking")]
    pub(crate) show_thinking: bool,
    /// Do not print the thinking block
    #[arg(long)]
    pub(crate) hide_thinking: bool,
    /// When the conversation does not fit the context: `stop` refuses it, `drop-oldest` leaves out its oldest turns,
    /// never the system prompt or the last turn, and says so
    #[arg(long, value_name = "WHAT", default_value_t = OnFull::Stop, value_parser = on_full())]
    pub(crate) on_full: OnFull,
    /// Print hits, bytes read, speed and where the time went after each answer
    #[arg(long)]
    pub(crate) stats: bool,
    /// Print the answer, its thinking and its figures as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Feed the prompt as it is, without the chat template
    #[arg(long, help_heading = "Prompt and answer")]
    pub(crate) raw: bool,
    /// Stop before this text (may be repeated)
    #[arg(long, value_name = "TEXT", help_heading = "Prompt and answer")]
    pub(crate) stop: Vec<String>,
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

/// A command that only needs the model.
#[derive(Debug, Args)]
pub(crate) struct PathArguments {
    /// Folder or name of the model
    pub(crate) model: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `flashmoe inspect`
#[derive(Debug, Args)]
pub(crate) struct InspectArguments {
    #[command(flatten)]
    pub(crate) path: PathArguments,
    /// Print the operations of each layer, and what they become on each device
    #[arg(long)]
    pub(crate) program: bool,
}

/// `flashmoe plan`
#[derive(Debug, Args)]
pub(crate) struct PlanArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// Plan for another machine, without measuring this one: `ram=64G,disk=7,memory=936,vram=24G,bus=25` (sizes; GB/s
    /// of the disk at random records, of the memory that computes, and of the bus to the GPU). Without `vram` and `bus`
    /// the processor computes, `memory` is what `plan` there says of products of one token; `compute` (billions of
    /// operations a second) is this machine's where it is left out
    #[arg(long, value_name = "SIZES")]
    pub(crate) machine: Option<AssumedMachine>,
    /// Cut the layers over the machines of this file, each with its `has` (as of --machine), and say how fast that is
    /// (docs/scaling.md); the file of --stages is printed as well
    #[arg(long, value_name = "FILE", conflicts_with_all = ["machine", "stages", "split"])]
    pub(crate) machines: Option<PathBuf>,
    /// Streams at a time: for one the cut takes the least time in all, for more its slowest stage is the fastest
    #[arg(long, value_name = "N", default_value_t = 1, requires = "machines")]
    pub(crate) streams: u16,
    /// Write the file of --stages here
    #[arg(long, value_name = "FILE", requires = "machines")]
    pub(crate) write_stages: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `flashmoe doctor`
#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Model whose disk is tested
    pub(crate) model: Option<PathBuf>,
    /// Hold the kernels of `--device gpu` against the scalar reference, on every GPU that Vulkan or Metal reaches, and
    /// print a report for an issue
    #[arg(long, conflicts_with_all = ["model", "json"])]
    pub(crate) gpu_check: bool,
    /// One group of these checks, on one adapter: what `--gpu-check` starts
    #[arg(long, value_name = "NAME", requires = "gpu_check", requires = "gpu_number", hide = true)]
    pub(crate) gpu_group: Option<String>,
    /// The adapter's number
    #[arg(long, value_name = "N", requires = "gpu_group", hide = true)]
    pub(crate) gpu_number: Option<usize>,
    /// Print everything that an issue needs to know of this machine, as it is found: system and memory, every check of
    /// every GPU, and with a model its answer, its speed and the disk's, on the processor and on each GPU. A driver
    /// that crashes is a line of it. Takes minutes
    #[arg(long, conflicts_with_all = ["gpu_check", "json"])]
    pub(crate) report: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

//! Arguments of every command that loads a model, and of every command that samples.

use std::ops::Range;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use engine::backend::cpu::KvType;
use engine::drafts::{DraftSource, Drafting};

use super::DriverArguments;
use super::repetition::RepetitionArguments;
use super::values::{ByteSize, Devices, SlotCount, Split, VramCaps, memory_size, seed};
use crate::failure::Failure;

/// The model and how it is held.
#[derive(Args, Clone, Debug)]
pub(crate) struct ModelArguments {
    /// The model: a folder, a GGUF file, OWNER/NAME on the Hugging Face hub, or a name that `flashmoe list` prints
    pub(crate) model: PathBuf,
    /// Hard cap on everything the process holds, requests of a server included, page cache where the mode promises it
    /// (default: 85 % of what the machine and its cgroup can spare)
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    pub(crate) memory: Option<ByteSize>,
    /// Most tokens of a conversation (default: what a tenth of the memory holds, 2048 to 32768)
    #[arg(
        short = 'c',
        long,
        visible_alias = "ctx-size",
        value_name = "TOKENS",
        value_parser = clap::value_parser!(u32).range(1..=1 << 24)
    )]
    pub(crate) context: Option<u32>,
    /// What computes: `auto`, `cpu`, `cuda` or `cuda:N` (NVIDIA), `gpu` or `gpu:N` (any GPU through Vulkan or Metal);
    /// `auto` takes the first usable NVIDIA GPU, else a GPU of any maker whose kernels are right here, else the
    /// processor. Several of one kind, as in `cuda:0,cuda:1`, compute a range of the layers each
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub(crate) device: Devices,
    /// Layers of each of several devices: `auto`, or as in `20,20`; answers stay the same
    #[arg(long, value_name = "LAYERS", default_value = "auto", help_heading = "Computation")]
    pub(crate) split: Split,
    /// File that names the stages of the model in other processes, on this host or others (`flashmoe stage`); this
    /// process computes the first layers and the head (docs/scaling.md)
    #[arg(long, value_name = "FILE", conflicts_with = "split", help_heading = "Computation")]
    pub(crate) stages: Option<PathBuf>,
    /// The layers of `flashmoe stage`
    #[arg(skip)]
    pub(crate) part: Option<Range<usize>>,
    /// Threads that compute on the processor (default: its cores)
    #[arg(
        short = 't',
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub(crate) threads: Option<u16>,
    /// Hard cap on the GPU memory for weights, experts, keys and values, and buffers (default: what is free, less a
    /// reserve); CUDA's own context takes half a gibibyte more. Of several devices each, or as in `10G,8G` one after
    /// the other
    #[arg(long, value_name = "SIZE", help_heading = "Memory and disk")]
    pub(crate) vram: Option<VramCaps>,
    /// Guess on the GPU, one layer early, which experts come next, and fetch what is not in its memory; answers
    /// stay the same
    #[arg(long, value_name = "WHEN", default_value = "off", help_heading = "GPU")]
    pub(crate) predict: PredictChoice,
    #[command(flatten)]
    pub(crate) driver: DriverArguments,
    /// Where experts come from
    #[arg(long, value_name = "MODE", default_value = "budget", help_heading = "Memory and disk")]
    pub(crate) storage: StorageChoice,
    /// Slots for expert records in `budget` mode: a number, or `floor` for the fewest that work
    /// (default: as many as the memory cap holds)
    #[arg(long, value_name = "N|floor", help_heading = "Memory and disk")]
    pub(crate) slots: Option<SlotCount>,
    /// How records are read
    #[arg(long, value_name = "ENGINE", default_value = "auto", help_heading = "Memory and disk")]
    pub(crate) io: IoChoice,
    /// Which records leave first when slots run out
    #[arg(long, value_name = "POLICY", default_value = "lfru", help_heading = "Memory and disk")]
    pub(crate) policy: PolicyChoice,
    /// Reads in flight at once (default: by record size)
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=256),
        help_heading = "Memory and disk"
    )]
    pub(crate) queue_depth: Option<u16>,
    /// Do not compare the dense weights with their checksums when they are loaded (native packs have some; other
    /// layouts have nothing to compare)
    #[arg(long, help_heading = "Memory and disk")]
    pub(crate) no_check: bool,
    /// Check each record's checksum when it is read (native packs)
    #[arg(long, help_heading = "Memory and disk")]
    pub(crate) check_reads: bool,
    /// Mapped files: advise the kernel which records come and which are done
    #[arg(long, help_heading = "Memory and disk")]
    pub(crate) residency_advice: bool,
    /// How the dense trunk gets into memory. Mapped files must not be cut or written to meanwhile: the answer
    /// in progress then ends with an error that names the file
    #[arg(long, value_name = "HOW", default_value = "read", help_heading = "Memory and disk")]
    pub(crate) load: LoadChoice,
    /// When the key-value cache takes memory (default: grow; on a GPU, as long as experts that do not all fit there
    /// can use it meanwhile)
    #[arg(long, value_name = "WHEN", help_heading = "Memory and disk")]
    pub(crate) kv: Option<KvChoice>,
    /// How keys and values are stored (default: f16; DeepSeek-V4: fp8, as it was trained)
    #[arg(long, value_name = "TYPE", help_heading = "Memory and disk")]
    pub(crate) kv_type: Option<KvTypeChoice>,
    /// Tokens of a prompt processed at once (default: as memory allows; plan shows it)
    #[arg(
        long,
        value_name = "TOKENS",
        value_parser = clap::value_parser!(u32).range(1..=65536),
        help_heading = "Computation"
    )]
    pub(crate) prefill_chunk: Option<u32>,
    /// Arithmetic of quantised weights on the processor (default: int16)
    #[arg(long, value_name = "KIND", help_heading = "Computation")]
    pub(crate) arithmetic: Option<ArithmeticChoice>,
    /// Experts per token; fewer than trained is an approximation and is printed as such
    #[arg(short = 'k', long = "top-k-experts", value_name = "K", help_heading = "Computation")]
    pub(crate) experts_per_token: Option<u16>,
    /// How the delta rule runs over a prompt (default: step; chunked is the processor's)
    #[arg(long, value_name = "FORM", help_heading = "Computation")]
    pub(crate) delta_rule: Option<DeltaChoice>,
    /// Where expert choices come from: `calibrated` replaces the router of a synthetic model by the
    /// generator fitted to real models, for benchmarks
    #[arg(long, value_name = "SOURCE", default_value = "model", help_heading = "Computation")]
    pub(crate) routing: RoutingChoice,
    /// Compute drafts of the next tokens together with an answer's last one (processor, CUDA); answers stay the same
    #[arg(long, value_name = "SOURCE", default_value = "off", help_heading = "Computation")]
    pub(crate) draft: DraftChoice,
}

impl ModelArguments {
    /// Whether several devices or processes compute the model.
    pub(crate) fn is_spread(&self) -> bool {
        self.device.all().len() > 1 || self.stages.is_some() || self.part.is_some()
    }
}

impl ModelArguments {
    /// Refuses drafts where nothing would draft.
    pub(crate) fn refuse_drafts(&self, why: &str) -> Result<(), Failure> {
        match self.draft {
            DraftChoice::Off => Ok(()),
            _ => Err(Failure::usage(format!("--draft: {why}"))),
        }
    }
}

/// `--draft`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DraftChoice {
    /// None
    Off,
    /// What followed the longest suffix of prompt and answer where it occurred before
    Ngram,
    /// The model's own head, no deeper than measurably pays
    Head,
    /// ngram, and else the head where there is one; no deeper than measurably pays
    Auto,
}

impl DraftChoice {
    /// How answers are drafted.
    pub(crate) fn drafting(self) -> Option<Drafting> {
        let (source, measured) = match self {
            Self::Off => return None,
            Self::Ngram => (DraftSource::Suffix, false),
            Self::Head => (DraftSource::Head, true),
            Self::Auto => (DraftSource::SuffixOrHead, true),
        };
        Some(Drafting { source, measured })
    }
}

/// How tokens are chosen. Defaults come from the model's generation_config.json.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SamplingArguments {
    /// How freely tokens are drawn; 0 is greedy (default: the model's own, else 0)
    #[arg(long, visible_alias = "temp", value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,
    /// Keep the K most likely tokens; 0 is off
    #[arg(long, value_name = "K", help_heading = "Sampling")]
    pub(crate) top_k: Option<u32>,
    /// Keep the most likely tokens that together reach this probability
    #[arg(long, value_name = "P", help_heading = "Sampling", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Keep tokens at least this likely relative to the most likely
    #[arg(long, value_name = "P", help_heading = "Sampling", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Divide the logits of tokens already seen
    #[arg(long, value_name = "R", help_heading = "Sampling", allow_negative_numbers = true)]
    pub(crate) repetition_penalty: Option<f32>,
    /// Subtract from the logits of tokens already generated
    #[arg(long, value_name = "A", help_heading = "Sampling", allow_negative_numbers = true)]
    pub(crate) presence_penalty: Option<f32>,
    /// Subtract per occurrence from the logits of tokens already generated
    #[arg(long, value_name = "A", help_heading = "Sampling", allow_negative_numbers = true)]
    pub(crate) frequency_penalty: Option<f32>,
    #[command(flatten)]
    pub(crate) repetition: RepetitionArguments,
    /// Seed of the sampler; the same seed gives the same answer, -1 is another one each time
    #[arg(
        short = 's',
        long,
        value_name = "SEED",
        help_heading = "Sampling",
        value_parser = seed,
        allow_negative_numbers = true
    )]
    pub(crate) seed: Option<u64>,
    /// Add VALUE to the logit of token ID (may be repeated)
    #[arg(long, value_name = "ID=VALUE", value_parser = logit_bias, help_heading = "Sampling")]
    pub(crate) logit_bias: Vec<(u32, f32)>,
}

fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let wrong = || format!("{} is not ID=VALUE", store::shown::quoted(text));
    let (id, value) = text.split_once('=').ok_or_else(wrong)?;
    Ok((id.trim().parse().map_err(|_| wrong())?, value.trim().parse().map_err(|_| wrong())?))
}

/// `--predict`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PredictChoice {
    /// Never
    Off,
    /// Always, as far as guesses are precise
    On,
    /// While it measurably helps
    Auto,
}

/// `--storage`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StorageChoice {
    /// All records loaded at start
    Resident,
    /// Direct reads into a fixed slot pool
    Budget,
    /// Buffered reads into a fixed slot pool: the system's cache keeps more where memory is spare
    Buffered,
    /// Buffered reads, the operating system caches
    PageCache,
    /// Mapped files, which others must leave alone
    Mmap,
}

impl StorageChoice {
    /// Whether experts stay in a fixed pool of slots, whose size is the budget's.
    pub(crate) fn has_slots(self) -> bool {
        matches!(self, Self::Budget | Self::Buffered)
    }
}

/// `--io`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IoChoice {
    /// The best that the system allows
    Auto,
    /// io_uring
    Uring,
    /// Threads with positional reads
    Pread,
    /// GPUDirect Storage: from the drive into GPU memory
    Gds,
}

/// `--policy`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyChoice {
    /// Least recently used
    Lru,
    /// Least frequently used
    Lfu,
    /// Decayed frequency with recency
    Lfru,
}

/// `--load`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoadChoice {
    /// Copied into memory
    Read,
    /// Mapped from the files, which others must leave alone
    Mmap,
}

/// `--kv`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvChoice {
    /// As conversations grow: in steps of 256 tokens, on a GPU of 2 MiB of each layer's keys and values
    Grow,
    /// The whole context before the first token
    Ahead,
}

/// `--kv-type`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvTypeChoice {
    /// As computed
    F32,
    /// Half precision: half the memory
    F16,
    /// The upper half of f32: half the memory, any magnitude, coarser than f16
    Bf16,
    /// Bytes with a scale for 32 values: about a quarter of the memory
    Q8,
    /// As DeepSeek-V4 was trained: 8-bit floats, keys of its indexer in 4 bits; other models cannot
    Fp8,
}

impl KvTypeChoice {
    /// The type, `None` for the one that a model's training decides.
    pub(crate) fn kv_type(self) -> Option<KvType> {
        match self {
            Self::F32 => Some(KvType::F32),
            Self::F16 => Some(KvType::F16),
            Self::Bf16 => Some(KvType::Bf16),
            Self::Q8 => Some(KvType::Q8),
            Self::Fp8 => None,
        }
    }
}

/// `--arithmetic`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ArithmeticChoice {
    /// 16-bit activations, integer products, f32 sums
    Int16,
    /// f32 throughout
    F32,
}

/// `--delta-rule`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeltaChoice {
    /// Token by token
    Step,
    /// In chunks of 64 tokens at fixed positions; agrees to 1e-5
    Chunked,
}

/// `--routing`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoutingChoice {
    /// The model's router
    Model,
    /// The calibrated generator
    Calibrated,
}

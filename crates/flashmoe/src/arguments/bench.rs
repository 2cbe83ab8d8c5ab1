//! Arguments of `flashmoe bench`: the model's (some take lists), and what is measured.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{
    ArithmeticChoice, ByteSize, DeltaChoice, Devices, DraftChoice, DriverArguments, IoChoice,
    KvChoice, KvTypeChoice, LoadChoice, ModelArguments, PolicyChoice, PredictChoice, RoutingChoice,
    SlotCount, Split, StorageChoice, VramCaps, memory_size,
};

/// `flashmoe bench`. Options that take lists are combined: every combination is planned, loaded and
/// measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct BenchArguments {
    /// The model: a folder, a GGUF file, OWNER/NAME on the Hugging Face hub, or a name that `flashmoe list` prints
    pub(crate) model: PathBuf,
    /// Tokens of the prefill tests; 0 for none (list)
    #[arg(short = 'p', long, value_name = "TOKENS", value_delimiter = ',', default_value = "512")]
    pub(crate) prompt: Vec<usize>,
    /// Tokens of the decode tests; 0 for none (list)
    #[arg(short = 'n', long, value_name = "TOKENS", value_delimiter = ',', default_value = "128")]
    pub(crate) generate: Vec<usize>,
    /// Tokens already in the context of each test (list)
    #[arg(short = 'd', long, value_name = "TOKENS", value_delimiter = ',', default_value = "0")]
    pub(crate) depth: Vec<usize>,
    /// Measured repetitions, after one that is reported as cold
    #[arg(short = 'r', long, value_name = "N", default_value_t = 3)]
    pub(crate) repetitions: usize,
    #[command(flatten)]
    pub(crate) form: FormArguments,
    /// All columns of the table; without it those that matter and the settings in which rows differ
    #[arg(long)]
    pub(crate) wide: bool,
    /// Where a token's time went, in columns: mixers, choosing experts, waiting for them, experts, head (processor; a
    /// GPU runs a step as one piece)
    #[arg(long)]
    pub(crate) phases: bool,
    /// Seed of the tokens
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub(crate) seed: u64,
    /// What computes
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub(crate) device: Devices,
    /// Layers of each of several devices
    #[arg(long, value_name = "LAYERS", default_value = "auto")]
    pub(crate) split: Split,
    /// The stages in other processes, as of serve: one combination of settings, since stages end with their first
    /// process. Rows have no bound then: it is one of each machine
    #[arg(long, value_name = "FILE")]
    pub(crate) stages: Option<PathBuf>,
    /// Hard caps on the GPU memory taken (list); with several devices one for each, or one value for all
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = memory_size)]
    pub(crate) vram: Vec<ByteSize>,
    /// Guess on the GPU, one layer early, which experts come next (list)
    #[arg(long, value_name = "WHEN", value_delimiter = ',', default_value = "off")]
    pub(crate) predict: Vec<PredictChoice>,
    #[command(flatten)]
    pub(crate) driver: DriverArguments,
    /// Memory caps (list)
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = memory_size)]
    pub(crate) memory: Vec<ByteSize>,
    /// Where experts come from (list)
    #[arg(long, value_name = "MODE", value_delimiter = ',', default_value = "budget")]
    pub(crate) storage: Vec<StorageChoice>,
    /// How records are read (list)
    #[arg(long, value_name = "ENGINE", value_delimiter = ',', default_value = "auto")]
    pub(crate) io: Vec<IoChoice>,
    /// How the dense trunk gets into memory (list)
    #[arg(long, value_name = "HOW", value_delimiter = ',', default_value = "read")]
    pub(crate) load: Vec<LoadChoice>,
    /// When the key-value cache takes memory (list; default: grow)
    #[arg(long, value_name = "WHEN", value_delimiter = ',')]
    pub(crate) kv: Vec<KvChoice>,
    /// Experts per token (list); fewer than trained is an approximation
    #[arg(short = 'k', long = "top-k-experts", value_name = "K", value_delimiter = ',')]
    pub(crate) experts_per_token: Vec<u16>,
    /// Slots in `budget` mode: a number, or `floor`
    #[arg(long, value_name = "N|floor")]
    pub(crate) slots: Option<SlotCount>,
    /// Which records leave first when slots run out (list)
    #[arg(long, value_name = "POLICY", value_delimiter = ',', default_value = "lfru")]
    pub(crate) policy: Vec<PolicyChoice>,
    /// Reads in flight at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) queue_depth: Option<u16>,
    /// Do not compare the dense weights with their checksums when they are loaded
    #[arg(long)]
    pub(crate) no_check: bool,
    /// Check each record's checksum when it is read
    #[arg(long)]
    pub(crate) check_reads: bool,
    /// Mapped files: advise the kernel which records come and which are done
    #[arg(long)]
    pub(crate) residency_advice: bool,
    /// How keys and values are stored (list; default: f16)
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    pub(crate) kv_type: Vec<KvTypeChoice>,
    /// Tokens of a prompt processed at once
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) prefill_chunk: Option<u32>,
    /// Threads that compute on the processor
    #[arg(short = 't', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Arithmetic of quantised weights on the processor (default: int16)
    #[arg(long, value_name = "KIND")]
    pub(crate) arithmetic: Option<ArithmeticChoice>,
    /// How the delta rule runs over a prompt (default: step; chunked is the processor's)
    #[arg(long, value_name = "FORM")]
    pub(crate) delta_rule: Option<DeltaChoice>,
    /// Where expert choices come from: `calibrated` replaces the router by the generator fitted to real
    /// models, without which a synthetic model's hit rates mean nothing
    #[arg(long, value_name = "SOURCE", default_value = "model")]
    pub(crate) routing: RoutingChoice,
    /// Decode in rounds with a draft for each of these rates, of which so many are right as if a drafter had them: for
    /// the cost of rounds, since nothing repeats in random tokens (processor)
    #[arg(long, value_name = "RATE", value_delimiter = ',', value_parser = rate, num_args = 1..=7)]
    pub(crate) accept: Vec<f64>,
    /// Have the model's own head draft in these rounds, for what that costs: its drafts are right as often as said
    #[arg(long, requires = "accept")]
    pub(crate) head: bool,
}

/// A share of drafts.
fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.0..=1.0).contains(rate));
    rate.ok_or_else(|| "a rate from 0 to 1".to_owned())
}

/// How rows are written.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct FormArguments {
    /// Form of the rows
    #[arg(short = 'o', long, value_name = "FORM", default_value = "md")]
    output: OutputChoice,
    /// Print JSON, a line a row: as -o json
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

impl FormArguments {
    /// The form that was asked for.
    pub(crate) fn choice(self) -> OutputChoice {
        if self.json { OutputChoice::Json } else { self.output }
    }
}

/// `--output`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputChoice {
    /// Markdown table
    Md,
    /// One JSON object per line
    Json,
    /// Comma-separated, with a header
    Csv,
}

impl BenchArguments {
    /// The caps of each combination: of several devices one list.
    fn vram_caps(&self) -> Vec<VramCaps> {
        if self.device.all().len() > 1 && self.vram.len() > 1 {
            return vec![VramCaps::of_stages(self.vram.clone())];
        }
        self.vram.iter().copied().map(VramCaps::each).collect()
    }

    /// Every combination of the lists, each with room for a conversation of `context` tokens.
    pub(crate) fn combinations(&self, context: usize) -> Vec<ModelArguments> {
        let mut all = Vec::new();
        let optional = |len: usize| 0..len.max(1);
        let vrams = self.vram_caps();
        let caps = optional(vrams.len())
            .flat_map(|vram| optional(self.memory.len()).map(move |memory| (vram, memory)));
        let gpus = caps.flat_map(|(vram, memory)| {
            self.predict.iter().map(move |&predict| (vram, memory, predict))
        });
        for (vram, memory, predict) in gpus {
            for &storage in &self.storage {
                for &io in &self.io {
                    for &load in &self.load {
                        let kvs = optional(self.kv.len()).flat_map(|kv| {
                            optional(self.kv_type.len()).map(move |kv_type| (kv, kv_type))
                        });
                        for (kv, kv_type) in kvs {
                            for &policy in &self.policy {
                                for k in optional(self.experts_per_token.len()) {
                                    all.push(ModelArguments {
                                        model: self.model.clone(),
                                        device: self.device.clone(),
                                        split: self.split.clone(),
                                        stages: self.stages.clone(),
                                        part: None,
                                        vram: vrams.get(vram).cloned(),
                                        predict,
                                        driver: self.driver,
                                        memory: self.memory.get(memory).copied(),
                                        storage,
                                        slots: self.slots,
                                        io,
                                        policy,
                                        queue_depth: self.queue_depth,
                                        no_check: self.no_check,
                                        check_reads: self.check_reads,
                                        residency_advice: self.residency_advice,
                                        load,
                                        kv: self.kv.get(kv).copied(),
                                        kv_type: self.kv_type.get(kv_type).copied(),
                                        context: Some(context as u32),
                                        prefill_chunk: self.prefill_chunk,
                                        threads: self.threads,
                                        arithmetic: self.arithmetic,
                                        experts_per_token: self.experts_per_token.get(k).copied(),
                                        delta_rule: self.delta_rule,
                                        routing: self.routing,
                                        draft: match self.accept[..] {
                                            [] => DraftChoice::Off,
                                            _ if self.head => DraftChoice::Head,
                                            _ => DraftChoice::Ngram,
                                        },
                                    });
                                }
                            }
                        }
                    }
                }
            }
        }
        all
    }
}

//! Numbers of the moment: one struct for metrics, health and the page.
//!
//! The scheduler writes a new one between steps; readers take a copy without waiting for the engine. Sums
//! run from the start of the server.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use engine::drafts::DraftCounters;
use engine::model::StageTimes;
use engine::stages::StageWork;
use store::cache::StoreCounters;

use super::Measures;
use super::disk::DiskStatus;

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Waiting.
    Queued,
    /// Its prompt is being processed.
    Prefill,
    /// It is answering.
    Decode,
}

impl Stage {
    /// The stage as a label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// A job that holds a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct RunningJob {
    /// The request's id.
    pub id: String,
    /// The slot that it has.
    pub slot: usize,
    /// Where it is.
    pub stage: Stage,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens of the prompt that are done, cached ones included.
    pub processed: usize,
    /// Tokens of the prompt that were not computed again.
    pub cached: usize,
    /// Tokens generated.
    pub generated: usize,
    /// Remaining prefill.
    pub eta: Option<Duration>,
}

/// The prefix cache.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PrefixStatus {
    /// Snapshots in memory, with the tokens before each.
    pub snapshots: Vec<usize>,
    /// Bytes of snapshots in memory.
    pub snapshot_bytes: u64,
    /// Prompt tokens that were not computed again.
    pub tokens_reused: u64,
    /// Prompt tokens that were computed.
    pub tokens_computed: u64,
    /// Snapshots taken, restored and evicted.
    pub saved: u64,
    /// Snapshots restored.
    pub restored: u64,
    /// Snapshots that were given up for others.
    pub evicted: u64,
    /// Prompts that began from nothing, by reason.
    pub full_prefills: BTreeMap<&'static str, u64>,
    /// The server's own folder.
    pub disk: DiskStatus,
    /// The folder that it shares.
    pub shared: DiskStatus,
}

/// Why requests fail at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    /// The last job failed in the engine; the next that succeeds ends this.
    LastJob,
    /// A file of the model is not what it was when it was opened. Putting it back does not help: what else was
    /// written is unknown, so all that is not in memory stays refused until a restart.
    FileChanged,
    /// The GPU was lost: nothing is computed until a restart.
    DeviceLost,
    /// A stage in another process was lost: nothing is computed any more, and the server ends.
    StageLost,
    /// The engine panicked again and again, or could not recover from a panic: the server ends.
    Broken,
    /// The engine's thread has ended.
    Ended,
}

/// Numbers of the moment.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Why requests fail; `None` while they do not.
    pub failing: Option<Failing>,
    /// Jobs waiting.
    pub queued: usize,
    /// Jobs that hold a sequence.
    pub running: Vec<RunningJob>,
    /// Sequences that can be decoded together.
    pub sequences: usize,
    /// Prompt tokens computed, counted per chunk.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// What became of drafted tokens.
    pub drafts: DraftCounters,
    /// Tokens per second over the last decode steps of all sequences together; 0 when idle.
    pub decode_rate: f64,
    /// Tokens per second of the running or last prefill.
    pub prefill_rate: f64,
    /// Time of all steps of answers, waiting for experts included, drawing not.
    pub decode_time: Duration,
    /// Of that, what each kind of layer took.
    pub decode_stages: StageTimes,
    /// Time of drawing tokens, with the logits that takes.
    pub draw_time: Duration,
    /// Of that, the output head, where logits do not stay on a device.
    pub head_time: Duration,
    /// Jobs finished, by reason (`stop`, `length`, `tool_calls`, `stop_string`, `error`).
    pub finished: BTreeMap<&'static str, u64>,
    /// Jobs cancelled, by stage.
    pub cancelled: BTreeMap<&'static str, u64>,
    /// Deviations in tool calls that were put right, by kind ([`text::Repairs`]).
    pub tool_repairs: BTreeMap<&'static str, u64>,
    /// Panics of the engine; each ended the jobs that were at work.
    pub panics: u64,
    /// Jobs refused because the queue was full.
    pub refused: u64,
    /// Parts of prompts that were processed, each one pass through all layers.
    pub chunks: u64,
    /// Times, speeds and reads of jobs.
    pub measures: Measures,
    /// The prefix cache.
    pub prefix: PrefixStatus,
    /// Everything counted about experts since the model was loaded.
    pub experts: StoreCounters,
    /// The same of each stage, with its layers; one where one device computes all of them.
    pub stages: Vec<(Range<usize>, StoreCounters)>,
    /// What each of several stages has done, and how long it waited for its neighbours.
    pub work: Vec<StageWork>,
    /// Tokens routed to each expert, `[layers][experts]`; empty when the device does not tell.
    pub expert_heat: Vec<Vec<u32>>,
}

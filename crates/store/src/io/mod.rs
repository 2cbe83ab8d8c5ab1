//! Moving bytes: completion-based reads into slot memory, and the engines that perform them.
//!
//! A [`Storage`] takes [`ReadRequest`]s and delivers each of them exactly once to a
//! [`CompletionSink`], from a thread of its own. There is no async runtime: expert records are
//! megabytes, a handful is in flight, and a queue with two priorities is all the scheduling needed.
//! Engines are dumb on purpose: they report what the system said (bytes moved, or an error number).
//! Short reads, interruptions and the judgement of failures are decided in one place, by the sink,
//! which may hand a request back to be continued; so the simulator exercises the same code as the
//! disk does.

mod files;
mod mapped;
mod pread;
mod queue;
mod schedule;
mod sim;
#[cfg(target_os = "linux")]
mod uring;

use std::sync::Arc;

use crate::arena::{SlotArena, Target};
use crate::format::FileId;

pub(crate) use files::open_direct;
pub use files::{DirectIo, FileChange, FileSet};
pub use mapped::MappedFiles;
pub use pread::PreadPool;
pub use queue::RequestQueue;
pub use sim::{
    Fault, FaultPlan, FaultRates, Operation, Simulator, SimulatorCounters, SimulatorView,
};
#[cfg(target_os = "linux")]
pub use uring::Uring;

/// Which engine performs the reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoEngine {
    /// The best that the probe ladder finds: io_uring with registered buffers, io_uring, pread pool.
    #[default]
    Auto,
    /// io_uring; refused where the kernel or the container does not allow it.
    Uring,
    /// A pool of threads doing positional reads.
    Pread,
}

impl IoEngine {
    /// Its name, as options spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Pread => "pread",
        }
    }
}

/// Whether somebody waits for a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A visit needs it now.
    Demand,
    /// It will probably be needed: only when nothing else is to be done.
    Ahead,
}

/// One read on its way. It owns its target: dropping the request gives the memory back.
pub struct ReadRequest {
    /// The file.
    pub file: FileId,
    /// First byte, a multiple of the block size.
    pub offset: u64,
    /// Where the bytes go; a multiple of the block size long.
    pub target: Target,
    /// How many of them the file is known to hold.
    pub present: u32,
    /// What the sink recognises the request by.
    pub tag: u32,
    /// How often it was handed back because of an interruption.
    pub attempts: u16,
    /// Demand or ahead.
    pub priority: Priority,
}

/// What the system said about a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Bytes moved; fewer than asked for is not an error here.
    Read(usize),
    /// The system's error number.
    Failed(i32),
}

/// Receiver of completed reads. Called from I/O threads, without any lock of the engine held.
pub trait CompletionSink: Send + Sync {
    /// Takes a completed request. A request that is returned is performed again, before others.
    fn complete(&self, request: ReadRequest, outcome: Outcome) -> Option<ReadRequest>;
}

/// An engine that performs reads.
pub trait Storage: Send + Sync {
    /// Starts delivering to `sink`; called once, before the first `submit`. `arenas` hold every
    /// target that will ever be submitted.
    fn start(
        &mut self,
        files: Arc<FileSet>,
        arenas: &[Arc<SlotArena>],
        sink: Arc<dyn CompletionSink>,
    ) -> std::io::Result<()>;

    /// Takes all of `requests`, in order of need. Never blocks on I/O and never calls the sink.
    fn submit(&self, requests: &mut Vec<ReadRequest>);

    /// Turns waiting read-ahead of `tag` into demand.
    fn promote(&self, tag: u32);

    /// Hands back what is waiting and `unwanted`, by tag; what the system has begun is completed. Never blocks and
    /// never calls the sink.
    fn withdraw(&self, unwanted: &mut dyn FnMut(u32) -> bool, withdrawn: &mut Vec<ReadRequest>);

    /// What is running, for reports: "pread", "io_uring", "io_uring, registered buffers".
    fn name(&self) -> &'static str;

    /// Drops what is still waiting, waits for what the system has begun, and ends the threads. Called
    /// when the store is closed; no completion is delivered afterwards.
    fn stop(&mut self);
}

/// Starts the engine asked for, or the best there is.
///
/// `Auto` prefers io_uring for direct reads; buffered reads go to the pread pool, because one ring
/// copies from the page cache on one thread where a pool copies on several.
pub fn start_engine(
    engine: IoEngine,
    queue_depth: usize,
    files: &Arc<FileSet>,
    arenas: &[Arc<SlotArena>],
    sink: &Arc<dyn CompletionSink>,
) -> std::io::Result<Box<dyn Storage>> {
    #[cfg(target_os = "linux")]
    if engine == IoEngine::Uring || (engine == IoEngine::Auto && files.direct()) {
        let mut uring = Uring::new(queue_depth);
        match uring.start(Arc::clone(files), arenas, Arc::clone(sink)) {
            Ok(()) => return Ok(Box::new(uring)),
            Err(cause) if engine == IoEngine::Uring => return Err(cause),
            Err(_) => {}
        }
    }
    #[cfg(not(target_os = "linux"))]
    if engine == IoEngine::Uring {
        return Err(std::io::Error::from(std::io::ErrorKind::Unsupported));
    }
    let mut pool = PreadPool::new(queue_depth);
    pool.start(Arc::clone(files), arenas, Arc::clone(sink))?;
    Ok(Box::new(pool))
}

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
pub(crate) mod guard;
pub(crate) mod identity;
mod mapped;
pub mod platform;
mod pread;
mod queue;
mod replace;
mod schedule;
mod sim;
#[cfg(target_os = "linux")]
mod uring;

use std::sync::Arc;

use crate::arena::{SlotArena, Target};
use crate::format::FileId;
use crate::record::block_bytes;

pub(crate) use files::open_direct;
pub use files::{DirectIo, FileSet};
pub use identity::FileChange;
pub use mapped::MappedFiles;
pub use platform::open_uncached;
pub use pread::PreadPool;
pub use queue::RequestQueue;
pub use replace::{Readers, replace};
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

impl ReadRequest {
    /// Cuts the request into at most `pieces` of about equal size, none but the last below `least` bytes (both
    /// that and the cuts are multiples of the block size). Gives those behind the first.
    pub(crate) fn split(
        &mut self,
        pieces: usize,
        least: usize,
    ) -> impl Iterator<Item = Self> + use<> {
        let length = self.target.len();
        let each =
            length.div_ceil(pieces.max(1)).next_multiple_of(block_bytes() as usize).max(least);
        let mut rest = (each < length).then(|| self.cut(each));
        std::iter::from_fn(move || {
            let mut piece = rest.take()?;
            rest = (each < piece.target.len()).then(|| piece.cut(each));
            Some(piece)
        })
    }

    /// Keeps the first `bytes`. Only the last block of a request can lie beyond the end of its file, so both
    /// parts have bytes to read.
    fn cut(&mut self, bytes: usize) -> Self {
        let present = self.present;
        self.present = present.min(bytes as u32);
        Self {
            file: self.file,
            offset: self.offset + bytes as u64,
            target: self.target.split_off(bytes),
            present: present - self.present,
            tag: self.tag,
            attempts: self.attempts,
            priority: self.priority,
        }
    }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arena::HugePages;
    use crate::record::BLOCK_BYTES;

    proptest! {
        /// The pieces follow each other without a gap, in the file and in memory, and hold what the whole held.
        #[test]
        fn pieces_join_to_the_whole(
            blocks in 1usize..600, missing in 0u32..4096, pieces in 1usize..9, least in 1usize..70,
        ) {
            let (length, block) = (blocks * 4096, BLOCK_BYTES as usize);
            let arena = SlotArena::new(1, length, HugePages::Never).unwrap();
            let mut whole = ReadRequest {
                file: FileId(3),
                offset: 8192,
                target: arena.writer(0).unwrap().take(length),
                present: length as u32 - missing,
                tag: 7,
                attempts: 0,
                priority: Priority::Demand,
            };
            let start = whole.target.pointer() as usize;
            let rest: Vec<_> = whole.split(pieces, least * block).collect();
            prop_assert!(rest.len() < pieces);
            let (mut offset, mut address, mut present) = (8192, start, 0);
            for piece in std::iter::once(&whole).chain(&rest) {
                prop_assert_eq!((piece.offset, piece.target.pointer() as usize), (offset, address));
                prop_assert!(piece.present > 0 && piece.present as usize <= piece.target.len());
                prop_assert_eq!(piece.target.len() % block, 0);
                prop_assert_eq!((piece.file, piece.tag), (FileId(3), 7));
                offset += piece.target.len() as u64;
                address += piece.target.len();
                present += piece.present;
            }
            prop_assert_eq!((address - start, present), (length, length as u32 - missing));
            let shorter = rest.split_last().map_or(&rest[..], |(_, others)| others);
            prop_assert!(shorter.iter().all(|piece| piece.target.len() >= least * block));
        }
    }
}

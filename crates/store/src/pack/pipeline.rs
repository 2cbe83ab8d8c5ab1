//! The packer's pipeline: reading, summing, writing and syncing, over all files of a run.
//!
//! Each stage has a thread and hands on through a short channel, so that none waits for another at the end of a
//! file: while one is synced the next is read and written (waiting there cost a tenth of the disk's rate).
//! Files are finished in order, and the journal names each after its sync. An error ends the stages
//! before it by their closed channels; what was handed to the stages behind it is still finished.

use std::hash::Hasher;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use kernels::quantize::{self, Method};
use twox_hash::XxHash3_64;

use super::direct::{Aligned, SourceFile};
use super::fill::Filler;
use super::journal::{Finished, Journal};
use super::plan::{Chunk, OutputFile};
use super::{PackError, PackFile, PackFs, PackProgress, Progress, write_all};
use crate::format::Checkpoint;

/// Chunks in flight between two stages.
const CHUNKS_AHEAD: usize = 2;
/// Buffers: both channels full, and one in the hands of each stage.
const BUFFERS: usize = 2 * CHUNKS_AHEAD + 3;

/// What a run reads and where it writes.
pub(super) struct Work<'a> {
    pub(super) fs: &'a dyn PackFs,
    pub(super) source: &'a Checkpoint,
    pub(super) opened: &'a [SourceFile],
    /// The unfinished folder.
    pub(super) folder: &'a Path,
    pub(super) method: Method,
    pub(super) files: &'a [OutputFile],
}

/// From the reader: a chunk, or the end of a file with the errors of what was encoded in it.
enum Filled {
    Chunk(Aligned, Chunk),
    End(Vec<quantize::Error>),
}

/// To the writer.
enum Summed {
    Chunk(Aligned, usize),
    End(Finished),
}

/// From writer and syncer: bytes that were written, a file that is whole and in the journal.
enum Outcome {
    Written(u64),
    Finished(Finished),
}

/// Writes every file of `work`; their checksums and errors are returned, in order.
pub(super) fn write_files(
    work: &Work<'_>,
    journal: &mut Journal,
    journal_path: &Path,
    state: &mut PackProgress,
    progress: &mut Progress<'_>,
) -> Result<Vec<Finished>, PackError> {
    std::thread::scope(|scope| {
        let (empty_sender, empty) = sync_channel(BUFFERS);
        let (filled_sender, filled) = sync_channel(CHUNKS_AHEAD);
        let (summed_sender, summed) = sync_channel(CHUNKS_AHEAD);
        let (whole_sender, whole) = sync_channel(1);
        let (outcome_sender, outcomes) = channel();
        scope.spawn(move || read(work, &empty, &filled_sender));
        let written = outcome_sender.clone();
        scope.spawn(move || write(work, &summed, &empty_sender, &whole_sender, &written));
        scope.spawn(move || {
            for file in whole {
                let outcome = sync(work, file, journal, journal_path);
                let failed = outcome.is_err();
                if outcome_sender.send(outcome).is_err() || failed {
                    return;
                }
            }
        });
        let mut done = Vec::new();
        let mut note = |outcome: Result<Outcome, PackError>| {
            match outcome? {
                Outcome::Finished(finished) => done.push(finished),
                Outcome::Written(bytes) => {
                    state.done_bytes += bytes;
                    if progress(*state).is_break() {
                        return Err(PackError::Stopped);
                    }
                }
            }
            Ok(())
        };
        let (mut sums, mut hasher) = (Vec::new(), XxHash3_64::new());
        // The reader's channel closes after the last file, or after its error.
        for piece in filled {
            let piece = match piece? {
                Filled::Chunk(held, chunk) => {
                    sum(&held, &chunk, &mut hasher, &mut sums);
                    Summed::Chunk(held, chunk.bytes as usize)
                }
                Filled::End(errors) => {
                    Summed::End(Finished { sums: std::mem::take(&mut sums), errors })
                }
            };
            outcomes.try_iter().try_for_each(&mut note)?;
            // A writer that has failed takes no more; its error is received below.
            if summed_sender.send(piece).is_err() {
                break;
            }
        }
        drop(summed_sender);
        outcomes.iter().try_for_each(&mut note)?;
        if done.len() == work.files.len() { Ok(done) } else { Err(PackError::Stopped) }
    })
}

/// Fills chunk after chunk of file after file.
fn read(
    work: &Work<'_>,
    empty: &Receiver<Aligned>,
    filled: &SyncSender<Result<Filled, PackError>>,
) {
    let mut filler = Filler::new(work.source, work.opened, work.method);
    for file in work.files {
        filler.begin(file);
        for chunk in file.chunks(work.source) {
            let mut buffer = empty.try_recv().unwrap_or_default();
            // Padding must be zero, whatever the buffer held before; most chunks have none.
            let length = chunk.bytes as usize;
            let copied = chunk.copies.iter().map(|copied| copied.from.length).sum::<u64>();
            let padded = copied != chunk.bytes;
            let room = if padded { buffer.reset(length) } else { buffer.room(length) };
            let result = filler.fill(&chunk, room);
            let failed = result.is_err();
            let piece = result.map(|()| Filled::Chunk(buffer, chunk));
            if filled.send(piece).is_err() || failed {
                return;
            }
        }
        if filled.send(Ok(Filled::End(filler.end()))).is_err() {
            return;
        }
    }
}

/// Adds a chunk to the sums of its file.
fn sum(held: &Aligned, chunk: &Chunk, hasher: &mut XxHash3_64, sums: &mut Vec<u64>) {
    let mut rest = held.bytes(chunk.bytes as usize);
    for &(bytes, ends) in &chunk.sums {
        let (covered, after) = rest.split_at(bytes as usize);
        hasher.write(covered);
        rest = after;
        if ends {
            sums.push(hasher.finish());
            *hasher = XxHash3_64::new();
        }
    }
}

/// A file with all of its bytes, to be synced.
type Whole<'a> = (&'a OutputFile, Box<dyn PackFile>, Finished);

/// Writes chunk after chunk, opening file after file.
fn write<'a>(
    work: &Work<'a>,
    summed: &Receiver<Summed>,
    empty: &SyncSender<Aligned>,
    whole: &SyncSender<Whole<'a>>,
    outcomes: &Sender<Result<Outcome, PackError>>,
) {
    for file in work.files {
        let path = work.folder.join(&file.name);
        let failed = |error: io::Error| PackError::io(&path, "write", error);
        let mut output = match work.fs.create(&path).map_err(failed) {
            Ok(output) => output,
            Err(error) => return drop(outcomes.send(Err(error))),
        };
        loop {
            match summed.recv() {
                Ok(Summed::Chunk(held, length)) => {
                    let result = write_all(output.as_mut(), held.bytes(length)).map_err(failed);
                    // The reader may have finished and need no more buffers.
                    let _ = empty.try_send(held);
                    let ended = result.is_err();
                    let outcome = result.map(|()| Outcome::Written(length as u64));
                    if outcomes.send(outcome).is_err() || ended {
                        return;
                    }
                }
                Ok(Summed::End(finished)) => {
                    if whole.send((file, output, finished)).is_err() {
                        return;
                    }
                    break;
                }
                // The run was stopped, or an earlier stage has failed.
                Err(_) => return,
            }
        }
    }
}

/// Makes a file survive a power loss, then names it in the journal.
fn sync(
    work: &Work<'_>,
    (file, mut output, finished): Whole<'_>,
    journal: &mut Journal,
    journal_path: &Path,
) -> Result<Outcome, PackError> {
    let path = work.folder.join(&file.name);
    output.sync().map_err(|error| PackError::io(&path, "write", error))?;
    journal.finished(journal_path, &finished)?;
    Ok(Outcome::Finished(finished))
}

//! The io_uring engine: one thread owns a ring and keeps it filled to the queue depth.
//!
//! It moves as much as the pread pool and takes half the processor time, a third with registered
//! buffers (docs/experiments.tsv). The ring is created by the thread that uses it, which lets the kernel
//! skip locking and run completions when asked (single issuer, deferred task work); kernels that do
//! not know these flags get a plain ring. Slot memory is registered when `RLIMIT_MEMLOCK` allows.
//!
//! Sleeping is one `io_uring_enter` that also waits on a pipe: a submitter writes a byte only when the
//! thread announced that it is about to sleep. While a read is in the kernel its request, and with it
//! the lease on the memory, is kept in `flying`; if that could not be kept, the process would end.

use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use io_uring::{IoUring, opcode, squeue, types};

use super::schedule::ask_for_short_slices;
use super::{CompletionSink, FileSet, Outcome, ReadRequest, RequestQueue, Storage};
use crate::arena::SlotArena;

/// Marks the completion of the read on the wake-up pipe.
const WAKE: u64 = u64::MAX;
/// Marks the completion of the cancellation of that read.
const CANCEL: u64 = u64::MAX - 1;
/// The kernel registers buffers of at most this size.
const REGISTERED_BYTES_MAX: usize = 1 << 30;
/// Times that the kernel may refuse to enter the ring in a row before reads are failed.
const REFUSALS_MAX: u32 = 1000;

/// Reads through io_uring.
pub struct Uring {
    queue_depth: usize,
    name: &'static str,
    shared: Arc<Doorbell>,
    bell: Option<io::PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

/// Waiting requests, and whether somebody must be woken for them.
struct Doorbell {
    queue: RequestQueue,
    sleeping: AtomicBool,
}

/// A buffer known to the kernel.
struct Registered {
    start: usize,
    end: usize,
}

impl Uring {
    /// An engine that will keep up to `queue_depth` reads in flight.
    pub fn new(queue_depth: usize) -> Self {
        Self {
            queue_depth: queue_depth.max(1),
            name: "io_uring",
            shared: Arc::new(Doorbell {
                queue: RequestQueue::default(),
                sleeping: AtomicBool::new(false),
            }),
            bell: None,
            thread: None,
        }
    }

    fn ring_bell(&self) {
        if self.shared.sleeping.swap(false, Ordering::SeqCst)
            && let Some(mut bell) = self.bell.as_ref()
        {
            // One byte per announced sleep: the pipe is never full, and its reader lives as long
            // as the thread, whose end needs no waking.
            let _ = bell.write_all(&[1]);
        }
    }
}

impl Storage for Uring {
    fn start(
        &mut self,
        files: Arc<FileSet>,
        arenas: &[Arc<SlotArena>],
        sink: Arc<dyn CompletionSink>,
    ) -> io::Result<()> {
        let (reader, writer) = io::pipe()?;
        let (tell, told) = mpsc::channel();
        let (shared, depth) = (Arc::clone(&self.shared), self.queue_depth);
        let arenas = arenas.to_vec();
        let builder = std::thread::Builder::new().name("store-uring".into());
        self.thread = Some(builder.spawn(move || {
            ask_for_short_slices();
            let ring = match open_ring(depth) {
                Ok(ring) => ring,
                Err(cause) => {
                    let _ = tell.send(Err(cause));
                    return;
                }
            };
            let registered = register(&ring, &arenas);
            let name =
                if registered.is_empty() { "io_uring" } else { "io_uring, registered buffers" };
            if tell.send(Ok(name)).is_err() {
                return;
            }
            let flying = Flying((0..depth).map(|_| None).collect());
            let mut worker = Worker {
                ring,
                shared,
                files,
                sink,
                reader,
                rung: Box::new([0; 8]),
                listening: false,
                registered,
                flying,
                count: 0,
            };
            worker.run();
        })?);
        self.bell = Some(writer);
        let lost = |_| io::Error::other("the ring's thread ended");
        self.name = told.recv().map_err(lost)??;
        Ok(())
    }

    fn submit(&self, requests: &mut Vec<ReadRequest>) {
        self.shared.queue.push(requests);
        self.ring_bell();
    }

    fn promote(&self, tag: u32) {
        self.shared.queue.promote(tag);
    }

    fn withdraw(&self, unwanted: &mut dyn FnMut(u32) -> bool, withdrawn: &mut Vec<ReadRequest>) {
        self.shared.queue.withdraw(unwanted, withdrawn);
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn stop(&mut self) {
        self.shared.queue.stop();
        self.ring_bell();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has already reported itself.
            let _ = thread.join();
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.stop();
    }
}

fn open_ring(depth: usize) -> io::Result<IoUring> {
    // One more for the pipe.
    let entries = (depth as u32 + 1).next_power_of_two();
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun();
    let ring = builder.build(entries).or_else(|_| IoUring::new(entries))?;
    let mut probe = io_uring::Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    if !probe.is_supported(opcode::Read::CODE) {
        return Err(io::Error::from(io::ErrorKind::Unsupported));
    }
    Ok(ring)
}

/// Registers slot memory in pieces that the kernel accepts; empty when it does not.
fn register(ring: &IoUring, arenas: &[Arc<SlotArena>]) -> Vec<Registered> {
    let mut pieces = Vec::new();
    for arena in arenas {
        let (base, bytes) = arena.span();
        // Whole slots, so that no read straddles two registrations.
        let step = (REGISTERED_BYTES_MAX / arena.slot_bytes()).max(1) * arena.slot_bytes();
        for start in (0..bytes).step_by(step) {
            let start_address = base as usize + start;
            let end = start_address + step.min(bytes - start);
            pieces.push(Registered { start: start_address, end });
        }
    }
    let vectors: Vec<libc::iovec> = pieces
        .iter()
        .map(|piece| libc::iovec {
            iov_base: piece.start as *mut libc::c_void,
            iov_len: piece.end - piece.start,
        })
        .collect();
    // SAFETY: the vectors name mappings that the arenas own; the worker holds the files' and arenas'
    // users alive until it has ended, and the ring, which it owns, is closed before that.
    match unsafe { ring.submitter().register_buffers(&vectors) } {
        Ok(()) => pieces,
        Err(_) => Vec::new(),
    }
}

/// Requests that the kernel is working on.
struct Flying(Vec<Option<ReadRequest>>);

impl Drop for Flying {
    fn drop(&mut self) {
        if self.0.iter().any(Option::is_some) {
            // Only a panic on this thread comes here. The kernel may still write into the slots:
            // giving the leases up would let their memory be reused under it.
            std::process::abort();
        }
    }
}

struct Worker {
    ring: IoUring,
    shared: Arc<Doorbell>,
    files: Arc<FileSet>,
    sink: Arc<dyn CompletionSink>,
    reader: io::PipeReader,
    /// What the read on the pipe writes to. On the heap and of this value, which ends that read before it goes.
    rung: Box<[u8; 8]>,
    /// A read on the pipe is in the kernel.
    listening: bool,
    registered: Vec<Registered>,
    flying: Flying,
    count: usize,
}

impl Worker {
    fn run(&mut self) {
        let mut refusals = 0;
        loop {
            self.fill();
            if self.count == 0 && self.shared.queue.stopped() {
                break;
            }
            if self.count < self.flying.0.len() {
                if !self.listening {
                    let pipe = types::Fd(self.reader.as_raw_fd());
                    let (to, length) = (self.rung.as_mut_ptr(), self.rung.len() as u32);
                    self.push(&opcode::Read::new(pipe, to, length).build().user_data(WAKE));
                    self.listening = true;
                }
                self.shared.sleeping.store(true, Ordering::SeqCst);
                // What came between the look and the announcement has rung no bell.
                self.fill();
                if self.count == 0 && self.shared.queue.stopped() {
                    break;
                }
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => refusals = 0,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if refusals < REFUSALS_MAX => {
                    // Out of memory for the moment: completions may still be there.
                    refusals += 1;
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                // The kernel no longer serves a ring that it has created: nothing is left to try,
                // and reads in flight must not lose their memory.
                Err(_) => std::process::abort(),
            }
            self.collect();
        }
    }

    /// Starts waiting requests up to the queue depth.
    fn fill(&mut self) {
        while self.count < self.flying.0.len() {
            let Some(request) = self.shared.queue.try_pop() else { return };
            let Some(place) = self.flying.0.iter().position(Option::is_none) else { return };
            let entry = self.entry(&request).user_data(place as u64);
            self.flying.0[place] = Some(request);
            self.count += 1;
            self.push(&entry);
            // One by one: of more than two entries that it gets together, the kernel joins neighbours, and the pieces
            // of a record would be one read again. What it refuses stays in the ring for the next call.
            let _ = self.ring.submit();
        }
    }

    fn entry(&self, request: &ReadRequest) -> squeue::Entry {
        let file = types::Fd(self.files.handle(request.file).as_raw_fd());
        let (start, length) = (request.target.pointer(), request.target.len());
        let address = start as usize;
        let inside = |piece: &Registered| piece.start <= address && address + length <= piece.end;
        match self.registered.iter().position(inside) {
            Some(index) => opcode::ReadFixed::new(file, start, length as u32, index as u16)
                .offset(request.offset)
                .build(),
            None => opcode::Read::new(file, start, length as u32).offset(request.offset).build(),
        }
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the buffers named by the entry live until its completion: slot memory because the
        // request with its lease is in `flying`, the pipe's because `drop` ends that read before its buffer goes.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.expect("the ring has room for the queue depth and the pipe");
    }

    /// Delivers completions.
    fn collect(&mut self) {
        while let Some(completion) = self.ring.completion().next() {
            if completion.user_data() == WAKE {
                self.listening = false;
                continue;
            }
            let place = completion.user_data() as usize;
            let Some(request) = self.flying.0.get_mut(place).and_then(Option::take) else {
                continue;
            };
            self.count -= 1;
            let outcome = match usize::try_from(completion.result()) {
                Ok(bytes) => {
                    self.files.after_read(request.file, request.offset, bytes as u64);
                    Outcome::Read(bytes)
                }
                Err(_) => Outcome::Failed(-completion.result()),
            };
            if let Some(again) = self.sink.complete(request, outcome) {
                self.shared.queue.push_front(again);
            }
        }
    }
}

impl Drop for Worker {
    /// Ends the read on the pipe, however the thread ends. The sink is not called: it may be what has panicked.
    fn drop(&mut self) {
        if !self.listening {
            return;
        }
        self.push(&opcode::AsyncCancel::new(WAKE).build().user_data(CANCEL));
        let mut refusals = 0;
        while self.listening {
            // The cancellation itself cannot fail to end the read; interruptions are repeated.
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => refusals += 1,
                _ => refusals = 0,
            }
            if refusals > REFUSALS_MAX {
                std::process::abort();
            }
            while let Some(completion) = self.ring.completion().next() {
                match completion.user_data() {
                    WAKE => self.listening = false,
                    CANCEL => {}
                    // A read that has ended: the kernel writes to its slot no more.
                    place => drop(self.flying.0.get_mut(place as usize).and_then(Option::take)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::super::{DirectIo, FileId, Priority};
    use super::*;
    use crate::arena::{HugePages, PAGE_BYTES};
    use crate::format::CheckpointFile;

    /// Panics when it is given a read.
    struct Panicking;

    impl CompletionSink for Panicking {
        fn complete(&self, _: ReadRequest, _: Outcome) -> Option<ReadRequest> {
            panic!("injected");
        }
    }

    /// A read on the pipe holds the pipe's reading end open; without it a byte is refused, because it has no reader.
    #[test]
    fn a_panic_of_the_sink_leaves_no_read_in_the_kernel() {
        let Ok(ring) = open_ring(4) else { return }; // no io_uring here
        // The ring outlives the worker: its end would end the read as well, some time later.
        // SAFETY: the ring is open.
        let kept =
            unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) }.try_clone_to_owned().unwrap();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[7; PAGE_BYTES]).unwrap();
        let path = file.path().to_owned();
        let length = PAGE_BYTES as u64;
        let known =
            [CheckpointFile { path, length, modified_ns: 0, changed_ns: 0, header_checksum: 0 }];
        let files = FileSet::open(&known, &[true], DirectIo::Never, false);
        let files = files.unwrap_or_else(|(_, error)| panic!("{error}"));
        let arena = SlotArena::new(1, PAGE_BYTES, HugePages::Never).unwrap();
        let (reader, mut bell) = io::pipe().unwrap();
        let queue = RequestQueue::default();
        queue.push(&mut vec![ReadRequest {
            file: FileId(0),
            offset: 0,
            target: arena.writer(0).unwrap().take(PAGE_BYTES),
            present: PAGE_BYTES as u32,
            tag: 0,
            attempts: 0,
            priority: Priority::Demand,
        }]);
        let mut worker = Worker {
            ring,
            shared: Arc::new(Doorbell { queue, sleeping: AtomicBool::new(false) }),
            files: Arc::new(files),
            sink: Arc::new(Panicking),
            reader,
            rung: Box::new([0; 8]),
            listening: false,
            registered: Vec::new(),
            flying: Flying((0..4).map(|_| None).collect()),
            count: 0,
        };
        let ended = catch_unwind(AssertUnwindSafe(move || worker.run()));
        assert!(ended.is_err(), "the panic goes on");
        let byte = bell.write(&[1]);
        assert_eq!(byte.map_err(|error| error.kind()), Err(io::ErrorKind::BrokenPipe));
        assert!(arena.writer(0).is_some(), "the slot is free");
        drop(kept);
    }
}

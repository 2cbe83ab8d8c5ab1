//! A storage engine that fails on purpose: the faults of a disk, repeatable from a seed.
//!
//! It reads the real files and then does to every read what a [`FaultPlan`] says: report an error, move
//! fewer bytes or none, flip a bit, come late. Completions arrive out of order: several reads are held
//! at a time and a seeded choice decides which ends next. Whether a read is hit depends on the seed and on
//! *what* is read for the how-many-th time, not on when: the same seed finds the same faults however the
//! threads of a test are scheduled. Everything is counted ([`SimulatorCounters`]), so that a test can hold
//! the store's counters against what was really asked of the disk.
//!
//! It is a [`Storage`] like the real engines and is given to a store by
//! [`StoreOptions::storage`](crate::cache::StoreOptions::storage); what becomes of short reads and failures
//! is decided by the same sink as with a real disk.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::platform::{PASSING_ERRORS, READ_ERROR};
use super::{CompletionSink, FileSet, Outcome, ReadRequest, RequestQueue, Storage};
use crate::arena::SlotArena;
use crate::format::FileId;

/// Reads held at a time, among which chance decides.
const HELD: usize = 6;

/// One read as a fault plan sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Reads performed before this one.
    pub number: u64,
    /// The file.
    pub file: FileId,
    /// First byte.
    pub offset: u64,
    /// Bytes asked for.
    pub length: u64,
    /// How often exactly this place was read before.
    pub repetition: u64,
}

/// What happens to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: the bytes of the file arrive.
    None,
    /// The bytes arrive after a while.
    Late(Duration),
    /// The system reports this error number.
    Error(i32),
    /// At most this many bytes arrive; zero is what a file that ends here would give.
    Short(usize),
    /// All bytes arrive, one bit of them flipped: the bit's index, modulo the bits read.
    Flipped(u64),
}

/// Decides about every read, on the simulator's thread.
pub type FaultPlan = Box<dyn FnMut(&Operation) -> Fault + Send + Sync>;

/// How many reads of a thousand meet which fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// Come late, by up to [`FaultRates::latest`].
    pub late: u32,
    /// The longest delay.
    pub latest: Duration,
    /// End in an input/output error (EIO).
    pub error: u32,
    /// Are interrupted (EINTR, EAGAIN), and may be tried again.
    pub interrupted: u32,
    /// Move fewer bytes than asked for, at least one.
    pub short: u32,
    /// Move none.
    pub empty: u32,
    /// Deliver a flipped bit.
    pub flipped: u32,
}

impl FaultRates {
    /// The plan that hits reads at these rates, chosen by `seed`.
    pub fn plan(self, seed: u64) -> FaultPlan {
        Box::new(move |operation| self.fault(seed, operation))
    }

    fn fault(&self, seed: u64, operation: &Operation) -> Fault {
        let place = [u64::from(operation.file.0), operation.offset, operation.repetition];
        let mut random = Random(place.iter().fold(seed, |state, &word| mix(state ^ word)));
        let ticket = random.below(1000) as u32;
        let mut edge = 0;
        let mut hit = |rate: u32| {
            edge += rate;
            ticket < edge
        };
        if hit(self.late) {
            let most = self.latest.as_micros() as u64;
            Fault::Late(Duration::from_micros(random.below(most + 1)))
        } else if hit(self.error) {
            Fault::Error(READ_ERROR)
        } else if hit(self.interrupted) {
            Fault::Error(PASSING_ERRORS[random.below(2) as usize])
        } else if hit(self.short) {
            Fault::Short(1 + random.below(operation.length) as usize)
        } else if hit(self.empty) {
            Fault::Short(0)
        } else if hit(self.flipped) {
            Fault::Flipped(random.next())
        } else {
            Fault::None
        }
    }
}

/// What the simulator has done, by kind; the last three count reads that were tampered with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimulatorCounters {
    /// Reads performed.
    pub operations: u64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Errors reported.
    pub errors: u64,
    /// Reads cut short.
    pub short: u64,
    /// Bits flipped.
    pub flipped: u64,
}

#[derive(Default)]
struct Counts {
    operations: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    short: AtomicU64,
    flipped: AtomicU64,
}

/// A view of a simulator's counters that outlives the simulator's move into a store.
#[derive(Clone)]
pub struct SimulatorView(Arc<Counts>);

impl SimulatorView {
    /// Everything counted until now.
    pub fn counters(&self) -> SimulatorCounters {
        let read = |count: &AtomicU64| count.load(Ordering::SeqCst);
        SimulatorCounters {
            operations: read(&self.0.operations),
            bytes: read(&self.0.bytes),
            errors: read(&self.0.errors),
            short: read(&self.0.short),
            flipped: read(&self.0.flipped),
        }
    }
}

/// The simulated engine.
pub struct Simulator {
    queue: Arc<RequestQueue>,
    plan: Option<FaultPlan>,
    seed: u64,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

impl Simulator {
    /// An engine whose reads meet the faults of `plan` and end in an order that `seed` chooses.
    pub fn new(plan: FaultPlan, seed: u64) -> Self {
        Self {
            queue: Arc::new(RequestQueue::default()),
            plan: Some(plan),
            seed,
            counts: Arc::new(Counts::default()),
            thread: None,
        }
    }

    /// Its counters.
    pub fn view(&self) -> SimulatorView {
        SimulatorView(Arc::clone(&self.counts))
    }
}

impl Storage for Simulator {
    fn start(
        &mut self,
        files: Arc<FileSet>,
        _arenas: &[Arc<SlotArena>],
        sink: Arc<dyn CompletionSink>,
    ) -> io::Result<()> {
        let plan = self.plan.take().ok_or_else(|| io::Error::other("started twice"))?;
        let mut worker = Worker {
            queue: Arc::clone(&self.queue),
            files,
            sink,
            plan,
            random: Random(self.seed),
            counts: Arc::clone(&self.counts),
            seen: HashMap::new(),
        };
        let builder = std::thread::Builder::new().name("store-simulator".into());
        self.thread = Some(builder.spawn(move || worker.run())?);
        Ok(())
    }

    fn submit(&self, requests: &mut Vec<ReadRequest>) {
        self.queue.push(requests);
    }

    fn promote(&self, tag: u32) {
        self.queue.promote(tag);
    }

    fn withdraw(&self, unwanted: &mut dyn FnMut(u32) -> bool, withdrawn: &mut Vec<ReadRequest>) {
        self.queue.withdraw(unwanted, withdrawn);
    }

    fn name(&self) -> &'static str {
        "simulator"
    }

    fn stop(&mut self) {
        self.queue.stop();
        if let Some(thread) = self.thread.take() {
            // A simulator that panicked has already reported itself; there is nothing to save.
            let _ = thread.join();
        }
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Worker {
    queue: Arc<RequestQueue>,
    files: Arc<FileSet>,
    sink: Arc<dyn CompletionSink>,
    plan: FaultPlan,
    random: Random,
    counts: Arc<Counts>,
    /// How often each place was read.
    seen: HashMap<(FileId, u64), u64>,
}

impl Worker {
    fn run(&mut self) {
        let mut held = Vec::with_capacity(HELD);
        loop {
            if held.is_empty() {
                let Some(request) = self.queue.pop() else { return };
                held.push(request);
            }
            while held.len() < HELD
                && let Some(request) = self.queue.try_pop()
            {
                held.push(request);
            }
            if self.queue.stopped() {
                return;
            }
            let next = self.random.below(held.len() as u64) as usize;
            let mut request = held.swap_remove(next);
            let outcome = self.perform(&mut request);
            if let Some(again) = self.sink.complete(request, outcome) {
                held.push(again);
            }
        }
    }

    fn perform(&mut self, request: &mut ReadRequest) -> Outcome {
        let repetition = self.seen.entry((request.file, request.offset)).or_insert(0);
        let operation = Operation {
            number: self.counts.operations.fetch_add(1, Ordering::SeqCst),
            file: request.file,
            offset: request.offset,
            length: request.target.len() as u64,
            repetition: *repetition,
        };
        *repetition += 1;
        let fault = (self.plan)(&operation);
        match fault {
            Fault::Error(number) => {
                self.counts.errors.fetch_add(1, Ordering::SeqCst);
                return Outcome::Failed(number);
            }
            Fault::Late(delay) => std::thread::sleep(delay),
            Fault::None | Fault::Short(_) | Fault::Flipped(_) => {}
        }
        let mut outcome = self.files.read(request.file, request.offset, &mut request.target);
        if let Outcome::Read(bytes) = &mut outcome {
            match fault {
                Fault::Short(most) if most < *bytes => {
                    // What lies beyond never arrived: it must not be found there by luck.
                    request.target.as_mut_slice()[most..].fill(!0);
                    *bytes = most;
                    self.counts.short.fetch_add(1, Ordering::SeqCst);
                }
                Fault::Flipped(bit) if *bytes > 0 => {
                    let bit = (bit % (*bytes as u64 * 8)) as usize;
                    request.target.as_mut_slice()[bit / 8] ^= 1 << (bit % 8);
                    self.counts.flipped.fetch_add(1, Ordering::SeqCst);
                }
                _ => {}
            }
            self.files.after_read(request.file, request.offset, *bytes as u64);
            self.counts.bytes.fetch_add(*bytes as u64, Ordering::SeqCst);
        }
        outcome
    }
}

/// SplitMix64: a word of state, any seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

//! Copies, the hand-over of recorded work, what is asked of a GPU and arrives later, and work that can be handed over a
//! second time.
//!
//! An [`Ask`] is a copy of bytes behind the work recorded so far; the host goes on recording and looks later. A *tape*
//! remembers dispatches and copies, so that those that a raised flag has emptied ([`Gpu::control`]) can be repeated,
//! and that what could only be emptied can be recorded on the tape alone.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use crate::ahead::Entry;
use crate::{Buffer, Gpu, GpuError};

/// Landing buffers that are kept for the next question.
const KEPT_LANDINGS: usize = 24;

/// Bytes of those that several questions at a time may have.
const SMALL_LANDING: u64 = 64 << 10;

const PENDING: u8 = 0;
const ARRIVED: u8 = 1;
const FAILED: u8 = 2;

/// Bytes that are on their way to the host.
#[derive(Debug)]
pub struct Ask {
    landing: wgpu::Buffer,
    bytes: u64,
    state: Arc<AtomicU8>,
    submission: Submission,
    /// Bytes that the host had written before.
    written: u64,
}

impl Ask {
    /// What the driver's event has when the bytes have arrived.
    pub(crate) fn signal(&self) -> u64 {
        self.submission.signal
    }
}

/// Work that was handed over.
#[derive(Clone, Debug)]
pub(crate) struct Submission {
    index: wgpu::SubmissionIndex,
    /// What the driver's event has behind it.
    signal: u64,
}

/// Dispatches and copies in the order in which they were recorded.
#[derive(Default)]
pub(crate) struct Tape {
    on: bool,
    /// What is recorded goes to the tape and nowhere else.
    alone: bool,
    steps: Vec<Step>,
    /// Parameters of all steps.
    parameters: Vec<u8>,
}

enum Step {
    Dispatch {
        pipeline: wgpu::ComputePipeline,
        group: wgpu::BindGroup,
        parameters: Range<usize>,
        groups: [u32; 3],
    },
    Copy {
        from: Buffer,
        start: u64,
        to: Buffer,
        at: u64,
        bytes: u64,
    },
}

impl Tape {
    pub(crate) fn record(
        &mut self,
        pipeline: &wgpu::ComputePipeline,
        group: &wgpu::BindGroup,
        parameters: &[u8],
        groups: [u32; 3],
    ) {
        if self.on {
            let start = self.parameters.len();
            self.parameters.extend_from_slice(parameters);
            let parameters = start..self.parameters.len();
            let (pipeline, group) = (pipeline.clone(), group.clone());
            self.steps.push(Step::Dispatch { pipeline, group, parameters, groups });
        }
    }

    pub(crate) fn record_copy(
        &mut self,
        (from, start): (&Buffer, u64),
        (to, at): (&Buffer, u64),
        bytes: u64,
    ) {
        if self.on {
            let (from, to) = (from.clone(), to.clone());
            self.steps.push(Step::Copy { from, start, to, at, bytes });
        }
    }

    /// What was just recorded runs only when the tape is handed over.
    pub(crate) fn is_alone(&self) -> bool {
        self.on && self.alone
    }
}

impl Gpu {
    /// Begins to remember dispatches and copies, from nothing.
    pub fn begin_tape(&mut self) {
        self.tape.steps.clear();
        self.tape.parameters.clear();
        self.tape.on = true;
        self.tape.alone = false;
    }

    /// While the tape is kept: what is recorded goes there alone and runs when it is replayed, or runs at once as well.
    pub fn tape_alone(&mut self, alone: bool) {
        self.tape.alone = alone;
    }

    /// Forgets what is on the tape behind the first `length`.
    pub fn cut_tape(&mut self, length: usize) {
        self.tape.steps.truncate(length);
    }

    /// Stops or goes on remembering.
    pub fn keep_tape(&mut self, on: bool) {
        self.tape.on = on;
    }

    /// Dispatches and copies on the tape.
    pub fn taped(&self) -> usize {
        self.tape.steps.len()
    }

    /// Records a part of the tape once more.
    ///
    /// # Errors
    /// The device failed.
    pub fn replay(&mut self, steps: Range<usize>) -> Result<(), GpuError> {
        let tape = std::mem::take(&mut self.tape);
        let mut done = Ok(());
        for step in &tape.steps[steps] {
            match step {
                Step::Copy { from, start, to, at, bytes } => {
                    self.copy_raw(from, *start, &to.raw, *at, *bytes);
                }
                Step::Dispatch { pipeline, group, parameters, groups } => {
                    let parameters = &tape.parameters[parameters.clone()];
                    done = self.encode(pipeline, group, parameters, *groups);
                }
            }
            if done.is_err() {
                break;
            }
        }
        self.tape = tape;
        done
    }

    /// Records a copy; places and sizes are multiples of 4.
    pub fn copy(&mut self, from: &Buffer, start: u64, to: &Buffer, at: u64, bytes: u64) {
        match self.expected_copy((from, start), (to, at), bytes) {
            Ok(false) => {}
            // The next call that records or submits reports an error.
            Ok(true) | Err(_) => return,
        }
        self.tape.record_copy((from, start), (to, at), bytes);
        if !self.tape.is_alone() {
            self.copy_raw(from, start, &to.raw, at, bytes);
        }
        if self.ahead.notes() {
            let (from, to) = (from.clone(), to.clone());
            self.ahead.note(Entry::Copy { from, start, to, at, bytes });
        }
    }

    pub(crate) fn copy_raw(
        &mut self,
        from: &Buffer,
        start: u64,
        to: &wgpu::Buffer,
        at: u64,
        bytes: u64,
    ) {
        self.pass = None;
        self.encoder().copy_buffer_to_buffer(&from.raw, start, to, at, bytes);
    }

    /// Records that bytes become zero.
    pub fn clear(&mut self, buffer: &Buffer) {
        match self.expected_clear(buffer) {
            Ok(false) => {}
            Ok(true) | Err(_) => return,
        }
        self.clear_raw(buffer);
        if self.ahead.notes() {
            self.ahead.note(Entry::Clear(buffer.clone()));
        }
    }

    pub(crate) fn clear_raw(&mut self, buffer: &Buffer) {
        self.pass = None;
        self.encoder().clear_buffer(&buffer.raw, 0, None);
    }

    /// Hands over what is recorded, without waiting.
    ///
    /// # Errors
    /// The device failed.
    pub fn submit(&mut self) -> Result<(), GpuError> {
        if self.ahead.waits() {
            self.drop_ahead()?;
        }
        self.pass = None;
        self.recorded = 0;
        if self.encoder.is_some() || self.ahead.is_ready() {
            self.hand_over();
        }
        self.check()
    }

    /// Hands over what is recorded; nothing of a piece that was recorded ahead waits ([`Gpu::drop_ahead`]).
    pub(crate) fn hand_over(&mut self) -> Submission {
        self.pass = None;
        self.recorded = 0;
        self.counts.submissions += 1;
        let ready = self.ahead.take_ready();
        let recorded = self.encoder.take().map(wgpu::CommandEncoder::finish);
        let signal = self.own.hand_over(&self.queue);
        let index = self.queue.submit(ready.into_iter().chain(recorded));
        Submission { index, signal }
    }

    /// Hands everything recorded over and asks for bytes of several places behind it, one after the other; each is a
    /// multiple of 4, and there is one at least.
    ///
    /// # Errors
    /// The device failed.
    pub fn ask(&mut self, places: &[(&Buffer, u64, u64)]) -> Result<Ask, GpuError> {
        let total: u64 = places.iter().map(|(_, _, bytes)| bytes).sum();
        let fitting = self.landings.iter().enumerate().filter(|(_, it)| it.size() >= total);
        let landing = match fitting.min_by_key(|(_, it)| it.size()) {
            Some((place, _)) => self.landings.swap_remove(place),
            None => {
                // It takes the place of the large one that there was: two at a time are in the plan.
                self.landings.retain(|landing| landing.size() <= SMALL_LANDING);
                self.device.create_buffer(&wgpu::BufferDescriptor {
                    label: Some("landing"),
                    size: Self::landing_bytes(total),
                    usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                    mapped_at_creation: false,
                })
            }
        };
        if self.ahead.waits() {
            self.drop_ahead()?;
        }
        let mut at = 0;
        for (buffer, start, bytes) in places {
            self.copy_raw(buffer, *start, &landing, at, *bytes);
            at += bytes;
        }
        let submission = self.hand_over();
        self.check()?;
        let state = Arc::new(AtomicU8::new(PENDING));
        let seen = Arc::clone(&state);
        landing.slice(..total).map_async(wgpu::MapMode::Read, move |result| {
            seen.store(if result.is_ok() { ARRIVED } else { FAILED }, Ordering::Release);
        });
        Ok(Ask { landing, bytes: total, state, submission, written: self.written })
    }

    /// Whether bytes have arrived; does not wait.
    ///
    /// # Errors
    /// The device failed.
    pub fn has_arrived(&mut self, ask: &Ask) -> Result<bool, GpuError> {
        if ask.state.load(Ordering::Acquire) == PENDING {
            // What it says is what the state says.
            let _ = self.device.poll(wgpu::PollType::Poll);
            self.check()?;
        }
        Ok(ask.state.load(Ordering::Acquire) != PENDING)
    }

    /// Waits until bytes have arrived.
    ///
    /// # Errors
    /// The device failed.
    pub fn wait_for(&mut self, ask: &Ask) -> Result<(), GpuError> {
        match self.has_arrived(ask)? || self.waits_by_itself(ask)? {
            true => Ok(()),
            false => self.wait(Some(ask.submission.index.clone())),
        }
    }

    /// The bytes, once they have arrived.
    ///
    /// # Errors
    /// The device failed.
    pub fn answer(&mut self, ask: Ask) -> Result<Vec<u8>, GpuError> {
        self.wait_for(&ask)?;
        if ask.state.load(Ordering::Acquire) != ARRIVED {
            return Err(GpuError::Lost("an answer did not arrive".to_owned()));
        }
        self.landed = self.landed.max(ask.written);
        self.due = crate::stream::SUBMIT_FIRST;
        let bytes = match ask.landing.slice(..ask.bytes).get_mapped_range() {
            Ok(view) => view.to_vec(),
            Err(error) => return Err(GpuError::Refused(error.to_string())),
        };
        self.forget(ask);
        Ok(bytes)
    }

    /// Gives up what was asked for.
    pub fn forget(&mut self, ask: Ask) {
        ask.landing.unmap();
        self.landings.push(ask.landing);
        if self.landings.len() > KEPT_LANDINGS {
            let sizes = self.landings.iter().enumerate();
            let smallest = sizes.min_by_key(|(_, landing)| landing.size());
            if let Some((place, _)) = smallest {
                self.landings.swap_remove(place);
            }
        }
    }

    /// Waits for a submission, or for everything that was handed over.
    pub(crate) fn wait(
        &mut self,
        submission: Option<wgpu::SubmissionIndex>,
    ) -> Result<(), GpuError> {
        let begun = Instant::now();
        let waited =
            self.device.poll(wgpu::PollType::Wait { submission_index: submission, timeout: None });
        self.counts.waits += 1;
        self.counts.waited += begun.elapsed();
        self.check()?;
        waited.map(|_| ()).map_err(|error| GpuError::Lost(error.to_string()))
    }

    /// Waits for everything recorded and gives bytes of several places, one after the other; each is a multiple of 4.
    ///
    /// # Errors
    /// The device failed.
    pub fn read(&mut self, places: &[(&Buffer, u64, u64)]) -> Result<Vec<u8>, GpuError> {
        if places.iter().all(|(_, _, bytes)| *bytes == 0) {
            return Ok(Vec::new());
        }
        let asked = self.ask(places)?;
        self.answer(asked)
    }

    /// [`Gpu::read`] of `count` numbers of one buffer.
    ///
    /// # Errors
    /// The device failed.
    pub fn read_floats(
        &mut self,
        buffer: &Buffer,
        start: u64,
        count: usize,
    ) -> Result<Vec<f32>, GpuError> {
        let bytes = self.read(&[(buffer, start, 4 * count as u64)])?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect())
    }

    /// [`Gpu::read`] of `count` words of one buffer.
    ///
    /// # Errors
    /// The device failed.
    pub fn read_words(
        &mut self,
        buffer: &Buffer,
        start: u64,
        count: usize,
    ) -> Result<Vec<u32>, GpuError> {
        let bytes = self.read(&[(buffer, start, 4 * count as u64)])?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }
}

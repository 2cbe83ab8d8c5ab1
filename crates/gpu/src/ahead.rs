//! The next step, recorded while the one before runs.
//!
//! Steps of answers differ in little: a position is one more, what else changes lies in buffers that are written when
//! the step begins. Where two steps were alike, the third is expected: the second's kernels and copies, each parameter
//! changed as it changed between them. It is recorded while the host would wait for the second, in pieces that are
//! complete command buffers. When the third begins, each dispatch is compared with what was expected: a piece whose
//! dispatches all came as expected is handed over, at the first other one the rest is dropped and recorded anew. So the
//! device runs what was asked for, whatever was expected. There is one recording at most.

use std::collections::VecDeque;

use crate::op::Op;
use crate::queue::Ask;
use crate::{Buffer, Gpu, GpuError};

/// Dispatches and copies of the pieces. Few at first, so that the device begins at once; not fewer, because handing a
/// piece over takes 17 to 57 us, and a device that computes a dispatch in 9 us had to wait behind eight of them.
const PIECES: [usize; 3] = [24, 128, 256];

/// A dispatch or a copy.
#[derive(Clone)]
pub(crate) enum Entry {
    /// A kernel.
    Dispatch {
        op: Op,
        pipeline: wgpu::ComputePipeline,
        group: wgpu::BindGroup,
        /// The pipeline's number, then buffer, start and bytes of each binding.
        key: Vec<u64>,
        parameters: Vec<u32>,
        groups: [u32; 3],
    },
    /// Bytes of a buffer to another.
    Copy { from: Buffer, start: u64, to: Buffer, at: u64, bytes: u64 },
    /// A buffer that becomes zero.
    Clear(Buffer),
}

impl Entry {
    /// The same entry of the next step, if `before` was that of the step before.
    fn next(&self, before: &Self) -> Option<Self> {
        match (self, before) {
            (
                Self::Dispatch { op, pipeline, group, key, parameters, groups },
                Self::Dispatch { op: op_before, key: key_before, parameters: old, .. },
            ) if op == op_before && key == key_before && parameters.len() == old.len() => {
                let words = parameters.iter().zip(old);
                let next = words.map(|(now, old)| now.wrapping_add(now.wrapping_sub(*old)));
                Some(Self::Dispatch {
                    op: *op,
                    pipeline: pipeline.clone(),
                    group: group.clone(),
                    key: key.clone(),
                    parameters: next.collect(),
                    groups: *groups,
                })
            }
            (Self::Copy { from, start, to, at, bytes }, _)
                if before.is_copy((from, *start), (to, *at), *bytes) =>
            {
                Some(self.clone())
            }
            (Self::Clear(buffer), Self::Clear(other)) if buffer.id == other.id => {
                Some(self.clone())
            }
            _ => None,
        }
    }

    fn is_copy(
        &self,
        (source, first): (&Buffer, u64),
        (target, place): (&Buffer, u64),
        count: u64,
    ) -> bool {
        matches!(self, Self::Copy { from, start, to, at, bytes }
            if (from.id, *start, to.id, *at, *bytes) == (source.id, first, target.id, place, count))
    }
}

/// A part of the expected step that is recorded.
struct Piece {
    /// The first entry, and the one after the last.
    first: usize,
    end: usize,
    commands: wgpu::CommandBuffer,
}

/// What the steps were made of, and what the next one is expected to be.
#[derive(Default)]
pub(crate) struct Ahead {
    /// A step is in progress, and noted.
    on: bool,
    /// The last step that was waited for.
    before: Vec<Entry>,
    /// The step in progress: what came, and behind `came` what is expected.
    step: Vec<Entry>,
    came: usize,
    /// The expected pieces that were not handed over.
    pieces: VecDeque<Piece>,
    /// The pieces reach to the end of the step.
    whole: bool,
    /// The last piece of the step, until something is handed over behind it.
    ready: Option<wgpu::CommandBuffer>,
}

impl Ahead {
    /// True while dispatches and copies are to be noted.
    pub(crate) fn notes(&self) -> bool {
        self.on
    }

    /// Notes what was recorded.
    pub(crate) fn note(&mut self, entry: Entry) {
        debug_assert!(self.on && self.pieces.is_empty() && self.came == self.step.len());
        self.step.push(entry);
        self.came += 1;
    }

    /// The entry that is expected, if it is recorded.
    fn expected(&self) -> Option<&Entry> {
        if self.on && !self.pieces.is_empty() { self.step.get(self.came) } else { None }
    }

    /// A complete piece that waits for what comes behind it.
    pub(crate) fn take_ready(&mut self) -> Option<wgpu::CommandBuffer> {
        self.ready.take()
    }

    /// True where something came as expected and was not handed over.
    pub(crate) fn waits(&self) -> bool {
        self.on && self.pieces.front().is_some_and(|piece| piece.first < self.came)
    }

    /// True where a complete piece has to be handed over.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.is_some()
    }
}

impl Gpu {
    /// A step begins: where `noted`, it is compared with what was recorded while the one before ran, and remembered.
    ///
    /// # Errors
    /// The device failed.
    pub fn begin_step(&mut self, noted: bool) -> Result<(), GpuError> {
        self.submit()?;
        let ahead = &mut self.ahead;
        // A step that is still on was given up, and what is left of its pieces has no beginning.
        let given_up = std::mem::replace(&mut ahead.on, noted && self.profile.is_none());
        ahead.came = 0;
        if given_up || !ahead.on || ahead.pieces.is_empty() {
            ahead.pieces.clear();
            ahead.step.clear();
        }
        Ok(())
    }

    /// Records the next step while `ask`, which was asked for behind this one, is on its way: its first piece, and
    /// others until the answer has arrived.
    ///
    /// # Errors
    /// The device failed.
    pub fn record_ahead(&mut self, ask: &Ask) -> Result<(), GpuError> {
        let ahead = &mut self.ahead;
        if !std::mem::take(&mut ahead.on) {
            return Ok(());
        }
        // The step was shorter than expected.
        ahead.pieces.clear();
        ahead.step.truncate(ahead.came);
        let alike = ahead.step.len() == ahead.before.len() && !ahead.step.is_empty();
        let both = || ahead.step.iter().zip(&ahead.before);
        let next = match alike {
            true => both().map(|(now, before)| now.next(before)).collect::<Option<Vec<_>>>(),
            false => None,
        };
        (ahead.before, ahead.step) = (std::mem::take(&mut ahead.step), next.unwrap_or_default());
        let (length, mut first) = (self.ahead.step.len(), 0);
        for number in 0.. {
            if first == length || number > 0 && self.has_arrived(ask)? {
                break;
            }
            let end = (first + PIECES[number.min(PIECES.len() - 1)]).min(length);
            let commands = self.commands(&self.ahead.step[first..end]);
            self.ahead.pieces.push_back(Piece { first, end, commands });
            first = end;
        }
        self.ahead.step.truncate(first);
        self.ahead.whole = first == length;
        // A device that was lost is said when the answer is waited for.
        Ok(())
    }

    /// Drops what was recorded ahead, and forgets the steps before.
    pub(crate) fn forget_steps(&mut self) {
        self.ahead = Ahead::default();
    }

    fn commands(&self, entries: &[Entry]) -> wgpu::CommandBuffer {
        let descriptor = wgpu::CommandEncoderDescriptor { label: None };
        let mut encoder = self.device.create_command_encoder(&descriptor);
        let mut pass: Option<wgpu::ComputePass<'static>> = None;
        for entry in entries {
            match entry {
                Entry::Dispatch { pipeline, group, parameters, groups, .. } => {
                    let pass = pass.get_or_insert_with(|| {
                        let descriptor = wgpu::ComputePassDescriptor::default();
                        encoder.begin_compute_pass(&descriptor).forget_lifetime()
                    });
                    let parameters = bytes_of(parameters);
                    encode_in(pass, pipeline, group, &parameters, *groups);
                }
                Entry::Copy { from, start, to, at, bytes } => {
                    pass = None;
                    encoder.copy_buffer_to_buffer(&from.raw, *start, &to.raw, *at, *bytes);
                }
                Entry::Clear(buffer) => {
                    pass = None;
                    encoder.clear_buffer(&buffer.raw, 0, None);
                }
            }
        }
        drop(pass);
        encoder.finish()
    }

    /// True where this dispatch was expected and recorded; otherwise nothing is expected any more.
    pub(crate) fn expected_dispatch(
        &mut self,
        op: Op,
        bindings: &[crate::Span<'_>],
        words: &[u32],
        count: [u32; 3],
    ) -> Result<bool, GpuError> {
        let control = self.control().all();
        let same = self.ahead.expected().map(|entry| match entry {
            Entry::Dispatch { op: expected, key, parameters, groups, .. } => {
                let bindings = bindings.iter().chain(std::iter::once(&control));
                let spans = bindings.flat_map(|it| [u64::from(it.buffer.id), it.start, it.bytes]);
                *expected == op
                    && *groups == count
                    && parameters == words
                    && spans.eq(key[1..].iter().copied())
            }
            _ => false,
        });
        self.came(same)
    }

    /// [`Gpu::expected_dispatch`] of a copy.
    pub(crate) fn expected_copy(
        &mut self,
        from: (&Buffer, u64),
        to: (&Buffer, u64),
        bytes: u64,
    ) -> Result<bool, GpuError> {
        let same = self.ahead.expected().map(|entry| entry.is_copy(from, to, bytes));
        self.came(same)
    }

    /// [`Gpu::expected_dispatch`] of zeros.
    pub(crate) fn expected_clear(&mut self, buffer: &Buffer) -> Result<bool, GpuError> {
        let same = self.ahead.expected();
        let same = same.map(|it| matches!(it, Entry::Clear(other) if other.id == buffer.id));
        self.came(same)
    }

    fn came(&mut self, same: Option<bool>) -> Result<bool, GpuError> {
        match same {
            None => Ok(false),
            Some(false) => self.drop_ahead().map(|()| false),
            Some(true) => {
                self.ahead.came += 1;
                self.hand_piece_over()?;
                Ok(true)
            }
        }
    }

    /// Hands the first piece over where all of it came; the last of a step with what is recorded behind it.
    fn hand_piece_over(&mut self) -> Result<(), GpuError> {
        let ahead = &mut self.ahead;
        let came = ahead.came;
        let Some(piece) = ahead.pieces.pop_front_if(|piece| piece.end == came) else {
            return Ok(());
        };
        let entries = &ahead.step[piece.first..piece.end];
        let kernels = entries.iter().filter(|entry| matches!(entry, Entry::Dispatch { .. }));
        let kernels = kernels.count() as u64;
        self.counts.dispatches += kernels;
        self.counts.ahead += kernels;
        if ahead.pieces.is_empty() && ahead.whole {
            ahead.ready = Some(piece.commands);
            return Ok(());
        }
        debug_assert!(self.encoder.is_none(), "what was recorded earlier is handed over first");
        self.counts.submissions += 1;
        self.queue.submit([piece.commands]);
        self.check()
    }

    /// Another thing came than was expected, or the work so far is handed over: records what came anew.
    pub(crate) fn drop_ahead(&mut self) -> Result<(), GpuError> {
        let ahead = &mut self.ahead;
        let Some(piece) = ahead.pieces.front() else { return Ok(()) };
        let entries = ahead.step[piece.first..ahead.came].to_vec();
        ahead.pieces.clear();
        ahead.step.truncate(ahead.came);
        for entry in entries {
            match entry {
                Entry::Dispatch { pipeline, group, parameters, groups, .. } => {
                    self.encode(&pipeline, &group, &bytes_of(&parameters), groups)?;
                }
                Entry::Copy { from, start, to, at, bytes } => {
                    self.copy_raw(&from, start, &to.raw, at, bytes);
                }
                Entry::Clear(buffer) => self.clear_raw(&buffer),
            }
        }
        Ok(())
    }
}

/// Records a dispatch in a pass.
pub(crate) fn encode_in(
    pass: &mut wgpu::ComputePass<'_>,
    pipeline: &wgpu::ComputePipeline,
    group: &wgpu::BindGroup,
    parameters: &[u8],
    groups: [u32; 3],
) {
    pass.set_pipeline(pipeline);
    pass.set_bind_group(0, group, &[]);
    if !parameters.is_empty() {
        pass.set_immediates(0, parameters);
    }
    pass.dispatch_workgroups(groups[0], groups[1], groups[2]);
}

/// Parameters as a kernel gets them.
pub(crate) fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

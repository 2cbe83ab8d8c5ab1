//! Weights in a GPU's memory: dense matrices, and slots for experts' records with the table that finds them.

use std::ops::Range;

use kernels::format::Matrix;

use crate::imported::HostSlabs;
use crate::op::packing::Packing;
use crate::{Adapter, Buffer, Gpu, GpuError, Span};

/// A dense matrix in a GPU's memory.
#[derive(Clone, Debug)]
pub struct Planes {
    /// How its values lie in words.
    pub packing: Packing,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub columns: usize,
    buffer: Buffer,
    /// Where weights, scales and biases begin, and their bytes.
    places: [(u64, u64); 3],
}

impl Planes {
    /// What kernels bind, in the order of `Packing::declare`; `grid` is that of its format.
    pub(crate) fn spans<'a>(&'a self, grid: Option<&'a Buffer>) -> Vec<Span<'a>> {
        let planes = 0..self.packing.planes();
        planes.map(|plane| self.span(plane)).chain(grid.map(Buffer::all)).collect()
    }

    fn span(&self, plane: usize) -> Span<'_> {
        let (start, bytes) = self.places[plane];
        self.buffer.span(start, bytes)
    }
}

/// Dense matrices in the order in which they were added.
#[derive(Default)]
pub struct Trunk {
    /// `None` where a number was left out.
    matrices: Vec<Option<Planes>>,
}

impl Trunk {
    /// Bytes that a matrix of these planes takes.
    pub fn bytes(planes: [usize; 3]) -> u64 {
        planes.into_iter().map(padded).sum()
    }

    /// Copies a matrix to the GPU's memory.
    ///
    /// # Errors
    /// No memory left, a matrix larger than a binding, or the device failed.
    pub fn add(&mut self, gpu: &mut Gpu, name: &str, matrix: &Matrix<'_>) -> Result<(), GpuError> {
        let packing = Packing::of(matrix.encoding);
        let planes = [matrix.weight, matrix.scales, matrix.biases];
        let bytes = Self::bytes(planes.map(<[u8]>::len));
        let buffer = gpu.lasting(name, bytes)?;
        let (mut places, mut at) = ([(0, 0); 3], 0);
        for (plane, place) in planes.into_iter().zip(&mut places) {
            // Words are bound: the last of a plane may be a part of one.
            *place = (at, plane.len().next_multiple_of(4) as u64);
            write_padded(gpu, &buffer, at, plane)?;
            at += padded(plane.len());
        }
        let (rows, columns) = (matrix.rows, matrix.columns);
        self.matrices.push(Some(Planes { packing, rows, columns, buffer, places }));
        Ok(())
    }

    /// Leaves out numbers, of matrices that another device has: the next one is number `index`.
    pub fn skip_to(&mut self, index: usize) {
        assert!(index >= self.matrices.len(), "matrices come in order");
        self.matrices.resize(index, None);
    }

    /// The matrix that was added as number `index`.
    ///
    /// # Panics
    /// When that was left out.
    pub fn matrix(&self, index: usize) -> &Planes {
        self.matrices[index].as_ref().expect("a matrix of this device")
    }
}

fn padded(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(Gpu::ALIGNMENT)
}

/// Writes bytes of any number; those up to a whole word are zero.
fn write_padded(gpu: &mut Gpu, buffer: &Buffer, start: u64, bytes: &[u8]) -> Result<(), GpuError> {
    /// Bytes of one write, so that what is staged stays bounded.
    const PART: usize = 16 << 20;
    let mut at = start;
    for part in bytes.chunks(PART) {
        match part.len() % 4 {
            0 => gpu.write(buffer, at, part)?,
            _ => {
                let mut whole = part.to_vec();
                whole.resize(part.len().next_multiple_of(4), 0);
                gpu.write(buffer, at, &whole)?;
            }
        }
        at += part.len() as u64;
    }
    Ok(())
}

/// Slots for experts' records in a few large buffers, and the table that says which record is where.
///
/// Records may also lie in the process's memory and be read there ([`Slabs::read_host`]); the table names both alike.
pub struct Slabs {
    /// The device's own, then those of the process's memory.
    buffers: Vec<Buffer>,
    per_slab: usize,
    slots: usize,
    slot_bytes: usize,
    /// What words of the table count, in bytes.
    unit: usize,
    /// By memory of the process: its first buffer, and the bytes of each but the last.
    host: Vec<(usize, usize)>,
    table: Buffer,
    /// What the table says, and the words of it that the device does not know yet.
    words: Vec<u32>,
    changed: Range<usize>,
}

/// Places that a word of the table can tell apart in a slab.
const PLACES: usize = (1 << 24) - 1;

/// Bytes that they reach where records lie at multiples of [`Gpu::ALIGNMENT`].
pub(crate) const HOST_REACH: u64 = Gpu::ALIGNMENT * PLACES as u64;

impl Slabs {
    /// Most slabs of a device: what Metal can bind with a kernel's other buffers.
    pub const LIMIT: usize = 22;
    /// Buffers of the experts' kernels that are no slabs.
    const OTHERS: u32 = 7;

    /// Slots of a slab, and most slabs.
    fn shape(adapter: &Adapter, slot_bytes: usize) -> (usize, usize) {
        // A word of the table counts slots in 24 bits, and kernels count words in 32. Where memory of the process is
        // read in place, it counts smaller units.
        let reach = match adapter.imports_at() {
            Some(_) => adapter.binding_bytes.min(HOST_REACH),
            None => adapter.binding_bytes.min(8 << 30),
        };
        let per_slab = (reach / slot_bytes as u64).min(PLACES as u64) as usize;
        let slabs = (adapter.bindings.saturating_sub(Self::OTHERS) as usize).min(Self::LIMIT);
        (per_slab, slabs)
    }

    /// Most slots of this size that an adapter can reach.
    pub fn most(adapter: &Adapter, slot_bytes: usize) -> usize {
        let (per_slab, slabs) = Self::shape(adapter, slot_bytes);
        per_slab * slabs
    }

    /// Allocates `slots` slots of `slot_bytes`, a multiple of [`Gpu::ALIGNMENT`], and a table of `records` words.
    ///
    /// # Errors
    /// No memory left, or more slots than [`Slabs::most`].
    pub fn new(
        gpu: &mut Gpu,
        slots: usize,
        slot_bytes: usize,
        records: usize,
    ) -> Result<Self, GpuError> {
        let (per_slab, _) = Self::shape(gpu.adapter(), slot_bytes);
        Self::with_slab_slots(gpu, slots, slot_bytes, records, per_slab)
    }

    /// As [`Slabs::new`], with fewer slots in a slab.
    pub(crate) fn with_slab_slots(
        gpu: &mut Gpu,
        slots: usize,
        slot_bytes: usize,
        records: usize,
        per_slab: usize,
    ) -> Result<Self, GpuError> {
        let (_, most) = Self::shape(gpu.adapter(), slot_bytes);
        if per_slab == 0 || slots > per_slab * most {
            let bytes = (slots * slot_bytes) as u64;
            let limit = (per_slab * most * slot_bytes) as u64;
            return Err(GpuError::TooLarge { what: "room for experts".to_owned(), bytes, limit });
        }
        let mut buffers = Vec::new();
        let mut left = slots.max(1);
        while left > 0 {
            let here = left.min(per_slab);
            buffers.push(gpu.lasting("experts", (here * slot_bytes) as u64)?);
            left -= here;
        }
        let table = gpu.buffer("table of experts", 4 * records as u64)?;
        let (unit, host) = (slot_bytes, Vec::new());
        let (words, changed) = (vec![0; records], 0..0);
        Ok(Self { buffers, per_slab, slots, slot_bytes, unit, host, table, words, changed })
    }

    /// Lets kernels read records in the process's memory as well, in place, each from a multiple of `lead` bytes on in
    /// its slot. False where there is more than they reach. Nothing is named yet.
    pub fn read_host(&mut self, gpu: &Gpu, host: &HostSlabs, lead: usize) -> bool {
        let sizes = host.memories.iter().map(|memory| memory.slot_bytes);
        let unit = sizes.chain([lead]).fold(self.slot_bytes, greatest_common_divisor);
        let (_, most) = Self::shape(gpu.adapter(), self.slot_bytes);
        let all = || host.memories.iter().flat_map(|memory| &memory.slabs);
        let mut slabs = self.buffers.iter().chain(all());
        let reached = slabs.all(|slab| slab.bytes() <= (unit * PLACES) as u64);
        // Kernels read vectors of four words.
        if !reached || !unit.is_multiple_of(16) || self.buffers.len() + all().count() > most {
            return false;
        }
        for memory in &host.memories {
            self.host.push((self.buffers.len(), memory.bytes));
            self.buffers.extend(memory.slabs.iter().cloned());
        }
        self.unit = unit;
        true
    }

    /// The word of the table for a record in the process's memory: `memory` of those of [`Slabs::read_host`], and its
    /// first byte.
    pub fn host_word(&self, memory: usize, start: usize) -> u32 {
        let (first, bytes) = self.host[memory];
        debug_assert!(start.is_multiple_of(self.unit));
        ((first + start / bytes) << 24 | (start % bytes / self.unit + 1)) as u32
    }

    /// The word of the table for the record in a slot.
    pub fn slot_word(&self, slot: usize) -> u32 {
        let start = slot % self.per_slab * self.slot_bytes;
        ((slot / self.per_slab) << 24 | (start / self.unit + 1)) as u32
    }

    /// Slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    pub(crate) fn slot_words(&self) -> u32 {
        (self.unit / 4) as u32
    }

    pub(crate) fn count(&self) -> usize {
        self.buffers.len()
    }

    pub(crate) fn spans(&self) -> Vec<Span<'_>> {
        self.buffers.iter().map(Buffer::all).collect()
    }

    pub(crate) fn table(&self) -> &Buffer {
        debug_assert!(self.changed.is_empty(), "work is recorded before the table is written");
        &self.table
    }

    /// Writes a record into a slot.
    ///
    /// # Errors
    /// The device failed.
    pub fn fill(&self, gpu: &mut Gpu, slot: usize, record: &[u8]) -> Result<(), GpuError> {
        assert!(slot < self.slots && record.len() <= self.slot_bytes, "slot {slot}");
        let (buffer, start) = self.place(slot);
        write_padded(gpu, buffer, start, record)
    }

    /// The buffer that a slot lies in, and its first byte there.
    pub fn place(&self, slot: usize) -> (&Buffer, u64) {
        let start = (slot % self.per_slab * self.slot_bytes) as u64;
        (&self.buffers[slot / self.per_slab], start)
    }

    /// Says in the table that the record `index` is where `word` says, or nowhere with 0. The device knows after
    /// [`Slabs::write_table`].
    pub fn name(&mut self, index: usize, word: u32) {
        self.words[index] = word;
        let Range { start, end } = self.changed;
        self.changed = match start < end {
            true => start.min(index)..end.max(index + 1),
            false => index..index + 1,
        };
    }

    /// Writes what the table says to the device, behind all work recorded so far.
    ///
    /// # Errors
    /// The device failed.
    pub fn write_table(&mut self, gpu: &mut Gpu) -> Result<(), GpuError> {
        match std::mem::take(&mut self.changed) {
            Range { start, end } if start < end => {
                gpu.write_words(&self.table, 4 * start as u64, &self.words[start..end])
            }
            _ => Ok(()),
        }
    }
}

pub(crate) fn greatest_common_divisor(a: usize, b: usize) -> usize {
    match a {
        0 => b,
        _ => greatest_common_divisor(b % a, a),
    }
}

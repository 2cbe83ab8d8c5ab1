//! Memory of the process that a GPU reads in place.
//!
//! wgpu has no such buffers: the driver's layer makes them (`vulkan.rs`, `metal.rs`). Work reads what the process wrote
//! before the work was handed over. Where the driver has none ([`Adapter::host_alignment`]) or does not take the
//! memory, everything is copied by the host.
//!
//! [`Adapter::host_alignment`]: crate::Adapter::host_alignment

use std::sync::Arc;

use kernels::memory::StableMemory;

use crate::slab::{HOST_REACH, greatest_common_divisor};
use crate::{Buffer, Gpu, GpuError, Import};

/// Memory of the process with slots of one size.
pub struct HostMemory {
    /// Who keeps it.
    pub owner: Arc<dyn StableMemory>,
    /// Bytes of a slot.
    pub slot_bytes: usize,
    /// Slots.
    pub slots: usize,
}

/// Memories of the process that the device reads, each in a few buffers of whole slots.
pub struct HostSlabs {
    pub(crate) memories: Vec<ImportedMemory>,
}

pub(crate) struct ImportedMemory {
    pub(crate) slot_bytes: usize,
    /// Of each slab but the last.
    pub(crate) bytes: usize,
    pub(crate) slabs: Vec<Buffer>,
}

impl HostSlabs {
    /// Imports memories; `None` where the device does not read them and [`Import::On`] does not ask for it.
    ///
    /// # Errors
    /// [`GpuError::NotInPlace`] with the reason where somebody does; or the device failed.
    pub fn new(gpu: &mut Gpu, memories: &[HostMemory]) -> Result<Option<Self>, GpuError> {
        match Self::import(gpu, memories) {
            Err(GpuError::NotInPlace(_)) if gpu.adapter().options.import != Import::On => Ok(None),
            imported => imported.map(Some),
        }
    }

    fn import(gpu: &mut Gpu, memories: &[HostMemory]) -> Result<Self, GpuError> {
        let not = |reason: String| Err(GpuError::NotInPlace(reason));
        let Some(page) = gpu.adapter().host_alignment.map(|page| page as usize) else {
            return not(format!("{} reads no memory of the process", gpu.adapter().name));
        };
        let reach = gpu.adapter().binding_bytes.min(HOST_REACH) as usize;
        let mut all = Vec::with_capacity(memories.len());
        for HostMemory { owner, slot_bytes, slots } in memories {
            let (address, length) = owner.range();
            if !(address as usize).is_multiple_of(page) {
                return not(format!("it lies at {address:?}, no multiple of {page}"));
            }
            // The last may end within a page: the rest of it is read as well, if it is the owner's.
            let whole = (slots * slot_bytes).next_multiple_of(page);
            if whole > length {
                return not(format!("{length} bytes of it end within a page of {page}"));
            }
            // Slabs begin at pages, and slots lie in one each.
            let aligned = page / greatest_common_divisor(*slot_bytes, page);
            let per_slab = reach / slot_bytes / aligned * aligned;
            if per_slab == 0 {
                return not(format!(
                    "{aligned} slots of {slot_bytes} bytes are more than the {reach} of a binding"
                ));
            }
            let bytes = per_slab * slot_bytes;
            let mut slabs = Vec::new();
            for start in (0..whole).step_by(bytes) {
                let here = (whole - start).min(bytes);
                let raw = gpu.own.import(&gpu.device, owner, (start, here));
                let raw = match raw {
                    Ok(raw) => raw,
                    Err(reason) => return not(reason),
                };
                // It is not the device's, and counts nowhere.
                slabs.push(gpu.numbered(raw, here as u64));
            }
            gpu.check()?;
            all.push(ImportedMemory { slot_bytes: *slot_bytes, bytes, slabs });
        }
        Ok(Self { memories: all })
    }

    /// Records a copy of bytes, a multiple of 4 from a multiple of 4 on, of a memory to a buffer.
    ///
    /// # Panics
    /// When they do not lie in one slot.
    pub fn copy(
        &self,
        gpu: &mut Gpu,
        (memory, start): (usize, usize),
        (to, at): (&Buffer, u64),
        bytes: usize,
    ) {
        let memory = &self.memories[memory];
        let slot = memory.slot_bytes;
        assert!(bytes <= slot - start % slot, "{bytes} bytes from {start} of slots of {slot}");
        let from = &memory.slabs[start / memory.bytes];
        gpu.copy(from, (start % memory.bytes) as u64, to, at, bytes as u64);
    }
}

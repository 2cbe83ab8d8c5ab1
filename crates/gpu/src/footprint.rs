//! What a driver is asked for, for buffers of given sizes: small ones share blocks, which are not always full.

use crate::{Gpu, MemoryClass};

/// Bytes of a block of small buffers; larger buffers are asked for one by one, so that little is allocated that no
/// buffer uses.
pub(crate) const BLOCK_BYTES: u64 = 4 << 20;
/// Bytes that the host writes before it waits for them to be copied, and most of one write, where they lie in memory of
/// the device until then; and where they lie in the host's.
const STAGED_BYTES: [u64; 2] = [8 << 20, 64 << 20];

/// Most bytes that wait to be copied into buffers.
pub(crate) fn staged_bytes(class: MemoryClass) -> u64 {
    STAGED_BYTES[usize::from(class != MemoryClass::Unified)]
}

/// Buffers that are to be allocated, in their order.
#[derive(Clone, Debug, Default)]
pub struct Footprint {
    /// Buffers of their own, and whole blocks.
    bytes: u64,
    /// Free bytes of each block.
    free: Vec<u64>,
}

impl Footprint {
    /// Adds a buffer.
    pub fn add(&mut self, bytes: u64) {
        let bytes = Self::padded(bytes);
        if bytes > BLOCK_BYTES {
            self.bytes += bytes;
            return;
        }
        // As the allocator looks for room: the newest block first.
        match self.free.iter_mut().rev().find(|free| **free >= bytes) {
            Some(free) => *free -= bytes,
            None => {
                self.bytes += BLOCK_BYTES;
                self.free.push(BLOCK_BYTES - bytes);
            }
        }
    }

    /// What the driver will be asked for, and one block more for the slab of experts' records that ends in a part.
    pub fn bytes(&self) -> u64 {
        self.bytes + BLOCK_BYTES
    }

    /// Bytes that a buffer takes.
    pub fn padded(bytes: u64) -> u64 {
        bytes.max(4).next_multiple_of(Gpu::ALIGNMENT)
    }

    /// Bytes of the device's memory through which the host writes, and reads at most `read` at once.
    pub fn staging(class: MemoryClass, read: u64) -> u64 {
        if class != MemoryClass::Unified {
            return 0;
        }
        // Where what is written takes turns in blocks, half of each is used at least. An answer's place is replaced by
        // one of twice the size, and both are there for a moment.
        2 * staged_bytes(class) + BLOCK_BYTES + 2 * Gpu::landing_bytes(read).max(BLOCK_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_buffers_share_blocks_and_large_ones_have_their_own() {
        let mut footprint = Footprint::default();
        assert_eq!(footprint.bytes(), BLOCK_BYTES);
        footprint.add(5 << 20);
        assert_eq!(footprint.bytes(), (5 << 20) + BLOCK_BYTES);
        for _ in 0..3 {
            footprint.add((2 << 20) - 1);
        }
        assert_eq!(footprint.bytes(), (5 << 20) + 3 * BLOCK_BYTES);
    }
}

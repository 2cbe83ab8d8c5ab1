//! From the extents of an expert to the reads that bring it into a slot.
//!
//! The pieces of an expert (three weights, up to six scale and bias arrays) lie anywhere in the
//! checkpoint's files: side by side in a native pack, nine unaligned runs in an MLX file. Each run is
//! widened to whole blocks, runs that then touch become one read, and the reads lie one after
//! another in the slot, so that file offset, length and memory are all aligned to [`block_bytes`] as
//! uncached reads ask. What a piece starts with inside its first block stays inside the slot: a
//! [`Place`] may therefore be unaligned. Sizes are bytes throughout.

use crate::format::{Checkpoint, ExpertExtents, Extent, FileId, LayerExperts, Projection};

/// The usual alignment of reads: no file system in use asks for more in direct I/O.
pub const BLOCK_BYTES: u64 = 4096;
/// A page of a Mac with Apple's chip. A read that begins or ends within one goes through the page cache there, and
/// brings it back for the file.
pub const LARGE_BLOCK_BYTES: u64 = 16_384;

/// Alignment of every read here: offset, length and memory are its multiples.
#[cfg(target_vendor = "apple")]
pub fn block_bytes() -> u64 {
    LARGE_BLOCK_BYTES
}

/// Alignment of every read here: offset, length and memory are its multiples. Tests take a Mac's by the variable
/// `FLASHMOE_TEST_BLOCK`, for which users have no use.
#[cfg(not(target_vendor = "apple"))]
pub fn block_bytes() -> u64 {
    use std::sync::OnceLock;

    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let large = std::env::var("FLASHMOE_TEST_BLOCK").is_ok_and(|bytes| bytes == "16384");
        if large { LARGE_BLOCK_BYTES } else { BLOCK_BYTES }
    })
}
/// Weight, scales and biases of three projections.
pub const PIECES: usize = 9;

/// One aligned read of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedRead {
    /// The file.
    pub file: FileId,
    /// First byte, a multiple of [`block_bytes`].
    pub offset: u64,
    /// Bytes in the slot, a multiple of [`block_bytes`].
    pub length: u32,
    /// Bytes of them that the file holds: less than `length` only in its last block.
    pub present: u32,
}

/// Where a piece lies inside the slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// First byte.
    pub start: u32,
    /// Bytes; zero for a piece that the encoding does not have.
    pub length: u32,
}

/// The reads of one record and where its pieces come to lie.
#[derive(Clone, Copy, Debug)]
pub struct RecordPlan {
    reads: [PlannedRead; PIECES],
    read_count: u8,
    places: [Place; PIECES],
}

/// The pieces of a projection, in the order in which they are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Packed values.
    Weight,
    /// Scales of an affine encoding.
    Scales,
    /// Biases of an affine encoding.
    Biases,
}

/// Number of a piece, 0 to [`PIECES`].
pub const fn piece_index(projection: Projection, piece: Piece) -> usize {
    projection as usize * 3 + piece as usize
}

/// The extents of an expert by piece number; `None` for a piece that its encoding does not have.
pub fn pieces(extents: &ExpertExtents) -> [Option<Extent>; PIECES] {
    let mut out = [None; PIECES];
    for projection in 0..3 {
        out[projection * 3] = Some(extents.weight[projection]);
        if let Some((scales, biases)) = extents.scales_biases[projection] {
            out[projection * 3 + 1] = Some(scales);
            out[projection * 3 + 2] = Some(biases);
        }
    }
    out
}

impl RecordPlan {
    /// Plans the reads of one expert. `lengths` gives the size of each file.
    ///
    /// `None` when a piece ends beyond its file or the record is 4 GiB or larger: a checkpoint that
    /// was opened by [`crate::format`] has neither.
    pub fn new(extents: &ExpertExtents, lengths: impl Fn(FileId) -> u64) -> Option<Self> {
        Self::aligned(extents, lengths, block_bytes())
    }

    /// As [`RecordPlan::new`], with reads aligned to `block`.
    fn aligned(
        extents: &ExpertExtents,
        lengths: impl Fn(FileId) -> u64,
        block: u64,
    ) -> Option<Self> {
        let pieces = pieces(extents);
        let mut order = [0usize; PIECES];
        let mut count = 0;
        for (index, piece) in pieces.iter().enumerate() {
            if piece.is_some_and(|extent| extent.length > 0) {
                order[count] = index;
                count += 1;
            }
        }
        let order = &mut order[..count];
        order.sort_unstable_by_key(|&index| {
            pieces[index].map(|extent| (extent.file, extent.offset))
        });

        let empty = PlannedRead { file: FileId(0), offset: 0, length: 0, present: 0 };
        let mut plan = Self { reads: [empty; PIECES], read_count: 0, places: Default::default() };
        // Slot offset at which the current read begins, and file offset at which it ends.
        let mut base = 0u64;
        let mut end = 0u64;
        for &index in order.iter() {
            let extent = pieces[index]?;
            let last = extent.offset.checked_add(extent.length)?;
            if last > lengths(extent.file) {
                return None;
            }
            let first = extent.offset - extent.offset % block;
            let stop = last.checked_next_multiple_of(block)?;
            let open = usize::from(plan.read_count).checked_sub(1).map(|i| plan.reads[i]);
            if open.is_none_or(|read| read.file != extent.file || first > end) {
                base = plan.slot_bytes();
                plan.reads[usize::from(plan.read_count)] =
                    PlannedRead { file: extent.file, offset: first, length: 0, present: 0 };
                plan.read_count += 1;
                end = stop;
            }
            end = end.max(stop);
            let read = &mut plan.reads[usize::from(plan.read_count) - 1];
            read.length = u32::try_from(end - read.offset).ok()?;
            let present = end.min(lengths(extent.file)) - read.offset;
            read.present = u32::try_from(present).ok()?;
            plan.places[index] = Place {
                start: u32::try_from(base + (extent.offset - read.offset)).ok()?,
                length: u32::try_from(extent.length).ok()?,
            };
        }
        u32::try_from(plan.slot_bytes()).ok()?;
        Some(plan)
    }

    /// The reads, in slot order: each follows the one before without a gap.
    pub fn reads(&self) -> &[PlannedRead] {
        &self.reads[..usize::from(self.read_count)]
    }

    /// Where a piece lies in the slot.
    pub fn place(&self, projection: Projection, piece: Piece) -> Place {
        self.places[piece_index(projection, piece)]
    }

    /// All places by piece number.
    pub fn places(&self) -> &[Place; PIECES] {
        &self.places
    }

    /// Bytes that the record needs in a slot.
    pub fn slot_bytes(&self) -> u64 {
        self.reads().iter().map(|read| u64::from(read.length)).sum()
    }

    /// Bytes that the reads take from the files.
    pub fn read_bytes(&self) -> u64 {
        self.reads().iter().map(|read| u64::from(read.present)).sum()
    }
}

/// The plans of one layer.
#[derive(Clone, Debug)]
pub struct LayerPlan {
    /// One per expert.
    pub records: Vec<RecordPlan>,
    /// Bytes of the largest.
    pub slot_bytes: u64,
}

impl LayerPlan {
    /// Plans every expert of a layer; on failure the index of the expert that does not fit its files.
    pub fn new(layer: &LayerExperts, checkpoint: &Checkpoint) -> Result<Self, usize> {
        let length =
            |file: FileId| checkpoint.files.get(file.0 as usize).map_or(0, |known| known.length);
        let mut records = Vec::with_capacity(layer.experts.len());
        for (index, extents) in layer.experts.iter().enumerate() {
            records.push(RecordPlan::new(extents, length).ok_or(index)?);
        }
        let slot_bytes = records.iter().map(RecordPlan::slot_bytes).max().unwrap_or(0);
        Ok(Self { records, slot_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extent(file: u32, offset: u64, length: u64) -> Extent {
        Extent { file: FileId(file), offset, length }
    }

    #[test]
    fn a_native_record_is_one_read() {
        let extents = ExpertExtents {
            weight: [extent(3, 8192, 4096), extent(3, 12544, 4096), extent(3, 16896, 3584)],
            scales_biases: [
                Some((extent(3, 12288, 128), extent(3, 12416, 128))),
                Some((extent(3, 16640, 128), extent(3, 16768, 128))),
                None,
            ],
        };
        let plan = RecordPlan::aligned(&extents, |_| 1 << 20, BLOCK_BYTES).unwrap();
        let whole = PlannedRead { file: FileId(3), offset: 8192, length: 12288, present: 12288 };
        assert_eq!(plan.reads(), [whole]);
        assert_eq!(plan.place(Projection::Up, Piece::Weight), Place { start: 4352, length: 4096 });
        assert_eq!(plan.place(Projection::Down, Piece::Scales), Place::default());
    }

    #[test]
    fn reads_of_a_mac_are_whole_pages() {
        let extents = ExpertExtents {
            weight: [extent(0, 20_480, 100), extent(0, 40_960, 100), extent(0, 90_112, 100)],
            scales_biases: [None; 3],
        };
        let plan = RecordPlan::aligned(&extents, |_| 90_212, LARGE_BLOCK_BYTES).unwrap();
        let read =
            |offset, length, present| PlannedRead { file: FileId(0), offset, length, present };
        // Pieces of touching pages are one read; the last page is the file's last, which is short.
        assert_eq!(plan.reads(), [read(16_384, 32_768, 32_768), read(81_920, 16_384, 8_292)]);
        assert_eq!(plan.place(Projection::Gate, Piece::Weight), Place { start: 4096, length: 100 });
        assert_eq!((plan.slot_bytes(), plan.read_bytes()), (49_152, 41_060));
    }

    #[test]
    fn a_record_past_the_end_of_its_file_is_refused() {
        let extents = ExpertExtents {
            weight: [extent(0, 0, 10), extent(0, 10, 10), extent(0, 20, 10)],
            scales_biases: [None; 3],
        };
        assert!(RecordPlan::new(&extents, |_| 29).is_none());
        assert_eq!(RecordPlan::new(&extents, |_| 30).unwrap().reads()[0].present, 30);
    }

    proptest! {
        /// Every piece is found again through its place, whatever the layout.
        #[test]
        fn places_lead_to_the_bytes_of_the_pieces(
            layout in prop::collection::vec((0u32..3, 0u64..60_000, 1u64..9_000), 9),
            slack in 0u64..5_000,
            large in prop::bool::ANY,
        ) {
            let block = if large { LARGE_BLOCK_BYTES } else { BLOCK_BYTES };
            let at = |index: usize| { let (f, o, l) = layout[index]; extent(f, o, l) };
            let extents = ExpertExtents {
                weight: [at(0), at(3), at(6)],
                scales_biases: [Some((at(1), at(2))), Some((at(4), at(5))), Some((at(7), at(8)))],
            };
            let ends = layout.iter().map(|(_, offset, length)| offset + length);
            let length = ends.max().unwrap() + slack;
            let byte = |file: u32, position: u64| (position * 31 + u64::from(file) * 7) as u8;
            let plan = RecordPlan::aligned(&extents, |_| length, block).unwrap();
            let mut slot = Vec::new();
            for read in plan.reads() {
                prop_assert_eq!(read.offset % block, 0);
                prop_assert_eq!(u64::from(read.length) % block, 0);
                prop_assert!(read.offset + u64::from(read.present) <= length);
                for position in read.offset..read.offset + u64::from(read.length) {
                    slot.push(if position < length { byte(read.file.0, position) } else { 0 });
                }
            }
            prop_assert_eq!(slot.len() as u64, plan.slot_bytes());
            for (index, place) in plan.places().iter().enumerate() {
                let (file, offset, bytes) = layout[index];
                prop_assert_eq!(u64::from(place.length), bytes);
                let found = &slot[place.start as usize..][..place.length as usize];
                for (step, &value) in found.iter().enumerate() {
                    prop_assert_eq!(value, byte(file, offset + step as u64));
                }
            }
        }
    }
}

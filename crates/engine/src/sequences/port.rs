//! What a device offers to sequences: memory that has places for them.
//!
//! Every sequence has a place; what a place has is named by [`Memory`]. Lists of regions are copied at once, so that a
//! device that waits for each copy waits once.

use crate::EngineError;

/// Memory of a place. Numbers are those of layers among those that keep the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Memory {
    /// A recurrent state.
    State(usize),
    /// A convolution tail.
    Tail(usize),
    /// What all layers of compressed attention keep of a fixed size.
    Compressed,
    /// What layers keep in rings of rows in addition.
    Side,
    /// A window in a ring of blocks.
    Ring(usize),
    /// Rows of every position: keys on side 0, values on side 1.
    Rows {
        /// The layer.
        layer: usize,
        /// Keys, or values.
        side: usize,
    },
    /// Pages of compressed rows, one after the other.
    Pages,
    /// Pages of index keys, one after the other.
    IndexPages,
    /// Rows of the last positions, from a base on.
    Window {
        /// The layer.
        layer: usize,
        /// Keys, or values.
        side: usize,
    },
}

/// Bytes of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// Whose.
    pub(crate) place: usize,
    /// Of what.
    pub(crate) memory: Memory,
    /// The first byte.
    pub(crate) start: usize,
    /// How many.
    pub(crate) bytes: usize,
}

/// Cuts bytes into parts of these lengths, one after the other.
pub(crate) fn cut(
    mut bytes: &[u8],
    lengths: impl Iterator<Item = usize>,
) -> impl Iterator<Item = &[u8]> {
    lengths.map(move |length| {
        let (part, rest) = bytes.split_at(length);
        bytes = rest;
        part
    })
}

/// [`cut`] of bytes that are written.
pub(crate) fn cut_mut(
    mut bytes: &mut [u8],
    lengths: impl Iterator<Item = usize>,
) -> impl Iterator<Item = &mut [u8]> {
    lengths.map(move |length| {
        let (part, rest) = std::mem::take(&mut bytes).split_at_mut(length);
        bytes = rest;
        part
    })
}

/// Memory in which sequences lie. What a call asks for happens behind everything that was given to the device before.
pub(crate) trait StateMemory {
    /// What a failed device reports.
    type Error: Into<EngineError>;

    /// Copies regions to the process's memory, one after the other, and waits.
    fn read(&mut self, from: &[Region], to: &mut [u8]) -> Result<(), Self::Error>;
    /// Copies bytes to regions, one after the other.
    fn write(&mut self, to: &[Region], from: &[u8]) -> Result<(), Self::Error>;
    /// Copies regions to others of the same length that do not overlap with them.
    fn copy(&mut self, pairs: &[(Region, Region)]) -> Result<(), Self::Error> {
        pairs.iter().try_for_each(|(from, to)| {
            let mut bytes = vec![0; from.bytes];
            self.read(&[*from], &mut bytes)?;
            self.write(&[*to], &bytes)
        })
    }
    /// Puts regions of a place aside that a round is about to write over, until they are put back or the place's next
    /// round begins; gives their bytes, one after the other, unless the device holds them.
    fn put_aside(&mut self, regions: &[Region]) -> Result<Vec<u8>, Self::Error> {
        let mut bytes = vec![0; regions.iter().map(|region| region.bytes).sum()];
        if !regions.is_empty() {
            self.read(regions, &mut bytes)?;
        }
        Ok(bytes)
    }
    /// Writes regions back that were put aside; `bytes` are those that were given for them.
    fn put_back(&mut self, regions: &[Region], bytes: &[u8]) -> Result<(), Self::Error> {
        if regions.is_empty() { Ok(()) } else { self.write(regions, bytes) }
    }
    /// Fills regions with zeros. Those of a layer's state and of a layer's tail are whole.
    fn clear(&mut self, regions: &[Region]) -> Result<(), Self::Error>;
}

//! Identifiers as types, so that a layer is never passed for an expert.

/// A transformer layer, counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerId(pub u16);

/// An expert of a layer, counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExpertId(pub u16);

impl LayerId {
    /// The layer as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl ExpertId {
    /// The expert as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

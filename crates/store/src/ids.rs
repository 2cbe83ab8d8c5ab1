//! Identifiers as types, so that a layer is never passed for an expert.

/// A transformer layer, counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerId(pub u16);

/// An expert of a layer, counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExpertId(pub u16);

/// A record of a store among those of all layers: what its bookkeeping is indexed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct RecordKey(u32);

impl RecordKey {
    /// No record.
    pub(crate) const NONE: Self = Self(u32::MAX);

    /// The key of an expert, in a store with `experts` a layer.
    pub(crate) const fn new(layer: LayerId, expert: ExpertId, experts: usize) -> Self {
        Self((layer.index() * experts + expert.index()) as u32)
    }

    /// The key as an index.
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// Layer and expert, in a store with `experts` a layer.
    pub(crate) const fn record(self, experts: usize) -> (LayerId, ExpertId) {
        (LayerId((self.index() / experts) as u16), ExpertId((self.index() % experts) as u16))
    }
}

/// A slot among those of all pools of a store; an arena counts its own from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct SlotId(pub(crate) u32);

impl SlotId {
    /// No slot.
    pub(crate) const NONE: Self = Self(u32::MAX);

    /// The slot as an index.
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

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

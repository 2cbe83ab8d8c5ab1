//! Members of a visit: which expert has which slot. Kept under the store's lock.

use std::sync::OnceLock;

use crate::arena::SlotReader;
use crate::cache::options::Phase;
use crate::{ExpertId, SlotId};

/// What the lock protects of a visit.
pub(super) struct VisitState {
    pub(super) active: bool,
    pub(super) phase: Phase,
    members: Vec<Member>,
    /// Members that still need a slot.
    pub(super) unassigned: usize,
    /// Slots pinned.
    pub(super) assigned: usize,
    /// Its caller waits no more: reads that have not begun are withdrawn at its end.
    pub(super) given_up: bool,
}

/// The position of an expert in its visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct MemberId(pub(super) usize);

/// One expert of a visit.
#[derive(Clone, Copy)]
pub(super) struct Member {
    pub(super) expert: ExpertId,
    /// [`SlotId::NONE`] while unassigned and after release.
    pub(super) slot: SlotId,
    pub(super) released: bool,
    /// Its bytes have been handed out: the slot cannot be given up before release.
    pub(super) taken: bool,
    /// Its read was under way when it asked for it, so that a failure says nothing of one that begins now.
    pub(super) joined: bool,
    /// Such a read has failed: the next one counts, by whichever visit.
    repeated: bool,
}

/// Per-visit memory that is used again, so that visits do not allocate.
pub(super) struct Scratch {
    pub(super) ids: Vec<ExpertId>,
    pub(super) leases: Vec<OnceLock<SlotReader>>,
    pub(super) hits: Vec<bool>,
    pub(super) order: Vec<usize>,
}

impl VisitState {
    pub(super) fn with_capacity(experts: usize) -> Self {
        Self {
            active: false,
            phase: Phase::Decode,
            members: Vec::with_capacity(experts),
            unassigned: 0,
            assigned: 0,
            given_up: false,
        }
    }

    /// Begins anew with `experts`; none has a slot.
    pub(super) fn begin(&mut self, experts: &[ExpertId], phase: Phase) {
        self.active = true;
        self.phase = phase;
        self.members.clear();
        self.unassigned = experts.len();
        self.assigned = 0;
        self.given_up = false;
        let member = |&expert| Member {
            expert,
            slot: SlotId::NONE,
            released: false,
            taken: false,
            joined: false,
            repeated: false,
        };
        self.members.extend(experts.iter().map(member));
    }

    /// What is known of a member.
    pub(super) fn member(&self, member: MemberId) -> Member {
        self.members[member.0]
    }

    /// All members, in order.
    pub(super) fn ids(&self) -> impl Iterator<Item = MemberId> + use<> {
        (0..self.members.len()).map(MemberId)
    }

    /// The last member that `is_wanted` says.
    pub(super) fn last(&self, is_wanted: impl FnMut(&Member) -> bool) -> Option<MemberId> {
        self.members.iter().rposition(is_wanted).map(MemberId)
    }

    /// The bytes of a member have been handed out.
    pub(super) fn take(&mut self, member: MemberId) {
        self.members[member.0].taken = true;
    }

    /// A member has got a slot, which is pinned for it; `reading` if it is being filled for another.
    pub(super) fn assign(&mut self, member: MemberId, slot: SlotId, reading: bool) {
        let entry = &mut self.members[member.0];
        entry.slot = slot;
        entry.joined = reading && !entry.repeated;
        self.unassigned -= 1;
        self.assigned += 1;
    }

    /// Takes the slot of a member away again, to be unpinned; it will be read anew.
    pub(super) fn take_away(&mut self, member: MemberId) -> SlotId {
        self.unassigned += 1;
        self.assigned -= 1;
        std::mem::replace(&mut self.members[member.0].slot, SlotId::NONE)
    }

    /// The read that a member had joined has failed. Its slot, to be unpinned; it will be read anew, once.
    pub(super) fn repeat(&mut self, member: MemberId) -> SlotId {
        self.members[member.0].repeated = true;
        self.take_away(member)
    }

    /// A member is done with. Its slot, to be unpinned, where it had one.
    pub(super) fn release(&mut self, member: MemberId) -> Option<SlotId> {
        let entry = &mut self.members[member.0];
        if std::mem::replace(&mut entry.released, true) {
            return None;
        }
        entry.taken = false;
        match std::mem::replace(&mut entry.slot, SlotId::NONE) {
            SlotId::NONE => {
                self.unassigned -= 1;
                None
            }
            slot => {
                self.assigned -= 1;
                Some(slot)
            }
        }
    }
}

impl Scratch {
    pub(super) fn with_capacity(experts: usize) -> Self {
        Self {
            ids: Vec::with_capacity(experts),
            leases: Vec::with_capacity(experts),
            hits: Vec::with_capacity(experts),
            order: Vec::with_capacity(experts),
        }
    }
}

//! Experts of a head's layer: a draft uses what a device can read at once, and waits for nothing. What it left out is
//! read meanwhile, and named as soon as the host tier has it.
//!
//! No step passes the layer. The policy learns what drafts used of it with the next step's uses, as visits of their own
//! kind.

use store::{ExpertId, LayerId};

use super::{DeviceMemory, Residency};

/// What drafts have used and missed.
pub(super) struct DraftUses {
    pub(super) layer: LayerId,
    /// Since the last step ended.
    pub(super) used: Vec<ExpertId>,
    /// Asked for, each once.
    absent: Vec<ExpertId>,
}

impl<D: DeviceMemory> Residency<D> {
    /// Says that a layer is a head's.
    pub(crate) fn expect_drafts(&mut self, layer: LayerId) {
        self.drafts = Some(DraftUses { layer, used: Vec::new(), absent: Vec::new() });
    }

    /// Between batches, before a draft: names what it can read. The words may have changed.
    pub(crate) fn begin_draft(&mut self) {
        if !self.can_miss {
            return;
        }
        if std::mem::take(&mut self.unnamed) {
            self.name_host_copies();
        }
        let Some(drafts) = &mut self.drafts else { return };
        let (layer, store, placement) = (drafts.layer, &self.store, &mut self.placement);
        drafts.absent.retain(|&expert| {
            let key = placement.key(layer, expert);
            if placement.in_device(key) || placement.in_host(key) {
                return false;
            }
            let Some(held) = store.hold(layer, expert) else { return true };
            let address = self.bases[held.arena()] + held.offset() as u64;
            placement.add_host(key, address, held);
            false
        });
    }

    /// Drafts have ended that chose these experts.
    pub(crate) fn end_draft(&mut self, chosen: impl Iterator<Item = ExpertId>) {
        let Some(drafts) = self.drafts.as_mut().filter(|_| self.can_move) else { return };
        let words = self.placement.words();
        for expert in chosen {
            let list = match words[self.placement.key(drafts.layer, expert) as usize] {
                0 => &mut drafts.absent,
                _ => &mut drafts.used,
            };
            if !list.contains(&expert) {
                list.push(expert);
            }
        }
        if !drafts.absent.is_empty() {
            self.store.read_certain(&[(drafts.layer, drafts.absent.clone())]);
        }
    }
}

//! Which prefetched record is copied next, and into which scratch slot.
//!
//! Bookkeeping alone, so that its rules are tested without a device. `S` says where a record is copied from. A request
//! for a layer comes from the routing of the layer before, which runs when the experts of the layer before that have
//! been computed: so a slot can be filled anew two layers after it was filled, and what was wanted for layers that have
//! chosen by then is forgotten.

use std::collections::VecDeque;

use store::LayerId;

/// A record to copy.
struct Wanted<S> {
    layer: u16,
    key: u32,
    from: S,
}

/// A copy that is to begin.
pub(crate) struct Copy<S> {
    pub(crate) slot: usize,
    pub(crate) key: u32,
    pub(crate) from: S,
}

/// Copies wanted by the running step, best first, and what its slots hold.
pub(crate) struct CopyQueue<S> {
    wanted: VecDeque<Wanted<S>>,
    /// Layer for which each slot was last filled.
    slots: Vec<Option<u16>>,
    /// Slots are filled in turn.
    turn: usize,
    /// Records whose copies have begun.
    begun: Vec<u32>,
}

impl<S> CopyQueue<S> {
    pub(crate) fn new(slots: usize) -> Self {
        Self { wanted: VecDeque::new(), slots: vec![None; slots], turn: 0, begun: Vec::new() }
    }

    /// Asks for a copy for a layer; a second request for a record counts for nothing.
    pub(crate) fn want(&mut self, layer: LayerId, key: u32, from: S) {
        self.wanted.retain(|wanted| wanted.layer >= layer.0);
        if !self.wanted.iter().any(|wanted| wanted.key == key) && !self.begun.contains(&key) {
            self.wanted.push_back(Wanted { layer: layer.0, key, from });
        }
    }

    /// The next copy, for the layer after the `ended` first ones at most: while a layer still reads over the bus,
    /// copies would only take turns with what the step waits for. A record without a free slot is left out.
    pub(crate) fn next(&mut self, ended: u32) -> Option<Copy<S>> {
        while self.wanted.front().is_some_and(|wanted| u32::from(wanted.layer) <= ended) {
            let Wanted { layer, key, from } = self.wanted.pop_front()?;
            let slot = self.turn;
            if self.slots[slot].is_some_and(|last| last + 2 > layer) {
                continue;
            }
            self.turn = (slot + 1) % self.slots.len();
            self.slots[slot] = Some(layer);
            self.begun.push(key);
            return Some(Copy { slot, key, from });
        }
        None
    }

    /// A step has ended: nothing is wanted and every slot is free. True when a copy had begun.
    pub(crate) fn clear(&mut self) -> bool {
        let begun = !self.begun.is_empty();
        self.wanted.clear();
        self.begun.clear();
        self.slots.fill(None);
        begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slot and key of all copies that may begin.
    fn drain(queue: &mut CopyQueue<()>, ended: u32) -> Vec<(usize, u32)> {
        std::iter::from_fn(|| queue.next(ended)).map(|copy| (copy.slot, copy.key)).collect()
    }

    #[test]
    fn copies_wait_for_the_layer_before_and_are_forgotten_once_theirs_has_chosen() {
        let mut queue = CopyQueue::new(4);
        queue.want(LayerId(3), 30, ());
        queue.want(LayerId(3), 31, ());
        assert_eq!(drain(&mut queue, 2), []);
        assert_eq!(queue.next(3).map(|copy| copy.key), Some(30));
        // Layer 3 has chosen when something is wanted for layer 4.
        queue.want(LayerId(4), 40, ());
        assert_eq!(drain(&mut queue, 3), []);
        assert_eq!(drain(&mut queue, 4), [(1, 40)]);
    }

    #[test]
    fn a_record_is_copied_once_and_a_slot_not_before_its_layer_has_been_computed() {
        let mut queue = CopyQueue::new(2);
        for key in [10, 10, 11, 12] {
            queue.want(LayerId(1), key, ());
        }
        assert_eq!(drain(&mut queue, 1), [(0, 10), (1, 11)]);
        queue.want(LayerId(1), 10, ());
        queue.want(LayerId(2), 20, ());
        assert_eq!(drain(&mut queue, 2), [], "layer 1 still reads both slots");
        queue.want(LayerId(3), 30, ());
        assert_eq!(drain(&mut queue, 3), [(0, 30)]);
    }

    #[test]
    fn a_step_leaves_nothing_to_the_next() {
        let mut queue = CopyQueue::new(1);
        assert!(!queue.clear());
        queue.want(LayerId(5), 50, ());
        assert!(!queue.clear(), "nothing had begun");
        assert_eq!(drain(&mut queue, 9), []);
        queue.want(LayerId(5), 50, ());
        assert_eq!(drain(&mut queue, 9), [(0, 50)]);
        assert!(queue.clear());
        queue.want(LayerId(1), 50, ());
        assert_eq!(drain(&mut queue, 1), [(0, 50)]);
    }
}

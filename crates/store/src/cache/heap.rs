//! An indexed binary heap of slots: the evictable ones, coldest first.
//!
//! A pinned slot is taken out and put back when released, so the coldest evictable slot is always at
//! the top. All memory is allocated at start.

use crate::SlotId;

const ABSENT: u32 = u32::MAX;

/// Slots ordered by a score, the smallest first; equal scores by slot number.
pub(super) struct SlotHeap {
    /// Heap order.
    entries: Vec<(f64, SlotId)>,
    /// Position of each slot in `entries`.
    positions: Vec<u32>,
}

impl SlotHeap {
    /// An empty heap for slots below `slots`.
    pub(super) fn new(slots: usize) -> Self {
        Self { entries: Vec::with_capacity(slots), positions: vec![ABSENT; slots] }
    }

    /// Slots in the heap.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when this slot is in the heap.
    pub(super) fn contains(&self, slot: SlotId) -> bool {
        self.positions[slot.index()] != ABSENT
    }

    /// Adds a slot that is not in the heap.
    pub(super) fn insert(&mut self, slot: SlotId, score: f64) {
        debug_assert!(!self.contains(slot), "a slot is evictable once");
        self.entries.push((score, slot));
        self.rise(self.entries.len() - 1);
    }

    /// Takes the slot with the smallest score.
    pub(super) fn pop(&mut self) -> Option<SlotId> {
        let slot = self.peek()?;
        self.remove(slot);
        Some(slot)
    }

    /// The slot with the smallest score.
    pub(super) fn peek(&self) -> Option<SlotId> {
        self.entries.first().map(|&(_, slot)| slot)
    }

    /// Takes a slot out, if it is in the heap.
    pub(super) fn remove(&mut self, slot: SlotId) -> bool {
        let position = self.positions[slot.index()];
        if position == ABSENT {
            return false;
        }
        let position = position as usize;
        self.positions[slot.index()] = ABSENT;
        let last = self.entries.len() - 1;
        self.entries.swap(position, last);
        self.entries.pop();
        if position < self.entries.len() {
            self.positions[self.entries[position].1.index()] = position as u32;
            let settled = self.rise(position);
            self.sink(settled);
        }
        true
    }

    fn less(&self, a: usize, b: usize) -> bool {
        let (left, right) = (self.entries[a], self.entries[b]);
        left.0.total_cmp(&right.0).then(left.1.cmp(&right.1)).is_lt()
    }

    fn rise(&mut self, mut index: usize) -> usize {
        while index > 0 && self.less(index, (index - 1) / 2) {
            self.swap(index, (index - 1) / 2);
            index = (index - 1) / 2;
        }
        self.positions[self.entries[index].1.index()] = index as u32;
        index
    }

    fn sink(&mut self, mut index: usize) {
        loop {
            let left = 2 * index + 1;
            if left >= self.entries.len() {
                return;
            }
            let right = left + 1;
            let child =
                if right < self.entries.len() && self.less(right, left) { right } else { left };
            if !self.less(child, index) {
                return;
            }
            self.swap(index, child);
            index = child;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.entries.swap(a, b);
        self.positions[self.entries[a].1.index()] = a as u32;
        self.positions[self.entries[b].1.index()] = b as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a sorted list: the same slots in the same order after any operations.
        #[test]
        fn behaves_like_a_sorted_list(operations in prop::collection::vec((0u8..3, 0u32..40, 0u8..9), 0..400)) {
            let mut heap = SlotHeap::new(40);
            let mut model: Vec<(u8, SlotId)> = Vec::new();
            for (kind, slot, score) in operations {
                let slot = SlotId(slot);
                match kind {
                    0 if !heap.contains(slot) => {
                        heap.insert(slot, f64::from(score));
                        model.push((score, slot));
                    }
                    1 => {
                        let known = model.iter().position(|entry| entry.1 == slot);
                        prop_assert_eq!(heap.remove(slot), known.is_some());
                        if let Some(index) = known { model.remove(index); }
                    }
                    _ => {
                        let least = model.iter().min().copied();
                        prop_assert_eq!(heap.pop(), least.map(|entry| entry.1));
                        model.retain(|entry| Some(*entry) != least);
                    }
                }
                prop_assert_eq!(heap.entries.len(), model.len());
            }
        }
    }
}

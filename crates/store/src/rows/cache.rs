//! A cache of rows: sets of a few places, and in each the row that was used longest ago gives way.

/// Places of a set.
const WAYS: usize = 4;
/// No row.
const EMPTY: u64 = u64::MAX;

/// What is known of a place.
#[derive(Clone, Copy)]
struct Entry {
    row: u64,
    /// When it was used last.
    used: u64,
}

/// Rows in memory, as far as the bytes given hold.
pub(super) struct RowCache {
    row_bytes: usize,
    entries: Vec<Entry>,
    bytes: Vec<u8>,
    clock: u64,
}

impl RowCache {
    /// A cache that takes at most `bytes`; none at all if they do not hold a set.
    pub(super) fn new(bytes: u64, row_bytes: usize) -> Self {
        let set = WAYS * (row_bytes + size_of::<Entry>());
        let places = usize::try_from(bytes / set as u64).unwrap_or(0) * WAYS;
        Self {
            row_bytes,
            entries: vec![Entry { row: EMPTY, used: 0 }; places],
            bytes: vec![0; places * row_bytes],
            clock: 0,
        }
    }

    /// Bytes in which all of `rows` rows have a place.
    pub(super) fn bytes_for(row_bytes: usize, rows: u64) -> u64 {
        let set = WAYS * (row_bytes + size_of::<Entry>());
        rows.div_ceil(WAYS as u64).saturating_mul(set as u64)
    }

    /// The first place of a row's set. Rows of one head are numbered in a run, so that neighbours share no set.
    fn set(&self, row: u64) -> Option<usize> {
        let sets = (self.entries.len() / WAYS) as u64;
        (sets > 0).then(|| (row % sets) as usize * WAYS)
    }

    /// The bytes of a row, if it is there.
    pub(super) fn find(&mut self, row: u64) -> Option<&[u8]> {
        let set = self.set(row)?;
        let place = (set..set + WAYS).find(|&place| self.entries[place].row == row)?;
        self.clock += 1;
        self.entries[place].used = self.clock;
        Some(&self.bytes[place * self.row_bytes..(place + 1) * self.row_bytes])
    }

    /// Keeps a row that is not there.
    pub(super) fn keep(&mut self, row: u64, bytes: &[u8]) {
        let Some(set) = self.set(row) else { return };
        let places = set..set + WAYS;
        let known = places.clone().find(|&place| self.entries[place].row == row);
        let oldest = || places.min_by_key(|&place| self.entries[place].used);
        let Some(place) = known.or_else(oldest) else { return };
        self.clock += 1;
        self.entries[place] = Entry { row, used: self.clock };
        self.bytes[place * self.row_bytes..(place + 1) * self.row_bytes].copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_used_longest_ago_gives_way_within_its_set() {
        let set = (WAYS * (2 + size_of::<Entry>())) as u64;
        let mut cache = RowCache::new(2 * set + 1, 2);
        let bytes = |row: u64| [row as u8, 7];
        for row in [0, 2, 4, 6, 1] {
            cache.keep(row, &bytes(row));
        }
        assert_eq!(cache.find(0), Some(&bytes(0)[..]));
        cache.keep(8, &bytes(8));
        let found = [0, 1, 2, 4, 6, 8].map(|row| cache.find(row).is_some());
        assert_eq!(found, [true, true, false, true, true, true]);
        assert_eq!(cache.find(8), Some(&bytes(8)[..]));
    }

    #[test]
    fn a_cache_for_all_rows_holds_them() {
        let mut cache = RowCache::new(RowCache::bytes_for(3, 101), 3);
        (0..101).for_each(|row| cache.keep(row, &[row as u8; 3]));
        assert!((0..101).all(|row| cache.find(row) == Some(&[row as u8; 3][..])));
    }

    #[test]
    fn too_few_bytes_are_no_cache() {
        let mut cache = RowCache::new(10, 320);
        cache.keep(5, &[0; 320]);
        assert_eq!(cache.find(5), None);
    }
}

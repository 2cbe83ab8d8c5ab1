//! Sets of characters, as ranges of code points.

/// The last code point.
const LAST: u32 = 0x10_ffff;
/// Code points that are no characters.
const SURROGATES: (u32, u32) = (0xd800, 0xdfff);

/// A set of characters: ascending ranges, both ends included, that neither touch nor overlap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Characters(Vec<(u32, u32)>);

impl Characters {
    /// The set of some ranges in any order.
    pub(super) fn of(ranges: impl IntoIterator<Item = (char, char)>) -> Self {
        let ranges = ranges.into_iter().map(|(first, last)| (u32::from(first), u32::from(last)));
        Self::merged(ranges.collect())
    }

    /// The set of one character.
    pub(super) fn one(character: char) -> Self {
        Self::of([(character, character)])
    }

    fn merged(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.retain(|(first, last)| first <= last);
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(before) if first <= before.1 + 1 => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    /// All characters that are not in the set.
    pub(super) fn complement(&self) -> Self {
        let mut ranges = Vec::with_capacity(self.0.len() + 2);
        let mut next = 0;
        let taken = self.0.iter().copied().chain([SURROGATES]);
        for (first, last) in Self::merged(taken.collect()).0 {
            if next < first {
                ranges.push((next, first - 1));
            }
            next = last + 1;
        }
        if next <= LAST {
            ranges.push((next, LAST));
        }
        Self(ranges)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds another set; whether there was anything new in it.
    pub(super) fn add(&mut self, other: &Self) -> bool {
        if other.is_empty() {
            return false;
        }
        let both = Self::merged(self.0.iter().chain(&other.0).copied().collect());
        let grown = both != *self;
        *self = both;
        grown
    }

    /// Whether a character is in both sets.
    pub(super) fn meets(&self, other: &Self) -> bool {
        let (mut one, mut two) = (self.0.iter(), other.0.iter());
        let (mut left, mut right) = (one.next(), two.next());
        while let (Some(a), Some(b)) = (left, right) {
            if a.0 <= b.1 && b.0 <= a.1 {
                return true;
            }
            if a.1 < b.1 {
                left = one.next();
            } else {
                right = two.next();
            }
        }
        false
    }

    /// As a class of a regular expression.
    pub(super) fn class(&self) -> String {
        let range = |(first, last): &(u32, u32)| format!("\\x{{{first:x}}}-\\x{{{last:x}}}");
        format!("[{}]", self.0.iter().map(range).collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_merged_turned_over_and_compared() {
        let letters = Characters::of([('b', 'd'), ('a', 'b'), ('e', 'e'), ('z', 'x')]);
        assert_eq!(letters, Characters::of([('a', 'e')]));
        assert_eq!(letters.class(), "[\\x{61}-\\x{65}]");
        let others = letters.complement();
        assert_eq!(others.class(), "[\\x{0}-\\x{60}\\x{66}-\\x{d7ff}\\x{e000}-\\x{10ffff}]");
        assert!(!letters.meets(&others) && others.complement().meets(&letters));
        assert_eq!(others.complement(), letters);
        assert!(letters.meets(&Characters::of([('0', '9'), ('e', 'f')])));
        assert!(!letters.meets(&Characters::of([('0', '9'), ('f', 'z')])));
        let mut all = letters.clone();
        assert!(all.add(&others) && !all.add(&letters));
    }
}

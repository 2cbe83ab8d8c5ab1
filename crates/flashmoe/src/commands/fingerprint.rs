//! A fingerprint of numbers, by which runs are compared: FNV-1a, 64 bits, over words instead of bytes. It finds
//! differences, nothing more.

/// A fingerprint that numbers are added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint(u64);

impl Fingerprint {
    /// Of nothing.
    pub(super) const START: Self = Self(0xcbf2_9ce4_8422_2325);

    /// With one more word.
    pub(super) fn word(self, word: u64) -> Self {
        Self((self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3))
    }

    /// With the bits of more numbers.
    pub(super) fn floats(self, values: &[f32]) -> Self {
        values.iter().fold(self, |sum, value| sum.word(value.to_bits().into()))
    }

    /// Of several runs in their order.
    pub(super) fn of_all(runs: impl Iterator<Item = Self>) -> Self {
        Self(runs.fold(0, |sum: u64, run| sum.rotate_left(1) ^ run.0))
    }

    /// All 64 bits.
    pub(super) fn bits(self) -> u64 {
        self.0
    }

    /// Eight digits of it, for people.
    pub(super) fn short(self) -> String {
        format!("{:08x}", (self.0 ^ (self.0 >> 32)) as u32)
    }
}

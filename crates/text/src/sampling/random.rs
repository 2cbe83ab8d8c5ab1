//! xoshiro256++, seeded by SplitMix64.
//!
//! Blackman and Vigna, "Scrambled Linear Pseudorandom Number Generators", ACM Transactions on Mathematical
//! Software 47(4), 2021. Written out here because a seed must mean the same tokens in every release, which
//! crates of random numbers do not promise.

use store::split_mix::SplitMix64;

/// The generator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xoshiro256 {
    state: [u64; 4],
}

impl Xoshiro256 {
    /// Four outputs of SplitMix64 make the state.
    pub fn new(seed: u64) -> Self {
        let mut seeds = SplitMix64(seed);
        Self { state: std::array::from_fn(|_| seeds.next_u64()) }
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [s0, s1, s2, s3] = &mut self.state;
        let result = s0.wrapping_add(*s3).rotate_left(23).wrapping_add(*s0);
        let t = *s1 << 17;
        *s2 ^= *s0;
        *s3 ^= *s1;
        *s1 ^= *s2;
        *s0 ^= *s3;
        *s2 ^= t;
        *s3 = s3.rotate_left(45);
        result
    }

    /// A number below `bound`, by multiplication (Lemire). `bound` is below 2^58 here, so the bias of not
    /// rejecting is below 2^-6 of one part in 2^58.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the upper half of a 128-bit product")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_reference_sequence() {
        // The authors' C program with state 1, 2, 3, 4.
        let mut random = Xoshiro256 { state: [1, 2, 3, 4] };
        for expected in [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386] {
            assert_eq!(random.next_u64(), expected);
        }
        // SplitMix64 from 1234567.
        let seeded = Xoshiro256::new(1_234_567);
        let expected: [u64; 4] = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
        ];
        assert_eq!(seeded.state, expected);
    }
}

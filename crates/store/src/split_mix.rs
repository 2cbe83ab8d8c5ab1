//! SplitMix64: random numbers of any seed that mean the same in every release, good enough for noise and for seeding.
//!
//! Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.

/// A stream of numbers; the field is where it stands, any number to begin with.
#[derive(Clone, Debug)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A standard normal number, by Box and Muller.
    pub fn normal(&mut self) -> f32 {
        let unit = |bits: u64| ((bits >> 40) as f32 + 0.5) / (1u64 << 24) as f32;
        let (radius, angle) = (unit(self.next_u64()), unit(self.next_u64()));
        (-2.0 * radius.ln()).sqrt() * (std::f32::consts::TAU * angle).cos()
    }
}

/// A bijection that makes neighbours look unrelated: the generator's finaliser.
pub fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_numbers_are_those_of_the_paper() {
        let mut numbers = SplitMix64(1_234_567);
        // From the authors' reference program.
        let first = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973];
        assert_eq!([numbers.next_u64(), numbers.next_u64()], first);
    }
}

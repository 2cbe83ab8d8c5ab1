//! Names and times that go into answers: the only two things in them that are not a function of the request.
//!
//! They come through a trait, so that a test's transcripts are the same every time.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Gives identifiers and the time.
pub trait Identify: Send + Sync + fmt::Debug {
    /// An identifier without prefix: letters and digits, at least 96 bits of chance.
    fn identifier(&self) -> String;

    /// The seed of a request that gives none. It is reported, and JSON numbers are exact below 2^53 alone.
    fn seed(&self) -> u64;

    /// Seconds since 1970.
    fn now_s(&self) -> u64;
}

/// Bits of a seed that is drawn: what every reader of JSON keeps.
const SEED_BITS: u32 = 53;

/// From the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl System {
    fn random<const N: usize>() -> [u8; N] {
        let mut bytes = [0; N];
        getrandom::fill(&mut bytes).expect("the operating system has random numbers");
        bytes
    }
}

impl Identify for System {
    fn identifier(&self) -> String {
        Self::random::<16>().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn seed(&self) -> u64 {
        u64::from_le_bytes(Self::random()) >> (u64::BITS - SEED_BITS)
    }

    fn now_s(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_survives_readers_that_have_floating_point_alone() {
        let seeds: Vec<u64> = (0..1000).map(|_| System.seed()).collect();
        assert!(seeds.iter().all(|&seed| seed as f64 as u64 == seed && seed < 1 << 53));
        assert!(seeds.iter().any(|&seed| seed > 1 << 48), "all bits below are used");
    }
}

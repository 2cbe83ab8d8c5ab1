//! Rotation of queries and keys by position: frequencies, and how they are stretched beyond the trained context.

use std::f64::consts::TAU;

use store::format::config::keys;
use store::format::{Configuration, FormatError};

/// Rotation of the leading values of each head, in pairs `(j, j + dims / 2)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Leading values of a head that are rotated.
    pub dims: usize,
    /// Stretched for contexts longer than trained.
    pub yarn: Option<Yarn>,
}

/// Frequencies that turn often in the trained context stay, slow ones are divided, those between are mixed (Peng et
/// al., "YaRN", 2023; reference: transformers `_compute_yarn_parameters`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// How much longer contexts may be.
    pub factor: f64,
    /// Longest context before.
    pub original: usize,
    /// Turns in that context from which on a frequency stays.
    pub fast: f64,
    /// Turns up to which a frequency is divided.
    pub slow: f64,
    /// Whether the bounds between the two are whole pairs.
    pub truncate: bool,
    /// What rotated values are multiplied by.
    pub magnitude: f32,
}

impl Rope {
    /// Reads the rotation of `dims` values, with the family's base where the configuration is silent.
    ///
    /// # Errors
    /// A key that is missing or whose effect is not computed.
    pub fn read(from: &Configuration, dims: usize, theta: f64) -> Result<Self, FormatError> {
        let kind = from.get(&keys::ROPE_TYPE)?.or(from.get(&keys::ROPE_KIND)?);
        let yarn = match kind {
            Some("yarn") => Some(Yarn::read(from)?),
            _ => None,
        };
        Ok(Self { theta: from.rope_theta()?.unwrap_or(theta), dims, yarn })
    }

    /// `theta^(-2j / dims)` for each pair, rounded to f32 once, as the reference does.
    pub fn inverse_frequencies(&self) -> Vec<f32> {
        let exponent = |pair: usize| (2 * pair) as f32 / self.dims as f32;
        let power = |pair: usize| (self.theta as f32).powf(exponent(pair));
        let Some(yarn) = &self.yarn else {
            return (0..self.dims / 2).map(|pair| 1.0 / power(pair)).collect();
        };
        let (low, high) = yarn.bounds(self);
        let mixed = |pair: usize| {
            let slow = ((pair as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
            let stays = 1.0 - slow;
            1.0 / (yarn.factor as f32 * power(pair)) * (1.0 - stays) + 1.0 / power(pair) * stays
        };
        (0..self.dims / 2).map(mixed).collect()
    }

    /// What rotated values are multiplied by.
    pub fn magnitude(&self) -> f32 {
        self.yarn.map_or(1.0, |yarn| yarn.magnitude)
    }
}

impl Yarn {
    fn read(from: &Configuration) -> Result<Self, FormatError> {
        if from.get(&keys::ROPE_MSCALE)?.is_some() {
            return Err(from.invalid(&keys::ROPE_MSCALE, "is set, and is not computed"));
        }
        let factor = from.required(&keys::ROPE_FACTOR)?;
        let original = match from.get(&keys::ROPE_ORIGINAL)? {
            Some(original) => original,
            None => from.required(&keys::MAX_POSITION_EMBEDDINGS)?,
        };
        let magnitude = from.get(&keys::ROPE_ATTENTION_FACTOR)?;
        let (fast, slow) = (from.get(&keys::ROPE_BETA_FAST)?, from.get(&keys::ROPE_BETA_SLOW)?);
        Ok(Self {
            factor,
            original,
            fast: fast.unwrap_or(32.0),
            slow: slow.unwrap_or(1.0),
            truncate: from.get(&keys::ROPE_TRUNCATE)?.unwrap_or(true),
            magnitude: magnitude.unwrap_or(0.1 * factor.ln() + 1.0) as f32,
        })
    }

    /// The pairs between which frequencies are mixed.
    fn bounds(&self, rope: &Rope) -> (f64, f64) {
        let pair = |turns: f64| {
            let wave = (self.original as f64 / (turns * TAU)).ln();
            rope.dims as f64 * wave / (2.0 * rope.theta.ln())
        };
        let (mut low, mut high) = (pair(self.fast), pair(self.slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, mut high) = (low.max(0.0), high.min(rope.dims as f64 - 1.0));
        if low == high {
            high += 0.001;
        }
        (low, high)
    }
}

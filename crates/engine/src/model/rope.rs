//! Rotation of queries and keys by position: frequencies, and how they are stretched beyond the trained context.

use std::f64::consts::TAU;
use std::ops::Range;

use store::format::config::keys;
use store::format::{Configuration, FormatError};

/// Rotation of some values of each head, the leading ones but in latent attention, in pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Values of a head that are rotated.
    pub dims: usize,
    /// Which of them are rotated together.
    pub pairs: Pairs,
    /// Pairs that turn, the first ones; the others have the frequency zero and stay.
    pub turning: usize,
    /// Stretched for contexts longer than trained.
    pub yarn: Option<Yarn>,
}

/// Which values are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// `j` and `j + dims / 2`.
    Halves,
    /// `2j` and `2j + 1`.
    Neighbours,
}

impl Pairs {
    /// The rows of `heads` heads of `dim` values in the order in which those of a pair lie half the rotated values,
    /// `rotated`, apart; `None` where they lie so. Scores do not change when those of queries and of keys are moved.
    pub fn moved_rows(self, heads: usize, dim: usize, rotated: usize) -> Option<Vec<Range<usize>>> {
        let of_head = |head: usize| {
            let first = head * dim;
            let turn = move |odd: usize| (0..rotated / 2).map(move |pair| first + 2 * pair + odd);
            let rows = turn(0).chain(turn(1)).chain(first + rotated..first + dim);
            rows.map(|row| row..row + 1)
        };
        (self == Self::Neighbours).then(|| (0..heads).flat_map(of_head).collect())
    }

    /// Copies the values of one head so that those of a pair lie half the values apart. Scores do not change when
    /// queries and keys are both rotated and left in this order (reference: transformers
    /// `apply_rotary_pos_emb_interleave`).
    pub fn part(self, from: &[f32], to: &mut [f32]) {
        match self {
            Self::Halves => to.copy_from_slice(from),
            Self::Neighbours => {
                let (first, second) = to.split_at_mut(from.len() / 2);
                let pairs = from.as_chunks::<2>().0;
                for (pair, (first, second)) in pairs.iter().zip(first.iter_mut().zip(second)) {
                    [*first, *second] = *pair;
                }
            }
        }
    }
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
    /// Reads the rotation of `dims` values.
    ///
    /// # Errors
    /// A key that is missing or whose effect is not computed.
    pub fn read(from: &Configuration, dims: usize) -> Result<Self, FormatError> {
        let kind = from.get(&keys::ROPE_TYPE)?.or(from.get(&keys::ROPE_KIND)?);
        let yarn = match kind {
            Some("yarn") => Some(Yarn::read(from)?),
            _ => None,
        };
        let (theta, pairs) = (from.rope_theta()?, Pairs::Halves);
        Ok(Self { theta, dims, pairs, turning: dims / 2, yarn })
    }

    /// A rotation over `dims` values that turns none of them.
    pub fn still(dims: usize) -> Self {
        Self { theta: 1.0, dims, pairs: Pairs::Halves, turning: 0, yarn: None }
    }

    /// `theta^(-2j / dims)` for each pair that turns, rounded to f32 once, as the reference does; zero for the others.
    pub fn inverse_frequencies(&self) -> Vec<f32> {
        let exponent = |pair: usize| (2 * pair) as f32 / self.dims as f32;
        let power = |pair: usize| (self.theta as f32).powf(exponent(pair));
        let Some(yarn) = &self.yarn else {
            let turning = (0..self.turning).map(|pair| 1.0 / power(pair));
            return turning.chain(std::iter::repeat(0.0)).take(self.dims / 2).collect();
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
        let factor = from.required(&keys::ROPE_FACTOR)?;
        let original = match from.get(&keys::ROPE_ORIGINAL)? {
            Some(original) => original,
            // Not the family's default, which says nothing of how this model was trained.
            None => from.stated(&keys::MAX_POSITION_EMBEDDINGS)?.ok_or_else(|| {
                from.invalid(&keys::ROPE_ORIGINAL, "missing, as is max_position_embeddings")
            })?,
        };
        let scales = (from.get(&keys::ROPE_MSCALE)?, from.get(&keys::ROPE_MSCALE_ALL)?);
        let inferred = match scales {
            (Some(scale), Some(all)) if scale != 0.0 && all != 0.0 => {
                magnitude(factor, scale) / magnitude(factor, all)
            }
            _ => magnitude(factor, 1.0),
        };
        let stated = from.get(&keys::ROPE_ATTENTION_FACTOR)?;
        Ok(Self {
            factor,
            original,
            fast: from.required(&keys::ROPE_BETA_FAST)?,
            slow: from.required(&keys::ROPE_BETA_SLOW)?,
            truncate: from.required(&keys::ROPE_TRUNCATE)?,
            magnitude: stated.unwrap_or(inferred) as f32,
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

/// How much larger values are to be in contexts longer by `factor`.
pub(super) fn magnitude(factor: f64, scale: f64) -> f64 {
    0.1 * scale * factor.ln() + 1.0
}

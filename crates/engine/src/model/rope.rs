//! Rotation of queries and keys by position: frequencies, and how they are stretched beyond the trained context.

/// Rotation of the leading values of each head, in pairs `(j, j + dims / 2)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Leading values of a head that are rotated.
    pub dims: usize,
}

impl Rope {
    /// `theta^(-2j / dims)` for each pair, rounded to f32 once, as the reference does.
    pub fn inverse_frequencies(&self) -> Vec<f32> {
        let exponent = |pair: usize| (2 * pair) as f32 / self.dims as f32;
        (0..self.dims / 2).map(|pair| 1.0 / (self.theta as f32).powf(exponent(pair))).collect()
    }
}

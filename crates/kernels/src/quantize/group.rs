//! Scale, bias and values of one group.
//!
//! The loops are over plain slices of 32 to 128 floats without branches, so that they vectorise:
//! [`Method::Search`] tries some forty assignments per group.

use super::{Method, rounded};
use crate::format::FloatType;

/// Smallest scale of MLX: keeps the division of a constant group finite.
const MLX_EPSILON: f32 = 1e-7;

/// Shares of the full range that the search starts from. At two bits a third of the range cut off
/// pays, at eight bits nothing: the error decides.
const RANGES: [f32; 10] = [1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.75, 0.7, 0.65, 0.6];

/// Rounds of assignment and least squares per start; the fourth changes fewer than one group in a
/// hundred.
const ROUNDS: usize = 3;

/// Rounds a value within `0..=255` to the nearest integer, ties to even: adding 1.5 * 2^23 leaves no
/// bits for a fraction. (The library call is not vectorised without SSE4.1.)
#[inline(always)]
fn nearest(value: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (value + SHIFT) - SHIFT
}

/// Encodes one group; returns scale and bias as they are to be stored in `float`.
pub(super) fn encode(
    values: &[f32],
    bits: u8,
    method: Method,
    float: FloatType,
    out: &mut [u8],
) -> (f32, f32) {
    let levels = ((1u32 << bits) - 1) as f32;
    let min = values.iter().fold(f32::INFINITY, |a, &b| if b < a { b } else { a });
    let max = values.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
    let (scale, bias) = match method {
        Method::MinMax => mlx(min, max, levels),
        Method::SeedMinMax => ((max - min) / levels, min),
        Method::Search => search(values, min, max, levels, float),
    };
    assign(values, scale, bias, levels, out);
    (rounded(float, scale), rounded(float, bias))
}

/// Parameters of MLX's `quantize`, before they are rounded to the storage type.
fn mlx(min: f32, max: f32, levels: f32) -> (f32, f32) {
    let lower_is_edge = min.abs() > max.abs();
    let scale = ((max - min) / levels).max(MLX_EPSILON);
    let (scale, edge) = if lower_is_edge { (scale, min) } else { (-scale, max) };
    let steps = (edge / scale).round_ties_even();
    if steps == 0.0 { (scale, 0.0) } else { (edge / steps, edge) }
}

/// `out = clamp(round((value - bias) / scale), 0, levels)`; all zero for a zero scale.
#[inline(always)]
fn assign(values: &[f32], scale: f32, bias: f32, levels: f32, out: &mut [u8]) {
    if scale == 0.0 {
        out.fill(0);
        return;
    }
    for (q, &value) in out.iter_mut().zip(values) {
        *q = nearest(((value - bias) / scale).clamp(0.0, levels)) as u8;
    }
}

/// Least squares over starts and rounds, with parameters as they will be stored.
fn search(values: &[f32], min: f32, max: f32, levels: f32, float: FloatType) -> (f32, f32) {
    let n = values.len() as f32;
    let mean = values.iter().sum::<f32>() / n;
    // A constant group: exact up to the rounding of the bias. Also a range too small for `float`.
    let mut best = (0.0, rounded(float, mean));
    let mut best_error = error(values, best.0, best.1, levels);
    let centre = (min + max) / 2.0;
    for range in RANGES {
        let half = (max - min) / 2.0 * range;
        let mut scale = rounded(float, 2.0 * half / levels);
        let mut bias = rounded(float, centre - half);
        for round in 0..=ROUNDS {
            if scale == 0.0 || !scale.is_finite() {
                break;
            }
            let found = error(values, scale, bias, levels);
            if found < best_error {
                (best, best_error) = ((scale, bias), found);
            }
            if round == ROUNDS {
                break;
            }
            let (s, b) = least_squares(values, mean, scale, bias, levels);
            (scale, bias) = (rounded(float, s), rounded(float, b));
        }
    }
    best
}

/// Sum of squared errors of a group under given parameters.
#[inline(always)]
fn error(values: &[f32], scale: f32, bias: f32, levels: f32) -> f32 {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut sums = [0.0f32; 16];
    for values in values.chunks_exact(16) {
        for (sum, &value) in sums.iter_mut().zip(values) {
            let q = nearest(((value - bias) * inverse).clamp(0.0, levels));
            let difference = q * scale + bias - value;
            *sum += difference * difference;
        }
    }
    sums.iter().sum()
}

/// The scale and bias of least squared error for the assignment that the given ones make.
#[inline(always)]
fn least_squares(values: &[f32], mean: f32, scale: f32, bias: f32, levels: f32) -> (f32, f32) {
    let inverse = 1.0 / scale;
    let (mut q1, mut q2, mut qx) = ([0.0f32; 16], [0.0f32; 16], [0.0f32; 16]);
    for values in values.chunks_exact(16) {
        for lane in 0..16 {
            let q = nearest(((values[lane] - bias) * inverse).clamp(0.0, levels));
            q1[lane] += q;
            q2[lane] += q * q;
            qx[lane] += q * (values[lane] - mean);
        }
    }
    let n = values.len() as f32;
    let (q1, q2, qx): (f32, f32, f32) = (q1.iter().sum(), q2.iter().sum(), qx.iter().sum());
    // Sums about the means; `values - mean` sums to zero, so `qx` needs no correction.
    let variance = q2 - q1 * q1 / n;
    if variance <= 0.0 {
        return (0.0, mean);
    }
    let scale = qx / variance;
    (scale, mean - scale * q1 / n)
}

//! Rounds activations to 16 bits per group and stores them in the order of the kernel.

use crate::activations::{COLUMN_PAD, IntegerKey, LARGEST, arrange};
use crate::lanes::{LANES, Lanes};

/// Magnitudes below this are taken as zero: their reciprocal would overflow. Nothing that a norm
/// lets through is within 20 orders of magnitude of it.
const NEGLIGIBLE: f32 = 1e-32;

/// Prepares one token: `x [columns]` to `values` (`2 * padded columns` bytes), `scales` and `sums`
/// (padded groups). A group that holds an infinity or NaN gets the scale NaN, so that the outputs
/// of the token are NaN and not plausible numbers.
///
/// # Safety
///
/// The instruction set of `L` must be available.
#[inline(always)]
pub(crate) unsafe fn prepare<L: Lanes>(
    x: &[f32],
    key: IntegerKey,
    values: &mut [u8],
    scales: &mut [f32],
    sums: &mut [f32],
) {
    scales.fill(0.0);
    sums.fill(0.0);
    let mut step = [0i16; COLUMN_PAD];
    for (index, out) in values.chunks_exact_mut(2 * COLUMN_PAD).enumerate() {
        let first = index * COLUMN_PAD;
        let columns = COLUMN_PAD.min(x.len() - first);
        step[columns..].fill(0);
        for at in (0..columns).step_by(key.group) {
            let from = &x[first + at..first + at + key.group];
            // SAFETY: groups are multiples of 32 within `x` and within the step.
            let (scale, sum) = unsafe { quantise::<L>(from, &mut step[at..at + key.group]) };
            scales[(first + at) / key.group] = scale;
            sums[(first + at) / key.group] = sum;
        }
        arrange(key.packing, &step, out);
    }
}

/// One group: returns its scale and the sum of its rounded values times the scale.
///
/// # Safety
///
/// Both slices have the same length, a multiple of 16; the instruction set is available.
#[inline(always)]
unsafe fn quantise<L: Lanes>(x: &[f32], out: &mut [i16]) -> (f32, f32) {
    // SAFETY: as above.
    unsafe {
        let mut bits = 0;
        for at in (0..x.len()).step_by(LANES) {
            bits = L::load(x.as_ptr().add(at)).max_magnitude_bits().max(bits);
        }
        let largest = f32::from_bits(bits);
        if !largest.is_finite() || largest < NEGLIGIBLE {
            out.fill(0);
            let scale = if largest.is_finite() { 0.0 } else { f32::NAN };
            return (scale, scale);
        }
        let inverse = L::splat(LARGEST / largest);
        for at in (0..x.len()).step_by(LANES) {
            let v = L::load(x.as_ptr().add(at)).mul(inverse);
            v.store_rounded(out.as_mut_ptr().add(at));
        }
        let sum: i32 = out.iter().map(|&v| i32::from(v)).sum();
        let scale = largest / LARGEST;
        (scale, sum as f32 * scale)
    }
}

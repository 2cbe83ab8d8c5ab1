//! Norms, gates, sums, rotation, softmax and the short convolution.
//!
//! Rows are walked sixteen lanes at a time with a masked tail; sums keep sixteen lane sums, added
//! up at the end by the fixed tree of [`Lanes::sum`].

use crate::lanes::{LANES, Lanes, exp, sigmoid, silu};

/// Runs a block for each vector of `0..len` with its start and its count, below 16 only for the last.
///
/// A macro and not a function with a closure: closures do not inherit the features of the caller, and the
/// compiler left those of prefill outside, one call for each instruction (an eighth of the time).
macro_rules! vectors {
    ($len:expr, |$start:ident, $count:ident| $body:block) => {
        let len: usize = $len;
        let whole = len / LANES * LANES;
        let mut $start = 0;
        while $start < whole {
            let $count = LANES;
            $body
            $start += LANES;
        }
        if whole < len {
            let $count = len - whole;
            $body
        }
    };
}

/// # Safety
///
/// `count` floats must be readable at `from`.
#[inline(always)]
pub(crate) unsafe fn load<L: Lanes>(from: *const f32, count: usize) -> L {
    // SAFETY: passed on to the caller.
    unsafe { if count == LANES { L::load(from) } else { L::load_first(from, count) } }
}

/// # Safety
///
/// `count` floats must be writable at `to`.
#[inline(always)]
pub(crate) unsafe fn store<L: Lanes>(value: L, to: *mut f32, count: usize) {
    // SAFETY: passed on to the caller.
    unsafe { if count == LANES { value.store(to) } else { value.store_first(to, count) } }
}

/// `1 / sqrt(mean(x^2) + eps)`
///
/// # Safety
///
/// The instruction set of `L` must be available (as for all functions below).
#[inline(always)]
unsafe fn inverse_rms<L: Lanes>(x: &[f32], eps: f32) -> f32 {
    // SAFETY: `vectors` stays within `x`.
    unsafe {
        let mut squares = L::splat(0.0);
        vectors!(x.len(), |at, n| {
            let v: L = load(x.as_ptr().add(at), n);
            squares = v.mul_add(v, squares);
        });
        1.0 / (squares.sum() / x.len() as f32 + eps).sqrt()
    }
}

/// `out = x * inverse_rms(x) * weight` for one row; all slices have the same length.
///
/// # Safety
///
/// As for [`inverse_rms`].
#[inline(always)]
pub(crate) unsafe fn rms_norm<L: Lanes>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    // SAFETY: `vectors` stays within slices of equal length.
    unsafe {
        let factor = L::splat(inverse_rms::<L>(x, eps));
        vectors!(x.len(), |at, n| {
            let v: L = load(x.as_ptr().add(at), n);
            let w: L = load(weight.as_ptr().add(at), n);
            store(v.mul(factor).mul(w), out.as_mut_ptr().add(at), n);
        });
    }
}

/// `out = x * inverse_rms(x) * weight * silu(gate)` for one row.
///
/// # Safety
///
/// As for [`inverse_rms`].
#[inline(always)]
pub(crate) unsafe fn gated_rms_norm<L: Lanes>(
    x: &[f32],
    weight: &[f32],
    gate: &[f32],
    eps: f32,
    out: &mut [f32],
) {
    // SAFETY: `vectors` stays within slices of equal length.
    unsafe {
        let factor = L::splat(inverse_rms::<L>(x, eps));
        vectors!(x.len(), |at, n| {
            let v: L = load(x.as_ptr().add(at), n);
            let w: L = load(weight.as_ptr().add(at), n);
            let z: L = load(gate.as_ptr().add(at), n);
            store(v.mul(factor).mul(w).mul(silu(z)), out.as_mut_ptr().add(at), n);
        });
    }
}

/// `out = silu(gate) * up`
///
/// # Safety
///
/// As for [`inverse_rms`].
#[inline(always)]
pub(crate) unsafe fn swiglu<L: Lanes>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    // SAFETY: `vectors` stays within slices of equal length.
    unsafe {
        vectors!(gate.len(), |at, n| {
            let g: L = load(gate.as_ptr().add(at), n);
            let u: L = load(up.as_ptr().add(at), n);
            store(silu(g).mul(u), out.as_mut_ptr().add(at), n);
        });
    }
}

/// `out = gelu(gate) * up`, with the approximation by a hyperbolic tangent: `gelu(x) = x * sigmoid(2 u)` for `u =
/// sqrt(2 / pi) (x + 0.044715 x^3)`.
///
/// # Safety
///
/// As for [`inverse_rms`].
#[inline(always)]
pub(crate) unsafe fn geglu<L: Lanes>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    /// `2 sqrt(2 / pi)`
    const SLOPE: f32 = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::SQRT_2;
    // SAFETY: `vectors` stays within slices of equal length.
    unsafe {
        let (cubic, slope) = (L::splat(0.044_715), L::splat(SLOPE));
        vectors!(gate.len(), |at, n| {
            let g: L = load(gate.as_ptr().add(at), n);
            let u: L = load(up.as_ptr().add(at), n);
            let inner = g.mul(g).mul(cubic).mul_add(g, g).mul(slope);
            store(g.mul(sigmoid(inner)).mul(u), out.as_mut_ptr().add(at), n);
        });
    }
}

/// `x *= sigmoid(gate)`
///
/// # Safety
///
/// As for [`inverse_rms`].
#[inline(always)]
pub(crate) unsafe fn scale_by_sigmoid<L: Lanes>(x: &mut [f32], gate: &[f32]) {
    // SAFETY: `vectors` stays within slices of equal length.
    unsafe {
        vectors!(x.len(), |at, n| {
            let v: L = load(x.as_ptr().add(at), n);
            let g: L = load(gate.as_ptr().add(at), n);
            store(v.mul(sigmoid(g)), x.as_mut_ptr().add(at), n);
        });
    }
}

/// `x += y * factor`, one rounding per element.
///
/// # Safety
///
/// As for [`inverse_rms`].
#[inline(always)]
pub(crate) unsafe fn add_scaled<L: Lanes>(x: &mut [f32], y: &[f32], factor: f32) {
    // SAFETY: `vectors` stays within slices of equal length.
    unsafe {
        let factor = L::splat(factor);
        vectors!(x.len(), |at, n| {
            let a: L = load(x.as_ptr().add(at), n);
            let b: L = load(y.as_ptr().add(at), n);
            store(b.mul_add(factor, a), x.as_mut_ptr().add(at), n);
        });
    }
}

/// Rotates one head: pair `(j, j + half)` by the angle of `cos[j]`, `sin[j]`; `half = cos.len()`.
///
/// # Safety
///
/// As for [`inverse_rms`]; `head` has at least `2 * cos.len()` elements.
#[inline(always)]
pub(crate) unsafe fn rotate<L: Lanes>(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    // SAFETY: `vectors` stays within each half.
    unsafe {
        let first = head.as_mut_ptr();
        let second = first.add(cos.len());
        vectors!(cos.len(), |at, n| {
            let a: L = load(first.add(at), n);
            let b: L = load(second.add(at), n);
            let c: L = load(cos.as_ptr().add(at), n);
            let s: L = load(sin.as_ptr().add(at), n);
            store(a.mul(c).sub(b.mul(s)), first.add(at), n);
            store(a.mul(s).add(b.mul(c)), second.add(at), n);
        });
    }
}

/// `out = exp(x - shift)`; returns the sum over `out`.
///
/// # Safety
///
/// As for [`inverse_rms`].
#[inline(always)]
pub(crate) unsafe fn exp_shifted<L: Lanes>(x: &[f32], shift: f32, out: &mut [f32]) -> f32 {
    // SAFETY: `vectors` stays within slices of equal length; the tail lanes are cut from the sum.
    unsafe {
        let shift = L::splat(shift);
        let mut sum = L::splat(0.0);
        vectors!(x.len(), |at, n| {
            let v: L = load(x.as_ptr().add(at), n);
            let e = exp(v.sub(shift));
            store(e, out.as_mut_ptr().add(at), n);
            sum = sum.add(load(out.as_ptr().add(at), n));
        });
        sum.sum()
    }
}

/// Channels that the convolution takes through all tokens at a time, a multiple of [`LANES`]: a kilobyte of each row,
/// so that the rows of a few tokens and the taps stay in the first-level cache.
pub(crate) const STRIP: usize = 256;

/// One range of channels of the causal convolution, for all tokens.
pub(crate) struct ConvolutionTask {
    /// `[kernel - 1, channels]`, the last raw inputs, oldest first.
    pub(crate) state: *mut f32,
    /// `[tokens, channels]`
    pub(crate) x: *const f32,
    /// `[channels, kernel]`
    pub(crate) weight: *const f32,
    /// `[tokens, channels]`
    pub(crate) out: *mut f32,
    pub(crate) channels: usize,
    pub(crate) tokens: usize,
    pub(crate) kernel: usize,
    /// The channels of this task.
    pub(crate) first: usize,
    pub(crate) count: usize,
}

/// `out[t, c] = silu(sum_j weight[c, j] * u[t - kernel + 1 + j, c])`, `u` the state followed by `x`;
/// then the state becomes the last `kernel - 1` rows of `u`.
///
/// # Safety
///
/// As for [`inverse_rms`]; the pointers are valid for the shapes above, no other code touches the
/// channels of this task, and `kernel <= 8`.
#[inline(always)]
pub(crate) unsafe fn convolution<L: Lanes>(task: &ConvolutionTask) {
    let ConvolutionTask { state, x, weight, out, channels, tokens, kernel, first, count } = *task;
    // SAFETY: every access is to a channel of this task, within the shapes above.
    unsafe {
        // Row `r` of the state followed by x.
        let row = |r: usize| -> *const f32 {
            if r < kernel - 1 {
                state.add(r * channels).cast_const()
            } else {
                x.add((r - (kernel - 1)) * channels)
            }
        };
        // Tokens outside: rows are kilobytes apart, and a walk along one column has a miss at every token.
        for start in (0..count).step_by(STRIP) {
            let (first, width) = (first + start, (count - start).min(STRIP));
            let mut taps = [[0.0f32; STRIP]; 8];
            for (j, taps) in taps.iter_mut().enumerate().take(kernel) {
                for (channel, tap) in taps[..width].iter_mut().enumerate() {
                    *tap = *weight.add((first + channel) * kernel + j);
                }
            }
            for t in 0..tokens {
                let mut rows = [x; 8];
                for (j, from) in rows.iter_mut().enumerate().take(kernel) {
                    *from = row(t + j).add(first);
                }
                vectors!(width, |at, n| {
                    let mut sum = L::splat(0.0);
                    for (from, taps) in rows.iter().zip(&taps).take(kernel) {
                        let value: L = load(from.add(at), n);
                        sum = value.mul_add(L::load(taps.as_ptr().add(at)), sum);
                    }
                    store(silu(sum), out.add(t * channels + first + at), n);
                });
            }
            // Ascending order: row `r` takes row `r + tokens`, which is later and still unchanged.
            for r in 0..kernel - 1 {
                let (from, to) = (row(r + tokens).add(first), state.add(r * channels + first));
                vectors!(width, |at, n| {
                    let value: L = load(from.add(at), n);
                    store(value, to.add(at), n);
                });
            }
        }
    }
}

//! Sixteen binary32 lanes: the one vector that the generic kernels are written in.
//!
//! Each instruction set implements [`Lanes`] with as many registers as sixteen floats need (one
//! with AVX-512, two with AVX2, four with NEON, an array otherwise). Every operation is one IEEE
//! operation per lane and sums over lanes are a fixed tree, so a kernel written in `Lanes` gives
//! the same bits on every instruction set: the scalar version is the reference and the tests ask
//! for equality.
//!
//! Methods are `inline(always)` and carry no `target_feature`: they are inlined into callers that
//! do (`table.rs`). Calling one outside such a caller would be slow at best, hence `unsafe`.

use crate::float::{f16_from_e4m3, f32_from_bf16, f32_from_f16};

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// Sixteen binary32 lanes of one instruction set.
///
/// # Safety
///
/// For all methods: the instruction set must be available, and pointers must be valid for the
/// number of elements that the method says; no alignment is asked for.
pub(crate) trait Lanes: Copy {
    /// Whether sixteen vectors and what they are made of fit the registers.
    const WIDE: bool = false;

    /// All lanes equal.
    unsafe fn splat(value: f32) -> Self;
    /// Reads 16 floats.
    unsafe fn load(from: *const f32) -> Self;
    /// Writes 16 floats.
    unsafe fn store(self, to: *mut f32);
    /// Reads 16 bfloat16 values (32 bytes).
    unsafe fn load_bf16(from: *const u8) -> Self;
    /// Reads 16 binary16 values (32 bytes).
    unsafe fn load_f16(from: *const u8) -> Self;
    /// Reads 16 8-bit floats (E4M3) over 256, as [`f16_from_e4m3`].
    unsafe fn load_e4m3(from: *const u8) -> Self;
    /// Reads 16 signed bytes.
    unsafe fn load_i8(from: *const u8) -> Self;
    /// Writes 16 values rounded to nearest even; values must lie within the range of `i16`.
    unsafe fn store_rounded(self, to: *mut i16);
    /// `self + other`
    unsafe fn add(self, other: Self) -> Self;
    /// `self - other`
    unsafe fn sub(self, other: Self) -> Self;
    /// `self * other`
    unsafe fn mul(self, other: Self) -> Self;
    /// `self / other`
    unsafe fn div(self, other: Self) -> Self;
    /// The larger; `other` if either is NaN.
    unsafe fn max(self, other: Self) -> Self;
    /// The smaller; `other` if either is NaN.
    unsafe fn min(self, other: Self) -> Self;
    /// `self * factor + term` with one rounding.
    unsafe fn mul_add(self, factor: Self, term: Self) -> Self;
    /// Rounds to the nearest integer, ties to even.
    unsafe fn round(self) -> Self;
    /// `2^self` for integers in `-127..=128`: zero at -127, infinity at 128.
    unsafe fn power_of_two(self) -> Self;
    /// Sum of the lanes as a tree over halves: lane `i` meets `i + 8`, then `i + 4`, `+ 2`, `+ 1`.
    unsafe fn sum(self) -> f32;
    /// The largest bit pattern of the absolute values: at least `0x7f80_0000` if any lane is
    /// infinite or NaN.
    unsafe fn max_magnitude_bits(self) -> u32;

    /// The sum of each of sixteen vectors: `to[4 * i + j]` of `vectors[i][j]`, by the tree of [`Lanes::sum`].
    #[inline(always)]
    unsafe fn sum_each(vectors: &[[Self; 4]; 4], to: &mut [f32; LANES]) {
        for (four, to) in vectors.iter().zip(to.as_chunks_mut::<4>().0) {
            for (vector, to) in four.iter().zip(to) {
                // SAFETY: passed on to the caller.
                *to = unsafe { vector.sum() };
            }
        }
    }

    /// Reads `count < 16` floats, the other lanes are zero.
    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        let mut lanes = [0.0; LANES];
        // SAFETY: the caller vouches for `count` floats; the array has room for them.
        unsafe {
            std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), count);
            Self::load(lanes.as_ptr())
        }
    }

    /// Writes the first `count < 16` floats.
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        let mut lanes = [0.0; LANES];
        // SAFETY: as in `load_first`.
        unsafe {
            self.store(lanes.as_mut_ptr());
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, count);
        }
    }
}

/// `exp(x)` with relative error below 2e-7 for x in [-87.3, 88.3]; 0 below -88, infinity above
/// 88.4, NaN for NaN.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 is split in two so that r is exact to the last bit;
/// the Taylor polynomial of degree 7 leaves 5e-9.
#[inline(always)]
pub(crate) unsafe fn exp<L: Lanes>(x: L) -> L {
    // SAFETY: the caller vouches for the instruction set; no memory is touched.
    unsafe {
        // `max` and `min` with a NaN second give the NaN back, so it reaches the polynomial.
        let x = L::splat(104.0).min(L::splat(-104.0).max(x));
        let n = x.mul(L::splat(std::f32::consts::LOG2_E)).round();
        let r = n.mul_add(L::splat(-0.693_359_4), x);
        let r = n.mul_add(L::splat(2.121_944_4e-4), r);
        let mut p = L::splat(1.0 / 5040.0);
        for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            p = p.mul_add(r, L::splat(c));
        }
        p.mul(L::splat(128.0).min(L::splat(-127.0).max(n)).power_of_two())
    }
}

/// `1 / (1 + exp(-x))`
#[inline(always)]
pub(crate) unsafe fn sigmoid<L: Lanes>(x: L) -> L {
    // SAFETY: as for `exp`.
    unsafe {
        let one = L::splat(1.0);
        one.div(one.add(exp(L::splat(0.0).sub(x))))
    }
}

/// `x * sigmoid(x)`
#[inline(always)]
pub(crate) unsafe fn silu<L: Lanes>(x: L) -> L {
    // SAFETY: as for `exp`.
    unsafe { x.div(L::splat(1.0).add(exp(L::splat(0.0).sub(x)))) }
}

/// `log(1 + exp(x))` with an absolute error below 2e-7 for x up to 1 and a relative one beyond; NaN for NaN.
///
/// `max(x, 0) + log(1 + y)` with `y = exp(-|x|)`; the logarithm is `2 artanh(s)` of `s = y / (2 + y)`, at most a third,
/// whose series to `s^13` leaves 1.4e-8.
#[inline(always)]
pub(crate) unsafe fn softplus<L: Lanes>(x: L) -> L {
    // SAFETY: as for `exp`.
    unsafe {
        let zero = L::splat(0.0);
        let y = exp(x.min(zero.sub(x)));
        let s = y.div(L::splat(2.0).add(y));
        let square = s.mul(s);
        let mut p = L::splat(1.0 / 13.0);
        for c in [1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0] {
            p = p.mul_add(square, L::splat(c));
        }
        s.add(s).mul_add(p, zero.max(x))
    }
}

/// The reference implementation: an array.
#[derive(Clone, Copy)]
pub(crate) struct ScalarLanes([f32; LANES]);

impl ScalarLanes {
    #[inline(always)]
    fn map(self, f: impl Fn(f32) -> f32) -> Self {
        Self(self.0.map(f))
    }

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

// SAFETY (for every `unsafe` block below): the caller vouches for 16 elements at the pointer, and
// no instruction set is needed.
impl Lanes for ScalarLanes {
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; LANES])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: see above the impl.
        Self(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: see above the impl.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        // SAFETY: see above the impl.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        Self(bits.map(f32_from_bf16))
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: see above the impl.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        Self(bits.map(f32_from_f16))
    }
    #[inline(always)]
    unsafe fn load_e4m3(from: *const u8) -> Self {
        // SAFETY: see above the impl.
        let codes = unsafe { from.cast::<[u8; LANES]>().read_unaligned() };
        Self(codes.map(|code| f32_from_f16(f16_from_e4m3(code))))
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self {
        // SAFETY: see above the impl.
        Self(unsafe { from.cast::<[i8; LANES]>().read_unaligned() }.map(f32::from))
    }
    #[inline(always)]
    unsafe fn store_rounded(self, to: *mut i16) {
        let rounded = self.0.map(|x| x.round_ties_even() as i16);
        // SAFETY: see above the impl.
        unsafe { to.cast::<[i16; LANES]>().write_unaligned(rounded) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, term: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].mul_add(factor.0[i], term.0[i])))
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        self.map(f32::round_ties_even)
    }
    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        self.map(|n| f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let mut lanes = self.0;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                lanes[i] += lanes[i + half];
            }
        }
        lanes[0]
    }
    #[inline(always)]
    unsafe fn max_magnitude_bits(self) -> u32 {
        self.0.iter().fold(0, |max, x| max.max(x.to_bits() & 0x7fff_ffff))
    }
}

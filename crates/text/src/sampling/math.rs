//! exp and ln in f32 from additions and multiplications alone.
//!
//! The standard library's come from the platform's C library and differ in the last bit between systems, which
//! would let one seed mean two texts. These use Cody and Waite's range reduction (subtract n·ln 2 in two
//! parts, so that the remainder is exact) and polynomials; Rust never fuses or reorders them. Against f64: exp is
//! within 2 units in the last place, ln within 3.

/// Below this, exp is under 2^-126 and taken as 0.
const EXP_MIN: f32 = -87.0;
const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 = LN2_HIGH + LN2_LOW; the high part has 9 significant bits, so that n times it is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// 1.5 · 2^23: adding it rounds to an integer, which then is in the low bits.
const ROUND: f32 = 12_582_912.0;

/// e^x for x <= 0 (0 below -87).
#[inline(always)]
pub(crate) fn exp_negative(x: f32) -> f32 {
    let clamped = if x > EXP_MIN { x } else { EXP_MIN };
    let n = clamped * LOG2_E + ROUND;
    let scale = f32::from_bits((n.to_bits() << 23).wrapping_add(0x3f80_0000));
    let n = n - ROUND;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    // Taylor's series to r^7, |r| <= ln 2 / 2: the first term left out is under 6e-9.
    let p = 1.0 / 5040.0;
    let p = p * r + 1.0 / 720.0;
    let p = p * r + 1.0 / 120.0;
    let p = p * r + 1.0 / 24.0;
    let p = p * r + 1.0 / 6.0;
    let p = p * r + 0.5;
    let p = p * r * r + r;
    let value = (p + 1.0) * scale;
    if x > EXP_MIN { value } else { 0.0 }
}

/// ln x for finite x >= 2^-126.
pub(crate) fn ln_positive(x: f32) -> f32 {
    // x = m · 2^n with m in sqrt(1/2) .. sqrt(2).
    let shifted = x.to_bits().wrapping_sub(0x3f35_04f3);
    let n = (shifted.cast_signed() >> 23) as f32;
    let m = f32::from_bits((shifted & 0x007f_ffff).wrapping_add(0x3f35_04f3));
    // ln m = 2 atanh(s), s = (m - 1) / (m + 1), |s| <= 0.172.
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let p = 1.0 / 9.0;
    let p = p * z + 1.0 / 7.0;
    let p = p * z + 1.0 / 5.0;
    let p = p * z + 1.0 / 3.0;
    let atanh = s + s * z * p;
    n * LN2_HIGH + (2.0 * atanh + n * LN2_LOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance in units of the last place of the exact result.
    fn ulps(value: f32, exact: f64) -> f64 {
        let place = f64::from((exact as f32).abs().next_up()) - f64::from((exact as f32).abs());
        (f64::from(value) - exact).abs() / place
    }

    #[test]
    fn exp_is_within_two_units() {
        let mut worst: f64 = 0.0;
        for step in 0..2_000_000 {
            let x = -(step as f32) * (86.9 / 2_000_000.0);
            worst = worst.max(ulps(exp_negative(x), f64::from(x).exp()));
        }
        assert!(worst < 2.0, "worst error {worst} units");
        assert_eq!(exp_negative(0.0), 1.0);
        assert_eq!(exp_negative(-100.0), 0.0);
        assert_eq!(exp_negative(f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn ln_is_within_three_units() {
        let mut worst: f64 = 0.0;
        for step in 1..1_000_000_u32 {
            let x = f32::from_bits(0x0080_0000 + step * 2100);
            let exact = f64::from(x).ln();
            // Near 1 the result is near 0: measured against the spacing of the argument instead.
            let error = if (0.9..1.1).contains(&x) {
                (f64::from(ln_positive(x)) - exact).abs() / 6e-8
            } else {
                ulps(ln_positive(x), exact)
            };
            worst = worst.max(error);
        }
        assert!(worst < 3.0, "worst error {worst} units");
        assert_eq!(ln_positive(1.0), 0.0);
    }
}

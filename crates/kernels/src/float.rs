//! Conversions between binary32 and the two 16-bit float types.
//!
//! Rounding is to nearest, ties to even, as hardware does it; NaN stays NaN. These are the
//! reference versions: the vector kernels must agree with them bit for bit.

/// bfloat16 bits to binary32: exact.
#[inline(always)]
pub fn f32_from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// binary32 to bfloat16 bits, round to nearest even; NaN becomes a quiet NaN of the same sign.
#[inline(always)]
pub fn bf16_from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x0040;
    }
    (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// A power of two by its exponent with bias 127 (E8M0); 255 is no number. Exact.
#[inline]
pub fn f32_from_e8m0(byte: u8) -> f32 {
    match byte {
        // The one power that is subnormal.
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(byte) << 23),
    }
}

/// The binary16 bits of an 8-bit float (E4M3) over 256: the same fields under a bias that is larger by eight. The codes
/// without a number (all bits but the sign set) become NaN. Exact.
#[inline(always)]
pub(crate) fn f16_from_e4m3(byte: u8) -> u16 {
    let sign = u16::from(byte & 0x80) << 8;
    let magnitude = u16::from(byte & 0x7f);
    sign | if magnitude == 0x7f { 0x7f80 } else { magnitude << 7 }
}

/// What [`f16_from_e4m3`] gives is smaller than the value by this factor.
pub(crate) const E4M3_FACTOR: f32 = 256.0;

/// 8-bit float (E4M3: bias 7, no infinities, largest 448) to binary32: exact.
#[inline]
pub fn f32_from_e4m3(byte: u8) -> f32 {
    f32_from_f16(f16_from_e4m3(byte)) * E4M3_FACTOR
}

/// IEEE binary16 bits to binary32: exact.
#[inline]
pub fn f32_from_f16(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff);
    let value = match magnitude >> 10 {
        // Subnormal: an integer multiple of 2^-24, exact in binary32.
        0 => (magnitude as f32 * f32::from_bits(0x3380_0000)).to_bits(),
        0x1f => 0x7f80_0000 | ((magnitude & 0x3ff) << 13),
        _ => (magnitude << 13) + 0x3800_0000,
    };
    f32::from_bits(sign | value)
}

/// binary32 to IEEE binary16 bits, round to nearest even; overflow becomes infinity.
#[inline]
pub fn f16_from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude >= 0x7f80_0000 {
        let payload = if magnitude > 0x7f80_0000 { 0x0200 | (magnitude >> 13) & 0x3ff } else { 0 };
        return sign | 0x7c00 | payload as u16;
    }
    if magnitude < 0x3880_0000 {
        // Below 2^-14: adding one half places the last bit of a subnormal half at the last bit
        // of the sum, so the addition itself rounds to nearest even.
        let sum = f32::from_bits(magnitude) + 0.5;
        return sign | (sum.to_bits() - 0x3f00_0000) as u16;
    }
    let rounded = magnitude + 0xfff + ((magnitude >> 13) & 1) - 0x3800_0000;
    sign | (rounded >> 13).min(0x7c00) as u16
}

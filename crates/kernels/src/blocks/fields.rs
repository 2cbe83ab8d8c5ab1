//! Fields of blocks as machine words: what the instruction sets read from a block before they compute.

// SAFETY (for every `unsafe` block below): the caller of each function vouches for the blocks of 256 columns at `from`
// and for [`SLACK`](super::steps::SLACK) bytes behind; reads are unaligned and stay within these.

#[inline(always)]
pub(crate) unsafe fn read_u16(from: *const u8) -> u16 {
    // SAFETY: see above.
    unsafe { from.cast::<u16>().read_unaligned() }
}

#[inline(always)]
pub(crate) unsafe fn read_u32(from: *const u8) -> u32 {
    // SAFETY: see above.
    unsafe { from.cast::<u32>().read_unaligned() }
}

#[inline(always)]
pub(crate) unsafe fn read_u64(from: *const u8) -> u64 {
    // SAFETY: see above.
    unsafe { from.cast::<u64>().read_unaligned() }
}
/// The binary16 scale of IQ1_M: the four highest nibbles of its words of scales.
#[inline(always)]
pub(crate) fn iq1_m_scale(words: u64) -> u16 {
    (words >> 12 & 15 | words >> 24 & 0xf0 | words >> 36 & 0xf00 | words >> 48 & 0xf000) as u16
}

/// Eight scales and eight minima of six bits of a block of Q4_K or Q5_K, a byte each.
#[inline(always)]
pub(crate) unsafe fn scales_and_minima(from: *const u8) -> (u64, u64) {
    // SAFETY: see above.
    let [a, b, c] =
        unsafe { [read_u32(from.add(4)), read_u32(from.add(8)), read_u32(from.add(12))] };
    let late_scales = c & 0x0f0f_0f0f | (a >> 6 & 0x0303_0303) << 4;
    let late_minima = c >> 4 & 0x0f0f_0f0f | (b >> 6 & 0x0303_0303) << 4;
    let scales = u64::from(a & 0x3f3f_3f3f) | u64::from(late_scales) << 32;
    let minima = u64::from(b & 0x3f3f_3f3f) | u64::from(late_minima) << 32;
    (scales, minima)
}

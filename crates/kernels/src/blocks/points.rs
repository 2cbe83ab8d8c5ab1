//! Points of the grids, read entry by entry, for NEON (`x86_64/avx2_grids.rs` finds their places many at once).
//!
//! A group here is 32 columns, and group `v` of the blocks at `from` begins at column `32 * v`.

use super::fields::{read_u16, read_u32, read_u64};
use super::grids;

// SAFETY (for every `unsafe` block below): as in `fields.rs`.

/// Four points of eight coordinates, a byte each.
#[inline(always)]
fn four_points(point: impl Fn(usize) -> u64) -> [u64; 4] {
    [point(0), point(1), point(2), point(3)]
}

/// Eight points of four coordinates: two in each word.
#[inline(always)]
fn eight_points(point: impl Fn(usize) -> u64) -> [u64; 4] {
    four_points(|k| point(2 * k) | point(2 * k + 1) << 32)
}

/// Points of group `v` of IQ2_XXS, and the word of its signs.
#[inline(always)]
pub(crate) unsafe fn iq2_xxs(from: *const u8, v: usize) -> ([u64; 4], u32) {
    // SAFETY: see above.
    let (indices, signs) =
        unsafe { (read_u32(from.add(2 + 8 * v)) as usize, read_u32(from.add(6 + 8 * v))) };
    (four_points(|k| grids::IQ2_XXS[indices >> (8 * k) & 255]), signs)
}

/// Points of group `v` of IQ2_XS, and four words whose bits from the tenth on are signs.
#[inline(always)]
pub(crate) unsafe fn iq2_xs(from: *const u8, v: usize) -> ([u64; 4], u64) {
    // SAFETY: see above.
    let words = unsafe { read_u64(from.add(2 + 8 * v)) };
    (four_points(|k| grids::IQ2_XS[(words >> (16 * k)) as usize & 511]), words)
}

/// Points of group `v` of IQ2_S.
#[inline(always)]
pub(crate) unsafe fn iq2_s(from: *const u8, v: usize) -> [u64; 4] {
    // SAFETY: see above.
    let (low, high) = unsafe { (read_u32(from.add(2 + 4 * v)) as usize, from.add(66 + v).read()) };
    let high = usize::from(high) << 8;
    four_points(|k| grids::IQ2_S[low >> (8 * k) & 255 | high >> (2 * k) & 0x300])
}

/// Points of group `v` of IQ3_XXS.
#[inline(always)]
pub(crate) unsafe fn iq3_xxs(from: *const u8, v: usize) -> [u64; 4] {
    // SAFETY: see above.
    let indices = unsafe { read_u64(from.add(2 + 8 * v)) };
    eight_points(|k| grids::IQ3_XXS[(indices >> (8 * k)) as usize & 255])
}

/// Points of group `v` of IQ3_S.
#[inline(always)]
pub(crate) unsafe fn iq3_s(from: *const u8, v: usize) -> [u64; 4] {
    // SAFETY: see above.
    let (low, high) = unsafe { (read_u64(from.add(2 + 8 * v)), from.add(66 + v).read()) };
    let high = usize::from(high) << 8;
    eight_points(|k| grids::IQ3_S[(low >> (8 * k)) as usize & 255 | high >> k & 0x100])
}

/// Points of group `v` of IQ1_S, and the field that ends in its shift.
#[inline(always)]
pub(crate) unsafe fn iq1_s(from: *const u8, v: usize) -> ([u64; 4], usize) {
    // SAFETY: see above.
    let (low, rest) = unsafe { (read_u32(from.add(2 + 4 * v)), read_u16(from.add(34 + 2 * v))) };
    let (low, rest) = (low as usize, usize::from(rest));
    (four_points(|k| grids::IQ1[low >> (8 * k) & 255 | (rest >> (3 * k) & 7) << 8]), rest)
}

/// Points of group `v` of IQ1_M, and their nibbles, whose highest bits are the shifts.
#[inline(always)]
pub(crate) unsafe fn iq1_m(from: *const u8, v: usize) -> ([u64; 4], usize) {
    // SAFETY: see above.
    let (low, nibbles) = unsafe { (read_u32(from.add(4 * v)), read_u16(from.add(32 + 2 * v))) };
    let (low, nibbles) = (low as usize, usize::from(nibbles));
    (four_points(|k| grids::IQ1[low >> (8 * k) & 255 | (nibbles >> (4 * k) & 7) << 8]), nibbles)
}

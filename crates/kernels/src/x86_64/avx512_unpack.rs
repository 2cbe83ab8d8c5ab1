//! Unpacks a little-endian bit stream into vectors of 64 unsigned bytes.
//!
//! Four and two bits are shifted and masked where they are: 64 bytes of stream give two or four
//! vectors of interleaved columns, and the activations were permuted to match. Other widths straddle
//! bytes: one byte permutation brings the eight bytes around each eight values into a quadword, one
//! multishift takes them out, one mask cuts them: 64 consecutive columns in order.

use std::arch::x86_64::*;

/// Vectors that one step of `bits` gives: 1, 2 or 4.
pub(super) const fn planes(bits: u8) -> usize {
    match bits {
        2 => 4,
        4 => 2,
        _ => 1,
    }
}

/// Columns of one step.
pub(super) const fn step_columns(bits: u8) -> usize {
    64 * planes(bits)
}

/// Bytes of stream of one step.
pub(super) const fn step_bytes(bits: u8) -> usize {
    step_columns(bits) * bits as usize / 8
}

/// For each byte of the result of the permutation, the byte of the stream: quadword `j` begins at
/// byte `bits * j`.
const fn gather_order(bits: usize) -> [u8; 64] {
    let mut order = [0; 64];
    let mut i = 0;
    while i < 64 {
        order[i] = (bits * (i / 8) + i % 8) as u8;
        i += 1;
    }
    order
}

/// For each byte of a quadword, the bit where its value begins.
const fn first_bits(bits: usize) -> [u8; 64] {
    let mut first = [0; 64];
    let mut i = 0;
    while i < 64 {
        first[i] = (bits * (i % 8)) as u8;
        i += 1;
    }
    first
}

static GATHER: [[u8; 64]; 7] =
    [[0; 64], [0; 64], [0; 64], gather_order(3), [0; 64], gather_order(5), gather_order(6)];

static FIRST: [[u8; 64]; 7] =
    [[0; 64], [0; 64], [0; 64], first_bits(3), [0; 64], first_bits(5), first_bits(6)];

/// Reads the bytes of one step; with `left` below the size of a step, zeros follow them.
///
/// # Safety
///
/// AVX-512 BW; `min(left, step_bytes)` bytes are readable at `from`.
#[inline(always)]
pub(super) unsafe fn read_step<const BITS: u8>(from: *const u8, left: usize) -> __m512i {
    let bytes = step_bytes(BITS);
    // SAFETY: masked lanes are not accessed.
    unsafe {
        if bytes == 64 && left >= 64 {
            return _mm512_loadu_si512(from.cast());
        }
        let count = if left < bytes { left } else { bytes };
        let mask = if count >= 64 { u64::MAX } else { (1u64 << count) - 1 };
        _mm512_maskz_loadu_epi8(mask, from.cast())
    }
}

/// The vectors of one step; only the first [`planes`] are meaningful.
///
/// # Safety
///
/// AVX-512 BW and VBMI.
#[inline(always)]
pub(super) unsafe fn unpack<const BITS: u8>(stream: __m512i) -> [__m512i; 4] {
    // SAFETY: passed on to the caller; the tables have 64 bytes.
    unsafe {
        let mask = _mm512_set1_epi8(((1u16 << BITS) - 1) as i8);
        match BITS {
            8 => [stream; 4],
            4 => {
                let low = _mm512_and_si512(stream, mask);
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(stream), mask);
                [low, high, low, high]
            }
            2 => [
                _mm512_and_si512(stream, mask),
                _mm512_and_si512(_mm512_srli_epi16::<2>(stream), mask),
                _mm512_and_si512(_mm512_srli_epi16::<4>(stream), mask),
                _mm512_and_si512(_mm512_srli_epi16::<6>(stream), mask),
            ],
            _ => {
                let order = _mm512_loadu_si512(GATHER[BITS as usize].as_ptr().cast());
                let first = _mm512_loadu_si512(FIRST[BITS as usize].as_ptr().cast());
                let gathered = _mm512_permutexvar_epi8(order, stream);
                let values = _mm512_and_si512(_mm512_multishift_epi64_epi8(first, gathered), mask);
                [values; 4]
            }
        }
    }
}

//! Unpacks a little-endian bit stream into vectors of 64 unsigned bytes.
//!
//! Four and two bits are taken where they are: 64 bytes of stream give two or four vectors of interleaved columns, and
//! the activations were permuted to match. One affine map of the bits of each byte cuts out what begins at any of them.
//! Other widths straddle bytes: one byte permutation brings the bytes around each eight values into a quadword, and
//! one multishift takes these out: 64 consecutive columns in order. Three bits are taken out in pairs, as values of
//! six bits, and then as if a byte held two.

use std::arch::x86_64::*;

/// Vectors that one step of `bits` gives: 1, 2 or 4.
pub(super) const fn planes(bits: u8) -> usize {
    match bits {
        2 => 4,
        3 | 4 => 2,
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

static GATHER: [[u8; 64]; 2] = [gather_order(5), gather_order(6)];

static FIRST: [[u8; 64]; 2] = [first_bits(5), first_bits(6)];

/// Values of 5 or 6 bits, 64 of them, with what follows each in the upper bits of its byte.
#[inline(always)]
unsafe fn straddling(bits: usize, stream: __m512i) -> __m512i {
    // SAFETY: passed on to the caller; the tables have 64 bytes.
    unsafe {
        let order = _mm512_loadu_si512(GATHER[bits - 5].as_ptr().cast());
        let first = _mm512_loadu_si512(FIRST[bits - 5].as_ptr().cast());
        _mm512_multishift_epi64_epi8(first, _mm512_permutexvar_epi8(order, stream))
    }
}

/// The `bits` bits from `first` on of each byte.
#[inline(always)]
unsafe fn cut(bits: usize, first: usize, bytes: __m512i) -> __m512i {
    // Byte `7 - i` of the matrix has the bits that bit `i` of the result is the sum of.
    let mut matrix = 0u64;
    let mut i = 0;
    while i < bits {
        matrix |= 1 << (8 * (7 - i) + first + i);
        i += 1;
    }
    // SAFETY: a register operation; the caller vouches for the features.
    unsafe { _mm512_gf2p8affine_epi64_epi8::<0>(bytes, _mm512_set1_epi64(matrix as i64)) }
}

/// Reads the bytes of one step; with `left` below the size of a step, zeros follow them.
///
/// # Safety
///
/// AVX-512 BW; `min(left, step_bytes)` bytes are readable at `from`, and they are whole words of four.
#[inline(always)]
pub(super) unsafe fn read_step<const BITS: u8>(from: *const u8, left: usize) -> __m512i {
    let bytes = step_bytes(BITS);
    // SAFETY: masked lanes are not accessed.
    unsafe {
        if bytes == 64 && left >= 64 {
            return _mm512_loadu_si512(from.cast());
        }
        let words = if left < bytes { left / 4 } else { bytes / 4 };
        let mask = if words >= 16 { u16::MAX } else { (1u16 << words) - 1 };
        _mm512_maskz_loadu_epi32(mask, from.cast())
    }
}

/// The vectors of one step; only the first [`planes`] are meaningful.
///
/// # Safety
///
/// AVX-512 BW, VBMI and GFNI.
#[inline(always)]
pub(super) unsafe fn unpack<const BITS: u8>(stream: __m512i) -> [__m512i; 4] {
    // SAFETY: passed on to the caller.
    unsafe {
        let mask = _mm512_set1_epi8(((1u16 << BITS) - 1) as i8);
        match BITS {
            8 => [stream; 4],
            4 => {
                let low = _mm512_and_si512(stream, mask);
                let high = cut(4, 4, stream);
                [low, high, low, high]
            }
            3 => {
                let pairs = straddling(6, stream);
                let (even, odd) = (_mm512_and_si512(pairs, mask), cut(3, 3, pairs));
                [even, odd, even, odd]
            }
            2 => [
                _mm512_and_si512(stream, mask),
                cut(2, 2, stream),
                cut(2, 4, stream),
                cut(2, 6, stream),
            ],
            _ => [_mm512_and_si512(straddling(BITS as usize, stream), mask); 4],
        }
    }
}

//! AMX tiles: their shapes, what is laid out for them, and the products of one group.
//!
//! A tile product is 16 rows x up to 64 columns x 16 tokens. Weights and activations are laid out for 64 columns; a
//! group of 32 or 16 columns is a half or a quarter of these tiles, taken by tiles of fewer columns, which cost the
//! same time as whole ones.
//!
//! The instructions are written as `asm!`: the intrinsics are not stable.

use std::arch::asm;
use std::arch::x86_64::*;

/// Rows, and tokens, of a tile.
pub(super) const TILE: usize = 16;

/// Columns that a tile is laid out for.
pub(super) const DEPTH: usize = 64;

/// Blocks of sixteen rows whose products are issued together: with their sums and operands they take all eight tiles.
pub(super) const PAIR: usize = 2;

/// Shapes of the tiles.
#[repr(C, align(64))]
pub(super) struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Configuration {
    /// For products of `depth` columns: tiles 0 to 3 are sums, 4 and 5 weights, 6 and 7 activations.
    const fn of_depth(depth: usize) -> Self {
        let (bytes, rows) = (depth as u16, (depth / 4) as u8);
        Self {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [64, 64, 64, 64, bytes, bytes, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
            rows: [16, 16, 16, 16, 16, 16, rows, rows, 0, 0, 0, 0, 0, 0, 0, 0],
        }
    }
}

/// The configuration for groups of so many columns.
pub(super) fn configuration(group: usize) -> &'static Configuration {
    static BY_DEPTH: [Configuration; 3] =
        [Configuration::of_depth(16), Configuration::of_depth(32), Configuration::of_depth(64)];
    match group {
        16 => &BY_DEPTH[0],
        32 => &BY_DEPTH[1],
        _ => &BY_DEPTH[2],
    }
}

/// A tile in memory.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Tile(pub(super) [[i32; 16]; TILE]);

pub(super) const ZERO_TILE: Tile = Tile([[0; 16]; TILE]);

/// Activations of sixteen tokens for all columns.
#[derive(Default)]
pub(super) struct Panel {
    /// High bytes and low bytes of each 64 columns.
    pub(super) tiles: Vec<[Tile; 2]>,
    /// Scales and sums of each group, tokens in the lanes.
    pub(super) factors: Vec<[[f32; TILE]; 2]>,
}

/// Sixteen rows of weights, unpacked.
#[derive(Default)]
pub(super) struct Rows {
    /// Values of the columns of each group, by row and then by column; [`Rows::store`] knows the places.
    pub(super) tiles: Vec<Tile>,
    /// Scales and biases of each group, by row.
    pub(super) factors: Vec<[[f32; TILE]; 2]>,
}

impl Rows {
    /// Stores the columns from `DEPTH * index` on of one row, whose groups have `group` columns.
    ///
    /// # Safety
    ///
    /// There are more than `index` tiles and `row` is below [`TILE`]; AVX-512 is available.
    #[inline(always)]
    pub(super) unsafe fn store(&mut self, group: usize, index: usize, row: usize, codes: __m512i) {
        debug_assert!(index < self.tiles.len() && row < TILE, "a row of a tile");
        // SAFETY: groups of 16 or 32 columns divide the tile; the rest is the caller's promise.
        unsafe {
            let tile = self.tiles.as_mut_ptr().add(index).cast::<u8>();
            match group {
                16 => {
                    let place = |part: usize| tile.add(256 * part + 16 * row).cast();
                    _mm_store_si128(place(0), _mm512_castsi512_si128(codes));
                    _mm_store_si128(place(1), _mm512_extracti32x4_epi32::<1>(codes));
                    _mm_store_si128(place(2), _mm512_extracti32x4_epi32::<2>(codes));
                    _mm_store_si128(place(3), _mm512_extracti32x4_epi32::<3>(codes));
                }
                32 => {
                    let place = |part: usize| tile.add(512 * part + 32 * row).cast();
                    _mm256_store_si256(place(0), _mm512_castsi512_si256(codes));
                    _mm256_store_si256(place(1), _mm512_extracti64x4_epi64::<1>(codes));
                }
                _ => _mm512_store_si512(tile.add(64 * row).cast(), codes),
            }
        }
    }
}

/// Transposes sixteen rows of sixteen four-byte elements.
#[inline(always)]
pub(super) unsafe fn transpose(rows: [__m512i; TILE]) -> [__m512i; TILE] {
    // SAFETY: register operations; the caller vouches for AVX-512.
    unsafe {
        let zero = _mm512_setzero_si512();
        let mut pairs = [zero; TILE];
        for i in 0..8 {
            pairs[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
            pairs[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
        }
        let mut fours = [zero; TILE];
        for j in (0..TILE).step_by(4) {
            fours[j] = _mm512_unpacklo_epi64(pairs[j], pairs[j + 2]);
            fours[j + 1] = _mm512_unpackhi_epi64(pairs[j], pairs[j + 2]);
            fours[j + 2] = _mm512_unpacklo_epi64(pairs[j + 1], pairs[j + 3]);
            fours[j + 3] = _mm512_unpackhi_epi64(pairs[j + 1], pairs[j + 3]);
        }
        let mut out = [zero; TILE];
        for c in 0..4 {
            let low_a = _mm512_shuffle_i32x4::<0x44>(fours[c], fours[4 + c]);
            let high_a = _mm512_shuffle_i32x4::<0xee>(fours[c], fours[4 + c]);
            let low_b = _mm512_shuffle_i32x4::<0x44>(fours[8 + c], fours[12 + c]);
            let high_b = _mm512_shuffle_i32x4::<0xee>(fours[8 + c], fours[12 + c]);
            out[c] = _mm512_shuffle_i32x4::<0x88>(low_a, low_b);
            out[4 + c] = _mm512_shuffle_i32x4::<0xdd>(low_a, low_b);
            out[8 + c] = _mm512_shuffle_i32x4::<0x88>(high_a, high_b);
            out[12 + c] = _mm512_shuffle_i32x4::<0xdd>(high_a, high_b);
        }
        out
    }
}

/// Exact sums of one group for 16 rows and 16 tokens: high part and low part.
pub(super) type GroupSums = [Tile; 2];

/// Issues the tile products of one group of `columns` columns for a pair of blocks of rows. All eight tiles are in
/// use, so that no product waits for the sums of another.
///
/// One block of assembly, so that no tile has to keep its contents from one block to the next, which the compiler
/// does not promise; what it overwrites is declared.
#[inline(always)]
pub(super) unsafe fn issue(
    rows: &[Rows],
    panel: &Panel,
    group: usize,
    columns: usize,
    sums: &mut [GroupSums],
) {
    let depths = columns.div_ceil(DEPTH);
    let (first, within) = (group * columns / DEPTH, group * columns % DEPTH);
    let range = first..first + depths;
    let [[a_high, a_low], [b_high, b_low]] = sums else { unreachable!("blocks come in pairs") };
    let (a, b) = (&rows[0].tiles[range.clone()], &rows[1].tiles[range.clone()]);
    let x = &panel.tiles[range];
    debug_assert!(depths > 0 && within + columns.min(DEPTH) <= DEPTH, "a group lies within tiles");
    // SAFETY: each of the slices has as many tiles as the loop takes, at least one, 1024 bytes each, those of the
    // panel in pairs. A group of less than a tile begins `within` columns after its start, sixteen bytes a column in
    // both; the configuration takes no more than the group. The sums are four tiles of this call's own. The caller
    // vouches for the loaded configuration.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{a} + {depth}*1]",
            "tileloadd tmm6, [{x} + {stride}*1]",
            "tdpbusd tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{x} + {stride}*1 + {TILE_BYTES}]",
            "tdpbusd tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{b} + {depth}*1]",
            "tdpbusd tmm2, tmm5, tmm6",
            "tdpbusd tmm3, tmm5, tmm7",
            "add {a}, {TILE_BYTES}",
            "add {b}, {TILE_BYTES}",
            "add {x}, 2 * {TILE_BYTES}",
            "dec {depths}",
            "jnz 2b",
            "tilestored [{a_high} + {stride}*1], tmm0",
            "tilestored [{a_low} + {stride}*1], tmm1",
            "tilestored [{b_high} + {stride}*1], tmm2",
            "tilestored [{b_low} + {stride}*1], tmm3",
            TILE_BYTES = const size_of::<Tile>(),
            a = inout(reg) a.as_ptr().byte_add(within * TILE) => _,
            b = inout(reg) b.as_ptr().byte_add(within * TILE) => _,
            x = inout(reg) x.as_ptr().byte_add(within * TILE) => _,
            depths = inout(reg) depths => _,
            a_high = in(reg) a_high.0.as_mut_ptr(), a_low = in(reg) a_low.0.as_mut_ptr(),
            b_high = in(reg) b_high.0.as_mut_ptr(), b_low = in(reg) b_low.0.as_mut_ptr(),
            stride = in(reg) 64usize, depth = in(reg) columns.min(DEPTH),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

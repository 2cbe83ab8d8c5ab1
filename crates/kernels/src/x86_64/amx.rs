//! Integer products of several tokens with AMX tiles; fewer than eight take the VNNI kernel.
//!
//! One tile product is 16 rows x 64 columns x 16 tokens. Group sums are exact, so the bits equal those
//! of the VNNI kernel. Weights are unpacked to a tile of bytes (rows down, columns across);
//! activations are transposed once per piece of rows into tiles of four-byte columns (the *panel*).
//! The float combination has tokens in the lanes and keeps all sixteen group lanes of 16 rows x 16
//! tokens on the stack: 16 KiB, in the first-level cache.
//!
//! The instructions are written as `asm!`: the intrinsics are not stable.

#![allow(clippy::needless_range_loop, reason = "one index walks several arrays of registers")]

use super::avx512;
use super::avx512_quantised::{factors, quantised_rows as vnni_rows};
use super::avx512_unpack::{planes, read_step, unpack};
use crate::activations::GROUP_LANES;
use crate::quantised::QuantisedTask;
use crate::table::Table;
use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::sync::LazyLock;

/// Rows, and tokens, of a tile.
const TILE: usize = 16;

/// Columns of a tile product.
const DEPTH: usize = 64;

/// Fewest tokens that pay for a tile: it costs as much as about eight tokens by VNNI (50 against 82
/// GFLOP/s at four tokens, 173 against 84 at sixteen).
const LEAST_TOKENS: usize = 8;

/// The AVX-512 kernels with products by tiles.
pub(crate) static TABLE: Table = Table { name: "avx512+amx", quantised_rows, ..avx512::TABLE };

/// Whether processor and system grant tiles to this process. Asking the system is what grants it.
pub(crate) fn available() -> bool {
    static GRANTED: LazyLock<bool> =
        LazyLock::new(|| avx512::available() && supported() && grant());
    *GRANTED
}

/// Tile and int8 bits of the processor, and tile state enabled by the system. (The leaf that
/// describes the tiles may be hidden by a hypervisor that passes the instructions on.)
fn supported() -> bool {
    let features = __cpuid_count(7, 0).edx;
    let saves = __cpuid(1).ecx >> 27 & 1 == 1;
    if !saves || features >> 24 & 0b11 != 0b11 {
        return false;
    }
    let enabled: u32;
    // SAFETY: `xgetbv` exists because the system saves extended states.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") enabled, out("edx") _,
            options(nomem, nostack, preserves_flags));
    }
    enabled >> 17 & 0b11 == 0b11
}

/// Asks Linux for the use of tile data: `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`.
#[cfg(target_os = "linux")]
fn grant() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XFEATURE_XTILEDATA: u64 = 18;
    let result: i64;
    // SAFETY: a system call that touches no memory of ours.
    unsafe {
        asm!("syscall", inlateout("rax") ARCH_PRCTL => result, in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA, out("rcx") _, out("r11") _, options(nostack));
    }
    result == 0
}

/// Other systems: not tried.
#[cfg(not(target_os = "linux"))]
fn grant() -> bool {
    false
}

/// Shapes of all tiles: 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIGURATION: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// A tile in memory.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Tile([[i32; 16]; TILE]);

const ZERO_TILE: Tile = Tile([[0; 16]; TILE]);

/// Activations of sixteen tokens for all columns.
#[derive(Default)]
struct Panel {
    /// High bytes and low bytes of each 64 columns.
    tiles: Vec<[Tile; 2]>,
    /// Scales and sums of each group, tokens in the lanes.
    factors: Vec<[[f32; TILE]; 2]>,
}

thread_local! {
    /// Each worker's panel; grows to the widest matrix and stays.
    static PANEL: RefCell<Panel> = RefCell::new(Panel::default());
}

/// Transposes sixteen rows of sixteen four-byte elements.
#[inline(always)]
unsafe fn transpose(rows: [__m512i; TILE]) -> [__m512i; TILE] {
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

/// Builds the panel of the tokens from `first`; missing tokens are zero.
#[inline(always)]
unsafe fn build<const BITS: u8>(task: &QuantisedTask<'_>, first: usize, panel: &mut Panel) {
    let columns = task.matrix.columns;
    let count = (task.count - first).min(TILE);
    let planes = planes(BITS);
    panel.tiles.resize(columns / DEPTH, [ZERO_TILE; 2]);
    panel.factors.resize(columns / task.group, [[0.0; TILE]; 2]);
    // SAFETY: prepared activations hold two bytes for each padded column; the caller vouches for
    // the features.
    unsafe {
        let zero = _mm512_setzero_si512();
        for (index, parts) in panel.tiles.iter_mut().enumerate() {
            // A step of `planes` depths: high planes, then low planes, each of 64 bytes.
            let (step, within) = (index / planes, index % planes);
            for (half, part) in parts.iter_mut().enumerate() {
                let mut rows = [zero; TILE];
                for t in 0..count {
                    let step =
                        task.x.values(task.x_row(first + t)).as_ptr().add(step * planes * 128);
                    let at = step.add(half * planes * 64 + within * (64 / planes));
                    rows[t] = match planes {
                        1 => _mm512_load_si512(at.cast()),
                        2 => _mm512_inserti64x4::<1>(
                            _mm512_castsi256_si512(_mm256_load_si256(at.cast())),
                            _mm256_load_si256(at.add(64).cast()),
                        ),
                        _ => {
                            let plane = |p: usize| _mm_load_si128(at.add(64 * p).cast());
                            let low = _mm256_set_m128i(plane(1), plane(0));
                            let high = _mm256_set_m128i(plane(3), plane(2));
                            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
                        }
                    };
                }
                let columns = transpose(rows);
                for k in 0..TILE {
                    _mm512_store_si512(part.0[k].as_mut_ptr().cast(), columns[k]);
                }
            }
        }
    }
    for t in 0..TILE {
        for (group, [scales, sums]) in panel.factors.iter_mut().enumerate() {
            let (scale, sum) = if t < count {
                let row = task.x_row(first + t);
                (task.x.scales(row)[group], task.x.sums(row)[group])
            } else {
                (0.0, 0.0)
            };
            (scales[t], sums[t]) = (scale, sum);
        }
    }
}

/// 64 columns of one row as bytes, in the order of the panel: planes one after the other.
#[inline(always)]
unsafe fn weights<const BITS: u8>(from: *const u8) -> __m512i {
    // SAFETY: reads `8 * BITS` bytes; the caller vouches for them and for the features.
    unsafe {
        let mask = _mm512_set1_epi8(((1u16 << BITS) - 1) as i8);
        match BITS {
            4 => {
                let both = _mm512_broadcast_i64x4(_mm256_loadu_si256(from.cast()));
                let shifts = _mm512_inserti64x4::<1>(_mm512_setzero_si512(), _mm256_set1_epi16(4));
                _mm512_and_si512(_mm512_srlv_epi16(both, shifts), mask)
            }
            2 => {
                let four = _mm512_broadcast_i32x4(_mm_loadu_si128(from.cast()));
                let shifts = _mm512_set_epi64(
                    0x0006_0006_0006_0006,
                    0x0006_0006_0006_0006,
                    0x0004_0004_0004_0004,
                    0x0004_0004_0004_0004,
                    0x0002_0002_0002_0002,
                    0x0002_0002_0002_0002,
                    0,
                    0,
                );
                _mm512_and_si512(_mm512_srlv_epi16(four, shifts), mask)
            }
            _ => unpack::<BITS>(read_step::<BITS>(from, 8 * BITS as usize))[0],
        }
    }
}

/// Sixteen rows from `row` times the sixteen tokens of the panel.
#[inline(always)]
unsafe fn block<const BITS: u8>(task: &QuantisedTask<'_>, row: usize, first: usize, panel: &Panel) {
    let columns = task.matrix.columns;
    let groups = columns / task.group;
    let depths = task.group / DEPTH;
    let row_bytes = columns * BITS as usize / 8;
    let rows = (task.rows.end - row).min(TILE);
    // SAFETY: `Matrix` guarantees the bytes of each row; the caller vouches for the features, the
    // loaded tile configuration and the output.
    unsafe {
        // [lane of groups][row], tokens in the lanes of the register.
        let mut lanes = [[_mm512_setzero_ps(); TILE]; GROUP_LANES];
        let mut a = [ZERO_TILE; 2];
        let (mut high, mut low) = (ZERO_TILE, ZERO_TILE);
        let mut scales = [[0.0f32; TILE]; GROUP_LANES];
        let mut biases = [[0.0f32; TILE]; GROUP_LANES];
        for start in (0..groups).step_by(GROUP_LANES) {
            let count = (groups - start).min(GROUP_LANES);
            for r in 0..rows {
                let at = (row + r) * groups + start;
                let scale = factors(task.scale, task.matrix.scales.as_ptr(), at, count);
                let bias = factors(task.scale, task.matrix.biases.as_ptr(), at, count);
                _mm512_storeu_ps(scales[r].as_mut_ptr(), scale);
                _mm512_storeu_ps(biases[r].as_mut_ptr(), bias);
            }
            for lane in 0..count {
                let group = start + lane;
                for depth in 0..depths {
                    let index = group * depths + depth;
                    for r in 0..rows {
                        let stream = task.matrix.weight.as_ptr().add((row + r) * row_bytes);
                        let bytes = weights::<BITS>(stream.add(index * 8 * BITS as usize));
                        _mm512_store_si512(a[depth].0[r].as_mut_ptr().cast(), bytes);
                    }
                }
                let [x_high, x_low] = &panel.tiles[group * depths];
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tileloadd tmm2, [{a} + {stride}*1]",
                    "tileloadd tmm3, [{high} + {stride}*1]",
                    "tileloadd tmm4, [{low} + {stride}*1]",
                    "tdpbusd tmm0, tmm2, tmm3",
                    "tdpbusd tmm1, tmm2, tmm4",
                    a = in(reg) a[0].0.as_ptr(), high = in(reg) x_high.0.as_ptr(),
                    low = in(reg) x_low.0.as_ptr(), stride = in(reg) 64usize,
                    options(nostack, preserves_flags),
                );
                if depths == 2 {
                    let [x_high, x_low] = &panel.tiles[group * depths + 1];
                    asm!(
                        "tileloadd tmm2, [{a} + {stride}*1]",
                        "tileloadd tmm3, [{high} + {stride}*1]",
                        "tileloadd tmm4, [{low} + {stride}*1]",
                        "tdpbusd tmm0, tmm2, tmm3",
                        "tdpbusd tmm1, tmm2, tmm4",
                        a = in(reg) a[1].0.as_ptr(), high = in(reg) x_high.0.as_ptr(),
                        low = in(reg) x_low.0.as_ptr(), stride = in(reg) 64usize,
                        options(nostack, preserves_flags),
                    );
                }
                asm!(
                    "tilestored [{high} + {stride}*1], tmm0",
                    "tilestored [{low} + {stride}*1], tmm1",
                    high = in(reg) high.0.as_mut_ptr(), low = in(reg) low.0.as_mut_ptr(),
                    stride = in(reg) 64usize, options(nostack, preserves_flags),
                );
                let [d, sum] = &panel.factors[group];
                let (d, sum) = (_mm512_loadu_ps(d.as_ptr()), _mm512_loadu_ps(sum.as_ptr()));
                for r in 0..TILE {
                    let h = _mm512_load_si512(high.0[r].as_ptr().cast());
                    let l = _mm512_load_si512(low.0[r].as_ptr().cast());
                    let exact = _mm512_add_epi32(_mm512_slli_epi32::<8>(h), l);
                    let product = _mm512_mul_ps(_mm512_cvtepi32_ps(exact), d);
                    let (scale, bias) = (scales[r][lane], biases[r][lane]);
                    let value = _mm512_fmadd_ps(product, _mm512_set1_ps(scale), lanes[lane][r]);
                    lanes[lane][r] = _mm512_fmadd_ps(sum, _mm512_set1_ps(bias), value);
                }
            }
        }
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                for r in 0..TILE {
                    lanes[i][r] = _mm512_add_ps(lanes[i][r], lanes[i + half][r]);
                }
            }
        }
        let by_token = transpose(lanes[0].map(|v| _mm512_castps_si512(v)));
        let mask = if rows == TILE { u16::MAX } else { (1u16 << rows) - 1 };
        for t in 0..(task.count - first).min(TILE) {
            let values = _mm512_castsi512_ps(by_token[t]);
            _mm512_mask_storeu_ps(task.out(first + t, row), mask, values);
        }
    }
}

/// Defines the function for one width.
macro_rules! width {
    ($name:ident, $bits:literal) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn $name(task: &QuantisedTask<'_>, panel: &mut Panel) {
            // SAFETY: passed on to the caller; the configuration is 64 bytes, and the tiles are
            // given back so that no context switch saves them needlessly.
            unsafe {
                asm!("ldtilecfg [{0}]", in(reg) &raw const CONFIGURATION,
                    options(nostack, preserves_flags, readonly));
                for first in (0..task.count).step_by(TILE) {
                    build::<$bits>(task, first, panel);
                    for row in task.rows.clone().step_by(TILE) {
                        block::<$bits>(task, row, first, panel);
                    }
                }
                asm!("tilerelease", options(nomem, nostack, preserves_flags));
            }
        }
    };
}

width!(rows_2, 2);
width!(rows_3, 3);
width!(rows_4, 4);
width!(rows_5, 5);
width!(rows_6, 6);
width!(rows_8, 8);

/// Runs a task.
///
/// # Safety
///
/// [`available`] holds; `out` is valid for the shape and nobody else writes the rows of this task.
unsafe fn quantised_rows(task: &QuantisedTask<'_>) {
    if task.count < LEAST_TOKENS || task.group < DEPTH {
        // SAFETY: passed on to the caller.
        unsafe { vnni_rows(task) };
        return;
    }
    let kernel = match task.bits {
        2 => rows_2,
        3 => rows_3,
        4 => rows_4,
        5 => rows_5,
        6 => rows_6,
        _ => rows_8,
    };
    // SAFETY: passed on to the caller.
    PANEL.with_borrow_mut(|panel| unsafe { kernel(task, panel) });
}

//! Integer products of several tokens with AMX tiles; fewer than [`LEAST_TOKENS`] take the VNNI kernel.
//!
//! One tile product is 16 rows x 64 columns x 16 tokens. Group sums are exact, so the bits equal those
//! of the VNNI kernel. Activations of up to 64 tokens are transposed into tiles of four-byte columns (the
//! *panels*, in the second-level cache); weights of 16 rows are unpacked to tiles of bytes once for all
//! of them. The float combination has tokens in the lanes. It takes the groups of one accumulation lane
//! after the other, so that the sums of 16 rows stay in registers, and the lanes in bit-reversed order, so
//! that the tree over them needs four blocks on the side; the next group's tile products are issued before
//! the sums of one are used. What costs is the combination: about six instructions a row for 16 tokens.
//!
//! The instructions are written as `asm!`: the intrinsics are not stable.

#![allow(clippy::needless_range_loop, reason = "one index walks several arrays of registers")]

pub(crate) use super::amx_probe::available;
use super::avx512;
use super::avx512_quantised::{factors, quantised_rows as vnni_rows};
use super::avx512_unpack::{planes, read_step, unpack};
use crate::activations::GROUP_LANES;
use crate::quantised::QuantisedTask;
use crate::table::Table;
use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::RefCell;

/// Rows, and tokens, of a tile.
const TILE: usize = 16;

/// Columns of a tile product.
const DEPTH: usize = 64;

/// Fewest tokens that pay for a tile: it costs as much as about eight tokens by VNNI (50 against 82
/// GFLOP/s at four tokens, 173 against 84 at sixteen).
const LEAST_TOKENS: usize = 8;

/// Blocks of sixteen rows that share the loads of a panel's tiles: the second pair finds them in the first-level
/// cache (282 against 250 GFLOP/s a thread at 64 tokens).
const BLOCKS: usize = 4;

/// Blocks whose products are issued together: with their sums and operands they take all eight tiles.
const PAIR: usize = 2;

/// Panels at a time: with 2048 columns 256 KiB, an eighth of the second-level cache.
const PANELS: usize = 4;

/// The AVX-512 kernels with products by tiles.
pub(crate) static TABLE: Table = Table { name: "avx512+amx", quantised_rows, ..avx512::TABLE };

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

/// Sixteen rows of weights, unpacked.
#[derive(Default)]
struct Rows {
    /// Values of each 64 columns.
    tiles: Vec<Tile>,
    /// Scales and biases of each group, by row.
    factors: Vec<[[f32; TILE]; 2]>,
}

/// What one worker keeps; grows to the widest matrix and stays.
struct Workspace {
    panels: [Panel; PANELS],
    rows: [Rows; BLOCKS],
    steps: Vec<Step>,
    /// Of the step being computed and of the next.
    sums: [StepSums; 2],
}

impl Default for Workspace {
    fn default() -> Self {
        Self {
            panels: Default::default(),
            rows: Default::default(),
            steps: Vec::new(),
            sums: [[[[ZERO_TILE; 2]; BLOCKS]; STEP_GROUPS]; 2],
        }
    }
}

thread_local! {
    static WORKSPACE: RefCell<Workspace> = RefCell::new(Workspace::default());
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

/// Unpacks sixteen rows from `row`; missing rows are zero.
#[inline(always)]
unsafe fn unpack_rows<const BITS: u8>(task: &QuantisedTask<'_>, row: usize, to: &mut Rows) {
    let columns = task.matrix.columns;
    let groups = columns / task.group;
    let row_bytes = columns * BITS as usize / 8;
    let rows = task.rows.end.saturating_sub(row).min(TILE);
    to.tiles.resize(columns / DEPTH, ZERO_TILE);
    to.factors.resize(groups, [[0.0; TILE]; 2]);
    // SAFETY: `Matrix` guarantees the bytes of each row; the caller vouches for the features.
    unsafe {
        for r in 0..TILE {
            if r >= rows {
                for tile in &mut to.tiles {
                    tile.0[r] = [0; 16];
                }
                continue;
            }
            let stream = task.matrix.weight.as_ptr().add((row + r) * row_bytes);
            for (index, tile) in to.tiles.iter_mut().enumerate() {
                let bytes = weights::<BITS>(stream.add(index * 8 * BITS as usize));
                _mm512_store_si512(tile.0[r].as_mut_ptr().cast(), bytes);
            }
        }
        for start in (0..groups).step_by(GROUP_LANES) {
            let count = (groups - start).min(GROUP_LANES);
            for (which, stored) in [task.matrix.scales, task.matrix.biases].into_iter().enumerate()
            {
                let mut by_row = [_mm512_setzero_si512(); TILE];
                for r in 0..rows {
                    let at = (row + r) * groups + start;
                    let values = factors(task.scale, stored.as_ptr(), at, count);
                    by_row[r] = _mm512_castps_si512(values);
                }
                let by_group = transpose(by_row);
                for g in 0..count {
                    let place = to.factors[start + g][which].as_mut_ptr();
                    _mm512_storeu_si512(place.cast(), by_group[g]);
                }
            }
        }
    }
}

/// Some groups of one accumulation lane: those that are computed at a time.
#[derive(Clone, Copy)]
struct Step {
    groups: [usize; STEP_GROUPS],
    /// How many of `groups` there are; none for a lane without groups.
    count: usize,
    /// Whether the lane begins and ends with this step.
    first: bool,
    last: bool,
}

/// Most groups of a step: more would push the sums out of the first-level cache.
const STEP_GROUPS: usize = 1;

/// The steps over `groups` groups, lane by lane in the order of [`LANE_ORDER`].
fn plan_steps(groups: usize, steps: &mut Vec<Step>) {
    steps.clear();
    for lane in LANE_ORDER {
        let of_lane = groups.saturating_sub(lane).div_ceil(GROUP_LANES);
        for done in (0..of_lane.max(1)).step_by(STEP_GROUPS) {
            let group = |i: usize| (lane + (done + i) * GROUP_LANES).min(groups - 1);
            let count = of_lane.saturating_sub(done).min(STEP_GROUPS);
            steps.push(Step {
                groups: std::array::from_fn(group),
                count,
                first: done == 0,
                last: done + STEP_GROUPS >= of_lane,
            });
        }
    }
}

/// Lanes in bit-reversed order: neighbours meet first in the tree of `Lanes::sum`.
const LANE_ORDER: [usize; GROUP_LANES] = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15];

/// The body for each of sixteen rows, written out: left as a loop, its registers would live in memory.
macro_rules! each_row {
    (|$r:ident| $body:block) => {
        each_row!(@rows $r $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@rows $r:ident $body:block $($row:literal)*) => {
        $({
            const $r: usize = $row;
            $body
        })*
    };
}

/// Exact sums of one group for 16 rows and 16 tokens: high part and low part.
type GroupSums = [Tile; 2];

/// Issues the tile products of one group for a pair of blocks of rows. All eight tiles are in use, so that no
/// product waits for the sums of another.
///
/// One block of assembly, so that no tile has to keep its contents from one block to the next, which the compiler does
/// not promise; what it overwrites is declared.
#[inline(always)]
unsafe fn issue(rows: &[Rows], panel: &Panel, group: usize, depths: usize, sums: &mut [GroupSums]) {
    let range = group * depths..(group + 1) * depths;
    let [[a_high, a_low], [b_high, b_low]] = sums else { unreachable!("blocks come in pairs") };
    let (a, b) = (&rows[0].tiles[range.clone()], &rows[1].tiles[range.clone()]);
    let x = &panel.tiles[range];
    debug_assert!(depths > 0, "groups have 64 columns or more");
    // SAFETY: each of the slices has as many tiles as the loop takes, at least one, 1024 bytes each, those of the panel
    // in pairs; the sums are four tiles of this call's own. The caller vouches for the loaded configuration.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{a} + {stride}*1]",
            "tileloadd tmm6, [{x} + {stride}*1]",
            "tdpbusd tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{x} + {stride}*1 + {TILE_BYTES}]",
            "tdpbusd tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{b} + {stride}*1]",
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
            a = inout(reg) a.as_ptr() => _,
            b = inout(reg) b.as_ptr() => _,
            x = inout(reg) x.as_ptr() => _,
            depths = inout(reg) depths => _,
            a_high = in(reg) a_high.0.as_mut_ptr(), a_low = in(reg) a_low.0.as_mut_ptr(),
            b_high = in(reg) b_high.0.as_mut_ptr(), b_low = in(reg) b_low.0.as_mut_ptr(),
            stride = in(reg) 64usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Issues all groups of a step.
#[inline(always)]
unsafe fn issue_step(
    rows: &[Rows; BLOCKS],
    panel: &Panel,
    step: &Step,
    depths: usize,
    sums: &mut StepSums,
) {
    for (&group, sums) in step.groups[..step.count].iter().zip(sums) {
        for (rows, sums) in rows.chunks_exact(PAIR).zip(sums.chunks_exact_mut(PAIR)) {
            // SAFETY: passed on to the caller.
            unsafe { issue(rows, panel, group, depths, sums) };
        }
    }
}

/// Sums of the groups of a step.
type StepSums = [[GroupSums; BLOCKS]; STEP_GROUPS];

/// Adds one group's sums to the accumulation lane of each row, tokens in the lanes of the registers.
#[inline(always)]
unsafe fn combine(
    rows: &Rows,
    panel: &Panel,
    group: usize,
    sums: &GroupSums,
    lane: &mut [__m512; TILE],
) {
    let [high, low] = sums;
    let [scales, biases] = &rows.factors[group];
    let [d, sum] = &panel.factors[group];
    // SAFETY: register operations and whole arrays; the caller vouches for the features.
    unsafe {
        let (d, sum) = (_mm512_loadu_ps(d.as_ptr()), _mm512_loadu_ps(sum.as_ptr()));
        each_row!(|R| {
            let h = _mm512_load_si512(high.0[R].as_ptr().cast());
            let l = _mm512_load_si512(low.0[R].as_ptr().cast());
            let exact = _mm512_add_epi32(_mm512_slli_epi32::<8>(h), l);
            let product = _mm512_mul_ps(_mm512_cvtepi32_ps(exact), d);
            let value = _mm512_fmadd_ps(product, _mm512_set1_ps(scales[R]), lane[R]);
            lane[R] = _mm512_fmadd_ps(sum, _mm512_set1_ps(biases[R]), value);
        });
    }
}

/// The unpacked rows from `row` times the sixteen tokens of a panel from `first`.
#[inline(always)]
unsafe fn block(
    task: &QuantisedTask<'_>,
    (row, rows): (usize, &[Rows; BLOCKS]),
    (first, panel): (usize, &Panel),
    steps: &[Step],
    sums: &mut [StepSums; 2],
) {
    let depths = task.group / DEPTH;
    // SAFETY: passed on to the caller, who vouches for the features, the loaded configuration and the
    // output as well.
    unsafe {
        let zero = [_mm512_setzero_ps(); TILE];
        let mut totals = [zero; BLOCKS];
        // Sums of one, two, four and eight lanes that wait for their other half; at last all sixteen.
        let mut waiting = [[zero; BLOCKS]; 5];
        issue_step(rows, panel, &steps[0], depths, &mut sums[0]);
        let mut lane = 0usize;
        for (index, step) in steps.iter().enumerate() {
            if let Some(next) = steps.get(index + 1) {
                issue_step(rows, panel, next, depths, &mut sums[(index + 1) % 2]);
            }
            for b in 0..BLOCKS {
                let mut total = if step.first { zero } else { totals[b] };
                for i in 0..step.count {
                    let sums = &sums[index % 2][i][b];
                    combine(&rows[b], panel, step.groups[i], sums, &mut total);
                }
                if !step.last {
                    totals[b] = total;
                    continue;
                }
                let mut level = 0;
                while lane >> level & 1 == 1 {
                    let other = &waiting[level][b];
                    each_row!(|R| {
                        total[R] = _mm512_add_ps(other[R], total[R]);
                    });
                    level += 1;
                }
                waiting[level][b] = total;
            }
            lane += usize::from(step.last);
        }
        for b in 0..BLOCKS {
            let row = row + b * TILE;
            if row >= task.rows.end {
                break;
            }
            let mut by_row = [_mm512_setzero_si512(); TILE];
            each_row!(|R| {
                by_row[R] = _mm512_castps_si512(waiting[4][b][R]);
            });
            let by_token = transpose(by_row);
            let count = (task.rows.end - row).min(TILE);
            let mask = if count == TILE { u16::MAX } else { (1u16 << count) - 1 };
            for t in 0..(task.count - first).min(TILE) {
                let values = _mm512_castsi512_ps(by_token[t]);
                _mm512_mask_storeu_ps(task.out(first + t, row), mask, values);
            }
        }
    }
}

/// Defines the function for one width.
macro_rules! width {
    ($name:ident, $bits:literal) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn $name(task: &QuantisedTask<'_>, workspace: &mut Workspace) {
            let Workspace { panels, rows, steps, sums } = workspace;
            plan_steps(task.matrix.columns / task.group, steps);
            // SAFETY: passed on to the caller; the configuration is 64 bytes, and the tiles are
            // given back so that no context switch saves them needlessly. Between the two blocks of
            // assembly the configuration must stay: it is no register that the compiler knows or
            // uses (code for tiles is made by intrinsics alone, which are not used here), and the
            // system keeps it over context switches and signals.
            unsafe {
                asm!("ldtilecfg [{0}]", in(reg) &raw const CONFIGURATION,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, preserves_flags, readonly));
                for tokens in (0..task.count).step_by(PANELS * TILE) {
                    let used = (task.count - tokens).div_ceil(TILE).min(PANELS);
                    for (index, panel) in panels[..used].iter_mut().enumerate() {
                        build::<$bits>(task, tokens + index * TILE, panel);
                    }
                    for row in task.rows.clone().step_by(BLOCKS * TILE) {
                        for (index, rows) in rows.iter_mut().enumerate() {
                            unpack_rows::<$bits>(task, row + index * TILE, rows);
                        }
                        for (index, panel) in panels[..used].iter().enumerate() {
                            block(task, (row, rows), (tokens + index * TILE, panel), steps, sums);
                        }
                    }
                }
                asm!("tilerelease",
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nomem, nostack, preserves_flags));
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
/// [`available`] holds; `out` is valid for the shape and no other thread writes the rows of this task.
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
    WORKSPACE.with_borrow_mut(|workspace| unsafe { kernel(task, workspace) });
}

//! Integer products of several tokens with AMX tiles; fewer than [`least_tokens`] take the VNNI kernel.
//!
//! Group sums are exact, so the bits equal those
//! of the VNNI kernel. Activations of up to 64 tokens are transposed into tiles of four-byte columns (the
//! *panels*, in the second-level cache); weights of 16 rows are unpacked to tiles of bytes once for all
//! of them. The float combination has tokens in the lanes. It takes the groups of one accumulation lane
//! after the other, so that the sums of 16 rows stay in registers, and the lanes in bit-reversed order, so
//! that the tree over them needs four blocks on the side; the next group's tile products are issued before
//! the sums of one are used. What costs is the combination: about six instructions a row and group for 16 tokens.

#![allow(clippy::needless_range_loop, reason = "one index walks several arrays of registers")]

pub(crate) use super::amx_probe::available;
use super::amx_tiles::{
    GroupSums, PAIR, Panel, Rows, TILE, ZERO_TILE, configuration, issue, transpose,
};
use super::amx_unpack::{affine_rows, block_rows, build};
use super::avx512_blocks::{
    block_rows as vnni_block_rows, plane_rows as vnni_plane_rows, unpackers,
};
use super::avx512_quantised::quantised_rows as vnni_rows;
use super::tables;
use crate::activations::GROUP_LANES;
use crate::table::Table;
use crate::task::IntegerTask;
use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::RefCell;

/// Fewest tokens that pay for a tile: it costs as much as about eight tokens by VNNI (groups of 64: 50 against 82
/// GFLOP/s at four tokens, 173 against 84 at sixteen), and more where a group leaves part of the tile empty (groups of
/// 32: 89 against 99 at eight, 142 against 88 at twelve; of 16: 57 against 84 at eight, 107 against 79 at sixteen).
const fn least_tokens(group: usize) -> usize {
    match group {
        16 => 12,
        32 => 9,
        _ => 8,
    }
}

/// Blocks of sixteen rows that share the loads of a panel's tiles: the second pair finds them in the first-level
/// cache (282 against 250 GFLOP/s a thread at 64 tokens).
const BLOCKS: usize = 4;

/// Panels at a time: with 2048 columns 256 KiB, an eighth of the second-level cache.
const PANELS: usize = 4;

/// The AVX-512 kernels with products by tiles.
pub(crate) static TABLE: Table = Table {
    name: "avx512+amx",
    quantised_rows,
    block_rows: block_rows_of_tokens,
    plane_rows: Some(plane_rows_of_tokens),
    ..tables::avx512::TABLE
};

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
            sums: [[[ZERO_TILE; 2]; BLOCKS]; 2],
        }
    }
}

thread_local! {
    static WORKSPACE: RefCell<Workspace> = RefCell::new(Workspace::default());
}

/// A group in the order in which groups are combined.
#[derive(Clone, Copy)]
struct Step {
    /// `None` in a lane without groups.
    group: Option<usize>,
    /// Whether its accumulation lane begins and ends with it.
    first: bool,
    last: bool,
}

/// The steps over `groups` groups, lane by lane in the order of [`LANE_ORDER`].
fn plan_steps(groups: usize, steps: &mut Vec<Step>) {
    steps.clear();
    for lane in LANE_ORDER {
        let last = groups.saturating_sub(lane + 1) / GROUP_LANES;
        for index in 0..=last {
            let group = Some(lane + index * GROUP_LANES).filter(|&group| group < groups);
            steps.push(Step { group, first: index == 0, last: index == last });
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

/// Sums of one group for all blocks.
type StepSums = [GroupSums; BLOCKS];

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
    task: &IntegerTask<'_>,
    (row, rows): (usize, &[Rows; BLOCKS]),
    (first, panel): (usize, &Panel),
    columns: usize,
    steps: &[Step],
    sums: &mut [StepSums; 2],
) {
    // SAFETY: passed on to the caller, who vouches for the features, the loaded configuration and the
    // output as well.
    unsafe {
        let zero = [_mm512_setzero_ps(); TILE];
        let mut totals = [zero; BLOCKS];
        // Sums of one, two, four and eight lanes that wait for their other half; at last all sixteen.
        let mut waiting = [[zero; BLOCKS]; 5];
        if let Some(group) = steps[0].group {
            for (rows, sums) in rows.chunks_exact(PAIR).zip(sums[0].chunks_exact_mut(PAIR)) {
                issue(rows, panel, group, columns, sums);
            }
        }
        let mut lane = 0usize;
        for (index, step) in steps.iter().enumerate() {
            let [even, odd] = &mut *sums;
            let (now, next) = if index % 2 == 0 { (even, odd) } else { (odd, even) };
            let next_group = steps.get(index + 1).and_then(|step| step.group);
            for b in 0..BLOCKS {
                if let (Some(group), true) = (next_group, b % PAIR == 0) {
                    issue(&rows[b..b + PAIR], panel, group, columns, &mut next[b..b + PAIR]);
                }
                let mut total = if step.first { zero } else { totals[b] };
                if let Some(group) = step.group {
                    combine(&rows[b], panel, group, &now[b], &mut total);
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

/// How the operands of an encoding are laid out for tiles.
struct Layout {
    /// Columns of a group.
    group: usize,
    build: unsafe fn(&IntegerTask<'_>, usize, usize, &mut Panel),
    unpack: unsafe fn(&IntegerTask<'_>, usize, &mut Rows),
}

/// All rows and tokens of a task.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
#[target_feature(enable = "gfni,avx2,fma,f16c")]
unsafe fn all_tokens(task: &IntegerTask<'_>, layout: &Layout, workspace: &mut Workspace) {
    let Workspace { panels, rows, steps, sums } = workspace;
    let group = layout.group;
    plan_steps(task.matrix.columns / group, steps);
    // SAFETY: passed on to the caller; the configuration is 64 bytes, and the tiles are
    // given back so that no context switch saves them needlessly. Between the two blocks of
    // assembly the configuration must stay: it is no register that the compiler knows or
    // uses (code for tiles is made by intrinsics alone, which are not used here), and the
    // system keeps it over context switches and signals.
    unsafe {
        asm!("ldtilecfg [{0}]", in(reg) std::ptr::from_ref(configuration(group)),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, preserves_flags, readonly));
        for tokens in (0..task.count).step_by(PANELS * TILE) {
            let used = (task.count - tokens).div_ceil(TILE).min(PANELS);
            for (index, panel) in panels[..used].iter_mut().enumerate() {
                (layout.build)(task, group, tokens + index * TILE, panel);
            }
            for row in task.rows.clone().step_by(BLOCKS * TILE) {
                for (index, rows) in rows.iter_mut().enumerate() {
                    (layout.unpack)(task, row + index * TILE, rows);
                }
                for (index, panel) in panels[..used].iter().enumerate() {
                    let panel = (tokens + index * TILE, panel);
                    block(task, (row, rows), panel, group, steps, sums);
                }
            }
        }
        asm!("tilerelease",
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nomem, nostack, preserves_flags));
    }
}

/// Calls an `#[inline(always)]` function compiled with the features of the tiles.
macro_rules! with_features {
    (|$($argument:ident: $type:ty),*| $call:expr) => {{
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
        #[target_feature(enable = "gfni,avx2,fma,f16c")]
        unsafe fn with_features($($argument: $type),*) {
            // SAFETY: passed on to the caller.
            unsafe { $call }
        }
        with_features
    }};
}

/// [`build`] for so many values a byte.
macro_rules! panel_of {
    ($planes:literal) => {
        with_features!(|task: &IntegerTask<'_>, group: usize, first: usize, panel: &mut Panel| {
            build::<$planes>(task, group, first, panel)
        })
    };
}

/// [`affine_rows`] of a width.
macro_rules! affine {
    ($bits:literal) => {
        with_features!(|task: &IntegerTask<'_>, row: usize, to: &mut Rows| {
            affine_rows::<$bits>(task, row, to)
        })
    };
}

/// Runs a task.
///
/// # Safety
///
/// [`available`] holds; `out` is valid for the shape and no other thread writes the rows of this task.
unsafe fn quantised_rows(task: &IntegerTask<'_>) {
    let (bits, group, _) = task.affine();
    if task.count < least_tokens(group) {
        // SAFETY: passed on to the caller.
        return unsafe { vnni_rows(task) };
    }
    let layout = match bits {
        2 => Layout { group, build: panel_of!(4), unpack: affine!(2) },
        3 => Layout { group, build: panel_of!(2), unpack: affine!(3) },
        4 => Layout { group, build: panel_of!(2), unpack: affine!(4) },
        5 => Layout { group, build: panel_of!(1), unpack: affine!(5) },
        6 => Layout { group, build: panel_of!(1), unpack: affine!(6) },
        _ => Layout { group, build: panel_of!(1), unpack: affine!(8) },
    };
    // SAFETY: passed on to the caller.
    WORKSPACE.with_borrow_mut(|workspace| unsafe { all_tokens(task, &layout, workspace) });
}

/// Runs a task of 4-bit floats in planes.
///
/// # Safety
///
/// As for [`quantised_rows`].
unsafe fn plane_rows_of_tokens(task: &IntegerTask<'_>) {
    const GROUP: usize = 32;
    if task.count < least_tokens(GROUP) {
        // SAFETY: passed on to the caller.
        return unsafe { vnni_plane_rows(task) };
    }
    let unpack = with_features!(|task: &IntegerTask<'_>, row: usize, to: &mut Rows| {
        block_rows::<unpackers::Mxfp4Planes, GROUP>(task, row, to)
    });
    let layout = Layout { group: GROUP, build: panel_of!(1), unpack };
    // SAFETY: passed on to the caller.
    WORKSPACE.with_borrow_mut(|workspace| unsafe { all_tokens(task, &layout, workspace) });
}

/// Defines [`block_rows_of_tokens`] for all formats.
macro_rules! formats {
    ($($format:ident $group:literal),*) => {
        /// Runs a task of blocks.
        ///
        /// # Safety
        ///
        /// As for [`quantised_rows`].
        unsafe fn block_rows_of_tokens(task: &IntegerTask<'_>) {
            let group = task.format().group();
            if task.count < least_tokens(group) {
                // SAFETY: passed on to the caller.
                return unsafe { vnni_block_rows(task) };
            }
            let unpack = match task.format() {
                $(crate::format::BlockFormat::$format => {
                    with_features!(|task: &IntegerTask<'_>, row: usize, to: &mut Rows| {
                        block_rows::<unpackers::$format, $group>(task, row, to)
                    }) as unsafe fn(&IntegerTask<'_>, usize, &mut Rows)
                })*
            };
            let layout = Layout { group, build: panel_of!(1), unpack };
            // SAFETY: passed on to the caller.
            WORKSPACE.with_borrow_mut(|workspace| unsafe { all_tokens(task, &layout, workspace) });
        }
    };
}

crate::blocks::each_format!(formats);

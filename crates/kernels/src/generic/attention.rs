//! Causal attention over a blocked key-value cache: a tile of queries against one block after the other.
//!
//! Keys are walked in blocks of [`BLOCK_TOKENS`] absolute positions. Each block gives its own maximum,
//! sum and weighted values, and these are merged in ascending order of blocks: so the bits of a
//! token do not depend on how many tokens the call has, nor on who computed which block.
//! Within a block: one score is sixteen lane sums over the head's dimensions; the exponentials are
//! summed in sixteen lanes; values are added key by key.
//!
//! The queries of a tile (some tokens times the heads that share a key-value head) meet some positions at a
//! time, which are converted to binary32 once for all of them and stay in the first-level cache. Products
//! are register tiles of a few queries by a few keys, or by a few vectors of dimensions; how many follows from the
//! registers of the instruction set and changes no sum.

#![allow(clippy::needless_range_loop, reason = "one index walks several arrays of registers")]

use super::attention_tile::part_floats;
pub(crate) use super::attention_tile::{AttentionTask, BlockTask, MergeTask, QueryTile};
use crate::attention::{BLOCK_TOKENS, KeyValueBlock};
use crate::float::{E4M3_FACTOR, f32_from_e8m0};
use crate::generic::elementwise::{load, store};
use crate::kv_type::{KvType, Q8_GROUP};
use crate::lanes::{LANES, Lanes, exp};
use crate::rounded::E4M3_BLOCK;

/// Query rows of one tile at most.
pub(crate) const TILE_ROWS: usize = 64;

/// Largest head dimension.
pub(crate) const MAX_HEAD_DIM: usize = 640;

/// Positions converted at a time at the most: 32 KiB of a head of 256.
const STRIP: usize = 32;

/// The same for [`FEW_ROWS`] and fewer, which leave less time for what waits behind the first-level cache (14.4
/// against 10.5 GB/s a thread; 64 rows 113 against 118 GFLOP/s).
const SHORT_STRIP: usize = 16;

/// Rows of a step's tile.
const FEW_ROWS: usize = 16;

/// Sixteen floats on a cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LANES]);

/// What one worker keeps: 230 KiB for heads of 256.
pub(crate) struct Workspace {
    lines: Vec<Line>,
}

/// Places in a workspace; rows are padded with zeros to whole vectors.
#[derive(Clone, Copy)]
struct Places {
    /// Floats of a padded row.
    stride: usize,
    /// `[rows, stride]`
    queries: *mut f32,
    /// `[rows, BLOCK_TOKENS]`: scores, then their exponentials.
    weights: *mut f32,
    /// `[rows, stride]`: the weighted values of one block.
    values: *mut f32,
    /// `[STRIP, stride]`: positions of one block.
    strip: *mut f32,
}

impl Workspace {
    pub(crate) const fn new() -> Self {
        Self { lines: Vec::new() }
    }

    /// Room for `rows` queries of `dim` dimensions; zero wherever a row is padded.
    fn places(&mut self, rows: usize, dim: usize) -> Places {
        let vectors = dim.div_ceil(LANES);
        let sizes =
            [rows * vectors, rows * (BLOCK_TOKENS / LANES), rows * vectors, STRIP * vectors];
        let needed = sizes.iter().sum();
        if self.lines.len() < needed {
            self.lines.resize(needed, Line([0.0; LANES]));
        }
        if !dim.is_multiple_of(LANES) {
            self.lines.fill(Line([0.0; LANES]));
        }
        let mut start = 0;
        let [queries, weights, values, strip] = sizes.map(|size| {
            let place = self.lines[start..].as_mut_ptr().cast::<f32>();
            start += size;
            place
        });
        Places { stride: vectors * LANES, queries, weights, values, strip }
    }
}

/// Converts one row of the cache to binary32, as [`KvType::decode`] does.
#[inline(always)]
unsafe fn convert<L: Lanes>(kind: KvType, dim: usize, from: *const u8, to: *mut f32) {
    // SAFETY: the caller guarantees a row of `dim` values at `from` and room for them at `to`.
    unsafe {
        let whole = match kind {
            // Vectors of codes or of halves, none of both.
            KvType::Fp8 { rotated } if !(dim - rotated as usize).is_multiple_of(LANES) => 0,
            _ => dim / LANES * LANES,
        };
        for at in (0..whole).step_by(LANES) {
            let values = match kind {
                KvType::F32 => L::load(from.add(4 * at).cast()),
                KvType::F16 => L::load_f16(from.add(2 * at)),
                KvType::Bf16 => L::load_bf16(from.add(2 * at)),
                KvType::Q8 => {
                    let scale = from.add(dim + at / Q8_GROUP * 2).cast::<[u8; 2]>().read();
                    let scale = crate::float::f32_from_f16(u16::from_le_bytes(scale));
                    L::load_i8(from.add(at)).mul(L::splat(scale))
                }
                KvType::Fp8 { rotated } => {
                    let rounded = dim - rotated as usize;
                    let scales = from.add(rounded);
                    if at < rounded {
                        let scale = f32_from_e8m0(scales.add(at / E4M3_BLOCK).read());
                        L::load_e4m3(from.add(at)).mul(L::splat(scale * E4M3_FACTOR))
                    } else {
                        let halves = scales.add(rounded.div_ceil(E4M3_BLOCK));
                        L::load_bf16(halves.add(2 * (at - rounded)))
                    }
                }
            };
            values.store(to.add(at));
        }
        if whole < dim {
            let row = std::slice::from_raw_parts(from, kind.bytes_of_head(dim));
            let mut values = [0.0; MAX_HEAD_DIM];
            kind.decode(row, &mut values[..dim]);
            std::ptr::copy_nonoverlapping(values.as_ptr().add(whole), to.add(whole), dim - whole);
        }
    }
}

/// Scores of up to `R` rows with up to `K` keys; what is missing is computed as a repetition of the last.
#[inline(always)]
unsafe fn score_tile<L: Lanes, const R: usize, const K: usize>(
    (queries, rows): (*const f32, usize),
    (keys, count): (*const f32, usize),
    stride: usize,
    scale: f32,
    out: *mut f32,
) {
    const { assert!(R <= 4 && K <= 4, "the sums of a tile are sixteen at the most") };
    // SAFETY: the caller guarantees the rows, the keys and `[rows, BLOCK_TOKENS]` outputs.
    unsafe {
        let mut q = [queries; R];
        let mut k = [keys; K];
        for r in 0..R {
            q[r] = queries.add(r.min(rows - 1) * stride);
        }
        for j in 0..K {
            k[j] = keys.add(j.min(count - 1) * stride);
        }
        let mut sums = [[L::splat(0.0); 4]; 4];
        for at in (0..stride).step_by(LANES) {
            let mut key = [L::splat(0.0); K];
            for j in 0..K {
                key[j] = L::load(k[j].add(at));
            }
            for r in 0..R {
                let query = L::load(q[r].add(at));
                for j in 0..K {
                    sums[r][j] = key[j].mul_add(query, sums[r][j]);
                }
            }
        }
        let mut scores = [0.0f32; LANES];
        if R == 4 && K == 4 {
            L::sum_each(&sums, &mut scores);
        } else {
            for r in 0..R {
                for j in 0..K {
                    scores[4 * r + j] = sums[r][j].sum();
                }
            }
        }
        L::load(scores.as_ptr()).mul(L::splat(scale)).store(scores.as_mut_ptr());
        for r in 0..rows.min(R) {
            let to = out.add(r * BLOCK_TOKENS);
            if K == 4 && count >= 4 {
                to.cast::<[f32; 4]>().write(scores.as_ptr().add(4 * r).cast::<[f32; 4]>().read());
            } else {
                std::ptr::copy_nonoverlapping(scores.as_ptr().add(4 * r), to, count.min(K));
            }
        }
    }
}

/// Adds `count` positions to the weighted values of `R` rows: `V` vectors from `values` on of each.
#[inline(always)]
unsafe fn value_tile<L: Lanes, const R: usize, const V: usize>(
    weights: *const f32,
    (strip, count): (*const f32, usize),
    stride: usize,
    values: *mut f32,
) {
    // SAFETY: the caller guarantees the rows, the positions and the vectors.
    unsafe {
        let mut sums = [[L::splat(0.0); V]; R];
        for r in 0..R {
            for v in 0..V {
                sums[r][v] = L::load(values.add(r * stride + v * LANES));
            }
        }
        for j in 0..count {
            let mut value = [L::splat(0.0); V];
            for v in 0..V {
                value[v] = L::load(strip.add(j * stride + v * LANES));
            }
            for r in 0..R {
                let weight = L::splat(*weights.add(r * BLOCK_TOKENS + j));
                for v in 0..V {
                    sums[r][v] = value[v].mul_add(weight, sums[r][v]);
                }
            }
        }
        for r in 0..R {
            for v in 0..V {
                sums[r][v].store(values.add(r * stride + v * LANES));
            }
        }
    }
}

/// [`value_tile`] over all dimensions of `R` rows.
#[inline(always)]
unsafe fn value_rows<L: Lanes, const R: usize, const V: usize>(
    weights: *const f32,
    (strip, count): (*const f32, usize),
    stride: usize,
    values: *mut f32,
) {
    let mut at = 0;
    // SAFETY: passed on to the caller.
    unsafe {
        while at + V * LANES <= stride {
            value_tile::<L, R, V>(weights, (strip.add(at), count), stride, values.add(at));
            at += V * LANES;
        }
        while at < stride {
            value_tile::<L, R, 1>(weights, (strip.add(at), count), stride, values.add(at));
            at += LANES;
        }
    }
}

/// All rows of a tile against some positions of a block: scores.
#[inline(always)]
unsafe fn score_strip<L: Lanes, const R: usize, const K: usize>(
    tile: &QueryTile,
    places: &Places,
    first: usize,
    count: usize,
) {
    let (rows, stride) = (tile.rows(), places.stride);
    // SAFETY: passed on to the caller.
    unsafe {
        for row in (0..rows).step_by(R) {
            let queries = (places.queries.add(row * stride).cast_const(), rows - row);
            for j in (0..count).step_by(K) {
                let keys = (places.strip.add(j * stride).cast_const(), count - j);
                let out = places.weights.add(row * BLOCK_TOKENS + first + j);
                score_tile::<L, R, K>(queries, keys, stride, tile.scale, out);
            }
        }
    }
}

/// All rows of a tile against some positions of a block: weighted values.
#[inline(always)]
unsafe fn value_strip<L: Lanes, const R: usize, const V: usize>(
    tile: &QueryTile,
    places: &Places,
    block: usize,
    first: usize,
    count: usize,
) {
    let (rows, stride) = (tile.rows(), places.stride);
    let seen = |row: usize| tile.count(row, block).saturating_sub(first).min(count);
    // SAFETY: passed on to the caller.
    unsafe {
        let mut row = 0;
        while row < rows {
            let together = if row + R <= rows { R } else { 1 };
            // Later tokens see more: what all of them see, then the rest of each.
            let common = seen(row);
            let weights = places.weights.add(row * BLOCK_TOKENS + first).cast_const();
            let values = places.values.add(row * stride);
            let strip = places.strip.cast_const();
            if together == R {
                value_rows::<L, R, V>(weights, (strip, common), stride, values);
            } else {
                value_rows::<L, 1, V>(weights, (strip, common), stride, values);
            }
            for r in 1..together {
                let more = seen(row + r) - common;
                if more > 0 {
                    let weights = weights.add(r * BLOCK_TOKENS + common);
                    let strip = (strip.add(common * stride), more);
                    value_rows::<L, 1, V>(weights, strip, stride, values.add(r * stride));
                }
            }
            row += together;
        }
    }
}

/// Turns the scores of one row into exponentials; gives their maximum and sum.
#[inline(always)]
unsafe fn exponentials<L: Lanes>(weights: *mut f32, count: usize) -> (f32, f32) {
    // SAFETY: the caller guarantees `count` scores.
    unsafe {
        let whole = count / LANES * LANES;
        // NaN is the larger of nothing here; its exponential shows it.
        let mut most = L::splat(f32::NEG_INFINITY);
        for at in (0..whole).step_by(LANES) {
            most = L::load(weights.add(at)).max(most);
        }
        let mut lanes = [0.0; LANES];
        most.store(lanes.as_mut_ptr());
        let mut max = f32::NEG_INFINITY;
        for lane in lanes {
            max = if lane > max { lane } else { max };
        }
        for at in whole..count {
            let score = *weights.add(at);
            max = if score > max { score } else { max };
        }
        let shift = L::splat(max);
        let mut sum = L::splat(0.0);
        for at in (0..count).step_by(LANES) {
            let n = (count - at).min(LANES);
            let score: L = load(weights.add(at), n);
            store(exp(score.sub(shift)), weights.add(at), n);
            sum = sum.add(load(weights.add(at), n));
        }
        (max, sum.sum())
    }
}

/// One block for every row of a tile: `weights` and `values` of the places are filled; gives maxima and sums.
#[inline(always)]
unsafe fn block_parts<L: Lanes>(
    tile: &QueryTile,
    places: &Places,
    block: &KeyValueBlock<'_>,
    index: usize,
    maxima: &mut [f32; TILE_ROWS],
    sums: &mut [f32; TILE_ROWS],
) {
    let (rows, dim, stride) = (tile.rows(), tile.head_dim, places.stride);
    let count = tile.count(rows - 1, index);
    let strip = if rows <= FEW_ROWS { SHORT_STRIP } else { STRIP };
    let bytes = tile.kv_type.bytes_of_head(dim);
    let start = tile.key_value_head * BLOCK_TOKENS * bytes;
    // SAFETY: the caller has checked that the block holds every head; `count <= BLOCK_TOKENS`.
    unsafe {
        let (keys, values) = (block.keys.as_ptr().add(start), block.values.as_ptr().add(start));
        // The first row's window begins first; what lies before another's gets no weight.
        let unseen = tile.start(0, index) / strip * strip;
        for first in (unseen..count).step_by(strip) {
            let n = (count - first).min(strip);
            for j in 0..n {
                let to = places.strip.add(j * stride);
                convert::<L>(tile.kv_type, dim, keys.add((first + j) * bytes), to);
            }
            if L::WIDE {
                score_strip::<L, 4, 4>(tile, places, first, n);
            } else {
                score_strip::<L, 2, 3>(tile, places, first, n);
            }
        }
        for row in 0..rows {
            let weights = places.weights.add(row * BLOCK_TOKENS);
            let (before, seen) = (tile.start(row, index), tile.count(row, index));
            weights.write_bytes(0, before);
            let from = weights.add(before);
            (maxima[row], sums[row]) = exponentials::<L>(from, seen.saturating_sub(before));
        }
        places.values.write_bytes(0, rows * stride);
        for first in (unseen..count).step_by(strip) {
            let n = (count - first).min(strip);
            for j in 0..n {
                let to = places.strip.add(j * stride);
                convert::<L>(tile.kv_type, dim, values.add((first + j) * bytes), to);
            }
            if L::WIDE {
                value_strip::<L, 4, 4>(tile, places, index, first, n);
            } else {
                value_strip::<L, 2, 2>(tile, places, index, first, n);
            }
        }
    }
}

/// Copies the queries of a tile to their place.
unsafe fn gather(tile: &QueryTile, places: &Places) {
    for row in 0..tile.rows() {
        // SAFETY: the caller guarantees the queries; the places have room for every row.
        unsafe {
            let to = places.queries.add(row * places.stride);
            std::ptr::copy_nonoverlapping(tile.q.add(tile.offset(row)), to, tile.head_dim);
        }
    }
}

/// `exp` of one number by the lanes' own exponential.
#[inline(always)]
unsafe fn exp_one<L: Lanes>(x: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    // SAFETY: the array has 16 elements.
    unsafe { exp(L::splat(x)).store(lanes.as_mut_ptr()) };
    lanes[0]
}

/// Merges what a row got from the next block into what it got from those before.
#[inline(always)]
unsafe fn merge_one<L: Lanes>(
    (max, sum): (f32, f32),
    part: *const f32,
    state: &mut [f32; 2],
    out: &mut [f32],
) {
    // SAFETY: the caller guarantees as many values in `part` as in `out`.
    unsafe {
        let merged = if max > state[0] { max } else { state[0] };
        let old = exp_one::<L>(state[0] - merged);
        let new = exp_one::<L>(max - merged);
        let whole = out.len() / LANES * LANES;
        let (old_lanes, new_lanes) = (L::splat(old), L::splat(new));
        for at in (0..whole).step_by(LANES) {
            let to = out.as_mut_ptr().add(at);
            let before = L::load(to).mul(old_lanes);
            L::load(part.add(at)).mul_add(new_lanes, before).store(to);
        }
        for at in whole..out.len() {
            out[at] = (*part.add(at)).mul_add(new, out[at] * old);
        }
        *state = [merged, sum.mul_add(new, state[1] * old)];
    }
}

/// Divides a row by the sum of its weights, that of the sink included.
///
/// # Safety
///
/// The instruction set is available.
#[inline(always)]
unsafe fn finish<L: Lanes>([max, sum]: [f32; 2], sink: Option<f32>, out: &mut [f32]) {
    let sum = match sink {
        None => sum,
        // SAFETY: passed on to the caller.
        Some(sink) => sum + unsafe { exp_one::<L>(sink - max) },
    };
    let inverse = 1.0 / sum;
    for o in out {
        *o *= inverse;
    }
}

/// Runs a tile over all blocks that it sees.
///
/// # Safety
///
/// The instruction set is available; the tile has at least one row and at most [`TILE_ROWS`], of at most
/// [`MAX_HEAD_DIM`]; its queries and outputs exist and no other thread writes them; every visible block holds all
/// key-value heads in rows of the tile's type.
#[inline(always)]
pub(crate) unsafe fn attend<L: Lanes>(task: &mut AttentionTask<'_>) {
    let (tile, rows, dim) = (&task.tile, task.tile.rows(), task.tile.head_dim);
    let places = task.workspace.places(rows, dim);
    let (mut maxima, mut sums) = ([0.0; TILE_ROWS], [0.0; TILE_ROWS]);
    let mut states = [[0.0; 2]; TILE_ROWS];
    let mut begun = [false; TILE_ROWS];
    // SAFETY: passed on to the caller; outputs lie where queries lie, and rows do not overlap.
    unsafe {
        gather(tile, &places);
        for (index, block) in task.blocks.iter().enumerate() {
            if tile.count(rows - 1, index) == 0 {
                break;
            }
            if tile.start(0, index) == BLOCK_TOKENS {
                continue;
            }
            block_parts::<L>(tile, &places, block, index, &mut maxima, &mut sums);
            for row in 0..rows {
                let part = places.values.add(row * places.stride).cast_const();
                let out = std::slice::from_raw_parts_mut(task.out.add(tile.offset(row)), dim);
                if tile.count(row, index) <= tile.start(row, index) {
                    continue;
                }
                if !begun[row] {
                    begun[row] = true;
                    states[row] = [maxima[row], sums[row]];
                    std::ptr::copy_nonoverlapping(part, out.as_mut_ptr(), dim);
                } else {
                    merge_one::<L>((maxima[row], sums[row]), part, &mut states[row], out);
                }
            }
        }
        for row in 0..rows {
            let out = std::slice::from_raw_parts_mut(task.out.add(tile.offset(row)), dim);
            finish::<L>(states[row], tile.sink(row), out);
        }
    }
}

/// Runs a tile over one block.
///
/// # Safety
///
/// As for [`attend`]; there are parts for every row.
#[inline(always)]
pub(crate) unsafe fn attend_block<L: Lanes>(task: &mut BlockTask<'_>) {
    let (tile, rows, dim) = (&task.tile, task.tile.rows(), task.tile.head_dim);
    let places = task.workspace.places(rows, dim);
    let (mut maxima, mut sums) = ([0.0; TILE_ROWS], [0.0; TILE_ROWS]);
    // SAFETY: passed on to the caller.
    unsafe {
        gather(tile, &places);
        block_parts::<L>(tile, &places, task.block, task.index, &mut maxima, &mut sums);
        for (row, part) in task.parts.chunks_exact_mut(part_floats(dim)).enumerate() {
            (part[0], part[1]) = (maxima[row], sums[row]);
            let values = places.values.add(row * places.stride);
            std::ptr::copy_nonoverlapping(values, part[2..].as_mut_ptr(), dim);
        }
    }
}

/// Merges the parts of one row.
///
/// # Safety
///
/// The instruction set is available, and the parts exist.
#[inline(always)]
pub(crate) unsafe fn merge<L: Lanes>(task: &mut MergeTask<'_>) {
    for index in 0..task.count {
        // SAFETY: passed on to the caller.
        unsafe {
            let part = task.parts.add(index * task.stride);
            let found = (*part, *part.add(1));
            if task.first && index == 0 {
                *task.state = [found.0, found.1];
                std::ptr::copy_nonoverlapping(part.add(2), task.out.as_mut_ptr(), task.out.len());
            } else {
                merge_one::<L>(found, part.add(2), task.state, task.out);
            }
        }
    }
    if task.last {
        // SAFETY: passed on to the caller.
        unsafe { finish::<L>(*task.state, task.sink, task.out) };
    }
}

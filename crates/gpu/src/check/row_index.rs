//! Rows that an indexer chooses: its queries and keys, scores of rows, the choice by scores, and attention to the rows
//! that are listed.

use super::*;
use crate::op::Form;
use crate::op::attention::{Cache, KeyValue, Run};
use crate::op::attention_wide::{self, Attended, Chosen, Shape};
use crate::op::row_choice::{self, Choice};
use crate::op::row_index::{self, Heads, Indexed, Scored};

pub(super) fn run(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    // One group of heads that is full, several, less than one; a token alone has more than a group of rows.
    let shapes = [
        Heads { heads: 8, dim: 128, rotated: 64, neighbours: false },
        Heads { heads: 11, dim: 20, rotated: 20, neighbours: true },
        Heads { heads: 3, dim: 256, rotated: 6, neighbours: true },
        Heads { heads: 1, dim: 4, rotated: 0, neighbours: false },
    ];
    for cache in [Cache::F32, Cache::F16] {
        for shape in shapes {
            add(indexes(gpu, cache, shape)?);
            add(scores(gpu, cache, shape)?);
        }
    }
    for kind in Kind::ALL {
        for (tokens, position, top) in
            [(5, 0, 3), (3, 255, 200), (2, 1030, 1), (2, 700, 699), (1, 131_071, 2048)]
        {
            add(choices(gpu, kind, (tokens, position), top)?);
        }
    }
    for cache in [Cache::F32, Cache::F16, Cache::Q8] {
        add(attends(gpu, cache)?);
    }
    Ok(())
}

/// What scores a check chooses by.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Numbers of both signs.
    Random,
    /// Most are zero, of either sign.
    Zeros,
    /// All are one number.
    Equal,
    /// They differ in their last bits.
    Close,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Random, Self::Zeros, Self::Equal, Self::Close];

    fn score(self, numbers: &mut Numbers) -> f32 {
        let next = numbers.next();
        match self {
            Self::Random => next,
            Self::Zeros if next < 0.0 => -0.0,
            Self::Zeros if next < 0.9 => 0.0,
            Self::Zeros => 1.0 - next,
            Self::Equal => -0.5,
            Self::Close => f32::from_bits(0x3f80_0000 + (numbers.bits() % 300) as u32),
        }
    }
}

/// Cosine and sine of each pair at some positions.
fn angles(pairs: usize, positions: std::ops::Range<usize>) -> Vec<f32> {
    let of = |position: usize| {
        (0..pairs).flat_map(move |pair| {
            let angle = position as f64 * 0.7f64.powi(pair as i32);
            [angle.cos() as f32, angle.sin() as f32]
        })
    };
    positions.flat_map(of).collect()
}

/// A head with its first values rotated.
fn turned(head: &[f32], shape: Heads, angles: &[f32]) -> Vec<f32> {
    let pairs = shape.rotated / 2;
    let mut out = head.to_vec();
    for (pair, turn) in angles.as_chunks::<2>().0.iter().enumerate() {
        let (a, b) = match shape.neighbours {
            true => (head[2 * pair], head[2 * pair + 1]),
            false => (head[pair], head[pair + pairs]),
        };
        out[pair] = a * turn[0] - b * turn[1];
        out[pair + pairs] = a * turn[1] + b * turn[0];
    }
    out
}

/// Floats of words of a cache of index keys.
fn stored(gpu: &mut Gpu, cache: Cache, from: &Buffer, values: usize) -> Result<Vec<f32>, GpuError> {
    let words = gpu.read_words(from, 0, cache.bytes(values) / 4)?;
    let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    let mut out = vec![0.0; values];
    cache.kv_type().decode(&bytes, &mut out);
    Ok(out)
}

/// A buffer of index keys, as `cache` has them, and what they are read as.
fn keys(gpu: &mut Gpu, cache: Cache, keys: &[f32]) -> Result<(Buffer, Vec<f32>), GpuError> {
    let mut bytes = vec![0; cache.bytes(keys.len())];
    cache.kv_type().encode(keys, &mut bytes);
    let (chunks, _) = bytes.as_chunks::<4>();
    let held = words(gpu, &chunks.iter().map(|it| u32::from_le_bytes(*it)).collect::<Vec<_>>())?;
    let read = stored(gpu, cache, &held, keys.len())?;
    Ok((held, read))
}

fn indexes(gpu: &mut Gpu, cache: Cache, shape: Heads) -> Result<Finding, GpuError> {
    let (tokens, start, Heads { heads, dim, rotated, .. }) = (5, 3, shape);
    let mut numbers = Numbers::new(201);
    let query = numbers.floats(tokens * heads * dim);
    let given = numbers.floats(tokens * dim);
    let (weight, bias) = (numbers.floats(dim), numbers.floats(dim));
    let told = angles(rotated / 2, start..start + tokens);
    let turns = |token: usize| &told[token * rotated..(token + 1) * rotated];
    let mut expected = vec![0.0; start * dim];
    for (token, row) in given.chunks_exact(dim).enumerate() {
        let mean = row.iter().map(|it| f64::from(*it)).sum::<f64>() / dim as f64;
        let squares = row.iter().map(|it| (f64::from(*it) - mean).powi(2)).sum::<f64>();
        let factor = 1.0 / (squares / dim as f64 + 1e-6).sqrt();
        let norm = row
            .iter()
            .zip(weight.iter().zip(&bias))
            .map(|(it, (weight, bias))| ((f64::from(*it) - mean) * factor) as f32 * weight + bias);
        expected.extend(turned(&norm.collect::<Vec<_>>(), shape, turns(token)));
    }
    for (pair, head) in query.chunks_exact(dim).enumerate() {
        expected.extend(turned(head, shape, turns(pair / heads)));
    }
    let (input, turn) = (floats(gpu, &given)?, floats(gpu, &told)?);
    let [weight, bias] = [floats(gpu, &weight)?, floats(gpu, &bias)?];
    let (mut results, form) = (Vec::new(), gpu.form());
    // Token by token without sums of subgroups.
    for (cuts, form) in [(vec![tokens], form), (vec![1; tokens], Form::default())] {
        gpu.set_form(form);
        let queries = floats(gpu, &query)?;
        let held = empty(gpu, cache.bytes((start + tokens) * dim) / 4)?;
        let mut first = 0;
        for tokens in cuts {
            let norm = [&weight, &bias];
            let of = Indexed { queries: &queries, given: &input, norm, angles: &turn, keys: &held };
            let run = Run { first, tokens, position: start + first };
            row_index::launch_rows(gpu, cache, of, shape, 1e-6, run)?;
            first += tokens;
        }
        let mut found = stored(gpu, cache, &held, (start + tokens) * dim)?;
        found.extend(gpu.read_floats(&queries, 0, query.len())?);
        results.push(found);
    }
    gpu.set_form(form);
    let name = format!("index keys of {dim} and {heads} heads, {cache:?}");
    let bound = if cache == Cache::F32 { 1e-5 } else { 1e-3 };
    let difference = difference(&results[0], &expected);
    Ok(Finding { name, difference, bound, alone_equal: results[0] == results[1] })
}

/// Tokens, whose first ones see too few rows to choose.
fn scores(gpu: &mut Gpu, cache: Cache, shape: Heads) -> Result<Finding, GpuError> {
    let (tokens, position, top, stride) = (4, 298, 300, 307);
    let Heads { heads, dim, .. } = shape;
    let mut numbers = Numbers::new(202);
    let query = numbers.floats(tokens * heads * dim);
    let factors = numbers.floats(tokens * heads);
    let given = numbers.floats((position + tokens) * dim);
    let (held, given) = keys(gpu, cache, &given)?;
    let (mut expected, mut seen) = (Vec::new(), Vec::new());
    for token in 0..tokens {
        let visible = position + token + 1;
        let rows = if visible > top { 0..visible } else { 0..0 };
        for row in rows {
            let head = |head: usize| {
                let query = &query[(token * heads + head) * dim..][..dim];
                let terms = query.iter().zip(&given[row * dim..]);
                let product: f64 = terms.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                f64::from(factors[token * heads + head]) * product.max(0.0)
            };
            expected.push((0..heads).map(head).sum::<f64>() as f32);
            seen.push(token * stride + row);
        }
    }
    let (queries, weights) = (floats(gpu, &query)?, floats(gpu, &factors)?);
    let mut results = Vec::new();
    for step in [tokens, 1] {
        let mut found = Vec::new();
        for first in (0..tokens).step_by(step) {
            let to = floats(gpu, &vec![0.0; step * stride])?;
            let (queries, factors) = (&queries, &weights);
            let of = Scored { queries, factors, keys: &held, scores: &to, stride };
            let run = Run { first, tokens: step, position: position + first };
            row_index::launch_scores(gpu, cache, of, shape, top, run)?;
            found.extend(gpu.read_floats(&to, 0, step * stride)?);
        }
        results.push(found);
    }
    let found: Vec<f32> = seen.iter().map(|at| results[0][*at]).collect();
    // Nothing else is written.
    let others = results[0].iter().enumerate().all(|(at, it)| *it == 0.0 || seen.contains(&at));
    let name = format!("scores of rows by {heads} heads of {dim}, {cache:?}");
    let alone_equal = results[0] == results[1] && others;
    Ok(Finding { name, difference: difference(&found, &expected), bound: 1e-5, alone_equal })
}

/// The choice is exact.
fn choices(
    gpu: &mut Gpu,
    kind: Kind,
    (tokens, position): (usize, usize),
    top: usize,
) -> Result<Finding, GpuError> {
    let stride = position + tokens + 5;
    let mut numbers = Numbers::new(203);
    let all: Vec<f32> = (0..tokens * stride).map(|_| kind.score(&mut numbers)).collect();
    const NONE: u32 = 0xffff_ffff;
    let mut expected = vec![NONE; tokens * top];
    for token in 0..tokens {
        let visible = position + token + 1;
        if visible > top {
            let scores = &all[token * stride..][..visible];
            let mut order: Vec<u32> = (0..visible as u32).collect();
            // Zeros of both signs are equal.
            let score = |row: u32| scores[row as usize] + 0.0;
            order.sort_by(|a, b| score(*b).total_cmp(&score(*a)).then(a.cmp(b)));
            order.truncate(top);
            order.sort_unstable();
            expected[token * top..][..top].copy_from_slice(&order);
        }
    }
    let given = floats(gpu, &all)?;
    let to = words(gpu, &vec![NONE; tokens * top])?;
    let of = Choice { ratio: 1, scores: &given, stride, chosen: &to };
    row_choice::launch(gpu, of, top, Run { first: 0, tokens, position })?;
    let found = gpu.read_words(&to, 0, tokens * top)?;
    let name = format!("the best {top} of {position} rows and on, {kind:?}");
    Ok(Finding { name, difference: 0.0, bound: 0.0, alone_equal: found == expected })
}

/// Attention to listed rows is attention to a cache that has those alone; a list of all rows shows in no bit.
fn attends(gpu: &mut Gpu, cache: Cache) -> Result<Finding, GpuError> {
    let (tokens, position, top) = (3, 197, 70);
    let shape = Shape { query_heads: 4, key_value_heads: 1, row: 576, values: 512, scale: 0.05 };
    let (heads, row, width) = (shape.query_heads, shape.row, shape.values);
    let mut numbers = Numbers::new(204);
    let query = floats(gpu, &numbers.floats(tokens * heads * row))?;
    let rows = numbers.floats((position + tokens) * row);
    let list = |token: usize| -> Vec<u32> {
        let step = (position + token) as f64 / top as f64;
        (0..top).map(|at| (at as f64 * step) as u32).collect()
    };
    let of_kind = attention::Shape { query_heads: heads, key_value_heads: 1, dim: row };
    let filled = |gpu: &mut Gpu, rows: &[f32]| -> Result<Buffer, GpuError> {
        let (from, count) = (floats(gpu, rows)?, rows.len() / row);
        let held = empty(gpu, count * cache.bytes(row) / 4)?;
        let rows = KeyValue { keys: &from, values: &from };
        // Keys and values are the same rows, which two bindings of one kernel do not write.
        let other = empty(gpu, count * cache.bytes(row) / 4)?;
        let places = KeyValue { keys: &held, values: &other };
        let run = Run { first: 0, tokens: count, position: 0 };
        attention::launch_append(gpu, cache, rows, places, of_kind, run)?;
        Ok(held)
    };
    let out = empty(gpu, tokens * heads * width)?;
    let mut expected = Vec::new();
    for token in 0..tokens {
        let gathered: Vec<f32> = (list(token).into_iter())
            .flat_map(|it| rows[it as usize * row..][..row].to_vec())
            .collect();
        let held = filled(gpu, &gathered)?;
        let of =
            Attended { query: &query, places: KeyValue { keys: &held, values: &held }, y: &out };
        let run = Run { first: token, tokens: 1, position: top - 1 };
        attention_wide::launch(gpu, cache, of, shape, run)?;
        let start = 4 * (token * heads * width) as u64;
        expected.extend(gpu.read_floats(&out, start, heads * width)?);
    }
    let held = filled(gpu, &rows)?;
    let places = KeyValue { keys: &held, values: &held };
    let lists: Vec<u32> = (0..tokens).flat_map(list).collect();
    // Behind a list that is another token's.
    let lists = words(gpu, &[vec![0; top], lists].concat())?;
    let of = Attended { query: &query, places, y: &out };
    let mut results = Vec::new();
    for step in [tokens, 1] {
        for first in (0..tokens).step_by(step) {
            let run = Run { first, tokens: step, position: position + first };
            let chosen = Chosen { rows: &lists, first: 1 + first, top };
            attention_wide::launch_chosen(gpu, cache, of, chosen, shape, run)?;
        }
        results.push(gpu.read_floats(&out, 0, tokens * heads * width)?);
    }
    // A token that may see no more rows than a list has sees all, whatever the list is.
    let run = Run { first: 0, tokens, position: top - tokens };
    attention_wide::launch(gpu, cache, of, shape, run)?;
    let whole = gpu.read_floats(&out, 0, tokens * heads * width)?;
    let chosen = Chosen { rows: &lists, first: 0, top };
    attention_wide::launch_chosen(gpu, cache, of, chosen, shape, run)?;
    let all = gpu.read_floats(&out, 0, tokens * heads * width)? == whole;
    let name = format!("attention to chosen rows, {cache:?}");
    let alone_equal = results.iter().all(|it| *it == expected) && all;
    Ok(Finding { name, difference: 0.0, bound: 0.0, alone_equal })
}

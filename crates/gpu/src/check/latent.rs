//! Parts of latent attention, and heads that are wider than others: products by head, rows of a cache, attention to
//! rows that are keys and values, and to keys and values of such heads.

use super::matrices::Held;
use super::reference::reference;
use super::*;
use crate::op::attention::{Cache, KeyValue, Run};
use crate::op::attention_wide::{self, Shape};
use crate::op::head_product::{self, HeadRows, Rows};
use crate::op::latent::{self, Appended, QueryHeads, Row, Turned};

pub(super) fn run(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    let affine = Encoding::Affine { bits: 4, group: 64, scale: FloatType::Bf16 };
    for encoding in [
        Encoding::Float(FloatType::Bf16),
        Encoding::Float(FloatType::F32),
        affine,
        Encoding::Block(BlockFormat::Q8_0),
    ] {
        add(by_head(gpu, encoding)?);
    }
    // Heads cross words of zero points, and a tile.
    for encoding in matrices::OTHER_PLACES {
        add(by_head(gpu, encoding)?);
    }
    for cache in [Cache::F32, Cache::F16, Cache::Q8] {
        for neighbours in [true, false] {
            add(rows(gpu, cache, neighbours)?);
        }
        add(attends(gpu, cache, true)?);
        add(attends(gpu, cache, false)?);
    }
    Ok(())
}

/// Products of parts of a matrix's rows, from some tokens of a batch to others.
fn by_head(gpu: &mut Gpu, encoding: Encoding) -> Result<Finding, GpuError> {
    let (tokens, width, out_width, columns) = (13, 140, 53, 128);
    let rows = HeadRows { heads: 3, stride: 60, first: 7, count: 45 };
    let mut numbers = Numbers::new(91);
    let held = Held::random(encoding, 3 * 60, columns, &mut numbers);
    let mut trunk = Trunk::default();
    trunk.add(gpu, "check", &held.matrix())?;
    let x = numbers.floats(tokens * rows.heads * width);
    let heads: Vec<_> = x.chunks_exact(width).map(|head| held.product(&head[..columns])).collect();
    let expected: Vec<f32> = (heads.iter().enumerate())
        .flat_map(|(pair, all)| {
            let first = pair % rows.heads * rows.stride + rows.first;
            all[first..first + rows.count].iter().copied()
        })
        .collect();
    let input = floats(gpu, &x)?;
    // Behind two tokens that are not meant.
    let out = empty(gpu, (tokens + 2) * rows.heads * out_width)?;
    let mut results = Vec::new();
    for step in [tokens, 1] {
        for first in (0..tokens).step_by(step) {
            let x = Rows { buffer: &input, first, width };
            let y = Rows { buffer: &out, first: first + 2, width: out_width };
            head_product::launch(gpu, (trunk.matrix(0), rows), x, y, step)?;
        }
        let start = 4 * (2 * rows.heads * out_width) as u64;
        let found = gpu.read_floats(&out, start, tokens * rows.heads * out_width)?;
        let heads = found.chunks_exact(out_width);
        results.push(heads.flat_map(|head| head[..rows.count].to_vec()).collect::<Vec<_>>());
    }
    let name = format!("products by head {}", encoding.name());
    let difference = difference(&results[0], &expected);
    Ok(Finding { name, difference, bound: 1e-5, alone_equal: results[0] == results[1] })
}

/// Angles of positions, as kernels are told them.
fn angles(pairs: usize, positions: &[u32]) -> Vec<[f32; 2]> {
    let of = |position: u32| {
        (0..pairs).map(move |pair| {
            let angle = f64::from(position as f32 * 0.6f32.powi(pair as i32));
            [angle.cos() as f32, angle.sin() as f32]
        })
    };
    positions.iter().flat_map(|&position| of(position)).collect()
}

/// Norms and rotations of rows on their way to a cache, and rotations of the ends of queries.
fn rows(gpu: &mut Gpu, cache: Cache, neighbours: bool) -> Result<Finding, GpuError> {
    let row = Row { rank: 300, rotated: 20, neighbours };
    let (tokens, heads, plain, pairs, start) = (5, 3, 40, row.rotated / 2, 7);
    let mut numbers = Numbers::new(92);
    let (x, norm) = (numbers.floats(tokens * row.width()), numbers.floats(row.rank));
    let query = numbers.floats(tokens * heads * (plain + row.rotated));
    let positions: Vec<u32> = (0..tokens as u32).map(|token| start as u32 + token).collect();
    let turns = angles(pairs, &positions);
    let turned = |token: usize, ends: &[f32]| -> Vec<f32> {
        let turns = &turns[token * pairs..(token + 1) * pairs];
        let pair = |at: usize| match neighbours {
            true => (ends[2 * at], ends[2 * at + 1]),
            false => (ends[at], ends[at + pairs]),
        };
        let first = (0..pairs).map(|at| pair(at).0 * turns[at][0] - pair(at).1 * turns[at][1]);
        let second = (0..pairs).map(|at| pair(at).0 * turns[at][1] + pair(at).1 * turns[at][0]);
        first.chain(second).collect()
    };
    let mut expected = Vec::new();
    for (token, x) in x.chunks_exact(row.width()).enumerate() {
        let mut latent = x[..row.rank].to_vec();
        reference().rms_norm_in_place(&mut latent, &norm, 1e-6);
        expected.extend(latent);
        expected.extend(turned(token, &x[row.rank..]));
    }
    for (pair, query) in query.chunks_exact(plain + row.rotated).enumerate() {
        expected.extend(turned(pair / heads, &query[plain..]));
    }
    let (input, weight) = (floats(gpu, &x)?, floats(gpu, &norm)?);
    let (queries, told) = (floats(gpu, &query)?, floats(gpu, turns.as_flattened())?);
    let words = cache.bytes(row.width()) / 4;
    let held = empty(gpu, (start + tokens) * words)?;
    let meets = empty(gpu, tokens * heads * row.width())?;
    let run = Run { first: 0, tokens, position: start };
    let of = Appended { rows: &input, norm: &weight, angles: &told, to: &held };
    latent::launch_append(gpu, cache, of, row, 1e-6, run)?;
    let of = Turned { query: &queries, angles: &told, turned: &meets };
    latent::launch_turn(gpu, of, row, QueryHeads { heads, plain }, (0, tokens))?;
    let mut found = cached(gpu, cache, row.width(), (&held, start * words, tokens * words))?;
    let ends = gpu.read_floats(&meets, 0, tokens * heads * row.width())?;
    found.extend(ends.chunks_exact(row.width()).flat_map(|head| head[row.rank..].to_vec()));
    let order = if neighbours { "neighbours" } else { "halves" };
    let name = format!("latent rows, pairs of {order}, {cache:?}");
    let bound = match cache {
        Cache::F32 => 1e-5,
        Cache::F16 => 5e-4,
        Cache::Q8 => 5e-3,
    };
    Ok(Finding { name, difference: difference(&found, &expected), bound, alone_equal: true })
}

/// Values of a cache, from a word on.
fn cached(
    gpu: &mut Gpu,
    cache: Cache,
    dim: usize,
    (from, first, words): (&Buffer, usize, usize),
) -> Result<Vec<f32>, GpuError> {
    let words = gpu.read_words(from, 4 * first as u64, words)?;
    let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    let mut values = vec![0.0; dim];
    let rows = bytes.chunks_exact(cache.bytes(dim)).flat_map(|row| {
        cache.kv_type().decode(row, &mut values);
        values.clone()
    });
    Ok(rows.collect())
}

/// A run that crosses blocks, cut in two, and token by token: over rows that are keys and values, and over both.
fn attends(gpu: &mut Gpu, cache: Cache, latent: bool) -> Result<Finding, GpuError> {
    let shape = match latent {
        true => (4, 1, 576, 512),
        false => (4, 2, 512, 512),
    };
    let (query_heads, key_value_heads, row, width) = shape;
    let shape = Shape { query_heads, key_value_heads, row, values: width, scale: 0.05 };
    let (tokens, all) = (140, key_value_heads * row);
    let mut numbers = Numbers::new(93);
    let query = numbers.floats(tokens * query_heads * row);
    let of_kind = attention::Shape { query_heads, key_value_heads, dim: row };
    let (keys, values) = (numbers.floats(tokens * all), numbers.floats(tokens * all));
    let (k, v) = (floats(gpu, &keys)?, floats(gpu, &values)?);
    let words = tokens * key_value_heads * cache.bytes(row) / 4;
    let held = [0, 1].map(|_| empty(gpu, words));
    let [first, second] = held;
    let (first, second) = (first?, second?);
    let rows = KeyValue { keys: &k, values: &v };
    let places = KeyValue { keys: &first, values: &second };
    let run = Run { first: 0, tokens, position: 0 };
    attention::launch_append(gpu, cache, rows, places, of_kind, run)?;
    let seen = [
        cached(gpu, cache, row, (&first, 0, words))?,
        cached(gpu, cache, row, (&second, 0, words))?,
    ];
    let seen = [&seen[0], if latent { &seen[0] } else { &seen[1] }];
    let places = KeyValue { keys: &first, values: if latent { &first } else { &second } };
    let expected = expected(&query, seen, shape);
    let (q, out) = (floats(gpu, &query)?, empty(gpu, tokens * query_heads * width)?);
    let mut results = Vec::new();
    for cuts in [vec![tokens], vec![70, 70], vec![1; tokens]] {
        let mut first = 0;
        for tokens in cuts {
            let run = Run { first, tokens, position: first };
            let of = attention_wide::Attended { query: &q, places, y: &out };
            attention_wide::launch(gpu, cache, of, shape, run)?;
            first += tokens;
        }
        results.push(gpu.read_floats(&out, 0, tokens * query_heads * width)?);
    }
    let what = if latent { "to latent rows" } else { "of wide heads" };
    let name = format!("attention {what}, {cache:?}");
    let alone_equal = results.iter().all(|it| *it == results[0]);
    Ok(Finding { name, difference: difference(&results[0], &expected), bound: 2e-5, alone_equal })
}

/// Attention in double precision.
fn expected(query: &[f32], [keys, values]: [&Vec<f32>; 2], shape: Shape) -> Vec<f32> {
    let Shape { query_heads, key_value_heads, row, values: width, scale } = shape;
    let mut out = Vec::new();
    for (pair, query) in query.chunks_exact(row).enumerate() {
        let head = pair % query_heads / (query_heads / key_value_heads);
        let place = |position: usize| (position * key_value_heads + head) * row;
        let score = |position: usize| {
            let key = &keys[place(position)..][..row];
            let terms = query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k));
            terms.sum::<f64>() * f64::from(scale)
        };
        let scores: Vec<f64> = (0..=pair / query_heads).map(score).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let total: f64 = weights.iter().sum();
        out.extend((0..width).map(|at| {
            let value = |position: usize| f64::from(values[place(position) + at]);
            let terms = weights.iter().enumerate();
            let sum: f64 = terms.map(|(position, weight)| weight * value(position)).sum();
            (sum / total) as f32
        }));
    }
    out
}

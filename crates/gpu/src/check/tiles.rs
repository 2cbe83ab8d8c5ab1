//! Products and attention by cooperative matrices, where the adapter has them.

use super::*;
use crate::op::halves::{self, Halves};
use crate::op::{tile, tile_attention};

pub(super) fn run(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    if !gpu.adapter().matrices {
        return Ok(());
    }
    for encoding in matrices::encodings() {
        add(products(gpu, encoding)?);
    }
    for dim in [128, 256] {
        add(attends(gpu, dim)?);
    }
    Ok(())
}

fn empty_halves(gpu: &mut Gpu, rows: usize, width: usize) -> Result<Halves, GpuError> {
    let [values, factors] = Halves::sizes(rows, width);
    Ok(Halves { values: empty(gpu, values)?, factors: empty(gpu, factors)? })
}

/// Odd rows and tokens; a prompt cut in two.
fn products(gpu: &mut Gpu, encoding: Encoding) -> Result<Finding, GpuError> {
    let (rows, columns, tokens) = (150, 768, 140);
    let mut numbers = Numbers::new(31);
    let held = matrices::Held::random(encoding, rows, columns, &mut numbers);
    // Tokens of very different magnitudes.
    let mut x = numbers.floats(tokens * columns);
    for (token, row) in x.chunks_exact_mut(columns).enumerate() {
        row.iter_mut().for_each(|value| *value *= 10f32.powi(token as i32 % 9 - 4));
    }
    let mut trunk = Trunk::default();
    trunk.add(gpu, "check", &held.matrix())?;
    let matrix = trunk.matrix(0);
    let parted = empty_halves(gpu, tokens, columns)?;
    let mut results = Vec::new();
    for cut in [tokens, 71] {
        let mut found = Vec::new();
        for part in x.chunks(cut * columns) {
            let (input, count) = (floats(gpu, part)?, part.len() / columns);
            let out = empty(gpu, count * rows)?;
            halves::launch(gpu, &input, &parted, (count, columns))?;
            tile::launch(gpu, matrix, &parted, &out, count, false)?;
            found.extend(gpu.read_floats(&out, 0, count * rows)?);
        }
        results.push(found);
    }
    let expected = held.product(&x);
    let by_token = results[0].chunks_exact(rows).zip(expected.chunks_exact(rows));
    let most = by_token.map(|(found, expected)| difference(found, expected)).fold(0.0, f32::max);
    let name = format!("product by matrices {}", encoding.name());
    let alone_equal = results[0] == results[1];
    Ok(Finding { name, difference: most, bound: 1e-5, alone_equal })
}

/// Against the plain kernel, whole and cut in two.
fn attends(gpu: &mut Gpu, dim: usize) -> Result<Finding, GpuError> {
    let shape = attention::Shape { query_heads: 4, key_value_heads: 2, dim };
    let (tokens, capacity, width) = (300usize, 310, 4 * dim);
    let mut numbers = Numbers::new(32);
    let mut random = |gpu: &mut Gpu, count: usize| floats(gpu, &numbers.floats(count));
    let query = random(gpu, tokens * width)?;
    let (key, value) = (random(gpu, tokens * 2 * dim)?, random(gpu, tokens * 2 * dim)?);
    let both = random(gpu, 2 * tokens * width)?;
    let bytes = (4 * capacity * dim) as u64;
    let (keys, values) = (gpu.buffer("check", bytes)?, gpu.buffer("check", bytes)?);
    let cache = attention::Cache::F16;
    let whole = attention::Run { first: 0, tokens, position: 0 };
    attention::launch_append(gpu, cache, (&key, &value), (&keys, &values), shape, whole)?;
    let plain = empty(gpu, tokens * width)?;
    let places = (&keys, &values);
    attention::launch(gpu, cache, (&query, Some(&both)), places, &plain, shape, whole)?;
    let expected = gpu.read_floats(&plain, 0, tokens * width)?;
    let parted = empty_halves(gpu, tokens + tile_attention::TILE, width)?;
    halves::launch(gpu, &query, &parted, (tokens, width))?;
    let mut results = Vec::new();
    for cuts in [vec![(0, tokens)], vec![(0, 1), (1, 200), (201, 99)]] {
        let out = empty(gpu, tokens * width)?;
        for (first, count) in cuts {
            let run = attention::Run { first, tokens: count, position: first };
            let places = (&keys, &values, capacity);
            tile_attention::launch(gpu, (&parted, Some(&both)), places, &out, shape, run)?;
        }
        results.push(gpu.read_floats(&out, 0, tokens * width)?);
    }
    let name = format!("attention by matrices, heads of {dim}");
    let alone_equal = results[0] == results[1];
    Ok(Finding { name, difference: difference(&results[0], &expected), bound: 1e-4, alone_equal })
}

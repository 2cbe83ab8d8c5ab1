//! Launches of several operations against the operations one by one, whose bits they must have.

use super::*;
use crate::Planes;
use crate::op::fused;

const EPSILON: f32 = 1e-6;

pub(super) fn run(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    let scale = FloatType::Bf16;
    let affine = [(4, 64, 2048), (4, 32, 512), (8, 64, 2048), (6, 128, 384)];
    for (bits, group, columns) in affine {
        add(products(gpu, Encoding::Affine { bits, group, scale }, columns)?);
    }
    for (format, columns) in [
        (BlockFormat::Q4K, 2304),
        (BlockFormat::Q5K, 1024),
        (BlockFormat::Q4K, 512),
        (BlockFormat::Q8_0, 2112),
    ] {
        add(products(gpu, Encoding::Block(format), columns)?);
    }
    for (float, columns) in [(FloatType::F32, 2080), (FloatType::Bf16, 1024)] {
        add(products(gpu, Encoding::Float(float), columns)?);
    }
    add(products(gpu, Encoding::Mxfp4, 2880)?);
    for encoding in matrices::OTHER_PLACES {
        add(products(gpu, encoding, 1152)?);
    }
    for (cache, dim) in
        [(attention::Cache::F32, 96), (attention::Cache::F16, 96), (attention::Cache::Q8, 128)]
    {
        heads_of_one(gpu, cache, dim)?.into_iter().for_each(&mut *add);
    }
    add(convolves(gpu)?);
    Ok(())
}

/// A finding of bits that are equal or not.
fn equal(name: String, alone_equal: bool) -> Finding {
    Finding { name, difference: 0.0, bound: 0.0, alone_equal }
}

/// Matrices of one packing, of random contents.
fn matrices(
    gpu: &mut Gpu,
    encoding: Encoding,
    shapes: &[(usize, usize)],
    numbers: &mut Numbers,
) -> Result<Trunk, GpuError> {
    let mut trunk = Trunk::default();
    for &(rows, columns) in shapes {
        let held = matrices::Held::random(encoding, rows, columns, numbers);
        trunk.add(gpu, "check", &held.matrix())?;
    }
    Ok(trunk)
}

fn products(gpu: &mut Gpu, encoding: Encoding, columns: usize) -> Result<Finding, GpuError> {
    let mut numbers = Numbers::new(21);
    let shapes = [(2100, columns), (37, columns), (37, columns), (1, columns)];
    let trunk = matrices(gpu, encoding, &shapes, &mut numbers)?;
    let (x, weight) = (numbers.floats(columns), numbers.floats(columns));
    let (x, weight) = (floats(gpu, &x)?, floats(gpu, &weight)?);
    let normed = empty(gpu, columns)?;
    norm::launch(gpu, (&x, &weight, &normed), (1, columns), EPSILON)?;
    let mut all_equal = true;
    let product = |gpu: &mut Gpu, matrix: &Planes, from: &Buffer| -> Result<Vec<f32>, GpuError> {
        let out = empty(gpu, matrix.rows)?;
        product::launch(gpu, matrix, from, &out, 1, false)?;
        gpu.read_floats(&out, 0, matrix.rows)
    };
    let plain: Vec<_> =
        (0..4).map(|at| product(gpu, trunk.matrix(at), &normed)).collect::<Result<_, _>>()?;
    for count in 1..=4 {
        let outputs: Vec<_> =
            shapes.iter().map(|shape| empty(gpu, shape.0)).collect::<Result<_, _>>()?;
        let pairs: Vec<_> = (0..count).map(|at| (trunk.matrix(at), &outputs[at])).collect();
        let kept = empty(gpu, columns)?;
        let keep = (count % 2 == 0).then_some(&kept);
        fused::launch_several(gpu, &pairs, (&x, &weight), EPSILON, keep)?;
        for (at, plain) in plain.iter().enumerate().take(count) {
            all_equal &= gpu.read_floats(&outputs[at], 0, shapes[at].0)? == *plain;
        }
        if keep.is_some() {
            let all = gpu.read_floats(&normed, 0, columns)?;
            all_equal &= gpu.read_floats(&kept, 0, columns)? == all;
        }
    }
    let (gate, up) = (floats(gpu, &plain[1])?, floats(gpu, &plain[2])?);
    elementwise::launch_swiglu(gpu, &up, &gate, 37)?;
    let out = empty(gpu, 37)?;
    fused::launch_gated(gpu, [trunk.matrix(1), trunk.matrix(2)], &normed, &out)?;
    all_equal &= gpu.read_floats(&out, 0, 37)? == gpu.read_floats(&gate, 0, 37)?;
    // The sum of a layer, whose shared part is the product by the first matrix.
    let (rows, k) = (shapes[0].0, 3);
    let (pairs, weights) = (numbers.floats(k * rows), numbers.floats(k));
    let (pairs, weights) = (floats(gpu, &pairs)?, floats(gpu, &weights)?);
    let (factor, shared) = (floats(gpu, &[0.3])?, floats(gpu, &plain[0])?);
    let before = numbers.floats(rows);
    let (one, other) = (floats(gpu, &before)?, floats(gpu, &before)?);
    let common = Some(combine::Shared { rows: &shared, factor: Some(&factor) });
    let of = combine::Weighed { rows: &pairs, weights: &weights };
    let size = combine::Combined { tokens: 1, k, width: rows, add: true };
    combine::launch(gpu, of, common, &one, size)?;
    fused::launch_close(gpu, trunk.matrix(0), &normed, &factor, of, &other, k)?;
    all_equal &= gpu.read_floats(&one, 0, rows)? == gpu.read_floats(&other, 0, rows)?;
    Ok(equal(format!("several products {}, rows of {columns}", encoding.name()), all_equal))
}

/// Heads of a token among others, and alone; then its attention, with blocks one behind the other, and side by side.
/// Its gate is part of attention in both; what a gate does is compared with attention without one, in value: an NVIDIA
/// driver gives other last bits where another kernel multiplies by it.
fn heads_of_one(
    gpu: &mut Gpu,
    cache: attention::Cache,
    dim: usize,
) -> Result<[Finding; 3], GpuError> {
    let (pairs, tokens, row, position) = (16, 3, 1, 290);
    let shape = attention::Shape { query_heads: 4, key_value_heads: 2, dim };
    let mut numbers = Numbers::new(22);
    let mut random = |gpu: &mut Gpu, count: usize| floats(gpu, &numbers.floats(count));
    let both = random(gpu, tokens * 8 * dim)?;
    let (key, value) = (random(gpu, tokens * 2 * dim)?, random(gpu, tokens * 2 * dim)?);
    let weights = [random(gpu, dim)?, random(gpu, dim)?];
    let angles = random(gpu, tokens * 2 * pairs)?;
    let capacity = 2 * dim * 300;
    let (old_keys, old_values) = (random(gpu, capacity)?, random(gpu, capacity)?);
    let bytes = (capacity / dim * cache.bytes(dim)) as u64;
    let (mut of_heads, mut of_attention) = (Vec::new(), Vec::new());
    for (alone, gated) in [(false, true), (true, true), (false, false)] {
        let (query, gate) = (empty(gpu, tokens * 4 * dim)?, empty(gpu, tokens * 4 * dim)?);
        let turned = empty(gpu, tokens * 2 * dim)?;
        gpu.copy(&key, 0, &turned, 0, 4 * (tokens * 2 * dim) as u64);
        let (keys, values) = (gpu.buffer("check", bytes)?, gpu.buffer("check", bytes)?);
        let old = attention::Run { first: 0, tokens: position, position: 0 };
        let places = attention::KeyValue { keys: &keys, values: &values };
        let run = attention::Run { first: row, tokens: 1, position };
        let rows = attention::KeyValue { keys: &old_keys, values: &old_values };
        attention::launch_append(gpu, cache, rows, places, shape, old)?;
        let out = empty(gpu, tokens * 4 * dim)?;
        if alone {
            let of = heads::Prepared {
                both: Some(&both),
                key: &key,
                value: &value,
                weights: [&weights[0], &weights[1]],
                angles: &angles,
                query: &query,
                places,
            };
            heads::launch_prepare(gpu, cache, of, shape, run, pairs, EPSILON)?;
            let partial = empty(gpu, attention::partial_len(4, 300))?;
            let to = attention::Split { partial: &partial, y: &out };
            let queries = attention::Queries { query: &query, both: Some(&both) };
            attention::launch_split(gpu, cache, queries, places, to, shape, run)?;
        } else {
            let four = heads::Heads { tokens, heads: 4, dim };
            heads::launch_split(gpu, (&both, &query, &gate), four)?;
            heads::launch(gpu, (&query, &weights[0], &angles), four, pairs, EPSILON)?;
            let two = heads::Heads { heads: 2, ..four };
            heads::launch(gpu, (&turned, &weights[1], &angles), two, pairs, EPSILON)?;
            let rows = attention::KeyValue { keys: &turned, values: &value };
            attention::launch_append(gpu, cache, rows, places, shape, run)?;
            let queries = attention::Queries { query: &query, both: gated.then_some(&both) };
            attention::launch(gpu, cache, queries, places, &out, shape, run)?;
            if !gated {
                elementwise::launch_sigmoid_gate(gpu, &gate, &out, tokens * 4 * dim)?;
            }
        }
        let (start, width) = ((4 * row * 4 * dim) as u64, 4 * dim);
        let found = gpu.read_floats(&query, start, width)?;
        let stored = gpu.read_words(&keys, 0, bytes as usize / 4)?;
        let more = gpu.read_words(&values, 0, bytes as usize / 4)?;
        of_heads.push((found, stored, more));
        of_attention.push(gpu.read_floats(&out, start, width)?);
    }
    let heads = of_heads.iter().all(|it| *it == of_heads[0]);
    Ok([
        equal(format!("heads of one token, {cache:?}"), heads),
        equal(format!("attention of one token, {cache:?}"), of_attention[0] == of_attention[1]),
        Finding {
            name: format!("gates of attention, {cache:?}"),
            difference: difference(&of_attention[0], &of_attention[2]),
            bound: 1e-6,
            alone_equal: true,
        },
    ])
}

fn convolves(gpu: &mut Gpu) -> Result<Finding, GpuError> {
    let shape =
        delta::Shape { key_heads: 2, value_heads: 4, key_dim: 40, value_dim: 24, tiled: false };
    let (channels, taps, row) = (shape.channels(), 4, 2);
    let mut numbers = Numbers::new(23);
    let (x, weight) = (numbers.floats(3 * channels), numbers.floats(channels * taps));
    let tail = numbers.floats((taps - 1) * channels);
    let (x, weight) = (floats(gpu, &x)?, floats(gpu, &weight)?);
    let mut results = Vec::new();
    for alone in [false, true] {
        let (kept, out) = (floats(gpu, &tail)?, empty(gpu, 3 * channels)?);
        let buffers = convolution::Filtered { x: &x, weight: &weight, tail: &kept, y: &out };
        if alone {
            convolution::launch_with_heads(gpu, buffers, shape, taps, row)?;
        } else {
            let run = attention::Run { first: row, tokens: 1, position: 0 };
            convolution::launch(gpu, buffers, channels, taps, run)?;
            delta::launch_heads(gpu, &out, shape, 3)?;
        }
        let mut found = gpu.read_floats(&out, 4 * (row * channels) as u64, channels)?;
        found.extend(gpu.read_floats(&kept, 0, tail.len())?);
        results.push(found);
    }
    Ok(equal("convolution and heads of one token".to_owned(), results[0] == results[1]))
}

//! Parts that only some families have: rotation without a norm, biases, heads with sinks and a window, a router with a
//! bias, clamped experts whose rows may lie in turns.

use kernels::AttentionExtras;

use super::reference::{Attended, reference};
use super::*;
use crate::op::halves::{self, Halves};
use crate::op::{group, plain, tile};

pub(super) fn run(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    for (dim, rotated) in [(64, 64), (96, 32)] {
        add(rotations(gpu, dim, rotated)?);
    }
    add(biases(gpu)?);
    add(joins(gpu)?);
    for cache in [attention::Cache::F32, attention::Cache::F16, attention::Cache::Q8] {
        // One that outweighs all, one that weighs nothing.
        let sinks = Some([0.3, 30.0, -1.0, -90.0]);
        let odd = if cache == attention::Cache::Q8 { 96 } else { 36 };
        for (dim, window) in [(64, None), (64, Some(128)), (odd, Some(100)), (64, Some(1))] {
            add(attends(gpu, cache, (dim, window), sinks)?);
        }
        add(attends(gpu, cache, (64, Some(100)), None)?);
    }
    for cache in [attention::Cache::F32, attention::Cache::F16, attention::Cache::Q8] {
        add(prepares(gpu, cache)?);
    }
    add(routes(gpu)?);
    let affine = Encoding::Affine { bits: 8, group: 32, scale: FloatType::Bf16 };
    for (encoding, in_turns) in [
        (Encoding::Mxfp4, true),
        (Encoding::Block(BlockFormat::Mxfp4), false),
        (affine, true),
        (Encoding::Block(BlockFormat::Q4K), false),
    ] {
        clamped(gpu, encoding, in_turns, add)?;
    }
    Ok(())
}

fn rotations(gpu: &mut Gpu, dim: usize, rotated: usize) -> Result<Finding, GpuError> {
    let (tokens, count) = (3, 21);
    let mut numbers = Numbers::new(71);
    let x = numbers.floats(tokens * count * dim);
    let frequencies: Vec<f32> = (0..rotated / 2).map(|pair| 0.7f32.powi(pair as i32)).collect();
    let positions = [0u32, 5, 100_000];
    let angles: Vec<f32> = positions
        .iter()
        .flat_map(|&position| {
            frequencies.iter().flat_map(move |frequency| {
                let angle = f64::from(position as f32 * frequency);
                [angle.cos() as f32, angle.sin() as f32]
            })
        })
        .collect();
    let mut expected = x.clone();
    reference().rope(&mut expected, count, dim, rotated, &positions, &frequencies);
    let (rows, turns) = (floats(gpu, &x)?, floats(gpu, &angles)?);
    plain::launch_rotate(gpu, (&rows, &turns), (tokens, count, dim), rotated / 2)?;
    let found = gpu.read_floats(&rows, 0, x.len())?;
    let name = format!("rotation of {rotated} of {dim}");
    let difference = difference(&found, &expected);
    Ok(Finding { name, difference, bound: 1e-5, alone_equal: true })
}

fn biases(gpu: &mut Gpu) -> Result<Finding, GpuError> {
    let (rows, width) = (3, 1000);
    let mut numbers = Numbers::new(72);
    let (x, bias) = (numbers.floats(rows * width), numbers.floats(width));
    let mut expected = x.clone();
    reference().add_to_rows(&mut expected, &bias);
    let (place, added) = (floats(gpu, &x)?, floats(gpu, &bias)?);
    plain::launch_add_bias(gpu, (&place, &added), (rows, width))?;
    let alone_equal = gpu.read_floats(&place, 0, x.len())? == expected;
    Ok(Finding { name: "biases of rows".to_owned(), difference: 0.0, bound: 0.0, alone_equal })
}

/// Parts that end inside and at the end of a workgroup.
fn joins(gpu: &mut Gpu) -> Result<Finding, GpuError> {
    let (rows, widths) = (3, [200, 312, 130]);
    let mut numbers = Numbers::new(73);
    let parts = widths.map(|width| numbers.floats(rows * width));
    let row = |row: usize| {
        let of = move |(part, width): (&Vec<f32>, usize)| part[row * width..][..width].to_vec();
        parts.iter().zip(widths).flat_map(of)
    };
    let expected: Vec<f32> = (0..rows).flat_map(row).collect();
    let [first, second, third] = parts.each_ref().map(|part| floats(gpu, part));
    let (first, second, third) = (first?, second?, third?);
    let out = empty(gpu, expected.len())?;
    plain::launch_join(gpu, [&first, &second, &third], &out, widths, rows)?;
    let alone_equal = gpu.read_floats(&out, 0, expected.len())? == expected;
    Ok(Finding { name: "rows of three parts".to_owned(), difference: 0.0, bound: 0.0, alone_equal })
}

/// A run that crosses blocks, cut in two, and token by token; the cache begins at a later position too.
fn attends(
    gpu: &mut Gpu,
    cache: attention::Cache,
    (dim, window): (usize, Option<usize>),
    sinks: Option<[f32; 4]>,
) -> Result<Finding, GpuError> {
    let (tokens, context) = (Attended::TOKENS, Attended::CONTEXT);
    let extras = AttentionExtras { window, sinks: sinks.as_ref().map(|sinks| &sinks[..]) };
    let of = Attended::random(&mut Numbers::new(73), cache, dim, extras);
    let Attended { shape, kv_type, query, key, value, expected } = of;
    let size = (context * 2 * cache.bytes(dim)) as u64;
    let (keys, values) = (gpu.buffer("check", size)?, gpu.buffer("check", size)?);
    let (q, k, v) = (floats(gpu, &query)?, floats(gpu, &key)?, floats(gpu, &value)?);
    let held = floats(gpu, &sinks.unwrap_or([attention::NO_SINK; 4]))?;
    let layer = attention::Layer { shape, sinks: Some(&held), window, scale: None };
    let partial = empty(gpu, attention::partial_len(4, context))?;
    let mut results = Vec::new();
    for cuts in [vec![tokens], vec![270, 30], [vec![40], vec![1; 260]].concat()] {
        let (out, mut first) = (empty(gpu, query.len())?, 0);
        for tokens in cuts {
            let run = attention::Run { first, tokens, position: first };
            let rows = attention::KeyValue { keys: &k, values: &v };
            let places = attention::KeyValue { keys: &keys, values: &values };
            attention::launch_append(gpu, cache, rows, places, shape, run)?;
            let queries = attention::Queries { query: &q, both: None };
            let to = attention::Split { partial: &partial, y: &out };
            attention::launch_split(gpu, cache, queries, places, to, layer, run)?;
            first += tokens;
        }
        results.push(gpu.read_floats(&out, 0, query.len())?);
    }
    let alone_equal = results.iter().all(|it| *it == results[0]);
    let seen = window.map_or("all positions".to_owned(), |window| format!("{window} positions"));
    let with = if sinks.is_some() { "with" } else { "without" };
    let name = format!("attention {with} sinks {kv_type}, heads of {dim}, {seen}");
    let bound = if cache == attention::Cache::F16 { 2e-4 } else { 2e-5 };
    Ok(Finding { name, difference: difference(&results[0], &expected), bound, alone_equal })
}

/// One token in one launch against biases, rotations and the cache one by one: equal bits.
fn prepares(gpu: &mut Gpu, cache: attention::Cache) -> Result<Finding, GpuError> {
    let (shape, pairs, tokens, row, position) =
        (attention::Shape { query_heads: 6, key_value_heads: 2, dim: 64 }, 32, 3, 1, 70);
    let mut numbers = Numbers::new(76);
    let widths = [6 * 64, 2 * 64, 2 * 64];
    let rows = widths.map(|width| numbers.floats(tokens * width));
    let biases = widths.map(|width| numbers.floats(width));
    let angles = floats(gpu, &numbers.floats(tokens * 2 * pairs))?;
    let mut results = Vec::new();
    for together in [false, true] {
        let [query, key, value] = [0, 1, 2].map(|at| floats(gpu, &rows[at]));
        let (query, key, value) = (query?, key?, value?);
        let [of_query, of_key, of_value] = [0, 1, 2].map(|at| floats(gpu, &biases[at]));
        let added = [&of_query?, &of_key?, &of_value?];
        let bytes = (80 * 2 * cache.bytes(64)) as u64;
        let (keys, values) = (gpu.buffer("check", bytes)?, gpu.buffer("check", bytes)?);
        let places = attention::KeyValue { keys: &keys, values: &values };
        let run = attention::Run { first: row, tokens: 1, position };
        if together {
            let of = plain::Prepared {
                query: &query,
                key: &key,
                value: &value,
                biases: added,
                angles: &angles,
                places,
            };
            plain::launch_prepare(gpu, cache, of, shape, run, pairs)?;
        } else {
            for (at, x) in [&query, &key, &value].into_iter().enumerate() {
                plain::launch_add_bias(gpu, (x, added[at]), (tokens, widths[at]))?;
            }
            plain::launch_rotate(gpu, (&query, &angles), (tokens, 6, 64), pairs)?;
            plain::launch_rotate(gpu, (&key, &angles), (tokens, 2, 64), pairs)?;
            let rows = attention::KeyValue { keys: &key, values: &value };
            attention::launch_append(gpu, cache, rows, places, shape, run)?;
        }
        let mut found = gpu.read_words(&query, 4 * (row * widths[0]) as u64, widths[0])?;
        let words = 2 * cache.bytes(64) / 4;
        for side in [&keys, &values] {
            found.extend(gpu.read_words(side, 4 * (position * words) as u64, words)?);
        }
        results.push(found);
    }
    let name = format!("a token's heads with biases to a cache of {cache:?}");
    let alone_equal = results[0] == results[1];
    Ok(Finding { name, difference: 0.0, bound: 0.0, alone_equal })
}

fn routes(gpu: &mut Gpu) -> Result<Finding, GpuError> {
    let (tokens, count, k) = (3, 128, 4);
    let mut numbers = Numbers::new(74);
    let (logits, bias) = (numbers.floats(tokens * count), numbers.floats(count));
    let mut sums = logits.clone();
    reference().add_to_rows(&mut sums, &bias);
    let (mut ids, mut factors) = (vec![0u16; tokens * k], vec![0.0; tokens * k]);
    reference().softmax_top_k(&sums, count, k, true, &mut ids, &mut factors);
    let (input, added) = (floats(gpu, &logits)?, floats(gpu, &bias)?);
    let (chosen, tiles) = (empty(gpu, tokens * k)?, empty(gpu, 3 * tokens * k)?);
    let weights = empty(gpu, tokens * k)?;
    let slabs = Slabs::new(gpu, 1, Gpu::ALIGNMENT as usize, count)?;
    let choice = router::Choice {
        ids: &chosen,
        first_id: 0,
        weights: &weights,
        tiles: &tiles,
        table_start: 0,
        flag: 0,
    };
    let shape = router::Chosen { tokens, experts: count, k };
    router::launch(gpu, input.all(), Some(&added), &slabs, choice, shape, true)?;
    let (found_ids, found) =
        (gpu.read_words(&chosen, 0, tokens * k)?, gpu.read_floats(&weights, 0, tokens * k)?);
    let (mut expected, mut alone_equal) = (Vec::new(), true);
    for token in 0..tokens {
        let mut pairs: Vec<_> =
            (token * k..(token + 1) * k).map(|at| (ids[at], factors[at])).collect();
        pairs.sort_by_key(|pair| pair.0);
        let mut both = pairs.iter().zip(&found_ids[token * k..]);
        alone_equal &= both.all(|(pair, id)| u32::from(pair.0) == *id);
        expected.extend(pairs.iter().map(|pair| pair.1));
    }
    gpu.clear_control();
    let name = "router with a bias".to_owned();
    Ok(Finding { name, difference: difference(&found, &expected), bound: 1e-5, alone_equal })
}

/// Numbers of a layer of experts for the check.
const EXPERTS: usize = 5;
const TOP_K: usize = 2;
const TOKENS: usize = 13;
const ALPHA: f32 = 1.702;
const LIMIT: f32 = 0.75;

/// The reference's output of an expert for a token; biases of gates and ups, and of the second half.
fn clamped_expert(
    all: &[[matrices::Held; 3]],
    expert: usize,
    token: &[f32],
    [gate_up, down]: [&[f32]; 2],
    in_turns: bool,
) -> Vec<f32> {
    let [gate, up, last] = &all[expert];
    let (inner, hidden) = (gate_up.len() / (2 * EXPERTS), token.len());
    let mut both = [gate.product(token), up.product(token)].concat();
    if in_turns {
        let turns = both.as_chunks::<2>().0.iter();
        both = turns.clone().map(|pair| pair[0]).chain(turns.map(|pair| pair[1])).collect();
    }
    let activated: Vec<f32> = (0..inner)
        .map(|row| {
            let gate = both[row] + gate_up[expert * inner + row];
            let up = both[inner + row] + gate_up[(EXPERTS + expert) * inner + row];
            let (gate, up) = (gate.min(LIMIT), up.clamp(-LIMIT, LIMIT));
            gate / (1.0 + (-ALPHA * gate).exp()) * (up + 1.0)
        })
        .collect();
    let bias = &down[expert * hidden..][..hidden];
    last.product(&activated).iter().zip(bias).map(|(sum, bias)| sum + bias).collect()
}

/// A layer's experts in two slabs, as tiles of several pairs and of one, and by matrices.
fn clamped(
    gpu: &mut Gpu,
    encoding: Encoding,
    in_turns: bool,
    add: &mut dyn FnMut(Finding),
) -> Result<(), GpuError> {
    let (hidden, inner) = (512, 256);
    let mut numbers = Numbers::new(75);
    let (all, layout, slabs) =
        matrices::experts(gpu, encoding, [EXPERTS, hidden, inner], &mut numbers)?;
    let x = numbers.floats(TOKENS * hidden);
    let gate_up = numbers.floats(2 * EXPERTS * inner);
    let down = numbers.floats(EXPERTS * hidden);
    let chosen: Vec<u32> = (0..TOKENS as u32).flat_map(|t| [t % 3, 3 + t % 2]).collect();
    let expected: Vec<f32> = (chosen.iter().enumerate())
        .flat_map(|(pair, &expert)| {
            let token = &x[pair / TOP_K * hidden..][..hidden];
            clamped_expert(&all, expert as usize, token, [&gate_up, &down], in_turns)
        })
        .collect();
    let (input, ids) = (floats(gpu, &x)?, words(gpu, &chosen)?);
    let (gate_up, down) = (floats(gpu, &gate_up)?, floats(gpu, &down)?);
    let clamped = experts::Clamped {
        alpha: ALPHA,
        limit: LIMIT,
        in_turns,
        experts: EXPERTS,
        gate_up: &gate_up,
        down: &down,
    };
    let record = layout.record_shape();
    let pairs = chosen.len();
    let (between, out) = (empty(gpu, pairs * inner)?, empty(gpu, pairs * hidden)?);
    let matrices = gpu.adapter().matrices;
    let kinds = [(experts::TILE_TOKENS, false), (1, false)].into_iter();
    let tiled = tile::EXPERT_TOKENS.map(|most| (most, true)).into_iter().filter(|_| matrices);
    let mut results = Vec::new();
    for (most, by_matrices) in kinds.chain(tiled) {
        let count = group::tiles(pairs, EXPERTS, most);
        let (tiles, order) = (empty(gpu, 3 * count)?, empty(gpu, pairs)?);
        group::launch(gpu, &ids, (&tiles, &order), (pairs, EXPERTS), most)?;
        let work = experts::Work {
            tiles: &tiles,
            first: 0,
            count,
            pairs: most,
            order: &order,
            k: TOP_K,
            table_start: 0,
            flag: 1,
            activation: experts::Activation::Clamped(clamped),
        };
        if by_matrices {
            let [values, factors] = Halves::sizes(pairs, hidden);
            let parted = Halves { values: empty(gpu, values)?, factors: empty(gpu, factors)? };
            let (first, second) = (experts::Half::GateUp, experts::Half::Down);
            halves::launch(gpu, &input, &parted, (TOKENS, hidden))?;
            tile::launch_experts(gpu, first, &record, &slabs, work, &parted, &between)?;
            halves::launch(gpu, &between, &parted, (pairs, inner))?;
            tile::launch_experts(gpu, second, &record, &slabs, work, &parted, &out)?;
        } else {
            let (first, second) = (experts::Half::GateUp, experts::Half::Down);
            experts::launch(gpu, first, &record, &slabs, work, &input, &between)?;
            experts::launch(gpu, second, &record, &slabs, work, &between, &out)?;
        }
        results.push(gpu.read_floats(&out, 0, pairs * hidden)?);
    }
    let turns = if in_turns { ", rows in turns" } else { "" };
    for (two, kind) in results.chunks_exact(2).zip(["", " by matrices"]) {
        let name = format!("clamped experts{kind} {}{turns}", encoding.name());
        let difference = difference(&two[0], &expected);
        add(Finding { name, difference, bound: 3e-5, alone_equal: two[0] == two[1] });
    }
    Ok(())
}

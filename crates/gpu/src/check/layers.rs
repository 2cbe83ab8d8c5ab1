//! What is not a product: norms, heads, attention, the delta rule, gates, the router.

use kernels::{AttentionExtras, DeltaDecay, DeltaForm, DeltaInputs, DeltaShape};

use super::reference::{Attended, reference};
use super::*;
use crate::op::prompt;

const EPSILON: f32 = 1e-6;

pub(super) fn run(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    add(norms(gpu)?);
    for gate in norm::Gate::ALL {
        add(gated_norms(gpu, gate)?);
    }
    add(rotations(gpu)?);
    add(gates(gpu)?);
    for cache in [attention::Cache::F32, attention::Cache::F16, attention::Cache::Q8] {
        for dim in [64, 96, 256] {
            add(attends(gpu, cache, dim, false)?);
        }
    }
    for dim in [96, 256] {
        add(q8::rows(gpu, dim)?);
    }
    for cache in [attention::Cache::F16, attention::Cache::Q8] {
        for dim in prompt::DIMS {
            add(attends(gpu, cache, dim, true)?);
        }
    }
    add(convolves(gpu)?);
    for (key_dim, value_dim, tiled) in [(128, 128, false), (16, 24, false), (36, 32, true)] {
        let bounded = DeltaDecay::BoundedChannels { bound: 5.0 };
        for decays in [DeltaDecay::Heads, DeltaDecay::Channels, bounded] {
            add(deltas(gpu, [key_dim, value_dim], tiled, decays)?);
        }
    }
    for (experts, k, normalise) in [(256, 8, true), (7, 3, false), (1000, 32, true)] {
        add(routes(gpu, experts, k, normalise)?);
    }
    // No multiple of four, so that the last vector of scores has places of no expert.
    add(broken_routes(gpu, 6, 2)?);
    add(broken_routes(gpu, 30, 30)?);
    add(combines(gpu)?);
    add(stops(gpu)?);
    for columns in [50, 1024, 5000, 70_000] {
        add(draws(gpu, columns)?);
    }
    Ok(())
}

/// What attention computes by.
pub(super) fn short_attention(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    add(attends(gpu, attention::Cache::F16, 64, false)?);
    add(routes(gpu, 256, 8, true)?);
    add(norms(gpu)?);
    Ok(())
}

/// The rest, one of each kind.
pub(super) fn short_parts(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    add(rotations(gpu)?);
    add(deltas(gpu, [128, 128], false, DeltaDecay::Heads)?);
    add(combines(gpu)?);
    add(stops(gpu)?);
    add(draws(gpu, 5000)?);
    Ok(())
}

fn norms(gpu: &mut Gpu) -> Result<Finding, GpuError> {
    let (rows, width) = (3, 1000);
    let mut numbers = Numbers::new(4);
    let (x, weight) = (numbers.floats(rows * width), numbers.floats(width));
    let mut expected = vec![0.0; x.len()];
    reference().rms_norm(&x, &weight, EPSILON, &mut expected);
    let (input, scale) = (floats(gpu, &x)?, floats(gpu, &weight)?);
    let out = empty(gpu, x.len())?;
    norm::launch(gpu, (&input, &scale, &out), (rows, width), EPSILON)?;
    let found = gpu.read_floats(&out, 0, x.len())?;
    let one = floats(gpu, &x[width..2 * width])?;
    norm::launch(gpu, (&one, &scale, &out), (1, width), EPSILON)?;
    let alone_equal = gpu.read_floats(&out, 0, width)? == found[width..2 * width];
    let difference = difference(&found, &expected);
    Ok(Finding { name: "norm".to_owned(), difference, bound: 1e-5, alone_equal })
}

fn gated_norms(gpu: &mut Gpu, function: norm::Gate) -> Result<Finding, GpuError> {
    let (rows, width) = (6, 128);
    let mut numbers = Numbers::new(5);
    let (x, gate) = (numbers.floats(rows * width), numbers.floats(rows * width));
    let weight = numbers.floats(width);
    let mut expected = x.clone();
    match function {
        norm::Gate::Silu => {
            reference().gated_rms_norm_in_place(&mut expected, &weight, &gate, EPSILON);
        }
        norm::Gate::Sigmoid => {
            reference().rms_norm_in_place(&mut expected, &weight, EPSILON);
            reference().scale_by_sigmoid(&mut expected, &gate);
        }
    }
    let (place, scale, gates) = (floats(gpu, &x)?, floats(gpu, &weight)?, floats(gpu, &gate)?);
    let buffers = norm::Gated { x: &place, weight: &scale, gate: &gates, function };
    norm::launch_gated(gpu, buffers, (rows, width), EPSILON)?;
    let found = gpu.read_floats(&place, 0, x.len())?;
    let difference = difference(&found, &expected);
    let name = format!("gated norm, {function:?}").to_lowercase();
    Ok(Finding { name, difference, bound: 1e-5, alone_equal: true })
}

fn rotations(gpu: &mut Gpu) -> Result<Finding, GpuError> {
    let (tokens, count, dim, rotated) = (3, 4, 96, 32);
    let mut numbers = Numbers::new(6);
    let both = numbers.floats(tokens * count * dim * 2);
    let weight = numbers.floats(dim);
    let frequencies: Vec<f32> = (0..rotated / 2).map(|pair| 0.7f32.powi(pair)).collect();
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
    let parts = |half: usize| -> Vec<f32> {
        both.chunks_exact(2 * dim).flat_map(|head| head[half * dim..][..dim].to_vec()).collect()
    };
    let mut expected = parts(0);
    let compute = reference();
    compute.rms_norm_in_place(&mut expected, &weight, EPSILON);
    compute.rope(&mut expected, count, dim, rotated as usize, &positions, &frequencies);
    expected.extend(parts(1));
    let (mixed, scale, turns) = (floats(gpu, &both)?, floats(gpu, &weight)?, floats(gpu, &angles)?);
    let size = tokens * count * dim;
    let (query, gate) = (empty(gpu, size)?, empty(gpu, size)?);
    let shape = heads::Heads { tokens, heads: count, dim };
    heads::launch_split(gpu, (&mixed, &query, &gate), shape)?;
    let pairs = rotated as usize / 2;
    heads::launch(gpu, (&query, &scale, &turns), shape, pairs, EPSILON)?;
    let mut found = gpu.read_floats(&query, 0, size)?;
    found.extend(gpu.read_floats(&gate, 0, size)?);
    let difference = difference(&found, &expected);
    Ok(Finding { name: "heads".to_owned(), difference, bound: 1e-5, alone_equal: true })
}

fn gates(gpu: &mut Gpu) -> Result<Finding, GpuError> {
    let mut numbers = Numbers::new(7);
    let (a, b) = (numbers.floats(1000), numbers.floats(1000));
    let compute = reference();
    let mut expected = vec![0.0; 1000];
    compute.swiglu(&a, &b, &mut expected);
    let mut scaled = a.clone();
    compute.scale_by_sigmoid(&mut scaled, &b);
    expected.extend(scaled);
    let (first, second, other) = (floats(gpu, &a)?, floats(gpu, &a)?, floats(gpu, &b)?);
    let third = floats(gpu, &a)?;
    elementwise::launch_swiglu(gpu, &other, &first, 1000)?;
    elementwise::launch_sigmoid_gate(gpu, &other, &second, 1000)?;
    let mut found = gpu.read_floats(&first, 0, 1000)?;
    found.extend(gpu.read_floats(&second, 0, 1000)?);
    // Of heads of 37 values, each with a gate.
    let (heads, values) = (27, 37);
    expected.extend((0..heads * values).map(|at| a[at] / (1.0 + (-b[at / values]).exp())));
    elementwise::launch_gate_heads(gpu, (&other, &third), (heads, values))?;
    found.extend(gpu.read_floats(&third, 0, heads * values)?);
    let difference = difference(&found, &expected);
    Ok(Finding { name: "gates".to_owned(), difference, bound: 1e-5, alone_equal: true })
}

/// Runs that cross blocks of 256 positions; a token alone, and the run cut in two. Of a prompt with gates.
fn attends(
    gpu: &mut Gpu,
    cache: attention::Cache,
    dim: usize,
    of_prompt: bool,
) -> Result<Finding, GpuError> {
    let (tokens, context, mut numbers) = (Attended::TOKENS, Attended::CONTEXT, Numbers::new(8));
    let of = Attended::random(&mut numbers, cache, dim, AttentionExtras::default());
    let Attended { shape, kv_type, query, key, value, mut expected } = of;
    let both = numbers.floats(if of_prompt { 2 * query.len() } else { 0 });
    for (row, both) in expected.chunks_exact_mut(dim).zip(both.chunks_exact(2 * dim)) {
        row.iter_mut().zip(&both[dim..]).for_each(|(value, gate)| *value /= 1.0 + (-gate).exp());
    }
    let both = floats(gpu, if of_prompt { &both } else { &[0.0] })?;
    let size = (context * 2 * cache.bytes(dim)) as u64;
    let (keys, values) = (gpu.buffer("check", size)?, gpu.buffer("check", size)?);
    let (q, k, v) = (floats(gpu, &query)?, floats(gpu, &key)?, floats(gpu, &value)?);
    let out = empty(gpu, query.len())?;
    let whole = attention::Run { first: 0, tokens, position: 0 };
    let attend = |gpu: &mut Gpu, out: &Buffer, run| {
        let rows = attention::KeyValue { keys: &k, values: &v };
        let places = attention::KeyValue { keys: &keys, values: &values };
        attention::launch_append(gpu, cache, rows, places, shape, run)?;
        let queries = attention::Queries { query: &q, both: of_prompt.then_some(&both) };
        match of_prompt {
            true => prompt::launch(gpu, cache, queries, places, out, shape, run),
            false => attention::launch(gpu, cache, queries, places, out, shape, run),
        }
    };
    attend(gpu, &out, whole)?;
    let found = gpu.read_floats(&out, 0, query.len())?;
    let again = empty(gpu, query.len())?;
    let cut = attention::Run { first: 0, tokens: 270, position: 0 };
    let rest = attention::Run { first: 270, tokens: tokens - 270, position: 270 };
    for run in [cut, rest] {
        attend(gpu, &again, run)?;
    }
    let alone_equal = gpu.read_floats(&again, 0, query.len())? == found;
    let which = if of_prompt { " of a prompt" } else { "" };
    let name = format!("attention{which} {kv_type}, heads of {dim}");
    let bound = if cache == attention::Cache::F16 { 2e-4 } else { 2e-5 };
    Ok(Finding { name, difference: difference(&found, &expected), bound, alone_equal })
}

fn convolves(gpu: &mut Gpu) -> Result<Finding, GpuError> {
    let (tokens, channels, taps) = (9, 300, 4);
    let mut numbers = Numbers::new(9);
    let (x, weight) = (numbers.floats(tokens * channels), numbers.floats(channels * taps));
    let tail = numbers.floats((taps - 1) * channels);
    let (mut after, mut expected) = (tail.clone(), vec![0.0; x.len()]);
    reference().causal_convolution(&mut after, &x, &weight, taps, &mut expected);
    expected.extend(&after);
    let (input, filter) = (floats(gpu, &x)?, floats(gpu, &weight)?);
    let out = empty(gpu, x.len())?;
    let mut results = Vec::new();
    for cuts in [vec![(0, tokens)], vec![(0, 1), (1, 5), (6, 3)]] {
        let kept = floats(gpu, &tail)?;
        for (first, tokens) in cuts {
            let run = attention::Run { first, tokens, position: first };
            let of = convolution::Filtered { x: &input, weight: &filter, tail: &kept, y: &out };
            convolution::launch(gpu, of, channels, taps, run)?;
        }
        let mut found = gpu.read_floats(&out, 0, x.len())?;
        found.extend(gpu.read_floats(&kept, 0, tail.len())?);
        results.push(found);
    }
    let alone_equal = results[0] == results[1];
    let difference = difference(&results[0], &expected);
    Ok(Finding { name: "convolution".to_owned(), difference, bound: 1e-5, alone_equal })
}

/// The bound of decays, and what they are in words.
fn described(decays: DeltaDecay) -> (Option<f32>, &'static str) {
    match decays {
        DeltaDecay::Heads => (None, ""),
        DeltaDecay::Channels => (None, " by channel"),
        DeltaDecay::BoundedChannels { bound } => (Some(bound), " by bounded channels"),
    }
}

fn deltas(
    gpu: &mut Gpu,
    [key_dim, value_dim]: [usize; 2],
    tiled: bool,
    decays: DeltaDecay,
) -> Result<Finding, GpuError> {
    let (tokens, key_heads, value_heads) = (7, 2, 4);
    let shape = delta::Shape { key_heads, value_heads, key_dim, value_dim, tiled };
    let (channels, keys) = (shape.channels(), key_heads * key_dim);
    let mut numbers = Numbers::new(10);
    let x = numbers.floats(tokens * channels);
    let of_token = value_heads * decays.of_head(key_dim);
    let (a, b) = (numbers.floats(tokens * of_token), numbers.floats(tokens * value_heads));
    let rate: Vec<f32> = numbers.floats(value_heads).iter().map(|value| value.abs()).collect();
    let bias = numbers.floats(of_token);
    // The reference knows one key head for each value head here, whichever order that is.
    let each = DeltaShape { key_heads: value_heads, value_heads, key_dim, value_dim };
    let key_head =
        |head: usize| if tiled { head % key_heads } else { head / (value_heads / key_heads) };
    let spread = |start: usize| -> Vec<f32> {
        x.chunks_exact(channels)
            .flat_map(|row| {
                let of = move |head| &row[start + key_head(head) * key_dim..][..key_dim];
                (0..value_heads).flat_map(of).copied()
            })
            .collect()
    };
    let (q, k) = (spread(0), spread(keys));
    let inputs = DeltaInputs {
        q: &q,
        k: &k,
        v: &x[2 * keys..],
        qk_stride: value_heads * key_dim,
        v_stride: channels,
        decays,
        a: &a,
        b: &b,
        decay: &rate,
        dt_bias: &bias,
    };
    let mut state = vec![0.0; each.state_len()];
    let mut expected = vec![0.0; tokens * value_heads * value_dim];
    reference().delta_rule(&each, &mut state, &inputs, DeltaForm::Step, &mut expected);
    let size = expected.len();
    let input = floats(gpu, &x)?;
    let (beta, decay) = (floats(gpu, &b)?, floats(gpu, &a)?);
    let (rate, bias) = (floats(gpu, &rate)?, floats(gpu, &bias)?);
    delta::launch_heads(gpu, &input, shape, tokens)?;
    let by_channel = decays != DeltaDecay::Heads;
    let (bound, which) = described(decays);
    let mut decays = delta::Decays::Heads { decay: &decay, rate: &rate, bias: &bias };
    if by_channel {
        delta_channels::launch(gpu, &decay, [&rate, &bias], bound, shape, tokens)?;
        decays = delta::Decays::Channels(&decay);
    }
    let read = delta::Inputs { x: &input, beta: &beta, decays };
    let out = empty(gpu, size)?;
    let mut results = Vec::new();
    for cuts in [vec![(0, tokens)], vec![(0, 1), (1, 4), (5, 2)]] {
        let state = empty(gpu, shape.state_len())?;
        for (first, tokens) in cuts {
            let run = attention::Run { first, tokens, position: first };
            delta::launch(gpu, read, &state, &out, shape, run)?;
        }
        results.push(gpu.read_floats(&out, 0, size)?);
    }
    let name = format!("delta rule{which}, heads of {key_dim} and {value_dim}");
    let alone_equal = results[0] == results[1];
    Ok(Finding { name, difference: difference(&results[0], &expected), bound: 2e-5, alone_equal })
}

/// Logits that are not finite, fewer finite ones than are chosen: the token is named, and what is chosen are experts
/// that there are, each once, though memory holds what an earlier kernel left.
fn broken_routes(gpu: &mut Gpu, count: usize, k: usize) -> Result<Finding, GpuError> {
    let slabs = Slabs::new(gpu, 1, Gpu::ALIGNMENT as usize, count)?;
    let (ids, weights, tiles) = (empty(gpu, k)?, empty(gpu, k)?, empty(gpu, 3 * k)?);
    let choice = router::Choice {
        ids: &ids,
        first_id: 0,
        weights: &weights,
        tiles: &tiles,
        table_start: 0,
        flag: 0,
    };
    let control = gpu.control().clone();
    let mut alone_equal = true;
    for broken in [f32::NEG_INFINITY, f32::INFINITY, f32::NAN] {
        let mut logits = vec![broken; count];
        logits[count - 1] = 0.5;
        let input = floats(gpu, &logits)?;
        let shape = router::Chosen { tokens: 1, experts: count, k };
        router::launch(gpu, input.all(), None, &slabs, choice, shape, true)?;
        alone_equal &= gpu.read_words(&control, 0, 2)?[1] == 1;
        gpu.clear_control();
        let chosen = gpu.read_words(&ids, 0, k)?;
        alone_equal &= chosen.windows(2).all(|pair| pair[0] < pair[1]);
        alone_equal &= chosen.iter().all(|&id| (id as usize) < count);
    }
    let name = format!("router, {k} of {count} without numbers");
    Ok(Finding { name, difference: 0.0, bound: 0.0, alone_equal })
}

/// With ties, which go to the lowest id; the flag is raised if and only if a chosen expert has no slot.
fn routes(gpu: &mut Gpu, count: usize, k: usize, normalise: bool) -> Result<Finding, GpuError> {
    let tokens = 3;
    let mut numbers = Numbers::new(11);
    let mut logits = numbers.floats(tokens * count);
    logits.iter_mut().for_each(|logit| *logit = (*logit * 20.0).round() / 4.0);
    let (mut ids, mut factors) = (vec![0u16; tokens * k], vec![0.0; tokens * k]);
    reference().softmax_top_k(&logits, count, k, normalise, &mut ids, &mut factors);
    let input = floats(gpu, &logits)?;
    let (chosen, tiles) = (empty(gpu, 2 * tokens * k)?, empty(gpu, 3 * tokens * k)?);
    let weights = empty(gpu, tokens * k)?;
    // A layer whose words begin behind those of another.
    let slabs = Slabs::new(gpu, 1, Gpu::ALIGNMENT as usize, 2 * count)?;
    let choice = router::Choice {
        ids: &chosen,
        first_id: tokens * k,
        weights: &weights,
        tiles: &tiles,
        table_start: count,
        flag: 7,
    };
    let control = gpu.control().clone();
    let mut alone_equal = true;
    for missing in [Some(ids[0]), None] {
        let there = (0..count).map(|expert| u32::from(missing != Some(expert as u16)));
        gpu.write_words(slabs.table(), 4 * count as u64, &there.collect::<Vec<_>>())?;
        let shape = router::Chosen { tokens, experts: count, k };
        router::launch(gpu, input.all(), None, &slabs, choice, shape, normalise)?;
        let flag = if missing.is_some() { 7 } else { 0 };
        alone_equal &= gpu.read_words(&control, 0, 2)? == [flag, 0];
        gpu.clear_control();
    }
    let found_ids = gpu.read_words(&chosen, 4 * (tokens * k) as u64, tokens * k)?;
    let found = gpu.read_floats(&weights, 0, tokens * k)?;
    let mut expected = Vec::new();
    for token in 0..tokens {
        let mut pairs: Vec<_> =
            (token * k..(token + 1) * k).map(|at| (ids[at], factors[at])).collect();
        pairs.sort_by_key(|pair| pair.0);
        let same = |(pair, id): (&(u16, f32), &u32)| u32::from(pair.0) == *id;
        alone_equal &= pairs.iter().zip(&found_ids[token * k..]).all(same);
        expected.extend(pairs.iter().map(|pair| pair.1));
    }
    let name = format!("router, {k} of {count}");
    Ok(Finding { name, difference: difference(&found, &expected), bound: 1e-5, alone_equal })
}

fn combines(gpu: &mut Gpu) -> Result<Finding, GpuError> {
    let (tokens, k, width) = (2, 3, 300);
    let mut numbers = Numbers::new(12);
    let (rows, weights) = (numbers.floats(tokens * k * width), numbers.floats(tokens * k));
    let (shared, factor) = (numbers.floats(tokens * width), numbers.floats(tokens));
    let mut expected = numbers.floats(tokens * width);
    let y = floats(gpu, &expected)?;
    for (at, value) in expected.iter_mut().enumerate() {
        let (token, column) = (at / width, at % width);
        let pairs = token * k..(token + 1) * k;
        let sum: f32 = pairs.map(|pair| rows[pair * width + column] * weights[pair]).sum();
        *value += sum + shared[at] / (1.0 + (-factor[token]).exp());
    }
    let (rows, weights) = (floats(gpu, &rows)?, floats(gpu, &weights)?);
    let (shared, factor) = (floats(gpu, &shared)?, floats(gpu, &factor)?);
    let common = Some(combine::Shared { rows: &shared, factor: Some(&factor) });
    let of = combine::Weighed { rows: &rows, weights: &weights };
    combine::launch(gpu, of, common, &y, combine::Combined { tokens, k, width, add: true })?;
    let found = gpu.read_floats(&y, 0, expected.len())?;
    let difference = difference(&found, &expected);
    Ok(Finding { name: "combination".to_owned(), difference, bound: 1e-5, alone_equal: true })
}

/// Behind a raised flag nothing changes.
fn stops(gpu: &mut Gpu) -> Result<Finding, GpuError> {
    let (rows, width) = (2, 300);
    let mut numbers = Numbers::new(13);
    let x = numbers.floats(rows * width);
    let (input, factors) = (floats(gpu, &x)?, floats(gpu, &x)?);
    let y = floats(gpu, &x)?;
    let control = gpu.control().clone();
    gpu.write_words(&control, 0, &[3])?;
    norm::launch(gpu, (&input, &factors, &y), (rows, width), EPSILON)?;
    elementwise::launch_swiglu(gpu, &input, &y, rows * width)?;
    let of = combine::Weighed { rows: &input, weights: &factors };
    let size = combine::Combined { tokens: rows, k: 1, width, add: true };
    combine::launch(gpu, of, None, &y, size)?;
    let shape = attention::Shape { query_heads: 1, key_value_heads: 1, dim: width };
    let run = attention::Run { first: 0, tokens: 1, position: 0 };
    let pair = attention::KeyValue { keys: &input, values: &factors };
    let places = attention::KeyValue { keys: &y, values: &empty(gpu, width)? };
    attention::launch_append(gpu, attention::Cache::F32, pair, places, shape, run)?;
    let alone_equal = gpu.read_floats(&y, 0, rows * width)? == x;
    gpu.clear_control();
    norm::launch(gpu, (&input, &factors, &y), (rows, width), EPSILON)?;
    let moved = gpu.read_floats(&y, 0, rows * width)? != x;
    let difference = if moved { 0.0 } else { f32::INFINITY };
    Ok(Finding { name: "raised flag".to_owned(), difference, bound: 0.0, alone_equal })
}

/// Ties, zeros of both signs, minus infinity; then a logit that is no number. Two rows at once.
fn draws(gpu: &mut Gpu, columns: usize) -> Result<Finding, GpuError> {
    let mut numbers = Numbers::new(14);
    let mut logits = numbers.floats(2 * columns);
    for (at, logit) in logits.iter_mut().enumerate() {
        *logit = match at % 9 {
            0 => f32::NEG_INFINITY,
            1 => 0.0,
            2 => -0.0,
            _ => (*logit * 90.0).round() / 8.0,
        };
    }
    let best = |row: usize| {
        let row = &logits[row * columns..(row + 1) * columns];
        let mut order: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
        order.sort_by(|a, b| b.1.partial_cmp(&a.1).expect("numbers").then(a.0.cmp(&b.0)));
        order.truncate(draw::RANKED);
        order
    };
    let expected = [best(0), best(1)];
    let input = floats(gpu, &logits)?;
    let words = draw::scratch_words(columns, 2);
    let scratch = [empty(gpu, words)?, empty(gpu, words)?];
    let out = empty(gpu, 2)?;
    draw::launch_most_likely(gpu, &input, &scratch[0], &out, (2, columns))?;
    let mut alone_equal = gpu.read_words(&out, 0, 2)? == [expected[0][0].0, expected[1][0].0];
    for (row, expected) in expected.iter().enumerate() {
        draw::launch_rank(gpu, &input, [&scratch[0], &scratch[1]], (row * columns, columns))?;
        let place = &scratch[draw::ranking_place(columns)];
        let found = gpu.read_words(place, 0, 2 * draw::RANKED)?;
        let found = found.as_chunks::<2>().0.iter().map(|pair| draw::ranked(pair[0], pair[1]));
        let found: Option<Vec<_>> = found.take(expected.len()).collect();
        let same = |found: Vec<(u32, f32)>| {
            found.iter().zip(expected).all(|(one, other)| one.0 == other.0 && one.1 == other.1)
        };
        alone_equal &= found.is_some_and(same);
    }
    gpu.write_words(&input, 4 * (columns as u64 - 1), &[f32::NAN.to_bits()])?;
    draw::launch_most_likely(gpu, &input, &scratch[0], &out, (2, columns))?;
    alone_equal &= gpu.read_words(&out, 0, 2)? == [draw::NOT_FINITE, expected[1][0].0];
    let name = format!("most likely of {columns}");
    Ok(Finding { name, difference: 0.0, bound: 0.0, alone_equal })
}

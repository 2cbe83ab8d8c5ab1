//! Residual streams: their weights, sums and mixtures against plain code in double precision, and what their family has
//! between the matrices of experts.

use super::reference::reference;
use super::*;
use crate::op::streams::{self, Site, Streams};

pub(super) fn run(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    for (count, hidden) in [(4, 300), (8, 64), (2, 1000)] {
        add(mixes(gpu, count, hidden)?);
        add(reads(gpu, count, hidden)?);
    }
    add(limited(gpu)?);
    Ok(())
}

const EPSILON: f32 = 1e-6;
const PASSES: usize = 20;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The inverse root mean square of a token's streams.
fn factor(row: &[f32]) -> f64 {
    let squares: f64 = row.iter().map(|&value| f64::from(value).powi(2)).sum();
    1.0 / (squares / row.len() as f64 + 1e-5).sqrt()
}

/// Divides each number of a square by the sum of its row, or of its column.
fn balance(mix: &mut [f64], n: usize, by_rows: bool) {
    let place = |line: usize, at: usize| if by_rows { line * n + at } else { at * n + line };
    for line in 0..n {
        let sum: f64 = (0..n).map(|at| mix[place(line, at)]).sum::<f64>() + f64::from(EPSILON);
        (0..n).for_each(|at| mix[place(line, at)] /= sum);
    }
}

/// A token's weights of the input, of the output, and the mixture by rows.
fn weights(row: &[f32], products: &[f32], base: &[f32], scale: &[f32]) -> Vec<f64> {
    let n = (products.len() as f64 + 1.0).sqrt() as usize - 1;
    let factor = factor(row);
    let weighed = |at: usize, scale: f32| {
        f64::from(products[at]) * factor * f64::from(scale) + f64::from(base[at])
    };
    let mut out: Vec<f64> =
        (0..n).map(|at| sigmoid(weighed(at, scale[0])) + f64::from(EPSILON)).collect();
    out.extend((n..2 * n).map(|at| 2.0 * sigmoid(weighed(at, scale[1]))));
    let mut mix: Vec<f64> = (2 * n..n * (n + 2)).map(|at| weighed(at, scale[2])).collect();
    for row in mix.chunks_exact_mut(n) {
        let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        row.iter_mut().for_each(|value| *value = (*value - most).exp());
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|value| *value = *value / sum + f64::from(EPSILON));
    }
    balance(&mut mix, n, false);
    for _ in 1..PASSES {
        balance(&mut mix, n, true);
        balance(&mut mix, n, false);
    }
    out.extend(mix);
    out
}

/// Everything of a site: several tokens at once, and the last alone.
fn mixes(gpu: &mut Gpu, count: usize, hidden: usize) -> Result<Finding, GpuError> {
    let (tokens, outputs) = (3, count * (count + 2));
    let mut numbers = Numbers::new(121);
    let rows = numbers.floats(tokens * count * hidden);
    let products: Vec<f32> = numbers.floats(tokens * outputs).iter().map(|it| it * 9.0).collect();
    let (base, scale) = (numbers.floats(outputs), numbers.floats(3));
    let block = numbers.floats(tokens * hidden);
    let mut expected = Vec::new();
    let mut after = Vec::new();
    for token in 0..tokens {
        let row = &rows[token * count * hidden..][..count * hidden];
        let of = weights(row, &products[token * outputs..][..outputs], &base, &scale);
        let value = |stream: usize, at: usize| f64::from(row[stream * hidden + at]);
        let read = |at| (0..count).map(|stream| of[stream] * value(stream, at)).sum::<f64>();
        expected.extend((0..hidden).map(|at| read(at) as f32));
        for to in 0..count {
            after.extend((0..hidden).map(|at| {
                let mixed = |from: usize| of[(2 + from) * count + to] * value(from, at);
                let own = of[count + to] * f64::from(block[token * hidden + at]);
                ((0..count).map(mixed).sum::<f64>() + own) as f32
            }));
        }
    }
    expected.extend(after);
    let site = [floats(gpu, &base)?, floats(gpu, &scale)?];
    let site = Site {
        base: &site[0],
        scale: &site[1],
        iterations: Some(PASSES),
        epsilon: EPSILON,
        norm_epsilon: 1e-5,
    };
    let mut computed = |first: usize, tokens: usize| {
        let values = floats(gpu, &rows[first * count * hidden..][..tokens * count * hidden])?;
        let of = Streams { values: &values, count, hidden, tokens };
        let made = floats(gpu, &products[first * outputs..][..tokens * outputs])?;
        let given = floats(gpu, &block[first * hidden..][..tokens * hidden])?;
        let read = empty(gpu, tokens * hidden)?;
        streams::launch_weigh(gpu, of, site, &made)?;
        streams::launch_collapse(gpu, of, Some((&made, outputs)), &read)?;
        streams::launch_mix(gpu, &made, &given, of)?;
        let mut found = gpu.read_floats(&read, 0, tokens * hidden)?;
        found.extend(gpu.read_floats(&values, 0, tokens * count * hidden)?);
        Ok::<_, GpuError>(found)
    };
    let (found, alone) = (computed(0, tokens)?, computed(tokens - 1, 1)?);
    let last =
        [&found[(tokens - 1) * hidden..tokens * hidden], &found[found.len() - count * hidden..]];
    let name = format!("{count} mixed streams of {hidden}");
    let (difference, alone_equal) = (difference(&found, &expected), alone == last.concat());
    Ok(Finding { name, difference, bound: 2e-5, alone_equal })
}

/// The site that only reads, the mean, and a row that becomes every stream.
fn reads(gpu: &mut Gpu, count: usize, hidden: usize) -> Result<Finding, GpuError> {
    let tokens = 3;
    let mut numbers = Numbers::new(122);
    let rows = numbers.floats(tokens * count * hidden);
    let (products, base) = (numbers.floats(tokens * count), numbers.floats(count));
    let scale = numbers.floats(1);
    let (mut summed, mut mean) = (Vec::new(), Vec::new());
    for token in 0..tokens {
        let row = &rows[token * count * hidden..][..count * hidden];
        let factor = factor(row);
        let weight = |stream: usize| {
            let product = f64::from(products[token * count + stream]);
            sigmoid(product * factor * f64::from(scale[0]) + f64::from(base[stream]))
                + f64::from(EPSILON)
        };
        let value = |stream: usize, at: usize| f64::from(row[stream * hidden + at]);
        let sum = |at| (0..count).map(|it| weight(it) * value(it, at)).sum::<f64>() as f32;
        summed.extend((0..hidden).map(sum));
        let sum = |at| (0..count).map(|it| value(it, at)).sum::<f64>() / count as f64;
        mean.extend((0..hidden).map(|at| sum(at) as f32));
    }
    let [values, base, scale, weights] =
        [&rows, &base, &scale, &products].map(|values| floats(gpu, values));
    let (values, base, scale, weights) = (values?, base?, scale?, weights?);
    let of = Streams { values: &values, count, hidden, tokens };
    let (base, scale) = (&base, &scale);
    let site = Site { base, scale, iterations: None, epsilon: EPSILON, norm_epsilon: 1e-5 };
    let read = empty(gpu, tokens * hidden)?;
    let mut found = Vec::new();
    streams::launch_weigh(gpu, of, site, &weights)?;
    streams::launch_collapse(gpu, of, Some((&weights, count)), &read)?;
    found.extend(gpu.read_floats(&read, 0, tokens * hidden)?);
    streams::launch_collapse(gpu, of, None, &read)?;
    found.extend(gpu.read_floats(&read, 0, tokens * hidden)?);
    streams::launch_spread(gpu, &read, of)?;
    let spread = gpu.read_floats(&values, 0, rows.len())?;
    let row = |token: usize| &found[(tokens + token) * hidden..][..hidden];
    let alike = |(at, stream): (usize, &[f32])| *stream == *row(at / count);
    let alone_equal = spread.chunks_exact(hidden).enumerate().all(alike);
    let difference = difference(&found, &[summed, mean].concat());
    let name = format!("{count} streams of {hidden} that become one");
    Ok(Finding { name, difference, bound: 2e-5, alone_equal })
}

/// A clamped activation, with numbers beyond the clamp.
fn limited(gpu: &mut Gpu) -> Result<Finding, GpuError> {
    let (count, limit) = (1000, 0.5);
    let mut numbers = Numbers::new(123);
    let (gates, ups) = (numbers.floats(count), numbers.floats(count));
    let clamped: Vec<f32> = gates.iter().map(|gate| gate.min(limit)).collect();
    let inputs: Vec<f32> = ups.iter().map(|up| up.clamp(-limit, limit)).collect();
    let mut expected = vec![0.0; count];
    reference().swiglu(&clamped, &inputs, &mut expected);
    let (gate, up) = (floats(gpu, &gates)?, floats(gpu, &ups)?);
    elementwise::launch_limited(gpu, &up, &gate, limit, count)?;
    let difference = difference(&gpu.read_floats(&gate, 0, count)?, &expected);
    let name = "clamped activation".to_owned();
    Ok(Finding { name, difference, bound: 1e-5, alone_equal: true })
}

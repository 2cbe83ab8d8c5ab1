//! Parts of a family whose blocks are normed behind, with GELU: activations, factors, capped logits, sums that are not
//! added.

use super::reference::reference;
use super::*;
use crate::op::group;

pub(super) fn run(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    add(activations(gpu)?);
    add(factors(gpu)?);
    add(caps(gpu)?);
    add(norms(gpu)?);
    add(sums(gpu)?);
    let affine = Encoding::Affine { bits: 4, group: 64, scale: FloatType::Bf16 };
    for encoding in [affine, Encoding::Block(BlockFormat::Q4K), Encoding::Float(FloatType::Bf16)] {
        add(routed(gpu, encoding, experts::Activation::GeGlu)?);
        add(routed(gpu, encoding, experts::Activation::Limited(0.02))?);
    }
    Ok(())
}

/// Values of every size: the tangent's exponential is infinite for some.
fn spread(numbers: &mut Numbers, count: usize) -> Vec<f32> {
    let sizes = [1e-3, 0.3, 1.0, 8.0, 60.0, 1e4];
    numbers.floats(count).iter().enumerate().map(|(at, it)| it * sizes[at % 6]).collect()
}

fn activations(gpu: &mut Gpu) -> Result<Finding, GpuError> {
    let mut numbers = Numbers::new(101);
    let (gate, up) = (spread(&mut numbers, 1000), numbers.floats(1000));
    let mut expected = vec![0.0; 1000];
    reference().geglu(&gate, &up, &mut expected);
    let (place, other) = (floats(gpu, &gate)?, floats(gpu, &up)?);
    elementwise::launch_geglu(gpu, &other, &place, 1000)?;
    let found = gpu.read_floats(&place, 0, 1000)?;
    // Each by itself: the greatest are ten million times the least.
    let apart = found.iter().zip(&expected).map(|(a, b)| (a - b).abs() / b.abs().max(1e-2));
    let difference = apart.fold(0.0, |most: f32, it| if it <= most { most } else { it });
    Ok(Finding { name: "GeGLU".to_owned(), difference, bound: 2e-5, alone_equal: true })
}

/// A factor of all values, and factors of chosen experts.
fn factors(gpu: &mut Gpu) -> Result<Finding, GpuError> {
    let mut numbers = Numbers::new(102);
    let (x, factor) = (numbers.floats(700), numbers.floats(6));
    let place = floats(gpu, &x)?;
    let held = floats(gpu, &factor)?;
    elementwise::launch_scale(gpu, &held, &place, 700)?;
    let expected: Vec<f32> = x.iter().map(|x| x * factor[0]).collect();
    let mut alone_equal = gpu.read_floats(&place, 0, 700)? == expected;
    let ids = words(gpu, &[9, 9, 5, 0, 3, 1])?;
    let weights = floats(gpu, &x[..4])?;
    elementwise::launch_weigh_experts(gpu, (&ids, 2), &held, &weights, 4)?;
    let expected: Vec<f32> =
        [5, 0, 3, 1].iter().zip(&x).map(|(&expert, x)| x * factor[expert]).collect();
    alone_equal &= gpu.read_floats(&weights, 0, 4)? == expected;
    Ok(Finding { name: "factors".to_owned(), difference: 0.0, bound: 0.0, alone_equal })
}

fn caps(gpu: &mut Gpu) -> Result<Finding, GpuError> {
    let mut numbers = Numbers::new(103);
    let x = spread(&mut numbers, 1000);
    let place = floats(gpu, &x)?;
    elementwise::launch_cap(gpu, &place, 30.0, 1000)?;
    let found = gpu.read_floats(&place, 0, 1000)?;
    let apart = found.iter().zip(&x).map(|(found, &x)| {
        let expected = 30.0 * (f64::from(x) / 30.0).tanh();
        ((f64::from(*found) - expected).abs() / expected.abs().max(1e-6)) as f32
    });
    let difference = apart.fold(0.0, |most: f32, it| if it <= most { most } else { it });
    Ok(Finding { name: "capped logits".to_owned(), difference, bound: 2e-6, alone_equal: true })
}

fn norms(gpu: &mut Gpu) -> Result<Finding, GpuError> {
    let (rows, width) = (3, 700);
    let mut numbers = Numbers::new(104);
    let (x, y) = (numbers.floats(rows * width), numbers.floats(rows * width));
    let weight = numbers.floats(width);
    let mut expected = vec![0.0; x.len()];
    reference().rms_norm(&x, &weight, 1e-6, &mut expected);
    expected.iter_mut().zip(&y).for_each(|(sum, y)| *sum += y);
    let (from, to, factors) = (floats(gpu, &x)?, floats(gpu, &y)?, floats(gpu, &weight)?);
    norm::launch_added(gpu, (&from, &factors, &to), (rows, width), 1e-6)?;
    let found = gpu.read_floats(&to, 0, x.len())?;
    let difference = difference(&found, &expected);
    Ok(Finding { name: "norm, added".to_owned(), difference, bound: 1e-5, alone_equal: true })
}

fn sums(gpu: &mut Gpu) -> Result<Finding, GpuError> {
    let (tokens, k, width) = (2, 3, 300);
    let mut numbers = Numbers::new(105);
    let (rows, weights) = (numbers.floats(tokens * k * width), numbers.floats(tokens * k));
    let y = floats(gpu, &numbers.floats(tokens * width))?;
    let value = |at: usize| -> f32 {
        let (token, column) = (at / width, at % width);
        let pairs = token * k..(token + 1) * k;
        pairs.map(|pair| rows[pair * width + column] * weights[pair]).sum()
    };
    let expected: Vec<f32> = (0..tokens * width).map(value).collect();
    let (rows, weights) = (floats(gpu, &rows)?, floats(gpu, &weights)?);
    let of = combine::Weighed { rows: &rows, weights: &weights };
    combine::launch(gpu, of, None, &y, combine::Combined { tokens, k, width, add: false })?;
    let difference = difference(&gpu.read_floats(&y, 0, expected.len())?, &expected);
    let name = "combination, not added".to_owned();
    Ok(Finding { name, difference, bound: 1e-5, alone_equal: true })
}

/// A layer's experts in two slabs, as tiles of several pairs and of one.
fn routed(
    gpu: &mut Gpu,
    encoding: Encoding,
    activation: experts::Activation<'_>,
) -> Result<Finding, GpuError> {
    let (hidden, inner, count, k, tokens) = (512, 256, 5usize, 2, 13);
    let mut numbers = Numbers::new(106);
    let (all, layout, slabs) =
        matrices::experts(gpu, encoding, [count, hidden, inner], &mut numbers)?;
    let x: Vec<f32> = numbers.floats(tokens * hidden).iter().map(|it| it * 0.1).collect();
    let chosen: Vec<u32> = (0..tokens as u32).flat_map(|t| [t % 3, 3 + t % 2]).collect();
    let expert = |(pair, &expert): (usize, &u32)| {
        let [gate, up, down] = &all[expert as usize];
        let token = &x[pair / k * hidden..][..hidden];
        let mut activated = vec![0.0; inner];
        let (mut gate, mut up) = (gate.product(token), up.product(token));
        match activation {
            experts::Activation::Limited(limit) => {
                gate.iter_mut().for_each(|gate| *gate = gate.min(limit));
                up.iter_mut().for_each(|up| *up = up.clamp(-limit, limit));
                reference().swiglu(&gate, &up, &mut activated);
            }
            _ => reference().geglu(&gate, &up, &mut activated),
        }
        down.product(&activated)
    };
    let expected: Vec<f32> = chosen.iter().enumerate().flat_map(expert).collect();
    let (input, ids) = (floats(gpu, &x)?, words(gpu, &chosen)?);
    let (record, pairs) = (layout.record_shape(), chosen.len());
    let (between, out) = (empty(gpu, pairs * inner)?, empty(gpu, pairs * hidden)?);
    let mut results = Vec::new();
    for most in [experts::TILE_TOKENS, 1] {
        let tile_count = group::tiles(pairs, count, most);
        let (tiles, order) = (empty(gpu, 3 * tile_count)?, empty(gpu, pairs)?);
        group::launch(gpu, &ids, (&tiles, &order), (pairs, count), most)?;
        let work = experts::Work {
            tiles: &tiles,
            first: 0,
            count: tile_count,
            pairs: most,
            order: &order,
            k,
            table_start: 0,
            flag: 1,
            activation,
        };
        experts::launch(gpu, experts::Half::GateUp, &record, &slabs, work, &input, &between)?;
        experts::launch(gpu, experts::Half::Down, &record, &slabs, work, &between, &out)?;
        results.push(gpu.read_floats(&out, 0, pairs * hidden)?);
    }
    let what = match activation {
        experts::Activation::Limited(_) => "clamped",
        _ => "with GELU",
    };
    let name = format!("experts {what} {}", encoding.name());
    let difference = difference(&results[0], &expected);
    Ok(Finding { name, difference, bound: 3e-5, alone_equal: results[0] == results[1] })
}

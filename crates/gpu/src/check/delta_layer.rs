//! A token's delta layer in four launches against the operations one by one, whose bits it must have.

use super::matrices::Held;
use super::*;
use crate::op::{fused, gated_product};

const EPSILON: f32 = 1e-6;
const TAPS: usize = 4;
const RUN: attention::Run = attention::Run { first: 0, tokens: 1, position: 3 };

pub(super) fn run(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    let affine = |bits| Encoding::Affine { bits, group: 64, scale: FloatType::Bf16 };
    let shape = |key_dim, value_dim, heads| delta::Shape {
        key_heads: heads,
        value_heads: 2 * heads,
        key_dim,
        value_dim,
        tiled: false,
    };
    let silu = norm::Gate::Silu;
    add(layer(gpu, affine(4), shape(128, 128, 10), 1024, silu)?);
    for gate in norm::Gate::ALL {
        add(layer(gpu, affine(6), shape(64, 96, 2), 384, gate)?);
    }
    add(layer(gpu, Encoding::Block(BlockFormat::Q4K), shape(32, 64, 4), 512, silu)?);
    add(layer(gpu, Encoding::Float(FloatType::F32), shape(256, 32, 2), 128, silu)?);
    Ok(())
}

fn layer(
    gpu: &mut Gpu,
    encoding: Encoding,
    shape: delta::Shape,
    hidden: usize,
    gate: norm::Gate,
) -> Result<Finding, GpuError> {
    let (channels, heads) = (shape.channels(), shape.value_heads);
    let values = heads * shape.value_dim;
    let mut numbers = Numbers::new(33);
    let mut trunk = Trunk::default();
    let shapes =
        [(channels, hidden), (values, hidden), (heads, hidden), (heads, hidden), (hidden, values)];
    for (rows, columns) in shapes {
        trunk.add(gpu, "check", &Held::random(encoding, rows, columns, &mut numbers).matrix())?;
    }
    let mut random = |gpu: &mut Gpu, count: usize| floats(gpu, &numbers.floats(count));
    let (x, weight) = (random(gpu, hidden)?, random(gpu, hidden)?);
    let (filter, old) = (random(gpu, channels * TAPS)?, random(gpu, (TAPS - 1) * channels)?);
    let (rate, bias) = (random(gpu, heads)?, random(gpu, heads)?);
    let (before, scale) = (random(gpu, shape.state_len())?, random(gpu, shape.value_dim)?);
    let mut results = Vec::new();
    // One launch for several at one place, at each in turn and at all.
    for [inputs_alone, output_alone] in [[false, false], [true, false], [false, true], [true, true]]
    {
        let [mixed, convolved] = [empty(gpu, channels)?, empty(gpu, channels)?];
        let [z, context] = [empty(gpu, values)?, empty(gpu, values)?];
        let [beta, decay] = [empty(gpu, heads)?, empty(gpu, heads)?];
        let (tail, state) = (empty(gpu, (TAPS - 1) * channels)?, empty(gpu, shape.state_len())?);
        gpu.copy(&old, 0, &tail, 0, 4 * ((TAPS - 1) * channels) as u64);
        gpu.copy(&before, 0, &state, 0, 4 * shape.state_len() as u64);
        let out = empty(gpu, hidden)?;
        gpu.copy(&x, 0, &out, 0, 4 * hidden as u64);
        let decays = delta::Decays::Heads { decay: &decay, rate: &rate, bias: &bias };
        let inputs = delta::Inputs { x: &convolved, beta: &beta, decays };
        let to = if inputs_alone { &convolved } else { &mixed };
        let [a, b, c, d, last] = [0, 1, 2, 3, 4].map(|at| trunk.matrix(at));
        let matrices = [(a, to), (b, &z), (c, &beta), (d, &decay)];
        if inputs_alone {
            let filter = (&filter, &tail, TAPS);
            fused::launch_delta_inputs(gpu, matrices, (&x, &weight), EPSILON, filter)?;
        } else {
            fused::launch_several(gpu, &matrices, (&x, &weight), EPSILON, None)?;
            let buffers =
                convolution::Filtered { x: &mixed, weight: &filter, tail: &tail, y: &convolved };
            convolution::launch(gpu, buffers, channels, TAPS, RUN)?;
        }
        delta::launch_heads(gpu, &convolved, shape, 1)?;
        delta::launch(gpu, inputs, &state, &context, shape, RUN)?;
        if output_alone {
            let normed = ([&context, &scale, &z], gate);
            gated_product::launch(gpu, last, normed, &out, shape.value_dim, EPSILON)?;
        } else {
            let normed = norm::Gated { x: &context, weight: &scale, gate: &z, function: gate };
            norm::launch_gated(gpu, normed, (heads, shape.value_dim), EPSILON)?;
            product::launch(gpu, last, &context, &out, 1, true)?;
        }
        let mut found = gpu.read_floats(&out, 0, hidden)?;
        found.extend(gpu.read_floats(&tail, 0, (TAPS - 1) * channels)?);
        found.extend(gpu.read_floats(&state, 0, shape.state_len())?);
        results.push(found);
    }
    let places = ["inputs", "output", "both"].into_iter().zip(&results[1..]);
    let wrong: Vec<_> =
        places.filter(|(_, found)| **found != results[0]).map(|(place, _)| place).collect();
    let which = if wrong.is_empty() { String::new() } else { format!(": {}", wrong.join(", ")) };
    let name = format!("delta layer of one token {}, {gate:?}{which}", encoding.name());
    Ok(Finding { name, difference: 0.0, bound: 0.0, alone_equal: wrong.is_empty() })
}

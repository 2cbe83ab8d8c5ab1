//! Convolution, delta rule, norms and routing against binary64 references; and that
//! neither batch nor threads nor instruction set change a bit.

use crate::common;

use common::{Random, close, compute, everywhere, wide};
use kernels::{Arithmetic, DeltaDecay, DeltaForm, DeltaInputs, DeltaShape};

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[test]
fn elementwise_operations_match_their_formulas() {
    let mut random = Random::new(1);
    for width in [1, 15, 16, 37, 256, 2048] {
        let rows = 3;
        let x = random.normals(rows * width);
        let gate: Vec<f32> = random.normals(rows * width).iter().map(|g| g * 20.0).collect();
        let weight = random.normals(width);
        let got = everywhere(|c| {
            let mut out = vec![0.0; 6 * x.len()];
            let (norm, rest) = out.split_at_mut(x.len());
            let (gated, rest) = rest.split_at_mut(x.len());
            let (glu, rest) = rest.split_at_mut(x.len());
            let (gelu, rest) = rest.split_at_mut(x.len());
            let (scaled, sum) = rest.split_at_mut(x.len());
            c.rms_norm(&x, &weight, 1e-6, norm);
            c.gated_rms_norm(&x, &weight, &gate, 1e-6, gated);
            c.swiglu(&gate, &x, glu);
            c.geglu(&gate, &x, gelu);
            scaled.copy_from_slice(&x);
            c.scale_by_sigmoid(scaled, &gate);
            sum.copy_from_slice(&x);
            c.add_scaled(sum, &gate, 0.5);
            c.add(sum, &x);
            out
        });
        let (x, gate, weight) = (wide(&x), wide(&gate), wide(&weight));
        let norm: Vec<f64> = x
            .chunks(width)
            .flat_map(|row| {
                let mean = row.iter().map(|v| v * v).sum::<f64>() / width as f64;
                let factor = 1.0 / (mean + 1e-6).sqrt();
                row.iter().zip(&weight).map(move |(v, w)| v * factor * w).collect::<Vec<_>>()
            })
            .collect();
        let with = |f: &dyn Fn(usize) -> f64| (0..x.len()).map(f).collect::<Vec<f64>>();
        let gelu = |x: f64| {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        };
        let want = [
            norm.clone(),
            with(&|i| norm[i] * gate[i] * sigmoid(gate[i])),
            with(&|i| gate[i] * sigmoid(gate[i]) * x[i]),
            with(&|i| gelu(gate[i]) * x[i]),
            with(&|i| x[i] * sigmoid(gate[i])),
            with(&|i| 2.0 * x[i] + 0.5 * gate[i]),
        ]
        .concat();
        close(&got, &want, 1e-6, &format!("width {width}"));
    }
}

#[test]
fn rotation_turns_pairs_by_position_and_frequency() {
    let (heads, head_dim, rotary) = (3, 40, 24);
    let mut random = Random::new(2);
    let x = random.normals(4 * heads * head_dim);
    let positions = [0, 1, 77, 200_000];
    let frequencies: Vec<f32> =
        (0..rotary / 2).map(|j| 1e7f32.powf(-2.0 * j as f32 / rotary as f32)).collect();
    let got = everywhere(|c| {
        let mut x = x.clone();
        c.rope(&mut x, heads, head_dim, rotary, &positions, &frequencies);
        x
    });
    let mut want = wide(&x);
    for (token, &position) in positions.iter().enumerate() {
        for head in 0..heads {
            let at = (token * heads + head) * head_dim;
            for (j, frequency) in frequencies.iter().enumerate() {
                let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
                let (a, b) = (want[at + j], want[at + j + rotary / 2]);
                want[at + j] = a * cos - b * sin;
                want[at + j + rotary / 2] = a * sin + b * cos;
            }
        }
    }
    close(&got, &want, 1e-6, "rope");
}

#[test]
fn routing_ranks_by_probability_and_breaks_ties_by_id() {
    let mut random = Random::new(3);
    let (tokens, experts, k) = (9, 300, 10);
    let logits: Vec<f32> =
        (0..tokens * experts).map(|_| (random.normal() * 8.0).round() / 4.0).collect();
    for normalise in [true, false] {
        let mut chosen = Vec::new();
        let got = everywhere(|c| {
            let (mut ids, mut weights) = (vec![0u16; tokens * k], vec![0.0; tokens * k]);
            c.softmax_top_k(&logits, experts, k, normalise, &mut ids, &mut weights);
            chosen = ids;
            weights
        });
        for (t, logits) in logits.chunks(experts).enumerate() {
            let mut order: Vec<usize> = (0..experts).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
            let ids: Vec<usize> = chosen[t * k..][..k].iter().map(|&i| i.into()).collect();
            assert_eq!(&order[..k], ids, "token {t}");
            let exps: Vec<f64> = logits.iter().map(|&l| f64::from(l).exp()).collect();
            let over = if normalise { &order[..k] } else { &order[..] };
            let total: f64 = over.iter().map(|&i| exps[i]).sum();
            let want: Vec<f64> = order[..k].iter().map(|&i| exps[i] / total).collect();
            close(&got[t * k..][..k], &want, 1e-6, "weights");
        }
    }
    let mut broken = logits[..experts].to_vec();
    broken[7] = f32::NAN;
    let (mut ids, mut weights) = ([0u16; 10], [0.0; 10]);
    let compute = compute(1, Arithmetic::Int16, kernels::Isa::Auto);
    compute.softmax_top_k(&broken, experts, k, true, &mut ids, &mut weights);
    assert!(weights.iter().all(|w| w.is_nan()) && !ids.contains(&7));
}

#[test]
fn convolution_carries_its_state() {
    let mut random = Random::new(5);
    // Less than a strip of channels, and more than two.
    for channels in [53, 600] {
        let (kernel, tokens) = (4, 11);
        let x = random.normals(tokens * channels);
        let weight = random.normals(channels * kernel);
        let start = random.normals((kernel - 1) * channels);
        let got = everywhere(|c| {
            let (mut state, mut out) = (start.clone(), vec![0.0; x.len()]);
            c.causal_convolution(&mut state, &x, &weight, kernel, &mut out);
            let (mut other, mut pieces) = (start.clone(), vec![0.0; x.len()]);
            for range in [0..1, 1..3, 3..10, 10..11] {
                let range = range.start * channels..range.end * channels;
                let out = &mut pieces[range.clone()];
                c.causal_convolution(&mut other, &x[range], &weight, kernel, out);
            }
            assert_eq!((&out, &state), (&pieces, &other), "the split changed bits");
            out.extend(state);
            out
        });
        let rows: Vec<f64> = wide(&[start, x].concat());
        let mut want = Vec::new();
        for t in 0..tokens {
            for c in 0..channels {
                let sum: f64 = (0..kernel)
                    .map(|j| rows[(t + j) * channels + c] * f64::from(weight[c * kernel + j]))
                    .sum();
                want.push(sum * sigmoid(sum));
            }
        }
        want.extend(&rows[tokens * channels..]);
        close(&got, &want, 1e-6, "convolution");
    }
}

/// The recurrence of the architecture in binary64, `S [key_dim, value_dim]` per head.
fn delta_reference(shape: &DeltaShape, inputs: &DeltaInputs<'_>, tokens: usize) -> Vec<f64> {
    let DeltaShape { key_heads, value_heads, key_dim, value_dim } = *shape;
    let mut out = vec![0.0; tokens * value_heads * value_dim];
    for head in 0..value_heads {
        let mut s = vec![0.0; key_dim * value_dim];
        for t in 0..tokens {
            let at = t * inputs.qk_stride + head / (value_heads / key_heads) * key_dim;
            let normal = |x: &[f32]| {
                let x = wide(&x[at..at + key_dim]);
                let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                x.iter().map(|x| x / norm).collect::<Vec<f64>>()
            };
            let (q, k) = (normal(inputs.q), normal(inputs.k));
            // One for each row of the state, or the same for all.
            let each = inputs.decays.of_head(key_dim);
            let rate = f64::from(inputs.decay[head]);
            let decay = |row: usize| {
                let channel = head * each + row % each;
                let x = f64::from(inputs.a[t * value_heads * each + channel]);
                let x = x + f64::from(inputs.dt_bias[channel]);
                match inputs.decays {
                    DeltaDecay::BoundedChannels { bound } => {
                        (-f64::from(bound) * sigmoid(rate * x)).exp()
                    }
                    DeltaDecay::Heads | DeltaDecay::Channels => (-rate * x.exp().ln_1p()).exp(),
                }
            };
            let decays: Vec<f64> = (0..key_dim).map(decay).collect();
            let beta = sigmoid(f64::from(inputs.b[t * value_heads + head]));
            for j in 0..value_dim {
                let v = f64::from(inputs.v[t * inputs.v_stride + head * value_dim + j]);
                let column = |i: usize| i * value_dim + j;
                (0..key_dim).for_each(|i| s[column(i)] *= decays[i]);
                let read: f64 = (0..key_dim).map(|i| s[column(i)] * k[i]).sum();
                let d = beta * (v - read);
                (0..key_dim).for_each(|i| s[column(i)] += k[i] * d);
                let o: f64 = (0..key_dim).map(|i| s[column(i)] * q[i]).sum();
                out[(t * value_heads + head) * value_dim + j] = o / (key_dim as f64).sqrt();
            }
        }
    }
    out
}

#[test]
fn delta_rule_matches_the_recurrence_in_both_forms() {
    let bounded = DeltaDecay::BoundedChannels { bound: 5.0 };
    let channels = [((3, 3, 26, 40), DeltaDecay::Channels), ((2, 2, 128, 128), bounded)];
    let heads = [(2, 6, 26, 40), (1, 2, 128, 128)].map(|shape| (shape, DeltaDecay::Heads));
    let mut random = Random::new(6);
    for ((key_heads, value_heads, key_dim, value_dim), decays) in heads.into_iter().chain(channels)
    {
        let each = decays.of_head(key_dim);
        let shape = DeltaShape { key_heads, value_heads, key_dim, value_dim };
        let tokens = 150;
        // q, k and v are parts of wider rows.
        let stride = 2 * key_heads * key_dim + value_heads * value_dim;
        let rows = random.normals(tokens * stride);
        // From hardly any decay to nearly all.
        let scale = if each > 1 { 4.0 } else { 1.0 };
        let a = random.normals(tokens * value_heads * each);
        let a: Vec<f32> = a.iter().map(|a| scale * a).collect();
        let b = random.normals(tokens * value_heads);
        let decay: Vec<f32> = (0..value_heads).map(|_| random.uniform() * 0.5).collect();
        let dt_bias = random.normals(value_heads * each);
        let inputs = |from: usize, to: usize| DeltaInputs {
            q: &rows[from * stride..to * stride],
            k: &rows[from * stride + key_heads * key_dim..to * stride],
            v: &rows[from * stride + 2 * key_heads * key_dim..to * stride],
            qk_stride: stride,
            v_stride: stride,
            decays,
            a: &a[from * value_heads * each..to * value_heads * each],
            b: &b[from * value_heads..to * value_heads],
            decay: &decay,
            dt_bias: &dt_bias,
        };
        let want = delta_reference(&shape, &inputs(0, tokens), tokens);
        let width = value_heads * value_dim;
        for form in [DeltaForm::Step, DeltaForm::Chunked] {
            let got = everywhere(|c| {
                let mut out = vec![0.0; tokens * width];
                let mut state = vec![0.0; shape.state_len()];
                c.delta_rule(&shape, &mut state, &inputs(0, tokens), form, &mut out);
                if form == DeltaForm::Step {
                    let mut split = vec![0.0; tokens * width];
                    let mut other = vec![0.0; shape.state_len()];
                    for (from, to) in [(0, 1), (1, 20), (20, 149), (149, 150)] {
                        let out = &mut split[from * width..to * width];
                        c.delta_rule(&shape, &mut other, &inputs(from, to), form, out);
                    }
                    assert_eq!((&out, &state), (&split, &other), "the split changed bits");
                }
                out
            });
            close(&got, &want, 1e-5, &format!("{shape:?} {decays:?} {form:?}"));
        }
    }
}

//! Residual streams, and rotated and stored rows of compressed attention, against plain code on the host: a part of the
//! example `check`.

use cuda::launch::{self, Rotation, SequenceRows, StoredRows, StreamSite, Streams, Turn};
use kernels::{KvType, hadamard, round_fp4};

use super::super::Bench;
use super::{EPSILON, PAGE_TOKENS};

/// Turns the last values of a head.
pub(super) fn turn(head: &mut [f32], frequencies: &[f32], position: usize, direction: f64) {
    let start = head.len() - 2 * frequencies.len();
    for (pair, frequency) in head[start..].chunks_exact_mut(2).zip(frequencies) {
        let angle = f64::from(position as f32 * frequency);
        let (x, y) = (f64::from(pair[0]), f64::from(pair[1]));
        let (sin, cos) = (angle.sin() * direction, angle.cos());
        (pair[0], pair[1]) = ((x * cos - y * sin) as f32, (y * cos + x * sin) as f32);
    }
}

pub(super) fn normed(head: &mut [f32], weight: Option<&[f32]>) {
    let mean = head.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / head.len() as f64;
    let scale = 1.0 / (mean + f64::from(EPSILON)).sqrt();
    for (i, x) in head.iter_mut().enumerate() {
        *x = (f64::from(*x) * scale * weight.map_or(1.0, |w| f64::from(w[i]))) as f32;
    }
}

impl Bench {
    pub(crate) fn verdict(&self, case: &str, good: bool) {
        println!("{case}{}", if good { "" } else { " FAILED" });
        self.failed.set(self.failed.get() || !good);
    }

    pub(crate) fn bytes_from(&self, index: usize, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.wait().unwrap();
        self.held.borrow()[index].read_bytes(0, &mut bytes).unwrap();
        bytes
    }

    /// Weights, sums and mixtures of residual streams.
    pub(super) fn streams(&self, count: usize, hidden: usize, tokens: usize) {
        let name = format!("{count} streams of {hidden}, {tokens} tokens");
        let outputs = count * (2 + count);
        let streams = Streams { values: self.random(tokens * count * hidden), count, hidden };
        let products = self.random(tokens * outputs);
        let (x, host) = (self.read(streams.values), self.read(products));
        let site = StreamSite {
            base: self.random(outputs),
            scale: self.random(3),
            iterations: Some(20),
            epsilon: 1e-6,
            norm_epsilon: EPSILON,
        };
        let (base, scale) = (self.read(site.base), self.read(site.scale));
        launch::weigh_streams(&self.stream, tokens, &streams, &site, products).unwrap();
        let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
        let (mut weights, mut read, mut mixed) = (Vec::new(), Vec::new(), Vec::new());
        let given = self.random(tokens * hidden);
        let output = self.read(given);
        for token in 0..tokens {
            let row = &x[token * count * hidden..(token + 1) * count * hidden];
            let mean = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / row.len() as f64;
            let factor = 1.0 / (mean + f64::from(EPSILON)).sqrt();
            let value = |i: usize| {
                let group = (i / count).min(2);
                f64::from(host[token * outputs + i]) * factor * f64::from(scale[group])
                    + f64::from(base[i])
            };
            let mut of: Vec<f64> = (0..outputs).map(value).collect();
            of[..count].iter_mut().for_each(|w| *w = sigmoid(*w) + 1e-6);
            of[count..2 * count].iter_mut().for_each(|w| *w = 2.0 * sigmoid(*w));
            let mix = &mut of[2 * count..];
            for row in mix.chunks_exact_mut(count) {
                let sum: f64 = row.iter().map(|v| v.exp()).sum();
                row.iter_mut().for_each(|v| *v = v.exp() / sum + 1e-6);
            }
            for pass in 0..20 {
                for row in mix.chunks_exact_mut(count).filter(|_| pass > 0) {
                    let sum = row.iter().sum::<f64>() + 1e-6;
                    row.iter_mut().for_each(|v| *v /= sum);
                }
                for j in 0..count {
                    let sum = (0..count).map(|i| mix[i * count + j]).sum::<f64>() + 1e-6;
                    (0..count).for_each(|i| mix[i * count + j] /= sum);
                }
            }
            let at = |i: usize, d: usize| f64::from(row[i * hidden + d]);
            read.extend(
                (0..hidden).map(|d| (0..count).map(|i| of[i] * at(i, d)).sum::<f64>() as f32),
            );
            for j in 0..count {
                let of_stream = |i: usize| of[2 * count + i * count + j];
                mixed.extend((0..hidden).map(|d| {
                    let sum: f64 = (0..count).map(|i| of_stream(i) * at(i, d)).sum();
                    (sum + of[count + j] * f64::from(output[token * hidden + d])) as f32
                }));
            }
            weights.extend(of.iter().map(|&w| w as f32));
        }
        self.compare(&format!("weights of {name}"), products, self.floats(&weights));
        let found = self.poison(tokens * hidden);
        launch::collapse_streams(&self.stream, tokens, &streams, (products, false), found).unwrap();
        self.compare(&format!("what is read of {name}"), found, self.floats(&read));
        launch::mix_streams(&self.stream, tokens, &streams, products, given).unwrap();
        self.compare(&format!("mixture of {name}"), streams.values, self.floats(&mixed));
        let reads = self.random(tokens * count);
        let before = self.read(reads);
        let last = StreamSite { iterations: None, ..site };
        let mean = |token: usize| {
            let row = &self.read(streams.values)[token * count * hidden..][..count * hidden];
            row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / row.len() as f64
        };
        let expected: Vec<f32> = (0..tokens * count)
            .map(|i| {
                let factor = 1.0 / (mean(i / count) + f64::from(EPSILON)).sqrt();
                let value = f64::from(before[i]) * factor * f64::from(scale[0]);
                (sigmoid(value + f64::from(base[i % count])) + 1e-6) as f32
            })
            .collect();
        launch::weigh_streams(&self.stream, tokens, &streams, &last, reads).unwrap();
        self.compare(&format!("last weights of {name}"), reads, self.floats(&expected));
    }

    /// Rotation of heads, with norms and rounding.
    pub(super) fn turned(&self) {
        for (heads, dim, rotated) in [(64, 512, 64), (3, 128, 64), (2, 16, 16)] {
            let (positions, owners) = ([0u32, 5, 131, 100_000], [0u32; 4]);
            let places = self.places(&positions, &owners);
            let frequencies: Vec<f32> =
                (0..rotated / 2).map(|j| 1e4f32.powf(-2.0 * j as f32 / rotated as f32)).collect();
            let rotation = Rotation { frequencies: self.floats(&frequencies), magnitude: 1.0 };
            let weight = self.random(dim);
            let of_norm = self.read(weight);
            for (name, kind, direction) in [
                ("normed", Turn::Normed(EPSILON, None), 1.0),
                ("normed with a weight", Turn::Normed(EPSILON, Some(weight)), 1.0),
                ("alone", Turn::Alone, 1.0),
                ("back", Turn::Back, -1.0),
                ("rounded", Turn::Rounded, 1.0),
            ] {
                let x = self.random(4 * heads * dim);
                let mut expected = self.read(x);
                let place = places.positions;
                launch::turn_heads(&self.stream, (heads, dim), x, rotation, place, kind).unwrap();
                for (index, head) in expected.chunks_exact_mut(dim).enumerate() {
                    match kind {
                        Turn::Normed(_, None) => normed(head, None),
                        Turn::Normed(_, Some(_)) => normed(head, Some(&of_norm)),
                        _ => {}
                    }
                    turn(head, &frequencies, positions[index / heads] as usize, direction);
                    if matches!(kind, Turn::Rounded) {
                        hadamard(head);
                        round_fp4(head);
                    }
                }
                let case = format!("heads of {dim} turned, {name}");
                if matches!(kind, Turn::Rounded) {
                    let found = self.read(x);
                    let other = found.iter().zip(&expected).filter(|(a, b)| a != b).count();
                    let text = format!("{case}: {other} of {} values differ", found.len());
                    self.verdict(&text, other * 1000 <= found.len());
                } else {
                    self.compare(&case, x, self.floats(&expected));
                }
            }
        }
    }

    /// Rows in every type, bit for bit, with numbers that a type can hardly hold.
    pub(super) fn stored(&self) {
        for kind in
            [KvType::F32, KvType::F16, KvType::Bf16, KvType::Q8, KvType::Fp8 { rotated: 64 }]
        {
            let (dim, tokens) = (512, 40);
            let mut values: Vec<f32> = (0..tokens * dim)
                .map(|i| self.unit() * 10f32.powi((i / dim) as i32 - 20))
                .collect();
            values[5] = f32::NAN;
            values[dim + 70] = f32::INFINITY;
            values[2 * dim..3 * dim].fill(0.0);
            values[3 * dim..4 * dim].iter_mut().for_each(|v| *v = (*v * 1e21).round() * 0.25);
            let bytes = kind.bytes_of_head(dim);
            let index = self.keep(&vec![0; tokens * bytes]);
            let span = self.held.borrow()[index].span(0, tokens * bytes);
            let positions: Vec<u32> = (0..tokens as u32).collect();
            let places = self.places(&positions, &vec![0; tokens]);
            let none = self.floats(&[0.0]);
            let rows = SequenceRows {
                places,
                states: none,
                state_stride: 0,
                pages: span,
                sequence_bytes: 0,
                page_bytes: 0,
                page_tokens: PAGE_TOKENS,
                ratio: 0,
                overlap: false,
                window: 8,
            };
            let stored = StoredRows { dim, kind: Some(kind), place: 0, bytes };
            let keys = self.floats(&values);
            launch::store_window_rows(&self.stream, &rows, &stored, keys, span).unwrap();
            let found = self.bytes_from(index, tokens * bytes);
            let mut expected = vec![0; tokens * bytes];
            for (row, values) in expected.chunks_exact_mut(bytes).zip(values.chunks_exact(dim)) {
                kind.encode(values, row);
            }
            let other: Vec<usize> = (0..found.len()).filter(|&i| found[i] != expected[i]).collect();
            let first = other.first().map(|i| (i / bytes, i % bytes, found[*i], expected[*i]));
            let text =
                format!("rows of {dim}, {kind}: {} bytes differ, first {first:?}", other.len());
            // What is no number has many spellings.
            self.verdict(&text, other.len() <= 8);
        }
    }
}

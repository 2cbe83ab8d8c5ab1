//! What some families do to the stream in addition to what blocks add to it, and GELU, against f64 on the host: a part
//! of the example `check`.

use cuda::launch::{
    self, AttentionShape, ExpertActivation, ExpertStep, Factor, HeadsStep, KeyValueCache,
    NormsBetween, NormsJoin, Rotation,
};
use cuda::{ExpertShapes, Matrix, Span};
use kernels::KvType;
use kernels::format::{BlockFormat, Encoding, FloatType};

use super::{Bench, Shared};

/// GELU as it is approximated by a hyperbolic tangent.
fn gelu(v: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (v + 0.044_715 * v * v * v);
    0.5 * v * (1.0 + inner.tanh())
}

impl Bench {
    /// All of it.
    pub(super) fn sandwich(&self, pinned: &Shared) {
        for (rows, width) in [(3, 2816), (5, 704), (40, 256), (7, 512), (2, 40)] {
            self.norm_rows(rows, width);
        }
        for (tokens, width) in [(1, 2816), (3, 352), (2, 40)] {
            self.norms_together(tokens, width);
        }
        self.normed_heads();
        self.factors();
        self.gelu();
        for encoding in [
            Encoding::Block(BlockFormat::Q8_0),
            Encoding::Float(FloatType::Bf16),
            Encoding::Float(FloatType::F32),
        ] {
            self.gelu_experts(encoding, pinned);
        }
    }

    fn norm_rows(&self, rows: usize, width: usize) {
        let epsilon = 1e-3f32;
        for (weighted, add) in [(true, true), (true, false), (false, false), (false, true)] {
            let (x, weight) = (self.random(rows * width), self.random(width));
            let start = self.random(rows * width);
            let out = self.twin(start);
            let weight_of = weighted.then_some(weight);
            let shape = (rows, width);
            launch::norm_rows(&self.stream, shape, x, weight_of, epsilon, out, add).unwrap();
            let (x, weight, start) = (self.read(x), self.read(weight), self.read(start));
            let mut expected = Vec::new();
            for (row, start) in x.chunks(width).zip(start.chunks(width)) {
                let squares: f64 = row.iter().map(|&v| f64::from(v).powi(2)).sum();
                let scale = (squares / width as f64 + f64::from(epsilon)).powf(-0.5);
                expected.extend(row.iter().zip(&weight).zip(start).map(
                    |((&v, &weight), &start)| {
                        let weight = if weighted { f64::from(weight) } else { 1.0 };
                        let before = if add { f64::from(start) } else { 0.0 };
                        (before + f64::from(v) * scale * weight) as f32
                    },
                ));
            }
            let case = format!("norm of [{rows}, {width}], weight {weighted}, added {add}");
            self.compare(&case, out, self.floats(&expected));
        }
        // In place, as of values.
        let x = self.random(rows * width);
        let other = self.poison(rows * width);
        launch::norm_rows(&self.stream, (rows, width), x, None, epsilon, other, false).unwrap();
        launch::norm_rows(&self.stream, (rows, width), x, None, epsilon, x, false).unwrap();
        self.same_bits("  in place", &self.read(x), &self.read(other));
    }

    /// Norms at once against the same one by one.
    fn norms_together(&self, tokens: usize, width: usize) {
        let (stream, epsilon, rows) = (&self.stream, 1e-6, (tokens, width));
        let (branch, x) = (self.random(tokens * width), self.random(tokens * width));
        let weights = [(); 4].map(|()| self.random(width));
        let out = [(); 2].map(|()| self.poison(tokens * width));
        let together = self.twin(branch);
        let norms = NormsBetween {
            branch: together,
            branch_weight: weights[0],
            x,
            weights: [weights[1], weights[2]],
            out,
            zeros: self.poison(tokens * width),
            epsilon,
        };
        launch::norm_between(stream, tokens, &norms).unwrap();
        let case = format!("[{tokens}, {width}]");
        launch::norm_rows(stream, rows, branch, Some(weights[0]), epsilon, branch, false).unwrap();
        self.compare(&format!("norms at once of {case}: branch"), together, branch);
        self.same_bits("  zeros", &self.read(norms.zeros), &vec![0.0; tokens * width]);
        for (found, weight) in out.into_iter().zip([weights[1], weights[2]]) {
            let alone = self.poison(tokens * width);
            launch::norm_rows(stream, rows, x, Some(weight), epsilon, alone, false).unwrap();
            self.compare("  of the stream", found, alone);
        }
        let (stream_before, factor) = (self.random(tokens * width), self.floats(&[0.73]));
        let joined = self.twin(stream_before);
        let join = NormsJoin {
            x,
            weight: weights[1],
            branch: together,
            branch_weight: weights[3],
            out: joined,
            factor,
            epsilon,
        };
        launch::norm_join(stream, tokens, &join).unwrap();
        launch::norm_rows(stream, rows, x, Some(weights[1]), epsilon, branch, true).unwrap();
        let out = stream_before;
        launch::norm_rows(stream, rows, branch, Some(weights[3]), epsilon, out, true).unwrap();
        launch::scale(stream, out, Factor::Stored(factor)).unwrap();
        self.compare("  joined", joined, out);
    }

    /// Heads of a step whose values are normed, of keys or of their own, and whose rows lie elsewhere than their
    /// positions say, against the same one by one.
    fn normed_heads(&self) {
        for (heads, key_heads, dim, own, kv_type) in [
            (16, 2, 512, false, KvType::F16),
            (16, 8, 256, true, KvType::F16),
            (4, 2, 64, true, KvType::F32),
            (4, 1, 128, false, KvType::Q8),
        ] {
            let (stream, tokens, context) = (&self.stream, 2, 48);
            let shape = AttentionShape {
                query_heads: heads,
                key_value_heads: key_heads,
                dim,
                scale: Some(1.0),
            };
            let projected = self.random(tokens * heads * dim);
            let [keys, values] = [(); 2].map(|()| self.random(tokens * key_heads * dim));
            let values = if own { values } else { keys };
            let norms = [(); 2].map(|()| self.random(dim));
            let angles: Vec<f32> = (0..dim / 2)
                .map(|pair| if pair < dim / 8 { 0.9f32.powi(pair as i32) } else { 0.0 })
                .collect();
            let rotation = Rotation { frequencies: self.floats(&angles), magnitude: 1.0 };
            let positions = self.words(&[1017, 40]);
            let places = self.places(&[17, 40], &[1, 0]);
            let bytes = 2 * context * key_heads * kv_type.bytes_of_head(dim);
            let cache = || {
                let [keys, values] = [(); 2].map(|()| self.bytes(&vec![0; bytes]));
                KeyValueCache { keys, values, context, kv_type }
            };
            let (alone, together) = (cache(), cache());
            let (query, key) = (self.twin(projected), self.twin(keys));
            let value = self.poison(tokens * key_heads * dim);
            let rows = (tokens * key_heads, dim);
            launch::norm_rows(stream, rows, values, None, 1e-6, value, false).unwrap();
            for (count, x, norm) in [(heads, query, norms[0]), (key_heads, key, norms[1])] {
                let norm = Some((norm, 1e-6));
                launch::norm_and_rotate(stream, (count, dim), x, norm, rotation, positions)
                    .unwrap();
            }
            launch::append(stream, &shape, &places, &alone, key, value).unwrap();
            let step = HeadsStep {
                projected,
                gated: false,
                keys,
                values,
                norm_values: true,
                positions,
                query_norm: norms[0],
                key_norm: norms[1],
                rotation,
                epsilon: 1e-6,
                queries: self.poison(tokens * heads * dim),
            };
            launch::attention_heads(stream, &shape, &places, &together, &step).unwrap();
            let case =
                format!("{heads} / {key_heads} heads of {dim} with normed values, {kv_type}");
            self.compare(&case, step.queries, query);
            // A value whose last bit differs may be rounded to another one: cached rows are compared as numbers.
            let decoded = |side: Span<u8>| {
                let (bytes, mut row) = (self.read_bytes(side), vec![0.0; dim]);
                let rows = bytes.chunks(kv_type.bytes_of_head(dim));
                let values = rows.flat_map(|bytes| {
                    kv_type.decode(bytes, &mut row);
                    row.clone()
                });
                values.map(f64::from).collect::<Vec<f64>>()
            };
            for (found, expected) in [(together.keys, alone.keys), (together.values, alone.values)]
            {
                let (a, b) = (decoded(found), decoded(expected));
                let error: f64 = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum();
                let norm: f64 = b.iter().map(|b| b.powi(2)).sum();
                let relative = (error / norm).sqrt();
                let good = relative < 1e-3;
                println!(
                    "  cached rows: relative {relative:.1e}{}",
                    if good { "" } else { " FAILED" }
                );
                self.failed.set(self.failed.get() || !good);
            }
        }
    }

    fn factors(&self) {
        let x = self.random(5001);
        let host = self.read(x);
        let times = |factor: f32| {
            let expected: Vec<f32> = host.iter().map(|v| v * factor).collect();
            self.floats(&expected)
        };
        let scaled = self.twin(x);
        launch::scale(&self.stream, scaled, Factor::Constant(53.07)).unwrap();
        self.compare("values times a constant", scaled, times(53.07));
        let (scaled, factor) = (self.twin(x), self.floats(&[-0.37]));
        launch::scale(&self.stream, scaled, Factor::Stored(factor)).unwrap();
        self.compare("values times a stored factor", scaled, times(-0.37));
        let capped = times(200.0);
        launch::cap(&self.stream, capped, 30.0).unwrap();
        let expected: Vec<f32> =
            host.iter().map(|&v| (30.0 * (200.0 * f64::from(v) / 30.0).tanh()) as f32).collect();
        self.compare("capped values", capped, self.floats(&expected));
    }

    fn gelu(&self) {
        let mut gates: Vec<f32> = (0..4000).map(|_| 8.0 * self.unit()).collect();
        gates.extend([0.0, -0.0, 19.9, 20.1, -19.9, -20.1, 300.0, -300.0, 1e20, -1e20, 1e-30]);
        let ups: Vec<f32> = gates.iter().map(|_| self.unit()).collect();
        let (gate, up, count) = (self.floats(&gates), self.floats(&ups), gates.len());
        let (at_once, other) = (self.twin(gate), up);
        launch::geglu(&self.stream, at_once, other, count).unwrap();
        launch::gelu_pairs(&self.stream, gate, up, count).unwrap();
        launch::swiglu(&self.stream, gate, up, count).unwrap();
        let found = self.read(gate);
        self.same_bits("GELU at once", &self.read(at_once), &found);
        let mut largest = 0.0f64;
        for ((&found, &gate), &up) in found.iter().zip(&gates).zip(&ups) {
            let expected = gelu(f64::from(gate)) * f64::from(up);
            let error = (f64::from(found) - expected).abs() / expected.abs().max(1e-6);
            // Not "above": what is no number is wrong.
            largest = if error <= largest { largest } else { error };
        }
        let good = largest < 2e-5;
        println!("GELU: within {largest:.1e}{}", if good { "" } else { " FAILED" });
        self.failed.set(self.failed.get() || !good);
    }

    /// An expert's record, its matrices by themselves, and where they lie in the record; of encodings of one plane.
    fn record(
        &self,
        encoding: Encoding,
        sizes: [(usize, usize); 3],
    ) -> (u64, [Matrix; 3], [u32; 9]) {
        let (mut record, mut places) = (Vec::new(), [0; 9]);
        let mut index = 0;
        let matrices = sizes.map(|(rows, columns)| {
            let bytes = self.encoded(encoding, rows, columns);
            record.resize(record.len().next_multiple_of(32), 0);
            places[index..index + 3].fill(record.len() as u32);
            index += 3;
            record.extend_from_slice(&bytes);
            self.on_device(encoding, rows, columns, &bytes)
        });
        (self.bytes(&record).address(), matrices, places)
    }

    /// Experts of a step with GELU, against products of their matrices and GELU on the host.
    fn gelu_experts(&self, encoding: Encoding, pinned: &Shared) {
        let (experts, k, tokens, hidden, inner) = (3, 2, 2, 352, 96);
        let sizes = [(inner, hidden), (inner, hidden), (hidden, inner)];
        let records: Vec<_> = (0..experts).map(|_| self.record(encoding, sizes)).collect();
        let [gate, up, down] = sizes.map(|(rows, columns)| Matrix::shape(encoding, rows, columns));
        let places: Vec<u32> = records.iter().flat_map(|record| record.2).collect();
        let shapes = ExpertShapes::new(gate, up, down, self.words(&places));
        let chosen = [0u32, 2, 1, 2];
        let factors = [0.7f32, 0.3, 0.2, 0.8];
        let named: Vec<u64> = chosen.iter().map(|&expert| records[expert as usize].0).collect();
        let (x, start) = (self.random(tokens * hidden), self.random(tokens * hidden));
        let (out, expected) = (self.twin(start), self.twin(start));
        let activation = ExpertActivation {
            biases: None,
            clamped: None,
            in_turns: false,
            shared: false,
            gelu: true,
        };
        let step = |out, k: usize| ExpertStep {
            x,
            chosen: self.words(&chosen),
            weights: self.floats(&factors),
            addresses: self.long_words(&named),
            answers: pinned.answers.span(0, experts),
            status: pinned.status.all(),
            inner: self.poison(tokens * k * inner),
            out,
            copies: None,
            ended: None,
            first_key: 0,
            k,
        };
        let (stream, gelu_of) = (&self.stream, Some(&activation));
        launch::experts_activated(stream, tokens, &step(out, k), &shapes, None, gelu_of).unwrap();
        for (pair, &expert) in chosen.iter().enumerate() {
            let token = pair / k;
            let [gate, up, down] = records[expert as usize].1;
            let x = x.part(token * hidden, hidden);
            let (gates, ups) = (self.poison(inner), self.poison(inner));
            launch::linear(stream, x, 1, &[(gate, gates), (up, ups)], false).unwrap();
            let (gates, ups) = (self.read(gates), self.read(ups));
            let values: Vec<f32> = gates
                .iter()
                .zip(&ups)
                .map(|(&gate, &up)| {
                    (gelu(f64::from(gate)) * f64::from(up) * f64::from(factors[pair])) as f32
                })
                .collect();
            let to = expected.part(token * hidden, hidden);
            launch::linear(stream, self.floats(&values), 1, &[(down, to)], true).unwrap();
        }
        self.compare(&format!("experts of {} with GELU", encoding.label()), out, expected);
    }
}

//! Attention over latent rows against f64 on the host, over shapes and types of caches, steps and chunks; what does not
//! depend on the batch; time at depth: a part of the example `check`.

use cuda::Span;
use cuda::launch::{
    self, HeadMatrix, LatentAttention, LatentCache, LatentShape, Rotation, TokenPlaces,
};
use kernels::KvType;
use kernels::format::{BlockFormat, Encoding, FloatType, ScaleType};

use super::Bench;

/// Shapes as in DeepSeek-V3 and GLM-4.7-Flash, and small ones that fill no vector.
const SHAPES: [LatentShape; 4] = [
    LatentShape { heads: 128, rank: 512, rotated: 64, plain: 128, values: 128, neighbours: true },
    LatentShape { heads: 20, rank: 512, rotated: 64, plain: 192, values: 256, neighbours: true },
    LatentShape { heads: 3, rank: 24, rotated: 10, plain: 20, values: 12, neighbours: false },
    LatentShape { heads: 17, rank: 96, rotated: 32, plain: 32, values: 64, neighbours: true },
];

/// Sequences and their most tokens.
const SEQUENCES: usize = 2;
const CONTEXT: usize = 1200;

impl Bench {
    pub(super) fn latent(&self) {
        for shape in &SHAPES {
            let name = format!("{} heads over {} + {}", shape.heads, shape.rank, shape.rotated);
            self.latent_inputs(&name, shape);
            self.latent_products(&name, shape);
            for kv_type in KvType::ALL {
                if launch::serves_latent(shape.rank, shape.rotated, kv_type) {
                    self.latent_case(&format!("{name}, {kv_type}"), shape, kv_type);
                }
            }
        }
    }

    fn latent_rotation(&self, shape: &LatentShape) -> (Rotation, Vec<f32>) {
        let frequencies: Vec<f32> =
            (0..shape.rotated / 2).map(|pair| 0.8f32.powi(pair as i32)).collect();
        (Rotation { frequencies: self.floats(&frequencies), magnitude: 1.25 }, frequencies)
    }

    /// Rows that are appended, in every type, and the rotated ends of queries.
    fn latent_inputs(&self, name: &str, shape: &LatentShape) {
        let (positions, owners) = ([0u32, 5, 1199, 700], [0u32, 1, 0, 1]);
        let (places, tokens, row) = (self.places(&positions, &owners), 4, shape.row());
        let (rotation, frequencies) = self.latent_rotation(shape);
        let turn = |x: &[f32], position: u32| -> Vec<f32> {
            let half = shape.rotated / 2;
            let pair = |index: usize| match shape.neighbours {
                true => (x[2 * index], x[2 * index + 1]),
                false => (x[index], x[index + half]),
            };
            let value = |index: usize| {
                let (a, b) = pair(index % half);
                let angle = f64::from(position as f32 * frequencies[index % half]);
                let (a, b, (sine, cosine)) = (f64::from(a), f64::from(b), angle.sin_cos());
                let turned =
                    if index < half { a * cosine - b * sine } else { b * cosine + a * sine };
                (1.25 * turned) as f32
            };
            (0..shape.rotated).map(value).collect()
        };
        let (rows, norm) = (self.random(tokens * row), self.random(shape.rank));
        let (host, weights) = (self.read(rows), self.read(norm));
        let expected = host.chunks(row).zip(positions).flat_map(|(x, position)| {
            let square: f64 = x[..shape.rank].iter().map(|&v| f64::from(v).powi(2)).sum();
            let scale = (square / shape.rank as f64 + 1e-6).sqrt().recip();
            let normed = x[..shape.rank].iter().zip(&weights);
            let normed = normed.map(|(&v, &w)| (f64::from(v) * scale * f64::from(w)) as f32);
            normed.chain(turn(&x[shape.rank..], position)).collect::<Vec<_>>()
        });
        let expected: Vec<f32> = expected.collect();
        let mut exact = Vec::new();
        for kv_type in KvType::ALL {
            if !launch::serves_latent(shape.rank, shape.rotated, kv_type) {
                continue;
            }
            let row_bytes = kv_type.bytes_of_head(row);
            let all = self.bytes(&vec![0; SEQUENCES * CONTEXT * row_bytes]);
            let cache = LatentCache { rows: all, context: CONTEXT, kv_type };
            let norm = (norm, 1e-6);
            launch::append_latent(&self.stream, shape, &places, &cache, rows, norm, rotation)
                .unwrap();
            let stored = positions.iter().zip(owners).flat_map(|(&position, owner)| {
                let place = owner as usize * CONTEXT + position as usize;
                self.read_bytes(all.part(place * row_bytes, row_bytes))
            });
            let stored: Vec<u8> = stored.collect();
            if kv_type == KvType::F32 {
                let values =
                    stored.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
                exact = values.collect();
                let (found, expected) = (self.floats(&exact), self.floats(&expected));
                self.compare(&format!("latent rows, {name}"), found, expected);
            }
            let mut encoded = vec![0; stored.len()];
            for (values, to) in exact.chunks(row).zip(encoded.chunks_mut(row_bytes)) {
                kv_type.encode(values, to);
            }
            let equal = encoded == stored;
            println!("  rows in {kv_type}: {}", if equal { "equal" } else { "different FAILED" });
            self.failed.set(self.failed.get() || !equal);
        }
        let width = shape.plain + shape.rotated;
        let query = self.random(tokens * shape.heads * width);
        let out = self.poison(tokens * shape.heads * row);
        launch::rotate_latent(&self.stream, shape, places.positions, query, out, rotation).unwrap();
        let (host, out) = (self.read(query), self.read(out));
        let expected: Vec<f32> = host
            .chunks(width)
            .enumerate()
            .flat_map(|(pair, x)| turn(&x[shape.plain..], positions[pair / shape.heads]))
            .collect();
        let found: Vec<f32> = out.chunks(row).flat_map(|x| x[shape.rank..].to_vec()).collect();
        self.compare(
            &format!("ends of queries, {name}"),
            self.floats(&found),
            self.floats(&expected),
        );
    }

    /// Products by head against those of the whole matrix with each head's values, of both forms of matrices.
    fn latent_products(&self, name: &str, shape: &LatentShape) {
        let heads = shape.heads.min(5);
        let (both, width) = (shape.plain + shape.values, shape.plain + shape.rotated);
        let forms = [
            (shape.plain, shape.rank, 0, shape.rank, width, shape.row()),
            (shape.rank, both, shape.plain, shape.values, shape.rank, shape.values),
        ];
        for (columns, stride, first, count, x_width, out_width) in forms {
            let rows = heads * stride;
            let mut encodings =
                vec![Encoding::Float(FloatType::Bf16), Encoding::Float(FloatType::F32)];
            if columns.is_multiple_of(32) {
                encodings.push(Encoding::Block(BlockFormat::Q8_0));
            }
            if columns.is_multiple_of(256) {
                encodings.push(Encoding::Block(BlockFormat::Q4K));
                encodings.push(Encoding::Fp8 { scale: ScaleType::Float(FloatType::F32) });
            }
            let named =
                |encoding: Encoding| (encoding.label(), self.any_matrix(encoding, rows, columns));
            let mut matrices: Vec<_> = encodings.into_iter().map(named).collect();
            if columns.is_multiple_of(32) {
                for bits in [3, 4, 8] {
                    let name = format!("{bits} bits");
                    matrices.push((name, self.matrix(rows, columns, bits, 32)));
                }
            }
            for (kind, matrix) in matrices {
                let tokens = 19;
                let x = self.random(tokens * heads * x_width);
                let part = HeadMatrix { matrix, stride, first, count };
                let product = |x: Span<f32>, tokens: usize| {
                    let out = self.poison(tokens * heads * out_width);
                    let size = (tokens, heads);
                    let (from, to) = ((x, x_width), (out, out_width));
                    launch::latent_heads(&self.stream, size, &part, from, to).unwrap();
                    self.read(out)
                };
                let found = product(x, tokens);
                let (mut some, mut expected) = (Vec::new(), Vec::new());
                for pair in (0..tokens * heads).step_by(7) {
                    let all = self.poison(rows);
                    let from = x.part(pair * x_width, columns);
                    launch::linear(&self.stream, self.twin(from), 1, &[(matrix, all)], false)
                        .unwrap();
                    let start = pair % heads * stride + first;
                    expected.extend_from_slice(&self.read(all)[start..start + count]);
                    some.extend_from_slice(&found[pair * out_width..][..count]);
                }
                let case = format!("products by head, {name}, {columns} columns, {kind}");
                self.compare(&case, self.floats(&some), self.floats(&expected));
                let (at, all) = (heads * x_width, heads * out_width);
                let alone = product(self.twin(x.part(9 * at, at)), 1);
                let kept = |rows: &[f32]| -> Vec<f32> {
                    rows.chunks(out_width).flat_map(|row| row[..count].to_vec()).collect()
                };
                self.same_bits("  a token alone", &kept(&alone), &kept(&found[9 * all..10 * all]));
            }
        }
    }

    /// Attention over what a token sees, in f64: `query [heads, row]`.
    fn latent_expected(
        shape: &LatentShape,
        rows: &[f32],
        query: &[f32],
        (sequence, position): (usize, usize),
        scale: f32,
    ) -> Vec<f32> {
        let row = shape.row();
        let at = |index: usize| &rows[(sequence * CONTEXT + index) * row..][..row];
        let mut out = Vec::new();
        for query in query.chunks(row) {
            let dot = |index: usize| -> f64 {
                let pairs = query.iter().zip(at(index));
                f64::from(scale) * pairs.map(|(&q, &k)| f64::from(q) * f64::from(k)).sum::<f64>()
            };
            let dots: Vec<f64> = (0..=position).map(dot).collect();
            let largest = dots.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = dots.iter().map(|dot| (dot - largest).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut sums = vec![0.0; shape.rank];
            for (index, weight) in weights.iter().enumerate() {
                let values = sums.iter_mut().zip(at(index));
                values.for_each(|(sum, &value)| *sum += weight * f64::from(value));
            }
            out.extend(sums.iter().map(|sum| (sum / total) as f32));
        }
        out
    }

    fn attend_latent(
        &self,
        shape: &LatentShape,
        cache: &LatentCache,
        places: &TokenPlaces,
        query: Span<f32>,
        scale: f32,
    ) -> Vec<f32> {
        let tokens = places.positions.len();
        let out = self.poison(tokens * shape.heads * shape.rank);
        let scratch =
            self.poison(launch::latent_scratch(shape, if places.single { tokens } else { 0 }));
        let stream = &self.stream;
        let attention = LatentAttention { query, out, scratch, scale, chosen: None };
        launch::attend_latent(stream, shape, places, cache, &attention).unwrap();
        self.read(out)
    }

    fn latent_case(&self, name: &str, shape: &LatentShape, kv_type: KvType) {
        let row = shape.row();
        let row_bytes = kv_type.bytes_of_head(row);
        let scale = 4.0 / row as f32;
        let mut bytes = vec![0; SEQUENCES * CONTEXT * row_bytes];
        let mut rows = vec![0.0; SEQUENCES * CONTEXT * row];
        for (to, back) in bytes.chunks_mut(row_bytes).zip(rows.chunks_mut(row)) {
            let values: Vec<f32> = (0..row).map(|_| 2.0 * self.unit()).collect();
            kv_type.encode(&values, to);
            kv_type.decode(to, back);
        }
        let cache = LatentCache { rows: self.bytes(&bytes), context: CONTEXT, kv_type };
        let (width, wide) = (shape.heads * row, shape.heads * shape.rank);
        // Steps.
        let (positions, owners) = ([0u32, 31, 32, 700, 1199], [0u32, 1, 0, 1, 1]);
        let places = self.places(&positions, &owners);
        let query = self.random(positions.len() * width);
        let host = self.read(query);
        let together = self.attend_latent(shape, &cache, &places, query, scale);
        let expected: Vec<f32> = (0..positions.len())
            .flat_map(|i| {
                let at = (owners[i] as usize, positions[i] as usize);
                let query = &host[i * width..(i + 1) * width];
                Self::latent_expected(shape, &rows, query, at, scale)
            })
            .collect();
        let case = format!("latent steps, {name}");
        self.compare(&case, self.floats(&together), self.floats(&expected));
        let alone = self.places(&positions[3..4], &owners[3..4]);
        let one = query.part(3 * width, width);
        let alone = self.attend_latent(shape, &cache, &alone, one, scale);
        self.same_bits("  a step alone", &alone, &together[3 * wide..4 * wide]);
        // A chunk of sequence 1, whole and in pieces.
        let (first, count) = (900u32, 75usize);
        let positions: Vec<u32> = (first..first + count as u32).collect();
        let places = TokenPlaces { single: false, ..self.places(&positions, &vec![1; count]) };
        let query = self.random(count * width);
        let host = self.read(query);
        let whole = self.attend_latent(shape, &cache, &places, query, scale);
        let some = [0, 1, 63, 64, 74];
        let expected: Vec<f32> = some
            .into_iter()
            .flat_map(|i| {
                let query = &host[i * width..(i + 1) * width];
                Self::latent_expected(shape, &rows, query, (1, first as usize + i), scale)
            })
            .collect();
        let found: Vec<f32> =
            some.into_iter().flat_map(|i| whole[i * wide..(i + 1) * wide].to_vec()).collect();
        let case = format!("latent chunk, {name}");
        self.compare(&case, self.floats(&found), self.floats(&expected));
        let mut pieces = Vec::new();
        for (start, end) in [(0, 1), (1, 18), (18, 70), (70, 75)] {
            let places = places.part(start, end - start);
            let query = query.part(start * width, (end - start) * width);
            pieces.extend(self.attend_latent(shape, &cache, &places, query, scale));
        }
        self.same_bits("  the chunk in pieces", &pieces, &whole);
    }

    /// Time of the parts of a layer of the DeepSeek-V3 shape at depth.
    pub(super) fn latent_table(&self) {
        let shape = SHAPES[0];
        let (context, row) = (65_536 + 128, shape.row());
        for kv_type in [KvType::F32, KvType::F16] {
            let held = self.held.borrow().len();
            let row_bytes = kv_type.bytes_of_head(row);
            let layers: Vec<LatentCache> = (0..4)
                .map(|_| {
                    let rows = self.bytes(&vec![0; context * row_bytes]);
                    LatentCache { rows, context, kv_type }
                })
                .collect();
            let query = self.random(128 * shape.heads * row);
            let out = self.poison(128 * shape.heads * shape.rank);
            let scratch = self.poison(launch::latent_scratch(&shape, 1));
            for (depth, tokens) in [
                (128, 1),
                (2048, 1),
                (16_384, 1),
                (65_536, 1),
                (0, 128),
                (2048, 128),
                (16_384, 128),
            ] {
                let single = tokens == 1;
                let first = (depth - usize::from(single)) as u32;
                let positions: Vec<u32> = (first..first + tokens as u32).collect();
                let places = TokenPlaces { single, ..self.places(&positions, &vec![0; tokens]) };
                let query = query.part(0, tokens * shape.heads * row);
                let out = out.part(0, tokens * shape.heads * shape.rank);
                let time = self.time(4, &|turn| {
                    let (stream, cache) = (&self.stream, &layers[turn % 4]);
                    let attention =
                        LatentAttention { query, out, scratch, scale: 0.1, chosen: None };
                    launch::attend_latent(stream, &shape, &places, cache, &attention)
                });
                let keys = tokens as f64 * (depth as f64 + tokens as f64 / 2.0);
                let rate = 2.0 * keys * (shape.heads * (row + shape.rank)) as f64 / time / 1e6;
                println!(
                    "latent attention of {tokens:>3} tokens after {depth:>6}, {kv_type}: {time:9.1} us \
                     {rate:6.2} TFLOP/s"
                );
            }
            self.stream.wait().unwrap();
            self.held.borrow_mut().truncate(held);
        }
        let (rows, width) = (shape.heads * shape.rank, shape.plain + shape.rotated);
        let bf16 = Encoding::Float(FloatType::Bf16);
        let keys = self.any_matrix(bf16, rows, shape.plain);
        let values = self.any_matrix(bf16, shape.heads * shape.values, shape.rank);
        for tokens in [1, 128] {
            let query = self.random(tokens * shape.heads * width);
            let meets = self.poison(tokens * shape.heads * row);
            let sums = self.random(tokens * shape.heads * shape.rank);
            let out = self.poison(tokens * shape.heads * shape.values);
            let size = (tokens, shape.heads);
            let rank = shape.rank;
            let absorb = HeadMatrix { matrix: keys, stride: rank, first: 0, count: rank };
            let count = shape.values;
            let expand = HeadMatrix { matrix: values, stride: count, first: 0, count };
            let absorbed = self.time(8, &|_| {
                launch::latent_heads(&self.stream, size, &absorb, (query, width), (meets, row))
            });
            let expanded = self.time(8, &|_| {
                launch::latent_heads(&self.stream, size, &expand, (sums, rank), (out, count))
            });
            println!(
                "products by head of {tokens} tokens: queries {absorbed:.1} us, values {expanded:.1} us"
            );
        }
    }
}

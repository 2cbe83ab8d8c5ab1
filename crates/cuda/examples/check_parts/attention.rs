//! Attention against f64 on the host, over types of caches, widths and groups of heads, steps and chunks; what does not
//! depend on the batch; time at depth: a part of the example `check`.

use cuda::launch::{
    self, AttentionShape, HeadsStep, KeyValueCache, Rotation, StepInput, StepJob, TokenPlaces,
    Visible,
};
use cuda::{DeviceBuffer, Span};
use kernels::KvType;

use super::Bench;

/// A cache of one layer on the device and what its rows decode to.
pub(super) struct Cached {
    pub(super) cache: KeyValueCache,
    /// `[sequences, context, key_value_heads, dim]`
    pub(super) keys: Vec<f32>,
    pub(super) values: Vec<f32>,
}

impl Bench {
    pub(super) fn cached(
        &self,
        shape: &AttentionShape,
        sequences: usize,
        context: usize,
        kv_type: KvType,
    ) -> Cached {
        let rows = sequences * context * shape.key_value_heads;
        let row_bytes = kv_type.bytes_of_head(shape.dim);
        let side = || {
            let (mut bytes, mut decoded) = (vec![0; rows * row_bytes], vec![0.0; rows * shape.dim]);
            let mut row = vec![0.0; shape.dim];
            for (to, back) in bytes.chunks_mut(row_bytes).zip(decoded.chunks_mut(shape.dim)) {
                row.iter_mut().for_each(|value| *value = 2.0 * self.unit());
                kv_type.encode(&row, to);
                kv_type.decode(to, back);
            }
            (self.bytes(&bytes), decoded)
        };
        let ((keys_span, keys), (values_span, values)) = (side(), side());
        let cache = KeyValueCache { keys: keys_span, values: values_span, context, kv_type };
        Cached { cache, keys, values }
    }

    /// Attention of token `token` in f64.
    fn expected(
        shape: &AttentionShape,
        cached: &Cached,
        query: &[f32],
        sequence: usize,
        position: usize,
    ) -> Vec<f32> {
        let (dim, group) = (shape.dim, shape.query_heads / shape.key_value_heads);
        let row = |rows: &[f32], at: usize, head: usize| -> Vec<f64> {
            let first =
                ((sequence * cached.cache.context + at) * shape.key_value_heads + head) * dim;
            rows[first..first + dim].iter().map(|&value| f64::from(value)).collect()
        };
        let mut out = Vec::new();
        for (head, query) in query.chunks(dim).enumerate() {
            let scale = (dim as f64).powf(-0.5);
            let dots: Vec<f64> = (0..=position)
                .map(|at| {
                    let key = row(&cached.keys, at, head / group);
                    scale * query.iter().zip(key).map(|(&q, k)| f64::from(q) * k).sum::<f64>()
                })
                .collect();
            let largest = dots.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = dots.iter().map(|dot| (dot - largest).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut sums = vec![0.0; dim];
            for (at, weight) in weights.iter().enumerate() {
                let values = row(&cached.values, at, head / group);
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
            }
            out.extend(sums.iter().map(|sum| (sum / total) as f32));
        }
        out
    }

    /// Attention over what is visible.
    pub(super) fn attend(
        &self,
        shape: &AttentionShape,
        cache: &KeyValueCache,
        places: &TokenPlaces,
        query: Span<f32>,
        visible: Visible,
    ) -> Span<f32> {
        let tokens = places.positions.len();
        let out = self.poison(tokens * shape.query_heads * shape.dim);
        // A long prompt's blocks walk over all keys; of a short one they share them out.
        let scratch = match places.single {
            true => launch::attend_scratch(shape, tokens),
            false if tokens < 100 => launch::chunk_scratch(shape, cache.context),
            false => 0,
        };
        let scratch = self.poison(scratch);
        let stream = &self.stream;
        launch::attend(stream, shape, places, cache, query, out, scratch, visible).unwrap();
        out
    }

    /// Compares bits.
    pub(super) fn same_bits(&self, case: &str, found: &[f32], expected: &[f32]) {
        let equal = found.iter().map(|v| v.to_bits()).eq(expected.iter().map(|v| v.to_bits()));
        println!("{case}: {}", if equal { "equal bits" } else { "other bits FAILED" });
        self.failed.set(self.failed.get() || !equal);
    }

    /// Every type over widths and groups, as steps of several sequences and as one chunk.
    pub(super) fn attention(&self) {
        let shapes = [(16, 2, 256), (8, 8, 64), (12, 1, 80), (32, 2, 128), (6, 3, 256), (4, 1, 32)];
        let wide = [(16, 2, 512), (3, 3, 320), (5, 1, 488), (20, 1, 512)];
        for (query_heads, key_value_heads, dim) in shapes.into_iter().chain(wide) {
            let shape = AttentionShape { query_heads, key_value_heads, dim, scale: None };
            for kv_type in KvType::ALL {
                if kv_type == KvType::Q8 && !dim.is_multiple_of(32) {
                    continue;
                }
                let name = format!("{query_heads} / {key_value_heads} heads of {dim}, {kv_type}");
                self.attention_case(&name, &shape, kv_type);
            }
        }
    }

    fn attention_case(&self, name: &str, shape: &AttentionShape, kv_type: KvType) {
        let (sequences, context) = (2, 1200);
        let cached = self.cached(shape, sequences, context, kv_type);
        let width = shape.query_heads * shape.dim;
        // Steps.
        let (positions, owners) = ([0u32, 31, 32, 700, 1199], [0u32, 1, 0, 1, 1]);
        let places = self.places(&positions, &owners);
        let query = self.random(positions.len() * width);
        let host = self.read(query);
        let out = self.attend(shape, &cached.cache, &places, query, Visible::default());
        let expected: Vec<f32> = (0..positions.len())
            .flat_map(|i| {
                let query = &host[i * width..(i + 1) * width];
                Self::expected(shape, &cached, query, owners[i] as usize, positions[i] as usize)
            })
            .collect();
        self.compare(&format!("steps, {name}"), out, self.floats(&expected));
        let together = self.read(out);
        let alone = self.places(&positions[3..4], &owners[3..4]);
        let out = self.attend(
            shape,
            &cached.cache,
            &alone,
            query.part(3 * width, width),
            Visible::default(),
        );
        self.same_bits("  a step alone", &self.read(out), &together[3 * width..4 * width]);
        // A chunk of sequence 1, whole and in pieces.
        let (first, count) = (980u32, 139usize);
        let positions: Vec<u32> = (first..first + count as u32).collect();
        let places = TokenPlaces { single: false, ..self.places(&positions, &vec![1; count]) };
        let query = self.random(count * width);
        let host = self.read(query);
        let whole = self.attend(shape, &cached.cache, &places, query, Visible::default());
        let expected: Vec<f32> = [0, 1, 63, 64, 138]
            .into_iter()
            .flat_map(|i| {
                let query = &host[i * width..(i + 1) * width];
                Self::expected(shape, &cached, query, 1, first as usize + i)
            })
            .collect();
        let whole = self.read(whole);
        let found: Vec<f32> = [0, 1, 63, 64, 138]
            .into_iter()
            .flat_map(|i| whole[i * width..(i + 1) * width].to_vec())
            .collect();
        self.compare(&format!("chunk, {name}"), self.floats(&found), self.floats(&expected));
        let mut pieces = Vec::new();
        for (start, end) in [(0, 1), (1, 18), (18, 100), (100, 139)] {
            let places = places.part(start, end - start);
            let query = query.part(start * width, (end - start) * width);
            pieces.extend(self.read(self.attend(
                shape,
                &cached.cache,
                &places,
                query,
                Visible::default(),
            )));
        }
        self.same_bits("  the chunk in pieces", &pieces, &whole);
        // Rows that the device stores are those of the reference.
        {
            let (keys, values) = (self.random(count * shape.key_value_heads * shape.dim), query);
            let empty = self.cached(shape, sequences, context, kv_type);
            launch::append(&self.stream, shape, &places, &empty.cache, keys, values).unwrap();
            let row_bytes = kv_type.bytes_of_head(shape.dim);
            let rows: Vec<u8> = self
                .read(keys)
                .chunks(shape.dim)
                .flat_map(|values| {
                    let mut row = vec![0; row_bytes];
                    kv_type.encode(values, &mut row);
                    row
                })
                .collect();
            let start = (context + first as usize) * shape.key_value_heads * row_bytes;
            let stored = self.read_bytes(empty.cache.keys.part(start, rows.len()));
            println!(
                "  stored rows: {}",
                if stored == rows { "equal" } else { "different FAILED" }
            );
            self.failed.set(self.failed.get() || stored != rows);
        }
    }

    pub(super) fn read_bytes(&self, span: Span<u8>) -> Vec<u8> {
        let host = cuda::PinnedBuffer::new(&self.device, span.len().next_multiple_of(4)).unwrap();
        self.stream.copy(span, host.span(0, span.len())).unwrap();
        self.stream.wait().unwrap();
        let words = host.words().iter();
        let bytes = words.flat_map(|w| w.load(std::sync::atomic::Ordering::Acquire).to_le_bytes());
        bytes.take(span.len()).collect()
    }

    /// Time of the attention of the 35B shape at depth: GB/s of steps, TFLOP/s of a chunk of 2,048 tokens.
    pub(super) fn attention_table(&self, copy: f64) {
        let shape = AttentionShape { query_heads: 16, key_value_heads: 2, dim: 256, scale: None };
        let (context, width) = (131_072 + 2048, 16 * 256);
        for kv_type in KvType::ALL {
            let bytes = context * 2 * kv_type.bytes_of_head(256);
            let held = self.held.borrow().len();
            // Several layers, so that no cache holds what a step reads.
            let layers: Vec<KeyValueCache> = (0..4)
                .map(|_| {
                    let side = || {
                        let buffer = DeviceBuffer::new(&self.device, bytes).unwrap();
                        let span = buffer.span(0, bytes);
                        self.held.borrow_mut().push(buffer);
                        span
                    };
                    let (keys, values) = (side(), side());
                    let cache = KeyValueCache { keys, values, context, kv_type };
                    let (rows, block) = (self.random(512 * 1024), 1024);
                    for first in (0..context).step_by(block) {
                        let positions: Vec<u32> = (first as u32..(first + block) as u32).collect();
                        let places =
                            self.places(&positions[..block.min(context - first)], &vec![0; block]);
                        launch::append(&self.stream, &shape, &places, &cache, rows, rows).unwrap();
                    }
                    self.stream.wait().unwrap();
                    cache
                })
                .collect();
            let query = self.random(2048 * width);
            let out = self.poison(2048 * width);
            let scratch = self.poison(launch::attend_scratch(&shape, 1));
            for depth in [128, 2048, 8192, 16_384, 32_768, 131_072] {
                let places = self.places(&[depth as u32 - 1], &[0]);
                let (query, out) = (query.part(0, width), out.part(0, width));
                let time = self.time(40, &|turn| {
                    launch::attend(
                        &self.stream,
                        &shape,
                        &places,
                        &layers[turn % 4],
                        query,
                        out,
                        scratch,
                        Visible::default(),
                    )
                });
                let bytes = 2 * depth * 2 * kv_type.bytes_of_head(256);
                let rate = bytes as f64 / time / 1e3;
                println!(
                    "35B attention of a step, {kv_type}, {depth:>6} keys: {time:8.2} us {rate:6.0} GB/s {:4.0} %",
                    100.0 * rate / copy
                );
            }
            let plain = kv_type == KvType::F32;
            for depth in [0, 8192, 32_768, 131_072] {
                if plain && depth > 8192 {
                    continue;
                }
                for count in [128, 512, 2048] {
                    let positions: Vec<u32> = (depth as u32..(depth + count) as u32).collect();
                    let places =
                        TokenPlaces { single: false, ..self.places(&positions, &vec![0; count]) };
                    let (query, out) = (query.part(0, count * width), out.part(0, count * width));
                    let time = self.time(4, &|turn| {
                        launch::attend(
                            &self.stream,
                            &shape,
                            &places,
                            &layers[turn],
                            query,
                            out,
                            scratch,
                            Visible::default(),
                        )
                    });
                    let keys = count as f64 * (depth as f64 + count as f64 / 2.0);
                    let rate = 4.0 * width as f64 * keys / time / 1e6;
                    println!(
                        "35B attention of {count:>4} tokens, {kv_type}, after {depth:>6}: \
                         {time:9.1} us {rate:6.1} TFLOP/s"
                    );
                }
            }
            // The next type's layers need the memory.
            self.stream.wait().unwrap();
            self.held.borrow_mut().truncate(held);
        }
    }

    pub(super) fn attention_step(&self) {
        let (tokens, context, dim) = (2, 64, 256);
        let shape = AttentionShape { query_heads: 8, key_value_heads: 2, dim, scale: None };
        let places = self.places(&[17, 40], &[1, 0]);
        let both = self.random(tokens * 8 * 2 * dim);
        let (keys, values) = (self.random(tokens * 2 * dim), self.random(tokens * 2 * dim));
        let (query_norm, key_norm) = (self.random(dim), self.random(dim));
        let frequencies = self.floats(&(0..32).map(|i| 0.9f32.powi(i)).collect::<Vec<_>>());
        let cached = [(); 2].map(|()| self.random(2 * context * 2 * dim));
        let twins = cached.map(|span| self.twin(span));
        let scratch = self.poison(launch::attend_scratch(&shape, tokens));
        let (query, gate) = (self.poison(tokens * 8 * dim), self.poison(tokens * 8 * dim));
        launch::split_query_gate(&self.stream, tokens * 8, dim, both, query, gate).unwrap();
        let rotated = self.twin(keys);
        let positions = places.positions;
        let rotation = Rotation { frequencies, magnitude: 1.25 };
        let (of_queries, of_keys) = (Some((query_norm, 1e-6)), Some((key_norm, 1e-6)));
        launch::norm_and_rotate(&self.stream, (8, dim), query, of_queries, rotation, positions)
            .unwrap();
        launch::norm_and_rotate(&self.stream, (2, dim), rotated, of_keys, rotation, positions)
            .unwrap();
        let cache = |spans: [Span<f32>; 2]| {
            let [keys, values] = spans.map(|span| span.bytes());
            KeyValueCache { keys, values, context, kv_type: KvType::F32 }
        };
        launch::append(&self.stream, &shape, &places, &cache(cached), rotated, values).unwrap();
        let queries = self.poison(tokens * 8 * dim);
        let step = HeadsStep {
            projected: both,
            gated: true,
            keys,
            values,
            norm_values: false,
            positions,
            query_norm,
            key_norm,
            rotation,
            epsilon: 1e-6,
            queries,
        };
        launch::attention_heads(&self.stream, &shape, &places, &cache(twins), &step).unwrap();
        self.compare("queries", queries, query);
        self.compare("cached keys", twins[0], cached[0]);
        self.compare("cached values", twins[1], cached[1]);
        let out = self.poison(tokens * 8 * dim);
        let (stream, all) = (&self.stream, Visible::default());
        launch::attend(stream, &shape, &places, &cache(cached), query, out, scratch, all).unwrap();
        let output = self.matrix(512, 8 * dim, 4, 64);
        let (plain, fused) = (self.random(tokens * 512), self.poison(tokens * 512));
        self.stream.copy(plain, fused).unwrap();
        let input = StepInput::Gated { x: self.twin(out), both, dim };
        launch::step_linear(&self.stream, tokens, &input, &[StepJob::Add(output, fused)]).unwrap();
        launch::sigmoid_gate(&self.stream, tokens * 8 * dim, out, gate).unwrap();
        launch::linear(&self.stream, out, tokens, &[(output, plain)], true).unwrap();
        self.compare("gated output", fused, plain);
    }
}

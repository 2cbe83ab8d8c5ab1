//! Attention over windows and with sinks against f64 on the host, steps and chunks: a part of the example `check`.

use cuda::Span;
use cuda::launch::{AttentionShape, TokenPlaces, Visible};
use kernels::KvType;

use super::Bench;
use super::attention::Cached;

impl Bench {
    /// Windows shorter and longer than a tile, with sinks and without; factors of the scores.
    pub(super) fn visible(&self) {
        for (query_heads, key_value_heads, dim, scale) in [
            (64, 8, 64, None),
            (6, 3, 128, None),
            (4, 1, 32, Some(0.5)),
            (16, 8, 256, Some(0.1)),
            (16, 2, 512, Some(0.06)),
        ] {
            let shape = AttentionShape { query_heads, key_value_heads, dim, scale };
            for kv_type in [KvType::F32, KvType::F16, KvType::Bf16] {
                let cached = self.cached(&shape, 2, 700, kv_type);
                let sinks = self.random(query_heads);
                for (window, sinks) in [
                    (Some(128), Some(sinks)),
                    (Some(7), None),
                    (None, Some(sinks)),
                    (Some(1), None),
                ] {
                    self.visible_case(&shape, &cached, Visible { window, sinks });
                }
            }
        }
    }

    fn visible_case(&self, shape: &AttentionShape, cached: &Cached, visible: Visible) {
        let (width, kind) = (shape.query_heads * shape.dim, cached.cache.kv_type);
        let name = format!(
            "{} / {} heads of {}, {kind}, window {:?}, sinks {}",
            shape.query_heads,
            shape.key_value_heads,
            shape.dim,
            visible.window,
            visible.sinks.is_some()
        );
        let (positions, owners) = ([0u32, 5, 127, 128, 160, 699], [0u32, 1, 0, 1, 1, 0]);
        let places = self.places(&positions, &owners);
        let query = self.random(positions.len() * width);
        let out = self.attend(shape, &cached.cache, &places, query, visible);
        let expected = self.expected_visible(shape, cached, query, &positions, &owners, visible);
        self.compare(&format!("steps, {name}"), out, self.floats(&expected));
        let positions: Vec<u32> = (90..290).collect();
        let owners = vec![1; positions.len()];
        let places = TokenPlaces { single: false, ..self.places(&positions, &owners) };
        let query = self.random(positions.len() * width);
        let out = self.attend(shape, &cached.cache, &places, query, visible);
        let expected = self.expected_visible(shape, cached, query, &positions, &owners, visible);
        self.compare(&format!("chunk, {name}"), out, self.floats(&expected));
        let mut pieces = Vec::new();
        for (start, end) in [(0, 1), (1, 50), (50, 200)] {
            let places = places.part(start, end - start);
            let query = query.part(start * width, (end - start) * width);
            pieces.extend(self.read(self.attend(shape, &cached.cache, &places, query, visible)));
        }
        self.same_bits("  the chunk in pieces", &pieces, &self.read(out));
    }

    /// The same in f64.
    fn expected_visible(
        &self,
        shape: &AttentionShape,
        cached: &Cached,
        query: Span<f32>,
        positions: &[u32],
        owners: &[u32],
        visible: Visible,
    ) -> Vec<f32> {
        let (dim, group) = (shape.dim, shape.query_heads / shape.key_value_heads);
        let sinks = visible.sinks.map(|sinks| self.read(sinks));
        let (query, mut out) = (self.read(query), Vec::new());
        for (index, query) in query.chunks(dim).enumerate() {
            let (token, head) = (index / shape.query_heads, index % shape.query_heads);
            let (position, owner) = (positions[token] as usize, owners[token] as usize);
            let row = |rows: &[f32], at: usize| -> Vec<f64> {
                let place = (owner * cached.cache.context + at) * shape.key_value_heads;
                let first = (place + head / group) * dim;
                rows[first..first + dim].iter().map(|&value| f64::from(value)).collect()
            };
            let first = (position + 1).saturating_sub(visible.window.unwrap_or(usize::MAX));
            let dot = |at: usize| {
                let key = row(&cached.keys, at);
                let sum: f64 = query.iter().zip(key).map(|(&q, k)| f64::from(q) * k).sum();
                sum * shape.scale.map_or_else(|| (dim as f64).powf(-0.5), f64::from)
            };
            let weights: Vec<f64> = (first..=position).map(|at| dot(at).exp()).collect();
            let sink = sinks.as_ref().map_or(0.0, |sinks| f64::from(sinks[head]).exp());
            let total = weights.iter().sum::<f64>() + sink;
            let mut sums = vec![0.0; dim];
            for (weight, at) in weights.iter().zip(first..) {
                let values = row(&cached.values, at);
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
            }
            out.extend(sums.iter().map(|sum| (sum / total) as f32));
        }
        out
    }
}

//! Attention over caches of every type against binary64; and that neither batch, threads, instruction set nor the
//! way in which the work is shared out change a bit.

use crate::common;
use crate::long::is_long;

use common::{Random, close, compute, everywhere, isas};
use kernels::{
    Arithmetic, AttentionExtras, AttentionShape, BLOCK_TOKENS, Compute, KeyValueBlock,
    KeyValueBlockMut, KvType, store_keys_values,
};

fn shape(
    query_heads: usize,
    key_value_heads: usize,
    head_dim: usize,
    kv_type: KvType,
) -> AttentionShape {
    let scale = (head_dim as f32).powf(-0.5);
    AttentionShape { query_heads, key_value_heads, head_dim, scale, kv_type }
}

/// Keys and values `[positions, key_value_heads, head_dim]` and the blocks that hold them.
struct Cache {
    shape: AttentionShape,
    keys: Vec<f32>,
    values: Vec<f32>,
    blocks: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Cache {
    fn new(shape: AttentionShape, keys: Vec<f32>, values: Vec<f32>) -> Self {
        let row = shape.key_value_heads * shape.head_dim;
        let positions = keys.len() / row;
        let mut blocks = Vec::new();
        for start in (0..positions).step_by(BLOCK_TOKENS) {
            let range = start * row..(start + BLOCK_TOKENS).min(positions) * row;
            // What is not written is NaN in every type: reading it would show.
            let (mut k, mut v) = (vec![0xff; shape.block_bytes()], vec![0xff; shape.block_bytes()]);
            let middle = range.start + (range.len() / row / 2) * row;
            for (first, range) in
                [(0, range.start..middle), ((middle - range.start) / row, middle..range.end)]
            {
                let mut block = KeyValueBlockMut { keys: &mut k, values: &mut v };
                store_keys_values(&shape, first, &keys[range.clone()], &values[range], &mut block);
            }
            blocks.push((k, v));
        }
        Self { shape, keys, values, blocks }
    }

    fn random(shape: AttentionShape, positions: usize, random: &mut Random) -> Self {
        let count = positions * shape.key_value_heads * shape.head_dim;
        Self::new(shape, random.normals(count), random.normals(count))
    }

    fn blocks(&self) -> Vec<KeyValueBlock<'_>> {
        self.blocks.iter().map(|(keys, values)| KeyValueBlock { keys, values }).collect()
    }

    fn attention(&self, compute: &Compute, q: &[f32], first: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; q.len()];
        compute.attention(&self.shape, q, first, &self.blocks(), &mut out);
        out
    }

    fn attention_with(
        &self,
        compute: &Compute,
        extras: AttentionExtras<'_>,
        q: &[f32],
        first: usize,
    ) -> Vec<f32> {
        let mut out = vec![f32::NAN; q.len()];
        compute.attention_with(&self.shape, extras, q, first, &self.blocks(), &mut out);
        out
    }

    /// Keys or values as the cache gives them back.
    fn stored(&self, rows: &[f32]) -> Vec<f32> {
        let (kind, dim) = (self.shape.kv_type, self.shape.head_dim);
        let mut bytes = vec![0; kind.bytes_of_head(dim)];
        let mut out = vec![0.0; rows.len()];
        for (row, out) in rows.chunks(dim).zip(out.chunks_mut(dim)) {
            kind.encode(row, &mut bytes);
            kind.decode(&bytes, out);
        }
        out
    }

    /// Softmax attention in binary64.
    fn reference(&self, q: &[f32], first: usize) -> Vec<f64> {
        self.reference_with(AttentionExtras::default(), q, first)
    }

    /// The same with a window and sinks.
    fn reference_with(&self, extras: AttentionExtras<'_>, q: &[f32], first: usize) -> Vec<f64> {
        let AttentionShape { query_heads: heads, key_value_heads: kv, head_dim: dim, .. } =
            self.shape;
        let (keys, values) = (self.stored(&self.keys), self.stored(&self.values));
        let mut want = Vec::new();
        for (index, q) in q.chunks(dim).enumerate() {
            let (t, head) = (index / heads, index % heads / (heads / kv));
            let row = |p: usize| (p * kv + head) * dim..(p * kv + head + 1) * dim;
            let begin = extras.window.map_or(0, |window| (first + t + 1).saturating_sub(window));
            let sink = extras.sinks.map_or(0.0, |sinks| f64::from(sinks[index % heads]).exp());
            let scores: Vec<f64> = (0..=first + t)
                .map(|p| {
                    if p < begin {
                        return 0.0;
                    }
                    let pairs = q.iter().zip(&keys[row(p)]);
                    let dot: f64 = pairs.map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                    (dot * f64::from(self.shape.scale)).exp()
                })
                .collect();
            let total: f64 = scores.iter().sum::<f64>() + sink;
            let mut out = vec![0.0; dim];
            for (p, score) in scores.iter().enumerate() {
                for (out, &value) in out.iter_mut().zip(&values[row(p)]) {
                    *out += score / total * f64::from(value);
                }
            }
            want.extend(out);
        }
        want
    }
}

fn queries(random: &mut Random, tokens: usize, shape: &AttentionShape) -> Vec<f32> {
    let count = tokens * shape.query_heads * shape.head_dim;
    random.normals(count).iter().map(|q| q * 2.0).collect()
}

#[test]
fn attention_matches_softmax_and_ignores_the_batch() {
    let mut random = Random::new(4);
    for (heads, kv, dim) in [(4, 2, 32), (6, 1, 40), (2, 2, 8), (4, 2, 256), (72, 1, 16)] {
        // Rounded values that are whole vectors, and some that are not.
        let rounded = [dim / 2, dim / 4].map(|rotated| KvType::Fp8 { rotated: rotated as u16 });
        for kind in KvType::ALL.into_iter().chain(rounded) {
            let shape = shape(heads, kv, dim, kind);
            let cache = Cache::random(shape, 530, &mut random);
            for (first, tokens) in [(0, 3), (250, 9), (510, 20)] {
                let q = queries(&mut random, tokens, &shape);
                let got = everywhere(|c| {
                    let out = cache.attention(c, &q, first);
                    let row = heads * dim;
                    for (t, q) in q.chunks(row).enumerate() {
                        let single = cache.attention(c, q, first + t);
                        let same = out[t * row..][..row] == single;
                        assert!(same, "{shape:?}: token {t} from {first} depends on the batch");
                    }
                    out
                });
                close(&got, &cache.reference(&q, first), 5e-6, &format!("{shape:?} from {first}"));
            }
        }
    }
}

/// The way of sharing out follows from the number of tokens and of workers; none may show.
#[test]
fn a_deep_token_has_the_same_bits_however_the_work_is_cut() {
    let mut random = Random::new(5);
    for kind in KvType::ALL.into_iter().chain([KvType::Fp8 { rotated: 16 }]) {
        let shape = shape(8, 1, 64, kind);
        // The full depth takes minutes under the emulator that checks NEON, elsewhere ten seconds; four blocks are cut
        // in every way as well.
        let depth = if cfg!(target_arch = "aarch64") || !is_long() { 1024 } else { 4096 };
        let (positions, row) = (depth + 70, 8 * 64);
        let cache = Cache::random(shape, positions, &mut random);
        let tokens = 70;
        let first = positions - tokens;
        let q = queries(&mut random, tokens, &shape);
        let mut whole: Option<Vec<f32>> = None;
        for isa in isas() {
            for threads in [1, 3] {
                let compute = compute(threads, Arithmetic::Int16, isa);
                for chunk in [70, 33, 1] {
                    // Token by token all the way would be slow on the reference.
                    let until = if chunk == 1 { 3 } else { tokens };
                    let mut out = Vec::new();
                    for start in (0..until).step_by(chunk) {
                        let end = (start + chunk).min(until);
                        out.extend(cache.attention(
                            &compute,
                            &q[start * row..end * row],
                            first + start,
                        ));
                    }
                    let whole = whole.get_or_insert_with(|| out.clone());
                    let same = whole.iter().zip(&out).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{kind} {isa:?}, {threads} threads, chunks of {chunk}");
                }
                if isa == kernels::Isa::Scalar {
                    break;
                }
            }
        }
        close(&whole.unwrap(), &cache.reference(&q, first), 5e-6, &format!("{kind}"));
    }
}

/// What a type cannot hold reaches the output as NaN, whatever the sign of the score it would have made.
#[test]
fn a_key_or_value_beyond_the_type_is_never_silent() {
    let mut random = Random::new(6);
    for (kind, large) in [(KvType::F16, 1.0e5), (KvType::F16, -1.0e5), (KvType::Q8, 1.0e9)] {
        for in_keys in [true, false] {
            let shape = shape(2, 1, 64, kind);
            let (mut keys, mut values) = (random.normals(300 * 64), random.normals(300 * 64));
            let rows = if in_keys { &mut keys } else { &mut values };
            rows[17 * 64 + 5] = large;
            let cache = Cache::new(shape, keys, values);
            let q = queries(&mut random, 1, &shape);
            let out = everywhere(|c| cache.attention(c, &q, 299));
            let heads = out.chunks(64).filter(|head| head.iter().any(|x| x.is_nan())).count();
            assert_eq!(heads, 2, "{kind}, {large} among the keys: {in_keys}");
        }
    }
}

/// Windows that begin inside a block, end with one, span several; sinks that matter and that do not. Prompts of some
/// tokens and steps of one give the same bits.
#[test]
fn windows_and_sinks_match_softmax_and_ignore_the_batch() {
    let mut random = Random::new(14);
    for (heads, kv, dim, tokens) in [(8, 2, 64, 530), (4, 4, 40, 300), (6, 1, 32, 700)] {
        let shape = shape(heads, kv, dim, KvType::F16);
        let cache = Cache::random(shape, tokens, &mut random);
        let q = queries(&mut random, tokens, &shape);
        let sinks: Vec<f32> = (0..heads).map(|head| head as f32 * 2.0 - 5.0).collect();
        let all = AttentionExtras { window: None, sinks: Some(&sinks) };
        let windows = [1, 7, 128, 256, 300, 5000].map(|window| {
            let sinks = (window % 2 == 0).then_some(&*sinks);
            AttentionExtras { window: Some(window), sinks }
        });
        for extras in windows.into_iter().chain([all]) {
            let (one, several) = (
                compute(1, Arithmetic::Int16, kernels::Isa::Auto),
                compute(3, Arithmetic::Int16, kernels::Isa::Auto),
            );
            let whole = cache.attention_with(&several, extras, &q, 0);
            let want = cache.reference_with(extras, &q, 0);
            close(&whole, &want, 2e-5, &format!("{extras:?}"));
            let row = heads * dim;
            for token in [0, 1, 127, 128, 255, 256, 299, tokens - 1] {
                let at = token * row..(token + 1) * row;
                for compute in [&one, &several] {
                    let step = cache.attention_with(compute, extras, &q[at.clone()], token);
                    assert!(step == whole[at.clone()], "{extras:?}: token {token}");
                }
            }
        }
    }
}

//! Synthetic routing that behaves like a measured model's.
//!
//! Each expert has a logit `z(t) = s_p P + s_s S(t) + N(t)`: P is a fixed standard normal (popularity),
//! S and N are stationary first-order autoregressions of unit variance with correlation times `tau_s`
//! and `tau_n` tokens (topic and noise); the top-k logits are chosen. The parameters were fitted to
//! routing traces; uniform random routing would flatter or ruin a cache. Deterministic for a seed,
//! each layer for itself; one step costs O(experts).

use std::sync::OnceLock;

use crate::split_mix::SplitMix64;

/// Bits of a place in the table of normal numbers: 64 KiB.
const NORMAL_BITS: u32 = 14;

/// Normal numbers of mean 0 and variance 1, the same in every process. What is fresh in a token is drawn from them: two
/// logarithms and cosines an expert took 0.5 ms a token of 40 layers, longer than a prompt's token takes on a GPU.
fn normals() -> &'static [f32] {
    static TABLE: OnceLock<Vec<f32>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut random = SplitMix64(0);
        let half: Vec<f32> = (0..1 << (NORMAL_BITS - 1)).map(|_| random.normal()).collect();
        let square: f64 = half.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        let scale = (half.len() as f64 / square).sqrt() as f32;
        half.iter().flat_map(|&v| [v * scale, -v * scale]).collect()
    })
}

/// Parameters of the process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Process {
    /// Spread of popularity.
    pub popularity: f32,
    /// Spread of the slow part.
    pub slow: f32,
    /// Correlation time of the slow part, tokens.
    pub slow_tokens: f32,
    /// Correlation time of the fast part, tokens.
    pub fast_tokens: f32,
}

/// Qwen3-30B-A3B: popular experts, long topics.
pub const QWEN3_30B: Process =
    Process { popularity: 1.05, slow: 0.69, slow_tokens: 53.0, fast_tokens: 0.77 };
/// Kimi-Linear: shorter topics.
pub const KIMI_LINEAR: Process =
    Process { popularity: 1.10, slow: 1.14, slow_tokens: 4.2, fast_tokens: 0.41 };

/// The routing of one layer, a token at a time.
#[derive(Clone, Debug)]
pub struct LayerRouting {
    process: Process,
    random: SplitMix64,
    popularity: Vec<f32>,
    slow: Vec<f32>,
    fast: Vec<f32>,
    logits: Vec<f32>,
    order: Vec<u16>,
}

impl LayerRouting {
    /// Routing of a layer with `experts` experts, at its first token.
    pub fn new(process: Process, seed: u64, layer: u16, experts: usize) -> Self {
        let mut random =
            SplitMix64(seed ^ (u64::from(layer) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut draw = |_| random.normal();
        let popularity = (0..experts).map(&mut draw).collect();
        let slow = (0..experts).map(&mut draw).collect();
        let fast = (0..experts).map(&mut draw).collect();
        Self {
            process,
            random,
            popularity,
            slow,
            fast,
            logits: vec![0.0; experts],
            order: (0..experts as u16).collect(),
        }
    }

    /// The router's logits for the next token.
    pub fn step(&mut self) -> &[f32] {
        let Process { popularity, slow, slow_tokens, fast_tokens } = self.process;
        let keep = |tokens: f32| (-1.0 / tokens).exp();
        let (keep_slow, keep_fast) = (keep(slow_tokens), keep(fast_tokens));
        let fresh_slow = (1.0 - keep_slow * keep_slow).sqrt();
        let fresh_fast = (1.0 - keep_fast * keep_fast).sqrt();
        let normals = normals();
        let place = |bits: u64| normals[(bits & ((1 << NORMAL_BITS) - 1)) as usize];
        for expert in 0..self.logits.len() {
            let bits = self.random.next_u64();
            let s = keep_slow * self.slow[expert] + fresh_slow * place(bits);
            let n = keep_fast * self.fast[expert] + fresh_fast * place(bits >> NORMAL_BITS);
            self.slow[expert] = s;
            self.fast[expert] = n;
            self.logits[expert] = popularity * self.popularity[expert] + slow * s + n;
        }
        &self.logits
    }

    /// The `count` best experts of the next token, best first.
    pub fn choose(&mut self, count: usize) -> &[u16] {
        self.step();
        let logits = &self.logits;
        let better = |&a: &u16, &b: &u16| {
            logits[usize::from(b)].total_cmp(&logits[usize::from(a)]).then(a.cmp(&b))
        };
        let count = count.min(self.order.len());
        if count > 0 && count < self.order.len() {
            self.order.select_nth_unstable_by(count - 1, better);
        }
        self.order[..count].sort_unstable_by(better);
        &self.order[..count]
    }
}

/// A trace of `tokens` tokens of a model with this routing.
pub fn trace(
    process: Process,
    seed: u64,
    layers: usize,
    experts: usize,
    top_k: usize,
    tokens: usize,
) -> super::Trace {
    let mut trace = super::Trace::new(layers, experts, top_k);
    let mut routing: Vec<LayerRouting> =
        (0..layers).map(|layer| LayerRouting::new(process, seed, layer as u16, experts)).collect();
    for _ in 0..tokens {
        routing.iter_mut().for_each(|layer| trace.ids.extend_from_slice(layer.choose(top_k)));
    }
    trace
}

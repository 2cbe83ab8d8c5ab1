//! How long a prefill chunk is on a GPU that does not hold all experts.
//!
//! A chunk needs nearly every expert once, so a prompt moves what is outside GPU memory once per chunk; but a longer
//! chunk's activations take slots from decode. The chunk that moves the fewest records over both is chosen, for one
//! request of a fixed size: a function of sizes and options alone, so that the same command line gives the same
//! answer on every run. Measured (docs/benchmarks.md, CUDA): 4,096 tokens of the 35B shape from disk at 176 tok/s in
//! four chunks and at 796 in one.

/// Tokens of the request that the choice is made for: its prompt, as far as the context allows.
const PROMPT: usize = 4096;
/// And its answer.
const ANSWER: usize = 256;
/// Lengths to choose from.
const CHUNKS: [usize; 5] = [256, 512, 1024, 2048, 4096];

/// Hit rate of slots holding a share of the experts, as measured on real routing traces (Qwen3-30B,
/// decayed frequency with recency; docs/benchmarks.md): (share, hit rate).
const HIT_CURVE: [(f64, f64); 7] = [
    (0.0, 0.0),
    (0.0625, 0.40),
    (0.125, 0.61),
    (0.25, 0.82),
    (0.5, 0.96),
    (0.75, 0.99),
    (1.0, 1.0),
];

/// The curve at a share of slots, linear between its points.
pub(crate) fn hit_rate(share: f64) -> f64 {
    let above = HIT_CURVE.iter().position(|&(x, _)| x >= share).unwrap_or(HIT_CURVE.len() - 1);
    if above == 0 {
        return HIT_CURVE[0].1;
    }
    let ((x0, y0), (x1, y1)) = (HIT_CURVE[above - 1], HIT_CURVE[above]);
    y0 + (y1 - y0) * (share - x0) / (x1 - x0)
}

/// A GPU's cap, as far as the choice depends on it.
pub(super) struct Room<S> {
    /// Experts of the model.
    pub(super) experts: usize,
    /// Experts that a token uses, over all layers.
    pub(super) per_token: usize,
    /// Most tokens of a sequence.
    pub(super) context: usize,
    /// Slots left beside a chunk of so many tokens; `None` when not even the chunk fits.
    pub(super) slots: S,
}

impl<S: Fn(usize) -> Option<usize>> Room<S> {
    /// The chunk that moves the fewest records, the longest of equal ones. `usual` where all experts have slots
    /// beside it, or where no other fits.
    pub(super) fn chunk(&self, usual: usize) -> usize {
        if (self.slots)(usual).is_some_and(|slots| slots >= self.experts) {
            return usual;
        }
        let lengths = CHUNKS.into_iter().map(|tokens| tokens.min(self.context));
        let moved = lengths.filter_map(|tokens| Some((self.moved(tokens)?, tokens)));
        let least = moved.min_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        least.map_or(usual, |(_, tokens)| tokens)
    }

    /// Records that the request moves to the GPU.
    fn moved(&self, chunk: usize) -> Option<f64> {
        let slots = (self.slots)(chunk)?.min(self.experts);
        let sweeps = PROMPT.min(self.context).div_ceil(chunk);
        let missing = 1.0 - hit_rate(slots as f64 / self.experts as f64);
        Some((sweeps * (self.experts - slots)) as f64 + (ANSWER * self.per_token) as f64 * missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hit_curve_goes_through_its_points_and_rises() {
        assert_eq!((hit_rate(0.0), hit_rate(0.125), hit_rate(1.0)), (0.0, 0.61, 1.0));
        let rates: Vec<f64> =
            (0..=100).map(|percent| hit_rate(f64::from(percent) / 100.0)).collect();
        assert!(rates.windows(2).all(|pair| pair[0] <= pair[1]));
    }

    /// The 35B shape: 10,240 experts of 1.7 MiB, 0.27 MiB of activations a token.
    fn room(mebibytes: usize, context: usize) -> Room<impl Fn(usize) -> Option<usize>> {
        let slots = move |tokens: usize| {
            mebibytes.checked_sub(tokens * 27 / 100).map(|left| left * 10 / 17)
        };
        Room { experts: 10_240, per_token: 320, context, slots }
    }

    #[test]
    fn a_prompt_is_one_sweep_where_that_leaves_decode_its_slots() {
        assert_eq!(room(4500, 16_384).chunk(1024), 4096);
        assert_eq!(room(12_000, 16_384).chunk(2048), 4096);
    }

    #[test]
    fn small_memory_keeps_slots_and_large_memory_its_usual_chunk() {
        assert!(room(700, 16_384).chunk(448) < 4096);
        assert_eq!(room(100, 16_384).chunk(448), 256);
        assert_eq!(room(10, 16_384).chunk(448), 448);
        assert_eq!(room(40_000, 16_384).chunk(1472), 1472);
    }

    #[test]
    fn no_chunk_is_longer_than_the_context() {
        assert_eq!(room(4500, 300).chunk(128), 300);
    }
}

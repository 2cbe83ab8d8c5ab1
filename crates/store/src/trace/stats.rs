//! Locality of a trace: overlap of consecutive tokens, concentration, reuse distance; what a layer says of the next.

use super::Trace;

/// Statistics of one layer over the decode part of a trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerStats {
    /// Share of a token's experts that the token before chose too.
    pub overlap: f64,
    /// Gini coefficient of the experts' use: 0 for uniform, near 1 for concentrated.
    pub gini: f64,
    /// Share of the experts used at all.
    pub coverage: f64,
    /// Use of the least used expert, as a share of the mean: 0 for an expert never chosen.
    pub least: f64,
    /// Share of the requests that the most used quarter of the experts takes.
    pub top_quarter: f64,
    /// Share of the experts that [`WINDOW_TOKENS`] tokens in a row choose, on average over such windows.
    pub window: f64,
    /// Requests by the number of tokens since the last use, in powers of two: bucket `i` counts
    /// distances of `[2^i, 2^(i+1))`. First uses are not counted.
    pub reuse_distance: [u64; 24],
}

/// Tokens of a window of [`LayerStats::window`].
pub const WINDOW_TOKENS: usize = 30;

/// Measures one layer.
pub fn layer(trace: &Trace, layer: usize) -> LayerStats {
    let mut stats = LayerStats::default();
    let mut uses = vec![0u64; trace.experts];
    let mut last: Vec<Option<usize>> = vec![None; trace.experts];
    let (mut shared, mut pairs) = (0u64, 0u64);
    for token in trace.prompt_tokens..trace.tokens() {
        for &expert in trace.chosen(token, layer) {
            let expert = usize::from(expert);
            uses[expert] += 1;
            if let Some(before) = last[expert].replace(token) {
                let distance = (token - before).max(1);
                stats.reuse_distance[(distance.ilog2() as usize).min(23)] += 1;
                shared += u64::from(distance == 1);
            }
        }
        pairs += if token > trace.prompt_tokens { trace.top_k as u64 } else { 0 };
    }
    uses.sort_unstable();
    let total: u64 = uses.iter().sum();
    let count = uses.len() as f64;
    if total > 0 {
        // Gini of a sorted list: sum of (2 i - n + 1) x_i over n times the total.
        let weighted: f64 = uses
            .iter()
            .enumerate()
            .map(|(index, &value)| (2.0 * index as f64 - count + 1.0) * value as f64)
            .sum();
        stats.gini = weighted / (count * total as f64);
        stats.coverage = uses.iter().filter(|&&value| value > 0).count() as f64 / count;
        stats.least = uses[0] as f64 * count / total as f64;
        let quarter: u64 = uses.iter().rev().take(uses.len().div_ceil(4)).sum();
        stats.top_quarter = quarter as f64 / total as f64;
    }
    let windows: Vec<f64> = (trace.prompt_tokens..trace.tokens())
        .step_by(WINDOW_TOKENS)
        .filter(|first| first + WINDOW_TOKENS <= trace.tokens())
        .map(|first| distinct(trace, layer, first..first + WINDOW_TOKENS) as f64 / count)
        .collect();
    stats.window = windows.iter().sum::<f64>() / windows.len().max(1) as f64;
    stats.overlap = if pairs == 0 { 0.0 } else { shared as f64 / pairs as f64 };
    stats
}

/// Experts that some tokens choose, each counted once.
fn distinct(trace: &Trace, layer: usize, tokens: std::ops::Range<usize>) -> usize {
    let mut seen = vec![false; trace.experts];
    for token in tokens {
        trace.chosen(token, layer).iter().for_each(|&expert| seen[usize::from(expert)] = true);
    }
    seen.iter().filter(|&&seen| seen).count()
}

/// What a layer's choice says of the next layer's, for the same token: tables are learned from the first half of the
/// decoded tokens and judged on the second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NextLayer {
    /// Share of the next layer's experts that are among the `top_k` most often chosen together with this layer's.
    pub together: f64,
    /// The same of the `top_k` that are chosen most often, whatever this layer chose: what the first has to beat.
    pub by_use: f64,
}

/// Measures a layer that has a next one.
pub fn next_layer(trace: &Trace, layer: usize) -> NextLayer {
    let (experts, k) = (trace.experts, trace.top_k);
    let half = trace.prompt_tokens + (trace.tokens() - trace.prompt_tokens) / 2;
    let (mut together, mut by_use) = (vec![0u32; experts * experts], vec![0u32; experts]);
    for token in trace.prompt_tokens..half {
        for &next in trace.chosen(token, layer + 1) {
            by_use[usize::from(next)] += 1;
            for &expert in trace.chosen(token, layer) {
                together[usize::from(expert) * experts + usize::from(next)] += 1;
            }
        }
    }
    let most = |counts: &[u32]| {
        let mut order: Vec<usize> = (0..experts).collect();
        order.sort_by_key(|&expert| (std::cmp::Reverse(counts[expert]), expert));
        order.truncate(k);
        order
    };
    let used = most(&by_use);
    let (mut found, mut counts) = ([0u64; 2], vec![0u32; experts]);
    for token in half..trace.tokens() {
        counts.fill(0);
        for &expert in trace.chosen(token, layer) {
            let row = &together[usize::from(expert) * experts..][..experts];
            counts.iter_mut().zip(row).for_each(|(sum, count)| *sum += count);
        }
        let guessed = most(&counts);
        for &next in trace.chosen(token, layer + 1) {
            let among = |guess: &[usize]| u64::from(guess.contains(&usize::from(next)));
            found = [found[0] + among(&guessed), found[1] + among(&used)];
        }
    }
    let requests = ((trace.tokens() - half) * k).max(1) as f64;
    NextLayer { together: found[0] as f64 / requests, by_use: found[1] as f64 / requests }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_and_concentrated_use_are_told_apart() {
        let mut uniform = Trace::new(1, 4, 1);
        uniform.ids = vec![0, 1, 2, 3, 0, 1, 2, 3];
        let stats = layer(&uniform, 0);
        assert_eq!((stats.gini, stats.coverage, stats.overlap), (0.0, 1.0, 0.0));
        assert_eq!(stats.least, 1.0);
        assert_eq!(stats.reuse_distance[2], 4);
        let mut single = Trace::new(1, 4, 1);
        single.ids = vec![2; 8];
        let stats = layer(&single, 0);
        assert_eq!((stats.gini, stats.coverage, stats.overlap), (0.75, 0.25, 1.0));
        assert_eq!(stats.least, 0.0);
    }

    #[test]
    fn a_window_counts_each_expert_once() {
        let mut trace = Trace::new(1, 8, 2);
        // Two windows: one of the experts 0 to 3, one of the experts 4 and 5; what is left over does not count.
        let first = (0..WINDOW_TOKENS as u16).flat_map(|token| [token % 2, 2 + token % 2]);
        let second = (0..WINDOW_TOKENS as u16).flat_map(|_| [4, 5]);
        trace.ids = first.chain(second).chain([6, 7]).collect();
        assert_eq!(layer(&trace, 0).window, (4.0 / 8.0 + 2.0 / 8.0) / 2.0);
    }

    #[test]
    fn a_layer_that_decides_the_next_is_seen() {
        // The second layer's expert follows from the first's; both use all experts alike.
        let mut bound = Trace::new(2, 4, 1);
        bound.ids = (0..80u16).flat_map(|token| [token % 4, (token + 1) % 4]).collect();
        assert_eq!(next_layer(&bound, 0), NextLayer { together: 1.0, by_use: 0.25 });
        // It does not: every pair is as frequent.
        let mut free = Trace::new(2, 4, 1);
        free.ids = (0..320u16).flat_map(|token| [token % 4, token / 4 % 4]).collect();
        assert_eq!(next_layer(&free, 0), NextLayer { together: 0.25, by_use: 0.25 });
    }
}

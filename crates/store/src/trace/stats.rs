//! Locality of a trace: overlap of consecutive tokens, concentration, reuse distance.

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
    /// Requests by the number of tokens since the last use, in powers of two: bucket `i` counts
    /// distances of `[2^i, 2^(i+1))`. First uses are not counted.
    pub reuse_distance: [u64; 24],
}

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
    stats.overlap = if pairs == 0 { 0.0 } else { shared as f64 / pairs as f64 };
    stats
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
}

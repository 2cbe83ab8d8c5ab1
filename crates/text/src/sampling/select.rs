//! Finding the largest logits without sorting them all.
//!
//! A vocabulary has a quarter million entries and top-k wants twenty. Both functions read the logits once in order;
//! equal logits go to the lower id.

use super::SamplingError;

/// A token and its logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) logit: f32,
    pub(crate) id: u32,
}

/// Larger logits first, then lower ids. There are no NaN among candidates.
pub(crate) fn by_rank(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    // Not total_cmp, to which -0 and 0 differ.
    b.logit.partial_cmp(&a.logit).unwrap_or(std::cmp::Ordering::Equal).then(a.id.cmp(&b.id))
}

/// Logits per block of the arg-max: the maximum of a block needs no index and vectorises.
const BLOCK: usize = 512;

/// Index and value of the largest logit; refuses NaN and plus infinity.
pub(crate) fn argmax(logits: &[f32]) -> Result<Candidate, SamplingError> {
    let mut best = f32::NEG_INFINITY;
    let mut best_block = None;
    let mut bad = false;
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        let mut lanes = [f32::NEG_INFINITY; 16];
        let mut bad_lanes = [false; 16];
        let (groups, rest) = block.as_chunks::<16>();
        for group in groups {
            for lane in 0..16 {
                let x = group[lane];
                bad_lanes[lane] |= is_bad(x);
                lanes[lane] = if x > lanes[lane] { x } else { lanes[lane] };
            }
        }
        for (lane, &x) in rest.iter().enumerate() {
            bad_lanes[lane] |= is_bad(x);
            lanes[lane] = if x > lanes[lane] { x } else { lanes[lane] };
        }
        bad |= bad_lanes.iter().any(|&lane| lane);
        let largest = lanes.iter().fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m });
        if largest > best {
            best = largest;
            best_block = Some(index);
        }
    }
    if bad {
        let first = logits.iter().position(|&x| is_bad(x));
        let at = first.expect("a bad logit was seen");
        return Err(SamplingError::BadLogit { id: id(at), value: logits[at] });
    }
    let start = best_block.ok_or(SamplingError::NothingLeft)? * BLOCK;
    let within = logits[start..].iter().position(|&x| x == best);
    let at = start + within.expect("the block holds its maximum");
    Ok(Candidate { logit: best, id: id(at) })
}

/// The `k` first candidates by rank, sorted, into `out` (fewer if fewer are above minus infinity).
///
/// Keeps a buffer of up to twice k (at least 64); when it is full, the better half stays and its worst
/// logit becomes the bar. On random logits few entries pass the bar, so the pass is one comparison each.
pub(crate) fn top_k(logits: &[f32], k: usize, out: &mut Vec<Candidate>) {
    out.clear();
    let k = k.min(logits.len());
    if k == 0 {
        return;
    }
    let room = (2 * k).max(64);
    let mut bar = f32::NEG_INFINITY;
    for (block_index, block) in logits.chunks(64).enumerate() {
        // Most blocks have nothing above the bar: one vectorised test for all 64.
        let mut above = false;
        for &x in block {
            above |= x > bar;
        }
        if !above {
            continue;
        }
        for (index, &logit) in block.iter().enumerate() {
            if logit > bar {
                out.push(Candidate { logit, id: id(block_index * 64 + index) });
                if out.len() == room {
                    out.select_nth_unstable_by(k - 1, by_rank);
                    out.truncate(k);
                    bar = out[k - 1].logit;
                }
            }
        }
    }
    out.sort_unstable_by(by_rank);
    out.truncate(k);
}

#[inline(always)]
fn is_bad(logit: f32) -> bool {
    (logit == f32::INFINITY) | logit.is_nan()
}

fn id(index: usize) -> u32 {
    u32::try_from(index).expect("a vocabulary is smaller than 2^32")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::Xoshiro256;

    fn logits(len: usize, seed: u64, levels: u64) -> Vec<f32> {
        let mut random = Xoshiro256::new(seed);
        (0..len).map(|_| random.below(levels) as f32 - 7.0).collect()
    }

    #[test]
    fn agree_with_a_full_sort() {
        for (len, levels) in [(1, 3), (15, 4), (64, 5), (65, 2), (1000, 1 << 20), (5000, 30)] {
            for seed in 0..20 {
                let logits = logits(len, seed, levels);
                let mut sorted: Vec<Candidate> =
                    (0u32..).zip(&logits).map(|(id, &logit)| Candidate { logit, id }).collect();
                sorted.sort_by(by_rank);
                assert_eq!(argmax(&logits), Ok(sorted[0]), "len {len} seed {seed}");
                let mut out = Vec::new();
                for k in [1, 2, 20, 63, 64, 200, len] {
                    top_k(&logits, k, &mut out);
                    assert_eq!(out, sorted[..k.min(len)], "len {len} seed {seed} k {k}");
                }
            }
        }
    }

    #[test]
    fn refuse_what_is_not_a_logit() {
        let mut row = logits(700, 1, 100);
        row[650] = f32::NAN;
        assert!(matches!(argmax(&row), Err(SamplingError::BadLogit { id: 650, .. })));
        row[3] = f32::INFINITY;
        assert!(matches!(argmax(&row), Err(SamplingError::BadLogit { id: 3, .. })));
        let masked = vec![f32::NEG_INFINITY; 700];
        assert_eq!(argmax(&masked), Err(SamplingError::NothingLeft));
        assert_eq!(argmax(&[]), Err(SamplingError::NothingLeft));
    }
}

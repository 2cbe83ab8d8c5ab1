//! Launches of what a sampler needs of a row of logits that stays on the device.

use super::{KEPT, Kernel, WEIGHED, expect};
use crate::abi::{LISTS, RANKED, mirrors};
use crate::{CudaError, Span, Stream};

/// Longest row that is served.
pub const ROW_LIMIT: usize = RANKED * LISTS;

#[derive(Clone, Copy)]
#[repr(C)]
struct DrawArguments {
    logits: u64,
    partial: u64,
    out: u64,
    least: u64,
    columns: u32,
    lists: u32,
    temperature: f32,
    padding: u32,
}

mirrors! {
    DrawArguments as DrawArguments { logits, partial, out, least, columns, lists, temperature, padding }
        for RankPartial, RankFinal, Weigh;
}

/// Words of the result of [`rank`] for a row of `columns` logits.
pub fn draw_words(columns: usize) -> usize {
    KEPT + columns.div_ceil(WEIGHED)
}

/// Words of their scratch.
pub fn draw_scratch(columns: usize) -> usize {
    columns.div_ceil(RANKED) * KEPT
}

/// Weights that are asked for: `floor(2^40 e^((logit - largest) / temperature))`, those below `least` as 0.
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    /// Above 0.
    pub temperature: f32,
    /// See above.
    pub least: u64,
}

/// The [`KEPT`] most likely tokens of a row into the first words of `out`, by falling rank: the high half orders
/// logits ([`ranked`] reads it), the low half is the complement of the token. With `weights`, then a sum for every
/// [`WEIGHED`] tokens.
///
/// # Errors
/// The device failed.
pub fn rank(
    stream: &Stream,
    logits: Span<f32>,
    weights: Option<Weights>,
    scratch: Span<u64>,
    out: Span<u64>,
) -> Result<(), CudaError> {
    let columns = logits.len();
    assert!((1..=ROW_LIMIT).contains(&columns), "a row of {columns} logits");
    expect("scratch of a draw", scratch.len(), draw_scratch(columns));
    expect("result of a draw", out.len(), draw_words(columns));
    let lists = columns.div_ceil(RANKED);
    let arguments = DrawArguments {
        logits: logits.address,
        partial: scratch.address,
        out: out.address,
        least: weights.map_or(0, |weights| weights.least),
        columns: columns as u32,
        lists: lists as u32,
        temperature: weights.map_or(1.0, |weights| weights.temperature),
        padding: 0,
    };
    // SAFETY: the structure is the kernels'; lengths were checked above.
    unsafe {
        stream.launch(Kernel::RankPartial, (lists, 1, 1), 256, 0, &arguments)?;
        stream.launch(Kernel::RankFinal, (1, 1, 1), 1024, 0, &arguments)?;
        if weights.is_some() {
            let blocks = columns.div_ceil(WEIGHED);
            stream.launch(Kernel::Weigh, (blocks, 1, 1), 256, 0, &arguments)?;
        }
    }
    Ok(())
}

/// Token and logit of a word of [`rank`]; `None` for a logit that is NaN or plus infinity. Minus infinity is also
/// what stands for a token that the row does not have.
pub fn ranked(word: u64) -> Option<(u32, f32)> {
    let ordered = (word >> 32) as u32;
    if ordered == u32::MAX {
        return None;
    }
    let bits = if ordered >> 31 == 1 { ordered & 0x7fff_ffff } else { !ordered };
    let logit = f32::from_bits(bits);
    Some((!(word as u32), if logit.is_nan() { f32::NEG_INFINITY } else { logit }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `rank_of` of the kernels.
    fn word(logit: f32, token: u32) -> u64 {
        let bits = (logit + 0.0).to_bits();
        let ordered = if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 };
        let ordered = if logit < f32::INFINITY { ordered } else { u32::MAX };
        u64::from(ordered) << 32 | u64::from(!token)
    }

    #[test]
    fn words_order_as_samplers_do_and_read_back() {
        let row = [-1.5, 0.0, -0.0, 3.25, f32::NEG_INFINITY, 3.25, -1e-40, f32::MAX];
        let mut order: Vec<u32> = (0..row.len() as u32).collect();
        order.sort_by(|&a, &b| {
            let (x, y) = (row[a as usize], row[b as usize]);
            y.partial_cmp(&x).unwrap().then(a.cmp(&b))
        });
        let mut words: Vec<u64> = row.iter().zip(0..).map(|(&x, i)| word(x, i)).collect();
        words.sort_unstable_by(|a, b| b.cmp(a));
        let read: Vec<_> = words.iter().map(|&word| ranked(word).unwrap()).collect();
        assert_eq!(read.iter().map(|&(token, _)| token).collect::<Vec<_>>(), order);
        assert!(read.iter().all(|&(token, logit)| logit == row[token as usize]));
        assert_eq!(ranked(0).unwrap().1, f32::NEG_INFINITY, "no token at all");
        assert!(ranked(word(f32::NAN, 3)).is_none() && ranked(word(f32::INFINITY, 3)).is_none());
    }
}

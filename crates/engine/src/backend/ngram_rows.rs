//! Which rows of n-grams a batch needs, by its token ids alone: the same on every device.

use std::ops::Range;

use crate::model::ngram::{NgramConfig, NgramHash};
use crate::sequences::Span;

/// The layers of n-grams among `layers`, with their hashes.
pub(super) fn computed<'a>(
    ngrams: &'a NgramConfig,
    layers: &'a Range<usize>,
) -> impl Iterator<Item = (usize, &'a NgramHash)> + Clone {
    let all = ngrams.layers.iter().copied().zip(&ngrams.hashes);
    all.filter(move |(layer, _)| layers.contains(layer))
}

/// Appends the rows of the tokens of a batch's run, in their order. `kept` is the id of the sequence's token at a
/// position before the batch.
pub(super) fn push_run(
    hash: &NgramHash,
    (spans, run): (&[Span], usize),
    tokens: &[u32],
    kept: impl Fn(usize) -> u32,
    rows: &mut Vec<u64>,
) {
    let span = &spans[run];
    let earlier = spans[..=run].iter().filter(|it| it.sequence == span.sequence);
    for at in 0..span.tokens {
        let before = |back: usize| {
            let position = (span.position + at).checked_sub(back)?;
            let own = earlier.clone().find(|it| (it.position..it.end()).contains(&position));
            Some(match own {
                Some(own) => tokens[own.first + position - own.position],
                None => kept(position),
            })
        };
        hash.push_rows(tokens[span.first + at], before, rows);
    }
}

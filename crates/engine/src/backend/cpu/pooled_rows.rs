//! How compressed rows are made of the tokens' values and gates, and how keys of the indexer are stored.

use std::ops::Range;

use kernels::{Compute, KvType, encode_fp4, hadamard};

use super::compressed::Rotation;
use crate::model::compressed_attention::{Compression, Compressor};
use crate::sequences::key_type;
use crate::weights::Weights;

/// Writes a key of the indexer, which is transformed on the way where it is stored in 4 bits.
pub(super) fn store_key(rows: KvType, key: &mut [f32], place: &mut [u8]) {
    match key_type(rows) {
        Some(kind) => kind.encode(key, place),
        None => {
            hadamard(key);
            encode_fp4(key, place);
        }
    }
}

/// One kind of values and gates that are kept, of one layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail<'a> {
    /// `[kept tokens, width]`
    pub(super) values: &'a [f32],
    /// As many.
    pub(super) gates: &'a [f32],
}

/// Pools the row whose first token has position `first`: for each of `out.len()` dimensions the sum of the values,
/// weighed by a softmax over the gates, tokens in order. With overlap the tokens before give their first half, those
/// of the row their second.
fn pool(compression: Compression, first: usize, tail: Tail<'_>, out: &mut [f32]) {
    let (dim, ratio) = (out.len(), compression.ratio);
    let (width, kept) = (compression.width(dim), compression.kept_tokens());
    let at = |position: usize, half: usize| {
        let start = position % kept * width + half * dim;
        start..start + dim
    };
    let mut places: Vec<Range<usize>> = Vec::with_capacity(2 * ratio);
    if compression.overlap && first > 0 {
        places.extend((first - ratio..first).map(|position| at(position, 0)));
    }
    let half = usize::from(compression.overlap);
    places.extend((first..first + ratio).map(|position| at(position, half)));
    let mut most = vec![f32::NEG_INFINITY; dim];
    for place in &places {
        for (most, &gate) in most.iter_mut().zip(&tail.gates[place.clone()]) {
            // What is no number stays: its exponential shows it.
            *most = if gate > *most { gate } else { *most };
        }
    }
    let mut sums = vec![0.0f32; dim];
    out.fill(0.0);
    for place in &places {
        let pairs = tail.gates[place.clone()].iter().zip(&tail.values[place.clone()]);
        for (((gate, value), most), (sum, out)) in
            pairs.zip(&most).zip(sums.iter_mut().zip(out.iter_mut()))
        {
            let weight = (gate - most).exp();
            *sum += weight;
            *out += weight * value;
        }
    }
    out.iter_mut().zip(&sums).for_each(|(out, sum)| *out /= sum);
}

/// Where values and gates of the tokens of an unfinished row are kept.
pub(super) struct KeptTail<'a> {
    pub(super) values: &'a mut [f32],
    pub(super) gates: &'a mut [f32],
}

/// Makes compressed rows.
pub(super) struct Rows<'a> {
    pub(super) compute: &'a Compute,
    pub(super) weights: &'a Weights,
    pub(super) rotation: &'a Rotation,
    pub(super) epsilon: f32,
    pub(super) row: &'a mut [f32],
}

impl Rows<'_> {
    /// Keeps one token's values, and its gates with what their place within the row adds.
    pub(super) fn keep(
        &self,
        compression: Compression,
        compressor: &Compressor,
        position: usize,
        given: Tail<'_>,
        kept: KeptTail<'_>,
    ) {
        let Tail { values, gates } = given;
        let width = values.len();
        let place = position % compression.kept_tokens() * width;
        kept.values[place..place + width].copy_from_slice(values);
        let added = &self.weights.vector(compressor.positions)
            [position % compression.ratio * width..][..width];
        let sums = gates.iter().zip(added).map(|(gate, added)| gate + added);
        kept.gates[place..place + width].iter_mut().zip(sums).for_each(|(to, sum)| *to = sum);
    }

    /// Pools, norms and turns the row whose first token has position `first`.
    pub(super) fn make(
        &mut self,
        compression: Compression,
        compressor: &Compressor,
        first: usize,
        (tail, dim): (Tail<'_>, usize),
    ) -> &mut [f32] {
        let (row, norm) = (&mut self.row[..dim], self.weights.vector(compressor.norm));
        pool(compression, first, tail, row);
        self.compute.rms_norm_in_place(row, norm, self.epsilon);
        self.rotation.turn(row, dim, first as u32, 1.0);
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gates so far apart that one token decides: which one, and which half of it, is then visible.
    #[test]
    fn rows_overlap_with_the_tokens_before_but_the_first() {
        let compression = Compression { ratio: 4, overlap: true };
        let kept = compression.kept_tokens();
        let values: Vec<f32> = (0..kept * 2).map(|i| i as f32).collect();
        let mut gates = vec![0.0; kept * 2];
        // Token 1, first half; token 5, second half.
        (gates[2], gates[11]) = (200.0, 100.0);
        let mut out = [0.0];
        pool(compression, 4, Tail { values: &values, gates: &gates }, &mut out);
        assert_eq!(out, [2.0]);
        // The first row has none before it: of tokens 0 to 3 the second halves alone.
        pool(compression, 0, Tail { values: &values, gates: &gates }, &mut out);
        assert_eq!(out, [4.0]);
        let plain = Compression { ratio: 4, overlap: false };
        let (values, gates) = ([1.0, 3.0, 5.0, 7.0], [0.0; 4]);
        pool(plain, 8, Tail { values: &values, gates: &gates }, &mut out);
        assert_eq!(out, [4.0]);
    }
}

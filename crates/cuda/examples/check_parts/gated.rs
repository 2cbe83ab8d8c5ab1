//! Residual streams that gates read, the sigmoid gate of heads and layers of hashed n-grams against plain code on the
//! host, whole and in pieces: a part of the example `check`.

use cuda::launch::{
    self, GateMatrices, NgramMix, NgramValues, SequenceRows, StepGates, Streams, TokenPlaces,
};
use cuda::{Matrix, PinnedBuffer, Span};
use kernels::format::{Encoding, FloatType};

use super::Bench;

const EPSILON: f32 = 1e-6;
/// Sequences that have a state; the tokens are the last's.
const SEQUENCES: usize = 2;

pub(super) fn sigmoid(v: f64) -> f64 {
    1.0 / (1.0 + (-v).exp())
}

/// A row times what an RMS norm multiplies it by, and its weight.
pub(super) fn normed(row: &[f32], weight: &[f32]) -> Vec<f32> {
    let mean = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / row.len() as f64;
    let factor = 1.0 / (mean + f64::from(EPSILON)).sqrt();
    row.iter().zip(weight).map(|(&x, &w)| (f64::from(x) * factor * f64::from(w)) as f32).collect()
}

/// A layer of n-grams: streams, their width, taps and what they are apart, tokens that a sequence keeps.
struct Ngrams {
    count: usize,
    hidden: usize,
    kernel: usize,
    apart: usize,
    kept: usize,
}

impl Bench {
    /// All cases.
    pub(super) fn gated(&self) {
        for (count, hidden, rank, tokens) in
            [(4, 2560, 320, 3), (2, 32, 8, 5), (8, 96, 24, 1), (4, 200, 64, 70)]
        {
            self.gated_streams(count, hidden, (rank, tokens));
        }
        for (count, hidden, rank, tokens, bits) in
            [(4, 2560, 320, 1, 4), (4, 2560, 320, 8, 8), (2, 96, 32, 3, 4), (8, 3200, 64, 2, 8)]
        {
            for inject in [None, Some(0), Some(8)] {
                self.gates_of_a_step((count, hidden, rank), tokens, (bits, inject));
            }
        }
        for (heads, dim) in [(48, 128), (5, 16), (2, 40)] {
            self.gated_heads(heads, dim);
        }
        for (count, hidden, kernel, apart, kept) in
            [(4, 2560, 4, 3, 9), (2, 32, 4, 3, 9), (3, 96, 2, 2, 8), (4, 200, 5, 4, 16)]
        {
            self.ngrams(&Ngrams { count, hidden, kernel, apart, kept });
        }
    }

    fn gated_streams(&self, count: usize, hidden: usize, (rank, tokens): (usize, usize)) {
        let (name, wide) = (format!("{count} gated streams of {hidden}"), count * hidden);
        let streams = Streams { values: self.random(tokens * wide), count, hidden };
        let (weight, out) = (self.random(wide), self.poison(tokens * wide));
        let (x, weights) = (self.read(streams.values), self.read(weight));
        launch::norm_streams(&self.stream, tokens, &streams, (weight, EPSILON), out).unwrap();
        let rows = x
            .chunks_exact(hidden)
            .enumerate()
            .flat_map(|(row, values)| normed(values, &weights[row % count * hidden..][..hidden]));
        let rows: Vec<f32> = rows.collect();
        self.compare(&format!("norm of {name}"), out, self.floats(&rows));
        let low = self.random(tokens * rank);
        let activated = self.read(low).into_iter().map(|v| {
            let scaled = f64::from(v) / count as f64;
            (scaled * sigmoid(scaled)) as f32
        });
        let activated = self.floats(&activated.collect::<Vec<_>>());
        launch::activate_gates(&self.stream, low, count).unwrap();
        self.compare(&format!("row between the matrices of {name}"), low, activated);
        let normed = Streams { values: self.floats(&rows), ..streams };
        let (gates, merged) = (self.random(tokens * wide), self.poison(tokens * hidden));
        let of_gates = self.read(gates);
        launch::merge_gated(&self.stream, tokens, &normed, gates, merged).unwrap();
        let expected: Vec<f32> = (0..tokens * hidden)
            .map(|i| {
                let at = |s: usize| i / hidden * wide + s * hidden + i % hidden;
                let gated = |s| f64::from(rows[at(s)]) * sigmoid(f64::from(of_gates[at(s)]));
                ((0..count).map(gated).sum::<f64>() / count as f64) as f32
            })
            .collect();
        self.compare(&format!("mean of {name}"), merged, self.floats(&expected));
        let (inject, output) = (self.random(tokens * count), self.random(tokens * hidden));
        let (by, of_block) = (self.read(inject), self.read(output));
        launch::inject_streams(&self.stream, tokens, &streams, inject, output).unwrap();
        let expected: Vec<f32> = (0..tokens * wide)
            .map(|i| {
                let weight = 2.0 * sigmoid(f64::from(by[i / hidden]) / count as f64);
                let output = of_block[i / wide * hidden + i % hidden];
                (f64::from(x[i]) + weight * f64::from(output)) as f32
            })
            .collect();
        self.compare(&format!("output to {name}"), streams.values, self.floats(&expected));
        let chosen: Vec<u32> = (0..tokens as u32).rev().step_by(2).collect();
        let pinned = PinnedBuffer::<u32>::new(&self.device, chosen.len()).unwrap();
        pinned.hand_over(0, chosen.iter().copied());
        let found = self.poison(chosen.len() * hidden);
        launch::gather_rows(&self.stream, merged, hidden, pinned.all(), found).unwrap();
        let all = self.read(merged);
        let rows = chosen.iter().flat_map(|&row| &all[row as usize * hidden..][..hidden]);
        let rows: Vec<f32> = rows.copied().collect();
        self.same_bits(&format!("chosen rows of {name}"), &self.read(found), &rows);
    }

    /// The two kernels of a step against those of single operations; `inject`: bits, or 0 for bf16.
    fn gates_of_a_step(
        &self,
        (count, hidden, rank): (usize, usize, usize),
        tokens: usize,
        (bits, inject): (u8, Option<u8>),
    ) {
        let wide = count * hidden;
        let streams = Streams { values: self.random(tokens * wide), count, hidden };
        let (weight, scratch) = (self.random(wide), self.poison(tokens * wide));
        let inject = inject.map(|bits| match bits {
            0 => {
                let values = self.read(self.random(count * wide));
                let halves = values.iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes());
                let held = self.bytes(&halves.collect::<Vec<_>>());
                let encoding = Encoding::Float(FloatType::Bf16);
                Matrix::new(encoding, count, wide, held, held.part(0, 0), held.part(0, 0))
            }
            bits => self.matrix(count, wide, bits, 32),
        });
        let (down, up) = (self.matrix(rank, wide, bits, 32), self.matrix(wide, rank, bits, 32));
        let matrices = GateMatrices { down, inject, up };
        assert!(launch::step_serves_gates(&matrices, count));
        let norm = (weight, EPSILON);
        let (found, taken) = (self.poison(tokens * hidden), self.poison(tokens * count));
        let site = StepGates {
            norm: weight,
            epsilon: EPSILON,
            matrices,
            inject: taken,
            block: found,
            partial: scratch,
        };
        launch::step_gates(&self.stream, tokens, &streams, &site).unwrap();
        let normed = Streams { values: self.poison(tokens * wide), ..streams };
        launch::norm_streams(&self.stream, tokens, &streams, norm, normed.values).unwrap();
        let (low, gates) = (self.poison(tokens * rank), self.poison(tokens * wide));
        launch::linear(&self.stream, normed.values, tokens, &[(down, low)], false).unwrap();
        launch::activate_gates(&self.stream, low, count).unwrap();
        launch::linear(&self.stream, low, tokens, &[(up, gates)], false).unwrap();
        let expected = self.poison(tokens * hidden);
        launch::merge_gated(&self.stream, tokens, &normed, gates, expected).unwrap();
        let name = format!("gates of a step, {tokens} x {count} streams of {hidden}, {bits} bits");
        self.compare(&name, found, expected);
        if let Some(inject) = inject {
            let expected = self.poison(tokens * count);
            launch::linear(&self.stream, normed.values, tokens, &[(inject, expected)], false)
                .unwrap();
            self.compare(&format!("what streams take, {name}"), taken, expected);
            if launch::serves_stream_products(&inject) {
                let found = self.poison(tokens * count);
                launch::stream_products(&self.stream, tokens, normed.values, inject, found)
                    .unwrap();
                self.compare(&format!("products of streams, {name}"), found, expected);
            }
        }
        // A token's bits are those of a step alone.
        let (inject, block) = (self.poison(count), self.poison(hidden));
        let last = |span: Span<f32>, width: usize| span.part((tokens - 1) * width, width);
        let one = Streams { values: last(streams.values, wide), ..streams };
        launch::step_gates(&self.stream, 1, &one, &StepGates { inject, block, ..site }).unwrap();
        let there = self.read(last(found, hidden));
        self.same_bits(&format!("alone, {name}"), &self.read(block), &there);
    }

    fn gated_heads(&self, heads: usize, dim: usize) {
        let (x, z, weight) = (self.random(heads * dim), self.random(heads * dim), self.random(dim));
        let (values, gates, weights) = (self.read(x), self.read(z), self.read(weight));
        for by_sigmoid in [false, true] {
            let found = self.twin(x);
            launch::gated_norm(&self.stream, heads, found, (z, by_sigmoid), weight, EPSILON)
                .unwrap();
            let rows = values.chunks_exact(dim).flat_map(|row| normed(row, &weights));
            let gated = rows.zip(&gates).map(|(value, &z)| {
                let z = f64::from(z);
                (f64::from(value) * sigmoid(z) * if by_sigmoid { 1.0 } else { z }) as f32
            });
            let expected = self.floats(&gated.collect::<Vec<_>>());
            self.compare(&format!("heads of {dim}, sigmoid gate: {by_sigmoid}"), found, expected);
        }
    }

    fn ngrams(&self, case: &Ngrams) {
        let &Ngrams { count, hidden, kernel, apart, kept } = case;
        let (name, wide) = (format!("n-grams in {count} streams of {hidden}"), count * hidden);
        let tokens = 70;
        let (value, keys) = (self.random(tokens * hidden), self.random(tokens * wide));
        let streams = Streams { values: self.random(tokens * wide), count, hidden };
        let norms = [(); 3].map(|()| self.random(wide));
        let (of_value, of_key, x) = (self.read(value), self.read(keys), self.read(streams.values));
        let of_norms = norms.map(|norm| self.read(norm));
        let seen = self.poison(tokens * wide);
        let values = NgramValues { value, values: keys, seen, norms, epsilon: EPSILON };
        launch::gate_values(&self.stream, tokens, &streams, &values).unwrap();
        let (mut taken, mut sees) = (Vec::new(), Vec::new());
        for row in 0..tokens * count {
            let part = |all: &[f32]| all[row * hidden..][..hidden].to_vec();
            let norm = |which: usize| &of_norms[which][row % count * hidden..][..hidden];
            let (key, query) = (normed(&part(&of_key), norm(0)), normed(&part(&x), norm(1)));
            let dot: f64 = key.iter().zip(&query).map(|(&k, &q)| f64::from(k) * f64::from(q)).sum();
            let agreement = dot / (hidden as f64).sqrt();
            let gate = sigmoid(agreement.signum() * agreement.abs().max(1e-6).sqrt());
            let value = &of_value[row / count * hidden..][..hidden];
            let took: Vec<f32> = value.iter().map(|&v| (gate * f64::from(v)) as f32).collect();
            sees.extend(normed(&took, norm(2)));
            taken.extend(took);
        }
        self.compare(&format!("what is taken of {name}"), keys, self.floats(&taken));
        self.compare(&format!("what is seen of {name}"), seen, self.floats(&sees));
        let weight = self.random(wide * kernel);
        let (taps, taken, sees) = (self.read(weight), self.read(keys), self.read(seen));
        let mut expected = x.clone();
        for (i, out) in expected.iter_mut().enumerate() {
            let (position, channel) = (i / wide, i % wide);
            let tap = |tap: usize| {
                let from = position.checked_sub(apart * (kernel - 1 - tap))?;
                Some(
                    f64::from(taps[channel * kernel + tap])
                        * f64::from(sees[from * wide + channel]),
                )
            };
            let sum: f64 = (0..kernel).filter_map(tap).sum();
            *out = (f64::from(*out) + f64::from(taken[i]) + sum * sigmoid(sum)) as f32;
        }
        let mix = NgramMix {
            values: keys,
            seen,
            weight,
            streams: streams.values,
            ids: self.words(&(0..tokens as u32).map(|at| 7 * at + 3).collect::<Vec<_>>()),
            width: wide,
            apart,
        };
        let whole = self.mixed(&mix, kept, &[tokens], tokens);
        self.compare(&format!("mixing of {name}"), self.floats(&whole.0), self.floats(&expected));
        for (runs, steps_from) in [(&[1, 2, 5, 40, 22][..], tokens), (&[60, 1, 1, 4, 1, 3][..], 60)]
        {
            let pieces = self.mixed(&mix, kept, runs, steps_from);
            self.same_bits(&format!("  in runs of {runs:?}"), &pieces.0, &whole.0);
            self.verdict("  their states", pieces.1 == whole.1);
        }
        // The last tokens' rows, each with its id behind it, by position.
        let mut kept_rows = whole.1[(SEQUENCES - 1) * kept * (wide + 1)..].chunks_exact(wide + 1);
        let right = kept_rows.by_ref().enumerate().all(|(place, row)| {
            let last = (tokens - 1 - place) / kept * kept + place;
            row[..wide] == sees[last * wide..][..wide] && row[wide].to_bits() == 7 * last as u32 + 3
        });
        self.verdict(&format!("  its state has what is to be seen: {right}"), right);
    }

    /// The streams and the states of all sequences after the convolution, in runs of the given lengths; behind
    /// `steps_from` each run is one of a step.
    fn mixed(
        &self,
        mix: &NgramMix,
        kept: usize,
        runs: &[usize],
        steps_from: usize,
    ) -> (Vec<f32>, Vec<f32>) {
        let (tokens, width) = (mix.ids.len(), mix.width);
        let (streams, stride) = (self.twin(mix.streams), kept * (width + 1));
        let states = self.floats(&vec![0.0; SEQUENCES * stride]);
        let positions: Vec<u32> = (0..tokens as u32).collect();
        let all = self.places(&positions, &vec![SEQUENCES as u32 - 1; tokens]);
        let mut first = 0;
        for &count in runs {
            let part = |span: Span<f32>| span.part(first * width, count * width);
            let single = first >= steps_from;
            // In a step the run's tokens follow each other from its first on.
            let starts = self.words(&vec![0; count]);
            let runs = launch::StepRuns { starts, lags: starts };
            let rows = SequenceRows {
                places: TokenPlaces {
                    positions: all.positions.part(first, count),
                    sequences: all.sequences.part(first, count),
                    single,
                    runs: single.then_some(runs),
                    end: all.end,
                },
                states,
                state_stride: stride,
                pages: mix.values.part(0, 1).bytes(),
                sequence_bytes: 0,
                page_bytes: 0,
                page_tokens: 1,
                ratio: 0,
                overlap: false,
                window: kept,
            };
            let run = NgramMix {
                values: part(mix.values),
                seen: part(mix.seen),
                streams: part(streams),
                ids: mix.ids.part(first, count),
                ..*mix
            };
            launch::mix_ngrams(&self.stream, &rows, &run).unwrap();
            first += count;
        }
        assert_eq!(first, tokens, "runs of all tokens");
        (self.read(streams), self.read(states))
    }
}

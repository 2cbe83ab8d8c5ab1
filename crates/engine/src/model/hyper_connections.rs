//! Several residual streams for each token: what a block reads of them, and how its output is given back (reference:
//! transformers `DeepseekV4HyperConnection`, `DeepseekV4HyperHead`).
//!
//! A block's input is a weighted sum of the streams; afterwards stream `j` is `post_j * output` plus `sum_i mix[i][j]`
//! of stream `i`, with a matrix `mix` whose rows and columns sum to one. All weights follow from the streams
//! themselves.

use crate::EngineError;
use crate::weights::{Catalog, MatrixId, VectorId, VectorRole};

/// Most streams.
pub const STREAMS_MAX: usize = 8;

/// Residual streams of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HyperConfig {
    /// Streams of a token, at most [`STREAMS_MAX`].
    pub streams: usize,
    /// Passes that balance rows and columns.
    pub iterations: usize,
    /// Added to weights and to the sums that they are divided by.
    pub epsilon: f32,
    /// How the output head reads them.
    pub merge: Merge,
}

/// How the streams of a token become the one that the output head reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// A sum that a last site weighs.
    Weighed,
    /// Their mean (reference: transformers `Glm5NextTextHyperHead`).
    Mean,
}

/// Weights of one place where streams are read, and mixed afterwards.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// `[outputs, streams * hidden]`
    pub matrix: MatrixId,
    /// `[outputs]`
    pub base: VectorId,
    /// Factors of the outputs: of weights of the input, of the output, of the mixture.
    pub scale: VectorId,
}

impl HyperConfig {
    /// Numbers that a block's site computes from a token: weights of the input, of the output, the mixture by rows.
    pub fn outputs(&self) -> usize {
        self.streams * (2 + self.streams)
    }

    /// Declares the site of a block below `prefix` (`layers.N.attn_hc`).
    ///
    /// # Errors
    /// The tensor that is missing or has another shape.
    pub(super) fn declare(
        &self,
        prefix: &str,
        hidden: usize,
        catalog: &mut Catalog<'_>,
    ) -> Result<Site, EngineError> {
        self.declare_outputs(prefix, hidden, (self.outputs(), 3), catalog)
    }

    /// Declares the last site, which only reads, where there is one.
    ///
    /// # Errors
    /// As [`HyperConfig::declare`].
    pub(super) fn declare_head(
        &self,
        hidden: usize,
        catalog: &mut Catalog<'_>,
    ) -> Result<Option<Site>, EngineError> {
        match self.merge {
            Merge::Mean => Ok(None),
            Merge::Weighed => {
                self.declare_outputs("hc_head", hidden, (self.streams, 1), catalog).map(Some)
            }
        }
    }

    fn declare_outputs(
        &self,
        prefix: &str,
        hidden: usize,
        (outputs, scales): (usize, usize),
        catalog: &mut Catalog<'_>,
    ) -> Result<Site, EngineError> {
        let plain = VectorRole::Plain;
        Ok(Site {
            matrix: catalog.matrix(&format!("{prefix}.fn"), outputs, self.streams * hidden)?,
            base: catalog.vector(&format!("{prefix}.base"), outputs, plain)?,
            scale: catalog.vector(&format!("{prefix}.gain"), scales, plain)?,
        })
    }

    /// Turns the products of one token's streams with a site's matrix into weights of the input, of the output, and the
    /// mixture by rows, in place. `factor` is the inverse root mean square of the streams.
    pub fn weigh(&self, products: &mut [f32], factor: f32, base: &[f32], scale: &[f32]) {
        let streams = self.streams;
        let (reads, rest) = products.split_at_mut(streams);
        self.weigh_reads(reads, factor, base, scale[0]);
        let (writes, mix) = rest.split_at_mut(streams);
        for (write, base) in writes.iter_mut().zip(&base[streams..]) {
            *write = 2.0 * sigmoid(*write * factor * scale[1] + base);
        }
        for (row, base) in mix.chunks_exact_mut(streams).zip(base[2 * streams..].chunks(streams)) {
            let mut most = f32::NEG_INFINITY;
            for (value, base) in row.iter_mut().zip(base) {
                *value = *value * factor * scale[2] + base;
                most = most.max(*value);
            }
            row.iter_mut().for_each(|value| *value = (*value - most).exp());
            let sum: f32 = row.iter().sum();
            row.iter_mut().for_each(|value| *value = *value / sum + self.epsilon);
        }
        self.divide_columns(mix);
        for _ in 1..self.iterations {
            for row in mix.chunks_exact_mut(streams) {
                let sum = row.iter().sum::<f32>() + self.epsilon;
                row.iter_mut().for_each(|value| *value /= sum);
            }
            self.divide_columns(mix);
        }
    }

    /// The weights of the input alone, as the last site has them.
    pub fn weigh_reads(&self, reads: &mut [f32], factor: f32, base: &[f32], scale: f32) {
        for (read, base) in reads.iter_mut().zip(base) {
            *read = sigmoid(*read * factor * scale + base) + self.epsilon;
        }
    }

    fn divide_columns(&self, mix: &mut [f32]) {
        for column in 0..self.streams {
            let sum = mix.iter().skip(column).step_by(self.streams).sum::<f32>() + self.epsilon;
            mix.iter_mut().skip(column).step_by(self.streams).for_each(|value| *value /= sum);
        }
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows and columns of a balanced mixture sum to one; the last division was by columns; it is not symmetric, so
    /// that its orientation shows.
    #[test]
    fn mixtures_are_balanced_and_not_symmetric() {
        let config =
            HyperConfig { streams: 4, iterations: 20, epsilon: 1e-6, merge: Merge::Weighed };
        let mut products: Vec<f32> = (0..24).map(|i| ((i * 7) % 11) as f32 - 5.0).collect();
        let base: Vec<f32> = (0..24).map(|i| ((i * 5) % 7) as f32 * 0.1).collect();
        config.weigh(&mut products, 0.5, &base, &[0.3, 0.7, 0.6]);
        assert!(products[..4].iter().all(|&read| read > 0.0 && read < 1.0 + 1e-5));
        assert!(products[4..8].iter().all(|&write| write > 0.0 && write < 2.0));
        let mix = &products[8..];
        for i in 0..4 {
            let row: f32 = mix[4 * i..4 * i + 4].iter().sum();
            let column: f32 = (0..4).map(|j| mix[4 * j + i]).sum();
            assert!((row - 1.0).abs() < 1e-3 && (column - 1.0).abs() < 1e-5, "{row} {column}");
        }
        assert!((mix[1] - mix[4]).abs() > 1e-2, "{mix:?}");
        let mut once = (0..24).map(|i| ((i * 7) % 11) as f32 - 5.0).collect::<Vec<f32>>();
        HyperConfig { iterations: 1, ..config }.weigh(&mut once, 0.5, &base, &[0.3, 0.7, 0.6]);
        assert_ne!(once[8..], products[8..], "passes do nothing");
    }
}

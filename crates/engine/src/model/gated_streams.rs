//! Residual streams that gates read (reference: transformers `Qwen4ExpTextGatedResidual`).
//!
//! Each stream is normed by itself. A block's input is the mean of the normed streams, each value times a gate of its
//! own, which two matrices of low rank make of all of them; stream `j` then takes the block's output times a weight of
//! its own. Streams are not mixed with each other, and there is no other norm of a block's input.

use super::program::{Op, Product};
use super::register::Register;
use crate::EngineError;
use crate::weights::{Catalog, MatrixId, VectorId, VectorRole};

/// Residual streams of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatedStreams {
    /// Streams of a token.
    pub streams: usize,
    /// Width between the two matrices of a gate.
    pub rank: usize,
}

/// Weights of one place where streams are read.
#[derive(Clone, Copy, Debug)]
pub struct GatedSite {
    /// Norm of each stream by itself, `[streams * hidden]`.
    pub norm: VectorId,
    /// `[rank, streams * hidden]`
    pub down: MatrixId,
    /// `[streams * hidden, rank]`
    pub up: MatrixId,
    /// `[streams, streams * hidden]`: what each stream takes of the output; the last site has none.
    pub inject: Option<MatrixId>,
}

impl GatedStreams {
    /// Declares the site of a block below `prefix` (`layers.N.attn_hyper_connection`).
    ///
    /// # Errors
    /// The tensor that is missing or has another shape.
    pub(super) fn declare(
        &self,
        prefix: &str,
        hidden: usize,
        catalog: &mut Catalog<'_>,
    ) -> Result<GatedSite, EngineError> {
        let name = format!("{prefix}.block_inject_weight");
        let wide = self.streams * hidden;
        let inject = Some(catalog.matrix(&name, self.streams, wide)?);
        Ok(GatedSite { inject, ..self.declare_reading(prefix, hidden, catalog)? })
    }

    /// Declares the last site, which only reads.
    ///
    /// # Errors
    /// As [`GatedStreams::declare`].
    pub(super) fn declare_reading(
        &self,
        prefix: &str,
        hidden: usize,
        catalog: &mut Catalog<'_>,
    ) -> Result<GatedSite, EngineError> {
        let (name, wide) = (|part: &str| format!("{prefix}.{part}"), self.streams * hidden);
        Ok(GatedSite {
            norm: catalog.vector(&name("hc_norm"), wide, VectorRole::Norm)?,
            down: catalog.matrix(&name("input_mix_weight_down"), self.rank, wide)?,
            up: catalog.matrix(&name("input_mix_weight_up"), wide, self.rank)?,
            inject: None,
        })
    }
}

impl GatedSite {
    /// `to` = what the streams give, `Normed` for a block or `Residual` for the output head.
    pub(super) fn read(&self, to: Register) -> Vec<Op> {
        use Register::{GateLow, Inject, StreamsNormed};
        let mut products = vec![(self.down, GateLow)];
        products.extend(self.inject.map(|matrix| (matrix, Inject)));
        vec![
            Op::NormStreams { weight: self.norm },
            Op::Linear {
                from: StreamsNormed,
                products: products.into_iter().map(Product::from).collect(),
            },
            Op::GateStreams { up: self.up, to },
        ]
    }
}

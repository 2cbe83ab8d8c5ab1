//! A head: one layer more, which predicts the token after the next from the trunk's output and the next token.
//!
//! Of the pair (x, h), a token and the trunk's normed output at the token before it, a head reads
//! `y = W [norm_e(embed x); norm_h(h)]`, runs one ordinary layer at `y` with keys and values of its own, and norms; the
//! output head of the model then gives the token after `x`. For a further token `h` is the head's own normed output.
//! Reference: DeepSeek-V3 (technical report, 2.2); vLLM's `qwen3_next_mtp.py` for the order of the two halves.
//!
//! Keys and values of a pair follow from `y` alone, so the pairs of a prompt need no attention and no experts
//! ([`Head::fill`]).

use store::LayerId;

use super::config::ModelConfig;
use super::program::{LayerProgram, Op, Product};
use super::register::Register;
use crate::EngineError;
use crate::weights::{Catalog, MatrixId, VectorId, VectorRole};

/// Rows of the output head that a draft looks at. Ids of common tokens are the low ones: a draft of a rare token is
/// worth less than the bytes of its row.
pub const DRAFT_ROWS: usize = 32_768;

/// A head as declared.
#[derive(Clone, Debug)]
pub struct Head {
    /// Its layer, the last of the program's.
    pub layer: LayerId,
    /// Token embedding.
    pub embedding: MatrixId,
    /// From `Pair` to `Residual`.
    pub enter: Vec<Op>,
    /// From `Pair` to the layer's cache, and no further.
    pub fill: Vec<Op>,
    /// Norm of the trunk's output, as before the model's output head.
    pub trunk_norm: VectorId,
    /// Norm of its own output.
    pub norm: VectorId,
    /// Output head `[vocabulary, hidden]`.
    pub output: MatrixId,
}

/// What a head shares with the model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared {
    pub(super) embedding: MatrixId,
    pub(super) norm: VectorId,
    pub(super) output: MatrixId,
}

impl Head {
    /// Declares what a head has around its layer, which is the last of `config`'s.
    ///
    /// # Errors
    /// The tensor that is missing or has another shape.
    pub(super) fn declare(
        config: &ModelConfig,
        layer: &LayerProgram,
        shared: Shared,
        catalog: &mut Catalog<'_>,
    ) -> Result<Self, EngineError> {
        let (number, hidden) = (config.trunk_layers(), config.hidden);
        let name = |part: &str| format!("layers.{number}.{part}");
        let matrix = catalog.matrix(&name("eh_proj"), hidden, 2 * hidden)?;
        let embedding = catalog.vector(&name("enorm"), hidden, VectorRole::Norm)?;
        let of_hidden = catalog.vector(&name("hnorm"), hidden, VectorRole::Norm)?;
        let own = name("shared_head.norm");
        let norm = match catalog.has(&own) {
            true => catalog.vector(&own, hidden, VectorRole::Norm)?,
            false => shared.norm,
        };
        // Copies of the model's in every release; a draft reads those that are there anyway.
        for copy in ["embed_tokens", "shared_head.head"] {
            catalog.ignore(&name(copy));
        }
        let enter = |to: Register| {
            let products = vec![Product { matrix, to }];
            vec![
                Op::NormPair { embedding, hidden: of_hidden },
                Op::Linear { from: Register::Pair, products },
            ]
        };
        let mut fill = enter(Register::Entered);
        fill.extend(keys_of(&layer.mixer));
        Ok(Self {
            layer: LayerId(number as u16),
            embedding: shared.embedding,
            enter: enter(Register::Residual),
            fill,
            trunk_norm: shared.norm,
            norm,
            output: shared.output,
        })
    }
}

/// Of the operations of attention those that make keys and values, from `Entered`.
fn keys_of(mixer: &[Op]) -> Vec<Op> {
    use Register::{Entered, Key, Residual, Value};
    let kept = |register: Register| matches!(register, Key | Value);
    let mut ops = Vec::new();
    for op in mixer {
        match op {
            &Op::Norm { from: Residual, weight, to } => {
                ops.push(Op::Norm { from: Entered, weight, to });
            }
            Op::Linear { from, products } => {
                let products = products.iter().copied().filter(|it| kept(it.to)).collect();
                ops.push(Op::Linear { from: *from, products });
            }
            Op::AddBias { register, .. } | Op::NormRow { register, .. } if kept(*register) => {
                ops.push(op.clone());
            }
            Op::NormRotate { heads: Key, .. }
            | Op::NormHeads { heads: Key, .. }
            | Op::Rotate { heads: Key }
            | Op::NormValues { .. } => ops.push(op.clone()),
            Op::Attend { .. } => {
                ops.push(Op::KeepKeys);
                break;
            }
            _ => {}
        }
    }
    ops
}

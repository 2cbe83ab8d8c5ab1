//! A feed-forward network that every token uses, in layers without experts or next to them:
//! `y = down(activation(gate x, up x))` (reference: transformers `DeepseekV3MLP`, `Gemma4TextMLP`).

use super::activation::Activation;
use super::config::ModelConfig;
use super::register::Register;
use crate::EngineError;
use crate::weights::{Catalog, MatrixId};

/// Weights of a layer's network.
#[derive(Clone, Copy, Debug)]
pub struct Dense {
    /// `[inner, hidden]`
    pub gate: MatrixId,
    /// `[inner, hidden]`
    pub up: MatrixId,
    /// `[hidden, inner]`
    pub down: MatrixId,
    /// What it computes between its matrices.
    pub activation: Activation,
    /// Where its output is written; without, it is added to the stream.
    pub to: Option<Register>,
}

impl Dense {
    /// Declares the tensors below `prefix` (`layers.N.mlp`) of a network of width `inner`.
    ///
    /// # Errors
    /// The tensor that is missing or has another shape.
    pub fn declare(
        config: &ModelConfig,
        inner: usize,
        prefix: &str,
        catalog: &mut Catalog<'_>,
    ) -> Result<Self, EngineError> {
        let hidden = config.hidden;
        Ok(Self {
            gate: catalog.matrix(&format!("{prefix}.gate_proj"), inner, hidden)?,
            up: catalog.matrix(&format!("{prefix}.up_proj"), inner, hidden)?,
            down: catalog.matrix(&format!("{prefix}.down_proj"), hidden, inner)?,
            // The clamps of gpt-oss are the experts' alone.
            activation: match config.moe.activation {
                Activation::Clamped { .. } => Activation::SwiGlu,
                activation => activation,
            },
            to: None,
        })
    }
}

//! A dense network and a mixture of experts next to each other, each between norms of its own (reference: transformers
//! `Gemma4TextDecoderLayer`, `Gemma4TextRouter`):
//!
//! `r += norm(norm(dense(norm(r))) + norm(mixture(norm(r))))`, then `r *= layer_scalar`. The router reads neither norm
//! but `r / rms(r) * scale / sqrt(hidden)`.

use super::config::ModelConfig;
use super::dense::Dense;
use super::mixture::Mixture;
use super::program::Op;
use super::register::Register;
use crate::EngineError;
use crate::weights::{Catalog, VectorRole};

/// Declares the tensors of a layer's networks; the dense one has the width `inner`. Gives their operations.
///
/// # Errors
/// The tensor that is missing or has another shape.
pub(super) fn declare(
    config: &ModelConfig,
    layer: usize,
    inner: usize,
    catalog: &mut Catalog<'_>,
) -> Result<Vec<Op>, EngineError> {
    use Register::{Branch, Normed, Residual, RouterInput};
    let name = |part: &str| format!("layers.{layer}.{part}");
    let mut norm = |part: &str| catalog.vector(&name(part), config.hidden, VectorRole::Norm);
    let [before, after] = [norm("pre_feedforward_layernorm")?, norm("post_feedforward_layernorm")?];
    let after_dense = norm("post_feedforward_layernorm_1")?;
    let before_mixture = norm("pre_feedforward_layernorm_2")?;
    let after_mixture = norm("post_feedforward_layernorm_2")?;
    let of_router = catalog.vector(&name("mlp.gate.norm"), config.hidden, VectorRole::PerRoot)?;
    let factor = catalog.vector(&name("layer_scalar"), 1, VectorRole::Plain)?;
    let dense = Dense::declare(config, inner, &name("mlp"), catalog)?;
    let mixture = Mixture::declare(config, layer, &name("mlp"), catalog)?;
    Ok(vec![
        Op::Norm { from: Residual, weight: before, to: Normed },
        Op::Dense(Dense { to: Some(Branch), ..dense }),
        Op::NormRow { register: Branch, weight: after_dense },
        Op::Norm { from: Residual, weight: of_router, to: RouterInput },
        Op::Norm { from: Residual, weight: before_mixture, to: Normed },
        Op::Mixture(Mixture { to: Some(Normed), ..mixture }),
        Op::NormAdd { from: Normed, weight: after_mixture, to: Branch },
        Op::NormAdd { from: Branch, weight: after, to: Residual },
        Op::Scale { register: Residual, factor },
    ])
}

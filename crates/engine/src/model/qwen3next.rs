//! Qwen3-Next (80B-A3B): the parts of Qwen3.5-MoE; the input projections of the delta rule lie in one matrix, which
//! [`super::delta_net`] takes apart (reference: transformers `modeling_qwen3_next.py`).

use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::config::{Family, ModelConfig};
use super::qwen35moe;
use super::router::{Router, Score};

/// Reads the shapes.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    let normalise = from.required(&keys::NORM_TOPK_PROB)?;
    let router = Router { score: Score::Softmax, bias: false, normalise };
    qwen35moe::read(from, Family::Qwen3Next, router)
}

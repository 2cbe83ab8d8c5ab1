//! OLMoE (1B-7B): attention with norms of whole projections, experts weighed by a softmax over all of them
//! (reference: transformers `modeling_olmoe.py`).

use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::config::{AttentionConfig, ModelConfig};
use super::plain;
use super::router::{Router, Score};

/// Reads the shapes. Clamped queries, keys and values are refused by their key, which no release sets.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    let attention = AttentionConfig { whole_norms: true, ..plain::whole_heads(from)? };
    let normalise = from.required(&keys::NORM_TOPK_PROB)?;
    let router = Router { score: Score::Softmax, bias: false, normalise };
    plain::model(from, plain::layers(from)?, attention, plain::experts(from, router, None)?)
}

//! Qwen3-MoE (30B-A3B, 235B-A22B): attention without a gate in every layer, no shared expert, plain norms
//! (reference: transformers `modeling_qwen3_moe.py`).

use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::config::{AttentionConfig, ModelConfig};
use super::plain;
use super::router::{Router, Score};

/// Reads the shapes. Variants that no released checkpoint of the family uses (dense layers in between,
/// attention biases, sliding windows) are refused by their keys.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    let attention = AttentionConfig { head_norms: true, ..plain::whole_heads(from)? };
    let normalise = from.required(&keys::NORM_TOPK_PROB)?;
    let router = Router { score: Score::Softmax, bias: false, normalise };
    plain::model(from, plain::layers(from)?, attention, plain::experts(from, router, None)?)
}

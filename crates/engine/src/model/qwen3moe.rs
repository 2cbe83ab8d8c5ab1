//! Qwen3-MoE (30B-A3B, 235B-A22B) and the text of Qwen3-VL-MoE, where all axes of the rotation have one position:
//! attention without a gate in every layer, no shared expert, plain norms (reference: transformers
//! `modeling_qwen3_moe.py`, `modeling_qwen3_vl_moe.py`).

use store::format::config::keys;
use store::format::{Configuration, Family, FormatError};

use super::config::{AttentionConfig, ModelConfig};
use super::plain;
use super::router::{Router, Score};

/// Reads the shapes. Variants that no released checkpoint of the family uses (dense layers in between,
/// attention biases, sliding windows) are refused by their keys.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    let attention = AttentionConfig { head_norms: true, ..plain::whole_heads(from)? };
    let normalise = from.required(&keys::NORM_TOPK_PROB)?;
    if !normalise && from.supported_family()? == Family::Qwen3VlMoe {
        let found = "false, but this family's weights of experts sum to one";
        return Err(from.invalid(&keys::NORM_TOPK_PROB, found));
    }
    let router = Router { score: Score::Softmax, bias: false, normalise };
    plain::model(from, plain::layers(from)?, attention, plain::experts(from, router, None)?)
}

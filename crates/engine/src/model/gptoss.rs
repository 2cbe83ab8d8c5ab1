//! gpt-oss (20b, 120b): attention with biases and sinks, in every other layer over a window; experts in 4-bit floats
//! with biases and clamped activations; a router with a bias (reference: transformers `modeling_gpt_oss.py`).

use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::activation::{Activation, GateUpRows};
use super::config::{AttentionConfig, LayerSpec, Mixer, ModelConfig, MoeConfig, Values};
use super::plain;
use super::rope::Rope;
use super::router::{Router, Score};

/// Reads the shapes.
///
/// The weights of the chosen experts are a softmax over their logits: that of all experts, scaled to sum to one.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    let head_dim = from.required(&keys::HEAD_DIM)?;
    let factor = from.rotary_factor()?;
    if factor != 1.0 {
        let found = format!("{factor}, but this family rotates whole heads");
        return Err(from.invalid(&keys::ROTARY_FACTOR, found));
    }
    let with_biases = from.required(&keys::ATTENTION_BIAS)?;
    let attention = AttentionConfig {
        query_heads: from.required(&keys::NUM_ATTENTION_HEADS)?,
        key_value_heads: from.required(&keys::NUM_KEY_VALUE_HEADS)?,
        head_dim,
        rope: Rope::read(from, head_dim)?,
        output_gate: false,
        head_norms: false,
        whole_norms: false,
        biases: with_biases,
        output_bias: with_biases,
        sinks: true,
        values: Values::Projected,
        scale: None,
    };
    let moe = MoeConfig {
        experts: from.routed_experts()?,
        top_k: from.required(&keys::NUM_EXPERTS_PER_TOK)?,
        intermediate: from.expert_width()?,
        shared_intermediate: None,
        shared_gate: false,
        router: Router { score: Score::Softmax, bias: true, normalise: true },
        activation: Activation::Clamped {
            alpha: from.required(&keys::SWIGLU_ALPHA)? as f32,
            limit: from.required(&keys::SWIGLU_LIMIT)? as f32,
        },
        rows: match from.required(&keys::EXPERT_ROWS)? {
            "apart" => GateUpRows::Apart,
            _ => GateUpRows::InTurns,
        },
        biases: true,
        hashed_layers: 0,
        router_norm: false,
    };
    plain::model(from, layers(from)?, attention, moe)
}

/// Windows as listed, or else in every other layer from the first on.
fn layers(from: &Configuration) -> Result<Vec<LayerSpec>, FormatError> {
    let mut layers = vec![Mixer::Attention.into(); from.required(&keys::NUM_HIDDEN_LAYERS)?];
    let every_other = ["sliding_attention", "full_attention"].into_iter().cycle();
    let listed = from.get(&keys::LAYER_TYPES)?;
    let kinds = listed.unwrap_or_else(|| every_other.take(layers.len()).collect());
    plain::windows(from, kinds, &mut layers)?;
    Ok(layers)
}

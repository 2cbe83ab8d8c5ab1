//! Qwen3-MoE (30B-A3B, 235B-A22B): attention without a gate in every layer, no shared expert, plain norms
//! (reference: transformers `modeling_qwen3_moe.py`).

use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::activation::{Activation, GateUpRows};
use super::config::{
    AttentionConfig, Family, Mixer, ModelConfig, MoeConfig, StreamConfig, Values, without_biases,
};
use super::rope::Rope;
use super::router::{Router, Score};

/// Reads the shapes. Variants that no released checkpoint of the family uses (dense layers in between,
/// attention biases, sliding windows) are refused by their keys.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    let layers = from.required(&keys::NUM_HIDDEN_LAYERS)?;
    let mut kinds = from.get(&keys::LAYER_TYPES)?.unwrap_or_default().into_iter();
    if let Some(kind) = kinds.find(|&kind| kind != "full_attention") {
        let found = format!("{kind} is not known in this family");
        return Err(from.invalid(&keys::LAYER_TYPES, found));
    }
    let hidden = from.required(&keys::HIDDEN_SIZE)?;
    let query_heads = from.required(&keys::NUM_ATTENTION_HEADS)?;
    let head_dim = from.get(&keys::HEAD_DIM)?.unwrap_or(hidden / query_heads);
    let factor = from.rotary_factor()?;
    if factor != 1.0 {
        let found = format!("{factor}, but this family rotates whole heads");
        return Err(from.invalid(&keys::ROTARY_FACTOR, found));
    }
    Ok(ModelConfig {
        family: Family::Qwen3Moe,
        hidden,
        vocabulary: from.required(&keys::VOCAB_SIZE)?,
        layers: vec![Mixer::Attention.into(); layers],
        rms_epsilon: from.required(&keys::RMS_NORM_EPS)? as f32,
        attention: AttentionConfig {
            query_heads,
            key_value_heads: from.required(&keys::NUM_KEY_VALUE_HEADS)?,
            head_dim,
            rope: Rope::read(from, head_dim)?,
            head_norms: true,
            whole_norms: false,
            biases: without_biases(from)?,
            output_bias: false,
            sinks: false,
            values: Values::Projected,
            scale: None,
            output_gate: false,
        },
        windowed: None,
        stream: StreamConfig::PLAIN,
        gated: None,
        index: None,
        ngrams: None,
        latent: None,
        delta: None,
        hyper: None,
        compressed: None,
        moe: MoeConfig {
            experts: from.required(&keys::NUM_EXPERTS)?,
            top_k: from.required(&keys::NUM_EXPERTS_PER_TOK)?,
            intermediate: from.required(&keys::MOE_INTERMEDIATE_SIZE)?,
            shared_intermediate: None,
            shared_gate: false,
            router: Router {
                score: Score::Softmax,
                bias: false,
                normalise: from.required(&keys::NORM_TOPK_PROB)?,
            },
            activation: Activation::SwiGlu,
            rows: GateUpRows::Apart,
            biases: false,
            hashed_layers: 0,
            router_norm: false,
        },
        max_positions: from.required(&keys::MAX_POSITION_EMBEDDINGS)?,
        tied_head: from.required(&keys::TIE_WORD_EMBEDDINGS)?,
    })
}

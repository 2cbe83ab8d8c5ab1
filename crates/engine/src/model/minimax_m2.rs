//! MiniMax-M2: attention that rotates half of each head, with norms of whole projections, and a router of sigmoids with
//! a bias of the choice (reference: transformers `modeling_minimax_m2.py`).

use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::activation::{Activation, GateUpRows};
use super::config::{
    AttentionConfig, Family, Mixer, ModelConfig, MoeConfig, StreamConfig, Values, without_biases,
};
use super::rope::Rope;
use super::router::{Groups, Router, Score};

/// Reads the shapes.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    let layers = from.required(&keys::NUM_HIDDEN_LAYERS)?;
    let head_dim = from.required(&keys::HEAD_DIM)?;
    let part = (head_dim as f64 * from.rotary_factor()?) as usize;
    let rotated = from.get(&keys::ROTARY_DIM)?.unwrap_or(part);
    if rotated != part && from.stated(&keys::ROTARY_FACTOR)?.is_some() {
        let found = format!("{rotated}, but partial_rotary_factor says {part}");
        return Err(from.invalid(&keys::ROTARY_DIM, found));
    }
    Ok(ModelConfig {
        family: Family::MinimaxM2,
        hidden: from.required(&keys::HIDDEN_SIZE)?,
        vocabulary: from.required(&keys::VOCAB_SIZE)?,
        layers: vec![Mixer::Attention.into(); layers],
        rms_epsilon: from.required(&keys::RMS_NORM_EPS)? as f32,
        attention: AttentionConfig {
            query_heads: from.required(&keys::NUM_ATTENTION_HEADS)?,
            key_value_heads: from.required(&keys::NUM_KEY_VALUE_HEADS)?,
            head_dim,
            rope: Rope::read(from, rotated)?,
            output_gate: false,
            head_norms: false,
            whole_norms: true,
            biases: without_biases(from)?,
            output_bias: false,
            sinks: false,
            values: Values::Projected,
            scale: None,
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
            experts: from.routed_experts()?,
            top_k: from.required(&keys::NUM_EXPERTS_PER_TOK)?,
            intermediate: from.expert_width()?,
            shared_intermediate: None,
            shared_gate: false,
            router: Router {
                score: Score::Sigmoid { groups: Groups { count: 1, kept: 1 }, scale: 1.0 },
                bias: true,
                normalise: true,
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

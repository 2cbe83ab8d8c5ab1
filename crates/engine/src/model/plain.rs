//! What families of plain attention have in common: one residual stream, attention with rotated heads in every layer,
//! experts with SwiGLU. A family's reader says where it differs.

use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::activation::{Activation, GateUpRows};
use super::config::{
    AttentionConfig, LayerSpec, Mixer, ModelConfig, MoeConfig, StreamConfig, Values,
};
use super::rope::Rope;
use super::router::Router;

/// A model of these layers, attention and experts, without further parts.
pub(super) fn model(
    from: &Configuration,
    layers: Vec<LayerSpec>,
    attention: AttentionConfig,
    moe: MoeConfig,
) -> Result<ModelConfig, FormatError> {
    Ok(ModelConfig {
        family: from.supported_family()?,
        hidden: from.required(&keys::HIDDEN_SIZE)?,
        vocabulary: from.required(&keys::VOCAB_SIZE)?,
        layers,
        rms_epsilon: from.required(&keys::RMS_NORM_EPS)? as f32,
        attention,
        windowed: None,
        stream: StreamConfig::PLAIN,
        gated: None,
        index: None,
        ngrams: None,
        latent: None,
        delta: None,
        hyper: None,
        compressed: None,
        moe,
        max_positions: from.required(&keys::MAX_POSITION_EMBEDDINGS)?,
        tied_head: from.required(&keys::TIE_WORD_EMBEDDINGS)?,
        head: false,
    })
}

/// Layers of attention and experts. Other layers are refused.
pub(super) fn layers(from: &Configuration) -> Result<Vec<LayerSpec>, FormatError> {
    full_attention(from)?;
    Ok(vec![Mixer::Attention.into(); from.required(&keys::NUM_HIDDEN_LAYERS)?])
}

/// Refuses layers that see a part of the positions, for families whose releases have none.
pub(super) fn full_attention(from: &Configuration) -> Result<(), FormatError> {
    let mut kinds = from.get(&keys::LAYER_TYPES)?.unwrap_or_default().into_iter();
    match kinds.find(|&kind| kind != "full_attention") {
        None => Ok(()),
        Some(kind) => {
            let found = format!("{kind} is not known in this family");
            Err(from.invalid(&keys::LAYER_TYPES, found))
        }
    }
}

/// Gives the layers that are listed as sliding their window.
pub(super) fn windows(
    from: &Configuration,
    kinds: Vec<&str>,
    layers: &mut [LayerSpec],
) -> Result<(), FormatError> {
    if kinds.len() != layers.len() {
        let found = format!("has {} entries for {} layers", kinds.len(), layers.len());
        return Err(from.invalid(&keys::LAYER_TYPES, found));
    }
    for (layer, kind) in layers.iter_mut().zip(kinds) {
        match kind {
            "sliding_attention" => layer.window = Some(from.required(&keys::SLIDING_WINDOW)?),
            "full_attention" => {}
            other => {
                let found = format!("{other} is not known in this family");
                return Err(from.invalid(&keys::LAYER_TYPES, found));
            }
        }
    }
    Ok(())
}

/// Attention that rotates a part of each head, without norms, biases, sinks and gates.
pub(super) fn attention(from: &Configuration) -> Result<AttentionConfig, FormatError> {
    let query_heads = from.required(&keys::NUM_ATTENTION_HEADS)?;
    let head_dim = match from.get(&keys::HEAD_DIM)? {
        Some(head_dim) => head_dim,
        None => from.required(&keys::HIDDEN_SIZE)? / query_heads,
    };
    let rotated = (head_dim as f64 * from.rotary_factor()?) as usize;
    Ok(AttentionConfig {
        query_heads,
        key_value_heads: from.required(&keys::NUM_KEY_VALUE_HEADS)?,
        head_dim,
        rope: Rope::read(from, rotated)?,
        output_gate: false,
        head_norms: false,
        whole_norms: false,
        biases: false,
        output_bias: false,
        sinks: false,
        values: Values::Projected,
        scale: None,
    })
}

/// As [`attention`], of families that rotate whole heads and have no biases.
pub(super) fn whole_heads(from: &Configuration) -> Result<AttentionConfig, FormatError> {
    let factor = from.rotary_factor()?;
    if factor != 1.0 {
        let found = format!("{factor}, but this family rotates whole heads");
        return Err(from.invalid(&keys::ROTARY_FACTOR, found));
    }
    super::config::without_biases(from)?;
    attention(from)
}

/// Experts with SwiGLU, without biases, and those that all tokens use as one of width `shared`.
pub(super) fn experts(
    from: &Configuration,
    router: Router,
    shared: Option<usize>,
) -> Result<MoeConfig, FormatError> {
    Ok(MoeConfig {
        experts: from.routed_experts()?,
        top_k: from.experts_per_token()?,
        intermediate: from.expert_width()?,
        shared_intermediate: shared,
        shared_gate: false,
        router,
        activation: Activation::SwiGlu,
        rows: GateUpRows::Apart,
        biases: false,
        hashed_layers: 0,
        router_norm: false,
    })
}

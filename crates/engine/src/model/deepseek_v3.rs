//! DeepSeek-V3 and R1, Kimi-K2, GLM-4.7-Flash: latent attention in every layer, dense networks in the first ones,
//! experts chosen by sigmoids within groups, a shared expert without a gate (reference: transformers
//! `modeling_deepseek_v3.py`, `modeling_glm4_moe_lite.py`).

use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::config::{
    AttentionConfig, FeedForward, LatentConfig, LayerSpec, Mixer, ModelConfig, MoeConfig, Values,
    without_biases,
};
use super::plain;
use super::rope::{Pairs, Rope, magnitude};
use super::router::{Groups, Router, Score};

/// In the norms of latents, whatever the configuration says of the others.
const LATENT_EPSILON: f32 = 1e-6;

/// Reads the shapes.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    let rotated = shared_key(from)?;
    let factor = from.rotary_factor()?;
    if factor != 1.0 {
        let found = format!("{factor}, but this family rotates all of qk_rope_head_dim");
        return Err(from.invalid(&keys::ROTARY_FACTOR, found));
    }
    let mut rope = Rope::read(from, rotated)?;
    if from.required(&keys::ROPE_INTERLEAVE)? {
        rope.pairs = Pairs::Neighbours;
    }
    let rank = from.required(&keys::KV_LORA_RANK)?;
    let attention = attention(from, rank, rope)?;
    Ok(ModelConfig {
        latent: Some(latent(from, rank, &rope)?),
        ..plain::model(from, layers(from, Mixer::Latent)?, attention, experts(from)?)?
    })
}

/// Values of the key that heads share.
pub(super) fn shared_key(from: &Configuration) -> Result<usize, FormatError> {
    let dims = from.required(&keys::QK_ROPE_HEAD_DIM)?;
    if dims == 0 {
        let found = "0, but heads of this family share a key";
        return Err(from.invalid(&keys::QK_ROPE_HEAD_DIM, found));
    }
    if !dims.is_multiple_of(2) {
        let found = format!("{dims}, but values are rotated in pairs");
        return Err(from.invalid(&keys::QK_ROPE_HEAD_DIM, found));
    }
    Ok(dims)
}

/// Latent attention of these rows.
pub(super) fn attention(
    from: &Configuration,
    rank: usize,
    rope: Rope,
) -> Result<AttentionConfig, FormatError> {
    without_biases(from)?;
    Ok(AttentionConfig {
        query_heads: from.required(&keys::NUM_ATTENTION_HEADS)?,
        key_value_heads: 1,
        head_dim: rank + rope.dims,
        rope,
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

/// The shape of latent rows.
pub(super) fn latent(
    from: &Configuration,
    rank: usize,
    rope: &Rope,
) -> Result<LatentConfig, FormatError> {
    let plain_dim = from.required(&keys::QK_NOPE_HEAD_DIM)?;
    let mut scale = ((plain_dim + rope.dims) as f64).powf(-0.5);
    if let (Some(yarn), Some(part)) = (&rope.yarn, from.get(&keys::ROPE_MSCALE_ALL)?) {
        scale *= magnitude(yarn.factor, part).powi(2);
    }
    Ok(LatentConfig {
        query_rank: from.get(&keys::Q_LORA_RANK)?,
        rank,
        plain_dim,
        value_dim: from.required(&keys::V_HEAD_DIM)?,
        scale: scale as f32,
        rms_epsilon: LATENT_EPSILON,
        head_gates: false,
    })
}

/// The experts of families with a router of sigmoids.
pub(super) fn experts(from: &Configuration) -> Result<MoeConfig, FormatError> {
    let scale = from.required(&keys::ROUTED_SCALING_FACTOR)? as f32;
    let groups =
        Groups { count: from.required(&keys::N_GROUP)?, kept: from.required(&keys::TOPK_GROUP)? };
    let router = Router {
        score: Score::Sigmoid { groups, scale },
        bias: true,
        normalise: from.required(&keys::NORM_TOPK_PROB)?,
    };
    plain::experts(from, router, from.shared_width()?)
}

/// Dense layers as listed, or else the first ones.
pub(super) fn layers(from: &Configuration, mixer: Mixer) -> Result<Vec<LayerSpec>, FormatError> {
    let count = from.required(&keys::NUM_HIDDEN_LAYERS)?;
    let layer = |is_dense: bool| -> Result<LayerSpec, FormatError> {
        let feed_forward = match is_dense {
            false => FeedForward::Mixture,
            true => FeedForward::Dense { inner: from.required(&keys::INTERMEDIATE_SIZE)? },
        };
        Ok(LayerSpec { feed_forward, ..LayerSpec::from(mixer) })
    };
    let Some(kinds) = from.get(&keys::MLP_LAYER_TYPES)? else {
        let dense = from.required(&keys::FIRST_K_DENSE_REPLACE)?;
        return (0..count).map(|index| layer(index < dense)).collect();
    };
    if kinds.len() != count {
        let found = format!("has {} entries for {count} layers", kinds.len());
        return Err(from.invalid(&keys::MLP_LAYER_TYPES, found));
    }
    kinds.into_iter().map(|kind| layer(kind == "dense")).collect()
}

//! GLM-5.3-Flash: the delta rule of Kimi-Linear with bounded decays in three layers of four, latent attention without a
//! shared key in the others, where an indexer chooses pools of rows; the streams of DeepSeek-V4, whose mean
//! the head reads; the router of GLM-5; clamped activations in every network (reference: transformers
//! `modeling_glm5_next.py`).

use kernels::DeltaDecay;
use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::activation::Activation;
use super::config::{DeltaConfig, LatentConfig, LayerSpec, Mixer, ModelConfig, MoeConfig};
use super::hyper_connections::{HyperConfig, Merge};
use super::index::IndexConfig;
use super::mixed::{by_channel, either, every, mixers};
use super::rope::Rope;
use super::{deepseek_v3, deepseek_v32, plain};

/// Every so many layers is one of latent attention, where none are listed.
const INTERVAL: usize = 4;

/// Reads the shapes.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    let shared = from.required(&keys::QK_ROPE_HEAD_DIM)?;
    if shared != 0 {
        let found = format!("{shared}, but heads of this family share no key");
        return Err(from.invalid(&keys::QK_ROPE_HEAD_DIM, found));
    }
    let (rope, rank) = (Rope::still(0), from.required(&keys::KV_LORA_RANK)?);
    let attention = deepseek_v3::attention(from, rank, rope)?;
    let layers = layers(from)?;
    let latent = deepseek_v3::latent(from, rank, &rope)?;
    let limit = from.required(&keys::SWIGLU_LIMIT)? as f32;
    let moe =
        MoeConfig { activation: Activation::Limited { limit }, ..deepseek_v3::experts(from)? };
    let model = plain::model(from, layers, attention, moe)?;
    Ok(ModelConfig {
        latent: Some(LatentConfig { rms_epsilon: model.rms_epsilon, ..latent }),
        delta: Some(delta(from)?),
        index: Some(IndexConfig::of_pools(from)?),
        hyper: Some(HyperConfig {
            streams: from.required(&keys::HC_MULT)?,
            iterations: from.required(&keys::HC_SINKHORN_ITERS)?,
            epsilon: from.required(&keys::HC_EPS)? as f32,
            merge: Merge::Mean,
        }),
        ..model
    })
}

/// Mixers as listed, or else by the interval, and what layers of latent attention see.
fn layers(from: &Configuration) -> Result<Vec<LayerSpec>, FormatError> {
    let mut layers = deepseek_v3::layers(from, Mixer::Latent)?;
    let known = |kind: &str| match kind {
        "linear_attention" => Some(Mixer::DeltaNet),
        "indexed_attention" | "full_attention" => Some(Mixer::Latent),
        _ => None,
    };
    let mixers = mixers(from, layers.len(), known, || Ok(every(INTERVAL, Mixer::Latent)))?;
    layers.iter_mut().zip(mixers).for_each(|(layer, mixer)| layer.mixer = mixer);
    deepseek_v32::choose(from, &mut layers)?;
    Ok(layers)
}

fn delta(from: &Configuration) -> Result<DeltaConfig, FormatError> {
    from.get(&keys::SAFE_GATE)?;
    let heads = either(from, &keys::LINEAR_HEADS, &keys::LINEAR_NUM_HEADS)?;
    let dim = either(from, &keys::LINEAR_HEAD_DIM, &keys::LINEAR_HEAD_WIDTH)?;
    let taps = either(from, &keys::SHORT_CONV_KERNEL_SIZE, &keys::LINEAR_CONV_KERNEL_DIM)?;
    let bound = -either(from, &keys::GATE_LOWER_BOUND, &keys::LINEAR_LOWER_BOUND)? as f32;
    Ok(by_channel(heads, dim, taps, DeltaDecay::BoundedChannels { bound }, Some(dim)))
}

//! Ling-3: the delta rule of Kimi-Linear, with decays that are bounded and that have one matrix as output gates have;
//! in the last layer of each group latent attention, whose heads are scaled by a sigmoid each; the router and the dense
//! first layers of DeepSeek-V3 under keys of Kimi-Linear (reference: transformers `modeling_bailing_hybrid.py`).
//!
//! `head_dim` is that of the delta rule. As in the reference, all of `qk_rope_head_dim` is rotated whatever
//! `partial_rotary_factor` says.

use kernels::DeltaDecay;
use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::config::{DeltaConfig, LatentConfig, LayerSpec, Mixer, ModelConfig, MoeConfig};
use super::mixed::{by_channel, either, every, mixers};
use super::rope::{Pairs, Rope};
use super::router::{Groups, Router, Score};
use super::{deepseek_v3, kimi_linear, plain};

/// Reads the shapes.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    if let Some(rank) = from.get(&keys::Q_LORA_RANK)? {
        let found = format!("{rank}, but queries of this family are made of the stream");
        return Err(from.invalid(&keys::Q_LORA_RANK, found));
    }
    let rope = Rope::read(from, deepseek_v3::shared_key(from)?)?;
    let rope = Rope { pairs: Pairs::Neighbours, ..rope };
    let rank = from.required(&keys::KV_LORA_RANK)?;
    let attention = deepseek_v3::attention(from, rank, rope)?;
    let model = plain::model(from, layers(from)?, attention, experts(from)?)?;
    let latent = deepseek_v3::latent(from, rank, &rope)?;
    Ok(ModelConfig {
        latent: Some(LatentConfig { head_gates: true, ..latent }),
        delta: Some(delta(from)?),
        max_positions: kimi_linear::positions(from, model.max_positions)?,
        ..model
    })
}

/// Mixers as listed, or else by groups, whose last layer attends.
fn layers(from: &Configuration) -> Result<Vec<LayerSpec>, FormatError> {
    let mut layers = deepseek_v3::layers(from, Mixer::Latent)?;
    let group = from.required(&keys::LAYER_GROUP_SIZE)?;
    let known = |kind: &str| match kind {
        "linear_attention" => Some(Mixer::DeltaNet),
        "full_attention" => Some(Mixer::Latent),
        _ => None,
    };
    let mixers = mixers(from, layers.len(), known, || Ok(every(group, Mixer::Latent)))?;
    layers.iter_mut().zip(mixers).for_each(|(layer, mixer)| layer.mixer = mixer);
    Ok(layers)
}

fn delta(from: &Configuration) -> Result<DeltaConfig, FormatError> {
    let heads = from.required(&keys::NUM_ATTENTION_HEADS)?;
    // transformers saves the rotated values as head_dim, and this next to them.
    let dim = either(from, &keys::LINEAR_HEAD_WIDTH, &keys::HEAD_DIM)?;
    let bound = -from.required(&keys::KDA_LOWER_BOUND)? as f32;
    let decay = match from.required(&keys::KDA_SAFE_GATE)? {
        true => DeltaDecay::BoundedChannels { bound },
        false => DeltaDecay::Channels,
    };
    Ok(by_channel(heads, dim, from.required(&keys::SHORT_CONV_TAPS)?, decay, None))
}

fn experts(from: &Configuration) -> Result<MoeConfig, FormatError> {
    let groups = Groups {
        count: either(from, &keys::NUM_EXPERT_GROUP, &keys::N_GROUP)?,
        kept: from.required(&keys::TOPK_GROUP)?,
    };
    let scale = from.required(&keys::ROUTED_SCALING_FACTOR)? as f32;
    let router = Router {
        score: Score::Sigmoid { groups, scale },
        bias: true,
        normalise: either(from, &keys::MOE_RENORMALIZE, &keys::NORM_TOPK_PROB)?,
    };
    plain::experts(from, router, from.shared_width()?)
}

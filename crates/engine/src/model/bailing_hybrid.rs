//! Ling-3: the delta rule of Kimi-Linear, with decays that are bounded and that have one matrix as output gates have;
//! in the last layer of each group latent attention, whose heads are scaled by a sigmoid each; the router and the dense
//! first layers of DeepSeek-V3 under keys of Kimi-Linear (reference: transformers `modeling_bailing_hybrid.py`).
//!
//! `head_dim` is that of the delta rule. As in the reference, all of `qk_rope_head_dim` is rotated whatever
//! `partial_rotary_factor` says.

use kernels::DeltaDecay;
use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::config::{
    DeltaConfig, HeadOrder, LatentConfig, LayerSpec, Mixer, ModelConfig, MoeConfig, OutputGate,
    Projections,
};
use super::glm5_next::either;
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
    let kinds = match from.get(&keys::LAYER_TYPES)? {
        Some(kinds) => kinds,
        None => {
            let kind = |number: usize| match number.is_multiple_of(group) {
                true => "full_attention",
                false => "linear_attention",
            };
            (1..=layers.len()).map(kind).collect()
        }
    };
    if kinds.len() != layers.len() {
        let found = format!("has {} entries for {} layers", kinds.len(), layers.len());
        return Err(from.invalid(&keys::LAYER_TYPES, found));
    }
    for (layer, kind) in layers.iter_mut().zip(kinds) {
        layer.mixer = match kind {
            "linear_attention" => Mixer::DeltaNet,
            "full_attention" => Mixer::Latent,
            other => {
                let found = format!("{other} is not known in this family");
                return Err(from.invalid(&keys::LAYER_TYPES, found));
            }
        };
    }
    Ok(layers)
}

fn delta(from: &Configuration) -> Result<DeltaConfig, FormatError> {
    let heads = from.required(&keys::NUM_ATTENTION_HEADS)?;
    // transformers saves the rotated values as head_dim, and this next to them.
    let dim = either(from, &keys::LINEAR_HEAD_WIDTH, &keys::HEAD_DIM)?;
    let bound = -from.required(&keys::KDA_LOWER_BOUND)? as f32;
    Ok(DeltaConfig {
        key_heads: heads,
        value_heads: heads,
        order: HeadOrder::Grouped,
        key_dim: dim,
        value_dim: dim,
        convolution_kernel: from.required(&keys::SHORT_CONV_TAPS)?,
        gate: OutputGate::Sigmoid,
        decay: match from.required(&keys::KDA_SAFE_GATE)? {
            true => DeltaDecay::BoundedChannels { bound },
            false => DeltaDecay::Channels,
        },
        projections: Projections::Apart { low_rank: None },
    })
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

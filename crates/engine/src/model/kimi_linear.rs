//! Kimi-Linear (48B-A3B): the delta rule with decays by channel in three layers of four, latent attention without
//! rotation in the others, the router and the dense first layers of DeepSeek-V3 under keys of its own (reference:
//! transformers `modeling_kimi_linear.py`).
//!
//! Lists of layers count from one. The key that heads of latent attention share has its place in the cached row and is
//! not rotated.

use kernels::DeltaDecay;
use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::config::{DeltaConfig, LayerSpec, Mixer, ModelConfig, MoeConfig};
use super::mixed::by_channel;
use super::rope::Rope;
use super::router::{Groups, Router, Score};
use super::{deepseek_v3, plain};

/// Reads the shapes.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    let rope = Rope::still(deepseek_v3::shared_key(from)?);
    let rank = from.required(&keys::KV_LORA_RANK)?;
    let mut layers = deepseek_v3::layers(from, Mixer::Latent)?;
    mix(from, &mut layers)?;
    let attention = deepseek_v3::attention(from, rank, rope)?;
    let model = plain::model(from, layers, attention, experts(from)?)?;
    let max_positions = positions(from, model.max_positions)?;
    Ok(ModelConfig {
        latent: Some(deepseek_v3::latent(from, rank, &rope)?),
        delta: Some(delta(from)?),
        max_positions,
        ..model
    })
}

fn delta(from: &Configuration) -> Result<DeltaConfig, FormatError> {
    if let Some(bound) = from.get(&keys::GATE_LOWER_BOUND)? {
        let found = format!("{bound}, but decays of this family are not bounded");
        return Err(from.invalid(&keys::GATE_LOWER_BOUND, found));
    }
    let heads = from.required(&keys::LINEAR_HEADS)?;
    let dim = from.required(&keys::LINEAR_HEAD_DIM)?;
    let taps = from.required(&keys::SHORT_CONV_KERNEL_SIZE)?;
    Ok(by_channel(heads, dim, taps, DeltaDecay::Channels, Some(dim)))
}

/// Longest context of training under either name, `default` where neither is stated.
pub(super) fn positions(from: &Configuration, default: usize) -> Result<usize, FormatError> {
    let stated = from.stated(&keys::MAX_POSITION_EMBEDDINGS)?;
    match (from.stated(&keys::MODEL_MAX_LENGTH)?, stated) {
        (Some(length), Some(other)) if length != other => {
            let found = format!("{length} here, {other} as max_position_embeddings");
            Err(from.invalid(&keys::MODEL_MAX_LENGTH, found))
        }
        (length, _) => Ok(length.unwrap_or(default)),
    }
}

fn experts(from: &Configuration) -> Result<MoeConfig, FormatError> {
    let scale = from.required(&keys::ROUTED_SCALING_FACTOR)? as f32;
    let groups = Groups {
        count: from.required(&keys::NUM_EXPERT_GROUP)?,
        kept: from.required(&keys::TOPK_GROUP)?,
    };
    let router = Router {
        score: Score::Sigmoid { groups, scale },
        bias: true,
        normalise: from.required(&keys::MOE_RENORMALIZE)?,
    };
    plain::experts(from, router, from.shared_width()?)
}

/// Gives layers the mixers that the two lists say; each layer is in one of them, once.
fn mix(from: &Configuration, layers: &mut [LayerSpec]) -> Result<(), FormatError> {
    // Keys are made of the object, so that one that is missing is named first.
    from.required(&keys::LINEAR_ATTN_CONFIG)?;
    let mut mixers = vec![None; layers.len()];
    for (key, mixer) in
        [(&keys::KDA_LAYERS, Mixer::DeltaNet), (&keys::FULL_ATTN_LAYERS, Mixer::Latent)]
    {
        for number in from.required(key)? {
            let place = mixers.get_mut(number - 1).ok_or_else(|| {
                let found = format!("{number}, but the last layer is {}", layers.len());
                from.invalid(key, found)
            })?;
            if place.replace(mixer).is_some() {
                return Err(from.invalid(key, format!("{number}, which was listed before")));
            }
        }
    }
    for (index, (layer, mixer)) in layers.iter_mut().zip(&mixers).enumerate() {
        layer.mixer = mixer.ok_or_else(|| {
            let found = format!("layer {} is neither there nor in full_attn_layers", index + 1);
            from.invalid(&keys::KDA_LAYERS, found)
        })?;
    }
    let Some(kinds) = from.get(&keys::LAYER_TYPES)? else { return Ok(()) };
    let named = mixers.iter().map(|mixer| match mixer {
        Some(Mixer::DeltaNet) => "linear_attention",
        _ => "full_attention",
    });
    if !named.eq(kinds) {
        let found = "says otherwise than kda_layers and full_attn_layers";
        return Err(from.invalid(&keys::LAYER_TYPES, found));
    }
    Ok(())
}

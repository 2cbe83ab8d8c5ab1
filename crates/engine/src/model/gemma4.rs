//! Gemma-4 26B-A4B: attention of two shapes, most layers over a window; values without a projection of their own in the
//! others; a dense network and a mixture next to each other, with norms before and after each (reference: transformers
//! `modeling_gemma4.py`).
//!
//! The embeddings' factor is the root of `hidden_size` in f32; a run in bfloat16 rounds it.

use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::activation::{Activation, GateUpRows};
use super::config::{
    AttentionConfig, FeedForward, LayerSpec, Mixer, ModelConfig, MoeConfig, StreamConfig, Values,
    without_biases,
};
use super::plain;
use super::rope::{Pairs, Rope};
use super::router::{Router, Score};

/// Every so many layers is one of full attention, where they are not listed.
const INTERVAL: usize = 6;
/// Most values of a head that is rotated whole.
const HEAD_DIM_MAX: usize = 512;

/// Reads the shapes. Other models of the line were refused with the format's dimensions.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    let (experts, top_k) = (from.routed_experts()?, from.required(&keys::TOP_K_EXPERTS)?);
    if top_k > experts {
        let found = format!("{top_k} exceeds num_experts {experts}");
        return Err(from.invalid(&keys::TOP_K_EXPERTS, found));
    }
    let hidden = from.required(&keys::HIDDEN_SIZE)?;
    let (full, windowed) = attentions(from)?;
    let softcap = from.get(&keys::FINAL_LOGIT_SOFTCAPPING)?;
    let moe = MoeConfig {
        experts,
        top_k,
        intermediate: from.expert_width()?,
        shared_intermediate: None,
        shared_gate: false,
        router: Router { score: Score::Softmax, bias: false, normalise: true },
        activation: Activation::GeGlu,
        rows: GateUpRows::Apart,
        biases: false,
        hashed_layers: 0,
        router_norm: true,
    };
    Ok(ModelConfig {
        windowed: Some(windowed),
        stream: StreamConfig {
            embedding_scale: (hidden as f64).sqrt() as f32,
            sandwich: true,
            softcap: softcap.map(|cap| cap as f32),
        },
        ..plain::model(from, layers(from)?, full, moe)?
    })
}

/// Attention of all positions, and over a window.
fn attentions(from: &Configuration) -> Result<(AttentionConfig, AttentionConfig), FormatError> {
    check_rotations(from)?;
    let head_dim = from.required(&keys::HEAD_DIM)?;
    if head_dim > HEAD_DIM_MAX || !head_dim.is_multiple_of(2) {
        let found = format!("{head_dim} is not an even number up to {HEAD_DIM_MAX}");
        return Err(from.invalid(&keys::HEAD_DIM, found));
    }
    let windowed = AttentionConfig {
        query_heads: from.required(&keys::NUM_ATTENTION_HEADS)?,
        key_value_heads: from.required(&keys::NUM_KEY_VALUE_HEADS)?,
        head_dim,
        rope: Rope {
            theta: from.required(&keys::WINDOW_ROPE_THETA)?,
            dims: head_dim,
            pairs: Pairs::Halves,
            turning: head_dim / 2,
            yarn: None,
        },
        output_gate: false,
        head_norms: true,
        whole_norms: false,
        biases: without_biases(from)?,
        output_bias: false,
        sinks: false,
        values: Values::Normed,
        scale: Some(1.0),
    };
    let dim = from.required(&keys::GLOBAL_HEAD_DIM)?;
    if !dim.is_multiple_of(2) {
        let found = format!("{dim}, but values are rotated in pairs");
        return Err(from.invalid(&keys::GLOBAL_HEAD_DIM, found));
    }
    let shared = from.required(&keys::ATTENTION_K_EQ_V)?;
    // The reference reads the heads of these layers only where keys are the values.
    let heads = match from.get(&keys::NUM_GLOBAL_KEY_VALUE_HEADS)? {
        Some(heads) if shared => heads,
        _ => windowed.key_value_heads,
    };
    let stated = from.get(&keys::ROPE_PARAMETERS)?.is_some();
    let part = match from.required(&keys::FULL_ROPE_TYPE)? {
        // Of an object without it the reference rotates whole heads, and without an object a part: nothing is guessed.
        "proportional" if stated => from
            .stated(&keys::FULL_ROTARY_FACTOR)?
            .ok_or_else(|| from.invalid(&keys::FULL_ROTARY_FACTOR, "missing for full_attention"))?,
        "proportional" => from.required(&keys::FULL_ROTARY_FACTOR)?,
        _ => 1.0,
    };
    let full = AttentionConfig {
        key_value_heads: heads,
        head_dim: dim,
        rope: Rope {
            theta: from.required(&keys::FULL_ROPE_THETA)?,
            dims: dim,
            turning: (part * dim as f64 / 2.0) as usize,
            ..windowed.rope
        },
        values: if shared { Values::NormedKeys } else { Values::Normed },
        ..windowed
    };
    Ok((full, windowed))
}

/// Refuses rotations that are there and do not say what they are: no default was meant.
fn check_rotations(from: &Configuration) -> Result<(), FormatError> {
    if from.get(&keys::ROPE_PARAMETERS)?.is_none() {
        return Ok(());
    }
    let kinds = [from.stated(&keys::FULL_ROPE_TYPE)?, from.stated(&keys::WINDOW_ROPE_TYPE)?];
    let bases = [from.stated(&keys::FULL_ROPE_THETA)?, from.stated(&keys::WINDOW_ROPE_THETA)?];
    let names = ["full_attention", "sliding_attention"];
    for (name, (kind, base)) in names.into_iter().zip(kinds.into_iter().zip(bases)) {
        if kind.is_none() || base.is_none() {
            let found = format!("has no rope_type and rope_theta for {name}");
            return Err(from.invalid(&keys::ROPE_PARAMETERS, found));
        }
    }
    Ok(())
}

/// As listed, or else full attention in every sixth layer; the last layer has full attention in any case.
fn layers(from: &Configuration) -> Result<Vec<LayerSpec>, FormatError> {
    let count = from.required(&keys::NUM_HIDDEN_LAYERS)?;
    let window = Some(from.required(&keys::SLIDING_WINDOW)?);
    let feed_forward = FeedForward::Both { inner: from.required(&keys::INTERMEDIATE_SIZE)? };
    let full = LayerSpec { feed_forward, ..LayerSpec::from(Mixer::Attention) };
    let is_full: Vec<bool> = match from.get(&keys::LAYER_TYPES)? {
        None => {
            (1..=count).map(|number| number.is_multiple_of(INTERVAL) || number == count).collect()
        }
        Some(kinds) => {
            let known = |kind| match kind {
                "full_attention" => Ok(true),
                "sliding_attention" => Ok(false),
                other => {
                    let found = format!("{other} is not known in this family");
                    Err(from.invalid(&keys::LAYER_TYPES, found))
                }
            };
            kinds.into_iter().map(known).collect::<Result<_, _>>()?
        }
    };
    if is_full.len() != count {
        let found = format!("has {} entries for {count} layers", is_full.len());
        return Err(from.invalid(&keys::LAYER_TYPES, found));
    }
    if is_full.last() == Some(&false) {
        let found = "ends in sliding_attention, but the last layer has full attention";
        return Err(from.invalid(&keys::LAYER_TYPES, found));
    }
    let layer = |is_full| if is_full { full } else { LayerSpec { window, ..full } };
    Ok(is_full.into_iter().map(layer).collect())
}

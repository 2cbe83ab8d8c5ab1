//! Qwen3.5-MoE and Qwen3.6-MoE: GatedDeltaNet and gated attention (usually 3 to 1), an expert layer with
//! a shared expert everywhere, zero-centred norms (reference: transformers `modeling_qwen3_5_moe.py`).

use kernels::DeltaDecay;
use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::activation::{Activation, GateUpRows};
use super::config::{
    AttentionConfig, DeltaConfig, Family, HeadOrder, LayerSpec, Mixer, ModelConfig, MoeConfig,
    OutputGate, Projections, Sees, Values, without_biases,
};
use super::rope::Rope;
use super::router::{Router, Score};
use super::{mixed, plain};

/// Reads the shapes.
///
/// `norm_topk_prob` is absent from these configurations: the reference divides unconditionally.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    read(from, Family::Qwen35Moe, Router { score: Score::Softmax, bias: false, normalise: true })
}

/// The shapes of a family of these parts.
pub(super) fn read(
    from: &Configuration,
    family: Family,
    router: Router,
) -> Result<ModelConfig, FormatError> {
    let layers = from.required(&keys::NUM_HIDDEN_LAYERS)?;
    let head_dim = from.required(&keys::HEAD_DIM)?;
    let rotary = from.rotary_factor()?;
    let attention = AttentionConfig {
        query_heads: from.required(&keys::NUM_ATTENTION_HEADS)?,
        key_value_heads: from.required(&keys::NUM_KEY_VALUE_HEADS)?,
        head_dim,
        rope: Rope::read(from, (head_dim as f64 * rotary) as usize)?,
        head_norms: true,
        whole_norms: false,
        biases: without_biases(from)?,
        output_bias: false,
        sinks: false,
        values: Values::Projected,
        scale: None,
        output_gate: from.required(&keys::ATTN_OUTPUT_GATE)?,
    };
    let moe = MoeConfig {
        experts: from.required(&keys::NUM_EXPERTS)?,
        top_k: from.required(&keys::NUM_EXPERTS_PER_TOK)?,
        intermediate: from.required(&keys::MOE_INTERMEDIATE_SIZE)?,
        shared_intermediate: Some(from.required(&keys::SHARED_EXPERT_INTERMEDIATE_SIZE)?),
        shared_gate: true,
        router,
        activation: Activation::SwiGlu,
        rows: GateUpRows::Apart,
        biases: false,
        hashed_layers: 0,
        router_norm: false,
    };
    Ok(ModelConfig {
        delta: Some(DeltaConfig {
            key_heads: from.required(&keys::LINEAR_NUM_KEY_HEADS)?,
            value_heads: from.required(&keys::LINEAR_NUM_VALUE_HEADS)?,
            order: match from.required(&keys::LINEAR_VALUE_HEAD_ORDER)? {
                "tiled" => HeadOrder::Tiled,
                _ => HeadOrder::Grouped,
            },
            key_dim: from.required(&keys::LINEAR_KEY_HEAD_DIM)?,
            value_dim: from.required(&keys::LINEAR_VALUE_HEAD_DIM)?,
            convolution_kernel: from.required(&keys::LINEAR_CONV_KERNEL_DIM)?,
            gate: OutputGate::Silu,
            decay: DeltaDecay::Heads,
            projections: Projections::Joined,
        }),
        ..plain::model(from, mixers(from, family, layers)?, attention, moe)?
    })
}

/// What mixes tokens in each layer: as listed, or else by the interval.
fn mixers(
    from: &Configuration,
    family: Family,
    layers: usize,
) -> Result<Vec<LayerSpec>, FormatError> {
    let kinds = mixed::mixers(
        from,
        layers,
        |kind| mixer(kind, family),
        || match family {
            Family::Qwen4Exp => Err(from.invalid(&keys::LAYER_TYPES, "missing")),
            _ => {
                let interval = from.required(&keys::FULL_ATTENTION_INTERVAL)?;
                Ok(mixed::every(interval, Mixer::Attention))
            }
        },
    )?;
    let layer = |mixer| match (mixer, family) {
        (Mixer::Attention, Family::Qwen4Exp) => {
            LayerSpec { sees: Sees::Chosen, ..LayerSpec::from(mixer) }
        }
        _ => LayerSpec::from(mixer),
    };
    Ok(kinds.into_iter().map(layer).collect())
}

/// A mixer by its name. In Qwen3.8-Flash-Next attention sees chosen keys under each of its names.
fn mixer(name: &str, family: Family) -> Option<Mixer> {
    match name {
        "full_attention" => Some(Mixer::Attention),
        "linear_attention" => Some(Mixer::DeltaNet),
        "indexed_attention" | "qwen_sparse_attention" if family == Family::Qwen4Exp => {
            Some(Mixer::Attention)
        }
        _ => None,
    }
}

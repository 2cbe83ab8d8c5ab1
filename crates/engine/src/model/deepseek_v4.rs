//! DeepSeek-V4 (Flash, Pro): several residual streams, attention over a window and compressed rows, experts of the
//! first layers by token, clamped activations (reference: transformers `modeling_deepseek_v4.py`).

use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::activation::{Activation, GateUpRows};
use super::compressed_attention::{CompressedConfig, Compression, RowIndex};
use super::config::{AttentionConfig, LayerSpec, Mixer, ModelConfig, MoeConfig, Values};
use super::hyper_connections::{HyperConfig, Merge};
use super::plain;
use super::rope::Rope;
use super::router::{Router, Score};

/// Tokens of a compressed row in layers whose rows overlap and are chosen.
const OVERLAPPING: usize = 4;

/// Reads the shapes.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    let head_dim = from.required(&keys::HEAD_DIM)?;
    let rotated = from.required(&keys::QK_ROPE_HEAD_DIM)?;
    let shared = from.required(&keys::N_SHARED_EXPERTS)?;
    let (rope, compressed_rope) = ropes(from, rotated)?;
    let width = from.expert_width()?;
    let attention = AttentionConfig {
        query_heads: from.required(&keys::NUM_ATTENTION_HEADS)?,
        key_value_heads: from.required(&keys::NUM_KEY_VALUE_HEADS)?,
        head_dim,
        rope,
        output_gate: false,
        head_norms: false,
        biases: super::config::without_biases(from)?,
        output_bias: false,
        whole_norms: false,
        sinks: true,
        values: Values::Projected,
        scale: None,
    };
    let moe = MoeConfig {
        experts: from.routed_experts()?,
        top_k: from.required(&keys::NUM_EXPERTS_PER_TOK)?,
        intermediate: width,
        shared_intermediate: (shared > 0).then_some(shared * width),
        shared_gate: false,
        router: Router {
            score: Score::SqrtSoftplus {
                scale: from.required(&keys::ROUTED_SCALING_FACTOR)? as f32,
            },
            bias: true,
            normalise: from.required(&keys::NORM_TOPK_PROB)?,
        },
        activation: Activation::Limited { limit: from.required(&keys::SWIGLU_LIMIT)? as f32 },
        rows: GateUpRows::Apart,
        biases: false,
        hashed_layers: from.required(&keys::NUM_HASH_LAYERS)?,
        router_norm: false,
    };
    Ok(ModelConfig {
        hyper: Some(HyperConfig {
            streams: from.required(&keys::HC_MULT)?,
            iterations: from.required(&keys::HC_SINKHORN_ITERS)?,
            epsilon: from.required(&keys::HC_EPS)? as f32,
            merge: Merge::Weighed,
        }),
        compressed: Some(CompressedConfig {
            query_rank: from.required(&keys::Q_LORA_RANK)?,
            output_rank: from.required(&keys::O_LORA_RANK)?,
            output_groups: from.required(&keys::O_GROUPS)?,
            window: from.required(&keys::SLIDING_WINDOW)?,
            rope: compressed_rope,
            index: RowIndex {
                heads: from.required(&keys::INDEX_N_HEADS)?,
                dim: from.required(&keys::INDEX_HEAD_DIM)?,
                top: from.required(&keys::INDEX_TOPK)?,
            },
        }),
        ..plain::model(from, layers(from)?, attention, moe)?
    })
}

/// Rotation of layers with a window alone, and of those with compressed rows, which alone is stretched, and never
/// changes magnitudes.
fn ropes(from: &Configuration, rotated: usize) -> Result<(Rope, Rope), FormatError> {
    if from.get(&keys::ROPE_PARAMETERS)?.is_some_and(|rope| rope.contains_key("compress")) {
        let found = "names rotations of its own (main, compress), as transformers saves them; \
            only rope_theta, compress_rope_theta and rope_scaling are read";
        return Err(from.invalid(&keys::ROPE_PARAMETERS, found));
    }
    let mut compressed = Rope::read(from, rotated)?;
    let plain = Rope { yarn: None, ..compressed };
    compressed.theta = from.required(&keys::COMPRESS_ROPE_THETA)?;
    if let Some(yarn) = &mut compressed.yarn {
        yarn.magnitude = from.get(&keys::ROPE_ATTENTION_FACTOR)?.unwrap_or(1.0) as f32;
    }
    Ok((plain, compressed))
}

/// The layers. `compress_ratios` goes on for draft layers, which are not computed.
fn layers(from: &Configuration) -> Result<Vec<LayerSpec>, FormatError> {
    let count = from.required(&keys::NUM_HIDDEN_LAYERS)?;
    let ratios = from.required(&keys::COMPRESS_RATIOS)?;
    if ratios.len() < count {
        let found = format!("has {} entries for {count} layers", ratios.len());
        return Err(from.invalid(&keys::COMPRESS_RATIOS, found));
    }
    let layer = |&ratio: &usize| match ratio {
        0 => Mixer::Compressed(None),
        ratio => Mixer::Compressed(Some(Compression { ratio, overlap: ratio == OVERLAPPING })),
    };
    Ok(ratios[..count].iter().map(layer).map(LayerSpec::from).collect())
}

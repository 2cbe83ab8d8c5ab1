//! Qwen3.8-Flash-Next: the parts of Qwen3.5-MoE around gated residual streams, attention to chosen keys, layers of hashed
//! n-grams (reference: transformers `modeling_qwen4_exp.py`).
//!
//! The reference's own defaults are those of another model: a configuration without a key is refused.

use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::config::{Family, ModelConfig, OutputGate};
use super::gated_streams::GatedStreams;
use super::index::IndexConfig;
use super::ngram::NgramConfig;
use super::qwen35moe;
use super::router::{Router, Score};

/// Reads the shapes.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    let normalise = from.required(&keys::NORM_TOPK_PROB)?;
    let router = Router { score: Score::Softmax, bias: false, normalise };
    let mut config = qwen35moe::read(from, Family::Qwen4Exp, router)?;
    if let Some(delta) = &mut config.delta {
        delta.gate = match from.required(&keys::OUTPUT_GATE_TYPE)? {
            "sigmoid" => OutputGate::Sigmoid,
            _ => OutputGate::Silu,
        };
    }
    config.gated = Some(GatedStreams {
        streams: from.required(&keys::HC_COUNT)?,
        rank: from.required(&keys::HC_LOWRANK)?,
    });
    config.index = Some(IndexConfig::read(from)?);
    config.ngrams = NgramConfig::read(from)?;
    Ok(config)
}

//! ERNIE 4.5 (21B-A3B, 300B-A47B): attention that rotates neighbours together; experts weighed by a softmax, whose bias
//! moves the choice alone; dense layers first (reference: transformers `modeling_ernie4_5_moe.py`).

use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::config::{FeedForward, LayerSpec, Mixer, ModelConfig};
use super::plain;
use super::rope::Pairs;
use super::router::{Router, Score};

/// Reads the shapes. Whether the head is the embedding must be said: the reference ties them where the key is absent.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    if from.stated(&keys::TIE_WORD_EMBEDDINGS)?.is_none() {
        return Err(from.invalid(&keys::TIE_WORD_EMBEDDINGS, "missing"));
    }
    let mut attention = plain::whole_heads(from)?;
    attention.rope.pairs = Pairs::Neighbours;
    let score = Score::BalancedSoftmax { least_sum: from.required(&keys::MOE_NORM_MIN)? as f32 };
    let router = Router { score, bias: true, normalise: true };
    let experts = plain::experts(from, router, from.shared_width()?)?;
    plain::model(from, layers(from)?, attention, experts)
}

/// Every so many layers from the first to the last has experts, the others are dense.
fn layers(from: &Configuration) -> Result<Vec<LayerSpec>, FormatError> {
    let first = from.required(&keys::MOE_LAYER_START_INDEX)?;
    let last = from.required(&keys::MOE_LAYER_END_INDEX)?;
    let interval = from.required(&keys::MOE_LAYER_INTERVAL)?;
    let layer = |index: usize| {
        let within = index >= first && last.is_none_or(|last| index <= last);
        let feed_forward = match within && (index + 1).is_multiple_of(interval) {
            true => FeedForward::Mixture,
            false => FeedForward::Dense { inner: from.required(&keys::INTERMEDIATE_SIZE)? },
        };
        Ok(LayerSpec { feed_forward, ..LayerSpec::from(Mixer::Attention) })
    };
    (0..from.required(&keys::NUM_HIDDEN_LAYERS)?).map(layer).collect()
}

//! MiniMax-M2: attention that rotates half of each head, with norms of whole projections, and a router of sigmoids with
//! a bias of the choice (reference: transformers `modeling_minimax_m2.py`).

use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::config::{AttentionConfig, Mixer, ModelConfig, without_biases};
use super::plain;
use super::rope::Rope;
use super::router::{Groups, Router, Score};

/// Reads the shapes.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    let head_dim = from.required(&keys::HEAD_DIM)?;
    let part = (head_dim as f64 * from.rotary_factor()?) as usize;
    let rotated = from.get(&keys::ROTARY_DIM)?.unwrap_or(part);
    if rotated != part && from.stated(&keys::ROTARY_FACTOR)?.is_some() {
        let found = format!("{rotated}, but partial_rotary_factor says {part}");
        return Err(from.invalid(&keys::ROTARY_DIM, found));
    }
    without_biases(from)?;
    let rope = Rope::read(from, rotated)?;
    let attention = AttentionConfig { rope, whole_norms: true, ..plain::attention(from)? };
    let score = Score::Sigmoid { groups: Groups { count: 1, kept: 1 }, scale: 1.0 };
    let router = Router { score, bias: true, normalise: true };
    let layers = vec![Mixer::Attention.into(); from.required(&keys::NUM_HIDDEN_LAYERS)?];
    plain::model(from, layers, attention, plain::experts(from, router, None)?)
}

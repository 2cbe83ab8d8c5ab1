//! Hy3 (295B-A21B): attention with norms of heads, dense layers first, experts chosen by sigmoids with a bias, and a
//! shared one (reference: transformers `modeling_hy_v3.py`).

use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::config::{AttentionConfig, Mixer, ModelConfig};
use super::router::{Groups, Router, Score};
use super::{deepseek_v3, plain};

/// Reads the shapes.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    let layers = deepseek_v3::layers(from, Mixer::Attention)?;
    let attention = AttentionConfig { head_norms: true, ..plain::whole_heads(from)? };
    let scale = from.required(&keys::ROUTER_SCALING_FACTOR)? as f32;
    let score = Score::Sigmoid { groups: Groups { count: 1, kept: 1 }, scale };
    let router = Router { score, bias: true, normalise: true };
    plain::model(from, layers, attention, plain::experts(from, router, from.shared_width()?)?)
}

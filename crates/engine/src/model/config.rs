//! The shapes of a model, read from its configuration once and checked against each other.
//!
//! Everything downstream (weights, state, plan, backends) takes its sizes from [`ModelConfig`]; nothing
//! else looks into the configuration, and types and ranges of its keys were checked by its reader
//! ([`store::format::config`]). Defaults are those of the reference implementation and are stated where
//! they are applied.

use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::activation::{Activation, GateUpRows};
use super::compressed_attention::{CompressedConfig, Compression};
use super::hyper_connections::HyperConfig;
use super::rope::Rope;
use super::router::Router;
use super::{deepseek_v4, gptoss, qwen3moe, qwen3next, qwen35moe};
use crate::EngineError;

pub use store::format::Family;

/// One layer: what mixes its tokens. (What follows the mixer is a mixture of experts in every layer.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    /// What mixes tokens.
    pub mixer: Mixer,
    /// Positions that attention sees, the token's own included; all of them without.
    pub window: Option<usize>,
}

impl From<Mixer> for LayerSpec {
    fn from(mixer: Mixer) -> Self {
        Self { mixer, window: None }
    }
}

/// What mixes tokens in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// Softmax attention over a key-value cache.
    Attention,
    /// The gated delta rule over a fixed recurrent state.
    DeltaNet,
    /// Softmax attention over a window of rows and over compressed rows, where the layer has some.
    Compressed(Option<Compression>),
}

/// Shape of the attention layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionConfig {
    /// Query heads.
    pub query_heads: usize,
    /// Key and value heads; query head `i` uses head `i / (query_heads / key_value_heads)`.
    pub key_value_heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Rotation of queries and keys.
    pub rope: Rope,
    /// True when the query projection carries an output gate of the same size.
    pub output_gate: bool,
    /// True when each head of queries and keys is normed before its rotation.
    pub head_norms: bool,
    /// True when the four projections have biases.
    pub biases: bool,
    /// True when each query head has a score that only takes weight from the others.
    pub sinks: bool,
}

/// The order of value heads, which decides whose key head is whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadOrder {
    /// Value head `h` uses key head `h / (value_heads / key_heads)`.
    Grouped,
    /// Value head `h` uses key head `h % key_heads`, as GGUF files store them.
    Tiled,
}

/// Shape of the GatedDeltaNet layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaConfig {
    /// Key (and query) heads.
    pub key_heads: usize,
    /// Value heads; a multiple of the key heads.
    pub value_heads: usize,
    /// Which key head a value head uses.
    pub order: HeadOrder,
    /// Values per key head.
    pub key_dim: usize,
    /// Values per value head.
    pub value_dim: usize,
    /// Taps of the causal convolution.
    pub convolution_kernel: usize,
}

impl DeltaConfig {
    /// Channels of the convolution: queries, keys and values side by side.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Width of the output before its projection.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }
}

/// Shape of the expert layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeConfig {
    /// Routed experts per layer.
    pub experts: usize,
    /// Experts a token uses, as trained.
    pub top_k: usize,
    /// Inner width of a routed expert.
    pub intermediate: usize,
    /// Inner width of the shared expert, when there is one.
    pub shared_intermediate: Option<usize>,
    /// True when the shared expert is weighed by a sigmoid of its own.
    pub shared_gate: bool,
    /// How experts are chosen.
    pub router: Router,
    /// What a routed expert computes between its matrices.
    pub activation: Activation,
    /// Where rows of its first two matrices lie.
    pub rows: GateUpRows,
    /// True when the matrices of routed experts have biases.
    pub biases: bool,
    /// First layers, in which a table says which experts a token uses; the router only weighs them.
    pub hashed_layers: usize,
}

/// The shapes of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The architecture.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding and of the output head.
    pub vocabulary: usize,
    /// The layers, in order.
    pub layers: Vec<LayerSpec>,
    /// Added to the mean square in every RMS norm.
    pub rms_epsilon: f32,
    /// Attention layers.
    pub attention: AttentionConfig,
    /// GatedDeltaNet layers, when the family has them.
    pub delta: Option<DeltaConfig>,
    /// Several residual streams, when the family has them.
    pub hyper: Option<HyperConfig>,
    /// Layers of compressed attention, when the family has them.
    pub compressed: Option<CompressedConfig>,
    /// Experts.
    pub moe: MoeConfig,
    /// Longest context of training.
    pub max_positions: usize,
    /// True when the output head is the embedding.
    pub tied_head: bool,
}

impl ModelConfig {
    /// The shapes that a configuration gives, checked against each other.
    ///
    /// # Errors
    /// An unsupported family, or the key that is missing or contradicts another.
    pub fn read(from: &Configuration) -> Result<Self, EngineError> {
        let config = match from.supported_family()? {
            Family::Qwen35Moe => qwen35moe::config(from)?,
            Family::Qwen3Moe => qwen3moe::config(from)?,
            Family::Qwen3Next => qwen3next::config(from)?,
            Family::GptOss => gptoss::config(from)?,
            Family::DeepseekV4 => deepseek_v4::config(from)?,
        };
        config.check(from)?;
        Ok(config)
    }

    /// Relations between keys that each is plausible alone.
    fn check(&self, from: &Configuration) -> Result<(), FormatError> {
        let attention = &self.attention;
        if !attention.query_heads.is_multiple_of(attention.key_value_heads) {
            let found =
                format!("{} does not divide num_attention_heads", attention.key_value_heads);
            return Err(from.invalid(&keys::NUM_KEY_VALUE_HEADS, found));
        }
        let rotated = attention.rope.dims;
        if rotated == 0 || !rotated.is_multiple_of(2) || rotated > attention.head_dim {
            let found = format!("gives {rotated} rotated of {}", attention.head_dim);
            return Err(from.invalid(&keys::ROTARY_FACTOR, found));
        }
        if let Some(delta) = &self.delta
            && !delta.value_heads.is_multiple_of(delta.key_heads)
        {
            let found = format!("{} does not divide linear_num_value_heads", delta.key_heads);
            return Err(from.invalid(&keys::LINEAR_NUM_KEY_HEADS, found));
        }
        let both = |layer: &LayerSpec| layer.window.is_some() && layer.mixer != Mixer::Attention;
        if self.layers.iter().any(both) {
            return Err(from.invalid(&keys::LAYER_TYPES, "a window without attention"));
        }
        if let Some(compressed) = &self.compressed {
            compressed.check(self, from)?;
        }
        if self.moe.top_k > self.moe.experts {
            let found = format!("{} exceeds num_experts {}", self.moe.top_k, self.moe.experts);
            return Err(from.invalid(&keys::NUM_EXPERTS_PER_TOK, found));
        }
        Ok(())
    }

    /// Layers of one kind.
    pub fn count(&self, mixer: Mixer) -> usize {
        self.layers.iter().filter(|layer| layer.mixer == mixer).count()
    }
}

/// Refuses biases of attention for families that have none.
pub(super) fn without_biases(from: &Configuration) -> Result<bool, FormatError> {
    match from.get(&keys::ATTENTION_BIAS)? {
        Some(true) => {
            let found = "true is not false, and only that is supported for this family";
            Err(from.invalid(&keys::ATTENTION_BIAS, found))
        }
        _ => Ok(false),
    }
}

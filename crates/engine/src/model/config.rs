//! The shapes of a model, read from its configuration once and checked against each other.
//!
//! Everything downstream (weights, state, plan, backends) takes its sizes from [`ModelConfig`]; nothing
//! else looks into the configuration, and types and ranges of its keys were checked by its reader
//! ([`store::format::config`]). What absent keys mean is declared there as well, by family, as the reference
//! implementation has it.

use kernels::{DeltaDecay, KvType};
use store::format::config::keys;
use store::format::{Configuration, FormatError};

use super::activation::{Activation, GateUpRows};
use super::compressed_attention::{CompressedConfig, Compression};
use super::gated_streams::GatedStreams;
use super::hyper_connections::HyperConfig;
use super::index::IndexConfig;
use super::ngram::NgramConfig;
use super::rope::Rope;
use super::router::{Router, Score};
use super::{
    bailing_hybrid, deepseek_v3, deepseek_v4, deepseek_v32, dots1, ernie4_5_moe, exaone_moe,
    gemma4, glm4_moe, glm5_next, gptoss, hy_v3, kimi_linear, minimax_m2, olmoe, qwen3moe,
    qwen3next, qwen4exp, qwen35moe,
};
use crate::EngineError;

pub use store::format::Family;

/// One layer: what mixes its tokens, and what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    /// What mixes tokens.
    pub mixer: Mixer,
    /// Positions that attention sees, the token's own included; all of them without.
    pub window: Option<usize>,
    /// False where attention leaves queries and keys as they are, whatever the position.
    pub rotates: bool,
    /// Which keys attention sees of those in its window.
    pub sees: Sees,
    /// What follows the mixer.
    pub feed_forward: FeedForward,
}

/// Longest window whose keys and values are kept apart: each kept point of a sequence holds a copy of them.
const KEPT_WINDOW_MAX: usize = 4096;

impl LayerSpec {
    /// The last positions, so many, whose keys and values alone a sequence keeps in this layer, as part of its state.
    /// `None` where it keeps those of all positions, in pages: without a window, and where the window is so long that
    /// kept points would be as large as pages.
    pub fn kept_window(&self) -> Option<usize> {
        self.window.filter(|&window| window <= KEPT_WINDOW_MAX)
    }
}

impl From<Mixer> for LayerSpec {
    fn from(mixer: Mixer) -> Self {
        Self {
            mixer,
            window: None,
            rotates: true,
            sees: Sees::All,
            feed_forward: FeedForward::Mixture,
        }
    }
}

/// Which keys a layer of attention sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sees {
    /// Every key.
    All,
    /// Those that its indexer chooses ([`ModelConfig::index`]).
    Chosen,
    /// Those that the last layer with an indexer chose.
    AsBefore,
}

/// What follows the mixer of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// A mixture of experts.
    Mixture,
    /// One feed-forward network for all tokens, whose weights stay in memory.
    Dense {
        /// Its inner width.
        inner: usize,
    },
    /// Both, each of the stream with a norm of its own; their outputs are normed and added.
    Both {
        /// Inner width of the network.
        inner: usize,
    },
}

impl FeedForward {
    /// True where there are experts.
    pub fn has_mixture(self) -> bool {
        matches!(self, Self::Mixture | Self::Both { .. })
    }
}

/// What mixes tokens in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// Softmax attention over a key-value cache.
    Attention,
    /// Softmax attention over a cache of latent rows.
    Latent,
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
    /// True when queries and keys of all heads are normed together instead.
    pub whole_norms: bool,
    /// True when the projections of queries, keys and values have biases.
    pub biases: bool,
    /// True when that of the output has one.
    pub output_bias: bool,
    /// True when each query head has a score that only takes weight from the others.
    pub sinks: bool,
    /// What values are.
    pub values: Values,
    /// Factor of the scores; without, one over the root of `head_dim`.
    pub scale: Option<f32>,
}

impl AttentionConfig {
    /// Factor of the scores.
    pub fn score_scale(&self) -> f32 {
        self.scale.unwrap_or_else(|| (self.head_dim as f32).powf(-0.5))
    }

    /// Width of the queries of all heads.
    pub fn query_width(&self) -> usize {
        self.query_heads * self.head_dim
    }

    /// Width of the keys of all heads.
    pub fn key_width(&self) -> usize {
        self.key_value_heads * self.head_dim
    }
}

/// What the values of attention are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Products of a matrix of their own.
    Projected,
    /// The same, each head normed without a weight.
    Normed,
    /// The keys before their norm and rotation, each head normed without a weight.
    NormedKeys,
}

/// What is done to the stream in addition to what blocks add to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamConfig {
    /// What embeddings are multiplied by.
    pub embedding_scale: f32,
    /// True when the output of each block is normed before it is added, and the stream is multiplied by a number of
    /// each layer at its end.
    pub sandwich: bool,
    /// Logits are `cap tanh(logits / cap)`.
    pub softcap: Option<f32>,
}

impl StreamConfig {
    /// Nothing in addition.
    pub const PLAIN: Self = Self { embedding_scale: 1.0, sandwich: false, softcap: None };

    /// What is done to embeddings and to logits, which no operation says.
    pub fn ends(&self) -> Vec<&'static str> {
        let ends = [
            (self.embedding_scale != 1.0, "scaled embeddings"),
            (self.softcap.is_some(), "capped logits"),
        ];
        ends.into_iter().filter_map(|(has, what)| has.then_some(what)).collect()
    }
}

/// Shape of layers of latent attention: keys and values of all heads are products of one row per token, the latent,
/// which alone is cached, with a rotated key that the heads share. [`AttentionConfig`] has the query heads, and the
/// cached row as its one key of one head; the last values of a row are those that are rotated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentConfig {
    /// Width of the row from which queries are made; without, they are made from the stream.
    pub query_rank: Option<usize>,
    /// Values of the latent.
    pub rank: usize,
    /// Values of a head's query and key that are not rotated.
    pub plain_dim: usize,
    /// Values of a head's value.
    pub value_dim: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Added to the mean square in the norms of both latents, whatever it is in the others.
    pub rms_epsilon: f32,
    /// True when each head's output is scaled by a sigmoid of the stream.
    pub head_gates: bool,
}

/// The order of value heads, which decides whose key head is whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadOrder {
    /// Value head `h` uses key head `h / (value_heads / key_heads)`.
    Grouped,
    /// Value head `h` uses key head `h % key_heads`, as GGUF files store them.
    Tiled,
}

/// What a function of the output gate does to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputGate {
    /// `z * sigmoid(z)`
    Silu,
    /// `sigmoid(z)`
    Sigmoid,
}

/// Shape of the layers of the delta rule.
#[derive(Clone, Copy, Debug, PartialEq)]
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
    /// What the output is multiplied by, of its gate.
    pub gate: OutputGate,
    /// What decays are of.
    pub decay: DeltaDecay,
    /// What it is made from.
    pub projections: Projections,
}

/// Which matrices queries, keys, values, decays and output gates of the delta rule are products of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projections {
    /// Queries, keys and values have one, and one convolution.
    Joined,
    /// They have matrices and convolutions of their own.
    Apart {
        /// Width of the rows from which decays and output gates are made; without, they are made from the stream.
        low_rank: Option<usize>,
    },
}

impl DeltaConfig {
    /// Channels of the convolution: queries, keys and values side by side.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Decays of a token.
    pub fn decays(&self) -> usize {
        self.value_heads * self.decay.of_head(self.key_dim)
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
    /// True when the router reads the stream with a norm of its own, and each expert's weight has a factor.
    pub router_norm: bool,
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
    /// Attention layers with a window, where they have another shape.
    pub windowed: Option<AttentionConfig>,
    /// The stream.
    pub stream: StreamConfig,
    /// Layers of latent attention, when the family has them.
    pub latent: Option<LatentConfig>,
    /// GatedDeltaNet layers, when the family has them.
    pub delta: Option<DeltaConfig>,
    /// Several residual streams, when the family has them.
    pub hyper: Option<HyperConfig>,
    /// Several residual streams that gates read, when the family has them.
    pub gated: Option<GatedStreams>,
    /// What chooses the keys that layers of attention see, where they do not see all.
    pub index: Option<IndexConfig>,
    /// Layers that look up rows of hashed n-grams, when the family has them.
    pub ngrams: Option<NgramConfig>,
    /// Layers of compressed attention, when the family has them.
    pub compressed: Option<CompressedConfig>,
    /// Experts.
    pub moe: MoeConfig,
    /// Longest context of training.
    pub max_positions: usize,
    /// True when the output head is the embedding.
    pub tied_head: bool,
    /// True when the last of `layers` is a head's, which predicts further tokens ([`ModelConfig::with_head`]).
    pub head: bool,
}

impl ModelConfig {
    /// The shapes that a configuration gives, checked against each other.
    ///
    /// # Errors
    /// An unsupported family, or the key that is missing or contradicts another.
    pub fn read(from: &Configuration) -> Result<Self, EngineError> {
        let config = match from.supported_family()? {
            Family::Qwen35Moe => qwen35moe::config(from)?,
            Family::Qwen3Moe | Family::Qwen3VlMoe => qwen3moe::config(from)?,
            Family::Qwen3Next => qwen3next::config(from)?,
            Family::GptOss => gptoss::config(from)?,
            Family::DeepseekV4 => deepseek_v4::config(from)?,
            Family::DeepseekV3 | Family::KimiK2 | Family::Glm4MoeLite => deepseek_v3::config(from)?,
            Family::DeepseekV32 | Family::GlmMoeDsa => deepseek_v32::config(from)?,
            Family::MinimaxM2 => minimax_m2::config(from)?,
            Family::Glm4Moe | Family::SolarOpen => glm4_moe::config(from)?,
            Family::Glm5Next => glm5_next::config(from)?,
            Family::BailingHybrid => bailing_hybrid::config(from)?,
            Family::Ernie45Moe => ernie4_5_moe::config(from)?,
            Family::ExaoneMoe => exaone_moe::config(from)?,
            Family::HyV3 => hy_v3::config(from)?,
            Family::Olmoe => olmoe::config(from)?,
            Family::Dots1 => dots1::config(from)?,
            Family::Gemma4 => gemma4::config(from)?,
            Family::Qwen4Exp => qwen4exp::config(from)?,
            Family::KimiLinear => kimi_linear::config(from)?,
        };
        config.check(from)?;
        Ok(config)
    }

    /// The same model with its head as one layer more.
    ///
    /// # Errors
    /// A family whose heads are not computed.
    pub fn with_head(mut self) -> Result<Self, EngineError> {
        let mixer = match self.family {
            Family::Qwen35Moe | Family::Qwen3Next | Family::Glm4Moe => Mixer::Attention,
            family => {
                let problem =
                    format!("is {}: heads of this family are not computed", family.name());
                return Err(EngineError::Config { key: "model_type", problem });
            }
        };
        if !std::mem::replace(&mut self.head, true) {
            self.layers.push(LayerSpec::from(mixer));
        }
        Ok(self)
    }

    /// Layers that a token passes: all but a head's.
    pub fn trunk_layers(&self) -> usize {
        self.layers.len() - usize::from(self.head)
    }

    /// Relations between keys that each is plausible alone.
    fn check(&self, from: &Configuration) -> Result<(), FormatError> {
        for attention in self.attentions() {
            if !attention.query_heads.is_multiple_of(attention.key_value_heads) {
                let found =
                    format!("{} does not divide num_attention_heads", attention.key_value_heads);
                return Err(from.invalid(&keys::NUM_KEY_VALUE_HEADS, found));
            }
            if attention.head_dim < 2 {
                let found = format!("{} is too few", attention.head_dim);
                return Err(from.invalid(&keys::HEAD_DIM, found));
            }
            let rotated = attention.rope.dims;
            let none = rotated == 0 && self.latent.is_none();
            if none || !rotated.is_multiple_of(2) || rotated > attention.head_dim {
                let found = format!("gives {rotated} rotated of {}", attention.head_dim);
                return Err(from.invalid(&keys::ROTARY_FACTOR, found));
            }
        }
        // Pages have rows of one width.
        let paged = |layer: &LayerSpec| layer.window.is_some() && layer.kept_window().is_none();
        if self.windowed.is_some() && self.layers.iter().any(paged) {
            let found =
                format!("more than {KEPT_WINDOW_MAX}, but such layers have heads of their own");
            return Err(from.invalid(&keys::SLIDING_WINDOW, found));
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
        let roots = matches!(self.moe.router.score, Score::SqrtSoftplus { .. });
        if let Some(named) = from.get(&keys::SCORING_FUNC)?
            && (named == "sqrtsoftplus") != roots
        {
            let found = format!("{named} is not what this family is computed with");
            return Err(from.invalid(&keys::SCORING_FUNC, found));
        }
        if let Some(compressed) = &self.compressed {
            compressed.check(self, from)?;
        }
        if let Some(index) = &self.index {
            index.check(self, from)?;
        }
        if let Some(ngrams) = &self.ngrams {
            ngrams.check(&self.layers, from)?;
        }
        if self.mixtures() == 0 {
            let found = format!("leaves none of {} layers with experts", self.layers.len());
            return Err(from.invalid(&keys::FIRST_K_DENSE_REPLACE, found));
        }
        if let Score::Sigmoid { groups, .. } = self.moe.router.score {
            groups.check(from, (self.moe.experts, self.moe.top_k))?;
        }
        if self.moe.top_k > self.moe.experts {
            let names = self.family.expert_keys();
            let (routed, experts) = (names.routed.name(), self.moe.experts);
            let found = format!("{} exceeds {routed} {experts}", self.moe.top_k);
            return Err(from.invalid(names.per_token, found));
        }
        Ok(())
    }

    /// The type that the cache's rows were rounded to in training, where they were.
    pub fn trained_kv_type(&self) -> Option<KvType> {
        let compressed = self.compressed.as_ref()?;
        // Keys of the indexer go through a Hadamard transform.
        let rotated = u16::try_from(compressed.rope.dims).ok()?;
        compressed.index.dim.is_power_of_two().then_some(KvType::Fp8 { rotated })
    }

    /// True when the caches of the model's layers can hold rows of this type.
    pub fn takes(&self, kv_type: KvType) -> bool {
        !matches!(kv_type, KvType::Fp8 { .. }) || self.trained_kv_type() == Some(kv_type)
    }

    /// The attention of a layer, by its place.
    pub fn attention_of(&self, layer: usize) -> &AttentionConfig {
        let windowed = self.windowed.as_ref().filter(|_| self.layers[layer].window.is_some());
        windowed.unwrap_or(&self.attention)
    }

    /// Every shape of attention.
    pub fn attentions(&self) -> impl Iterator<Item = &AttentionConfig> {
        std::iter::once(&self.attention).chain(&self.windowed)
    }

    /// Residual streams of a token.
    pub fn streams(&self) -> usize {
        let gated = self.gated.map(|gated| gated.streams);
        gated.or(self.hyper.map(|hyper| hyper.streams)).unwrap_or(1)
    }

    /// Layers of one kind.
    pub fn count(&self, mixer: Mixer) -> usize {
        self.layers.iter().filter(|layer| layer.mixer == mixer).count()
    }

    /// Layers of attention, over latent rows too.
    pub fn attention_layers(&self) -> usize {
        self.count(Mixer::Attention) + self.count(Mixer::Latent)
    }

    /// Layers of attention that keep keys and values of a window alone ([`LayerSpec::kept_window`]).
    pub fn window_layers(&self) -> usize {
        self.layers.iter().filter(|layer| layer.kept_window().is_some()).count()
    }

    /// Rows of [`AttentionConfig::head_dim`] values that the caches of all layers keep of a token, whatever the
    /// length of its sequence.
    pub fn cache_rows(&self) -> usize {
        let paged = self.count(Mixer::Attention) - self.window_layers();
        let pairs = paged * self.attention.key_value_heads;
        2 * pairs + self.count(Mixer::Latent)
    }

    /// True where some layers see what an earlier one chose.
    pub fn shares_choices(&self) -> bool {
        self.layers.iter().any(|layer| layer.sees == Sees::AsBefore)
    }

    /// Layers with a mixture of experts.
    pub fn mixtures(&self) -> usize {
        let mixture = |layer: &&LayerSpec| layer.feed_forward.has_mixture();
        self.layers.iter().filter(mixture).count()
    }

    /// The widest inner width of networks that all tokens use; 0 where no layer has one.
    pub fn dense_width(&self) -> usize {
        let width = |layer: &LayerSpec| match layer.feed_forward {
            FeedForward::Mixture => 0,
            FeedForward::Dense { inner } | FeedForward::Both { inner } => inner,
        };
        self.layers.iter().map(width).max().unwrap_or(0)
    }
}

/// Refuses biases of attention for families that have none.
pub(super) fn without_biases(from: &Configuration) -> Result<bool, FormatError> {
    if from.required(&keys::ATTENTION_BIAS)? {
        let found = "true is not false, and only that is supported for this family";
        return Err(from.invalid(&keys::ATTENTION_BIAS, found));
    }
    Ok(false)
}

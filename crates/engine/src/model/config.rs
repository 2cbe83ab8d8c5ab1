//! The shapes of a model, read from config.json once and checked against each other.
//!
//! Everything downstream (weights, state, plan, backends) takes its sizes from [`ModelConfig`]; nothing
//! else looks into config.json. Defaults are those of the reference implementation and are stated where
//! they are applied.

use serde_json::Value;

use super::{qwen3moe, qwen35moe};
use crate::EngineError;

/// A model architecture that the engine implements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Qwen3.5-MoE and Qwen3.6-MoE: GatedDeltaNet and gated attention, shared expert.
    Qwen35Moe,
    /// Qwen3-MoE: attention in every layer, no shared expert.
    Qwen3Moe,
}

impl Family {
    /// The name users know.
    pub fn name(self) -> &'static str {
        match self {
            Self::Qwen35Moe => "Qwen3.5-MoE",
            Self::Qwen3Moe => "Qwen3-MoE",
        }
    }
}

/// What mixes tokens in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// Softmax attention over a key-value cache.
    Attention,
    /// The gated delta rule over a fixed recurrent state.
    DeltaNet,
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
    /// Leading values of a head that are rotated.
    pub rotary_dim: usize,
    /// Base of the rotation's frequencies.
    pub rope_theta: f64,
    /// True when the query projection carries an output gate of the same size.
    pub output_gate: bool,
}

/// Shape of the GatedDeltaNet layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaConfig {
    /// Key (and query) heads.
    pub key_heads: usize,
    /// Value heads; value head `h` uses key head `h / (value_heads / key_heads)`.
    pub value_heads: usize,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoeConfig {
    /// Routed experts per layer.
    pub experts: usize,
    /// Experts a token uses, as trained.
    pub top_k: usize,
    /// Inner width of a routed expert.
    pub intermediate: usize,
    /// Inner width of the shared expert, when there is one.
    pub shared_intermediate: Option<usize>,
    /// True when the chosen experts' probabilities are scaled to sum to one.
    pub normalise: bool,
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
    /// What mixes tokens, per layer.
    pub layers: Vec<Mixer>,
    /// Added to the mean square in every RMS norm.
    pub rms_epsilon: f32,
    /// Attention layers.
    pub attention: AttentionConfig,
    /// GatedDeltaNet layers, when the family has them.
    pub delta: Option<DeltaConfig>,
    /// Experts.
    pub moe: MoeConfig,
    /// Longest context of training.
    pub max_positions: usize,
    /// True when the output head is the embedding.
    pub tied_head: bool,
    /// Tokens that end an answer according to config.json.
    pub end_tokens: Vec<u32>,
}

impl ModelConfig {
    /// Reads and checks the text part of a config.json.
    ///
    /// # Errors
    /// An unsupported family, or the key that is missing, malformed or contradictory.
    pub fn from_json(root: &Value) -> Result<Self, EngineError> {
        let text = Keys(root.get("text_config").filter(|value| value.is_object()).unwrap_or(root));
        let model_type = [text.0, root]
            .iter()
            .find_map(|value| value.get("model_type").and_then(Value::as_str))
            .unwrap_or_default();
        let family = match model_type {
            "qwen3_5_moe" | "qwen3_5_moe_text" => Family::Qwen35Moe,
            "qwen3_moe" => Family::Qwen3Moe,
            other => return Err(EngineError::UnsupportedFamily { found: other.to_owned() }),
        };
        let config = match family {
            Family::Qwen35Moe => qwen35moe::config(&text, root)?,
            Family::Qwen3Moe => qwen3moe::config(&text, root)?,
        };
        config.check()?;
        Ok(config)
    }

    /// Relations between keys that each is plausible alone.
    fn check(&self) -> Result<(), EngineError> {
        let attention = &self.attention;
        if !attention.query_heads.is_multiple_of(attention.key_value_heads) {
            let found =
                format!("{} does not divide num_attention_heads", attention.key_value_heads);
            return Err(problem("num_key_value_heads", found));
        }
        if attention.rotary_dim == 0
            || !attention.rotary_dim.is_multiple_of(2)
            || attention.rotary_dim > attention.head_dim
        {
            let found = format!("gives {} rotated of {}", attention.rotary_dim, attention.head_dim);
            return Err(problem("partial_rotary_factor", found));
        }
        if let Some(delta) = &self.delta
            && !delta.value_heads.is_multiple_of(delta.key_heads)
        {
            let found = format!("{} does not divide linear_num_value_heads", delta.key_heads);
            return Err(problem("linear_num_key_heads", found));
        }
        if self.moe.top_k > self.moe.experts {
            let found = format!("{} exceeds num_experts {}", self.moe.top_k, self.moe.experts);
            return Err(problem("num_experts_per_tok", found));
        }
        if !(self.rms_epsilon.is_finite() && self.rms_epsilon >= 0.0) {
            return Err(problem("rms_norm_eps", format!("{} is not usable", self.rms_epsilon)));
        }
        Ok(())
    }

    /// Layers of one kind.
    pub fn count(&self, mixer: Mixer) -> usize {
        self.layers.iter().filter(|&&kind| kind == mixer).count()
    }
}

pub(super) fn problem(key: &'static str, problem: impl Into<String>) -> EngineError {
    EngineError::Config { key, problem: problem.into() }
}

/// Typed access to the keys of a configuration object.
pub(super) struct Keys<'a>(pub(super) &'a Value);

impl Keys<'_> {
    pub(super) fn size(
        &self,
        key: &'static str,
        range: std::ops::RangeInclusive<usize>,
    ) -> Result<usize, EngineError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Err(problem(key, "is missing")),
            Some(value) => value
                .as_u64()
                .and_then(|number| usize::try_from(number).ok())
                .filter(|number| range.contains(number))
                .ok_or_else(|| {
                    let (low, high) = (range.start(), range.end());
                    problem(key, format!("{value} is not a whole number from {low} to {high}"))
                }),
        }
    }

    pub(super) fn size_or(
        &self,
        key: &'static str,
        default: usize,
        range: std::ops::RangeInclusive<usize>,
    ) -> Result<usize, EngineError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(_) => self.size(key, range),
        }
    }

    pub(super) fn float_or(&self, key: &'static str, default: f64) -> Result<f64, EngineError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => value
                .as_f64()
                .filter(|number| number.is_finite())
                .ok_or_else(|| problem(key, format!("{value} is not a finite number"))),
        }
    }

    pub(super) fn flag_or(&self, key: &'static str, default: bool) -> Result<bool, EngineError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => {
                value.as_bool().ok_or_else(|| problem(key, format!("{value} is not a boolean")))
            }
        }
    }

    /// `rope_parameters` (transformers 5) or `rope_scaling` (before), when given as an object.
    fn rope(&self) -> Option<Keys<'_>> {
        ["rope_parameters", "rope_scaling"]
            .iter()
            .find_map(|key| self.0.get(*key).filter(|value| value.is_object()))
            .map(Keys)
    }

    pub(super) fn rope_theta(&self, default: f64) -> Result<f64, EngineError> {
        if let Some(rope) = self.rope() {
            let kind = ["rope_type", "type"].iter().find_map(|key| rope.0.get(*key)?.as_str());
            if !matches!(kind, None | Some("default")) {
                let found = format!("rope_type {:?} is not supported", kind.unwrap_or_default());
                return Err(problem("rope_parameters", found));
            }
            if rope.0.get("rope_theta").is_some_and(|value| !value.is_null()) {
                return positive("rope_theta", rope.float_or("rope_theta", default)?);
            }
        }
        positive("rope_theta", self.float_or("rope_theta", default)?)
    }

    pub(super) fn rotary_factor(&self, default: f64) -> Result<f64, EngineError> {
        let outer = self.float_or("partial_rotary_factor", default)?;
        let factor = match self.rope() {
            Some(rope) => rope.float_or("partial_rotary_factor", outer)?,
            None => outer,
        };
        positive("partial_rotary_factor", factor)
    }

    pub(super) fn tied(&self, root: &Value) -> Result<bool, EngineError> {
        let outer = Keys(root).flag_or("tie_word_embeddings", false)?;
        self.flag_or("tie_word_embeddings", outer)
    }

    pub(super) fn end_tokens(&self, root: &Value) -> Result<Vec<u32>, EngineError> {
        let value =
            [self.0, root].iter().find_map(|v| v.get("eos_token_id")).unwrap_or(&Value::Null);
        token_ids("eos_token_id", value)
    }
}

/// A token id or a list of them; null is none.
///
/// # Errors
/// The key and the value that is no token id.
pub fn token_ids(key: &'static str, value: &Value) -> Result<Vec<u32>, EngineError> {
    let one = |value: &Value| {
        value
            .as_u64()
            .and_then(|id| u32::try_from(id).ok())
            .ok_or_else(|| problem(key, format!("{value} is not a token id")))
    };
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(ids) => ids.iter().map(one).collect(),
        single => Ok(vec![one(single)?]),
    }
}

fn positive(key: &'static str, value: f64) -> Result<f64, EngineError> {
    if value > 0.0 { Ok(value) } else { Err(problem(key, format!("{value} is not positive"))) }
}

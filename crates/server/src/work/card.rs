//! What clients may know of the model that is served.

use text::sampling::SamplingOptions;

/// A question that a model answers well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Example {
    /// The question.
    pub text: String,
    /// It is about calling tools.
    pub tools: bool,
}

/// What is served.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelCard {
    /// The name that clients see.
    pub id: String,
    /// Family, as in config.json's `model_type`.
    pub family: String,
    /// Most tokens of a conversation.
    pub context: usize,
    /// Tokens that the model knows.
    pub vocabulary: usize,
    /// Layers.
    pub layers: usize,
    /// Routed experts per layer.
    pub experts: usize,
    /// Experts per token.
    pub experts_per_token: usize,
    /// Bytes of the checkpoint.
    pub bytes: u64,
    /// Weights, routed experts included.
    pub parameters: u64,
    /// How most of the weights are written.
    pub encoding: String,
    /// The chat template's text; empty where there is none.
    pub chat_template: String,
    /// Texts of the tokens that begin a text and end an answer; empty where there is none.
    pub bos_token: String,
    /// See `bos_token`.
    pub eos_token: String,
    /// What its users should know before they ask it anything; empty for nothing.
    pub about: String,
    /// What can be asked of it, for a page that shows examples.
    pub examples: Vec<Example>,
    /// Memory as planned, by what it is for, in bytes.
    pub memory: Vec<(String, u64)>,
    /// The sampling that the model recommends: defaults of requests.
    pub sampling: SamplingOptions,
    /// Everything that makes answers differ from the exact model, in words; empty when exact.
    pub approximations: Vec<String>,
}

//! What can be wrong with sampling options and with logits.

/// A refused option, or logits that no token can be drawn from.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// An option is outside its range.
    #[error("{name} is {value}; it must be {allowed}")]
    Parameter {
        /// Name of the option, as in requests.
        name: &'static str,
        /// What was given.
        value: String,
        /// What is accepted.
        allowed: &'static str,
    },
    /// A sampler that looks at the texts of tokens was made without them.
    #[error("DRY looks at the texts of tokens, and there are none")]
    NoTexts,
    /// A bias for a token that does not exist.
    #[error("logit_bias names token {id}, but the vocabulary has {vocabulary} tokens")]
    BiasOutOfVocabulary {
        /// The id.
        id: u32,
        /// Number of logits.
        vocabulary: usize,
    },
    /// The model produced a logit that is NaN or positive infinity: its arithmetic went wrong.
    #[error("the logit of token {id} is {value}; the forward pass has failed")]
    BadLogit {
        /// First such token.
        id: u32,
        /// Its logit.
        value: f32,
    },
    /// All logits are minus infinity: a mask or a bias excludes every token.
    #[error("every token is excluded by logits of minus infinity")]
    NothingLeft,
    /// The number of logits is not the number the sampler was made for.
    #[error("{given} logits were given to a sampler for a vocabulary of {vocabulary}")]
    WrongLength {
        /// Number of logits given.
        given: usize,
        /// Number expected.
        vocabulary: usize,
    },
}

impl SamplingError {
    pub(crate) fn parameter(
        name: &'static str,
        value: impl std::fmt::Display,
        allowed: &'static str,
    ) -> Self {
        Self::Parameter { name, value: store::shown::shown(value).to_string(), allowed }
    }
}

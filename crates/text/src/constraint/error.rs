//! What can be wrong with a constraint: the request's schema, the model, or the state of an answer.

/// A constraint that cannot be made or kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// A JSON schema that cannot be turned into a grammar.
    #[error("{field}: {problem}")]
    Schema {
        /// The part of the request.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A schema beyond a limit.
    #[error("{field}: {found} {what} are more than the limit of {limit}")]
    TooLarge {
        /// The part of the request.
        field: String,
        /// What was counted.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many may be.
        limit: usize,
    },
    /// A call is demanded and no such tool is on offer.
    #[error("tool_choice: {problem}")]
    NoSuchTool {
        /// What is missing.
        problem: String,
    },
    /// The tokenizer lacks what a constraint needs.
    #[error("tokenizer.json: {problem}; constrained answers are not possible with this model")]
    Tokenizer {
        /// What is missing.
        problem: String,
    },
    /// The state of an answer could not be carried on: a token that was not allowed, or a limit of the
    /// grammar's automaton.
    #[error("the constraint of this answer failed: {problem}")]
    Failed {
        /// What happened.
        problem: String,
    },
}

impl ConstraintError {
    /// The part of the request that is at fault, if it is one.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Schema { field, .. } | Self::TooLarge { field, .. } => Some(field),
            Self::NoSuchTool { .. } => Some("tool_choice"),
            Self::Tokenizer { .. } | Self::Failed { .. } => None,
        }
    }

    /// Whether the request is at fault (status 400), not the model or the engine.
    pub fn is_client_mistake(&self) -> bool {
        matches!(self, Self::Schema { .. } | Self::TooLarge { .. } | Self::NoSuchTool { .. })
    }
}

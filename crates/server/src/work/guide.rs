//! What stands over the choice of an answer's tokens: compiled when a job is accepted, asked while it decodes.

use text::constraint::{CallWatch, Constraint};

/// What stands over the choice of tokens.
pub(super) enum Guide {
    /// The visible answer follows a rule.
    Rule(Box<Constraint>),
    /// The answer is free; calls that the model makes by itself are ones that the tools take.
    Calls(CallWatch),
}

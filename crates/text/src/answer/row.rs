//! What the table of dialects has of each: how it is known, how it is read, and how its calls are written.

use super::Reading;

/// What the table has of a dialect.
#[derive(Debug)]
pub(super) struct Row {
    /// Its name, as `inspect` prints it.
    pub(super) name: &'static str,
    /// A chat template that has one of these teaches it. The last row needs none.
    pub(super) signs: &'static [&'static str],
    /// Its reader; true where the prompt ended inside the thinking.
    pub(super) reading: fn(bool) -> Box<dyn Reading>,
    /// How calls are written.
    pub(super) calls: CallForm,
    /// Control tokens around the thinking; empty where it is a message of its own.
    pub(super) thinking: [&'static str; 2],
    /// What closes the thinking and begins the visible answer.
    pub(super) closing: &'static str,
    /// Control tokens that end an answer, whatever the model's configuration says.
    pub(super) ends: &'static [&'static str],
}

/// How calls are written. In the texts `{name}` stands for a function, `{string}` for its name as JSON, `{number}`
/// for a number and `{key}` for a parameter; the texts of control tokens become these tokens.
#[derive(Debug)]
pub(crate) struct CallForm {
    /// What may stand before the answer proper.
    pub(crate) lead: Lead,
    /// Before the first call and behind the last.
    pub(crate) block: [&'static str; 2],
    /// Around each call.
    pub(crate) call: [&'static str; 2],
    /// Between two calls.
    pub(crate) between: &'static str,
    /// Whether what the model begins by itself is the whole block; else one call.
    pub(crate) begins_block: bool,
    /// A call inside its markers.
    pub(crate) body: Body,
}

/// What may stand before the answer proper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lead {
    /// Line breaks; thinking is between tags and known to the constraint.
    Breaks,
    /// Messages in the channel of thoughts.
    Channels,
}

/// A call inside its markers.
#[derive(Debug)]
pub(crate) enum Body {
    /// Texts around the arguments, which are one JSON object. Of several first texts the answer may have any.
    Json { before: &'static [&'static str], after: &'static str },
    /// Arguments with bare keys and strings between quotes of their own, in braces.
    Bare {
        /// Before the arguments.
        open: &'static str,
        /// Around a string.
        quote: &'static str,
    },
    /// Parameters in tags.
    Tagged {
        /// Before the parameters.
        open: &'static str,
        /// Before a value that is text.
        text: &'static str,
        /// Before a value that is JSON.
        json: &'static str,
        /// Behind a value.
        end: &'static str,
        /// Behind the parameters.
        close: &'static str,
    },
}

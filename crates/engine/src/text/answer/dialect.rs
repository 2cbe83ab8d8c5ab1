//! The dialects: a table of their files' rows, and how a model's dialect is found.
//!
//! A dialect is what a family was trained to write: where thinking begins and ends, how a call names its function and
//! spells its arguments. Its file has a [`Row`]: how it is known, how it is read, and how its calls are written, from
//! which grammars are made (`constraint/grammar.rs`). docs/adding/dialect.md says how to add one.

use super::Reading;
use super::{deepseek, dsml, glm, harmony, kimi, minimax, qwen};

/// How a family writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Channels: `<|channel|>analysis<|message|>...`, calls in `commentary` with a recipient (gpt-oss).
    Harmony,
    /// `<｜DSML｜invoke name="NAME">` with parameters in tags (DeepSeek-V3.2 and V4).
    Dsml,
    /// `<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>` (MiniMax-M2).
    MiniMax,
    /// `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>` (GLM-4.5 and later).
    Glm,
    /// `<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>` (Kimi-K2).
    Kimi,
    /// `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>` (DeepSeek-V3, R1 and V3.1).
    DeepSeek,
    /// `<function=NAME><parameter=KEY>VALUE</parameter></function>` (Qwen3-Coder, Qwen3.5 and later).
    QwenXml,
    /// `{"name": ..., "arguments": {...}}` (Hermes; Qwen2.5, Qwen3).
    Hermes,
}

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

/// Every dialect, in the order in which templates are searched for their signs.
const ROWS: [(Dialect, &Row); 8] = [
    (Dialect::Harmony, &harmony::ROW),
    (Dialect::Dsml, &dsml::ROW),
    (Dialect::MiniMax, &minimax::ROW),
    (Dialect::Glm, &glm::ROW),
    (Dialect::Kimi, &kimi::ROW),
    (Dialect::DeepSeek, &deepseek::ROW),
    (Dialect::QwenXml, &qwen::XML),
    (Dialect::Hermes, &qwen::HERMES),
];

impl Dialect {
    /// Every dialect.
    pub const ALL: [Self; ROWS.len()] = {
        let mut all = [Self::Harmony; ROWS.len()];
        let mut index = 0;
        while index < ROWS.len() {
            all[index] = ROWS[index].0;
            index += 1;
        }
        all
    };

    /// The dialect that a chat template teaches its model.
    pub fn of(template: &str) -> Self {
        let taught = |row: &Row| row.signs.iter().any(|sign| template.contains(sign));
        ROWS.iter().find(|(_, row)| taught(row)).map_or(Self::Hermes, |(dialect, _)| *dialect)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// What closes the thinking and begins the visible answer, with control tokens as text.
    pub fn closing(self) -> &'static str {
        self.row().closing
    }

    /// Control tokens that end an answer, whatever the model's configuration says.
    pub fn ends(self) -> &'static [&'static str] {
        self.row().ends
    }

    /// Whether thinking is a block between `<think>` and `</think>`.
    pub fn thinks_in_tags(self) -> bool {
        self.calls().lead == Lead::Breaks
    }

    /// How its calls are written.
    pub(crate) fn calls(self) -> &'static CallForm {
        &self.row().calls
    }

    pub(super) fn reading(self, opens_reasoning: bool) -> Box<dyn Reading> {
        (self.row().reading)(opens_reasoning)
    }

    fn row(self) -> &'static Row {
        let found = ROWS.iter().find(|(dialect, _)| *dialect == self);
        found.expect("every dialect has a row").1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dialect_has_a_row_and_its_signs_find_it() {
        for dialect in Dialect::ALL {
            for sign in dialect.row().signs {
                assert_eq!(Dialect::of(&format!("{{{{ '{sign}' }}}}")), dialect);
            }
        }
        assert_eq!(Dialect::of("{{ messages }}"), Dialect::Hermes);
    }
}

//! The dialects: a table of their files' rows, and how a model's dialect is found.
//!
//! A dialect is what a family was trained to write: where thinking begins and ends, how a call names its function and
//! spells its arguments. Its file has a [`Row`] (`row.rs`): how it is known, how it is read, and how its calls are
//! written, from which grammars are made (`constraint/grammar.rs`). docs/adding/dialect.md says how to add one.

use super::row::{CallForm, Row};
use super::{Reading, THINK, deepseek, dsml, gemma, glm, harmony, kimi, minimax, qwen};

/// How a family writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Channels: `<|channel|>analysis<|message|>...`, calls in `commentary` with a recipient (gpt-oss).
    Harmony,
    /// `<|tool_call>call:NAME{key:<|"|>text<|"|>,n:1}<tool_call|>`, thinking in a channel (Gemma-4).
    Gemma,
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

/// Every dialect, in the order in which templates are searched for their signs.
const ROWS: [(Dialect, &Row); 9] = [
    (Dialect::Harmony, &harmony::ROW),
    (Dialect::Gemma, &gemma::ROW),
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
        self.row().thinking == THINK
    }

    /// Control tokens around the thinking; empty where it is a message of its own.
    pub fn thinking(self) -> [&'static str; 2] {
        self.row().thinking
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

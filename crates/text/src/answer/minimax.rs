//! MiniMax-M2's dialect: functions in `<invoke>` tags, several in one block.

use super::THINK;
use super::blocks::{Blocks, Syntax};
use super::dsml::look_ahead_of;
use super::row::{Body, CallForm, Lead, Row};
use super::tagged::{Tags, named};

const TAGS: Tags = Tags {
    start: "<minimax:tool_call>",
    end: "</minimax:tool_call>",
    function: "<invoke name=\"",
    function_end: "</invoke>",
    parameter: "<parameter name=\"",
    header: |rest| named(rest, "\">"),
    parameter_end: "</parameter>",
    several: true,
    lines: false,
};
const SYNTAX: Syntax = Syntax {
    start: TAGS.start,
    end: TAGS.end,
    function: TAGS.function,
    silent: &[],
    thinking: THINK,
    look_ahead: |_, held, last, tools| look_ahead_of(&TAGS, held, last, tools),
};

pub(super) const ROW: Row = Row {
    name: "minimax",
    signs: &["<minimax:tool_call>"],
    reading: |opens| Box::new(Blocks::new(&SYNTAX, opens)),
    calls: CallForm {
        lead: Lead::Breaks,
        block: ["<minimax:tool_call>\n", "\n</minimax:tool_call>"],
        call: ["", ""],
        between: "\n",
        begins_block: true,
        body: Body::Tagged {
            open: "<invoke name=\"{name}\">\n",
            text: "<parameter name=\"{key}\">",
            json: "<parameter name=\"{key}\">",
            end: "</parameter>\n",
            close: "</invoke>",
        },
    },
    thinking: THINK,
    closing: "\n</think>\n\n",
    ends: &[],
};

//! Targets of the command line's own files: token ids and questions.
//!
//! The command line is a program without a library, so the two parsers are compiled in from its sources.

use serde_json::json;
use text::{AnswerParser, Dialect, Message, Role, collect};

use crate::mutate;
use crate::target::Target;

#[path = "../../crates/flashmoe/src/commands/ids.rs"]
mod ids;

#[allow(dead_code, reason = "the program uses what the fuzzer does not")]
#[path = "../../crates/flashmoe/src/commands/eval/check.rs"]
mod check;
#[allow(dead_code, reason = "the program uses what the fuzzer does not")]
#[path = "../../crates/flashmoe/src/commands/eval/item.rs"]
mod item;

/// What is accepted is a list of numbers that are written as they were read.
pub(crate) fn token_ids() -> Target {
    Target {
        seeds: [&b"[1, 2, 3]"[..], b"[4294967295]", b" [\n0\n] "].map(<[u8]>::to_vec).to_vec(),
        mutate: |random, input| {
            let words = [
                "[",
                "]",
                ",",
                "-1",
                "4294967296",
                "1.0",
                "1e3",
                "null",
                "\"7\"",
                "[[1]]",
                "0x10",
                " ",
                "\u{feff}",
            ];
            mutate::bytes(random, input, &words);
        },
        run: Box::new(|input| {
            if let Ok(found) = ids::parse(input) {
                assert!(!found.is_empty());
                let again = serde_json::to_vec(&found).expect("numbers can be written");
                assert_eq!(ids::parse(&again), Ok(found));
            }
        }),
    }
}

/// A question that is read can be asked and its check be used on any answer.
pub(crate) fn tasks() -> Target {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object",
        "properties": {"x": {"type": "integer"}}, "required": ["x"]}}});
    let ask = json!([{"role": "user", "content": "q"}]);
    let checks = [
        json!({"kind": "exact", "value": "a"}),
        json!({"kind": "contains", "values": ["a", ""]}),
        json!({"kind": "json", "value": {"a": [1, 2.5, null]}}),
        json!({"kind": "tool_calls", "calls": [{"name": "f", "arguments": {"x": 1}}]}),
    ];
    let seeds = checks.map(|check| {
        json!({"task": "t", "messages": ask, "tools": [tool], "enable_thinking": true, "check": check})
            .to_string()
            .into_bytes()
    });
    let mut parser = AnswerParser::new(Dialect::QwenXml, &[tool], false);
    let mut events = parser.push(
        "a <tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
    );
    events.extend(parser.finish());
    let answers = [collect(&events), Message::new(Role::Assistant, "{\"a\": [1, 2.5, null]}")];
    Target {
        seeds: seeds.to_vec(),
        mutate: |random, input| {
            let words = [
                "task",
                "messages",
                "tools",
                "enable_thinking",
                "check",
                "kind",
                "exact",
                "contains",
                "json",
                "tool_calls",
                "value",
                "values",
                "calls",
                "name",
                "arguments",
                "function",
                "parameters",
                "properties",
                "required",
                "role",
                "content",
            ];
            mutate::json(random, input, &words);
        },
        run: Box::new(move |input| {
            let text = String::from_utf8_lossy(input);
            for line in text.lines() {
                let Ok(Some(item)) = item::parse(line) else { continue };
                for answer in &answers {
                    let _ = (item.check.passes(answer), item.check.json_is_valid(answer));
                    let attempts = check::attempts_call(answer);
                    let _ = (attempts, check::calls_are_valid(answer, &item.tools));
                }
                let _ = Message::from_openai(&item.messages);
                let mut parser = AnswerParser::new(Dialect::Hermes, &item.tools, true);
                let _ = (parser.push("</think>x"), parser.finish());
            }
        }),
    }
}

//! Transcripts of every dialect: a model's own text, read by its dialect and sent by every protocol, streamed and
//! whole.
//!
//! Each dialect has an answer as it should be, with thinking, text and a call, and one that is malformed. The text
//! comes in pieces of seven characters, as tokens would bring it.

use crate::support;

use serde_json::{Value, json};
use server::work::{Event, FinishReason, Piece};
use support::transcripts::{self, Scenario, scenario};
use support::{finish, say};
use text::{AnswerEvent, AnswerParser, Dialect};

fn tools() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}),
    ]
}

/// What the worker makes of a model's text.
fn events(dialect: Dialect, text: &str, opens: bool) -> Vec<Event> {
    let piece = |text: String| Piece { text, logprobs: Vec::new() };
    let event = |event: AnswerEvent| match event {
        AnswerEvent::Reasoning(text) => Event::Reasoning(piece(text)),
        AnswerEvent::Text(text) => Event::Text(piece(text)),
        AnswerEvent::CallStarted { index, name } => {
            Event::CallStarted { index, id: format!("{index:032x}"), name }
        }
        AnswerEvent::CallArguments { index, delta } => Event::CallArguments { index, delta },
        AnswerEvent::CallEnded { index } => Event::CallEnded { index },
    };
    let mut parser = AnswerParser::new(dialect, &tools(), opens);
    let characters: Vec<char> = text.chars().collect();
    let mut events: Vec<Event> = Vec::new();
    for characters in characters.chunks(7) {
        events.extend(parser.push(&characters.iter().collect::<String>()).into_iter().map(event));
    }
    events.extend(parser.finish().into_iter().map(event));
    let called = events.iter().any(|event| matches!(event, Event::CallStarted { .. }));
    events.push(finish(if called { FinishReason::ToolCalls } else { FinishReason::Stop }));
    events
}

/// Name, dialect, whether the prompt opens the thinking, and the model's text.
const ANSWERS: [(&str, Dialect, bool, &str); 19] = [
    (
        "harmony",
        Dialect::Harmony,
        false,
        "<|channel|>analysis<|message|>I should ask.<|end|><|start|>assistant<|channel|>commentary<|message|>Asking.\
         <|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>\
         {\"city\": \"Oslo\", \"days\": 2}<|call|>",
    ),
    (
        "harmony_no_end",
        Dialect::Harmony,
        false,
        "<|channel|>analysis<|message|>I should ask.<|start|>assistant<|channel|>commentary to=functions.get_weather\
         <|message|>{\"city\": \"Oslo\"}",
    ),
    (
        "harmony_two_finals",
        Dialect::Harmony,
        false,
        "<|channel|>final<|message|>One.<|end|><|start|>assistant<|channel|>final<|message|>Two.<|return|>",
    ),
    (
        "harmony_call_in_analysis",
        Dialect::Harmony,
        false,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>analysis to=functions.get_weather code\
         <|message|>{\"city\": \"Oslo\"}<|call|>",
    ),
    (
        "dsml",
        Dialect::Dsml,
        true,
        "I should ask.</think>Asking.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n\
         <｜DSML｜parameter name=\"city\" string=\"true\">Oslo</｜DSML｜parameter>\n\
         <｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n\
         </｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    ),
    (
        "dsml_no_think_end",
        Dialect::Dsml,
        true,
        "I should ask.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n\
         <｜DSML｜parameter name=\"arguments\" string=\"false\">{\"city\": \"Oslo\"}</｜DSML｜parameter>\n\
         </｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    ),
    (
        "minimax",
        Dialect::MiniMax,
        true,
        "I should ask.\n</think>\n\nAsking.\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n\
         <parameter name=\"city\">Oslo</parameter>\n<parameter name=\"days\">2</parameter>\n</invoke>\n\
         </minimax:tool_call>",
    ),
    (
        "minimax_no_block",
        Dialect::MiniMax,
        true,
        "I should ask.\n</think>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Oslo</parameter>\n</invoke>",
    ),
    (
        "glm",
        Dialect::Glm,
        false,
        "\n<think>I should ask.</think>\nAsking.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n\
         <arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    ),
    (
        "glm_no_value_end",
        Dialect::Glm,
        false,
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</tool_call>",
    ),
    (
        "kimi",
        Dialect::Kimi,
        false,
        "<think>I should ask.</think>Asking.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0\
         <|tool_call_argument_begin|>{\"city\": \"Oslo\", \"days\": 2}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        "kimi_no_call_end",
        Dialect::Kimi,
        false,
        "<|tool_call_begin|>get_weather<|tool_call_argument_begin|>{\"city\": \"Oslo\"}<|tool_calls_section_end|>",
    ),
    (
        "deepseek",
        Dialect::DeepSeek,
        true,
        "I should ask.</think>Asking.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>\
         {\"city\": \"Oslo\", \"days\": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "deepseek_fenced",
        Dialect::DeepSeek,
        false,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Oslo\"}\n```\
         <｜tool▁call▁end｜>",
    ),
    (
        "gemma",
        Dialect::Gemma,
        false,
        "<|channel>thought\nI should ask.\n<channel|>Asking.<|tool_call>call:get_weather{city:<|\"|>Oslo<|\"|>,days:2}\
         <tool_call|>",
    ),
    (
        "gemma_no_string_end",
        Dialect::Gemma,
        true,
        "I should ask.<channel|><|tool_call>call:get_weather{city:<|\"|>Oslo<tool_call|>",
    ),
    (
        "qwen_xml",
        Dialect::QwenXml,
        true,
        "I should ask.\n</think>\n\nAsking.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n\
         </parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
    ),
    (
        "hermes",
        Dialect::Hermes,
        false,
        "<think>\nI should ask.\n</think>\n\nAsking.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": \
         {\"city\": \"Oslo\", \"days\": 2}}\n</tool_call>",
    ),
    (
        "unknown_function",
        Dialect::Harmony,
        false,
        "<|channel|>commentary to=functions.rm <|constrain|>json<|message|>{\"path\": \"a\"}<|call|>",
    ),
];

fn scenarios() -> Vec<Scenario> {
    let all = ANSWERS.iter();
    all.map(|&(name, dialect, opens, text)| scenario(name, say(events(dialect, text, opens))))
        .collect()
}

#[test]
fn every_dialect_is_the_same_in_every_protocol() {
    let dialects = ANSWERS.map(|(_, dialect, ..)| dialect);
    assert!(Dialect::ALL.iter().all(|dialect| dialects.contains(dialect)));
    assert_eq!(transcripts::check("tests/golden/dialects", &scenarios), 3 * ANSWERS.len());
    // An answer as it should be says the same in every dialect.
    let said = |name: &str| {
        let (_, dialect, opens, text) = ANSWERS.iter().find(|answer| answer.0 == name).unwrap();
        let mut parser = AnswerParser::new(*dialect, &tools(), *opens);
        let mut events = parser.push(text);
        events.extend(parser.finish());
        let message = text::collect(&events);
        (message.reasoning, message.content, message.tool_calls)
    };
    let expected = said("qwen_xml");
    for name in ["harmony", "dsml", "minimax", "glm", "kimi", "deepseek", "gemma", "hermes"] {
        assert_eq!(said(name), expected, "{name}");
    }
}

//! Answers taken apart: every way of cutting the text gives the same result, and what models get wrong is either
//! recovered or returned as text.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use engine::text::{AnswerEvent, AnswerParser, Dialect, Message, collect};
use serde_json::{Value, json};

fn tools() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}, "zip": {"type": "string"},
            "exact": {"type": "boolean"}, "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}}}),
        json!({"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {
            "query": {"type": "string"}}}}}),
    ]
}

fn whole(dialect: Dialect, text: &str, opens_reasoning: bool) -> Message {
    let mut parser = AnswerParser::new(dialect, &tools(), opens_reasoning);
    let mut events = parser.push(text);
    events.extend(parser.finish());
    check_order(&events);
    collect(&events)
}

/// Calls start, give arguments and end in order; the arguments of each join to one object.
fn check_order(events: &[AnswerEvent]) {
    let mut open: Option<(usize, String)> = None;
    let mut calls = 0;
    for event in events {
        match event {
            AnswerEvent::CallStarted { index, .. } => {
                assert!(open.is_none() && *index == calls);
                open = Some((*index, String::new()));
            }
            AnswerEvent::CallArguments { index, delta } => {
                let (current, text) = open.as_mut().unwrap();
                assert_eq!(current, index);
                text.push_str(delta);
            }
            AnswerEvent::CallEnded { index } => {
                let (current, text) = open.take().unwrap();
                assert_eq!(current, *index);
                assert!(serde_json::from_str::<Value>(&text).unwrap().is_object());
                calls += 1;
            }
            AnswerEvent::Reasoning(text) | AnswerEvent::Text(text) => assert!(!text.is_empty()),
        }
    }
    assert!(open.is_none());
}

const CALL: &str = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n\
    </function>\n</tool_call>";

#[test]
fn thinking_text_and_calls_are_told_apart() {
    let message =
        whole(Dialect::QwenXml, &format!("\nLet me see.\n</think>\n\nOne moment.\n\n{CALL}"), true);
    assert_eq!(message.reasoning.as_deref(), Some("Let me see."));
    assert_eq!(message.content, "One moment.");
    assert_eq!(message.tool_calls.len(), 1);
    assert_eq!(message.tool_calls[0].name, "get_weather");
    assert_eq!(Value::Object(message.tool_calls[0].arguments.clone()), json!({"city": "Paris"}));
    let cut = whole(Dialect::QwenXml, "I was going to", true);
    assert_eq!((cut.reasoning.as_deref(), cut.content.as_str()), (Some("I was going to"), ""));
    let twice = whole(Dialect::QwenXml, "a\n</think>\n\nb</think>c", true);
    assert_eq!((twice.reasoning.as_deref(), twice.content.as_str()), (Some("a"), "bc"));
}

#[test]
fn arguments_take_the_types_of_the_schema() {
    let call = |parameters: &str| {
        format!("<tool_call>\n<function=get_weather>\n{parameters}</function>\n</tool_call>")
    };
    let value = |key: &str, text: &str| format!("<parameter={key}>\n{text}\n</parameter>\n");
    for (key, text, expected) in [
        ("zip", "02134", json!("02134")),
        ("days", "3", json!(3)),
        ("days", "three", json!("three")),
        ("exact", "True", json!(true)),
        ("note", "None", Value::Null),
        ("note", "12", json!("12")),
        ("city", "line one\nline two", json!("line one\nline two")),
        ("city", "</parameter> is a tag", json!("</parameter> is a tag")),
        ("city", "a \"quoted\" \\ name", json!("a \"quoted\" \\ name")),
        ("unknown", "[1, 2]", json!([1, 2])),
        ("unknown", "plain", json!("plain")),
    ] {
        let message = whole(Dialect::QwenXml, &call(&value(key, text)), false);
        assert_eq!(message.tool_calls.len(), 1, "{key}: {text}");
        assert_eq!(message.tool_calls[0].arguments[key], expected, "{key}: {text}");
        assert_eq!(message.content, "");
    }
}

#[test]
fn what_models_get_wrong_is_recovered_or_returned_as_text() {
    let city = json!({"city": "Paris"});
    for text in [
        // No opening marker.
        "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        // No closing tag of the parameter.
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</function>\n</tool_call>",
        // A closing tag twice.
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</parameter>\n\
         </function>\n</tool_call>",
        // No closing tag of the function.
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</tool_call>",
        // Cut off at the end.
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>",
    ] {
        let message = whole(Dialect::QwenXml, text, false);
        assert_eq!(message.tool_calls.len(), 1, "{text}");
        assert_eq!(Value::Object(message.tool_calls[0].arguments.clone()), city, "{text}");
        assert_eq!(message.content, "", "{text}");
    }
    let inside = whole(Dialect::QwenXml, &format!("I call it.\n{CALL}"), true);
    assert_eq!(inside.reasoning.as_deref(), Some("I call it."));
    assert_eq!(inside.tool_calls.len(), 1);
    let unknown = CALL.replace("get_weather", "delete_everything");
    let message = whole(Dialect::QwenXml, &unknown, false);
    assert!(message.tool_calls.is_empty());
    assert_eq!(message.content, unknown);
    // Cut off inside a value: half a call is not made.
    for half in [
        "<tool_call>\n<function=get_weather>",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar",
    ] {
        let message = whole(Dialect::QwenXml, half, false);
        assert!(message.tool_calls.is_empty(), "{half}");
        assert_eq!(message.content, half);
    }
    // A marker that is only mentioned swallows nothing.
    let mentioned = whole(
        Dialect::QwenXml,
        &format!("I could write <tool_call> now.\n</think>\n\nDone.\n{CALL}"),
        true,
    );
    assert_eq!(mentioned.reasoning.as_deref(), Some("I could write <tool_call> now."));
    assert_eq!((mentioned.content.as_str(), mentioned.tool_calls.len()), ("Done.", 1));
    let several = whole(Dialect::QwenXml, &format!("{CALL}\n{CALL}"), false);
    assert_eq!(several.tool_calls.len(), 2);
}

#[test]
fn the_json_dialect_is_read() {
    let text = "<tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\": \"a </tool_call> b\"}}\n</tool_call>";
    let message = whole(Dialect::Hermes, text, false);
    assert_eq!(message.tool_calls[0].arguments["query"], json!("a </tool_call> b"));
    let broken = "<tool_call>\n{\"name\": \"search\"\n</tool_call>";
    assert_eq!(whole(Dialect::Hermes, broken, false).content, broken);
}

#[test]
fn any_way_of_cutting_the_text_gives_the_same_answer() {
    let texts = [
        format!("\nthought <b> </thin\n</think>\n\ntext < more\n\n{CALL}\n{CALL}\nafter"),
        CALL.replace("Paris", "x </tool_call> <tool_call> y"),
        "plain <tool_cal text\n\n".to_owned(),
        "é</think>ü<tool_call>ß".to_owned(),
        format!("{}\n{CALL}", CALL.trim_end_matches("</tool_call>")),
        "mention <tool_call> and <function= in prose".to_owned(),
    ];
    for (text, opens) in texts.iter().flat_map(|text| [(text, true), (text, false)]) {
        for dialect in [Dialect::QwenXml, Dialect::Hermes] {
            let expected = whole(dialect, text, opens);
            let characters: Vec<char> = text.chars().collect();
            for size in 1..=9 {
                let mut parser = AnswerParser::new(dialect, &tools(), opens);
                let mut events = Vec::new();
                for piece in characters.chunks(size) {
                    events.extend(parser.push(&piece.iter().collect::<String>()));
                }
                events.extend(parser.finish());
                check_order(&events);
                assert_eq!(collect(&events), expected, "{text:?} in pieces of {size}");
            }
        }
    }
}

#[test]
fn mutated_answers_neither_panic_nor_lose_order() {
    let mut state = 7u64;
    let mut random = move |bound: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    let base: Vec<char> = format!("thought</think>\n\ntext {CALL} tail").chars().collect();
    let inserts = [
        "<tool_call>",
        "</tool_call>",
        "<function=",
        "</parameter>",
        "<parameter=x>",
        "<think>",
        "\n",
        ">",
    ];
    for _ in 0..4000 {
        let mut text = base.clone();
        for _ in 0..=random(4) {
            let at = random(text.len());
            match random(3) {
                0 => drop(text.drain(at..text.len().min(at + 1 + random(12)))),
                1 => text.splice(at..at, inserts[random(inserts.len())].chars()).for_each(drop),
                _ => text[at] = ['<', '>', '/', 'a', '\n', 'é'][random(6)],
            }
            if text.is_empty() {
                text.push('x');
            }
        }
        let text: String = text.into_iter().collect();
        whole(Dialect::QwenXml, &text, random(2) == 0);
    }
}

//! Answers taken apart: every way of cutting the text gives the same result, and what models get wrong is either
//! recovered or returned as text.

use crate::support;

use proptest::prelude::*;
use serde_json::{Value, json};
use support::check_order;
use text::{AnswerEvent, AnswerParser, Dialect, Message, collect, joined};

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
    // A name alone is no call.
    let half = "<tool_call>\n<function=get_weather>";
    let message = whole(Dialect::QwenXml, half, false);
    assert!(message.tool_calls.is_empty());
    assert_eq!(message.content, half);
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

/// The joined events of an answer, with its parser.
fn parsed(
    dialect: Dialect,
    text: &str,
    opens: bool,
    size: usize,
) -> (Vec<AnswerEvent>, AnswerParser) {
    let mut parser = AnswerParser::new(dialect, &tools(), opens);
    let characters: Vec<char> = text.chars().collect();
    let mut events = Vec::new();
    for piece in characters.chunks(size) {
        events.extend(parser.push(&piece.iter().collect::<String>()));
    }
    events.extend(parser.finish());
    check_order(&events);
    (joined(events), parser)
}

#[test]
fn arguments_come_while_they_are_generated() {
    let deltas = |dialect, text: &str| {
        let mut parser = AnswerParser::new(dialect, &tools(), false);
        let mut deltas = Vec::new();
        for c in text.chars() {
            for event in parser.push(&c.to_string()) {
                match event {
                    AnswerEvent::CallStarted { name, .. } => deltas.push(name),
                    AnswerEvent::CallArguments { delta, .. } => deltas.push(delta),
                    AnswerEvent::CallEnded { .. } => deltas.push("end".to_owned()),
                    other => panic!("{other:?}"),
                }
            }
        }
        deltas
    };
    let xml = CALL.replace("\n</function>", "\n<parameter=days>\n12\n</parameter>\n</function>");
    let expected =
        ["get_weather", "{\"city\":\"", "P", "a", "r", "i", "s", "\"", ",\"days\":12", "}end"];
    let found = deltas(
        Dialect::QwenXml,
        &xml.replace("</parameter>\n</function>", "</parameter></function>"),
    );
    assert_eq!(found.concat(), expected.concat());
    assert_eq!(found[..8], expected[..8]);
    let json = "<tool_call>\n{\"name\": \"get_weather\", \
                \"arguments\": {\"city\": \"Oslo\", \"days\": 12}}\n</tool_call>";
    let found = deltas(Dialect::Hermes, json);
    assert_eq!(found[..4], ["get_weather", "{", "\"city\":\"", "O"]);
    assert_eq!(found.concat(), "get_weather{\"city\":\"Oslo\",\"days\":12}end");
}

/// Name and arguments of the calls, and the repairs that were counted.
fn calls(dialect: Dialect, text: &str) -> (Vec<(String, Value)>, String, AnswerParser) {
    let (events, parser) = parsed(dialect, text, false, 3);
    let message = collect(&events);
    let calls = message.tool_calls.into_iter();
    let calls = calls.map(|call| (call.name, Value::Object(call.arguments))).collect();
    (calls, message.content, parser)
}

#[test]
fn repairs_are_counted_by_kind() {
    let open = "<tool_call>\n<function=get_weather>\n<parameter=city>\n";
    let rest = "\n</parameter>\n</function>\n</tool_call>";
    for (text, arguments, kinds) in [
        (format!("{open}Oslo{rest}"), json!({"city": "Oslo"}), &[][..]),
        (format!("{open}Oslo\n</function>\n</tool_call>"), json!({"city": "Oslo"}), &["missing_parameter_end"]),
        (
            format!("{open}Oslo\n<parameter=days>\n3{rest}"),
            json!({"city": "Oslo", "days": 3}),
            &["missing_parameter_end"],
        ),
        (
            // No parameter of this function: part of the value.
            format!("{open}Oslo\n<parameter=colour>\n3{rest}"),
            json!({"city": "Oslo\n<parameter=colour>\n3"}),
            &[],
        ),
        (
            format!("{open}Oslo\n</tool_call>"),
            json!({"city": "Oslo"}),
            &["missing_parameter_end", "missing_function_end"],
        ),
        (
            format!("{open}Oslo\n</parameter>\n<parameter=city>\nRome{rest}"),
            json!({"city": "Oslo"}),
            &["duplicate_parameter"],
        ),
        (format!("{open}Os</parameter>lo</function> x{rest}"), json!({"city": "Os</parameter>lo</function> x"}), &[]),
        (format!("{open}{rest}"), json!({"city": ""}), &[]),
        (format!("{open}\n\n{rest}"), json!({"city": "\n\n"}), &[]),
        (format!("{open}Oslo\n</parameter></parameter>{rest}"), json!({"city": "Oslo"}), &["repeated_end"]),
        (format!("{open}Oslo\n</parameter>\n</function>"), json!({"city": "Oslo"}), &["missing_call_end"]),
        (format!("{open}Oslo\n</parameter>"), json!({"city": "Oslo"}), &["truncated"]),
        (format!("{open}Osl"), json!({"city": "Osl"}), &["truncated"]),
        (format!("{open}Oslo\n</parameter>\n<parameter=days>\n"), json!({"city": "Oslo"}), &["truncated"]),
        (format!("{open}Oslo\n</parameter>\n<para"), json!({"city": "Oslo"}), &["truncated"]),
        (format!("{open}Oslo\n</parameter>\n<parameter=exact>\nTrue{rest}"), json!({"city": "Oslo", "exact": true}),
            &["python_value"]),
        (format!("{open}Oslo\n</parameter>\n<parameter=days>\nmany{rest}"), json!({"city": "Oslo", "days": "many"}),
            &["unfitting_value"]),
        (
            "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>".to_owned(),
            json!({"city": "Oslo"}),
            &["other_dialect"],
        ),
        ("<tool_call>\n<function=get_weather>\n</function>\n</tool_call>".to_owned(), json!({}), &[]),
        ("<function=get_weather>\n</function>\n</tool_call>".to_owned(), json!({}), &["missing_call_start"]),
    ] {
        let (calls, content, parser) = calls(Dialect::QwenXml, &text);
        assert_eq!(calls, [("get_weather".to_owned(), arguments)], "{text}");
        assert_eq!(content, "", "{text}");
        let found: Vec<&str> =
            parser.repairs().iter().filter(|(_, count)| *count > 0).map(|(kind, _)| kind).collect();
        let mut expected = kinds.to_vec();
        expected.sort_unstable();
        let mut sorted = found.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, expected, "{text}");
        assert_eq!(parser.truncated_call(), kinds.contains(&"truncated"), "{text}");
    }
}

#[test]
fn the_json_dialect_is_streamed_and_repaired() {
    let call = |body: &str| format!("<tool_call>\n{body}\n</tool_call>");
    for (text, arguments, kinds) in [
        (
            call("{\"name\": \"search\", \"arguments\": {\"query\": \"x\"}}"),
            json!({"query": "x"}),
            &[][..],
        ),
        (
            call("{\"arguments\": {\"query\": \"x\"}, \"name\": \"search\"}"),
            json!({"query": "x"}),
            &[],
        ),
        (
            call("{\"name\": \"search\", \"arguments\": \"{\\\"query\\\": \\\"x\\\"}\"}"),
            json!({"query": "x"}),
            &[],
        ),
        (call("{\"name\": \"search\", \"arguments\": null}"), json!({}), &[]),
        (call("{\"name\": \"search\"}"), json!({}), &[]),
        (
            call(
                "{\"name\": \"search\", \"arguments\": {\"query\": \"\\ud83d\\ude00 \\u00e9\\n\"}}",
            ),
            json!({"query": "\u{1f600} é\n"}),
            &[],
        ),
        (
            call(
                "{\"name\": \"search\", \"arguments\": {\"query\": \"a\nb\\d\", \"n\": [1, 2,], }}",
            ),
            json!({"query": "a\nb\\d", "n": [1, 2]}),
            &["malformed_json"],
        ),
        (
            call("{\"name\": \"search\", \"arguments\": {\"exact\": True, \"n\": None}}"),
            json!({"exact": true, "n": null}),
            &["python_value"],
        ),
        (
            call("{\"name\": \"search\", \"arguments\": {\"query\": \"x\"}"),
            json!({"query": "x"}),
            &["malformed_json"],
        ),
        (
            call("{\"name\": \"search\", \"arguments\": {\"query\": \"x"),
            json!({"query": "x"}),
            &["malformed_json"],
        ),
        (
            call("{\"name\": \"search\", \"arguments\": {\"query\": \"x\"}, \"id\": {\"a\": 1}}"),
            json!({"query": "x"}),
            &[],
        ),
        (
            "<tool_call>{\"name\": \"search\", \"arguments\": {\"query\": \"x\", \"k\": [1, 23"
                .to_owned(),
            json!({"query": "x", "k": [1]}),
            &["truncated"],
        ),
        (
            "<tool_call>{\"name\": \"search\", \"arguments\": {\"query\": \"x\", \"ke".to_owned(),
            json!({"query": "x"}),
            &["truncated"],
        ),
        (
            call("<function=search>\n<parameter=query>\nx\n</parameter>\n</function>"),
            json!({"query": "x"}),
            &["other_dialect"],
        ),
    ] {
        let (calls, content, parser) = calls(Dialect::Hermes, &text);
        assert_eq!(calls, [("search".to_owned(), arguments)], "{text}");
        assert_eq!(content, "", "{text}");
        let found: Vec<&str> =
            parser.repairs().iter().filter(|(_, count)| *count > 0).map(|(kind, _)| kind).collect();
        assert_eq!(found, kinds, "{text}");
    }
    for text in [
        call("{\"name\": \"nobody\", \"arguments\": {}}"),
        call("{\"arguments\": {}}"),
        call("{\"name\": \"search\", \"arguments\": [1]}"),
        call("{name: search}"),
        "<tool_call>\n{\"name\": \"sea".to_owned(),
    ] {
        let (calls, content, _) = calls(Dialect::Hermes, &text);
        assert!(calls.is_empty(), "{text}");
        assert_eq!(content, text);
    }
}

#[test]
fn ladders_of_alternatives_decide_the_type() {
    let tools = [
        json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object",
        "$defs": {"Limit": {"type": "integer"}, "Filter": {"type": "object"}},
        "properties": {"limit": {"anyOf": [{"$ref": "#/$defs/Limit"}, {"type": "null"}]},
            "filter": {"anyOf": [{"$ref": "#/$defs/Filter"}, {"type": "null"}], "default": null},
            "code": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "names": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}}}}}),
    ];
    for (key, text, expected) in [
        ("limit", "3", json!(3)),
        ("limit", "None", Value::Null),
        ("limit", "null", Value::Null),
        ("filter", "{\"a\": [1, true]}", json!({"a": [1, true]})),
        ("code", "02134", json!("02134")),
        ("code", "null", Value::Null),
        ("code", "nullable", json!("nullable")),
        ("code", "[1]", json!("[1]")),
        ("names", "[\"a\", \"b\"]", json!(["a", "b"])),
        ("names", "[not a list", json!("[not a list")),
        ("names", "a", json!("a")),
        (
            "other",
            "123456789012345678901234567890",
            serde_json::from_str("123456789012345678901234567890").unwrap(),
        ),
    ] {
        let mut parser = AnswerParser::new(Dialect::QwenXml, &tools, false);
        let text = format!(
            "<tool_call>\n<function=f>\n<parameter={key}>\n{text}\n</parameter>\n</function>\n</tool_call>"
        );
        let mut events: Vec<AnswerEvent> =
            text.chars().flat_map(|c| parser.push(&c.to_string())).collect();
        events.extend(parser.finish());
        assert_eq!(collect(&events).tool_calls[0].arguments[key], expected, "{text}");
    }
}

#[test]
fn what_surrounds_a_call_in_the_thinking_stays_thinking() {
    let (events, parser) =
        parsed(Dialect::QwenXml, &format!("a\n{CALL}\nb\n</think>\n\nc"), true, 4);
    let message = collect(&events);
    assert_eq!(message.reasoning.as_deref(), Some("a\nb"));
    assert_eq!((message.content.as_str(), message.tool_calls.len()), ("c", 1));
    assert_eq!(parser.repairs().count("call_in_thinking"), 1);
    let unknown = CALL.replace("get_weather", "nobody");
    let (events, _) = parsed(Dialect::QwenXml, &format!("a {unknown} b</think>c"), true, 4);
    let message = collect(&events);
    assert_eq!(message.reasoning, Some(format!("a {unknown} b")));
    assert_eq!(message.content, "c");
}

#[test]
fn without_a_conversation_text_is_text() {
    let mut parser = AnswerParser::verbatim();
    let text = format!("\n</think> {CALL}\n\n");
    let mut events = parser.push(&text[..20]);
    events.extend(parser.push(&text[20..]));
    events.extend(parser.finish());
    assert_eq!(collect(&events).content, text);
}

const WORDS: [&str; 34] = [
    "<tool_call>",
    "</tool_call>",
    "<function=get_weather>",
    "<function=search>",
    "<function=nobody>",
    "</function>",
    "<parameter=city>",
    "<parameter=days>",
    "<parameter=note>",
    "</parameter>",
    "<think>",
    "</think>",
    "\n",
    "\n\n",
    " ",
    "<",
    "</",
    "Paris",
    "12",
    "null",
    "None",
    "é\u{1f600}",
    "{",
    "}",
    "[1, 2]",
    "\"",
    "\\",
    "{\"name\": \"search\"",
    ", \"arguments\": {",
    "\"query\": \"x\"",
    "\\ud83d",
    ",",
    ":",
    "<tool_call>\n<function=get_weather>\n<parameter=city>\n",
];

proptest! {
    #[test]
    fn any_text_gives_the_same_events_however_it_is_cut(
        words in prop::collection::vec(0..WORDS.len(), 0..24),
        sizes in prop::collection::vec(1_usize..9, 1..12),
        opens: bool,
        hermes: bool,
    ) {
        let text: String = words.iter().map(|&word| WORDS[word]).collect();
        let dialect = if hermes { Dialect::Hermes } else { Dialect::QwenXml };
        let (expected, first) = parsed(dialect, &text, opens, usize::MAX);
        let (letters, second) = parsed(dialect, &text, opens, 1);
        prop_assert_eq!(&letters, &expected, "{:?} letter by letter", &text);
        prop_assert_eq!(first.repairs(), second.repairs(), "{:?}", &text);
        let mut parser = AnswerParser::new(dialect, &tools(), opens);
        let mut events = Vec::new();
        let mut rest = text.as_str();
        for &size in sizes.iter().cycle() {
            let end = rest.char_indices().nth(size).map_or(rest.len(), |(at, _)| at);
            events.extend(parser.push(&rest[..end]));
            rest = &rest[end..];
            if rest.is_empty() {
                break;
            }
        }
        events.extend(parser.finish());
        prop_assert_eq!(joined(events), expected.clone(), "{:?} in pieces {:?}", &text, &sizes);
        // Without a block that was given back, no marker is left.
        let given_back = ["no_call", "unknown_function"].iter().any(|kind| first.repairs().count(kind) > 0);
        for event in &expected {
            if let AnswerEvent::Text(text) | AnswerEvent::Reasoning(text) = event {
                let left = ["</tool_call>", "<think>", "</think>"].iter().any(|marker| text.contains(marker));
                prop_assert!(given_back || !left, "{:?}", text);
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

//! Tokens to events: characters stay whole, and stop strings end the visible text and nothing else.

use crate::support;

use serde_json::{Value, json};
use support::tokenizer;
use text::{AnswerEvent, AnswerParser, AnswerReader, Dialect, StopStrings};

fn tools() -> Vec<Value> {
    vec![json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {
        "a": {"type": "string"}}}}})]
}

/// The events of an answer that is pushed token by token until a stop string ends it.
fn read(text: &str, stops: &[&str]) -> (Vec<AnswerEvent>, Option<usize>) {
    let tokenizer = tokenizer();
    let stops = stops.iter().map(|&stop| stop.to_owned()).collect();
    let parser = AnswerParser::new(Dialect::QwenXml, &tools(), true);
    let stops = StopStrings::new(stops).unwrap();
    let mut reader = AnswerReader::new(tokenizer.stream(), parser, stops);
    let mut events = Vec::new();
    for token in tokenizer.encode(text).unwrap() {
        events.extend(reader.push(token));
        if reader.stop().is_some() {
            break;
        }
    }
    events.extend(reader.finish());
    (events, reader.stop())
}

fn text(events: &[AnswerEvent]) -> String {
    let visible = events.iter().filter_map(|event| match event {
        AnswerEvent::Text(text) => Some(text.as_str()),
        _ => None,
    });
    visible.collect()
}

#[test]
fn a_stop_string_ends_the_visible_text_alone() {
    let call = "<tool_call>\n<function=f>\n<parameter=a>\nx END y\n</parameter>\n</function>\n</tool_call>";
    let (events, stop) =
        read(&format!("END is thought of</think>One E{call}ND two END three"), &["no", "END"]);
    assert_eq!((text(&events).as_str(), stop), ("One END two ", Some(1)));
    let arguments: String = events
        .iter()
        .filter_map(|event| match event {
            AnswerEvent::CallArguments { delta, .. } => Some(delta.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(arguments, "{\"a\":\"x END y\"}");
    // What was held back as the beginning of a stop string comes before the call that interrupts it.
    let started = events.iter().position(|event| matches!(event, AnswerEvent::CallStarted { .. }));
    assert_eq!(text(&events[..started.unwrap()]), "One E");
}

#[test]
fn characters_stay_whole_and_nothing_is_lost() {
    let (events, stop) = read("</think>\n\n天气 \u{1f600}\u{1f601} é EN", &["END"]);
    assert_eq!((text(&events).as_str(), stop), ("天气 \u{1f600}\u{1f601} é EN", None));
    assert!(!text(&events).contains('\u{fffd}'));
}

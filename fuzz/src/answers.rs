//! Targets of what follows the model: its answers taken apart, and constraints upon them.

use serde_json::{Value, json};
use text::constraint::{ConstraintError, Grammars, Rule};
use text::{AnswerEvent, AnswerParser, Dialect, StopStrings, Thinking, joined};

use crate::dialects::{SAMPLES, WORDS};
use crate::mutate;
use crate::random::Random;
use crate::target::Target;
use crate::text::{good_tokenizer, tool};

fn tools() -> [Value; 2] {
    let parameters = json!({"properties": {"b": {"type": "string"}, "c": {"anyOf": [{"type": "integer"},
        {"type": "null"}, {"type": "array"}]}, "d": {"type": ["string", "object"]}}});
    [tool(), json!({"type": "function", "function": {"name": "g", "parameters": parameters}})]
}

/// However an answer is cut into pieces, its events are the same; and stop strings never swallow text. The first byte
/// of the input says in which dialect the rest is read.
pub(crate) fn answer() -> Target {
    let tools = tools();
    let seed = |(dialect, sample): &(Dialect, &str)| {
        let place = Dialect::ALL.iter().position(|other| other == dialect).unwrap_or(0) as u8;
        [&[place], sample.as_bytes()].concat()
    };
    Target {
        seeds: SAMPLES.iter().map(seed).collect(),
        mutate: |random, input| mutate::bytes(random, input, WORDS),
        run: Box::new(move |input| {
            let (&place, text) = input.split_first().unwrap_or((&0, &[]));
            let dialect = Dialect::ALL[usize::from(place) % Dialect::ALL.len()];
            let text = String::from_utf8_lossy(text);
            let mut random =
                Random::of(input.len() as u64, input.iter().map(|&b| u64::from(b)).sum());
            for opens_reasoning in [false, true] {
                let parser = || AnswerParser::new(dialect, &tools, opens_reasoning);
                let whole = events(parser(), &[&text]);
                let each: Vec<String> = text.chars().map(String::from).collect();
                let single = events(parser(), &each);
                let pieces = cut(&text, &mut random);
                assert_eq!(whole, single, "{dialect:?}: letter by letter");
                assert_eq!(whole, events(parser(), &pieces), "{dialect:?}: {pieces:?}");
                well_formed(&whole);
                no_letter_is_invented(&text, &whole);
            }
            if let Ok(mut stops) = StopStrings::new(vec!["</x>".into(), "zz".into()]) {
                let _ = (stops.push(&text), stops.flush());
            }
        }),
    }
}

fn events<S: AsRef<str>>(mut parser: AnswerParser, pieces: &[S]) -> Vec<AnswerEvent> {
    let mut events: Vec<AnswerEvent> =
        pieces.iter().flat_map(|piece| parser.push(piece.as_ref())).collect();
    events.extend(parser.finish());
    joined(events)
}

/// Text and thinking are parts of the answer, in order; white space between two messages is the reader's.
fn no_letter_is_invented(answer: &str, events: &[AnswerEvent]) {
    let mut rest = answer.chars();
    for event in events {
        if let AnswerEvent::Text(text) | AnswerEvent::Reasoning(text) = event {
            for letter in text.chars().filter(|letter| !letter.is_whitespace()) {
                assert!(rest.any(|other| other == letter), "{text:?} is not in {answer:?}");
            }
        }
    }
}

/// Calls begin, carry one JSON object, and end, in this order and numbered.
fn well_formed(events: &[AnswerEvent]) {
    let mut open: Option<(usize, String)> = None;
    let mut calls = 0;
    for event in events {
        match event {
            AnswerEvent::CallStarted { index, name } => {
                assert!(open.is_none() && *index == calls && !name.is_empty(), "{events:?}");
                open = Some((*index, String::new()));
                calls += 1;
            }
            AnswerEvent::CallArguments { index, delta } => match &mut open {
                Some((current, text)) if current == index => text.push_str(delta),
                _ => panic!("arguments outside a call: {events:?}"),
            },
            AnswerEvent::CallEnded { index } => {
                let (current, text) = open.take().unwrap_or_else(|| panic!("an end of nothing"));
                assert_eq!(current, *index);
                let parsed = serde_json::from_str::<Value>(&text);
                assert!(parsed.is_ok_and(|value| value.is_object()), "arguments {text:?}");
            }
            AnswerEvent::Reasoning(_) | AnswerEvent::Text(_) => {
                assert!(open.is_none(), "text inside a call: {events:?}");
            }
        }
    }
}

fn cut<'a>(text: &'a str, random: &mut Random) -> Vec<&'a str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let mut at = 1 + random.below(rest.len().min(9));
        while !rest.is_char_boundary(at) {
            at += 1;
        }
        let (piece, after) = rest.split_at(at);
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// Keywords of schemas, and values that are hard to compile.
const SCHEMA_WORDS: &[&str] = &[
    "type",
    "object",
    "array",
    "string",
    "integer",
    "number",
    "boolean",
    "null",
    "properties",
    "items",
    "prefixItems",
    "required",
    "additionalProperties",
    "patternProperties",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "if",
    "$ref",
    "#",
    "#/$defs/p",
    "#/properties/a",
    "$defs",
    "enum",
    "const",
    "pattern",
    "^(a+)+$",
    "[",
    "(?=x)",
    "\\p{L}{1,100}",
    "format",
    "date-time",
    "uuid",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "multipleOf",
    "nullable",
    "default",
    "x-guidance",
    "minProperties",
    "$id",
    "$schema",
];

/// A schema is refused as the client's mistake or makes a grammar that never ends up without a token.
pub(crate) fn constraint() -> Target {
    let tokenizer = good_tokenizer();
    let vocabulary = tokenizer.vocabulary_size();
    let end = tokenizer.token_id("<|im_end|>").expect("the committed tokenizer has an end");
    let grammars = Dialect::ALL.map(|dialect| {
        Grammars::new(&tokenizer, dialect, &[end], vocabulary).expect("it has an end")
    });
    let seed = json!({"type": "object", "$defs": {"p": {"type": "array", "items": {"type": "number"}, "maxItems": 3}},
        "properties": {"a": {"type": "string", "maxLength": 9, "pattern": "^[a-z]+$"}, "b": {"type": "integer",
        "minimum": 1, "maximum": 40}, "c": {"enum": ["x", "y z", null]}, "d": {"$ref": "#/$defs/p"}, "e": {"anyOf": [
        {"type": "boolean"}, {"type": "null"}]}, "f": {"const": 1.5}, "g": {"type": "string", "format": "date"}},
        "required": ["a", "b"], "additionalProperties": false});
    Target {
        seeds: vec![
            seed.to_string().into_bytes(),
            b"{\"type\": \"string\"}".to_vec(),
            b"true".to_vec(),
            br#"{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}"#
                .to_vec(),
            br#"{"anyOf": [{"const": "x"}, {"type": "array", "items": {"type": "boolean"}}]}"#
                .to_vec(),
        ],
        mutate: |random, input| {
            mutate::json(random, input, SCHEMA_WORDS);
        },
        run: Box::new(move |input| {
            let Ok(schema) = serde_json::from_slice::<Value>(input) else { return };
            let sum: usize = input.iter().map(|&byte| usize::from(byte)).sum();
            let grammars = &grammars[sum % grammars.len()];
            // The schema itself, or as the parameters of a tool: which of them follows from the input.
            let rule = match (sum / Dialect::ALL.len()) % 3 {
                0 => Rule::Calls { name: None, parallel: true },
                1 => Rule::CallBody,
                _ => {
                    let rule = Rule::JsonSchema(schema);
                    return walk(grammars.compile(&rule, &[], Thinking::Closed), vocabulary);
                }
            };
            let tool = json!({"type": "function", "function": {"name": "h", "parameters": schema}});
            let made = grammars.compile(&rule, std::slice::from_ref(&tool), Thinking::Closed);
            walk(made, vocabulary);
        }),
    }
}

/// Takes some allowed tokens.
fn walk(made: Result<text::constraint::Constraint, ConstraintError>, vocabulary: usize) {
    let mut constraint = match made {
        Ok(constraint) => constraint,
        Err(error) => {
            assert!(error.is_client_mistake(), "{error}");
            assert!(!error.to_string().contains("panic"), "{error}");
            return;
        }
    };
    let mut random = Random::of(1, 2);
    for _ in 0..12 {
        if constraint.finished() {
            return;
        }
        // A grammar may be beyond the limits of a step: that ends one answer, by an error.
        let Ok(mask) = constraint.allowed() else { return };
        let allowed: Vec<u32> = (0..vocabulary as u32).filter(|&id| mask.allows(id)).collect();
        assert!(!allowed.is_empty(), "nothing is allowed");
        let token = *random.pick(&allowed);
        constraint.accept(token).expect("an allowed token is accepted");
    }
}

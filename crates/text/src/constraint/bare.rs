//! Rules of arguments with bare keys and strings between quotes of their own, as Gemma-4 writes them: `{a:1,b:[true]}`.
//!
//! Keys of a call that is asked for come in the order in which templates print them again, so that a conversation that
//! comes back has the same tokens; those of calls that a model begins by itself in any order. What a schema does not
//! say, and what lies deeper than is followed, is any value.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::grammar::{by_grammar, takes_others};
use super::spelling::{literal, quoted, text_until};
use crate::Tokenizer;
use crate::schema::{self, Types};

/// Nesting of schemas that is followed.
const DEPTH_MAX: usize = 6;
/// Most required keys of one object whose presence is seen to where they come in any order: each doubles the rules.
const TRACKED_MAX: usize = 4;
/// Most keys of one object that have rules of their own; one with more is any object.
const KEYS_MAX: usize = 256;

/// What the rules of a function's arguments have in common.
pub(super) struct Rules<'a> {
    /// Around a string.
    pub(super) quote: &'static str,
    pub(super) tokenizer: &'a Tokenizer,
    /// The schema that references reach into.
    pub(super) root: &'a Value,
}

/// The rules of values without a schema.
pub(super) fn shared(text: &mut String, quote: &str, tokenizer: &Tokenizer) {
    let open = literal(quote, tokenizer);
    let _ = writeln!(
        text,
        "bare-value: bare-string | BARENUMBER | \"true\" | \"false\" | \"null\" | bare-list | bare-object\n\
         bare-list: \"[\" (bare-value (\",\" bare-value)*)? \"]\"\n\
         bare-object: \"{{\" (bare-pair (\",\" bare-pair)*)? \"}}\"\n\
         bare-pair: BAREKEY \":\" bare-value\n\
         bare-string: {open} bare-rest"
    );
    text.push_str(&text_until("bare-rest", quote, tokenizer));
    text.push_str("BAREKEY: /[^<>\\n\":,{}\\[\\] ]+/\n");
    text.push_str("BAREINTEGER: /-?(0|[1-9][0-9]{0,18})/\n");
    text.push_str("BARENUMBER: /-?(0|[1-9][0-9]{0,18})(\\.[0-9]{1,18})?([eE][+-]?[0-9]{1,3})?/\n");
}

impl Rules<'_> {
    /// The rule `name` for the members of an object of `schema` behind its opening brace, the closing one included.
    pub(super) fn members(&self, text: &mut String, name: &str, schema: &Value, any_order: bool) {
        self.object(text, name, schema, any_order, 0);
    }

    fn object(&self, text: &mut String, name: &str, schema: &Value, any_order: bool, depth: usize) {
        let whole = schema::resolved(schema, self.root);
        let listed = whole.get("properties").and_then(Value::as_object);
        let plain = |key: &&String| {
            !key.is_empty() && !key.contains(['<', '>', '\n', '"', ':', ',', '{', '}'])
        };
        let mut keys: Vec<&String> = listed.into_iter().flat_map(Map::keys).filter(plain).collect();
        let required: Vec<&str> = match whole.get("required") {
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        if keys.len() > KEYS_MAX {
            let _ = writeln!(text, "{name}: (bare-pair (\",\" bare-pair)*)? \"}}\"");
            return;
        }
        // As templates sort them.
        keys.sort_by_key(|key| (key.to_lowercase(), (*key).clone()));
        let needed: Vec<bool> = keys.iter().map(|key| required.contains(&key.as_str())).collect();
        let others = any_order && takes_others(whole);
        match any_order {
            false => in_order(text, name, &needed),
            true => unordered(text, name, &needed, others),
        }
        for (place, key) in keys.iter().enumerate() {
            let value = format!("{name}-v{place}");
            let _ = writeln!(text, "{name}-p{place}: {} {value}", quoted(&format!("{key}:")));
            let schema = schema::property(whole, key).unwrap_or(&Value::Null);
            self.value(text, &value, schema, any_order, depth + 1);
        }
    }

    fn value(&self, text: &mut String, name: &str, schema: &Value, any_order: bool, depth: usize) {
        let whole = schema::resolved(schema, self.root);
        let types = schema::types(schema, self.root);
        if depth > DEPTH_MAX || types == Types::ANY {
            let _ = writeln!(text, "{name}: bare-value");
            return;
        }
        let quote = literal(self.quote, self.tokenizer);
        let containers = [Types::STRING, Types::ARRAY, Types::OBJECT];
        if !containers.iter().any(|&kind| types.allows(kind)) {
            // Numbers and names are written as in JSON.
            let _ = writeln!(text, "{name}: %json {}", by_grammar(whole.clone(), true));
            return;
        }
        if let Some(choices) = choices(whole) {
            let way = |choice: &Value| match choice.as_str() {
                Some("") => format!("{quote} {quote}"),
                Some(choice) => format!("{quote} {} {quote}", quoted(choice)),
                None => quoted(&choice.to_string()),
            };
            let ways: Vec<String> = choices.iter().map(way).collect();
            let _ = writeln!(text, "{name}: {}", ways.join(" | "));
            return;
        }
        let mut ways = Vec::new();
        let mut simple = |kind: Types, way: &str| {
            ways.extend(types.allows(kind).then(|| way.to_owned()));
        };
        simple(Types::STRING, "bare-string");
        simple(Types::BOOLEAN, "\"true\" | \"false\"");
        simple(Types::NULL, "\"null\"");
        if types.allows(Types::NUMBER) {
            ways.push("BARENUMBER".to_owned());
        } else if types.allows(Types::INTEGER) {
            ways.push("BAREINTEGER".to_owned());
        }
        let items = whole.get("items").filter(|items| items.is_object());
        if types.allows(Types::ARRAY) {
            ways.push(match items {
                None => "bare-list".to_owned(),
                Some(_) => format!("\"[\" ({name}-i (\",\" {name}-i)*)? \"]\""),
            });
        }
        let has_keys = whole.get("properties").is_some_and(Value::is_object);
        if types.allows(Types::OBJECT) {
            ways.push(match has_keys {
                false => "bare-object".to_owned(),
                true => format!("\"{{\" {name}-o"),
            });
        }
        if ways.is_empty() {
            ways.push("bare-value".to_owned());
        }
        let _ = writeln!(text, "{name}: {}", ways.join(" | "));
        if let Some(items) = items.filter(|_| types.allows(Types::ARRAY)) {
            self.value(text, &format!("{name}-i"), items, any_order, depth + 1);
        }
        if has_keys && types.allows(Types::OBJECT) {
            self.object(text, &format!("{name}-o"), whole, any_order, depth);
        }
    }
}

/// The values of an `enum` or `const` that are no lists or objects.
fn choices(schema: &Value) -> Option<&[Value]> {
    let values = match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => std::slice::from_ref(value),
        (None, Some(Value::Array(values))) => values.as_slice(),
        _ => return None,
    };
    let simple = |value: &Value| !value.is_array() && !value.is_object();
    (!values.is_empty() && values.iter().all(simple)).then_some(values)
}

/// Members in order, those that are not required perhaps left out. `NAME-nPLACE` and `NAME-mPLACE` go on at a place,
/// the second behind a member.
fn in_order(text: &mut String, name: &str, needed: &[bool]) {
    let _ = writeln!(text, "{name}: {name}-n0");
    for (letter, comma) in [("n", ""), ("m", "\",\" ")] {
        for (place, needed) in needed.iter().enumerate() {
            let next = place + 1;
            let skipped = if *needed { String::new() } else { format!(" | {name}-{letter}{next}") };
            let _ = writeln!(
                text,
                "{name}-{letter}{place}: {comma}{name}-p{place} {name}-m{next}{skipped}"
            );
        }
        let _ = writeln!(text, "{name}-{letter}{}: \"}}\"", needed.len());
    }
}

/// Members in any order, none that is required twice. `NAME-nLEFT` and `NAME-mLEFT` stand for each set of required keys
/// that are still to come, as bits, the second behind a member.
fn unordered(text: &mut String, name: &str, needed: &[bool], others: bool) {
    let tracked: Vec<usize> = (0..needed.len()).filter(|&place| needed[place]).collect();
    let tracked = if tracked.len() > TRACKED_MAX { Vec::new() } else { tracked };
    let all = (1_usize << tracked.len()) - 1;
    let _ = writeln!(text, "{name}: {name}-n{all}");
    for left in 0..=all {
        for (letter, comma) in [("n", ""), ("m", "\",\" ")] {
            let mut ways = Vec::new();
            for place in 0..needed.len() {
                let left = match tracked.iter().position(|&other| other == place) {
                    Some(bit) if left & (1 << bit) == 0 => continue,
                    Some(bit) => left & !(1 << bit),
                    None => left,
                };
                ways.push(format!("{comma}{name}-p{place} {name}-m{left}"));
            }
            if others {
                ways.push(format!("{comma}bare-pair {name}-m{left}"));
            }
            if left == 0 {
                ways.push("\"}\"".to_owned());
            }
            let _ = writeln!(text, "{name}-{letter}{left}: {}", ways.join(" | "));
        }
    }
}

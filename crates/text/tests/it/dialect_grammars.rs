//! Calls that are asked for, or begun by the model itself, in every dialect. Method: random walks through the masks,
//! which are a model that knows nothing; what comes out is read by the dialect and checked against the schema.

use crate::mask_walk;
use crate::schema_check;

use std::path::Path;
use std::sync::Arc;

use mask_walk::Walk;
use schema_check::check;
use serde_json::{Value, json};
use text::constraint::{Constraint, Grammars, Rule};
use text::{AnswerParser, Dialect, Message, Thinking, Tokenizer, collect};

const TOKENS_MAX: usize = 300;
/// Answers that are looked at, and walks to get them: many are cut off before their end.
const ENDED: usize = 6;
const WALKS_MAX: u64 = 200;
/// Control tokens of all dialects.
const CONTROLS: [&str; 31] = [
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|constrain|>",
    "<|return|>",
    "<|call|>",
    "｜DSML｜",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<|tool_call_argument_begin|>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<|tool_call>",
    "<tool_call|>",
    "<|channel>",
    "<channel|>",
    "<|\"|>",
    "<turn|>",
    "<|tool_response>",
];
/// What ends a text value, where text ends with a tag.
fn close(dialect: Dialect) -> Option<&'static str> {
    match dialect {
        Dialect::QwenXml => Some("\n</parameter>\n"),
        Dialect::MiniMax => Some("</parameter>\n"),
        Dialect::Dsml => Some("</｜DSML｜parameter>\n"),
        Dialect::Glm => Some("</arg_value>\n"),
        _ => None,
    }
}

fn tokenizer() -> Tokenizer {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/tokenizer.json");
    let mut file: Value = serde_json::from_slice(&std::fs::read(demo).unwrap()).unwrap();
    let added = file["added_tokens"].as_array_mut().unwrap();
    let first = 1 + added.iter().filter_map(|token| token["id"].as_u64()).max().unwrap().max(4096);
    added.extend((first..).zip(CONTROLS).map(|(id, text)| {
        json!({"id": id, "content": text, "special": true, "normalized": false, "single_word": false,
            "lstrip": false, "rstrip": false})
    }));
    Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap()
}

fn ends(tokenizer: &Tokenizer, dialect: Dialect) -> Vec<u32> {
    let own = dialect.ends().iter().copied();
    own.chain(["<|im_end|>"]).filter_map(|text| tokenizer.token_id(text)).collect()
}

fn tools() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "unit": {"enum": ["c", "f"]}, "exact": {"type": "boolean"}}, "required": ["city", "days"],
            "additionalProperties": false}}}),
        json!({"type": "function", "function": {"name": "now"}}),
    ]
}

/// A random answer, and whether it came to its end.
fn walk(
    dialect: Dialect,
    constraint: &mut Constraint,
    tokenizer: &Tokenizer,
    ends: &[u32],
    seed: u64,
) -> (Vec<u32>, bool) {
    let ids = tokenizer.vocabulary_size();
    let close = close(dialect);
    Walk { tokenizer, ends, close, ids, patience: 12, most: TOKENS_MAX }.take(constraint, seed)
}

fn read(dialect: Dialect, text: &str) -> Message {
    let mut parser = AnswerParser::new(dialect, &tools(), false);
    let mut events = parser.push(text);
    events.extend(parser.finish());
    collect(&events)
}

fn check_calls(dialect: Dialect, text: &str) -> Vec<String> {
    let message = read(dialect, text);
    assert_eq!(message.content, "", "{dialect:?}: {text:?}");
    for call in &message.tool_calls {
        let tools = tools();
        let tool = tools.iter().find(|tool| tool["function"]["name"] == *call.name).unwrap();
        let schema = &tool["function"]["parameters"];
        let arguments = Value::Object(call.arguments.clone());
        check(schema, schema, &arguments)
            .unwrap_or_else(|error| panic!("{dialect:?}: {text:?}: {arguments}: {error}"));
    }
    message.tool_calls.into_iter().map(|call| call.name).collect()
}

#[test]
fn forced_calls_are_calls_in_every_dialect() {
    let tokenizer = tokenizer();
    for dialect in Dialect::ALL {
        let ends = ends(&tokenizer, dialect);
        let grammars =
            Grammars::new(&tokenizer, dialect, &ends, tokenizer.vocabulary_size()).unwrap();
        for name in [None, Some("get_weather"), Some("now")] {
            let rule = Rule::Calls { name: name.map(str::to_owned), parallel: name.is_none() };
            let mut ended = 0;
            for seed in 0..WALKS_MAX {
                if ended == ENDED {
                    break;
                }
                let mut constraint = grammars.compile(&rule, &tools(), Thinking::Closed).unwrap();
                let (tokens, end) = walk(dialect, &mut constraint, &tokenizer, &ends, seed);
                if !end {
                    continue;
                }
                ended += 1;
                let text = tokenizer.decode(&tokens);
                let called = check_calls(dialect, &text);
                assert!(!called.is_empty(), "{dialect:?}, seed {seed}: {text:?}");
                assert!(name.is_none_or(|name| called == [name]), "{dialect:?}: {text:?}");
            }
            assert_eq!(ended, ENDED, "{dialect:?}, {name:?}");
        }
    }
}

#[test]
fn json_that_is_asked_for_comes_behind_the_thoughts_of_a_channel() {
    let tokenizer = tokenizer();
    let ends = ends(&tokenizer, Dialect::Harmony);
    let grammars =
        Grammars::new(&tokenizer, Dialect::Harmony, &ends, tokenizer.vocabulary_size()).unwrap();
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
        "additionalProperties": false});
    let mut ended = 0;
    for seed in 0..WALKS_MAX {
        if ended == ENDED {
            break;
        }
        let rule = Rule::JsonSchema(schema.clone());
        let mut constraint = grammars.compile(&rule, &[], Thinking::Unopened).unwrap();
        let (tokens, end) = walk(Dialect::Harmony, &mut constraint, &tokenizer, &ends, seed);
        if end {
            ended += 1;
            let text = tokenizer.decode(&tokens);
            let content = read(Dialect::Harmony, &text).content;
            let value: Value = serde_json::from_str(&content)
                .unwrap_or_else(|error| panic!("{text:?}: {content:?}: {error}"));
            check(&schema, &schema, &value).unwrap();
        }
    }
    assert_eq!(ended, ENDED);
}

/// A model that begins a call by itself, and goes on at random where it may.
#[test]
fn calls_that_a_model_begins_are_held_to_the_tools() {
    let tokenizer = tokenizer();
    let encode = |text: &str| tokenizer.encode_marked(text, text::EncodeLimit::NONE).unwrap();
    for (dialect, begin, wrong, right) in [
        (
            Dialect::Harmony,
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.",
            "rm",
            "get_weather <|constrain|>json<|message|>{\"city\": \"Oslo\", \"days\": 2}",
        ),
        (Dialect::Harmony, " to=functions.", "rm", "now<|channel|>commentary json<|message|>{}"),
        (
            Dialect::Dsml,
            "Hm.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"",
            "rm",
            "get_weather\">\n<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n\
             <｜DSML｜parameter name=\"city\" string=\"true\">a<b</｜DSML｜parameter>\n\
             </｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        ),
        (
            Dialect::MiniMax,
            "<minimax:tool_call>\n<invoke name=\"",
            "rm",
            "now\">\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>",
        ),
        (
            Dialect::Glm,
            "<tool_call>",
            "rm",
            "get_weather\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n<arg_key>city</arg_key>\n\
             <arg_value>Oslo</arg_value>\n</tool_call>",
        ),
        (
            Dialect::Kimi,
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
            "rm",
            "now:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
        ),
        (
            Dialect::Gemma,
            "<|channel>thought\nHm.<channel|><|tool_call>call:",
            "rm",
            "get_weather{days:2,city:<|\"|>{Oslo}, \"N\"<|\"|>}<tool_call|>",
        ),
        (
            Dialect::DeepSeek,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
            "rm",
            "get_weather<｜tool▁sep｜>{\"city\": \"Oslo\", \"days\": 2}<｜tool▁call▁end｜>",
        ),
    ] {
        let ends = ends(&tokenizer, dialect);
        let grammars = Grammars::new(&tokenizer, dialect, &ends, tokenizer.vocabulary_size());
        let grammars = Arc::new(grammars.unwrap());
        let mut watch = grammars.watch(&tools(), Thinking::Closed).unwrap();
        for token in encode(begin) {
            assert!(
                watch.allows(token),
                "{dialect:?}: {:?} of {begin:?}",
                tokenizer.decode(&[token])
            );
            watch.accept(token);
        }
        assert!(watch.in_call(), "{dialect:?}");
        // One letter after the other: no token of a wrong name gets through.
        let letters = wrong.chars().map(|c| encode(&c.to_string())[0]);
        let first_refused = letters.take(2).all(|token| {
            let allowed = watch.allows(token);
            if allowed {
                watch.accept(token);
            }
            allowed
        });
        assert!(!first_refused, "{dialect:?}: a function that is not on offer was begun");
        let mut watch = grammars.watch(&tools(), Thinking::Closed).unwrap();
        for token in encode(&format!("{begin}{right}")) {
            assert!(
                watch.allows(token),
                "{dialect:?}: {:?} of {right:?}",
                tokenizer.decode(&[token])
            );
            watch.accept(token);
        }
        assert!(!watch.in_call(), "{dialect:?}: the call has ended");
        let called = check_calls(dialect, right_call(begin, right).as_str());
        assert!(!called.is_empty(), "{dialect:?}");
    }
}

/// A call with what begins it, without text before it.
fn right_call(begin: &str, right: &str) -> String {
    let begin = begin.rsplit("<|start|>assistant").next().unwrap_or(begin);
    format!("{}{right}", begin.trim_start_matches("Hm."))
}

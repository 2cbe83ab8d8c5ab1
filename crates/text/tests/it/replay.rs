//! Turns that come back are the tokens that were sampled, in the same spelling, and only if nothing was changed.

use crate::support;

use std::sync::Arc;

use serde_json::{Value, json};
use support::{golden_json, tokenizer};
use text::{
    AnswerEvent, AnswerParser, ChatTemplate, Dialect, Message, RenderOptions, Role, SampledTurn,
    SampledTurns, TemplateHost, TemplateTokens, Tokenizer, collect,
};

fn tools() -> Vec<Value> {
    vec![json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {
        "a": {"type": "string"}, "n": {"type": "integer"}}}}})]
}

fn template(name: &str) -> ChatTemplate {
    let golden = golden_json("conversations.json");
    let source = golden["templates"][name].as_str().unwrap();
    let controls = Arc::clone(tokenizer().control_tokens());
    ChatTemplate::new(source, TemplateTokens::default(), controls, &TemplateHost::here()).unwrap()
}

/// Tokens as a model might write a text: control tokens by id, all else one letter a token, which is never how the
/// tokenizer would.
fn sampled(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let control = tokenizer.control_tokens().tokens().iter();
        let control = control.into_iter().find(|token| rest.starts_with(&token.text));
        let length = match control {
            Some(token) => {
                tokens.push(token.id);
                token.text.len()
            }
            None if rest.starts_with("\n\n") => {
                tokens.extend(tokenizer.encode("\n\n").unwrap());
                2
            }
            None => {
                let length = rest.chars().next().unwrap().len_utf8();
                tokens.extend(tokenizer.encode(&rest[..length]).unwrap());
                length
            }
        };
        rest = &rest[length..];
    }
    tokens
}

/// The answer as a client would send it back, with ids for its calls.
fn message(tokenizer: &Tokenizer, tokens: &[u32], opens: bool, dialect: Dialect) -> Message {
    let mut parser = AnswerParser::new(dialect, &tools(), opens);
    let mut events: Vec<AnswerEvent> = parser.push(&tokenizer.decode(tokens));
    events.extend(parser.finish());
    let mut message = collect(&events);
    for (index, call) in message.tool_calls.iter_mut().enumerate() {
        call.id = Some(format!("call_{index}"));
    }
    message
}

const XML: &str = "I look.\n</think>\n\nLooking.\n\n<tool_call>\n<function=f>\n<parameter=n>\n 07 \n</parameter>\n\
                   <parameter=a>\nx y\n</parameter>\n</function>\n</tool_call>";
const HERMES: &str = "<think>\nI look.\n</think>\n\nLooking.\n<tool_call>\n{\"name\":  \"f\", \"arguments\": {\"n\":7,\
                      \"a\": \"x \\u0079\"}}\n</tool_call>";

fn ids(message: &Message) -> Vec<String> {
    message.tool_calls.iter().filter_map(|call| call.id.clone()).collect()
}

#[test]
fn a_turn_comes_back_as_it_was_sampled() {
    let tokenizer = tokenizer();
    for (name, dialect, text, opens) in
        [("qwen35", Dialect::QwenXml, XML, true), ("qwen3", Dialect::Hermes, HERMES, false)]
    {
        let template = template(name);
        let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        let user = Message::new(Role::User, "look <|im_end|>");
        let first = template.render(std::slice::from_ref(&user), &tools(), &options).unwrap();
        assert_eq!(first.opens_reasoning(), opens, "{name}");
        let prompt = tokenizer.encode_rendered(&first).unwrap();
        let tokens = sampled(&tokenizer, text);
        let answer = message(&tokenizer, &tokens, opens, dialect);
        assert_eq!(answer.tool_calls.len(), 1, "{name}");
        let mut turns = SampledTurns::new(1 << 20);
        turns.insert(ids(&answer), SampledTurn::new(&tokenizer, &tokens, &answer, opens).unwrap());
        let result = Message {
            tool_call_id: Some("call_0".to_owned()),
            ..Message::new(Role::Tool, "42 <tool_call>")
        };
        let mut forgetful = answer.clone();
        forgetful.reasoning = None;
        for returned in [answer.clone(), forgetful] {
            let history = [user.clone(), returned, result.clone()];
            let render = |turns: &mut SampledTurns, history: &[Message]| {
                let find = &mut |message: &Message| turns.find(message);
                let rendered =
                    template.render_replaying(history, &tools(), &options, find).unwrap();
                (tokenizer.encode_rendered(&rendered).unwrap(), rendered)
            };
            let (again, rendered) = render(&mut turns, &history);
            let expected = [&prompt[..], &tokens].concat();
            assert_eq!(again[..expected.len()], expected, "{name}: {}", rendered.text());
            assert_eq!(rendered.replayed().len(), 1, "{name}");
            assert_eq!(tokenizer.decode(&again), rendered.text(), "{name}");
            // After another question the template drops the thinking: the answer alone is replayed.
            let later = [&history[..], &[Message::new(Role::User, "thanks")]].concat();
            let (again, rendered) = render(&mut turns, &later);
            assert!(!rendered.text().contains("I look."), "{name}: {}", rendered.text());
            let call = sampled(&tokenizer, text.split("</think>\n\n").nth(1).unwrap());
            assert!(again.windows(call.len()).any(|window| window == call), "{name}");
            // What is printed is what the template prints without replay, but for blanks and spelling.
            let plain = template.render(&later, &tools(), &options).unwrap();
            assert_eq!(plain.controls().len(), rendered.controls().len() + 2, "{name}");
        }
    }
}

#[test]
fn a_changed_turn_is_rendered_from_its_message() {
    let tokenizer = tokenizer();
    let tokens = sampled(&tokenizer, XML);
    let answer = message(&tokenizer, &tokens, true, Dialect::QwenXml);
    let turn = SampledTurn::new(&tokenizer, &tokens, &answer, true).unwrap();
    let mut turns = SampledTurns::new(1 << 20);
    turns.insert(ids(&answer), turn);
    assert!(turns.find(&answer).is_some());
    let change = |edit: &dyn Fn(&mut Message)| {
        let mut message = answer.clone();
        edit(&mut message);
        message
    };
    for changed in [
        change(&|message| message.content = "Looking!".to_owned()),
        change(&|message| message.reasoning = Some("other".to_owned())),
        change(&|message| message.tool_calls[0].name = "g".to_owned()),
        change(&|message| drop(message.tool_calls[0].arguments.insert("n".to_owned(), json!(8)))),
        change(&|message| message.tool_calls[0].id = Some("call_9".to_owned())),
        change(&|message| message.tool_calls[0].id = None),
        change(&|message| message.tool_calls.push(message.tool_calls[0].clone())),
        change(&|message| message.role = Role::User),
    ] {
        assert!(turns.find(&changed).is_none(), "{changed:?}");
    }
    // Thinking without an end, or nothing at all, has no place in a message.
    let open = sampled(&tokenizer, "I think");
    assert_eq!(SampledTurn::new(&tokenizer, &open, &Message::new(Role::Assistant, ""), true), None);
    assert_eq!(SampledTurn::new(&tokenizer, &[], &Message::new(Role::Assistant, ""), false), None);
}

#[test]
fn the_map_stays_within_its_limit_and_keeps_what_is_used() {
    let tokenizer = tokenizer();
    let message = |id: &str, text: &str| {
        let call = json!({"id": id, "function": {"name": "f", "arguments": "{}"}});
        let list = [json!({"role": "assistant", "content": text, "tool_calls": [call]})];
        Message::from_openai(&list).unwrap().remove(0)
    };
    let turn = |text: &str| {
        let tokens = tokenizer.encode(text).unwrap();
        SampledTurn::new(&tokenizer, &tokens, &message("", text), false).unwrap()
    };
    let limit = 20_000;
    let mut turns = SampledTurns::new(limit);
    for number in 0..200 {
        let (id, text) = (format!("id{number}"), format!("answer {number}"));
        turns.insert(vec![id.clone()], turn(&text));
        assert!(turns.bytes() <= limit && turns.find(&message(&id, &text)).is_some(), "{id}");
        // The first is used again and again, so it stays.
        assert!(turns.find(&message("id0", "answer 0")).is_some(), "after {number}");
    }
    assert!(turns.find(&message("id1", "answer 1")).is_none());
    assert!(turns.len() < 100, "{}", turns.len());
    let before = turns.bytes();
    turns.insert(vec!["big".to_owned()], turn(&"word ".repeat(20_000)));
    turns.insert(Vec::new(), turn("no id"));
    assert_eq!(turns.bytes(), before);
    // An id that is given again stands for the new turn.
    turns.insert(vec!["id199".to_owned()], turn("other"));
    assert!(turns.bytes() <= limit && turns.find(&message("id199", "answer 199")).is_none());
    assert!(turns.find(&message("id199", "other")).is_some());
}

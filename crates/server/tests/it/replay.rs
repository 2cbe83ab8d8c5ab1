//! Goal: the turn after a tool call computes only the tool's result, also for a client that keeps neither the thinking
//! nor the spelling of the call. Method: the demo model behind a real worker, its call sent back.

use crate::engine_support;

use engine_support::{Setting, ask, conversation, job, worker};
use serde_json::{Map, Value, json};
use server::work::{CallConstraint, Constraint, Event, FinishReason, OutputRules, Worker};
use text::{Message, Role, ToolCall};

#[test]
fn the_turn_after_a_call_goes_on_from_the_call() {
    let worker = worker(&Setting::default());
    let tool = json!({"type": "function", "function": {
        "name": "get_weather", "description": "Current weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
        "required": ["city"]}}});
    let mut asking = conversation("", &["What is the weather in Paris?"]);
    asking.tools = vec![tool.clone()];
    asking.thinking = Some(true);
    let rules = OutputRules { tools: vec![tool], parallel_tool_calls: true, raw: false };
    let mut first = job(&worker, &asking, 200);
    first.output = rules.clone();
    first.constraint = Some(Constraint::Tool(CallConstraint::Named("get_weather".to_owned())));
    let mut ticket = worker.submit(first).unwrap();
    let (mut id, mut name, mut arguments) = (String::new(), String::new(), String::new());
    let (mut text, mut thought) = (String::new(), String::new());
    let mut finish = None;
    while let Some(event) = ticket.events.blocking_recv() {
        match event {
            Event::CallStarted { id: given, name: called, .. } => (id, name) = (given, called),
            Event::CallArguments { delta, .. } => arguments.push_str(&delta),
            Event::Text(piece) => text.push_str(&piece.text),
            Event::Reasoning(piece) => thought.push_str(&piece.text),
            Event::Finished(end) => finish = Some(*end),
            _ => {}
        }
    }
    let finish = finish.unwrap();
    assert_eq!((&finish.reason, name.as_str()), (&FinishReason::ToolCalls, "get_weather"));
    assert!(!thought.is_empty());
    let arguments: Map<String, Value> = serde_json::from_str(&arguments).unwrap();
    let call = ToolCall { id: Some(format!("call_{id}")), name, arguments };
    let said = Message { tool_calls: vec![call], ..Message::new(Role::Assistant, text) };
    let mut next = asking;
    next.messages.push(said);
    next.messages.push(Message::new(Role::Tool, "{\"temperature\": 21}"));
    let mut again = job(&worker, &next, 40);
    again.output = rules;
    let mut cold = again.clone();
    cold.cache_prompt = false;
    let total = again.prompt.tokens.len();
    let known = finish.usage.prompt + finish.usage.completion;
    let warm = ask(&worker, again);
    assert!(warm.cached() + 2 >= known, "{} of {total} cached, {known} known", warm.cached());
    let cold = ask(&worker, cold);
    assert_eq!((cold.cached(), &cold.text), (0, &warm.text));
    assert!(worker.status().tool_repairs.is_empty(), "{:?}", worker.status().tool_repairs);
}

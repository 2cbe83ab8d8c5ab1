//! Conversations for templates that print one call a message: gpt-oss's leaves out every other.
//!
//! A turn with several calls becomes a turn for each, followed by its result. Results are found by the ids of their
//! calls, else by their order.

use super::{Message, Role};

/// Messages in which no assistant makes more than one call; `None` where that is so already.
pub(super) fn split(messages: &[Message]) -> Option<Vec<Message>> {
    if messages.iter().all(|message| message.tool_calls.len() < 2) {
        return None;
    }
    let mut arranged = Vec::with_capacity(messages.len() + 4);
    let mut index = 0;
    while let Some(message) = messages.get(index) {
        index += 1;
        if message.tool_calls.len() < 2 {
            arranged.push(message.clone());
            continue;
        }
        let results = messages[index..].iter().take_while(|next| next.role == Role::Tool);
        let mut results: Vec<Option<&Message>> = results.map(Some).collect();
        index += results.len();
        for (place, call) in message.tool_calls.iter().enumerate() {
            let mut turn = Message { tool_calls: vec![call.clone()], ..message.clone() };
            if place > 0 {
                turn.content.clear();
                turn.reasoning = None;
            }
            arranged.push(turn);
            let named = |result: &Option<&Message>| {
                result.is_some_and(|result| call.id.is_some() && result.tool_call_id == call.id)
            };
            let unnamed = |result: &Option<&Message>| {
                result.is_some_and(|result| call.id.is_none() || result.tool_call_id.is_none())
            };
            let found = results.iter().position(named).or_else(|| results.iter().position(unnamed));
            arranged.extend(found.and_then(|at| results[at].take()).cloned());
        }
        // Results of no call stay behind the last.
        arranged.extend(results.into_iter().flatten().cloned());
    }
    Some(arranged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ToolCall;

    #[test]
    fn every_call_is_followed_by_its_result() {
        let call = |name: &str| ToolCall {
            id: Some(format!("call_{name}")),
            name: name.to_owned(),
            arguments: Default::default(),
        };
        let result = |name: &str| Message {
            tool_call_id: Some(format!("call_{name}")),
            ..Message::new(Role::Tool, name)
        };
        let mut turn = Message::new(Role::Assistant, "Both.");
        turn.tool_calls = vec![call("a"), call("b")];
        let given = [Message::new(Role::User, "?"), turn, result("b"), result("a"), result("c")];
        let found = split(&given).unwrap_or_default();
        let texts: Vec<&str> = found.iter().map(|message| message.content.as_str()).collect();
        assert_eq!(texts, ["?", "Both.", "a", "", "b", "c"]);
        assert!(found.iter().all(|message| message.tool_calls.len() < 2));
        assert!(split(&found).is_none());
    }
}

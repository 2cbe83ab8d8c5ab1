//! A strict reader of event streams, and for each protocol a client that puts an answer together again.
//!
//! The clients check everything a stream promises: what starts ends, indices are dense, nothing follows the end. What
//! they give back has the form of the whole answer, so that the two can be compared.

use serde_json::{Map, Value, json};

/// A frame of a stream.
#[derive(Debug, PartialEq)]
pub(crate) enum Frame {
    Comment(String),
    Data { event: Option<String>, data: Value },
    Done,
}

/// Takes a stream apart. A frame is a comment, or one optional `event:` line and one `data:` line.
pub(crate) fn frames(body: &str) -> Vec<Frame> {
    assert!(body.ends_with("\n\n"), "the stream ends inside a frame: {body:?}");
    let mut frames = Vec::new();
    for block in body.strip_suffix("\n\n").unwrap().split("\n\n") {
        let lines: Vec<&str> = block.split('\n').collect();
        frames.push(match lines.as_slice() {
            [comment] if comment.starts_with(": ") => Frame::Comment(comment[2..].to_owned()),
            ["data: [DONE]"] => Frame::Done,
            [data] => Frame::Data { event: None, data: json_of(data) },
            [event, data] => {
                let event = event.strip_prefix("event: ").expect("the first line names the event");
                Frame::Data { event: Some(event.to_owned()), data: json_of(data) }
            }
            _ => panic!("a frame of {} lines: {block:?}", lines.len()),
        });
    }
    frames
}

fn json_of(line: &str) -> Value {
    let data = line.strip_prefix("data: ").unwrap_or_else(|| panic!("no data: {line:?}"));
    serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data:?}"))
}

/// The answer of a stream, as the whole answer has it, or the error that ended it.
pub(crate) type Outcome = Result<Value, Value>;

/// Puts a chat completion together: `[message, finish_reason, logprobs]`.
pub(crate) fn chat(body: &str) -> Outcome {
    let mut message = json!({ "role": "assistant" });
    let (mut text, mut thought) = (String::new(), String::new());
    let mut calls: Vec<Value> = Vec::new();
    let mut logprobs: Vec<Value> = Vec::new();
    let mut reason = Value::Null;
    let mut done = false;
    let mut error = None;
    for (place, frame) in frames(body).into_iter().enumerate() {
        assert!(!done && error.is_none(), "a frame after the end: {frame:?}");
        let data = match frame {
            Frame::Comment(_) => continue,
            Frame::Done => {
                assert!(!reason.is_null(), "[DONE] without a finish_reason");
                done = true;
                continue;
            }
            Frame::Data { event, data } => {
                assert_eq!(event, None, "this protocol names no events");
                data
            }
        };
        if let Some(failure) = data.get("error") {
            error = Some(failure.clone());
            continue;
        }
        assert_eq!(data["object"], "chat.completion.chunk");
        let Some(choice) = data["choices"].get(0) else {
            assert!(!reason.is_null() && data["usage"].is_object(), "an empty chunk in between");
            continue;
        };
        let fields = choice.as_object().unwrap();
        assert!(fields.contains_key("finish_reason"), "every chunk has a finish_reason");
        assert!(reason.is_null(), "a choice after its end");
        let delta = &choice["delta"];
        assert_eq!(place == 0, delta.get("role").is_some(), "the role comes first and once");
        text.push_str(delta["content"].as_str().unwrap_or_default());
        thought.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = usize::try_from(call["index"].as_u64().expect("an index")).unwrap();
            if call.get("id").is_some() {
                assert_eq!(index, calls.len(), "calls are dense");
                let mut call = call.clone();
                call.as_object_mut().unwrap().remove("index");
                calls.push(call);
            } else {
                assert_eq!(index + 1, calls.len(), "only the last call goes on");
                assert!(call["function"].get("name").is_none(), "the name comes once");
                let arguments = &mut calls[index]["function"]["arguments"];
                let delta = call["function"]["arguments"].as_str().expect("a piece");
                *arguments = format!("{}{delta}", arguments.as_str().unwrap()).into();
            }
        }
        logprobs.extend(choice["logprobs"]["content"].as_array().into_iter().flatten().cloned());
        reason = choice["finish_reason"].clone();
    }
    if let Some(error) = error {
        assert!(!done);
        return Err(error);
    }
    assert!(done, "no [DONE]");
    let null = text.is_empty() && !calls.is_empty();
    message["content"] = if null { Value::Null } else { text.into() };
    message["refusal"] = Value::Null;
    if !thought.is_empty() {
        message["reasoning_content"] = thought.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    Ok(json!([message, reason, logprobs]))
}

/// The same of a whole answer.
pub(crate) fn chat_whole(body: &Value) -> Value {
    let choice = &body["choices"][0];
    let logprobs = choice["logprobs"]["content"].as_array().cloned().unwrap_or_default();
    json!([choice["message"], choice["finish_reason"], logprobs])
}

/// Puts a message together: `[content, stop_reason, stop_sequence, usage]`.
pub(crate) fn messages(body: &str) -> Outcome {
    let mut content: Vec<Value> = Vec::new();
    let mut open: Option<(Value, String)> = None;
    let (mut started, mut stopped) = (false, false);
    let mut last = Value::Null;
    let mut error = None;
    for frame in frames(body) {
        assert!(!stopped && error.is_none(), "a frame after the end: {frame:?}");
        let data = match frame {
            Frame::Comment(_) => continue,
            Frame::Done => panic!("this protocol has no [DONE]"),
            Frame::Data { event, data } => {
                assert_eq!(event.as_deref(), data["type"].as_str(), "event and type agree");
                data
            }
        };
        let kind = data["type"].as_str().unwrap();
        assert!(started || kind == "message_start", "{kind} before message_start");
        if kind.starts_with("content_block") {
            assert_eq!(data["index"], content.len(), "blocks are dense and one at a time");
            assert!(last.is_null(), "a block after message_delta");
        }
        match kind {
            "message_start" => {
                assert!(!std::mem::replace(&mut started, true), "one message_start");
                assert_eq!(data["message"]["content"], json!([]));
            }
            "ping" => {}
            "content_block_start" => {
                assert!(open.is_none(), "a block starts inside another");
                open = Some((data["content_block"].clone(), String::new()));
            }
            "content_block_delta" => {
                let (block, input) = open.as_mut().expect("a block is open");
                let delta = &data["delta"];
                let mut append = |field: &str, name: &str| {
                    let sum = format!(
                        "{}{}",
                        block[field].as_str().unwrap(),
                        delta[name].as_str().unwrap()
                    );
                    block[field] = sum.into();
                };
                match delta["type"].as_str().unwrap() {
                    "text_delta" => append("text", "text"),
                    "thinking_delta" => append("thinking", "thinking"),
                    "signature_delta" => append("signature", "signature"),
                    "input_json_delta" => input.push_str(delta["partial_json"].as_str().unwrap()),
                    other => panic!("a delta {other}"),
                }
            }
            "content_block_stop" => {
                let (mut block, input) = open.take().expect("a block is open");
                if block["type"] == "tool_use" {
                    let whole = serde_json::from_str(&input);
                    block["input"] = whole.unwrap_or(Value::String(input));
                }
                content.push(block);
            }
            "message_delta" => last = data,
            "message_stop" => {
                assert!(open.is_none() && !last.is_null(), "everything has ended before");
                stopped = true;
            }
            "error" => {
                assert!(open.is_none(), "the open block is closed before the error");
                error = Some(data["error"].clone());
            }
            other => panic!("an event {other}"),
        }
    }
    if let Some(error) = error {
        return Err(error);
    }
    assert!(stopped, "no message_stop");
    let delta = &last["delta"];
    Ok(json!([content, delta["stop_reason"], delta["stop_sequence"], last["usage"]]))
}

/// The same of a whole answer.
pub(crate) fn messages_whole(body: &Value) -> Value {
    json!([body["content"], body["stop_reason"], body["stop_sequence"], body["usage"]])
}

/// Puts a response together: `[output, status, usage]`. The items made of deltas must be those of the last event.
pub(crate) fn responses(body: &str) -> Outcome {
    let mut output: Vec<Value> = Vec::new();
    let mut open: Option<(Value, String, bool)> = None;
    let mut end = None;
    for (place, frame) in
        frames(body).into_iter().filter(|frame| !matches!(frame, Frame::Comment(_))).enumerate()
    {
        assert!(end.is_none(), "a frame after the end: {frame:?}");
        let Frame::Data { event, data } = frame else { panic!("this protocol has no [DONE]") };
        assert_eq!(event.as_deref(), data["type"].as_str(), "event and type agree");
        assert_eq!(data["sequence_number"], place, "numbers are dense");
        let kind = data["type"].as_str().unwrap().strip_prefix("response.").expect("a prefix");
        assert_eq!(place == 0, kind == "created", "created comes first and once");
        if let Some(index) = data.get("output_index") {
            assert_eq!(index, output.len(), "items are dense and one at a time");
        }
        if let (Some(id), Some((item, _, _))) = (data.get("item_id"), &open) {
            assert_eq!(*id, item["id"], "an event of the open item");
        }
        match kind {
            "created" | "in_progress" => assert_eq!(data["response"]["status"], "in_progress"),
            "output_item.added" => {
                assert!(open.is_none(), "an item starts inside another");
                open = Some((data["item"].clone(), String::new(), false));
            }
            "content_part.added" | "reasoning_summary_part.added" => assert!(open.is_some()),
            "content_part.done" | "reasoning_summary_part.done" => {
                let (_, text, said) = open.as_ref().expect("an item is open");
                assert!(*said && data["part"]["text"] == text.as_str());
            }
            "output_item.done" => {
                let (item, text, said) = open.take().expect("an item is open");
                assert!(said, "the whole text comes before the item");
                let done = &data["item"];
                assert_eq!((&done["id"], &done["type"]), (&item["id"], &item["type"]));
                let own = match done["type"].as_str().unwrap() {
                    "function_call" => &done["arguments"],
                    "message" => &done["content"][0]["text"],
                    _ if done["content"] == json!([]) => &done["summary"][0]["text"],
                    _ => &done["content"][0]["text"],
                };
                assert_eq!(*own, text.as_str(), "deltas join to the item");
                output.push(done.clone());
            }
            "completed" | "incomplete" | "failed" => end = Some(data["response"].clone()),
            delta if delta.ends_with(".delta") => {
                let (_, text, said) = open.as_mut().expect("an item is open");
                assert!(!*said, "a delta after the whole text");
                text.push_str(data["delta"].as_str().unwrap());
            }
            done if done.ends_with(".done") => {
                let (_, text, said) = open.as_mut().expect("an item is open");
                let whole = data.get("text").or(data.get("arguments")).expect("the whole text");
                assert_eq!(*whole, text.as_str());
                assert!(!std::mem::replace(said, true), "the whole text comes once");
            }
            other => panic!("an event {other}"),
        }
    }
    assert!(open.is_none(), "an item is not done");
    let end = end.expect("an end");
    assert_eq!(end["output"].as_array().unwrap().len(), output.len());
    for (ended, done) in end["output"].as_array().unwrap().iter().zip(&output) {
        assert_eq!(ended, done, "the last event repeats the items");
    }
    if end["status"] == "failed" {
        return Err(end["error"].clone());
    }
    Ok(responses_whole(&end))
}

/// The same of a whole answer.
pub(crate) fn responses_whole(body: &Value) -> Value {
    json!([body["output"], body["status"], body["usage"], body["incomplete_details"]])
}

/// Copies `body` with other fields.
pub(crate) fn merged(mut body: Value, extra: &Map<String, Value>) -> Value {
    for (name, value) in extra {
        body[name] = value.clone();
    }
    body
}

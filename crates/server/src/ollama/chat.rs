//! `/api/chat`: a conversation. Its messages become those of chat completions, which templates take.

use serde_json::{Map, Value, json};
use text::Message;

use super::{Form, LineWriter, read_draft, refuse_images, streams, whole};
use crate::http::ApiError;
use crate::protocol::{
    Choice, Defaults, Draft, Envelope, Fields, Gathered, Protocol, Understand, check_tools,
    text_error, tool_of_function,
};

/// A request as understood.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    draft: Draft,
    stream: bool,
}

impl Understand for Request {
    fn parse(body: &Map<String, Value>, defaults: Defaults) -> Result<Self, ApiError> {
        let fields = Fields::of(body);
        let mut draft = read_draft(&fields, defaults)?;
        let messages =
            fields.list("messages")?.ok_or_else(|| fields.error("messages", "is missing"))?;
        if messages.is_empty() {
            return Err(fields.error("messages", "must not be empty"));
        }
        let messages = messages.iter().enumerate().map(|(index, it)| openai(index, it));
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        draft.conversation.messages = Message::from_openai(&messages).map_err(text_error)?;
        draft.set_tools(read_tools(&fields)?, &Choice::Auto, "tools")?;
        Ok(Self { draft, stream: streams(&fields)? })
    }

    fn draft(&self) -> &Draft {
        &self.draft
    }

    fn draft_mut(&mut self) -> &mut Draft {
        &mut self.draft
    }
}

/// A message in the form of chat completions: thinking has another name there, and results of tools are named.
fn openai(index: usize, message: &Value) -> Result<Value, ApiError> {
    let fields = Fields::at(message, &format!("messages[{index}]"))?;
    refuse_images(&fields)?;
    let mut map = fields.map().clone();
    map.remove("images");
    if let Some(thinking) = map.remove("thinking") {
        map.insert("reasoning_content".to_owned(), thinking);
    }
    if let Some(name) = map.remove("tool_name") {
        map.insert("name".to_owned(), name);
    }
    if let Some(Value::Array(calls)) = map.get_mut("tool_calls") {
        for call in calls.iter_mut().filter_map(Value::as_object_mut) {
            call.insert("type".to_owned(), "function".into());
        }
    }
    Ok(Value::Object(map))
}

fn read_tools(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let tools = fields.list("tools")?.map(Vec::as_slice).unwrap_or_default();
    check_tools(tools)?;
    let read = |(index, tool): (usize, &Value)| {
        let path = format!("tools[{index}]");
        let tool = Fields::at(tool, &path)?;
        tool_of_function(&tool, &path)
    };
    tools.iter().enumerate().map(read).collect()
}

/// Text and thinking in a message.
pub(crate) struct InMessage;

impl Form for InMessage {
    fn put(object: &mut Value, thinking: &str, text: &str, calls: Value) {
        let mut message = json!({ "role": "assistant", "content": text });
        if !thinking.is_empty() {
            message["thinking"] = thinking.into();
        }
        if calls.as_array().is_some_and(|calls| !calls.is_empty()) {
            message["tool_calls"] = calls;
        }
        object["message"] = message;
    }
}

impl Protocol for Request {
    const ID_PREFIX: &'static str = "chat-";
    const SCHEMA_FIELD: &'static str = "format";
    type Writer = LineWriter<InMessage>;

    fn streams(&self) -> bool {
        self.stream
    }

    fn writer(self, envelope: Envelope) -> Self::Writer {
        LineWriter::new(envelope)
    }

    fn body(&self, envelope: &Envelope, gathered: &Gathered) -> Value {
        whole::<InMessage>(envelope, gathered)
    }
}

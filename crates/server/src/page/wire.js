// From a conversation as it is kept to a request of the chat completions protocol.

import { exampleTools } from "/tools.js";

/// A text between fences that it does not contain.
export function fenced(text) {
  const longest = (text.match(/`+/g) ?? []).reduce((most, run) => Math.max(most, run.length), 2);
  const fence = "`".repeat(longest + 1);
  return `${fence}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
}

/// What a user's message says to the model: the attached files, then the text.
export function userContent({ content, files = [] }) {
  const parts = files.map(({ name, text }) => `File ${JSON.stringify(name)}:\n${fenced(text)}`);
  if (content) parts.push(content);
  return parts.join("\n\n");
}

function message(kept) {
  if (kept.role === "user") return { role: "user", content: userContent(kept) };
  if (kept.role === "tool") return { role: "tool", tool_call_id: kept.tool_call_id, content: kept.content };
  const sent = { role: "assistant", content: kept.content };
  if (kept.reasoning_content) sent.reasoning_content = kept.reasoning_content;
  if (kept.tool_calls?.length) sent.tool_calls = kept.tool_calls;
  return sent;
}

/// The request for the next answer of a conversation.
export function request({ id, messages, settings }) {
  const system = settings.system ? [{ role: "system", content: settings.system }] : [];
  const body = {
    messages: [...system, ...messages.map(message)],
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
    prompt_cache_key: id,
  };
  for (const field of ["temperature", "top_p", "max_tokens"]) {
    if (settings[field] != null) body[field] = settings[field];
  }
  if (settings.model) body.model = settings.model;
  if (settings.thinking) body.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  if (settings.tools) body.tools = exampleTools;
  if (settings.drop_oldest) body.on_full = "drop-oldest";
  return body;
}

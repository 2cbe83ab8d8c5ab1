// The chat: one conversation in memory, streamed through the chat completions protocol.
//
// Text of the model is only ever put into text nodes, so nothing it says becomes markup. Tools are two examples with
// results that are made up here, to see a call, its result and the answer.

import { call } from "/key.js";

const element = (id) => document.getElementById(id);
const conversation = element("conversation");
let messages = [];
let running = null;

const city = { type: "string", description: "City name" };
const exampleTools = [
  tool("get_weather", "Get the current weather for a city", { city }),
  tool("get_time", "Get the current time in a city", { city }),
];

function tool(name, description, properties) {
  const parameters = { type: "object", properties, required: Object.keys(properties) };
  return { type: "function", function: { name, description, parameters } };
}

function exampleResult(name) {
  if (name === "get_weather") return JSON.stringify({ temperature: 21, unit: "celsius", condition: "sunny" });
  if (name === "get_time") return JSON.stringify({ time: "09:41" });
  return JSON.stringify({ error: "there is no such tool" });
}

function add(parent, tag, className, text = "") {
  const child = document.createElement(tag);
  child.className = className;
  child.textContent = text;
  parent.append(child);
  return child;
}

/// The parts of an answer as it grows.
function turn() {
  const box = add(conversation, "div", "turn assistant");
  const view = { box, thinking: null, text: null, calls: [] };
  view.reason = (delta) => {
    if (!view.thinking) {
      const details = add(box, "details", "thinking");
      add(details, "summary", "", "Thinking");
      view.thinking = add(details, "div", "text");
    }
    view.thinking.textContent += delta;
  };
  view.say = (delta) => {
    view.text ??= add(box, "div", "text");
    view.text.textContent += delta;
  };
  view.call = (delta) => {
    let shown = view.calls[delta.index];
    if (!shown) {
      const item = add(box, "div", "call");
      add(item, "b", "", delta.function.name);
      shown = view.calls[delta.index] = { item, code: add(item, "pre", ""), call: delta };
      shown.call.function.arguments ??= "";
    } else {
      shown.call.function.arguments += delta.function.arguments ?? "";
    }
    shown.code.textContent = shown.call.function.arguments;
  };
  return view;
}

function showPrefill(progress) {
  element("prefill").hidden = !progress;
  if (!progress) return;
  const percent = (tokens) => `${(100 * tokens) / Math.max(progress.total, 1)}%`;
  element("prefill-done").style.width = percent(progress.processed);
  element("prefill-cached").style.width = percent(progress.cache);
  const eta = progress.eta_ms == null ? "" : `, ${Math.ceil(progress.eta_ms / 1000)} s to go`;
  const cached = progress.cache ? ` (${progress.cache} known)` : "";
  element("prefill-text").textContent = `prompt ${progress.processed} of ${progress.total}${cached}${eta}`;
}

function showFigures(chunk) {
  const { timings, usage, x_io: io } = chunk;
  if (!timings) return;
  const parts = [
    `${usage.completion_tokens} tokens`,
    `${timings.predicted_per_second.toFixed(1)} tok/s`,
    `first after ${((timings.queued_ms + timings.prompt_ms) / 1000).toFixed(1)} s`,
    `${timings.cache_n} of ${usage.prompt_tokens} known`,
    `${(100 * io.hit_ratio).toFixed(0)} % hits`,
    `${(io.bytes_read / 1e9).toFixed(2)} GB read`,
  ];
  element("figures").textContent = parts.join(" · ");
}

/// The JSON objects of an event stream.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    const frames = held.split("\n\n");
    held = frames.pop();
    for (const frame of frames) {
      if (frame.startsWith("data: ") && frame !== "data: [DONE]") yield JSON.parse(frame.slice(6));
    }
  }
}

async function answer(view) {
  const body = {
    messages,
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
    chat_template_kwargs: { enable_thinking: element("think").checked },
  };
  if (element("temperature").value) body.temperature = Number(element("temperature").value);
  if (element("use-tools").checked) body.tools = exampleTools;
  const response = await call("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal: running.signal,
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  for await (const chunk of events(response)) {
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.prompt_progress) {
      showPrefill(chunk.prompt_progress);
      continue;
    }
    showFigures(chunk);
    const delta = chunk.choices[0]?.delta ?? {};
    if (delta.reasoning_content || delta.content || delta.tool_calls) showPrefill(null);
    if (delta.reasoning_content) view.reason(delta.reasoning_content);
    if (delta.content) view.say(delta.content);
    for (const part of delta.tool_calls ?? []) view.call(part);
    conversation.scrollTop = conversation.scrollHeight;
  }
  const message = { role: "assistant", content: view.text?.textContent ?? "" };
  if (view.thinking) message.reasoning_content = view.thinking.textContent;
  if (view.calls.length) message.tool_calls = view.calls.map(({ call: made }) => made);
  messages.push(message);
}

/// Answers, and goes on as long as the model calls tools, but not for ever.
async function converse() {
  for (let round = 0; round < 8; round++) {
    const view = turn();
    try {
      await answer(view);
    } catch (error) {
      if (error.name === "AbortError") add(view.box, "div", "error", "stopped");
      else throw error;
      return;
    }
    if (!view.calls.length) return;
    for (const { item, call: made } of view.calls) {
      const content = exampleResult(made.function.name);
      add(item, "pre", "", content);
      messages.push({ role: "tool", tool_call_id: made.id, content });
    }
  }
}

async function send(text) {
  add(conversation, "div", "turn user text", text);
  messages.push({ role: "user", content: text });
  running = new AbortController();
  element("stop").hidden = false;
  element("send").disabled = true;
  try {
    await converse();
  } catch (error) {
    add(conversation, "div", "turn error", error.message);
  } finally {
    running = null;
    showPrefill(null);
    element("stop").hidden = true;
    element("send").disabled = false;
    conversation.scrollTop = conversation.scrollHeight;
  }
}

element("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = element("input").value.trim();
  if (!text || running) return;
  element("input").value = "";
  send(text);
});
element("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    element("form").requestSubmit();
  }
});
element("stop").addEventListener("click", () => running?.abort());
element("clear").addEventListener("click", () => {
  running?.abort();
  messages = [];
  conversation.replaceChildren();
  element("figures").textContent = "";
});

// An answer from the server: one request of the chat completions protocol, and its events as they come.

import { call } from "/key.js";

/// What is not the model's but the way's fault, in words.
function reason(error) {
  if (error instanceof TypeError) return new Error("The server does not answer.");
  return error;
}

/// The events of a body: `{data}` with the JSON of a frame, or `{comment}`.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    const frames = held.split("\n\n");
    held = frames.pop();
    for (const frame of frames) {
      if (frame.startsWith(":")) yield { comment: frame.slice(1).trim() };
      else if (frame === "data: [DONE]") yield { done: true };
      else if (frame.startsWith("data: ")) yield { data: JSON.parse(frame.slice(6)) };
    }
  }
}

/// Yields what happens in an answer, in order:
/// `{waiting}`, the requests before this one; `{progress}`, where the prompt is; `{thinking}` and `{text}`, pieces;
/// `{part}`, a piece of a tool call; `{finish}`, why it ended; `{figures}`, what it took.
/// Throws if it ends otherwise than by its end.
export async function* answer(request, signal) {
  let ended = false;
  try {
    const response = await call("/v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(request),
      signal,
    });
    if (!response.ok) {
      const refusal = await response.json().catch(() => null);
      const problem = refusal?.error?.message ?? `The server refuses with status ${response.status}.`;
      const full = refusal?.error?.code === "context_length_exceeded";
      throw new Error(full ? `${problem}. Options can leave out the oldest turns.` : problem);
    }
    for await (const { data, comment, done } of events(response.body)) {
      if (done) ended = true;
      const queued = comment?.match(/^queued position=(\d+)/);
      if (queued) yield { waiting: Number(queued[1]) };
      if (!data) continue;
      if (data.error) throw new Error(data.error.message);
      if (data.prompt_progress) yield { progress: data.prompt_progress };
      const choice = data.choices?.[0];
      const delta = choice?.delta ?? {};
      if (delta.reasoning_content) yield { thinking: delta.reasoning_content };
      if (delta.content) yield { text: delta.content };
      for (const part of delta.tool_calls ?? []) yield { part };
      if (choice?.finish_reason) yield { finish: choice.finish_reason };
      if (data.timings) yield { figures: data };
    }
  } catch (error) {
    throw reason(error);
  }
  if (!ended) throw new Error("The connection to the server broke.");
}

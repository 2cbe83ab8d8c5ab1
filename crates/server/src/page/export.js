// A conversation as a Markdown file: what was said, the calls with their results and attached files, without the thinking.

import { make } from "/dom.js";
import { fenced, userContent } from "/wire.js";

const NAME = 60;

/// The file's name, of letters and digits of any script.
function fileName(title) {
  const words = title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "");
  return `${[...words].slice(0, NAME).join("") || "conversation"}.md`;
}

function turn(message) {
  if (message.role === "user") return ["## You", userContent(message)];
  if (message.role === "tool") return ["## Result", fenced(message.content)];
  const calls = (message.tool_calls ?? []).map(({ function: { name, arguments: given } }) => fenced(`${name} ${given}`));
  const note = message.stopped ?? message.cut;
  return ["## flashmoe", message.content, ...calls, note ? `*${note}*` : ""];
}

/// The file's text.
export function asMarkdown(title, messages) {
  return `${[`# ${title}`, ...messages.flatMap(turn)].filter(Boolean).join("\n\n")}\n`;
}

/// Gives the file to the browser, which keeps it where downloads go; the server has no part in it.
export function download(title, messages) {
  const url = URL.createObjectURL(new Blob([asMarkdown(title, messages)], { type: "text/markdown;charset=utf-8" }));
  make("a", { href: url, download: fileName(title) }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

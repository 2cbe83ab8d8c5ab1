// An answer as it is seen while it comes and after: the prompt's progress, thinking, Markdown, tool calls, figures.

import { button, copyButton, make } from "/dom.js";
import { Markdown } from "/markdown.js";
import { Painter } from "/painter.js";
import { Thinking } from "/thinking.js";

/// What is shown of a text at once.
const SLICE = 65_536;

/// What an answer took. A figure is not broken between its number and its unit; nothing read is not mentioned.
function figuresText({ usage, timings, x_io: io }) {
  const dropped = timings.dropped_turns;
  const parts = [
    ...(dropped ? [`context full: ${dropped} oldest ${dropped === 1 ? "turn" : "turns"} left out`] : []),
    `${usage.completion_tokens} tokens`,
    `${timings.predicted_per_second.toFixed(1)} tok/s`,
    `first after ${((timings.queued_ms + timings.prompt_ms) / 1000).toFixed(1)} s`,
    `${timings.cache_n} of ${usage.prompt_tokens} prompt tokens reused`,
    `${(100 * io.hit_ratio).toFixed(0)} % expert hits`,
    ...(io.bytes_read ? [`${(io.bytes_read / 1e9).toFixed(2)} GB read`] : []),
  ];
  return parts.map((part) => part.replaceAll(" ", "\u00a0")).join(" · ");
}

export class AnswerTurn {
  /// `again` answers once more; `grown` is called when the turn may have become longer.
  constructor(message, again, grown) {
    this.message = message;
    this.grown = grown;
    this.pending = "";
    this.ended = false;
    this.calls = [];
    this.text = make("div", { class: "markdown" });
    this.markdown = new Markdown(this.text);
    this.thinking = new Thinking();
    this.prefill = make("div", { class: "prefill", hidden: true });
    this.note = make("p", { class: "note", hidden: true });
    this.figures = make("p", { class: "figures", hidden: true });
    this.actions = make("div", { class: "actions" },
      copyButton("Copy the answer", () => message.content),
      button("Regenerate", again, { class: "idle last", "aria-label": "Regenerate the answer" }));
    this.painter = new Painter(() => this.paint());
    this.box = make("article", { class: "turn answer", "aria-label": "flashmoe" }, make("h2", {}, "flashmoe"),
      this.prefill, this.thinking.box, this.text, this.note, this.figures, this.actions);
  }

  /// The turn of an answer that is complete.
  static of(message, again, grown) {
    const turn = new AnswerTurn(message, again, grown);
    if (message.reasoning_content) turn.thinking.restore(message.reasoning_content, message.thinking);
    turn.pending = message.content;
    for (const call of message.tool_calls ?? []) turn.call(call);
    turn.end();
    turn.painter.now();
    return turn;
  }

  waiting(position) {
    this.prefill.hidden = false;
    this.prefill.replaceChildren(`Waiting: ${position} ${position === 1 ? "request" : "requests"} before this one`);
  }

  progress({ processed, total, cache, eta_ms: eta }) {
    if (!this.done) {
      this.done = make("progress", { "aria-label": "The prompt as far as it was read" });
      this.words = make("span");
    }
    const left = eta == null ? "" : `, ${Math.ceil(eta / 1000)} s left`;
    const reused = cache ? ` (${cache} reused)` : "";
    this.done.max = Math.max(total, 1);
    this.done.value = processed;
    this.words.textContent = `Reading the prompt: ${processed} of ${total} tokens${reused}${left}`;
    this.prefill.hidden = false;
    if (this.done.parentNode !== this.prefill) this.prefill.replaceChildren(this.done, this.words);
    this.grown();
  }

  think(piece) {
    this.prefill.hidden = true;
    this.thinking.push(piece);
    this.painter.wake();
  }

  say(piece) {
    this.prefill.hidden = true;
    this.thinking.end();
    this.pending += piece;
    this.painter.wake();
  }

  /// A call, or more of its arguments.
  call(part) {
    this.prefill.hidden = true;
    this.thinking.end();
    const index = part.index ?? this.calls.length;
    let shown = this.calls[index];
    if (!shown) {
      const code = make("pre", { tabindex: "0", role: "group", "aria-label": "Arguments of the call" });
      const item = make("div", { class: "call" }, make("b", {}, part.function.name), code);
      shown = this.calls[index] = { item, code };
      this.figures.before(item);
    }
    shown.code.append(part.function.arguments ?? "");
    this.grown();
  }

  result(index, content) {
    this.calls[index]?.item.append(make("span", { class: "made-up" }, "made-up result"), make("pre", {}, content));
    this.grown();
  }

  paint() {
    const piece = this.pending.slice(0, SLICE);
    this.pending = this.pending.slice(SLICE);
    this.markdown.push(piece);
    if (this.pending) this.markdown.hide();
    else if (this.ended) this.markdown.finish();
    else this.markdown.show();
    this.thinking.paint();
    this.grown();
    return this.pending !== "";
  }

  /// The answer is complete, or as complete as it will be.
  end() {
    const { stopped, cut, figures } = this.message;
    this.ended = true;
    this.prefill.hidden = true;
    this.thinking.end(stopped && !this.message.content);
    this.note.hidden = !stopped && !cut;
    this.note.textContent = stopped ?? cut ?? "";
    this.note.classList.toggle("error", Boolean(stopped));
    this.figures.hidden = !figures;
    this.figures.textContent = figures ? figuresText(figures) : "";
    this.painter.wake();
  }
}

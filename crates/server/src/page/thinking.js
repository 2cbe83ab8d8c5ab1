// The thinking before an answer: open with its tokens and seconds while it runs, folded with its time after.

import { make } from "/dom.js";

const PIECE = 8192;

export class Thinking {
  constructor() {
    this.summary = make("summary");
    this.text = make("div", { class: "plain", tabindex: "0", role: "group", "aria-label": "Thinking" });
    this.box = make("details", { class: "thinking", hidden: true }, this.summary, this.text);
    this.summary.addEventListener("click", () => { this.touched = true; });
    this.touched = false;
    this.pending = "";
    this.piece = null;
    this.tokens = 0;
    this.begun = null;
    this.took = null;
    this.timer = null;
  }

  /// Something was thought, a token at a time but for rare characters of several.
  push(piece) {
    if (this.begun === null) {
      this.begun = performance.now();
      this.box.hidden = false;
      this.box.open = true;
      this.timer = setInterval(() => this.say(), 1000);
    }
    this.tokens += 1;
    this.pending += piece;
  }

  /// What the conversation keeps of it.
  get kept() {
    return this.begun === null ? undefined : { ms: Math.round(this.took ?? performance.now() - this.begun), tokens: this.tokens };
  }

  say() {
    const { ms, tokens } = this.kept;
    const seconds = Math.round(ms / 1000);
    const count = `${tokens} ${tokens === 1 ? "token" : "tokens"}`;
    this.summary.textContent = this.took === null ? `Thinking… ${count}, ${seconds} s`
      : `${this.stopped ? "Stopped thinking after" : "Thought for"} ${seconds} s (${count})`;
  }

  /// Takes the server's count, which has tokens without text as well.
  count(tokens) {
    this.tokens = tokens;
    this.say();
  }

  paint() {
    if (!this.pending) return;
    const near = this.text.scrollHeight - this.text.scrollTop - this.text.clientHeight < 24;
    const end = this.pending.indexOf("\n") + 1;
    if (this.piece && this.piece.length > PIECE && end) {
      this.piece.appendData(this.pending.slice(0, end - 1));
      this.pending = this.pending.slice(end);
      this.piece = null;
    }
    if (!this.piece) this.text.append(make("div", {}, (this.piece = document.createTextNode(""))));
    this.piece.appendData(this.pending);
    this.pending = "";
    if (near) this.text.scrollTop = this.text.scrollHeight;
    if (this.took === null) this.say();
  }

  /// It is over; the text is folded away unless the reader has opened or folded it.
  end(stopped = false) {
    if (this.begun === null || this.took !== null) return;
    clearInterval(this.timer);
    this.took = performance.now() - this.begun;
    this.stopped = stopped;
    this.paint();
    this.say();
    if (!this.touched && !stopped) this.box.open = false;
  }

  /// Shows thinking of an earlier answer.
  restore(text, kept) {
    this.begun = 0;
    this.took = kept?.ms ?? 0;
    this.tokens = kept?.tokens ?? 0;
    this.box.hidden = false;
    this.pending = text;
    this.paint();
    if (kept) this.say();
    else this.summary.textContent = "Thinking";
  }
}

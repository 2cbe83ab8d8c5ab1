// Markdown that grows: complete lines become nodes for good, only what is still open at the end is built again.
//
// `push` takes text, `show` shows the end as it is now, `finish` ends. A line longer than `LINE` is cut, at a place that
// depends on the line alone.

import { Blocks } from "/blocks.js";

const LINE = 8192;
/// The begin of a line that may still become anything: it is not shown yet.
const UNDECIDED = /^\s*(?:[-+*#>~|=_]{0,3}|`{1,2}|\d{1,3}[.)]?|[-+*] \[?[ xX]?\]?)\s*$/;

export class Markdown {
  constructor(target) {
    this.target = target;
    this.blocks = new Blocks(target);
    this.held = "";
    this.glued = false;
    this.shown = [];
  }

  push(text) {
    this.hide();
    let from = 0;
    while (from < text.length) {
      const end = text.indexOf("\n", from);
      const to = end < 0 ? text.length : end;
      this.held += text.slice(from, to);
      this.cut();
      if (end >= 0) {
        this.blocks.line(this.held.endsWith("\r") ? this.held.slice(0, -1) : this.held, this.glued);
        this.held = "";
        this.glued = false;
      }
      from = to + 1;
    }
  }

  /// Takes what is too long for a line, whole characters only.
  cut() {
    let from = 0;
    while (this.held.length - from > LINE) {
      const code = this.held.charCodeAt(from + LINE - 1);
      const length = code >= 0xd800 && code < 0xdc00 ? LINE - 1 : LINE;
      this.blocks.line(this.held.slice(from, from + length), this.glued);
      this.glued = true;
      from += length;
    }
    if (from) this.held = this.held.slice(from);
  }

  hide() {
    for (const node of this.shown) node.remove();
    this.shown = [];
  }

  /// Shows the block that is open and the line that is not complete, until the next `push`.
  show() {
    this.hide();
    const { open } = this.blocks;
    const line = !this.glued && UNDECIDED.test(this.held) ? "" : this.held;
    const grows = open?.preview && (this.glued || open.accepts(this.held));
    if (open?.preview) open.preview(grows ? line : "", this.glued);
    if (grows) return;
    const guess = document.createDocumentFragment();
    const blocks = new Blocks(guess, 0, this.blocks.level);
    for (const [text, glued] of open?.lines ?? []) blocks.line(text, glued);
    if (line) blocks.line(line, this.glued);
    blocks.end();
    this.shown = [...guess.childNodes];
    this.target.append(guess);
  }

  finish() {
    this.hide();
    if (this.held) this.blocks.line(this.held, this.glued);
    this.held = "";
    this.blocks.end();
  }
}

/// The nodes of a whole text.
export function render(target, text) {
  const markdown = new Markdown(target);
  markdown.push(text);
  markdown.finish();
}

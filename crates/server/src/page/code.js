// A block of code: its language, a button that copies it, and its lines in pieces, with words in the colours of their kinds.
//
// A piece is a block of its own to the browser's layout, so a line that is added moves only its piece.

import { copyButton, make } from "/dom.js";
import { languageOf, partsOf } from "/highlight.js";
import { outdented } from "/lines.js";

const PIECE = 8192;
/// Longer lines are data and have no colours.
const COLOURED = 1000;

export class Code {
  constructor(target, { sign, indent, language }) {
    this.sign = sign;
    this.plain = (text) => outdented(text, indent);
    this.code = make("code");
    this.piece = null;
    this.length = 0;
    this.glued = [];
    const name = language.slice(0, 40);
    this.language = languageOf(name);
    this.inside = false;
    const head = make("div", { class: "code-head" }, make("span", {}, name || "text"),
      copyButton(`Copy the code${name ? ` in ${name}` : ""}`, () => this.text()));
    const label = name ? `Code in ${name}` : "Code";
    const body = make("pre", { tabindex: "0", role: "group", "aria-label": label }, this.code);
    target.append(make("div", { class: "code" }, head, body));
  }

  accepts() {
    return true;
  }

  closes(text) {
    const sign = text.trim();
    return sign.length >= this.sign.length && sign === this.sign[0].repeat(sign.length);
  }

  /// Adds a line, or the rest of one; "end" if it is the closing fence.
  take(text, glued = false) {
    this.preview("");
    if (!glued && this.closes(text)) return "end";
    const words = glued ? text : this.plain(text);
    if (!this.piece || this.length > PIECE) {
      this.piece = make("span");
      this.length = 0;
      this.glued.push(glued);
      this.code.append(this.piece);
    } else if (!glued) {
      this.add("\n");
    }
    this.length += words.length;
    if (!this.language || glued || words.length > COLOURED) {
      this.add(words);
      return "more";
    }
    const [parts, inside] = partsOf(words, this.language, this.inside);
    this.inside = inside;
    for (const [kind, part] of parts) {
      if (kind) this.piece.append(make("span", { class: kind }, part));
      else this.add(part);
    }
    return "more";
  }

  /// Adds plain text to the piece: to the text at its end, if there is some.
  add(text) {
    const last = this.piece.lastChild;
    if (last?.nodeType === Node.TEXT_NODE) last.appendData(text);
    else this.piece.append(text);
  }

  /// Shows a line that is not yet complete.
  preview(text, glued = false) {
    this.guess?.remove();
    this.guess = null;
    if (!text || (!glued && this.closes(text.padEnd(this.sign.length, text.trim()[0])))) return;
    const words = glued ? text : this.plain(text);
    this.guess = this.piece
      ? document.createTextNode((glued ? "" : "\n") + words) : make("span", {}, words);
    if (this.piece) this.piece.append(this.guess);
    else this.code.append(this.guess);
  }

  text() {
    const pieces = [...this.code.children].map((piece) => piece.textContent);
    return pieces.reduce((all, piece, at) => all + (at === 0 || this.glued[at] ? "" : "\n") + piece, "");
  }

  end() {
    this.preview("");
  }
}

// Markdown line by line: headings, lists, tables, code, quotes and paragraphs, as nodes that are appended for good.
//
// What a line is follows from the lines before it, never from when it came, so a text that is streamed looks like the
// same text given at once. Code and tables grow line by line; the other blocks are built when they end, and end by
// themselves after `LIMIT` characters, so that no block is too long to be built again while it grows. Quotes and lists
// contain blocks down to `DEPTH`; below that their signs are text. Indented code and HTML are text.

import { Code } from "/code.js";
import { make } from "/dom.js";
import { inline } from "/inline.js";
import { fenceOf, headingOf, indentOf, interrupts, isBlank, isQuote, isRule, itemOf, outdented } from "/lines.js";
import { Table, alignmentsOf, cellsOf } from "/table.js";

const LIMIT = 16_384;
const DEPTH = 6;

/// Blocks that are built when they end. `lines` are `[text, glued]`: a glued one goes on with the line before it.
class Held {
  constructor(text, glued = false) {
    this.lines = [[text, glued]];
    this.length = text.length;
  }

  push(text, glued = false) {
    this.lines.push([text, glued]);
    this.length += text.length + 1;
  }
}

class Paragraph extends Held {
  accepts(text) {
    return this.length < LIMIT && !isBlank(text) && !interrupts(text);
  }

  build(blocks) {
    const parts = this.lines.map(([text, glued], line) => (line === 0 ? "" : glued ? "" : "\n") + text);
    const made = make("p");
    inline(made, parts.join("").replace(/\n[ \t]+/g, "\n").trim());
    blocks.target.append(made);
  }
}

class Quote extends Held {
  accepts(text) {
    if (this.length > LIMIT || isBlank(text)) return false;
    return isQuote(text) || !interrupts(text);
  }

  build(blocks) {
    const made = make("blockquote");
    const inner = new Blocks(made, blocks.depth + 1, blocks.level);
    for (const [text] of this.lines) inner.line(isQuote(text) ? text.replace(/^ {0,3}> ?/, "") : text);
    inner.end();
    blocks.target.append(made);
  }
}

class List extends Held {
  constructor(text, item) {
    super(text);
    this.first = item;
    this.blank = false;
  }

  /// The item that a line begins in this list itself and not in a list within.
  own(text) {
    const item = itemOf(text);
    return item && item.kind === this.first.kind && item.indent < this.first.indent + 2 ? item : null;
  }

  accepts(text) {
    if (this.length > 4 * LIMIT) return false;
    if (isBlank(text)) return true;
    if (this.own(text)) return this.length <= LIMIT;
    if (indentOf(text) >= this.first.indent + 2) return true;
    return !this.blank && !interrupts(text) && !itemOf(text);
  }

  push(text, glued) {
    super.push(text, glued);
    this.blank = isBlank(text);
  }

  build(blocks) {
    const { ordered, number } = this.first;
    const made = make(ordered ? "ol" : "ul", { start: ordered && number !== 1 ? String(number) : null });
    let inner = null;
    let content = 0;
    let blanks = 0;
    for (const [text] of this.lines) {
      const item = this.own(text);
      if (item) {
        inner?.end();
        const line = make("li");
        made.append(line);
        inner = new Blocks(line, blocks.depth + 1, blocks.level);
        content = item.content;
        const rest = outdented(text.replace(/^([ \t]*)([-+*]|\d{1,9}[.)])/, (all) => " ".repeat(all.length)), content);
        inner.line(rest.replace(/^\[ \] /, "☐ ").replace(/^\[[xX]\] /, "☑ "));
        if (blanks) made.classList.add("loose");
      } else {
        inner.line(outdented(text, content));
        if (blanks && !isBlank(text) && indentOf(text) <= content) made.classList.add("loose");
      }
      blanks = isBlank(text) ? blanks + 1 : 0;
    }
    inner.end();
    blocks.target.append(made);
  }
}

export class Blocks {
  /// `level` is that of the heading before: levels go down one at a time, however the text has them.
  constructor(target, depth = 0, level = 2) {
    this.target = target;
    this.depth = depth;
    this.level = level;
    this.open = null;
  }

  /// A line without its end. A glued one is the rest of a line that was too long.
  line(text, glued = false) {
    const { open } = this;
    if (glued) {
      if (open instanceof Code) open.take(text, true);
      else if (open instanceof Paragraph && open.length < LIMIT) open.push(text, true);
      else {
        this.end();
        this.open = new Paragraph(text);
      }
    } else if (open instanceof Paragraph && this.table(open, text)) {
      // The paragraph's last line was the header.
    } else if (open?.accepts(text)) {
      if (open instanceof Held) open.push(text);
      else if (open.take(text) === "end") this.open = null;
    } else {
      this.end();
      this.start(text);
    }
  }

  table(paragraph, text) {
    const alignments = alignmentsOf(text);
    if (!alignments) return false;
    const header = cellsOf(paragraph.lines[paragraph.lines.length - 1][0]);
    if (header.length !== alignments.length) return false;
    paragraph.lines.pop();
    if (!paragraph.lines.length) this.open = null;
    this.end();
    this.open = new Table(this.target, header, alignments);
    return true;
  }

  start(text) {
    const deep = this.depth >= DEPTH;
    const fence = fenceOf(text);
    const heading = headingOf(text);
    const item = itemOf(text);
    if (isBlank(text)) return;
    if (fence) this.open = new Code(this.target, fence);
    else if (heading) this.heading(heading);
    else if (isRule(text)) this.target.append(make("hr"));
    else if (isQuote(text) && !deep) this.open = new Quote(text);
    else if (item && !deep) this.open = new List(text, item);
    else this.open = new Paragraph(text);
  }

  heading({ level, title }) {
    this.level = Math.min(level + 2, this.level + 1, 6);
    const made = make(`h${this.level}`, { class: `level${level}` });
    inline(made, title);
    this.target.append(made);
  }

  end() {
    const { open } = this;
    this.open = null;
    if (open instanceof Held) open.build(this);
    else open?.end();
  }
}

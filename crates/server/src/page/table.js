// Tables of Markdown: rows that are appended as their lines come.

import { make } from "/dom.js";
import { inline } from "/inline.js";

export function cellsOf(text) {
  const row = text.trim();
  const cells = [];
  let cell = "";
  for (let at = row[0] === "|" ? 1 : 0; at < row.length; at += 1) {
    if (row[at] === "\\" && row[at + 1] === "|") {
      cell += "|";
      at += 1;
    } else if (row[at] === "|") {
      cells.push(cell.trim());
      cell = "";
    } else {
      cell += row[at];
    }
  }
  if (cell.trim()) cells.push(cell.trim());
  return cells;
}

/// The alignments that a table's second line asks for, or null if it is no such line.
export function alignmentsOf(text) {
  if (!text.includes("|") && !text.includes(":")) return null;
  const cells = cellsOf(text);
  if (!cells.length || !cells.every((cell) => /^:?-+:?$/.test(cell))) return null;
  return cells.map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : null));
}

export class Table {
  constructor(target, header, alignments) {
    this.alignments = alignments;
    this.body = make("tbody");
    const head = make("thead", {}, this.row(header, "th"));
    const table = make("table", {}, head, this.body);
    target.append(make("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" }, table));
  }

  /// Cells beyond the header's are put into its last column; missing ones are not made up.
  row(cells, tag = "td") {
    const columns = this.alignments.length;
    const own = cells.length > columns
      ? [...cells.slice(0, columns - 1), cells.slice(columns - 1).join(" | ")] : cells;
    return make("tr", {}, ...own.map((cell, column) => {
      const made = make(tag, { class: this.alignments[column], scope: tag === "th" ? "col" : null });
      inline(made, cell);
      return made;
    }));
  }

  accepts(text) {
    return text.includes("|");
  }

  take(text) {
    this.preview("");
    this.body.append(this.row(cellsOf(text)));
  }

  /// Shows a line that is not yet complete.
  preview(text) {
    this.guess?.remove();
    this.guess = null;
    if (text) this.body.append((this.guess = this.row(cellsOf(text))));
  }

  end() {
    this.preview("");
  }
}

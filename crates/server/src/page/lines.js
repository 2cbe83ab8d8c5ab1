// What a line of Markdown begins, by itself: an item, a fence, a heading, a rule, a quote. Each test costs the line's length.

/// The blanks before a text, in columns; a tab goes to the next multiple of four.
export function indentOf(text) {
  let columns = 0;
  for (const c of text) {
    if (c === " ") columns += 1;
    else if (c === "\t") columns += 4 - (columns % 4);
    else return columns;
  }
  return columns;
}

/// The text without its first `most` columns of blanks.
export function outdented(text, most) {
  let columns = 0;
  let at = 0;
  while (columns < most && (text[at] === " " || text[at] === "\t")) {
    columns += text[at] === " " ? 1 : 4 - (columns % 4);
    at += 1;
  }
  return " ".repeat(Math.max(columns - most, 0)) + text.slice(at);
}

export const isBlank = (text) => text.trim() === "";

export function itemOf(text) {
  const found = /^[ \t]*([-+*]|\d{1,9}[.)])([ \t]|$)/.exec(text);
  if (!found || isRule(text)) return null;
  const number = parseInt(found[1], 10);
  const ordered = !Number.isNaN(number);
  const indent = indentOf(text);
  return { indent, ordered, number, kind: ordered ? "ordered" : found[1], content: indent + found[1].length + 1 };
}

export function fenceOf(text) {
  const found = /^[ \t]{0,8}(`{3,}|~{3,})([^`]*)$/.exec(text);
  return found && { sign: found[1], indent: indentOf(text), language: found[2].trim().split(/\s/, 1)[0] };
}

export function isRule(text) {
  const signs = text.replace(/[ \t]+/g, "");
  return signs.length > 2 && "-*_".includes(signs[0]) && signs === signs[0].repeat(signs.length);
}

export function isQuote(text) {
  return /^ {0,3}>/.test(text);
}

export function headingOf(text) {
  const found = /^ {0,3}(#{1,6})(?=[ \t]|$)/.exec(text);
  if (!found) return null;
  let title = text.slice(found[0].length).trim();
  let end = title.length;
  while (title[end - 1] === "#") end -= 1;
  if (end === 0 || title[end - 1] === " ") title = title.slice(0, end).trim();
  return { level: found[1].length, title };
}

/// Whether a line begins something that a paragraph does not contain. A number begins a list only if it is 1, because
/// a sentence may end in "in 1984." and go on in the next line.
export function interrupts(text) {
  const item = itemOf(text);
  return Boolean(fenceOf(text) || headingOf(text) || isQuote(text) || isRule(text)
    || (item && (!item.ordered || item.number === 1)));
}

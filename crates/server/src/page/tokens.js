// A paragraph of Markdown cut into tokens: text, code, formulas, runs of signs, breaks, addresses, links with both ends.
//
// One pass, and no more than the text's length: brackets are paired with a stack, code spans find their end in lists of
// runs by length, and what was once looked for and not found is not looked for again.

const PLAIN = /[^\\`*_~[\]!<\n$h]+/y;
const ADDRESS = /https?:\/\/[^\s<>[\]`"]{1,2000}/y;
const ANGLED = /<(https?:\/\/[^\s<>]{1,2000})>/y;
const BREAK = /<br ?\/?>/iy;
const DOLLARS = /\$\$[^$]{1,2000}\$\$|\$(?=\S)[^$\n`]{1,200}(?<=\S)\$(?!\d)/y;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const ADDRESS_MAX = 2000;
const TITLE_MAX = 300;

function match(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

/// Finds the end of code spans and formulas: what was once looked for and not found is not looked for again.
class Ends {
  constructor(text) {
    this.text = text;
    this.runs = null;
    this.missing = new Set();
  }

  /// Where the next run of exactly `length` backticks after `at` begins.
  backticks(length, at) {
    if (!this.runs) {
      this.runs = new Map();
      for (const run of this.text.matchAll(/`+/g)) {
        const list = this.runs.get(run[0].length) ?? { places: [], next: 0 };
        list.places.push(run.index);
        this.runs.set(run[0].length, list);
      }
    }
    const list = this.runs.get(length);
    if (!list) return -1;
    while (list.places[list.next] <= at) list.next += 1;
    return list.places[list.next] ?? -1;
  }

  word(closing, at) {
    if (this.missing.has(closing)) return -1;
    const found = this.text.indexOf(closing, at);
    if (found < 0) this.missing.add(closing);
    return found;
  }
}

/// `(address "title")` from `at`, the place of the parenthesis: the address and where it ends, or null.
function destination(text, at) {
  const blank = (c) => c === " " || c === "\n";
  let place = at + 1;
  let address = "";
  let depth = 0;
  while (text[place] === " ") place += 1;
  const angled = text[place] === "<";
  if (angled) place += 1;
  for (;; place += 1) {
    const c = text[place];
    if (c === undefined || c === "\n" || c === "<" || c === "[" || c === "]" || address.length > ADDRESS_MAX) return null;
    if (angled) {
      if (c === ">") { place += 1; break; }
    } else {
      if (blank(c) || (c === ")" && depth === 0)) break;
      if (c === "(") depth += 1;
      if (c === ")") depth -= 1;
    }
    address += c;
  }
  if (blank(text[place])) {
    while (blank(text[place])) place += 1;
    const quote = text[place];
    if (quote === '"' || quote === "'") {
      const last = Math.min(text.length, place + TITLE_MAX);
      do place += 1; while (place < last && text[place] !== quote);
      place += 1;
      while (blank(text[place])) place += 1;
    }
  }
  return text[place] === ")" ? { address, end: place + 1 } : null;
}

/// A run of `*`, `_` or `~`, and whether emphasis can begin or end there.
function mark(text, at) {
  const sign = text[at];
  let end = at + 1;
  while (text[end] === sign) end += 1;
  const count = end - at;
  const [before, after] = [text[at - 1] ?? " ", text[end] ?? " "];
  const space = (c) => c.trim() === "";
  const left = !space(after) && (!PUNCTUATION.test(after) || space(before) || PUNCTUATION.test(before));
  const right = !space(before) && (!PUNCTUATION.test(before) || space(after) || PUNCTUATION.test(after));
  if (sign === "~") return { kind: "mark", sign, count, opens: count === 2 && left, closes: count === 2 && right };
  if (sign === "*") return { kind: "mark", sign, count, opens: left, closes: right };
  const opens = left && (!right || PUNCTUATION.test(before));
  return { kind: "mark", sign, count, opens, closes: right && (!left || PUNCTUATION.test(after)) };
}

/// What is left of an address found in running text when the sentence's own signs are taken from its end.
function trimmed(address) {
  let end = address.length;
  let open = 0;
  for (const c of address) open += c === "(" ? 1 : c === ")" ? -1 : 0;
  while (end && (".,;:!?'*_~".includes(address[end - 1]) || (address[end - 1] === ")" && open < 0))) {
    if (address[end - 1] === ")") open += 1;
    end -= 1;
  }
  return address.slice(0, end);
}

/// The tokens of a text, in order.
export function tokens(text) {
  const made = [];
  const openers = [];
  const ends = new Ends(text);
  const say = (word) => made.push({ kind: "text", text: word });
  let at = 0;
  while (at < text.length) {
    const c = text[at];
    let found;
    if ((found = match(PLAIN, text, at))) {
      say(found[0]);
      at += found[0].length;
    } else if (c === "h" && !/\w/.test(text[at - 1] ?? "") && (found = match(ADDRESS, text, at))) {
      const address = trimmed(found[0]);
      made.push({ kind: "address", text: address });
      at += address.length;
    } else if (c === "\\" && (text[at + 1] === "(" || text[at + 1] === "[")) {
      const end = ends.word(text[at + 1] === "(" ? "\\)" : "\\]", at + 2);
      if (end < 0) say(text[at + 1]);
      else made.push({ kind: "formula", text: text.slice(at, end + 2) });
      at = end < 0 ? at + 2 : end + 2;
    } else if (c === "\\" && text[at + 1] === "\n") {
      made.push({ kind: "break" });
      at += 2;
    } else if (c === "\\" && ESCAPABLE.test(text[at + 1] ?? "")) {
      say(text[at + 1]);
      at += 2;
    } else if (c === "$" && (found = match(DOLLARS, text, at))) {
      made.push({ kind: "formula", text: found[0] });
      at += found[0].length;
    } else if (c === "`") {
      let length = 1;
      while (text[at + length] === "`") length += 1;
      const end = ends.backticks(length, at);
      if (end < 0) say(text.slice(at, at + length));
      else made.push({ kind: "code", text: text.slice(at + length, end).replaceAll("\n", " ") });
      at = end < 0 ? at + length : end + length;
    } else if (c === "*" || c === "_" || c === "~") {
      const run = mark(text, at);
      made.push(run);
      at += run.count;
    } else if (c === "[" || (c === "!" && text[at + 1] === "[")) {
      openers.push(made.length);
      say(c === "[" ? "[" : "![");
      at += c === "[" ? 1 : 2;
    } else if (c === "]") {
      const opener = openers.pop();
      const target = opener === undefined || text[at + 1] !== "(" ? null : destination(text, at + 1);
      if (target) {
        const written = text.slice(at, target.end);
        const picture = made[opener].text === "![";
        made[opener] = { kind: "link", address: target.address, opening: made[opener].text };
        made.push({ kind: "end of link", written });
        // There are no links in links; a picture may be inside of one.
        if (!picture) openers.length = 0;
      } else {
        say("]");
      }
      at = target?.end ?? at + 1;
    } else if (c === "\n" || (c === "<" && (found = match(BREAK, text, at)))) {
      made.push({ kind: "break" });
      at += found?.[0].length ?? 1;
    } else if (c === "<" && (found = match(ANGLED, text, at))) {
      made.push({ kind: "address", text: found[1] });
      at += found[0].length;
    } else {
      say(c);
      at += 1;
    }
  }
  return made;
}

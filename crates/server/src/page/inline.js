// Markdown within a line or paragraph, as nodes: code, emphasis, links, formulas as they are written.
//
// A hostile text costs no more than its length: each kind of emphasis is open at most once at a time, so the stack has at
// most six frames. HTML is text. Links lead to http and https only; pictures are links, because the page asks no other
// server for anything.

import { make } from "/dom.js";
import { tokens } from "/tokens.js";

/// The address if it is absolute and of a kind that a browser opens without running anything of it.
export function safeAddress(text) {
  try {
    const url = new URL(text);
    return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
  } catch {
    return null;
  }
}

function link(address) {
  return make("a", { href: address, rel: "noopener noreferrer nofollow", target: "_blank" });
}

/// Appends the nodes of `text` to `target`.
export function inline(target, text) {
  const frames = [{ kind: "", node: target }];
  let held = "";
  const top = () => frames[frames.length - 1];
  const flush = () => {
    if (held) top().node.append(held);
    held = "";
  };
  const open = (kind, node) => {
    flush();
    frames.push({ kind, node });
  };
  const close = () => {
    flush();
    const { node } = frames.pop();
    top().node.append(node);
  };
  /// Emphasis that did not end was none: its sign and its content belong to what is around it.
  const dissolve = () => {
    flush();
    const { kind, node } = frames.pop();
    const parent = top().node;
    parent.append(kind);
    while (node.firstChild) parent.append(node.firstChild);
  };
  const opened = (kind) => {
    for (let at = frames.length - 1; at > 0 && frames[at].kind !== "link"; at -= 1) {
      if (frames[at].kind === kind) return at;
    }
    return 0;
  };
  const emphasis = ({ sign, count, opens, closes }) => {
    let left = count;
    while (left) {
      const innermost = Math.max(opened(sign), left > 1 ? opened(sign + sign) : 0);
      const size = sign === "~" || left > 1 ? 2 : 1;
      if (closes && innermost) {
        while (frames.length - 1 > innermost) dissolve();
        left -= top().kind.length;
        close();
      } else if (opens && !opened(sign.repeat(size))) {
        open(sign.repeat(size), make(sign === "~" ? "del" : size === 2 ? "strong" : "em"));
        left -= size;
      } else {
        held += sign.repeat(left);
        left = 0;
      }
    }
  };
  let links = 0;
  for (const token of tokens(text)) {
    if (token.kind === "text") {
      held += token.text;
    } else if (token.kind === "mark") {
      emphasis(token);
    } else if (token.kind === "break") {
      held = held.trimEnd();
      flush();
      top().node.append(make("br"));
    } else if (token.kind === "code" || token.kind === "formula") {
      const { text: inner } = token;
      const padded = inner.length > 2 && inner.startsWith(" ") && inner.endsWith(" ") && inner.trim();
      flush();
      if (token.kind === "formula") top().node.append(make("span", { class: "formula" }, inner));
      else top().node.append(make("code", {}, padded ? inner.slice(1, -1) : inner));
    } else if (token.kind === "address") {
      const address = links ? null : safeAddress(token.text);
      if (address) {
        open("link", link(address));
        held += token.text;
        close();
      } else {
        held += token.text;
      }
    } else if (token.kind === "link") {
      const address = safeAddress(token.address);
      links += 1;
      if (address && links === 1) open("link", link(address));
      else held += links === 1 ? token.opening : "";
    } else {
      links -= 1;
      if (links) continue;
      const at = frames.findLastIndex((frame) => frame.kind === "link");
      if (at > 0) {
        while (frames.length - 1 > at) dissolve();
        close();
      } else {
        held += token.written;
      }
    }
  }
  while (frames.length > 1) dissolve();
  flush();
}

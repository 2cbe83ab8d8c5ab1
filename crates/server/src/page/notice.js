// Words beside the conversation: a notice that is seen, with at most one thing to do, and an announcement that is heard.

import { button, element, make } from "/dom.js";

/// Shows a notice until it is closed, done or replaced; announced by its live region.
export function notice(text, label = null, action = null) {
  const box = element("notice");
  const buttons = [];
  if (label) buttons.push(button(label, () => { clearNotice(); action(); }));
  buttons.push(button("Close", clearNotice));
  box.replaceChildren(make("span", {}, text), ...buttons);
  box.classList.add("shown");
}

export function clearNotice() {
  const box = element("notice");
  box.replaceChildren();
  box.classList.remove("shown");
}

/// Says something to screen readers only: that an answer begins and ends, never its words.
export function announce(text) {
  element("announce").textContent = text;
}

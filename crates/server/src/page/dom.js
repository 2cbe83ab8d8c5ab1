// Building nodes: text only ever becomes text nodes, and attributes have names that this page's own code wrote.

export const element = (id) => document.getElementById(id);

/// A node with attributes, listeners (functions, by the event's name) and children (nodes or text).
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export function button(label, click, attributes = {}) {
  return make("button", { type: "button", click, ...attributes }, label);
}

/// Puts a text on the clipboard; says whether that worked. Pages that are not on this machine and have no TLS have no
/// clipboard of their own, so there a selection is copied.
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make("textarea", { class: "quiet", "aria-hidden": "true", tabindex: "-1" });
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}

/// A button that copies what `text()` returns and says so for a moment.
export function copyButton(name, text) {
  const made = button("Copy", async () => {
    made.textContent = (await copy(text())) ? "Copied" : "Not copied";
    setTimeout(() => { made.textContent = "Copy"; }, 1500);
  }, { class: "copy", "aria-label": name });
  return made;
}

/// A size in words.
export const sizeOf = (count) => (count < 1e6 ? `${Math.ceil(count / 1e3)}\u00a0kB` : `${(count / 1e6).toFixed(1)}\u00a0MB`);

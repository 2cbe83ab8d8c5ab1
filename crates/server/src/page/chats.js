// The list of conversations that this browser keeps: searched, opened, renamed, exported, deleted; and how much room
// they take.

import { button, element, make, sizeOf } from "/dom.js";
import { LIMIT, find, list, used } from "/store.js";

/// Shows the list, or those in which `wanted` occurs. `current` is the open conversation's id; `does` has `open(id)`,
/// `rename(id, title)`, `export(id)`, `remove(id)`.
export function showChats(current, running, wanted, does) {
  const entries = find(wanted);
  element("chat-list").replaceChildren(...entries.map(({ id, title }) => {
    const label = running.has(id) ? `Answering: ${title}` : title;
    const open = button(label, () => does.open(id), { class: "open", "aria-current": id === current ? "page" : null });
    const item = make("li", {}, open);
    item.append(make("div", { class: "acts" },
      button("Rename", () => rename(item, title, (text) => does.rename(id, text)), { "aria-label": `Rename ${title}` }),
      button("Export", () => does.export(id), { "aria-label": `Export ${title}` }),
      button("Delete", () => does.remove(id), { "aria-label": `Delete ${title}` })));
    return item;
  }));
  const all = list().length;
  if (!entries.length && all) element("chat-list").append(make("li", {}, "No conversation has these words."));
  const count = `${all} ${all === 1 ? "conversation" : "conversations"}`;
  element("room").textContent = `${count} in this browser, ${sizeOf(used())} of ${sizeOf(LIMIT)}`;
}

function rename(item, title, renamed) {
  const field = make("input", { "aria-label": "Title", maxlength: "120" });
  const former = [...item.children];
  let over = false;
  const finish = (text) => {
    if (over) return;
    over = true;
    if (text && text !== title) renamed(text);
    else item.replaceChildren(...former);
  };
  field.value = title;
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") finish(field.value.trim());
    if (event.key !== "Escape") return;
    event.stopPropagation();
    finish(null);
    former[0].focus();
  });
  field.addEventListener("blur", () => finish(field.value.trim()));
  item.replaceChildren(field);
  field.select();
}

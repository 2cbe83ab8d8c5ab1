// A turn of the conversation as it is seen: what the user said, with its files and what can be done with it.

import { button, copyButton, make, sizeOf } from "/dom.js";
import { userContent } from "/wire.js";

/// A file that is attached: its name, and its text when it is opened.
function fileView({ name, text }) {
  const summary = make("summary", {}, `${name} `, make("small", {}, sizeOf(text.length)));
  const details = make("details", { class: "file" }, summary);
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) {
      details.append(make("pre", { tabindex: "0", role: "group", "aria-label": name }, text));
    }
  });
  return details;
}

/// `does` has `edit(message, text)`, `remove(message)` and `again()`.
export class UserTurn {
  constructor(message, does) {
    this.message = message;
    this.does = does;
    this.bubble = make("div", { class: "bubble" });
    const copied = copyButton("Copy the message", () => userContent(message));
    this.actions = make("div", { class: "actions" }, copied,
      button("Edit", () => this.edit(), { class: "idle", "aria-label": "Edit the message" }),
      button("Delete", () => does.remove(message), { class: "idle", "aria-label": "Delete the message and its answer" }),
      button("Answer", () => does.again(), { class: "idle last" }));
    this.box = make("article", { class: "turn user", "aria-label": "You" },
      make("h2", {}, "You"), this.bubble, this.actions);
    this.show();
  }

  show() {
    const { content, files = [] } = this.message;
    const text = content ? [make("div", { class: "plain" }, content)] : [];
    this.bubble.replaceChildren(...files.map(fileView), ...text);
    this.actions.hidden = false;
  }

  edit() {
    const area = make("textarea", { rows: "4", "aria-label": "The message, edited" });
    area.value = this.message.content;
    const cancel = () => {
      this.show();
      this.actions.querySelector("button").focus();
    };
    const send = () => {
      if (area.value.trim() || this.message.files?.length) this.does.edit(this.message, area.value.trim());
    };
    area.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      cancel();
    });
    this.bubble.replaceChildren(area, make("div", { class: "actions" },
      button("Send", send, { class: "idle main" }), button("Cancel", cancel)));
    this.actions.hidden = true;
    area.focus();
  }
}

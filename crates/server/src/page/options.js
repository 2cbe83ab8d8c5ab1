// The settings of a conversation: system prompt, sampling, thinking, example tools.

import { element } from "/dom.js";

const NUMBERS = ["temperature", "top_p", "max_tokens"];

/// What differs from the model's own settings, in a few words.
function summaryOf(settings) {
  const parts = [];
  if (settings.system) parts.push("system prompt");
  if (settings.thinking) parts.push(settings.thinking === "on" ? "thinking" : "no thinking");
  if (settings.temperature != null) parts.push(`temperature ${settings.temperature}`);
  if (settings.top_p != null) parts.push(`top_p ${settings.top_p}`);
  if (settings.max_tokens != null) parts.push(`at most ${settings.max_tokens} tokens`);
  if (settings.tools) parts.push("example tools");
  if (settings.drop_oldest) parts.push("oldest turns are left out");
  return parts.join(", ");
}

export class Options {
  /// `changed()` is called when the user has changed a setting.
  constructor(changed) {
    this.settings = {};
    const toggle = element("show-options");
    toggle.addEventListener("click", () => this.toggle(element("options").hidden));
    element("options").addEventListener("change", () => {
      this.read();
      changed();
    });
    // Enter in a field of numbers is not meant to send the message.
    element("options").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.target.matches("input")) event.preventDefault();
      if (event.key === "Escape") {
        event.stopPropagation();
        this.toggle(false);
        toggle.focus();
      }
    });
  }

  toggle(open) {
    element("options").hidden = !open;
    element("show-options").setAttribute("aria-expanded", String(open));
    if (open) element("system").focus();
  }

  /// Shows the settings of a conversation, and changes these from now on.
  show(settings) {
    this.settings = settings;
    element("system").value = settings.system ?? "";
    for (const name of NUMBERS) element(name).value = settings[name] ?? "";
    element("thinking").value = settings.thinking ?? "";
    element("use-tools").checked = settings.tools ?? false;
    element("drop-oldest").checked = settings.drop_oldest ?? false;
    element("options-summary").textContent = summaryOf(settings);
  }

  read() {
    const { settings } = this;
    const set = (name, value) => {
      if (value === "" || value === false) delete settings[name];
      else settings[name] = value;
    };
    set("system", element("system").value.trim());
    for (const name of NUMBERS) set(name, element(name).value === "" ? "" : Number(element(name).value));
    set("thinking", element("thinking").value);
    set("tools", element("use-tools").checked);
    set("drop_oldest", element("drop-oldest").checked);
    element("options-summary").textContent = summaryOf(settings);
  }

  /// The first field whose value the server would refuse, or null.
  get wrong() {
    return NUMBERS.map(element).find((field) => !field.checkValidity()) ?? null;
  }
}

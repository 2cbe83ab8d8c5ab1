// The model of a conversation, where the server has several: a list in the head of the page.

import { element, make } from "/dom.js";

const WORDS = { loading: "loading", unloaded: "not loaded", unloading: "being unloaded" };

function label({ id, state, percent, failed }) {
  const word = failed ? "cannot be loaded" : state === "loading" ? `loading, ${percent} %` : WORDS[state];
  return word ? `${id} (${word})` : id;
}

export class Picker {
  /// `changed()` is called when the user has chosen another model.
  constructor(changed) {
    this.settings = {};
    this.names = [];
    this.said = "";
    element("pick").addEventListener("change", () => {
      this.settings.model = element("pick").value;
      changed();
    });
  }

  /// Shows the model of a conversation's settings, and changes these from now on.
  show(settings) {
    this.settings = settings;
    this.select();
  }

  /// Shows what the server has; a list that is open is left alone while nothing has changed.
  list(models = []) {
    const said = JSON.stringify(models);
    if (said === this.said) return;
    this.said = said;
    this.names = models.map(({ id }) => id);
    element("pick").replaceChildren(...models.map((model) => make("option", { value: model.id }, label(model))));
    element("pick").hidden = models.length < 2;
    element("model").hidden = models.length > 1;
    this.select();
  }

  /// A conversation of a model that is not served any more goes on with the first.
  select() {
    if (this.names.length && !this.names.includes(this.settings.model)) delete this.settings.model;
    element("pick").value = this.settings.model ?? this.names[0] ?? "";
  }

  /// The server does not know the model.
  forget() {
    delete this.settings.model;
    this.said = "";
  }

  /// The model that was chosen, or null.
  get model() {
    return this.settings.model ?? null;
  }
}

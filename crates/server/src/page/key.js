// The key of a server that wants one: asked for in a dialog, kept for the life of the tab, sent with every request.

import { element } from "/dom.js";

const kept = "flashmoe-key";
let asking = null;
/// Whether the user closed the dialog without a key: polling does not open it again.
let declined = false;

/// What `call` throws when the user gives no key.
export class KeyMissing extends Error {
  constructor() {
    super("this server wants its key");
  }
}

/// Asks for the key; true if one was given. One dialog, whatever the number of requests that wait for it.
export function askForKey(rejected = false) {
  const dialog = element("ask-key");
  const field = element("key");
  declined = false;
  element("key-rejected").hidden = !rejected;
  field.setAttribute("aria-invalid", String(rejected));
  asking ??= new Promise((resolve) => {
    field.value = "";
    dialog.returnValue = "";
    dialog.showModal();
    dialog.addEventListener("close", () => {
      asking = null;
      const given = dialog.returnValue === "use" && field.value !== "";
      if (given) sessionStorage.setItem(kept, field.value);
      declined = !given;
      resolve(given);
    }, { once: true });
  });
  return asking;
}

/// `fetch` with the key. A refusal asks the user until a key is taken or the dialog is closed; `poll` does not ask
/// again after that.
export async function call(path, options = {}, { poll = false } = {}) {
  for (;;) {
    const key = sessionStorage.getItem(kept);
    const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
    const response = await fetch(path, { ...options, headers });
    if (response.status !== 401) return response;
    if (poll && declined) throw new KeyMissing();
    // Another request may have asked meanwhile, and been given a key that was not yet tried here.
    if (key !== sessionStorage.getItem(kept)) continue;
    if (!(await askForKey(key !== null))) throw new KeyMissing();
  }
}

// The two panels, conversations and engine: columns where there is room, else over the page, one at a time.

import { element } from "/dom.js";

const panels = { chats: "(min-width: 72rem)", engine: "(min-width: 56rem)" };

function state(name) {
  const panel = element(name);
  const over = !matchMedia(panels[name]).matches;
  return { panel, over, button: element(`show-${name}`) };
}

/// What lies under a panel that is over the page is out of reach while it is open, all but the page's heading.
function cover() {
  const open = Object.keys(panels).find((name) => state(name).over && !element(name).hidden);
  const under = document.querySelectorAll("#main > :not(header), #main > header > :not(h1)");
  for (const node of under) node.inert = Boolean(open);
  for (const name of Object.keys(panels)) element(name).inert = Boolean(open) && name !== open;
}

function show(name, open) {
  const { panel, button } = state(name);
  panel.hidden = !open;
  button.setAttribute("aria-expanded", String(open));
  cover();
}

/// Closes a panel that is over the page, and says whether there was one.
export function closeOver() {
  const open = Object.keys(panels).find((name) => state(name).over && !element(name).hidden);
  if (!open) return false;
  show(open, false);
  state(open).button.focus();
  return true;
}

export function setUpPanels() {
  for (const [name, room] of Object.entries(panels)) {
    const fit = () => show(name, matchMedia(room).matches);
    matchMedia(room).addEventListener("change", fit);
    fit();
    element(`show-${name}`).addEventListener("click", () => {
      show(name, element(name).hidden);
      if (!element(name).hidden) element(name).querySelector("button")?.focus();
    });
    element(`close-${name}`).addEventListener("click", () => {
      show(name, false);
      element(`show-${name}`).focus();
    });
  }
}

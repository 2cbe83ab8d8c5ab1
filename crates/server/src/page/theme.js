// Light or dark: as the system is, or as the button says, which this browser remembers.

const kept = "flashmoe-theme";
const themes = ["system", "light", "dark"];
const button = () => document.getElementById("theme");

function apply(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  if (button()) button().textContent = `Theme: ${theme}`;
}

function current() {
  try {
    const theme = localStorage.getItem(kept);
    return themes.includes(theme) ? theme : "system";
  } catch {
    return "system";
  }
}

// This script runs before the page is drawn, so that a dark page does not begin with a white flash.
apply(current());
addEventListener("DOMContentLoaded", () => {
  let theme = current();
  apply(theme);
  button().addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    apply(theme);
    try {
      localStorage.setItem(kept, theme);
    } catch {
      // The theme then lasts as long as the page.
    }
  });
});

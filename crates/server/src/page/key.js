// The key of a server that wants one: asked for once, kept for the life of the tab, sent with every request.

const kept = "flashmoe-key";

function askForKey() {
  const dialog = document.getElementById("ask-key");
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      sessionStorage.setItem(kept, document.getElementById("key").value);
      resolve();
    }, { once: true });
  });
}

/// `fetch` with the key. A refusal asks the user and tries once more.
export async function call(path, options = {}) {
  const attempt = () => {
    const key = sessionStorage.getItem(kept);
    const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
    return fetch(path, { ...options, headers });
  };
  const response = await attempt();
  if (response.status !== 401) return response;
  await askForKey();
  return attempt();
}

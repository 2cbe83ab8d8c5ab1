// Conversations in this browser: one entry of localStorage for each, and an index of titles, times and sizes.
//
// Browsers give a page about five million characters. `LIMIT` stays below, so that what is refused is refused here, with
// words, and not in the middle of an answer. Nothing is removed to make room: that is the user's to say.

const INDEX = "flashmoe-chats";
const CHAT = "flashmoe-chat-";
const TITLE = 60;

/// The characters that all conversations together may have.
export const LIMIT = 4_000_000;

function read(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null;
  }
}

function index() {
  const kept = read(INDEX);
  return Array.isArray(kept) ? kept.filter((entry) => typeof entry?.id === "string") : [];
}

function write(key, text) {
  try {
    localStorage.setItem(key, text);
    return true;
  } catch {
    return false;
  }
}

/// A conversation that is not yet kept.
export function create() {
  const id = Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  return { id, title: "", updated: 0, settings: {}, messages: [] };
}

/// What is kept, the newest first: `{id, title, updated, size}`.
export function list() {
  return index().sort((one, other) => other.updated - one.updated);
}

/// Of what is kept, the conversations in whose title or messages all of some words occur.
export function find(words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (!wanted.length) return list();
  return list().filter(({ id, title }) => {
    const said = (load(id)?.messages ?? []).flatMap(({ role, content, files = [] }) => (
      role === "tool" ? [] : [content, ...files.flatMap(({ name, text }) => [name, text])]));
    const text = [title, ...said].join("\n").toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}

export function used() {
  return index().reduce((sum, { size }) => sum + (size || 0), 0);
}

/// The title that a conversation gets from its first message.
export function titleOf(chat) {
  if (chat.title) return chat.title;
  const first = chat.messages.find(({ role }) => role === "user");
  const words = (first?.content || first?.files?.[0]?.name || "").trim().split("\n", 1)[0];
  const characters = [...words.slice(0, 2 * TITLE)];
  return characters.length > TITLE ? `${characters.slice(0, TITLE).join("")}…` : words || "New conversation";
}

/// The conversation, or null if there is none that can be read.
export function load(id) {
  const chat = read(CHAT + id);
  const roles = ["user", "assistant", "tool"];
  const sound = chat?.id === id && Array.isArray(chat.messages)
    && chat.messages.every((message) => roles.includes(message?.role) && typeof message.content === "string");
  return sound ? { title: "", settings: {}, ...chat } : null;
}

/// Keeps a conversation as it is now. Returns null, or in words why it is not kept; what was kept of it before stays.
export function save(chat) {
  const entries = index().filter(({ id }) => id !== chat.id);
  const text = JSON.stringify(chat);
  const others = entries.reduce((sum, { size }) => sum + (size || 0), 0);
  const entry = { id: chat.id, title: titleOf(chat), updated: chat.updated, size: text.length };
  const fits = others + text.length <= LIMIT;
  if (fits && write(CHAT + chat.id, text) && write(INDEX, JSON.stringify([entry, ...entries]))) return null;
  if (!fits) return "The conversations together are too long to be kept in this browser: delete some that you no longer need.";
  return "This browser keeps nothing more for this page: delete conversations, or allow the page to store data.";
}

export function remove(id) {
  try {
    localStorage.removeItem(CHAT + id);
  } catch {
    // A browser that keeps nothing has nothing to remove.
  }
  write(INDEX, JSON.stringify(index().filter((entry) => entry.id !== id)));
}

/// Calls `changed(id)` when another tab has changed a conversation.
export function watch(changed) {
  addEventListener("storage", ({ key }) => {
    if (key === null || key === INDEX || key.startsWith(CHAT)) changed(key?.startsWith(CHAT) ? key.slice(CHAT.length) : null);
  });
}

// The page's parts put together: the open conversation, the box, the list, the settings, the keys.

import { showChats } from "/chats.js";
import { Composer, emptyDraft, joined } from "/composer.js";
import { element } from "/dom.js";
import { download } from "/export.js";
import { Follow } from "/follow.js";
import { showFullness } from "/fullness.js";
import { clearNotice, notice } from "/notice.js";
import { Options } from "/options.js";
import { closeOver, setUpPanels } from "/panels.js";
import { Picker } from "/picker.js";
import { Session } from "/session.js";
import { watchServer } from "/status.js";
import * as store from "/store.js";

const OPEN = "flashmoe-open";
const follow = new Follow(element("conversation"), element("jump"));
/// Conversations that are answering, or open. The open one's draft is in the composer, the others' in themselves.
const sessions = new Map();
let current = null;
let unkept = null;

const host = {
  model: null,
  leaving: false,
  changed: () => refresh(),
  grown: (session) => { if (session === current) follow.grown(); },
  sent: (session) => { if (session === current) follow.toEnd(); },
  /// The settings of a conversation were changed by one of its examples.
  set: (session) => { if (session === current) options.show(session.chat.settings); },
  /// A problem is said once, not after every attempt.
  kept: (problem) => {
    if (problem && problem !== unkept) notice(`${problem} This conversation is not kept.`);
    unkept = problem;
  },
  returned: (session) => {
    // A conversation without messages is in no list: what comes back from it comes back here.
    if (session !== current && session.chat.messages.length) return;
    const back = session.draft;
    if (back.text || back.files.length) {
      composer.draft = joined(back, composer.draft);
      session.draft = emptyDraft();
      composer.input.focus();
    }
    follow.grown();
  },
};

const composer = new Composer((text, files) => {
  if (current.running) return;
  if (options.wrong) {
    options.toggle(true);
    options.wrong.reportValidity();
    return;
  }
  clearNotice();
  composer.draft = emptyDraft();
  current.send(text, files);
});

const options = new Options(() => {
  if (current.chat.messages.length) current.keep();
  showFullness(current.chat);
});

const picker = new Picker(() => {
  if (current.chat.messages.length) current.keep();
});

function refresh() {
  const running = new Set([...sessions.values()].filter((session) => session.running).map(({ chat }) => chat.id));
  for (const [id, session] of sessions) {
    const { text, files } = session.draft;
    if (session !== current && !session.running && !text && !files.length) sessions.delete(id);
  }
  element("stop").hidden = !current.running;
  showFullness(current.chat);
  element("send").hidden = current.running;
  document.title = current.chat.messages.length ? `${store.titleOf(current.chat)} - flashmoe` : "flashmoe";
  showChats(current.chat.id, running, element("find").value, { open, rename, remove, export: exported });
}

function show(session) {
  if (current) current.draft = composer.draft;
  current = session;
  sessions.set(session.chat.id, session);
  element("conversation").replaceChildren(session.box);
  composer.draft = session.draft;
  session.draft = emptyDraft();
  options.show(session.chat.settings);
  picker.show(session.chat.settings);
  sessionStorage.setItem(OPEN, session.chat.id);
  refresh();
  follow.toEnd();
}

function open(id) {
  closeOver();
  if (id === current?.chat.id) return;
  const chat = sessions.get(id)?.chat ?? store.load(id);
  if (chat) show(sessions.get(id) ?? new Session(chat, host));
  else notice("This conversation cannot be read: what the browser kept of it is damaged.", "Delete it", () => remove(id));
}

/// A new conversation, with the model of the last.
function begin() {
  const chat = store.create();
  if (picker.model) chat.settings.model = picker.model;
  show(new Session(chat, host));
}

function rename(id, title) {
  const chat = sessions.get(id)?.chat ?? store.load(id);
  if (!chat) return;
  chat.title = title;
  host.kept(store.save(chat));
  refresh();
}

function exported(id) {
  const chat = sessions.get(id)?.chat ?? store.load(id);
  if (chat) download(store.titleOf(chat), chat.messages);
}

function remove(id) {
  const chat = sessions.get(id)?.chat ?? store.load(id);
  sessions.get(id)?.stop();
  store.remove(id);
  if (id === current.chat.id) begin();
  sessions.delete(id);
  refresh();
  if (!chat) return;
  notice(`“${store.titleOf(chat)}” was deleted.`, "Undo", () => {
    host.kept(store.save(chat));
    open(id);
  });
}

element("new").addEventListener("click", () => {
  closeOver();
  begin();
  composer.input.focus();
});
element("find").addEventListener("input", refresh);
element("stop").addEventListener("click", () => {
  current.stop();
  composer.input.focus();
});
addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented || document.querySelector("dialog[open]")) return;
  if (!closeOver()) current.stop();
});
// An answer that the browser breaks off, because the page goes, is kept as it was before that.
addEventListener("pagehide", () => {
  for (const session of sessions.values()) if (session.running) session.keep();
  host.leaving = true;
});
addEventListener("pageshow", () => { host.leaving = false; });
// What another tab said is shown here too, unless this conversation is answering.
store.watch((id) => {
  if (id === current.chat.id && !current.running) {
    const chat = store.load(id);
    const session = chat && new Session(chat, host);
    if (session) session.draft = composer.draft;
    if (session) show(session);
  }
  refresh();
});

setUpPanels();
const former = sessionStorage.getItem(OPEN) ?? store.list()[0]?.id;
const chat = former && store.load(former);
show(new Session(chat || store.create(), host));
watchServer((model) => {
  host.model = model;
  for (const session of sessions.values()) session.introduce();
}, picker);

// One conversation at work: sends, answers, stops, and changes what was said. Its nodes live as long as it does, so an
// answer goes on while another conversation is shown.

import { AnswerTurn } from "/answer.js";
import { emptyDraft, joined } from "/composer.js";
import { button, make } from "/dom.js";
import { isFull } from "/fullness.js";
import { announce, notice } from "/notice.js";
import * as store from "/store.js";
import { answer } from "/stream.js";
import { exampleResult } from "/tools.js";
import { UserTurn } from "/turns.js";
import { request } from "/wire.js";

const ROUNDS = 8;
const KEEP_EVERY = 3000;

export class Session {
  /// `host` has `model`, what the server has said of it, or null; `changed()`, called after every change of state; `kept(problem)`, after every attempt to keep the
  /// conversation; `sent(session)` and `returned(session)`, around every answer; `grown(session)`; and `leaving`, true
  /// once the page is being left.
  constructor(chat, host) {
    this.chat = chat;
    this.host = host;
    this.box = make("div", { class: "session" });
    this.draft = emptyDraft();
    this.controller = null;
    this.draw();
  }

  get running() {
    return this.controller !== null;
  }

  keep() {
    if (this.host.leaving) return;
    this.host.kept(this.chat.messages.length ? store.save(this.chat) : store.remove(this.chat.id) ?? null);
  }

  /// Builds all turns again, from what is kept.
  draw() {
    const { messages } = this.chat;
    this.box.replaceChildren();
    if (!messages.length) this.box.append(this.greeting());
    let last = null;
    for (const message of messages) {
      if (message.role === "tool") {
        const index = last?.message.tool_calls?.findIndex(({ id }) => id === message.tool_call_id) ?? -1;
        last?.result(index, message.content);
      } else if (message.role === "user") {
        this.box.append(this.userTurn(message));
      } else {
        last = AnswerTurn.of(message, () => this.regenerate(), () => this.host.grown(this));
        this.box.append(last.box);
      }
    }
  }

  /// What is seen before the first message. Examples come with the model: others have none.
  greeting() {
    const { about, examples = [] } = this.host.model ?? {};
    const asks = examples.map(({ text, tools }) => button(text, () => this.example(text, tools)));
    return make("div", { class: "greeting" }, make("h2", {}, "What would you like to ask?"),
      ...(about ? [make("p", { class: "about" }, about)] : []),
      make("p", {}, "The model runs on the server that sent this page. Conversations are kept in this browser only."),
      make("div", { class: "examples" }, ...asks));
  }

  example(text, tools) {
    if (tools) {
      this.chat.settings.tools = true;
      this.host.set(this);
    }
    this.send(text, []);
  }

  /// The server has said what it serves.
  introduce() {
    if (!this.chat.messages.length) this.draw();
  }

  userTurn(message) {
    const does = {
      edit: (edited, text) => this.edit(edited, text),
      remove: (removed) => this.remove(removed),
      again: () => this.regenerate(),
    };
    return new UserTurn(message, does).box;
  }

  async send(content, files) {
    if (this.running) return;
    const before = this.chat.messages.slice();
    const message = { role: "user", content, ...(files.length ? { files } : {}) };
    if (!before.length) this.box.replaceChildren();
    this.chat.messages.push(message);
    this.box.append(this.userTurn(message));
    await this.run(before, { text: content, files });
  }

  /// Answers the last message of the user once more.
  async regenerate() {
    if (this.running) return;
    const before = this.chat.messages.slice();
    this.chat.messages.length = before.findLastIndex(({ role }) => role === "user") + 1;
    this.draw();
    await this.run(before, null);
  }

  /// Says something else in place of a message; what came after it goes.
  async edit(message, text) {
    if (this.running) return;
    const before = this.chat.messages.slice();
    this.chat.messages.length = before.indexOf(message);
    this.draw();
    const files = message.files ?? [];
    const edited = { role: "user", content: text, ...(files.length ? { files } : {}) };
    this.chat.messages.push(edited);
    this.box.querySelector(".greeting")?.remove();
    this.box.append(this.userTurn(edited));
    await this.run(before, { text, files });
  }

  /// Takes out a message with its answer.
  remove(message) {
    if (this.running) return;
    const before = this.chat.messages.slice();
    const from = before.indexOf(message);
    const next = before.findIndex(({ role }, index) => index > from && role === "user");
    this.change([...before.slice(0, from), ...(next < 0 ? [] : before.slice(next))]);
    notice("The message and its answer were deleted.", "Undo", () => { if (!this.running) this.change(before); });
  }

  change(messages) {
    this.chat.messages = messages;
    this.chat.updated = Date.now();
    this.keep();
    this.draw();
    this.host.changed();
  }

  stop() {
    this.controller?.abort();
  }

  /// Answers as long as the model calls tools, but not for ever. If nothing came of it, everything is as it was `before`
  /// and the draft is back in the box.
  async run(before, draft) {
    const { chat } = this;
    const length = chat.messages.length;
    this.controller = new AbortController();
    this.box.classList.add("running");
    chat.updated = Date.now();
    this.keep();
    this.host.changed();
    this.host.sent(this);
    announce("flashmoe is answering.");
    let problem = null;
    try {
      for (let round = 0; round < ROUNDS && (await this.answer()); round += 1);
    } catch (error) {
      problem = error.name === "AbortError" ? "Stopped." : error.message;
    }
    this.controller = null;
    this.box.classList.remove("running");
    if (problem && chat.messages.length === length) {
      chat.messages = before;
      this.draw();
      const back = draft ? " The message is back in the box." : "";
      if (draft) this.draft = joined(draft, this.draft);
      // The server's messages begin small, unless with a field's name, and end without a full stop.
      const sentence = problem.replace(/^the /, "The ").replace(/[^.!?]$/, "$&.");
      notice(`${sentence}${back}`);
    }
    announce(problem ?? "The answer is complete.");
    chat.updated = Date.now();
    this.keep();
    this.host.changed();
    this.host.returned(this);
  }

  /// One answer. Returns whether tools were called, so that the model must be told their results.
  async answer() {
    const { chat } = this;
    const message = { role: "assistant", content: "", stopped: "The page was closed before the answer was complete." };
    const turn = new AnswerTurn(message, () => this.regenerate(), () => this.host.grown(this));
    const calls = [];
    const body = request(chat);
    let kept = performance.now();
    this.box.append(turn.box);
    this.host.grown(this);
    const come = () => { if (!chat.messages.includes(message)) chat.messages.push(message); };
    try {
      for await (const event of answer(body, this.controller.signal)) {
        if (event.waiting !== undefined) turn.waiting(event.waiting);
        if (event.progress) turn.progress(event.progress);
        if (event.thinking) {
          come();
          turn.think(event.thinking);
          message.reasoning_content = (message.reasoning_content ?? "") + event.thinking;
          message.thinking = turn.thinking.kept;
        }
        if (event.text) {
          come();
          turn.say(event.text);
          message.content += event.text;
        }
        if (event.part) {
          turn.call(event.part);
          const made = (calls[event.part.index] ??= { ...event.part, function: { name: "", arguments: "" } });
          made.function.name ||= event.part.function.name ?? "";
          made.function.arguments += event.part.function.arguments ?? "";
        }
        if (event.finish === "length") message.cut = "The answer was cut off at the limit of tokens.";
        if (event.figures) this.figures(turn, event.figures);
        if (performance.now() - kept > KEEP_EVERY && chat.messages.includes(message)) {
          this.keep();
          kept = performance.now();
        }
      }
      delete message.stopped;
      if (calls.length) message.tool_calls = calls;
      else if (!message.content && !message.cut) message.cut = "The answer is empty.";
      come();
    } catch (error) {
      message.stopped = error.name === "AbortError" ? "Stopped." : `Broken off: ${error.message}`;
      throw error;
    } finally {
      if (message.reasoning_content) message.thinking = turn.thinking.kept;
      turn.end();
    }
    calls.forEach((call, index) => {
      const content = exampleResult(call.function.name);
      turn.result(index, content);
      chat.messages.push({ role: "tool", tool_call_id: call.id, content });
    });
    return calls.length > 0;
  }

  figures(turn, { usage, timings, x_io }) {
    const { message, thinking } = turn;
    message.figures = { usage, timings, x_io };
    if (message.cut && isFull(message.figures)) message.cut = "The answer was cut off: the context is full.";
    const counted = usage.completion_tokens_details?.reasoning_tokens;
    if (thinking.begun !== null && counted) thinking.count(counted);
  }
}

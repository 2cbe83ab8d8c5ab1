// The box for a message: its text and the files that go with it, by button, drop or paste.

import { button, element, make, sizeOf } from "/dom.js";
import { notice } from "/notice.js";

/// What one file may have, and all files of a message together.
const FILE_MAX = 1_000_000;

/// A draft of nothing.
export const emptyDraft = () => ({ text: "", files: [] });

/// Two drafts as one: a message that comes back does not push away what was written meanwhile.
export function joined(first, second) {
  const text = [first.text, second.text].filter((part) => part).join("\n\n");
  return { text, files: [...first.files, ...second.files] };
}

/// The text of a file, or an error that says in words why it is none.
async function textOf(file) {
  if (file.size > FILE_MAX) throw new Error(`has ${sizeOf(file.size)}; at most ${sizeOf(FILE_MAX)} can be attached`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return text;
  } catch (error) {
    if (!(error instanceof TypeError)) throw new Error("cannot be read");
  }
  throw new Error("is not text in UTF-8");
}

export class Composer {
  /// `send(text, files)` takes what was written.
  constructor(send) {
    this.send = send;
    this.input = element("input");
    this.files = [];
    const chooser = element("files");
    const touch = () => matchMedia("(pointer: coarse)").matches;
    if (!touch()) this.input.placeholder = "Message (Enter sends, Shift+Enter begins a line)";
    element("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.input.addEventListener("keydown", (event) => {
      // On a touch screen Enter is the only way to a new line.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || touch()) return;
      event.preventDefault();
      this.submit();
    });
    element("attach").addEventListener("click", () => chooser.click());
    chooser.addEventListener("change", () => {
      this.attach([...chooser.files]);
      chooser.value = "";
    });
    this.input.addEventListener("paste", (event) => {
      if (!event.clipboardData.files.length) return;
      event.preventDefault();
      this.attach([...event.clipboardData.files]);
    });
    const main = element("main");
    main.addEventListener("dragover", (event) => event.preventDefault());
    main.addEventListener("drop", (event) => {
      event.preventDefault();
      this.attach([...event.dataTransfer.files]);
    });
  }

  submit() {
    const text = this.input.value.trim();
    if (text || this.files.length) this.send(text, this.files);
  }

  /// Takes files one after the other; the first that cannot be taken is said.
  async attach(files) {
    const refused = [];
    for (const file of files) {
      try {
        const text = await textOf(file);
        const together = this.files.reduce((sum, { text: other }) => sum + other.length, text.length);
        if (together > FILE_MAX) throw new Error(`does not fit: files together have at most ${sizeOf(FILE_MAX)}`);
        this.files = [...this.files, { name: file.name, text }];
      } catch (error) {
        refused.push(`${file.name} ${error.message}.`);
      }
    }
    if (refused.length) notice(refused.slice(0, 3).join(" ") + (refused.length > 3 ? ` And ${refused.length - 3} more.` : ""));
    this.show();
  }

  show() {
    element("attached").replaceChildren(...this.files.map((file) => make("li", {}, `${file.name} `,
      make("small", {}, sizeOf(file.text.length)),
      button("Remove", () => {
        this.files = this.files.filter((other) => other !== file);
        this.show();
        this.input.focus();
      }, { "aria-label": `Remove ${file.name}` }))));
  }

  get draft() {
    return { text: this.input.value, files: this.files };
  }

  set draft({ text, files }) {
    this.input.value = text;
    this.files = files;
    this.show();
  }
}

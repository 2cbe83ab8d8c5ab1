// How full the context of the open conversation is, once it is nearly full, and what to do about it.

import { element } from "/dom.js";
import { contextTokens } from "/status.js";

/// From this share of the context on, it is shown.
const NEARLY = 0.8;

/// Whether the end of the context ended an answer of these figures.
export function isFull({ usage }) {
  const context = contextTokens();
  return context !== null && usage.total_tokens >= context;
}

/// Shows it for a conversation, beside the box.
export function showFullness({ messages, settings }) {
  const context = contextTokens();
  const used = messages.findLast(({ figures }) => figures)?.figures.usage.total_tokens ?? 0;
  const gauge = element("fullness");
  gauge.hidden = context === null || used < NEARLY * context;
  const percent = Math.min(100, Math.round((100 * used) / context));
  const way = settings.drop_oldest ? "the oldest turns are left out" : "Options can leave out the oldest turns";
  gauge.textContent = gauge.hidden ? "" : `Context ${percent} % full: ${way}`;
}

// The engine: asks the server once a second how it is doing and draws it.
//
// Rates of sums (bytes, hits, waiting) are differences between two answers, so they say what happened just now. When the
// server is silent, what it said last stays, greyed, and words say so.

import { button, element, make } from "/dom.js";
import { setUpHeat, showHeat } from "/heat.js";
import { KeyMissing, askForKey, call } from "/key.js";

const interval = 1000;
const history = [];
const rates = { decode: 0, prefill: 0 };
let last = null;

function text(id, value) {
  element(id).textContent = value;
}

/// Experts found in each tier between two answers, or since the start before there are two.
function tiers(now, before) {
  const sum = (answer, field) =>
    answer ? answer.experts.prefill[field] + answer.experts.decode[field] : 0;
  const since = (field) => sum(now, field) - sum(before, field);
  const vram = now.experts.vram_hits - (before?.experts.vram_hits ?? 0);
  return { vram, ram: since("hits") - vram, inflight: since("joined"), disk: since("misses") };
}

function showTiers(now, before) {
  let found = tiers(now, before);
  let total = Object.values(found).reduce((sum, count) => sum + count, 0);
  if (!total) {
    found = tiers(now, null);
    total = Object.values(found).reduce((sum, count) => sum + count, 0);
  }
  const words = { vram: "GPU memory", ram: "memory", inflight: "on their way", disk: "disk" };
  const bars = Object.entries(found).map(([tier, count]) => {
    const bar = make("div", { class: tier });
    bar.style.width = `${(100 * count) / Math.max(total, 1)}%`;
    return bar;
  });
  element("tiers").replaceChildren(...bars);
  const shown = Object.entries(found).filter(([, count]) => count);
  const parts = shown.map(([tier, count]) => `${words[tier]} ${((100 * count) / total).toFixed(1)} %`);
  text("tiers-text", parts.join(", ") || "none asked for yet");
}

function showRates(now, before, seconds) {
  history.push({ decode: now.decode_rate, busy: now.running.length > 0 });
  if (history.length > 120) history.shift();
  for (const [kind, rate] of [["decode", now.decode_rate], ["prefill", now.prefill_rate]]) {
    if (rate > 0) rates[kind] = rate;
    // Between answers the last rate is worth more than the idle engine's zero.
    const idle = rate === 0 && rates[kind] > 0 ? " (last)" : "";
    text(`${kind}-rate`, `${rates[kind].toFixed(1)} tok/s${idle}`);
  }
  const wait = (answer) => answer.experts.prefill.wait_s + answer.experts.decode.wait_s;
  const bytes = before ? now.experts.bytes_read - before.experts.bytes_read : 0;
  text("disk-rate", `${(bytes / 1e9 / seconds).toFixed(2)} GB/s`);
  const waited = before ? (wait(now) - wait(before)) / seconds : 0;
  text("wait", `${(100 * Math.min(waited, 1)).toFixed(0)} %`);
  const canvas = element("rate");
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, canvas.width, canvas.height);
  const top = Math.max(...history.map((point) => point.decode), 1);
  const label = `Tokens per second in the last two minutes, at most ${top.toFixed(1)}`;
  canvas.setAttribute("aria-label", label);
  const width = canvas.width / 120;
  pen.fillStyle = getComputedStyle(canvas).color;
  history.forEach((point, index) => {
    const height = (canvas.height - 4) * (point.decode / top);
    pen.fillRect(index * width, canvas.height - height, width - 1, point.busy ? height : 0);
  });
}

function showJobs(now) {
  const jobs = now.running.map((job) => {
    const eta = job.eta_s == null ? "" : `, ${Math.ceil(job.eta_s)} s left`;
    const reused = job.cached ? ` (${job.cached} reused)` : "";
    const where = job.stage === "prefill"
      ? `Reading the prompt: ${job.processed} of ${job.prompt} tokens${reused}${eta}`
      : `Answering: ${job.generated} tokens so far, after a prompt of ${job.prompt}${reused}`;
    return make("div", { class: "job" }, where);
  });
  element("jobs").replaceChildren(...jobs);
  const waiting = now.queued ? `${now.queued} waiting. ` : "";
  const { tokens_reused: reused, tokens_computed: computed, snapshots } = now.prefix;
  const points = snapshots.length === 1 ? "1 point" : `${snapshots.length} points`;
  const kept = snapshots.length ? ` ${points} of earlier prompts are kept.` : "";
  text("prefix", `${waiting}Tokens of prompts: ${computed} computed, ${reused} reused.${kept}`);
}

/// Says in words that nothing is heard, and greys what was heard before; null when all is well.
function showTrouble(trouble, ...actions) {
  element("banner").hidden = !trouble;
  element("engine-view").classList.toggle("stale", Boolean(trouble));
  // Set once and not every second, because it is read aloud.
  if (trouble && element("banner-text").textContent !== trouble) {
    element("banner-text").textContent = trouble;
    element("banner-action").replaceChildren(...actions);
  }
  if (!trouble) element("banner-text").textContent = "";
}

async function refresh(told, picker) {
  const asked = picker.model ? `/status?model=${encodeURIComponent(picker.model)}` : "/status";
  const response = await call(asked, {}, { poll: true });
  if (response.status === 404) picker.forget();
  if (!response.ok) throw new Error(`The server refuses to say how it is: status ${response.status}.`);
  const now = await response.json();
  const at = performance.now();
  const loading = now.loaded_percent < 100 ? ` (loading, ${now.loaded_percent} %)` : "";
  picker.list(now.models);
  // Figures of another model are no past of these.
  if (last?.now.model.id !== now.model.id) {
    last = null;
    told(now.model);
  }
  const seconds = last ? (at - last.at) / 1000 : interval / 1000;
  text("model", now.model.id + loading);
  text("approximations", now.model.approximations.join("; "));
  showRates(now, last?.now, seconds);
  showTiers(now, last?.now);
  showJobs(now);
  showHeat(now.expert_heat);
  showTrouble(null);
  last = { now, at };
}

async function forever(told, picker) {
  try {
    if (!document.hidden || !last) await refresh(told, picker);
  } catch (error) {
    if (error instanceof KeyMissing) showTrouble("This server wants its key.", button("Enter the key", () => askForKey()));
    else if (error instanceof TypeError) showTrouble("The server does not answer, trying again.");
    else showTrouble(error.message);
  }
  setTimeout(() => forever(told, picker), interval);
}

/// Most tokens of a conversation; null before the server has said it.
export const contextTokens = () => last?.now.model.context ?? null;

/// Begins to ask of the picker's model, and never ends. `told(model)` is called when the server has said what that is.
export function watchServer(told, picker) {
  setUpHeat();
  forever(told, picker);
}

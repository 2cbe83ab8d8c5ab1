// The engine: asks the server once a second how it is doing and draws it.
//
// Rates of sums (bytes, hits, waiting) are differences between two answers, so they say what happened just now.

import { call } from "/key.js";

const element = (id) => document.getElementById(id);
const interval = 1000;
const history = [];
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
    const bar = document.createElement("div");
    bar.className = tier;
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
  text("decode-rate", `${now.decode_rate.toFixed(1)} tok/s`);
  text("prefill-rate", `${now.prefill_rate.toFixed(1)} tok/s`);
  const wait = (answer) => answer.experts.prefill.wait_s + answer.experts.decode.wait_s;
  const bytes = before ? now.experts.bytes_read - before.experts.bytes_read : 0;
  text("disk-rate", `${(bytes / 1e9 / seconds).toFixed(2)} GB/s`);
  const waited = before ? (wait(now) - wait(before)) / seconds : 0;
  text("wait", `${(100 * Math.min(waited, 1)).toFixed(0)} %`);
  const canvas = element("rate");
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, canvas.width, canvas.height);
  const top = Math.max(...history.map((point) => point.decode), 1);
  const width = canvas.width / 120;
  pen.fillStyle = getComputedStyle(canvas).color;
  history.forEach((point, index) => {
    const height = (canvas.height - 4) * (point.decode / top);
    pen.fillRect(index * width, canvas.height - height, width - 1, point.busy ? height : 0);
  });
}

function showJobs(now) {
  const jobs = now.running.map((job) => {
    const line = document.createElement("div");
    line.className = "job";
    const eta = job.eta_s == null ? "" : `, ${Math.ceil(job.eta_s)} s to go`;
    const where = job.stage === "prefill"
      ? `prompt ${job.processed} of ${job.prompt}${eta}`
      : `${job.generated} tokens after ${job.prompt}`;
    line.textContent = `${job.stage}: ${where}${job.cached ? ` (${job.cached} known)` : ""}`;
    return line;
  });
  element("jobs").replaceChildren(...jobs);
  const waiting = now.queued ? `${now.queued} waiting. ` : "";
  const { tokens_reused: reused, tokens_computed: computed, snapshots } = now.prefix;
  text("prefix", `${waiting}Prompt tokens: ${computed} computed, ${reused} known; ${snapshots.length} snapshots.`);
}

/// A row per layer, a column per expert; logarithmic, because a few experts are used far more than most.
function showHeat(heat) {
  if (!heat.length) {
    text("heat-text", "this device does not count");
    return;
  }
  const experts = heat[0].length;
  const canvas = element("heat");
  canvas.width = experts;
  canvas.height = heat.length;
  canvas.style.height = `${Math.min(heat.length * 8, 320)}px`;
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(experts, heat.length);
  const edge = (pick) => Math.log1p(pick(...heat.map((row) => pick(...row))));
  const [least, most] = [edge(Math.min), edge(Math.max)];
  heat.forEach((row, layer) => row.forEach((count, expert) => {
    const share = (Math.log1p(count) - least) / Math.max(most - least, 1e-9);
    const at = 4 * (layer * experts + expert);
    image.data[at] = 255 * Math.min(1, share * 1.5);
    image.data[at + 1] = 255 * Math.max(0, share * 1.6 - 0.6);
    image.data[at + 2] = 90 * (1 - share);
    image.data[at + 3] = 255;
  }));
  pen.putImageData(image, 0, 0);
  const used = heat.flat().filter((count) => count).length;
  text("heat-text", `${heat.length} layers of ${experts} experts, ${used} used so far`);
}

async function refresh() {
  const response = await call("/status");
  if (!response.ok) return;
  const now = await response.json();
  const at = performance.now();
  const seconds = last ? (at - last.at) / 1000 : interval / 1000;
  const loading = now.loaded_percent < 100 ? ` (loading, ${now.loaded_percent} %)` : "";
  text("model", now.model.id + loading);
  text("approximations", now.model.approximations.join("; "));
  showRates(now, last?.now, seconds);
  showTiers(now, last?.now);
  showJobs(now);
  showHeat(now.expert_heat);
  last = { now, at };
}

async function forever() {
  try {
    if (!document.hidden || !last) await refresh();
  } catch {
    text("decode-rate", "no answer");
  }
  setTimeout(forever, interval);
}

forever();

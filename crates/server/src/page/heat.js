// The map of experts: a row per layer, a column per expert; a scale, and the count under the pointer.
//
// The scale is logarithmic, because a few experts are used far more than most.

import { element } from "/dom.js";

let shown = null;

/// The colour of a share from 0 to 1, as red, green, blue.
function colour(share) {
  return [255 * Math.min(1, share * 1.5), 255 * Math.max(0, share * 1.6 - 0.6), 90 * (1 - share)];
}

function setPixel(image, at, share) {
  image.data.set([...colour(share), 255], 4 * at);
}

function drawScale() {
  const canvas = element("heat-scale");
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(canvas.width, 1);
  for (let x = 0; x < canvas.width; x += 1) setPixel(image, x, x / (canvas.width - 1));
  pen.putImageData(image, 0, 0);
}

function edges(heat) {
  let [least, most] = [Infinity, 0];
  for (const row of heat) {
    for (const count of row) {
      least = Math.min(least, count);
      most = Math.max(most, count);
    }
  }
  return [least, most];
}

/// The expert that was used most, for those who do not see the map.
function favourite(heat, most) {
  const layer = heat.findIndex((row) => row.includes(most));
  return `most used: layer ${layer}, expert ${heat[layer].indexOf(most)}, ${most} times`;
}

export function showHeat(heat) {
  shown = heat;
  element("heat-box").hidden = !heat.length;
  if (!heat.length) {
    element("heat-text").textContent = "This device does not count the experts it uses.";
    return;
  }
  const experts = heat[0].length;
  const canvas = element("heat");
  if (canvas.width !== experts || canvas.height !== heat.length) {
    canvas.width = experts;
    canvas.height = heat.length;
    canvas.style.height = `${Math.min(heat.length * 8, 320)}px`;
    drawScale();
  }
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(experts, heat.length);
  const [least, most] = edges(heat);
  const low = Math.log1p(least);
  const span = Math.max(Math.log1p(most) - low, 1e-9);
  let used = 0;
  heat.forEach((row, layer) => row.forEach((count, expert) => {
    used += count ? 1 : 0;
    setPixel(image, layer * experts + expert, (Math.log1p(count) - low) / span);
  }));
  pen.putImageData(image, 0, 0);
  element("heat-least").textContent = String(least);
  element("heat-most").textContent = `${most} times`;
  const text = `${heat.length} layers of ${experts} experts, ${used} used so far`;
  element("heat-text").textContent = most ? `${text}; ${favourite(heat, most)}` : text;
  canvas.setAttribute("aria-label", `Map of the experts used: ${element("heat-text").textContent}`);
}

/// Says which expert is under the pointer, and how often it was used.
export function setUpHeat() {
  const canvas = element("heat");
  const point = (event) => {
    if (!shown?.length) return;
    const box = canvas.getBoundingClientRect();
    const within = (share, count) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));
    const layer = within((event.clientY - box.top) / box.height, shown.length);
    const expert = within((event.clientX - box.left) / box.width, shown[0].length);
    element("heat-here").textContent = `layer ${layer}, expert ${expert}: ${shown[layer][expert]} times`;
  };
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("pointerleave", () => { element("heat-here").textContent = ""; });
}

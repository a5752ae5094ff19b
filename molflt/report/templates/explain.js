"use strict";
const page = JSON.parse(document.getElementById("explanation").textContent);

function floats(text) {
  const bytes = Uint8Array.from(atob(text), character => character.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

// (n_layers, n_heads, n_atoms), last axis fastest
const attention = floats(page.attention);
const distance = Array.from(floats(page.distance));
const n = distance.length;
const layerMenu = document.getElementById("layer");
const headMenu = document.getElementById("head");
const logBox = document.getElementById("log");

function row(layer, head) {
  const start = (layer * page.n_heads + head) * n;
  return attention.subarray(start, start + n);
}

function chosen(layer, head) {
  if (head >= 0) return Array.from(row(layer, head));
  const mean = new Array(n).fill(0);
  for (let h = 0; h < page.n_heads; h++) row(layer, h).forEach((w, j) => { mean[j] += w / page.n_heads; });
  return mean;
}

// Places of ticks between two values: powers of ten, or some six round numbers.
function ticks(low, high, log) {
  if (log) {
    const first = Math.ceil(Math.log10(low)), n = Math.floor(Math.log10(high)) - first + 1, every = Math.ceil(n / 8);
    return Array.from({length: n}, (_, k) => first + k).filter(k => k % every === 0).map(k => 10 ** k);
  }
  const rough = (high - low) / 6, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(m => m * power).find(size => size >= rough);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({length: Math.floor(high / step + 1e-9) - first + 1}, (_, k) => (first + k) * step);
}

function element(name, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

function plotDistances(layer, values, name) {
  const log = logBox.checked, width = 720, height = 380, [left, right, top, bottom] = [80, 14, 40, 52];
  const clouds = [{kind: "chosen", name, colour: "#b2182b", radius: 3.5, weights: values}];
  if (page.all_heads && page.n_heads > 1) {
    const all = Array.from(attention.subarray(layer * page.n_heads * n, (layer + 1) * page.n_heads * n));
    clouds.unshift({kind: "each", name: "each head", colour: "#b4bcc8", radius: 2.5, weights: all});
  }
  const size = w => log ? Math.abs(w) : w;
  const sizes = clouds.flatMap(cloud => cloud.weights.map(size)).filter(w => !log || w > 0);
  let low = sizes.reduce((a, b) => Math.min(a, b), log ? Infinity : 0);
  let high = sizes.reduce((a, b) => Math.max(a, b), log ? 0 : low);
  if (log && !sizes.length) [low, high] = [0.1, 1];
  // Some room, and ticks also where all weights are alike.
  const room = log ? 1.3 : 0.05 * (high - low) || 1;
  [low, high] = log ? [Math.min(low / room, 10 ** Math.floor(Math.log10(high))), high * room]
    : [low < 0 ? low - room : 0, high + room];
  const far = 1.03 * distance.reduce((a, b) => Math.max(a, b)) || 1, scale = log ? Math.log10 : w => w;
  const x = r => left + r / far * (width - left - right);
  const y = w => height - bottom - (scale(w) - scale(low)) / (scale(high) - scale(low)) * (height - top - bottom);
  const told = v => Number(v.toPrecision(4)).toString().replace("-", "−");
  const drawn = element("svg", {viewBox: `0 0 ${width} ${height}`, "font-size": 13, fill: "#1f2933"});
  const middle = {"text-anchor": "middle"}, grid = {stroke: "#e6e9ee"};
  for (const r of ticks(0, far, false)) drawn.append(
    element("path", {d: `M${x(r)} ${top}V${height - bottom}`, ...grid}),
    element("text", {x: x(r), y: height - bottom + 18, ...middle}, told(r)));
  for (const w of ticks(low, high, log)) drawn.append(
    element("path", {d: `M${left} ${y(w)}H${width - right}`, ...grid}),
    element("text", {x: left - 8, y: y(w) + 4, "text-anchor": "end", "class": "tick"}, told(w)));
  drawn.append(
    element("text", {x: (left + width - right) / 2, y: height - 10, ...middle}, `distance from atom ${page.atom} / Å`),
    element("text", {transform: `translate(16 ${(top + height - bottom) / 2}) rotate(-90)`, ...middle},
      log ? "|weight|, open where negative" : "weight"));
  clouds.forEach((cloud, k) => {
    const dot = {r: cloud.radius, stroke: cloud.colour};
    drawn.append(element("circle", {...dot, fill: cloud.colour, cx: left + 8 + 130 * k, cy: 18}),
      element("text", {x: left + 18 + 130 * k, y: 22}, cloud.name));
    cloud.weights.forEach((w, j) => {
      if (log && !w) return;
      const at = {cx: x(distance[j % n]), cy: y(size(w)), fill: log && w < 0 ? "none" : cloud.colour};
      const head = cloud.kind === "each" ? `, head ${Math.floor(j / n) + 1}` : "";
      const made = element("circle", {...dot, ...at, "class": `point ${cloud.kind}`});
      const where = `${page.symbols[j % n]}, atom ${j % n}${head}\n${distance[j % n].toFixed(3)} Å`;
      made.append(element("title", {}, `${where}\nweight ${told(w)}`));
      drawn.append(made);
    });
  });
  document.getElementById("distance-plot").replaceChildren(drawn);
}

function show() {
  const layer = Number(layerMenu.value), head = Number(headMenu.value);
  const values = chosen(layer, head);
  const name = head < 0 ? "mean of the heads" : `head ${head}`;
  Structures.draw(document.getElementById("attention-view")).colour(values);
  plotDistances(layer, values, name);
  document.body.dataset.shown = `${layer} ${head} ${logBox.checked}`;
}

// Rows by a column: numbers by size, the largest first; texts by their alphabet.
function sortable(heading, column) {
  heading.addEventListener("click", () => {
    const body = document.querySelector(".rows tbody"), rows = Array.from(body.rows);
    const text = row => row.cells[column].textContent.replace("−", "-");
    const compare = (a, b) => parseFloat(b) - parseFloat(a) || a.localeCompare(b, undefined, {numeric: true});
    body.append(...rows.sort((a, b) => compare(text(a), text(b))));
  });
}

// Turning one structure turns the other.
const both = ["energy-view", "attention-view"].map(id => document.getElementById(id));
both.forEach((place, k) => place.querySelector(".scene").addEventListener("pointerup", () => {
  const [mine, other] = [place, both[1 - k]].map(Structures.draw);
  if (mine.viewer && other.viewer) other.viewer.setView(mine.viewer.getView(), true);
}));
document.querySelectorAll(".rows th").forEach(sortable);
for (const control of [layerMenu, headMenu, logBox]) control.addEventListener("change", show);
show();

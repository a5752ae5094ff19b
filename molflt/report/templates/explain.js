"use strict";
const page = JSON.parse(document.getElementById("explanation").textContent);
const config = {displaylogo: false, responsive: true, showSendToCloud: false};

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

function plotDistances(layer, values, name) {
  const log = logBox.checked;
  const size = w => log ? Math.abs(w) : w;
  const open = w => log && w < 0 ? "circle-open" : "circle";
  const text = values.map((w, j) => `${page.symbols[j]}, atom ${j}`);
  const traces = [];
  if (page.all_heads && page.n_heads > 1) {
    const all = Array.from(attention.subarray(layer * page.n_heads * n, (layer + 1) * page.n_heads * n));
    traces.push({
      x: all.map((w, k) => distance[k % n]), y: all.map(size), type: "scatter", mode: "markers",
      name: "each head", cliponaxis: false, marker: {color: "#b4bcc8", size: 5, symbol: all.map(open)},
      text: all.map((w, k) => `${page.symbols[k % n]}, atom ${k % n}, head ${Math.floor(k / n)}`),
      customdata: all, hovertemplate: "%{text}<br>%{x:.3f} Å<br>weight %{customdata:.4g}<extra></extra>",
    });
  }
  traces.push({
    x: distance, y: values.map(size), type: "scatter", mode: "markers", name: name, cliponaxis: false,
    marker: {color: "#b2182b", size: 7, symbol: values.map(open)}, text: text, customdata: values,
    hovertemplate: "%{text}<br>%{x:.3f} Å<br>weight %{customdata:.4g}<extra></extra>",
  });
  const layout = {
    margin: {l: 76, r: 16, t: 40, b: 52}, showlegend: true,
    legend: {orientation: "h", x: 0, y: 1.02, yanchor: "bottom"},
    xaxis: {title: {text: `distance from atom ${page.atom} / Å`}, rangemode: "tozero"},
    yaxis: log
      ? {title: {text: "|weight|, open where negative"}, type: "log", dtick: 1, exponentformat: "power"}
      : {title: {text: "weight"}, type: "linear"},
  };
  return Plotly.react("distance-plot", traces, layout, config);
}

async function show() {
  const layer = Number(layerMenu.value), head = Number(headMenu.value);
  const values = chosen(layer, head);
  const name = head < 0 ? "mean of the heads" : `head ${head}`;
  Structures.draw(document.getElementById("attention-view")).colour(values);
  await plotDistances(layer, values, name);
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

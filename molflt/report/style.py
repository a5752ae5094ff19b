"""Style sheet and script of the report; both are part of the page."""

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body { margin: 0; background: #f4f6f8; color: #1f2933;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main, header > div { max-width: 1100px; margin: 0 auto; padding: 0 20px; }
header { background: #14324d; color: #fff; padding: 30px 0 26px; }
header h1 { margin: 0 0 4px; font-size: 1.9rem; line-height: 1.2; overflow-wrap: anywhere; }
header p { margin: 0; color: #c9d6e2; overflow-wrap: anywhere; }
nav { margin: 20px 0 0; display: flex; flex-wrap: wrap; gap: 6px 8px; }
nav a { color: #14324d; background: #fff; border: 1px solid #d5dce4; border-radius: 999px; padding: 3px 13px;
  font-size: .9rem; text-decoration: none; }
nav a:hover, nav a:focus { border-color: #0072b2; color: #0072b2; }
section { background: #fff; border: 1px solid #e1e6ec; border-radius: 10px; padding: 20px 24px; margin: 20px 0; }
h2 { margin: 0 0 12px; font-size: 1.35rem; }
h3 { margin: 22px 0 6px; font-size: 1.05rem; }
p { margin: 8px 0; }
.caption { color: #52606d; font-size: .92rem; max-width: 75ch; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .94rem; }
th, td { padding: 6px 12px; text-align: right; border-bottom: 1px solid #e6e9ee; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
thead th { color: #52606d; font-weight: 600; border-bottom: 2px solid #cbd2d9; }
td.fail { color: #b3261e; font-weight: 700; }
td.none { color: #6b7682; }
dl { display: grid; grid-template-columns: minmax(120px, max-content) 1fr; gap: 5px 22px; margin: 10px 0; }
dt { color: #52606d; }
dd { margin: 0; overflow-wrap: anywhere; }
code, pre { font: .88em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
pre { background: #f4f6f8; border-radius: 6px; padding: 12px 14px; overflow-x: auto; white-space: pre; }
details { margin: 10px 0; }
summary { cursor: pointer; color: #0b5c8f; }
.figure { width: 100%; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 310px), 1fr)); gap: 16px; }
.card { border: 1px solid #e1e6ec; border-radius: 8px; padding: 10px 12px; min-width: 0; }
.card h3 { margin: 0; font-size: .95rem; overflow-wrap: anywhere; }
.card p { margin: 2px 0; font-size: .88rem; color: #52606d; font-variant-numeric: tabular-nums; }
.card strong { color: #1f2933; }
footer { max-width: 1100px; margin: 0 auto; padding: 4px 20px 34px; color: #52606d; font-size: .88rem; }
@media (max-width: 600px) {
  section { padding: 14px 14px; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 8px; }
}
@media print {
  body, section { background: #fff; }
  header { background: #fff; color: #000; padding: 0; }
  header p { color: #333; }
  nav { display: none; }
  section { border: 0; padding: 0; }
  .figure, .card, tr { break-inside: avoid; }
  .modebar-container { display: none; }
}
"""

SCRIPT = """
'use strict';
(function () {
  const drawn = new Set();
  function draw(place) {
    if (drawn.has(place)) return;
    drawn.add(place);
    const content = JSON.parse(document.getElementById(place.dataset.content).textContent);
    const settings = {responsive: true, displaylogo: false, scrollZoom: false};
    if (content.data.some(trace => trace.type === 'mesh3d')) settings.displayModeBar = 'hover';
    return Plotly.newPlot(place, content.data, content.layout, settings).catch(() => {
      place.textContent = 'This figure could not be drawn; the browser may lack WebGL.';
    });
  }
  const places = Array.from(document.querySelectorAll('.figure'));
  // A figure is drawn when it is nearly in view: ten scenes at once would keep a slow machine busy.
  const seen = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); draw(entry.target); }
  }, {rootMargin: '400px 0px'});
  places.forEach(place => seen.observe(place));
  window.addEventListener('beforeprint', () => places.forEach(draw));
})();
"""
"""Draws the figures, whose content is in JSON elements of the page."""

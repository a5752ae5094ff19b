'use strict';
(function () {
  const drawn = new Set();
  function draw(place) {
    if (drawn.has(place)) return;
    drawn.add(place);
    const content = JSON.parse(document.getElementById(place.dataset.content).textContent);
    const settings = {responsive: true, displaylogo: false, scrollZoom: false, showSendToCloud: false};
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

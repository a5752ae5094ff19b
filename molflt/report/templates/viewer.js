'use strict';
const Structures = (function () {
  const MARKED = '#d6006c', INK = '#1f2933';

  function mixed(colours, share) {
    const place = Math.min(Math.max(share, 0), 1) * (colours.length - 1);
    const k = Math.min(Math.floor(place), colours.length - 2);
    const channel = (colour, c) => parseInt(colour.slice(1 + 2 * c, 3 + 2 * c), 16);
    const hex = [0, 1, 2].map(c => Math.round(
      channel(colours[k], c) + (place - k) * (channel(colours[k + 1], c) - channel(colours[k], c))));
    return '#' + hex.map(x => x.toString(16).padStart(2, '0')).join('');
  }

  function dark(colour) {
    const [r, g, b] = [1, 3, 5].map(k => parseInt(colour.slice(k, k + 2), 16));
    return 0.299 * r + 0.587 * g + 0.114 * b < 160;
  }

  // Ends of the scale. White is zero in every choice of weights, so that they compare.
  function ends(kind, values) {
    const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
    if (kind === 'signed') { const end = Math.max(-low, high) || 1; return [-end, end]; }
    if (kind === 'weight') return [0, high || 1];
    return low < high ? [low, high] : [low - 0.5, high + 0.5];
  }

  // Places as they are seen: to the right, up, towards the eye.
  function turned([, , , , x, y, z, w], p) {
    const tx = 2 * (y * p.z - z * p.y), ty = 2 * (z * p.x - x * p.z), tz = 2 * (x * p.y - y * p.x);
    return [p.x + w * tx + y * tz - z * ty, p.y + w * ty + z * tx - x * tz, p.z + w * tz + x * ty - y * tx];
  }

  function draw(place) {
    if (place.structure) return place.structure;
    const content = JSON.parse(document.getElementById(place.dataset.content).textContent);
    const scene = place.querySelector('.scene'), box = place.querySelector('input');
    const told = place.querySelector('.told');
    let viewer;
    try {
      viewer = $3Dmol.createViewer(scene, {
        orthographic: true, disableFog: true, backgroundColor: '#f7f9fb', hoverDuration: 30,
      });
    } catch (error) {
      scene.textContent = 'This structure could not be drawn; the browser may lack WebGL.';
      return place.structure = {colour() {}};
    }
    viewer.setViewStyle({style: 'outline', color: '#4a5563', width: 0.02});
    const model = viewer.addModel(content.xyz, 'xyz', {assignBonds: content.few});
    const atoms = model.selectedAtoms({});
    const radius = atoms.map(atom => content.elements[atom.elem].radius);
    const axes = [];
    if (content.corners.length) {
      const hidden = {hidden: true}, origin = {x: 0, y: 0, z: 0};
      viewer.addUnitCell(model, {box: {color: '#7a828c'}, astyle: hidden, bstyle: hidden, cstyle: hidden});
      // Directions of the lattice vectors; the corners count 000, 001, 010, …
      for (const [name, k] of [['a', 4], ['b', 2], ['c', 1]]) {
        const length = Math.hypot(...content.corners[k]);
        if (!length) continue;
        const [x, y, z] = content.corners[k].map(value => value * Math.min(2, length) / length);
        viewer.addArrow({start: origin, end: {x, y, z}, radius: 0.06, color: '#7a828c'});
        axes.push([name, {x: 1.2 * x, y: 1.2 * y, z: 1.2 * z}]);
      }
    }
    const view = {viewer, atoms, values: null, colours: [], letters: []};
    const corners = content.corners.map(([x, y, z]) => ({x, y, z}));
    const far = 2 * Math.max(25, ...atoms.concat(corners).map(p => Math.hypot(p.x, p.y, p.z)));
    viewer.setSlab(-far, far);
    let pixels = 10;

    // Middle and radius of a ball that holds the places, and the atoms at the beginning of them with their radii.
    function ball(places) {
      const middle = ['x', 'y', 'z'].map(n => {
        const all = places.map(p => p[n]);
        return (all.reduce((a, b) => Math.min(a, b)) + all.reduce((a, b) => Math.max(a, b))) / 2;
      });
      const away = p => Math.hypot(p.x - middle[0], p.y - middle[1], p.z - middle[2]);
      return [middle, places.reduce((most, p, k) => Math.max(most, away(p) + (radius[k] || 0)), 1.5)];
    }

    // The cell at first where it is not mostly vacuum.
    let whole = corners.length > 0 && ball(atoms.concat(corners))[1] < 1.5 * ball(atoms)[1];

    // Everything in view however it is turned.
    function fit() {
      const [middle, reach] = ball(whole ? atoms.concat(corners) : atoms);
      const aspect = scene.clientWidth / Math.max(scene.clientHeight, 1);
      const distance = 1.06 * reach * Math.max(1, aspect) / Math.tan(Math.PI / 9);
      const eye = viewer.getPerceivedDistance() + viewer.getView()[3];
      viewer.setView([...middle.map(x => -x), eye - distance, ...content.turn], true);
      pixels = scene.clientHeight / (2.12 * reach) * Math.min(1, aspect);
      write();
    }

    // Every change of a label by itself would draw the scene anew.
    function label(text, position, style) {
      return viewer.addLabel(text, {position, alignment: 'center', inFront: true, padding: 2, ...style}, null, true);
    }

    function write() {
      if (viewer.labels.length) viewer.removeAllLabels();
      // Elsewhere they would be at the edge of the picture.
      if (whole) axes.forEach(([name, end]) => label(name, end, {fontColor: INK, fontSize: 13, showBackground: false}));
      const shown = k => k === content.highlight || (box && box.checked);
      view.letters = atoms.map((atom, k) => {
        if (!shown(k)) return null;
        const marked = k === content.highlight;
        return label(marked ? `${atom.elem} ${k}` : atom.elem, atom, {
          fontSize: Math.round(Math.min(Math.max(radius[k] * pixels, 9), 16)), bold: true,
          fontColor: marked || dark(view.colours[k]) ? '#ffffff' : INK,
          showBackground: marked, backgroundColor: MARKED, backgroundOpacity: 0.9,
        });
      });
      cover(viewer.getView());
      viewer.render();
    }

    // Letters are in front of their balls; those of balls behind others would confuse.
    function cover(seenFrom) {
      if (!view.letters.some(Boolean)) return;
      const at = atoms.map(atom => turned(seenFrom, atom));
      view.letters.forEach((letter, k) => {
        if (!letter || k === content.highlight) return;
        const [x, y, z] = at[k];
        const hidden = at.some((p, j) => p[2] > z + 0.1 && Math.hypot(p[0] - x, p[1] - y) < radius[j]);
        if (hidden) letter.hide(); else letter.show();
      });
    }

    function paint(values) {
      view.values = values;
      const scale = content.scale;
      if (values) {
        const [low, high] = ends(scale.kind, values);
        view.ends = [low, high];
        view.colours = values.map(value => mixed(scale.colours, (value - low) / (high - low)));
        for (const [name, end] of [['.low', low], ['.high', high]])
          place.querySelector(name).textContent = Number(end.toPrecision(3)).toString().replace('-', '−');
      } else view.colours = atoms.map(atom => content.elements[atom.elem].colour);
      const colorfunc = atom => view.colours[atom.index];
      for (const [elem, {radius}] of Object.entries(content.elements))
        viewer.setStyle({elem}, {sphere: {radius, colorfunc}, ...(content.few && {stick: {radius: 0.09, colorfunc}})});
    }

    // Colour by other values, one for each atom.
    view.colour = values => { paint(values); write(); };

    function tell(atom) {
      const k = atom.index, words = [`${atom.elem}, atom ${k}`];
      if (content.tags.length) words.push(content.tags[k]);
      if (view.values) words.push(`${content.scale.name} ${view.values[k].toPrecision(4)}`);
      told.textContent = words.join(' · ');
    }

    viewer.setHoverable({}, true, tell, () => { told.textContent = ''; });
    viewer.setClickable({}, true, tell);
    viewer.setViewChangeCallback(cover);
    // The wheel moves the page; with the control key it zooms.
    scene.addEventListener('wheel', event => { if (!event.ctrlKey) event.stopPropagation(); }, {capture: true});
    const does = {
      nearer: () => viewer.zoom(1.25), farther: () => viewer.zoom(0.8),
      atoms: () => { whole = false; fit(); }, cell: () => { whole = true; fit(); },
    };
    for (const button of place.querySelectorAll('button'))
      button.addEventListener('click', () => does[button.dataset.does]());
    if (box) box.addEventListener('change', write);
    paint(content.values || null);
    // Calls it for the first time, too.
    new ResizeObserver(fit).observe(scene);
    return place.structure = view;
  }

  const places = Array.from(document.querySelectorAll('.structure'));
  // Drawn when nearly in view: many scenes at once would keep a slow machine busy.
  const seen = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); draw(entry.target); }
  }, {rootMargin: '400px 0px'});
  places.forEach(place => seen.observe(place));
  window.addEventListener('beforeprint', () => places.forEach(draw));
  return {draw};
})();

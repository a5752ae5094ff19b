"""An explanation as one HTML file that needs nothing else: 3D views, attention against distance, table."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from ase.data import chemical_symbols

from molflt.explain.explanation import Explanation
from molflt.explain.page_script import SCRIPT
from molflt.explain.tables import atom_rows, largest
from molflt.files import atomic_file
from molflt.model.model_file import LoadedModel
from molflt.report.document import caption, frame, table
from molflt.report.plain_text import for_html
from molflt.report.structure_view import structure_figure
from molflt.report.style import STYLE

_MOST_ROWS = 500
"""Atoms in the page's table."""
_MOST_POINTS = 20_000
"""Points that a plot of vector graphics is still quick with."""


def write_page(path: Path, explanation: Explanation, loaded: LoadedModel, unknown: list[str]) -> None:
    """Write the page, atomically.

    Args:
        path: the HTML file.
        explanation: what it shows.
        loaded: the model that was explained.
        unknown: symbols of elements in the structure that the model was not trained on.
    """
    with atomic_file(path) as temporary:
        temporary.write_text(_page(explanation, loaded, unknown), encoding="utf-8", newline="\n")


def _page(explanation: Explanation, loaded: LoadedModel, unknown: list[str]) -> str:
    symbol = chemical_symbols[int(explanation.structure.atomic_numbers[explanation.atom])]
    atom = f"atom {explanation.atom} ({symbol})"
    n_layers, n_heads, _ = explanation.attention.shape
    signed = bool((explanation.attention < 0).any())
    layers = _options([(k, f"layer {k}") for k in range(n_layers)], n_layers - 1)
    heads = _options([(-1, "mean of the heads"), *((h, f"head {h}") for h in range(n_heads))], -1)
    warning = (
        f"<p class='warning'>The model was not trained on {for_html(', '.join(unknown))}; what it says of them means "
        "little.</p>"
        if unknown
        else ""
    )
    main = f"""
<section>
<p>{_sum_in_words(explanation)}</p>
{warning}
</section>
<div class="views">
<section>
<h2>What each atom contributes</h2>
{caption("Coloured by the learnt part. Only the sum was trained: how atoms share it is the model's own choice.")}
<div id="energy-view" class="view"></div>
</section>
<section>
<h2>What {atom} attends to</h2>
<p class="caption"><label>Attention of <select id="layer">{layers}</select></label>
<select id="head" aria-label="head">{heads}</select></p>
<div id="attention-view" class="view"></div>
</section>
</div>
<section>
<h2>Attention of {atom} against distance</h2>
{caption(_weights_in_words(signed))}
<p class="caption"><label><input type="checkbox" id="log"> logarithmic, which shows the far field</label></p>
<div id="distance-plot" class="plot"></div>
</section>
<section>
<h2>Atoms</h2>
{_table(explanation)}
</section>
"""
    content = {"explanation": json.dumps(_content(explanation, signed))}
    return frame(explanation.name, f"explained by {loaded.path}", main, content, SCRIPT, STYLE + _STYLE)


def _sum_in_words(explanation: Explanation) -> str:
    target = for_html(explanation.target)
    learnt = float(explanation.learnt.sum())
    constant, what = explanation.mean, "the same for every structure"
    if explanation.reference.any():
        constant, what = constant + float(explanation.reference.sum()), "the reference energies of the elements"
    return (
        f"{target} = <strong>{_number(explanation.energy)} eV</strong> = {_number(constant)} eV, {what}, "
        f"{'+' if learnt >= 0 else '−'} {abs(learnt):.4f} eV, what the model has learnt, summed over "
        f"{len(explanation.learnt):,} atoms."
    )


def _number(value: float) -> str:
    return f"{value:.4f}".replace("-", "−")


def _weights_in_words(signed: bool) -> str:
    sign = " Some are negative: the far field may subtract." if signed else ""
    return f"The weights with which the atom takes the values of all; periodic images of one atom are summed.{sign}"


def _content(explanation: Explanation, signed: bool) -> dict[str, Any]:
    """What the script needs. Texts among it are either escaped already or symbols of elements."""
    structure = explanation.structure
    energies = structure_figure(
        structure, explanation.learnt, value_name="learnt part / eV", highlight=explanation.atom
    )
    attention = structure_figure(
        structure, explanation.attention[-1].mean(axis=0), value_name="weight", highlight=explanation.atom
    )
    # White is no weight in every layer and head, so that they compare.
    attention.update_layout(coloraxis={"colorscale": "RdBu_r" if signed else "Reds"})
    traces = [
        {"index": k, **_atoms_of(trace.customdata)}
        for k, trace in enumerate(attention.data)
        if trace.customdata is not None
    ]
    _, n_heads, n_atoms = explanation.attention.shape
    by_vertex = any(trace.type == "mesh3d" for trace in attention.data)
    template = energies.layout.template.to_plotly_json()
    # Once for all three plots.
    for figure in (energies, attention):
        # Colours are values here, so a legend of elements would show none of them.
        figure.update_layout(template=None, showlegend=False)
    return {
        "figures": {"energy-view": _figure(energies), "attention-view": _figure(attention)},
        "template": template,
        "traces": traces,
        "colour_key": "intensity" if by_vertex else "marker.color",
        "tags": structure.tags.tolist(),
        "symbols": [chemical_symbols[z] for z in structure.atomic_numbers.tolist()],
        "atom": explanation.atom,
        "n_heads": n_heads,
        "attention": _encoded(explanation.attention),
        "distance": _encoded(explanation.distance),
        "signed": signed,
        "all_heads": n_heads * n_atoms <= _MOST_POINTS,
    }


def _atoms_of(customdata: np.ndarray) -> dict[str, Any]:
    """The atoms that a trace draws, and how many points it draws of each, one atom after the other."""
    drawn = np.asarray(customdata)[:, 0].astype(int)
    atoms, counts = np.unique(drawn, return_counts=True)
    repeat = int(counts[0])
    atoms = drawn[::repeat]
    assert np.array_equal(np.repeat(atoms, repeat), drawn)
    return {"atoms": atoms.tolist(), "repeat": repeat}


def _figure(figure: go.Figure) -> Any:
    return json.loads(figure.to_json())


def _encoded(values: np.ndarray) -> str:
    """Little-endian float32, as the script reads it."""
    return base64.b64encode(values.astype("<f4").tobytes()).decode("ascii")


def _options(choices: list[tuple[int, str]], selected: int) -> str:
    return "".join(
        f"<option value='{value}'{' selected' if value == selected else ''}>{text}</option>"
        for value, text in choices
    )


def _table(explanation: Explanation) -> str:
    rows = list(atom_rows(explanation))
    shown = largest(explanation, _MOST_ROWS)
    parts = ["reference / eV", "learnt / eV"] if explanation.reference.any() else []
    head = ["atom", "element", "tag", "contribution / eV", *parts, "share",
            f"distance from {explanation.atom} / Å", f"attention of {explanation.atom}"]  # fmt: skip
    cells = []
    for i in shown:
        _, element, tag, contribution, reference, learnt, share, distance, weight = rows[i].values()
        index = f"{i} ←" if i == explanation.atom else str(i)
        energies = (contribution, reference, learnt) if parts else (contribution,)
        last = (f"{share:.2%}", f"{distance:.3f}", f"{weight:.3g}".replace("-", "−"))
        cells.append([index, element, tag, *map(_number, energies), *last])
    note = "Share: of the absolute learnt parts of all atoms. Attention: mean of the heads of the last layer."
    if len(shown) < len(rows):
        note += f" The {_MOST_ROWS} largest of {len(rows):,} atoms; molflt explain -o NAME.csv writes all."
    return f"{caption(note)}<div class='rows'>{table(head, cells)}</div>"


_STYLE = """
.views { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 0 20px; }
.views section { min-width: 0; }
.views .caption { min-height: 3.1em; }
.view { height: 440px; } .plot { height: 380px; }
.warning { color: #8a4b00; }
select { font: inherit; }
.rows { max-height: 480px; overflow-y: auto; }
"""
"""What this page has beyond the style of reports."""

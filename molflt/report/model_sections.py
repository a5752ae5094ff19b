"""The sections of a report that speak of the model itself: learned RPE, invariance, provenance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ase.data import chemical_symbols

from molflt.invariance.harness import Result
from molflt.model.model_file import LoadedModel
from molflt.prediction.evaluation import Evaluation
from molflt.report.document import Document, Section, caption, definitions, folded
from molflt.report.figures import far_figure, local_figure
from molflt.report.plain_text import for_html
from molflt.report.provenance import configuration, provenance
from molflt.report.rpe_curves import far_curves, local_curves


def rpe_section(document: Document, loaded: LoadedModel, sets: Sequence[Evaluation]) -> Section:
    """What each head has learnt of distances."""
    far = far_curves(loaded.model)
    pair = _commonest_pair(loaded, sets)
    local = local_curves(loaded.model, pair)
    body = ""
    if far is not None:
        body += "<h3>Far field: f(r) and its spectrum g(ξ)</h3>" + document.figure(far_figure(far))
        text = (
            "Each head multiplies what it collects from an atom at distance r with f(r), on top of the local part. "
            "A head at zero everywhere does not use its far field; a long tail is a long-ranged interaction; a "
            "change of sign tells near from far."
        )
        if far.nodes is not None:
            text += (
                f" Solid: what this model computes with, an estimate of f from {len(far.nodes)} frequencies that is "
                "part of it, averaged over directions"
                + (
                    " (in periodic structures under an envelope)."
                    if loaded.model.config.attention.l_max is None
                    else "; in isolated structures each frequency is cut at l_max besides."
                )
            )
        if far.intended is not None:
            text += " Dotted: the f that it estimates."
        text += (
            " Right: the spectrum, whose Fourier transform f is; weight near zero frequency makes wide functions."
            if far.spectrum is not None
            else " Right: the learned coefficient of each frequency."
        )
        body += caption(text)
    if local is not None:
        a, b = (chemical_symbols[z] for z in local.pair)
        body += f"<h3>Local part: {a}–{b}</h3>" + document.figure(local_figure(local))
        body += caption(
            f"Factor by which a head weights a neighbour at distance r before content is looked at, for {a} and {b}, "
            "two common elements of these structures; it differs between pairs of elements and ends at the cutoff. "
            "Peaks sit at distances that matter, such as bonds."
        )
    if not body:
        body = "<p>The attention of this model has no relative positional encoding: its heads see no distances.</p>"
    elif far is None:
        body = "<p>This model has no far field: attention ends at the cutoff.</p>" + body
    return Section("rpe", "Learned RPE", body)


def _commonest_pair(loaded: LoadedModel, sets: Sequence[Evaluation]) -> tuple[int, int]:
    """The two elements in most structures; a lone element with itself."""
    counts = Counter(z for described in sets for elements in described.table.elements for z in elements)
    known = [z for z, _ in counts.most_common()] or loaded.metadata.elements
    return known[0], known[min(1, len(known) - 1)]


def invariance_section(results: Sequence[Result] | None) -> Section:
    """The table of ``molflt check-invariance``."""
    if not results:
        body = "<p>Not measured for this report. <code>molflt check-invariance MODEL</code> does it.</p>"
        return Section("invariance", "Invariance", body)
    columns = list(dict.fromkeys((r.far_scaled, r.dtype) for r in results))
    head = "".join(
        f'<th scope="col">{for_html(dtype)}{"<br>far field scaled up" if scaled else "<br>as it is"}</th>'
        for scaled, dtype in columns
    )
    found = {(r.name, r.far_scaled, r.dtype): r for r in results}
    rows = ""
    for name in dict.fromkeys(r.name for r in results):
        cells = "".join(_cell(found.get((name, *column))) for column in columns)
        rows += f"<tr><td>{for_html(name)}</td>{cells}</tr>"
    table = f'<div class="scroll"><table><thead><tr><th scope="col">property</th>{head}</tr></thead><tbody>{rows}'
    failed = sorted({r.name for r in results if r.verdict == "fail"})
    verdict = f"Failed: {', '.join(failed)}." if failed else "All properties hold."
    text = (
        f"{verdict} Largest change of the energy in eV, over structures and random transformations, when it should "
        "not change at all; in brackets the share of the permitted change, which allows for rounding and for the "
        "stated tolerance of a numerical method. “Far field scaled up” is the same model with its far "
        "field made large enough to matter, so that an error there would show."
    )
    return Section("invariance", "Invariance", f"{table}</tbody></table></div>" + caption(text))


def _cell(result: Result | None) -> str:
    if result is None or result.n == 0:
        return '<td class="none">–</td>'
    share = f"{result.used:.0%}" if result.used < 100 else f"{result.used:.0e} ×"
    worst = f"{result.worst:.1e}" if result.worst else "0"
    title = f"median {result.median:.1e} eV of {result.n} comparisons; bound: {result.bound}"
    return f'<td class="{result.verdict}" title="{for_html(title)}">{worst} ({share}) {result.verdict}</td>'


def provenance_section(loaded: LoadedModel, command: str | None) -> Section:
    """How the model and this page came to be."""
    name, yaml = configuration(loaded)
    body = definitions(provenance(loaded, command)) + folded(name, f"<pre>{for_html(yaml)}</pre>")
    return Section("provenance", "Provenance", body)

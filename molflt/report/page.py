"""The report of a model: one HTML file with everything in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from molflt.files import atomic_file
from molflt.invariance.harness import Result
from molflt.model.model_file import LoadedModel
from molflt.report import model_sections, sections
from molflt.report.document import Document
from molflt.report.evaluated import EvaluatedSet, describe


def write_report(
    path: str | Path,
    loaded: LoadedModel,
    sets: Sequence[EvaluatedSet],
    records: Sequence[dict[str, Any]] = (),
    results: Sequence[Result] | None = None,
    title: str = "molflt report",
    command: str | None = None,
) -> None:
    """Write a report, atomically. It needs no network to be opened, and loads nothing.

    Args:
        path: where to, ``NAME.html``.
        loaded: the model, or the first member of an ensemble, whose RPE and configuration are shown.
        sets: labelled sets with its predictions; the worst structures are of the first.
        records: of :func:`molflt.training.run_directory.read_records`; none leaves out the learning curves.
        results: of :func:`molflt.invariance.harness.run_suite`; None says how to get them.
        title: of the page.
        command: by which the model was trained or evaluated.

    Raises:
        InputError: a set of which no structure has a label and a prediction.
    """
    described = [describe(evaluated) for evaluated in sets]
    target = loaded.metadata.target
    document = Document(title, f"{loaded.path}, {target}, epoch {loaded.metadata.epoch + 1}")
    found = [sections.overview(loaded, described), sections.curves_section(document, records)]
    if described:
        found += [
            sections.parity_section(document, described, target),
            sections.uncertainty_section(document, described),
            sections.groups_section(document, described),
            sections.worst_section(document, described[0]),
        ]
    found += [
        model_sections.rpe_section(document, loaded, described),
        model_sections.invariance_section(results),
        model_sections.provenance_section(loaded, command),
    ]
    text = document.render([section for section in found if section is not None])
    with atomic_file(path) as temporary:
        # Line ends as they are: the page's policy names its scripts by their hashes.
        temporary.write_text(text, encoding="utf-8", newline="\n")

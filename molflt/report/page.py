"""The report of a model: one HTML file with everything in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from molflt.atomic_file import atomic_file
from molflt.invariance.harness import Result
from molflt.model.model_file import LoadedModel
from molflt.prediction.evaluation import Evaluation
from molflt.report import model_sections, sections
from molflt.report.document import Document


def write_report(
    path: str | Path,
    loaded: LoadedModel,
    sets: Sequence[Evaluation],
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
        records: of :func:`molflt.training.recorder.read_records`; none leaves out the learning curves.
        results: of :func:`molflt.invariance.harness.run_suite`; None says how to get them.
        title: of the page.
        command: by which the model was trained or evaluated.
    """
    target = loaded.metadata.target
    document = Document(title, f"{loaded.path}, {target}, epoch {loaded.metadata.epoch + 1}")
    found = [sections.overview(loaded, sets), sections.curves_section(document, records)]
    if sets:
        found += [
            sections.parity_section(document, sets, target),
            sections.uncertainty_section(document, sets),
            sections.groups_section(document, sets),
            sections.worst_section(document, sets[0]),
        ]
    found += [
        model_sections.rpe_section(document, loaded, sets),
        model_sections.invariance_section(results),
        model_sections.provenance_section(loaded, command),
    ]
    text = document.render([section for section in found if section is not None])
    with atomic_file(path) as temporary:
        # Line ends as they are: the page's policy names its scripts by their hashes.
        temporary.write_text(text, encoding="utf-8", newline="\n")

"""One figure of a kind that is named, as a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from molflt.atomic_file import atomic_file
from molflt.choices import Figure as Kind
from molflt.errors import InputError
from molflt.prediction.evaluation import Evaluation, by_adsorbate, by_element, by_size, evaluate
from molflt.prediction.members import load_members
from molflt.prediction.predictor import choose_device
from molflt.report import pictures
from molflt.report.learning_curves import learning_curves
from molflt.report.rpe_curves import far_curves
from molflt.training.recorder import read_records

NEED_DATA = ("parity", "residuals", "elements", "adsorbates", "sizes")
SUFFIXES = (".png", ".svg", ".pdf")
DPI = 200


@dataclass(frozen=True)
class Job:
    """What to draw.

    Attributes:
        kind: of figure.
        model: a model file, a run directory or an ensemble's; for ``curves`` a run directory, or a model file in it.
        data: labelled structures, for the kinds that show errors.
        out: the file to write; its suffix is its format.
        overwrite: whether it may exist.
        device: where to compute: auto, cpu or cuda.
        max_atoms: atoms per batch; bounds memory, changes no result.
    """

    kind: Kind
    model: Path
    data: str | None
    out: Path
    overwrite: bool = False
    device: str = "auto"
    max_atoms: int = 2048


def check_job(job: Job) -> None:
    """Refuse what cannot be done, before anything is computed for it.

    Raises:
        InputError: an unknown suffix, a file that exists, data missing or superfluous.
    """
    if job.out.suffix.lower() not in SUFFIXES:
        raise InputError(f"{job.out}: a figure must end in {', '.join(SUFFIXES)}")
    if job.out.is_dir():
        raise InputError(f"{job.out}: is a folder; choose another name")
    if job.out.exists() and not job.overwrite:
        raise InputError(f"{job.out}: exists already; choose another name or give --overwrite")
    if job.kind in NEED_DATA and job.data is None:
        raise InputError(f"'{job.kind}' shows errors: give labelled structures after the model, such as test.lmdb")
    if job.kind not in NEED_DATA and job.data is not None:
        raise InputError(f"'{job.kind}' needs no structures; leave out {job.data}")


def draw(job: Job) -> None:
    """Compute and write the figure, atomically.

    Raises:
        InputError: the model, the run or the data do not have what the figure shows.
    """
    if job.kind == "curves":
        figure = _curves(job.model)
    elif job.kind in ("rpe", "spectrum"):
        figure = _rpe(job)
    else:
        figure = _errors(job)
    with atomic_file(job.out) as temporary:
        figure.savefig(temporary, dpi=DPI)


def _curves(model: Path) -> Figure:
    run_dir = model if model.is_dir() else model.parent
    if not model.exists():
        raise InputError(f"{model}: no such file or folder; give the directory of a run")
    curves = learning_curves(read_records(run_dir), "energy_mae")
    if not curves:
        raise InputError(
            f"{run_dir}: holds no metrics.jsonl with a validated epoch; give the directory of a run (of an ensemble, "
            "that of one member)"
        )
    return pictures.curves_picture(curves, "MAE / eV")


def _rpe(job: Job) -> Figure:
    loaded = load_members(job.model)[0]
    curves = far_curves(loaded.model)
    if curves is None:
        raise InputError(
            f"{job.model}: its attention ({loaded.model.config.attention.mechanism}) has no far field, so "
            f"there is no {job.kind} to plot"
        )
    return pictures.rpe_picture(curves) if job.kind == "rpe" else pictures.spectrum_picture(curves)


def _errors(job: Job) -> Figure:
    assert job.data is not None
    members = load_members(job.model)
    described = evaluate(members, job.data, device=choose_device(job.device), max_atoms=job.max_atoms)
    if job.kind == "parity":
        return pictures.parity_picture(described, members[0].metadata.target)
    if job.kind == "residuals":
        return pictures.residuals_picture(described, members[0].metadata.target)
    return _groups(job, described)


def _groups(job: Job, described: Evaluation) -> Figure:
    if job.kind == "elements":
        return pictures.groups_picture(by_element([described]), "element")
    if job.kind == "sizes":
        return pictures.groups_picture(by_size([described]), "number of atoms")
    adsorbates = by_adsorbate([described])
    if adsorbates is None:
        raise InputError(
            f"{job.data}: its structures do not say what is adsorbed on them (text 'adsorbate'); plot 'elements' or "
            "'sizes' instead"
        )
    return pictures.groups_picture(adsorbates, "adsorbate")

"""``molflt check-invariance``: does a model's energy depend on what it must not depend on?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import typer

from molflt.cli.options import DEVICE, FREQUENCIES, TAGS
from molflt.cli.terminal import Verbosity, answer, answer_json, output, remark, say, warn
from molflt.vocabulary import MethodName, TagConvention

if TYPE_CHECKING:
    from molflt.invariance.harness import DtypeName, Result


def check_invariance_command(
    model: Path = typer.Argument(..., help="Model file, run directory, or pretrained:NAME.", show_default=False),
    inputs: list[str] = typer.Argument(
        None, help="Files, folders, globs or SMILES; left out: molecules, slabs and crystals of known elements."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of a table."),
    dtype: Literal["both", "float32", "float64"] = typer.Option("both", help="Precision to compute in."),
    draws: int = typer.Option(3, min=1, help="Random transformations of each kind, per structure."),
    limit: int = typer.Option(32, min=1, help="Structures at most, evenly from those given."),
    device: str = DEVICE,
    frequencies: MethodName = FREQUENCIES,
    tags: TagConvention = TAGS,
) -> None:
    """Measure the invariances of a trained model: rotation, translation, atom order, images, cell, batch.

    Every property is tried on the model as it is, and on a copy whose far field is scaled up until removing it
    would move the energies by 30 % of their spread. With both precisions, the energies of the one are compared with
    those of the other as well. Exit status 1 when something fails.

    Example: molflt check-invariance runs/tiny/best.safetensors data/fg/val.lmdb
    """
    from molflt.data.open import resolve_inputs
    from molflt.data.reading import ReadOptions
    from molflt.invariance.energies import additivity, far_share, has_far_field
    from molflt.invariance.harness import run_suite
    from molflt.invariance.structures import builtin_structures
    from molflt.prediction.members import load_member
    from molflt.prediction.predictor import choose_device, unlabelled

    loaded = load_member(model, remark, frequencies)
    if inputs:
        options = ReadOptions(
            allow_charged=True,
            conformers=1,
            charges=loaded.model.config.takes_ions,
            accept_unconverged=True,
            tags=tags,
        )
        dataset = resolve_inputs(inputs, options)
        step = max(1, len(dataset) / limit)
        structures = [unlabelled(dataset[int(k * step)]) for k in range(min(limit, len(dataset)))]
    else:
        structures, known = builtin_structures(loaded.metadata.elements)
        if loaded.model.config.charges:
            structures = [one for one in structures if int(one.pbc.sum()) in (0, 3)]
        if not known:
            warn("the model knows too few elements of the built-in structures; give structures of your own")
    loaded.model.to(choose_device(device))
    dtypes: list[DtypeName] = ["float32", "float64"] if dtype == "both" else [dtype]
    share = far_share(loaded.model, structures) if has_far_field(loaded.model) else None
    fragments = np.abs(additivity(loaded.model, structures))
    results = run_suite(loaded, structures, dtypes, draws)
    if share is not None and not any(result.far_scaled for result in results):
        warn(
            "no scale of the far field moves the energies of these structures by 30 % of their spread, so only the "
            "model as it is was tried; give structures that differ less in composition"
        )
    # Of the whole model as it is; with its far field scaled up it is another.
    drift = next((result for result in results if result.name == "dtype" and not result.far_scaled), None)
    failed = [result for result in results if result.verdict == "fail"]
    if as_json:
        content: dict[str, Any] = {
            "model": str(model),
            "structures": len(structures),
            "far_share": share,
            "float32_drift": None if drift is None else {"worst": drift.worst, "median": drift.median},
            "additivity": _additivity(fragments),
            "verdict": "fail" if failed else "pass",
            "results": [{**asdict(result), "verdict": result.verdict} for result in results],
        }
        answer_json(content)
    else:
        if not Verbosity.quiet:
            _print_tables(results)
        _say_share(share)
        _say_additivity(_additivity(fragments))
        if drift is not None:
            say(
                f"Computed in float32 instead of float64, energies move by {drift.worst:.1e} eV at worst, "
                f"{drift.median:.1e} eV in the median."
            )
        answer(_verdict(results, len(structures)))
    if failed:
        raise typer.Exit(1)


def _print_tables(results: list[Result]) -> None:
    from rich.table import Table

    for far_scaled in sorted({result.far_scaled for result in results}):
        for dtype in dict.fromkeys(result.dtype for result in results):
            far = "far field scaled up" if far_scaled else "the model as it is"
            table = Table("property", "worst ΔE / eV", "median", "of the bound", "verdict", title=f"{far}, {dtype}")
            for result in results:
                if (result.far_scaled, result.dtype) == (far_scaled, dtype):
                    table.add_row(result.name, *_numbers(result), result.verdict, style=_STYLES[result.verdict])
            output.print(table)


def _numbers(result: Result) -> tuple[str, str, str]:
    if result.n == 0:
        return "", "", ""
    share = f"{result.used:.0%}" if result.used < 100 else f"{result.used:.0e} ×"
    return f"{result.worst:.1e}", f"{result.median:.1e}", f"{share} ({result.bound})"


def _verdict(results: list[Result], n_structures: int) -> str:
    """The outcome of all that was tried, in a line."""
    names = {verdict: sorted({r.name for r in results if r.verdict == verdict}) for verdict in ("pass", "fail")}
    on = f"on {n_structures} structure{'s' * (n_structures != 1)}"
    if names["fail"]:
        return f"FAILED {on}: {', '.join(names['fail'])}"
    if not names["pass"]:
        return f"NOTHING TRIED {on}: no property is applicable to them"
    dtypes = " and ".join(dict.fromkeys(r.dtype for r in results))
    return f"PASSED {on}: all {len(names['pass'])} properties that were tried hold, in {dtypes}"


def _additivity(fragments: np.ndarray) -> dict[str, Any] | None:
    """Of fragments far apart; it is no invariance, and a model of ions need not have it."""
    from molflt.invariance.energies import ADDITIVE

    if not len(fragments):
        return None
    worst = float(fragments.max())
    verdict = "pass" if worst < ADDITIVE else "fail"
    return {"worst": worst, "median": float(np.median(fragments)), "bound": ADDITIVE, "verdict": verdict}


def _say_additivity(found: dict[str, Any] | None) -> None:
    from molflt.invariance.energies import FRAGMENTS_APART

    if found is None:
        say("Additivity of separated fragments: not applicable, no structure is isolated.")
        return
    remedy = "" if found["verdict"] == "pass" else ". Train with loss.separation, unless they do interact"
    say(
        f"Additivity of separated fragments: {found['verdict']}. With {FRAGMENTS_APART:g} Å between them, two "
        f"structures differ from the sum by {found['worst']:.1e} eV at worst, {found['median']:.1e} eV in the median "
        f"(bound {found['bound']:g} eV){remedy}."
    )


def _say_share(share: float | None) -> None:
    if share is None:
        say("This model has no Fourier far field.")
        return
    say(f"Removing the far field moves the energies of this model by {share:.1%} of their spread.")


_STYLES = {"pass": "", "fail": "red", "not applicable": "dim"}

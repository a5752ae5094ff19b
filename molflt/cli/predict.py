"""``molflt predict`` and ``molflt merge``: energies of structures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from molflt.cli import terminal
from molflt.errors import InputError, listed
from molflt.terminal_text import printable
from molflt.vocabulary import MethodName, OC20Split, OnError, TagConvention

if TYPE_CHECKING:
    from molflt.data.dataset import StructureDataset
    from molflt.prediction.output import Prediction
    from molflt.prediction.shards import Shard


def predict_command(
    context: typer.Context,
    model: Path = terminal.MODEL,
    inputs: list[str] = typer.Argument(
        ..., help="Files, folders, globs, SMILES or molecule:NAME; - for standard input.", show_default=False
    ),
    out: Path = typer.Option(
        None, "--out", "-o", help="Write to NAME.csv, NAME.extxyz (or .xyz) or NAME.npz.", show_default=False
    ),
    on_error: OnError = terminal.ON_ERROR,
    allow_charged: bool = terminal.ALLOW_CHARGED,
    conformers: int = terminal.CONFORMERS,
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object a line, for each structure."),
    forces: bool = typer.Option(False, "--forces", help="Forces as well: printed, or in extxyz."),
    per_atom: bool = typer.Option(
        False, "--per-atom", help="Each atom's term of the energy as well: printed, or in extxyz."
    ),
    calibrate: str = typer.Option(
        None,
        help="Measure the uncertainty on these labelled structures, which must not have been trained on.",
        show_default=False,
    ),
    oc20_split: OC20Split | None = typer.Option(
        None, help="With npz: the OC20 leaderboard's keys for this split; four runs make one file."
    ),
    shard: str = typer.Option(
        None,
        metavar="I/N",
        help="Predict part I of N into OUT.shard-I-of-N; repeat it to resume. 'molflt merge' joins the parts.",
        show_default=False,
    ),
    overwrite: bool = terminal.OVERWRITE,
    pairs: bool = terminal.PAIRS,
    tags: TagConvention = terminal.TAGS,
    device: str = terminal.DEVICE,
    max_atoms: int = terminal.MAX_ATOMS,
    far_field_method: MethodName = terminal.METHOD,
) -> None:
    """Predict energies of structures; prints them, or writes them with -o.

    Energies are in eV, forces in eV/Å. An ensemble gives the mean of its members. The uncertainty is the half-width
    of a 68 % interval where the model's file states it, else the standard deviation over an ensemble.

    Example: molflt predict runs/tiny slabs/*.cif CCO -o energies.csv
    """
    from molflt.data.reading import ReadOptions
    from molflt.prediction.members import calibrated, meaning_of_uncertainty, provenance
    from molflt.prediction.model import Model, load
    from molflt.prediction.output import STRUCTURES, check_output, write_predictions

    if as_json and out is not None:
        raise InputError("--json: prints; leave out -o")
    part = None if shard is None else _shard(shard, out, forces or per_atom, calibrate, oc20_split)
    if out is not None and part is None:
        terminal.claim(context, out, lambda: check_output(out, oc20_split, overwrite), oc20_split or "")
    for option, wanted in (("--forces", forces), ("--per-atom", per_atom)):
        if wanted and out is not None and out.suffix not in STRUCTURES:
            raise InputError(f"{option}: {out.suffix} has no place for them; give -o NAME.extxyz, or leave -o out")
    if oc20_split is not None and on_error == "skip":
        raise InputError("--oc20-split: a submission needs every structure; leave --on-error skip out")
    loaded = load(model, device, frequencies=far_field_method)
    options = ReadOptions(allow_charged, conformers, pairs=pairs, tags=tags)
    structures = loaded.read(inputs, replace(options, on_bad="skip" if on_error == "skip" else "stop"))
    others = f" and {len(loaded.members) - 1} more" if len(loaded.members) > 1 else ""
    terminal.detail(f"{loaded.members[0].path}{others}, on {loaded.device}")
    if calibrate is not None:
        from molflt.prediction.evaluate import measured

        known, _ = measured(loaded, calibrate, max_atoms=max_atoms, options=options)
        loaded = Model(calibrated(loaded.members, known), device)
    if part is None:
        prediction = loaded.predict_set(structures, on_error, forces, per_atom, max_atoms=max_atoms)
    else:
        from molflt.prediction.shards import predict_shard

        prediction, path, before = predict_shard(
            loaded, structures, inputs, part, out, on_error, max_atoms, far_field_method, overwrite, options
        )
    if line := prediction.of_conformers():
        terminal.say(line)
    if prediction.failures:
        counted = f"{len(prediction.failures)} of {len(prediction.names)} structures were skipped"
        terminal.warn(listed(counted, list(prediction.failures.values())))
    n = len(prediction.names)
    if part is not None:
        there = f", {before} of them from before" if before else ""
        terminal.say(
            f"complete already: {n} structures in {path}" if n == before else f"{n} structures{there} in {path}"
        )
        return
    target, meaning = loaded.target, meaning_of_uncertainty(loaded.members)
    if not as_json:
        terminal.say("\n".join(f"{key}: {text}" for key, text in provenance(loaded.members).items()))
    if meaning is not None:
        terminal.say(meaning)
    if out is not None:
        write_predictions(out, prediction, structures, target, oc20_split)
        n -= len(prediction.failures)
        terminal.say(f"{n} energ{'y' if n == 1 else 'ies'} in {out}, in eV")
        return
    if as_json:
        for i in range(len(prediction.names)):
            terminal.answer_json(_record(prediction, i, target))
        return
    _print(prediction, structures, target)


def _print(prediction: Prediction, structures: StructureDataset, target: str) -> None:
    """Print a line for each structure, and one for each atom where there are numbers of atoms."""
    import numpy as np
    from ase.data import chemical_symbols

    width = prediction.uncertainty_eV
    columns = [f"{target}_eV", *([] if width is None else ["uncertainty_eV"]), "name"]
    by_atom = [
        *(["forces_eV/Å"] * ("forces" in prediction.by_atom)),
        *(["atomic_energy_eV"] * ("atomic_energies" in prediction.by_atom)),
    ]
    if not terminal.Verbosity.quiet:
        typer.echo(
            "# " + "  ".join(columns) + ("; below, of each atom: element  " + "  ".join(by_atom) if by_atom else "")
        )
    for i, (name, energy) in enumerate(zip(prediction.names, prediction.energies, strict=True)):
        spread = "" if width is None else f"  {width[i]:10.6f}"
        about = f" ({prediction.about[i]})" if i in prediction.about else ""
        typer.echo(f"{energy:14.6f}{spread}  {printable(name)}{about}")
        if by_atom and i not in prediction.failures:
            table = np.column_stack([values[i] for values in prediction.by_atom.values()])
            for z, row in zip(structures[i].atomic_numbers.tolist(), table, strict=True):
                typer.echo(f"  {chemical_symbols[z]:<2}" + "".join(f"{value:14.6f}" for value in row))


def _record(prediction: Prediction, i: int, target: str) -> dict[str, Any]:
    """Describe a structure's prediction; for one that failed, its name and the reason."""
    record: dict[str, Any] = {
        "name": prediction.names[i],
        "target": target,
        "energy": float(prediction.energies[i]),
        "unit": "eV",
    }
    if i in prediction.about:
        record["formula"] = prediction.about[i].partition(", ")[0]
    if i in prediction.failures:
        return record | {"error": prediction.failures[i]}
    if prediction.uncertainty_eV is not None:
        # The second name is deprecated.
        record["uncertainty_eV"] = record["std"] = float(prediction.uncertainty_eV[i])
    if (conformers := prediction.conformers.get(i)) is not None:
        record |= {"conformers": conformers.n, "conformer_spread": conformers.spread}
    if i in prediction.warnings:
        record["warning"] = prediction.warnings[i]
    return record | {name: values[i].tolist() for name, values in prediction.by_atom.items()}


def _shard(text: str, out: Path | None, by_atom: bool, calibrate: str | None, oc20_split: OC20Split | None) -> Shard:
    from molflt.prediction.shards import Shard

    shard = Shard.parse(text)
    if out is None or out.suffix not in (".csv", ".npz"):
        raise InputError("--shard: give -o NAME.csv or NAME.npz, the file that the shards will be merged into")
    if by_atom or calibrate is not None:
        raise InputError("--shard: shards hold energies as predicted; leave out --forces, --per-atom and --calibrate")
    if oc20_split is not None:
        raise InputError("--oc20-split: with --shard, give it to 'molflt merge'")
    return shard


def merge_command(
    context: typer.Context,
    shards: list[Path] = typer.Argument(
        ..., help="Every file that 'molflt predict --shard' wrote, in any order.", show_default=False
    ),
    out: Path = typer.Option(..., "--out", "-o", help="Write to NAME.csv or NAME.npz.", show_default=False),
    oc20_split: OC20Split = typer.Option(
        None, help="With npz: the OC20 leaderboard's keys for this split; four runs make one file."
    ),
    overwrite: bool = terminal.OVERWRITE,
) -> None:
    """Put the shards of a prediction together.

    The result is the same, to the last digit, as without shards. All of them must be there, complete, and of the same
    model and inputs.

    Example: molflt merge energies.csv.shard-* -o energies.csv
    """
    from molflt.prediction.output import check_output, write_predictions
    from molflt.prediction.shards import merge

    terminal.claim(context, out, lambda: check_output(out, oc20_split, overwrite), oc20_split or "")
    prediction, target = merge(shards)
    if oc20_split is not None and prediction.failures:
        raise InputError(
            f"--oc20-split: a submission needs every structure; {len(prediction.failures)} were skipped "
            f"({next(iter(prediction.failures.values()))})"
        )
    write_predictions(out, prediction, None, target, oc20_split)
    skipped = f", {len(prediction.failures)} skipped" if prediction.failures else ""
    n_energies = len(prediction.names) - len(prediction.failures)
    terminal.say(f"{n_energies} energies of {len(shards)} shards in {out}, in eV{skipped}")

"""``molflt predict`` and ``molflt merge``: energies of structures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from molflt.cli.terminal import (
    ALLOW_CHARGED,
    CONFORMERS,
    DEVICE,
    FREQUENCIES,
    MAX_ATOMS,
    MODEL,
    ON_ERROR,
    OVERWRITE,
    PAIRS,
    TAGS,
    answer_json,
    claim,
    detail,
    errors,
    remark,
    say,
    warn,
)
from molflt.errors import InputError, listed
from molflt.terminal_text import printable
from molflt.vocabulary import MethodName, OC20Split, OnError, TagConvention

if TYPE_CHECKING:
    from molflt.prediction.output import Prediction
    from molflt.prediction.shards import Shard


def predict_command(
    context: typer.Context,
    model: Path = MODEL,
    inputs: list[str] = typer.Argument(
        ..., help="Files, folders, globs, SMILES or molecule:NAME; - for standard input.", show_default=False
    ),
    out: Path = typer.Option(
        None, "--out", "-o", help="Write to NAME.csv, NAME.extxyz or NAME.npz.", show_default=False
    ),
    on_error: OnError = ON_ERROR,
    allow_charged: bool = ALLOW_CHARGED,
    conformers: int = CONFORMERS,
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object a line, for each structure."),
    forces: bool = typer.Option(False, "--forces", help="Forces as well; needs -o NAME.extxyz or --json."),
    per_atom: bool = typer.Option(
        False, "--per-atom", help="Each atom's term of the energy as well; needs -o NAME.extxyz or --json."
    ),
    calibrate: str = typer.Option(
        None,
        help="Labelled structures that were not trained on; measures the uncertainty on them.",
        show_default=False,
    ),
    oc20_split: OC20Split | None = typer.Option(
        None, help="With npz: the OC20 leaderboard's keys for this split; four runs make one file."
    ),
    shard: str = typer.Option(
        None,
        metavar="I/N",
        help="Predict the I-th of N parts, into OUT.shard-I-of-N; repeated, it goes on where it stopped. "
        "'molflt merge' makes one file of all.",
        show_default=False,
    ),
    overwrite: bool = OVERWRITE,
    pairs: bool = PAIRS,
    tags: TagConvention = TAGS,
    device: str = DEVICE,
    max_atoms: int = MAX_ATOMS,
    frequencies: MethodName = FREQUENCIES,
) -> None:
    """Predict energies of structures; prints them, or writes them with -o.

    An ensemble gives the mean of its members. Uncertainties are those that the model's file knows, or the standard
    deviation over an ensemble. Energies are in eV, forces in eV/Å.

    Example: molflt predict runs/tiny slabs/*.cif CCO -o energies.csv
    """
    from molflt.data.reading import ReadOptions
    from molflt.prediction.members import calibrated, meaning_of_uncertainty
    from molflt.prediction.model import Model, load
    from molflt.prediction.output import check_output, write_predictions

    if as_json and out is not None:
        raise InputError("--json: prints; leave out -o")
    part = None if shard is None else _shard(shard, out, forces or per_atom, calibrate, oc20_split)
    if out is not None and part is None:
        claim(context, out, lambda: check_output(out, oc20_split, overwrite), oc20_split or "")
    for option, wanted in (("--forces", forces), ("--per-atom", per_atom)):
        if wanted and not as_json and (out is None or out.suffix != ".extxyz"):
            raise InputError(f"{option}: is written with its structures; give -o NAME.extxyz, or --json")
    if oc20_split is not None and on_error == "skip":
        raise InputError("--oc20-split: a submission needs every structure; leave --on-error skip out")
    loaded = load(model, device, frequencies=frequencies)
    options = ReadOptions(allow_charged, conformers, pairs=pairs, tags=tags)
    structures = loaded.read(inputs, replace(options, on_bad="skip" if on_error == "skip" else "stop"))
    others = f" and {len(loaded.members) - 1} more" if len(loaded.members) > 1 else ""
    detail(f"{loaded.members[0].path}{others}, on {loaded.device}")
    if calibrate is not None:
        from molflt.prediction.evaluate import measured

        known, _ = measured(loaded, calibrate, max_atoms=max_atoms, options=options)
        loaded = Model(calibrated(loaded.members, known), device)
    if part is None:
        prediction = loaded.predict_set(structures, on_error, forces, per_atom, max_atoms=max_atoms)
    else:
        from molflt.prediction.shards import predict_shard

        prediction, path, before = predict_shard(
            loaded, structures, inputs, part, out, on_error, max_atoms, frequencies, overwrite, options
        )
    if line := prediction.of_conformers():
        remark(line)
    if prediction.failures:
        counted = f"{len(prediction.failures)} of {len(prediction.names)} structures were skipped"
        warn(listed(counted, list(prediction.failures.values())))
    n = len(prediction.names)
    if part is not None:
        there = f", {before} of them from before" if before else ""
        say(f"complete already: {n} structures in {path}" if n == before else f"{n} structures{there} in {path}")
        return
    target, meaning = loaded.target, meaning_of_uncertainty(loaded.members)
    if meaning is not None:
        remark(f"±: {meaning}")
    if out is not None:
        write_predictions(out, prediction, structures, target, oc20_split)
        say(f"{len(prediction.names) - len(prediction.failures)} energies ({target}, eV) in {out}")
        if prediction.contractions:
            say(f"far field by {prediction.far_field}")
        return
    if as_json:
        for i in range(len(prediction.names)):
            answer_json(_record(prediction, i, target))
        return
    # On standard error, so that only numbers and names are piped on.
    std = prediction.std
    errors.print(f"{target} in eV, {'' if std is None else '± in eV, '}name", markup=False)
    for i, (name, energy) in enumerate(zip(prediction.names, prediction.energies, strict=True)):
        spread = "" if std is None else f"  {std[i]:10.6f}"
        about = f" ({prediction.about[i]})" if i in prediction.about else ""
        typer.echo(f"{energy:14.6f}{spread}  {printable(name)}{about}")


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
    if prediction.std is not None:
        record["std"] = float(prediction.std[i])
    if (conformers := prediction.conformers.get(i)) is not None:
        record |= {"conformers": conformers.n, "conformer_spread": conformers.spread}
    if i in prediction.warnings:
        record["warning"] = prediction.warnings[i]
    return record | {name: values[i].tolist() for name, values in prediction.by_atom.items()}


def _shard(text: str, out: Path | None, by_atom: bool, calibrate: str | None, oc20_split: OC20Split | None) -> Shard:
    from molflt.prediction.shards import Shard

    shard = Shard.parse(text)
    if out is None or out.suffix not in (".csv", ".npz"):
        raise InputError("--shard: give -o NAME.csv or NAME.npz, what all shards will be merged to")
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
    overwrite: bool = OVERWRITE,
) -> None:
    """Put the shards of a prediction together.

    The result is the same, to the last digit, as without shards. All of them must be there, complete, and of the same
    model and inputs.

    Example: molflt merge energies.csv.shard-* -o energies.csv
    """
    from molflt.prediction.output import check_output, write_predictions
    from molflt.prediction.shards import merge

    claim(context, out, lambda: check_output(out, oc20_split, overwrite), oc20_split or "")
    prediction, target = merge(shards)
    if oc20_split is not None and prediction.failures:
        raise InputError(
            f"--oc20-split: a submission needs every structure; {len(prediction.failures)} were skipped "
            f"({next(iter(prediction.failures.values()))})"
        )
    write_predictions(out, prediction, None, target, oc20_split)
    skipped = f", {len(prediction.failures)} skipped" if prediction.failures else ""
    n_energies = len(prediction.names) - len(prediction.failures)
    say(f"{n_energies} energies ({target}, eV) of {len(shards)} shards in {out}{skipped}")

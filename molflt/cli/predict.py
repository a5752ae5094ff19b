"""``molflt predict``: energies of structures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from molflt.cli.options import ALLOW_CHARGED, CONFORMERS, DEVICE, FREQUENCIES, MAX_ATOMS, ON_ERROR, PAIRS, TAGS, claim
from molflt.cli.terminal import answer_json, detail, errors, remark, say, warn
from molflt.errors import InputError, listed
from molflt.terminal_text import printable
from molflt.vocabulary import MethodName, OC20Split, OnError, TagConvention

if TYPE_CHECKING:
    from molflt.prediction.prediction import Prediction
    from molflt.prediction.shards import Shard, ShardResult


def predict_command(
    context: typer.Context,
    model: Path = typer.Argument(
        ..., help="Model file, run directory, ensemble, or pretrained:NAME.", show_default=False
    ),
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
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace an existing output."),
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
    from molflt.data.open import resolve_inputs
    from molflt.data.reading import ReadOptions
    from molflt.prediction.members import calibrated, load_members, meaning_of_uncertainty
    from molflt.prediction.outputs import check_output, write_predictions
    from molflt.prediction.predictor import choose_device, doubt_of_forces, predict

    if as_json and out is not None:
        raise InputError("--json: prints; leave out -o")
    part = None if shard is None else _shard(shard, out, forces or per_atom, calibrate, oc20_split)
    if out is not None and part is None:
        claim(context, out, lambda: check_output(out, oc20_split, overwrite), oc20_split or "")
    for option, wanted in (("--forces", forces), ("--per-atom", per_atom)):
        if wanted and not as_json and (out is None or out.suffix != ".extxyz"):
            raise InputError(f"{option}: is written with its structures; give -o NAME.extxyz, or --json")
    skip = on_error == "skip"
    if oc20_split is not None and skip:
        raise InputError("--oc20-split: a submission needs every structure; leave --on-error skip out")
    members = load_members(model, frequencies)
    takes_ions = members[0].model.config.takes_ions
    # Its labels are not read, and its structure is what it is.
    options = ReadOptions(allow_charged, conformers, charges=takes_ions, accept_unconverged=True, pairs=pairs)
    structures = resolve_inputs(inputs, replace(options, tags=tags, on_bad="skip" if skip else "stop"))
    chosen = choose_device(device)
    others = f" and {len(members) - 1} more" if len(members) > 1 else ""
    detail(f"{members[0].path}{others}, on {chosen}")
    if calibrate is not None:
        from molflt.prediction.evaluation import measured

        labelled = replace(options, accept_unconverged=False)
        known, _ = measured(members, calibrate, device=str(chosen), max_atoms=max_atoms, tags=tags, options=labelled)
        members = calibrated(members, known)
    shard_result = None
    if part is None:
        prediction = predict(members, structures, chosen, max_atoms, on_error, forces, per_atom)
    else:
        from molflt.prediction.shards import predict_shard

        shard_result = predict_shard(
            members, structures, inputs, part, out, chosen, max_atoms, on_error, tags, frequencies, overwrite, options
        )
        prediction = shard_result.prediction
    if forces and (doubt := doubt_of_forces(members[0].metadata)):
        warn(doubt)
    if line := prediction.of_conformers():
        remark(line)
    for lines in prediction.doubts():
        warn(lines)
    if prediction.failures:
        counted = f"{len(prediction.failures)} of {len(prediction.names)} structures were skipped"
        warn(listed(counted, list(prediction.failures.values())))
    if shard_result is not None:
        say(_shard_line(shard_result))
        return
    target, meaning = members[0].metadata.target, meaning_of_uncertainty(members)
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
    # On standard error, so that what is piped on is numbers and names only.
    std = prediction.std
    errors.print(f"{target} in eV, {'' if std is None else '± in eV, '}name", markup=False)
    for i, (name, energy) in enumerate(zip(prediction.names, prediction.energies, strict=True)):
        spread = "" if std is None else f"  {std[i]:10.6f}"
        about = f" ({prediction.about[i]})" if i in prediction.about else ""
        typer.echo(f"{energy:14.6f}{spread}  {printable(name)}{about}")


def _record(prediction: Prediction, i: int, target: str) -> dict[str, Any]:
    """What is known of a structure; of one that failed, its name and the reason."""
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


def _shard_line(result: ShardResult) -> str:
    n, before = len(result.prediction.names), result.n_before
    if n == before:
        return f"complete already: {n} structures in {result.path}"
    there = f", {before} of them from before" if before else ""
    return f"{n} structures{there} in {result.path}"

"""``molflt info`` and ``explain``: contents of models and data, and parts of an energy."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from molflt.cli import terminal
from molflt.errors import InputError, listed
from molflt.vocabulary import TagConvention

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from molflt.data.quality.domain import Domain
    from molflt.data.reading import ReadOptions
    from molflt.model.file import LoadedModel
    from molflt.report.explain import Explanation


def info_command(
    path: str = typer.Argument(
        ...,
        help="A model file, a run directory, pretrained:NAME, or structures in any readable form.",
        show_default=False,
    ),
    as_json: bool = terminal.JSON,
    pairs: bool = terminal.PAIRS,
    tags: TagConvention = terminal.TAGS,
    accept_unconverged: bool = terminal.ACCEPT_UNCONVERGED,
) -> None:
    """Describe a model or a data set, in ten lines; everything with -v or --json.

    Example: molflt info runs/tiny/best.safetensors
    """
    from molflt.prediction.members import BEST, MEMBER, PRETRAINED_PREFIX, load_members, member_paths, split_member

    whole, k = split_member(path)
    folder = Path(whole)
    is_run = folder.is_dir() and ((folder / BEST).exists() or any(folder.glob(f"{MEMBER}*")))
    if is_run or folder.suffix == ".safetensors" or path.startswith(PRETRAINED_PREFIX):
        from molflt.model.file import load_models

        files = [load_models(file) for file in member_paths(path)] if k is None else [load_members(path)]
        members = [_model_info(file, str(file[0].path) if k is None else path) for file in files]
        content = members[0] if len(members) == 1 else {"members": {m.pop("model"): m for m in members}}
        if not (as_json or terminal.Verbosity.verbose):
            content = _summary([member for file in files for member in file], path)
    else:
        content = _data_info(path, tags, accept_unconverged, pairs)
        if not as_json:
            content["periodic"] = {_axes(key): n for key, n in content["periodic"].items()}
    if as_json:
        terminal.answer_json(content)
    else:
        _print(content, 0)


def _axes(key: str) -> str:
    """``TTF`` → ``along ab``."""
    repeats = "".join(axis for axis, letter in zip("abc", key, strict=True) if letter == "T")
    return f"along {repeats}" if repeats else "no"


def _summary(members: list[LoadedModel], name: str) -> dict[str, Any]:
    from ase.data import chemical_symbols

    from molflt.prediction.members import meaning_of_uncertainty, provenance
    from molflt.vocabulary import DIFFERENTIABLE

    first, n = members[0], len(members)
    metadata, card = first.metadata, first.path.with_suffix(".md")
    domain, size = metadata.domain, f"{first.model.n_parameters():,} parameters"
    forces = any(key.endswith("force_mae") for key in metadata.validation)
    kinds = "" if domain is None else f": {', '.join(domain.kinds)}"
    return {
        "model": name if n == 1 else f"{name}, {n} members, whose mean is the prediction",
        **provenance(members),
        "uncertainty": meaning_of_uncertainty(members) or "not measured; --calibrate DATA does",
        "forces": ("yes" if forces else "derivatives of the energy, not trained on")
        if metadata.target in DIFFERENTIABLE
        else "no",
        "elements": ", ".join(chemical_symbols[z] for z in metadata.elements),
        "trained on": f"{metadata.training_data.path}, {metadata.training_data.n_structures:,} structures{kinds}",
        "size": size if n == 1 else f"{size} each",
        "more": f"molflt info -v {shlex.quote(name)}" + (f", and {card}" if card.exists() else ""),
    }


def _model_info(members: list[LoadedModel], name: str) -> dict[str, Any]:
    from ase.data import chemical_symbols

    from molflt.model.config import LEVELS

    loaded = members[0]
    card_file = loaded.path.with_suffix(".md")
    metadata = loaded.metadata.model_dump(mode="json")
    metadata.pop("domain")
    if (known := loaded.metadata.uncertainty) is not None:
        metadata["uncertainty"] = {"±": str(known), "levels": LEVELS, **metadata["uncertainty"]}
    if len(members) > 1:
        # The fields that differ between members.
        of_member = ("seed", "epoch", "validation")
        metadata["members"] = {
            f"{name}#{k}": {field: getattr(member.metadata, field) for field in of_member}
            for k, member in enumerate(members)
        }
    # Files count epochs from zero, people from one.
    for counted in (metadata, *metadata.get("members", {}).values()):
        counted["epoch"] += 1
    symbols = [chemical_symbols[z] for z in metadata.pop("elements")]
    card = {"card": str(card_file)} if card_file.exists() else {}
    rpe = getattr(loaded.model.positions, "rpe", None)
    reach = {} if rpe is None else {"widest_member": f"{float(rpe.widths.detach().max()):.3g} Å"}
    n_charges = loaded.model.config.charges
    charges = {"charges": f"{n_charges} channel{'s' * (n_charges > 1)}, 1/r to any distance"} if n_charges else {}
    sizes = {"parameters": loaded.model.n_parameters(), **reach, **charges}
    return {
        "model": name,
        **card,
        **sizes,
        "elements": symbols,
        "domain": _domain(loaded.metadata.domain),
        **metadata,
    }


def _domain(domain: Domain | None) -> Any:
    if domain is None:
        return "not recorded"
    from molflt.data.quality.occurrence import formula

    content = domain.model_dump(mode="json")
    if domain.occurrence is None:
        content["occurrence"] = "not recorded"
    else:
        content["occurrence"]["compositions"] = [formula(one) for one in domain.occurrence.compositions]
    content["distances"] = {
        pair: ", ".join(f"{low:.2f}–{high:.2f} Å" for low, high in ranges)
        for pair, ranges in content["distances"].items()
    }
    return content


def _data_info(path: str, tags: TagConvention, accept_unconverged: bool, pairs: bool) -> dict[str, Any]:
    import numpy as np
    from ase.data import chemical_symbols

    from molflt.data.open import open_dataset
    from molflt.data.progress import track
    from molflt.data.reading import ReadOptions
    from molflt.files import resolve_path
    from molflt.vocabulary import TARGETS

    options = ReadOptions(
        allow_charged=True, conformers=1, accept_unconverged=accept_unconverged, pairs=pairs, tags=tags
    )
    dataset = open_dataset(resolve_path(path), options)
    elements: Counter[int] = Counter()
    boundary: Counter[str] = Counter()
    values: dict[str, list[float]] = {target: [] for target in TARGETS}
    relaxed = 0
    sizes = []
    forces: list[np.ndarray] = []
    for data in track((dataset[i] for i in range(len(dataset))), "reading", len(dataset)):
        sizes.append(int(data.num_nodes))
        elements.update(set(data.atomic_numbers.tolist()))
        boundary["".join("T" if p else "F" for p in data.pbc[0].tolist())] += 1
        relaxed += "positions_relaxed" in data
        if "forces" in data:
            forces.append(data.forces.numpy())
        for target, found in values.items():
            if target in data:
                found.append(float(data[target]))
    labels: dict[str, dict[str, float]] = {}
    for target, found in values.items():
        if found:
            array = np.asarray(found)
            labels[target] = {
                "n": len(found),
                "mean_eV": float(array.mean()),
                "std_eV": float(array.std()),
                "mean_absolute_deviation_eV": float(np.abs(array - array.mean()).mean()),
                "min_eV": float(array.min()),
                "max_eV": float(array.max()),
            }
    if forces:
        components = np.concatenate(forces)
        labels["forces"] = {
            "n": len(forces),
            "root_mean_square_eV/Å": float(np.sqrt((components**2).mean())),
            "max_eV/Å": float(np.abs(components).max()),
        }
    return {
        "data": path,
        "structures": len(sizes),
        "atoms": {"min": min(sizes), "median": float(np.median(sizes)), "max": max(sizes), "total": sum(sizes)},
        "elements": {chemical_symbols[z]: n for z, n in sorted(elements.items())},
        "periodic": dict(boundary),
        "with_relaxed_positions": relaxed,
        "labels": labels,
    }


def _print(content: dict[str, Any], depth: int) -> None:
    for key, value in content.items():
        if isinstance(value, dict) and not any(isinstance(one, dict | list) for one in value.values()):
            parts = (
                f"{name} {one:.6g}" if isinstance(one, float) else f"{name} {one}" for name, one in value.items()
            )
            terminal.answer(f"{'  ' * depth}{key}: {', '.join(parts)}")
        elif isinstance(value, dict):
            terminal.answer(f"{'  ' * depth}{key}:")
            _print(value, depth + 1)
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
            shown = f"{shown:.6g}" if isinstance(shown, float) else shown
            terminal.answer(f"{'  ' * depth}{key}: {shown}")


PAGE = Path("explain.html")
_ROWS = 20
"""Most atoms in the printed table."""


def explain_command(
    context: typer.Context,
    model: Path = terminal.MODEL,
    structure: str = typer.Argument(..., help="A file, or a SMILES.", show_default=False),
    atom: int = typer.Option(
        None, "--atom", help="Atom whose attention is shown, counted from 0.", show_default="the one that stands out"
    ),
    index: int = typer.Option(None, help="Structure of several, counted from 0."),
    out: Path = typer.Option(
        None,
        "--out",
        "-o",
        help="NAME.html, an interactive 3D page, or NAME.csv.",
        show_default="explain.html, numbered",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object; no page unless -o says so."),
    overwrite: bool = terminal.OVERWRITE,
    allow_charged: bool = terminal.ALLOW_CHARGED,
    conformers: int = terminal.CONFORMERS,
    tags: TagConvention = terminal.TAGS,
    device: str = terminal.DEVICE,
) -> None:
    """Show each atom's contribution to an energy, and the attention of one atom.

    Prints a table, and writes an interactive 3D page with both.

    Example: molflt explain runs/tiny/best.safetensors CCO
    """
    out = terminal.unused(PAGE) if out is None and not as_json else out
    if out is not None:
        terminal.claim_new_file(context, out, (".html", ".csv"), overwrite)
    from molflt.data.reading import ReadOptions
    from molflt.prediction.members import load_member, provenance
    from molflt.prediction.predict import choose_device, domain_violations
    from molflt.report.explain import explain
    from molflt.report.explain_page import as_json as content
    from molflt.report.explain_page import write_csv, write_page

    target_device = choose_device(device)
    loaded = load_member(model, terminal.say)
    takes_ions = loaded.model.config.takes_ions
    options = ReadOptions(allow_charged, conformers, charges=takes_ions, accept_unconverged=True, tags=tags)
    data = _one_structure(structure, index, options)
    explanation = explain(loaded, data, atom, target_device)
    doubt = ""
    if reasons := [reason.text for reason in domain_violations(loaded, explanation.structure)]:
        doubt = listed("outside the training domain; the explanation is unreliable", reasons)
        terminal.warn(doubt)
    if out is not None:
        if out.suffix.lower() == ".csv":
            write_csv(out, explanation)
        else:
            write_page(out, explanation, loaded, doubt)
    if as_json:
        terminal.answer_json(content(explanation))
        return
    _print_table(explanation)
    terminal.say("\n".join(f"{key}: {text}" for key, text in provenance([loaded]).items()))
    assert out is not None
    terminal.say(f"{'page' if out.suffix.lower() == '.html' else 'table of all atoms'} in {out}")


def _one_structure(text: str, index: int | None, options: ReadOptions) -> Data:
    from molflt.data.open import resolve_inputs

    dataset = resolve_inputs([text], options)
    n = len(dataset)
    if index is None and n > 1:
        raise InputError(f"{text}: holds {n} structures; choose one with --index, from 0 to {n - 1}")
    if index is not None and not 0 <= index < n:
        raise InputError(f"{text}: --index {index} is out of range; it holds structures 0 to {n - 1}")
    return dataset[index or 0]


def _print_table(explanation: Explanation) -> None:
    from rich.table import Table

    from molflt.report.explain_page import adsorbate_first, atom_rows

    terminal.answer(f"{explanation.name}: {explanation.target} {explanation.energy:.6f} eV")
    referenced = bool(explanation.reference.any())
    if referenced:
        terminal.answer("sum over the atoms of the reference energy of the element and a learnt contribution")
    else:
        terminal.answer(f"{explanation.mean:.6f} eV for every structure, plus each atom's learnt contribution")
    parts = ("contribution / eV", "reference / eV", "learnt / eV") if referenced else ("contribution / eV",)
    table = Table("index", "element", "tag", *parts, "share")
    for column in table.columns[3:]:
        column.justify = "right"
    rows = list(atom_rows(explanation))
    shown = adsorbate_first(explanation, _ROWS)
    for i in shown:
        row = rows[i]
        keys = ("contribution_eV", "reference_eV", "learnt_eV") if referenced else ("contribution_eV",)
        energies = [f"{row[key]:.4f}" for key in keys]
        mark = " ←" if i == explanation.atom else ""
        table.add_row(f"{i}{mark}", row["element"], row["tag"], *energies, f"{row['share']:.1%}")
    terminal.output.print(table)
    if len(shown) < len(rows):
        with_adsorbate = "adsorbate and the " if any(row["tag"] == "adsorbate" for row in rows) else ""
        terminal.say(
            f"the {with_adsorbate}largest parts, {len(shown)} of {len(rows):,} atoms; -o NAME.csv writes all"
        )
    terminal.say(f"← the atom whose attention is given: {explanation.atom}, counted from 0")

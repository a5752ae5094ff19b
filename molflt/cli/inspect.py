"""``molflt info`` and ``explain``: contents of models and data, and parts of an energy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from molflt.cli.terminal import (
    ACCEPT_UNCONVERGED,
    ALLOW_CHARGED,
    CONFORMERS,
    DEVICE,
    JSON,
    MODEL,
    OVERWRITE,
    PAIRS,
    TAGS,
    answer,
    answer_json,
    claim_new_file,
    output,
    remark,
    say,
    warn,
)
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
    as_json: bool = JSON,
    pairs: bool = PAIRS,
    tags: TagConvention = TAGS,
    accept_unconverged: bool = ACCEPT_UNCONVERGED,
) -> None:
    """Describe a model or a data set.

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
    else:
        content = _data_info(path, tags, accept_unconverged, pairs)
    if as_json:
        answer_json(content)
        return
    _print(content, 0)


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
        return "not recorded (written before molflt looked at more than the elements)"
    from molflt.data.quality.occurrence import formula

    content = domain.model_dump(mode="json")
    if domain.occurrence is None:
        content["occurrence"] = "not recorded (written before molflt looked at it)"
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
    for data in track((dataset[i] for i in range(len(dataset))), "reading", len(dataset)):
        sizes.append(int(data.num_nodes))
        elements.update(set(data.atomic_numbers.tolist()))
        boundary["".join("T" if p else "F" for p in data.pbc[0].tolist())] += 1
        relaxed += "positions_relaxed" in data
        for target, found in values.items():
            if target in data:
                found.append(float(data[target]))
    labels = {}
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
        if isinstance(value, dict) and value:
            answer(f"{'  ' * depth}{key}:")
            _print(value, depth + 1)
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
            shown = f"{shown:.6g}" if isinstance(shown, float) else shown
            answer(f"{'  ' * depth}{key}: {shown}")


PAGE = Path("explain.html")
_ROWS = 20
"""Most atoms in the printed table."""


def explain_command(
    context: typer.Context,
    model: Path = MODEL,
    structure: str = typer.Argument(..., help="A file, or a SMILES.", show_default=False),
    atom: int = typer.Option(
        None, "--atom", help="Whose attention, counted from 0; left out: the one that stands out."
    ),
    index: int = typer.Option(None, help="Which structure of several, counted from 0."),
    out: Path = typer.Option(
        None, "--out", "-o", help="NAME.html, a page in 3D, or NAME.csv; left out: explain.html.", show_default=False
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object; no page unless -o says so."),
    overwrite: bool = OVERWRITE,
    allow_charged: bool = ALLOW_CHARGED,
    conformers: int = CONFORMERS,
    tags: TagConvention = TAGS,
    device: str = DEVICE,
) -> None:
    """Show what every atom contributes to an energy, and what one atom attends to.

    Prints a table, and writes a page with both in 3D.

    Example: molflt explain runs/tiny/best.safetensors CCO
    """
    out = PAGE if out is None and not as_json else out
    if out is not None:
        claim_new_file(context, out, (".html", ".csv"), overwrite)
    from molflt.data.reading import ReadOptions
    from molflt.prediction.members import load_member
    from molflt.prediction.predict import choose_device, domain_violations
    from molflt.report.explain import explain
    from molflt.report.explain_page import as_json as content
    from molflt.report.explain_page import write_csv, write_page

    target_device = choose_device(device)
    loaded = load_member(model, remark)
    takes_ions = loaded.model.config.takes_ions
    options = ReadOptions(allow_charged, conformers, charges=takes_ions, accept_unconverged=True, tags=tags)
    data = _one_structure(structure, index, options)
    explanation = explain(loaded, data, atom, target_device)
    doubt = ""
    if reasons := [reason.text for reason in domain_violations(loaded, explanation.structure)]:
        doubt = listed("outside the model's domain; what it says may mean little", reasons)
        warn(doubt)
    if out is not None:
        if out.suffix.lower() == ".csv":
            write_csv(out, explanation)
        else:
            write_page(out, explanation, loaded, doubt)
    if as_json:
        answer_json(content(explanation))
        return
    _print_table(explanation)
    assert out is not None
    say(f"{'page' if out.suffix.lower() == '.html' else 'table of all atoms'} in {out}")


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

    answer(f"{explanation.name}: {explanation.target} {explanation.energy:.6f} eV")
    referenced = bool(explanation.reference.any())
    if referenced:
        answer("sum over the atoms of their element's reference energy and what the model has learnt")
    else:
        answer(f"{explanation.mean:.6f} eV for every structure, plus what the model has learnt of each atom")
    parts = ("contribution / eV", "reference", "learnt") if referenced else ("contribution / eV",)
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
    output.print(table)
    if len(shown) < len(rows):
        with_adsorbate = "adsorbate and the " if any(row["tag"] == "adsorbate" for row in rows) else ""
        say(f"the {with_adsorbate}largest parts, {len(shown)} of {len(rows):,} atoms; -o NAME.csv writes all")
    say(f"← the atom whose attention is given: {explanation.atom}, counted from 0")

"""Make the bundled IS2RE data: small adsorbates on fcc metal slabs, relaxed with ASE's EMT potential.

Example:
    python -m scripts.tools.adsorption.make --out data/adsorption --seed 0 --workers 2

System ``i`` of a split depends on the seed, the split and ``i`` only. Finished systems are kept in
``OUT/partial.jsonl``: the same command continues after an interruption.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from scripts.tools.adsorption.systems import DESCRIPTION, SPLITS, compute

PARTIAL = "partial.jsonl"
SID_STRIDE = 1_000_000
"""``sid`` is the number of the split times this plus the system's index in the split."""

Job = tuple[int, str, int]


def fingerprint(result: dict[str, Any]) -> tuple[Any, ...]:
    """What two copies of a system share, whatever symmetry operation or relabelling lies between them.

    The energy of the initial structure depends on every distance in it: equal to 10 meV at the same composition,
    facet, size and adsorbate means the same structure for this purpose.
    """
    return result["name"], round(result["y_init"] / 0.01)


def select(
    results: dict[tuple[str, int], dict[str, Any]], counts: dict[str, int]
) -> tuple[dict[str, list[tuple[int, dict[str, Any]]]], list[tuple[str, int]], Counter[str]]:
    """The first accepted systems of every split, without near-duplicates within or between splits.

    Held-out and test systems choose first, training systems last, so that training loses the duplicates.

    Returns:
        For every split its systems with their index; the systems still to compute; how often each reason for a
        rejection occurred.
    """
    seen: set[tuple[Any, ...]] = set()
    chosen: dict[str, list[tuple[int, dict[str, Any]]]] = {split: [] for split in counts}
    missing: list[tuple[str, int]] = []
    rejected: Counter[str] = Counter()
    for split in sorted(counts, key=lambda name: (name == "train", SPLITS.index(name))):
        index = 0
        while len(chosen[split]) < counts[split] and (result := results.get((split, index))) is not None:
            reason = result.get("rejected") or ("duplicate" if fingerprint(result) in seen else None)
            if reason:
                rejected[reason] += 1
            else:
                seen.add(fingerprint(result))
                chosen[split].append((index, result))
            index += 1
        if wanting := counts[split] - len(chosen[split]):
            # A batch may end in an earlier split's territory of ``seen``: the next round settles it.
            batch = range(index, index + wanting)
            missing += [(split, i) for i in batch if (split, i) not in results]
    return chosen, missing, rejected


def read_partial(path: Path, header: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """Results of an interrupted run; makes the file, with its header, when there is none.

    Raises:
        typer.BadParameter: the file was made by other settings.
    """
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    # A line without its end was being written when the run was killed.
    whole = [line for line in lines if line.endswith(b"\n")]
    if not whole:
        path.write_text(json.dumps(header) + "\n", encoding="utf-8")
        return {}
    if json.loads(whole[0]) != header:
        raise typer.BadParameter(f"{path} comes from other settings; remove it or choose another folder")
    if len(whole) < len(lines):
        with path.open("r+b") as handle:
            handle.truncate(sum(map(len, whole)))
    results = (json.loads(line) for line in whole[1:])
    return {(result["split"], result["index"]): result for result in results}


def _work(job: Job) -> dict[str, Any]:
    seed, split, index = job
    return {"split": split, "index": index, **compute(seed, split, index)}


@contextmanager
def pool_of(workers: int) -> Iterator[Callable[[list[Job]], Iterable[dict[str, Any]]]]:
    """A function that computes jobs by so many processes and yields their results as they are finished."""
    if workers == 1:
        yield lambda jobs: map(_work, jobs)
        return
    # spawn: a fork would inherit the state of the caller's threads, the progress bar's among them
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield lambda jobs: pool.imap_unordered(_work, jobs)


def generate(
    out: Path, counts: dict[str, int], seed: int, workers: int, console: Console
) -> tuple[dict[str, list[tuple[int, dict[str, Any]]]], Counter[str]]:
    """Compute systems until every split is complete, keeping each result in ``OUT/partial.jsonl``."""
    path = out / PARTIAL
    results = read_partial(path, {"seed": seed, **DESCRIPTION})
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    start, n_done, reported = time.monotonic(), 0, time.monotonic()
    with (
        Progress(*columns, console=console) as progress,
        path.open("a", encoding="utf-8") as partial,
        pool_of(workers) as computed,
    ):
        bar = progress.add_task("relaxing", total=sum(counts.values()), rate="")
        while True:
            chosen, missing, rejected = select(results, counts)
            accepted = sum(map(len, chosen.values()))
            progress.update(bar, completed=accepted)
            if not missing:
                return chosen, rejected
            # Some of them will be rejected; the surplus of a round would not be used, so ask for no more.
            for result in computed([(seed, split, index) for split, index in missing]):
                partial.write(json.dumps(result) + "\n")
                partial.flush()
                results[result["split"], result["index"]] = result
                n_done += 1
                accepted += "rejected" not in result
                rate = f"{n_done / (time.monotonic() - start):.1f} systems/s"
                progress.update(bar, completed=accepted, rate=rate)
                if not console.is_terminal and time.monotonic() - reported > 30:
                    reported = time.monotonic()
                    console.print(f"{accepted} of {sum(counts.values())} systems, {rate}")


def to_record(split: str, index: int, result: dict[str, Any]) -> dict[str, Any]:
    """The OC20-layout record of a result."""
    return {
        "pos": np.array(result["pos"], dtype=np.float32),
        "pos_relaxed": np.array(result["pos_relaxed"], dtype=np.float32),
        "cell": np.array(result["cell"], dtype=np.float32)[None],
        "atomic_numbers": np.array(result["atomic_numbers"], dtype=np.uint8),
        "tags": np.array(result["tags"], dtype=np.uint8),
        "fixed": np.array(result["fixed"], dtype=np.uint8),
        "natoms": len(result["tags"]),
        "y_init": float(result["y_init"]),
        "y_relaxed": float(result["y_relaxed"]),
        "sid": SPLITS.index(split) * SID_STRIDE + index,
        **{key: str(result[key]) for key in ("name", "adsorbate", "metals", "facet")},
    }


def main(
    out: Annotated[Path, typer.Option(help="Folder for the LMDB files.")] = Path("data/adsorption"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random choices.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Processes; the result does not depend on it.")] = 2,
    train: Annotated[int, typer.Option(min=0, help="Training systems.")] = 2000,
    val: Annotated[int, typer.Option(min=0, help="Validation systems.")] = 300,
    test: Annotated[int, typer.Option(min=0, help="Test systems.")] = 300,
    val_ood_metal: Annotated[int, typer.Option(min=0, help="Systems of the held-out metal pair.")] = 150,
    val_ood_adsorbate: Annotated[int, typer.Option(min=0, help="Systems of the held-out adsorbate.")] = 150,
    overwrite: Annotated[bool, typer.Option(help="Replace existing LMDB files.")] = False,
) -> None:
    """Make adsorption data with ASE's EMT potential.

    Example: python -m scripts.tools.adsorption.make --out data/adsorption --seed 0 --workers 2
    """
    counts = dict(zip(SPLITS, (train, val, test, val_ood_metal, val_ood_adsorbate), strict=True))
    counts = {split: count for split, count in counts.items() if count}
    if not counts:
        raise typer.BadParameter("every split is empty; ask for at least one system")
    files = {split: out / f"{split}.lmdb" for split in counts}
    if not overwrite and (existing := [str(path) for path in files.values() if path.exists()]):
        raise typer.BadParameter(f"{', '.join(existing)} exist(s) already; add --overwrite to replace")
    out.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    chosen, rejected = generate(out, counts, seed, workers, console)
    # Here, because every worker process imports this file and has no use for the writer.
    from molflt.data.lmdb_writer import write_lmdb

    for split, systems in chosen.items():
        records = [to_record(split, index, result) for index, result in systems]
        write_lmdb(files[split], records, overwrite=overwrite, resume=False)
        size = files[split].stat().st_size / 1e6
        y = np.array([record["y_relaxed"] for record in records])
        mad = float(np.abs(y - y.mean()).mean())
        console.print(
            f"{files[split].name}: {len(y)} systems, {size:.2f} MB; y_relaxed: mean {y.mean():.3f} eV, "
            f"standard deviation {y.std():.3f} eV, mean absolute deviation {mad:.3f} eV"
        )
    candidates = sum(map(len, chosen.values())) + sum(rejected.values())
    share = sum(rejected.values()) / max(candidates, 1)
    reasons = ", ".join(f"{reason} {number}" for reason, number in rejected.most_common()) or "none"
    console.print(f"rejected: {share:.1%} of {candidates} candidates ({reasons})")
    (out / PARTIAL).unlink()


if __name__ == "__main__":
    typer.run(main)

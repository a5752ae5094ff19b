"""Commands to interrupt, the documented ways to go on, and what they must leave behind.

Outcomes are values that are equal exactly when nothing differs that should not.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase.build import molecule
from safetensors import safe_open

from molflt.data.oc20.lmdb import close_readonly, open_readonly
from molflt.data.oc20.writer import write_lmdb
from scripts.hardening.chaos_strike import run_to_the_end

MOLECULES = ("H2O", "NH3", "CH4", "CO2", "CO", "CH3OH", "HCN", "C2H4")
CONFIG = """\
seed: 3
data: {train: ../inputs/train.lmdb, val: {val: ../inputs/val.lmdb, other: ../inputs/other.lmdb}, max_atoms: 24}
model:
  {dim: 16, n_heads: 2, n_layers: 1, ffn_dim: 16, n_rbf: 8, cutoff: 4.0, dropout: 0.2, attention_dropout: 0.1,
  attention: {n_basis: 4}}
loss: {noisy_nodes: true}
optimiser: {lr: 5.0e-3, warmup_steps: 2, ema_decay: 0.9}
trainer: {max_epochs: 3, keep_last: 2, accelerator: cpu}
"""
"""Everything random that training has, and enough files to be torn."""


def run_content(run_dir: Path) -> dict[str, Any]:
    """Files of a run by name, models and checkpoint by tensor, the report without its date.

    The checkpoint holds weights, EMA, optimiser, scheduler, loops, the sampler's position and the recorder's state.
    """
    content: dict[str, Any] = {}
    for path in sorted(run_dir.iterdir()):
        if path.name == "previous.ckpt":
            # Whether it is needed is tried by damaging the other one.
            continue
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as handle:
                content[path.name] = handle.metadata()
                content |= {f"{path.name}: {name}": handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
        elif path.suffix == ".ckpt":
            _flatten(torch.load(path, weights_only=True), path.name, content, str(run_dir.absolute()))
        elif path.suffix == ".html":
            content |= page_content(path)
        else:
            content[path.name] = path.read_bytes()
    return content


def lmdb_content(path: Path) -> dict[str, Any]:
    """Keys and values; pages may lie in another order.

    Raises:
        InputError: the file is cut short; LMDB itself would end the process.
    """
    try:
        with open_readonly(path).begin() as reading:
            content: dict[str, Any] = {key.decode(): bytes(value) for key, value in reading.cursor()}
    finally:
        # The next one may have its inode.
        close_readonly(path)
    content["files"] = sorted(file.name for file in path.parent.iterdir())
    return content


def npz_content(path: Path) -> dict[str, Any]:
    """Arrays by name, as bytes; the archive around them holds dates."""
    with np.load(path, allow_pickle=False) as archive:
        return {name: (archive[name].dtype.str, archive[name].tobytes()) for name in archive.files}


def page_content(path: Path) -> dict[str, Any]:
    """Text of a report without its minute, and without what a refusal asked to add."""
    text = path.read_text(encoding="utf-8").replace(" --overwrite</dd>", "</dd>")
    shorter, n = re.subn(r"(report written</dt><dd>)\d[^<]*", r"\1", text)
    return {path.name: shorter, f"{path.name}: dates": n}


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Names of what differs, bit by bit."""
    return [
        name
        for name in dict.fromkeys([*expected, *found])
        if name not in found or name not in expected or not _same(found[name], expected[name])
    ]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool(torch.equal(a, b))
    return type(a) is type(b) and bool(a == b)


def _flatten(value: Any, name: str, content: dict[str, Any], folder: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _flatten(item, f"{name}: {key}".replace(folder, "RUN"), content, folder)
    elif isinstance(value, list | tuple):
        content[f"{name}: length"] = len(value)
        for k, item in enumerate(value):
            _flatten(item, f"{name}: {k}", content, folder)
    else:
        content[name] = value.replace(folder, "RUN") if isinstance(value, str) else value


@dataclass(frozen=True)
class Job:
    """Something to interrupt. All of it runs in a folder of its own beside ``inputs``.

    Attributes:
        name: as on the command line of chaos.py.
        commands: arguments of ``molflt``, run one after another; repeated, they go on.
        written: patterns of what they write, of which files are torn.
        outcome: of the folder, to be compared.
        final: the file, if it is one, that is whole whenever it is there.
        remedy: arguments that a refusal asks for, added to the last command; none: remove what is written.
    """

    name: str
    commands: Sequence[Sequence[str]]
    written: Sequence[str]
    outcome: Callable[[Path], dict[str, Any]]
    final: str = ""
    remedy: Sequence[str] = ("--overwrite",)

    def files(self, folder: Path) -> list[Path]:
        """List what is written so far."""
        return sorted(path for pattern in self.written for path in folder.glob(pattern) if path.is_file())


def _predict(out: str) -> tuple[str, ...]:
    return ("predict", "../inputs/model.safetensors", "../inputs/set.lmdb", "-o", out, "--max-atoms", "64")


def _evaluate(*options: str) -> tuple[str, ...]:
    return ("evaluate", "../inputs/model.safetensors", "../inputs/val.lmdb", *options)


def _bytes(name: str) -> Callable[[Path], dict[str, Any]]:
    return lambda folder: {name: (folder / name).read_bytes()}


_TRAIN = ("train", "../inputs/config.yaml", "--out", "run", "--resume", "auto")
_CONVERT = ("convert", "../inputs/set.lmdb", "../inputs/val.lmdb", "out.lmdb")
_SHARDS = [
    (*_predict("out.csv"), "--shard", "1/2"),
    (*_predict("out.csv"), "--shard", "2/2"),
    ("merge", "out.csv.shard-1-of-2", "out.csv.shard-2-of-2", "-o", "out.csv"),
]
_ALL = (
    Job("train", [_TRAIN], ["run/*"], lambda folder: run_content(folder / "run"), remedy=()),
    Job("convert", [_CONVERT], ["out.lmdb*"], lambda folder: lmdb_content(folder / "out.lmdb"), "out.lmdb"),
    Job("predict", [_predict("out.csv")], ["out.csv", ".out.*"], _bytes("out.csv"), "out.csv"),
    Job("shards", _SHARDS, ["out.csv*", ".out.*"], _bytes("out.csv"), "out.csv"),
    Job(
        "report",
        [_evaluate("--report", "report.html")],
        ["*.html", ".report.*"],
        lambda folder: page_content(folder / "report.html"),
        "report.html",
    ),
    # The report beside the model, which gets a number where one is there already.
    Job(
        "evaluate",
        [_evaluate("--overwrite")],
        [],
        lambda folder: page_content(folder.parent / "inputs" / "report-val.html"),
        "../inputs/report-val.html",
        remedy=(),
    ),
    Job("predict-extxyz", [_predict("out.extxyz")], ["out.extxyz", ".out.*"], _bytes("out.extxyz"), "out.extxyz"),
    Job(
        "predict-npz",
        [_predict("out.npz")],
        ["out.npz", ".out.*"],
        lambda folder: npz_content(folder / "out.npz"),
        "out.npz",
    ),
)
JOBS = {job.name: job for job in _ALL}


def _record(chance: np.random.Generator) -> dict[str, Any]:
    """A molecule of up to six atoms, out of shape, with an energy that no model will learn."""
    atoms = molecule(chance.choice(MOLECULES))
    relaxed = atoms.get_positions()
    return {
        "pos": relaxed + chance.normal(scale=0.1, size=relaxed.shape),
        "pos_relaxed": relaxed,
        "atomic_numbers": atoms.get_atomic_numbers(),
        "natoms": len(atoms),
        "y_relaxed": float(chance.normal()),
    }


def make_inputs(folder: Path) -> None:
    """Write what the jobs read: small molecules, a configuration, a model trained by it."""
    folder.mkdir()
    chance = np.random.default_rng(0)
    for name, size in {"train": 24, "val": 8, "other": 6, "set": 700}.items():
        write_lmdb(folder / f"{name}.lmdb", [_record(chance) for _ in range(size)], progress=False)
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    scratch = folder.parent / "model"
    scratch.mkdir()
    made = run_to_the_end(scratch, [("train", "../inputs/config.yaml", "--out", "run", "--no-report")])
    if made.status:
        raise RuntimeError(f"training the model failed:\n{made.text}")
    shutil.copy(scratch / "run" / "best.safetensors", folder / "model.safetensors")
    shutil.rmtree(scratch)

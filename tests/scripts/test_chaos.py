"""Real kills at random moments, few of them; ``scripts/tools/chaos.py`` itself tries fifty of each kind of work."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from scripts.tools.chaos_jobs import JOBS, differences, page_content, run_content

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_five_kills(name: str, python: Callable[..., Any]) -> None:
    result = python("-m", "scripts.tools.chaos", "--command", name, "--points", "5", "--seed", "1")
    assert result.returncode == 0, result.stdout + result.stderr
    assert sum(line.startswith(name) and " SIG" in line for line in result.stdout.splitlines()) == 5


@pytest.mark.slow
def test_two_at_once(python: Callable[..., Any]) -> None:
    """As many pairs as fit into a minute; ``scripts/tools/trial.py`` goes on."""
    names = ("train", "convert", "predict", "report")
    options = [word for name in names for word in ("--command", name)]
    result = python("-m", "scripts.tools.chaos", "--two", "--points", "2", "--seed", "1", *options)
    assert result.returncode == 0, result.stdout + result.stderr
    assert sum(" the second after " in line for line in result.stdout.splitlines()) == 8


POWER = """
import random, sys
from pathlib import Path
from scripts.tools import chaos
from scripts.tools.chaos_jobs import Job
from scripts.tools.chaos_strike import run_to_the_end

def outcome(folder):
    return {"same": "preset" in folder.with_suffix(".chaos.log").read_text()}

work = Path(sys.argv[1]) / "work"
for kind in ("same", "different", "refused"):
    find = outcome if kind != "different" else lambda folder: {"another": random.random()}
    job = Job("config", [("config", "absent" if kind == "refused" else "tiny")], [], find, remedy=())
    work.mkdir()
    whole = run_to_the_end(work, [("config", "tiny")])
    assert whole.status == 0, whole
    reference = find(work)
    work.rmdir()
    point = chaos.strike(job, work, reference, whole, random.Random(0), 0)
    work.rmdir()
    print(point.fine, point.outcome.partition(": ")[0], sep="|")
"""


@pytest.mark.slow
def test_what_counts_as_fine(tmp_path: Path, python: Callable[..., Any]) -> None:
    """The same, something else, and a refusal where nothing was cut."""
    result = python("-c", POWER, tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["True|same", "False|1 differ", "False|refused"]


def test_one_bit_is_a_difference() -> None:
    weights = {"a": torch.tensor([1.0, 2.0]), "b": b"x", "n": 1}
    assert differences(dict(weights), weights) == []
    assert differences({**weights, "a": torch.nextafter(weights["a"], torch.tensor(9.0))}, weights) == ["a"]
    assert differences({**weights, "a": weights["a"].double()}, weights) == ["a"]
    assert differences({"a": weights["a"], "n": 1}, weights) == ["b"]
    assert differences({**weights, "left over": 0}, weights) == ["left over"]
    assert differences({**weights, "n": True}, weights) == ["n"]


def test_the_outcome_of_a_run_is_all_of_it(tiny_run: Path) -> None:
    content = run_content(tiny_run)
    for part in ("optimizer_states", "lr_schedulers", "loops", "state_dict", "callbacks", "global_step", "epoch"):
        assert any(name.startswith(f"last.ckpt: {part}") for name in content), part
    assert any("average" in name or "ema" in name for name in content)
    assert {"metrics.csv", "metrics.jsonl", "config.yaml", "best.safetensors", "last.safetensors"} <= set(content)
    assert str(tiny_run) not in str({name: value for name, value in content.items() if isinstance(value, str)})


def test_the_date_of_a_report_does_not_count(tmp_path: Path) -> None:
    text = "<dl><dt>report written</dt><dd>2024-01-0{} 10:00 UTC</dd><dt>seed</dt><dd>{}</dd></dl>"
    pages = []
    for day, seed in ((1, 3), (2, 3), (2, 4)):
        path = tmp_path / "r.html"
        path.write_text(text.format(day, seed), encoding="utf-8")
        pages.append(page_content(path))
    assert differences(pages[0], pages[1]) == []
    assert differences(pages[0], pages[2]) == ["r.html"]

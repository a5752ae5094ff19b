"""Scripts set the number of threads of their process; here that is the process of all tests."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch

from scripts.results import ROOT


@pytest.fixture(scope="module", autouse=True)
def number_of_threads() -> Iterator[None]:
    """As before, whatever a script did: the last digits of a sum depend on it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``call(main, *arguments)``: a script's main, in this process."""

    def run(main: Callable[[], object], *arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", ["script", *map(str, arguments)])
        main()

    return run


@pytest.fixture
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``python(*arguments)``: another process, at the root of the repository."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *map(str, arguments)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False
        )

    return run

"""Scripts set the number of threads of their process; here that is the process of all tests."""

import os
import subprocess
import sys

import pytest
import torch

from scripts.results import ROOT


@pytest.fixture(scope="module", autouse=True)
def number_of_threads():
    """As before, whatever a script did: the last digits of a sum depend on it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def call(monkeypatch):

    def run(main, *arguments):
        monkeypatch.setattr(sys, "argv", ["script", *map(str, arguments)])
        main()

    return run


@pytest.fixture
def python():
    """``python(*arguments)``: another process, at the root of the repository."""

    def run(*arguments):
        command = [sys.executable, *map(str, arguments)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False
        )

    return run

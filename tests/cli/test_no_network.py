"""Nothing but ``molflt fetch`` uses the network: whole jobs where every socket refuses to open."""

import json
import os
import subprocess
import sys

import pytest

from tests.training.runs import QUICK, written

BLOCK = """
import socket

def refuse(*args, **kwargs):
    raise RuntimeError("NETWORK USED")

for name in ("connect", "connect_ex", "bind", "sendto"):
    setattr(socket.socket, name, refuse)
socket.create_connection = socket.getaddrinfo = socket.gethostbyname = refuse
"""


@pytest.fixture
def offline(tmp_path):
    """An environment whose interpreters refuse sockets; also those that a command starts."""
    (tmp_path / "sitecustomize.py").write_text(BLOCK, encoding="utf-8")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path}


def run(offline, *arguments):
    command = [sys.executable, "-c", "from molflt.cli.main import main; main()", *map(str, arguments)]
    return subprocess.run(command, env=offline, capture_output=True, text=True)


@pytest.mark.slow
def test_train_evaluate_predict_without_a_network(offline, make_config, tiny_data, tmp_path):
    data, out = tiny_data / "val.lmdb", tmp_path / "run"
    jobs = [
        ("train", written(make_config(**QUICK), tmp_path), "--out", out),
        ("evaluate", out, data, "--report", tmp_path / "report.html", "--json"),
        ("predict", out, data, "--out", tmp_path / "energies.csv"),
        ("info", out),
        ("check-invariance", out, data, "--limit", 1, "--draws", 1),
    ]
    for job in jobs:
        done = run(offline, *job)
        assert "NETWORK USED" not in done.stdout + done.stderr, (job, done.stderr)
        assert done.returncode == 0, (job, done.stderr)
        if "--json" in job:
            # A script can read what is printed, and nothing else is said.
            assert json.loads(done.stdout)["n"] == 10
            assert done.stderr == ""


def test_the_block_blocks(offline):
    """Power: a connection under it fails, whatever the machine."""
    code = "import urllib.request; urllib.request.urlopen('http://localhost:9')"
    done = subprocess.run([sys.executable, "-c", code], env=offline, capture_output=True, text=True)
    assert "NETWORK USED" in done.stderr

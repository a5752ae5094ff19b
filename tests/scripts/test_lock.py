"""The lock file fits what the project asks for, and the check of it finds what does not."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from packaging.requirements import Requirement

from scripts.tools import lock as make_lock

HASH = "a" * 64
LOCK = f"# made\ntorch==2.13.0+cpu \\\n    --hash=sha256:{HASH}\nase==3.24.0 \\\n    --hash=sha256:{HASH}\n"
WANTED = [Requirement("ase>=3.23")]


def test_the_lock_fits_the_project() -> None:
    if not make_lock.LOCK.exists():
        pytest.skip("no requirements.lock yet: python -m scripts.tools.lock makes it")
    constraints = (make_lock.ROOT / "constraints.txt").read_text(encoding="utf-8")
    wanted = make_lock.requirements()
    assert {"torch", "pytest", "scikit-learn", "nbclient"} <= {requirement.name for requirement in wanted}
    assert make_lock.mismatches(make_lock.LOCK.read_text(encoding="utf-8"), wanted, constraints) == []


@pytest.mark.parametrize(
    ("lock", "constraints", "complaint"),
    [
        (LOCK, "torch==2.14.0\n", "torch==2.13.0+cpu, but torch==2.14.0 is asked for"),
        (LOCK, "numpy==1.26\n", "numpy is missing"),
        (LOCK.replace("3.24.0", "3.22.0"), "", "ase==3.22.0, but ase>=3.23 is asked for"),
        (LOCK.replace(f" \\\n    --hash=sha256:{HASH}", "", 1), "", "no pinned version with a hash: torch"),
        (LOCK.replace("==3.24.0", ">=3.24.0"), "", "no pinned version with a hash: ase"),
        (LOCK.replace(HASH, HASH[1:]), "", "no pinned version with a hash"),
        (LOCK + "git+https://example.org/x.git\n", "", "no pinned version with a hash: git+"),
    ],
)
def test_what_does_not_fit_is_named(lock: str, constraints: str, complaint: str) -> None:
    assert make_lock.mismatches(LOCK, WANTED, "# torch\ntorch==2.13.0\n") == []
    assert any(complaint in line for line in make_lock.mismatches(lock, WANTED, constraints))


def test_needs_of_needs_are_found() -> None:
    versions = make_lock.installed([Requirement("hypothesis"), Requirement("absent; python_version < '3'")])
    assert versions["hypothesis"] == version("hypothesis")
    assert versions["sortedcontainers"] == version("sortedcontainers")
    assert "absent" not in versions


def test_a_rendered_lock_is_read_back() -> None:
    versions = {"ase": "3.24.0", "torch": "2.13.0+cpu"}
    text = make_lock.render(versions, dict.fromkeys(versions, HASH))
    assert make_lock.read_lock(text) == (versions, [])

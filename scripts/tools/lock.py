"""The lock file: every package that the tests run with, at one version, with the hashes of its wheel.

Versions are those of the environment this runs in, which ``scripts/environment.sh`` makes from ``pyproject.toml`` and
``constraints.txt``; hashes are those that the package registry states for them, asked through pip. Nothing else is
reached, and nothing is installed.

    python -m scripts.tools.lock            writes requirements.lock
    python -m scripts.tools.lock --check    does requirements.lock fit pyproject.toml and constraints.txt? No network.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from molflt.files import atomic_file

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"
EXTRAS = ("dev", "literature", "torch-sim")
HEADER = """\
# Every package of molflt[{extras}] at one version, with the hash of its wheel; made by scripts/tools/lock.py.
# For CPython {python} on {system}. Builds of torch for CPUs (+cpu) are on PyTorch's
# own index; where the default index has none, name it with --extra-index-url:
#   pip install --require-hashes -r requirements.lock
#   pip install --no-deps --no-build-isolation -e .
"""
_LINE = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)(?P<hashes>(?:\s+--hash=sha256:[0-9a-f]{64})+)")


def main() -> None:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="check requirements.lock instead of writing it")
    options = parser.parse_args()
    if options.check:
        if not LOCK.exists():
            sys.exit(f"{LOCK}: no such file; run python -m scripts.tools.lock")
        wrong = mismatches(
            LOCK.read_text(encoding="utf-8"), requirements(), (ROOT / "constraints.txt").read_text(encoding="utf-8")
        )
        sys.exit("\n".join([*wrong, "run python -m scripts.tools.lock"]) if wrong else None)
    versions = installed(requirements())
    hashes = wheel_hashes(versions)
    with atomic_file(LOCK) as temporary:
        temporary.write_text(render(versions, hashes), encoding="utf-8")
    print(f"{len(versions)} packages in {LOCK.name}")


def requirements() -> list[Requirement]:
    """What pyproject.toml asks for, with the extras that the tests need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    found, wanted = [Requirement(text) for text in project["dependencies"]], list(EXTRAS)
    for extra in wanted:
        for requirement in map(Requirement, extras[extra]):
            if requirement.name == project["name"]:
                wanted += sorted(requirement.extras)
            else:
                found.append(requirement)
    return found


def installed(wanted: Iterable[Requirement]) -> dict[str, str]:
    """Versions of packages, and of what they need on this platform, as installed here.

    Raises:
        SystemExit: one is not installed.
    """
    versions: dict[str, str] = {}
    done: set[tuple[str, str]] = set()
    waiting = [(requirement, "") for requirement in wanted]
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        try:
            found = distribution(name)
        except PackageNotFoundError:
            sys.exit(f"{requirement} is not installed; run scripts/environment.sh {' '.join(EXTRAS)} first")
        versions[name] = found.version
        for own in {"", *requirement.extras}:
            if (name, own) not in done:
                done.add((name, own))
                waiting += [(Requirement(text), own) for text in found.requires or ()]
    return dict(sorted(versions.items()))


def wheel_hashes(versions: dict[str, str]) -> dict[str, str]:
    """SHA-256 of the file that pip would install of each version.

    Raises:
        CalledProcessError: the registry cannot be reached, or has no such version.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed"]
        pinned = [f"{name}=={version}" for name, version in versions.items()]
        subprocess.run([*command, "--only-binary", ":all:", "--report", str(report), *pinned], check=True)
        items = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {
        canonicalize_name(item["metadata"]["name"]): item["download_info"]["archive_info"]["hashes"]["sha256"]
        for item in items
    }


def render(versions: dict[str, str], hashes: dict[str, str]) -> str:
    """The text of the lock file."""
    header = HEADER.format(
        extras=",".join(EXTRAS),
        python=".".join(platform.python_version_tuple()[:2]),
        system=f"{platform.system()} {platform.machine()}",
    )
    lines = [f"{name}=={version} \\\n    --hash=sha256:{hashes[name]}\n" for name, version in versions.items()]
    return header + "".join(lines)


def read_lock(text: str) -> tuple[dict[str, str], list[str]]:
    """Versions by name, and lines that are not ``name==version --hash=sha256:...``."""
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    found, wrong = {}, []
    for line in filter(None, map(str.strip, joined.splitlines())):
        match = _LINE.fullmatch(line)
        if match is None:
            wrong.append(f"requirements.lock: no pinned version with a hash: {line}")
        else:
            found[canonicalize_name(match["name"])] = match["version"]
    return found, wrong


def mismatches(lock: str, wanted: Iterable[Requirement], constraints: str) -> list[str]:
    """What a lock file lacks, or has otherwise than it is asked for; a line each."""
    versions, wrong = read_lock(lock)
    pinned = [line for line in map(str.strip, constraints.splitlines()) if line and not line.startswith("#")]
    for requirement in [*wanted, *map(Requirement, pinned)]:
        name = canonicalize_name(requirement.name)
        if name not in versions:
            wrong.append(f"requirements.lock: {name} is missing")
        elif not requirement.specifier.contains(versions[name], prereleases=True):
            wrong.append(f"requirements.lock: {name}=={versions[name]}, but {requirement} is asked for")
    return wrong


if __name__ == "__main__":
    main()

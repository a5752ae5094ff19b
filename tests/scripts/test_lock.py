"""The lock file has every package that the project asks for, at a version that fits, with hashes."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
_PINNED = re.compile(r"([A-Za-z0-9._-]+)==(\S+)(?:\s+--hash=sha256:[0-9a-f]{64})+")


def test_the_lock_fits_the_project():
    text = re.sub(r"^#.*\n", "", (ROOT / "requirements.lock").read_text(encoding="utf-8"), flags=re.MULTILINE)
    matches = [_PINNED.fullmatch(line.strip()) for line in text.replace("\\\n", " ").splitlines()]
    versions = {canonicalize_name(match[1]): match[2] for match in matches if match}
    assert len(versions) == len(matches) > 100
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [text for name in ("dev", "literature", "torch-sim") for text in project["optional-dependencies"][name]]
    constraints = re.findall(r"^[^#\s].*", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    for wanted in map(Requirement, [*project["dependencies"], *extras, *constraints]):
        if wanted.name != project["name"]:
            assert wanted.specifier.contains(versions[canonicalize_name(wanted.name)], prereleases=True), wanted

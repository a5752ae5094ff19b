"""The wheel, built from the source distribution, works in an environment of its own and from another folder."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from molflt import __version__

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "runs", "shared", "site")
TINY = """
data: {train: "bundled:fg/train.lmdb", val: "bundled:fg/val.lmdb"}
model: {dim: 16, n_heads: 2, n_layers: 1, ffn_dim: 16, n_rbf: 8, cutoff: 4.0}
trainer: {max_epochs: 1, max_steps: 2}
"""


def done(command, cwd):
    """Standard output of a command that must succeed, without this repository on its path."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    environment |= {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "120"}
    found = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert found.returncode == 0, f"{command}\n{found.stdout[-3000:]}\n{found.stderr[-3000:]}"
    return found.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """The source distribution, and the wheel that pip makes of it; neither needs the network."""
    folder = tmp_path_factory.mktemp("distributions")
    # A copy, so that no build folder of an older version is taken into the wheel.
    source = shutil.copytree(REPOSITORY, folder / "source", ignore=LEFT_OUT)
    build = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
    name = done([sys.executable, "-c", build, str(folder)], source).splitlines()[-1]
    sdist = folder / name
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done([*pip, "--wheel-dir", str(folder), str(sdist)], folder)
    return sdist, folder / f"molflt-{__version__}-py3-none-any.whl"


@pytest.fixture(scope="module")
def python(distributions, tmp_path_factory):
    """The interpreter of a new environment that holds the wheel, and sees the packages of this one."""
    environment = tmp_path_factory.mktemp("environment")
    done([sys.executable, "-m", "venv", "--without-pip", str(environment)], environment)
    interpreter = environment / "bin" / "python"
    purelib = sysconfig.get_path("purelib", "venv", {"base": str(environment)})
    # A path in a .pth file is searched, but .pth files in it, such as that of an editable molflt, are not read.
    Path(purelib, "packages-of-the-tests.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "--quiet", "--no-deps", "--no-index"]
    done([*pip, "--ignore-installed", str(distributions[1])], environment)
    return interpreter


def test_contents_of_the_distributions(distributions):
    sdist, wheel = distributions
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "SECURITY.md", "setup.py"}
    wanted |= {"docs/design.md", "tests/conftest.py", "tests/packaging/test_wheel.py", "scripts/test.sh"}
    wanted |= {"notebooks/quickstart.ipynb", "data/fg/README.md", "data/fg/train.lmdb"}
    assert wanted <= names
    with zipfile.ZipFile(wheel) as archive:
        held = archive.namelist()
    data = {f"molflt/data_sets/fg/{name.name}" for name in (REPOSITORY / "data/fg").glob("*.lmdb")}
    assert len(data) == 2
    data |= {f"molflt/report/templates/3Dmol-{name}" for name in ("min.js", "LICENSE.txt")}
    assert data | {"molflt/__main__.py", "molflt/py.typed", "molflt/pretrained/qm7-small.safetensors"} <= set(held)
    assert not [name for name in held if not name.startswith(("molflt/", f"molflt-{__version__}.dist-info/"))]
    assert wheel.stat().st_size < 17e6


def test_it_is_the_wheel_that_runs(python, tmp_path):
    where = done([str(python), "-c", "import molflt; print(molflt.__file__)"], tmp_path).strip()
    assert Path(where).is_relative_to(python.parents[1])


def test_commands(python, tmp_path):
    """From a folder that holds nothing: the configuration, training on bundled data, a model that comes with it."""
    command = str(python.with_name("molflt"))
    assert "bundled:fg/train.lmdb" in done([command, "config", "tiny"], tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")
    done([command, "train", "tiny.yaml", "--out", "run"], tmp_path)
    assert (tmp_path / "run" / "best.safetensors").exists()
    assert (tmp_path / "run" / "report.html").exists()
    lines = done([command, "predict", "pretrained:qm7-small", "CCO"], tmp_path)
    assert "CCO" in lines
    assert "Usage: python -m molflt" in done([str(python), "-m", "molflt", "--help"], tmp_path)

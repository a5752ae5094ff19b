"""Run the notebooks and store their outputs, so that they can be read without running them.

python -m scripts.tools.notebooks                   # all of them, about five minutes of one core
python -m scripts.tools.notebooks quickstart        # one of them
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from ipykernel.kernelspec import write_kernel_spec
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient

from scripts import results

ROOT = results.ROOT
FOLDER = ROOT / "notebooks"
TIMEOUT = 300
"""Seconds for a cell, on one busy core."""
MACHINE = re.compile(r"(?<![\w.])/(?:root|home|tmp|work|opt|Users|usr/local)/|site-packages")
"""A path that another machine does not have."""
_BAR = re.compile(r"\x1b\[(\?25|2K|1A)|\d+/\d+ +(-:--:--|\d+:\d\d:\d\d)")
_ARGV = [sys.executable, "-Xfrozen_modules=off", "-m", "ipykernel_launcher", "-f", "{connection_file}"]


def execute(notebook: Any, work: Path, private: Path) -> None:
    """Run a notebook by this interpreter, without the user's kernels and settings.

    Args:
        notebook: changed in place.
        work: the folder it starts in.
        private: an empty folder for what Jupyter and matplotlib write besides.

    Raises:
        CellExecutionError: a cell failed.
    """
    names = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "MPLCONFIGDIR")
    environment = {**os.environ, **{name: str(private / name) for name in names}}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "100"}
    # Of tqdm, which misses widgets that a stored notebook has no use for.
    environment["PYTHONWARNINGS"] = "ignore:IProgress not found"
    # Figures are drawn for the page, whatever the environment says.
    environment["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    for name in names:
        (private / name).mkdir(parents=True)
    write_kernel_spec(str(private / "kernels" / "molflt"), overrides={"argv": _ARGV})
    specs = KernelSpecManager(kernel_dirs=[str(private / "kernels")], ensure_native_kernel=False)
    manager = AsyncKernelManager(kernel_name="molflt", kernel_spec_manager=specs)
    client = NotebookClient(notebook, km=manager, timeout=TIMEOUT, resources={"metadata": {"path": str(work)}})
    # However fast lines come, they are one output.
    client.coalesce_streams = True
    # It would leave a kernel that it was given running.
    client.owns_km = True
    client.execute(env=environment)


def tidy(notebook: Any) -> None:
    """Drop what differs from one run to the next without meaning anything."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    for cell in notebook.cells:
        cell.metadata = {}
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if not _is_bar(output)]
        for output in cell.get("outputs", ()):
            output.pop("metadata", None)
            if output.output_type in ("display_data", "execute_result"):
                output.metadata = {}


def _is_bar(output: Any) -> bool:
    """True of a piece of a progress bar: the line with the time left, or what moves the cursor."""
    return output.get("name") == "stderr" and _BAR.search(output.get("text", "")) is not None


def strange_paths(notebook: Any) -> list[str]:
    """Lines of outputs that name a place on this machine."""
    texts = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            texts += [
                output.get("text", ""),
                *(t for k, t in output.get("data", {}).items() if k.startswith("text/")),
            ]
    return [line for text in texts for line in text.splitlines() if MACHINE.search(line)]


def main() -> None:
    """Run and store."""
    parser = results.command(__doc__)
    parser.add_argument("names", nargs="*", help="without folder and ending; all if none is given")
    options = parser.parse_args()
    for name in options.names or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        path = FOLDER / f"{name}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder, "work")
            work.mkdir()
            execute(notebook, work, Path(folder, "private"))
        tidy(notebook)
        found = strange_paths(notebook)
        if found:
            sys.exit(f"{path.name}: not stored, because outputs name places on this machine:\n" + "\n".join(found))
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()

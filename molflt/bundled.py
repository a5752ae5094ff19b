"""The data that come with the package: ``bundled:fg/train.lmdb`` and its like.

A clone has them in its folder ``data``, a wheel in ``molflt/data_sets``.
"""

from __future__ import annotations

from pathlib import Path

from molflt.errors import InputError

BUNDLED_PREFIX = "bundled:"
_PACKAGE = Path(__file__).resolve().parent
_FOLDERS = (_PACKAGE / "data_sets", _PACKAGE.parent / "data")


def resolve_path(path: str) -> Path:
    """Turn ``bundled:NAME`` into a path of this installation; leave other paths as they are.

    Raises:
        InputError: there is no such file among the bundled data.
    """
    if not path.startswith(BUNDLED_PREFIX):
        return Path(path)
    folder = next((folder for folder in _FOLDERS if (folder / "fg").is_dir()), None)
    if folder is None:
        raise InputError(
            f"{path}: this installation has no bundled data (there is neither {' nor '.join(map(str, _FOLDERS))}); "
            "install molflt again, from its wheel or with 'pip install -e .' from a clone"
        )
    found = folder / path.removeprefix(BUNDLED_PREFIX)
    if not found.exists():
        names = sorted(f"{BUNDLED_PREFIX}{file.relative_to(folder).as_posix()}" for file in folder.glob("*/*.lmdb"))
        raise InputError(f"{path}: no such file in {folder}; there are {', '.join(names)}")
    return found

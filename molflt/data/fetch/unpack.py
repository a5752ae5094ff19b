"""A tar archive to a folder, trusting nothing in it."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from molflt.data.fetch.catalogue import Archive
from molflt.data.progress import ByteMeter, MeteredFile, size_text
from molflt.errors import InputError, naming
from molflt.terminal_text import printable

_BLOCK = 1 << 20
_HEADERS = 1 << 20
"""Bytes that may stand between the contents of two files; long names are read into memory."""
_LONGEST_PART, _MOST_PARTS = 255, 32
"""Bytes of a name, which most file systems have, and folders in a path."""


class _Limited:
    """The uncompressed stream, which ends in an error when it is longer than was allowed."""

    def __init__(self, stream: gzip.GzipFile | MeteredFile, file: Path) -> None:
        self._stream, self._file, self._left = stream, file, _HEADERS

    def allow(self, content: int) -> None:
        """From here on, a file's content and what stands before the next one."""
        self._left = content + _HEADERS

    def read(self, size: int) -> bytes:
        block = self._stream.read(size)
        self._left -= len(block)
        if self._left < 0:
            raise InputError(f"{self._file}: refused, the names and attributes in it are too long")
        return block


def unpack(archive: Archive, file: Path, target: Path) -> None:
    """Unpack regular files and folders of a ``.tar.gz`` or ``.tar`` file into a new folder.

    It appears complete or not at all. Owners, permissions and times are not taken over. An interrupted unpacking is
    to be done again; what it left behind is removed.

    Raises:
        InputError: the file is damaged, or something in it is refused: an absolute path, one that leads outside,
            a link, a device, a name that comes twice or is none, too many members or too many bytes.
    """
    temporary = target.with_name(f".{target.name}.unpacking")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        with open(file, "rb") as handle, ByteMeter("unpacking", file.stat().st_size) as meter:
            # Decompressed here rather than by tarfile, whose streams do not notice that the end is missing.
            metered = MeteredFile(handle, meter)
            stream = metered if archive.file.endswith(".tar") else gzip.GzipFile(fileobj=metered)
            limited = _Limited(stream, file)
            _extract(archive, file, limited, temporary)
            # The checksum of the content stands at the very end, behind the end of the tar.
            limited.allow(0)
            while limited.read(_BLOCK):
                pass
        content = list(temporary.iterdir())
        if not content:
            raise InputError(f"{file}: the archive is empty")
        # Usually everything lies in one folder, which then is the one that is wanted.
        single = len(content) == 1 and content[0].is_dir()
        os.replace(content[0] if single else temporary, target)
    except InputError:
        raise
    # ValueError, OverflowError: numbers in headers that are none; RecursionError: a header for a header, and so on.
    except (
        tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, OverflowError, RecursionError
    ) as error:  # fmt: skip
        raise InputError(f"{file}: the archive is damaged ({error}); fetch it again") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _extract(archive: Archive, file: Path, stream: _Limited, folder: Path) -> None:
    n_members = n_bytes = 0
    with tarfile.open(fileobj=stream, mode="r|") as tar:  # type: ignore[call-overload]
        for member in tar:
            n_members += 1
            if n_members > archive.max_members:
                raise InputError(f"{file}: refused, it holds more than {archive.max_members} files")
            path = _inside(folder, member, file)
            if member.isdir():
                stream.allow(0)
                path.mkdir(parents=True, exist_ok=True)
                continue
            n_bytes += member.size
            if member.size < 0 or n_bytes > archive.most_unpacked:
                raise InputError(f"{file}: refused, it unpacks to more than {size_text(archive.most_unpacked)}")
            stream.allow(member.size)
            if not archive.wants(member.name):
                continue
            content = tar.extractfile(member)
            assert content is not None  # it is a regular file
            path.parent.mkdir(parents=True, exist_ok=True)
            # mode x: a name that comes twice is an error, and no link is followed
            with naming(path), open(path, "xb") as handle:
                shutil.copyfileobj(content, handle, _BLOCK)
                handle.flush()
                os.fsync(handle.fileno())


def _inside(folder: Path, member: tarfile.TarInfo, file: Path) -> Path:
    """Where a member goes.

    Raises:
        InputError: it is not a regular file or folder, or would lie elsewhere than in the folder, or on another one.
    """
    shown = repr(member.name)
    if not (member.isreg() or member.isdir()):
        raise InputError(f"{file}: refused, {shown} is neither a file nor a folder (a link or a device)")
    parts = PurePosixPath(member.name).parts
    # A backslash or a colon separates on other systems.
    if member.name.startswith("/") or ".." in parts or any(c in member.name for c in "\\:\0"):
        raise InputError(f"{file}: refused, the path {shown} leads outside the folder")
    plain = printable(member.name) == member.name
    if not plain or len(parts) > _MOST_PARTS or any(len(part.encode()) > _LONGEST_PART for part in parts):
        raise InputError(
            f"{file}: refused, {shown[:200]} is no name for a file: it has control characters, bytes that are no "
            f"text, more than {_LONGEST_PART} bytes, or more than {_MOST_PARTS} folders"
        )
    path = folder.joinpath(*parts)
    if member.isreg() and (not parts or path.exists()):
        raise InputError(f"{file}: refused, {shown} comes twice or has no name")
    for parent in path.parents:
        if parent == folder:
            break
        if parent.is_file():
            raise InputError(f"{file}: refused, {shown} lies below a file")
    if member.isdir() and path.is_file():
        raise InputError(f"{file}: refused, {shown} comes twice")
    return path

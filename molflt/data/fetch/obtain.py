"""Data sets in one step: plan, download, check, unpack; the archive is not trusted."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from molflt.data.fetch.catalogue import Archive, Splits, find_splits, missing_splits
from molflt.data.fetch.download import check_url, download
from molflt.data.progress import ByteMeter, MeteredFile, size_text
from molflt.errors import InputError, naming, ordinary_file
from molflt.files import alone
from molflt.terminal_text import printable


@dataclass(frozen=True)
class Plan:
    """Steps to obtain a data set, and the disk space they need.

    Args:
        url: the source, unless the archive is here already.
        local: a complete local archive, which is kept.
        keep: whether to keep a downloaded archive.
        present: bytes already downloaded.
        free: bytes free at the folder's location.
    """

    archive: Archive
    folder: Path
    url: str
    local: Path | None
    keep: bool
    present: int
    free: int

    @property
    def part(self) -> Path:
        """Path of the download until it is verified, or if it is going to be removed."""
        return self.folder / f"{self.archive.file}.part"

    @property
    def target(self) -> Path:
        """Folder for the content."""
        return self.folder / self.archive.folder

    @property
    def needed(self) -> int:
        """Bytes that must be free: archive and content coexist until all is unpacked."""
        to_download = 0 if self.local else max(0, self.archive.size - self.present)
        return to_download + self.archive.to_unpack

    @property
    def fits(self) -> bool:
        """True if there is enough space."""
        return self.needed <= self.free

    def describe(self) -> str:
        """Describe the planned steps for the user."""
        archive = self.archive
        lines = [f"{archive.name}: {archive.title} ({archive.licence})"]
        if self.local:
            lines.append(f"  archive    {self.local}, already here; it stays")
        else:
            here = f", of which {size_text(self.present)} are here already" if self.present else ""
            stays = "it stays" if self.keep else "removed after unpacking"
            lines.append(f"  download   {size_text(archive.size)}{here}; {stays}")
            lines.append(f"             from {self.url}")
        of = f", of {', '.join(archive.only)}; about, by the numbers of structures" if archive.only else ""
        lines.append(f"  unpacked   {size_text(archive.to_unpack)} in {self.target}{of}")
        lines.append(f"  disk       {size_text(self.needed)} needed, {size_text(self.free)} free")
        return "\n".join(lines)


def make_plan(
    archive: Archive, folder: Path, url: str | None = None, local: Path | None = None, keep: bool = False
) -> Plan:
    """Plan the steps; nothing is written or opened.

    Raises:
        InputError: the folder is a file, the given archive is invalid, or the address is not http or https.
    """
    if url is not None and local is not None:
        raise InputError("give --url or --archive, not both")
    check_url(url or archive.url)
    if local is not None:
        ordinary_file(local)
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        raise InputError(f"{existing}: is a file; give a folder")
    complete = folder / archive.file
    if local is None and complete.is_file():
        local = complete
    part = folder / f"{archive.file}.part"
    present = part.stat().st_size if part.is_file() else 0
    return Plan(archive, folder, url or archive.url, local, keep, present, shutil.disk_usage(existing).free)


def present_splits(plan: Plan) -> Splits | None:
    """Return the splits if the data set is present and complete.

    Raises:
        InputError: it is present and not complete.
    """
    if not plan.target.exists():
        return None
    splits = find_splits(plan.target)
    missing = missing_splits(splits, plan.archive.wanted)
    if missing:
        raise InputError(
            f"{plan.target}: is there, but has no data for {', '.join(missing)}; remove or rename it, or give "
            "another folder"
        )
    return splits


def obtain(plan: Plan, say: Callable[[str], None], sleep: Callable[[float], None] = time.sleep) -> Splits:
    """Download, check and unpack; ``say`` takes lines for the user.

    After an interruption, a repeated call continues a download at its last byte, an unpacking from its beginning.

    Raises:
        InputError: not enough space, a wrong checksum, an archive that is refused, a server that has no such file.
        OSError: the network or the disk failed.
    """
    archive = plan.archive
    if not plan.fits:
        raise InputError(
            f"{plan.folder}: {size_text(plan.needed)} are needed, but only {size_text(plan.free)} are free; make "
            "room or give a folder on another disk by --to"
        )
    with alone(plan.folder, "another molflt fetch is at work there; wait for it"):
        # Another fetch may have finished since the plan was made.
        if (there := present_splits(plan)) is not None:
            return there
        file = plan.local or plan.part
        # A download completed before an interruption needs no network any more.
        checksum = _checksum(file) if plan.local or plan.present >= archive.smallest else ""
        if plan.local is None and checksum != archive.md5:
            download(archive, plan.url, file, sleep)
            say(f"downloaded {size_text(file.stat().st_size)}")
            checksum = _checksum(file)
        if checksum != archive.md5:
            raise _damaged(plan, file, checksum)
        say("checksum is right")
        unpack(archive, file, plan.target)
        say(f"unpacked in {plan.target}")
        if plan.local is None and plan.keep:
            os.replace(plan.part, plan.folder / archive.file)
        elif plan.local is None:
            plan.part.unlink()
    splits = present_splits(plan)
    assert splits is not None
    return splits


def _checksum(file: Path) -> str:
    with open(file, "rb") as handle, ByteMeter("checking", file.stat().st_size) as meter:
        digest = hashlib.file_digest(MeteredFile(handle, meter), lambda: hashlib.md5(usedforsecurity=False))
    return digest.hexdigest()


def _damaged(plan: Plan, file: Path, checksum: str) -> InputError:
    wrong = f"MD5 checksum {checksum}, expected {plan.archive.md5}"
    if plan.local:
        return InputError(
            f"{file}: damaged, incomplete or another file ({wrong}). If its download was broken off, move it to "
            f"{plan.part} and run the command without --archive to resume"
        )
    # It is unknown which bytes are wrong, so there is nothing to continue from.
    file.unlink()
    return InputError(
        f"{plan.url}: what came is damaged or another file ({wrong}); it was removed. Run the command again, and "
        "if the same happens, give a mirror by --url"
    )


def unpack(archive: Archive, file: Path, target: Path) -> None:
    """Unpack regular files and folders of a ``.tar.gz`` or ``.tar`` file into a new folder.

    The folder appears complete or not at all. Owners, permissions and times are ignored. An interrupted unpacking
    starts again; its remains are removed.

    Raises:
        InputError: the file is damaged, or a member is refused: an absolute path, one that leads outside, a link, a
            device, a duplicate or invalid name, too many members or too many bytes.
    """
    temporary = target.with_name(f".{target.name}.unpacking")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        with naming(target), open(file, "rb") as handle, ByteMeter("unpacking", file.stat().st_size) as meter:
            metered = MeteredFile(handle, meter)
            stream = metered if archive.file.endswith(".tar") else gzip.GzipFile(fileobj=metered)
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                tar.extractall(temporary, filter=_Filter(archive, file))  # noqa: S202
            # gzip's checksum of the content is at the very end, after the end of the tar.
            while stream.read(1 << 20):
                pass
        content = list(temporary.iterdir())
        if not content:
            raise InputError(f"{file}: the archive is empty")
        os.sync()
        # Usually everything lies in one folder, which then is the desired one.
        single = len(content) == 1 and content[0].is_dir()
        os.replace(content[0] if single else temporary, target)
    except InputError:
        raise
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"{file}: refused, something in it lies below a file ({error.filename})") from error
    except tarfile.FilterError as error:
        raise InputError(f"{file}: refused, {error}") from error
    # ValueError, OverflowError: invalid numbers in headers; RecursionError: chains of extended headers.
    except (
        tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, OverflowError, RecursionError
    ) as error:  # fmt: skip
        raise InputError(f"{file}: the archive is damaged ({error}); fetch it again") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class _Filter:
    """tarfile's data filter, which keeps members inside the folder, with limits of an archive."""

    def __init__(self, archive: Archive, file: Path) -> None:
        self._archive, self._file = archive, file
        self._n_members = self._n_bytes = 0

    def __call__(self, member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
        archive, name = self._archive, PurePosixPath(member.name)
        self._n_members += 1
        self._n_bytes += max(0, member.size)
        if self._n_members > archive.max_members:
            raise self._refused(f"it holds more than {archive.max_members} files")
        if self._n_bytes > archive.most_unpacked:
            raise self._refused(f"it unpacks to more than {size_text(archive.most_unpacked)}")
        if not (member.isreg() or member.isdir()):
            raise self._refused(f"{member.name!r} is neither a file nor a folder (a link or a device)")
        # A backslash or a colon is a separator on other systems.
        if name.is_absolute() or ".." in name.parts or set("\\:") & set(member.name):
            raise self._refused(f"the path {member.name[:200]!r} leads outside the folder")
        # The limit of most file systems: 255 bytes a name.
        too_long = len(name.parts) > 32 or any(len(os.fsencode(part)) > 255 for part in name.parts)
        if too_long or printable(member.name) != member.name:
            raise self._refused(
                f"{member.name[:200]!r} is not a valid file name: it is too long or has control characters"
            )
        there = Path(folder, name)
        if there.is_file() or (member.isreg() and there.exists()):
            raise self._refused(f"{member.name!r} comes twice or has no name")
        if not archive.wants(member.name):
            return None
        return tarfile.data_filter(member, folder).replace(mode=None, mtime=None, deep=False)  # type: ignore[arg-type]

    def _refused(self, reason: str) -> InputError:
        return InputError(f"{self._file}: refused, {reason}")

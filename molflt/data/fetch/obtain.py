"""A data set in one step: plan, download, check, unpack."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from molflt.data.fetch.catalogue import Archive, Splits, find_splits, missing_splits
from molflt.data.fetch.download import check_url, download
from molflt.data.fetch.unpack import unpack
from molflt.data.progress import ByteMeter, MeteredFile, size_text
from molflt.errors import InputError, ordinary_file
from molflt.files import alone


@dataclass(frozen=True)
class Plan:
    """What there is to do, and the space that it takes.

    Args:
        url: where it comes from, unless it is here already.
        local: a complete archive that is here already and stays.
        keep: whether a downloaded archive stays.
        present: bytes of the download that are here already.
        free: bytes free where the folder is or will be.
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
        """The download while it is not verified, or is going to be removed."""
        return self.folder / f"{self.archive.file}.part"

    @property
    def target(self) -> Path:
        """Where the content goes."""
        return self.folder / self.archive.folder

    @property
    def to_download(self) -> int:
        """Bytes, about."""
        return 0 if self.local else max(0, self.archive.size - self.present)

    @property
    def needed(self) -> int:
        """Bytes that must be free: archive and content lie side by side until all is unpacked."""
        return self.to_download + self.archive.to_unpack

    @property
    def fits(self) -> bool:
        """Whether there is room."""
        return self.needed <= self.free

    def describe(self) -> str:
        """What is going to happen, for the user to read first."""
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
    """Find out what there is to do; nothing is written or opened.

    Raises:
        InputError: the folder is a file, the archive given is none, or the address is not http or https.
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
    """The splits, if the data set is there and complete.

    Raises:
        InputError: it is there and not complete.
    """
    if not plan.target.exists():
        return None
    splits = find_splits(plan.target)
    missing = missing_splits(splits, plan.archive.wanted)
    if missing:
        raise InputError(
            f"{plan.target}: exists, but has no data for {', '.join(missing)}; remove or rename it, or give "
            "another folder"
        )
    return splits


def obtain(plan: Plan, say: Callable[[str], None], sleep: Callable[[float], None] = time.sleep) -> Splits:
    """Download, check and unpack; ``say`` takes lines for the user.

    Whatever interrupts it, repeating it goes on: a download from its last byte, an unpacking from its beginning.

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
        # Another fetch may have come to its end since the plan was made.
        if (there := present_splits(plan)) is not None:
            return there
        file = plan.local or plan.part
        # A download that came to its end before an interruption needs no network any more.
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
    splits = find_splits(plan.target)
    missing = missing_splits(splits, archive.wanted)
    if missing:
        raise InputError(f"{plan.target}: the archive held no data for {', '.join(missing)}")
    return splits


def _checksum(file: Path) -> str:
    with open(file, "rb") as handle, ByteMeter("checking", file.stat().st_size) as meter:
        digest = hashlib.file_digest(MeteredFile(handle, meter), lambda: hashlib.md5(usedforsecurity=False))
    return digest.hexdigest()


def _damaged(plan: Plan, file: Path, checksum: str) -> InputError:
    wrong = f"MD5 checksum {checksum}, expected {plan.archive.md5}"
    if plan.local is None:
        # Which of its bytes are wrong cannot be known, so none is worth going on from.
        file.unlink()
        return InputError(
            f"{plan.url}: what came is damaged or another file ({wrong}); it was removed. Run the command again, and "
            "if the same happens, give a mirror by --url"
        )
    return InputError(
        f"{file}: damaged, incomplete or another file ({wrong}). If its download was broken off, move it to "
        f"{plan.part} and run the command without --archive: it goes on from there"
    )

"""A large file over an unreliable connection."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import OpenerDirector, Request

from molflt import __version__
from molflt.data.fetch.catalogue import Archive, size_text
from molflt.data.fetch.meter import ByteMeter
from molflt.data.fetch.transport import check_url, make_opener
from molflt.errors import InputError, naming
from molflt.files import atomic_file

_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before each new try; one more failure in a row ends the download."""
_TIMEOUT = 60.0
"""Seconds without a byte before a connection counts as broken."""
_BLOCK = 1 << 20
_OTHER_WAYS = "give a mirror by --url, or an archive that you have by --archive"


class _BrokenOffError(Exception):
    """Worth another try."""


@dataclass
class _Source:
    """What the file was when its first bytes came, so that the rest can be asked of the same file."""

    url: str
    etag: str | None = None
    modified: str | None = None
    total: int | None = None


def download(archive: Archive, url: str, part: Path, sleep: Callable[[float], None]) -> None:
    """Bring ``part`` to its full length, going on from what it holds.

    What the file was is noted beside it (``PART.json``). Nothing is verified here but lengths.

    Args:
        archive: sizes to expect.
        url: where to get it from.
        part: the file to make or to go on with.
        sleep: waits between tries.

    Raises:
        InputError: the address is wrong or leads to something else.
        OSError: the connection failed again and again; ``part`` stays.
    """
    check_url(url)
    opener = make_opener()
    failures, longest = 0, _length(part)
    with ByteMeter("downloading", archive.size) as meter:
        while True:
            try:
                _transfer(opener, archive, url, part, meter)
                return
            except _BrokenOffError as error:
                reached = _length(part)
                # Only what was never reached before is progress: a server that starts over each time makes none.
                if reached > longest:
                    failures, longest = 0, reached
                if failures == len(_PAUSES):
                    raise OSError(
                        f"{error}; gave up after {failures + 1} tries without progress. {size_text(reached)} are in "
                        f"{part}: run the same command again to go on, or {_OTHER_WAYS}"
                    ) from error
                pause = _PAUSES[failures]
                failures += 1
                meter.note(f"{error}; trying again in {pause:.0f} s")
                sleep(pause)


def discard(part: Path) -> None:
    """Remove a partial download and what is noted about it."""
    part.unlink(missing_ok=True)
    _note(part).unlink(missing_ok=True)


def _transfer(opener: OpenerDirector, archive: Archive, url: str, part: Path, meter: ByteMeter) -> None:
    """One connection."""
    offset, source = _length(part), _load(part, url)
    if offset and source.total is not None and offset >= source.total:
        if offset == source.total:
            return
        _start_over(part, f"{part} is longer than the file at {url}")
    try:
        response = opener.open(_request(url, offset, source), timeout=_TIMEOUT)
    except HTTPError as error:
        with error:
            if error.code == 416 and offset:
                _, total = _content_range(error.headers.get("Content-Range"))
                if total == offset and not _differs(source, error.headers):
                    return
                _start_over(part, f"{url}: the server has nothing after byte {offset}")
            raise _refusal(url, error) from error
    except URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise OSError(f"{url}: the server's certificate cannot be verified ({error.reason})") from error
        raise _BrokenOffError(f"{url}: {error.reason}") from error
    except (HTTPException, OSError) as error:
        raise _BrokenOffError(f"{url}: {error or type(error).__name__}") from error
    with response:
        offset, total = _position(response, offset, source, url, part, meter)
        _check_length(archive, url, total)
        if offset == 0:
            part.write_bytes(b"")
            source = _Source(_address(url), response.headers["ETag"], response.headers["Last-Modified"])
        source.total = total
        _save(part, source)
        length = _copy(response, archive, url, part, offset, total, meter)
    if total is None:
        source.total = length
        _save(part, source)


def _position(
    response: Any, offset: int, source: _Source, url: str, part: Path, meter: ByteMeter
) -> tuple[int, int | None]:
    """Where the body begins in the file, and the length of the whole file if the server says it."""
    headers = response.headers
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        raise InputError(f"{url}: the server changes the encoding of the file; {_OTHER_WAYS}")
    if headers.get_content_type() == "text/html":
        # what a network that wants a log-in answers, whatever is asked
        raise InputError(f"{url}: the server answers with a web page instead of the file; {_OTHER_WAYS}")
    if response.status == 206:
        start, total = _content_range(headers.get("Content-Range"))
        if start != offset:
            _start_over(part, f"{url}: the server sent other bytes than those asked for")
        if _differs(source, headers) or (source.total and total and source.total != total):
            _start_over(part, f"{url}: the file there has changed")
        return offset, total or source.total
    if response.status != 200:
        raise _BrokenOffError(f"{url}: the server answered {response.status} {response.reason}")
    if offset:
        meter.note(f"{url}: the server sends the file from its beginning; starting over")
    length = headers.get("Content-Length", "")
    return 0, int(length) if length.isascii() and length.isdigit() else None


def _copy(
    response: Any, archive: Archive, url: str, part: Path, offset: int, total: int | None, meter: ByteMeter
) -> int:
    """Append the body to the file up to ``total``, else up to the largest size that can be right."""
    length, most = offset, archive.largest + 1 if total is None else total
    with open(part, "r+b") as handle:
        handle.seek(offset)
        while length < most:
            try:
                # read1 hands over what has arrived, so that nothing received is lost when the connection breaks off
                block = response.read1(min(_BLOCK, most - length))
            except (HTTPException, OSError) as error:
                raise _BrokenOffError(f"{url}: broke off after {size_text(length)} ({error})") from error
            if not block:
                break
            with naming(part):
                handle.write(block)
            length += len(block)
            meter.reach(length, total)
    if total is None and length > archive.largest:
        discard(part)
        raise InputError(f"{url}: sends more than {size_text(archive.largest)}, so it is not {archive.file}")
    if length < (archive.smallest if total is None else total):
        raise _BrokenOffError(f"{url}: broke off after {size_text(length)}")
    return length


def _request(url: str, offset: int, source: _Source) -> Request:
    headers = {"User-Agent": f"molflt/{__version__}", "Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
        # A weak ETag may not stand here (RFC 9110, 13.1.5); it is compared with that of the answer.
        if source.etag and not source.etag.startswith("W/"):
            headers["If-Range"] = source.etag
        elif source.modified and not source.etag:
            headers["If-Range"] = source.modified
    return Request(url, headers=headers)  # noqa: S310 (the scheme was checked, and the opener knows no other)


def _refusal(url: str, error: HTTPError) -> Exception:
    answer = f"{url}: the server answered {error.code} {error.reason}"
    if error.code >= 500 or error.code in (408, 425, 429):
        return _BrokenOffError(answer)
    if 300 <= error.code < 400:
        reason = " ".join(str(error.reason).split())
        return InputError(f"{url}: too many redirects, or one that is not to be followed ({reason})")
    return InputError(f"{answer}; {_OTHER_WAYS}")


def _check_length(archive: Archive, url: str, total: int | None) -> None:
    if total is not None and not archive.smallest <= total <= archive.largest:
        raise InputError(
            f"{url}: is {size_text(total)} long by what the server says, but {archive.file} has about "
            f"{size_text(archive.size)}; {_OTHER_WAYS}"
        )


def _start_over(part: Path, reason: str) -> None:
    discard(part)
    raise _BrokenOffError(f"{reason}; starting over")


def _content_range(value: str | None) -> tuple[int | None, int | None]:
    """First byte and length of the whole file, of ``bytes 5-9/10``, ``bytes 5-9/*`` or ``bytes */10``."""
    match = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(?:(\d+)|\*)", (value or "").strip())
    first, total = match.groups() if match else (None, None)
    return (int(first) if first else None), (int(total) if total else None)


def _differs(source: _Source, headers: Any) -> bool:
    etag = headers.get("ETag")
    return bool(source.etag and etag and etag != source.etag)


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _note(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _address(url: str) -> str:
    """Without the query, which may hold a key."""
    return url.partition("?")[0]


def _load(part: Path, url: str) -> _Source:
    """What is noted; nothing when it was another server, whose ETags are its own, or when it cannot be read."""
    try:
        source = _Source(**json.loads(_note(part).read_text()))
    except (OSError, ValueError, TypeError):
        return _Source(_address(url))
    if source.url != _address(url):
        return _Source(_address(url))
    return source


def _save(part: Path, source: _Source) -> None:
    with atomic_file(_note(part)) as temporary:
        temporary.write_text(json.dumps(asdict(source)))

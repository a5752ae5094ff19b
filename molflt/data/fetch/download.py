"""A large file over an unreliable connection: it goes on from what is there, however often it breaks off.

Which bytes are right is not told here but by the checksum of the whole, so all that matters of an answer is where in
the file its bytes belong.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
from requests.exceptions import RequestException, TooManyRedirects

from molflt import __version__
from molflt.data.fetch.catalogue import Archive
from molflt.data.progress import ByteMeter, size_text
from molflt.errors import InputError, naming

_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before each new try; one more failure in a row ends the download."""
_TIMEOUT = 60.0
"""Seconds without a byte before a connection counts as broken."""
_BLOCK = 1 << 16
"""Bytes; of a block that is not whole when the connection breaks off, nothing is kept."""
_OTHER_WAYS = "give a mirror by --url, or an archive that you have by --archive"


class _BrokenOffError(Exception):
    """Worth another try."""


def make_session() -> requests.Session:
    """A session that follows a few redirects, to http and https only, and never from https to http."""
    session = requests.Session()
    session.max_redirects = 5
    session.headers.update({"User-Agent": f"molflt/{__version__}", "Accept-Encoding": "identity"})
    session.hooks["response"].append(refuse_redirect)
    return session


def refuse_redirect(response: requests.Response, **_: Any) -> None:
    """Refuse an answer that leads to an address that is not to be followed.

    Raises:
        InputError: another scheme than http and https, or http after https.
    """
    if not response.is_redirect:
        return
    target = urljoin(response.url, response.headers["Location"])
    check_url(target, f"{response.url}: the server redirects to {target}, which")
    if urlsplit(response.url).scheme == "https" and urlsplit(target).scheme != "https":
        raise InputError(f"{response.url}: the server redirects to {target}, which is not encrypted")


def check_url(url: str, subject: str | None = None) -> None:
    """Refuse an address that is not plain http or https.

    Raises:
        InputError: another scheme, or no host.
    """
    try:
        parts = urlsplit(url)
        plain = url.isascii() and url.isprintable() and " " not in url and "@" not in parts.netloc
        good = plain and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise InputError(f"{subject or url + ':'} is not an http or https address")


def download(archive: Archive, url: str, part: Path, sleep: Callable[[float], None]) -> None:
    """Bring ``part`` to its full length, going on from what it holds. Nothing is verified here but lengths.

    Raises:
        InputError: the address is wrong or leads to something else.
        OSError: the connection failed again and again; ``part`` stays.
    """
    check_url(url)
    failures, longest = 0, _length(part)
    with ByteMeter("downloading", archive.size) as meter, make_session() as session:
        while True:
            try:
                _transfer(session, archive, url, part, meter)
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


def _transfer(session: requests.Session, archive: Archive, url: str, part: Path, meter: ByteMeter) -> None:
    """One connection."""
    offset = _length(part)
    try:
        response = session.get(
            url, headers={"Range": f"bytes={offset}-"} if offset else {}, stream=True, timeout=_TIMEOUT
        )
    except TooManyRedirects as error:
        raise InputError(f"{url}: too many redirects") from error
    except RequestException as error:
        reason = _root(error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise OSError(f"{url}: the server's certificate cannot be verified ({reason})") from error
        raise _BrokenOffError(f"{url}: {reason or type(reason).__name__}") from error
    with response:
        start, total = _position(response, offset, url, part)
        if start == total:
            return
        if total is not None and not archive.smallest <= total <= archive.largest:
            raise InputError(
                f"{url}: is {size_text(total)} long by what the server says, but {archive.file} has about "
                f"{size_text(archive.size)}; {_OTHER_WAYS}"
            )
        if start < offset:
            meter.note(f"{url}: the server sends the file from its beginning; starting over")
        _copy(response, archive, url, part, start, total, meter)


def _position(response: requests.Response, offset: int, url: str, part: Path) -> tuple[int, int | None]:
    """Where the body begins in the file, and the length of the whole file if the server says it."""
    code, headers = response.status_code, response.headers
    first, total = _content_range(headers.get("Content-Range", ""))
    if code == 416 and offset:
        if total != offset:
            _start_over(part, f"{url}: the server has nothing after byte {offset}")
        return offset, offset
    if code >= 500 or code in (408, 425, 429):
        raise _BrokenOffError(f"{url}: the server answered {code} {response.reason}")
    if code >= 300:
        raise InputError(f"{url}: the server answered {code} {response.reason}; {_OTHER_WAYS}")
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        raise InputError(f"{url}: the server changes the encoding of the file; {_OTHER_WAYS}")
    if headers.get("Content-Type", "").lower().startswith("text/html"):
        # what a network that wants a log-in answers, whatever is asked
        raise InputError(f"{url}: the server answers with a web page instead of the file; {_OTHER_WAYS}")
    if code == 206:
        if first != offset:
            _start_over(part, f"{url}: the server sent other bytes than those asked for")
        return offset, total
    if code != 200:
        raise _BrokenOffError(f"{url}: the server answered {code} {response.reason}")
    length = headers.get("Content-Length", "")
    return 0, int(length) if length.isascii() and length.isdigit() else None


def _copy(
    response: requests.Response,
    archive: Archive,
    url: str,
    part: Path,
    start: int,
    total: int | None,
    meter: ByteMeter,
) -> None:
    """Append the body to the file up to ``total``, else up to the largest size that can be right."""
    length, most = start, archive.largest + 1 if total is None else total
    blocks = response.iter_content(_BLOCK)
    with open(part, "ab") as handle:
        handle.truncate(start)
        while length < most:
            try:
                block = next(blocks, b"")[: most - length]
            except RequestException as error:
                raise _BrokenOffError(f"{url}: broke off after {size_text(length)} ({_root(error)})") from error
            if not block:
                break
            with naming(part):
                handle.write(block)
            length += len(block)
            meter.reach(length, total)
    if total is None and length > archive.largest:
        part.unlink()
        raise InputError(f"{url}: sends more than {size_text(archive.largest)}, so it is not {archive.file}")
    if length < (archive.smallest if total is None else total):
        raise _BrokenOffError(f"{url}: broke off after {size_text(length)}")


def _start_over(part: Path, reason: str) -> None:
    part.unlink()
    raise _BrokenOffError(f"{reason}; starting over")


def _content_range(value: str) -> tuple[int | None, int | None]:
    """First byte and length of the whole file, of ``bytes 5-9/10``, ``bytes 5-9/*`` or ``bytes */10``."""
    match = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(?:(\d+)|\*)", value.strip())
    first, total = match.groups() if match else (None, None)
    return (int(first) if first else None), (int(total) if total else None)


def _root(error: BaseException) -> BaseException:
    """What lies at the bottom of an error of requests: a refused connection, an unknown host, a bad certificate."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return error


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0

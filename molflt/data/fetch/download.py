"""Download of a large file over an unreliable connection, continued after every failure.

The checksum of the whole file tells whether its bytes are right, so all that matters of an answer is where in the
file its bytes belong.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
from requests.exceptions import InvalidSchema, RequestException, SSLError, TooManyRedirects

from molflt import __version__
from molflt.data.fetch.catalogue import Archive
from molflt.data.progress import ByteMeter, size_text
from molflt.errors import InputError, naming

_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before each new try; one more failure in a row ends the download."""
_TIMEOUT = 60.0
"""Seconds without a byte before a connection counts as broken."""
_BLOCK = 1 << 16
"""Bytes of a block; a block left incomplete by a broken connection is discarded."""
_OTHER_WAYS = "give a mirror by --url, or an archive that you have by --archive"


class _BrokenOffError(Exception):
    """Failure that is worth another try."""


def check_url(url: str) -> None:
    """Refuse an address that is not plain http or https.

    Raises:
        InputError: another scheme, no host, or a password.
    """
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        good = False
    if not good:
        raise InputError(f"{url}: is not an http or https address")


def stay_encrypted(response: requests.Response, **_: Any) -> None:
    """Refuse a redirect from https to anything else.

    Raises:
        InputError: the answer is such a redirect.
    """
    target = urljoin(response.url, response.headers.get("Location", ""))
    if response.is_redirect and response.url.startswith("https:") and not target.startswith("https:"):
        raise InputError(f"{response.url}: the server redirects to {target}, which is not encrypted")


def download(archive: Archive, url: str, part: Path, sleep: Callable[[float], None]) -> None:
    """Complete the file ``part``, continuing from its present length; only lengths are checked.

    Raises:
        InputError: the address is wrong or leads to another kind of file.
        OSError: the connection failed again and again; ``part`` stays.
    """
    check_url(url)
    failures, longest = 0, _length(part)
    with ByteMeter("downloading", archive.size) as meter, requests.Session() as session:
        session.max_redirects = 5
        session.headers.update({"User-Agent": f"molflt/{__version__}", "Accept-Encoding": "identity"})
        session.hooks["response"].append(stay_encrypted)
        while True:
            try:
                return _transfer(session, archive, url, part, meter)
            except (_BrokenOffError, RequestException) as error:
                reached = _length(part)
                # Progress means a new longest length: a server that starts over each time makes none.
                if reached > longest:
                    failures, longest = 0, reached
                reason = error if isinstance(error, _BrokenOffError) else f"{url}: {_root(error)}"
                if failures == len(_PAUSES):
                    raise OSError(
                        f"{reason}; gave up after {failures + 1} tries without progress. {size_text(reached)} are in "
                        f"{part}: run the same command again to resume, or {_OTHER_WAYS}"
                    ) from error
                meter.note(f"{reason}; trying again in {_PAUSES[failures]:.0f} s")
                sleep(_PAUSES[failures])
                failures += 1


def _transfer(session: requests.Session, archive: Archive, url: str, part: Path, meter: ByteMeter) -> None:
    """Transfer over one connection."""
    offset = _length(part)
    try:
        asked = {"Range": f"bytes={offset}-"} if offset else {}
        response = session.get(url, headers=asked, stream=True, timeout=_TIMEOUT)
    except (TooManyRedirects, InvalidSchema, UnicodeDecodeError) as error:  # a target that is not UTF-8
        raise InputError(f"{url}: the server redirects too often, or elsewhere than to http and https") from error
    except SSLError as error:
        if not isinstance(_root(error), ssl.SSLCertVerificationError):
            raise
        raise OSError(f"{url}: the server's certificate cannot be verified ({_root(error)})") from error
    with response:
        _check_answer(response, url)
        place = response.headers.get("Content-Range", "")
        if response.status_code == 416 and place == f"bytes */{offset}":
            return
        if response.status_code == 416 or (response.status_code == 206 and not place.startswith(f"bytes {offset}-")):
            part.unlink()
            raise _BrokenOffError(f"{url}: the server has other bytes than those asked for; starting over")
        start = offset if response.status_code == 206 else 0
        size = response.headers.get("Content-Length", "")
        total = start + int(size) if size.isdecimal() else None
        if total is not None and not archive.smallest <= total <= archive.largest:
            raise InputError(
                f"{url}: is {size_text(total)} long according to the server, but {archive.file} has about "
                f"{size_text(archive.size)}; {_OTHER_WAYS}"
            )
        if start < offset:
            meter.note(f"{url}: the server sends the file from its beginning; starting over")
        with open(part, "ab") as handle:
            handle.truncate(start)
            length = start
            for block in response.iter_content(_BLOCK):
                with naming(part):
                    handle.write(block)
                length += len(block)
                if length > archive.largest:
                    part.unlink()
                    raise InputError(
                        f"{url}: sends more than {size_text(archive.largest)}, so it is not {archive.file}"
                    )
                meter.reach(length, total)
    if length < (archive.smallest if total is None else total):
        raise _BrokenOffError(f"{url}: broke off after {size_text(length)}")


def _check_answer(response: requests.Response, url: str) -> None:
    """Raise an error unless the body is the file, or a part of it."""
    code, headers = response.status_code, response.headers
    if code >= 500 or code in (408, 425, 429) or code in range(201, 206):
        raise _BrokenOffError(f"{url}: the server answered {code} {response.reason}")
    if code not in (200, 206, 416):
        raise InputError(f"{url}: the server answered {code} {response.reason}; {_OTHER_WAYS}")
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        raise InputError(f"{url}: the server changes the encoding of the file; {_OTHER_WAYS}")
    if code == 200 and headers.get("Content-Type", "").lower().startswith("text/html"):
        # A network that requires a log-in answers so to any request.
        raise InputError(f"{url}: the server answers with a web page instead of the file; {_OTHER_WAYS}")


def _root(error: BaseException) -> BaseException:
    """Find the root of an error of requests: a refused connection, a bad certificate."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return error


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0

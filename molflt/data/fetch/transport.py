"""HTTP without surprises: no other scheme, no way back from https to http, few redirects."""

from __future__ import annotations

from http.client import HTTPMessage
from typing import IO
from urllib.parse import urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from molflt.errors import InputError


class CarefulRedirects(HTTPRedirectHandler):
    """Follows a few redirects, to http and https only, and never from https to http."""

    max_redirections = 5
    max_repeats = 2

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        """The request that follows a redirect.

        Raises:
            InputError: the new address is not one to follow.
        """
        check_url(newurl, f"{req.full_url}: the server redirects to {newurl}, which")
        if urlsplit(req.full_url).scheme == "https" and urlsplit(newurl).scheme != "https":
            raise InputError(f"{req.full_url}: the server redirects to {newurl}, which is not encrypted")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def make_opener() -> OpenerDirector:
    """What opens requests. It has no handler for files, FTP or data URLs at all."""
    opener = OpenerDirector()
    for handler in (
        ProxyHandler,
        HTTPHandler,
        HTTPSHandler,
        CarefulRedirects,
        HTTPErrorProcessor,
        HTTPDefaultErrorHandler,
        UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


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

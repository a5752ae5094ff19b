"""A local HTTP server that serves one file well or badly, and archives to serve."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from molflt.data.fetch.catalogue import Archive

Reply = Callable[["Handler"], None]
SPLITS = ("10k/train", "all/train", "all/val_id", "all/val_ood_ads", "all/test_id")


def tar_of(*members: tuple[tarfile.TarInfo | str, bytes], compress: bool = True) -> bytes:
    """A ``.tar.gz`` of these members, in this order, whatever their names and kinds."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for member, content in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            if info.isreg():
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return gzip.compress(buffer.getvalue(), mtime=0) if compress else buffer.getvalue()


def good_tar(splits: Sequence[str] = SPLITS) -> bytes:
    """An archive laid out as OC20's; the content does not compress to nothing."""
    files = [(f"is2res/data/is2re/{split}/data.lmdb", _noise(split)) for split in splits]
    return tar_of(("is2res/README.txt", b"read me"), *files)


def _noise(name: str) -> bytes:
    """Ten kilobytes."""
    return b"".join(hashlib.sha256(f"{name}{k}".encode()).digest() for k in range(320))


def archive_of(content: bytes, url: str, **changes: Any) -> Archive:
    """A catalogue entry for this content."""
    values: dict[str, Any] = {
        "name": "oc20-is2re", "title": "a small one", "url": url,
        "md5": hashlib.md5(content, usedforsecurity=False).hexdigest(), "size": len(content), "unpacked": 60_000,
        "folder": "is2res", "splits": dict.fromkeys(SPLITS, 10), "licence": "CC-BY-4.0",
        "page": "https://example.org", **changes,
    }  # fmt: skip
    return Archive(**values)


@dataclass
class Server:
    """State of the server; ``replies`` are used up one by one, then it is honest."""

    content: bytes
    address: str = ""
    ranges: bool = True
    replies: list[Reply] = field(default_factory=list)
    requests: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Of the file."""
        return f"{self.address}/pub/data.tar.gz"

    @property
    def asked(self) -> list[str | None]:
        """The Range of every request so far."""
        return [request.get("range") for request in self.requests]


class Handler(BaseHTTPRequestHandler):
    """One request."""

    owner: Server

    def do_GET(self) -> None:
        owner = self.owner
        owner.requests.append({key.lower(): value for key, value in self.headers.items()})
        owner.paths.append(self.path)
        if owner.replies:
            owner.replies.pop(0)(self)
        else:
            self.honest()

    def honest(self, sent: int | None = None) -> None:
        """The file or the rest of it; only the first ``sent`` bytes of the body when that is given."""
        owner, start = self.owner, 0
        asked = self.headers.get("Range")
        if owner.ranges and asked:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(owner.content):
                self.answer(416, {"Content-Range": f"bytes */{len(owner.content)}"})
                return
        body = owner.content[start:]
        headers = {"Content-Length": str(len(body))}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(owner.content) - 1}/{len(owner.content)}"
        self.answer(206 if start else 200, headers, body[:sent])

    def answer(self, code: int, headers: dict[str, str], body: bytes = b"") -> None:
        """Exactly this answer, true or not; the connection ends after it."""
        self.send_response(code)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Silence."""


@contextmanager
def serving(content: bytes) -> Iterator[Server]:
    """A server on a free port of this machine."""
    owner = Server(content)
    handler = type("BoundHandler", (Handler,), {"owner": owner})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    http.daemon_threads = True
    owner.address = f"http://127.0.0.1:{http.server_address[1]}"
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("no_proxy", "127.0.0.1")
        yield owner
    http.shutdown()
    http.server_close()

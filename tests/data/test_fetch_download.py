"""Downloads from a server that breaks off, redirects and lies."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from molflt.data.fetch import download as module
from molflt.data.fetch.catalogue import ARCHIVES, Archive, find_archive
from molflt.data.fetch.download import check_url, download, stay_encrypted
from molflt.data.progress import ByteMeter
from molflt.errors import InputError
from tests.data.fetch_server import Handler, Reply, Server, archive_of, good_tar, serving

CONTENT = good_tar()
N = len(CONTENT)
N_TRIES = 7


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(module, "_TIMEOUT", 5.0)
    monkeypatch.setattr(module, "_BLOCK", 100)
    with serving(CONTENT) as owner:
        yield owner


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "data.tar.gz.part"


class Sleeps(list[float]):
    def __call__(self, seconds: float) -> None:
        # a guard that fails must not hang the tests
        assert len(self) < 100
        self.append(seconds)


def fetch(server: Server, part: Path, archive: Archive | None = None) -> Sleeps:
    sleeps = Sleeps()
    download(archive or archive_of(CONTENT, server.url), server.url, part, sleeps)
    return sleeps


def cut(n_bytes: int) -> Reply:
    return lambda handler: handler.honest(n_bytes)


def fixed(code: int, headers: dict[str, str] | None = None, body: bytes = b"") -> Reply:
    return lambda handler: handler.answer(code, headers or {}, body)


def test_broken_off_several_times(server: Server, part: Path) -> None:
    # more often than is tolerated without progress
    server.replies = [cut(1000)] * (2 * N_TRIES)
    assert fetch(server, part) == [1.0] * (2 * N_TRIES)
    assert part.read_bytes() == CONTENT
    assert server.asked == [None, *(f"bytes={1000 * k}-" for k in range(1, 2 * N_TRIES + 1))]
    # the server has nothing after the last byte: complete
    assert fetch(server, part) == []
    assert server.asked[-1] == f"bytes={N}-"
    assert part.read_bytes() == CONTENT


def test_no_progress_gives_up_and_keeps_what_there_is(server: Server, part: Path) -> None:
    server.replies = [cut(3000), *[cut(0)] * 50]
    with pytest.raises(OSError, match=r"after 7 tries without progress.*run the same command again") as caught:
        fetch(server, part)
    assert not isinstance(caught.value, InputError)
    assert part.read_bytes() == CONTENT[:3000]
    assert len(server.requests) == 1 + N_TRIES - 1
    server.replies = []
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.asked[-1] == "bytes=3000-"


def test_pauses_grow_and_shrink_again(server: Server, part: Path) -> None:
    server.replies = [fixed(503), fixed(503), fixed(503), cut(100), fixed(503)]
    assert fetch(server, part) == [1.0, 2.0, 4.0, 1.0, 2.0]
    assert part.read_bytes() == CONTENT


def test_a_server_without_ranges_starts_over(server: Server, part: Path) -> None:
    server.ranges = False
    server.replies = [cut(5000)]
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=5000-"]
    # one that always breaks off makes no progress, although bytes come
    part.unlink()
    server.requests.clear()
    server.replies = [cut(5000)] * 60
    with pytest.raises(OSError, match="without progress"):
        fetch(server, part)
    assert len(server.requests) == N_TRIES


@pytest.mark.parametrize("content_range", [f"bytes 4000-{N - 1}/{N}", None])
def test_other_bytes_than_those_asked_for(server: Server, part: Path, content_range: str | None) -> None:
    headers = {"Content-Range": content_range} if content_range else {}
    server.replies = [cut(5000), fixed(206, headers, b"x" * (N - 5000))]
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=5000-", None]


@pytest.mark.parametrize("headers", [{"Content-Range": "bytes */500"}, {}])
def test_more_here_than_the_server_has(server: Server, part: Path, headers: dict[str, str]) -> None:
    part.write_bytes(CONTENT[:900])
    server.replies = [fixed(416, headers)]
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.asked == ["bytes=900-", None]


def test_redirects(server: Server, part: Path) -> None:
    here, absolute = "/elsewhere/data.tar.gz", f"{server.address}/elsewhere/data.tar.gz"
    # the rest is asked for through the redirect as well
    server.replies = [fixed(302, {"Location": here}), cut(100), fixed(307, {"Location": absolute})]
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.paths[1] == server.paths[3] == here
    assert server.asked == [None, None, "bytes=100-", "bytes=100-"]


def test_redirects_without_end(server: Server, part: Path) -> None:
    server.replies = [fixed(302, {"Location": f"/{k}"}) for k in range(99)]
    with pytest.raises(InputError, match="redirects too often"):
        fetch(server, part)
    assert len(server.requests) < 40


@pytest.mark.parametrize("scheme", ["file://", "ftp://127.0.0.1"])
def test_redirects_to_other_schemes(server: Server, part: Path, scheme: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENT)
    server.replies = [fixed(302, {"Location": f"{scheme}{secret}"})]
    with pytest.raises(InputError, match="redirects too often, or elsewhere than to http and https"):
        fetch(server, part)
    assert not part.exists()


def test_no_redirect_from_https_to_http() -> None:
    def check(source: str, target: str) -> None:
        response = requests.Response()
        response.url, response.status_code, response.headers["Location"] = source, 302, target
        stay_encrypted(response)

    with pytest.raises(InputError, match="not encrypted"):
        check("https://example.org/a", "http://example.org/a")
    check("https://example.org/a", "//example.org/b")
    check("http://a.org/", "https://a.org/")


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://a.org/b",
        "a.org/b",
        "http://",
        "http://a:b/",
        "http://me@a.org/b",
    ],
)
def test_addresses_that_are_refused(url: str, part: Path) -> None:
    with pytest.raises(InputError, match="not an http or https address"):
        check_url(url)
    with pytest.raises(InputError, match="not an http or https address"):
        download(archive_of(CONTENT, "http://a.org/data.tar.gz"), url, part, Sleeps())


@pytest.mark.parametrize("length", [N // 2, 2 * N])
def test_a_length_that_cannot_be_right_is_refused_at_once(server: Server, part: Path, length: int) -> None:
    part.write_bytes(CONTENT[:500])
    server.ranges = False
    server.replies = [fixed(200, {"Content-Length": str(length)}, bytes(length))]
    with pytest.raises(InputError, match="by what the server says"):
        fetch(server, part)
    # what was there before is not lost to an answer that is wrong
    assert part.read_bytes() == CONTENT[:500]


def test_no_length(server: Server, part: Path) -> None:
    server.replies = [fixed(200, {}, CONTENT)]
    assert fetch(server, part) == []
    assert part.read_bytes() == CONTENT
    part.unlink()
    server.replies = [fixed(200, {}, CONTENT[: N // 2])]
    assert fetch(server, part) == [1.0]
    assert part.read_bytes() == CONTENT
    assert server.asked == [None, None, f"bytes={N // 2}-"]


def test_a_body_without_end_does_not_fill_the_disk(server: Server, part: Path) -> None:
    sent = 0

    def endless(handler: Handler) -> None:
        nonlocal sent
        handler.answer(200, {})
        try:
            # not truly without end, so that the test ends when the guard is gone
            while sent < 64 << 20:
                sent += handler.wfile.write(bytes(1 << 16))
        except OSError:
            pass

    server.replies = [endless]
    with pytest.raises(InputError, match="sends more than"):
        fetch(server, part)
    assert not part.exists()
    # the rest was in flight
    assert sent < 32 << 20


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (fixed(404), "the server answered 404 .*--url.*--archive"),
        (fixed(200, {"Content-Type": "Text/HTML; charset=utf-8"}, b"Log in" * 4000), "web page"),
        (fixed(200, {"Content-Encoding": "gzip", "Content-Length": str(N)}, CONTENT), "encoding"),
    ],
)
def test_refusals_are_final(reply: Reply, message: str, server: Server, part: Path) -> None:
    server.replies = [cut(2000), *[reply] * 20]
    with pytest.raises(InputError, match=message):
        fetch(server, part)
    assert len(server.requests) == 2
    assert part.read_bytes() == CONTENT[:2000]
    assert server.requests[0]["accept-encoding"] == "identity"


def test_nobody_answers(server: Server, part: Path) -> None:
    sleeps = Sleeps()
    url = "http://127.0.0.1:9/data.tar.gz"
    with pytest.raises(OSError, match=r"Connection refused; gave up after 7 tries"):
        download(archive_of(CONTENT, url), url, part, sleeps)
    assert sleeps == list(module._PAUSES)


def test_an_answer_without_the_file_is_tried_again(server: Server, part: Path) -> None:
    server.replies = [cut(2000), fixed(202), fixed(204)]
    assert len(fetch(server, part)) == 3
    # what was there is not fetched again
    assert server.requests[-1]["range"] == "bytes=2000-"
    assert part.read_bytes() == CONTENT


def test_a_certificate_that_nobody_vouches_for_is_final(
    server: Server, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def distrust(*_: object, **__: object) -> None:
        raise requests.exceptions.SSLError from ssl.SSLCertVerificationError("self-signed certificate")

    monkeypatch.setattr(requests.Session, "send", distrust)
    sleeps = Sleeps()
    with pytest.raises(OSError, match=r"certificate cannot be verified .*self-signed"):
        download(archive_of(CONTENT, server.url), server.url, part, sleeps)
    assert sleeps == []


def test_a_full_disk_is_not_taken_for_a_broken_connection(
    server: Server, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: ByteMeter, *arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ByteMeter, "reach", full)
    with pytest.raises(OSError, match="No space left"):
        fetch(server, part)
    assert len(server.requests) == 1


def test_catalogue() -> None:
    assert find_archive("oc20-is2re").file == "is2res_train_val_test_lmdbs.tar.gz"
    with pytest.raises(InputError, match=r"no data set 'oc22'.*oc20-is2re"):
        find_archive("oc22")
    assert all(name == entry.name for name, entry in ARCHIVES.items())

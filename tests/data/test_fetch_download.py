"""Downloads from a server that breaks off, redirects and lies."""

import ssl

import pytest
import requests

from molflt.data.fetch import download as module
from molflt.data.fetch.catalogue import find_archive
from molflt.data.fetch.download import download, stay_encrypted
from molflt.data.progress import ByteMeter
from molflt.errors import InputError
from tests.data.fetch_server import archive_of, good_tar, serving

CONTENT = good_tar()
N = len(CONTENT)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(module, "_TIMEOUT", 5.0)
    monkeypatch.setattr(module, "_BLOCK", 100)
    with serving(CONTENT) as owner:
        yield owner


@pytest.fixture
def part(tmp_path):
    return tmp_path / "data.tar.gz.part"


class Sleeps(list[float]):
    def __call__(self, seconds):
        # a guard that fails must not hang the tests
        assert len(self) < 100
        self.append(seconds)


def fetch(server, part, archive=None):
    sleeps = Sleeps()
    download(archive or archive_of(CONTENT, server.url), server.url, part, sleeps)
    return sleeps


def cut(n_bytes):
    return lambda handler: handler.honest(n_bytes)


def fixed(code, headers=None, body=b""):
    return lambda handler: handler.answer(code, headers or {}, body)


def after(*sizes):
    """Ranges that are asked for when so many bytes are there; of none, no range."""
    return [f"bytes={size}-" if size else None for size in sizes]


OTHER_BYTES = {"Content-Range": f"bytes 4000-{N - 1}/{N}"}
GOOD = {
    # More often than is tolerated without progress.
    "broken off": (0, [cut(1000)] * 14, after(*range(0, 15_000, 1000)), [1.0] * 14),
    "complete": (N, [], after(N), []),
    "pauses": (0, [fixed(503)] * 3 + [cut(100), fixed(503)], after(0, 0, 0, 0, 100, 100), [1.0, 2.0, 4.0, 1.0, 2.0]),
    "other bytes": (0, [cut(5000), fixed(206, OTHER_BYTES, b"x" * (N - 5000))], after(0, 5000, 0), [1.0, 2.0]),
    "bytes of nowhere": (0, [cut(5000), fixed(206, {}, b"x" * (N - 5000))], after(0, 5000, 0), [1.0, 2.0]),
    "more here than there": (900, [fixed(416, {"Content-Range": "bytes */500"})], after(900, 0), [1.0]),
    "more here, it seems": (900, [fixed(416)], after(900, 0), [1.0]),
    "no length": (0, [fixed(200, {}, CONTENT)], after(0), []),
    "no length, half": (0, [fixed(200, {}, CONTENT[: N // 2])], after(0, N // 2), [1.0]),
    "from the start again": (0, [cut(5000), fixed(200, {"Content-Length": str(N)}, CONTENT)], after(0, 5000), [1.0]),
    "not yet": (0, [cut(2000), fixed(202), fixed(204)], after(0, 2000, 2000, 2000), [1.0, 2.0, 4.0]),
}
"""Bytes that are here, what the server replies before it is honest, ranges that are asked for, pauses."""


@pytest.mark.parametrize(("here", "replies", "asked", "pauses"), GOOD.values(), ids=GOOD)
def test_it_is_fetched_in_the_end(here, replies, asked, pauses, server, part):
    part.write_bytes(CONTENT[:here])
    server.replies = list(replies)
    assert fetch(server, part) == pauses
    assert part.read_bytes() == CONTENT
    assert server.asked == asked


def wrong_length(length):
    """A file of another length in whole, from its beginning."""
    return fixed(200, {"Content-Length": str(length)}, bytes(length))


START = fixed(200, {"Content-Length": str(N)}, CONTENT[:5000])
WEB_PAGE = fixed(200, {"Content-Type": "Text/HTML; charset=utf-8"}, b"Log in" * 4000)
ENCODED = fixed(200, {"Content-Encoding": "gzip", "Content-Length": str(N)}, CONTENT)
ELSEWHERE = "redirects too often, or elsewhere than to http and https"
BAD = {
    "no progress": (0, [cut(3000), *[cut(0)] * 50], OSError, "after 7 tries without progress.*same command", 7, 3000),
    "always from the start": (0, [START] * 60, OSError, "without progress", 7, 5000),
    "redirects": (0, [fixed(302, {"Location": f"/{k}"}) for k in range(30)], InputError, "redirects too often", 6, 0),
    "redirect to a file": (0, [fixed(302, {"Location": "file:///etc/hostname"})], InputError, ELSEWHERE, 1, 0),
    "redirect to ftp": (0, [fixed(302, {"Location": "ftp://127.0.0.1/etc/hostname"})], InputError, ELSEWHERE, 1, 0),
    "redirect in latin-1": (0, [fixed(302, {"Location": "/m\xf6l"})], InputError, ELSEWHERE, 1, 0),
    "too short": (500, [wrong_length(N // 2)], InputError, "according to the server", 1, 500),
    "too long": (500, [wrong_length(2 * N)], InputError, "according to the server", 1, 500),
    "not found": (0, [cut(2000), *[fixed(404)] * 20], InputError, "answered 404 .*--url.*--archive", 2, 2000),
    "a web page": (0, [cut(2000), *[WEB_PAGE] * 20], InputError, "web page", 2, 2000),
    "encoded": (0, [cut(2000), *[ENCODED] * 20], InputError, "encoding", 2, 2000),
}
"""Bytes that are here, replies, the error, how often the server is asked, and bytes that are kept."""


@pytest.mark.parametrize(("here", "replies", "kind", "message", "times", "kept"), BAD.values(), ids=BAD)
def test_it_is_given_up_and_the_part_stays(here, replies, kind, message, times, kept, server, part):
    if here:
        part.write_bytes(CONTENT[:here])
    server.replies = list(replies)
    with pytest.raises(kind, match=message) as caught:
        fetch(server, part)
    assert isinstance(caught.value, InputError) == (kind is InputError)
    assert len(server.requests) == times
    assert server.requests[0]["accept-encoding"] == "identity"
    assert (part.read_bytes() if part.exists() else b"") == CONTENT[:kept]
    # The same command once more goes on.
    server.replies = []
    fetch(server, part)
    assert part.read_bytes() == CONTENT


def test_redirects(server, part):
    here, absolute = "/elsewhere/data.tar.gz", f"{server.address}/elsewhere/data.tar.gz"
    # the rest is asked for through the redirect as well
    server.replies = [fixed(302, {"Location": here}), cut(100), fixed(307, {"Location": absolute})]
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.paths[1] == server.paths[3] == here
    assert server.asked == [None, None, "bytes=100-", "bytes=100-"]


def test_no_redirect_from_https_to_http():
    def check(source, target):
        response = requests.Response()
        response.url, response.status_code, response.headers["Location"] = source, 302, target
        stay_encrypted(response)

    with pytest.raises(InputError, match="not encrypted"):
        check("https://example.org/a", "http://example.org/a")
    check("https://example.org/a", "//example.org/b")
    check("http://a.org/", "https://a.org/")


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://a.org/b", "a.org/b", "http://", "http://a:b/", "http://me@a.org/b"]
)
def test_addresses_that_are_refused(url, part):
    with pytest.raises(InputError, match="not an http or https address"):
        download(archive_of(CONTENT, "http://a.org/data.tar.gz"), url, part, Sleeps())


def test_a_body_without_end_does_not_fill_the_disk(server, part):
    sent = 0

    def endless(handler):
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


def test_nobody_answers(part):
    sleeps, url = Sleeps(), "http://127.0.0.1:9/data.tar.gz"
    with pytest.raises(OSError, match=r"Connection refused; gave up after 7 tries"):
        download(archive_of(CONTENT, url), url, part, sleeps)
    assert sleeps == list(module._PAUSES)


def test_a_certificate_that_nobody_vouches_for_is_final(server, part, monkeypatch):
    def distrust(*_, **__):
        raise requests.exceptions.SSLError from ssl.SSLCertVerificationError("self-signed certificate")

    monkeypatch.setattr(requests.Session, "send", distrust)
    sleeps = Sleeps()
    with pytest.raises(OSError, match=r"certificate cannot be verified .*self-signed"):
        download(archive_of(CONTENT, server.url), server.url, part, sleeps)
    assert sleeps == []


def test_a_full_disk_is_not_taken_for_a_broken_connection(server, part, monkeypatch):
    def full(self, *arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ByteMeter, "reach", full)
    with pytest.raises(OSError, match="No space left"):
        fetch(server, part)
    assert len(server.requests) == 1


def test_catalogue():
    assert find_archive("oc20-is2re").file == "is2res_train_val_test_lmdbs.tar.gz"
    with pytest.raises(InputError, match=r"no data set 'oc22'.*oc20-is2re"):
        find_archive("oc22")

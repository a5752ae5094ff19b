"""Downloads from a server that breaks off, redirects and lies."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import OpenerDirector, Request

import pytest

from molflt.data.fetch import download as module
from molflt.data.fetch.catalogue import ARCHIVES, Archive, find_archive, size_text
from molflt.data.fetch.download import download
from molflt.data.fetch.meter import ByteMeter
from molflt.data.fetch.transport import CarefulRedirects, check_url, make_opener
from molflt.errors import InputError
from tests.data.fetch_server import Handler, Reply, Server, archive_of, good_tar, start

CONTENT = good_tar()
N = len(CONTENT)
N_TRIES = 7


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(module, "_TIMEOUT", 5.0)
    owner, http = start(CONTENT)
    yield owner
    http.shutdown()
    http.server_close()


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


def test_in_one_go(server: Server, part: Path) -> None:
    assert fetch(server, part) == []
    assert part.read_bytes() == CONTENT
    assert server.asked == [None]
    # what is complete is not asked for again
    assert fetch(server, part) == []
    assert len(server.requests) == 1


def test_broken_off_several_times(server: Server, part: Path) -> None:
    # more often than is tolerated without progress
    server.replies = [cut(1000)] * (2 * N_TRIES)
    sleeps = fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.asked == [None, *(f"bytes={1000 * k}-" for k in range(1, 2 * N_TRIES + 1))]
    assert all(request.get("if-range") == '"one"' for request in server.requests[1:])
    assert sleeps == [1.0] * (2 * N_TRIES)


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
    server.replies = [fixed(503), fixed(503), fixed(503), cut(10), fixed(503)]
    assert fetch(server, part) == [1.0, 2.0, 4.0, 1.0, 2.0]
    assert part.read_bytes() == CONTENT


def test_a_server_without_ranges_starts_over(server: Server, part: Path) -> None:
    server.ranges = False
    server.replies = [cut(5000)]
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=5000-"]


def test_a_server_without_ranges_that_always_breaks_off_ends(server: Server, part: Path) -> None:
    server.ranges = False
    server.replies = [cut(5000)] * 60
    with pytest.raises(OSError, match="without progress"):
        fetch(server, part)
    assert len(server.requests) == N_TRIES


def test_a_file_that_changed_meanwhile(server: Server, part: Path) -> None:
    server.replies = [cut(5000)]
    server.content = bytes(reversed(CONTENT))

    def change(handler: Handler) -> None:
        server.content, server.etag = CONTENT, '"two"'
        handler.honest()

    server.replies.append(change)
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert len(server.requests) == 2


@pytest.mark.parametrize("etag", ['"two"', 'W/"two"'])
def test_a_changed_file_from_a_server_that_ignores_the_condition(server: Server, part: Path, etag: str) -> None:
    """If-Range may be ignored, and a weak ETag may not be sent in it: the answer's ETag tells."""
    server.etag = etag.replace("two", "one")
    server.replies = [cut(5000)]

    def careless(handler: Handler) -> None:
        server.etag = etag
        headers = {"ETag": etag, "Content-Range": f"bytes 5000-{N - 1}/{N}", "Content-Length": str(N - 5000)}
        handler.answer(206, headers, b"x" * (N - 5000))

    server.replies.append(careless)
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert ("if-range" in server.requests[1]) == (not etag.startswith("W/"))
    assert server.asked == [None, "bytes=5000-", None]


@pytest.mark.parametrize("content_range", [f"bytes 4000-{N - 1}/{N}", f"bytes 5000-{N - 1}/{N + 1}", "rubbish", None])
def test_other_bytes_than_those_asked_for(server: Server, part: Path, content_range: str | None) -> None:
    headers = {"Content-Range": content_range} if content_range else {}
    server.replies = [cut(5000), fixed(206, headers, b"x" * (N - 5000))]
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=5000-", None]


def test_nothing_left_to_send_means_complete(server: Server, part: Path) -> None:
    part.write_bytes(CONTENT)
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.asked == [f"bytes={N}-"]


@pytest.mark.parametrize("headers", [{"Content-Range": "bytes */500"}, {}])
def test_416_for_another_length_starts_over(server: Server, part: Path, headers: dict[str, str]) -> None:
    part.write_bytes(CONTENT[:900])
    server.replies = [fixed(416, headers)]
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.asked == ["bytes=900-", None]


def test_more_here_than_the_file_has(server: Server, part: Path) -> None:
    server.replies = [cut(5000)]
    server.etag = None
    with pytest.raises(AssertionError):
        download(archive_of(CONTENT, server.url), server.url, part, _refuse_to_sleep)
    part.write_bytes(CONTENT + b"more")
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.asked == [None, None]


def _refuse_to_sleep(seconds: float) -> None:
    raise AssertionError


@pytest.mark.parametrize("target", ["/elsewhere/data.tar.gz", "{address}/elsewhere/data.tar.gz"])
def test_redirects(server: Server, part: Path, target: str) -> None:
    target = target.format(address=server.address)
    # the rest is asked for through the redirect as well
    server.replies = [fixed(302, {"Location": target}), cut(100), fixed(307, {"Location": target})]
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.paths[1] == server.paths[3] == "/elsewhere/data.tar.gz"
    assert server.asked == [None, None, "bytes=100-", "bytes=100-"]


def test_redirects_in_a_circle(server: Server, part: Path) -> None:
    server.replies = [fixed(302, {"Location": "/pub/data.tar.gz"})] * 60
    with pytest.raises(InputError, match="too many redirects") as caught:
        fetch(server, part)
    assert "\n" not in str(caught.value)
    assert len(server.requests) <= 5
    server.replies = [fixed(302, {"Location": f"/{k}"}) for k in range(30)]
    server.requests.clear()
    with pytest.raises(InputError, match="too many redirects"):
        fetch(server, part)
    assert len(server.requests) == 6


@pytest.mark.parametrize("scheme", ["file://", "ftp://127.0.0.1"])
def test_redirects_to_other_schemes(server: Server, part: Path, scheme: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENT)
    server.replies = [fixed(302, {"Location": f"{scheme}{secret}"})]
    with pytest.raises(InputError, match=r"not to be followed|not an http or https address"):
        fetch(server, part)
    assert not part.exists()
    kinds = {type(handler).__name__ for handler in make_opener().handlers}
    assert not kinds & {"FileHandler", "FTPHandler", "DataHandler"}


def test_no_redirect_from_https_to_http() -> None:
    handler, request = CarefulRedirects(), Request("https://example.org/a")
    arguments: tuple[Any, ...] = (None, 302, "Found", {})
    with pytest.raises(InputError, match="not encrypted"):
        handler.redirect_request(request, *arguments, "http://example.org/a")
    assert handler.redirect_request(request, *arguments, "https://example.org/b") is not None
    assert handler.redirect_request(Request("http://a.org/"), *arguments, "https://a.org/") is not None


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://a.org/b",
        "a.org/b",
        "http://",
        "http://a:b/",
        "http://me@a.org/b",
        "http://a.org/ b",
    ],
)
def test_addresses_that_are_refused(url: str, part: Path) -> None:
    with pytest.raises(InputError, match="not an http or https address"):
        check_url(url)
    with pytest.raises(InputError, match="not an http or https address"):
        download(archive_of(CONTENT, "http://a.org/data.tar.gz"), url, part, Sleeps())


def test_a_length_that_is_too_large(server: Server, part: Path) -> None:
    """The announced bytes never come: that is a connection that breaks off."""
    server.ranges = False
    server.replies = [fixed(200, {"Content-Length": str(N + 100)}, CONTENT)] * N_TRIES
    with pytest.raises(OSError, match="broke off"):
        fetch(server, part)


def test_a_length_that_is_too_small_is_the_end(server: Server, part: Path) -> None:
    """What comes is cut at the announced length; the checksum tells, see test_fetch_obtain."""
    server.replies = [fixed(200, {"Content-Length": str(N - 100)}, CONTENT)]
    fetch(server, part)
    assert part.read_bytes() == CONTENT[: N - 100]


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
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert json.loads(part.with_name(part.name + ".json").read_text())["total"] == N


def test_no_length_and_broken_off(server: Server, part: Path) -> None:
    server.replies = [fixed(200, {"ETag": '"one"'}, CONTENT[: N // 2])]
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={N // 2}-"]


def test_chunks_that_end_early(server: Server, part: Path) -> None:
    head = f"{N:x}\r\n".encode() + CONTENT[:2000]
    server.replies = [fixed(200, {"Transfer-Encoding": "chunked", "ETag": '"one"'}, head)]
    handler_protocol = Handler.protocol_version
    Handler.protocol_version = "HTTP/1.1"
    try:
        fetch(server, part)
    finally:
        Handler.protocol_version = handler_protocol
    assert part.read_bytes() == CONTENT


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


@pytest.mark.parametrize("code", [401, 403, 404, 410])
def test_refusals_are_final(server: Server, part: Path, code: int) -> None:
    server.replies = [cut(2000), *[fixed(code)] * 20]
    with pytest.raises(InputError, match=rf"the server answered {code} .*--url.*--archive"):
        fetch(server, part)
    assert len(server.requests) == 2
    assert part.read_bytes() == CONTENT[:2000]


def test_a_web_page_is_no_archive(server: Server, part: Path) -> None:
    part.write_bytes(CONTENT[:500])
    server.replies = [fixed(200, {"Content-Type": "text/html; charset=utf-8"}, b"Log in" * 4000)]
    with pytest.raises(InputError, match="web page"):
        fetch(server, part)
    assert part.read_bytes() == CONTENT[:500]


def test_another_encoding_is_refused(server: Server, part: Path) -> None:
    server.replies = [fixed(200, {"Content-Encoding": "gzip", "Content-Length": str(N)}, CONTENT)]
    with pytest.raises(InputError, match="encoding"):
        fetch(server, part)
    assert server.requests[0]["accept-encoding"] == "identity"


def test_nobody_answers(server: Server, part: Path) -> None:
    sleeps = Sleeps()
    url = "http://127.0.0.1:9/data.tar.gz"
    with pytest.raises(OSError, match="after 7 tries"):
        download(archive_of(CONTENT, url), url, part, sleeps)
    assert sleeps == list(module._PAUSES)


@pytest.mark.parametrize("code", [202, 204])
def test_an_answer_without_the_file_is_tried_again(server: Server, part: Path, code: int) -> None:
    server.replies = [cut(2000), fixed(code), fixed(code)]
    assert len(fetch(server, part)) == 3
    # what was there is not fetched again
    assert server.requests[-1]["range"] == "bytes=2000-"
    assert part.read_bytes() == CONTENT


def test_a_certificate_that_nobody_vouches_for_is_final(
    server: Server, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def distrust(*_: object, **__: object) -> None:
        raise URLError(ssl.SSLCertVerificationError("self-signed certificate"))

    monkeypatch.setattr(OpenerDirector, "open", distrust)
    sleeps = Sleeps()
    with pytest.raises(OSError, match=r"certificate cannot be verified .*self-signed"):
        download(archive_of(CONTENT, server.url), server.url, part, sleeps)
    assert sleeps == []


def test_another_server_goes_on_without_the_first_ones_etag(server: Server, part: Path) -> None:
    part.write_bytes(CONTENT[:700])
    note = {"url": "http://other.org/data.tar.gz", "etag": '"other"', "modified": None, "total": 3}
    part.with_name(part.name + ".json").write_text(json.dumps(note))
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.asked == ["bytes=700-"]
    assert "if-range" not in server.requests[0]


@pytest.mark.parametrize("note", ["", "[]", "{", '{"etag": 3, "more": 4}', "\0"])
def test_a_damaged_note_is_no_obstacle(server: Server, part: Path, note: str) -> None:
    part.write_bytes(CONTENT[:700])
    part.with_name(part.name + ".json").write_text(note)
    fetch(server, part)
    assert part.read_bytes() == CONTENT


def test_keys_in_the_address_are_not_written_down(server: Server, part: Path) -> None:
    url = f"{server.url}?key=secret"
    download(archive_of(CONTENT, server.url), url, part, Sleeps())
    assert "secret" not in part.with_name(part.name + ".json").read_text()


def test_a_full_disk_is_not_taken_for_a_broken_connection(
    server: Server, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: ByteMeter, *arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ByteMeter, "reach", full)
    with pytest.raises(OSError, match="No space left"):
        fetch(server, part)
    assert len(server.requests) == 1


def test_meter_prints_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    ticks: Callable[[], float] = iter([0.0, 10.0, 31.0, 32.0, 62.0, 99.0]).__next__
    with ByteMeter("downloading", None, terminal=False, clock=ticks) as meter:
        for n_bytes in (1, 2 << 20, 3 << 20, 5 << 20):
            meter.reach(n_bytes, 10 << 20 if n_bytes > 3 << 20 else None)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["downloading: 2.0 MiB", "downloading: 5.0 MiB of 10.0 MiB (50 %)"]


@pytest.mark.parametrize("now", [1.0, 3.0])
def test_meter_draws_a_bar_on_a_terminal(now: float, capsys: pytest.CaptureFixture[str]) -> None:
    ticks: Callable[[], float] = iter([0.0, now, now]).__next__
    with ByteMeter("downloading", 100, terminal=True, clock=ticks) as meter:
        meter.reach(50)
        meter.note("a note with :smile: [red]")
    error = capsys.readouterr().err
    assert "a note with :smile: [red]" in error
    assert ("downloading" in error) == (now > 2)


def test_catalogue() -> None:
    archive = find_archive("oc20-is2re")
    assert archive.file == "is2res_train_val_test_lmdbs.tar.gz"
    assert len(archive.splits) == 11
    assert archive.smallest < archive.size < archive.largest
    with pytest.raises(InputError, match=r"no data set 'oc22'.*oc20-is2re"):
        find_archive("oc22")
    assert all(name == entry.name for name, entry in ARCHIVES.items())


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (97 << 30, "97.0 GiB"), (105 << 30, "105 GiB")],
)
def test_sizes(n_bytes: int, text: str) -> None:
    assert size_text(n_bytes) == text

"""Archives that would write elsewhere, or too much, or are damaged."""

import gzip
import os
import stat
import tarfile
import tempfile
from pathlib import Path

import pytest

from molflt.data.fetch import obtain as module
from molflt.data.fetch.obtain import unpack
from molflt.errors import InputError
from tests.data.fetch_server import archive_of, good_tar, tar_of

URL = "http://example.org/data.tar.gz"


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.devmajor, info.devminor = kind, target, 1, 3
    return info, b""


def run(content, tmp_path):
    """Unpack into a folder two levels down, so that escapes land where they can be seen."""
    folder = tmp_path / "outer" / "inner"
    folder.mkdir(parents=True)
    file = tmp_path / "data.tar.gz"
    file.write_bytes(content)
    unpack(archive_of(content, URL, max_members=20), file, folder / "is2res")
    return folder


def huge():
    """A member that announces a terabyte, though the archive is small."""
    info = tarfile.TarInfo("is2res/huge")
    info.size = 1 << 40
    return gzip.compress(info.tobuf() + bytes(2048))


def sparse():
    """One piece of 512 bytes at the start, and a real size of four gigabytes."""
    info = tarfile.TarInfo("is2res/sparse")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 512
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[386:410] = b"%011o\0%011o\0" % (0, 512)
    block[483:495] = b"%011o\0" % (1 << 32)
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    return gzip.compress(bytes(block) + bytes(2048))


def pax(path):
    """A header of its own smuggles in the path."""
    info = tarfile.TarInfo("is2res/a")
    info.pax_headers = {"path": path}
    return gzip.compress(info.tobuf(tarfile.PAX_FORMAT) + bytes(1024))


def test_a_good_archive(tmp_path):
    folder = run(good_tar(), tmp_path)
    assert [path.name for path in folder.iterdir()] == ["is2res"]
    assert (folder / "is2res" / "README.txt").read_bytes() == b"read me"
    assert (folder / "is2res" / "data" / "is2re" / "all" / "val_id" / "data.lmdb").stat().st_size == 10240
    # Content that is not in one folder is put into one.
    folder = run(tar_of(("./a.txt", b"a"), ("./b/c.txt", b"c")), tmp_path / "other")
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*.txt")) == [
        "is2res/a.txt",
        "is2res/b/c.txt",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tar_of(("../../escaped", b"x")), "leads outside"),
        (tar_of((f"{tempfile.gettempdir()}/escaped", b"x")), "leads outside"),
        (tar_of((f"/{tempfile.gettempdir()}/escaped", b"x")), "leads outside"),
        (tar_of(("is2res/../../../escaped", b"x")), "leads outside"),
        (tar_of(("is2res/..", b"x")), "leads outside"),
        (tar_of(("..\\escaped", b"x")), "leads outside"),
        (tar_of(("C:escaped", b"x")), "leads outside"),
        (tar_of(special("is2res", tarfile.SYMTYPE, ".."), ("is2res/escaped", b"x")), "neither a file nor a folder"),
        (tar_of(("b", b"x"), special("is2res/a", tarfile.LNKTYPE, "b")), "neither a file nor a folder"),
        (tar_of(special("is2res/null", tarfile.CHRTYPE)), "neither a file nor a folder"),
        (tar_of(special("is2res/pipe", tarfile.FIFOTYPE)), "neither a file nor a folder"),
        (tar_of(("is2res/a", b"x"), ("is2res/a", b"y")), "comes twice"),
        (tar_of(("is2res/a", b"x"), ("is2res/./a", b"y")), "comes twice"),
        (tar_of(("is2res/a", b"x"), ("is2res/a/b", b"y")), "below a file"),
        (tar_of(("is2res/a", b"x"), special("is2res/a", tarfile.DIRTYPE)), "comes twice"),
        (tar_of((".", b"x")), "no name"),
        (tar_of(*((f"is2res/{k}", bytes(7000)) for k in range(10))), "unpacks to more than"),
        (tar_of(*((f"is2res/{k}", b"") for k in range(21))), "more than 20 files"),
        (tar_of(("is2res/" + "a/" * (1 << 20), b"x")), "is not a valid file name"),
        (tar_of(("is2res/" + "a" * 300, b"x")), "is not a valid file name"),
        (tar_of(("is2res/" + "a/" * 40, b"x")), "is not a valid file name"),
        (tar_of(("is2res/\x1b[31m\n", b"x")), "is not a valid file name"),
        (tar_of(("is2res/\udcff", b"x")), "is not a valid file name"),
        (tar_of(), "is empty"),
        (huge(), "unpacks to more than"),
        (sparse(), "unpacks to more than"),
        (pax("../../escaped"), "leads outside"),
    ],
    ids=range(27),
)
def test_hostile_archives_write_nothing(content, message, tmp_path):
    with pytest.raises(InputError, match=message) as caught:
        run(content, tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'data.tar.gz'}: ")
    assert not list((tmp_path / "outer" / "inner").iterdir())
    assert not [path for path in tmp_path.rglob("*") if "escaped" in path.name]
    assert not Path(tempfile.gettempdir(), "escaped").exists()


GOOD = good_tar()


@pytest.mark.parametrize(
    "content",
    [
        *(GOOD[: int(share * len(GOOD))] for share in (0.0, 0.01, 0.3, 0.9, 0.999)),
        GOOD[: len(GOOD) // 2] + bytes([GOOD[len(GOOD) // 2] ^ 255]) + GOOD[len(GOOD) // 2 + 1 :],
        gzip.compress(tar_of(("is2res/a", bytes(5000)), compress=False)[:2000]),
        b"<html>",
        b"\x1f\x8b rubbish",
        gzip.compress(b"rubbish" * 200, mtime=0),
    ],
    ids=range(10),
)
def test_damaged_archives_write_nothing(content, tmp_path):
    with pytest.raises(InputError, match=r"damaged|is empty"):
        run(content, tmp_path)
    assert not list((tmp_path / "outer" / "inner").iterdir())


def test_owners_and_permissions_are_not_taken_over(tmp_path):
    info = tarfile.TarInfo("is2res/program")
    info.mode, info.uid, info.gid, info.mtime = 0o6777, 12345, 12345, 0
    folder = run(tar_of((info, b"x")), tmp_path)
    status = (folder / "is2res" / "program").stat()
    assert not status.st_mode & (stat.S_ISUID | stat.S_ISGID | 0o111)
    assert status.st_uid == os.getuid()
    assert status.st_mtime > 0


def test_an_interruption_leaves_nothing_and_is_done_again(tmp_path, monkeypatch):
    content = good_tar()
    file = tmp_path / "data.tar.gz"
    file.write_bytes(content)
    left = tmp_path / ".is2res.unpacking"
    left.mkdir()
    (left / "half").write_bytes(b"x")

    def stop():
        assert not (left / "half").exists()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "sync", stop)
        with pytest.raises(KeyboardInterrupt):
            unpack(archive_of(content, URL), file, tmp_path / "is2res")
    assert list(tmp_path.iterdir()) == [file]
    unpack(archive_of(content, URL), file, tmp_path / "is2res")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.tar.gz", "is2res"]

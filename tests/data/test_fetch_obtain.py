"""From nothing to splits, whatever happens in between."""

import os
import shlex
import shutil

import pytest

from molflt.data.fetch import obtain as module
from molflt.data.fetch.catalogue import OC20_IS2RE, Splits, commands, find_splits, missing_splits
from molflt.data.fetch.obtain import make_plan, obtain, present_splits
from molflt.errors import InputError
from molflt.training.yaml import load_config
from tests.data.fetch_server import SPLITS, Handler, archive_of, good_tar, serving

CONTENT = good_tar()


@pytest.fixture
def server():
    with serving(CONTENT) as owner:
        yield owner


@pytest.fixture
def archive(server):
    return archive_of(CONTENT, server.url)


def run(plan):
    said = []
    return obtain(plan, said.append, sleep=lambda seconds: None), said


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_all_of_it(archive, server, tmp_path):
    folder = tmp_path / "new" / "oc20"
    server.replies = [lambda handler: handler.honest(3000)]
    plan, later = (make_plan(archive, folder) for _ in range(2))
    splits, said = run(plan)
    assert names(folder) == ["is2res"]
    assert said[0].startswith("downloaded ")
    assert said[1:] == ["checksum is right", f"unpacked in {folder / 'is2res'}"]
    assert (list(splits.train), list(splits.val), list(splits.test)) == (["10k", "all"], ["id", "ood_ads"], ["id"])
    assert splits.val["id"] == folder / "is2res" / "data" / "is2re" / "all" / "val_id" / "data.lmdb"
    # A second time, nothing is asked of the server, also by a fetch that made its plan while the first was at work.
    asked = len(server.requests)
    assert present_splits(make_plan(archive, folder)) == splits
    assert run(later) == (splits, [])
    assert len(server.requests) == asked


def test_the_archive_is_kept_when_asked_for(archive, server, tmp_path):
    run(make_plan(archive, tmp_path, keep=True))
    assert names(tmp_path) == ["data.tar.gz", "is2res"]
    shutil.rmtree(tmp_path / "is2res")
    # it is used again, and stays although nobody says so this time: it is no download of this run
    run(make_plan(archive, tmp_path))
    assert names(tmp_path) == ["data.tar.gz", "is2res"]
    assert len(server.requests) == 1


WRONG = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])


def wrong_in_full(handler):
    handler.answer(200, {"Content-Length": str(len(WRONG))}, WRONG)


def too_short(handler):
    handler.answer(200, {"Content-Length": str(len(CONTENT) - 10)}, CONTENT)


@pytest.mark.parametrize(
    ("here", "reply"),
    [(b"", wrong_in_full), (b"", too_short), (b"rubbish", Handler.honest), (WRONG, Handler.honest)],
    ids=["wrong", "too short", "resumed from a wrong beginning", "wrong and complete"],
)
def test_wrong_content_is_removed_and_fetched_anew(here, reply, archive, server, tmp_path):
    server.replies = [reply]
    if here:
        make_plan(archive, tmp_path).part.write_bytes(here)
    with pytest.raises(InputError, match=r"it was removed\. Run the command again") as caught:
        run(make_plan(archive, tmp_path, url=f"{server.address}/mirror.tgz"))
    assert f"expected {archive.md5}" in str(caught.value)
    assert names(tmp_path) == []
    run(make_plan(archive, tmp_path))
    assert server.asked[-1] is None
    assert names(tmp_path) == ["is2res"]


def test_an_archive_from_elsewhere(archive, server, tmp_path):
    file = tmp_path / "by hand.tar.gz"
    file.write_bytes(CONTENT[:100])
    with pytest.raises(InputError, match=r"by hand.tar.gz: damaged, incomplete.*checksum.*\.part"):
        run(make_plan(archive, tmp_path / "oc20", local=file))
    assert file.read_bytes() == CONTENT[:100]
    assert names(tmp_path) == ["by hand.tar.gz"]
    file.write_bytes(CONTENT)
    splits, _ = run(make_plan(archive, tmp_path / "oc20", local=file))
    assert not missing_splits(splits, SPLITS)
    assert file.read_bytes() == CONTENT
    assert not server.requests


def test_an_interrupted_unpacking_needs_no_network(archive, server, tmp_path, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "unpack", stop)
        with pytest.raises(KeyboardInterrupt):
            run(make_plan(archive, tmp_path))
    plan = make_plan(archive, tmp_path)
    assert plan.present == len(CONTENT)
    run(plan)
    assert len(server.requests) == 1
    assert names(tmp_path) == ["is2res"]


def test_an_archive_without_a_split(server, tmp_path):
    server.content = good_tar(SPLITS[:-1])
    with pytest.raises(InputError, match=r"has no data for all/test_id; "):
        run(make_plan(archive_of(server.content, server.url), tmp_path))


def test_an_incomplete_folder_is_not_taken_for_the_data(archive, tmp_path):
    make_files(tmp_path / "is2res", ["10k/train"])
    with pytest.raises(InputError, match=r"no data for all/train, all/val_id, all/val_ood_ads, all/test_id; "):
        present_splits(make_plan(archive, tmp_path))


@pytest.mark.parametrize("free", [0, 1])
def test_space(free, archive, server, tmp_path, monkeypatch):
    usage = type(shutil.disk_usage(tmp_path))
    exactly = archive.size + archive.unpacked
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage(0, 0, exactly - 1 + free))
    folder = tmp_path / "oc20"
    plan = make_plan(archive, folder)
    assert plan.fits == bool(free)
    if not free:
        with pytest.raises(InputError, match=r"are needed, but only .* are free"):
            run(plan)
        assert not folder.exists()
        assert not server.requests
        # what is here already needs no further room
        folder.mkdir()
        plan.part.write_bytes(CONTENT[:100])
        assert make_plan(archive, folder).fits
        assert make_plan(archive, folder, local=plan.part).needed == archive.unpacked
    assert f"{plan.needed / 1024:.0f} KiB needed, " in plan.describe()


def test_a_plan_writes_nothing_and_says_it_all(tmp_path):
    text = make_plan(OC20_IS2RE, tmp_path / "a" / "b").describe()
    assert all(part in text for part in ("8.1 GiB", "97.0 GiB", "105 GiB needed", "CC-BY-4.0", OC20_IS2RE.url))
    assert "removed after unpacking" in text
    assert "it stays" in make_plan(OC20_IS2RE, tmp_path / "a" / "b", keep=True).describe()
    assert names(tmp_path) == []


def test_mistakes(archive, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"x")
    for arguments, message in (
        ({"folder": file}, "is a file; give a folder"),
        ({"folder": file / "below"}, "is a file; give a folder"),
        ({"folder": tmp_path, "local": tmp_path}, "is a folder; give a file"),
        ({"folder": tmp_path, "local": file, "url": archive.url}, "not both"),
    ):
        with pytest.raises(InputError, match=message):
            make_plan(archive, **arguments)


def test_two_at_once(archive, server, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another molflt fetch"):
            run(make_plan(archive, tmp_path))
    finally:
        os.close(handle)
    assert not server.requests
    run(make_plan(archive, tmp_path))


def make_files(root, splits, content=b"x"):
    for split in splits:
        file = root / "data" / "is2re" / split / "data.lmdb"
        file.parent.mkdir(parents=True)
        file.write_bytes(content)


def test_splits_of_the_real_layout(tmp_path):
    make_files(tmp_path / "full", tuple(OC20_IS2RE.splits))
    splits = find_splits(tmp_path / "full")
    assert missing_splits(splits, OC20_IS2RE.splits) == []
    assert set(splits.train) == {"10k", "100k", "all"}
    assert list(splits.val) == list(splits.test) == ["id", "ood_ads", "ood_cat", "ood_both"]
    # empty files are no splits
    make_files(tmp_path / "empty", tuple(OC20_IS2RE.splits), b"")
    assert find_splits(tmp_path / "empty") == Splits()
    assert commands(Splits()) == ""


@pytest.mark.parametrize(
    "name", ["oc20", "a b", "it's", 'with "quotes"', "a: b, {c} [d]", "#x", "$HOME", "ä=b", "-x", "*"]
)
def test_the_commands_can_be_pasted(name, tmp_path):
    """Through the shell's quoting and through YAML, the paths are what they were."""
    root = tmp_path / name
    make_files(root, tuple(OC20_IS2RE.splits))
    splits = find_splits(root)
    lines = [shlex.split(line, comments=True) for line in commands(splits).splitlines()]
    config = tmp_path / "oc20.yaml"
    config.write_text("data: {train: x, val: y}\n", encoding="utf-8")
    (train,) = (words for words in lines if words[:2] == ["molflt", "train"])
    assert train[2:5] == ["oc20.yaml", "--out", "runs/oc20"]
    data = load_config(config, train[5:]).data
    assert data.train == str(splits.train["all"])
    assert data.val == {key: str(path) for key, path in splits.val.items()}
    assert next(iter(data.val)) == "id"
    (evaluated,) = (words[3:] for words in lines if words[:2] == ["molflt", "evaluate"])
    assert evaluated == [str(path) for path in splits.val.values()]
    predicted = {words[7]: words[3] for words in lines if words[:2] == ["molflt", "predict"]}
    assert predicted == {key: str(path) for key, path in splits.test.items()}

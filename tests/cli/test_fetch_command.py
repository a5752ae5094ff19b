"""``molflt fetch`` as a command."""

import lzma
import shlex
from pathlib import Path

import pytest

from molflt.data.fetch import catalogue, download, obtain
from tests.data.fetch_server import SPLITS, archive_of, good_tar, serving, tar_of
from tests.training.runs import with_forces


@pytest.fixture
def server(monkeypatch):
    with serving(good_tar()) as owner:
        serve(owner, monkeypatch)
        yield owner


def serve(owner, monkeypatch, **changes):
    """Put what the server holds into the catalogue."""
    monkeypatch.setitem(catalogue.ARCHIVES, "oc20-is2re", archive_of(owner.content, owner.url, **changes))


@pytest.mark.parametrize("arguments", [[], ["--list"], ["oc20-is2re", "--list"]])
def test_list(arguments, molflt):
    result = molflt("fetch", *arguments, status=0)
    assert result.out.startswith("oc20-is2re ")
    assert "8.1 GiB to download, 97.0 GiB unpacked, CC-BY-4.0" in result.out
    assert "--only 10k/train, 100k/train, all/train, all/val_id" in result.out
    for name, size in (("200k", "344 MiB"), ("val-id", "1.7 GiB"), ("val-ood-both", "1.9 GiB"), ("test", "30.0 GiB")):
        assert f"\noc20-s2ef-{name} " in result.out
        assert f"{size} to download" in result.out


def test_one_split_only(server, molflt, tmp_path):
    """The archive is one, so all of it is fetched, but the others take no room and are not missed."""
    dry = molflt("fetch", "oc20-is2re", "--to", tmp_path / "a", "--only", "10k", "--dry-run")
    assert f"{60_000 / 5 / 1024:.1f} KiB in " in dry.out
    assert "of 10k/train; about" in dry.out
    assert not list(tmp_path.iterdir())
    assert not server.requests
    result = molflt("fetch", "oc20-is2re", "--to", tmp_path / "a", "--only", "10k", "--only", "all/val_id", status=0)
    files = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.lmdb"))
    assert files == [f"a/is2res/data/is2re/{split}/data.lmdb" for split in ("10k/train", "all/val_id")]
    assert "10k/train/data.lmdb" in result.out
    assert "test_id" not in result.out
    again = molflt("fetch", "oc20-is2re", "--to", tmp_path / "a", "--only", "10k")
    assert again.out.startswith("oc20-is2re is complete in ")
    other = molflt("fetch", "oc20-is2re", "--to", tmp_path / "a", "--only", "test_id", status=2)
    assert "is there, but has no data for all/test_id" in other.err
    wrong = molflt("fetch", "oc20-is2re", "--to", tmp_path / "a", "--only", "20k")
    assert "no split '20k'; choose among 10k/train, all/train, all/val_id" in wrong.err


@pytest.mark.slow
def test_energies_and_forces(server, molflt, tiny_data, tmp_path, monkeypatch):
    """A plain tar of compressed extxyz, as S2EF's training and validation sets are; the printed commands run."""
    files = [Path(with_forces(tiny_data / f"{name}.lmdb", tmp_path / f"{name}.extxyz")) for name in ("val", "other")]
    members = [
        (f"s2ef_train_200K/s2ef_train_200K/{k}.extxyz.xz", lzma.compress(file.read_bytes()))
        for k, file in enumerate(files)
    ]
    server.content = tar_of(*members, ("s2ef_train_200K/README", b"read me"), compress=False)
    entry = archive_of(
        server.content, f"{server.address}/s2ef_train_200K.tar", folder="s2ef_train_200K", splits={"extxyz": 16}
    )
    monkeypatch.setitem(catalogue.ARCHIVES, "oc20-s2ef-200k", entry)
    monkeypatch.chdir(tmp_path)
    server.replies = [lambda handler: handler.honest(3000)]
    result = molflt("fetch", "oc20-s2ef-200k", "--to", "s2ef", status=0)
    assert "checksum is right" in result.out
    lines = [shlex.split(line) for line in result.out.splitlines() if line.startswith("  molflt ")]
    assert [words[1] for words in lines] == ["prepare", "config", "train"]
    molflt(*lines[0][1:], status=0)
    Path("s2ef.yaml").write_text(molflt("config", "tiny").out, encoding="utf-8")
    prepared = lines[0][-1]
    small = ["model.dim=16", "model.n_heads=2", "model.n_layers=1", "trainer.max_epochs=1", "trainer.accelerator=cpu"]
    train = [word.replace("VAL", prepared) for word in lines[2][1:]]
    molflt(*train, *small, "--no-report", status=0)
    assert "force_mae" in Path("runs/s2ef/metrics.csv").read_text(encoding="utf-8")


def test_from_download_to_training(server, molflt, tiny_data, tmp_path, monkeypatch):
    files = [(f"is2res/data/is2re/{split}/data.lmdb", (tiny_data / "other.lmdb").read_bytes()) for split in SPLITS]
    server.content = tar_of(*files)
    serve(server, monkeypatch, unpacked=10 << 20)
    monkeypatch.chdir(tmp_path)
    # A mirror's archive, which is kept; and what rich would draw as an emoji is part of a path.
    command = ("fetch", "oc20-is2re", "--to", "my :smile:", "--keep-archive", "--url", f"{server.address}/a/x.tgz")
    result = molflt(*command, status=0)
    assert "checksum is right" in result.out

    lines = [shlex.split(line, comments=True) for line in result.out.splitlines() if line.startswith("  molflt ")]
    assert lines[0] == ["molflt", "config", "base", ">", "oc20.yaml"]
    Path("oc20.yaml").write_text(molflt("config", "tiny").out, encoding="utf-8")
    small = ["model.dim=16", "model.n_heads=2", "model.n_layers=1", "trainer.max_epochs=1", "trainer.accelerator=cpu"]
    for words in lines[1:]:
        assert words[0] == "molflt"
        molflt(*words[1:], *(small if words[1] == "train" else []), status=0)
    assert Path("submission.npz").exists()
    assert Path("my :smile:/data.tar.gz").read_bytes() == server.content
    again = molflt(*command, status=0)
    assert again.out.startswith("oc20-is2re is complete in ")
    assert again.out.splitlines()[1:] == result.out.splitlines()[-len(again.out.splitlines()) + 1 :]
    assert server.paths == ["/a/x.tgz"]


def test_no_space(server, molflt, tmp_path, monkeypatch):
    serve(server, monkeypatch, unpacked=1 << 60)
    result = molflt("fetch", "oc20-is2re", "--to", tmp_path / "new", status=2)
    assert "are needed, but only" in result.err
    assert not (tmp_path / "new").exists()
    dry = molflt("fetch", "oc20-is2re", "--to", tmp_path / "new", "--dry-run", status=1)
    assert dry.out.endswith("It does not fit.\n")


def test_interruption_and_a_network_that_fails(server, molflt, tmp_path, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(download, "_BLOCK", 1000)
    command = ("fetch", "oc20-is2re", "--to", tmp_path)
    server.replies = [lambda handler: handler.honest(2000)]
    with monkeypatch.context() as patch:
        patch.setattr(obtain.obtain, "__defaults__", (stop,))
        result = molflt(*command)
    assert result.status == 130
    assert "To resume, repeat the command." in result.err
    assert (tmp_path / "data.tar.gz.part").read_bytes() == server.content[:2000]
    server.replies = [lambda handler: handler.answer(503, {})] * 20
    with monkeypatch.context() as patch:
        patch.setattr(obtain.obtain, "__defaults__", (lambda seconds: None,))
        result = molflt(*command)
    assert result.status == 1
    assert "run the same command again to resume" in result.err
    server.replies = []
    assert molflt(*command).status == 0
    assert set(server.asked) == {None, "bytes=2000-"}

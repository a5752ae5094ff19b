"""``molflt plot``: every kind as a file, and mistakes before any work."""

import pytest
from PIL import Image


@pytest.mark.parametrize("kind", ["curves", "rpe", "spectrum", "parity", "residuals", "elements", "sizes"])
def test_png(kind, molflt, tiny_run, tiny_data, tmp_path):
    out = tmp_path / "figure.png"
    data = [] if kind in ("curves", "rpe", "spectrum") else [tiny_data / "val.lmdb"]
    result = molflt("plot", kind, tiny_run, *data, "-o", out)
    assert result.status == 0, result
    assert result.err.strip() == str(out)
    with Image.open(out) as picture:
        assert min(picture.size) > 600
        colours = picture.convert("RGB").getcolors(1 << 24)
        assert len(colours) > 20
        assert max(colours)[1] == (255, 255, 255)


def test_other_formats_and_overwriting(molflt, tiny_run, tmp_path):
    for suffix, start in ((".svg", b"<?xml"), (".pdf", b"%PDF")):
        (tmp_path / f"f{suffix}").write_text("old", encoding="utf-8")
        out = ("-o", tmp_path / f"f{suffix}", "--overwrite")
        assert molflt("plot", "rpe", tiny_run / "best.safetensors", *out).status == 0
        assert (tmp_path / f"f{suffix}").read_bytes().startswith(start)


def test_what_is_there_stays(molflt, tmp_path):
    (tmp_path / "old.png").write_bytes(b"old")
    (tmp_path / "folder.png").mkdir()
    for name, message in (("old.png", "give --overwrite"), ("folder.png", "is a folder")):
        result = molflt("plot", "rpe", "absent", "-o", tmp_path / name)
        assert (result.status, message in result.err) == (2, True), result
    assert (tmp_path / "old.png").read_bytes() == b"old"


def test_no_far_field_no_curve(molflt, performer_path, tmp_path):
    for kind in ("rpe", "spectrum"):
        result = molflt("plot", kind, performer_path, "-o", tmp_path / "f.png")
        assert result.status == 2
        assert "its attention (kernelised) has no far field" in " ".join(result.err.split())
    assert list(tmp_path.iterdir()) == [performer_path]

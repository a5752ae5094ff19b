"""Configurations from strangers: refused before anything is built from them, with one error that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from molflt.errors import InputError
from molflt.training.config_file import check_plain_yaml, load_config

LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{to}: &{to} [{','.join([f'*{of}'] * 9)}]\n" for of, to in zip("abcdefgh", "bcdefghi", strict=True)
)
ECHOES = "a0: xxxxxxxxxx\n" + "".join(f"a{k + 1}: {5 * f'${{a{k}}}'}\n" for k in range(12))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: !!python/object/apply:os.system ['touch flag']", "names a type"),
        ("!!python/object/new:os.system ['touch flag']", "names a type"),
        ("a: !!python/name:os.system", "names a type"),
        ("a: !!float x", "names a type"),
        ("!!map {}", "names a type"),
        (LAUGHS, "unfolds to more than 10,000 values"),
        ("a: &a [*a]", "holds itself"),
        ("a: &a {b: *a}", "holds itself"),
        ("a: *b", "holds itself"),
        (ECHOES, "interpolations"),
        ("a: '${seed}" + "x" * 1000 + "'", "interpolations"),
        ("a: " + "[" * 100_000, "more than 20 deep"),
        ("a: " + "{a: " * 50_000, "more than 20 deep"),
        ("- " * 100_000, "more than 20 deep"),
        ("? " * 100_000, "more than 20 deep"),
        ("[" + "1, " * 20_000 + "]", "10,000 values"),
        ("x" * 300_000, "too long"),
        ("a: " + "9" * 5000, "not readable as YAML|must be|is missing"),
        ("a: 2001-99-99", "not readable as YAML|is missing"),
    ],
    ids=lambda text: text[:20],
)
def test_hostile_files(text: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evil.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_config(path)
    assert str(path) in str(caught.value)
    assert any(part in str(caught.value) for part in expected.split("|"))
    assert len(str(caught.value)) < 1000
    assert [file.name for file in tmp_path.iterdir()] == ["evil.yaml"]


def test_a_hundred_megabytes_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    with path.open("wb") as stream:
        stream.truncate(100 << 20)
    with pytest.raises(InputError, match="too long for a configuration"):
        load_config(path)


def test_a_thousand_mistakes_are_not_all_explained(tmp_path: Path) -> None:
    path = tmp_path / "mistakes.yaml"
    path.write_text("".join(f"key{k}: 1\n" for k in range(3000)), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_config(path)
    assert len(str(caught.value).splitlines()) <= 51


def test_modest_aliases_and_interpolations_pass() -> None:
    check_plain_yaml("a: &a [1, 2]\nb: *a\nc: ${a}\nd: '${oc.env:HOME}/x'\n", "x")

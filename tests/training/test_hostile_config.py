"""Configurations from strangers: refused before anything is built from them, with one error that names the file."""

import pytest

from molflt.errors import InputError
from molflt.training.yaml import load_config

LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{to}: &{to} [{','.join([f'*{of}'] * 9)}]\n" for of, to in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {b: 1}\n" + "".join(f"c{k}: &c{k} {{<<: [{9 * f'*c{k - 1}, '}*a]}}\n" for k in range(1, 9)).replace(
    "*c0", "*a"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: !!python/object/apply:os.system ['touch flag']", "no constructor for the tag|could not determine"),
        ("!!python/object/new:os.system ['touch flag']", "no constructor for the tag|could not determine"),
        ("a: !!python/name:os.system", "no constructor for the tag|could not determine"),
        ("a: !!float x", "not readable as YAML"),
        ("a: !!int ''", "not readable as YAML"),
        ("a: !!bool x", "not readable as YAML"),
        ("a: !!timestamp x", "not readable as YAML"),
        ("!!map {}", "data: is missing"),
        (LAUGHS, "there is no such key"),
        (LAUGHS + "data: *h", "data: must be a mapping of keys to values, not [["),
        (LAUGHS + "data: {train: *h, val: *h}", "data.train: must be a valid string"),
        (LAUGHS + "init: {freeze: *h}", "init.freeze.0: must be a valid string"),
        ("data: &a [*a]", "data: must be a mapping of keys to values, not [["),
        ("data: &a {train: x, val: *a}", "data.val.val: must be a valid string"),
        ("a: *b", "undefined alias"),
        (MERGES, "could not determine a constructor"),
        (MERGES.replace("<<", "!!merge <<"), "could not determine a constructor"),
        ("a: " + "[" * 100_000, "nested too deep"),
        ("a: " + "{a: " * 50_000, "nested too deep"),
        ("- " * 100_000, "nested too deep"),
        ("? " * 100_000, "nested too deep"),
        ("data: [" + "1, " * 20_000 + "]", "not [1, 1, 1, 1, 1, 1, ...]"),
        ("x" * 300_000, "too long"),
        ("a: " + "9" * 5000, "not readable as YAML|must be|is missing"),
        ("a: 2001-99-99", "not readable as YAML|is missing"),
    ],
    ids=lambda text: text[:20],
)
def test_hostile_files(text, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evil.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_config(path)
    assert str(path) in str(caught.value)
    assert any(part in str(caught.value) for part in expected.split("|"))
    assert len(str(caught.value)) < 1000
    assert [file.name for file in tmp_path.iterdir()] == ["evil.yaml"]


def test_a_hundred_megabytes_are_not_read(tmp_path):
    path = tmp_path / "long.yaml"
    with path.open("wb") as stream:
        stream.truncate(100 << 20)
    with pytest.raises(InputError, match="too long for a configuration"):
        load_config(path)


def test_a_thousand_mistakes_are_not_all_explained(tmp_path):
    path = tmp_path / "mistakes.yaml"
    path.write_text("".join(f"key{k}: 1\n" for k in range(3000)), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_config(path)
    assert len(str(caught.value).splitlines()) <= 51


def test_aliases_stand_for_values_that_change_alone(tmp_path):
    path = tmp_path / "aliases.yaml"
    path.write_text("data: {train: &t a.lmdb, val: &v {val: *t}, references: null}\n", encoding="utf-8")
    assert load_config(path).data.val == {"val": "a.lmdb"}
    path.write_text("data: {train: a, val: &v {H: '1'}, references: *v}\n", encoding="utf-8")
    found = load_config(path, ["data.val.b=2.5x", "data.target=energy"]).data
    assert (found.val, found.references) == ({"H": "1", "b": "2.5x"}, {"H": 1.0})

"""Results as data, and pages that say what the CSV files say; the lock file fits the project."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts import results
from scripts.tools import floors, tables


def test_the_tables_of_the_pages_are_those_of_the_csv_files():
    found = tables.pages()
    stale = [str(path) for path, (text, new, _) in found.items() if text != new]
    assert not stale, "python -m scripts.tools.tables"
    names = {" ".join(name.split()[:2]) for _, _, page in found.values() for name in page}
    assert {"loader", *(f"accuracy {data}" for data in ("qm7", "perovskites", "atoms"))} <= names


def test_every_csv_says_where_it_comes_from():
    paths = [path for path in results.DOCS.rglob("*.csv") if path.parent.name != "figures"]
    assert len(paths) >= 3
    for path in paths:
        for row in results.read(path):
            assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["date"]), path
            assert row["machine"], path
            assert row["software"], path
            assert re.fullmatch(r"[0-9a-f]{7,}\+?", row["commit"]), path


def test_a_damaged_page_or_csv_is_noticed(tmp_path):
    """Power of the first test: another number, a marker without its end, a table without its data."""
    page = tmp_path / "page.md"
    results.write(tmp_path / "t.csv", [{"a": 1, "b": 0.25}, {"a": 2, "b": 0.5}])
    begin = "<!-- table: t -->\n"
    page.write_text(
        f"# Page\n\n{begin}| a | b |\n| --- | --- |\n| 1 | 0.25 |\n| 2 | 0.6 |\n<!-- end -->\nrest\n",
        encoding="utf-8",
    )
    text, new, names = tables.pages(tmp_path)[page]
    assert names == ["t"]
    assert new == text.replace("0.6", "0.5")
    assert tables.table("t rows=a across=b value=b", tmp_path).splitlines()[2] == "| 1 | 0.25 |  |"
    for damaged in (text.replace("<!-- end -->", ""), text.replace("table: t", "table: u"), begin + text):
        page.write_text(damaged, encoding="utf-8")
        with pytest.raises(SystemExit, match=re.escape(str(page))):
            tables.pages(tmp_path)


def test_what_is_measured_later_stands_below_and_conditions_are_not_mixed(tmp_path):
    path, columns = tmp_path / "t.csv", ("point", "status", "seconds")
    first = {"point": "a", "status": "done", "seconds": [0.5, 0.25], "stderr": "left out"}
    results.extend(path, [first], {"threads": 1}, columns=columns)
    results.extend(path, [{"point": "b", "status": "failed", "software": "another"}], {"threads": 1}, columns=columns)
    rows = results.read(path)
    assert list(rows[0]) == [*columns, *results.PROVENANCE]
    assert results.numbers(rows[0]["seconds"]) == [0.5, 0.25]
    assert (rows[0]["conditions"], rows[1]["seconds"], rows[1]["software"]) == ("threads=1", "", "another")
    with pytest.raises(SystemExit, match="other conditions"):
        results.extend(path, [first], {"threads": 2}, columns=columns)
    assert results.read(path) == rows


def test_every_command_explains_itself():
    """What --help prints is the module's text, which names the command as it is called; the README has them all."""
    commands = set()
    for path in sorted((results.ROOT / "scripts").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        module = ".".join(path.relative_to(results.ROOT).with_suffix("").parts)
        if 'if __name__ == "__main__"' in text:
            assert f"python -m {module}" in text, path
            commands.add(f"python -m {module}")
    table = (results.ROOT / "scripts" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(python -m \S+)` \|", table, re.M)) == commands


def test_a_sweep_goes_on_where_it_stopped_and_quick_runs_touch_nothing_published(tmp_path, capsys):
    path, judged = tmp_path / "a.csv", []

    def judge(row, seed):
        judged.append((row, seed))
        if len(judged) == 2:
            raise KeyboardInterrupt
        return [{"part": part, "mae": 0.123456} for part in ("val", "test")]

    points = [{"row": row, "seed": seed} for row in "ab" for seed in (0, 1)]
    with pytest.raises(KeyboardInterrupt):
        results.sweep(path, points, judge, {"epochs": 2}, digits=3)
    results.sweep(path, points, judge, {"epochs": 2}, digits=3)
    assert judged == [("a", 0), ("a", 1), ("a", 1), ("b", 0), ("b", 1)]
    rows = results.read(path)
    assert [(row["row"], row["seed"], row["part"], row["mae"]) for row in rows[:2]] == [
        ("a", "0", "val", "0.123"),
        ("a", "0", "test", "0.123"),
    ]
    assert (len(rows), rows[0]["conditions"]) == (8, "epochs=2")
    parser = results.parser("text", kept=path)
    assert parser.parse_args(["--quick", "--results", str(tmp_path / "b.csv")]).quick
    with pytest.raises(SystemExit):
        parser.parse_args(["--quick"])
    assert "--quick needs --results" in capsys.readouterr().err


def test_the_oldest_packages_are_those_that_were_tried(tmp_path):
    """After a change of a floor: python -m scripts.tools.floors --try FOLDER. What was tried may be gone."""
    assert floors.stated().items() <= floors.tried().items()
    (row, *_) = results.read(floors.RESULTS)
    results.write(tmp_path / "e.csv", [{**row, "conditions": row["conditions"].replace("torch=", "torch=1")}])
    assert floors.tried(tmp_path / "e.csv") != floors.stated()


ROOT = Path(__file__).resolve().parents[2]
_PINNED = re.compile(r"([A-Za-z0-9._-]+)==(\S+)(?:\s+--hash=sha256:[0-9a-f]{64})+")


def test_the_lock_fits_the_project():
    text = re.sub(r"^#.*\n", "", (ROOT / "requirements.lock").read_text(encoding="utf-8"), flags=re.MULTILINE)
    matches = [_PINNED.fullmatch(line.strip()) for line in text.replace("\\\n", " ").splitlines()]
    versions = {canonicalize_name(match[1]): match[2] for match in matches if match}
    assert len(versions) == len(matches) > 100
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [text for name in ("dev", "literature", "torch-sim") for text in project["optional-dependencies"][name]]
    constraints = re.findall(r"^[^#\s].*", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    for wanted in map(Requirement, [*project["dependencies"], *extras, *constraints]):
        if wanted.name != project["name"]:
            assert wanted.specifier.contains(versions[canonicalize_name(wanted.name)], prereleases=True), wanted

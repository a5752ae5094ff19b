"""Every command of README and docs runs, on a page of its own working directory."""

import subprocess

import pytest

from tests.docs.pages import LANGUAGES, RUN, blocks, missing, outputs, pages, run, sandbox, script

TIMEOUT = 900.0
"""Seconds for a page, on one busy core."""
OWN_TEST = {"extending.md": ("bash",)}
"""Pages whose Python another test runs, in one namespace: the languages run here."""
TAIL = 6000
PAGES = pages()


def languages(page):
    return OWN_TEST.get(page.name, RUN)


def has_commands(page):
    return any(block.language in languages(page) for block in blocks(page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_fences(page):
    """Known languages only; what will be run is well-formed."""
    text = page.read_text(encoding="utf-8")
    unknown = {block.line: block.language for block in blocks(text) if block.language not in LANGUAGES}
    assert not unknown, f"{page.name}: {unknown}"
    checked = subprocess.run(["bash", "-n"], input=script(text), capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if has_commands(page)], ids=lambda page: page.name)
def test_commands_run(page, tmp_path):
    done = run(page.read_text(encoding="utf-8"), sandbox(tmp_path), TIMEOUT, languages(page))
    what = f"not done after {TIMEOUT:.0f} s" if done.status is None else f"exit status {done.status}"
    assert done.status == 0, f"{page.name}: {what}\n{done.output[-TAIL:]}"
    printed = done.of_blocks
    shown = outputs(page.read_text(encoding="utf-8"), languages(page))
    wrong = {line: (lost, printed[line]) for line, lines in shown.items() if (lost := missing(lines, printed[line]))}
    assert not wrong, f"{page.name}: by line of the block, what is shown and not printed, and what is: {wrong}"


PAGE = """# A page

```console
$ exit 3
```

```bash
. .venv/bin/activate
ls data scripts > list
value=7   # kept for later blocks
```

```python
print(open("list").read().count("lmdb"))
```

```bash
test "$value" = 7
false | cat
```
"""


def test_the_runner_stops_at_the_first_failure(tmp_path):
    """And names its line; transcripts are not run; variables last for a page."""
    done = run(PAGE, sandbox(tmp_path), 60)
    assert done.status == 1
    assert "stopped at line 19: " in done.output
    assert done.of_blocks[13][0].isdigit()
    good = run(PAGE.replace("false | cat", "true"), tmp_path, 60)
    assert good.status == 0, good.output
    bad_python = run(PAGE.replace('"list"', '"other list"'), tmp_path, 60)
    assert bad_python.status == 1
    assert "stopped at line 13: python -" in bad_python.output


def test_the_runner_ends_what_takes_too_long(tmp_path):
    assert run("# A page\n\n```bash\necho started\nsleep 60\n```\n", sandbox(tmp_path), 2).status is None


def test_shown_output_is_compared(tmp_path):
    page = '# A\n\n```bash\necho one; echo "two 1.25 eV"\n```\n\n```text\ntwo  1.26 eV\n```\n'
    page += "\nProse.\n\n```text\nof no command\n```\n"
    done = run(page, sandbox(tmp_path), 60)
    assert outputs(page) == {3: ("two  1.26 eV",)}
    assert missing(outputs(page)[3], done.of_blocks[3]) == []
    for other in (("two 1.29 eV",), ("two 1.25 eV", "one"), ("two",), ("three",)):
        assert missing(other, done.of_blocks[3]) == [other[-1]]


def test_a_fence_that_is_not_closed():
    with pytest.raises(ValueError, match="line 2"):
        blocks("text\n```bash\nls\n")

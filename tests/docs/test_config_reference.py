"""The reference of the configuration holds every key and is what the schema says."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from molflt.attention.registry import ATTENTIONS, KERNELS, MECHANISMS
from molflt.training.config import PRESETS, preset_config
from molflt.training.yaml import _known_keys

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "config.md"


@pytest.fixture
def reference() -> Any:
    from scripts.tools import config_reference

    return config_reference


def values(content: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Keys of a dumped configuration that hold a value."""
    for name, value in content.items():
        if isinstance(value, dict) and prefix + name != "data.val":
            yield from values(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_every_key_is_on_the_page() -> None:
    """By another way than the script's: from a complete configuration."""
    text = PAGE.read_text(encoding="utf-8")
    keys = list(values(preset_config("tiny").model_dump()))
    assert len(keys) > 50
    assert [key for key in keys if f"| `{key}` |" not in text] == ["model.attention.mechanism"]
    assert not [name for name in MECHANISMS if f"`mechanism={name}`" not in text]


def test_nothing_on_the_page_that_is_no_key(reference: Any) -> None:
    known = _known_keys(reference.TrainConfig)
    shown = [key.name for section in reference.sections(reference.TrainConfig) for key in section.keys]
    assert set(shown) <= set(known)
    assert all(key.description for section in reference.sections(reference.TrainConfig) for key in section.keys)


def test_every_preset_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = [name for name in ATTENTIONS if name not in KERNELS or "-" not in name]
    assert not [name for name in [*names, *PRESETS] if f"| `{name}` |" not in text]


def test_page_is_current(reference: Any) -> None:
    again = "run: python -m scripts.tools.config_reference"
    assert PAGE.read_text(encoding="utf-8") == reference.page(), again


def test_a_page_that_is_not_current_is_told(tmp_path: Path) -> None:
    old = tmp_path / "config.md"
    old.write_text(PAGE.read_text(encoding="utf-8").replace("max_epochs", "epochs"), encoding="utf-8")
    command = [sys.executable, "-m", "scripts.tools.config_reference", "--check", "--out", str(old)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "trainer.max_epochs" in done.stdout
    assert "is not current" in done.stderr

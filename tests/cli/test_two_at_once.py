"""Two commands that write one file: one does it, the other is refused before it computes anything."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from molflt.files import sole_writer
from molflt.prediction.output import Prediction, write_predictions

pytest.importorskip("fcntl")

COMMANDS = {
    "convert": ("convert", "DATA", "OUT.lmdb"),
    "predict": ("predict", "MODEL", "DATA", "-o", "OUT.csv"),
    "merge": ("merge", "DATA", "-o", "OUT.npz"),
    "evaluate": ("evaluate", "MODEL", "DATA", "--report", "OUT.html"),
    "adsorb": ("adsorb", "OC", "--on", "Cu", "--model", "MODEL", "-o", "OUT.csv"),
    "explain": ("explain", "MODEL", "CCO", "-o", "OUT.html"),
    "plot": ("plot", "rpe", "MODEL", "-o", "OUT.svg"),
    "average": ("average", "MODEL", "MODEL", "-o", "OUT.safetensors"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("overwrite", [False, True])
def test_the_second_is_refused(command, overwrite, molflt, model_path, tiny_data, tmp_path):
    if overwrite and command == "average":
        pytest.skip("replaces no file")
    words = {"MODEL": model_path, "DATA": tiny_data / "val.lmdb"}
    arguments = [words.get(word) or word.replace("OUT", str(tmp_path / "out")) for word in COMMANDS[command]]
    (out,) = (Path(word) for word in arguments if str(word).startswith(str(tmp_path)))
    if overwrite:
        arguments.append("--overwrite")
        out.write_bytes(b"the good file")
    with sole_writer(out):
        result = molflt(*arguments)
    assert result.status == 2, result
    assert result.err.startswith(f"Error: {out}: another process is writing it; wait for it, end it, or choose")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == ([b"the good file"] if overwrite else [])


def test_a_file_that_the_first_has_finished_in_between(molflt, model_path, tiny_data, tmp_path, monkeypatch):
    """It is there when the second gets its turn, though it was not when the second looked first."""
    out = tmp_path / "out.csv"

    def first_ends(*arguments):
        out.write_text("of the first", encoding="utf-8")
        return sole_writer(*arguments)

    monkeypatch.setattr("molflt.cli.terminal.sole_writer", first_ends)
    result = molflt("predict", model_path, tiny_data / "val.lmdb", "-o", out)
    assert result.status == 2
    assert "exists already" in result.err
    assert out.read_text(encoding="utf-8") == "of the first"


def test_splits_of_one_submission_may_be_written_at_once(tmp_path, monkeypatch):
    """One reads the file while the other writes it: neither is lost."""
    path = tmp_path / "all.npz"
    prediction = Prediction(np.array([1.0]), ["a"], {}, ids=["7"])
    second = threading.Thread(target=write_predictions, args=(path, prediction, None, "energy", "ood_ads"))
    save = np.savez_compressed

    def slowly(*arguments, **arrays):
        if not second.ident:
            second.start()
            time.sleep(0.3)
        save(*arguments, **arrays)

    monkeypatch.setattr(np, "savez_compressed", slowly)
    write_predictions(path, prediction, None, "energy", "id")
    second.join()
    with np.load(path, allow_pickle=False) as archive:
        assert set(archive.files) == {"id_ids", "id_energy", "ood_ads_ids", "ood_ads_energy"}

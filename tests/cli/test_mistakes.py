"""Options that cannot be had together, or not at all: refused before anything is computed or written."""

import pytest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("predict", "MODEL", "CCO", "-o", "NEW.npz", "--oc20-split", "id", "--on-error", "skip"), "every structure"),
        (("predict", "MODEL", "CCO", "-o", "NEW.csv", "--forces"), "give -o NAME.extxyz"),
        (("predict", "MODEL", "CCO", "--calibrate", "DATA"), "10 labelled structures are too few"),
        (("predict", "MODEL", "CCO", "--shard", "3/2", "-o", "NEW.csv"), "I from 1 to N"),
        (("predict", "MODEL", "CCO", "--shard", "1/2"), "give -o NAME.csv or NAME.npz"),
        (("predict", "MODEL", "CCO", "--shard", "1/2", "-o", "NEW.extxyz"), "give -o NAME.csv or NAME.npz"),
        (
            ("predict", "MODEL", "CCO", "--shard", "1/2", "-o", "NEW.csv", "--calibrate", "DATA"),
            "leave out --forces, --per-atom and --calibrate",
        ),
        (
            ("predict", "MODEL", "CCO", "--shard", "1/2", "-o", "NEW.npz", "--oc20-split", "id"),
            "give it to 'molflt merge'",
        ),
        (("predict", "MODEL", "CCO", "-o", "NEW.extxyz", "--forces"), "derivative is not a force"),
        (("predict", "MODEL", "CCO", "--device", "tpu"), "use auto, cpu or cuda"),
        (("evaluate", "MODEL", "DATA", "--device", "tpu"), "use auto, cpu or cuda"),
        (("predict", "NEW.safetensors", "CCO"), "NEW.safetensors: no such file"),
        (("predict", "qm7-small", "CCO"), "did you mean pretrained:qm7-small?"),
        (("train", "tinny", "--out", "NEW"), "tinny: no such file; presets are "),
        *((command, "NEW.cif") for command in (("info", "NEW.cif"), ("evaluate", "MODEL", "NEW.cif"))),
        (("predict", "MODEL", "NEW.cif"), "NEW.cif"),
        (("fetch", "oc22", "--to", "NEW"), "there is no data set 'oc22' to fetch; choose one of oc20-is2re"),
        (("fetch", "oc20-is2re"), "where to? Give a folder, as in 'molflt fetch oc20-is2re --to oc20-is2re'"),
        (("predict", "FOLDER", "CCO"), "is a folder without best.safetensors"),
        (("convert", "DATA", "NEW.lmdb", "--force-unit", "eV/nm"), "unit of forces 'eV/nm': choose one of"),
        (("convert", "DATA", "NEW.extxyz"), "the last argument must be the LMDB to write"),
        (("evaluate", "MODEL", "DATA", "--report", "NEW.txt"), "a report must end in .html"),
        (
            ("predict", "MODEL", "CCO", "--per-atom", "-o", "NEW.npz"),
            ".npz has no place for them; give -o NAME.extxyz",
        ),
        (("train", "--out", "NEW"), "give --train FILE --val FILE, or a preset"),
        (("predict", "MODEL", "CCO", "--json", "-o", "NEW.csv"), "--json: prints; leave out -o"),
        (("explain", "MODEL", "CCO", "-o", "FOLDER"), "is a folder"),
        (("explain", "MODEL", "OC", "--atom", "6", "-o", "NEW.html"), "has no atom 6; its 6 atoms are counted"),
        (("explain", "MODEL", "OC", "--index", "1", "-o", "NEW.html"), "OC: --index 1 is out of range; it holds"),
        (("explain", "MODEL", "DATA", "-o", "NEW.html"), "holds 10 structures; choose one with --index, from 0 to 9"),
        (("explain", "MODEL", "absent.xyz", "-o", "NEW.html"), "absent.xyz: no such file"),
        (("explain", "MODEL", "OC", "-o", "NEW.pdf"), "output must end in .html or .csv"),
        (("plot", "parity", "absent", "DATA", "-o", "NEW.jpg"), "a figure must end in .png or .svg or .pdf"),
        (("plot", "parity", "absent", "-o", "NEW.png"), "give labelled structures"),
        (("plot", "rpe", "absent", "DATA", "-o", "NEW.png"), "leave out"),
        (("plot", "parity", "absent.safetensors", "DATA", "-o", "NEW.png"), "no such file"),
        (("plot", "curves", "FOLDER", "-o", "NEW.png"), "metrics.jsonl"),
        (("plot", "adsorbates", "MODEL", "DATA", "-o", "NEW.png"), "plot 'elements' or 'sizes'"),
        (("explain", "MODEL", "DATA", "--index", "-1", "-o", "NEW.html"), "--index -1 is out of range"),
    ],
    ids=lambda value: " ".join(value[:1] + value[2:]) if isinstance(value, tuple) else None,
)
def test_refused(arguments, message, molflt, model_path, tiny_data, tmp_path):
    folder = tmp_path / "folder.html"
    folder.mkdir()
    known = {"MODEL": model_path, "DATA": tiny_data / "val.lmdb", "FOLDER": folder}
    words = (known.get(word, tmp_path / word if word.startswith("NEW") else word) for word in arguments)
    result = molflt(*words, status=2)
    assert result.err.startswith("Error: ")
    assert message in " ".join(result.err.split())
    assert list(tmp_path.iterdir()) == [folder]
    assert not list(folder.iterdir())

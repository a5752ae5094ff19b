"""Targets of the fuzzer: for each kind of file an input from a seed, and its reader."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pickle
import shutil
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import ase.io
import lmdb
import numpy as np
from ase.build import molecule
from rdkit import Chem
from torch_geometric.data import Data

from molflt.data.dataset import ListDataset
from molflt.data.fetch.catalogue import OC20_IS2RE
from molflt.data.fetch.obtain import unpack
from molflt.data.formats import read_ase
from molflt.data.molfiles import read_sdf
from molflt.data.neighbours import attach_neighbours
from molflt.data.oc20.lmdb import LmdbDataset, close_readonly
from molflt.data.oc20.unpickle import load_record
from molflt.data.oc20.writer import write_lmdb
from molflt.data.open import open_dataset
from molflt.data.rdkit import from_smiles
from molflt.data.record import to_data, to_record
from molflt.errors import InputError
from molflt.model.config import ModelConfig
from molflt.model.energy import EnergyModel
from molflt.model.file import ModelMetadata, TrainingData, load_model, save_model
from molflt.prediction.output import Prediction, write_predictions
from molflt.prediction.shards import ShardHeader, merge
from molflt.training.config import preset_config
from molflt.training.yaml import load_config, to_yaml
from scripts.hardening import fuzz_inputs as inputs
from scripts.hardening.fuzz_inputs import mutated, mutated_json


@dataclass(frozen=True)
class Target:
    """A kind of input.

    Attributes:
        make: the input of a generator of random numbers.
        read: what is done with it.
    """

    make: Callable[[Random], bytes]
    read: Callable[[bytes], object]


def _through_file(file: Path, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def run(raw: bytes) -> None:
        file.write_bytes(raw)
        read(file)

    return run


def read_record(raw: bytes) -> Data:
    """Read a record as a data set does."""
    return to_data(load_record(raw, "fuzz.lmdb#0"), "fuzz.lmdb#0")


def _pickles(folder: Path, which: int) -> Target:
    corpora = inputs.record_corpus()
    pieces = inputs.canary(str(folder / "canary"))
    return Target(
        lambda random: inputs.make_record(random, corpora[which], [*corpora[0], *corpora[1]], pieces), read_record
    )


def _lmdb(folder: Path) -> Target:
    corpus = [raw for part in inputs.record_corpus() for raw in part]
    pieces = inputs.canary(str(folder / "canary"))
    file = folder / "fuzz.lmdb"

    def make(random: Random) -> bytes:
        lengths = [pickle.dumps(2), b"2", b"9" * 5000, pickle.dumps(10**5000), pickle.dumps(2**63), b"0"]
        lengths += [pickle.dumps(-1)]
        length = random.choice([*lengths, pickle.dumps("2"), inputs.pickle_program(random, pieces)])
        values = [inputs.make_record(random, corpus, corpus, pieces) or b"N." for _ in range(2)]
        return pickle.dumps((values, length if random.random() < 0.3 else lengths[0]))

    def read(raw: bytes) -> None:
        # our own pair of values, made above
        values, length = pickle.loads(raw)  # noqa: S301
        close_readonly(file)
        file.unlink(missing_ok=True)
        options = {"subdir": False, "lock": False, "sync": False, "map_size": 1 << 24}
        with lmdb.open(str(file), **options) as database, database.begin(write=True) as transaction:
            for key, value in zip((b"0", b"1", b"length"), (*values, length), strict=True):
                transaction.put(key, value)
        dataset = LmdbDataset(file)
        try:
            assert len(dataset.n_atoms) == len(dataset)
        finally:
            for k in range(min(len(dataset), 3)):
                dataset[k]

    return Target(make, read)


def _extxyz(folder: Path) -> Target:
    file = folder / "seed.extxyz"
    corpus = []
    for name in ("H2O", "CO"):
        atoms = molecule(name, cell=[5, 6, 7], pbc=True)
        atoms.info.update(energy=-1.5, name="a b", sid=3, matrix=np.eye(2))
        atoms.set_array("forces", np.zeros((len(atoms), 3)))
        ase.io.write(file, [atoms, atoms])
        corpus.append(file.read_bytes())
    corpus.append(b"2\ncomment\nH 0 0 0\nH 0 0 0.74\n")
    return Target(
        lambda random: mutated(random, random.choice(corpus), corpus, inputs.XYZ),
        _through_file(folder / "fuzz.extxyz", read_ase),
    )


def _sdf(folder: Path) -> Target:
    corpus = []
    for smiles in ("CCO", "[Na+].[Cl-]", "c1ccncc1"):
        mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
        Chem.rdDistGeom.EmbedMolecule(mol, randomSeed=1)
        corpus += [(Chem.MolToMolBlock(mol, forceV3000=v3) + "> <energy>\n-1.5\n\n$$$$\n").encode() for v3 in (0, 1)]
    return Target(
        lambda random: mutated(random, random.choice(corpus), corpus, inputs.SDF),
        _through_file(folder / "fuzz.sdf", read_sdf),
    )


def _smiles(folder: Path) -> Target:
    return Target(
        lambda random: inputs.smiles(random).encode("utf-8", "surrogatepass"),
        lambda raw: from_smiles(raw.decode("utf-8", "surrogatepass")),
    )


def _model(folder: Path) -> Target:
    file = folder / "seed.safetensors"
    config = ModelConfig.model_validate(
        {"dim": 4, "n_heads": 1, "n_layers": 1, "ffn_dim": 4, "n_rbf": 2, "attention": {"n_basis": 2}}
    )
    data = TrainingData(path="x", fingerprint="y", n_structures=1)
    metadata = ModelMetadata(
        config=config,
        seed=7,
        target="energy",
        elements=[1],
        standardiser={},
        training_data=data,
        validation={},
        epoch=0,
    )
    save_model(file, EnergyModel(config, 7), metadata)
    raw = file.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")

    def make(random: Random) -> bytes:
        header: Any = json.loads(raw[8:end])
        match random.randrange(4):
            case 0:
                return mutated(random, raw, [raw], inputs.HEADER)
            case 1:
                header = mutated_json(random, header)
            case 2:
                header["__metadata__"]["molflt"] = json.dumps(
                    mutated_json(random, json.loads(header["__metadata__"]["molflt"]))
                )
            case _:
                text = header["__metadata__"]["molflt"].encode()
                header["__metadata__"]["molflt"] = mutated(random, text, [text], inputs.HEADER).decode("latin1")
        content = json.dumps(header).encode()
        length = len(content) if random.random() < 0.95 else random.choice((0, 1 << 63, 1 << 40, len(content) + 1))
        return struct.pack("<Q", length) + content + raw[end:]

    return Target(make, _through_file(folder / "fuzz.safetensors", load_model))


def _config(folder: Path) -> Target:
    corpus = [to_yaml(preset_config(name)).encode() for name in ("tiny", "small")]
    return Target(
        lambda random: (
            inputs.yaml(random)
            if random.random() < 0.3
            else mutated(random, random.choice(corpus), corpus, inputs.YAML)
        ),
        _through_file(folder / "fuzz.yaml", load_config),
    )


def _shards(folder: Path) -> Target:
    header = ShardHeader(
        shard=1, n_structures=3, n_shards=1, model="m", inputs="i", max_atoms=9, frequencies=None, target="energy"
    ).model_dump()
    part = {
        "names": ["a", "b", "c"], "ids": ["1", "2", "3"], "energies": [1.0, 2.0, 3.0],
        "uncertainty_eV": [0.1, 0.2, 0.2],
        "failures": {"1": "no"}, "elements": [1, 29], "contractions": {"lattice": 3}, "info": [{}, {}, {}],
        "conformers": {}, "warnings": {},
    }  # fmt: skip

    def line(value: Any) -> bytes:
        return json.dumps(value).encode() + b"\n"

    def make(random: Random) -> bytes:
        if random.random() < 0.2:
            whole = line(header) + line(part)
            return mutated(random, whole, [whole], inputs.HEADER)
        if random.random() < 0.1:
            return b"[" * random.choice((100, 10_000)) + b"]\n"
        if random.random() < 0.5:
            return line(mutated_json(random, header)) + line(part)
        return line(header) + line(mutated_json(random, part))

    return Target(make, _through_file(folder / "fuzz.shard", lambda file: merge([file])))


def _names(folder: Path) -> Target:
    """Records of odd texts, to all files that are made of them: what is written can be read."""
    files = {suffix: folder / f"names{suffix}" for suffix in (".csv", ".extxyz", ".npz", ".lmdb")}

    def read(raw: bytes) -> None:
        data = read_record(raw)
        prediction = Prediction(np.array([1.0]), [data.name], Counter(), ids=["0"])
        for suffix in (".csv", ".extxyz", ".npz"):
            write_predictions(files[suffix], prediction, ListDataset([data]), "energy")
        rows = list(csv.reader(io.StringIO(files[".csv"].read_bytes().decode("utf-8"), newline="")))
        (atoms,) = ase.io.read(files[".extxyz"], ":")
        with np.load(files[".npz"], allow_pickle=False) as archive:
            names = archive["name"].tolist()
        write_lmdb(files[".lmdb"], [to_record(data)], overwrite=True, progress=False)
        (again,) = LmdbDataset(files[".lmdb"])
        assert len(rows) == 2 and len(atoms) == data.num_nodes, (rows, atoms)  # noqa: PT018
        assert names == [data.name] and again.name == data.name  # noqa: PT018

    return Target(inputs.odd_texts, read)


def _encodings(folder: Path) -> Target:
    """Text files in encodings of all kinds, with damage."""
    config = to_yaml(preset_config("tiny"))
    mol = Chem.AddHs(Chem.MolFromSmiles("CO"))
    Chem.rdDistGeom.EmbedMolecule(mol, randomSeed=1)
    texts = {
        ".extxyz": '2\nname="Öl 水" adsorbate="ß" energy=-1\nC 0 0 0\nO 0 0 1.2\n',
        ".xyz": "2\nÖl Å\nC 0 0 0\nO 0 0 1.2\n",
        ".smi": "CO Öl\nO 水\n",
        ".csv": "smiles,name,energy\nCO,Öl,1.0\nO,水,2.0\n",
        ".sdf": Chem.MolToMolBlock(mol) + "> <name>\nÖl 水\n\n> <energy>\n-1.5\n\n$$$$\n",
        ".yaml": config,
    }
    suffixes = list(texts)

    def make(random: Random) -> bytes:
        suffix = random.choice(suffixes)
        raw = texts[suffix].encode(random.choice(inputs.ENCODINGS), "replace")
        if random.random() < 0.5:
            raw = mutated(random, raw, [raw], inputs.BROKEN_TEXT)
        return bytes([suffixes.index(suffix)]) + raw

    def read(raw: bytes) -> None:
        file = folder / f"Öl{suffixes[raw[0]]}"
        file.write_bytes(raw[1:])
        if file.suffix == ".yaml":
            load_config(file)
            return
        for data in open_dataset(file):
            data.name.encode("utf-8")

    return Target(make, read)


def _archive(folder: Path) -> Target:
    file, target = folder / "data.tar.gz", folder / "is2res"
    limits = replace(OC20_IS2RE, max_members=20, unpacked=1 << 19)

    def read(raw: bytes) -> None:
        file.write_bytes(raw)
        shutil.rmtree(target, ignore_errors=True)
        try:
            unpack(limits, file, target)
        finally:
            outside = {path.name for path in folder.iterdir()} - {file.name, target.name}
            assert not outside, f"written outside: {outside}"

    return Target(inputs.archive, read)


N_THREADS = 8


def _threads(folder: Path) -> Target:
    """SMILES in several threads at once: each must be what one thread makes of it."""

    def made(word: str) -> str:
        try:
            return str(from_smiles(word).positions.tolist())
        except InputError as error:
            return str(error)

    expected = {word: made(word) for word in inputs.GOOD + inputs.WRONG}

    def read(raw: bytes) -> None:
        words = raw.decode().split("\n")
        interval = sys.getswitchinterval()
        # So that they meet in the middle of each molecule.
        sys.setswitchinterval(1e-5)
        with _printed() as text, ThreadPoolExecutor(N_THREADS) as pool:
            found = list(pool.map(made, words))
        sys.setswitchinterval(interval)
        wrong = [word for word, got in zip(words, found, strict=True) if got != expected[word]]
        assert not wrong, wrong
        assert not text, text
        with _printed() as text:
            Chem.MolFromSmiles("C(C")
        assert text, "RDKit's log stays silent"

    return Target(inputs.right_and_wrong_smiles, read)


@contextlib.contextmanager
def _printed() -> Iterator[list[bytes]]:
    """A list that has at the end what was written to standard error, if anything was."""
    found, before = list[bytes](), os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield found
        finally:
            os.dup2(before, 2)
            os.close(before)
        said.seek(0)
        found += filter(None, [said.read()])


TARGETS: dict[str, Callable[[Path], Target]] = {
    "pyg1": lambda folder: _pickles(folder, 0),
    "pyg2": lambda folder: _pickles(folder, 1),
    "bombs": lambda folder: Target(inputs.bomb, read_record),
    "extents": lambda folder: Target(inputs.extents, lambda raw: attach_neighbours(read_record(raw), 6.0)),
    "archive": _archive,
    "lmdb": _lmdb,
    "extxyz": _extxyz,
    "sdf": _sdf,
    "smiles": _smiles,
    "model": _model,
    "config": _config,
    "shards": _shards,
    "names": _names,
    "encodings": _encodings,
    "threads": _threads,
}
"""By name: from a folder for files."""

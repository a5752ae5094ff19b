"""Records from strangers: what is read comes back as it was, and what is damaged is named."""

import pickle
import shutil
import struct
from collections import OrderedDict

import lmdb
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from molflt.data.oc20.unpickle import load_record
from molflt.data.record import to_data
from molflt.errors import InputError
from tests.data.pickles import as_tensor


@pytest.mark.parametrize(
    "raw",
    [b"", b".", b"garbage", b"\x80\x04", b"\x80\x04N", b"Pid\n.", b"\x80\x02K\x01Q.",
     b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N.",
     *map(pickle.dumps, ([1, 2], None, {"pos": {1, 2}}, {"pos": 1j}))],
)  # fmt: skip
def test_no_record_is_an_input_error_with_the_place(raw):
    with pytest.raises(InputError, match=r"shard\.lmdb#3"):
        load_record(raw, "shard.lmdb#3")


@given(
    array=hnp.arrays(
        dtype=st.one_of(
            hnp.boolean_dtypes(),
            hnp.integer_dtypes(),
            hnp.unsigned_integer_dtypes(),
            hnp.floating_dtypes(endianness="?"),
            hnp.unicode_string_dtypes(max_len=4),
        ),
        shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    protocol=st.integers(2, 5),
    fortran=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_numpy_arrays_come_back(array, protocol, fortran):
    array = np.asfortranarray(array).reshape(array.shape) if fortran else array
    read = load_record(pickle.dumps({"pos": array}, protocol=protocol), "x")["pos"]
    assert read.dtype == array.dtype.newbyteorder("=")
    assert read.shape == array.shape
    np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4), torch.arange(12).reshape(3, 4).T,
        torch.arange(12.0, dtype=torch.float64)[3:9:2], torch.tensor([True, False]),
        torch.tensor(3, dtype=torch.int32), torch.zeros(0, 3), torch.ones(1).expand(5),
        torch.ones(2, requires_grad=True), torch.tensor([1.5, 2.5], dtype=torch.bfloat16),
    ],
)  # fmt: skip
def test_tensors_come_back(tensor):
    expected = (tensor.detach().float() if tensor.dtype == torch.bfloat16 else tensor.detach()).numpy()
    for protocol in (2, 3, 4, 5):
        read = load_record(pickle.dumps({"pos": tensor}, protocol=protocol), "x")["pos"]
        assert (read.shape, read.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(read, expected)
        assert read.flags.writeable
        assert read.flags.aligned


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_come_back(protocol):
    record = {"a": 1, "b": 2.5, "c": "text", "d": [1, (2, 3)], "e": OrderedDict(x=1), "f": torch.Size([2, 3])}
    raw = pickle.dumps({**record, "g": np.float32(0.5), "h": np.int64(7), "none": None, "_private": 1}, protocol)
    assert load_record(raw, "x") == {**record, "e": {"x": 1}, "f": (2, 3), "g": 0.5, "h": 7}


def test_only_the_wanted_fields_are_decoded():
    raw = pickle.dumps({"natoms": 3, "force": as_tensor(b"no storage")})
    assert load_record(raw, "x", only=("natoms",)) == {"natoms": 3}
    with pytest.raises(InputError, match="force"):
        load_record(raw, "x")


@pytest.mark.parametrize("name", ["pyg1.lmdb", "pyg2.lmdb"])
def test_real_records_equal_plain_unpickling(oc20, tmp_path, name):
    # a copy: this process may have the file itself open, and LMDB opens none twice
    file = shutil.copy(oc20 / name, tmp_path / name)
    with lmdb.open(str(file), subdir=False, readonly=True, lock=False) as env, env.begin() as transaction:
        raws = [transaction.get(str(k).encode()) for k in range(5)]
    for raw in raws:
        original = pickle.loads(raw)
        # PyG 1 kept the fields in __dict__ itself
        expected = original.__dict__ if "_store" not in original.__dict__ else original.to_dict()
        expected = {k: v for k, v in expected.items() if v is not None and not k.startswith("_")}
        read = load_record(raw, name)
        assert set(read) == set(expected)
        data = to_data(read, name)
        assert torch.equal(data.positions, expected["pos"].double())
        assert torch.equal(data.tags, expected["tags"].long())
        assert float(data.y_relaxed) == expected["y_relaxed"]
        for key, value in expected.items():
            if isinstance(value, torch.Tensor):
                assert read[key].dtype == value.numpy().dtype
                np.testing.assert_array_equal(read[key], value.numpy())
            else:
                assert read[key] == value


@pytest.mark.parametrize(
    "name",
    ["numpy.core.multiarray\n_reconstruct", "numpy.core.numeric\n_frombuffer", "numpy\ndtype",
     "torch._utils\n_rebuild_tensor_v2", "torch.storage\n_load_from_bytes", "torch_geometric.data.data\nData"],
)  # fmt: skip
def test_an_object_without_its_init(name):
    """NEWOBJ makes an object without a call of ``__init__``."""
    with pytest.raises(InputError, match=r"^f\.lmdb#0: "):
        load_record(b"\x80\x02}U\x03posc" + f"{name}\n".encode() + b")\x81s.", "f.lmdb#0")

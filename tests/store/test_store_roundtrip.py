"""Arrays of every dtype and row size are read back as written, from aligned .npy files."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from gnndrive.common.errors import ConfigError
from gnndrive.store import Store, StoreWriter, open, write_store
from gnndrive.store import writer as writer_module
from gnndrive.store.format import _STORAGE, torch_dtype

INDPTR, INDICES = [0, 1, 1, 3], [2, 0, 1]


@pytest.mark.parametrize("columns", [1, 3, 127, 4714])
@pytest.mark.parametrize("dtype", list(_STORAGE))
def test_every_dtype_and_row_size(tmp_path: Path, dtype: str, columns: int) -> None:
    values = torch.arange(3 * columns).reshape(3, columns) % 2
    x = values.to(torch_dtype(dtype))
    nodes = {"x": x, "row": x[:, 0]}
    store = write_store(tmp_path / "s", indptr=INDPTR, indices=INDICES, nodes=nodes)
    assert store.tensor("x").dtype == x.dtype
    assert torch.equal(store.tensor("x").to(torch.int64), values)
    assert torch.equal(store.tensor("x", random=True), store.tensor("x"))
    table = store.table("x")
    assert (table.row_count, table.row_shape, table.dtype) == (3, (columns,), dtype)
    assert table.data_offset == 4096
    assert table.row_bytes == columns * x.element_size()
    raw = Path(table.path).read_bytes()
    assert raw[4096:] == x.view(torch.uint8).numpy().tobytes()
    plain = np.load(table.path, mmap_mode="r", allow_pickle=False)
    assert plain.shape == (3, columns)
    assert plain.dtype == (np.uint16 if dtype == "bfloat16" else np.dtype(dtype))
    assert plain.offset == 4096
    assert np.array_equal(plain, store.array("nodes/x"))
    assert store.table("row").row_shape == ()
    assert store.num_features == columns
    store.verify()


def test_attributes_of_a_store(store: Store) -> None:
    assert (store.num_nodes, store.num_edges, store.num_features) == (40, 160, 3)
    assert (store.num_classes, store.classes) == (5, ("a", "b", "c", "d", "é"))
    assert store.node_names == ("x", "y")
    assert store.edge_names == ("edge_attr",)
    assert store.split_names == ("train", "val")
    assert store.split("val").tolist() == list(range(30, 40))
    assert store.split("train").dtype == torch.int64
    assert store.indptr.dtype == np.int64
    assert not store.indptr.flags.writeable
    assert store.index_pointers.dtype == np.uint32
    assert not store.index_pointers.flags.writeable
    assert np.array_equal(store.index_pointers, store.indptr)
    assert store.indices.dtype == np.int32
    assert not store.indices.flags.writeable
    assert store.edge_id is not None
    assert sorted(store.edge_id.tolist()) == list(range(160))
    assert store.tensor("edges/edge_attr").shape == (160, 2)
    assert store.indices_path == store.path / "graph" / "indices.npy"
    assert len(repr(store)) < 200
    assert store.info.nbytes == sum(file.stat().st_size for file in store.path.rglob("*.npy"))


@pytest.mark.parametrize("again", [lambda s: pickle.loads(pickle.dumps(s)), copy.deepcopy])
def test_copies_are_opened_from_the_path(store: Store, again) -> None:
    other = again(store)
    assert other.info == store.info
    assert np.array_equal(other.indptr, store.indptr)


def test_writing_into_a_tensor_leaves_the_file_and_warns_of_nothing(store: Store) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = store.tensor("y")
    before = y.clone()
    y[:] = 77
    assert torch.equal(store.tensor("y"), before)
    store.verify()


@pytest.mark.parametrize("call", ["array", "tensor", "table", "split"])
def test_errors_for_unknown_names_list_the_known_ones(store: Store, call: str) -> None:
    with pytest.raises(ConfigError, match=r"it has: .*(x|train)"):
        getattr(store, call)("nope")


def test_every_kind_of_source_gives_the_same_array(tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.save(tmp_path / "x.npy", x)
    sources = {
        "numpy": x,
        "fortran": np.asfortranarray(x),
        "swapped": x.astype(">f4"),
        "strided": np.repeat(x, 2, axis=0)[::2],
        "mapped": np.load(tmp_path / "x.npy", mmap_mode="r"),
        "torch": torch.from_numpy(x).requires_grad_(),
        "transposed": torch.from_numpy(x.T.copy()).t(),
        "list": x.tolist(),
    }
    store = write_store(tmp_path / "s", indptr=INDPTR, indices=INDICES, nodes=sources)
    for name in sources:
        assert np.array_equal(store.array(name), x), name
        wanted = "float64" if name == "list" else "float32"
        assert store.info.arrays[f"nodes/{name}"].dtype == wanted


def test_large_arrays_are_written_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "CHUNK_BYTES", 64)
    x = np.random.default_rng(0).standard_normal((3, 5))
    indptr, indices = np.arange(101).clip(max=90), np.arange(90) % 100
    seen: list[tuple[str, int, int]] = []
    store = write_store(
        tmp_path / "s",
        indptr=indptr,
        indices=indices,
        nodes={"x": np.tile(x, (34, 1))[:100]},
        progress=lambda *call: seen.append(call),
    )
    assert np.array_equal(store.indptr, indptr)
    assert np.array_equal(store.indices, indices)
    assert np.array_equal(store.array("x"), np.tile(x, (34, 1))[:100])
    calls = [call for call in seen if call[0] == "nodes/x"]
    assert len(calls) == 100
    assert calls[-1] == ("nodes/x", 4000, 4000)
    store.verify(lambda *call: seen.append(call))
    assert seen[-1][1:] == (store.info.nbytes, store.info.nbytes)


def test_arrays_written_piece_by_piece_equal_arrays_written_at_once(
    tmp_path: Path, store: Store
) -> None:
    with StoreWriter(tmp_path / "b", 40, 160, made_by=store.info.made_by) as writer:
        for name in ("graph/indptr", "graph/indices", "graph/edge_id"):
            writer.write(name, store.array(name), store.info.arrays[name].dtype)
        x = writer.array("nodes/x", torch.bfloat16, (40, 3))
        y = writer.array("nodes/y", "int64", [40])
        for row in range(0, 40, 7):
            x.write(store.tensor("x")[row : row + 7])
            y.write(store.tensor("y")[row : row + 7])
        writer.write("edges/edge_attr", store.array("edges/edge_attr"))
        for name in store.split_names:
            writer.split(name, store.split(name))
        writer.classes(["a", "b", "c", "d", "é"])
    assert open(tmp_path / "b").info == store.info


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        ([0, 2, -1], 3),
        ([[1], [0], [4]], 5),
        ([True, False, True], 2),
        (np.zeros((3, 7)), 7),
        ([1.0, float("nan"), 3.0], 4),
        ([0.5, 1.0, 2.0], 0),
        ([-1, -1, -1], 0),
        (torch.tensor([1.0, 2.0, 0.0]).bfloat16(), 3),
        (np.array([1, 2, 2**63], np.uint64), 0),
    ],
)
def test_num_classes(tmp_path: Path, y, classes: int) -> None:
    store = write_store(tmp_path / "s", indptr=INDPTR, indices=INDICES, nodes={"y": y})
    assert store.num_classes == classes
    assert store.num_features == 0


@pytest.mark.parametrize(("nodes", "edges"), [(0, 0), (1, 0), (2, 0)])
def test_stores_without_edges(tmp_path: Path, nodes: int, edges: int) -> None:
    store = write_store(
        tmp_path / "s",
        indptr=np.zeros(nodes + 1, int),
        indices=[],
        edge_id=np.empty(0, int),
        nodes={"x": np.empty((nodes, 0)), "y": np.zeros(nodes, int)},
        splits={"train": []},
    )
    store.verify()
    assert store.tensor("x").shape == (nodes, 0)
    assert store.indices.shape == (0,)
    assert store.split("train").shape == (0,)

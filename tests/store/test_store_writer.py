"""write_store and StoreWriter: arrays are read back as written; a store is whole or not there."""

import contextlib
import errno
import gc
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.store import StoreWriter, open, write_store
from gnndrive.store import writer as writer_module
from gnndrive.store.checks import ClassCount
from gnndrive.store.format import _STORAGE, torch_dtype
from tests.soak import product
from tests.store.conftest import left, refused
from tests.store.kills import fails_at

GRAPH = {"indptr": [0, 1, 1, 3], "indices": [2, 0, 1]}


# ---- read back


@product("dtype,columns", list(_STORAGE), [1, 3, 127, 4714])
def test_every_dtype_and_row_size(tmp_path, dtype, columns):
    values = torch.arange(3 * columns).reshape(3, columns) % 2
    x = values.to(torch_dtype(dtype))
    store = write_store(tmp_path / "s", **GRAPH, nodes={"x": x, "row": x[:, 0]})
    assert store.tensor("x").dtype == x.dtype
    assert torch.equal(store.tensor("x").to(torch.int64), values)
    assert torch.equal(store.tensor("x", random=True), store.tensor("x"))
    table = store.table("x")
    row_bytes = columns * x.element_size()
    assert (table.row_count, table.row_shape, table.dtype) == (3, (columns,), dtype)
    assert (table.data_offset, table.row_bytes) == (4096, row_bytes)
    assert Path(table.path).read_bytes()[4096:] == x.view(torch.uint8).numpy().tobytes()
    plain = np.load(table.path, mmap_mode="r", allow_pickle=False)
    assert plain.dtype == (np.uint16 if dtype == "bfloat16" else np.dtype(dtype))
    assert np.array_equal(plain, store.array("nodes/x"))
    assert store.table("row").row_shape == ()
    store.verify()


def test_attributes_of_a_store(store):
    assert (store.num_classes, store.classes) == (5, ("a", "b", "c", "d", "é"))
    assert store.split("val").tolist() == list(range(30, 40))
    assert store.split("train").dtype == torch.int64
    arrays = store.indptr, store.index_pointers, store.indices
    assert [each.dtype for each in arrays] == [np.int64, np.uint32, np.int32]
    assert not any(each.flags.writeable for each in arrays)
    assert store.indices_path == store.path / "graph" / "indices.npy"
    assert len(repr(store)) < 200
    assert store.info.nbytes == sum(file.stat().st_size for file in store.path.rglob("*.npy"))
    for call in ("array", "tensor", "table", "split"):
        with pytest.raises(ConfigError, match=r"it has: .*(x|train)"):
            getattr(store, call)("nope")
    y = store.tensor("y")
    before = y.clone()
    y[:] = 77  # a copy: no warning, and the file stays
    assert torch.equal(store.tensor("y"), before)


def test_every_kind_of_source_gives_the_same_array(tmp_path):
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
    store = write_store(tmp_path / "s", **GRAPH, nodes=sources)
    for name in sources:
        assert np.array_equal(store.array(name), x), name
        wanted = "float64" if name == "list" else "float32"
        assert store.info.arrays[f"nodes/{name}"].dtype == wanted


def test_large_arrays_are_written_in_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "CHUNK_BYTES", 64)
    x = np.tile(np.random.default_rng(0).standard_normal((3, 5)), (34, 1))[:100]
    indptr, indices = np.arange(101).clip(max=90), np.arange(90) % 100
    seen: list[tuple[str, int, int]] = []
    store = write_store(
        tmp_path / "s", indptr=indptr, indices=indices, nodes={"x": x},
        progress=lambda *call: seen.append(call),
    )  # fmt: skip
    assert np.array_equal(store.indptr, indptr)
    assert np.array_equal(store.indices, indices)
    assert np.array_equal(store.array("x"), x)
    calls = [call for call in seen if call[0] == "nodes/x"]
    assert len(calls) == 100
    assert calls[-1] == ("nodes/x", 4000, 4000)
    store.verify(lambda *call: seen.append(call))
    assert seen[-1][1:] == (store.info.nbytes, store.info.nbytes)


def test_stores_without_edges(tmp_path):
    for nodes in (0, 2):
        store = write_store(
            tmp_path / str(nodes), indptr=np.zeros(nodes + 1, int), indices=[],
            edge_id=np.empty(0, int), splits={"train": []},
            nodes={"x": np.empty((nodes, 0)), "y": np.zeros(nodes, int)},
        )  # fmt: skip
        store.verify()
        assert (store.tensor("x").shape, store.indices.shape) == ((nodes, 0), (0,))
        assert store.split("train").shape == (0,)


def test_values_that_fit_are_converted(tmp_path):
    for number, (dtype, values) in enumerate((
        ("float32", np.array([1.1, np.inf, np.nan])),
        ("uint8", np.array([1, 255, 0], np.int64)),
        ("bfloat16", np.array([1.0, 2.5, np.nan], np.float64)),
        ("bfloat16", np.array([1, 0, 3], np.uint8)),
        ("float64", torch.tensor([1.5, 2.5, 0.0]).bfloat16()),
    )):  # fmt: skip
        with StoreWriter(tmp_path / str(number), 3, 0) as writer:
            writer.write("graph/indptr", [0, 0, 0, 0])
            writer.write("graph/indices", np.empty(0, np.int32))
            writer.write("nodes/z", values, dtype)
        got = open(tmp_path / str(number)).tensor("nodes/z")
        wanted = torch.as_tensor(values).to(got.dtype)
        assert torch.equal(got.nan_to_num(), wanted.nan_to_num())


# ---- classes of y


def test_num_classes(tmp_path):
    for y, classes in (
        ([0, 2, -1], 3),
        ([1, 2, 3, -1], 4),
        ([[1], [0], [2]], 3),
        ([True, False, True], 2),
        (np.zeros((3, 7)), 7),
        ([1.0, float("nan"), 3.0], 4),
        ([0.5, 4000.0, 2.0], 0),
        ([-1, -1, -1], 0),
        ([], 0),
        (torch.tensor([1.0, 2.0, 0.0]).bfloat16(), 3),
        (np.array([1, 2, 2**63], np.uint64), 0),
    ):
        graph = {"indptr": [0] * (len(y) + 1), "indices": []}
        store = write_store(tmp_path / "s", **graph, nodes={"y": y}, if_exists="replace")
        assert (store.num_classes, store.num_features) == (classes, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_rows_of_features_that_are_not_finite_are_counted(tmp_path, dtype, monkeypatch):
    monkeypatch.setattr("gnndrive.store.writer.CHUNK_BYTES", 32)  # chunks of two rows
    monkeypatch.setattr("gnndrive.store.loading._STEP", 5)  # ends within rows
    x = torch.zeros(8, 2, 2).to(dtype)
    x[0], x[3:6, 1, 0], x[7] = torch.finfo(dtype).max, float("nan"), -float("inf")
    given = {"indptr": [0] * 9, "indices": []}
    match = r"^nodes/x: 4 of its 8 rows hold nan or infinity, first row 3, .*nan_to_num"
    with pytest.warns(UserWarning, match=match):
        store = write_store(tmp_path / "s", **given, nodes={"x": x})
    with pytest.warns(UserWarning, match=r"^nodes/x: 4 of its 8 rows .* first row 3, .* is sound"):
        store.verify()
    write_store(
        tmp_path / "t", **given, nodes={"x": x.nan_to_num(), "y": torch.full((8,), np.nan)}
    ).verify()


def test_labels_with_gaps_are_named_with_numbers_and_remedy(tmp_path):
    """They would be trained as thousands of classes."""
    match = r"nodes/y: .*4,001 classes, .*only 3 .*torch\.unique"
    given = {"indptr": [0] * 5, "indices": [], "if_exists": "replace"}
    for dtype in (np.int64, np.int16, np.float32):
        y = np.array([0, 4000, 1, -1]).astype(dtype)
        with pytest.warns(UserWarning, match=match):
            store = write_store(tmp_path / "s", **given, nodes={"y": y})
        assert store.num_classes == 4001
    named = list("abcdefgh")  # of which seven have no node, which is no reason to warn
    write_store(tmp_path / "t", indptr=[0, 0], indices=[], nodes={"y": [7]}, classes=named)


def test_labels_are_counted_over_chunks_and_beyond_the_table():
    def gaps_of(*chunks: np.ndarray) -> str:
        count = ClassCount()
        for chunk in chunks:
            count.feed(chunk)
        return str(count.gaps())

    assert gaps_of(np.arange(50), np.arange(50, 100)) == "None"
    assert "100,000 classes, of which only 101 " in gaps_of(np.arange(100), np.array([99_999]))
    large = gaps_of(np.array([3, 1 << 30]), np.array([1 << 30, (1 << 30) + 5]), np.array([3]))
    assert "1,073,741,830 classes, of which only 3 " in large


# ---- whole or not at all


@product("number,at", [errno.ENOSPC, errno.EDQUOT, errno.EIO], range(1, 6))
def test_a_failing_disk_leaves_nothing(tmp_path, monkeypatch, number, at):
    def write() -> None:
        write_store(tmp_path / "s", **GRAPH, nodes={"x": np.ones((3, 4)), "y": [0, 1, 2]})

    gc.collect()  # other tests may have left descriptors in cycles
    before = len(os.listdir("/proc/self/fd"))
    failure = OSError(number, "simulated")
    raised = fails_at(write, monkeypatch, at, failure, ("write", "pwrite"), lasting=True)
    full = number != errno.EIO
    match = r"the store needs [\d.]+ KB and [\d.]+ [GT]B are free" if full else "writing .* failed"
    assert re.search(match, str(raised))
    assert str(tmp_path / "s") in str(raised)
    assert (left(tmp_path), len(os.listdir("/proc/self/fd"))) == ([], before)


def test_a_full_disk_is_an_error_before_writing(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "free_bytes", lambda folder: 2_000_000)
    monkeypatch.setattr(writer_module, "DirectWriter", lambda *_, **given: pytest.fail("it wrote"))
    with refused(tmp_path, r"needs 4.01 MB and 2 MB are free"):
        write_store(tmp_path / "s", **GRAPH, nodes={"x": np.ones((3, 333_333), np.float32)})


def test_a_replacement_that_fails_leaves_the_old_store(tmp_path, monkeypatch):
    old = write_store(tmp_path / "s", **GRAPH, nodes={"y": [0, 1, 1]})
    with refused(tmp_path, "names 5"):
        write_store(tmp_path / "s", indptr=[0, 1], indices=[5], nodes={}, if_exists="replace")
    real = writer_module.os.rename

    def rename(source: Path, target: Path) -> None:
        if str(source).endswith(".tmp"):
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(writer_module.os, "rename", rename)
    with refused(tmp_path, None, KeyboardInterrupt):
        write_store(tmp_path / "s", **GRAPH, nodes={}, if_exists="replace")
    assert open(tmp_path / "s").info == old.info


def test_all_is_synced_before_the_rename(tmp_path, synced, monkeypatch):
    before: list[str] = []
    real = writer_module.os.rename

    def rename(source: Path, target: Path) -> None:
        if str(source).endswith(".tmp"):
            before.extend(synced)
        real(source, target)

    monkeypatch.setattr(writer_module.os, "rename", rename)
    store = write_store(
        tmp_path / "s", **GRAPH, nodes={"x": np.ones((3, 2))}, splits={"train": [1]}
    )
    folder = before[-1]
    names = {str(Path(name).relative_to(folder)).removesuffix(".part") for name in before}
    whole = {str(file.relative_to(store.path)) for file in store.path.rglob("*")}
    assert names == whole | {"."}
    assert synced[-1] == str(tmp_path)


# ---- what is refused


def test_invalid_arguments_are_refused(tmp_path):
    for change, match in (
        ({"indices": [2, 3, 1]}, "edge 1 names 3, but there are 3 nodes"),
        ({"indices": [2, 0, -1]}, "edge 2 names -1"),
        ({"indices": np.array([2, 0, 2**32], np.int64)}, "edge 2 names 4294967296"),
        ({"indptr": [0, 2, 1, 3]}, "decreases at node 2"),
        ({"indptr": [1, 1, 1, 3]}, "starts with 1"),
        ({"indptr": [0, 1, 1, 2]}, "ends with 2, but there are 3 edges"),
        ({"edge_id": [0, 1, 3]}, "edge 2 names 3, but there are 3 edges"),
        ({"splits": {"train": [0, 3]}}, "train.npy: entry 1 names 3"),
        ({"nodes": {"x": np.zeros((2, 3))}}, r"nodes/x as float64 \[2, 3\] does not fit a store o"),
        ({"edges": {"w": np.zeros(4)}}, r"edges/w as float64 \[4\] does not fit"),
        ({"nodes": {"x": np.zeros(3, complex)}}, "complex128.*convert to one of"),
        ({"nodes": {"x": [[1], [2, 3], [4]]}}, "is not an array .*: give rows of one shape"),
        ({"nodes": {"x": torch.tensor(3)}}, "single number"),
        ({"nodes": {"../x": np.zeros(3)}}, "not a name for an array"),
        ({"nodes": {"x\n": np.zeros(3)}}, "not a name for an array"),
        ({"indices": [0.0, 1.0, 2.0]}, "give whole numbers"),
        ({"indices": [[0, 1, 2]]}, "give whole numbers"),
        ({"edge_id": [0, 1]}, r"graph/edge_id as int32 \[2\] does not fit"),
        ({"indptr": []}, "indptr is empty"),
        ({"splits": {"train": [True, False]}}, "bool mask"),
        ({"splits": {"train": [0.5]}}, "whole numbers"),
        ({"splits": {"train": np.uint8([0, 1, 0])}}, r"uint8: give mask.*numpy.unique\(ids\)"),
        ({"splits": {"train": [[0]]}}, "give node ids"),
        ({"classes": ["a\x1b[2J"]}, "control characters"),
    ):
        with refused(tmp_path, match):
            write_store(tmp_path / "s", **(GRAPH | {"nodes": {}} | change))


def test_index_pointers_are_checked_across_chunks(tmp_path):
    def write(*chunks: list[int]) -> None:
        with StoreWriter(tmp_path / "s", 3, 3) as writer:
            indptr = writer.array("graph/indptr", "int64", [4])
            for chunk in chunks:
                indptr.write(chunk)

    with pytest.raises(StoreError, match="decreases at node 2"):
        write([0, 2], [1, 3])


def test_values_that_do_not_fit(tmp_path):
    for dtype, values, bad in (
        ("uint8", [300], "300"),
        ("uint8", [-1], "-1"),
        ("uint64", np.array([-1]), "-1"),
        ("int64", [0.5], "0.5"),
        ("int32", [float("nan")], "nan"),
        ("float16", [1e6], "1000000.0"),
        ("bool", [2], "2"),
        ("bfloat16", np.array([1], np.uint16), "bits"),
    ):
        with refused(tmp_path, re.escape(bad)), StoreWriter(tmp_path / "s", 1, 0) as writer:
            writer.array("nodes/x", dtype, [1]).write(values)


def test_incomplete_arrays_and_stores_are_refused(tmp_path):
    def partly() -> None:
        with StoreWriter(tmp_path / "s", 3, 0) as writer:
            x = writer.array("nodes/x", "int8", [3])
            x.write([1])
            with pytest.raises(ConfigError, match="2 rows are not written yet"):
                x.write([1, 2, 3])
            with pytest.raises(ConfigError, match="do not fit"):
                x.write([[1]])
            with pytest.raises(ConfigError, match="begun already"):
                writer.array("nodes/x", "int8", [3])
            with pytest.raises(ConfigError, match="edges/x and nodes/x: a batch has one"):
                writer.array("edges/x", "int8", [0])

    with refused(tmp_path, "nodes/x has 1 of its 3 rows"):
        partly()
    with refused(tmp_path, "graph/indptr is not written"), StoreWriter(tmp_path / "s", 3, 0):
        pass
    with pytest.raises(ConfigError, match="with block"):
        StoreWriter(tmp_path / "s", 3, 0).array("nodes/x", "int8", [3])
    writer = StoreWriter(tmp_path / "s", 3, 0)
    with contextlib.suppress(KeyError), writer:
        x = writer.array("nodes/x", "int8", [3])
        raise KeyError
    with pytest.raises(ConfigError, match="with block"):
        x.write([1])
    assert left(tmp_path) == []


def test_made_by_is_made_printable(tmp_path):
    store = write_store(tmp_path / "s", **GRAPH, nodes={}, made_by="a\x1b[2Jb\udc80")
    assert open(store.path).info.made_by == "a?[2Jb?"

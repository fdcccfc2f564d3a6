"""A store exists whole or not at all; errors for what it cannot hold name the remedy."""

from __future__ import annotations

import contextlib
import errno
import gc
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.store import StoreWriter, open, write_store
from gnndrive.store import array_writer as array_writer_module
from gnndrive.store import writer as writer_module

GRAPH = {"indptr": [0, 1, 1, 3], "indices": [2, 0, 1]}


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_an_exception_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def write() -> None:
        with StoreWriter(tmp_path / "s", 3, 3) as writer:
            writer.write("graph/indptr", GRAPH["indptr"])
            writer.array("nodes/x", "float32", (3, 2)).write(np.zeros((1, 2)))
            assert not (tmp_path / "s").exists()
            raise error

    with pytest.raises(type(error)):
        write()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("after", range(0, 9, 2))
def test_a_failing_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, after: int
) -> None:
    calls = 0
    real = writer_module.write_all

    def failing(fd: int, view: memoryview) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            raise OSError(number, "simulated")
        real(fd, view)

    for module in (writer_module, array_writer_module):
        monkeypatch.setattr(module, "write_all", failing)
    full = number != errno.EIO
    match = r"the store needs [0-9,]+ bytes and [0-9,]+ are free" if full else "writing .* failed"
    with pytest.raises(StoreError, match=match) as caught:
        write_store(tmp_path / "s", **GRAPH, nodes={"x": np.ones((3, 4)), "y": [0, 1, 2]})
    assert str(tmp_path / "s") in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_sync_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(folder: Path) -> None:
        raise OSError(errno.EIO, "simulated")

    monkeypatch.setattr(writer_module, "fsync_folder", failing)
    with pytest.raises(StoreError, match=r"writing .* failed"):
        write_store(tmp_path / "s", **GRAPH, nodes={})
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_free_bytes", lambda folder: 2_000_000)
    for module in (writer_module, array_writer_module):
        monkeypatch.setattr(module, "write_all", lambda fd, view: pytest.fail("it wrote"))
    with pytest.raises(StoreError, match=r"needs 4,0[0-9,]+ bytes and 2,000,000 are free"):
        write_store(
            tmp_path / "s", **GRAPH, nodes={"x": np.ones((3, 1_000_000), np.float32)[:, :333_333]}
        )
    assert list(tmp_path.iterdir()) == []


def test_an_existing_path_is_left_alone(tmp_path: Path) -> None:
    old = write_store(tmp_path / "s", **GRAPH, nodes={"y": [1, 1, 1]})
    with pytest.raises(ConfigError, match="overwrite"):
        write_store(tmp_path / "s", **GRAPH, nodes={})
    assert open(tmp_path / "s").info == old.info


def test_overwrite_replaces_whole_or_not_at_all(tmp_path: Path) -> None:
    old = write_store(tmp_path / "s", **GRAPH, nodes={"y": [1, 1, 1]})
    with pytest.raises(StoreError):
        write_store(tmp_path / "s", indptr=[0, 1], indices=[5], nodes={}, overwrite=True)
    assert open(tmp_path / "s").info == old.info
    write_store(tmp_path / "s", **GRAPH, nodes={"y": [1, 1, 4]}, overwrite=True)
    assert open(tmp_path / "s").num_classes == 5
    assert [file.name for file in tmp_path.iterdir()] == ["s"]


def test_an_overwrite_that_fails_puts_the_old_store_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write_store(tmp_path / "s", **GRAPH, nodes={"y": [1, 1, 1]})
    real = writer_module.os.rename

    def rename(source: Path, target: Path) -> None:
        if str(source).endswith(".tmp"):
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(writer_module.os, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        write_store(tmp_path / "s", **GRAPH, nodes={}, overwrite=True)
    assert open(tmp_path / "s").info == old.info
    assert [file.name for file in tmp_path.iterdir()] == ["s"]


def test_overwrite_replaces_only_stores(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years")
    with pytest.raises(ConfigError, match="not a store"):
        write_store(tmp_path / "home", **GRAPH, nodes={}, overwrite=True)
    assert (tmp_path / "home" / "thesis.tex").read_text() == "years"


def test_a_missing_parent_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere is not there"):
        write_store(tmp_path / "nowhere" / "s", **GRAPH, nodes={})


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"indices": [2, 3, 1]}, "edge 1 names 3, but there are 3 nodes"),
        ({"indices": [2, 0, -1]}, "edge 2 names -1"),
        ({"indices": np.array([2, 0, 2**32], np.int64)}, "edge 2 names 4294967296"),
        ({"indptr": [0, 2, 1, 3]}, "decreases at node 2"),
        ({"indptr": [1, 1, 1, 3]}, "starts with 1"),
        ({"indptr": [0, 1, 1, 2]}, "ends with 2, but there are 3 edges"),
        ({"edge_id": [0, 1, 3]}, "edge 2 names 3, but there are 3 edges"),
        ({"splits": {"train": [0, 3]}}, "train.npy: entry 1 names 3"),
    ],
)
def test_invalid_graphs_are_refused(tmp_path: Path, change, match: str) -> None:
    with pytest.raises(StoreError, match=match):
        write_store(tmp_path / "s", **(GRAPH | {"nodes": {}} | change))
    assert list(tmp_path.iterdir()) == []


def test_index_pointers_are_checked_across_chunks(tmp_path: Path) -> None:
    def write(*chunks: list[int]) -> None:
        with StoreWriter(tmp_path / "s", 3, 3) as writer:
            indptr = writer.array("graph/indptr", "int64", [4])
            for chunk in chunks:
                indptr.write(chunk)

    with pytest.raises(StoreError, match="decreases at node 2"):
        write([0, 2], [1, 3])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            {"nodes": {"x": np.zeros((2, 3))}},
            r"nodes/x as float64 \[2, 3\] does not fit a store of 3 nodes",
        ),
        ({"edges": {"w": np.zeros(4)}}, r"edges/w as float64 \[4\] does not fit"),
        ({"nodes": {"x": np.zeros(3, complex)}}, "complex128.*convert to one of"),
        ({"nodes": {"x": np.array(["a", "b", "c"])}}, "convert to one of"),
        ({"nodes": {"x": [[1], [2, 3], [4]]}}, "is not an array .*: give rows of one shape"),
        ({"nodes": {"x": torch.eye(3).to_sparse()}}, "sparse"),
        ({"nodes": {"x": torch.tensor(3)}}, "single number"),
        ({"nodes": {"../x": np.zeros(3)}}, "not a name for an array"),
        ({"nodes": {"a/b": np.zeros(3)}}, "not a name for an array"),
        ({"nodes": {"x\n": np.zeros(3)}}, "not a name for an array"),
        ({"indices": [0.0, 1.0, 2.0]}, "give whole numbers"),
        ({"edge_id": [0, 1]}, r"graph/edge_id as int32 \[2\] does not fit"),
        ({"indices": [[0, 1, 2]]}, "give whole numbers"),
        ({"indptr": []}, "indptr is empty"),
        ({"splits": {"train": [True, False]}}, "bool mask"),
        ({"splits": {"train": [0.5]}}, "whole numbers"),
        ({"splits": {"train": [[0]]}}, "give node ids"),
        ({"classes": ["a\x1b[2J"]}, "control characters"),
    ],
)
def test_invalid_arguments_are_refused(tmp_path: Path, change, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        write_store(tmp_path / "s", **(GRAPH | {"nodes": {}} | change))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("dtype", "values", "bad"),
    [
        ("uint8", [300], "300"),
        ("uint8", [-1], "-1"),
        ("uint64", np.array([-1]), "-1"),
        ("int64", [0.5], "0.5"),
        ("int32", [float("nan")], "nan"),
        ("float16", [1e6], "1000000.0"),
        ("bool", [2], "2"),
        ("bfloat16", np.array([1], np.uint16), "bits"),
    ],
)
def test_values_that_do_not_fit(tmp_path: Path, dtype: str, values, bad: str) -> None:
    with (
        pytest.raises(ConfigError, match=re.escape(bad)),
        StoreWriter(tmp_path / "s", 1, 0) as writer,
    ):
        writer.array("nodes/x", dtype, [1]).write(values)


def test_values_that_fit_are_converted(tmp_path: Path) -> None:
    cases = [
        ("float32", np.array([1.1, np.inf, np.nan])),
        ("uint8", np.array([1, 255, 0], np.int64)),
        ("bfloat16", np.array([1.0, 2.5, np.nan], np.float64)),
        ("bfloat16", np.array([1, 0, 3], np.uint8)),
        ("float64", torch.tensor([1.5, 2.5, 0.0]).bfloat16()),
    ]
    for number, (dtype, values) in enumerate(cases):
        with StoreWriter(tmp_path / str(number), 3, 0) as writer:
            writer.write("graph/indptr", [0, 0, 0, 0])
            writer.write("graph/indices", np.empty(0, np.int32))
            writer.write("nodes/x", values, dtype)
        got = open(tmp_path / str(number)).tensor("x")
        wanted = torch.as_tensor(values).to(got.dtype)
        assert torch.equal(got.nan_to_num(), wanted.nan_to_num())


def test_incomplete_arrays_and_stores_are_refused(tmp_path: Path) -> None:
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

    with pytest.raises(ConfigError, match="nodes/x has 1 of its 3 rows"):
        partly()
    with (
        pytest.raises(ConfigError, match="graph/indptr is not written"),
        StoreWriter(tmp_path / "s", 3, 0),
    ):
        pass
    with pytest.raises(ConfigError, match="with block"):
        StoreWriter(tmp_path / "s", 3, 0).array("nodes/x", "int8", [3])
    assert list(tmp_path.iterdir()) == []


def test_made_by_is_made_printable(tmp_path: Path) -> None:
    store = write_store(tmp_path / "s", **GRAPH, nodes={}, made_by="a\x1b[2Jb\udc80")
    assert open(store.path).info.made_by == "a?[2Jb?"


def test_all_descriptors_are_closed(tmp_path: Path) -> None:
    gc.collect()  # other tests may have left descriptors in cycles
    before = len(list(Path("/proc/self/fd").iterdir()))
    write_store(tmp_path / "s", **GRAPH, nodes={"x": np.ones((3, 2))})
    with pytest.raises(StoreError):
        write_store(tmp_path / "t", indptr=[0, 1], indices=[7], nodes={})
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_header_that_cannot_be_written_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(fd: int, view: memoryview) -> None:
        raise OSError(errno.ENOSPC, "simulated")

    def write() -> None:
        with StoreWriter(tmp_path / "s", 3, 0) as writer:
            writer.array("nodes/x", "int8", [3])

    monkeypatch.setattr(array_writer_module, "write_all", failing)
    gc.collect()  # other tests may have left descriptors in cycles
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(StoreError, match="too full"):
        write()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_an_array_of_a_closed_writer_takes_no_rows(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s", 3, 0)
    with contextlib.suppress(KeyError), writer:
        x = writer.array("nodes/x", "int8", [3])
        raise KeyError
    with pytest.raises(ConfigError, match="with block"):
        x.write([1])


def test_all_is_synced_before_the_rename(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before: list[str] = []
    real = writer_module.os.rename

    def rename(source: Path, target: Path) -> None:
        before.extend(synced)
        real(source, target)

    monkeypatch.setattr(writer_module.os, "rename", rename)
    store = write_store(
        tmp_path / "s", **GRAPH, nodes={"x": np.ones((3, 2))}, splits={"train": [1]}
    )
    folder = before[-1]
    names = {str(Path(name).relative_to(folder)) for name in before}
    whole = {str(file.relative_to(store.path)) for file in store.path.rglob("*")}
    assert names == whole | {"."}
    assert synced[-1] == str(tmp_path)

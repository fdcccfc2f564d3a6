"""Traces: what was written comes back, with each row's next use; full, failing and odd disks."""

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.sampler import HeteroSamplerOutput

from gnndrive.common.errors import ReadError, StoreError
from gnndrive.common.ffi import lib, pointer
from gnndrive.common.records import Codes, Int64Array, NodeKey, Sample, Seeds, Subgraph
from gnndrive.sampling.samplers.base import Bounds
from gnndrive.sampling.trace import RecordSize, Trace
from gnndrive.store.types import Types
from tests.buffer.test_codes import codes_of

ROWS = 300
TYPES = Types.of(ROWS, 10_000)
NONE = lib.GD_NO_CODE


def drawn(index: int, edge_dtype: Any = np.int32, nodes: int = 40) -> tuple[Seeds, Sample]:
    """A batch of five seeds, one of which comes twice."""
    draw = np.random.default_rng(index)
    node = draw.choice(ROWS, nodes, replace=False)
    node[1] = node[0]
    edges = int(draw.integers(0, 90))
    colptr = np.sort([0, *draw.integers(0, edges + 1, 19), edges]).astype(np.int32)
    row = draw.integers(0, nodes, edges).astype(np.int32)
    edge = draw.integers(0, 10_000, edges).astype(edge_dtype)
    sample = Sample(node, row, colptr, edge, (5, nodes - 5), (edges,))
    return Seeds(index, node[:5].copy(), draw.integers(0, 99, 5), dealt=index + 1), sample


def told(batch: tuple[Seeds, Sample]) -> list[Any]:
    values = [getattr(each, name) for each in batch for name in each.__slots__]
    arrays = (isinstance(each, np.ndarray) for each in values)
    return [
        (each.dtype, each.tolist()) if is_array else each
        for each, is_array in zip(values, arrays, strict=True)
    ]


def with_uses(trace: Trace, first: int, end: int) -> Codes:
    """Make the pass backwards; returns the first uses."""
    last: dict[NodeKey, Codes] = {None: np.full(ROWS, NONE, np.uint16)}
    for index in range(end - 1, first - 1, -1):
        trace.add_next_uses(index, last)
    return last[None]


@pytest.fixture
def trace(tmp_path):
    made = Trace(tmp_path, TYPES)
    yield made
    made.close()
    made.close()


def assert_comes_back(trace: Trace, batches: list[tuple[Seeds, Sample]]) -> None:
    """Make the pass backwards, then take each batch; they are numbered in a row."""
    first = batches[0][0].index
    last = with_uses(trace, first, first + len(batches))
    nodes = [sample.node for _, sample in batches]
    codes, firsts = codes_of([tuple(each.tolist()) for each in nodes], ROWS, first)
    for place, written in enumerate(batches):
        seeds, sample, uses = trace.take(first + place)
        assert told((seeds, sample)) == told(written)
        np.testing.assert_array_equal(uses[None].codes, codes[place])
        np.testing.assert_array_equal(uses[None].near, near_by_search(nodes, place))
    np.testing.assert_array_equal(last, firsts)


@pytest.mark.parametrize(("edge_dtype", "first"), [(np.int32, 0), (np.int64, NONE - 3)])
def test_samples_come_back_with_their_next_uses(tmp_path, edge_dtype, first):
    trace = Trace(tmp_path, Types.of(ROWS, 1 << 31 if edge_dtype is np.int64 else 10_000))
    batches = [drawn(first + place, edge_dtype, nodes=30 + place) for place in range(8)]
    for place in np.random.default_rng(0).permutation(8):
        assert trace.write(*batches[place])
    assert_comes_back(trace, batches)
    trace.close()


def near_by_search(nodes: list[Int64Array], place: int) -> list[int]:
    """How many rows there are, and how many of them come again after 1, 2, … batches."""
    rows = set(nodes[place].tolist())
    later = nodes[place + 1 :]
    distances = [next((k for k, each in enumerate(later, 1) if row in each), 0) for row in rows]
    return [len(rows), *(distances.count(d) for d in range(1, lib.GD_NEAR))]


def test_a_file_without_a_name_that_gives_its_blocks_back(trace, tmp_path):
    """And is no larger than planned."""
    records, most = RecordSize(TYPES, "sample", False, 5, 8), 0
    for index in range(20):
        seeds, sample = drawn(index, nodes=200)
        trace.write(seeds, sample)
        nodes, edges = {None: 200}, {None: sample.num_edges}
        most += records.nbytes(Bounds(nodes, edges, nodes, 20))
        assert trace.nbytes <= most
    with_uses(trace, 0, 20)
    assert os.listdir(tmp_path) == []
    blocks = [os.fstat(trace._file.fd).st_blocks]
    for index in range(20):
        trace.take(index)
        blocks.append(os.fstat(trace._file.fd).st_blocks)
    assert blocks == sorted(blocks, reverse=True)
    assert blocks[0] >= trace.nbytes // 512 > blocks[10] > blocks[-1]


def failing(number: int, after: int = 0, write: Any = os.pwrite) -> Callable[..., int]:
    calls = count()

    def fail(*arguments: Any) -> int:
        if next(calls) >= after:
            raise OSError(number, os.strerror(number))
        return int(write(*arguments))

    return fail


@pytest.mark.parametrize("written", [3, 6])
def test_a_full_disk_leaves_samples_or_codes_in_memory(trace, monkeypatch, written):
    """Codes if all samples were written: as on a file system that writes no block in place."""
    batches = [drawn(index) for index in range(6)]
    monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC, written))
    assert [trace.write(*batch) for batch in batches] == [place < written for place in range(6)]
    assert_comes_back(trace, batches)


def test_a_failing_disk_is_an_error_that_names_the_folder(trace, tmp_path, monkeypatch):
    trace.write(*drawn(0))
    with_uses(trace, 0, 1)
    for call in ("pwrite", "preadv"):
        monkeypatch.setattr(os, call, failing(errno.EIO))
    with pytest.raises(StoreError, match=f"{tmp_path}.*folder="):
        trace.write(*drawn(1))
    with pytest.raises(ReadError, match=str(tmp_path)):
        trace.take(0)
    with pytest.raises(StoreError, match="folder="):
        Trace(tmp_path / "none", TYPES)


@pytest.mark.parametrize(
    ("flag", "number"), [(os.O_DIRECT, errno.EINVAL), (os.O_TMPFILE, errno.EOPNOTSUPP)]
)
def test_file_systems_without_direct_or_unnamed_files(tmp_path, monkeypatch, flag, number):
    open_ = os.open

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & flag == flag:
            raise OSError(number, os.strerror(number))
        return open_(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    trace = Trace(tmp_path, TYPES)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == []
    trace.write(*drawn(3))
    assert_comes_back(trace, [drawn(3)])
    trace.close()


def test_requests_that_are_refused_go_through_the_page_cache(trace, monkeypatch):
    """On a file system that accepts O_DIRECT, also by four writers at the same time."""
    write, together = os.pwrite, threading.Barrier(4)

    def refuse_direct(fd: int, memory: Any, offset: int) -> int:
        if trace._file.direct:
            together.wait()
            raise OSError(errno.EINVAL, "alignment")
        return write(fd, memory, offset)

    monkeypatch.setattr(os, "pwrite", refuse_direct)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda i: trace.write(*drawn(i)), range(4))) == [True] * 4
    assert_comes_back(trace, [drawn(i) for i in range(4)])


def test_patched_codes():
    codes, ids = np.array([NONE, 3, NONE], np.uint16), np.array([2, 0, 1])
    later = np.array([7, NONE, 8], np.uint16)
    assert lib.gd_trace_patch(pointer(codes), pointer(ids), 3, pointer(later)) == 2
    assert codes.tolist() == [8, 3, NONE]


def test_nodes_of_each_type_have_next_uses_of_their_own(tmp_path):
    counts, to = {"a": ROWS, "b": 50}, ("a", "to", "b")
    trace, written = Trace(tmp_path, Types.of(counts, {to: 99})), list[Subgraph]()
    for index in range(6):
        draw = np.random.default_rng(index)
        node = {type: draw.choice(count, 20) for type, count in counts.items()}
        tensors = {type: torch.from_numpy(ids) for type, ids in node.items()}
        edge = {to: torch.arange(9)}
        output = HeteroSamplerOutput(
            tensors, edge, edge, edge, None, {"a": [0, 20], "b": [5, 15]}, {to: [9]},
            metadata=(torch.arange(5), None),
        )  # fmt: skip
        written.append(Subgraph(node, {to: edge[to].numpy()}, 9, output))
        assert trace.write(Seeds(index, node["b"][:5], np.arange(5), type="b"), written[-1])
    last = {type: np.full(count, NONE, np.uint16) for type, count in counts.items()}
    for index in reversed(range(6)):
        trace.add_next_uses(index, last)
    for index, sample in enumerate(written):
        _, read, uses = trace.take(index)
        assert not read.numbered
        for type, most in counts.items():
            nodes = [each.node[type] for each in written]
            codes, firsts = codes_of([tuple(each.tolist()) for each in nodes], most, 0)
            np.testing.assert_array_equal(read.node[type], sample.node[type])
            np.testing.assert_array_equal(uses[type].codes, codes[index])
            np.testing.assert_array_equal(uses[type].near, near_by_search(nodes, index))
            np.testing.assert_array_equal(last[type], firsts)
    trace.close()

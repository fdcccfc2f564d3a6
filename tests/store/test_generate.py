"""The planted graph: slices equal the whole, and neighbours' features tell the community."""

import numpy as np
import pytest

from gnndrive.common.errors import ConfigError
from gnndrive.store import generate
from gnndrive.store.generate import Computed, planted, planted_communities

NODES = 10_000


@pytest.fixture(scope="module")
def graph():
    return planted(num_nodes=NODES, dim=64, classes=8, seed=3)


@pytest.fixture(scope="module")
def indices(graph):
    return graph.indices[:]


def accuracy(graph, rows):
    """The accuracy of choosing the community whose mean row is nearest in angle."""
    known = np.stack([rows[graph.y == label].mean(0) for label in range(8)])
    known /= np.linalg.norm(known, axis=1, keepdims=True)
    return float(np.mean((rows @ known.T).argmax(1) == graph.y))


def test_slices_across_blocks_equal_the_whole():
    calls: list[int] = []

    def compute(block, start, stop):
        calls.append(block)
        return np.arange(start, stop) * 10

    array = Computed((23,), np.int64, 5, compute)
    whole = [10 * i for i in range(23)]
    assert array[:].tolist() == np.concatenate(list(array.blocks())).tolist() == whole
    for start in range(24):
        for stop in range(24):
            assert array[start:stop].tolist() == whole[start:stop]
    calls.clear()
    _ = array[0:2], array[2:4], array[4:6]
    assert calls == [0, 1]  # slices in order compute each block once


def test_edges_are_in_range_mostly_within_and_skewed(graph, indices):
    assert indices.min() >= 0
    assert indices.max() < NODES
    degrees = np.diff(graph.indptr)
    assert degrees.min() >= 1
    assert degrees.mean() == pytest.approx(15, rel=0.05)
    assert degrees.max() > 10 * degrees.mean()
    within = np.mean(graph.y[indices] == np.repeat(graph.y, degrees))
    assert within == pytest.approx(0.8 + 0.2 / 8, abs=0.01)
    uses = np.bincount(indices, minlength=NODES)
    assert np.sort(uses)[::-1][: NODES // 100].sum() > 0.15 * len(indices)
    for each in (graph.y, uses):  # a node's number tells neither its community nor its popularity
        assert abs(np.corrcoef(np.arange(NODES), each)[0, 1]) < 0.03


def test_neighbours_help_and_features_alone_do_not(graph, indices):
    x = graph.x[:]
    once = np.add.reduceat(x[indices], graph.indptr[:-1]) / np.diff(graph.indptr)[:, None]
    assert 1 / 8 < accuracy(graph, x) < 0.45
    assert accuracy(graph, once) > accuracy(graph, x) + 0.2
    again, other = (planted(num_nodes=NODES, dim=64, classes=8, seed=seed) for seed in (3, 4))
    assert np.array_equal(again.indices[123:4567], indices[123:4567])
    assert np.array_equal(again.x[9000:], x[9000:])
    assert not np.array_equal(other.y, graph.y)


def test_numbers_out_of_range_are_refused():
    for given, message in (
        ({"num_nodes": 0}, "num_nodes >= classes"),
        ({"num_nodes": 3, "classes": 4}, "num_nodes >= classes"),
        ({"degree": 0.5}, "at least 1"),
        ({"fractions": {"train": 0.9, "test": 0.2}}, "add up to 1 or less"),
        ({"seed": -1}, "seed=-1"),
    ):
        with pytest.raises(ConfigError, match=message):
            planted(**{"num_nodes": 100, **given})
    with pytest.raises(TypeError, match="slices of rows, not single rows"):
        planted(100).x[0]


def test_the_store_holds_exactly_the_graph(tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "BLOCK_ROWS", 70)
    monkeypatch.setattr(generate, "BLOCK_EDGES", 300)
    told: list[tuple[str, int, int]] = []
    shape = {"num_nodes": 300, "dim": 5, "classes": 4, "degree": 6, "seed": 9}
    planted_communities(tmp_path / "g.gnn", **shape, progress=lambda *step: told.append(step))
    graph = planted(**shape)
    arrays = {"graph/indptr": graph.indptr, "graph/indices": graph.indices[:]}
    arrays |= {"nodes/x": graph.x[:], "nodes/y": graph.y}
    arrays |= {f"splits/{name}": ids for name, ids in graph.splits.items()}
    for name, expected in arrays.items():
        assert np.array_equal(np.load(tmp_path / "g.gnn" / f"{name}.npy", mmap_mode="r"), expected)
    assert ("nodes/x", 300 * 20, 300 * 20) in told
    assert {name: len(ids) for name, ids in graph.splits.items()} == {
        "train": 30, "val": 15, "test": 15,
    }  # fmt: skip
    assert len(np.unique(np.concatenate(list(graph.splits.values())))) == 60

"""The planted graph: slices equal the whole, and neighbours' features tell the community."""

from pathlib import Path

import numpy as np
import pytest

from gnndrive.common.errors import ConfigError
from gnndrive.store.generate import Computed, Planted, planted, planted_communities


@pytest.fixture(scope="module")
def graph() -> Planted:
    return planted(num_nodes=20_000, dim=64, classes=8, seed=3)


def owners(graph: Planted) -> np.ndarray:
    """The node that each edge goes to."""
    return np.repeat(np.arange(len(graph.y)), np.diff(graph.indptr))


def neighbour_mean(graph: Planted, rows: np.ndarray) -> np.ndarray:
    """For each node, the mean of `rows` over its in-neighbours."""
    total = np.zeros_like(rows)
    np.add.at(total, owners(graph), rows[graph.indices[:]])
    return total / np.diff(graph.indptr)[:, None]


def accuracy(graph: Planted, rows: np.ndarray) -> float:
    """The accuracy of choosing the community whose mean row is nearest in angle."""
    known = np.stack([rows[graph.y == label].mean(0) for label in range(8)])
    known /= np.linalg.norm(known, axis=1, keepdims=True)
    return float(np.mean((rows @ known.T).argmax(1) == graph.y))


def test_slices_across_blocks_equal_the_whole():
    calls: list[int] = []

    def compute(block: int, start: int, stop: int) -> np.ndarray:
        calls.append(block)
        return np.arange(start, stop) * 10

    array = Computed((23,), np.int64, 5, compute)
    whole = array[:]
    assert whole.tolist() == [10 * i for i in range(23)]
    assert np.concatenate(list(array.blocks())).tolist() == whole.tolist()
    for start in range(24):
        for stop in range(24):
            assert array[start:stop].tolist() == whole[start:stop].tolist()
    calls.clear()
    _ = array[0:2], array[2:4], array[4:6]
    assert calls == [0, 1]  # slices in order compute each block once


def test_only_slices_of_step_1_are_computed():
    array = Computed((4,), np.int64, 2, lambda block, start, stop: np.arange(start, stop))
    with pytest.raises(TypeError, match="slices"):
        array[1]  # type: ignore[index]
    with pytest.raises(ValueError, match="step 1"):
        array[::2]


def test_slices_of_indices_and_features_are_the_same_at_every_call(graph: Planted):
    x, indices = graph.x[:], graph.indices[:]
    assert x.dtype == np.float32
    assert indices.dtype == np.int32
    assert np.array_equal(graph.x[16_380:16_390], x[16_380:16_390])
    again = planted(num_nodes=20_000, dim=64, classes=8, seed=3)
    assert np.array_equal(again.indices[123:4567], indices[123:4567])
    assert np.array_equal(again.x[19_000:], x[19_000:])


def test_another_seed_gives_another_graph(graph: Planted):
    other = planted(num_nodes=20_000, dim=64, classes=8, seed=4)
    assert not np.array_equal(other.y, graph.y)
    assert not np.array_equal(other.indptr, graph.indptr)
    assert not np.array_equal(other.x[:10], graph.x[:10])


def test_edges_are_in_range_mostly_within_and_skewed(graph: Planted):
    indices = graph.indices[:]
    assert indices.min() >= 0
    assert indices.max() < 20_000
    degrees = np.diff(graph.indptr)
    assert degrees.min() >= 1
    assert degrees.mean() == pytest.approx(15, rel=0.05)
    assert degrees.max() > 10 * degrees.mean()
    within = np.mean(graph.y[indices] == graph.y[owners(graph)])
    assert within == pytest.approx(0.8 + 0.2 / 8, abs=0.01)
    uses = np.bincount(indices, minlength=20_000)
    popular = np.sort(uses)[::-1][: 20_000 // 100]
    assert popular.sum() > 0.15 * len(indices)


def test_ids_do_not_correlate_with_community_or_popularity(graph: Planted):
    ids = np.arange(20_000)
    uses = np.bincount(graph.indices[:], minlength=20_000)
    assert abs(np.corrcoef(ids, graph.y)[0, 1]) < 0.03
    assert abs(np.corrcoef(ids, uses)[0, 1]) < 0.03


def test_neighbours_help_and_features_alone_do_not(graph: Planted):
    x = graph.x[:]
    once = neighbour_mean(graph, x)
    alone, one_hop, two_hops = (
        accuracy(graph, rows) for rows in (x, once, neighbour_mean(graph, once))
    )
    assert 1 / 8 < alone < 0.45
    assert one_hop > alone + 0.2
    assert two_hops > 0.85


def test_splits_are_disjoint_and_of_their_sizes(graph: Planted):
    assert {name: len(ids) for name, ids in graph.splits.items()} == {
        "train": 2000, "val": 1000, "test": 1000,
    }  # fmt: skip
    together = np.concatenate(list(graph.splits.values()))
    assert len(np.unique(together)) == 4000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_nodes": 0}, "num_nodes >= classes"),
        ({"num_nodes": 3, "classes": 4}, "num_nodes >= classes"),
        ({"dim": 0}, "dim >= 1"),
        ({"degree": 0.5}, "at least 1"),
        ({"fractions": {"train": 0.9, "test": 0.2}}, "add up to 1 or less"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        planted(**{"num_nodes": 100, **arguments})


@pytest.mark.parametrize("nodes", [1, 2, 17])
def test_the_smallest_graphs_have_all_their_parts(nodes: int):
    small = planted(num_nodes=nodes, dim=3, classes=min(nodes, 2), seed=1)
    assert small.indices[:].max() < nodes
    assert small.x[:].shape == (nodes, 3)


def test_the_store_holds_exactly_the_graph(tmp_path: Path):
    told: list[tuple[str, int, int]] = []
    shape = {"num_nodes": 3_000, "dim": 5, "classes": 4, "degree": 6, "seed": 9}
    planted_communities(tmp_path / "g.gnn", **shape, progress=lambda *step: told.append(step))
    graph = planted(**shape)

    def held(name: str) -> np.ndarray:
        return np.load(tmp_path / "g.gnn" / f"{name}.npy", mmap_mode="r")

    assert np.array_equal(held("graph/indptr"), graph.indptr)
    assert np.array_equal(held("graph/indices"), graph.indices[:])
    assert np.array_equal(held("nodes/x"), graph.x[:])
    assert np.array_equal(held("nodes/y"), graph.y)
    for name, ids in graph.splits.items():
        assert np.array_equal(held(f"splits/{name}"), ids)
    assert ("nodes/x", 3_000 * 20, 3_000 * 20) in told

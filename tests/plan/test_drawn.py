"""What a plan counts for the largest batch, from a few that were drawn."""

from __future__ import annotations

import math
from statistics import stdev
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gnndrive.common.errors import BatchTooLarge
from gnndrive.common.records import Sample, Subgraph
from gnndrive.plan.drawn import (
    DEVIATIONS,
    GROWTH,
    MARGIN,
    MARGIN_OF_FEW,
    DrawnBatches,
    check_size,
    doubled,
    size_of,
)
from gnndrive.sampling.samplers.base import Bounds

ROWS = 10_000
MOST = Bounds({None: 10_000}, {None: 50_000}, {None: 10_000})


def bounds(nodes: int, edges: int, expanded: int | None = None) -> Bounds:
    return Bounds({None: nodes}, {None: edges}, {None: nodes}, expanded)


def drawn(*nodes: int, **more: Any) -> DrawnBatches:
    sizes = tuple(bounds(count, 2 * count, count // 2) for count in nodes)
    return DrawnBatches(sizes, {"nodes/x": tuple(np.cumsum(nodes).tolist())}, 10.0, 0.1, **more)


def sample(nodes: int, edges: int, expanded: int) -> Sample:
    row, colptr = np.zeros(edges, np.int32), np.zeros(expanded + 1, np.int32)
    return Sample(np.arange(nodes), row, colptr, row, (1, nodes - 1), (edges,))


def test_the_planned_size_is_the_largest_drawn_and_a_margin() -> None:
    planned = drawn(1_000, 1_010, 990, 1_020).planned(MOST)
    more = MARGIN * 1_020 + DEVIATIONS * stdev([1_000, 1_010, 990, 1_020])
    assert planned.nodes[None] == planned.entries[None] == int(1_020 + more) + 1
    assert planned.edges[None] > 2 * 1_020
    assert planned.expanded is not None
    assert 510 < planned.expanded < planned.nodes[None]
    assert drawn(1_000, 1_000).planned(MOST).nodes[None] == 1_000 * (1 + MARGIN_OF_FEW)
    assert drawn(9_990, 9_000, 9_500, 9_700).planned(MOST).nodes == {None: 10_000}


def test_a_small_type_has_room_beside_a_large_one() -> None:
    sizes = tuple(
        Bounds({"a": 10_000, "b": 0}, {("a", "to", "b"): 5}, {"a": 10_000, "b": 0})
        for _ in range(8)
    )
    most = Bounds({"a": 10**6, "b": 30}, {("a", "to", "b"): 7}, {"a": 10**6, "b": 30})
    planned = DrawnBatches(sizes, {}, 1.0, 0.1).planned(most)
    assert planned.nodes == {"a": 10_100, "b": 30}
    assert planned.edges == {("a", "to", "b"): 6}


def test_a_larger_batch_raises_the_planned_size_for_good() -> None:
    known = drawn(1_000, 1_000, 1_000, 1_000).with_larger(bounds(2_000, 3_000, 700))
    assert known.planned(MOST).nodes == {None: round(2_000 * (1 + GROWTH))}
    known = known.with_larger(bounds(1_900, 8_000, 600))
    assert known.larger == bounds(2_000, 8_000, 700)
    beyond = known.with_larger(bounds(12_000, 100, 5))  # seeds given twice
    assert beyond.planned(MOST).nodes == {None: 12_000}


def test_what_json_held_is_the_same() -> None:
    known = drawn(1_000, 1_010).with_larger(bounds(2_000, 3_000, 700))
    stored = known.to_json("settings")
    assert DrawnBatches.from_json(stored, MOST, {"nodes/x": ROWS}) == known
    for name, bad in (
        ("version", 0), ("sizes", []), ("sizes", [[[1], [2], [-3], 4]]), ("expanded", "x"),
        ("sizes", [[[1, 2], [2], [3], 4]]), ("larger", 3), ("together", {}),
        ("together", {"nodes/x": [1.5]}), ("together", {"nodes/x": []}),
        ("together", {"nodes/x": [5]}), ("together", {"nodes/x": [6, 5]}),
        ("together", {"nodes/x": [5, ROWS + 1]}), ("sample_s", math.nan), ("sample_s", -1),
        ("expanded", math.inf), ("sizes", [[[True], [2], [3], 4]]),
    ):  # fmt: skip
        assert DrawnBatches.from_json(stored | {name: bad}, MOST, {"nodes/x": ROWS}) is None
    assert DrawnBatches.from_json(None, MOST, {}) is None
    assert DrawnBatches.from_json([], MOST, {}) is None


def test_a_sample_within_the_limits_passes_and_a_larger_one_does_not() -> None:
    limits = bounds(20, 30, 10)
    check_size(sample(20, 30, 10), limits)
    for nodes, edges, expanded in ((21, 30, 10), (20, 31, 10), (20, 30, 11)):
        with pytest.raises(BatchTooLarge) as caught:
            check_size(sample(nodes, edges, expanded), limits)
        assert caught.value.size == bounds(nodes, edges, expanded)


def test_disjoint_trees_are_counted_by_entries_and_by_distinct_nodes() -> None:
    node = np.array([1, 2, 2, 3])
    output = SimpleNamespace(
        row=torch.zeros(5, dtype=torch.int64), batch=torch.tensor([0, 0, 1, 1])
    )
    subgraph = Subgraph({None: node}, {None: np.zeros(5, np.int64)}, 5, output)
    size = size_of(subgraph, MOST)
    assert (size.nodes, size.entries, size.edges) == ({None: 3}, {None: 4}, {None: 5})
    check_size(subgraph, Bounds({None: 3}, {None: 5}, {None: 4}))
    for limits in (((2,), (4,), (5,)), ((3,), (3,), (5,)), ((3,), (4,), (4,))):
        nodes, entries, edges = ({None: each[0]} for each in limits)
        with pytest.raises(BatchTooLarge):
            check_size(subgraph, Bounds(nodes, edges, entries))


def test_limits_grow_beyond_the_bounds() -> None:
    assert doubled(bounds(0, 600)) == bounds(1_024, 1_200)
    assert doubled(MOST).nodes[None] == 2 * MOST.nodes[None]

"""Seeds at positions among the input nodes or edges, as indexing a tensor has it; and that nobody
who writes into what he was given changes what anybody else sees."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gnndrive.records import Seeds
from gnndrive.schedules.base import InputEdges, InputNodes, Positions
from gnndrive.schedules.given import Given

COUNT = 5
IDS = torch.tensor([30, 10, 20, 50, 40])
TIMES = torch.tensor([3, 1, 2, 5, 4])


def all_nodes() -> InputNodes:
    return InputNodes(COUNT, time=TIMES)


def by_ids() -> InputNodes:
    return InputNodes(COUNT, IDS.clone(), time=TIMES)


def by_mask() -> InputNodes:
    return InputNodes(COUNT, IDS.clone(), by_position=False, time=TIMES)


def edges() -> InputEdges:
    def ends(at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return at + 100, at + 200, at

    return InputEdges(COUNT, ends, "edges", label=IDS, time=TIMES)


NODES = [all_nodes, by_ids, by_mask]
EVERY = pytest.mark.parametrize("inputs", [*NODES, edges], ids=lambda each: each.__name__)


def said(seeds: Seeds) -> Any:
    assert seeds.given is not None
    return seeds.given()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("inputs", "node", "input_id"),
    [
        (all_nodes, [4, 0, 4], [4, 0, -1]),
        (by_ids, [40, 30, 40], [4, 0, -1]),
        (by_mask, [40, 30, 40], [40, 30, 40]),
    ],
    ids=["all", "ids", "mask"],
)
def test_nodes(
    inputs: Callable[[], InputNodes], node: list[int], input_id: list[int], dtype: Any
) -> None:
    """`input_id` is the position as it was given, as PyG has it, or the node."""
    seeds = inputs().seeds(7, np.array([4, 0, -1], dtype))
    assert (seeds.index, seeds.of_edges, seeds.type) == (7, False, None)
    assert (seeds.node.tolist(), seeds.input_id.tolist()) == (node, input_id)
    assert seeds.node.dtype == seeds.input_id.dtype == np.int64
    given = said(seeds)
    assert (given.node.tolist(), given.input_id.tolist()) == (node, input_id)
    assert given.time.tolist() == [4, 3, 4]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_edges(dtype: Any) -> None:
    seeds = edges().seeds(7, np.array([4, 0, -1], dtype))
    assert (seeds.index, seeds.of_edges, seeds.type) == (7, True, None)
    assert seeds.input_id.tolist() == [4, 0, 4]
    given = said(seeds)
    assert (given.row.tolist(), given.col.tolist()) == ([104, 100, 104], [204, 200, 204])
    assert (given.label.tolist(), given.time.tolist()) == ([40, 30, 40], [4, 3, 4])


@EVERY
@pytest.mark.parametrize("position", [[COUNT], [0, -COUNT - 1], [2**40]], ids=str)
def test_a_position_out_of_range(
    inputs: Callable[[], InputNodes | InputEdges], position: list[int]
) -> None:
    with pytest.raises(IndexError, match=f"out of range: there are {COUNT}"):
        inputs().seeds(0, np.array(position))


@EVERY
def test_the_first_and_the_last_position(inputs: Callable[[], InputNodes | InputEdges]) -> None:
    first = inputs().seeds(0, np.array([-COUNT, 0])).node
    last = inputs().seeds(0, np.array([-1, COUNT - 1])).node
    assert first[0] == first[1] != last[0] == last[1]


@EVERY
def test_no_positions(inputs: Callable[[], InputNodes | InputEdges]) -> None:
    seeds = inputs().seeds(0, np.empty(0, np.int64))
    assert len(seeds.node) == len(seeds.input_id) == 0
    assert len(said(seeds).input_id) == 0


def test_no_input_nodes() -> None:
    for inputs in (InputNodes(0), InputNodes(0, IDS[:0])):
        assert len(inputs.seeds(0, np.empty(0, np.int64)).node) == 0
        with pytest.raises(IndexError, match="there are 0"):
            inputs.seeds(0, np.array([0]))


@EVERY
def test_what_was_given_may_be_written_to(inputs: Callable[[], InputNodes | InputEdges]) -> None:
    """Not the positions of the caller, nor other seeds of the same inputs, nor the inputs."""
    source = inputs()
    position: Positions = np.array([1, 3])
    before = source.seeds(0, position)
    kept = before.node.copy()
    given = said(source.seeds(0, position))
    for each in (given.input_id, given.time):
        each.fill_(-9)
    assert position.tolist() == [1, 3]
    assert before.node.tolist() == kept.tolist()
    assert source.seeds(0, position).node.tolist() == kept.tolist()
    assert TIMES.tolist() == [3, 1, 2, 5, 4]


@EVERY
def test_a_batchs_ids_are_apart_from_its_nodes(
    inputs: Callable[[], InputNodes | InputEdges],
) -> None:
    seeds = inputs().seeds(0, np.array([1, 3]))
    node = seeds.node.copy()
    said(seeds).input_id.fill_(-9)
    assert seeds.node.tolist() == node.tolist()


def test_ids_are_pickled_once() -> None:
    node = torch.arange(10_000)
    assert len(pickle.dumps(InputNodes(len(node), node))) < 1.5 * node.nbytes


@pytest.mark.parametrize(
    "batch",
    [[3, 0], torch.tensor([[3], [0]]), np.array([3, 0]), torch.tensor([3, 0], dtype=torch.int32)],
    ids=["list", "column", "numpy", "int32"],
)
def test_a_batch_samplers_batch(batch: Any) -> None:
    (window,) = Given(by_ids(), [batch]).windows(0)
    assert [seeds.node.tolist() for seeds in window] == [[50, 30]]

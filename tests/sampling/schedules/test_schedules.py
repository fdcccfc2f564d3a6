"""Input nodes and edges, and the schedules: which seeds a batch has, and in which order.

Positions mean what they mean in tensor indexing. Code that writes into the arrays of a batch must
not change other batches or the inputs.
"""

from __future__ import annotations

import pickle
import resource
from collections import Counter
from collections.abc import Callable
from math import factorial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import ffi, holding_gil, lib, pointer
from gnndrive.common.records import Seeds
from gnndrive.loader.epoch_state import VERSION
from gnndrive.sampling.schedules.base import InputEdges, InputNodes, Positions
from gnndrive.sampling.schedules.given import Given
from gnndrive.sampling.schedules.shuffled import Shuffled

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


def sampler_input(seeds: Seeds) -> Any:
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
    """As in PyG, `input_id` is the position as the caller gave it, or for a mask the node id."""
    seeds = inputs().seeds(7, np.array([4, 0, -1], dtype))
    assert (seeds.index, seeds.of_edges, seeds.type) == (7, False, None)
    assert (seeds.node.tolist(), seeds.input_id.tolist()) == (node, input_id)
    assert seeds.node.dtype == seeds.input_id.dtype == np.int64
    given = sampler_input(seeds)
    assert (given.node.tolist(), given.input_id.tolist()) == (node, input_id)
    assert given.time.tolist() == [4, 3, 4]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_edges(dtype: Any) -> None:
    seeds = edges().seeds(7, np.array([4, 0, -1], dtype))
    assert (seeds.index, seeds.of_edges, seeds.type) == (7, True, None)
    assert seeds.input_id.tolist() == [4, 0, 4]
    given = sampler_input(seeds)
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
    assert len(sampler_input(seeds).input_id) == 0


def test_no_input_nodes() -> None:
    for inputs in (InputNodes(0), InputNodes(0, IDS[:0])):
        assert len(inputs.seeds(0, np.empty(0, np.int64)).node) == 0
        with pytest.raises(IndexError, match="there are 0"):
            inputs.seeds(0, np.array([0]))


@EVERY
def test_writing_into_seeds_changes_nothing_else(
    inputs: Callable[[], InputNodes | InputEdges],
) -> None:
    """Neither the caller's positions, nor other seeds of the same inputs, nor the inputs."""
    source = inputs()
    position: Positions = np.array([1, 3])
    before = source.seeds(0, position)
    kept = before.node.copy()
    given = sampler_input(source.seeds(0, position))
    for each in (given.input_id, given.time):
        each.fill_(-9)
    assert position.tolist() == [1, 3]
    assert before.node.tolist() == kept.tolist()
    assert source.seeds(0, position).node.tolist() == kept.tolist()
    assert TIMES.tolist() == [3, 1, 2, 5, 4]


@EVERY
def test_input_ids_and_nodes_share_no_memory(
    inputs: Callable[[], InputNodes | InputEdges],
) -> None:
    seeds = inputs().seeds(0, np.array([1, 3]))
    node = seeds.node.copy()
    sampler_input(seeds).input_id.fill_(-9)
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
    assert [seeds.node.tolist() for seeds in window.batches] == [[50, 30]]


def epoch_of(schedule: Shuffled, epoch: int = 0) -> list[int]:
    batches = [seeds for window in schedule.windows(epoch) for seeds in window.batches]
    assert [seeds.index for seeds in batches] == list(range(len(schedule)))
    return [node for seeds in batches for node in seeds.node.tolist()]


@pytest.mark.parametrize("batch_size", [1, 7, 100, 1000, 20_000])
def test_every_input_node_comes_once(batch_size: int) -> None:
    """Also in batches so large that their order is drawn without the GIL."""
    schedule = Shuffled(InputNodes(20_001), batch_size, True, False, seed=3)
    assert sorted(epoch_of(schedule)) == list(range(20_001))


def test_an_order_does_not_depend_on_the_batch_size() -> None:
    orders = [epoch_of(Shuffled(InputNodes(1000), size, True, False, 3)) for size in (1, 7, 1000)]
    assert orders[0] == orders[1] == orders[2]


def test_drop_last_drops_the_end_of_the_order() -> None:
    whole = epoch_of(Shuffled(InputNodes(1000), 300, True, False, 3))
    assert epoch_of(Shuffled(InputNodes(1000), 300, True, True, 3)) == whole[:900]


def test_each_epoch_and_seed_has_its_own_order() -> None:
    """Also seed 1, epoch 0 and seed 0, epoch 1; an epoch left early changes no other epoch."""
    orders = set()
    for seed in range(4):
        schedule = Shuffled(InputNodes(100), 9, True, False, seed)
        next(schedule.windows(1))
        orders |= {tuple(epoch_of(schedule, epoch)) for epoch in (0, 1, 2, 0)}
    assert len(orders) == 12


def test_an_order_equals_that_of_the_version_before() -> None:
    """If this order changes, raise `gnndrive.loader.epoch_state.VERSION`: else a loader that is
    restored from a saved state would continue in another order."""
    order = [1, 5, 9, 6, 2, 7, 4, 8, 0, 3]
    assert (VERSION, epoch_of(Shuffled(InputNodes(10), 3, True, False, 3))) == (3, order)


def test_an_order_takes_memory_as_it_is_made() -> None:
    """The first thousand of 2^28 numbers (1 GiB) touch a thousand pages of 4 KiB, also on a kernel
    that uses huge pages by default."""
    before = resident_bytes()
    windows = Shuffled(InputNodes(1 << 28), 1000, True, False, 3).windows(0)
    next(windows)
    assert resident_bytes() - before < 100 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_an_order_larger_than_memory_is_refused() -> None:
    windows = Shuffled(InputNodes(1 << 43), 1000, True, False, 3).windows(0)
    with pytest.raises(ConfigError, match=r"order of 8,796,.* input nodes .*shuffle=False"):
        next(windows)


def test_every_order_is_as_likely_as_the_others() -> None:
    """Each of the 24 orders of four is expected 100 times in 2,400 seeds: chi-squared with 23
    degrees of freedom exceeds 50 once in a thousand times."""
    schedules = (Shuffled(InputNodes(4), 2, True, False, seed) for seed in range(2400))
    found = Counter(tuple(epoch_of(schedule)) for schedule in schedules)
    assert len(found) == factorial(4)
    assert sum((times - 100) ** 2 / 100 for times in found.values()) < 50


def test_nothing_to_shuffle() -> None:
    assert epoch_of(Shuffled(InputNodes(0), 10, True, False, 3)) == []
    assert epoch_of(Shuffled(InputNodes(1), 10, True, False, 3)) == [0]


@pytest.mark.parametrize("core", [lib, holding_gil], ids=["lib", "holding_gil"])
def test_orders_of_more_than_an_int32_can_count(core: Any) -> None:
    """They take 8 bytes for each number, shorter ones 4; the width does not change the order."""
    count, out = 1000, {4: np.empty(1000, np.int64), 8: np.empty(1000, np.int64)}
    for width, order in out.items():
        swapped = np.zeros(count, f"i{width}")
        address = ffi.cast("void *", swapped.ctypes.data)
        for first in (0, 600):
            to = order[first : first + 600]
            core.gd_shuffle(address, width, count, 5, first, len(to), pointer(to))
    assert out[4].tolist() == out[8].tolist()
    # The last three of 2^40 numbers: the call accesses no memory before them.
    first, last, places = (1 << 40) - 3, np.empty(3, np.int64), np.zeros(3, np.int64)
    address = ffi.cast("void *", places.ctypes.data - first * places.itemsize)
    core.gd_shuffle(address, 8, 1 << 40, 5, first, 3, pointer(last))
    assert sorted(last - first) == [0, 1, 2]

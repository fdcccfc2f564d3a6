"""Input nodes and edges, and the plain schedules: which seeds a batch has, and in which order."""

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
from gnndrive.sampling.schedules.base import InputEdges, InputNodes, ScheduleContext
from gnndrive.sampling.schedules.given import Given
from gnndrive.sampling.schedules.recorded import Recorded
from gnndrive.sampling.schedules.shuffled import Shuffled
from tests.sampling.schedules.test_conformance import order, with_recording

COUNT = 5
IDS = torch.tensor([30, 10, 20, 50, 40])
TIMES = torch.tensor([3, 1, 2, 5, 4])


def ends(at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return at + 100, at + 200, at


INPUTS: dict[str, Callable[[], InputNodes | InputEdges]] = {
    "all": lambda: InputNodes(COUNT, time=TIMES),
    "ids": lambda: InputNodes(COUNT, IDS.clone(), time=TIMES),
    "mask": lambda: InputNodes(COUNT, IDS.clone(), by_position=False, time=TIMES),
    "edges": lambda: InputEdges(COUNT, ends, "edges", label=IDS, time=TIMES),
}


def sampler_input(seeds: Seeds) -> Any:
    assert seeds.given is not None
    return seeds.given()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("inputs", "node", "input_id"),
    [
        ("all", [4, 0, 4], [4, 0, -1]),
        ("ids", [40, 30, 40], [4, 0, -1]),
        ("mask", [40, 30, 40], [40, 30, 40]),
        ("edges", [104, 100, 104, 204, 200, 204], [4, 0, 4]),
    ],
)
def test_seeds_at_positions(inputs, node, input_id, dtype):
    """As in tensor indexing. As in PyG, `input_id` is the position as the caller gave it, or for a
    mask the node id."""
    edges, position = inputs == "edges", np.array([4, 0, -1], dtype)
    source = INPUTS[inputs]()
    seeds = source.seeds(7, position)
    assert (seeds.index, seeds.of_edges, seeds.type) == (7, edges, None)
    assert seeds.input_id.tolist() == input_id
    assert seeds.node.dtype == seeds.input_id.dtype == np.int64
    given = sampler_input(seeds)
    assert given.time.tolist() == [4, 3, 4]
    if edges:
        assert torch.cat([given.row, given.col]).tolist() == node
        assert given.label.tolist() == [40, 30, 40]
    else:
        assert seeds.node.tolist() == given.node.tolist() == node
        assert given.input_id.tolist() == input_id
    for wrong in ([COUNT], [0, -COUNT - 1], [2**40]):
        with pytest.raises(IndexError, match=f"out of range: there are {COUNT}"):
            source.seeds(0, np.array(wrong))
    none = source.seeds(0, np.empty(0, np.int64))
    assert len(none.node) == len(none.input_id) == len(sampler_input(none).input_id) == 0
    # What is written to a sampler's input changes no positions, seeds or inputs.
    kept = seeds.node.copy()
    for each in (given.input_id, given.time):
        each.fill_(-9)
    assert position.tolist() == [4, 0, -1]
    for each in (seeds, source.seeds(0, position)):
        assert each.node.tolist() == kept.tolist()
    assert TIMES.tolist() == [3, 1, 2, 5, 4]


def test_ids_are_pickled_once():
    node = torch.arange(10_000)
    assert len(pickle.dumps(InputNodes(len(node), node))) < 1.5 * node.nbytes


def test_a_batch_samplers_batch():
    for batch in ([3, 0], torch.tensor([[3], [0]]), np.array([3, 0], np.int32)):
        (window,) = Given(INPUTS["ids"](), [batch]).windows(0)
        assert [seeds.node.tolist() for seeds in window.batches] == [[50, 30]]


# ---- shuffled


def shuffled(count: int, size: int, seed: int = 3, drop_last: bool = False) -> Shuffled:
    return Shuffled(InputNodes(count), size, True, drop_last, seed)


def test_an_order_does_not_depend_on_the_batch_size():
    """Also in batches so large that their order is drawn without the GIL."""
    whole = order(shuffled(20_001, 20_000))
    assert sorted(whole) == list(range(20_001))
    assert order(shuffled(20_001, 7)) == order(shuffled(20_001, 20_001)) == whole
    assert order(shuffled(20_001, 300, drop_last=True)) == whole[:19_800]


def test_an_order_equals_that_of_the_version_before():
    """If this order changes, raise `gnndrive.loader.epoch_state.VERSION`: else a loader that is
    restored from a saved state would continue in another order."""
    assert (VERSION, order(shuffled(10, 3))) == (3, [1, 5, 9, 6, 2, 7, 4, 8, 0, 3])


def test_an_order_takes_memory_as_it_is_made():
    """The first thousand of 2^28 numbers (1 GiB) touch a thousand pages of 4 KiB, also on a kernel
    that uses huge pages by default."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    before, windows = resident(), shuffled(1 << 28, 1000).windows(0)
    next(windows)
    assert resident() - before < 100 << 20


def test_an_order_larger_than_memory_is_refused():
    with pytest.raises(ConfigError, match=r"order of 8,796,.* input nodes .*shuffle=False"):
        next(shuffled(1 << 43, 1000).windows(0))


def test_every_order_is_as_likely_as_the_others():
    """Each of the 24 orders of four is expected 50 times in 1,200 seeds: chi-squared with 23
    degrees of freedom exceeds 50 once in a thousand times."""
    found = Counter(tuple(order(shuffled(4, 2, seed))) for seed in range(1200))
    assert len(found) == factorial(4)
    assert sum((times - 50) ** 2 / 50 for times in found.values()) < 50


@pytest.mark.parametrize("core", [lib, holding_gil], ids=["lib", "holding_gil"])
def test_orders_of_more_than_an_int32_can_count(core):
    """They take 8 bytes for each number, shorter ones 4; the width does not change the order."""
    count, out = 1000, {4: np.empty(1000, np.int64), 8: np.empty(1000, np.int64)}
    for width, numbers in out.items():
        swapped = np.zeros(count, f"i{width}")
        address = ffi.cast("void *", swapped.ctypes.data)
        for first in (0, 600):
            to = numbers[first : first + 600]
            core.gd_shuffle(address, width, count, 5, first, len(to), pointer(to))
    assert out[4].tolist() == out[8].tolist()
    # The last three of 2^40 numbers: the call accesses no memory before them.
    first, last, places = (1 << 40) - 3, np.empty(3, np.int64), np.zeros(3, np.int64)
    address = ffi.cast("void *", places.ctypes.data - first * places.itemsize)
    core.gd_shuffle(address, 8, 1 << 40, 5, first, 3, pointer(last))
    assert sorted(last - first) == [0, 1, 2]


# ---- recorded

BATCHES, EPOCHS = 11, 3


def replayed(epoch: int, shuffle: bool = True, seed: int = 5) -> list[Any]:
    """Which batches are replayed, of three recorded epochs of eleven batches."""
    context = ScheduleContext(InputNodes(105), 10, shuffle, False, seed)
    return order(Recorded.make(with_recording(context, EPOCHS)), epoch)


@pytest.mark.parametrize("epoch", [0, 2, 3, 7])
def test_an_epoch_replays_one_recording(epoch):
    """As it was recorded the first time or if it is not shuffled."""
    first = epoch % EPOCHS * BATCHES
    recorded = list(range(first, first + BATCHES))
    assert replayed(epoch, shuffle=False) == sorted(replayed(epoch)) == recorded
    assert (replayed(epoch) == recorded) is (epoch < EPOCHS)
    assert (replayed(epoch) == replayed(epoch, seed=6)) is (epoch < EPOCHS)


def test_nothing_is_replayed_without_a_pack():
    with pytest.raises(ConfigError, match="gnndrive pack"):
        Recorded.make(ScheduleContext(InputNodes(105), 10))

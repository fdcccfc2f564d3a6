"""passes="auto": one in the first epoch, then as many as loading a window takes the time of."""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from typing import Any

import pytest
from torch_geometric.data import Data

from gnndrive import NeighborLoader
from gnndrive.common.errors import ConfigError
from gnndrive.loader.megabatches import PASSES_MAX, passes_for
from tests.loader.batches import assert_same
from tests.loader.ranks.conftest import as_rank
from tests.loader.windows.conftest import Make
from tests.loader.windows.stores import NODES, WINDOWS, inputs_of

__all__ = ["as_rank"]


def measured(loader: NeighborLoader, load_s: float, compute_s: float = 1.0) -> None:
    """Have each window of the loader taken so many seconds."""
    assert loader._runtime is not None
    seconds = loader._runtime.counters.window_seconds
    assert len(seconds) % WINDOWS == 0
    assert all(load > 0 and compute > 0 for load, compute in seconds)
    loader._runtime.counters.window_seconds = deque([(load_s, compute_s)] * len(seconds))


@pytest.mark.parametrize(
    ("seconds", "passes"),
    [
        ([], None),
        ([(1.0, 1.0)], 1),
        ([(0.0, 1.0)], 1),
        ([(0.5, 1.0)], 1),
        ([(2.99, 1.0)], 2),
        ([(3.0, 1.0)], 3),
        ([(8.0, 1.0)], 8),
        ([(100.0, 1.0)], 8),
        ([(1.0, 0.0)], PASSES_MAX),
        ([(0.0, 0.0)], PASSES_MAX),
        ([(1.0, 5e-324)], PASSES_MAX),
        ([(4.0, 1.0), (100.0, 90.0), (0.1, 0.9)], 4),
        ([(4.0, 1.0), (6.0, 3.0)], 2),
    ],
)
def test_passes_follow_from_medians(seconds: list[tuple[float, float]], passes: int | None) -> None:
    assert passes_for(seconds) == passes


@pytest.mark.parametrize("load_s", [0.3, 3.7, math.inf])
def test_the_first_epoch_decides(make: Make, load_s: float) -> None:
    loader, passes = make(passes="auto"), min(max(int(min(load_s, 99)), 1), PASSES_MAX)
    once = len(loader)
    assert once == len(make())
    first = list(loader)
    for one, other in zip(first, make(), strict=True):
        assert_same(one, other)
    measured(loader, load_s)
    for _ in range(2):
        assert len(loader) == passes * once
        batches = list(loader)
        assert len(batches) == passes * once
        found = Counter(number for each in inputs_of(batches) for number in each)
        assert found == Counter(dict.fromkeys(range(NODES), passes))
        measured(loader, 99.0)  # changes nothing any more


def test_an_epoch_that_is_broken_off_decides_nothing(make: Make) -> None:
    loader = make(passes="auto")
    once = len(loader)
    iterator = iter(loader)
    next(iterator)
    assert len(loader) == once
    iterator.close()
    assert len(loader) == len(list(loader)) == once
    assert loader._runtime is not None
    loader._runtime.counters.window_seconds = deque([(2.0, 1.0)])
    assert len(loader) == 2 * once


def resumed(make: Make, loader: NeighborLoader, **more: Any) -> NeighborLoader:
    state = json.loads(json.dumps(loader.state_dict()))
    other = make(passes="auto", **more)
    other.load_state_dict(state)
    return other


def test_a_resumed_loader_has_the_same_passes(make: Make) -> None:
    loader = make(passes="auto")
    once = len(loader)
    list(loader)
    measured(loader, 3.0)
    between = resumed(make, loader)
    assert len(between) == 3 * once
    iterator = iter(loader)
    begun = [next(iterator) for _ in range(2 * once)]
    middle = resumed(make, loader, samplers=1)
    rest = list(iterator)
    assert len(begun) + len(rest) == 3 * once
    for one, other in zip(middle, rest, strict=True):
        assert_same(one, other)
    following = list(loader)
    for each in (middle, resumed(make, middle)):
        assert len(each) == 3 * once
    for one, other in zip(middle, following, strict=True):
        assert_same(one, other)
    whole = [*begun, *rest]
    for one, other in zip(between, whole, strict=True):
        assert_same(one, other)


def test_a_state_of_the_first_epoch(make: Make) -> None:
    """Its epoch has one pass, whatever the loader that goes on has decided before."""
    whole = list[Data](make())
    saving = make(passes="auto")
    iterator = iter(saving)
    begun = [next(iterator) for _ in range(5)]
    state = saving.state_dict()
    fresh, decided = make(passes="auto"), make(passes="auto")
    list(decided)
    measured(decided, 4.0)
    assert len(decided) == 4 * len(whole)
    for loader in (fresh, decided):
        loader.load_state_dict(state)
        assert len(loader) == len(whole)
        for one, other in zip([*begun, *loader], whole, strict=True):
            assert_same(one, other)


def test_ranks_give_a_number(make: Make, as_rank: Any) -> None:
    as_rank(0, 2)
    loader = make(passes="auto", ranks=True)
    with pytest.raises(ConfigError, match="all ranks have to yield as many batches: give a number"):
        len(loader)
    assert len(make(passes=2, ranks=True)) > 0


@pytest.mark.parametrize("passes", [0, -1, 1.5, "many", [1]])
def test_other_values_are_refused(make: Make, passes: Any) -> None:
    with pytest.raises(ConfigError, match="passes"):
        make(passes=passes)

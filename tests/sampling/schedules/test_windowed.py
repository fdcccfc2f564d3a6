"""Windows are cut into as many batches as an epoch has, however the seeds lie in them."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnndrive.sampling.schedules._parts import InputParts, KeptParts
from gnndrive.sampling.schedules._windowed import cut, epoch_length, least
from gnndrive.sampling.schedules.base import InputNodes
from tests.sampling.schedules.parts import Parts, edges_between

WINDOWS = st.lists(st.integers(1, 60), min_size=1, max_size=8)


@given(seeds=WINDOWS, batch_size=st.integers(1, 70), empty=st.integers(0, 5))
def test_the_length_of_an_epoch_can_always_be_reached(
    seeds: list[int], batch_size: int, empty: int
) -> None:
    total, each, windows = sum(seeds), np.array(seeds), len(seeds) + empty
    length = epoch_length(total, batch_size, windows, drop_last=False)
    assert least(each, batch_size, False).sum() <= length <= total
    assert least(each, batch_size, True).sum() >= epoch_length(total, batch_size, windows, True)


@pytest.mark.parametrize("drop_last", [False, True])
def test_an_epoch_without_seeds_has_no_batches(drop_last: bool) -> None:
    assert epoch_length(0, 10, 4, drop_last) == 0
    assert cut(np.empty(0, np.int64), 10, 0, drop_last) == []


@given(seeds=WINDOWS, batch_size=st.integers(1, 70), more=st.integers(0, 40))
def test_windows_are_cut_as_evenly_as_their_batches_allow(
    seeds: list[int], batch_size: int, more: int
) -> None:
    """No window could give up a batch and leave the largest batches smaller."""
    total = int(least(np.array(seeds), batch_size, False).sum()) + more
    counts = cut(np.array(seeds), batch_size, total, drop_last=False)
    assert sum(counts) == total
    needed = least(np.array(seeds), batch_size, False).tolist()
    largest = max(size / count for size, count in zip(seeds, counts, strict=True))
    for size, count, own in zip(seeds, counts, needed, strict=True):
        assert count >= own
        assert count == own or size / (count - 1) >= largest
        # Nor are there empty batches while other windows have batches of several seeds.
        assert count <= size or largest <= 1


@given(seeds=WINDOWS, batch_size=st.integers(1, 70), data=st.data())
def test_dropping_takes_batches_of_the_windows_that_have_most(
    seeds: list[int], batch_size: int, data: Any
) -> None:
    whole = least(np.array(seeds), batch_size, True).tolist()
    total = data.draw(st.integers(0, sum(whole)))
    counts = cut(np.array(seeds), batch_size, total, drop_last=True)
    assert sum(counts) == total
    for own, count in zip(whole, counts, strict=True):
        assert 0 <= count <= own
        assert count == own or max(counts) <= count + 1


# ---- the inputs by partition


def brute_force(keys: list[int]) -> list[tuple[int, list[int]]]:
    return [(key, [at for at, own in enumerate(keys) if own == key]) for key in sorted(set(keys))]


def as_list(parts: InputParts) -> list[tuple[int, list[int]]]:
    cut_at = np.split(parts.positions, parts.bounds[1:-1]) if len(parts.keys) else []
    return [(key, at.tolist()) for key, at in zip(parts.keys.tolist(), cut_at, strict=True)]


@given(node=st.lists(st.integers(0, 29), max_size=60), count=st.integers(1, 9))
def test_nodes_are_found_by_their_partitions(node: list[int], count: int) -> None:
    partitioned = Parts.spread(count, 30)
    inputs = InputNodes(len(node), torch.tensor(node, dtype=torch.int64))
    found = inputs.parts(partitioned)
    assert as_list(found) == brute_force(partitioned.part[node].tolist())
    assert found.positions.dtype == np.int32
    assert as_list(InputNodes(30).parts(partitioned)) == brute_force(partitioned.part.tolist())


@given(
    ends=st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=60),
    count=st.integers(1, 9),
)
def test_edges_are_found_by_the_partitions_of_both_ends(
    ends: list[tuple[int, int]], count: int
) -> None:
    partitioned = Parts.spread(count, 30)
    source, target = np.array(ends, np.int64).reshape(-1, 2).T.copy()
    found = edges_between(source, target).parts(partitioned)
    keys = partitioned.part[source] * count + partitioned.part[target]
    assert as_list(found) == brute_force(keys.tolist())


def test_more_inputs_than_are_looked_up_together() -> None:
    node, partitioned = np.random.default_rng(1).permutation(200_000), Parts.spread(50)
    found = InputNodes(len(node), torch.from_numpy(node)).parts(partitioned)
    part = partitioned.part[node]
    assert len(partitioned.asked) == 4
    assert found.positions.tolist() == np.argsort(part, kind="stable").tolist()
    assert np.diff(found.bounds).tolist() == np.bincount(part).tolist()


def test_partitions_are_found_once_for_a_loader() -> None:
    """By threads that ask at the same time too; a copy of the inputs in another process finds them
    again, because that takes less than to send them."""
    inputs, partitioned = InputNodes(1000), Parts.spread(8)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(inputs.parts, [partitioned] * 8))
    assert sum(partitioned.asked) == 1000
    assert all(each is found[0] for each in found)
    assert len(pickle.dumps(inputs)) < 1000
    assert as_list(pickle.loads(pickle.dumps(inputs)).parts(partitioned)) == as_list(found[0])
    assert sum(partitioned.asked) == 2000


def test_one_thread_at_a_time_looks_for_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, held = KeptParts(), [False]

    class Noted:
        def __enter__(self) -> None:
            held[0] = True

        def __exit__(self, *raised: object) -> None:
            held[0] = False

    def find() -> InputParts:
        assert held[0]
        return InputNodes(5).parts(Parts.spread(2))

    monkeypatch.setattr(kept, "_lock", Noted())
    assert kept.get(Parts.spread(2), find).positions.tolist()
    assert not held[0]


def test_another_partitioned_store_has_partitions_of_its_own() -> None:
    inputs, few, many = InputNodes(100), Parts.spread(2), Parts.spread(7)
    assert inputs.parts(few).keys.tolist() == [0, 1]
    assert inputs.parts(many).keys.tolist() == list(range(7))

"""Several iterators at once: each has a feature buffer of its own, so none waits for another."""

import asyncio
import re
import threading
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gnndrive import ClosedError, ConfigError, NeighborLoader
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.common.memory import parse_size
from tests.loader.conftest import Make


def test_two_iterators_in_one_thread(make: Make, data: Data) -> None:
    for one, other in zip(loader := make(), loader, strict=True):
        assert torch.equal(one.input_id, other.input_id)
        for batch in (one, other):
            assert torch.equal(batch.x, data.x[batch.n_id])


def test_each_iterator_has_a_buffer_of_its_own(make: Make) -> None:
    loader = make()
    iterators = [iter(loader) for _ in range(3)]
    for _ in range(len(loader)):
        for iterator in iterators:
            next(iterator)
    running = [iterator._run.epoch.buffer for iterator in iterators]
    assert len({id(buffer) for buffer in running}) == 3
    assert running[0].tables["nodes/x"].slots == loader.plan().slots


def test_closing_the_loader_retires_all_buffers(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    retired: list[FeatureBuffer] = []
    monkeypatch.setattr(FeatureBuffer, "retire", lambda self: retired.append(self))
    loader = make()
    iterators = [iter(loader) for _ in range(3)]
    buffers = [iterator._run.epoch.buffer for iterator in iterators]
    iterators[0].close()
    assert not retired, "the next epoch may use the rows that it holds"
    loader.close()
    assert retired == buffers[1:]


def test_an_iterator_is_refused_if_the_loader_is_closed_while_it_waits(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the end of a dropped iterator, whose buffer it would use."""
    inside, go_on, wait = threading.Event(), threading.Event(), asyncio.wait

    def held(batch: Any) -> Any:
        inside.set()
        go_on.wait()
        return batch

    loader = make(transform=held)
    dropped = iter(loader)
    runtime = dropped._runtime
    closing: list[asyncio.Future[None]] = []

    def closed_meanwhile(tasks: Any) -> Any:
        if not closing and list(tasks) == list(runtime._tasks.values()):
            closing.append(asyncio.ensure_future(runtime._free_once()))
            go_on.set()
        return wait(tasks)

    inside.wait()
    monkeypatch.setattr(asyncio, "wait", closed_meanwhile)
    runtime.drop(dropped._run)
    with pytest.raises(ClosedError):
        iter(loader)
    assert closing
    loader.close()


def test_nested_loops(make: Make, data: Data) -> None:
    loader = make(input_nodes=range(64))
    pairs = 0
    for outer in loader:
        for inner in loader:
            assert torch.equal(inner.x, data.x[inner.n_id])
            pairs += 1
        assert torch.equal(outer.x, data.x[outer.n_id])
    assert pairs == 16


def tight(make: Make, **arguments: Any) -> NeighborLoader:
    """A loader whose memory is just enough for one iterator."""
    plan = make(buffer="40KB").plan()
    return make(buffer="40KB", memory=plan.total_bytes, **arguments)


def test_a_second_iterator_that_does_not_fit_is_refused(make: Make) -> None:
    loader = tight(make)
    first = iter(loader)
    next(first)
    with pytest.raises(ConfigError, match="a second live iterator needs a feature buffer"):
        iter(loader)
    assert sum(1 for _ in first) == len(loader) - 1
    assert sum(1 for _ in loader) == len(loader)


def test_as_many_iterators_as_memory_holds(make: Make) -> None:
    """Each further one is counted; closing one makes room for another."""
    stages = {"samplers": 4, "extracting_queue": 6, "training_queue": 4}
    least = make(buffer="40KB", **stages).plan().total_bytes
    alone = make(buffer="40KB", memory=least + 10_000, **stages)
    first = iter(alone)
    with pytest.raises(ConfigError) as refused:
        iter(alone)
    words = re.search(r"of its own, (.+?), and memory", str(refused.value))
    assert words is not None
    more = parse_size(words[1], "more")
    first.close()
    loader = make(buffer="40KB", memory=alone.plan().total_bytes + 2 * more + 1000, **stages)
    live = [iter(loader) for _ in range(3)]
    with pytest.raises(ConfigError, match="a second live iterator"):
        iter(loader)
    live.pop().close()
    live.append(iter(loader))
    assert [sum(1 for _ in iterator) for iterator in live] == [len(loader)] * 3


def test_breaking_off_frees_the_buffer_for_the_next(make: Make) -> None:
    loader = tight(make)
    for _ in range(20):
        for batch in loader:
            assert batch.batch_size == 16
            break
    for _ in range(5):
        iter(loader)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        for batch in loader:
            batch.batch_size / 0
    assert sum(1 for _ in loader) == len(loader)

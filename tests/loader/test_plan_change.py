"""Iterators that begin or run while another one has the plan changed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gnndrive import ConfigError
from gnndrive.loader.buffer_pool import BufferPool
from gnndrive.loader.epoch_assembly import EpochAssembly
from gnndrive.loader.plan_change import PlanChange
from gnndrive.loader.runtime import Runtime
from tests.loader.test_larger_batches import ROOM, Make, least, make, sizes, store

__all__ = ["make", "store"]


def test_an_iterator_that_begins_while_the_plan_changes_waits(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its buffer would be freed while it is lent."""
    expected = sizes(make(buffer="10MB"))
    loader = make(memory=2 * (least(make) + ROOM))
    begun: list[Any] = []
    waits, threads = threading.Event(), []
    settled, measure, close = PlanChange.settled, EpochAssembly._measure, BufferPool._close_buffer

    def begin() -> None:
        begun.append(iter(loader))
        waits.set()

    async def noted(self: PlanChange) -> None:
        waits.set()
        await settled(self)

    def measured(self: EpochAssembly, *given: Any) -> Any:
        if not threads:
            threads.append(threading.Thread(target=begin))
            threads[0].start()
            waits.wait()
        return measure(self, *given)

    def closed(self: BufferPool, buffer: Any) -> Any:
        assert buffer not in self._lent
        return close(self, buffer)

    monkeypatch.setattr(PlanChange, "settled", noted)
    monkeypatch.setattr(EpochAssembly, "_measure", measured)
    monkeypatch.setattr(BufferPool, "_close_buffer", closed)
    batches = iter(loader)
    found = [next(batches).num_nodes for _ in range(36)]
    try:
        found.append(next(batches).num_nodes)
    finally:
        threads[0].join()
    assert found == expected[:37]
    batches.close()
    assert [batch.num_nodes for batch in begun[0]] == expected


def test_what_changes_the_plan_begins_no_epoch(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler that is asked for a batch's size may do this, and would wait for itself."""
    loader = make(memory=least(make) + ROOM)
    with monkeypatch.context() as patched:
        patched.setattr(EpochAssembly, "_measure", lambda *given: iter(loader))
        with pytest.raises(ConfigError, match="own threads"):
            list(loader)
    assert sum(batch.batch_size for batch in loader) == 400


def test_after_a_refusal_an_epoch_that_begins_alone_counts_the_larger_batch(make: Make) -> None:
    expected = sizes(make(buffer="10MB"))
    loader = make(memory="60MB", buffer="330KB")
    running, refused = iter(loader), iter(loader)
    with pytest.raises(ConfigError, match="close the other iterator"):
        list(refused)
    rows = loader.plan().batch_rows_max
    del running
    again, other = iter(loader), iter(loader)
    assert loader.plan().batch_rows_max > rows
    found = [next(other).num_nodes for _ in range(37)]
    assert found == expected[:37], "the larger batch that was refused comes, beside another epoch"
    again.close()
    other.close()


def test_an_epoch_whose_iterator_was_dropped_is_waited_for(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ending, and uses its buffer no longer."""
    expected = sizes(make(buffer="10MB"))
    loader = make(memory="60MB", buffer="330KB")
    iterators, change = [iter(loader), iter(loader)], Runtime.changing_plan
    batches = iterators[1]

    def changing(self: Runtime) -> Any:
        del iterators[:]
        return change(self)

    monkeypatch.setattr(Runtime, "changing_plan", changing)
    assert sizes(batches) == expected
